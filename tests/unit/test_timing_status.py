"""What makes a run a Success, and what prevents it."""

from __future__ import annotations

import json
import os
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from llmb_common.base.statistics import Summary, summarize
from llmb_common.runs.timing.iterations import Ending, read_ending, read_log
from llmb_common.runs.timing.log_files import RunFiles
from llmb_common.runs.timing.records import Iteration
from llmb_common.runs.timing.runs import RecordedState, analyse
from llmb_common.runs.timing.window import Window, read_window
from support.iteration_logs import TOLD_LINE, mbridge_line, mbridge_log, nemo_line, nemo_log, saved_line, step_time
from support.texts import Texts

WINDOW = Window(35, 44)
NEMO = {"window": Window(11, 44)}
SUCCESS = ("Success", "", None)


@pytest.fixture
def judge(tmp_path):
    def judge(text: str, window: Window = WINDOW, *, job: object = None, record: object = None, events: str = ""):
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        for name, document in (("job.json", job), ("run.json", record), ("events.jsonl", events or None)):
            if document is not None:
                (folder / name).write_text(document if isinstance(document, str) else json.dumps(document))
        log = folder / "log-x.out"
        log.write_text(text)
        return analyse(RunFiles("run", folder, log), window)

    return judge


def verdict(timing) -> tuple[str, str, int | None]:
    return timing.status.state, timing.status.reason, timing.status.iteration


def up_to(last: int, *further: str) -> str:
    return mbridge_log(range(1, last + 1)) + "".join(further)


def replaced_line(index: int, **fields) -> str:
    return mbridge_log().replace(mbridge_line(index), mbridge_line(index, **fields))


def with_figures(extra: dict[int, str], usual: str = "load_balancing_loss: 1.0E+00 | mtp_1 loss: 7.1E+00") -> str:
    """A log whose records have ``usual``, but for those that ``extra`` says what else to have."""
    return "".join(mbridge_line(index, extra=extra.get(index, usual)) for index in range(1, 51))


def without_mtp(first: int, last: int) -> str:
    return with_figures(dict.fromkeys(range(first, last + 1), "load_balancing_loss: 1.0E+00"))


def skipped_without_averages() -> str:
    lines = with_figures({}).splitlines(keepends=True)
    lines[6] = mbridge_line(7, loss=None, skipped=1).replace("grad norm: 1.019 | ", "")
    return "".join(lines)


def restarted(**met: Any) -> str:
    """An attempt that met something in step 37, and another one from step 31 on."""
    return up_to(36, mbridge_line(37, **met), mbridge_log(range(31, 51)))


NOTHING_LEFT = "llmb_train: notice: the checkpoint in /c is from the last step, 50: nothing is left to train\n"
CUT = "cut, garbled, or with an impossible step time"

LOGS: list[tuple[str, str, dict[str, Any], tuple[str, str, int | None]]] = [
    ("healthy", mbridge_log(), {}, SUCCESS),
    ("healthy, NeMo", nemo_log(), NEMO, SUCCESS),
    ("longer", mbridge_log(range(1, 101), 100), {}, SUCCESS),
    *(
        (f"{fields} in step {index}", replaced_line(index, **fields), {}, ("Failed", reason, index))
        for index in (1, 40, 50)
        for fields, reason in (
            ({"loss": "NAN"}, "nan_loss"),
            ({"loss": "INF"}, "inf_loss"),
            ({"loss": None}, "nan_loss"),
            ({"grad_norm": "nan"}, "nan_grad_norm"),
            ({"grad_norm": "inf"}, "inf_grad_norm"),
            ({"nan": 1}, "nan_iteration"),
        )
    ),
    (
        "no loss at all",
        "".join(mbridge_line(index, loss=None) for index in range(1, 51)),
        {},
        ("Failed", "nan_loss", 1),
    ),
    *(
        (f"the loss is called {name!r}", mbridge_log().replace("lm loss", name), {}, SUCCESS)
        for name in ("lm_loss", "loss")
    ),
    ("NeMo prints NaN", nemo_log().replace("12.81", "nan"), NEMO, ("Failed", "nan_loss", 0)),
    ("skipped in the window", replaced_line(40, skipped=1), {}, ("Failed", "skipped_iteration", 40)),
    ("skipped elsewhere", replaced_line(3, skipped=1), {}, SUCCESS),
    # A figure that vanishes is a NaN, of every average and norm; other figures may come and go.
    *(
        (f"no mtp_1 loss from {first} to {last}", without_mtp(first, last), {}, ("Failed", "nan_figure", first))
        for first, last in ((7, 7), (7, 50), (2, 50), (50, 50), (1, 1))
    ),
    *(
        (
            f"no {name} from 21 on",
            with_figures(dict.fromkeys(range(21, 51), ""), f"{name}: 1.0E+00"),
            {},
            ("Failed", "nan_figure", 21),
        )
        for name in ("load_balancing_loss", "params norm", "max attention logit")
    ),
    (
        "further figures from 20 on",
        with_figures(dict.fromkeys(range(20, 51), "skipped samples: 8 | mtp_1 loss: 7.1 | load_balancing_loss: 1.0")),
        {},
        SUCCESS,
    ),
    (
        "another rank's print",
        with_figures({7: "load_balancing_loss: 1.0 | mtp_1 loss: 7.1 | another rank's loss: 1.0"}),
        {},
        SUCCESS,
    ),
    ("a skipped step has no averages", skipped_without_averages(), {}, SUCCESS),
    *(
        (f"mtp_1 loss {value}", with_figures({33: f"mtp_1 loss: {value}"}), {}, ("Failed", "nan_figure", 33))
        for value in ("nan", "-inf", "1e999")
    ),
    # What an attempt met before a restart
    ("NaN before a restart", restarted(loss=None), {}, ("Failed", "nan_loss", 37)),
    ("inf before a restart", restarted(grad_norm="inf"), {}, ("Failed", "inf_grad_norm", 37)),
    ("skipped before a restart, and then taken", restarted(skipped=1), {}, SUCCESS),
    ("cut before a restart", restarted().replace(mbridge_line(37), mbridge_line(37)[:170] + "\n", 1), {}, SUCCESS),
    # Too few records
    *((f"killed after {last}", up_to(last), {}, ("Failed", "ended_early", last)) for last in (1, 20, 44, 45, 49)),
    *(
        (f"no {index}", mbridge_log().replace(mbridge_line(index), ""), {}, ("Incomplete", "missing_iteration", index))
        for index in (35, 40, 44)
    ),
    ("no 34", mbridge_log().replace(mbridge_line(34), ""), {}, SUCCESS),
    ("shorter than the window", mbridge_log(range(1, 6), 5), {}, ("Incomplete", "window_not_reached", 5)),
    ("another window", mbridge_log(range(1, 6), 5), {"window": Window(2, 5)}, SUCCESS),
    ("empty", "", {}, ("Failed", "empty_log", None)),
    ("killed", "srun: error: task 0: Killed\n", {}, ("Failed", "no_iterations", None)),
    ("other words", "the loss scale is from the last step, which failed\n", {}, ("Failed", "no_iterations", None)),
    # Planned steps: those of the job count, not only those that the log promises.
    (
        "100 planned",
        mbridge_log(),
        {"job": {"steps": {"train": 100, "exit_after": None}}},
        ("Failed", "ended_early", 50),
    ),
    ("50 planned", mbridge_log(), {"job": {"steps": {"train": 50}}}, SUCCESS),
    ("50 planned, NeMo", nemo_log(), NEMO | {"job": {"steps": {"train": 50}}}, SUCCESS),
    ("by the record", mbridge_log(), {"record": {"plan": {"max_steps": 100}}}, ("Failed", "ended_early", 50)),
    # NCCL trace: 5 of 50 steps. After loading a checkpoint: one step.
    ("5 of 50", up_to(5), {"window": Window(2, 5), "job": {"steps": {"train": 50, "exit_after": 5}}}, SUCCESS),
    (
        "4 of 5 of 50",
        up_to(4),
        {"window": Window(2, 4), "job": {"steps": {"train": 50, "exit_after": 5}}},
        ("Failed", "ended_early", 4),
    ),
    (
        "one after loading",
        mbridge_line(51, 51),
        {"window": Window(51, 51), "job": {"steps": {"train": 50, "exit_after": 1}}},
        SUCCESS,
    ),
    # Damaged records do not hide the run.
    *(
        (f"a record {document!r}", mbridge_log(), {"job": document, "record": document}, SUCCESS)
        for document in ("", "[]", "{", '{"steps": []}', '{"steps": {"train": "50"}}', '{"state": [1]}', "\x00")
    ),
]


@pytest.mark.parametrize(("log", "known", "expected"), [case[1:] for case in LOGS], ids=[case[0] for case in LOGS])
def test_what_a_log_says(judge, log, known, expected):
    timing = judge(log, **known)
    assert verdict(timing) == expected
    assert (timing.seconds is not None) == (not timing.window.missing(timing.iterations)), "figures of whole windows"


def ended(state: str, detail: str = "") -> dict[str, Any]:
    return {"state": state, "states": [{"state": state, "detail": detail}]}


def events(*names_and_codes: tuple[str, int | None]) -> str:
    return "".join(
        json.dumps({"event": name, "job_id": "7", "exit_code": code}) + "\n" for name, code in names_and_codes
    )


START, GOOD, BAD = ("start", None), ("end", 0), ("end", 7)
SIGNALLED = events(START, ("signal", None), GOOD)
SAVED_AT_20 = up_to(20, saved_line(20), TOLD_LINE)
UNTOLD_AT_20 = up_to(20, saved_line(20))
RUNNING = ("Running", "still_running")
WAITING = ("Running", "waiting")
EARLY = ("Failed", "ended_early", 20)
TOLD = ("Incomplete", "told_to_end")

ENDS: list[tuple[str, dict[str, Any], str, tuple[str, str, int | None]]] = [
    *(
        case
        for state, kind in (
            *((state, WAITING) for state in ("SUBMITTING", "SUBMITTED", "PENDING", "REQUEUED")),
            *((state, RUNNING) for state in ("RUNNING", "COMPLETING", "SUSPENDED")),
        )
        for case in ((up_to(20), ended(state), "", (*kind, 20)), ("", ended(state), "", (*kind, None)))
    ),
    *(
        (up_to(20), {"state": state}, "", EARLY)
        for state in ("NOT_SUBMITTED", "LOST", "COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "UNHEARD_OF")
    ),
    *(
        (mbridge_log(), ended(state), "", ("Trained", "ended_badly", 50))
        for state in ("FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "LOST")
    ),
    (up_to(19, mbridge_line(20, grad_norm="nan")), ended("RUNNING"), "", ("Failed", "nan_grad_norm", 20)),
    # Nothing was left to train: for a later job of a chain, or after a restart.
    (NOTHING_LEFT, ended("COMPLETED"), "", ("Incomplete", "nothing_left", None)),
    (NOTHING_LEFT, ended("FAILED"), "", ("Failed", "no_iterations", None)),
    (NOTHING_LEFT, ended("RUNNING"), "", (*RUNNING, None)),
    (mbridge_log() + NOTHING_LEFT, ended("COMPLETED"), "", SUCCESS),
    # Told to end, by whomever: Slurm's preemption reaches the ranks alone, and only their log knows.
    *((SAVED_AT_20, ended(state), "", (*TOLD, 20)) for state in ("COMPLETED", "TIMEOUT", "PREEMPTED", "DEADLINE")),
    *((SAVED_AT_20, ended(state), "", EARLY) for state in ("FAILED", "CANCELLED", "NODE_FAIL")),
    (SAVED_AT_20, ended("PENDING"), "", (*WAITING, 20)),
    (SAVED_AT_20.replace("successfully", "not"), ended("TIMEOUT"), "", EARLY),  # there is nothing to continue from
    (UNTOLD_AT_20, ended("COMPLETED"), "", EARLY),  # nobody told it
    (UNTOLD_AT_20, ended("COMPLETED"), SIGNALLED, (*TOLD, 20)),
    (UNTOLD_AT_20, ended("RUNNING"), SIGNALLED, (*TOLD, 20)),
    (UNTOLD_AT_20, ended("CANCELLED"), SIGNALLED, EARLY),
    (
        SAVED_AT_20 + mbridge_log(range(21, 31)),
        ended("COMPLETED"),
        "",
        ("Failed", "ended_early", 30),
    ),  # an earlier start
    (SAVED_AT_20.replace("1.019", "nan"), ended("TIMEOUT"), "", ("Failed", "nan_grad_norm", 1)),
    (up_to(50, saved_line(50), TOLD_LINE), ended("COMPLETED"), "", SUCCESS),
    # Nobody may have queried the scheduler since: the record says RUNNING forever, and the job itself knows.
    (mbridge_log(), ended("RUNNING"), "", (*RUNNING, 50)),
    (mbridge_log(), ended("RUNNING"), events(START), (*RUNNING, 50)),
    (mbridge_log(), ended("RUNNING"), events(START, GOOD), SUCCESS),
    (mbridge_log(), ended("RUNNING"), events(START, BAD), ("Trained", "ended_badly", 50)),
    # All steps that it was to train, and yet not those that are measured.
    (mbridge_log(range(1, 6), 5), ended("FAILED"), "", ("Incomplete", "window_not_reached", 5)),
    (up_to(50, saved_line(50), TOLD_LINE), ended("TIMEOUT"), "", ("Trained", "ended_badly", 50)),
    (mbridge_log(), ended("RUNNING"), events(START, BAD, START), (*RUNNING, 50)),
    (mbridge_log(), ended("RUNNING"), events(START, BAD, START, GOOD), SUCCESS),
]


@pytest.mark.parametrize(("log", "record", "written", "expected"), ENDS)
def test_what_the_record_and_the_job_say_of_its_end(judge, log, record, written, expected):
    assert verdict(judge(log, record=record, events=written)) == expected


@pytest.mark.parametrize(("checkpoint", "first"), [({}, 35), ({"load": "/saved"}, 55), ({"resume": True}, 55)])
def test_who_knows_what_the_record_says_reads_the_same_without_it(tmp_path, checkpoint, first):
    (tmp_path / "log-x.out").write_text(mbridge_log(range(21, 71), 70))
    written = tmp_path / "run.json"
    written.write_text(json.dumps({**ended("COMPLETED"), "plan": {"max_steps": 70, "checkpoint": checkpoint}}))
    files = RunFiles("run", tmp_path, tmp_path / "log-x.out")
    read = analyse(files, WINDOW, own_steps=True)
    assert verdict(read) == SUCCESS
    assert read.window.first == first
    written.unlink()
    known = RecordedState("COMPLETED", "", 70, resumes=first == 55)
    assert analyse(files, WINDOW, known, own_steps=True) == read


@pytest.mark.parametrize(
    ("log", "known", "message"),
    [
        (without_mtp(7, 8), {}, "no 'mtp_1 loss' is printed at iteration 7, as Megatron does for NaN"),
        (with_figures({33: "mtp_1 loss: nan"}), {}, "'mtp_1 loss' is not a finite number at iteration 33"),
        (restarted(grad_norm="nan"), {}, "the grad norm is nan at iteration 37, before a restart"),
        (
            mbridge_log(range(1, 6), 5),
            {},
            "it ends at step 5, but iterations 35-44 are measured: --window measures others",
        ),
        (
            mbridge_log(range(51, 101), 100),
            {},
            "it begins at iteration 51, but iterations 35-44 are measured: --window measures others",
        ),
        ("srun: Killed\n", {"record": ended("FAILED")}, "the run ended before its first iteration (FAILED)"),
        ("step: 7 loss: 10\n", {}, "no iteration is in it, as Megatron-Bridge, Megatron-LM or NeMo 2 print them"),
        (
            "Epoch 0:  8%|| 4/50 [00:09<00:02, train_step_timing in s=2.0]\n" * 2,
            {},
            "no iteration can be read: 2 records are cut, garbled or laid out otherwise",
        ),
        (nemo_log(range(9, 50, 10)), NEMO, "only 5 of the iterations 9-49 are printed, and 31 of 11-44 are not"),
        (mbridge_log(range(41, 51)), {}, "no usable record of iteration 35, 36, 37, 38, 39 and 1 more"),
        (
            mbridge_log(),
            {"record": ended("FAILED", "exit code 7")},
            "every step was trained; after the last one, the run ended as FAILED, exit code 7",
        ),
        (up_to(20), {"record": ended("TIMEOUT")}, "the log ends at iteration 20 of 50 (TIMEOUT)"),
        *(
            (
                SAVED_AT_20,
                {"record": ended(state)},
                f"told to end{how} after iteration 20 of 50, and saved iteration 20: llmb-run retry --resume continues"
                " from there",
            )
            for state, how in (("COMPLETED", ""), ("TIMEOUT", " (TIMEOUT)"))
        ),
        (  # the newest checkpoint may be older than the last iteration
            up_to(10, saved_line(10), mbridge_log(range(11, 21)), "saving checkpoint at iteration      20 to /run/c\n"),
            {"record": ended("TIMEOUT")},
            "told to end (TIMEOUT) after iteration 20 of 50, and saved iteration 10: llmb-run retry --resume continues"
            " from there",
        ),
        (
            mbridge_log(range(1, 6), 5),
            {"record": ended("FAILED")},
            "it ends at step 5, but iterations 35-44 are measured: --window measures others; after the last one, the"
            " run ended as FAILED",
        ),
        (up_to(20), {"record": ended("RUNNING")}, "running, has trained 20 steps"),
        (up_to(20), {"record": ended("PENDING")}, "it is waiting for nodes"),
    ],
)
def test_why_in_words(judge, log, known, message):
    assert judge(log, **known).status.message == message


class Counted(FileIO):
    """A log, and how many of its bytes are read."""

    count = 0

    def readinto(self, buffer: Any) -> int | None:
        found = super().readinto(buffer)
        self.count += found or 0
        return found


@pytest.mark.parametrize(
    ("log", "told", "expected"),
    [
        (up_to(20), False, Ending()),
        (SAVED_AT_20, False, Ending(20, told_to_end=True)),
        (up_to(10, saved_line(10), mbridge_log(range(11, 21)), saved_line(20)), True, Ending(20, told_to_end=True)),
    ],
)
def test_the_end_of_an_unfinished_log_is_read_without_the_rest(tmp_path, log, told, expected):
    path = tmp_path / "log-x.out"
    path.write_text(log)
    with Counted(path) as file:
        content = read_log(file)
        before = file.count
        assert read_ending(file, content.end, was_signalled=told) == expected
        assert file.count - before <= 4 * (len(log) - content.end) < len(log)


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "RUNNING"])
def test_where_the_end_of_a_log_says_nothing_it_is_not_read(judge, monkeypatch, state):
    def read(*_: object, **__: object) -> Ending:
        raise AssertionError("its state says that nobody told it to end, or that it has not ended")

    monkeypatch.setattr("llmb_common.runs.timing.runs.read_ending", read)
    assert verdict(judge(up_to(20), record=ended(state)))[0] in ("Failed", "Running")


@pytest.mark.parametrize(
    ("log", "notices"),
    [
        (replaced_line(40, milliseconds="57\x0041.5"), (f"1 record is left out: {CUT}",)),
        (
            up_to(40, mbridge_log(range(38, 51))),
            (
                "3 iterations are printed again (from iteration 38), after a restart; the last print counts",
                "the job was restarted within the window 35-44; steps after a restart are slower",
            ),
        ),
        (
            "".join(mbridge_line(n, milliseconds=5000 + rank) for n in range(1, 51) for rank in range(8)),
            (
                "350 iterations are printed again, with other figures: several processes print them; the last print"
                " counts",
            ),
        ),
        (
            up_to(5, *([up_to(5)] * 9), mbridge_log()),
            (
                "50 iterations are printed again (from iteration 1, 1, 1 and 7 more), after a restart; the last print"
                " counts",
            ),
        ),
    ],
)
def test_what_a_reader_must_know(judge, log, notices):
    assert judge(log).notices == notices


def test_a_damaged_record_is_reported(judge, texts: Texts):
    texts(judge(mbridge_log(), job="{").notices[0], mask="(?<=cannot be read: ).*")


def test_a_run_folder_without_a_log(tmp_path, texts: Texts):
    (tmp_path / "run.json").write_text("{")
    timing = analyse(RunFiles("run", tmp_path, None), WINDOW)
    assert verdict(timing) == ("Failed", "no_log", None)
    texts(timing.notices[0], mask="(?<=cannot be read: ).*")


@pytest.mark.parametrize("make", ["folder", "dangling link", "link to itself", "fifo"])
def test_a_log_that_is_not_a_regular_file_is_a_failed_run(tmp_path: Path, make):
    log = tmp_path / "log-x.out"
    if make == "folder":
        log.mkdir()
    elif make == "fifo":
        os.mkfifo(log)
    else:
        log.symlink_to(log if make == "link to itself" else tmp_path / "nowhere")
    assert verdict(analyse(RunFiles("run", None, log), WINDOW)) == ("Failed", "unreadable_log", None)


def test_statistics_are_of_the_window_with_the_samples_deviation(judge):
    text = "".join(mbridge_line(index, milliseconds=100.0 * index, tflops=index) for index in range(1, 51))
    timing = judge(text)
    assert timing.seconds.mean == pytest.approx(3.95)
    assert timing.seconds.std == pytest.approx(0.302765)  # of 3.5, 3.6 ... 4.4, divided by 9
    assert timing.seconds.median == pytest.approx(3.95)
    assert timing.tflops.mean == 39.5
    assert timing.last.seconds == 5.0


def test_throughput_that_part_of_the_window_lacks_has_no_mean(judge):
    timing = judge(nemo_log().replace(nemo_line(40, tflops=527.8), nemo_line(40)), Window(11, 44))
    assert timing.seconds is not None
    assert timing.tflops is None


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


def test_summaries() -> None:
    assert summarize([]) is None
    assert summarize([2.0]) == Summary(1, 2.0, 0.0, 2.0)
    assert summarize([1.0, 3.0]) == Summary(2, 2.0, pytest.approx(2**0.5), 2.0)
    assert summarize([4.0, 1.0, 3.0, 2.0]) == Summary(4, 2.5, pytest.approx(1.2909944), 2.5)


RANK_0 = 50 * step_time()


@pytest.mark.parametrize(
    ("record", "state"),
    [(None, "Incomplete"), (ended("FAILED", "exit code 7"), "Failed"), ({"state": "RUNNING"}, "Running")],
)
def test_rank_0s_own_log_is_no_run_that_died_before_its_first_step(judge, record, state):
    timing = judge(RANK_0, record=record)
    reason = "still_running" if state == "Running" else "rank_0_only"
    assert verdict(timing) == (state, reason, 50)
    assert timing.seconds == Summary(10, 5.74, 0.0, 5.74)
    assert timing.tflops is not None


def test_records_of_ten_steps_are_said_and_give_what_they_have(judge, texts: Texts):
    log = "".join(mbridge_line(n, 55, milliseconds=1000.0 * n) for n in range(10, 51, 10))
    timing = judge(log)
    assert verdict(timing) == ("Incomplete", "missing_iteration", 35)
    texts(timing.status.message)
    assert any("log_interval=10" in notice for notice in timing.notices)
    assert verdict(judge(log, Window(50, 50))) == SUCCESS, "nothing is printed of steps 51 to 55"
    assert verdict(judge(log, Window(45, 54)))[1] == "missing_iteration", "it has all these steps"
    assert verdict(judge(log, Window(55, 64)))[1] == "window_not_reached"


def test_how_many_steps_were_skipped_is_said_of_the_one_that_counts(judge, texts: Texts):
    log = "".join(mbridge_line(n, skipped=int(n % 5 > 0), loss=None if n % 5 else "6.5") for n in range(1, 51))
    texts(judge(log).status.message)
