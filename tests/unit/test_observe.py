"""How the scheduler's answers are interpreted, including no answer.

Looking at runs, waiting for them and ending them, with an executor that answers as it is told.
"""

from __future__ import annotations

import errno
import importlib
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmb_common.base.errors import AnswerLost, EnvironmentLacks, Interrupted, LLMBError, RecordError, SchedulerError
from llmb_common.base.run_states import STATES
from llmb_common.executors.slurm import look as slurm_runs
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.finding import Finding
from llmb_common.runs.folders import OwnRun
from llmb_common.runs.index.search import find_runs
from llmb_common.runs.record import (
    CANCELLED,
    COMPLETED,
    NOT_SUBMITTED,
    RUNNING,
    RunRecord,
    Submission,
    Turn,
    load_record,
    update_record,
)
from llmb_common.submission.observe import Observation, cancel, end_runs, observe, refresh, wait
from llmb_common.submission.single import create_run, submit
from support.fake_slurm import FakeSlurm
from support.run_site import RECIPE, RunSite
from support.texts import Texts
from support.told_executor import Told, told_executor


@pytest.fixture
def record(tmp_path: Path, fake: FakeSlurm) -> RunRecord:
    """A submitted run; its job is "1", and pending."""
    return submit(RunSite(tmp_path, "slurm").plan(), RECIPE)


def look(record: RunRecord) -> Observation:
    (seen,) = observe([record])
    return seen


def job_says(record: RunRecord, *events: dict[str, object] | str) -> None:
    """Write what the job's script writes; a string is written as it is."""
    lines = [event if isinstance(event, str) else json.dumps({"job_id": "1", "pid": 7, **event}) for event in events]
    record.paths.events.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("DependencyNeverSatisfied", "did not end as required"),
        ("PartitionTimeLimit", "lower TIME_LIMIT"),
        ("AssociationTimeLimit", "lower TIME_LIMIT"),
        ("QOSMaxGRESPerNode", "fewer GPUs"),
        ("AssocGrpBillingMinutes", "budget"),
        ("AssocGrpGRESRunMinutes", ""),
        ("QOSMaxGRESPerUser", ""),
        ("JobHeldAdmin", "ask them"),
        ("user env retrieval failed requeued held", "it is held"),
        ("launch failure limit exceeded requeued held", "could not start it"),
        ("ReservationDeleted", "reservation is gone"),
        ("QOSMaxWallDurationPerJobLimit", "lower TIME_LIMIT"),
        ("PartitionNodeLimit", "fewer GPUs"),
        ("AssocMaxNodePerJobLimit", "fewer GPUs"),
        ("launch failed requeued held", "scontrol release"),
        *((usual, "") for usual in ("Resources", "Dependency", "AssocMaxJobsLimit", "JobHeldUser", "PartitionDown")),
    ],
)
def test_a_reason_for_which_a_job_waits_for_ever_comes_with_a_remedy(record, fake, reason, remedy):
    fake.change("1", state="PENDING", reason=reason)
    (finding,) = slurm_runs.poll_slurm([record]).values()
    assert finding.reason == reason
    assert (remedy in finding.stuck) if remedy else finding.stuck == ""
    assert finding.waits_for == (f"{reason}: {finding.stuck}" if remedy else reason)


@pytest.mark.parametrize(
    ("reason", "detail"), [("Resources", ""), ("DependencyNeverSatisfied", "DependencyNeverSatisfied")]
)
def test_what_a_job_waited_for_is_no_reason_of_its_end(record, fake, reason, detail):
    fake.change("1", state="CANCELLED", reason=reason)
    assert look(record).record.detail == detail


def test_every_slurm_state_is_reported_in_slurms_own_words(record: RunRecord, fake: FakeSlurm) -> None:
    for state in STATES.keys() - {"REVOKED"}:  # the job of another cluster
        fake.change("1", state=state)
        (finding,) = slurm_runs.poll_slurm([record]).values()
        assert (finding.state, finding.unknown) == (state, "")
        assert finding.apply(record).state == state


@pytest.mark.parametrize("how", ["error", "garbage", "half", "hang"])
def test_a_broken_answer_changes_nothing(record, fake, monkeypatch, how):
    monkeypatch.setattr("llmb_common.executors.slurm.query.ASK_SECONDS", 1)
    before = record.paths.record.read_bytes()
    fake.change("1", state="FAILED")
    fake.say("squeue", how)
    fake.say("sacct", how)
    seen = look(record)
    assert seen.record == record
    assert seen.finding.unknown
    assert record.paths.record.read_bytes() == before


def test_an_empty_answer_is_not_yet_a_lost_job(record, fake, monkeypatch):
    fake.change("1", known=[])
    fake.say("sacct", "disabled")
    seen = look(record)
    assert (seen.record.state, seen.record.missing_since is not None) == ("SUBMITTED", True)
    fake.change("1", known=["squeue"], state="RUNNING")
    seen = look(seen.record)
    assert (seen.record.state, seen.record.missing_since) == ("RUNNING", None)
    fake.change("1", known=[])
    seen = look(seen.record)
    monkeypatch.setattr(slurm_runs, "LOST_SECONDS", -1)
    seen = look(seen.record)
    assert seen.record.state == "LOST"
    job_says(record, {"event": "start", "time": 1.0}, {"event": "end", "time": 2.0, "exit_code": 0})
    assert look(seen.record).record.state == "COMPLETED", "a late end record corrects what was given up"


def test_another_jobs_row_under_our_id_is_not_ours(record: RunRecord, fake: FakeSlurm) -> None:
    fake.change("1", name="someone-elses", script="/home/bob/train.sh", state="FAILED")
    seen = look(record)
    assert (seen.record.state, seen.finding.unknown) == ("SUBMITTED", "")
    cancel([record])
    assert fake.jobs()[0]["state"] == "FAILED"


def test_a_writer_in_between_is_not_overwritten(record: RunRecord, fake: FakeSlurm) -> None:
    """Another process recorded the end; what we saw earlier is older."""
    stale = record
    update_record(record.paths.folder, lambda found: found.with_state("CANCELLED", "by another"))
    fake.change("1", state="RUNNING")
    seen = look(stale)
    assert seen.record.state == "CANCELLED"
    assert load_record(record.paths.folder).state == "CANCELLED"


def test_cancel_needs_the_schedulers_answer(record: RunRecord, fake: FakeSlurm, texts: Texts) -> None:
    fake.say("scancel", "error")
    with texts.raises(SchedulerError):
        cancel([record])
    assert fake.jobs()[0]["state"] == "PENDING"
    fake.say("scancel", "")
    (seen,) = cancel([record])
    assert seen.state == "CANCELLED"
    assert fake.calls("scancel")[-1] == [f"--name={record.paths.job_name}", "1"]


CANCELLING = importlib.import_module("llmb_common.submission.observe")
"""The module, which has a function's name."""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return told_executor(monkeypatch)


@pytest.fixture
def plan(told: Told, tmp_path: Path) -> JobPlan:
    return RunSite(tmp_path, "waits").plan()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was waited each time; none of it in earnest, but the clock goes on as if."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert len(slept) < 200, "it waits for ever"

    clock = SimpleNamespace(monotonic=lambda: 1000.0 + sum(slept), sleep=sleep)
    monkeypatch.setattr(CANCELLING, "time", clock)
    return slept


def run(plan: JobPlan, state: str = RUNNING, job: str | None = "7", **submission: object) -> RunRecord:
    record = create_run(plan, b"", {}, Submission(**submission))  # type: ignore[arg-type]
    return update_record(record.paths.folder, lambda found: replace(found, job_id=job).with_state(state))


# Looking


def test_what_is_seen_goes_into_the_record_and_the_index(plan: JobPlan, told: Told) -> None:
    record = run(plan, "SUBMITTED")
    told.sees = lambda record: Finding(RUNNING, since=2e9, nodes="n[1-2]", start=2e9)
    (seen,) = observe([record])
    assert (seen.record.state, seen.finding.nodes, seen.finding.start, seen.finding.unknown) == (
        RUNNING,
        "n[1-2]",
        2e9,
        "",
    )
    assert load_record(record.paths.folder) == seen.record
    assert [row.state for row in find_runs(Path(plan.install))] == [RUNNING]
    assert "job" not in seen.record.manifest, "it has not ended"


def test_at_its_end_the_jobs_own_facts_are_kept(plan: JobPlan, told: Told) -> None:
    record = run(plan)
    record.paths.log.write_text('LLMB manifest: {"torch": "2.9"}\n')
    told.sees = lambda record: Finding(COMPLETED)
    (ended,) = refresh([record])
    assert ended.manifest["job"]["software"] == {"torch": "2.9"}


def test_without_an_answer_a_run_is_as_it_was(plan: JobPlan, told: Told) -> None:
    record = run(plan)
    told.sees = lambda record: Finding(unknown="nobody serves the queue")
    assert observe([record]) == [Observation(record, Finding(unknown="nobody serves the queue"))]


def test_many_are_one_question_and_ended_ones_none(plan: JobPlan, told: Told) -> None:
    records = [run(plan), run(plan, COMPLETED), run(plan)]
    assert [seen.record for seen in observe(records)] == records
    assert told.looked == 1
    observe([records[1]])
    assert told.looked == 1


def test_where_the_record_cannot_be_written_the_truth_is_told_all_the_same(plan: JobPlan, told: Told) -> None:
    record = run(plan)
    (record.paths.folder / ".lock").unlink()
    (record.paths.folder / ".lock").mkdir()
    told.sees = lambda record: Finding(COMPLETED)
    assert refresh([record])[0].state == COMPLETED
    assert load_record(record.paths.folder).state == RUNNING


def test_one_record_on_a_bad_disk_does_not_hide_the_others(
    plan: JobPlan, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [run(plan), run(plan)]
    bad = str(records[0].paths.folder)
    real = OwnRun.open

    class BadDisk(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(OwnRun, "open", lambda own, name: BadDisk() if str(own.folder) == bad else real(own, name))
    told.sees = lambda record: Finding(COMPLETED)
    assert [record.state for record in refresh(records)] == [COMPLETED, COMPLETED]
    assert load_record(records[1].paths.folder).state == COMPLETED
    with pytest.raises(RecordError, match=r"cannot read .*/run\.json: Input/output error"):
        update_record(records[0].paths.folder, lambda found: found)


# Waiting


def test_it_is_asked_at_growing_intervals_and_soon_again_after_news(plan, told, pauses):
    answers = iter([Finding(RUNNING)] * 4 + [Finding("COMPLETING"), Finding("COMPLETING"), Finding(COMPLETED)])
    told.sees = lambda record: next(answers)
    rounds: list[str] = []

    def seen(observations: Sequence[Observation]) -> None:
        rounds.extend(item.record.state for item in observations)

    (ended,) = wait([run(plan, "PENDING")], seen=seen)
    assert ended.state == COMPLETED
    assert rounds == [RUNNING] * 4 + ["COMPLETING"] * 2 + [COMPLETED]
    assert pauses == [0.5, 0.75, 1.125, 1.6875, 0.5, 0.75]


def test_the_longest_interval_is_20_seconds(plan: JobPlan, told: Told, pauses: list[float]) -> None:
    wait([run(plan)], timeout=300)
    assert max(pauses) == 20.0
    assert sum(pauses) == 300, "and the last one ends with the time"


def test_it_waits_for_all_of_them(plan: JobPlan, told: Told, pauses: list[float]) -> None:
    short, long = run(plan), run(plan)
    told.sees = lambda record: Finding(COMPLETED if record.paths == short.paths or told.looked > 2 else RUNNING)
    assert [record.state for record in wait([short, long])] == [COMPLETED, COMPLETED]
    assert told.looked == 3


def test_ended_runs_are_not_waited_for(plan: JobPlan, told: Told, pauses: list[float]) -> None:
    wait([run(plan, COMPLETED)])
    assert pauses == []


@pytest.mark.parametrize(
    ("chain", "other", "ends"),
    [
        ("c1", Finding("PENDING", reason="Dependency"), True),
        ("", Finding("PENDING", reason="Dependency"), False),
        ("c1", Finding("PENDING", reason="Resources"), True),
        ("c2", Finding("COMPLETED"), True),
        ("c2", Finding("RUNNING"), False),
    ],
)
def test_waiting_ends_where_nothing_will_ever_start(plan, told, pauses, chain, other, ends, texts: Texts):
    """A run that asks for what nobody gets, and another, perhaps of its chain."""
    stuck, beside = run(plan, "PENDING", chain="c1", link=1), run(plan, "PENDING", chain=chain, link=2)
    found = {stuck.paths.run_id: Finding("PENDING", reason="PartitionTimeLimit", stuck="cancel it")}
    told.sees = lambda record: found.get(record.paths.run_id, other)
    if ends:
        with texts.raises(SchedulerError) as error:
            wait([stuck, beside])
        assert (error.value.remedy, error.value.code, len(pauses)) == ("cancel it", "stuck", 1)
    else:
        assert wait([stuck, beside], timeout=100)[0].state == "PENDING"


def test_a_scheduler_that_restarts_is_waited_for_a_quarter_of_an_hour(plan, told, pauses, texts: Texts):
    told.sees = lambda record: Finding(unknown="no answer")
    with texts.raises(AnswerLost):
        wait([run(plan)])
    assert 12 * 60 < sum(pauses) < 18 * 60


def test_one_answer_in_between_starts_the_count_again(plan: JobPlan, told: Told, pauses: list[float]) -> None:
    told.sees = lambda record: (
        Finding(COMPLETED)
        if told.looked > 90
        else Finding(RUNNING)
        if told.looked == 45
        else Finding(unknown="no answer")
    )
    assert wait([run(plan)])[0].state == COMPLETED


# Ending


def test_a_run_that_is_ended_is_seen_to_end(plan: JobPlan, told: Told, pauses: list[float]) -> None:
    record = run(plan)
    told.sees = lambda record: Finding(CANCELLED) if told.ended and told.looked > 3 else Finding(RUNNING)
    assert [item.state for item in cancel([record])] == [CANCELLED]
    assert told.ended == [record.paths.run_id]
    assert pauses == pytest.approx([0.1, 0.15])


def test_one_that_takes_its_time_is_told_as_it_is_after_ten_seconds(plan, told, pauses):
    assert [item.state for item in cancel([run(plan)])] == [RUNNING]
    assert 10 <= sum(pauses) < 11.1
    assert max(pauses) == 1.0


def test_what_has_ended_is_left_alone(plan: JobPlan, told: Told, pauses: list[float]) -> None:
    record = run(plan, COMPLETED)
    assert cancel([record]) == [record]
    assert (told.ended, pauses) == ([], [])


def test_one_whose_end_is_certain_is_in_the_index(plan: JobPlan, told: Told, pauses: list[float]) -> None:
    told.ends = lambda record: update_record(record.paths.folder, lambda found: found.with_state(CANCELLED))
    assert [item.state for item in cancel([run(plan)])] == [CANCELLED]
    assert [row.state for row in find_runs(Path(plan.install))] == [CANCELLED]
    assert pauses == []


def test_one_that_was_never_submitted_is_cancelled_on_record(plan: JobPlan, told: Told) -> None:
    record = run(plan, NOT_SUBMITTED, job=None)
    (after,) = cancel([record])
    assert (after.state, load_record(record.paths.folder).state, told.ended) == (CANCELLED, CANCELLED, [])
    assert [row.state for row in find_runs(Path(plan.install))] == [CANCELLED]


@pytest.mark.parametrize("unknown", ["", "nobody serves the queue"])
def test_a_job_that_may_exist_is_not_left_running_in_silence(
    plan: JobPlan, told: Told, unknown: str, texts: Texts
) -> None:
    record = run(plan, "SUBMITTING", job=None)
    told.sees = lambda record: Finding(unknown=unknown)
    (result,) = end_runs([record])
    assert isinstance(result, AnswerLost)
    assert (unknown or record.paths.name) in result.message
    texts(result.remedy)
    assert told.ended == []


def test_one_refusal_is_in_its_place_and_the_others_are_ended(
    plan: JobPlan, told: Told, pauses: list[float], texts: Texts
) -> None:
    records = [run(plan), run(plan), run(plan, COMPLETED)]
    problem = EnvironmentLacks("it runs elsewhere")
    told.ends = lambda record: problem if record.paths == records[0].paths else None
    told.sees = lambda record: Finding(CANCELLED) if told.ended else Finding()
    results = end_runs(records)
    assert results[0] is problem
    assert [item.state for item in results[1:] if isinstance(item, RunRecord)] == [CANCELLED, COMPLETED]
    told.sees = lambda record: Finding()
    told.ended.clear()
    third = run(plan)
    with texts.raises(LLMBError):
        cancel([third, records[0]])
    assert told.ended == [third.paths.run_id, records[0].paths.run_id], "the others are ended first"


def test_an_interruption_is_no_refusal(plan: JobPlan, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(record: RunRecord) -> RunRecord:
        raise Interrupted("ended by SIGTERM")

    monkeypatch.setattr("llmb_common.submission.observe.give_up", interrupted)
    with pytest.raises(Interrupted):
        end_runs([run(plan, NOT_SUBMITTED, job=None), run(plan)])


def test_another_users_run_is_not_touched(plan: JobPlan, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    record = run(plan)
    refusal = RecordError("not yours", code="not-yours")
    monkeypatch.setattr(CANCELLING, "ownership_refusal", lambda folder: refusal)
    assert end_runs([record]) == [refusal]
    assert (told.ended, told.looked) == ([], 0)


def test_a_job_of_which_nothing_is_heard_after_that_is_not_called_ended(
    plan: JobPlan, told: Told, texts: Texts
) -> None:
    """Its name may have been changed, and then scancel does nothing and says nothing."""
    told.sees = lambda record: Finding(unknown="no answer")
    (result,) = end_runs([run(plan)])
    assert isinstance(result, AnswerLost)
    texts(result.message)
    assert len(told.ended) == 1


TURN = {"turn": Turn("ab12cd34", 2, 4)}


@pytest.mark.parametrize("finding", [Finding(missing=True), Finding(unknown="no answer")])
def test_a_turn_is_only_ended_when_it_was_just_seen(plan: JobPlan, told: Told, finding: Finding) -> None:
    """It is ended by its job's number alone, and numbers are used again."""
    record = run(plan, **TURN)
    told.sees = lambda record: finding
    (result,) = end_runs([record])
    assert isinstance(result, AnswerLost)
    assert (finding.unknown or record.paths.name) in result.message
    assert told.ended == []


def test_a_job_that_waited_and_vanishes_when_it_is_cancelled_was_cancelled(plan, told, pauses):
    told.sees = lambda record: Finding(missing=bool(told.ended))
    (after,) = cancel([run(plan, "PENDING")])
    assert (after.state, pauses) == (CANCELLED, [])
    started = run(plan, "PENDING")
    told.ended.clear()
    started.paths.events.write_text('{"event": "start", "job_id": "7", "pid": 1, "time": 5}\n')
    assert cancel([started])[0].state == "PENDING", "one that had started may still be ending"


def test_a_job_that_ran_and_vanishes_may_come_back(plan: JobPlan, told: Told, pauses: list[float]) -> None:
    told.sees = lambda record: Finding(missing=bool(told.ended))
    assert cancel([run(plan)])[0].state == RUNNING


def test_a_run_without_a_queue_needs_no_job_id(told: Told, tmp_path: Path, pauses: list[float]) -> None:
    told.ends = lambda record: update_record(record.paths.folder, lambda found: found.with_state(CANCELLED))
    record = run(RunSite(tmp_path, "follows").plan(), job=None)
    assert [item.state for item in cancel([record])] == [CANCELLED]
