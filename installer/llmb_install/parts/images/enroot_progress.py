"""How far an import is. Enroot is silent while it works, so its folders are watched: how much has come and of how much,
how fast, and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from llmb_common.command.printable import size
from llmb_install.parts.images.registry import Manifest
from llmb_install.working.reporter import duration

Text = Callable[[], str]


def shown(
    doing: str, output: Path, cache: Path, unpacked: Path | None, known: Callable[[], Manifest | None]
) -> str | Text:
    """What stands on the progress line while Enroot is ``doing`` something, which begins now."""
    began, before = time.monotonic(), _sizes(cache)

    def downloaded() -> tuple[int, int]:
        now = {name: bytes_ for name, bytes_ in _sizes(cache).items() if name not in before}
        manifest = known()
        if manifest is None:
            return sum(now.values()), 0
        missing = {digest: bytes_ for digest, bytes_ in manifest.layers if digest not in before}
        return sum(_of_layer(digest, bytes_, now) for digest, bytes_ in missing.items()), sum(missing.values())

    def begun() -> tuple[int, int]:
        manifest = known()
        sizes = [bytes_ for _, bytes_ in manifest.layers] if manifest else []
        # Enroot begins with the uppermost; each is unpacked into a folder with its number.
        number = max((_number(folder) for folder in unpacked.glob("enroot.*/[0-9]*")), default=0) if unpacked else 0
        return sum(sizes[::-1][: max(number - 1, 0)]), sum(sizes)

    def written() -> tuple[int, int]:
        return (output.stat().st_size if output.exists() else 0), 0

    measure = {"Downloading": downloaded, "Extracting": begun, "Creating": written}.get(doing.partition(" ")[0])
    if measure is None:
        return doing

    def text() -> str:
        try:
            return _text(doing, *measure(), time.monotonic() - began)
        except OSError:  # Enroot has just removed what was looked at
            return doing

    return text


def _text(doing: str, done: int, total: int, seconds: float) -> str:
    if not done:
        return f"{doing}, {size(total)}" if total else doing
    rate = done / max(seconds, 0.1)
    if not total:
        return f"{doing}, {size(done)}, {size(rate)}/s"
    return f"{doing}, {size(done)} of {size(total)}, {size(rate)}/s, {duration(max(total - done, 0) / rate)} left"


def _of_layer(digest: str, bytes_: int, sizes: Mapping[str, int]) -> int:
    """What has come of a layer. Enroot compresses it anew, to about the same size; a whole one has its name alone."""
    if digest in sizes:
        return bytes_
    return min(bytes_, max((now for name, now in sizes.items() if name.startswith(f"{digest}.")), default=0))


def _sizes(folder: Path) -> dict[str, int]:
    """The sizes of the files in a folder, by name; none where there is nothing yet."""
    found = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        try:
            status = path.stat()
        except OSError:
            continue
        found[path.name] = status.st_size
    return found


def _number(folder: Path) -> int:
    return int(folder.name) if folder.name.isdigit() else 0
