"""The CPU training engines, which ``tests/run`` makes beside the tests, as a user would."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from support.repository import REPOSITORY

FIRST = "engine-cpu"
"""The one of ``./installer.py --quickstart``."""

SECOND = "engine-cpu-0.6"
"""The one that ``llmb-install add pretrain_mbridge`` brings."""

WORK = REPOSITORY / ".test"

_NAMED = {FIRST: "LLMB_TEST_ENGINE", SECOND: "LLMB_TEST_ENGINE_0_6"}
_PATIENCE = 1500
"""Seconds. Making both takes 200 s of CPU time, beside everything else that runs."""


def _is_made_now(name: str) -> bool:
    return name in os.environ.get("LLMB_TEST_ENGINES", "").split()


def is_being_made(name: str = FIRST) -> bool:
    """Has ``tests/run`` started to make the engine, and not ended yet?"""
    return _is_made_now(name) and not (WORK / f"{name}.status").exists()


def wait_for(name: str) -> None:
    """Returns when ``tests/run`` has made the engine, or has failed to."""
    deadline = time.monotonic() + _PATIENCE
    while is_being_made(name):
        if time.monotonic() > deadline:
            pytest.fail(f"the training engine was not made within {_PATIENCE} s: see {WORK / name}.err")
        time.sleep(0.5)


def python(name: str = FIRST) -> Path:
    """Its Python. Waits while it is made, and never skips: without an engine the suite cannot test training."""
    wait_for(name)
    if _is_made_now(name) and (WORK / f"{name}.status").read_text().strip() != "0":
        pytest.fail(f"making the training engine failed:\n{(WORK / f'{name}.err').read_text()[-4000:]}")
    named = os.environ.get(_NAMED[name])
    found = Path(named) if named else WORK / "install" / "venvs" / name / "bin" / "python"
    if not found.exists():
        pytest.fail(
            f"no training engine at {found}: tests/run makes it in .test/install, as a user would; "
            f"{_NAMED[name]} names the Python of another one"
        )
    return found


def output(name: str = FIRST) -> tuple[str, str] | None:
    """What making it has printed, on stdout and on stderr; None if it was there already."""
    if not _is_made_now(name):
        return None
    python(name)
    return (WORK / f"{name}.out").read_text(), (WORK / f"{name}.err").read_text()
