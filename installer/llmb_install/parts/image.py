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
from llmb_common.base.programs import run_program
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
    """A container image (``*.sqsh``) of an installation, with its receipt, a file with its source, size and hash.

    ``Installation.image`` makes the object. ``ensure``, where it is not complete or with ``anew``, imports it with
    Enroot, takes it from ``origin``, or adopts a whole file without a receipt; it returns whether anything was to
    do, and raises EnvironmentLacks where the image cannot be had, RecordError where its receipt cannot be written,
    and Interrupted where this process is ending. ``discard`` removes it. Nothing else changes anything.
    ``is_complete`` is the quick look, ``verify`` reads all of the file and returns what is wrong as a sentence, or
    None; ``ensure``, ``is_complete`` and ``verify`` raise ConfigError where others could have put the file there.
    ``room`` returns the disk space that an import needs (empty where the file is there), ``lacks`` the error that
    something is missing for it, not raised, both as lists. ``receipt`` returns the receipt as a dictionary, or
    None, and ``receipt_path`` where to write it. ``import_command`` returns the command line, word by word, that
    imports the image to a given file, ``show`` that line quoted. Those that look at files raise OSError where one
    or its folder cannot be used.

    Properties: ``id`` is ``image FILE``; ``install`` the installation's folder, or the bundle's, that it is imported
    for; ``is_private`` tells whether the image lies in there; ``root`` is the folder in which it is put together,
    ``inspector`` the ``Inspector`` that looks into it, and ``asked_for`` the name that Enroot asks for.

    Args:
        source: ``nvcr.io#nvidia/nemo:26.02.01``
        path: its file, which need not exist
        architecture: of the compute nodes, such as ``x86_64``
        receipts: the folder ``.llmb/receipts`` of the installation, for a receipt that cannot lie beside the image
        prefix: put before commands that should run on a compute node; empty: they run here
        space_check: False where the user asked for none
        env: Enroot's environment
        needs: ids of the parts that must be made before
        mirror: the registry, and the folder in it, that has the image at this site: HOST[:PORT][/FOLDER]; empty: none
        origin: the same image elsewhere, with its receipt, from where it is taken instead; None: it is imported
        key: the file with an NGC key given to LLMB, which need not exist
        download: bytes to download, estimated
        disk: bytes on disk, estimated
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
        """Whether the image's folder, links followed, lies in the installation, whose lock is enough then."""
        return self.path.parent.resolve().is_relative_to(self.install.resolve())

    @property
    def install(self) -> Path:
        """The folder of the installation, or of the bundle, that the image is imported for: two above ``receipts``."""
        return self.receipts.parent.parent

    @property
    def root(self) -> Path:
        """The folder in which the image is put together until it is whole, and whose lock guards that.

        It is the installation; or the image's own folder, where others write too, or where that is another file
        system.

        Raises:
            OSError: the image's folder is closed to this user
        """
        folder = self.path.parent
        return root_for(folder, self.install) if self.is_private else folder

    @property
    def inspector(self) -> Inspector:
        """What looks into this image's file: on this machine, or on a compute node where ``prefix`` leads there."""
        return Inspector(self.prefix)

    def receipt_path(self) -> Path:
        """Return where to write the image's receipt: beside it or, if this user cannot, in ``receipts``.

        Nothing is made. In both folders it has the name of the image with ``.receipt.json`` behind it.
        """
        beside, own = self._receipt_paths()
        return beside if os.access(self.path.parent, os.W_OK) else own

    def receipt(self) -> dict[str, Any] | None:
        """Return the image's receipt: one that fits the file's size and time, else any, that beside it first.

        Its keys are ``schema``, ``source``, ``architecture``, ``size`` in bytes, ``mtime_ns``, ``sha256``, ``adopted``
        (the file was there before), ``digest`` (the registry's, or None) and ``date`` (ISO 8601, UTC); they are not
        checked. None where there is none that can be read. One that does not fit is returned all the same.

        Raises:
            OSError: the image's folder is closed to this user
        """
        found = [receipt for receipt in map(read_receipt, self._receipt_paths()) if receipt]
        status = status_of(self.path)
        key = (status.st_size, status.st_mtime_ns) if status else None
        fitting = [receipt for receipt in found if (receipt.get("size"), receipt.get("mtime_ns")) == key]
        return next(iter([*fitting, *found]), None)

    def _receipt_paths(self) -> tuple[Path, Path]:
        """Return the two files in which the receipt may be: that beside the image, that in ``receipts``."""
        name = f"{self.path.name}.receipt.json"
        return self.path.with_name(name), self.receipts / name

    def room(self) -> list[Room]:
        """Return the disk space that importing the image takes; empty where the file is there, as it may be adopted.

        With an ``origin`` there is one entry, of that file's size. Where Enroot runs here, there is one for the image
        and one for the unpacked layers. Where a compute node imports there is one of 0 bytes: the node is asked for
        its own space only then.

        Raises:
            OSError: the file to take the image from cannot be looked at
        """
        if self.path.is_file():
            return []
        if self.origin:
            needed = self.origin.stat().st_size if self.origin.is_file() else 0
            return [Room(self.path.parent, needed, self.id)]
        if self.prefix:
            return [Room(self.path.parent, 0, self.id)]
        unpacked = Room(temporary_folder(self.env), UNPACKED_BYTES, f"unpacking {self.path.name}")
        return [Room(self.path.parent, IMAGE_BYTES, self.id), unpacked]

    def lacks(self) -> list[EnvironmentLacks]:
        """Return the error that Enroot or the file to take the image from is missing, in a list; empty: neither is.

        Empty also where the image file is there, whole or not, or a compute node imports, which is asked for Enroot
        only then. The error is not raised here. With an ``origin`` Enroot is not looked for; the file there must have
        its receipt beside it.
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
        """Return whether the image file and its receipt agree: size, time, source, architecture and superblock.

        Reads 96 bytes and not the whole file, which ``verify`` does. False: there is no file, no receipt, or another
        image's, or the file is damaged.

        Raises:
            ConfigError: the file lies where others could have put it
            OSError: the folder of the image is closed to this user
        """
        # A folder elsewhere is one that the settings name.
        named = None if self.path.is_relative_to(self.install) else self.path.parent
        require_trusted(self.path, self.install, named)
        receipt = self.receipt()
        if receipt is None or not self.path.is_file():
            return False
        status = self.path.stat()
        same_file = (receipt.get("size"), receipt.get("mtime_ns")) == (status.st_size, status.st_mtime_ns)
        same_source = (receipt.get("source"), receipt.get("architecture")) == (self.source, self.architecture)
        if not same_file or not same_source:
            return False
        try:
            check_superblock(self.path)
        except BadImage:
            return False
        return True

    def verify(self) -> str | None:
        """Return what is wrong with the image, by its receipt and the hash of all of it; None: nothing.

        The result is a sentence without a full stop. Nothing is changed.

        Raises:
            ConfigError: the file lies where others could have put it
            OSError: the file cannot be read
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
        """Import the image unless it is complete, or in any case if ``anew``; return False only where it was complete.

        A whole image without a receipt is adopted: it gets one; so is one whose content, but not its time, is as
        its receipt says. The old file stays until the new one takes its place. With an ``origin`` nothing is
        imported. ``reporter`` shows the step and logs what is run. True also where another installation has
        imported it while this one waited.

        Raises:
            EnvironmentLacks: the image could not be imported, with the cause, which Enroot does not always say
            ConfigError: the file lies where others could have put it
            RecordError: the receipt cannot be written
            OSError: a file cannot be read or written
            Interrupted: this process is ending
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
        """The name under which Enroot asks for the image, ``HOST#NAME:TAG``: its source, or that in the mirror.

        The mirror's folder and the source's name become the copy's name: with the mirror ``registry.site:5000/nvcr``
        it is ``registry.site:5000#nvcr/nvidia/nemo:26.02.01``.
        """
        host, slash, folder = self.mirror.partition("/")
        if not host:
            return self.source
        name = self.source.rpartition("#")[2]
        return f"{host}#{folder}{slash}{name}"

    def show(self) -> str:
        """Return what a dry run prints of the image: the command line that would import it, quoted for a shell.

        It is the same where the image is there already, or is taken from ``origin``.
        """
        return shlex.join(self.import_command(self.path))

    def import_command(self, output: Path) -> list[str]:
        """Return the command line, behind ``prefix``, that imports the image to the file ``output``; not run.

        It is a list of words: ``prefix``, then ``enroot``, ``import``, its options and, last, ``docker://`` with
        ``asked_for``. Nothing is looked at.
        """
        argv = ["enroot", "import", "--output", str(output), "--arch", self.architecture, f"docker://{self.asked_for}"]
        return [*self.prefix, *argv]

    def discard(self) -> None:
        """Remove the image file and its receipts; what is gone already is no error.

        Those in ``receipts`` and beside the image both go; the receipts go first. Whether others need the image is
        not looked at.

        Raises:
            OSError: a file cannot be removed
        """
        for receipt in self._receipt_paths():
            receipt.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)


def _adopt_file(image: Image, reporter: Reporter, step: Step) -> bool:
    """Adopt the image file that is there if its content is right, by writing a receipt; return whether it was right.

    With a receipt, right is what the receipt says, and all of the file is read for it: a copy has another time than
    the original, a damaged file too. Without one, every byte is unpacked once. In both cases its programs must be for
    the image's architecture. ``reporter`` tells the user what is wrong with the file, ``step`` what is being done.
    False also where there is no file. The image is not changed.

    Raises:
        RecordError: the receipt cannot be written
        EnvironmentLacks: a program to look into the image is missing or does not answer
        OSError: the file cannot be read, or the receipt's folder not be made
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
    """Raise unless ``receipt`` describes the image file's content, imported from the image's own source.

    Reads all of the file. Its time plays no part. What ``receipt`` lacks is wrong.

    Raises:
        BadImage: the receipt is for another source, architecture or content
        OSError: the file cannot be read
    """
    source, architecture = receipt.get("source"), receipt.get("architecture")
    if (source, architecture) != (image.source, image.architecture):
        raise BadImage(f"its receipt is for {source}, {architecture}")
    if receipt.get("size") != image.path.stat().st_size or receipt.get("sha256") != sha256_of(image.path):
        raise BadImage("its content is not what its receipt says")


def _receipt_beside(path: Path) -> dict[str, Any] | None:
    """Return the receipt in ``NAME.receipt.json`` beside the image file ``path``, which need not exist.

    None where there is no receipt that can be read.
    """
    return read_receipt(path.with_name(f"{path.name}.receipt.json"))


def _take_from(image: Image, origin: Path, step: Step) -> None:
    """Link or copy the image from the file ``origin`` to its place, with the receipt there, whose hash is compared.

    A hard link is made where both are on one file system. The file that was in its place is replaced. The receipt of
    ``origin`` lies beside it. The image's folder must be there, and locked where others write to it. ``step`` shows
    the progress.

    Raises:
        EnvironmentLacks: ``origin`` is not what its receipt says; that and the earlier image stay as they are
        RecordError: the receipt cannot be written
        OSError: the file cannot be read or written
    """
    fresh = unfinished(image.root, image.path.name)
    receipt = _receipt_beside(origin) or {}
    try:
        step.update(f"taking it from {origin.parent}")
        try:
            # An image has tens of gigabytes: a link takes no time and no space.
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

    Damaged layers in Enroot's cache are removed and fetched again, once. The image's folder must be there, and
    locked where others write to it. ``step`` shows the progress, ``reporter`` logs Enroot's output and prints
    notes. An earlier image stays until the new one takes its place.

    Raises:
        EnvironmentLacks: the image cannot be imported; what was unfinished is removed
        RecordError: the receipt cannot be written
        OSError: a file cannot be read or written
        Interrupted: this process is ending
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
    """Run Enroot's import of the image to ``output``; return how it ended, and the follower of its output.

    How it ended is a ``Finished``, the follower a ``Watch``. ``env``: Enroot's whole environment. ``step`` shows
    the progress, ``reporter`` logs the output. A failure is in the exit status, not raised.

    Raises:
        FileNotFoundError: the program is missing
        EnvironmentLacks: the folder to unpack in cannot be made
        OSError: the program cannot be started, or a link to that folder not be made
        Interrupted: this process is ending
    """
    unpacked: AbstractContextManager[Mapping[str, str]] = nullcontext({})
    if not image.prefix:  # else Enroot chooses where to unpack, and Slurm ends what it has started
        unpacked = import_folder(image.install, temporary_folder(env))
    with unpacked as variables:
        watch = enroot.Watch(step, lambda doing: enroot.progress_text(doing, output, cache_folder(env)))
        argv = image.import_command(output)
        return command.run(argv, reporter, env={**env, **variables}, on_line=watch), watch


def _missing_program_error(program: str) -> EnvironmentLacks:
    """Return the error that ``program``, such as ``enroot``, which imports images, is missing; not raised here."""
    return EnvironmentLacks(
        f"container images cannot be imported: {program} was not found",
        remedy="install Enroot here, import on a compute node with --install-method srun, or point --image-folder "
        "at a folder that has the images",
    )


def _write_receipt(image: Image, path: Path, *, adopted: bool, digest: str | None = None) -> None:
    """Write the image's receipt, for the content of the file ``path``, all of which is read for its hash.

    ``path`` is the image's own file, or that which is about to take its place. ``adopted``: the file was there
    before. ``digest``: the registry's name for the content, ``sha256:...``; None where it is unknown. An earlier
    receipt is replaced.

    Raises:
        RecordError: the receipt cannot be written
        OSError: the file cannot be read, or the receipt's folder not be made
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
    """Write ``receipt`` to the image's receipt file, ``Image.receipt_path``; its folder is made if missing.

    Raises:
        RecordError: the receipt cannot be written
        OSError: its folder cannot be made
    """
    target = image.receipt_path()
    target.parent.mkdir(parents=True, exist_ok=True)
    write_record(image.root if target.parent == image.path.parent else image.install, target, receipt)


def _open_as_folder(image: Image, file: Path) -> None:
    """Make ``file``, about to be the image, readable for those who may read the image's shared folder.

    The umask plays no part. They would import it anew otherwise. Does nothing for an image in the installation itself,
    or a file of somebody else.

    Raises:
        OSError: the file is missing
    """
    if not image.is_private:
        with contextlib.suppress(PermissionError):  # a link to somebody else's file
            own = file.stat().st_mode & 0o777
            readable = image.path.parent.stat().st_mode & 0o044
            file.chmod(own | readable)


def _require_open(image: Image) -> None:
    """Raise where the image file belongs to somebody else and is closed to this user: no reason to import it anew.

    A file that is missing passes, and so does this user's own.

    Raises:
        EnvironmentLacks: the file is closed; the message names its owner
        OSError: the image's folder is closed to this user
    """
    status = status_of(image.path)
    if status and status.st_uid != effective_user_id() and not os.access(image.path, os.R_OK):
        raise EnvironmentLacks(
            f"{image.path} belongs to {user_name(status.st_uid)} and is closed to you",
            remedy=f"ask its owner to run: chmod go+r {shlex.quote(str(image.path))}; or choose another --image-folder",
        )


@contextmanager
def _lock_image_folder(image: Image, reporter: Reporter) -> Iterator[None]:
    """Return a context that holds the lock of an image folder that others write to, too; waits two hours at most.

    The folder is the image's ``root``. What a killed import of this user has left there is removed first.
    ``reporter`` tells the user of the wait.

    Raises:
        EnvironmentLacks: the lock is closed to this user, or held for too long
        OSError: the folder is missing, or what is left there cannot be removed
    """
    folder = image.root
    open_as_folder(folder)
    with install_lock(folder, reporter, patience=_IMPORT_SECONDS):
        sweep(folder)
        for part in earlier_parts(folder, image.path.name):
            part.unlink(missing_ok=True)
        yield


def _require_writable(image: Image) -> None:
    """Make the image's folder if it is missing, and raise where the image cannot be written there.

    A folder that was made stays. Nothing else is written.

    Raises:
        EnvironmentLacks: the folder cannot be made or written, or a folder has the image's name
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
    """Raise where there is no room for the image, or for its layers where Enroot unpacks them.

    Where a compute node imports, its own view counts; one that says nothing passes. The image's ``space_check`` plays
    no part.

    Raises:
        EnvironmentLacks: there is too little space; the message says how much is needed and free
        OSError: the free space on this machine cannot be told
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
    """Return the bytes free in ``folder`` as a compute node sees it, by ``df``; None: it does not say.

    ``prefix``: the words that run a command on a compute node, beginning with ``srun``. Waits up to ten minutes. None
    also where the node does not see the folder.
    """
    answer = run_program([*prefix, "df", "-Pk", str(folder)], 600)
    if not answer.ok or not answer.output.strip():
        return None
    fields = answer.output.splitlines()[-1].split()
    if len(fields) < 4 or not fields[3].isdigit():
        return None
    return int(fields[3]) * 1024
