#!/usr/bin/env python3
"""Submissions per second on a real Slurm, against a bare loop of ``sbatch`` in the same run.

    python benchmarks/submit_rate.py [--jobs 1000] [--rounds 4]

Starts a cluster of its own (tests/support; needs root and Slurm). Jobs are held, so that none runs while the others
are submitted. Both take turns, a part of the jobs each round. Exit status 1 if the rate is below 0.8 of the bare one.
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

from llmb_common.errors import LLMBError  # noqa: E402
from llmb_common.submission import Job, submit_many  # noqa: E402
from support import slurm_config  # noqa: E402
from support.run_site import RECIPE, RunSite  # noqa: E402
from support.slurm_cluster import SlurmCluster  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description="Rate of submissions against bare sbatch.")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    part = options.jobs // options.rounds
    with tempfile.TemporaryDirectory() as folder, SlurmCluster(slurm_config.SMALL) as cluster:
        os.environ.update(cluster.env)
        site = RunSite(Path(folder), "slurm")
        plan = site.plan(ADDITIONAL_SLURM_PARAMS="hold")
        script = Path(folder) / "bare.sbatch"
        seconds = {"bare": 0.0, "ours": 0.0}
        for _ in range(options.rounds):
            begun = time.perf_counter()
            records = [result for _, result in submit_many([Job(plan, RECIPE)] * part)]
            seconds["ours"] += time.perf_counter() - begun
            failed = [result for result in records if isinstance(result, LLMBError)]
            if failed:
                raise SystemExit(f"{len(failed)} submissions failed, the first: {failed[0]}")
            first = records[0]
            assert not isinstance(first, LLMBError)
            script.write_text(first.paths.script.read_text())
            begun = time.perf_counter()
            for _ in range(part):
                subprocess.run(["sbatch", "--parsable", str(script)], check=True, capture_output=True)
            seconds["bare"] += time.perf_counter() - begun
        jobs = part * options.rounds
        queued = int(cluster.run(["bash", "-c", "squeue -h | wc -l"]).stdout)
        rate = {name: jobs / value for name, value in seconds.items()}
        cluster.run(["scancel", "--user", cluster.layout.user])
    print(f"{jobs} each, {queued} jobs in the queue")
    print(f"bare sbatch loop  {rate['bare']:6.1f} jobs/s")
    print(f"submit_many       {rate['ours']:6.1f} jobs/s   ratio {rate['ours'] / rate['bare']:.2f}")
    return int(rate["ours"] < 0.8 * rate["bare"])


if __name__ == "__main__":
    raise SystemExit(main())
