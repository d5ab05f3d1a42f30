"""One file with everything about selected runs: records, scripts, logs, code; hashes of all of it, but no secrets.

Compression is that of the ``zstd`` program, which Enroot needs anyway and which uses all cores; a name that ends in
``.tar.gz`` needs nothing but Python. Checkpoints stay out, profiles too unless asked for, and so does what is not text:
a secret in it could not be masked, and Nsight's reports hold the job's environment.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from llmb_common import __version__
from llmb_common.base.errors import EnvironmentLacks, RecordError, RequestError
from llmb_common.base.files import read_plain, remedy_for
from llmb_common.base.words import is_secret_name
from llmb_common.causes.hangs import FLIGHT, dump_as_json
from llmb_common.runs.manifest import hash_of_packed
from llmb_common.runs.record import load_record

_LEFT_OUT = {"checkpoints", "__pycache__", ".lock"}
_PROFILES = "nsys_profile"
_CODE = "code.zip"
_UNREADABLE = set(".nsys-rep .qdrep .sqlite .zip .gz .zst .xz .bz2 .lz4 .7z .pt .npz .pkl".split())
"""Compressed and binary files by their names; others are known by the NUL bytes in them."""
_LOOK = 1 << 16
_MASK = b"****"
SECRET_SHAPES = re.compile(
    rb"\b(?:hf_[A-Za-z0-9]{16,}|nvapi-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    rb"|glpat-[A-Za-z0-9_-]{16,}|sk-[A-Za-z0-9_-]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16})"
    rb"|(?<=://)[^\s/:@]+:[^\s/@]+(?=@)"
)
"""Tokens of Hugging Face, NGC, GitHub, GitLab, Slack, AWS and others by their prefixes; user and password in a URL."""


@dataclass
class Archive:
    """An archive of runs that was written to ``path``, with what is in it. ``write_archive`` makes it.

    ``runs`` is their number, ``bytes`` the file's size. ``hashes``: SHA-256, as hexadecimal digits, by path in the
    archive. ``masked``: paths of files in which a secret was masked; files that were made for the archive, such as
    ``archive.json`` and JSON of NCCL's dumps, are never among them. Paths begin with the archive's top folder,
    which has the archive's name without ending.
    """

    path: Path
    runs: int
    bytes: int = 0
    hashes: dict[str, str] = field(default_factory=dict)
    masked: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Paths of files that were left out: they are not text, so that no secret could be masked."""
    newest: int = 0
    """When the newest of the packed files was last written, as Unix time."""


def check_archive(path: Path, *, overwrite: bool) -> None:
    """Raise if ``path`` cannot be the name of a new archive.

    So it is if it ends neither in ``.tar.zst`` nor in ``.tar.gz`` (in small letters), if something is there
    already, or if its folder is missing. ``overwrite``: what is there may be replaced, and is not looked at; a
    folder passes, too. Writes nothing, and does not check permissions.

    Raises:
        RequestError: no archive can have that name
    """
    if not path.name.endswith((".tar.zst", ".tar.gz")):
        raise RequestError(f"{path.name}: an archive is .tar.zst or .tar.gz", remedy="--output runs.tar.zst")
    if path.exists() and not overwrite:
        raise RequestError(f"{path} exists", remedy="choose another --output, or give --overwrite")
    if not path.parent.is_dir():
        raise RequestError(f"the folder {path.parent} does not exist", remedy="create it, or choose another --output")


def write_archive(
    path: Path,
    folders: Sequence[Path],
    summary: Any,
    *,
    profiles: bool = False,
    unmasked: bool = False,
    secrets: Sequence[str] = (),
    overwrite: bool = False,
    more: Mapping[str, bytes] | None = None,
) -> Archive:
    """Write the run folders ``folders`` into a compressed tar archive at ``path``, and return what is in it.

    A half-written archive is never seen under ``path``, and nothing is left behind after an error. The same files
    make the same archive, to the byte. Checkpoints, links, compiled Python and lock files are left out.

    Args:
        path: ends in ``.tar.zst`` or ``.tar.gz``
        folders: may be none; each is packed under its own name, so no two names may be equal, which is not checked
        summary: plain values for ``archive.json``, without NaN (ValueError); secrets in them are masked
        profiles: also reports of Nsight Systems
        unmasked: also files that are no text, in which secrets cannot be masked
        secrets: texts to mask as ``****``, beside the secrets in this environment; those of fewer than 8 characters are
            not masked
        overwrite: replace a file that is there
        more: further files by name, a path below the archive's top folder, in which the caller has masked what is
            secret; None: none

    Raises:
        RequestError: ``path`` cannot be the name of an archive, or exists
        EnvironmentLacks: the program zstd is needed, and missing
        RecordError: a file cannot be read, or the archive not written
    """
    check_archive(path, overwrite=overwrite)
    archive = Archive(path, len(folders))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with (
            temporary.open("xb") as target,
            _open_compressed(target, path) as stream,
            tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            packer = _Packer(tar, archive, Mask(secrets), unmasked=unmasked)
            for folder in folders:
                packer.add_run(folder, profiles=profiles)
            for name, content in (more or {}).items():
                packer.add_bytes(name, content)
            packer.close(summary)
        # On the disk before it gets its name.
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        archive.bytes = temporary.stat().st_size
        temporary.replace(path)
    except OSError as error:
        source = error.filename if error.filename not in (None, str(path), str(temporary)) else None
        what = f"cannot read {source}, so {path} was not written" if source else f"cannot write {path}"
        raise RecordError(f"{what}: {error.strerror or error}", remedy=remedy_for(error)) from error
    finally:
        temporary.unlink(missing_ok=True)
    return archive


class _Packer:
    """Adds files to an open ``tar``, below one folder with the archive's name, and notes them in ``archive``.

    ``mask`` masks their secrets. ``unmasked``: also files that are no text, in which secrets cannot be masked; else
    ``archive`` notes them as left out. Call ``add_run`` for each run's folder, without checkpoints and links
    (``profiles``: with the reports of Nsight Systems), ``add_bytes`` for further files (whose content the caller has
    masked; ``name`` is below the one folder), and
    ``close`` last, which adds the summary, masked, and the hashes; all return nothing, and raise ``OSError`` where
    a file cannot be read or written, ``close`` ``ValueError`` for NaN in the summary. The tar itself stays open.
    """

    def __init__(self, tar: tarfile.TarFile, archive: Archive, mask: Mask, *, unmasked: bool) -> None:
        self._tar = tar
        self._archive = archive
        self._mask = mask
        self._unmasked = unmasked
        self._top = archive.path.name.removesuffix(".tar.zst").removesuffix(".tar.gz")

    def add_run(self, folder: Path, *, profiles: bool) -> None:
        """Pack the files of a run's folder, with secrets masked; dumps of NCCL's flight recorder become JSON.

        A dump that cannot be read as one is packed like any file. Hidden files are packed, too. ``profiles``: also
        reports of Nsight Systems. Checkpoints and links are left out.

        Raises:
            OSError: a file cannot be read, or the archive not written
        """
        for file in _files_to_pack(folder, profiles=profiles):
            name = f"{folder.name}/{file.relative_to(folder).as_posix()}"
            if file.parent == folder / FLIGHT and (text := dump_as_json(file)):
                self.add_bytes(f"{name}.json", self._mask.text(text))
            else:
                self._add_file(file, name, is_code=file == folder / _CODE and _is_planned_code(folder))

    def close(self, summary: Any) -> None:
        """Add ``archive.json``, with the runs' ``summary`` masked, and ``SHA256SUMS``, which ``sha256sum -c`` reads.

        ``summary`` is plain values, as JSON has them. ``SHA256SUMS`` has the hashes of all other files. Nothing may
        be packed after it. The tar stays open.

        Raises:
            OSError: the archive cannot be written
            ValueError: ``summary`` contains NaN or an infinity
        """
        archive, below = self._archive, len(self._top) + 1
        about = {"schema": 1, "llmb": __version__, "newest": archive.newest, "runs": self._mask.value(summary)}
        about["left_out"] = [name[below:] for name in archive.left_out]
        self.add_bytes("archive.json", json.dumps(about, indent=2, allow_nan=False).encode())
        sums = "".join(_sum_line(digest, name[below:]) for name, digest in archive.hashes.items())
        self.add_bytes("SHA256SUMS", os.fsencode(sums))

    def add_bytes(self, name: str, content: bytes) -> None:
        """Pack ``content`` as the file ``name``, a path below the top folder.

        The caller has masked what is secret in it. The file's time is that of the newest file packed so far.

        Raises:
            OSError: the archive cannot be written
        """
        digest = hashlib.sha256(content).hexdigest()
        self._add(name, io.BytesIO(content), len(content), self._archive.newest, 0o644, digest)

    def _add_file(self, path: Path, name: str, *, is_code: bool) -> None:
        """Pack the file at ``path`` as ``name``, a path below the top folder, with its secrets masked.

        Time and permissions stay. A file in which some were masked is noted in the archive's ``masked``. One that
        is not text is left out, and noted in ``left_out``, unless it ``is_code`` or the packer takes unmasked
        files.

        Raises:
            OSError: the file cannot be read, or the archive not written
        """
        # A copy first: a log may grow while it is read, and tar must know the size before the content.
        with tempfile.TemporaryFile() as copy, path.open("rb") as source:
            text = not (_UNREADABLE & set(path.suffixes)) and b"\0" not in source.read(_LOOK)
            source.seek(0)
            if not text and not is_code and not self._unmasked:
                self._archive.left_out.append(f"{self._top}/{name}")
                return
            digest = hashlib.sha256()
            masked = False
            # By lines, so that no secret lies across two blocks; a file without line breaks is one.
            for block in source if text else iter(lambda: source.read(1 << 20), b""):
                clean = self._mask(block) if text else block
                masked = masked or clean != block
                digest.update(clean)
                copy.write(clean)
            status, size = os.fstat(source.fileno()), copy.tell()
            copy.seek(0)
            self._add(name, copy, size, int(status.st_mtime), stat.S_IMODE(status.st_mode), digest.hexdigest())
        self._archive.newest = max(self._archive.newest, int(status.st_mtime))
        if masked:
            self._archive.masked.append(f"{self._top}/{name}")

    def _add(self, name: str, content: IO[bytes], size: int, mtime: int, mode: int, digest: str) -> None:
        """Write one file into the archive, as ``name`` below its top folder, and note its SHA-256 ``digest``.

        ``content`` is read from where it stands; ``size`` is in bytes; ``mtime`` Unix time; ``mode`` the
        permissions. The digest is not checked.

        Raises:
            OSError: the archive cannot be written
        """
        info = tarfile.TarInfo(f"{self._top}/{name}")
        info.size = size
        info.mtime = mtime
        info.mode = mode
        self._tar.addfile(info, content)
        self._archive.hashes[info.name] = digest


def _sum_line(digest: str, name: str) -> str:
    """Return a line that ``sha256sum -c`` checks, with a newline, for the file ``name`` with the SHA-256 ``digest``.

    It begins with a backslash where the name had to be escaped.
    """
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n")
    begin = "\\" if escaped != name else ""
    return f"{begin}{digest}  {escaped}\n"


@contextmanager
def _open_compressed(target: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    """Open a writable stream that compresses into ``target``, by gzip or zstd, while the context (``with``) lasts.

    It is gzip where ``path`` ends in ``.tar.gz``, else zstd. ``path`` itself is not touched. ``target`` stays open.

    Raises:
        EnvironmentLacks: the program zstd is needed, and not on PATH
        OSError: zstd failed, which shows when the context ends
    """
    if path.name.endswith(".tar.gz"):
        # Neither a name nor the time of packing: the same files make the same archive.
        with gzip.GzipFile("", fileobj=target, mode="wb", mtime=0) as stream:
            yield cast(IO[bytes], stream)
        return
    if shutil.which("zstd") is None:
        raise EnvironmentLacks(
            "the program zstd is not on PATH", remedy="install the package zstd, or give --output NAME.tar.gz"
        )
    command = ["zstd", "--quiet", "-T0", "-10", "--stdout"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=target, stderr=subprocess.PIPE)
    assert process.stdin is not None
    try:
        yield process.stdin
    finally:
        with suppress(BrokenPipeError):
            process.stdin.close()
        assert process.stderr is not None
        with process.stderr as stderr:
            complaint = stderr.read().decode(errors="replace").strip()
        if process.wait() != 0:
            raise OSError(f"zstd failed: {complaint or process.returncode}")


def _files_to_pack(folder: Path, *, profiles: bool) -> Iterator[Path]:
    """Yield the regular files below a run folder; no checkpoints, and ``profiles`` only if asked for.

    Each folder's entries are sorted by name, and a folder's files come in its place. Compiled Python and lock files are
    left out, and links: they may lead anywhere.

    Raises:
        OSError: a folder cannot be listed
    """
    for path in sorted(folder.iterdir()):
        if path.name in _LEFT_OUT or (path.name == _PROFILES and not profiles):
            continue
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            yield from _files_to_pack(path, profiles=profiles)
        elif stat.S_ISREG(mode):
            yield path


def _is_planned_code(folder: Path) -> bool:
    """Return whether ``code.zip`` in a run's folder is the training code that the run's record names.

    Such code holds no secret. False where the file or the record cannot be read.
    """
    try:
        return hash_of_packed(read_plain(folder / _CODE)) == load_record(folder).manifest.get("code_sha256")
    except (OSError, RecordError):
        return False


class Mask:
    """Replaces secrets in files by ``****``; made from ``secrets``, the values to mask besides what it finds itself.

    That is the values of environment variables with a secret's name, what looks like a token, and what is assigned
    to a variable with such a name. Values of fewer than 8 characters are left alone. Calling the object with bytes,
    a line, returns these masked; ``text`` returns bytes of many lines masked, and ``value`` a copy of JSON values
    whose texts are masked, but for the keys of dictionaries. Nothing is raised.
    """

    _ASSIGNED = re.compile(rb"\b([A-Za-z][A-Za-z0-9_]*)(=['\"]?)([^\s'\";,]{8,})")

    def __init__(self, secrets: Sequence[str]) -> None:
        """Keep the values to mask: of environment variables with a secret's name, and ``secrets``.

        Values of fewer than 8 characters are left alone: they would mask ordinary words.
        """
        around = [value for name, value in os.environ.items() if is_secret_name(name)]
        # A short value would mask ordinary words.
        masked = {os.fsencode(value) for value in (*around, *secrets) if len(value) >= 8}
        # The longest first: a shorter one may be a part of it.
        self._known = sorted(masked, key=len, reverse=True)

    def text(self, content: bytes) -> bytes:
        """Return ``content`` with every secret in it replaced by ``****``, line by line; line ends stay.

        A secret that goes over the end of a line is not found.
        """
        return b"".join(self(line) for line in content.splitlines(keepends=True))

    def value(self, plain: Any) -> Any:
        """Return a copy of plain values, as JSON has them, with secrets masked in every text.

        Keys of dictionaries stay, whatever they are, and a tuple becomes a list.
        """
        if isinstance(plain, str):
            return self(plain.encode(errors="surrogateescape")).decode(errors="surrogateescape")
        if isinstance(plain, dict):
            return {key: self.value(item) for key, item in plain.items()}
        return [self.value(item) for item in plain] if isinstance(plain, list | tuple) else plain

    def __call__(self, block: bytes) -> bytes:
        """Return ``block``, bytes such as one line, with every secret in it replaced by ``****``."""
        for value in self._known:
            block = block.replace(value, _MASK)
        block = SECRET_SHAPES.sub(_MASK, block)
        return self._ASSIGNED.sub(_masked_assignment, block) if b"=" in block else block


def _masked_assignment(found: re.Match[bytes]) -> bytes:
    """Return the text of a match of ``NAME=value``, with ``****`` for the value where the name is a secret's.

    The match must have three groups: name, sign (``=``, maybe with a quote) and value.
    """
    name, sign, value = found.groups()
    return name + sign + (_MASK if is_secret_name(name.decode()) else value)


def stored_secrets(install: Path) -> list[str]:
    """Return the tokens and keys that the installer keeps in an installation, sorted, each once; empty without any.

    They are the last words of the lines of two files below ``.llmb`` in the installation's folder ``install``; a
    file that is missing or not readable counts as empty.
    """
    found = set()
    for name in ("hf_token", "enroot/.credentials"):
        with contextlib.suppress(OSError):
            lines = read_plain(install / ".llmb" / name).decode(errors="replace").splitlines()
            found |= {line.split()[-1] for line in lines if line.strip()}
    return sorted(found)
