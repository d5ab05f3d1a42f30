#!/usr/bin/env python3
"""How long llmb-run takes to respond, compared with a bare Python start, with thousands of runs on record.

    python benchmarks/startup.py [--runs 10000] [--rounds 21] [--instructions]

Creates an installation with a cluster_config.yaml and that many finished runs in a temporary folder, indexes it, then
alternates between each command and ``python -c pass``, so that a slow moment of the machine affects all of them. Prints
medians of wall time and of CPU time (which varies less on a busy machine) of whole processes, and the least CPU time,
which is closest to an idle machine's, beside the bare Python's; asserts nothing. With ``--instructions`` it counts
instructions instead, once each, under valgrind: the same on an idle and a busy machine.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from many_runs import make_runs
from timed import cpu_seconds

from llmb_common.runs.index.search import rebuild

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "python -S -c pass": ["-S", "-c", "pass"],
    "llmb-run --help": ["-m", "llmb_run", "--help"],
    "llmb-run submit --help": ["-m", "llmb_run", "submit", "--help"],
    "llmb-run list": ["-m", "llmb_run", "list"],
    "llmb-run jobs": ["-m", "llmb_run", "jobs"],
    "llmb-run show": ["-m", "llmb_run", "show"],
    "llmb-run plan": ["-m", "llmb_run", "plan", "-w", "llama3.1", "-s", "405b", "--dtype", "fp8", "--scale", "128"],
    "completion of a command": ["-m", "llmb_run"],
    "completion of an option": ["-m", "llmb_run"],
    "completion of a workload": ["-m", "llmb_run"],
    "completion of a size": ["-m", "llmb_run"],
    "completion of a run": ["-m", "llmb_run"],
}
SITE = """\
schema: 1
cluster_type: slurm
gpu_type: gb200
slurm: {account: bench, gpu_partition: batch}
environment: {NCCL_DEBUG: WARN}
workloads: [pretrain_grok1, pretrain_llama3.1, pretrain_mbridge]
"""
COMPLETION = {
    "completion of a command": {"COMP_WORDS": "llmb-run re", "COMP_CWORD": "1"},
    "completion of an option": {"COMP_WORDS": "llmb-run submit --", "COMP_CWORD": "2"},
    "completion of a workload": {"COMP_WORDS": "llmb-run single -w pre", "COMP_CWORD": "3"},
    "completion of a size": {"COMP_WORDS": "llmb-run single -w llama3.1 -s ", "COMP_CWORD": "5"},
    "completion of a run": {"COMP_WORDS": "llmb-run show ", "COMP_CWORD": "2"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--instructions", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="llmb-startup-") as folder:
        install = Path(folder)
        make_runs(install, options.runs)
        (install / "cluster_config.yaml").write_text(SITE)
        start = time.perf_counter()
        count = rebuild(install)
        print(f"{count} runs on record, indexed in {time.perf_counter() - start:.1f} s")
        # The index trusts a folder only if it was last changed a little before it was read: clocks are coarse.
        time.sleep(3)
        if options.instructions:
            print_instructions(install)
            return
        times = measure(install, options.rounds)
    bare = figures(times["python -c pass"])
    for name, values in times.items():
        wall, cpu, least = figures(values)
        print(
            f"{name:26} {wall:4.0f} ms wall, {cpu:4.0f} ms CPU, {cpu / bare[1]:4.1f} times the bare one's, "
            f"at least {least:4.0f}, {least / bare[2]:4.1f} times"
        )


def figures(values: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Median wall time, median and least CPU time, in ms."""
    wall, cpu = zip(*values, strict=True)
    return statistics.median(wall) * 1000, statistics.median(cpu) * 1000, min(cpu) * 1000


def environment_of(name: str, install: Path) -> dict[str, str]:
    """The variables of one command."""
    environment = {**os.environ, "LLMB_INSTALL": str(install)}
    if name in COMPLETION:
        environment |= {"_LLMB_RUN_COMPLETE": "bash_complete", **COMPLETION[name]}
    return environment


def print_instructions(install: Path) -> None:
    """Millions of instructions of each command, and how many more than the bare start has."""
    tool = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    bare = 0.0
    for name, arguments in COMMANDS.items():
        command = [*tool, sys.executable, *arguments]
        done = subprocess.run(command, env=environment_of(name, install), capture_output=True, text=True, check=True)
        (count,) = re.findall(r"I *refs: *([0-9,]+)", done.stderr)
        millions = int(count.replace(",", "")) / 1e6
        bare = bare or millions
        print(f"{name:26} {millions:5.0f} million instructions   over bare: {millions - bare:4.0f}")


def measure(install: Path, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Wall and CPU seconds of each round, by command."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for number in range(rounds + 1):
        for name, arguments in COMMANDS.items():
            environment = environment_of(name, install)
            start, used = time.perf_counter(), cpu_seconds()
            done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True)
            seconds = (time.perf_counter() - start, cpu_seconds() - used)
            if done.returncode != 0 or ("llmb_run" in arguments and not done.stdout):
                sys.exit(f"{name}: {done.stderr.decode()}")
            if number:  # the first round warms caches
                times[name].append(seconds)
    return times


if __name__ == "__main__":
    main()
