"""What a run left beside the records of its log: its own events, its state, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmb_common.runs.timing.job_events import JobEvents, read_events
from llmb_common.runs.timing.log_files import RunFiles
from llmb_common.runs.timing.runs import RunTiming, analyse
from llmb_common.runs.timing.window import Window
from support.iteration_logs import mbridge_line, mbridge_log
from support.texts import Texts

WINDOW = Window(35, 44)


def written(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def run_folder(tmp_path: Path, log: str, *events: dict[str, Any], **documents: object) -> RunFiles:
    """A run folder with its log, its events, and job.json or run.json."""
    folder = tmp_path / "run"
    written(folder / "events.jsonl", "".join(json.dumps(event) + "\n" for event in events))
    for name, document in documents.items():
        written(folder / f"{name}.json", json.dumps(document))
    return RunFiles("run", folder, written(folder / "log-x.out", log))


def analysed(tmp_path: Path, log: str, *events: dict[str, Any], **documents: object) -> RunTiming:
    return analyse(run_folder(tmp_path, log, *events, **documents), WINDOW)


def test_more_than_three_restarts_or_odd_figures_are_not_all_named(tmp_path: Path, texts: Texts) -> None:
    starts = (1, 6, 11, 16, 21)
    log = "".join(mbridge_log(range(start, start + 10)) for start in starts)
    log += "".join(mbridge_line(index, tflops="nan") for index in range(31, 35)) + mbridge_log(range(35, 51))
    notices = analysed(tmp_path, log).notices
    assert len(notices) == 2
    texts("\n".join(notices))


def test_three_odd_figures_are_all_named(tmp_path: Path, texts: Texts) -> None:
    log = mbridge_log(range(1, 10)) + "".join(mbridge_line(index, tflops="inf") for index in (10, 11, 12))
    (notice,) = analysed(tmp_path, log).notices
    texts(notice)


def test_a_restart_before_or_at_the_windows_start_does_no_harm(tmp_path: Path, texts: Texts) -> None:
    for start in (30, 35):
        log = mbridge_log(range(1, start + 4)) + mbridge_log(range(start, 51))
        assert len(analysed(tmp_path, log).notices) == 1, start
    log = mbridge_log(range(1, 41)) + mbridge_log(range(36, 51))
    texts(analysed(tmp_path, log).notices[1])


def test_an_energy_that_is_no_number_says_nothing_of_the_training(tmp_path: Path, texts: Texts) -> None:
    """Megatron prints it with ``logger.log_energy``, which earlier releases switched on."""
    extra = "energy per GPU (J/iter/GPU): nan | power per GPU (W/GPU): nan"
    found = analysed(tmp_path, "".join(mbridge_line(i, extra=extra if i == 40 else "") for i in range(1, 51)))
    assert found.status.state == "Success"
    texts(found.notices[0])


def test_a_run_that_waits_for_its_first_log_line(tmp_path: Path, texts: Texts) -> None:
    files = run_folder(tmp_path, "", run={"state": "RUNNING"})
    assert files.folder is not None
    files.log.unlink()
    found = analyse(RunFiles("run", files.folder, None), WINDOW)
    assert (found.status.state, found.status.reason) == ("Running", "still_running")
    texts(found.status.message)


def test_why_a_run_without_a_log_ended(tmp_path: Path, texts: Texts) -> None:
    record = {"state": "CANCELLED", "states": [{"detail": "by root"}]}
    folder = run_folder(tmp_path, "", run=record).folder
    found = analyse(RunFiles("run", folder, None), WINDOW)
    texts(found.status.message)
    texts(analysed(tmp_path, "", run=record).status.message)


START = {"event": "start", "job_id": "41", "pid": 7, "time": 100.5, "nodes": "gpu[1-2]", "restart": 1}


def events(tmp_path: Path, *lines: object) -> JobEvents:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    return read_events(written(tmp_path / "events.jsonl", text))


def test_the_jobs_own_account(tmp_path: Path) -> None:
    end = {"event": "end", "job_id": "41", "time": 160, "exit_code": 3}
    expected = JobEvents("41", 7, 100.5, 160.0, 3, "gpu[1-2]", 1, signalled=False, problem="")
    assert events(tmp_path, START, end) == expected


def test_no_account_without_a_start(tmp_path: Path) -> None:
    assert read_events(tmp_path / "nothing") == JobEvents()
    assert events(tmp_path, '{"event": "start", "job_id": "1", "time": 1' + "0" * 400 + "}").exit_code is None
    assert events(tmp_path, {"event": "end", "job_id": "41", "exit_code": 0}) == JobEvents()


def test_a_local_job_has_a_process_and_no_id(tmp_path: Path) -> None:
    found = events(tmp_path, START | {"job_id": "local-17-3"})
    assert (found.job_id, found.pid) == (None, 7)
    assert events(tmp_path, {"event": "start"}) == JobEvents()


def test_an_id_that_is_a_number_is_the_same_job(tmp_path: Path) -> None:
    found = events(tmp_path, START | {"job_id": 41}, {"event": "end", "job_id": 41, "exit_code": 0})
    assert (found.job_id, found.exit_code) == ("41", 0)


def test_another_jobs_end_is_not_ours(tmp_path: Path) -> None:
    """A second job for the same run exits at once, and writes so."""
    found = events(tmp_path, START, {"event": "end", "job_id": "42", "exit_code": 1})
    assert (found.ended, found.exit_code) == (None, None)


def test_a_requeue_begins_anew(tmp_path: Path) -> None:
    signal = {"event": "signal", "job_id": "41"}
    first = events(tmp_path, START, signal)
    assert (first.signalled, bool(first.problem)) == (True, True)
    second = events(tmp_path, START, signal, START | {"restart": 2})
    assert (second.signalled, second.problem, second.restarts) == (False, "", 2)


def test_a_start_that_only_checked_its_nodes_is_no_restart_of_the_training(tmp_path: Path) -> None:
    first, again, log = START | {"restart": 0}, START | {"time": 300}, mbridge_log(range(1, 51))
    unfit = {"event": "unfit", "job_id": "41", "nodes": "gpu2"}
    assert analysed(tmp_path, log, first, unfit, again).notices == ()
    assert "restarted" in analysed(tmp_path, log, first, again).notices[0]


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        ("hang", "hung after iteration 12: no further one came, the job was ended"),
        ("teardown", "did not exit after its last iteration 12 and was ended; counts as success"),
        ("signal", "ended by a signal"),
        ("note", ""),
    ],
)
def test_what_went_wrong_in_words(tmp_path: Path, event: str, problem: str) -> None:
    assert events(tmp_path, START, {"event": event, "job_id": "41", "exit_code": 12}).problem == problem


@pytest.mark.parametrize(("time", "waited"), [({"time": 100 + 1215}, " in 1215 s"), ({}, "")])
def test_a_hang_before_the_first_iteration_says_how_long_it_was_waited_for(tmp_path, time, waited):
    hang = {"event": "hang", "job_id": "41", "exit_code": 0, **time}
    expected = f"hung before its first iteration: none came{waited}, the job was ended (LLMB_START_SECONDS)"
    assert events(tmp_path, START | {"time": 100}, hang).problem == expected


@pytest.mark.parametrize("left", ["\0" * 300, '{"event": "hang", "ti\0\0', "\0\0\n\0"])
def test_zeros_that_a_dead_node_left_hide_no_later_event(tmp_path: Path, left: str) -> None:
    """So the jobs of earlier releases wrote on."""
    found = events(tmp_path, START, left + json.dumps(START | {"restart": 2, "nodes": "gpu3"}) + "\0")
    assert (found.restarts, found.nodes, found.hung) == (2, "gpu3", False)


def test_damaged_lines_and_values_of_another_type_say_nothing(tmp_path: Path) -> None:
    odd = {"event": "end", "job_id": "41", "time": True, "exit_code": "0"}
    found = events(
        tmp_path, '{"event": "sta', "[]", '"start"', '{"event": 5}', START | {"pid": True, "restart": None}, odd
    )
    assert (found.job_id, found.pid, found.restarts) == ("41", None, 0)
    assert (found.ended, found.exit_code) == (None, None)


@pytest.mark.parametrize("number", [-1, 2**63 + 1, 10**23])
def test_a_place_in_a_log_that_no_file_has_is_not_recorded(tmp_path: Path, number: int) -> None:
    assert events(tmp_path, START | {"log": number, "batch": number}) == events(tmp_path, START)
