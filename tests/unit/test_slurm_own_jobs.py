"""Which job is which run's: found by its id whatever its name, and known by its name or its script."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest

from llmb_common.executors.slurm import look as slurm_look
from llmb_common.executors.slurm import own_jobs
from llmb_common.executors.slurm.query import JobInfo
from llmb_common.executors.slurm.words import SlurmSettings
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.finding import Finding
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.submission.single import create_run
from support.slurm_answers import chosen
from support.texts import Texts


@dataclass
class Slurm:
    """The jobs of queue and accounting."""

    queue: list[JobInfo] = field(default_factory=list)
    accounting: list[JobInfo] = field(default_factory=list)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    slurm = Slurm()
    monkeypatch.setattr(own_jobs, "query_queue", lambda which: chosen(slurm.queue, which))
    monkeypatch.setattr(own_jobs, "query_accounting", lambda which, since: chosen(slurm.accounting, which))
    return slurm


@pytest.fixture
def record(plan: JobPlan) -> RunRecord:
    return replace(create_run(plan, b"", {}), job_id="7").with_state("SUBMITTED")


def job(record: RunRecord, state: str = "RUNNING", **more: object) -> JobInfo:
    """The run's job, as a script of the site has renamed it."""
    known = {
        "job_id": "7",
        "name": "bench_0001",
        "state": state,
        "submitted": record.created,
        "started": record.created + 5,
        "ended": None,
        "nodes": "n[1-2]",
        "script": f"sbatch --parsable {record.submitted_script}",
    }
    return JobInfo(**{**known, **more})  # type: ignore[arg-type]


def look(record: RunRecord) -> Finding:
    return slurm_look.poll_slurm([record])[record.paths.run_id]


def test_a_renamed_job_is_seen_in_the_queue_and_in_accounting(slurm: Slurm, record: RunRecord) -> None:
    slurm.queue = [job(record)]
    assert (look(record).state, look(record).job_id) == ("RUNNING", "7")
    slurm.queue = []
    slurm.accounting = [job(record, "COMPLETED", ended=record.created + 900, exit_code="0:0")]
    assert look(record).state == "COMPLETED"


def test_a_requeue_submits_it_later(slurm: Slurm, record: RunRecord) -> None:
    slurm.queue = [job(record, submitted=record.created + 86_400)]
    assert look(record).state == "RUNNING"


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"script": "/home/bob/train.sh"}, id="another script"),
        pytest.param({"script": "(null)"}, id="a command line, sbatch --wrap"),
        pytest.param({"script": "", "submitted": 1e10}, id="much later, and nobody says which script"),
        pytest.param({"script": "", "submitted": 1e6}, id="years before"),
    ],
)
def test_a_reused_id_is_somebody_elses_job(slurm: Slurm, record: RunRecord, other: dict[str, object]) -> None:
    slurm.queue = [job(record, **other)]
    assert look(record) == Finding(missing=True)


def test_a_slurm_that_does_not_tell_scripts_is_believed_by_the_time(slurm: Slurm, record: RunRecord) -> None:
    slurm.accounting = [job(record, "COMPLETED", script="", submitted=record.created + 3, ended=record.created + 9)]
    assert look(record).state == "COMPLETED"


def test_a_renamed_job_is_known_whatever_path_leads_to_its_folder(
    slurm: Slurm, record: RunRecord, tmp_path: Path
) -> None:
    record.save()
    link = tmp_path / "another-path"
    link.symlink_to(record.paths.experiments)
    reached = load_record(link / record.paths.folder.relative_to(record.paths.experiments))
    slurm.queue = [job(record, script=str(record.paths.script))]
    assert reached.paths.script != record.paths.script
    assert look(reached).state == "RUNNING"


def test_where_the_answer_of_sbatch_was_lost_the_script_decides(slurm: Slurm, record: RunRecord) -> None:
    lost = replace(record, job_id=None).with_state("SUBMITTING")
    slurm.queue = [job(record, job_id="6", script="/home/bob/train.sh"), job(record)]
    assert (look(lost).state, look(lost).job_id) == ("RUNNING", "7")


def test_where_a_site_prescribes_one_name_for_all_the_script_decides(slurm: Slurm, plan: JobPlan) -> None:
    assert plan.scheduler is not None
    named = msgspec.structs.replace(plan.scheduler, additional=(("job-name", "bench_0001"),))
    lost = create_run(msgspec.structs.replace(plan, scheduler=named), b"", {})
    assert (lost.job_name, lost.state) == ("bench_0001", "SUBMITTING")
    slurm.queue = [job(lost, job_id="6", script="/home/bob/train.sh"), job(lost)]
    assert (look(lost).state, look(lost).job_id) == ("RUNNING", "7")
    known = replace(lost, job_id="6").with_state("SUBMITTED")
    assert look(known) == Finding(missing=True), "job 6 is another one of that name"


def test_a_renamed_job_that_was_queued_again_keeps_its_earlier_starts(slurm: Slurm, record: RunRecord) -> None:
    starts = [("n[1-2]", record.created + 5), ("n[3-4]", record.created + 500)]
    events = [{"event": "start", "job_id": "7", "time": time, "nodes": nodes} for nodes, time in starts]
    record.paths.events.write_text("".join(json.dumps(event) + "\n" for event in events))
    again = record.created + 400
    failed = job(record, "NODE_FAIL", ended=record.created + 300, failed="n2", exit_code="0:0")
    running = job(record, submitted=again, started=again + 100, nodes="n[3-4]")
    slurm.accounting, slurm.queue = [failed, running], [running]
    (attempt,) = look(record).attempts
    assert (attempt.state, attempt.nodes, attempt.failed) == ("NODE_FAIL", "n[1-2]", "n2")


def test_a_job_whose_log_grows_is_never_lost(slurm: Slurm, record: RunRecord, texts: Texts) -> None:
    record = replace(record, missing_since=time.time() - 10_000)
    start = {"event": "start", "job_id": "7", "time": record.created, "nodes": "n[1-2]"}
    record.paths.events.write_text(json.dumps(start) + "\n")
    record.paths.log.parent.mkdir(parents=True, exist_ok=True)
    record.paths.log.write_text("iteration 7\n")
    found = look(record)
    assert (found.state, found.nodes) == ("RUNNING", "n[1-2]")
    texts(found.detail)
    for file in (record.paths.events, record.paths.log):
        os.utime(file, (1.0, 1.0))
    assert look(record).state == "LOST"


def test_many_ids_are_several_questions(record: RunRecord) -> None:
    asked: list[str] = []
    records = [replace(record, job_id=str(number)) for number in range(1000, 1401)]
    own_jobs._jobs_of(
        [replace(one, paths=msgspec.structs.replace(one.paths, run_id=str(one.job_id))) for one in records],
        lambda which: asked.append(which) or [],
    )
    assert [which.count(",") + 1 for which in asked] == [400, 1]
    assert asked[1] == "--jobs=1400"


def test_nobody_looks_through_all_jobs_for_one_whose_id_is_known(record: RunRecord) -> None:
    asked: list[str] = []
    begun = record.with_state("SUBMITTING")
    assert own_jobs._jobs_of([begun], lambda which: asked.append(which) or []) == {}
    assert asked == ["--jobs=7"]


def test_of_each_job_the_last_start_counts_in_the_order_of_ids(record: RunRecord) -> None:
    rows = [("100", "NODE_FAIL"), ("9", "FAILED"), ("20+1", "PENDING"), ("100", "RUNNING")]
    found = own_jobs.latest(job(record, state, job_id=number) for number, state in rows)
    assert [(info.job_id, info.state) for info in found] == [
        ("9", "FAILED"), ("20+1", "PENDING"), ("100", "RUNNING")
    ]  # fmt: skip


def test_a_prefix_that_a_site_prescribes_begins_the_jobs_name(slurm: Slurm, plan: JobPlan) -> None:
    assert plan.scheduler is not None
    named = msgspec.structs.replace(plan.scheduler, job_name_prefix="hpc-")
    lost = create_run(msgspec.structs.replace(plan, scheduler=named), b"", {})
    assert lost.job_name == f"hpc-{lost.paths.job_name}"
    assert f"#SBATCH --job-name={lost.job_name}\n" in lost.paths.script.read_text()
    slurm.queue = [job(lost, name=lost.job_name, script="")]
    assert (look(lost).state, look(lost).job_id) == ("RUNNING", "7")
    assert [key for key, _, _ in SlurmSettings(job_name_prefix="a b").problems()] == ["job_name_prefix"]
    assert SlurmSettings(job_name_prefix="hpc-").site_part().job_name("x") == "hpc-x"
