#!/usr/bin/env python3
"""How long commands that look at thousands of runs take, beside ``grep -rc`` over their folders and a bare Python.

    python benchmarks/results.py [--runs 10000] [--live 200] [--rounds 3]

Makes an installation with that many finished runs in a temporary folder, with records, jobs, events and logs, and one
with live runs beside it, whose scheduler (a script in place of squeue) knows them as running. The first
``results`` reads every log, the later ones what it has kept. Prints medians of wall and CPU time of whole processes.
Exit status 1 if a later ``results`` takes more than 2 s.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from many_runs import make_runs
from timed import cpu_seconds

from llmb_common.index.search import find_runs, rebuild

LIMIT = 2.0
COMMANDS = {
    "results, later": ["results"],
    "results --format csv": ["results", "--format", "csv"],
    "results --group": ["results", "--group"],
    "show": ["show"],
    "jobs": ["jobs"],
    "report --markdown": ["report", "--markdown", os.devnull],
}
"""Those that this llmb-run does not have are left out."""

SQUEUE = """#!/bin/bash
for word; do case $word in --jobs=*) ids=${word#--jobs=} ;; esac; done
IFS=,
now=$EPOCHSECONDS
for id in $ids; do
  printf '%s\\037RUNNING\\037%s\\037%s\\0370\\037gpu1\\037renamed\\037None\\037\\n' "$id" "$now" "$now"
done
"""
"""It does not tell scripts: the time of submission proves the jobs."""


def timed(command: list[str], **variables: str) -> tuple[float, float]:
    """Wall and CPU seconds of one process."""
    start, used = time.perf_counter(), cpu_seconds()
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    if done.returncode not in (0, 1) or "Traceback" in done.stderr:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return time.perf_counter() - start, cpu_seconds() - used


def report(name: str, times: list[tuple[float, float]], bare: float, grep: float) -> float:
    """Print the medians; the wall time."""
    wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"{name:22} {wall:7.2f} s wall  {cpu:7.2f} s CPU  {cpu / bare:7.1f} x bare  {cpu / grep:6.1f} x grep -rc")
    return wall


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--live", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    tool = [sys.executable, "-m", "llmb_run"]
    with tempfile.TemporaryDirectory(prefix="llmb-results-") as name:
        install, live = Path(name) / "ended", Path(name) / "live"
        for folder in (install, live):
            folder.mkdir()
        make_runs(install, options.runs)
        make_runs(live, options.live, "RUNNING")
        rebuild(install), rebuild(live)
        newest = find_runs(install)[0].run_id
        time.sleep(3)  # files that changed a moment ago are read again
        python = [sys.executable, "-c", "pass"]
        grep = ["grep", "-rc", "elapsed time per iteration", str(install / "workloads")]
        timed(grep)
        bare = [timed(python) for _ in range(5)]
        greps = [timed(grep) for _ in range(options.rounds)]
        by_bare, by_grep = (statistics.median(cpu for _, cpu in times) for times in (bare, greps))
        report("python -c pass", bare, by_bare, by_grep)
        report("grep -rc", greps, by_bare, by_grep)
        variables = {"LLMB_INSTALL": str(install)}
        report("results, the first", [timed([*tool, "results"], **variables)], by_bare, by_grep)
        later = 0.0
        for title, words in COMMANDS.items():
            if subprocess.run([*tool, words[0], "--help"], capture_output=True).returncode:
                continue
            command = [*tool, *words, *([newest] if words[0] == "show" else [])]
            wall = report(title, [timed(command, **variables) for _ in range(options.rounds)], by_bare, by_grep)
            later = wall if title == "results, later" else later
        programs = Path(name) / "bin"
        programs.mkdir()
        (programs / "squeue").write_text(SQUEUE)
        (programs / "squeue").chmod(0o755)
        variables = {"LLMB_INSTALL": str(live), "PATH": f"{programs}:{os.environ['PATH']}"}
        times = [timed([*tool, "jobs"], **variables) for _ in range(options.rounds)]
        report(f"jobs, {options.live} live", times, by_bare, by_grep)
    return 0 if later <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
