"""Runs on a real Slurm: whatever the scheduler does, each ends in the right state.

On a cluster with accounting. Without it the same questions are asked until the controller has forgotten a job
(``executors.slurm.query``): only what depends on a job's end being remembered runs on both (``either_site``).
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.base.errors import RequestError, SchedulerError
from llmb_common.base.hostlist import expand
from llmb_common.base.run_states import is_live
from llmb_common.causes.diagnosis import diagnose
from llmb_common.executors.slurm import look as slurm_runs
from llmb_common.runs.finding import attempts_of
from llmb_common.runs.index.runs import RunFilter
from llmb_common.runs.index.search import find_run, find_runs
from llmb_common.runs.record import RunRecord, load_record, update_record
from llmb_common.submission.jobs import Options
from llmb_common.submission.observe import Observation, cancel, observe, refresh, wait
from llmb_common.submission.preflight import submission_doubts
from llmb_common.submission.single import submit, submit_chain
from support.processes import PATIENCE, wait_until
from support.run_site import RECIPE, RunSite, events_of, log_of
from support.slurm_cluster import SlurmCluster


class Lifecycle(RunSite):
    """A site on a test cluster; jobs get ``STANDIN_*`` variables from the environment, as real ones get theirs."""

    def __init__(self, folder: Path, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, "slurm")
        self.cluster = cluster
        self.patch = monkeypatch
        for name in ("SLURM_CONF", "PATH"):
            monkeypatch.setenv(name, cluster.env[name])

    def submit(self, options: Options | None = None, /, plan: dict[str, str] | None = None, **job: str) -> RunRecord:
        account = {"SBATCH_ACCOUNT": "bench"} if self.cluster.spec.accounting else {}
        with self.patch.context() as patch:
            for name, value in job.items():
                patch.setenv(name, value)
            return submit(self.plan(**account, **(plan or {})), RECIPE, options)

    def until(self, record: RunRecord, state: str, timeout: float = 60) -> Observation:
        """Observe until the run is in ``state``."""
        deadline = time.monotonic() + timeout * PATIENCE
        while True:
            (seen,) = observe([record])
            if seen.record.state == state:
                return seen
            assert time.monotonic() < deadline, (seen, scontrol(self.cluster, record))
            record = seen.record
            time.sleep(0.1)

    def training(self, plan: dict[str, str] | None = None, **job: str) -> RunRecord:
        """Submit a job and wait until its step runs."""
        record = self.submit(plan=plan, **job)
        wait_until(lambda: "LLMB manifest" in log_of(record), "the step's first line", timeout=60)
        return self.until(record, "RUNNING").record

    def end_of(self, record: RunRecord, timeout: float = 90) -> RunRecord:
        (record,) = wait([record], timeout=timeout * PATIENCE)
        assert not is_live(record.state), (record.states, scontrol(self.cluster, record), batch_log(record))
        assert load_record(record.paths.folder) == record, "what is returned is what is on disk"
        assert find_run(self.install, record.paths.run_id).state == record.state
        return record

    def jobs_of(self, record: RunRecord) -> list[str]:
        """All jobs that Slurm knows under the run's name."""
        show = ["squeue", "-h", "--states=all", f"--name={record.paths.job_name}", "-o", "%i"]
        return self.cluster.run(show).stdout.split()


def scontrol(cluster: SlurmCluster, record: RunRecord) -> dict[str, str]:
    return cluster.job(int(record.job_id or 0))


def batch_log(record: RunRecord) -> str:
    return record.paths.batch_log.read_text() if record.paths.batch_log.exists() else ""


def code_of(record: RunRecord) -> int:
    """The exit code that explains its state, the first number there."""
    return int(re.findall(r"\d+", record.detail)[0])


def states_of(record: RunRecord) -> list[str]:
    return [item.state for item in record.states]


@pytest.fixture
def site(slurm_accounting: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lifecycle:
    return Lifecycle(tmp_path, slurm_accounting, monkeypatch)


@pytest.fixture(params=["slurm", "slurm_accounting"])
def either_site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lifecycle:
    return Lifecycle(tmp_path, request.getfixturevalue(request.param), monkeypatch)


# Ends


def test_the_exit_code_on_record_is_that_of_the_rank_that_failed_first(site: Lifecycle) -> None:
    """srun itself would report 143, because rank 0 is terminated after rank 1 has failed."""
    job = {"STANDIN_SECONDS": "300", "STANDIN_OTHERS": "3", "STANDIN_OTHERS_EXIT": "9"}
    record = site.end_of(site.submit(plan={"JOB_TOTAL_GPUS": "2", "GPUS_PER_NODE": "1"}, **job))
    assert "TERM reached rank 0" in log_of(record)
    assert (record.state, code_of(record)) == ("FAILED", 9)
    assert record.manifest["job"]["exit_code"] == 9
    assert scontrol(site.cluster, record)["ExitCode"] == "9:0"
    assert events_of(record) == ["start", "end"]


def test_success_is_on_record_with_what_the_job_saw(either_site: Lifecycle) -> None:
    record = either_site.end_of(either_site.submit(plan={"JOB_TOTAL_GPUS": "2", "GPUS_PER_NODE": "1"}))
    assert record.state == "COMPLETED"
    assert states_of(record)[:2] == ["SUBMITTING", "SUBMITTED"]
    job = record.manifest["job"]
    assert (job["nodes"], job["exit_code"], job["restarts"]) == ("gpu[1-2]", 0, 0)
    assert job["software"] == {"driver": "570.1", "nccl": "2.26.2", "torch": "2.9"}
    assert events_of(record) == ["start", "end"]


def test_the_exit_code_is_the_trainings(site: Lifecycle) -> None:
    record = site.end_of(site.submit(STANDIN_EXIT="7"))
    assert (record.state, code_of(record)) == ("FAILED", 7)
    assert record.manifest["job"]["exit_code"] == 7


def test_a_job_that_exports_nothing_trains(site: Lifecycle) -> None:
    """As many sites recommend. Its steps had neither PATH nor the job's variables."""
    asked = {"ADDITIONAL_SLURM_PARAMS": "export=NONE", "NCCL_DEBUG": "WARN"}
    record = site.end_of(site.submit(plan=asked, SBATCH_EXPORT="NONE"))
    assert record.state == "COMPLETED"
    assert "NCCL_DEBUG=WARN" in log_of(record).splitlines()


def test_cancelled_while_it_runs(either_site: Lifecycle) -> None:
    record = either_site.training(STANDIN_SECONDS="300")
    (record,) = cancel([record])
    assert either_site.end_of(record).state == "CANCELLED"
    wait_until(lambda: events_of(record) == ["start", "signal", "end"], "the end on record", timeout=30)


def test_a_job_that_somebody_renamed_is_followed_to_its_end_and_cancelled(either_site: Lifecycle) -> None:
    def rename(record: RunRecord) -> None:
        either_site.cluster.run(["scontrol", "update", f"JobId={record.job_id}", "JobName=bench_0001"])

    record = either_site.training(STANDIN_SECONDS="300")
    rename(record)
    assert either_site.until(record, "RUNNING").record.job_id == record.job_id
    (record,) = cancel([record])
    assert either_site.end_of(record).state == "CANCELLED"
    assert events_of(record) == ["start", "signal", "end"]
    short = either_site.training(STANDIN_SECONDS="2")
    rename(short)
    assert either_site.end_of(short).state == "COMPLETED"


def test_where_the_site_prescribes_one_name_each_run_has_its_own_job(either_site: Lifecycle) -> None:
    plan = {"ADDITIONAL_SLURM_PARAMS": "job-name=bench"}
    first, second = (either_site.training(plan=plan, STANDIN_SECONDS="300") for _ in range(2))
    assert either_site.end_of(cancel([first])[0]).state == "CANCELLED"
    assert [seen.record.state for seen in observe([second])] == ["RUNNING"]
    cancel([second])


def test_a_job_whose_id_was_lost_and_whose_name_was_changed_is_not_started_twice(site: Lifecycle) -> None:
    record = site.training(STANDIN_SECONDS="300")
    site.cluster.run(["scontrol", "update", f"JobId={record.job_id}", "JobName=bench_0001"])
    forgotten = update_record(
        record.paths.folder, lambda found: replace(found, job_id=None, states=found.states[:1]).with_state("SUBMITTING")
    )
    (seen,) = observe([forgotten])
    assert (seen.record.state, seen.record.job_id) == ("RUNNING", record.job_id)
    cancel([seen.record])


def test_cancelled_while_it_waits(either_site: Lifecycle) -> None:
    everything = {"JOB_TOTAL_GPUS": "4", "GPUS_PER_NODE": "1"}
    blocker = either_site.submit(plan=everything, STANDIN_SECONDS="300", STANDIN_OTHERS="300")
    waiting = either_site.submit(plan={**everything, "MAX_STEPS": "60"})
    either_site.until(blocker, "RUNNING")
    seen = either_site.until(waiting, "PENDING")
    assert seen.finding.reason in ("Resources", "Priority", "None", "")
    (record,) = cancel([waiting])
    assert record.state == "CANCELLED"
    assert not record.paths.events.exists()


def test_cancel_spares_a_job_that_has_only_the_id(site: Lifecycle) -> None:
    """A record whose job id now belongs to another job: ids are reused."""
    other = site.cluster.submit("--output=/dev/null", "--job-name=other", "--wrap", "sleep 300")
    record = site.end_of(site.submit())
    ghost = update_record(record.paths.folder, lambda found: replace(found, job_id=str(other)).with_state("RUNNING"))
    cancel([ghost])
    assert site.cluster.wait_for_state(other, {"PENDING", "RUNNING"})


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_node_that_does_not_see_the_folder_of_runs_is_named_as_the_cause(site: Lifecycle, forgotten: bool) -> None:
    assert submission_doubts([site.plan()]) == [], "all nodes are this machine"
    site.cluster.hide(site.install, "gpu2")
    record = site.submit(plan={"ADDITIONAL_SLURM_PARAMS": "nodelist=gpu2"})
    site.cluster.wait_for_state(int(record.job_id or 0), "FAILED")
    if forgotten:
        site.cluster.forget_finished_jobs()
    record = site.end_of(record)
    assert record.state == "FAILED"
    assert record.detail.startswith("JobLaunchFailure: ")
    assert re.search(rf"\bgpu2\b.* {re.escape(str(record.paths.output))}(?!/)", record.detail)
    assert not record.paths.log.exists()


def test_node_failure_without_requeue(site: Lifecycle) -> None:
    record = site.training(plan={"ADDITIONAL_SLURM_PARAMS": "no-requeue;nodelist=gpu2"}, STANDIN_SECONDS="300")
    site.cluster.set_node_down("gpu2")
    record = site.end_of(record)
    assert record.state == "NODE_FAIL"
    found = diagnose(record)
    assert found.cause is not None
    assert (found.kind, found.cause.node, found.cause.keep_out) == ("node-failed", "gpu2", True)


def test_node_failure_with_requeue_goes_on_in_the_same_folder_and_names_the_node(either_site: Lifecycle) -> None:
    site = either_site
    two_nodes = {"JOB_TOTAL_GPUS": "2", "GPUS_PER_NODE": "1"}
    record = site.submit(plan=two_nodes, STANDIN_SECONDS="5", STANDIN_STEPS="1", STANDIN_OTHERS="5")
    record = site.until(record, "RUNNING").record
    wait_until(record.paths.events.exists, "the start event", timeout=20)
    nodes = observe([record])[0].finding.nodes
    failed = expand(nodes)[1]
    site.cluster.set_node_down(failed)
    record = site.until(record, "PENDING").record
    assert is_live(record.state)
    # Slurm holds a requeued job for two minutes before it starts again.
    site.cluster.run(["scontrol", "update", f"JobId={record.job_id}", "StartTime=now"])
    record = site.end_of(record, timeout=120)
    assert record.state == "COMPLETED"
    states = [state for state in states_of(record) if state != "COMPLETING"]  # where the other node takes its time
    assert states[-4:] == ["RUNNING", "PENDING", "RUNNING", "COMPLETED"]
    assert record.manifest["job"]["restarts"] == 1
    assert "duplicate" not in events_of(record)
    (attempt,) = attempts_of(record)
    assert (attempt.nodes, attempt.failed) == (nodes, failed)
    assert attempt.state == ("NODE_FAIL" if site.cluster.spec.accounting else "")
    assert failed in next(item.detail for item in record.states if item.state == "PENDING" and "on gpu" in item.detail)


def test_hang_is_ended_and_named(site: Lifecycle) -> None:
    record = site.submit(STANDIN_HANG="2", LLMB_WATCH_SECONDS="1", LLMB_HANG_SECONDS="2")
    record = site.end_of(record)
    assert (record.state, record.manifest["job"]["exit_code"]) == ("FAILED", 124)
    assert "hang" in events_of(record)
    assert re.findall(r"\d+", record.detail) == ["124", "2"], "the exit code, the last iteration"
    found = diagnose(record)
    assert (found.kind, re.findall(r"\d+", found.summary)[:1]) == ("unknown", ["2"])  # its ranks are none of llmb_train


def test_a_stall_after_the_last_step_is_a_success(site: Lifecycle) -> None:
    record = site.submit(STANDIN_LINGER="1", LLMB_WATCH_SECONDS="1", LLMB_TEARDOWN_SECONDS="1")
    record = site.end_of(record)
    assert (record.state, events_of(record)) == ("COMPLETED", ["start", "teardown", "end"])
    assert re.findall(r"\d+", record.detail) == ["3"], "the last iteration"


# Order


def test_chain(site: Lifecycle) -> None:
    account = {"SBATCH_ACCOUNT": "bench"} if site.cluster.spec.accounting else {}
    records = submit_chain(site.plan(ENABLE_CHECKPOINT="true", **account), RECIPE, 3)
    assert [record.submission.link for record in records] == [1, 2, 3]
    assert {record.submission.chain for record in records} == {records[0].paths.run_id}
    records = wait(records, timeout=90 * PATIENCE)
    assert [record.state for record in records] == ["COMPLETED"] * 3
    starts = [record.manifest["job"]["started"] for record in records]
    ends = [record.manifest["job"]["ended"] for record in records]
    assert ends[0] <= starts[1] <= ends[1] <= starts[2]
    saves = {json.loads(record.paths.job.read_text())["checkpoint"]["save"] for record in records}
    assert saves == {str(records[0].paths.checkpoints)}
    found = find_runs(site.install, RunFilter(chain=records[0].paths.run_id))
    assert {row.run_id for row in found} == {record.paths.run_id for record in records}


def test_a_chain_whose_first_job_fails_trains_nothing_more(site: Lifecycle) -> None:
    with site.patch.context() as patch:
        patch.setenv("STANDIN_EXIT", "7")
        first, *later = submit_chain(site.plan(ENABLE_CHECKPOINT="true", SBATCH_ACCOUNT="bench"), RECIPE, 3)
    first, *later = wait([first, *later], timeout=90 * PATIENCE)
    assert (first.state, code_of(first)) == ("FAILED", 7)
    for record in later:
        assert (record.state, code_of(record), "checkpoint" in record.detail) == ("FAILED", 3, True)
        assert str(first.paths.checkpoints) in log_of(record)
        assert "LLMB manifest" not in log_of(record)


# A scheduler that forgets, fails or does not answer


def test_nobody_waits_for_a_job_whose_dependency_has_failed(site: Lifecycle) -> None:
    failed = site.end_of(site.submit(STANDIN_EXIT="9"))
    stuck = site.submit(plan={"ADDITIONAL_SLURM_PARAMS": f"dependency=afterok:{failed.job_id}"})
    with pytest.raises(SchedulerError, match="DependencyNeverSatisfied") as raised:
        wait([stuck], timeout=60 * PATIENCE)
    assert raised.value.code == "stuck"
    assert cancel([stuck])[0].state == "CANCELLED"


def test_a_purged_job_is_remembered_by_accounting_or_by_itself(either_site: Lifecycle) -> None:
    record = either_site.submit(STANDIN_EXIT="5")
    either_site.cluster.wait_for_state(int(record.job_id or 0), "FAILED")
    either_site.cluster.forget_finished_jobs()
    record = either_site.end_of(record)
    assert (record.state, code_of(record)) == ("FAILED", 5)


def test_a_purged_job_without_any_trace_is_lost_not_failed(
    either_site: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = either_site.submit()
    either_site.cluster.wait_for_state(int(record.job_id or 0), "COMPLETED")
    either_site.cluster.forget_finished_jobs()
    record.paths.events.unlink()
    (seen,) = observe([record])
    if either_site.cluster.spec.accounting:
        assert seen.record.state == "COMPLETED"
        return
    assert (seen.record.state, seen.finding.unknown) == ("SUBMITTED", "")
    monkeypatch.setattr(slurm_runs, "LOST_SECONDS", 0)
    (record,) = refresh([seen.record])
    assert record.state == "LOST"


def test_a_reused_job_id_is_not_taken_for_ours(site: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our job has vanished and its id now belongs to somebody else's running job."""
    record = site.submit()
    site.cluster.wait_for_state(int(record.job_id or 0), "COMPLETED")
    other = site.cluster.submit("--output=/dev/null", "--job-name=other", "--wrap", "sleep 300")
    site.cluster.wait_for_state(other, "RUNNING")
    record = update_record(record.paths.folder, lambda found: replace(found, job_id=str(other)))
    (record,) = refresh([record])
    assert record.state == "COMPLETED"
    assert cancel([record]) == [record]
    assert site.cluster.state(other) == "RUNNING"


def test_a_controller_that_is_away_makes_runs_unknown_and_wait_sits_it_out(either_site: Lifecycle) -> None:
    record = either_site.training(STANDIN_SECONDS="600")
    rounds: list[Observation] = []

    def restart(seen: Sequence[Observation]) -> None:
        rounds.append(seen[0])
        if len(rounds) == 1:
            either_site.cluster.stop_controller()
        elif len(rounds) == 2:
            either_site.cluster.start_controller()
        elif len(rounds) == 3:
            either_site.cluster.run(["scancel", str(record.job_id)])

    try:
        (ended,) = wait([record], timeout=120, seen=restart)
    finally:
        if len(rounds) == 1:
            either_site.cluster.start_controller()
    assert "squeue" in rounds[1].finding.unknown
    assert rounds[1].record == record, "nothing is known, so nothing is changed"
    assert (rounds[2].finding.unknown, rounds[2].record.state) == ("", "RUNNING")
    assert ended.state == "CANCELLED"


def test_accounting_that_is_away_is_no_answer(
    slurm_accounting: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmb_common.executors.slurm.query.FIRST_DELAY", 0.01)
    site = Lifecycle(tmp_path, slurm_accounting, monkeypatch)
    record = site.submit()
    slurm_accounting.wait_for_state(int(record.job_id or 0), "COMPLETED")
    slurm_accounting.forget_finished_jobs()
    kept = record.paths.events.read_text()
    record.paths.events.unlink()
    slurm_accounting.stop_accounting()
    try:
        (seen,) = observe([record])
        assert seen.record.state == "SUBMITTED"
        assert "sacct" in seen.finding.unknown
        record.paths.events.write_text(kept)
        (seen,) = observe([record])
        assert (seen.record.state, seen.finding.unknown) == ("COMPLETED", ""), "its own word of success is enough"
    finally:
        slurm_accounting.start_accounting()


def test_preemption_is_a_requeue(
    slurm_accounting: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Lifecycle(tmp_path, slurm_accounting, monkeypatch)
    all_nodes = {"JOB_TOTAL_GPUS": "4", "GPUS_PER_NODE": "1"}
    low = {**all_nodes, "ADDITIONAL_SLURM_PARAMS": "qos=low"}
    victim = site.submit(plan=low, STANDIN_SECONDS="300", STANDIN_OTHERS="300")
    victim = site.until(victim, "RUNNING").record
    winner = site.submit(plan={**all_nodes, "ADDITIONAL_SLURM_PARAMS": "qos=high"}, STANDIN_SECONDS="1")
    victim = site.until(victim, "PENDING", timeout=90).record
    assert is_live(victim.state)
    assert site.end_of(winner).state == "COMPLETED"
    assert site.jobs_of(victim) == [victim.job_id]
    (victim,) = cancel([victim])
    assert victim.state == "CANCELLED"


def test_a_second_job_of_a_run_ends_at_once(site: Lifecycle) -> None:
    """What must never happen: two jobs of the same run. The first to start wins."""
    record = site.submit(STANDIN_SECONDS="2", STANDIN_STEPS="1")
    site.until(record, "RUNNING")
    wait_until(record.paths.events.exists, "the start event", timeout=20)
    second = site.cluster.submit(record.paths.script)
    site.cluster.wait_for_state(second, "FAILED")
    assert re.search(rf"\b{record.job_id}\b", batch_log(record)), "whose run it is"
    record = site.end_of(record)
    assert record.state == "COMPLETED"
    assert record.manifest["job"]["job_id"] == record.job_id


def test_hostile_text_reaches_the_job_unchanged_or_is_refused(site: Lifecycle) -> None:
    text = 'it\'s "$(touch pwned)" `touch pwned`; %j \\ ümlaut'
    comment = 'it\'s "$(touch pwned)" `touch pwned` %j ümlaut'
    record = site.submit(
        plan={"NCCL_SOCKET_IFNAME": text, "ADDITIONAL_SLURM_PARAMS": f"comment={comment}"}, STANDIN_SECONDS="300"
    )
    wait_until(lambda: "LLMB manifest" in log_of(record), "the step's first line", timeout=60)
    assert f"NCCL_SOCKET_IFNAME={text}\n" in log_of(record)
    shown = site.cluster.run(["scontrol", "show", "job", str(record.job_id)]).stdout
    assert f"Comment={comment}" in shown
    assert not list(site.install.rglob("pwned"))
    cancel([record])
    for bad in ({"NCCL_SOCKET_IFNAME": "two\nlines"}, {"ADDITIONAL_SLURM_PARAMS": "comment=two\nlines"}):
        with pytest.raises(RequestError, match=next(iter(bad))) as refused:
            site.submit(plan=bad)
        assert refused.value.exit_status == 2


def test_job_environment_is_not_that_of_the_job_around_us(site: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "99999")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    record = site.end_of(site.submit())
    assert record.state == "COMPLETED"
    assert os.environ["SLURM_JOB_ID"] == "99999"
