"""Small print of the log parsers: the command in this process, odd prints, the job's own events, and what is named."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from llmb_common.timing import cli as parser
from llmb_common.timing.iterations import read_log
from llmb_common.timing.job_events import JobEvents, read_events
from llmb_common.timing.log_files import RunFiles, find_runs, open_log
from llmb_common.timing.records import Iteration, iterations_in
from llmb_common.timing.runs import RunTiming, analyse
from llmb_common.timing.statistics import Window, read_window, summarize
from llmb_common.timing.tables import STYLES, render, shorten
from support.iteration_logs import mbridge_line, mbridge_log, nemo_line, step_time
from support.programs import needs_zstd

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


# The command


def test_a_success_is_a_row_and_nothing_on_stderr(tmp_path, monkeypatch, capsys):
    written(tmp_path / "experiments" / "log-good.out", mbridge_log())
    monkeypatch.chdir(tmp_path)
    assert parser.main(["mbridge"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.splitlines()[-1].split() == ["good", "Success", "5741.500", "0.000", "1636.80", "0.00"]


def test_what_is_wrong_and_what_to_know_go_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "log-again.out", mbridge_log(range(1, 31)) + mbridge_log(range(21, 51)))
    written(tmp_path / "log-bad.out", mbridge_log(range(1, 21)))
    assert parser.main(["mbridge", str(tmp_path), "--format", "CSV"]) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0].startswith("experiment,status,time_mean_ms,")
    assert printed.err.splitlines() == [
        "again: note: 10 iterations are printed again (from iteration 21), after a restart; the last print counts",
        "bad: Failed: ended_early: the log ends at iteration 20 of 50",
    ]


@pytest.mark.parametrize(("engine", "script"), [("mbridge", "_mbridge.sh"), ("nemo", "parse_train_timing.sh")])
def test_help_shows_the_scripts_name_its_window_and_its_statuses(engine, script, capsys):
    assert parser.main([engine, "--help"]) == 0
    text = capsys.readouterr().out
    style = STYLES["mbridge" if engine == "mbridge" else "nemo"]
    first = text.splitlines()[0]
    assert first.startswith("usage: parse_train_timing")
    assert first.endswith(f"{script} [FOLDER] [options]")
    assert f"step time ({style.unit})" in text
    assert f"over iterations {style.window}, for\nevery run" in text, "as it is written, not wrapped anew"
    assert f"other iterations, both included (default: {style.window})" in text
    assert "--format table|csv|json" in text
    assert "Exit status: 0 all runs are a Success" in text


@pytest.mark.parametrize(
    ("arguments", "message", "remedy"),
    [
        ([], "the first argument is mbridge or nemo", "common/parse_train_timing_mbridge.sh"),
        (["bridge"], "the first argument is mbridge or nemo", "common/parse_train_timing_mbridge.sh"),
        (["nemo", "--wndow", "1-5"], "unknown option --wndow (did you mean '--window'?)", "--help shows"),
        (["nemo", "--window"], "argument --window: expected one argument", "--help shows"),
        (["nemo", "--format", "tabel"], "unknown format 'tabel' (did you mean 'table'?)", "use table, csv or json"),
        (["nemo", "a", "b"], "one folder at a time, not 2: a b", "name their parent"),
        (["nemo", "nowhere"], "no such folder: nowhere", "name the folder of the runs"),
        (["nemo"], "no such folder: experiments", "go to the workload's folder"),
        (["nemo", "."], "no run under .", "name the folder that holds <experiment>/"),
        (["nemo", "--window", "9-8"], "--window 9-8 is not a range", "the first and the last iteration"),
    ],
)
def test_a_wrong_request_says_what_to_do(arguments, message, remedy, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert parser.main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {message}")
    assert remedy in said.partition("\n  -> ")[2]


# Windows and statistics


def test_a_window_has_both_its_ends() -> None:
    window = read_window("35-44")
    assert (str(window), len(window)) == ("35-44", 10)
    assert [index for index in range(30, 50) if index in window] == list(range(35, 45))
    assert "40" not in window
    assert read_window("7-7") == Window(7, 7)
    assert read_window("0-999999999").last == 999_999_999


def test_what_a_window_lacks() -> None:
    known = [Iteration(index, 50, 1.0) for index in (1, 2, 4, 6)]
    assert Window(1, 5).missing(known) == (3, 5)
    assert [item.index for item in Window(2, 5).select(known)] == [2, 4]


def test_a_summary_of_an_even_number_of_values() -> None:
    found = summarize([4.0, 1.0, 3.0, 2.0])
    assert (found.count, found.mean, found.median) == (4, 2.5, 2.5)
    assert found.std == pytest.approx(1.2909944)
    two = summarize([1.0, 3.0])
    assert two.std == pytest.approx(2**0.5)


# Records


def read(tmp_path: Path, text: str) -> tuple[Iteration, ...]:
    with FileIO(written(tmp_path / "log-x.out", text)) as file:
        return read_log(file).iterations


@pytest.mark.parametrize("odd", ["Step Time : soon\n", "Step Time : 1.2.3s GPU utilization: 4.0MODEL_TFLOP/s/GPU\n"])
def test_a_garbled_print_of_the_step_time_is_passed_over(tmp_path: Path, odd: str) -> None:
    found = read(tmp_path, odd + step_time() + mbridge_line(1, tflops=None))
    assert [item.tflops for item in found] == [1636.8]


def test_a_step_time_print_is_rounded_to_hundredths(tmp_path: Path) -> None:
    """5.74 belongs to 5745 ms, and not to 5746."""
    found = read(tmp_path, step_time(5.74, 7.0) + mbridge_line(1, milliseconds=5745.0, tflops=None))
    assert [item.tflops for item in found] == [7.0]
    found = read(tmp_path, step_time(5.74, 7.0) + mbridge_line(1, milliseconds=5746.0, tflops=None))
    assert [item.tflops for item in found] == [None]


def test_a_print_further_on_than_the_next_record_is_not_this_ones(tmp_path: Path) -> None:
    records = "".join(mbridge_line(index, tflops=None) for index in (1, 2, 3))
    assert [item.tflops for item in read(tmp_path, records + step_time(tflops=9.0))] == [None, None, 9.0]


def test_energy_and_power_of_a_step() -> None:
    counted = "energy per GPU (J/iter/GPU): 3210.5 | power per GPU (W/GPU): 559.2"
    without = "energy per GPU (J/iter/GPU): 0.0 | power per GPU (W/GPU): 0.0"
    first, second = iterations_in((mbridge_line(1, extra=counted) + mbridge_line(2, extra=without)).encode())
    assert (first.joules, first.watts) == (3210.5, 559.2)
    assert (second.joules, second.watts) == (None, None), "what an image without NVML prints"
    assert first.not_finite == second.not_finite == ()


def test_figures_that_are_not_finite_are_named_one_by_one() -> None:
    extra = "energy per GPU (J/iter/GPU): nan | power per GPU (W/GPU): inf"
    (item,) = iterations_in(mbridge_line(1, tflops="nan", extra=extra).encode())
    assert item.not_finite == ("TFLOPS", "energy", "power")
    assert (item.tflops, item.joules, item.watts) == (None, None, None)


def test_a_step_is_shorter_than_four_months() -> None:
    assert len(iterations_in(mbridge_line(1, milliseconds="9.9e9").encode())) == 1
    assert iterations_in(mbridge_line(1, milliseconds="1e10").encode()) == []
    assert [item.seconds for item in iterations_in(nemo_line(0, seconds=9.9e6).encode())] == [9.9e6]


def test_a_record_far_into_a_piece_of_a_log_is_found() -> None:
    noise = "x" * 5000 + "\n"
    assert [item.index for item in iterations_in((noise + mbridge_line(7) + noise + mbridge_line(8)).encode())] == [
        7,
        8,
    ]


def test_a_compressed_log_is_read_from_its_first_byte(tmp_path: Path) -> None:
    text = mbridge_log().encode()
    with open_log(written(tmp_path / "log-x.out.gz", gzip.compress(text))) as file:
        assert file.read() == text


@needs_zstd
def test_a_damaged_archive_whose_name_is_not_utf8(tmp_path: Path) -> None:
    log = Path(os.fsdecode(os.fsencode(tmp_path) + b"/log-\xff.out.zst"))
    with pytest.raises(OSError, match=r"zstd cannot unpack it: .*unsupported format"), open_log(written(log, "text")):
        pass


@needs_zstd
def test_an_archive_that_is_too_large_is_not_unpacked_to_its_end(tmp_path, monkeypatch):
    log = written(tmp_path / "log-x.out", b"x" * (8 << 20))
    subprocess.run(["zstd", "-q", "--rm", str(log)], check=True)
    monkeypatch.setattr("llmb_common.timing.log_files._MOST_BYTES", 10_000)
    with pytest.raises(OSError, match="more than 0 GiB when unpacked"), open_log(tmp_path / "log-x.out.zst"):
        pass


def test_the_table_comes_before_what_is_said_of_it(tmp_path: Path) -> None:
    """Also where both go into one file."""
    written(tmp_path / "log-bad.out", mbridge_log(range(1, 21)))
    done = subprocess.run(
        [sys.executable, "-m", "llmb_common.timing.cli", "mbridge", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert [line.split()[0] for line in done.stdout.splitlines()[-2:]] == ["bad", "bad:"]


# Runs


def test_two_runs_of_one_name_and_one_of_another(tmp_path: Path) -> None:
    for place in ("a/log-x.out", "b/log-x.out", "b/log-y.out"):
        written(tmp_path / place, "")
    assert [run.name for run in find_runs(tmp_path)] == ["a/log-x.out", "b/log-x.out", "y"]


@pytest.mark.parametrize(
    ("name", "is_run"),
    [("x_1732000000", True), ("x_1732000000-0002", True), ("x_17", True), ("x_17-2", False), ("x_new", False)],
)
def test_a_run_of_another_launcher_is_known_by_its_name(tmp_path: Path, name: str, is_run: bool) -> None:
    (tmp_path / "x" / name).mkdir(parents=True)
    assert [run.name for run in find_runs(tmp_path)] == ([name] if is_run else [])


def test_a_folder_named_as_a_run_belongs_to_its_experiment(tmp_path: Path) -> None:
    (tmp_path / "other" / "x_1732000000").mkdir(parents=True)
    assert find_runs(tmp_path) == []


def test_more_than_three_restarts_or_odd_figures_are_not_all_named(tmp_path: Path) -> None:
    starts = (1, 6, 11, 16, 21)
    log = "".join(mbridge_log(range(start, start + 10)) for start in starts)
    log += "".join(mbridge_line(index, tflops="nan") for index in range(31, 35)) + mbridge_log(range(35, 51))
    notices = analysed(tmp_path, log).notices
    assert notices == (
        "20 iterations are printed again (from iteration 6, 11, 16 and 1 more), after a restart; the last print counts",
        "figures that are not finite numbers are left out: TFLOPS at iteration 31; TFLOPS at iteration 32;"
        " TFLOPS at iteration 33 and 1 more",
    )


def test_three_odd_figures_are_all_named(tmp_path: Path) -> None:
    log = mbridge_log(range(1, 10)) + "".join(mbridge_line(index, tflops="inf") for index in (10, 11, 12))
    (notice,) = analysed(tmp_path, log).notices
    assert notice.endswith("TFLOPS at iteration 10; TFLOPS at iteration 11; TFLOPS at iteration 12")


def test_a_restart_before_or_at_the_windows_start_does_no_harm(tmp_path: Path) -> None:
    for start in (30, 35):
        log = mbridge_log(range(1, start + 4)) + mbridge_log(range(start, 51))
        assert len(analysed(tmp_path, log).notices) == 1, start
    log = mbridge_log(range(1, 41)) + mbridge_log(range(36, 51))
    assert "the job was restarted within the window 35-44" in analysed(tmp_path, log).notices[1]


def test_energy_of_a_window_needs_every_step(tmp_path: Path) -> None:
    extra = "energy per GPU (J/iter/GPU): 100.0 | power per GPU (W/GPU): 50.0"
    whole = analysed(tmp_path, "".join(mbridge_line(index, extra=extra) for index in range(1, 51)))
    assert (whole.joules.mean, whole.joules.count, whole.watts.mean) == (100.0, 10, 50.0)
    part = analysed(tmp_path, "".join(mbridge_line(i, extra="" if i == 40 else extra) for i in range(1, 51)))
    assert (part.joules, part.watts) == (None, None)


def test_a_run_that_waits_for_its_first_log_line(tmp_path: Path) -> None:
    files = run_folder(tmp_path, "", run={"state": "RUNNING"})
    assert files.folder is not None
    files.log.unlink()
    found = analyse(RunFiles("run", files.folder, None), WINDOW)
    assert (found.status.state, found.status.reason, found.status.message) == ("Running", "still_running", "no log yet")


def test_why_a_run_without_a_log_ended(tmp_path: Path) -> None:
    record = {"state": "CANCELLED", "states": [{"detail": "by root"}]}
    folder = run_folder(tmp_path, "", run=record).folder
    found = analyse(RunFiles("run", folder, None), WINDOW)
    assert found.status.message == "it left no log (CANCELLED, by root)"
    assert analysed(tmp_path, "", run=record).status.message == "the log is empty (CANCELLED, by root)"


def test_an_empty_log_of_a_waiting_run_is_no_failure(tmp_path: Path) -> None:
    assert analysed(tmp_path, "").status.reason == "empty_log"
    assert analysed(tmp_path, "", run={"state": "PENDING"}).status.state == "Running"


# The job's events

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
    assert (first.signalled, first.problem) == (True, "ended by a signal")
    second = events(tmp_path, START, signal, START | {"restart": 2})
    assert (second.signalled, second.problem, second.restarts) == (False, "", 2)


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        ("hang", "hung after iteration 12: no further one came, the job was ended"),
        ("teardown", "did not exit after its last iteration 12 and was ended; counted as success"),
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


def test_damaged_lines_and_values_of_another_type_say_nothing(tmp_path: Path) -> None:
    odd = {"event": "end", "job_id": "41", "time": True, "exit_code": "0"}
    found = events(
        tmp_path, '{"event": "sta', "[]", '"start"', '{"event": 5}', START | {"pid": True, "restart": None}, odd
    )
    assert (found.job_id, found.pid, found.restarts) == ("41", None, 0)
    assert (found.ended, found.exit_code) == (None, None)


# Tables


def test_a_name_is_cut_in_its_middle() -> None:
    assert shorten("abcdefghij", 10) == "abcdefghij"
    assert shorten("abcdefghijk", 10) == "abc...hijk"
    assert shorten("abcdefghijkl", 11) == "abcd...ijkl"


def test_hostile_paths_are_harmless_in_json(tmp_path: Path) -> None:
    log = tmp_path / "a\x1b[31m" / "log-x.out"
    log.mkdir(parents=True)
    text = render([analyse(RunFiles("x", None, log), WINDOW)], STYLES["mbridge"], WINDOW, "json", full_names=False)
    (run,) = json.loads(text)["runs"]
    assert run["reason"] == "unreadable_log"
    assert "\x1b" not in run["message"]
    assert "\x1b" not in run["log"]
    assert run["message"].endswith(": not a regular file")


def test_json_names_the_log_and_gives_the_last_step(tmp_path: Path) -> None:
    log = "".join(mbridge_line(index, milliseconds=1000 + index) for index in range(1, 51))
    files = run_folder(tmp_path, log)
    document = json.loads(render([analyse(files, WINDOW)], STYLES["mbridge"], WINDOW, "json", full_names=False))
    assert document["window"] == {"first": 35, "last": 44}
    assert document["schema"] == 1
    (run,) = document["runs"]
    assert run["log"] == str(files.log)
    assert (run["iterations"], run["window_iterations"]) == (50, 10)
    assert (run["time_last_ms"], run["time_mean_ms"], run["time_median_ms"]) == (1050.0, 1039.5, 1039.5)
    assert (run["status"], run["reason"], run["message"], run["notices"]) == ("Success", None, None, [])
