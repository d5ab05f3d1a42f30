"""Evidence packs and archives of runs, changed by somebody."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Members = dict[str, tuple[tarfile.TarInfo, bytes]]
"""By name in the archive, in their order."""


def members(pack: Path) -> Members:
    raw = subprocess.run(["zstd", "-qdc", pack], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        return {info.name: (info, tar.extractfile(info).read()) for info in tar}  # type: ignore[union-attr]


def write(pack: Path, content: Members) -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, (info, data) in content.items():
            info.name, info.size, info.pax_headers = name, len(data), {}
            tar.addfile(info, io.BytesIO(data))
    pack.write_bytes(subprocess.run(["zstd", "-qc"], input=raw.getvalue(), capture_output=True, check=True).stdout)


def with_new_hashes(content: Members) -> Members:
    """What whoever changes a file can do, too."""
    (sums,) = [name for name in content if name.endswith("/SHA256SUMS")]
    lines = [
        f"{hashlib.sha256(data).hexdigest()}  {name.partition('/')[2]}\n"
        for name, (_, data) in content.items()
        if name != sums
    ]
    return {**content, sums: (content[sums][0], "".join(lines).encode())}


def edit(pack: Path, ending: str, change: Callable[[bytes], bytes]) -> None:
    """Change the first file whose name has this ending, and all hashes."""
    content = members(pack)
    name = next(name for name in content if name.endswith(ending))
    content[name] = (content[name][0], change(content[name][1]))
    write(pack, with_new_hashes(content))


def edit_json(pack: Path, ending: str, change: Callable[[Any], None]) -> None:
    """As ``edit``, of a JSON document."""

    def changed(data: bytes) -> bytes:
        value = json.loads(data)
        change(value)
        return json.dumps(value).encode()

    edit(pack, ending, changed)
