#!/usr/bin/env python3
"""A tuning by real training on the CPU: TP x MBS of a smoke size on two ranks, its command killed twice on the way.

    python benchmarks/tuning.py ENGINE [RANKS]

ENGINE is the Python of a CPU engine (LLMB_INSTALL/venvs/engine-cpu/bin/python). Prints what was tried, the answer and
what it took; fails where a run was repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timed import cpu_seconds

from llmb_common.runs.index.search import find_runs
from llmb_common.runs.record import load_record

CLONE = Path(__file__).resolve().parent.parent
KILLED_AT = (2, 6)
"""Runs on record."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("ranks", nargs="?", default="2")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="llmb-tuning-") as name:
        folder = Path(name)
        (folder / "cluster_config.yaml").write_text(
            f"schema: 1\ncluster_type: local\ngpu_type: cpu\nrepo: {CLONE}\nengine: {{python: {options.engine}}}\n"
        )
        words = ["-w", "pretrain_llama3.1", "-s", "smoke", "--scale", options.ranks, "--max-steps", "44"]
        varied = ["--only", "--vary", "mbs=1,2", *(["--vary", "tp=1,2"] if options.ranks != "1" else [])]
        _tune(folder, [sys.executable, "-m", "llmb_run", "tune", *words, *varied])


def _tune(folder: Path, command: list[str]) -> None:
    environment = {**os.environ, "LLMB_INSTALL": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    start, used = time.perf_counter(), cpu_seconds()
    for count in KILLED_AT:
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while len(find_runs(folder)) < count:
            if process.poll() is not None:
                sys.exit(f"it ended before {count} runs")
            time.sleep(0.5)
        process.kill()
        process.wait()
        print(f"killed with {count} runs on record", flush=True)
    done = subprocess.run([*command, "--json"], env=environment, check=True, stdout=subprocess.PIPE, text=True)
    wall, cpu = time.perf_counter() - start, cpu_seconds() - used
    data = json.loads(done.stdout)["data"]
    keys = [load_record(row.folder).submission.key for row in find_runs(folder)]
    assert len(set(keys)) == len(keys) == len(data["trials"]), "a run was repeated"
    for arm in data["arms"]:
        print(arm["title"], arm["runs"], arm["ratio"], arm["what"])
    print([trial["outcome"] for trial in data["trials"]])
    print(f"{data['conclusion']}\n{len(keys)} runs, {cpu:.0f} s of CPU, {wall:.0f} s")


if __name__ == "__main__":
    main()
