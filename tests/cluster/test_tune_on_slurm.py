"""A tuning on a real Slurm, with made-up speeds, by a command that is killed twice on the way."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from cluster.test_accept_on_slurm import Campaign
from llmb_common.runs.index.search import find_runs
from llmb_common.runs.record import load_record
from support.processes import wait_until
from support.slurm_cluster import SlurmCluster

JOB = ("tune", "-w", "pretrain_llama3.1", "-s", "smoke", "--scale", "1", "--slurm-arg", "mem=100M", "--time-limit", "5")
SPEEDS = ("--env", "STANDIN_STEPS=job", "--env", "STANDIN_MS=100", "--only", "--vary", "STANDIN_MS=112,90,101")


def test_a_tuning_that_is_killed_twice(slurm: SlurmCluster, tmp_path: Path) -> None:
    site = Campaign(slurm, tmp_path)
    command = site.command(*JOB, *SPEEDS)
    for count in (2, 4):
        process = subprocess.Popen(command, env=site.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda count=count: len(site.runs()) >= count, f"{count} runs", timeout=120)
        finally:
            process.kill()
            process.wait()
    done = subprocess.run([*command, "--json"], env=site.env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)["data"]
    assert (data["ended"], data["winner"]["changes"]) == ("found", {"STANDIN_MS": "90"}), done.stderr
    assert data["gain"] == pytest.approx(1 / 0.9 - 1)  # made-up times have no noise
    assert 0.05 < data["gain_low"] <= data["gain_high"]

    records = [load_record(row.folder) for row in find_runs(site.install)]
    assert len({record.submission.key for record in records}) == len(records) == len(data["trials"])
    whole = [record for record in records if record.plan.max_steps == 50]
    assert len(whole) == 12
    assert {record.submission.in_series for record in whole} == {True}
    assert len({record.job_id for record in whole}) == 3, "winner and base take turns in each allocation"
    assert data["proof"]["answer"] == "faster"
