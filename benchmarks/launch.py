#!/usr/bin/env python3
"""How long ``DRY_RUN=true ./launch.sh`` and ``DRY_RUN=json ./launch.sh`` take, compared with a bare Python start.

Whole processes, wall time, alternating so that a slow moment of the machine affects all of them. Prints medians and
ratios; asserts nothing. ``python benchmarks/launch.py [runs]``
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JOB = {"LLMB_INSTALL": "/x", "SBATCH_ACCOUNT": "a", "SBATCH_PARTITION": "p", "JOB_TOTAL_GPUS": "256"}
COMMANDS: dict[str, tuple[list[str], dict[str, str]]] = {
    "python -c pass": ([sys.executable, "-c", "pass"], {}),
    "DRY_RUN=true ./launch.sh": (["./launch.sh"], {**JOB, "GPU_TYPE": "gb200", "DRY_RUN": "true"}),
    "DRY_RUN=json ./launch.sh": (["./launch.sh"], {**JOB, "GPU_TYPE": "gb200", "DRY_RUN": "json"}),
}


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for run in range(runs + 1):
        for name, (command, variables) in COMMANDS.items():
            environment = {**os.environ, "LLMB_PYTHON": sys.executable, **variables}
            start = time.perf_counter()
            subprocess.run(command, cwd=ROOT / "llama3.1", env=environment, check=True, stdout=subprocess.DEVNULL)
            if run:  # the first round warms caches
                times[name].append(time.perf_counter() - start)
    bare = statistics.median(times["python -c pass"])
    for name, values in times.items():
        median = statistics.median(values)
        spread = f"min {min(values):.3f}  max {max(values):.3f}"
        print(f"{name:26} median {median:.3f} s  {spread}  {median / bare:4.1f} x bare")


if __name__ == "__main__":
    main()
