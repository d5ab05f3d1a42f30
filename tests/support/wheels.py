"""A package small enough to be installed a hundred times."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

MODULE = "tiny/part.py"
"""In the package ``tiny``, beside its ``__init__.py``."""


def tiny_wheel(folder: Path) -> Path:
    """Write version 1.0 of ``tiny`` as a wheel into ``folder``."""
    path = folder / "tiny-1.0-py3-none-any.whl"
    files = {
        "tiny/__init__.py": "",
        MODULE: "VALUE = 1\n",
        "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files["tiny-1.0.dist-info/RECORD"] = "".join(f"{_record(*file)}\n" for file in files.items())
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def locked(wheel: Path) -> str:
    """A lock file with nothing but ``wheel``, from where it is, with its hash."""
    return f"tiny @ {wheel.as_uri()} \\\n    --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


def _record(name: str, text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    return f"{name},sha256={digest},{len(text)}"
