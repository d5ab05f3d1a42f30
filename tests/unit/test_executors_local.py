"""Runs on this machine: the same states as on a cluster, whatever happens to the processes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from llmb_common.base.errors import CheckFailed, EnvironmentLacks
from llmb_common.base.processes import is_alive, send_signal
from llmb_common.executors.local import executor as local_runs
from llmb_common.executors.local.executor import processes_of
from llmb_common.runs.index.search import find_runs
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.submission.jobs import Options
from llmb_common.submission.observe import Observation, cancel, observe, wait
from llmb_common.submission.single import submit
from support.crashes import run_and_crash, side_by_side
from support.processes import wait_until
from support.run_site import RECIPE, RunSite, events_of, log_of, run_folders, with_small_code
from support.texts import Texts

DETACHED = Options(detach=True)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunSite]:
    with_small_code(tmp_path, monkeypatch)
    site = RunSite(tmp_path, "local")
    yield site
    for record in map(load_record, run_folders(site)):
        kill_everything_of(record)


LLMB_RUN = [sys.executable, "-c", "import sys; from llmb_run.main import main; sys.exit(main())"]
SMOKE = ["-w", "llama3.1", "-s", "smoke", "--dtype", "bf16", "--scale", "1"]
COMMANDS = {
    "single": [*LLMB_RUN, "single", *SMOKE],
    "sweep": [*LLMB_RUN, "submit", "--repeats", "3", *SMOKE],
    "launch.sh": ["bash", str(RECIPE / "launch.sh")],
}


def followed(
    site: RunSite, monkeypatch: pytest.MonkeyPatch, command: str = "single"
) -> tuple[subprocess.Popen[bytes], RunRecord]:
    """A command in its own process, and the run that it follows, whose rank is running."""
    variables = site.variables(STANDIN_SECONDS="300", LLMB_PYTHON=sys.executable)
    process = subprocess.Popen(COMMANDS[command], env={**os.environ, **variables})
    wait_until(lambda: run_folders(site) != [], "the run's folder", timeout=60)
    (folder,) = run_folders(site)
    wait_until(lambda: "LLMB manifest" in log_of(load_record(folder)), "the rank's first line", timeout=60)
    # The command writes that after it has started the script, and may be slower than the rank.
    wait_until(lambda: load_record(folder).state == "RUNNING", "the record of it", timeout=60)
    return process, load_record(folder)


def kill_everything_of(record: RunRecord) -> None:
    """As after a power cut."""
    wait_until(
        lambda: not [send_signal(process, signal.SIGKILL) for process in processes_of(record)], "the end", timeout=20
    )


def look(record: RunRecord) -> Observation:
    (seen,) = observe([record])
    return seen


def running(site: RunSite, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    """A detached run whose rank is running."""
    monkeypatch.setenv("STANDIN_SECONDS", "300")
    record = submit(site.plan(), RECIPE, DETACHED)
    wait_until(lambda: "LLMB manifest" in log_of(record), "the rank's first line", timeout=20)
    return record


def test_followed_to_its_end(site: RunSite) -> None:
    record = submit(site.plan(), RECIPE)
    assert [item.state for item in record.states] == ["SUBMITTING", "RUNNING", "COMPLETED"]
    assert record.manifest["job"]["software"]["nccl"] == "2.26.2"
    assert load_record(record.paths.folder) == record
    assert [row.state for row in find_runs(site.install)] == ["COMPLETED"]


def test_a_failure_is_on_record_with_its_exit_code(
    site: RunSite, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    monkeypatch.setenv("STANDIN_EXIT", "7")
    with texts.raises(CheckFailed, mask="the last line is .*"):
        submit(site.plan(), RECIPE)
    (row,) = find_runs(site.install)
    assert (row.state, re.findall(r"\d+", row.detail)) == ("FAILED", ["7"])


def test_killed_without_a_trace(site: RunSite, monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    record = running(site, monkeypatch)
    assert record.process is not None
    kill_everything_of(record)
    seen = look(record).record
    assert seen.state == "FAILED"
    texts(seen.detail)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("single", number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)),
        *(("launch.sh", number) for number in (signal.SIGINT, signal.SIGKILL)),
    ],
)
def test_a_run_ends_with_the_command_that_follows_it(site, monkeypatch, number, name):
    command, record = followed(site, monkeypatch, name)
    os.kill(command.pid, number)
    status = command.wait(timeout=300)
    assert status == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    wait_until(lambda: processes_of(record) == [], "the end of all processes", timeout=60)
    assert "TERM reached rank" in log_of(record)
    assert events_of(record) == ["start", "signal", "end"]
    told = load_record(record.paths.folder)
    assert told.state == ("RUNNING" if number == signal.SIGKILL else "CANCELLED")
    assert look(told).record.state == "CANCELLED", "also where nobody was left to write it"


def test_ranks_that_ignore_sigterm_end_too(site: RunSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have their own sessions, like torchrun's; a second Ctrl-C skips the wait."""
    engine = site.engine.read_text().replace("trap '", "trap '' TERM HUP INT # ")
    rank = "#!/bin/bash\n[[ -n ${DEAF:-} ]] || DEAF=1 setsid --wait $0\n"
    site.engine.write_text(engine.replace("#!/bin/bash\n", rank))
    command, record = followed(site, monkeypatch)
    assert len(processes_of(record)) > 3
    os.kill(command.pid, signal.SIGINT)
    wait_until(lambda: "signal" in events_of(record), "the first Ctrl-C", timeout=20)
    os.kill(command.pid, signal.SIGINT)
    assert command.wait(timeout=300) == 130
    assert processes_of(record) == []
    assert load_record(record.paths.folder).state == "CANCELLED"


def test_without_its_script_a_run_goes_on_and_can_be_cancelled(site: RunSite, monkeypatch: pytest.MonkeyPatch) -> None:
    record = running(site, monkeypatch)
    assert record.process is not None
    send_signal(record.process, signal.SIGKILL)
    wait_until(lambda: not is_alive(record.process), "the end of the script", timeout=10)
    assert look(record).record.state == "RUNNING"
    assert cancel([record])[0].state == "CANCELLED"
    assert processes_of(record) == []


def test_ctrl_c_in_a_sweep_ends_the_sweep(site: RunSite, monkeypatch: pytest.MonkeyPatch) -> None:
    command, record = followed(site, monkeypatch, "sweep")
    os.kill(command.pid, signal.SIGINT)
    assert command.wait(timeout=300) == 130
    assert [row.run_id for row in find_runs(site.install)] == [record.paths.run_id]


@pytest.mark.slow
def test_killed_at_every_step_each_run_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_runs, "START_SECONDS", 0.5)
    with_small_code(tmp_path, monkeypatch)

    def killed_at(first: int, apart: int) -> None:
        (tmp_path / f"{first}").mkdir()
        site = RunSite(tmp_path / f"{first}", "local")
        plan = site.plan()
        at, crashed = first, True
        while crashed:
            crashed = run_and_crash(lambda: submit(plan, RECIPE, DETACHED), at, site.install)
            submit(plan, RECIPE, DETACHED)
            for record in wait([load_record(folder) for folder in run_folders(site)], timeout=600):
                # On a busy machine a first job may begin so late that a second one is started, which ends at once.
                events = [event for event in events_of(record) if event != "duplicate"]
                assert (record.state, events) == ("COMPLETED", ["start", "end"]), at
            shutil.rmtree(site.install / "workloads")
            shutil.rmtree(site.install / ".llmb", ignore_errors=True)
            at += apart
        assert at > 20

    side_by_side(*(partial(killed_at, first, 8) for first in range(1, 9)))


def test_a_run_that_hangs_and_one_that_does_not_exit(site: RunSite, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LLMB_WATCH_SECONDS", "1"), ("LLMB_HANG_SECONDS", "1"), ("LLMB_TEARDOWN_SECONDS", "1")):
        monkeypatch.setenv(name, value)

    def stalled() -> None:
        os.environ["STANDIN_LINGER"] = "1"
        record = submit(site.plan(), RECIPE)
        assert events_of(record) == ["start", "teardown", "end"]
        assert record.state == "COMPLETED"

    def hung() -> None:
        os.environ["STANDIN_HANG"] = "2"
        local_runs.END_SECONDS = 1
        record = submit(site.plan(), RECIPE, DETACHED)
        wait_until(lambda: "hang" in events_of(record), "the watchdog", timeout=20)
        cancel([record])

    side_by_side(stalled, hung)


def test_numbers_of_the_environment_are_never_evaluated(site: RunSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """bash arithmetic would run this."""
    for name in ("LLMB_WATCH_SECONDS", "LLMB_HANG_SECONDS", "LLMB_TEARDOWN_SECONDS"):
        monkeypatch.setenv(name, f"x[$(touch {site.install}/pwned)]")
    record = submit(site.plan(), RECIPE)
    assert record.state == "COMPLETED"
    assert not (site.install / "pwned").exists()


def test_ranks_that_cannot_reach_each_other_are_not_started(
    site: RunSite, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    monkeypatch.setattr("socket.create_server", lambda *_: (_ for _ in ()).throw(OSError(101, "unreachable")))
    with texts.raises(EnvironmentLacks):
        submit(site.plan(), DETACHED)
    assert run_folders(site) == []
