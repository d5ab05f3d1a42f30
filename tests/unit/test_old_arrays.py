"""Job arrays that releases before 0.3 submitted, against the scripted Slurm: shown, cancelled, taken up again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmb_common.base.errors import SchedulerError
from llmb_common.executors.slurm import look as slurm_runs
from llmb_common.runs.index.search import find_run, index_records
from llmb_common.runs.record import RunRecord, Turn, load_record
from llmb_common.submission.jobs import JobToSubmit
from llmb_common.submission.many import submit_many
from llmb_common.submission.observe import cancel, observe
from support.cli import Cli
from support.fake_slurm import FakeSlurm
from support.old_arrays import make_old_array, submit_old_array
from support.run_site import RECIPE, RunSite, run_folders, with_small_code


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: FakeSlurm) -> RunSite:
    with_small_code(tmp_path, monkeypatch)
    return RunSite(tmp_path, "slurm")


def make(site: RunSite, number: int, array_id: str = "0a1b2c3d") -> list[RunRecord]:
    return make_old_array(JobToSubmit(site.plan(), RECIPE), number, array_id)


def start(site: RunSite, number: int, array_id: str = "0a1b2c3d") -> list[RunRecord]:
    records = submit_old_array(make(site, number, array_id))
    index_records(*records)
    return records


def states(records: list[RunRecord]) -> list[str]:
    return [seen.record.state for seen in observe(records)]


def test_the_record_of_release_0_2_is_read(site: RunSite) -> None:
    (_, record) = make(site, 2)
    text = record.paths.record.read_text()
    assert json.loads(text)["submission"]["task"] == {"array_id": "0a1b2c3d", "index": 1, "turns": 0}
    found = load_record(record.paths.folder)
    assert found.submission.turn == Turn("0a1b2c3d", 1)
    assert found.job_name == f"{record.paths.experiment_name}.array-0a1b2c3d"
    assert found.submitted_script == record.paths.folder.parent / ".array-0a1b2c3d" / "array.sbatch"


def test_a_task_is_found_by_its_job_id(site: RunSite) -> None:
    records = start(site, 3)
    assert find_run(site.install, "1_2").run_id == records[2].paths.run_id


# States


def test_tasks_have_states_of_their_own(site: RunSite, fake: FakeSlurm) -> None:
    records = start(site, 4)
    fake.change("1_1", state="RUNNING")
    fake.change("1_2", state="TIMEOUT")
    assert states(records) == ["PENDING", "RUNNING", "TIMEOUT", "PENDING"]
    assert states(start(site, 2, "another1")) == ["PENDING"] * 2, "another array is another one"


def test_waiting_tasks_are_one_row_in_accounting(site: RunSite, fake: FakeSlurm) -> None:
    records = start(site, 4)
    fake.say("squeue", "error")
    fake.change("1_1", state="CANCELLED by 0", exit_code="0:0")
    seen = observe(records)
    assert [item.record.state for item in seen] == ["SUBMITTED", "CANCELLED", "SUBMITTED", "SUBMITTED"]
    assert [bool(item.finding.unknown) for item in seen] == [True, False, True, True], (
        "accounting may lag behind an end"
    )


def test_an_array_that_was_cancelled_as_a_whole(site: RunSite, fake: FakeSlurm) -> None:
    records = start(site, 3)
    fake.change("1_0", state="COMPLETED")
    subprocess.run([fake.bin / "scancel", "1"], check=True)
    assert [job["id"] for job in fake.jobs()] == ["1_0", "1"]
    assert states(records) == ["COMPLETED", "CANCELLED", "CANCELLED"]


def test_a_started_task_does_not_count_as_cancelled_with_the_others(site: RunSite, fake: FakeSlurm) -> None:
    """The controller has purged task 0, which had ended, before the rest of the array was cancelled."""
    records = start(site, 2)
    event = '{"event":"%s","time":5,"job_id":"1_0","pid":7,"restart":0,"nodes":"n1","exit_code":%s}\n'
    records[0].paths.events.write_text(event % ("start", "null") + event % ("end", "0"))
    fake.change("1_0", known=[])
    subprocess.run([fake.bin / "scancel", "1"], check=True)
    fake.change("1", known=["squeue"])
    assert states(records) == ["COMPLETED", "CANCELLED"]


# Cancelling


def test_one_waiting_task_is_cancelled_by_its_number_alone(site, fake, monkeypatch):
    records = start(site, 3)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: pytest.fail("waits for what never comes"))
    monkeypatch.setattr(sys.modules["llmb_common.submission.observe"], "time", clock)
    (cancelled,) = cancel([records[1]])
    assert cancelled.state == "CANCELLED"
    assert fake.calls("scancel") == [["1_1"]]
    assert states([records[0], records[2]]) == ["PENDING"] * 2


def test_a_task_is_not_cancelled_unseen(site: RunSite, fake: FakeSlurm) -> None:
    """A job id without its name may belong to another job by now."""
    records = start(site, 2)
    fake.say("squeue", "error")
    fake.say("sacct", "error")
    with pytest.raises(SchedulerError):
        cancel(records)
    assert fake.calls("scancel") == []


# Interrupted submissions of the former release


def test_tasks_of_an_array_whose_id_nobody_has_written_down_are_found(site: RunSite, fake: FakeSlurm) -> None:
    records = make(site, 3)
    subprocess.run(["sbatch", "--parsable", str(records[0].submitted_script)], check=True, capture_output=True)
    seen = [item.record for item in observe(records)]
    assert [(record.state, record.job_id) for record in seen] == [("PENDING", f"1_{index}") for index in range(3)]


def test_runs_of_an_array_that_never_came_are_submitted_as_jobs_of_their_own(site, fake, monkeypatch):
    monkeypatch.setattr(slurm_runs, "LOCAL_GRACE_SECONDS", 0)
    assert states(make(site, 3)) == ["NOT_SUBMITTED"] * 3
    results = [result for _, result in submit_many([JobToSubmit(site.plan(), RECIPE)] * 3)]
    again = [result for result in results if isinstance(result, RunRecord)]
    assert {record.paths.folder for record in again} == set(run_folders(site))
    assert sorted(str(record.job_id) for record in again) == ["1", "2", "3"]
    assert all(load_record(record.paths.folder).submission.turn is None for record in again)


def test_commands_show_cancel_and_retry_tasks(site, fake, monkeypatch, capsys):
    cli = Cli(site.install, monkeypatch, capsys)
    start(site, 3)
    fake.change("1_0", state="FAILED", exit_code="1:0")
    assert [row["state"] for row in cli("jobs", "--json").data["runs"]] == ["PENDING", "PENDING", "FAILED"]
    assert cli("show", "1_1").status == 0
    assert cli("cancel", "1_1").status == 0
    assert fake.calls("scancel") == [["1_1"]]
    assert cli("retry", "1_0", "1_1").status == 0
    assert [len(call) for call in fake.calls("sbatch")] == [2, 2, 2], "the array, and two jobs"
    assert [job["id"] for job in fake.jobs()] == ["1_0", "1_2", "2", "3"]
