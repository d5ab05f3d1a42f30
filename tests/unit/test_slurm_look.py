"""What a run's state is by queue, accounting and the job's own account, and which of them is believed."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field, replace

import msgspec
import pytest

from llmb_common.base.errors import SchedulerError
from llmb_common.base.hostlist import expand
from llmb_common.base.processes import ProcessId, identify
from llmb_common.executors.slurm import look as slurm_look
from llmb_common.executors.slurm import own_jobs
from llmb_common.executors.slurm.look import GRACE_SECONDS, LOST_SECONDS, may_still_appear, poll_slurm
from llmb_common.executors.slurm.query import WRITTEN_OFF, JobInfo
from llmb_common.executors.slurm.submit import SUBMIT_SECONDS
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.finding import Attempt, Finding, attempts_of
from llmb_common.runs.record import RunRecord, Submission, Turn
from llmb_common.submission.single import create_run
from support.slurm_answers import chosen
from support.texts import Texts


@dataclass
class Slurm:
    """What queue and accounting answer; None: no answer."""

    queue: list[JobInfo] | None = field(default_factory=list)
    accounting: list[JobInfo] | None = field(default_factory=list)
    asked: list[tuple[str, float]] = field(default_factory=list)
    """What accounting was asked for, and since when."""
    starts: list[JobInfo] = field(default_factory=list)
    """Earlier starts that accounting knows of."""
    unfit: list[str] = field(default_factory=list)
    """The nodes that are down or drained."""

    def queued(self, which: str) -> list[JobInfo]:
        if self.queue is None:
            raise SchedulerError("squeue did not answer")
        return chosen(self.queue, which)

    def accounted(self, which: str, since: float) -> list[JobInfo]:
        self.asked.append((which, since))
        if self.accounting is None:
            raise SchedulerError("sacct did not answer")
        return chosen([*self.starts, *self.accounting], which)

    def unfit_nodes(self, nodes: str) -> list[str]:
        return sorted({*expand(nodes)} & {*self.unfit})


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    slurm = Slurm()
    monkeypatch.setattr(own_jobs, "query_queue", slurm.queued)
    monkeypatch.setattr(own_jobs, "query_accounting", slurm.accounted)
    monkeypatch.setattr(slurm_look, "unfit_nodes", slurm.unfit_nodes)
    return slurm


@pytest.fixture
def record(plan: JobPlan) -> RunRecord:
    """A run whose job is 7."""
    return replace(create_run(plan, b"", {}), job_id="7").with_state("SUBMITTED")


def task(record: RunRecord, index: int = 2) -> RunRecord:
    """The same as a task of an array of an earlier release."""
    return replace(record, job_id=f"7_{index}", submission=Submission(turn=Turn("ab12cd34", index)))


def job(record: RunRecord, state: str, **more: object) -> JobInfo:
    times = {"submitted": 100.0, "started": 200.0, "ended": 300.0}
    return JobInfo(**{"job_id": "7", "name": record.job_name, "state": state, "nodes": "n[1-2]", **times, **more})  # type: ignore[arg-type]


def look(record: RunRecord) -> Finding:
    return poll_slurm([record])[record.paths.run_id]


def say(record: RunRecord, *events: dict[str, object]) -> None:
    record.paths.events.write_text("".join(json.dumps({"job_id": "7", **event}) + "\n" for event in events))


START = {"event": "start", "time": 210.0, "nodes": "n[1-2]"}
END = {"event": "end", "time": 290.0, "exit_code": 0}


# By the queue


def test_a_job_that_waits_does_so_since_it_was_submitted(record: RunRecord, slurm: Slurm) -> None:
    slurm.queue = [job(record, "PENDING", nodes="", reason="Priority", started=None, ended=None)]
    assert look(record) == Finding("PENDING", "Priority", since=100.0, job_id="7", reason="Priority")
    slurm.queue = [job(record, "PENDING", nodes="", reason="Resources", started=900.0, ended=None)]
    requeued = look(record.with_state("RUNNING"))
    assert (requeued.since, requeued.start) == (None, 900.0), "it was running, so not since then; expected at 900"


def test_a_job_that_runs_does_so_since_it_started_and_says_where(record: RunRecord, slurm: Slurm) -> None:
    slurm.queue = [job(record, "RUNNING")]
    assert look(record) == Finding("RUNNING", since=200.0, job_id="7", nodes="n[1-2]", start=200.0)
    slurm.queue = [job(record, "COMPLETING", nodes="")]
    say(record, START)
    assert look(record) == Finding("COMPLETING", job_id="7", nodes="n[1-2]", start=200.0), "nodes by its own account"


def test_what_the_queue_knows_is_not_asked_of_accounting(record: RunRecord, slurm: Slurm) -> None:
    slurm.queue = [job(record, "RUNNING")]
    look(record)
    assert slurm.asked == []


def test_accounting_is_asked_for_the_others_since_the_oldest(record: RunRecord, slurm: Slurm) -> None:
    other = create_run(record.plan, b"", {})
    states = (msgspec.structs.replace(other.states[0], time=50.0),)
    other = replace(other, states=states)
    slurm.queue = [job(record, "RUNNING")]
    poll_slurm([record, other])
    assert slurm.asked == [(f"--name={other.job_name}", 50.0), (f"--user={os.getuid()}", 50.0)]


# By accounting


@pytest.mark.parametrize(
    ("state", "code", "reason", "detail"),
    [
        ("COMPLETED", "0:0", "", ""),
        ("FAILED", "3:0", "NonZeroExitCode", "exit code 3"),
        ("FAILED", "0:9", "", "signal 9"),
        ("FAILED", "2:", "", "exit code 2"),
        ("TIMEOUT", "0:0", "TimeLimit", "TimeLimit"),
        ("NODE_FAIL", "1:0", "NodeDown", "exit code 1; NodeDown"),
        ("CANCELLED", "", "", ""),
    ],
)
def test_how_a_job_ended(record: RunRecord, slurm: Slurm, state: str, code: str, reason: str, detail: str) -> None:
    slurm.accounting = [job(record, state, exit_code=code, reason=reason)]
    ended = Finding(state, detail, since=300.0, job_id="7", nodes="n[1-2]", start=200.0)
    assert look(record) == ended


@pytest.mark.parametrize(
    ("code", "reason"), [("", "JobLaunchFailure"), ("0:53", ""), ("", "RaisedSignal:53(Real-time_signal_19)")]
)
def test_a_script_that_a_node_could_not_start_is_explained(record, slurm, code, reason, texts: Texts):
    slurm.queue = [job(record, "FAILED", exit_code=code, reason=reason)]
    detail = look(record).detail
    texts(detail)
    assert str(record.paths.output) in detail
    say(record, START, {**END, "exit_code": 5})
    texts(look(record).detail)


def test_the_exit_code_of_the_ranks_is_told_and_not_that_of_the_script(
    record: RunRecord, slurm: Slurm, texts: Texts
) -> None:
    say(record, START, {**END, "exit_code": 5})
    slurm.accounting = [job(record, "FAILED", exit_code="1:0")]
    texts(look(record).detail)
    say(record, START, END)
    slurm.accounting = [job(record, "FAILED", exit_code="1:0")]
    assert look(record).detail == "", "by its own account it ended well: what failed was not training"


@pytest.mark.parametrize("queue", [[], None])
def test_accounting_that_still_shows_it_alive_is_late_once_it_has_ended(record, slurm, queue):
    slurm.queue = queue
    slurm.accounting = [job(record, "RUNNING", exit_code="0:0")]
    assert look(record) == (Finding(unknown="squeue did not answer") if queue is None else Finding(missing=True))
    say(record, START, END)
    detail = "by the job's own record"
    assert look(record) == Finding("COMPLETED", detail, since=290.0, job_id="7", nodes="n[1-2]", start=210.0)


# Which job is the run's


def test_of_several_jobs_of_its_name_the_one_on_record_counts(record: RunRecord, slurm: Slurm) -> None:
    slurm.queue = [job(record, "PENDING", job_id="6"), job(record, "RUNNING"), job(record, "PENDING", job_id="8")]
    assert look(record).job_id == "7"
    say(record, {**START, "job_id": "8"})
    assert look(replace(record, job_id=None)).job_id == "8", "the one that started"
    record.paths.events.unlink()
    assert look(replace(record, job_id=None)).job_id == "6", "the first"
    assert look(replace(record, job_id="5")) == Finding(missing=True), "another one's are not its own"


# By the job's own account


def test_without_a_scheduler_only_success_is_believed(record: RunRecord, slurm: Slurm) -> None:
    slurm.queue = slurm.accounting = None
    assert look(record) == Finding(unknown="squeue did not answer")
    say(record, START, {**END, "exit_code": 1})
    assert look(record) == Finding(unknown="squeue did not answer"), "it may be requeued at this moment"
    say(record, START, END)
    assert look(record).state == "COMPLETED"
    slurm.queue = []
    say(record, START)
    assert look(record) == Finding(unknown="sacct did not answer")


@pytest.mark.parametrize("code", ["", "0:0"], ids=["queue", "accounting"])
def test_a_job_that_another_cluster_has_taken_is_not_over(record: RunRecord, slurm: Slurm, code: str) -> None:
    slurm.queue = [] if code else [job(record, "REVOKED")]
    slurm.accounting = [job(record, "REVOKED", exit_code=code)] if code else []
    found = look(record)
    assert (found.state, "another cluster of the federation" in (found.unknown or "")) == (None, True)
    say(record, START, {"event": "end", "time": 250.0, "exit_code": 3})
    assert look(record).state == "FAILED", "by its own word"


def test_a_scheduler_that_has_forgotten_it_leaves_the_jobs_word(record: RunRecord, slurm: Slurm) -> None:
    say(record, START, {"event": "hang", "exit_code": 12}, {**END, "exit_code": 1})
    hung = "hung after iteration 12: no further one came, the job was ended"
    detail = f"exit code 1; {hung}; by the job's own record"
    assert look(record) == Finding("FAILED", detail, since=290.0, job_id="7", nodes="n[1-2]", start=210.0)


def test_a_job_that_runs_by_its_own_word_gives_a_lost_submission_its_id(record: RunRecord, slurm: Slurm) -> None:
    say(record, START)
    lost = replace(record, job_id=None)
    assert look(lost) == Finding("RUNNING", since=210.0, job_id="7", nodes="n[1-2]")


# By nothing


def old(record: RunRecord, seconds: float) -> RunRecord:
    *before, last = record.states
    return replace(record, states=(*before, msgspec.structs.replace(last, time=time.time() - seconds)))


def test_a_job_that_nobody_knows_is_missing_and_lost_in_the_end(record: RunRecord, slurm: Slurm) -> None:
    assert look(record) == Finding(missing=True)
    now = time.time()
    assert look(replace(record, missing_since=now - LOST_SECONDS + 60)) == Finding(missing=True)
    never = "squeue no longer knows job 7, which never started: the controller may have lost its jobs"
    lost = Finding("LOST", f"{never}; llmb-run retry starts it again", missing=True)
    assert look(replace(record, missing_since=now - LOST_SECONDS - 60)) == lost
    assert look(record.with_state("LOST")) == lost


def test_what_only_accounting_still_shows_alive_is_lost_in_the_end(
    record: RunRecord, slurm: Slurm, texts: Texts
) -> None:
    """A controller that crashed never tells accounting of the jobs that it lost."""
    slurm.accounting = [job(record, "PENDING", exit_code="0:0", started=None, ended=None)]
    assert look(record) == Finding(missing=True)
    told = look(replace(record, missing_since=time.time() - LOST_SECONDS - 60))
    assert told.state == "LOST"
    texts(told.detail)
    begun = replace(record, job_id=None, states=record.states[:1])
    assert (look(begun).state, look(begun).job_id) == ("PENDING", "7"), "nothing is submitted in its place"
    slurm.queue = None
    assert look(record) == Finding(unknown="squeue did not answer")


def test_tasks_cancelled_together_are_one_row(record: RunRecord, slurm: Slurm) -> None:
    slurm.accounting = [job(task(record), "CANCELLED", started=None)]
    assert look(task(record)) == Finding("CANCELLED", since=300.0, job_id="7_2", nodes="n[1-2]")
    slurm.accounting = [job(task(record), "PENDING", started=None)]
    assert look(task(record)) == Finding(missing=True), "only an end is one for all of them"
    slurm.accounting = [job(task(record), "CANCELLED")]
    say(record, {**START, "job_id": "7_2"})
    os.utime(record.paths.events, (1.0, 1.0))
    assert look(task(record)) == Finding(missing=True), "and not for one that had started"


def test_a_row_of_its_own_tells_of_a_task(record: RunRecord, slurm: Slurm) -> None:
    rows = [job(task(record), state, job_id=f"7_{n}") for n, state in enumerate(("COMPLETED", "FAILED", "TIMEOUT"))]
    slurm.accounting = rows
    assert [look(task(record, n)).state for n in range(3)] == ["COMPLETED", "FAILED", "TIMEOUT"]


# Before there is a job


def me(**changes: str) -> ProcessId:
    found = identify()
    assert found is not None
    return replace(found, **changes)  # type: ignore[arg-type]


SUBMITTERS = {
    "this process, which is past sbatch": (me(), False),
    "a process that lives": (identify(os.getppid()), True),
    "one that has ended": (me(start="1"), False),
    "on another machine": (me(host="elsewhere"), True),
    "unknown": (None, True),
}


@pytest.mark.parametrize(("submitter", "born"), SUBMITTERS.values(), ids=SUBMITTERS.keys())
def test_a_submission_that_left_no_trace_is_over_when_its_sbatch_is(record, slurm, submitter, born):
    begun = replace(record, job_id=None, states=record.states[:1], submitter=submitter)
    assert may_still_appear(begun)
    assert look(begun) == Finding()
    later = old(begun, GRACE_SECONDS - 60)
    assert may_still_appear(later) is born
    given_up = Finding("NOT_SUBMITTED", "the submission was interrupted before there was a job")
    assert look(later) == (Finding() if born else given_up)
    assert look(old(begun, GRACE_SECONDS + 60)) == given_up, "sbatch itself is ended long before"


def test_the_slowest_sbatch_is_waited_for(record: RunRecord, slurm: Slurm) -> None:
    """It is killed after two minutes, and 10 s are given to notice that."""
    begun = replace(record, job_id=None, states=record.states[:1], submitter=None)
    assert look(old(begun, SUBMIT_SECONDS + 30)) == Finding()


def test_an_sbatch_that_ends_while_slurm_is_asked_is_not_over(record, slurm, monkeypatch):
    """Its job may have come just after the queue was read."""
    running = [True]

    def queued(which: str) -> list[JobInfo]:
        running.clear()
        return []

    monkeypatch.setattr(own_jobs, "query_queue", queued)
    monkeypatch.setattr(slurm_look, "is_running_with", lambda script: bool(running))
    begun = old(replace(record, job_id=None, states=record.states[:1], submitter=me(start="1")), GRACE_SECONDS - 60)
    assert look(begun) == Finding()
    assert look(begun).state == "NOT_SUBMITTED", "the next look is certain"


def test_one_that_was_given_up_stays_so(record: RunRecord, slurm: Slurm) -> None:
    given_up = replace(record, job_id=None).with_state("NOT_SUBMITTED")
    found = look(given_up)
    assert found == Finding("NOT_SUBMITTED", found.detail)


# Queued again


AGAIN = {"event": "start", "time": 1210.0, "nodes": "n[3-4]", "restart": 1}


def test_a_node_that_failed_before_a_requeue_is_named_at_once_and_kept(
    record: RunRecord, slurm: Slurm, texts: Texts
) -> None:
    running = record.with_state("RUNNING")
    say(record, START)
    slurm.queue = [job(record, "PENDING", nodes="", reason="BeginTime", started=None, ended=None)]
    slurm.starts = [
        job(record, "NODE_FAIL", nodes="n1", exit_code="0:0"),
        msgspec.structs.replace(slurm.queue[0], reason=""),
    ]
    slurm.unfit = ["n2", "n7"]
    found = look(running)
    failed = Attempt("NODE_FAIL", "n[1-2]", "n2", 200.0, 300.0)
    assert found.attempts == (failed,), "on the nodes of its own record: accounting may have lost the one that failed"
    texts(found.detail)
    waiting = found.apply(running)
    assert (waiting.detail, attempts_of(waiting)) == (found.detail, [failed])
    asked = len(slurm.asked)
    assert look(waiting).apply(waiting) == waiting
    assert len(slurm.asked) == asked, "only where there is news"


def test_what_nobody_saw_is_found_out_in_the_end(record: RunRecord, slurm: Slurm) -> None:
    say(record, START, AGAIN, END)
    last = job(record, "COMPLETED", nodes="n[3-4]", started=1200.0, ended=1300.0, exit_code="0:0")
    slurm.accounting = [last]
    slurm.starts = [job(record, "NODE_FAIL", exit_code="0:0", failed="n1")]
    slurm.unfit = ["n2"]
    found = look(record.with_state("RUNNING"))
    assert (found.state, found.detail) == ("COMPLETED", "")
    assert found.attempts == (Attempt("NODE_FAIL", "n[1-2]", "n1", 200.0, 300.0),), "accounting names the node"


def test_what_was_seen_is_kept_when_more_is_known_and_the_node_is_back(record: RunRecord, slurm: Slurm) -> None:
    say(record, START)
    slurm.queue = [job(record, "PENDING", nodes="", started=None, ended=None)]
    slurm.unfit = ["n2"]
    waiting = look(record.with_state("RUNNING")).apply(record.with_state("RUNNING"))
    assert attempts_of(waiting) == [Attempt("", "n[1-2]", "n2", 210.0)]
    say(record, START, AGAIN, END)
    slurm.queue = [job(record, "COMPLETED", nodes="n[3-4]", started=1200.0, ended=1300.0)]
    slurm.starts = [job(record, "NODE_FAIL", exit_code="0:0")]
    slurm.unfit = ["n1"]
    ended = look(waiting).apply(waiting)
    assert attempts_of(ended) == [Attempt("NODE_FAIL", "n[1-2]", "n2", 200.0, 300.0)]


def test_a_run_that_goes_on_elsewhere_says_where_it_was(record: RunRecord, slurm: Slurm, texts: Texts) -> None:
    """Nobody looked while it waited, and there is no accounting: its own record has the nodes."""
    say(record, START, AGAIN)
    slurm.queue = [job(record, "RUNNING", nodes="n[3-4]", started=1200.0, ended=None)]
    slurm.unfit = ["n2"]
    running = record.with_state("RUNNING")
    found = look(running)
    assert found.attempts == (Attempt("", "n[1-2]", "n2", 210.0),)
    texts(str(found.attempts[0]))
    assert attempts_of(found.apply(running)) == list(found.attempts)


def test_a_preempted_job_blames_no_node(record: RunRecord, slurm: Slurm, texts: Texts) -> None:
    say(record, START)
    slurm.queue = [job(record, "PENDING", nodes="", started=None, ended=None)]
    slurm.starts = [job(record, "PREEMPTED", exit_code="0:0")]
    slurm.unfit = ["n2"]
    texts(look(record.with_state("RUNNING")).detail)


def test_the_only_node_of_a_job_is_the_one_that_failed(record: RunRecord, slurm: Slurm, texts: Texts) -> None:
    say(record, {**START, "nodes": "n5"})
    slurm.queue = [job(record, "PENDING", nodes="", started=None, ended=None)]
    slurm.starts = [job(record, "NODE_FAIL", nodes="n5", exit_code="0:0")]
    texts(look(record.with_state("RUNNING")).detail)


def test_another_runs_starts_and_damaged_records_say_nothing(record: RunRecord, slurm: Slurm) -> None:
    say(record, START)
    slurm.queue = [job(record, "PENDING", nodes="", started=None, ended=None)]
    slurm.starts = [job(record, "NODE_FAIL", job_id="8", exit_code="0:0")]
    assert look(record.with_state("RUNNING")).attempts == (Attempt("", "n[1-2]", "", 210.0),)
    assert attempts_of(replace(record, manifest={"attempts": [{"state": 1}]})) == []


def test_a_job_that_was_not_queued_again_costs_no_question(record: RunRecord, slurm: Slurm) -> None:
    slurm.queue = [job(record, "PENDING", nodes="", started=None, ended=None)]
    look(record)
    say(record, START, END)
    slurm.queue = [job(record, "COMPLETED")]
    assert look(record.with_state("RUNNING")).attempts == ()
    assert len(slurm.asked) == 0


def test_a_suspended_job_was_not_queued_again(record: RunRecord, slurm: Slurm) -> None:
    say(record, {"event": "start", "time": 210.0, "job_id": record.job_id, "nodes": "n1"})
    slurm.queue = [job(record, "SUSPENDED", nodes="n1", started=200.0)]
    found = look(record)
    assert (found.state, found.attempts, found.nodes, len(slurm.asked)) == ("SUSPENDED", (), "n1", 0)


def test_what_accounting_has_written_off_is_lost_unless_the_job_has_ended_by_its_own_word(record, slurm, texts: Texts):
    slurm.accounting = [job(record, "CANCELLED", reason=WRITTEN_OFF, exit_code="0:0")]
    found = look(record.with_state("PENDING"))
    assert (found.state, found.job_id, found.since) == ("LOST", "7", 300.0)
    texts(found.detail)
    say(record, START, END)
    assert look(record.with_state("RUNNING")).state == "COMPLETED"
