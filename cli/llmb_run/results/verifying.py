"""Is an archive what it was when it was written? Every file against ``SHA256SUMS``, its place and mode against
``archive.json``, without unpacking anything.

An archive comes from somebody else, so nothing in it is believed: it is read as a stream, nothing is written, what is
not a plain file under the one folder is a problem of its own, and how much is read is bounded. ``SHA256SUMS`` shows
accidents and careless changes; who changes a file may change it too. Against that helps only the digest of the whole
file, kept elsewhere (``--sha256``), or a signature.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import re
import stat
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeAlias, cast

import msgspec

from llmb_common.decoding.structs import from_json
from llmb_common.errors import EnvironmentLacks, RecordError
from llmb_common.machine.files import open_plain, sha256_of

MOST_BYTES = 1 << 40
MOST_FILES = 1_000_000
MOST_SUMS = 256 << 20
"""More than any archive of runs has: unpacked bytes, files, bytes of its ``SHA256SUMS``."""

_LONGEST_HEADER = 64 << 10
_BLOCK = 1 << 20
_SUMS = "SHA256SUMS"
_ABOUT = "archive.json"
_OWN_MODE = "0644"
"""Of the files that an archive has beside those of the runs."""
_LINE = re.compile(r"([0-9a-f]{64})  ([^\n\0]+)")


@dataclass
class Verified:
    """Names as they are in ``SHA256SUMS``. ``damaged`` are sentences about the archive as a whole."""

    files: int = 0
    changed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    """To another top folder than the archive's own."""
    modes: list[str] = field(default_factory=list)
    """Files with other permissions than they had."""
    damaged: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What could not be checked; nothing is wrong with it."""

    @property
    def ok(self) -> bool:
        """Whether every file is as it was when the archive was written."""
        return not any(self.lines())

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    def lines(self) -> Iterator[str]:
        """Every file that is not as it was, a line each."""
        for kind in KINDS:
            yield from (f"{'mode' if kind == 'modes' else kind}: {text}" for text in getattr(self, kind))


KINDS = ("changed", "missing", "added", "moved", "modes", "damaged")
"""The lists of ``Verified``."""


class _About(msgspec.Struct):
    """Of ``archive.json`` what is checked here; an older release has said neither."""

    folder: str | None = None
    modes: dict[str, str] | None = None
    """In octal, by name."""


@dataclass
class _Seen:
    """What an archive holds. ``digests`` by name; ``tops`` and ``modes``: where each lay, and its permissions."""

    digests: dict[str, str] = field(default_factory=dict)
    tops: dict[str, str] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    folders: dict[str, None] = field(default_factory=dict)
    sums: dict[str, str] | None = None
    about: bytes | None = None


Keep: TypeAlias = Callable[[str, int], "IO[bytes] | None"]
"""Where the content of a file goes that has this name and size; None: nowhere."""


def verify_archive(path: Path, sha256: str = "", keep: Keep | None = None) -> Verified:
    """Hold every file of the archive ``path`` against its ``SHA256SUMS``, and the whole against ``sha256`` if given.

    ``keep`` is asked about each plain file below the archive's folder, as it comes by.

    Raises:
        RecordError: it cannot be opened
        EnvironmentLacks: there is no zstd
    """
    found = Verified()
    try:
        with open_plain(path) as source:
            whole = sha256_of(path) if sha256 else ""
            with _decompressed(source, found) as stream:
                _check(stream, found, keep or (lambda name, size: None))
    except OSError as error:
        raise RecordError(
            f"cannot read {path}: {error.strerror or error}",
            remedy="give the .tar.zst or .tar.gz file that llmb-run archive or accept pack wrote",
        ) from error
    if sha256 and whole != sha256.strip().lower():
        found.damaged.append(f"the archive's own SHA-256 is {whole}, not {sha256}")
    return found


@contextmanager
def _decompressed(source: IO[bytes], found: Verified) -> Iterator[IO[bytes]]:
    """What is in ``source``, whose first bytes say how it is compressed."""
    magic = os.pread(source.fileno(), 4, 0)  # zstd reads from where the descriptor is
    if magic[:2] == b"\x1f\x8b":
        yield gzip.GzipFile(fileobj=source)  # type: ignore[misc]
        return
    if magic != b"\x28\xb5\x2f\xfd":
        found.damaged.append("it is neither a .tar.zst nor a .tar.gz file")
        yield io.BytesIO()
        return
    with tempfile.TemporaryFile() as complaint:
        try:
            # Without a limit a window of gigabytes could be asked for.
            command = ["zstd", "--quiet", "--decompress", "--stdout", "--memory=256MB"]
            process = subprocess.Popen(command, stdin=source, stdout=subprocess.PIPE, stderr=complaint)
        except FileNotFoundError:
            raise EnvironmentLacks("the program zstd is not on PATH", remedy="install the package zstd") from None
        assert process.stdout is not None
        try:
            yield process.stdout
            # Where the reading was given up, zstd still waits for somebody to read.
            if not found.damaged and process.wait() != 0:
                complaint.seek(0)
                text = complaint.read(500).decode(errors="replace").strip()
                found.damaged.append(f"it is truncated or damaged: {text or 'zstd failed'}")
        finally:
            process.kill()
            process.stdout.close()
            process.wait()


class _Bounded:
    """A stream that ends the reading beyond ``MOST_BYTES``, and remembers where its last byte other than NUL was."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.position = 0
        self.last = 0

    def read(self, size: int) -> bytes:
        block = self._stream.read(size)
        if kept := len(block.rstrip(b"\0")):
            self.last = self.position + kept
        self.position += len(block)
        if self.position > MOST_BYTES:
            raise tarfile.ReadError(f"more than {MOST_BYTES >> 30} GiB")
        return block


class _PlainMember(tarfile.TarInfo):
    """A member of an archive. Headers that hold names are read whole, so their length is bounded."""

    # Tarfile names this as what subclasses may override; newer patch releases do not call frombuf.
    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo | None:
        if self.type not in (*tarfile.REGULAR_TYPES, tarfile.DIRTYPE) and self.size > _LONGEST_HEADER:
            raise tarfile.ReadError("a header that is too long")
        member: tarfile.TarInfo | None = super()._proc_member(tar)  # type: ignore[misc]
        return member


def _check(stream: IO[bytes], found: Verified, keep: Keep) -> None:
    if found.damaged:
        return
    seen = _Seen()
    bounded = _Bounded(stream)
    try:
        # An archive is read as a stream: one that leads back to an earlier place could be read for ever.
        with tarfile.open(fileobj=cast(Any, bounded), mode="r|", tarinfo=_PlainMember, errorlevel=2) as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # tarfile keeps all it has seen
                _take(member, tar, seen, found, keep)
            end = tar.offset
        while bounded.read(_BLOCK):
            pass
        if bounded.last > end:
            found.damaged.append("there is something after its end")
    except (
        tarfile.TarError,
        EOFError,
        zlib.error,
        gzip.BadGzipFile,
        OverflowError,
        ValueError,
        RecursionError,
    ) as error:
        found.damaged.append(f"it is truncated or damaged: {error}")
    _compare(seen, found)


def _take(member: tarfile.TarInfo, tar: tarfile.TarFile, seen: _Seen, found: Verified, keep: Keep) -> None:
    """Note one member of the archive."""
    if member.isdir():
        seen.folders[member.name] = None
        return
    name = _inside(member, found)
    if name is None:
        return
    if name in seen.tops:
        found.added.append(f"{name} (a second time)")
        return
    if len(seen.tops) + len(seen.folders) >= MOST_FILES:
        raise tarfile.ReadError(f"more than {MOST_FILES} files")
    content = tar.extractfile(member)
    assert content is not None
    seen.tops[name] = member.name.partition("/")[0]
    seen.modes[name] = stat.S_IMODE(member.mode)
    if name == _SUMS:
        seen.sums = _sums(content.read(MOST_SUMS + 1), found)
        return
    if name == _ABOUT and member.size <= MOST_SUMS:
        seen.about = content.read()
        content = io.BytesIO(seen.about)
    seen.digests[name] = _digest(content, member.size, keep(name, member.size))


def _compare(seen: _Seen, found: Verified) -> None:
    digests, sums = seen.digests, seen.sums
    found.files = len(digests)
    if sums is None:
        found.damaged.append(f"it has no {_SUMS}, so nothing can be checked")
        return
    found.changed += [name for name, digest in sums.items() if digests.get(name, digest) != digest]
    found.missing += [name for name in sums if name not in digests]
    found.added += [name for name in digests if name not in sums]
    # Whoever unpacked and packed it again has folders in it; those of known files say nothing new.
    around = {parent.as_posix() for name in sums for parent in PurePosixPath(name).parents}
    found.added += [f"{name} (a folder)" for name in seen.folders if not _is_around(name, around)]
    about = _about(seen.about, found)
    # That of SHA256SUMS where an older release has not said it: whatever was moved, it is not that.
    folder = about.folder or seen.tops[_SUMS]
    found.moved += [f"{name} (it lies in {top})" for name, top in seen.tops.items() if top != folder]
    if about.modes is not None:
        recorded = {_ABOUT: _OWN_MODE, _SUMS: _OWN_MODE, **about.modes}
        found.modes += [
            f"{name} ({recorded[name]} -> {mode:04o})"
            for name, mode in seen.modes.items()
            if name in recorded and recorded[name] != f"{mode:04o}"
        ]
    else:
        found.notes.append("it does not say what its files' modes were, as archives of older releases do not")


def _about(content: bytes | None, found: Verified) -> _About:
    try:
        return from_json(content, _About) if content is not None else _About()
    except (msgspec.DecodeError, ValueError):
        found.damaged.append(f"{_ABOUT} is not valid JSON")
        return _About()


def _is_around(folder: str, around: set[str]) -> bool:
    """Whether ``folder`` is the archive's one folder, or one of those in it that hold known files."""
    top, _, below = folder.rstrip("/").partition("/")
    return top not in (".", "..", "") and (below or ".") in around


def _inside(member: tarfile.TarInfo, found: Verified) -> str | None:
    """The name of a plain file below the archive's one folder; None for anything else, which is noted."""
    parts = member.name.split("/")
    if not member.isreg() or member.issparse():
        found.added.append(f"{member.name} (not a plain file)")
    elif len(parts) < 2 or not all(parts) or {".", ".."} & set(parts) or member.name.startswith("/"):
        found.added.append(f"{member.name} (outside the archive's folder)")
    else:
        return "/".join(parts[1:])
    return None


def _digest(content: IO[bytes], size: int, copy: IO[bytes] | None) -> str:
    digest, left = hashlib.sha256(), size
    with copy or contextlib.nullcontext():
        while left and (block := content.read(min(_BLOCK, left))):
            digest.update(block)
            left -= len(block)
            if copy is not None:
                copy.write(block)
    if left:
        raise tarfile.ReadError("a file ends too early")
    return digest.hexdigest()


def _sums(content: bytes, found: Verified) -> dict[str, str]:
    if len(content) > MOST_SUMS:
        raise tarfile.ReadError(f"{_SUMS} is too large")
    sums: dict[str, str] = {}
    for line in content.decode(errors="replace").splitlines():
        match = _LINE.fullmatch(line)
        if match is None or match[2] in sums:
            found.damaged.append(f"{_SUMS} has a line that is none: {line[:80]}")
        else:
            sums[match[2]] = match[1]
    return sums
