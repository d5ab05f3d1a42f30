"""What is made of a job that Slurm preempts: it has left its end to Slurm, which may queue it again."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace

import pytest

from llmb_common.base.errors import SchedulerError
from llmb_common.executors.slurm import look as slurm_look
from llmb_common.executors.slurm import own_jobs
from llmb_common.executors.slurm.query import JobInfo
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.finding import Attempt, Finding
from llmb_common.runs.record import RunRecord
from llmb_common.submission.single import create_run
from support.slurm_answers import chosen


@dataclass
class Queue:
    """What squeue answers, None: nothing. There is no accounting, and node n2 is down."""

    jobs: list[JobInfo] | None = field(default_factory=list)

    def queued(self, which: str) -> list[JobInfo]:
        if self.jobs is None:
            raise SchedulerError("squeue did not answer")
        return chosen(self.jobs, which)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    queue = Queue()
    monkeypatch.setattr(own_jobs, "query_queue", queue.queued)
    monkeypatch.setattr(own_jobs, "query_accounting", lambda which, since: [])
    monkeypatch.setattr(slurm_look, "unfit_nodes", lambda nodes: ["n2"])
    return queue


@pytest.fixture
def record(plan: JobPlan) -> RunRecord:
    return replace(create_run(plan, b"", {}), job_id="7").with_state("RUNNING")


def job(record: RunRecord, state: str, nodes: str, started: float | None, reason: str = "") -> JobInfo:
    return JobInfo("7", record.job_name, state, 100.0, started, None, nodes, reason=reason)


def look(record: RunRecord) -> Finding:
    return slurm_look.poll_slurm([record])[record.paths.run_id]


def say(record: RunRecord, *events: dict[str, object]) -> None:
    record.paths.events.write_text("".join(json.dumps({"job_id": "7", **event}) + "\n" for event in events))


START = {"event": "start", "time": 210.0, "nodes": "n[1-2]"}
PREEMPTED = {"event": "preempted", "time": 250.0, "exit_code": None}
END = {"event": "end", "time": 290.0, "exit_code": 0}
AGAIN = {"event": "start", "time": 1210.0, "nodes": "n[3-4]", "restart": 1}


def test_its_end_is_no_success_while_slurm_does_not_answer(record: RunRecord, queue: Queue) -> None:
    queue.jobs = None
    say(record, START, PREEMPTED, END)
    assert look(record) == Finding(unknown="squeue did not answer")
    say(record, START, PREEMPTED, END, AGAIN, END)
    assert look(record).state == "COMPLETED", "that was another start"


def test_where_slurm_has_forgotten_it_it_was_not_queued_again(record: RunRecord, queue: Queue) -> None:
    say(record, START, PREEMPTED, END)
    found = look(record)
    assert found.state == "PREEMPTED"
    assert found.detail


def test_queued_again_it_says_where_it_was_preempted_and_blames_no_node(record: RunRecord, queue: Queue) -> None:
    queue.jobs = [job(record, "PENDING", "", None, "BeginTime")]
    say(record, START, PREEMPTED, END)
    waiting = look(record)
    assert (waiting.state, re.findall(r"BeginTime|PREEMPTED|n\[1-2\]", waiting.detail)) == (
        "PENDING",
        ["BeginTime", "PREEMPTED", "n[1-2]"],
    )
    queue.jobs = [job(record, "RUNNING", "n[3-4]", 1200.0)]
    say(record, START, PREEMPTED, END, AGAIN)
    assert look(record).attempts == (Attempt("PREEMPTED", "n[1-2]", "", 210.0),)
