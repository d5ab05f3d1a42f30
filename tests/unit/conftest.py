"""Fixtures of the unit tests."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmb_common.base.outcome import Result, print_result
from llmb_common.executors.slurm import look as slurm_runs
from llmb_common.planning.job_plan import JobPlan
from llmb_common.results.paired import order
from llmb_common.runs.manifest import git_state
from llmb_common.submission import jobs
from llmb_install.working.reporter import Step
from support import instant
from support.campaigns import Site
from support.cli import Cli
from support.fake_slurm import FakeSlurm
from support.json_answers import assert_as_documented
from support.repository import REPOSITORY
from support.run_site import RunSite, with_small_code
from support.site_record import plant


@pytest.fixture
def clone_without_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this clone has, if somebody ran ``./installer.py`` in it, is not found."""
    monkeypatch.setattr("llmb_common.planning.plan.DEFAULT_FOLDER", "no installation")


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """A scheduler that does not answer is asked again at once; git is asked once about this clone.

    Every key of the data of ``llmb-install --json`` is in the reference, as ``Cli`` has it of llmb-run's. What draws
    the charts of pages is a stand-in: the real one takes a second to make, and draws in ``tests/browser``.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llmb_common.executors.slurm.query.FIRST_DELAY", 0.01)
        patch.setattr("llmb_common.runs.manifest.git_state", _git_state)
        patch.setattr("llmb_install.main.print_result", _print_documented)
        patch.setitem(sys.modules, "vl_convert", SimpleNamespace(javascript_bundle=_bundle))
        _forget_charts()
        yield
        _forget_charts()


@pytest.fixture
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of the installer takes 0 s, however busy the machine is."""
    monkeypatch.setattr(Step, "elapsed", lambda step: 0.0)


def _bundle(script: str) -> str:
    return f"{script}\n'</script>'"


def _forget_charts() -> None:
    """A process keeps what it made of ``vl_convert``."""
    if library := sys.modules.get("llmb_run.reporting.charts_library"):
        library.charts_library.cache_clear()


def _print_documented(command: str, result: Result, *, as_json: bool) -> int:
    assert_as_documented(f"llmb-install {command}", result.data)
    return print_result(command, result, as_json=as_json)


def _git_state(folder: Path) -> dict[str, Any] | None:
    return _of_this_clone() if folder.is_relative_to(REPOSITORY) else git_state(folder)


@functools.cache
def _of_this_clone() -> dict[str, Any] | None:
    return git_state(REPOSITORY)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """llmb-run on an empty installation under ``tmp_path``."""
    install = tmp_path / "install"
    install.mkdir()
    return Cli(install, monkeypatch, capsys)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """llmb-run on an installation without Slurm, with a stand-in for the training engine."""
    return Cli(RunSite(tmp_path, "local").install, monkeypatch, capsys)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Site:
    """llmb-run for acceptance campaigns, on an installation whose jobs are over at once.

    Each campaign ends in a pack: without what draws the page's charts, and with little training code.
    """
    instant.install_executor(monkeypatch, tmp_path / "instant")
    plant(monkeypatch)
    with_small_code(tmp_path, monkeypatch)
    monkeypatch.setattr("llmb_run.campaigns.campaign.training_code", jobs.training_code)
    monkeypatch.setattr("llmb_run.reporting.forms.charts_library", lambda: "window.vegaEmbed = () => {}")
    # The seed is a campaign's random id: one draw in 54 takes a comparison beyond its first look.
    drawn = lambda block, seed: order(block, f"test{seed[8:]}")  # noqa: E731
    monkeypatch.setattr("llmb_run.comparing.strategy.order", drawn)
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
