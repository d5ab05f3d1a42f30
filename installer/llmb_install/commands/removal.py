"""Removal of the images of removed workloads. A kill in the middle leaves none behind for good.

What is to go is noted before the answers forget it; whatever command comes next finishes the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llmb_common.files import write_json
from llmb_install.installation import Installation
from llmb_install.parts.images import Image
from llmb_install.parts.receipts import read_receipt
from llmb_install.working.reporter import Reporter

_NOTE = Path(".llmb") / "removing.json"


def is_pending(install: Path) -> bool:
    """Whether a removal was begun and not finished."""
    return (install / _NOTE).exists()


def begin(install: Path, unwanted: Sequence[Image]) -> None:
    """Note the images that are to go. Under the installation's lock, as ``finish``."""
    if unwanted:
        write_json(install / _NOTE, {"schema": 1, "images": [image.path.name for image in unwanted]})


def finish(installation: Installation, reporter: Reporter) -> None:
    """Remove the images that were noted and that no workload of the installation needs."""
    note = installation.path / _NOTE
    names = (read_receipt(note) or {}).get("images", [])
    needed = {image.path for image in installation.images()}
    folder = installation.path / "images"
    for name in names if isinstance(names, list) else ():
        path = folder / Path(str(name)).name
        if path not in needed:
            Image("", path, installation.answers.arch, installation.path / ".llmb" / "receipts").discard()
            reporter.note(f"removed {path}")
    note.unlink(missing_ok=True)
