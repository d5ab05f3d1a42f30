"""Fixtures of the unit tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb_common.executors.slurm import look as slurm_runs
from llmb_common.planning.job_plan import JobPlan
from support import instant
from support.campaigns import Site
from support.cli import Cli
from support.fake_slurm import FakeSlurm
from support.run_site import RunSite
from support.site_record import plant


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that does not answer is asked again at once."""
    monkeypatch.setattr("llmb_common.slurm.query.FIRST_DELAY", 0.01)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """llmb-run on an empty installation under ``tmp_path``."""
    install = tmp_path / "install"
    install.mkdir()
    return Cli(install, monkeypatch, capsys)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Site:
    """llmb-run for acceptance campaigns, on an installation whose jobs are over at once."""
    instant.install_executor(monkeypatch, tmp_path / "instant")
    plant(monkeypatch)
    here = Site(RunSite(tmp_path, "instant").install, monkeypatch, capsys)
    here.folder = tmp_path
    return here


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A scripted Slurm at the front of PATH, which answers immediately."""
    fake = FakeSlurm(tmp_path / "fake")
    monkeypatch.setenv("PATH", fake.path())
    # A short delay: sbatch takes no time here, and its process is still looked for.
    monkeypatch.setattr(slurm_runs, "LOCAL_GRACE_SECONDS", 0.1)
    return fake


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> JobPlan:
    """A smoke job for Slurm, in a folder of its module's own."""
    return RunSite(tmp_path_factory.mktemp("site"), "slurm").plan()
