"""What became of a run on this machine, by what it wrote and which process is alive."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest

from llmb_common.base.errors import AnswerLost, EnvironmentLacks, Interrupted, RecordError, RequestError
from llmb_common.base.processes import ProcessId, identify
from llmb_common.executors.base import MOST_GROUPS, PORT_BASE, PORT_COUNT, NodeRequest, executor_for
from llmb_common.executors.local import executor
from llmb_common.executors.local.executor import START_SECONDS, end_processes_of
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.finding import Finding
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.submission.observe import failure_of
from llmb_common.submission.single import create_run
from support.run_site import RunSite
from support.texts import Texts

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
    return executor_for(record.plan.cluster_type).poll([record])[record.paths.run_id]


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


def test_one_whose_process_is_gone_without_a_word_has_failed(record: RunRecord, texts: Texts) -> None:
    say(record, START)
    found = look(replace(record, process=ended()))
    assert (found.state, found.nodes) == ("FAILED", "here")
    texts(found.detail)


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
    assert (found, "node7" in found.unknown) == (Finding(unknown=found.unknown), True)
    record.paths.events.unlink()
    found = look(replace(record, submitter=ended("node7")))
    assert (found, "node7" in found.unknown) == (Finding(unknown=found.unknown), True)


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


def test_a_run_that_is_being_started_is_not_ended_yet(record: RunRecord, texts: Texts) -> None:
    error = refused(record)
    assert isinstance(error, AnswerLost)
    assert error.message.startswith(record.paths.name)
    texts(error.remedy)


def test_one_on_another_machine_is_ended_there(record: RunRecord, texts: Texts) -> None:
    error = refused(replace(record, process=ended("node7")))
    assert isinstance(error, EnvironmentLacks)
    texts(f"{error.message}\n  -> {error.remedy}")


def test_a_process_that_cannot_be_ours_is_not_touched(record: RunRecord, texts: Texts) -> None:
    """This very process, by its record: whoever wrote that would have us end ourselves."""
    error = refused(replace(record, process=me()))
    assert isinstance(error, RecordError)
    assert error.code == "not-yours"
    texts(error)


def test_one_that_has_ended_by_itself_is_on_record_as_cancelled(record: RunRecord) -> None:
    result = end_processes_of(replace(record, process=ended()))
    assert isinstance(result, RunRecord)
    assert (result.state, result.detail) == ("CANCELLED", "cancelled")


def test_a_record_that_cannot_be_written_is_the_answer(record: RunRecord) -> None:
    record.paths.record.unlink()
    assert isinstance(refused(replace(record, process=ended())), RecordError)


# A run on this machine that is followed: what it shows, how its end is told, and a signal on the way.


@pytest.fixture
def followed(plan: JobPlan, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    monkeypatch.setattr(executor, "POLL_SECONDS", 0.01)
    return create_run(plan, b"", {})


def script(followed: RunRecord, text: str) -> None:
    """What the job does, instead of its real script."""
    followed.paths.script.write_text(f"log='{followed.paths.log}'\n{text}\n")


def step(number: int) -> str:
    """What training prints of a step."""
    return f" iteration {number:8}/      50 | elapsed time per iteration (ms): 100.5 | lm loss: 6.9E+00 |\n"


def while_it_prints(followed: RunRecord, patch: pytest.MonkeyPatch, *parts: str) -> None:
    """Follow a job that writes the next of ``parts`` each time it has been looked at, and then ends."""
    script(followed, "until [[ -e $LLMB_RUN_DIR/over ]]; do sleep 0.01; done")
    coming = iter(parts)

    def sleep(seconds: float) -> None:
        part = next(coming, None)
        if part is None:
            (followed.paths.folder / "over").touch()
            time.sleep(seconds)
        else:
            with followed.paths.log.open("a") as log:
                log.write(part)

    patch.setattr(executor, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    start(followed)


def start(followed: RunRecord, *, detach: bool = False) -> RunRecord:
    return executor_for(followed.plan.cluster_type).start(followed, detach=detach)


def test_a_run_that_ends_well_is_complete_with_what_only_the_job_knew(followed: RunRecord) -> None:
    script(followed, 'echo \'LLMB manifest: {"torch": "2.9"}\' >> "$log"; echo of the batch; echo and errors >&2')
    done = start(followed)
    assert [state.state for state in done.states] == ["SUBMITTING", "RUNNING", "COMPLETED"]
    assert done.manifest["job"]["software"] == {"torch": "2.9"}
    assert load_record(done.paths.folder) == done
    assert done.paths.batch_log.read_text() == "of the batch\nand errors\n"


def test_what_it_wrote_before_is_kept(followed: RunRecord) -> None:
    followed.paths.batch_log.write_text("the first start\n")
    script(followed, "echo the second")
    start(followed)
    assert followed.paths.batch_log.read_text() == "the first start\nthe second\n"


def test_a_failure_is_told_with_exit_code_cause_and_the_log(followed: RunRecord, texts: Texts) -> None:
    script(followed, "echo 'torch.cuda.OutOfMemoryError: CUDA out of memory' >> \"$log\"; exit 7")
    after = start(followed)
    told = failure_of(after)
    assert re.search(r"\b7\b.*out of memory", told.message)
    texts(told.remedy)
    assert load_record(followed.paths.folder) == after
    assert (after.state, re.findall(r"\d+", after.detail), "job" in after.manifest) == ("FAILED", ["7"], True)


def test_the_job_gets_no_input_and_knows_whose_run_it_is(followed, tmp_path, monkeypatch):
    monkeypatch.setenv("KEPT", "from the caller")
    script(followed, 'echo "$LLMB_RUN_DIR, $KEPT, input: $(cat)"; cut -d" " -f5 "/proc/$$/stat"')
    start(followed)
    said, group = followed.paths.batch_log.read_text().splitlines()
    assert said == f"{followed.paths.folder}, from the caller, input: "
    assert int(group) != os.getpgid(0), "Ctrl-C at the terminal is for whoever follows it"


def test_progress_is_the_first_step_and_every_tenth(followed, monkeypatch, capfd):
    while_it_prints(followed, monkeypatch, *map(step, (1, 2, 9, 10, 11, 20)), "a line that is no step\n", step(21))
    out, err = capfd.readouterr()
    name = followed.paths.run_id
    assert [line.split(",")[0] for line in err.splitlines()] == [f"{name}  step {n} of 50" for n in (1, 10, 20)]
    assert all(0 <= float(line.split(",")[1].split()[0]) < 600 for line in err.splitlines())
    assert out == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("steps", "shown"),
    [((2, 3), "\rRUN  step 2 of 50, N s\rRUN  step 3 of 50, N s\n"), ((), "")],
    ids=["steps", "none"],
)
def test_on_a_terminal_progress_is_one_line(followed, monkeypatch, steps, shown):
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        while_it_prints(followed, patch, *map(step, steps))
    printed = terminal.getvalue().replace(followed.paths.run_id, "RUN")
    assert re.sub(r"[0-9]+ s", "N s", printed) == shown


def test_half_a_line_is_read_when_it_is_whole(followed, monkeypatch, capfd):
    line = step(10)
    while_it_prints(followed, monkeypatch, step(1) + line[:20], line[20:])
    steps = [line.split(",")[0].split("  ")[1] for line in capfd.readouterr().err.splitlines()]
    assert [re.findall(r"\d+", step) for step in steps] == [["1", "50"], ["10", "50"]]


def test_a_detached_run_is_on_record_with_its_process_and_goes_on(followed: RunRecord) -> None:
    script(followed, 'until [[ -e $LLMB_RUN_DIR/go ]]; do sleep 0.02; done; echo done; touch "$LLMB_RUN_DIR/gone"')
    running = start(followed, detach=True)
    assert running.state == "RUNNING"
    assert identify(running.process.pid) == running.process
    (followed.paths.folder / "go").touch()
    deadline = time.monotonic() + 300
    while not (followed.paths.folder / "gone").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert followed.paths.batch_log.read_text() == "done\n"
    os.waitpid(running.process.pid, 0)


@pytest.mark.parametrize("in_job", [False, True])
def test_this_machine_is_the_only_node_and_answers_by_its_name(monkeypatch: pytest.MonkeyPatch, in_job: bool) -> None:
    """Also in a job of Slurm, where the node may have a name of its own."""
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    if in_job:
        monkeypatch.setenv("SLURMD_NODENAME", "gpu7")
    name = "gpu7" if in_job else socket.gethostname()
    local = executor_for("local")
    assert local.nodes_now(None, None) == local.nodes_now(name, None) == {name: ""}
    for asked in (("another", None), (None, "batch")):
        with pytest.raises(RequestError) as caught:
            local.nodes_now(*asked)
        assert name in caught.value.message
    with local.hold(NodeRequest(name="look")) as held:
        assert list(held.nodes) == [name]
        assert dict(held.addresses) == {name: "127.0.0.1"}
        assert PORT_BASE <= held.first_port <= held.first_port + MOST_GROUPS <= PORT_BASE + PORT_COUNT
        answer = held.run(["bash", "-c", "echo one; echo two >&2; exit 3"], 20.0)
        assert (answer.status, answer.output, answer.errors) == (3, "one\n", "two\n")
        assert list(held.unreached(answer)) == []


def test_a_signal_ends_the_run_which_may_still_save(
    followed: RunRecord, capfd: pytest.CaptureFixture[str], texts: Texts
) -> None:
    script(followed, "trap 'echo saved; exit 143' TERM; touch \"$LLMB_RUN_DIR/ready\"; sleep 600 & wait $!")

    def interrupt() -> None:
        while not (followed.paths.folder / "ready").exists():
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with texts.raises(Interrupted):
        start(followed)
    thread.join()
    texts(capfd.readouterr().err)
    assert followed.paths.batch_log.read_text() == "saved\n"
    after = load_record(followed.paths.folder)
    assert (after.state, after.detail, "job" in after.manifest) == ("CANCELLED", "interrupted", True)
