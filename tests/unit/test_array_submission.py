"""Job arrays against the scripted Slurm: which runs become one, which do not, and how Slurm's rows are read."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmb_common.errors import AnswerLost, LLMBError, RecordError, SchedulerError
from llmb_common.executors.slurm import look as slurm_runs
from llmb_common.index.search import find_run
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.submission import many
from llmb_common.submission.jobs import JobToSubmit
from llmb_common.submission.many import submit_many
from llmb_common.submission.observe import cancel, observe
from llmb_common.submission.single import new_run
from support.fake_slurm import FakeSlurm
from support.run_site import RECIPE, RunSite, with_small_code


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: FakeSlurm) -> RunSite:
    with_small_code(tmp_path, monkeypatch)
    return RunSite(tmp_path, "slurm")


def start(jobs: list[JobToSubmit], **options: bool) -> list[RunRecord]:
    results = [result for _, result in submit_many(jobs, **options)]
    records = [result for result in results if isinstance(result, RunRecord)]
    assert len(records) == len(jobs), results
    return records


def job_ids(records: list[RunRecord]) -> list[str | None]:
    return [record.job_id for record in records]


def states(records: list[RunRecord]) -> list[str]:
    return [seen.record.state for seen in observe(records)]


# What becomes an array


def test_identical_jobs_become_one_array_in_the_requested_order(site: RunSite, fake: FakeSlurm) -> None:
    a, b = JobToSubmit(site.plan(), RECIPE), JobToSubmit(site.plan(MAX_STEPS="9"), RECIPE)
    records = start([a, b, a, b, b, JobToSubmit(site.plan(MAX_STEPS="10"), RECIPE)])
    assert [record.plan.max_steps for record in records] == [a.plan.max_steps, 9, a.plan.max_steps, 9, 9, 10]
    bases = [str(record.job_id).partition("_") for record in records]
    assert [task for _, _, task in bases] == ["0", "0", "1", "1", "2", ""]
    assert len({base for base, _, _ in bases}) == 3
    assert len(fake.calls("sbatch")) == 3
    assert [load_record(record.paths.folder) for record in records] == records
    assert find_run(site.install, str(records[4].job_id)).run_id == records[4].paths.run_id


def test_arrays_can_be_switched_off(site: RunSite, fake: FakeSlurm) -> None:
    records = start([JobToSubmit(site.plan(), RECIPE)] * 2, arrays=False)
    assert sorted(map(str, job_ids(records))) == ["1", "2"]
    assert fake.calls("scontrol") == [], "nobody needs to ask"


def test_a_path_that_slurm_or_the_shell_would_misread(tmp_path, monkeypatch, fake):
    """The links lead to the runs, whatever the installation is called."""
    folder = tmp_path / "a 'b' %a $(c)"
    folder.mkdir()
    plan = RunSite(folder, "slurm").plan()
    records = start([JobToSubmit(plan, RECIPE)] * 2)
    script = Path(fake.calls("sbatch")[-1][-1])
    lines = script.read_text().splitlines()
    (output,) = (line for line in lines if line.startswith("#SBATCH --output="))
    assert "%%a $(c)" in output
    assert output.count("/%a/") == 1
    for index, record in enumerate(records):
        assert (script.parent / str(index)).samefile(record.paths.folder)
    command = lines[-1].removeprefix("exec bash ")
    bash = ["bash", "-c", f"SLURM_ARRAY_TASK_ID=1; printf %s {command}"]
    said = subprocess.run(bash, capture_output=True, text=True, check=True).stdout
    assert Path(said).samefile(records[1].paths.script)


# Refusals and lost answers


def test_where_arrays_are_refused_each_run_is_submitted_alone(site: RunSite, fake: FakeSlurm) -> None:
    fake.say("sbatch", "noarray")
    said: list[str] = []
    a, b = JobToSubmit(site.plan(), RECIPE), JobToSubmit(site.plan(MAX_STEPS="9"), RECIPE)
    results = [result for _, result in submit_many([a, a, a, b, b], say=said.append)]
    records = [result for result in results if isinstance(result, RunRecord)]
    assert len(records) == 5
    assert {str(job["name"]): job["id"] for job in fake.jobs()} == {r.paths.job_name: r.job_id for r in records}
    assert all("Invalid job array specification" in text for text in said)
    assert said
    assert all(load_record(record.paths.folder).submission.task is None for record in records)
    assert list(site.install.glob("workloads/*/experiments/*/.array-*")) == []


@pytest.mark.parametrize("name", ["script", "job"])
def test_an_array_with_a_changed_file_is_not_submitted(site, fake, monkeypatch, name):
    created: list[RunRecord] = []

    def create_and_change(*given: Any) -> RunRecord:
        record = new_run(*given)
        if record.submission.task is not None and record.submission.task.index == 1:
            with getattr(record.paths, name).open("a") as file:
                file.write("\n")
        created.append(record)
        return record

    monkeypatch.setattr(many, "new_run", create_and_change)
    results = [result for _, result in submit_many([JobToSubmit(site.plan(), RECIPE)] * 3)]
    assert [result.code for result in results if isinstance(result, RecordError)] == ["changed"] * 3
    assert len(created) == 3
    assert not any(record.paths.folder.exists() for record in created)
    assert fake.calls("sbatch") == []


def test_a_refusal_unrelated_to_arrays_is_not_retried(site: RunSite, fake: FakeSlurm) -> None:
    (fake.bin / "sbatch").write_text(
        f"#!/bin/sh\necho \"$1\" >> {fake.folder}/asked\necho 'error: invalid partition specified' >&2; exit 1\n"
    )
    results = [result for _, result in submit_many([JobToSubmit(site.plan(), RECIPE)] * 4)]
    assert [isinstance(result, LLMBError) and result.code for result in results] == ["refused"] * 4
    assert (fake.folder / "asked").read_text().count("--parsable") == 2, "as an array, and one alone"
    assert list(site.install.glob("workloads/*/experiments/*/*")) == []


def test_a_lost_answer_of_an_accepted_array(site: RunSite, fake: FakeSlurm) -> None:
    fake.say("sbatch", "lost")
    assert job_ids(start([JobToSubmit(site.plan(), RECIPE)] * 3)) == ["1_0", "1_1", "1_2"]


def test_a_lost_answer_with_no_scheduler_to_query(site, fake, monkeypatch):
    fake.say("sbatch", "error")
    fake.say("squeue", "error")
    fake.say("sacct", "disabled")
    job = JobToSubmit(site.plan(), RECIPE)
    results = [result for _, result in submit_many([job] * 2)]
    assert [type(result) for result in results] == [AnswerLost] * 2
    records = [load_record(folder) for folder in site.install.glob("workloads/*/experiments/*/pre*")]
    assert [("Socket timed out" in record.detail, record.state) for record in records] == [(True, "SUBMITTING")] * 2
    for command in ("sbatch", "squeue"):
        fake.say(command, "")
    monkeypatch.setattr(slurm_runs, "LOCAL_GRACE_SECONDS", 0)
    assert states(records) == ["NOT_SUBMITTED"] * 2
    again = start([job] * 2)
    assert {record.paths.folder for record in again} == {record.paths.folder for record in records}
    assert len(fake.jobs()) == 2


# States


def test_tasks_have_states_of_their_own(site: RunSite, fake: FakeSlurm) -> None:
    records = start([JobToSubmit(site.plan(), RECIPE)] * 4)
    fake.change("1_1", state="RUNNING")
    fake.change("1_2", state="TIMEOUT")
    assert states(records) == ["PENDING", "RUNNING", "TIMEOUT", "PENDING"]
    assert states(start([JobToSubmit(site.plan(), RECIPE)] * 2)) == ["PENDING"] * 2, "another array is another one"


def test_waiting_tasks_are_one_row_in_accounting(site: RunSite, fake: FakeSlurm) -> None:
    records = start([JobToSubmit(site.plan(), RECIPE)] * 4)
    fake.say("squeue", "error")
    fake.change("1_1", state="CANCELLED by 0", exit_code="0:0")
    seen = observe(records)
    assert [item.record.state for item in seen] == ["SUBMITTED", "CANCELLED", "SUBMITTED", "SUBMITTED"]
    assert [bool(item.finding.unknown) for item in seen] == [True, False, True, True], (
        "accounting may lag behind an end"
    )


def test_an_array_that_was_cancelled_as_a_whole(site: RunSite, fake: FakeSlurm) -> None:
    records = start([JobToSubmit(site.plan(), RECIPE)] * 3)
    fake.change("1_0", state="COMPLETED")
    subprocess.run([fake.bin / "scancel", "1"], check=True)
    assert [job["id"] for job in fake.jobs()] == ["1_0", "1"]
    assert states(records) == ["COMPLETED", "CANCELLED", "CANCELLED"]


def test_a_started_task_does_not_count_as_cancelled_with_the_others(site: RunSite, fake: FakeSlurm) -> None:
    """The controller has purged task 0, which had ended, before the rest of the array was cancelled."""
    records = start([JobToSubmit(site.plan(), RECIPE)] * 2)
    event = '{"event":"%s","time":5,"job_id":"1_0","pid":7,"restart":0,"nodes":"n1","exit_code":%s}\n'
    records[0].paths.events.write_text(event % ("start", "null") + event % ("end", "0"))
    fake.change("1_0", known=[])
    subprocess.run([fake.bin / "scancel", "1"], check=True)
    fake.change("1", known=["squeue"])
    assert states(records) == ["COMPLETED", "CANCELLED"]


# Cancelling


def test_one_waiting_task_is_cancelled_by_its_number_alone(site, fake, monkeypatch):
    records = start([JobToSubmit(site.plan(), RECIPE)] * 3)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: pytest.fail("waits for what never comes"))
    monkeypatch.setattr(sys.modules["llmb_common.submission.observe"], "time", clock)
    (cancelled,) = cancel([records[1]])
    assert cancelled.state == "CANCELLED"
    assert fake.calls("scancel") == [["1_1"]]
    assert states([records[0], records[2]]) == ["PENDING"] * 2


def test_a_task_is_not_cancelled_unseen(site: RunSite, fake: FakeSlurm) -> None:
    """A job id without its name may belong to another job by now."""
    records = start([JobToSubmit(site.plan(), RECIPE)] * 2)
    fake.say("squeue", "error")
    fake.say("sacct", "error")
    with pytest.raises(SchedulerError):
        cancel(records)
    assert fake.calls("scancel") == []
