"""An acceptance campaign on a real Slurm, with simulated speeds, by a command that is killed on the way."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from llmb_common.runs.index.search import find_runs
from support.packs import sums_hold, unpack
from support.processes import wait_until
from support.run_site import RunSite
from support.slurm_cluster import SlurmCluster

SUITE = """\
name: speeds
prescreen:
  - {workload: pretrain_llama3.1, max_steps: 5, env: {STANDIN_STEPS: job}}
defaults:
  size: smoke
  scale: 1
  slurm: {mem: 100M, time: "5"}
tests:
  - workload: pretrain_llama3.1
    reference: {seconds: 0.11, source: slower than it is}
    env: {STANDIN_STEPS: job, STANDIN_MS: "103"}
  - workload: pretrain_nemotron4
    reference: {seconds: 0.09, source: faster than it is}
    env: {STANDIN_STEPS: job, STANDIN_MS: "106"}
"""


class Campaign:
    """``llmb-run accept`` as a process of its own."""

    def __init__(self, cluster: SlurmCluster, folder: Path, suite: str = SUITE) -> None:
        self.cluster = cluster
        self.install = RunSite(folder, "slurm").install
        self.suite = folder / "speeds.yaml"
        self.suite.write_text(suite)
        self.env = {**os.environ, **cluster.env, "LLMB_INSTALL": str(self.install)}
        self.before = frozenset(self.all_jobs())

    def command(self, *words: str | Path) -> list[str]:
        return [sys.executable, "-m", "llmb_run", *map(str, words)]

    def runs(self, prefix: str = "") -> list[str]:
        """The numbers of the runs that have a job, such as ``2.1``: the first run of the second workload.

        A kill before a job has its id is tested elsewhere: to be certain of what became of it takes 30 s.
        """
        keys = [row.key.rpartition(":")[2] for row in find_runs(self.install) if row.job_id is not None]
        return sorted(key for key in keys if key.startswith(prefix))

    def killed_at(self, prefix: str, count: int) -> None:
        """Start it, and kill it once there are ``count`` runs of a workload."""
        process = subprocess.Popen(
            self.command("accept", self.suite), env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_until(lambda: len(self.runs(prefix)) >= count, f"{count} runs {prefix}*", timeout=120)
        finally:
            process.kill()
            process.wait()

    def to_its_end(self) -> tuple[int, dict[str, Any]]:
        done = subprocess.run(
            self.command("accept", self.suite, "--json"), env=self.env, capture_output=True, text=True, timeout=600
        )
        return done.returncode, json.loads(done.stdout)["data"]

    def all_jobs(self) -> list[str]:
        """Every job that this cluster has had, also for other tests, with its run's name."""
        show = ["squeue", "--noheader", "--all", "--states=all", "--format=%j %i"]
        return self.cluster.run(show).stdout.splitlines()

    def jobs(self) -> list[str]:
        """Every job since the campaign began."""
        return [job for job in self.all_jobs() if job not in self.before]

    def shown(self, folder: Path) -> tuple[int, list[str]]:
        """What ``accept show`` finds: its exit status and problems."""
        command = self.command("accept", "show", folder, "--json")
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=600)
        return done.returncode, json.loads(done.stdout)["data"]["problems"]


@pytest.fixture
def campaign(slurm: SlurmCluster, tmp_path: Path) -> Campaign:
    return Campaign(slurm, tmp_path)


def test_a_campaign_that_is_killed_three_times(campaign: Campaign, tmp_path: Path) -> None:
    campaign.killed_at("1.", 1)
    campaign.killed_at("2.", 2)
    campaign.killed_at("3.", 2)
    status, data = campaign.to_its_end()
    assert (status, data["accepted"]) == (1, False)
    assert re.findall(r"\d+", data["why"]) == ["1", "2"]
    screened, three, six = data["workloads"]
    assert (screened["verdict"], three["verdict"], six["verdict"]) == ("pass", "pass", "fail")
    assert three["performance"] == pytest.approx(11 / 10.3, rel=1e-3)
    assert six["performance_high"] < 0.95 < three["performance_low"]

    counts = [len(item["runs"]) for item in data["workloads"]]
    assert campaign.runs() == sorted(f"{w}.{n}" for w, count in enumerate(counts, 1) for n in range(1, count + 1))
    assert len(campaign.jobs()) == sum(counts), "nothing was submitted twice"
    assert (counts, data["reruns"]) == ([1, 3, 3], [])

    assert campaign.shown(Path(data["folder"])) == (1, [])
    folder = unpack(Path(data["folder"]) / data["pack"], tmp_path / "unpacked")
    assert sums_hold(folder)
    assert campaign.shown(folder) == (1, [])
    log = next(file for file in sorted(folder.rglob("log-*.out")) if "(ms): 106" in file.read_text())
    log.write_text(log.read_text().replace("(ms): 106", "(ms): 99"))
    assert not sums_hold(folder)
    assert any("step_seconds: 0.106" in text for text in campaign.shown(folder)[1])


BAD = """\
name: bad
defaults: {size: smoke, scale: 2, repeats: 1, reruns: 1, slurm: {mem: 100M, time: "5"}}
tests:
  - workload: pretrain_llama3.1
    reference: {seconds: 0.2, source: slower than it is}
    env: {STANDIN_STEPS: job, STANDIN_MS: "100", STANDIN_BAD: gpu1, GPUS_PER_NODE: "1"}
"""


def test_a_rerun_does_not_go_back_to_the_node_that_has_failed(slurm: SlurmCluster, tmp_path: Path) -> None:
    """The first run gets the bad one, because the others are busy until its rerun is queued."""
    others = slurm.submit("--nodes=2", "--nodelist=gpu[3-4]", "--output=/dev/null", "--wrap", "sleep 600")
    slurm.wait_for_state(others, "RUNNING")
    campaign = Campaign(slurm, tmp_path, BAD)
    command = campaign.command("accept", campaign.suite, "--json")
    with subprocess.Popen(command, env=campaign.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: "1.2" in campaign.runs() or process.poll() is not None, "the rerun", timeout=120)
        slurm.run(["scancel", others])
        printed, _ = process.communicate(timeout=300)
    data = json.loads(printed)["data"]
    (rerun,) = data["reruns"]
    assert (rerun["run"], rerun["replaces"], rerun["bad_nodes"]) == (2, 1, ["gpu1"])
    assert (process.returncode, data["accepted"]) == (0, True)
    assert campaign.shown(Path(data["folder"])) == (0, [])


ONE = """\
name: one
defaults: {size: smoke, scale: 1, repeats: 2, reruns: 4, slurm: {mem: 100M, time: "5"}}
tests:
  - workload: pretrain_llama3.1
    reference: {seconds: 0.1, source: as fast as it is}
    env: {STANDIN_STEPS: job, STANDIN_MS: "100"}
"""


def test_where_one_day_cannot_tell_reruns_begin_on_the_next_days(slurm: SlurmCluster, tmp_path: Path) -> None:
    """A new site does not know what a day does to all of its runs; the third job waits for tomorrow."""
    campaign = Campaign(slurm, tmp_path, ONE)
    campaign.killed_at("1.", 3)
    # The queue says what waits: a record that was killed with its command has no state of the queue's yet.
    ours = {row.job_id for row in find_runs(campaign.install) if row.job_id}
    show = ["squeue", "--noheader", "--states=PENDING", "--format=%i %S"]
    begins = dict(line.split() for line in slurm.run(show).stdout.splitlines())
    days = [date.fromisoformat(begins[job][:10]) for job in begins if job in ours]
    assert days
    assert sorted(days) == [date.today() + timedelta(days=number) for number in range(1, len(days) + 1)]
    slurm.run(["scancel", *(ours & set(begins))])
