#!/usr/bin/env python3
"""What a rank asks of file systems, in system calls: of the run's folder, which all nodes share, by file.

    python benchmarks/shared_folder.py ENGINE_PYTHON [--ranks 1]

ENGINE_PYTHON is an installation's ``venvs/engine-cpu/bin/python``. Trains Llama 3.1's smoke size with ``launch.sh``,
each rank under strace, and prints how often a rank opens, looks at and starts files in each place, and each path of the
run's folder (the mean over ranks). In a container, the engine and the system are files of its image.
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
_KINDS = {"open": "open", "openat": "open", "execve": "start"}
_MISSING = "ENOENT"


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
        places = {str(run): "the run's folder", str(Path(options.engine).parents[1]): "the engine"}
        calls = [call for file in traces.iterdir() for call in calls_of(file)]
    print("     all  of what is not there")
    by_place: dict[tuple[str, str], list[bool]] = {}
    for kind, path, missing in calls:
        by_place.setdefault((place_of(path, places), kind), []).append(missing)
    for (place, kind), found in sorted(by_place.items()):
        print(f"{len(found) / options.ranks:8.1f} {sum(found) / options.ranks:8.1f}  {kind:5} {place}")
    print()
    shared = Counter((kind, path) for kind, path, _ in calls if place_of(path, {str(run): "run"}) == "run")
    for (kind, path), times in sorted(shared.items(), key=lambda item: -item[1]):
        print(f"{times / options.ranks:8.1f} {kind:5} {os.path.relpath(path, run)}")


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


def calls_of(trace: Path) -> list[tuple[str, str, bool]]:
    """``open``, ``stat`` or ``start``, the path, and whether there is nothing, of each call in the trace of a rank."""
    found = []
    for line in trace.read_text(encoding="utf-8", errors="replace").splitlines():
        call = _CALL.match(line)
        if call is not None:
            found.append((_KINDS.get(call[1], "stat"), call[2], _MISSING in line))
    return found


def place_of(path: str, places: dict[str, str]) -> str:
    """The name of that one of ``places`` that the path is in; else its first folder, or ``relative``."""
    for folder, name in places.items():
        if path == folder or path.startswith(f"{folder}/"):
            return name
    return f"/{path.split('/')[1]}" if path.startswith("/") else "relative"


if __name__ == "__main__":
    main()
