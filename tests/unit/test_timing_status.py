"""What makes a run a Success, and what prevents it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from llmb_common.timing.log_files import RunFiles
from llmb_common.timing.records import Iteration
from llmb_common.timing.runs import analyse
from llmb_common.timing.statistics import Window, read_window, summarize
from support.iteration_logs import TOLD_LINE, mbridge_line, mbridge_log, nemo_line, nemo_log, saved_line

WINDOW = Window(35, 44)


@pytest.fixture
def judge(tmp_path):
    def judge(text: str, window: Window = WINDOW, *, job: object = None, record: object = None):
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        for name, document in (("job.json", job), ("run.json", record)):
            if document is not None:
                (folder / name).write_text(document if isinstance(document, str) else json.dumps(document))
        log = folder / "log-x.out"
        log.write_text(text)
        return analyse(RunFiles("run", folder, log), window)

    return judge


def verdict(timing) -> tuple[str, str, int | None]:
    return timing.status.state, timing.status.reason, timing.status.iteration


def replaced_line(index: int, **fields) -> str:
    return mbridge_log().replace(mbridge_line(index), mbridge_line(index, **fields))


def mtp_log(without: dict[int, str], **fields) -> str:
    """A log whose records have ``mtp_1 loss``, but for those that ``without`` says what else to have."""
    usual = "load_balancing_loss: 1.0E+00 | mtp_1 loss: 7.1E+00"
    lines = [mbridge_line(index, extra=without.get(index, usual), **fields) for index in range(1, 51)]
    return "".join(lines)


def test_a_figure_that_vanishes_is_a_nan(judge):
    gone = "load_balancing_loss: 1.0E+00"
    assert verdict(judge(mtp_log({}))) == ("Success", "", None)
    for first, last in ((7, 8), (7, 51), (2, 51), (50, 51), (1, 2)):
        timing = judge(mtp_log(dict.fromkeys(range(first, last), gone)))
        assert verdict(timing) == ("Failed", "nan_figure", first)
        assert timing.status.message == f"no 'mtp_1 loss' is printed at iteration {first}, as Megatron does for NaN"


@pytest.mark.parametrize("figure", ["load_balancing_loss", "params norm", "max attention logit"])
def test_every_average_and_norm_may_vanish(judge, figure):
    lines = [mbridge_line(index, extra=f"{figure}: 1.0E+00" if index < 21 else "") for index in range(1, 51)]
    assert verdict(judge("".join(lines))) == ("Failed", "nan_figure", 21)


def test_what_may_come_and_go_is_no_nan(judge):
    counts = dict.fromkeys(range(20, 51), "skipped samples: 8 | mtp_1 loss: 7.1 | load_balancing_loss: 1.0")
    assert verdict(judge(mtp_log(counts))) == ("Success", "", None)
    others = {7: "load_balancing_loss: 1.0 | mtp_1 loss: 7.1 | another rank's loss: 1.0"}
    assert verdict(judge(mtp_log(others))) == ("Success", "", None)
    lines = mtp_log({}).splitlines(keepends=True)
    lines[6] = mbridge_line(7, loss=None, skipped=1).replace("grad norm: 1.019 | ", "")
    timing = judge("".join(lines))
    assert verdict(timing) == ("Success", "", None), "a skipped step has no averages"
    assert [item.skipped for item in timing.iterations].count(True) == 1


@pytest.mark.parametrize(("field", "reason"), [({"loss": None}, "nan_loss"), ({"grad_norm": "inf"}, "inf_grad_norm")])
def test_what_an_earlier_attempt_met_fails_the_run(judge, field, reason):
    log = mbridge_log(range(1, 37)) + mbridge_line(37, **field) + mbridge_log(range(31, 51))
    timing = judge(log)
    assert verdict(timing) == ("Failed", reason, 37)
    assert timing.status.message.endswith(", before a restart")
    skipped = mbridge_log(range(1, 37)) + mbridge_line(37, skipped=1) + mbridge_log(range(31, 51))
    assert verdict(judge(skipped)) == ("Success", "", None), "the step that counts was taken"


@pytest.mark.parametrize("value", ["nan", "-inf", "1e999"])
def test_a_figure_that_is_not_finite_fails_the_run(judge, value):
    timing = judge(mtp_log({33: f"load_balancing_loss: 1.0 | mtp_1 loss: {value}"}))
    assert verdict(timing) == ("Failed", "nan_figure", 33)
    assert timing.status.message == "'mtp_1 loss' is not a finite number at iteration 33"


def test_a_complete_healthy_run_is_a_success(judge):
    assert verdict(judge(mbridge_log())) == ("Success", "", None)
    assert verdict(judge(nemo_log(), Window(11, 44))) == ("Success", "", None)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"loss": "NAN"}, "nan_loss"),
        ({"loss": "INF"}, "inf_loss"),
        ({"loss": None}, "nan_loss"),
        ({"grad_norm": "nan"}, "nan_grad_norm"),
        ({"grad_norm": "inf"}, "inf_grad_norm"),
        ({"nan": 1}, "nan_iteration"),
    ],
)
@pytest.mark.parametrize("index", [1, 40, 50])
def test_nan_or_inf_anywhere_fails_the_run(judge, fields, reason, index):
    assert verdict(judge(replaced_line(index, **fields))) == ("Failed", reason, index)


def test_a_loss_that_is_never_printed_fails_a_megatron_run(judge):
    text = "".join(mbridge_line(index, loss=None) for index in range(1, 51))
    assert verdict(judge(text)) == ("Failed", "nan_loss", 1)


def test_nemo_prints_nan_where_the_loss_is_nan(judge):
    assert verdict(judge(nemo_log().replace("12.81", "nan"), Window(11, 44))) == ("Failed", "nan_loss", 0)


def test_a_skipped_step_matters_in_the_window_only(judge):
    assert verdict(judge(replaced_line(40, skipped=1))) == ("Failed", "skipped_iteration", 40)
    assert verdict(judge(replaced_line(3, skipped=1))) == ("Success", "", None)


@pytest.mark.parametrize("last", [1, 20, 44, 45, 49])
def test_a_run_killed_before_its_last_step_is_not_a_success(judge, last):
    timing = judge(mbridge_log(range(1, last + 1)))
    assert verdict(timing) == ("Failed", "ended_early", last)
    # The figures of a full window are kept; those of a partial one are not.
    assert (timing.seconds is not None) == (last >= 44)


@pytest.mark.parametrize("index", [35, 40, 44])
def test_a_missing_window_iteration_is_incomplete(judge, index):
    timing = judge(mbridge_log().replace(mbridge_line(index), ""))
    assert verdict(timing) == ("Incomplete", "missing_iteration", index)
    assert timing.seconds is None


def test_a_missing_iteration_outside_of_the_window_does_not_matter(judge):
    assert verdict(judge(mbridge_log().replace(mbridge_line(34), ""))) == ("Success", "", None)


def test_a_garbled_window_iteration_is_incomplete_and_reported(judge):
    timing = judge(mbridge_log().replace(mbridge_line(40), mbridge_line(40, milliseconds="57\x0041.5")))
    assert verdict(timing) == ("Incomplete", "missing_iteration", 40)
    assert timing.notices == ("1 record is left out: cut, garbled, or with a step time that cannot be",)


def test_a_run_shorter_than_the_window_says_so(judge):
    timing = judge(mbridge_log(range(1, 6), 5))
    assert verdict(timing) == ("Incomplete", "window_not_reached", 5)
    assert timing.status.message == "it ends with step 5, and iterations 35-44 are measured: --window measures others"
    assert verdict(judge(mbridge_log(range(1, 6), 5), Window(2, 5))) == ("Success", "", None)


def test_a_longer_run_is_measured_in_the_same_window(judge):
    assert verdict(judge(mbridge_log(range(1, 101), 100))) == ("Success", "", None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty_log"),
        ("srun: error: task 0: Killed\n", "no_iterations"),
        ("the loss scale is from the last step, which failed\n", "no_iterations"),
    ],
)
def test_a_run_that_died_before_its_first_iteration(judge, text, reason):
    assert verdict(judge(text)) == ("Failed", reason, None)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("COMPLETED", ("Incomplete", "nothing_left", None)),
        ("FAILED", ("Failed", "no_iterations", None)),
        ("RUNNING", ("Running", "still_running", None)),
    ],
)
def test_a_later_job_of_a_chain_that_had_nothing_left_to_train(judge, state, expected):
    text = "llmb_train: notice: the checkpoint in /c is from the last step, 50: nothing is left to train\n"
    assert verdict(judge(text, record={"state": state})) == expected


def test_a_restart_that_had_nothing_left_to_train_does_not_change_the_verdict(judge):
    text = "llmb_train: notice: the checkpoint in /c is from the last step, 50: nothing is left to train\n"
    assert verdict(judge(mbridge_log() + text)) == ("Success", "", None)


def test_a_run_folder_without_a_log(tmp_path):
    assert verdict(analyse(RunFiles("run", tmp_path, None), WINDOW)) == ("Failed", "no_log", None)


def test_the_planned_steps_count_not_only_those_the_log_promises(judge):
    job = {"steps": {"train": 100, "exit_after": None}}
    assert verdict(judge(mbridge_log(), job=job)) == ("Failed", "ended_early", 50)
    assert verdict(judge(mbridge_log(), job={"steps": {"train": 50}})) == ("Success", "", None)
    assert verdict(judge(nemo_log(), Window(11, 44), job={"steps": {"train": 50}})) == ("Success", "", None)


def test_the_plan_in_the_record_serves_where_there_is_no_job(judge):
    assert verdict(judge(mbridge_log(), record={"plan": {"max_steps": 100}})) == ("Failed", "ended_early", 50)


def test_a_run_that_was_to_stop_after_some_steps(judge):
    # NCCL trace: 5 of 50 steps. After loading a checkpoint: one step.
    job = {"steps": {"train": 50, "exit_after": 5}}
    assert verdict(judge(mbridge_log(range(1, 6)), Window(2, 5), job=job)) == ("Success", "", None)
    assert verdict(judge(mbridge_log(range(1, 5)), Window(2, 4), job=job)) == ("Failed", "ended_early", 4)
    loaded = {"steps": {"train": 50, "exit_after": 1}}
    assert verdict(judge(mbridge_line(51, 51), Window(51, 51), job=loaded)) == ("Success", "", None)


@pytest.mark.parametrize("state", ["SUBMITTING", "SUBMITTED", "PENDING", "RUNNING", "REQUEUED"])
def test_a_run_whose_record_says_that_more_is_to_come(judge, state):
    assert verdict(judge(mbridge_log(range(1, 21)), record={"state": state})) == ("Running", "still_running", 20)
    assert verdict(judge("", record={"state": state})) == ("Running", "still_running", None)


def events(*names_and_codes: tuple[str, int | None]) -> str:
    return "".join(
        json.dumps({"event": name, "job_id": "7", "exit_code": code}) + "\n" for name, code in names_and_codes
    )


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "LOST"])
def test_a_complete_log_of_a_run_that_ended_badly_is_not_a_success(judge, state):
    record = {"state": state, "states": [{"state": state, "detail": "exit code 7"}]}
    timing = judge(mbridge_log(), record=record)
    assert verdict(timing) == ("Failed", "ended_badly", 50)
    assert timing.status.message == f"every iteration is there, but the run ended as {state}, exit code 7"


def test_how_a_run_ended_is_reported_with_where_its_log_ends(judge):
    record = {"state": "TIMEOUT", "states": [{"state": "TIMEOUT", "detail": ""}]}
    assert (
        judge(mbridge_log(range(1, 21)), record=record).status.message == "the log ends at iteration 20 of 50 (TIMEOUT)"
    )


SAVED_AT_20 = mbridge_log(range(1, 21)) + saved_line(20) + TOLD_LINE


def ended(state: str, detail: str = "") -> dict:
    return {"state": state, "states": [{"state": state, "detail": detail}]}


@pytest.mark.parametrize("state", ["COMPLETED", "TIMEOUT", "PREEMPTED", "DEADLINE"])
def test_a_run_that_saved_and_ended_because_it_was_told_to_has_not_failed(judge, state):
    """Whoever told it: Slurm's preemption reaches the ranks alone, and only their log knows."""
    timing = judge(SAVED_AT_20, record=ended(state))
    assert verdict(timing) == ("Incomplete", "told_to_end", 20)
    how = "" if state == "COMPLETED" else f" ({state})"
    on = "saved iteration 20: llmb-run retry --resume continues from there"
    assert timing.status.message == f"told to end{how} after iteration 20 of 50, and {on}"


def test_a_signal_on_the_jobs_own_record_says_so_too(judge, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events.jsonl").write_text(events(("start", None), ("signal", None), ("end", 0)))
    log = SAVED_AT_20.replace(TOLD_LINE, "")
    for state in ("COMPLETED", "RUNNING"):
        assert verdict(judge(log, record=ended(state))) == ("Incomplete", "told_to_end", 20)
    assert verdict(judge(log, record=ended("CANCELLED"))) == ("Failed", "ended_early", 20)


def test_the_newest_checkpoint_may_be_older_than_the_last_iteration(judge):
    log = mbridge_log(range(1, 11)) + saved_line(10) + mbridge_log(range(11, 21))
    timing = judge(log + "saving checkpoint at iteration      20 to /run/checkpoints\n", record=ended("TIMEOUT"))
    assert verdict(timing) == ("Incomplete", "told_to_end", 10)
    assert "after iteration 20 of 50, and saved iteration 10" in timing.status.message


@pytest.mark.parametrize(
    ("log", "state"),
    [
        (SAVED_AT_20.replace("successfully", "not"), "TIMEOUT"),  # there is nothing to continue from
        (SAVED_AT_20, "FAILED"),
        (SAVED_AT_20, "CANCELLED"),
        (SAVED_AT_20, "NODE_FAIL"),
        (mbridge_log(range(1, 21)) + saved_line(20), "COMPLETED"),  # nobody told it
        (SAVED_AT_20 + mbridge_log(range(21, 31)), "COMPLETED"),  # an earlier start of the same job was told
    ],
)
def test_a_run_that_ended_for_another_reason_or_saved_nothing_has_failed(judge, log, state):
    assert verdict(judge(log, record=ended(state)))[:2] == ("Failed", "ended_early")


def test_told_after_its_last_iteration_a_run_has_nothing_left(judge):
    whole = mbridge_log() + saved_line(50)
    assert verdict(judge(whole + TOLD_LINE, record=ended("COMPLETED"))) == ("Success", "", None)
    timing = judge(whole, record=ended("TIMEOUT"))
    assert verdict(timing) == ("Incomplete", "told_to_end", 50)
    assert timing.status.message.endswith("saved iteration 50: nothing is left to train")


def test_a_run_that_was_told_to_end_and_is_queued_again_goes_on(judge):
    assert verdict(judge(SAVED_AT_20, record=ended("PENDING"))) == ("Running", "still_running", 20)


def test_a_nan_before_the_save_is_a_failure_all_the_same(judge):
    log = SAVED_AT_20.replace(mbridge_line(20), mbridge_line(20, grad_norm="nan"))
    assert verdict(judge(log, record=ended("TIMEOUT"))) == ("Failed", "nan_grad_norm", 20)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("", ("Running", "still_running", 50)),
        (events(("start", None)), ("Running", "still_running", 50)),
        (events(("start", None), ("end", 0)), ("Success", "", None)),
        (events(("start", None), ("end", 7)), ("Failed", "ended_badly", 50)),
        (events(("start", None), ("end", 7), ("start", None)), ("Running", "still_running", 50)),
        (events(("start", None), ("end", 7), ("start", None), ("end", 0)), ("Success", "", None)),
    ],
)
def test_the_job_itself_has_written_how_it_ended(judge, tmp_path, written, expected):
    """Nobody may have queried the scheduler since, so the record says RUNNING, or SUBMITTED, forever."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events.jsonl").write_text(written)
    assert verdict(judge(mbridge_log(), record={"state": "RUNNING"})) == expected


@pytest.mark.parametrize(
    "state", ["NOT_SUBMITTED", "LOST", "COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "UNHEARD_OF"]
)
def test_a_run_whose_record_says_that_it_is_over(judge, state):
    assert verdict(judge(mbridge_log(range(1, 21)), record={"state": state})) == ("Failed", "ended_early", 20)


def test_a_running_run_with_nan_has_failed_already(judge):
    text = mbridge_log(range(1, 20)) + mbridge_line(20, grad_norm="nan")
    assert verdict(judge(text, record={"state": "RUNNING"})) == ("Failed", "nan_grad_norm", 20)


@pytest.mark.parametrize(
    "document", ["", "[]", "{", '{"steps": []}', '{"steps": {"train": "50"}}', '{"state": [1]}', "\x00"]
)
def test_a_damaged_record_does_not_hide_the_run(judge, document):
    assert verdict(judge(mbridge_log(), job=document, record=document)) == ("Success", "", None)


def test_a_damaged_record_is_reported(judge):
    assert "job.json cannot be read" in judge(mbridge_log(), job="{").notices[0]


def test_a_restart_is_reported_and_one_inside_the_window_too(judge):
    timing = judge(mbridge_log(range(1, 41)) + mbridge_log(range(38, 51)))
    assert verdict(timing) == ("Success", "", None)
    assert timing.notices == (
        "3 iterations are printed again (from iteration 38), after a restart; the last print counts",
        "the job was restarted within the window 35-44, and the steps after a restart are slower",
    )


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


def test_summaries_of_few_values():
    assert summarize([]) is None
    single = summarize([2.0])
    assert (single.mean, single.std, single.median) == (2.0, 0.0, 2.0)


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
