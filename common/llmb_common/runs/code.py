"""The training code that travels with a run, as one zip archive: a queued job does not change under an update."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

from llmb_common.errors import EnvironmentLacks, RecordError


def training_code() -> Path:
    """The ``llmb_train`` package of this installation; it is copied, never imported here.

    Raises:
        EnvironmentLacks: it is missing.
    """
    folder = Path(__file__).resolve().parents[2] / "llmb_train"
    if not (folder / "__main__.py").is_file():
        raise EnvironmentLacks(f"the training code {folder} is missing", remedy="reinstall LLMB")
    return folder


def pack_code(code: Path) -> bytes:
    """The package in folder ``code`` as a zip archive to import from: the same bytes for the same files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(code.rglob("*.py")):
            name = f"{code.name}/{path.relative_to(code).as_posix()}"
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes())  # ZipInfo: a fixed date
    return buffer.getvalue()


def hash_of_packed(code: bytes) -> str:
    """``sha256_of_tree(code, "**/*.py")`` of the package in the zip archive ``code``.

    Raises:
        RecordError: it is not a zip archive
    """
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(io.BytesIO(code)) as archive:
            for name in archive.namelist():
                content = hashlib.sha256(archive.read(name)).hexdigest()
                digest.update(f"{name.partition('/')[2]}\0{content}\n".encode())
    except (OSError, zipfile.BadZipFile) as error:
        raise RecordError(f"the packed training code cannot be read: {error}") from error
    return digest.hexdigest()
