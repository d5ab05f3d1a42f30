"""A job that was followed to its end ends with its figures."""

from __future__ import annotations

from typing import Any

import pytest

from llmb_common.command.outcome import Result
from llmb_common.index.runs import row_of
from llmb_run.columns import run_as_json
from llmb_run.results.one_line import with_figures
from llmb_run.workspace import Workspace
from support.cli import Cli
from support.iteration_logs import mbridge_log
from support.runs import make_run, steady_log


def started(cli: Cli, **made: Any) -> Result:
    record = make_run(cli.install, **made)
    data = {"dry_run": False, "jobs": [{**run_as_json(row_of(record)), "error": None}]}
    return with_figures(Result(data, "the run\n", hint="before"), Workspace(cli.install))


def test_its_step_time_and_verdict_follow(cli: Cli) -> None:
    result = started(cli, log=steady_log(5741.5))
    assert str(result.text).startswith("the run\n  5.7")
    assert " s a step, " in str(result.text)
    assert result.hint.startswith("next: llmb-run show ")


def test_a_run_without_figures_says_why(cli: Cli) -> None:
    result = started(cli, log=mbridge_log(range(1, 6), 5))
    assert str(result.text).startswith(("the run\n  Incomplete: ", "the run\n  Failed: "))


@pytest.mark.parametrize("state", ["RUNNING", "PENDING"])
def test_a_run_that_has_not_ended_has_no_figures_yet(cli: Cli, state: str) -> None:
    result = started(cli, log=steady_log(5741.5), state=state)
    assert (result.text, result.hint) == ("the run\n", "before")


def test_a_dry_run_stays_as_it_is(cli: Cli) -> None:
    shown = Result(lambda: {"dry_run": True}, "script")
    assert with_figures(shown, Workspace(cli.install)) is shown
