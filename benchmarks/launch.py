#!/usr/bin/env python3
"""How long planning a job takes, in ``launch.sh`` and llmb-run, and what the catalogue of functions adds to it.

Whole processes, alternating so that a slow moment of the machine affects all of them. ``launch.sh`` finds its Python as
in an installation. Prints the median of the wall time and the least CPU time, which hardly depends on what else runs,
beside those of a bare Python; asserts nothing. Where a line says "without", the recipes are those of a folder that has
all but the one with a catalogue. ``python benchmarks/launch.py [rounds]``
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timed import cpu_seconds

ROOT = Path(__file__).resolve().parent.parent
SITE = {"LLMB_INSTALL": "/x", "VIRTUAL_ENV": sys.prefix, "SBATCH_ACCOUNT": "a", "SBATCH_PARTITION": "p"}
JOBS = {
    "llama3.1": {"GPU_TYPE": "gb200", "JOB_TOTAL_GPUS": "256"},
    "llama4": {"GPU_TYPE": "gb200", "JOB_TOTAL_GPUS": "256"},
    "grok1": {"GPU_TYPE": "gb200", "JOB_TOTAL_GPUS": "256"},
    "nemotron4": {"GPU_TYPE": "h100", "JOB_TOTAL_GPUS": "256"},
    "mbridge": {"GPU_TYPE": "gb300", "JOB_TOTAL_GPUS": "256"},
}
CATALOGUE = "mbridge"


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with tempfile.TemporaryDirectory(prefix="llmb-launch-") as folder:
        for recipe in JOBS:
            if recipe != CATALOGUE:
                (Path(folder) / recipe).symlink_to(ROOT / recipe)
        times = measure(commands(folder), rounds)
    bare = statistics.median(wall for wall, _ in times["python -c pass"])
    least_of_bare = min(cpu for _, cpu in times["python -c pass"])
    for name, values in times.items():
        wall = statistics.median(wall for wall, _ in values)
        least = min(cpu for _, cpu in values)
        print(
            f"{name:42} median {wall:.3f} s wall ({wall / bare:4.1f} x bare), "
            f"least {least * 1000:4.0f} ms CPU ({least / least_of_bare:4.1f} x bare)"
        )


def commands(without: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Name -> command and variables. ``without``: a folder of recipes without the catalogue."""
    llmb_run = [sys.executable, "-m", "llmb_run"]
    single = [*llmb_run, "single", "-w", "llama3.1", "--dry-run"]
    here = {"CLUSTER_TYPE": "slurm"}
    return {
        "python -c pass": ([sys.executable, "-c", "pass"], {}),
        **{
            f"DRY_RUN={kind} {recipe}/launch.sh": ([str(ROOT / recipe / "launch.sh")], {**job, "DRY_RUN": kind})
            for recipe, job in JOBS.items()
            for kind in ("true", "json")
        },
        "llmb-run single --dry-run, without": (single, {**here, **JOBS["llama3.1"], "LLMB_REPO": without}),
        "llmb-run single --dry-run": (single, {**here, **JOBS["llama3.1"]}),
        "llmb-run single -w mbridge --dry-run": (
            [*llmb_run, "single", "-w", CATALOGUE, "--dry-run"],
            {**here, **JOBS[CATALOGUE]},
        ),
        "llmb-run list, without": ([*llmb_run, "list"], {"LLMB_REPO": without}),
        "llmb-run list": ([*llmb_run, "list"], {}),
        "llmb-run list -w mbridge -s kimi": ([*llmb_run, "list", "-w", CATALOGUE, "-s", "kimi"], {}),
    }


def measure(asked: dict[str, tuple[list[str], dict[str, str]]], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Wall and CPU seconds of each round, by name."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in asked}
    for number in range(rounds + 1):
        for name, (command, variables) in asked.items():
            environment = {**os.environ, **SITE, **variables}
            start, used = time.perf_counter(), cpu_seconds()
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if number:  # the first round warms caches
                times[name].append((time.perf_counter() - start, cpu_seconds() - used))
    return times


if __name__ == "__main__":
    main()
