"""Fixtures of the training tests. Training runs in processes of the engine's Python, never in pytest's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_jobs import Engine


@pytest.fixture(scope="session")
def engine(engine_python: Path) -> Engine:
    return Engine(engine_python)
