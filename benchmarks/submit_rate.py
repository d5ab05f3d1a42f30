#!/usr/bin/env python3
"""Submissions per second on a real Slurm, compared with a bare ``sbatch`` loop in the same run.

    python benchmarks/submit_rate.py [--jobs 1000] [--rounds 4]

Repeats of one job, as ``submit --repeats`` submits them, and the bare loop. Starts its own cluster (tests/support;
needs root and Slurm). Jobs are held so that none starts while others are being submitted. The two alternate, with a
share of the jobs in each round. Exit status 1 if the rate of repeats is below 0.8 times the bare one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from llmb_common.base.errors import LLMBError  # noqa: E402
from llmb_common.runs.record import RunRecord  # noqa: E402
from llmb_common.submission.jobs import JobToSubmit  # noqa: E402
from llmb_common.submission.many import submit_many  # noqa: E402
from support import slurm_config  # noqa: E402
from support.run_site import RECIPE, RunSite  # noqa: E402
from support.slurm_cluster import SlurmCluster  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description="Submission rate compared with bare sbatch.")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    part = options.jobs // options.rounds
    with tempfile.TemporaryDirectory() as folder, SlurmCluster(slurm_config.SMALL) as cluster:
        os.environ.update(cluster.env)
        site = RunSite(Path(folder), "slurm")
        plan = site.plan(ADDITIONAL_SLURM_PARAMS="hold")
        script = Path(folder) / "bare.sbatch"
        seconds = {"bare": 0.0, "repeats": 0.0}
        for _ in range(options.rounds):
            spent, first = submit_all([JobToSubmit(plan, RECIPE)] * part)
            seconds["repeats"] += spent
            script.write_text(first.paths.script.read_text())
            begun = time.perf_counter()
            for _ in range(part):
                subprocess.run(["sbatch", "--parsable", str(script)], check=True, capture_output=True)
            seconds["bare"] += time.perf_counter() - begun
        queued = int(cluster.run(["bash", "-c", "squeue -h | wc -l"]).stdout)
        cluster.run(["scancel", "--user", cluster.layout.user])
    jobs = part * options.rounds
    rate = {name: jobs / value for name, value in seconds.items()}
    print(f"{jobs} each, {queued} jobs in the queue")
    for name, value in rate.items():
        print(f"{name:9}  {value:7.1f} jobs/s   ratio {value / rate['bare']:.2f}")
    return int(rate["repeats"] < 0.8 * rate["bare"])


def submit_all(jobs: list[JobToSubmit]) -> tuple[float, RunRecord]:
    """Submit ``jobs``; returns the seconds it took and the first record."""
    begun = time.perf_counter()
    results = [result for _, result in submit_many(jobs)]
    spent = time.perf_counter() - begun
    failed = [result for result in results if isinstance(result, LLMBError)]
    if failed:
        raise SystemExit(f"{len(failed)} submissions failed, the first: {failed[0]}")
    first = results[0]
    assert isinstance(first, RunRecord)
    return spent, first


if __name__ == "__main__":
    raise SystemExit(main())
