"""A run on this machine that is followed: what it shows, how its end is told, and a signal on the way."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from llmb_common.errors import CheckFailed, Interrupted
from llmb_common.executors import executor_for
from llmb_common.executors.local import follow
from llmb_common.planning.job_plan import JobPlan
from llmb_common.process import identify
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.submission.create import create_run
from support.run_site import RunSite


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> JobPlan:
    return RunSite(tmp_path_factory.mktemp("site"), "local").plan()


@pytest.fixture
def record(plan: JobPlan, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    monkeypatch.setattr(follow, "POLL_SECONDS", 0.01)
    return create_run(plan, b"", {})


def script(record: RunRecord, text: str) -> None:
    """What the job does, instead of its real script."""
    record.paths.script.write_text(f"log='{record.paths.log}'\n{text}\n")


def step(number: int) -> str:
    """What training prints of a step."""
    return f" iteration {number:8}/      50 | elapsed time per iteration (ms): 100.5 | lm loss: 6.9E+00 |\n"


def while_it_prints(record: RunRecord, patch: pytest.MonkeyPatch, *parts: str) -> None:
    """Follow a job that writes the next of ``parts`` each time it has been looked at, and then ends."""
    script(record, "until [[ -e $LLMB_RUN_DIR/over ]]; do sleep 0.01; done")
    coming = iter(parts)

    def sleep(seconds: float) -> None:
        part = next(coming, None)
        if part is None:
            (record.paths.folder / "over").touch()
            time.sleep(seconds)
        else:
            with record.paths.log.open("a") as log:
                log.write(part)

    patch.setattr(follow, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    start(record)


def start(record: RunRecord, *, detach: bool = False) -> RunRecord:
    return executor_for(record.plan.cluster_type).start(record, detach=detach)


def test_a_run_that_ends_well_is_complete_with_what_only_the_job_knew(record: RunRecord) -> None:
    script(record, 'echo \'LLMB manifest: {"torch": "2.9"}\' >> "$log"; echo of the batch; echo and errors >&2')
    done = start(record)
    assert [state.state for state in done.states] == ["SUBMITTING", "RUNNING", "COMPLETED"]
    assert done.manifest["job"]["software"] == {"torch": "2.9"}
    assert load_record(done.paths.folder) == done
    assert done.paths.batch_log.read_text() == "of the batch\nand errors\n"


def test_what_it_wrote_before_is_kept(record: RunRecord) -> None:
    record.paths.batch_log.write_text("the first start\n")
    script(record, "echo the second")
    start(record)
    assert record.paths.batch_log.read_text() == "the first start\nthe second\n"


def test_a_failure_is_told_with_exit_code_cause_and_the_log(record: RunRecord) -> None:
    script(record, "echo 'torch.cuda.OutOfMemoryError: CUDA out of memory' >> \"$log\"; exit 7")
    with pytest.raises(CheckFailed, match=r"the run failed with exit code 7: .*out of memory") as caught:
        start(record)
    assert caught.value.remedy.endswith(f"llmb-run why {record.paths.run_id}, or the whole log: {record.paths.log}")
    after = load_record(record.paths.folder)
    assert (after.state, after.detail, "job" in after.manifest) == ("FAILED", "exit code 7", True)


def test_the_job_gets_no_input_and_knows_whose_run_it_is(record, tmp_path, monkeypatch):
    monkeypatch.setenv("KEPT", "from the caller")
    script(record, 'echo "$LLMB_RUN_DIR, $KEPT, input: $(cat)"; cut -d" " -f5 "/proc/$$/stat"')
    start(record)
    said, group = record.paths.batch_log.read_text().splitlines()
    assert said == f"{record.paths.folder}, from the caller, input: "
    assert int(group) != os.getpgid(0), "Ctrl-C at the terminal is for whoever follows it"


def test_progress_is_the_first_step_and_every_tenth(record, monkeypatch, capfd):
    while_it_prints(record, monkeypatch, *map(step, (1, 2, 9, 10, 11, 20)), "a line that is no step\n", step(21))
    out, err = capfd.readouterr()
    assert [line.split(",")[0] for line in err.splitlines()] == [f"  step {n} of 50" for n in (1, 10, 20)]
    assert all(0 <= float(line.split(",")[1].split()[0]) < 600 for line in err.splitlines())
    assert out == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("steps", "shown"), [((2, 3), "\r  step 2 of 50, N s\r  step 3 of 50, N s\n"), ((), "")], ids=["steps", "none"]
)
def test_on_a_terminal_progress_is_one_line(record, monkeypatch, steps, shown):
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        while_it_prints(record, patch, *map(step, steps))
    assert re.sub(r"[0-9]+ s", "N s", terminal.getvalue()) == shown


def test_half_a_line_is_read_when_it_is_whole(record, monkeypatch, capfd):
    line = step(10)
    while_it_prints(record, monkeypatch, step(1) + line[:20], line[20:])
    assert [line.split(",")[0] for line in capfd.readouterr().err.splitlines()] == ["  step 1 of 50", "  step 10 of 50"]


def test_a_detached_run_is_on_record_with_its_process_and_goes_on(record: RunRecord) -> None:
    script(record, 'until [[ -e $LLMB_RUN_DIR/go ]]; do sleep 0.02; done; echo done; touch "$LLMB_RUN_DIR/gone"')
    running = start(record, detach=True)
    assert running.state == "RUNNING"
    assert identify(running.process.pid) == running.process
    (record.paths.folder / "go").touch()
    deadline = time.monotonic() + 300
    while not (record.paths.folder / "gone").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert record.paths.batch_log.read_text() == "done\n"
    os.waitpid(running.process.pid, 0)


def test_a_signal_ends_the_run_which_may_still_save(record: RunRecord, capfd: pytest.CaptureFixture[str]) -> None:
    script(record, "trap 'echo saved; exit 143' TERM; touch \"$LLMB_RUN_DIR/ready\"; sleep 600 & wait $!")

    def interrupt() -> None:
        while not (record.paths.folder / "ready").exists():
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Interrupted, match="on record as CANCELLED") as caught:
        start(record)
    thread.join()
    assert caught.value.remedy == f"its log: {record.paths.log}"
    assert "ending the run, which may take 30 s; press Ctrl-C again to kill it" in capfd.readouterr().err
    assert record.paths.batch_log.read_text() == "saved\n"
    after = load_record(record.paths.folder)
    assert (after.state, after.detail, "job" in after.manifest) == ("CANCELLED", "interrupted", True)
