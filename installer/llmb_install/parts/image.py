"""Container images: imported with Enroot to a name of their own, checked, and only then given their real name.

The state of an image is its receipt (``<image>.receipt.json`` beside it, or in ``.llmb/receipts`` for a folder that
cannot be written): source, architecture, size, modification time, SHA-256, and the registry's digest, where Enroot can
tell it. A file that its receipt contradicts is imported again; one without a receipt is proven by its content or
replaced; name and existence prove nothing.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from llmb_common.base.errors import EnvironmentLacks
from llmb_common.base.files import effective_user_id, fsync_folder, require_trusted, sha256_of, status_of, user_name
from llmb_common.base.printable import size
from llmb_common.base.processes import run_program
from llmb_install.parts import enroot
from llmb_install.parts.credentials import cache_folder, configuration, temporary_folder
from llmb_install.parts.squashfs import BadImage, Inspector, OtherMachines, check_superblock
from llmb_install.working import command
from llmb_install.working.artefact import Artefact, Room, free_bytes, read_receipt
from llmb_install.working.reporter import Reporter, Step
from llmb_install.working.scratch import root_for, sweep, unfinished, write_record
from llmb_install.working.transaction import earlier_parts, import_folder, install_lock, open_as_folder

IMAGE_BYTES = 25_000_000_000
"""Room for one NeMo image (an estimate; the registry does not say before the download)."""
UNPACKED_BYTES = 60_000_000_000
"""Room for its unpacked layers in Enroot's temporary folder."""
_IMPORT_SECONDS = 7200.0
"""How long to wait for another installation that imports into the same folder."""


@dataclass(frozen=True)
class Image(Artefact):
    """A container image (``*.sqsh``) of an installation, with its receipt: the file that names its source, size and
    hash.

    Only ``ensure`` and ``discard`` change anything; ``ensure`` imports it with Enroot, takes it from ``origin``, or
    adopts a whole file without a receipt. ``source``: ``nvcr.io#nvidia/nemo:26.02.01``. ``prefix``: put before commands
    that should run on a compute node. ``receipts``: folder for the receipt where the image's own cannot be written.
    ``env``: Enroot's environment. ``mirror``: the registry, and the folder in it, that has the image at this site.
    ``origin``: the same image elsewhere, with its receipt, from where it is taken instead. ``key``: the file with an
    NGC key given to LLMB. ``space_check``: False where the user asked for none. ``download``, ``disk``: bytes that it
    is taken to need.
    """

    source: str
    path: Path
    architecture: str
    receipts: Path
    prefix: tuple[str, ...] = ()
    space_check: bool = True
    env: Mapping[str, str] = field(default_factory=lambda: os.environ, compare=False)
    needs: tuple[str, ...] = ()
    mirror: str = ""
    origin: Path | None = None
    key: Path = Path()
    download: int = IMAGE_BYTES
    disk: int = IMAGE_BYTES

    @property
    def id(self) -> str:
        """The name of the part in messages and in ``--json``: ``image FILE``."""
        return f"image {self.path.name}"

    @property
    def is_private(self) -> bool:
        """Whether the image lies in the installation itself, whose lock then is enough; not behind a link."""
        return self.path.parent.resolve().is_relative_to(self.install.resolve())

    @property
    def install(self) -> Path:
        """The folder of the installation, or of the bundle, that the image is imported for."""
        return self.receipts.parent.parent

    @property
    def root(self) -> Path:
        """The folder under which the image lies until it is whole, and whose lock guards that.

        The installation; or the image's own folder, where others write too, or where that is another file system.
        """
        folder = self.path.parent
        return root_for(folder, self.install) if self.is_private else folder

    @property
    def inspector(self) -> Inspector:
        """What looks into image files, where images are imported: on this machine or on a compute node."""
        return Inspector(self.prefix)

    def receipt_path(self) -> Path:
        """The file for the image's receipt: beside the image, or, if that folder is read-only, in ``receipts``."""
        beside, own = self._receipt_paths()
        return beside if os.access(self.path.parent, os.W_OK) else own

    def receipt(self) -> dict[str, Any] | None:
        """The image's receipt that fits the file's size and time, else the one beside it, else that in ``receipts``.

        None where there is none. One that does not fit is returned all the same.
        """
        found = [receipt for receipt in map(read_receipt, self._receipt_paths()) if receipt]
        status = status_of(self.path)
        key = (status.st_size, status.st_mtime_ns) if status else None
        fitting = [receipt for receipt in found if (receipt.get("size"), receipt.get("mtime_ns")) == key]
        return next(iter([*fitting, *found]), None)

    def _receipt_paths(self) -> tuple[Path, Path]:
        """The two files in which the image's receipt may be: beside the image, and in the installation."""
        name = f"{self.path.name}.receipt.json"
        return self.path.with_name(name), self.receipts / name

    def room(self) -> list[Room]:
        """The space that importing the image takes; empty where the file is there: it may be adopted.

        A compute node is asked for its own space when it imports.
        """
        if self.path.is_file():
            return []
        if self.origin:
            return [Room(self.path.parent, self.origin.stat().st_size if self.origin.is_file() else 0, self.id)]
        if self.prefix:
            return [Room(self.path.parent, 0, self.id)]
        unpacked = Room(temporary_folder(self.env), UNPACKED_BYTES, f"unpacking {self.path.name}")
        return [Room(self.path.parent, IMAGE_BYTES, self.id), unpacked]

    def lacks(self) -> list[EnvironmentLacks]:
        """What this machine lacks to import the image: Enroot, or the file to take it from; empty: nothing.

        Empty also where the file is there. Where a compute node imports, it is asked for Enroot only then.
        """
        if self.path.is_file():
            return []
        if self.origin is None:
            can_import = self.prefix or shutil.which("enroot", path=self.env.get("PATH"))
            return [] if can_import else [_missing_program_error("enroot")]
        if self.origin.is_file() and _receipt_beside(self.origin):
            return []
        return [
            EnvironmentLacks(
                f"the image {self.source} for {self.architecture} is not there: no {self.origin} with a receipt",
                remedy="make the bundle again with this workload, or copy it again, whole",
            )
        ]

    def is_complete(self) -> bool:
        """Whether the image file and its receipt are there and agree: size, time, source, architecture and
        superblock.

        Reads 96 bytes and not the whole file, which ``verify`` does. False: there is no file, no receipt, or another
        image's.

        Raises:
            ConfigError: the file lies where others could have put it
        """
        # A folder elsewhere is one that the settings name.
        named = None if self.path.is_relative_to(self.install) else self.path.parent
        require_trusted(self.path, self.install, named)
        receipt = self.receipt()
        if receipt is None or not self.path.is_file():
            return False
        status = self.path.stat()
        same = (receipt.get("size"), receipt.get("mtime_ns")) == (status.st_size, status.st_mtime_ns)
        if not same or (receipt.get("source"), receipt.get("architecture")) != (self.source, self.architecture):
            return False
        try:
            check_superblock(self.path)
        except BadImage:
            return False
        return True

    def verify(self) -> str | None:
        """What is wrong with the image, in words, by its receipt and the hash of all of it; None: nothing.

        Raises:
            ConfigError: the file lies where others could have put it
        """
        receipt = self.receipt()
        if not self.path.is_file():
            return f"{self.path} is missing"
        if receipt is None:
            return f"{self.path} has no receipt"
        try:
            check_superblock(self.path)
        except BadImage as problem:
            return f"{self.path} is damaged: {problem}"
        if not self.is_complete():
            return f"{self.path} does not match its receipt"
        return None if sha256_of(self.path) == receipt.get("sha256") else f"{self.path} has changed since its import"

    def ensure(self, reporter: Reporter, *, anew: bool = False) -> bool:
        """Import the image unless it is complete, or ``anew``; whether anything changed.

        A whole image without a receipt is adopted: it gets one. The old file stays until the new one takes its place.

        Raises:
            EnvironmentLacks: it could not be imported, with the cause, which Enroot does not always say.
        """
        if not anew and self.is_complete():
            return False
        with reporter.step(f"image {self.path.name}") as step:
            _require_open(self)
            if not anew and _adopt_file(self, reporter, step):
                return True
            _require_writable(self)
            with nullcontext() if self.root == self.install else _lock_image_folder(self, reporter):
                # Another installation may have imported it while we waited.
                if anew or not self.is_complete():
                    if self.origin:
                        _take_from(self, self.origin, step)
                        return True
                    if self.space_check:
                        _require_space(self)
                    _import_image(self, reporter, step)
        return True

    @property
    def asked_for(self) -> str:
        """The name under which Enroot asks for the image: its source, or its copy in the site's mirror."""
        host, slash, folder = self.mirror.partition("/")
        return f"{host}#{folder}{slash}{self.source.rpartition('#')[2]}" if host else self.source

    def show(self) -> str:
        """What a dry run prints: the command line that would import the image."""
        return shlex.join(self.import_command(self.path))

    def import_command(self, output: Path) -> list[str]:
        """The command line that imports the image to ``output``, on a compute node where that is wanted; not run."""
        argv = ["enroot", "import", "--output", str(output), "--arch", self.architecture, f"docker://{self.asked_for}"]
        return [*self.prefix, *argv]

    def discard(self) -> None:
        """Remove the image and its receipts; what is gone already is no error."""
        for receipt in self._receipt_paths():
            receipt.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)


def _adopt_file(image: Image, reporter: Reporter, step: Step) -> bool:
    """Take over the image file that is there if its content is right, by writing a receipt for it; whether it was.

    With a receipt, right is what the receipt says, and all of the file is read for it: a copy has another time than the
    original, a damaged file too. Without one, every byte is unpacked once. The user is told what is wrong with it.
    False also where there is no file.
    """
    if not image.path.exists():
        return False
    step.update("checking the file that is there")
    receipt = image.receipt()
    try:
        check_superblock(image.path)
        if receipt is not None:
            step.update("comparing it with its receipt")
            _require_agreement(image, receipt)
        image.inspector.check(image.path, image.architecture)
        if receipt is None:
            step.update("reading all of it")
            image.inspector.read_everything(image.path)
    except BadImage as problem:
        reporter.note(f"        {image.path} is unusable: {problem}")
        return False
    if receipt is None:
        step.update("reading it for its receipt")
        _write_receipt(image, image.path, adopted=True)
    else:
        _store_receipt(image, {**receipt, "mtime_ns": image.path.stat().st_mtime_ns})
    step.update(f"already there, {size(image.path.stat().st_size)}")
    return True


def _require_agreement(image: Image, receipt: Mapping[str, object]) -> None:
    """Refuse an image file unless ``receipt`` describes this very content, imported from the source that is wanted.

    Reads all of the file.

    Raises:
        BadImage: it does not
    """
    source, architecture = receipt.get("source"), receipt.get("architecture")
    if (source, architecture) != (image.source, image.architecture):
        raise BadImage(f"its receipt is for {source}, {architecture}")
    if receipt.get("size") != image.path.stat().st_size or receipt.get("sha256") != sha256_of(image.path):
        raise BadImage("its content is not what its receipt says")


def _receipt_beside(path: Path) -> dict[str, Any] | None:
    """The receipt in ``NAME.receipt.json`` beside the image file ``path``, which need not exist; None where there is
    none.
    """
    return read_receipt(path.with_name(f"{path.name}.receipt.json"))


def _take_from(image: Image, origin: Path, step: Step) -> None:
    """Link or copy the image from the file ``origin`` to its place, with the receipt there, whose hash is compared.

    Raises:
        EnvironmentLacks: ``origin`` is not what its receipt says; nothing is left of it
    """
    fresh = unfinished(image.root, image.path.name)
    receipt = _receipt_beside(origin) or {}
    try:
        step.update(f"taking it from {origin.parent}")
        try:
            fresh.hardlink_to(origin)
        except OSError:  # on another file system
            shutil.copyfile(origin, fresh)
        try:
            _require_agreement(replace(image, path=fresh), receipt)
        except BadImage as problem:
            raise EnvironmentLacks(
                f"{origin} is damaged: {problem}", remedy="copy it again: 'sha256sum -c SHA256SUMS' names what differs"
            ) from problem
        _open_as_folder(image, fresh)
        _store_receipt(image, {**receipt, "mtime_ns": fresh.stat().st_mtime_ns})
        fresh.replace(image.path)
        fsync_folder(image.path.parent)
        step.update(size(image.path.stat().st_size))
    finally:
        fresh.unlink(missing_ok=True)


def _import_image(image: Image, reporter: Reporter, step: Step) -> None:
    """Import the image beside its place, check it, and rename it into place with its receipt.

    Raises:
        EnvironmentLacks: it cannot be imported; what was unfinished is removed
    """
    folder, env = image.path.parent, image.env
    enroot.remove_abandoned(cache_folder(env))
    fresh = unfinished(image.root, image.path.name)
    host = image.asked_for.partition("#")[0]
    try:
        with configuration(host, image.key, env, image.install) as own:
            settings = {**env, **enroot.retry_variables(env), **own}
            step.update("asking for its digest")
            digest, why = enroot.digest_of(image.asked_for, image.architecture, image.prefix, settings)
            done, watch = _run_enroot(image, fresh, reporter, step, settings)
            if done.status != 0 and watch.was_unpacking and (broken := enroot.remove_broken(cache_folder(env))):
                for layer in broken:
                    reporter.note(f"        layer {layer} was damaged and is removed: importing again")
                done, watch = _run_enroot(image, fresh, reporter, step, settings)
        if done.status != 0:
            raise enroot.import_error(image.asked_for, done, watch, env, remote=bool(image.prefix))
        if not fresh.is_file():
            raise enroot.bad_image_error(image.asked_for, "there is none", watch)
        step.update("checking it")
        try:
            image.inspector.check(fresh, image.architecture)
        except BadImage as problem:
            for_others = isinstance(problem, OtherMachines)
            raise enroot.bad_image_error(image.asked_for, str(problem), watch, for_others=for_others) from problem
        step.update("reading it for its receipt")
        with fresh.open("rb") as stream:
            os.fsync(stream.fileno())
        _open_as_folder(image, fresh)
        # The receipt first: it fits nothing until the image has its name, so the rename completes both at once.
        _write_receipt(image, fresh, adopted=False, digest=digest)
        fresh.replace(image.path)
        fsync_folder(folder)
        if digest is None:
            reporter.note(f"        the digest of {image.path.name} is unknown: {why}")
        step.update(size(image.path.stat().st_size))
    except FileNotFoundError as error:
        raise _missing_program_error(str(error.filename)) from error
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink()


def _run_enroot(
    image: Image, output: Path, reporter: Reporter, step: Step, env: Mapping[str, str]
) -> tuple[command.Finished, enroot.Watch]:
    """Run Enroot's import of the image to ``output``; returns how it ended, and what it was seen to do.

    A failure is in the status, not raised.
    """
    unpacked: AbstractContextManager[Mapping[str, str]] = nullcontext({})
    if not image.prefix:  # else Enroot chooses where to unpack, and Slurm ends what it has started
        unpacked = import_folder(image.install, temporary_folder(env))
    with unpacked as variables:
        watch = enroot.Watch(step, lambda doing: enroot.progress_text(doing, output, cache_folder(env)))
        argv = image.import_command(output)
        return command.run(argv, reporter, env={**env, **variables}, on_line=watch), watch


def _missing_program_error(program: str) -> EnvironmentLacks:
    """The error that ``program``, with which images are imported, is missing."""
    return EnvironmentLacks(
        f"container images cannot be imported: {program} was not found",
        remedy="install Enroot here, import on a compute node with --install-method srun, or point --image-folder "
        "at a folder that has the images",
    )


def _write_receipt(image: Image, path: Path, *, adopted: bool, digest: str | None = None) -> None:
    """Write the image's receipt, for the content of ``path``, all of which is read for its hash.

    ``adopted``: the file was there before. ``digest``: the registry's name for the content; None where nobody has said
    it.
    """
    status = path.stat()
    receipt = {
        "schema": 1,
        "source": image.source,
        "architecture": image.architecture,
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "sha256": sha256_of(path),
        "adopted": adopted,
        "digest": digest,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    _store_receipt(image, receipt)


def _store_receipt(image: Image, receipt: Mapping[str, object]) -> None:
    """Write ``receipt`` as the image's, to ``Image.receipt_path``."""
    target = image.receipt_path()
    target.parent.mkdir(parents=True, exist_ok=True)
    write_record(image.root if target.parent == image.path.parent else image.install, target, receipt)


def _open_as_folder(image: Image, file: Path) -> None:
    """Let whoever may read a shared image folder read ``file``, the image, whatever the umask.

    Else they would import it anew. Does nothing for an image in the installation itself.
    """
    if not image.is_private:
        with contextlib.suppress(PermissionError):  # a link to somebody else's file
            file.chmod(file.stat().st_mode & 0o777 | image.path.parent.stat().st_mode & 0o044)


def _require_open(image: Image) -> None:
    """Refuse an image file that is somebody else's and closed to this user, which is no reason to import it anew.

    A file that is missing passes.

    Raises:
        EnvironmentLacks: it is closed; names its owner
    """
    status = status_of(image.path)
    if status and status.st_uid != effective_user_id() and not os.access(image.path, os.R_OK):
        raise EnvironmentLacks(
            f"{image.path} belongs to {user_name(status.st_uid)} and is closed to you",
            remedy=f"ask its owner to run: chmod go+r {shlex.quote(str(image.path))}; or choose another --image-folder",
        )


@contextmanager
def _lock_image_folder(image: Image, reporter: Reporter) -> Iterator[None]:
    """Hold the lock of an image folder that others write to as well, for at most two hours of waiting.

    What a killed import of this user has left there is removed first.

    Raises:
        EnvironmentLacks: the lock is closed to us or held for too long
    """
    folder = image.root
    open_as_folder(folder)
    with install_lock(folder, reporter, patience=_IMPORT_SECONDS):
        sweep(folder)
        for part in earlier_parts(folder, image.path.name):
            part.unlink(missing_ok=True)
        yield


def _require_writable(image: Image) -> None:
    """Make the image's folder, and refuse one in which the image cannot be written.

    Raises:
        EnvironmentLacks: it cannot be made or written, or a folder has the image's name
    """
    folder = image.path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentLacks(
            f"the image folder {folder} cannot be created: {error.strerror or error}",
            remedy="choose another --image-folder",
        ) from error
    if image.path.is_dir():
        raise EnvironmentLacks(f"{image.path} is a folder", remedy="move it away: an image is to have this name")
    if not os.access(folder, os.W_OK):
        state = "unusable" if image.path.exists() else "missing"
        raise EnvironmentLacks(
            f"{image.path} is {state}, and its directory is not writable",
            remedy="ask its owner to import the image, or choose another --image-folder",
        )


def _require_space(image: Image) -> None:
    """Refuse to import an image where there is no room for it, or for its layers where Enroot unpacks them.

    On a compute node that imports, it is the node's view that counts; one that says nothing passes.

    Raises:
        EnvironmentLacks: there is too little
    """
    for folder, needed, remedy in (
        (image.path.parent, IMAGE_BYTES, "choose another --image-folder"),
        (temporary_folder(image.env), UNPACKED_BYTES, "set ENROOT_TEMP_PATH to a folder with more room"),
    ):
        free = _free_on_node(folder, image.prefix) if image.prefix else free_bytes(folder)
        if free is not None and free < needed:
            where = " on the compute node" if image.prefix else ""
            raise EnvironmentLacks(
                f"importing {image.source} needs about {size(needed)} in {folder}{where}, and {size(free)} are free",
                remedy=f"{remedy}, or skip this check with --no-space-check",
            )


def _free_on_node(folder: Path, prefix: Sequence[str]) -> int | None:
    """Bytes free in ``folder`` as a compute node sees it, by ``df``; None where it does not say. Waits up to ten
    minutes.

    ``prefix``: the words that run a command on a compute node, as ``srun``.
    """
    answer = run_program([*prefix, "df", "-Pk", str(folder)], 600)
    fields = answer.output.splitlines()[-1].split() if answer.ok and answer.output.strip() else []
    return int(fields[3]) * 1024 if len(fields) >= 4 and fields[3].isdigit() else None
