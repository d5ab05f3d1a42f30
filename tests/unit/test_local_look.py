"""What became of a run on this machine, by what it wrote and which process is alive."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import replace

import msgspec
import pytest

from llmb_common.errors import AnswerLost, EnvironmentLacks, RecordError
from llmb_common.executors.local.end import end_processes_of
from llmb_common.executors.local.look import START_SECONDS, look_at_processes
from llmb_common.planning.job_plan import JobPlan
from llmb_common.process import ProcessId, identify
from llmb_common.runs.finding import Finding
from llmb_common.runs.record import RunRecord
from llmb_common.submission.create import create_run
from support.run_site import RunSite

START = {"event": "start", "job_id": "local-7", "time": 1000.0, "nodes": "here"}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> JobPlan:
    return RunSite(tmp_path_factory.mktemp("site"), "local").plan()


@pytest.fixture
def record(plan: JobPlan) -> RunRecord:
    """A run that is being submitted by a process that is gone."""
    record = create_run(plan, b"", {})
    return replace(record, submitter=ended())


def me() -> ProcessId:
    found = identify()
    assert found is not None
    return found


def ended(host: str = "") -> ProcessId:
    """A process that has ended, or one on another machine."""
    return replace(me(), start="1", **({"host": host} if host else {}))


def say(record: RunRecord, *events: dict[str, object]) -> None:
    record.paths.events.write_text("".join(json.dumps({"job_id": "local-7", **event}) + "\n" for event in events))


def look(record: RunRecord) -> Finding:
    found = look_at_processes([record])
    assert list(found) == [record.paths.run_id]
    return found[record.paths.run_id]


def old(record: RunRecord, seconds: float = START_SECONDS + 5) -> RunRecord:
    """The same, in its state for so long."""
    (state,) = record.states
    return replace(record, states=(msgspec.structs.replace(state, time=time.time() - seconds),))


@pytest.mark.parametrize(
    ("events", "state", "detail"),
    [
        ([{"event": "end", "exit_code": 0}], "COMPLETED", ""),
        ([{"event": "end", "exit_code": 3}], "FAILED", "exit code 3"),
        ([{"event": "signal"}, {"event": "end", "exit_code": 143}], "CANCELLED", "exit code 143; ended by a signal"),
        ([{"event": "signal"}, {"event": "end", "exit_code": 0}], "COMPLETED", "ended by a signal"),
    ],
)
def test_what_the_job_says_of_its_end_counts(record, events, state, detail):
    say(record, START, *({**event, "time": 2000.0} for event in events))
    # Even where its process seems to live: a pid is used again.
    found = look(replace(record, process=me()))
    assert found == Finding(state, detail, since=2000.0, nodes="here", start=1000.0)


def test_while_its_process_lives_it_runs_since_it_said_so(record: RunRecord) -> None:
    say(record, START)
    running = Finding("RUNNING", since=1000.0, process=me(), nodes="here", start=1000.0)
    assert look(replace(record, process=me())) == running


def test_a_run_whose_submitter_died_first_is_known_by_its_own_account(record: RunRecord) -> None:
    say(record, {**START, "pid": os.getpid()})
    assert look(replace(record, submitter=me())).process == me()


@pytest.mark.parametrize("change", [{"boot": "another"}, {"host": "elsewhere"}])
def test_a_pid_means_nothing_after_a_restart_or_elsewhere(record: RunRecord, change: dict[str, str]) -> None:
    say(record, {**START, "pid": os.getpid()})
    found = look(replace(record, submitter=replace(me(), **change)))
    assert (found.state, found.process, found.nodes) == ("FAILED", None, "here")


def test_one_whose_process_is_gone_without_a_word_has_failed(record: RunRecord) -> None:
    say(record, START)
    found = look(replace(record, process=ended()))
    assert (found.state, found.nodes) == ("FAILED", "here")
    assert found.detail == "its process is gone without an end record: it was killed, or the machine restarted"


def test_while_its_ranks_live_it_runs_without_its_script(record: RunRecord) -> None:
    say(record, START)
    environment = {**os.environ, "LLMB_RUN_DIR": str(record.paths.folder)}
    with subprocess.Popen(["sleep", "60"], env=environment) as rank:
        try:
            found = look(replace(record, process=ended()))
        finally:
            rank.kill()
    assert found == Finding("RUNNING", since=1000.0, nodes="here", start=1000.0)


def test_a_run_of_another_machine_cannot_be_seen_from_here(record: RunRecord) -> None:
    say(record, START)
    found = look(replace(record, process=ended("node7")))
    assert found == Finding(unknown="it runs on node7, which cannot be seen from here")
    record.paths.events.unlink()
    assert look(replace(record, submitter=ended("node7"))) == Finding(unknown="it was started on node7")


def test_one_that_has_not_begun_was_interrupted_once_its_submitter_is_gone(record: RunRecord) -> None:
    assert look(record) == Finding(), "its script may be about to begin"
    interrupted = Finding("NOT_SUBMITTED", "it was interrupted before the job started")
    assert look(old(record)) == interrupted
    assert look(old(replace(record, submitter=None))) == interrupted
    assert look(old(replace(record, submitter=me()))) == Finding(), "it is still at it"


@pytest.mark.parametrize("state", ["NOT_SUBMITTED", "LOST"])
def test_nothing_new_is_found_of_one_that_was_given_up(record: RunRecord, state: str) -> None:
    given_up = record.with_state(state, since=1.0)
    assert look(given_up) == Finding()


# Ending one


def refused(record: RunRecord) -> Exception:
    result = end_processes_of(record)
    assert isinstance(result, Exception)
    return result


def test_a_run_that_is_being_started_is_not_ended_yet(record: RunRecord) -> None:
    error = refused(record)
    assert isinstance(error, AnswerLost)
    assert (error.message, error.remedy) == (
        f"{record.paths.name} is being started",
        "cancel it again in a few seconds",
    )


def test_one_on_another_machine_is_ended_there(record: RunRecord) -> None:
    error = refused(replace(record, process=ended("node7")))
    assert isinstance(error, EnvironmentLacks)
    assert error.message == f"{record.paths.name} runs on node7, and this is another machine"
    assert error.remedy == "cancel it there"


def test_a_process_that_cannot_be_ours_is_not_touched(record: RunRecord) -> None:
    """This very process, by its record: whoever wrote that would have us end ourselves."""
    error = refused(replace(record, process=me()))
    assert isinstance(error, RecordError)
    assert error.message == f"process {os.getpid()} on the record of {record.paths.name} is not one that you may kill"
    assert (error.code, "remove the run's folder" in error.remedy) == ("not-yours", True)


def test_one_that_has_ended_by_itself_is_on_record_as_cancelled(record: RunRecord) -> None:
    result = end_processes_of(replace(record, process=ended()))
    assert isinstance(result, RunRecord)
    assert (result.state, result.detail) == ("CANCELLED", "cancelled")


def test_a_record_that_cannot_be_written_is_the_answer(record: RunRecord) -> None:
    record.paths.record.unlink()
    assert isinstance(refused(replace(record, process=ended())), RecordError)
