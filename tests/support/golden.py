"""Golden files: what a user sees, kept beside the tests. ``LLMB_TEST_UPDATE_GOLDEN=1`` rewrites them; read the diff."""

from __future__ import annotations

import os
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
UPDATING = os.environ.get("LLMB_TEST_UPDATE_GOLDEN") == "1"


def check_golden(name: str, text: str) -> None:
    """Compare ``text`` with ``tests/golden/<name>``, or write it there when asked to."""
    path = GOLDEN / name
    if UPDATING:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"no golden file {path}; LLMB_TEST_UPDATE_GOLDEN=1 writes it"
    assert text == path.read_text(encoding="utf-8"), f"differs from {path}; LLMB_TEST_UPDATE_GOLDEN=1 rewrites it"
