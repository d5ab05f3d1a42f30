"""Runs of different plans in one allocation of a real Slurm: each ends in its own state, with its own log."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from llmb_common.executors.slurm import look as slurm_runs
from llmb_common.runs.index.search import find_runs
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.submission.jobs import JobToSubmit, Options
from llmb_common.submission.many import submit_series
from llmb_common.submission.observe import cancel, observe, wait
from support.cluster_site import WHOLE_NODE, ClusterSite, end_of, events_of, log_written, state_of
from support.crashes import run_and_crash_while
from support.processes import wait_until
from support.run_site import RECIPE, RunSite
from support.slurm_cluster import SlurmCluster


class SeriesSite(ClusterSite):
    """What a run does depends on its number of steps: 21 for the first, 22 for the second, ..."""

    def behave(self, **runs: str) -> None:
        cases = "".join(f"  {21 + int(name[-1])}) {what} ;;\n" for name, what in runs.items())
        head, _, rest = self.engine.read_text().partition("\n")
        steps = """steps=$(sed -nE 's/.*"train": ?([0-9]+).*/\\1/p' "$LLMB_RUN_DIR/job.json")"""
        self.engine.write_text(f"{head}\n{steps}\ncase $steps in\n{cases}esac\n{rest}")

    def jobs(self, count: int, **changes: str) -> list[JobToSubmit]:
        plans = [self.plan(**{**WHOLE_NODE, "MAX_STEPS": f"{21 + number}", **changes}) for number in range(count)]
        return [JobToSubmit(plan, RECIPE, Options(key=f"series {number}")) for number, plan in enumerate(plans)]

    def start(self, count: int, **changes: str) -> list[RunRecord]:
        results = submit_series(self.jobs(count, **changes))
        records = [result for result in results if isinstance(result, RunRecord)]
        assert len(records) == count, results
        return records


@pytest.fixture
def site(slurm: SlurmCluster, tmp_path, monkeypatch) -> SeriesSite:
    return SeriesSite(tmp_path, slurm, monkeypatch)


def test_each_run_has_its_turn_on_the_same_nodes_and_a_failure_stops_none(site: SeriesSite) -> None:
    site.behave(run_0="STANDIN_EXIT=0", run_1="STANDIN_EXIT=7")
    records = site.start(3, JOB_TOTAL_GPUS="2")
    assert len({record.job_id for record in records}) == 1
    script = records[0].submitted_script.read_text()
    assert "#SBATCH --time=00:15:00\n" in script, "the limits of all"
    ended = wait(records, timeout=450)
    assert [(record.state, record.manifest["job"]["exit_code"]) for record in ended] == [
        ("COMPLETED", 0),
        ("FAILED", 7),
        ("COMPLETED", 0),
    ]
    assert [bool(record.detail) for record in ended] == [False, True, False]
    assert len({record.manifest["job"]["nodes"] for record in ended}) == 1
    times = [(record.manifest["job"]["started"], record.manifest["job"]["ended"]) for record in ended]
    assert times == sorted(times)
    for record in ended:
        assert [event for event, _ in events_of(record)] == ["start", "end", "over"]
        assert record.paths.log.read_text().count("LLMB manifest") == 1
        assert load_record(record.paths.folder) == record


def test_one_run_is_cancelled_before_its_turn_and_one_in_it(site: SeriesSite) -> None:
    site.behave(run_0="STANDIN_SECONDS=300")
    records = site.start(4)
    wait_until(log_written(records[0]), "the first run", timeout=60)
    seen = observe(records)
    assert [item.record.state for item in seen] == ["RUNNING", "PENDING", "PENDING", "PENDING"]
    assert re.findall(r"\d+", seen[2].finding.reason) == ["3", "4", records[0].job_id], (
        "its turn, of how many, in which"
    )
    (waiting,) = cancel([records[2]])
    assert (waiting.state, waiting.detail) == ("CANCELLED", "cancelled")
    (running,) = cancel([seen[0].record])
    assert running.state in ("CANCELLED", "RUNNING"), "its script may take a moment"
    assert end_of(records) == ["CANCELLED", "COMPLETED", "CANCELLED", "COMPLETED"]
    assert not waiting.paths.log.read_text() if waiting.paths.log.exists() else True


def test_the_whole_series_is_cancelled_as_a_job(site: SeriesSite) -> None:
    site.behave(run_1="STANDIN_SECONDS=300")
    records = site.start(3)
    wait_until(log_written(records[1]), "the second run", timeout=60)
    cancel(observe_all(records))
    assert end_of(records) == ["COMPLETED", "CANCELLED", "CANCELLED"]
    (job,) = {record.job_id for record in records}
    assert site.cluster.wait_for_state(int(str(job))) == "CANCELLED"


def observe_all(records: list[RunRecord]) -> list[RunRecord]:
    return [item.record for item in observe(records)]


def test_after_a_node_failure_it_goes_on_with_the_run_that_was_interrupted(site: SeriesSite) -> None:
    site.behave(run_1="((SLURM_RESTART_COUNT > 0)) || STANDIN_SECONDS=300")
    records = site.start(3)
    wait_until(log_written(records[1]), "the second run", timeout=60)
    site.cluster.set_node_down(observe(records)[1].finding.nodes)
    wait_until(lambda: state_of(records[1]) == "PENDING", "the requeue", timeout=30)
    assert [item.record.state for item in observe(records)] == ["COMPLETED", "PENDING", "PENDING"]
    site.cluster.run(["scontrol", "update", f"JobId={records[1].job_id}", "StartTime=now"])
    assert end_of(records) == ["COMPLETED"] * 3
    assert [event for event, _ in events_of(records[0])] == ["start", "end", "over"], "it had its turn"
    assert [event for event, _ in events_of(records[1])][-3:] == ["start", "end", "over"]


def test_a_time_limit_cuts_it_short_and_the_rest_is_submitted_again_together(site: SeriesSite) -> None:
    site.behave(run_1="STANDIN_SECONDS=300")
    records = site.start(4)
    wait_until(log_written(records[1]), "the second run", timeout=60)
    site.cluster.end_job_in(int(str(records[0].job_id)), 1)
    ended = wait(records, timeout=450)
    assert [record.state for record in ended] == ["COMPLETED", "TIMEOUT", "NOT_SUBMITTED", "NOT_SUBMITTED"]
    assert re.search(rf"\b{records[0].job_id}\b.*\bTIMEOUT\b", ended[2].detail)
    again = site.start(4)
    assert [record.paths.folder for record in again] == [record.paths.folder for record in records]
    assert again[2].job_id == again[3].job_id != records[0].job_id
    assert end_of(again) == ["COMPLETED", "TIMEOUT", "COMPLETED", "COMPLETED"]


def test_a_run_is_bounded_by_its_own_limit(site: SeriesSite) -> None:
    site.behave(run_0="STANDIN_SECONDS=300")
    records = site.start(2, TIME_LIMIT="00:00:03")
    assert end_of(records) == ["TIMEOUT", "COMPLETED"]


def test_what_one_run_sets_on_its_nodes_the_next_one_does_not_have(
    site: SeriesSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clock boost, memory clock, a variable; and a run that saves, in its own folder."""
    said, programs = tmp_path / "said", tmp_path / "programs"
    programs.mkdir()
    sudo = programs / "sudo"
    sudo.write_text(f'#!/bin/sh\necho "$SLURMD_NODENAME $*" >> {said}\n')
    sudo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{site.cluster.env['PATH']}")
    changes = ({"ENABLE_VBOOST": "true", "NCCL_ALGO": "Ring"}, {}, {}, {"ENABLE_CHECKPOINT": "true"})
    jobs = [
        replace(site.jobs(4, JOB_TOTAL_GPUS="2", **change)[turn], options=Options(key=f"series {turn}"))
        for turn, change in enumerate(changes)
    ]
    jobs[2] = replace(jobs[2], plan=msgspec.structs.replace(jobs[2].plan, memory_clock=4752))
    records = [record for record in submit_series(jobs) if isinstance(record, RunRecord)]
    assert end_of(records) == ["COMPLETED"] * 4
    lines = said.read_text().splitlines()
    for node in {line.split()[0] for line in lines}:
        assert [" ".join(line.split()[3:]) for line in lines if line.startswith(f"{node} ")] == [
            "--reset-memory-clocks",
            "boost-slider --vboost 1",
            *("boost-slider --vboost 0", "--reset-memory-clocks"),
            *("boost-slider --vboost 0", "-lmc 4752,4752"),
            *("boost-slider --vboost 0", "--reset-memory-clocks"),
        ]
    assert ["NCCL_ALGO=Ring" in record.paths.log.read_text() for record in records] == [True, False, False, False]
    saved = [[*record.paths.folder.rglob("latest_checkpointed_iteration.txt")] for record in records]
    assert [len(found) for found in saved] == [0, 0, 0, 1]


def test_a_run_that_saves_is_told_in_time_before_its_own_limit(site: SeriesSite) -> None:
    # Not in bash: ranks that may save begin with the signal ignored, and bash could not heed it then.
    save = '$| = 1; $SIG{TERM} = sub { sleep 2; print "saved\\n"; exit 0 }; print "trains\\n"; sleep 1 while 1'
    site.behave(run_0=f"exec perl -e '{save}'")
    jobs = []
    for job in site.jobs(2, ENABLE_CHECKPOINT="true"):
        saving = msgspec.structs.replace(job.plan.checkpoint, save_seconds=25)
        jobs.append(replace(job, plan=msgspec.structs.replace(job.plan, checkpoint=saving, time_limit="00:00:45")))
    records = [record for record in submit_series(jobs) if isinstance(record, RunRecord)]
    ended = wait(records, timeout=450)
    assert "saved" in records[0].paths.log.read_text()
    assert [(record.state, bool(record.detail)) for record in ended] == [("COMPLETED", True), ("COMPLETED", False)]
    assert "signal" in [event for event, _ in events_of(ended[0])]


def test_killed_right_after_sbatch(site: SeriesSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_runs, "LOCAL_GRACE_SECONDS", 1)
    assert run_and_crash_while("sbatch", lambda: site.start(3))
    assert [load_record(folder).job_id for folder in site.folders()] == [None] * 3
    records = site.start(3)
    assert sorted(record.paths.folder for record in records) == site.folders(), "the same runs, adopted"
    assert len({record.job_id for record in records}) == 1
    assert end_of(records) == ["COMPLETED"] * 3


def test_two_configurations_in_turns_by_a_command_that_is_killed(slurm: SlurmCluster, tmp_path: Path) -> None:
    """``llmb-run ab``: blocks of four runs, each in one allocation, whatever becomes of the command.

    One job ends in its second run: its block cannot have three runs of one allocation any more.
    """
    site = RunSite(tmp_path, "slurm")
    head, _, rest = site.engine.read_text().partition("\n")
    job, hangs, seen = (tmp_path / name for name in ("job", "hangs", "seen-$SLURM_JOB_ID"))
    hang = f"mkdir {seen} || {{ mkdir {hangs} && echo $SLURM_JOB_ID > {job} && STANDIN_SECONDS=300; }}"
    site.engine.write_text(f"{head}\n{{ {hang}; }} 2> /dev/null\n{rest}")
    env = {**os.environ, **slurm.env, "LLMB_INSTALL": str(site.install), "STANDIN_STEPS": "job", **WHOLE_NODE}
    words = ["ab", "-w", "pretrain_llama3.1", "-s", "smoke", "--env", "STANDIN_MS=100", "--change", "STANDIN_MS=94"]
    command = [sys.executable, "-m", "llmb_run", *words, "--json"]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        wait_until(lambda: job.exists() and job.read_text().strip(), "a second run", timeout=120)
        first.kill()
    slurm.end_job_in(int(job.read_text()), 1)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    found = json.loads(done.stdout)["data"]
    assert (done.returncode, found["answer"]) == (0, "faster"), done.stderr
    whole = [block for block in found["blocks"] if block["counts"]]
    assert [(block["one_allocation"], len(block["runs"]), block["lost"]) for block in whole] == [(True, 4, [])] * len(
        whole
    )
    assert {block["nodes"] for block in whole} <= {f"gpu{n}" for n in range(1, 5)}
    rows = find_runs(site.install)
    states = Counter(row.state for row in rows)
    assert states == {"COMPLETED": 4 * len(whole) + 1, "TIMEOUT": 1, "CANCELLED": 2}, "two turns were worth nothing"
    assert len({row.job_id for row in rows if row.state == "COMPLETED"}) == len(whole) + 1
