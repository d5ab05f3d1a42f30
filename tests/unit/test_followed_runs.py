"""A job that was followed to its end ends with its figures."""

from __future__ import annotations

import re
from typing import Any

import pytest

from llmb_common.base.outcome import Result
from llmb_common.planning.workspace import Workspace
from llmb_common.runs.index.runs import row_of
from llmb_run.columns import run_as_json
from llmb_run.results.followed import add_figures
from support.cli import Cli
from support.iteration_logs import mbridge_log
from support.runs import PUBLISHED, make_run, steady_log
from support.texts import Texts


def started(cli: Cli, **made: Any) -> Result:
    record = make_run(cli.install, **made)
    data = {"dry_run": False, "jobs": [{**run_as_json(row_of(record)), "error": None}]}
    return add_figures(Result(data, "the run\n", hint="before"), Workspace(cli.install))


def test_its_step_time_and_verdict_follow(cli: Cli, texts: Texts) -> None:
    result = started(cli, log=steady_log(5741.5))
    texts(str(result.text))
    texts(result.hint)


def test_a_run_without_figures_says_why(cli: Cli, texts: Texts) -> None:
    result = started(cli, log=mbridge_log(range(1, 6), 5))
    texts(str(result.text))


def test_a_run_that_completed_and_failed_all_the_same_is_no_success(cli: Cli) -> None:
    log = steady_log(5741.5)
    assert started(cli, log=log).exit_status == 0
    nan = started(cli, log=re.sub(r"lm loss: \S+", "lm loss: nan", log))
    assert "nan" in str(nan.text)
    assert nan.exit_status == 1


def test_a_short_run_has_a_step_time_too(cli: Cli, texts: Texts) -> None:
    result = started(cli, log=steady_log(100.0, steps=20), variables=PUBLISHED | {"MAX_STEPS": "20"})
    texts(str(result.text))


def test_several_runs_end_with_a_line_for_each_configuration_and_a_sweep_with_its_ranking(
    cli: Cli, texts: Texts
) -> None:
    jobs = []
    for number in range(4):
        variables = PUBLISHED | {"NCCL_ALGO": ("Ring", "Tree")[number % 2]}
        record = make_run(cli.install, log=steady_log(5700.0 + 600 * (number % 2)), variables=variables)
        jobs.append({**run_as_json(row_of(record)), "error": None})
    done = Result({"dry_run": False, "jobs": jobs}, "the runs\n", hint="before")
    several = str(add_figures(done, Workspace(cli.install)).text)
    texts(several)
    ranking = str(add_figures(done, Workspace(cli.install), ranked=True).text)
    texts(ranking.splitlines()[2])
    live = [*jobs, {**jobs[0], "state": "RUNNING"}]
    waiting = Result({"dry_run": False, "jobs": live}, "the runs\n")
    assert add_figures(waiting, Workspace(cli.install), ranked=True) is waiting


@pytest.mark.parametrize("state", ["RUNNING", "PENDING"])
def test_a_run_that_has_not_ended_has_no_figures_yet(cli: Cli, state: str) -> None:
    result = started(cli, log=steady_log(5741.5), state=state)
    assert (result.text, result.hint) == ("the run\n", "before")


def test_a_dry_run_stays_as_it_is(cli: Cli) -> None:
    shown = Result(lambda: {"dry_run": True}, "script")
    assert add_figures(shown, Workspace(cli.install)) is shown
