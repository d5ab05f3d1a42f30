"""A submission killed at every step: after running the same command again, each run has exactly one job."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.base.errors import AnswerLost, SchedulerError
from llmb_common.base.processes import identify
from llmb_common.executors.slurm import look as slurm_runs
from llmb_common.runs.index.search import find_runs
from llmb_common.runs.record import RunRecord, load_record, update_record
from llmb_common.submission.jobs import JobToSubmit, Options
from llmb_common.submission.many import submit_many, submit_series
from llmb_common.submission.observe import observe
from llmb_common.submission.single import submit
from support.crashes import run_and_crash, run_and_crash_while, run_to_end
from support.fake_slurm import FakeSlurm
from support.run_site import RECIPE, RunSite, with_small_code
from support.texts import Texts


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: FakeSlurm) -> RunSite:
    with_small_code(tmp_path, monkeypatch)
    return RunSite(tmp_path, "slurm")


def run_folders(site: RunSite) -> list[Path]:
    """All run folders, including those that only a killed process knew about."""
    found = site.install.glob("workloads/*/experiments/*/*")
    return [path for path in found if not path.name.startswith(".") and not path.parent.name.startswith(".")]


def check_one_job_per_run(site: RunSite, fake: FakeSlurm) -> None:
    records = [load_record(folder) for folder in run_folders(site)]
    jobs = sorted((str(job["id"]), str(job["name"])) for job in fake.jobs())
    ours = sorted((str(record.job_id), record.job_name) for record in records)
    series = any(record.submission.in_series for record in records)
    assert jobs == (sorted(set(ours)) if series else ours), "jobs without runs, the reverse, or a run with two jobs"
    assert len({job_id for job_id, _ in jobs}) == len(jobs)
    rows = find_runs(site.install)
    assert {(row.folder, row.job_id) for row in rows} == {(record.paths.folder, record.job_id) for record in records}


def matrix(site: RunSite, fake: FakeSlurm, action: Callable[[], object], every: int = 1) -> int:
    """``action``, killed at step 1, 2, ... of a fresh installation, and run again; the number of steps."""
    at = 1 - every
    while True:
        at += every
        crashed = run_and_crash(action, at, site.install)
        again = action()
        check_one_job_per_run(site, fake)
        fake.forget()
        shutil.rmtree(site.install / "workloads")
        shutil.rmtree(site.install / ".llmb", ignore_errors=True)
        if not crashed:
            return at - 1
        assert again is not None


@pytest.mark.slow
def test_submit_killed_at_every_step(site: RunSite, fake: FakeSlurm) -> None:
    plan = site.plan()
    steps = matrix(site, fake, lambda: submit(plan, RECIPE))
    assert steps > 24, "the matrix must see the steps of a submission"


def test_sbatch_that_outlives_its_caller_is_waited_for(site: RunSite, fake: FakeSlurm) -> None:
    """The caller is killed while ``sbatch`` continues: the same command must not overtake it."""
    plan = site.plan()
    fake.say("sbatch", "slow")
    assert run_and_crash_while("sbatch", lambda: submit(plan, RECIPE), to_its_end=False)
    assert fake.jobs() == [], "sbatch is still at it"
    assert submit(plan, RECIPE).job_id == "1"
    check_one_job_per_run(site, fake)


@pytest.mark.slow
def test_a_key_is_submitted_once(site: RunSite, fake: FakeSlurm) -> None:
    """A task file run again after a crash leaves what it had submitted alone.

    Every fifth step: the same files are written as without a key, which decides only what is found.
    """
    options, plan = Options(key="sweep.yaml#1"), site.plan()
    steps = matrix(site, fake, lambda: submit(plan, RECIPE, options), every=5)
    assert steps > 25
    first = submit(site.plan(), RECIPE, options)
    assert submit(site.plan(), RECIPE, options) == first
    assert len(fake.jobs()) == 1


@pytest.mark.slow
def test_repeats_killed_at_every_step(site: RunSite, fake: FakeSlurm) -> None:
    """Of one job, two of which have a key.

    Every fifth step: all three runs are made in the same way, at the same time.
    """
    jobs = [JobToSubmit(site.plan(), RECIPE, Options(key=key)) for key in ("", "file#1", "file#2")]

    def three() -> int:
        records = [record for _, record in submit_many(jobs)]
        assert all(isinstance(record, RunRecord) for record in records), records
        assert len(run_folders(site)) in (3, 4), "only one without a key that had its job already is not counted again"
        return 3

    assert matrix(site, fake, three, every=5) > 40


@pytest.mark.slow
def test_a_series_killed_at_every_step(site: RunSite, fake: FakeSlurm) -> None:
    plans = site.plan(), site.plan(MBS="2")

    def two() -> int:
        results = submit_series([JobToSubmit(plan, RECIPE, Options(key=plan.experiment_name)) for plan in plans])
        assert len({record.job_id for record in results if isinstance(record, RunRecord)}) == 1, results
        assert len(run_folders(site)) == 2
        return 2

    # Every fifth step: the same run folders are made as for repeats, and one file beside them.
    assert matrix(site, fake, two, every=5) > 40
    assert any(call[-1].endswith("/series.sbatch") for call in fake.calls("sbatch"))


def test_the_same_request_twice_is_two_runs(site: RunSite, fake: FakeSlurm) -> None:
    first, second = submit(site.plan(), RECIPE), submit(site.plan(), RECIPE)
    assert first.paths.folder != second.paths.folder
    check_one_job_per_run(site, fake)


# What a real cluster does not do on demand


def test_no_answer_and_no_job_is_submitted_again_when_that_is_certain(site, fake, monkeypatch, texts: Texts):
    monkeypatch.setattr(slurm_runs, "LOCAL_GRACE_SECONDS", 600)
    fake.say("sbatch", "error")
    with texts.raises(AnswerLost):
        submit(site.plan(), RECIPE)
    (folder,) = run_folders(site)
    record = load_record(folder)
    assert record.state == "SUBMITTING"
    texts(record.detail)
    fake.say("sbatch", "")
    (seen,) = observe([record])
    assert seen.record.state == "SUBMITTING", "too early to be certain"
    monkeypatch.setattr(slurm_runs, "LOCAL_GRACE_SECONDS", 0)
    (seen,) = observe([record])
    assert seen.record.state == "NOT_SUBMITTED"
    record = submit(site.plan(), RECIPE)
    assert (record.paths.folder, record.state) == (folder, "SUBMITTED")
    check_one_job_per_run(site, fake)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["error", "garbage", "half"])
def test_nothing_is_submitted_while_the_scheduler_does_not_answer(site: RunSite, fake: FakeSlurm, how: str) -> None:
    fake.say("sbatch", "lost")
    fake.say("squeue", how)
    fake.say("sacct", "disabled")

    def first_command() -> None:
        with pytest.raises(AnswerLost):
            submit(site.plan(), RECIPE)

    run_to_end(first_command)
    fake.say("sbatch", "")
    time.sleep(0.2)
    for _ in range(2):
        with pytest.raises(AnswerLost):
            submit(site.plan(), RECIPE)
    assert len(fake.jobs()) == 1
    fake.say("squeue", "")
    (record,) = [load_record(folder) for folder in run_folders(site)]
    assert submit(site.plan(), RECIPE).paths.folder == record.paths.folder
    check_one_job_per_run(site, fake)


def test_sbatch_that_hangs_is_ended(
    site: RunSite, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    monkeypatch.setattr("llmb_common.executors.slurm.submit.SUBMIT_SECONDS", 1)
    fake.say("sbatch", "hang")
    with texts.raises(AnswerLost):
        submit(site.plan(), RECIPE)
    assert fake.jobs() == []


def test_a_run_that_another_process_is_submitting_is_left_alone(site, fake, monkeypatch):
    """A submission whose process is alive is not taken over, not even by the same request."""
    monkeypatch.setattr(slurm_runs, "LOCAL_GRACE_SECONDS", 30)
    fake.say("sbatch", "error")
    with pytest.raises(SchedulerError):
        submit(site.plan(), RECIPE)
    fake.say("sbatch", "")
    (folder,) = run_folders(site)
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            process = identify(other.pid)
            record = update_record(folder, lambda found: replace(found, submitter=process))
            monkeypatch.setattr(slurm_runs, "LOCAL_GRACE_SECONDS", 0)
            (seen,) = observe([record])
            assert seen.record.state == "SUBMITTING"
            assert submit(site.plan(), RECIPE).paths.folder != folder
        finally:
            other.kill()
    (seen,) = observe([seen.record])
    assert seen.record.state == "NOT_SUBMITTED"
