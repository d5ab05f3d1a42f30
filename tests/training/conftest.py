"""Fixtures of the training tests. Training runs in processes of the engine's Python, never in pytest's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from training_jobs import Engine, Warm, training_environment

from support.documented_jobs import documented_rows, label, plan_of


@pytest.fixture(scope="session")
def engine(engine_python: Path) -> Iterator[Engine]:
    """The training engine, which imports Megatron once for all tests (``warm_engine.py``)."""
    cpu = Warm(engine_python, training_environment())
    yield Engine(engine_python, cpu)
    cpu.stop()


@pytest.fixture(scope="session")
def documented(engine: Engine) -> dict[str, dict[str, Any]]:
    """What the real ``ConfigContainer.validate()`` makes of every published configuration, by label."""
    return engine.ask("resolved", {label(case): plan_of(*case) for case in documented_rows()})


@pytest.fixture(scope="session")
def hugging_face(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``HF_HOME`` of the functions' engine: empty, so a test that puts a model there removes it."""
    return tmp_path_factory.mktemp("hugging_face")


@pytest.fixture(scope="session")
def functions_engine(functions_python: Path, hugging_face: Path) -> Iterator[Engine]:
    """The engine of jobs that name a function, for all tests of them."""
    offline = {"HF_HOME": str(hugging_face), "HF_HUB_OFFLINE": "1"}
    cpu = Warm(functions_python, training_environment() | offline)
    yield Engine(functions_python, cpu)
    cpu.stop()
