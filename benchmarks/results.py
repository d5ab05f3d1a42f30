#!/usr/bin/env python3
"""How long commands that look at thousands of runs take, beside ``grep -rc`` over their folders and a bare Python.

    python benchmarks/results.py [--runs 10000] [--live 200] [--rounds 3] [--round-trip 0.25] [--beside CHECKOUT]

Makes an installation with that many finished runs in a temporary folder, with records, jobs, events and logs, and one
with live runs beside it, whose scheduler (a script in place of squeue) knows them as running. The first
``results`` reads every log, the later ones what it has kept. Prints medians of wall and CPU time of whole processes,
and the most memory that a later ``results`` takes. In the one "from a file server" each look at a file waits for
``--round-trip`` milliseconds, as on a network file system whose client has nothing in its cache. ``--beside`` takes
turns with another checkout, which gets installations of its own. Exit status 1 if a later ``results`` takes more than
1 s of CPU time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from many_runs import ROOT, make_runs
from timed import cpu_seconds

from llmb_common.runs.index.search import find_runs

LIMIT = 1.0
COMMANDS = {
    "results, later": ["results"],
    "results --format csv": ["results", "--format", "csv"],
    "results --group": ["results", "--group"],
    "show": ["show"],
    "jobs": ["jobs"],
    "report --markdown": ["report", "--markdown", os.devnull],
}

SQUEUE = """#!/bin/bash
for word; do case $word in --jobs=*) ids=${word#--jobs=} ;; esac; done
IFS=,
now=$EPOCHSECONDS
for id in $ids; do
  printf '%s\\037RUNNING\\037%s\\037%s\\0370\\037gpu1\\037renamed\\037None\\037\\n' "$id" "$now" "$now"
done
"""
"""It does not tell scripts: the time of submission proves the jobs."""


FILE_SERVER = """
import os, time

def away(look):
    def wait_and_look(*words, **more):
        time.sleep({seconds})
        return look(*words, **more)
    return wait_and_look

os.stat, os.lstat, os.scandir = map(away, (os.stat, os.lstat, os.scandir))
"""
"""A ``sitecustomize`` that makes each look at a file or folder wait; imports do not."""


MEMORY = """
import runpy, sys
try:
    runpy.run_module("llmb_run", run_name="__main__")
finally:
    with open("/proc/self/status") as status:
        print(*(line for line in status if line.startswith("VmHWM")), file=sys.stderr)
"""
"""Its own look at itself: what a parent is told has the parent's memory in it, too."""


def timed(command: list[str], **variables: str) -> tuple[float, float]:
    """Wall and CPU seconds of one process."""
    start, used = time.perf_counter(), cpu_seconds()
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    if done.returncode not in (0, 1) or "Traceback" in done.stderr:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return time.perf_counter() - start, cpu_seconds() - used


def report(name: str, times: list[tuple[float, float]], bare: float, grep: float) -> float:
    """Print the medians; the CPU time."""
    wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"{name:30} {wall:7.2f} s wall  {cpu:7.2f} s CPU  {cpu / bare:7.1f} x bare  {cpu / grep:6.1f} x grep -rc")
    return cpu


class Checkout:
    """A checkout with an installation of finished runs and one of live ones."""

    def __init__(self, root: Path, folder: Path, runs: int, live: int) -> None:
        self.name = "" if root == ROOT else ", beside"
        self.path = os.pathsep.join(str(root / part) for part in ("common", "cli", "installer"))
        self.ended, self.live = folder / "ended", folder / "live"
        for install, count, state in ((self.ended, runs, "COMPLETED"), (self.live, live, "RUNNING")):
            install.mkdir(parents=True)
            make_runs(install, count, state)

    def timed(self, words: list[str], install: Path, **variables: str) -> tuple[float, float]:
        """Wall and CPU seconds of its llmb-run."""
        return timed([*TOOL, *words], **{"LLMB_INSTALL": str(install), "PYTHONPATH": self.path, **variables})

    def memory(self, words: list[str]) -> str:
        """The most memory of its llmb-run."""
        env = {**os.environ, "LLMB_INSTALL": str(self.ended), "PYTHONPATH": self.path}
        done = subprocess.run([sys.executable, "-c", MEMORY, *words], env=env, capture_output=True, text=True)
        return " ".join(done.stderr.split()[-2:])


TOOL = [sys.executable, "-m", "llmb_run"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--live", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--round-trip", type=float, default=0.25, metavar="MS", help="to the file server")
    parser.add_argument("--beside", type=Path, help="another checkout, which takes turns with this one")
    options = parser.parse_args()
    roots = [ROOT, *([options.beside.resolve()] if options.beside else [])]
    with tempfile.TemporaryDirectory(prefix="llmb-results-") as name:
        sides = [Checkout(root, Path(name) / f"{at}", options.runs, options.live) for at, root in enumerate(roots)]
        time.sleep(3)  # files that changed a moment ago are read again
        for side in sides:
            side.timed(["jobs"], side.ended), side.timed(["jobs", "--help"], side.live)
        python = [sys.executable, "-c", "pass"]
        grep = ["grep", "-rc", "elapsed time per iteration", str(sides[0].ended / "workloads")]
        timed(grep)
        bare = [timed(python) for _ in range(5)]
        greps = [timed(grep) for _ in range(options.rounds)]
        by_bare, by_grep = (statistics.median(cpu for _, cpu in times) for times in (bare, greps))
        report("python -c pass", bare, by_bare, by_grep)
        report("grep -rc", greps, by_bare, by_grep)
        for side in sides:
            report(f"results, the first{side.name}", [side.timed(["results"], side.ended)], by_bare, by_grep)

        def rows(title: str, run: Callable[[Checkout], tuple[float, float]]) -> float:
            """Print a row for each checkout, which take turns to ``run``; the CPU time of the first."""
            rounds = [[run(side) for side in sides] for _ in range(options.rounds)]
            used = [
                report(f"{title}{side.name}", list(times), by_bare, by_grep)
                for side, times in zip(sides, zip(*rounds, strict=True), strict=True)
            ]
            return used[0]

        later = 0.0
        for title, words in COMMANDS.items():
            if words[0] == "show":
                words = [*words, find_runs(sides[0].ended)[0].run_id]
            cpu = rows(title, lambda side, words=words: side.timed(words, side.ended))
            later = cpu if title == "results, later" else later
        away = Path(name) / "away"
        away.mkdir()
        (away / "sitecustomize.py").write_text(FILE_SERVER.format(seconds=options.round_trip / 1000))
        rows(
            "results from a file server",
            lambda side: side.timed(["results"], side.ended, PYTHONPATH=f"{away}:{side.path}"),
        )
        programs = Path(name) / "bin"
        programs.mkdir()
        (programs / "squeue").write_text(SQUEUE)
        (programs / "squeue").chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"
        rows(f"jobs, {options.live} live", lambda side: side.timed(["jobs"], side.live, PATH=path))
        for side in sides:
            print(f"memory of results, later{side.name}: {side.memory(['results'])}")
    return 0 if later <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
