"""Fixtures of the terminal tests: tmux, and an installation whose jobs a test controls."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.run_site import RunSite
from support.terminal import WHAT_IS_MISSING


@pytest.fixture(autouse=True, scope="session")
def _tmux() -> None:
    if WHAT_IS_MISSING and os.environ.get("LLMB_TEST_CLUSTER") == "required":
        pytest.fail(f"a terminal is required here (LLMB_TEST_CLUSTER=required), but: {WHAT_IS_MISSING}")
    if WHAT_IS_MISSING:
        pytest.skip(f"no terminal: {WHAT_IS_MISSING}")


@pytest.fixture
def local_site(tmp_path: Path) -> RunSite:
    return RunSite(tmp_path, "local")


@pytest.fixture
def slurm_site(tmp_path: Path) -> RunSite:
    return RunSite(tmp_path, "slurm")
