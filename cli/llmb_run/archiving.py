"""One file with everything about selected runs: records, scripts, logs, code; hashes of all of it, and no secret.

Compression is that of the ``zstd`` program, which Enroot needs anyway and which uses all cores; a name that ends in
``.tar.gz`` needs nothing but Python. Checkpoints stay out, profiles too unless asked for.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import secrets as random
import shutil
import stat
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from llmb_common import __version__
from llmb_common.errors import EnvironmentLacks, RecordError, RequestError
from llmb_common.secrets import is_secret_name

_LEFT_OUT = {"checkpoints", "__pycache__", ".lock"}
_PROFILES = "nsys_profile"
_BINARY = {".nsys-rep", ".sqlite", ".zip", ".gz", ".zst"}
_SECRET_SHAPES = re.compile(rb"\b(hf_[A-Za-z0-9]{16,}|nvapi-[A-Za-z0-9_-]{16,})")
"""How tokens of Hugging Face and NGC begin."""
_MASK = b"****"


@dataclass
class Archive:
    """What was written: paths in the archive with their SHA-256, and the files in which a secret was masked."""

    path: Path
    runs: int
    bytes: int = 0
    hashes: dict[str, str] = field(default_factory=dict)
    masked: list[str] = field(default_factory=list)


def write_archive(
    path: Path, folders: Sequence[Path], summary: Any, *, profiles: bool = False, overwrite: bool = False
) -> Archive:
    """Write ``folders`` (run folders) to ``path``. Raises RequestError, EnvironmentLacks or RecordError.

    ``summary`` goes into ``archive.json``. A half-written archive is never seen under ``path``.
    """
    if not path.name.endswith((".tar.zst", ".tar.gz")):
        raise RequestError(f"{path.name}: an archive is .tar.zst or .tar.gz", remedy="--output runs.tar.zst")
    if path.exists() and not overwrite:
        raise RequestError(f"{path} exists", remedy="choose another --output, or give --overwrite")
    if not path.parent.is_dir():
        raise RequestError(f"no such folder: {path.parent}", remedy="make it, or choose another --output")
    archive = Archive(path, len(folders))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{random.token_hex(4)}")
    try:
        with ExitStack() as stack:
            stack.callback(lambda: temporary.unlink(missing_ok=True))
            _write(temporary, path, folders, summary, archive, profiles=profiles)
            archive.bytes = temporary.stat().st_size
            temporary.replace(path)
    except OSError as error:
        raise RecordError(
            f"cannot write {path}: {error.strerror or error}", remedy="check free space and permissions there"
        ) from error
    return archive


def _write(
    temporary: Path, path: Path, folders: Sequence[Path], summary: Any, archive: Archive, *, profiles: bool
) -> None:
    top = path.name.removesuffix(".tar.zst").removesuffix(".tar.gz")
    mask = _Mask()
    with (
        temporary.open("xb") as target,
        _Compressor(target, path) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for folder in folders:
            for file in _files(folder, profiles=profiles):
                name = f"{top}/{folder.name}/{file.relative_to(folder).as_posix()}"
                _add_file(tar, file, name, archive, mask)
        about = {"schema": 1, "llmb": __version__, "written": time.time(), "runs": summary}
        _add_bytes(tar, f"{top}/archive.json", json.dumps(about, indent=2, allow_nan=False).encode(), archive)
        sums = "".join(f"{digest}  {name.split('/', 1)[1]}\n" for name, digest in archive.hashes.items())
        _add_bytes(tar, f"{top}/SHA256SUMS", sums.encode(), archive)
    with temporary.open("rb") as written:
        os.fsync(written.fileno())


class _Compressor:
    """A writable stream that compresses into ``target``; raises OSError when zstd failed."""

    def __init__(self, target: IO[bytes], path: Path) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if path.name.endswith(".tar.gz"):
            import gzip

            self._stream: IO[bytes] = gzip.GzipFile(fileobj=target, mode="wb", mtime=0)  # type: ignore[assignment]
            return
        if shutil.which("zstd") is None:
            raise EnvironmentLacks(
                "the program zstd is not on PATH", remedy="install the package zstd, or give --output NAME.tar.gz"
            )
        command = ["zstd", "--quiet", "-T0", "-10", "--stdout"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=target, stderr=subprocess.PIPE)
        assert self._process.stdin is not None
        self._stream = self._process.stdin

    def __enter__(self) -> IO[bytes]:
        return self._stream

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        with suppress(BrokenPipeError):
            self._stream.close()
        if self._process is None:
            return
        assert self._process.stderr is not None
        complaint = self._process.stderr.read().decode(errors="replace").strip()
        self._process.stderr.close()
        if self._process.wait() != 0:
            raise OSError(f"zstd failed: {complaint or self._process.returncode}")


def _files(folder: Path, *, profiles: bool) -> Iterator[Path]:
    """The plain files of a run folder, by name. Links are left out: they may lead anywhere."""
    for path in sorted(folder.iterdir()):
        if path.name in _LEFT_OUT or (path.name == _PROFILES and not profiles):
            continue
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            yield from _files(path, profiles=profiles)
        elif stat.S_ISREG(mode):
            yield path


def _add_file(tar: tarfile.TarFile, path: Path, name: str, archive: Archive, mask: _Mask) -> None:
    # A copy first: a log may grow while it is read, and tar must know the size before the content.
    with tempfile.TemporaryFile() as copy:
        digest = hashlib.sha256()
        masked = False
        with path.open("rb") as source:
            # By lines, so that no secret lies across two blocks; a file without line breaks is one.
            blocks = iter(lambda: source.read(1 << 20), b"") if path.suffix in _BINARY else source
            for block in blocks:
                clean = block if path.suffix in _BINARY else mask(block)
                masked = masked or clean != block
                digest.update(clean)
                copy.write(clean)
            status = os.fstat(source.fileno())
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = copy.tell(), int(status.st_mtime), stat.S_IMODE(status.st_mode)
        copy.seek(0)
        tar.addfile(info, copy)
    archive.hashes[name] = digest.hexdigest()
    if masked:
        archive.masked.append(name)


def _add_bytes(tar: tarfile.TarFile, name: str, content: bytes, archive: Archive) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = len(content), int(time.time()), 0o644
    tar.addfile(info, io.BytesIO(content))
    archive.hashes[name] = hashlib.sha256(content).hexdigest()


class _Mask:
    """Masks tokens: the values of the secret variables around us, and what looks like one."""

    def __init__(self) -> None:
        # A short value would mask ordinary words.
        values = [value for name, value in os.environ.items() if is_secret_name(name) and len(value) >= 8]
        self._known = [os.fsencode(value) for value in values]

    def __call__(self, block: bytes) -> bytes:
        for value in self._known:
            block = block.replace(value, _MASK)
        return _SECRET_SHAPES.sub(_MASK, block)
