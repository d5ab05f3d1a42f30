"""Watching runs: what is shown of each, what fits on a terminal, and how often the scheduler is asked."""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmb_common.runs.finding import Finding
from llmb_common.runs.record import RunRecord
from llmb_common.submission.observe import Observation
from llmb_run.actions.watch import LIVE, that_fit
from llmb_run.columns import Form, cells
from llmb_run.following import LiveRun, update_runs
from support.cli import Cli
from support.iteration_logs import mbridge_line
from support.runs import cut_log, make_run, steady_log
from support.texts import Texts


class Scheduler:
    """Answers each question, about all runs, with the next of ``states``. Its clock moves while ``watch`` sleeps."""

    def __init__(self, patch: pytest.MonkeyPatch, *states: str) -> None:
        self.states = iter(states)
        self.now = 0.0
        self.asked: list[tuple[float, int]] = []
        """When, and about how many runs."""
        clock = SimpleNamespace(
            monotonic=lambda: self.now, sleep=lambda seconds: self.sleep(seconds), strftime=time.strftime
        )
        patch.setattr("llmb_run.actions.watch.time", clock)
        patch.setattr("llmb_run.following.observe", self.answer)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def answer(self, records: Sequence[RunRecord]) -> list[Observation]:
        self.asked.append((self.now, len(records)))
        state = next(self.states)
        return [Observation(record.with_state(state)) for record in records]


def terminal(cli: Cli, width: int, height: int) -> None:
    cli.patch.setattr(sys.stdout, "isatty", lambda: True)
    cli.patch.setenv("TERM", "xterm-256color")
    cli.patch.setenv("COLUMNS", str(width))
    cli.patch.setenv("LINES", str(height))
    cli.patch.delenv("NO_COLOR", raising=False)


# One run


def live_run(tmp_path: Path, state: str = "RUNNING", log: str | None = None, **seen: object) -> LiveRun:
    run = LiveRun(Observation(make_run(tmp_path, state=state, log=log), Finding(**seen)))  # type: ignore[arg-type]
    run.progress.look()
    return run


def cells_of(run: LiveRun) -> dict[str, str]:
    headings, lines = cells(LIVE, Form.TABLE, [run])
    return dict(zip(headings, lines[0], strict=True))


def test_whether_a_run_trained_is_asked_again_when_it_has_ended(tmp_path: Path) -> None:
    """The screen asks at every look, and a job may fail after its last step."""
    run = live_run(tmp_path, log=steady_log(5741.5))
    assert not run.well
    run.seen = Observation(run.record.with_state("FAILED"))
    assert run.well


def test_a_running_run_shows_its_step_its_time_left_and_its_nodes(tmp_path: Path) -> None:
    log = "".join(mbridge_line(index, 50, milliseconds=60_000, tflops=812.34) for index in range(1, 31))
    run = live_run(tmp_path, log=log, nodes="gpu[1-16]")
    cells = cells_of(run)
    assert (cells["step"], cells["s/step"], cells["TFLOPS"], cells["left"]) == ("30/50", "60.000", "812.3", "20 min")
    assert (cells["state"], cells["GPUs"], cells["job"], cells[""]) == ("RUNNING", "128", "101", "gpu[1-16]")
    assert cells["what"] == "pretrain_llama3.1 405b mbridge fp8 (cs)"
    assert cells["for"] in ("0 s", "1 s", "2 s"), "since its last change of state"
    assert run.live
    assert not run.well


def test_before_its_first_step_there_are_no_figures(tmp_path: Path) -> None:
    cells = cells_of(live_run(tmp_path))
    assert [cells[name] for name in ("step", "s/step", "TFLOPS", "left")] == [""] * 4


def test_an_ended_run_shows_when_and_how_and_has_no_time_left(tmp_path: Path) -> None:
    run = live_run(tmp_path, "COMPLETED", steady_log(1000, 50))
    cells = cells_of(run)
    assert (cells["step"], cells["left"]) == ("50/50", "")
    assert re.fullmatch("[0-9]+ s", cells["for"]), "spans alone, whether it has ended or not"
    assert run.well
    assert not run.live


def test_why_a_run_waits(tmp_path: Path, texts: Texts) -> None:
    later = time.time() + 3600
    assert live_run(tmp_path, "PENDING", reason="Priority").remark() == "Priority"
    expected = live_run(tmp_path, "PENDING", reason="Priority", start=later).remark()
    assert expected.startswith("Priority, ")
    assert live_run(tmp_path, "PENDING", reason="Priority", start=time.time() - 60).remark() == "Priority"
    texts(live_run(tmp_path, unknown="sacct does not answer").remark())


def test_a_run_as_json(tmp_path: Path) -> None:
    log = "".join(mbridge_line(index, 50, milliseconds=2000, tflops=800.0) for index in range(1, 11))
    shown = live_run(tmp_path, log=log, nodes="gpu1", reason="", start=5.0).as_dict()
    assert (shown["live"], shown["unknown"], shown["reason"]) == (True, None, None)
    assert (shown["nodes"], shown["start"], shown["step"], shown["steps"]) == ("gpu1", 5.0, 10, 50)
    assert (shown["step_seconds"], shown["tflops_per_gpu"], shown["seconds_left"]) == (2.0, 800.0, 80.0)
    ended = live_run(tmp_path, "FAILED", log=log).as_dict()
    assert (ended["live"], ended["seconds_left"], ended["nodes"]) == (False, None, None)
    assert live_run(tmp_path).as_dict()["step"] is None
    again = live_run(tmp_path, "PENDING", log=log).as_dict()
    assert (again["step"], again["seconds_left"]) == (10, None), "it was queued again"


def test_only_runs_that_live_are_asked_about_and_with_one_question(tmp_path, monkeypatch):
    runs = [live_run(tmp_path, state) for state in ("RUNNING", "COMPLETED", "PENDING")]
    scheduler = Scheduler(monkeypatch, "FAILED")
    update_runs(runs)
    assert [count for _, count in scheduler.asked] == [2]
    assert [run.record.state for run in runs] == ["FAILED", "COMPLETED", "FAILED"]


# What fits


def test_a_wide_terminal_shows_every_column_and_a_narrow_one_drops_the_least_important() -> None:
    lines = [[column.heading for column in LIVE], ["x" * 10 for _ in LIVE]]

    def dropped(width: int) -> list[str]:
        return [column.heading for column in LIVE if column not in that_fit(lines, width)]

    assert dropped(120) == [], "ten columns of ten and two spaces; the remark may be cut"
    assert dropped(119) == ["TFLOPS"]
    assert dropped(108) == ["TFLOPS"]
    assert dropped(107) == ["TFLOPS", "GPUs"]
    assert dropped(0) == ["for", "s/step", "TFLOPS", "GPUs", "job", ""]


def test_a_terminal_shows_ended_runs_once_and_leaves_a_plain_table(cli: Cli) -> None:
    good = make_run(cli.install, log=steady_log(1000))
    bad = make_run(cli.install, state="FAILED", log=cut_log(1000))
    terminal(cli, 200, 30)
    done = cli("watch", good.paths.run_id, bad.paths.run_id)
    assert done.status == 1, "one did not end well"
    drawn, _, left = done.out.rpartition("\x1b[?1049l")
    assert "\x1b[H0 of 2 " in drawn, "live runs"
    assert "\x1b[1mrun " in drawn, "the header"
    assert "Ctrl-C" in drawn
    colours = {line.partition("\x1b[3")[2][:2]: line for line in drawn.splitlines() if "llama3.1" in line}
    assert good.paths.run_id in colours["2m"], "green"
    assert bad.paths.run_id in colours["1m"], "red"
    assert [line.split()[:2] for line in left.splitlines()[-2:]] == [
        [good.paths.run_id, "COMPLETED"],
        [bad.paths.run_id, "FAILED"],
    ]


@pytest.mark.parametrize(("height", "shown", "more"), [(8, 4, ""), (7, 2, "and 2 more")])
def test_a_low_terminal_says_how_many_more_there_are(cli: Cli, height: int, shown: int, more: str) -> None:
    runs = [make_run(cli.install, log=steady_log(1000)).paths.run_id for _ in range(4)]
    terminal(cli, 200, height)
    drawn = cli("watch", *runs).out.rpartition("\x1b[?1049l")[0]
    assert sum(run in drawn for run in runs) == shown
    assert more in drawn
    assert ("more" in drawn) is bool(more)


# Asking


def test_the_scheduler_is_asked_less_and_less_while_nothing_changes(cli: Cli) -> None:
    scheduler = Scheduler(cli.patch, *["RUNNING"] * 9, "COMPLETING", "COMPLETED")
    run = make_run(cli.install, state="RUNNING").paths.run_id
    done = cli("watch", run)
    assert done.status == 0
    times = [when for when, _ in scheduler.asked]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps == [2, 3, 5, 7, 11, 15, 15, 15, 15, 2], "a change brings the next question back to two seconds"
    assert [line.split()[:2] for line in done.out.splitlines()] == [
        [run, "RUNNING"],
        [run, "COMPLETING"],
        [run, "COMPLETED"],
    ]


def test_in_a_pipe_every_tenth_step_is_a_line(cli: Cli) -> None:
    record = make_run(cli.install, state="RUNNING", log=steady_log(1000, 50))
    lines = record.paths.log.read_text().splitlines(keepends=True)
    record.paths.log.write_text("".join(lines[:4]))
    scheduler = Scheduler(cli.patch, *["RUNNING"] * 4, "COMPLETED")

    def train(seconds: float) -> None:
        done = int(4 + scheduler.now * 2)
        scheduler.now += seconds
        with record.paths.log.open("a") as log:
            log.writelines(lines[done : done + 2])

    scheduler.sleep = train  # type: ignore[method-assign]
    done = cli("watch", record.paths.run_id)
    told = [line.split() for line in done.out.splitlines()]
    assert [words[1:6] for words in told[:3]] == [
        ["RUNNING", "step", "4", "of", "50"],
        ["RUNNING", "step", "10", "of", "50"],
        ["RUNNING", "step", "20", "of", "50"],
    ]
    assert told[-1][1] == "COMPLETED"
