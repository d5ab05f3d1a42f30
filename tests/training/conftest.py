"""Fixtures of the training tests. Training runs in processes of the engine's Python, never in pytest's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from training_jobs import REPOSITORY, Engine


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """The Python of the CPU engine.

    ``$LLMB_TEST_ENGINE`` or one that the repository's own set-up made. There is no skipping: without an engine the
    tests would say nothing about training.
    """
    named = os.environ.get("LLMB_TEST_ENGINE")
    candidates = (
        [Path(named)]
        if named
        else [
            REPOSITORY / ".test" / "install" / "venvs" / "engine-cpu" / "bin" / "python",
            REPOSITORY / ".test" / "engine" / "bin" / "python",
        ]
    )
    for candidate in candidates:
        if candidate.exists():
            return candidate
    pytest.fail(
        f"no training engine: none of {', '.join(map(str, candidates))} exists; "
        "make one with `./installer.py --quickstart --install-path .test/install`, or set LLMB_TEST_ENGINE"
    )


@pytest.fixture(scope="session")
def engine(engine_python: Path) -> Engine:
    return Engine(engine_python)
