#!/usr/bin/env python3
"""What a CPU rank takes to import Megatron, as llmb_train does it, compared with leaving the garbage collector on.

    python benchmarks/rank_start.py ENGINE_PYTHON [--rounds 5]

ENGINE_PYTHON is an installation's ``venvs/engine-cpu/bin/python``. Alternates between both and a bare ``import torch``,
and prints medians of the CPU time of whole processes, with warm page cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
from pathlib import Path

from timed import cpu_seconds

COMMON = Path(__file__).resolve().parent.parent / "common"
_IMPORT = """
from llmb_train import cpu
cpu.install()
import megatron.bridge.training.pretrain, llmb_train.config, llmb_train.__main__
"""
PROGRAMS = {
    "import torch": "import torch",
    "collector on": _IMPORT,
    "collector off, as llmb_train": f"import gc\ngc.disable()\n{_IMPORT}gc.freeze()\ngc.enable()\n",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", help="the engine's Python")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for measured in range(options.rounds + 1):
        for name, program in PROGRAMS.items():
            before = cpu_seconds()
            argv = [options.engine, "-c", program]
            # Megatron prints on both about packages that only GPUs need.
            subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(COMMON)}, check=True, capture_output=True)
            if measured:  # the first round reads the files
                times[name].append(cpu_seconds() - before)
    medians = {name: statistics.median(each) for name, each in times.items()}
    for name, median in medians.items():
        print(f"{name}: {median:.2f} s of CPU, {median / medians['collector on']:.2f} times the second line")


if __name__ == "__main__":
    main()
