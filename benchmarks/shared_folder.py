#!/usr/bin/env python3
"""What ranks ask of the run's folder, which is on a file system that all nodes share: system calls, by file.

    python benchmarks/shared_folder.py ENGINE_PYTHON [--ranks 1]

ENGINE_PYTHON is an installation's ``venvs/engine-cpu/bin/python``. Trains Llama 3.1's smoke size with ``launch.sh``,
each rank under strace, and prints how often a rank opens and looks at each path (the mean over ranks).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
_TRACED = """#!/bin/bash
if [[ $3 == llmb_train ]]; then exec strace -f -qq -e trace=%file -o "$TRACES/$$" {engine} "$@"; fi
exec {engine} "$@"
"""
_CALL = re.compile(r'^\d+ +(\w+)\((?:AT_FDCWD, )?"([^"]*)"')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", help="the engine's Python")
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        traces = folder / "traces"
        traces.mkdir()
        run = train(folder, traces, options.engine, options.ranks)
        calls = Counter(call for file in traces.iterdir() for call in calls_of(file, run))
    for (kind, path), times in sorted(calls.items(), key=lambda item: -item[1]):
        print(f"{times / options.ranks:8.1f} {kind:5} {path}")


def train(folder: Path, traces: Path, engine: str, ranks: int) -> Path:
    """The folder of the run."""
    traced = folder / "python"
    traced.write_text(_TRACED.format(engine=engine), encoding="utf-8")
    traced.chmod(0o755)
    (folder / "cluster_config.yaml").write_text(f"schema: 1\nengine: {{python: {traced}}}\n", encoding="utf-8")
    environment = {
        "PATH": os.environ["PATH"],
        "LLMB_PYTHON": sys.executable,
        "LLMB_INSTALL": str(folder),
        "CLUSTER_TYPE": "local",
        "MODEL_SIZE": "smoke",
        "MAX_STEPS": "5",
        "JOB_TOTAL_GPUS": str(ranks),
        "TRACES": str(traces),
    }
    done = subprocess.run(
        ["./launch.sh"], cwd=REPOSITORY / "llama3.1", env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return Path(done.stdout.split(": ", 1)[1].strip()).parents[1]


def calls_of(trace: Path, run: Path) -> list[tuple[str, str]]:
    """``open`` or ``stat``, and the path within the run's folder, of each call in the trace of a rank."""
    found = []
    for line in trace.read_text(encoding="utf-8", errors="replace").splitlines():
        call = _CALL.match(line)
        if call is not None and (call[2] == str(run) or call[2].startswith(f"{run}/")):
            kind = "open" if call[1] in ("open", "openat") else "stat"
            found.append((kind, os.path.relpath(call[2], run)))
    return found


if __name__ == "__main__":
    main()
