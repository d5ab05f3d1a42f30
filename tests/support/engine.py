"""The CPU training engine, which ``tests/run`` makes beside the tests with ``./installer.py --quickstart``."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from support.repository import REPOSITORY

_MADE = REPOSITORY / ".test" / "install" / "venvs" / "engine-cpu" / "bin" / "python"
_PATIENCE = 1500
"""Seconds; making it takes 150 s of CPU time, beside everything else that runs."""


def _end() -> Path | None:
    """What exists as soon as the engine is there, or has failed; None if ``tests/run`` makes none."""
    making = os.environ.get("LLMB_TEST_QUICKSTART")
    return Path(f"{making}.status") if making else None


def is_being_made() -> bool:
    """Has ``tests/run`` started to make the engine, and not ended yet?"""
    end = _end()
    return end is not None and not end.exists()


def python() -> Path:
    """Its Python. Waits while it is made, and never skips: without an engine the suite cannot test training."""
    deadline = time.monotonic() + _PATIENCE
    while is_being_made():
        if time.monotonic() > deadline:
            pytest.fail(f"the training engine was not made within {_PATIENCE} s: see .test/quickstart.err")
        time.sleep(0.5)
    end = _end()
    if end is not None and end.read_text().strip() != "0":
        pytest.fail(f"making the training engine failed:\n{end.with_suffix('.err').read_text()[-4000:]}")
    named = os.environ.get("LLMB_TEST_ENGINE")
    found = Path(named) if named else _MADE
    if not found.exists():
        pytest.fail(
            f"no training engine at {found}: tests/run makes one with "
            "./installer.py --quickstart --install-path .test/install; LLMB_TEST_ENGINE names the Python of another one"
        )
    return found


def quickstart_output() -> tuple[str, str] | None:
    """What making it has printed, on stdout and on stderr; None if it was there already."""
    end = _end()
    if end is None:
        return None
    python()
    return end.with_suffix(".out").read_text(), end.with_suffix(".err").read_text()
