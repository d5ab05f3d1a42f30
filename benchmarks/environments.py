#!/usr/bin/env python3
"""What it costs to make an environment of an installation with pip and with uv: CPU and wall time, cold and warm cache.

    python benchmarks/environments.py [tool | engine-cpu | engine-cpu-0.6] [--kinds venv uv]

Each environment is made by the installer's own code (from the lock with hashes, byte code included, and imported at the
end), as ``--env-type venv`` and ``--env-type uv`` make it, twice: with an empty cache of packages, then with what that
has left. ``uv`` is taken from the PATH, or from beside the Python that runs this. Needs the package index; writes to a
temporary folder, which ``TMPDIR`` moves.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from timed import cpu_seconds

from llmb_install.parts.engine import KINDS, cpu_engine
from llmb_install.parts.environments import Environment
from llmb_install.parts.tool import tool_environment
from llmb_install.working.reporter import Reporter

CLONE = Path(__file__).resolve().parent.parent
ENGINES = {engine.name: release for release, engine in KINDS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lock", nargs="?", choices=["tool", *ENGINES], default="tool")
    parser.add_argument("--kinds", nargs="+", choices=["venv", "uv"], default=["venv", "uv"])
    options = parser.parse_args()
    os.environ["PATH"] += f":{Path(sys.executable).parent}"
    for kind in options.kinds:
        with tempfile.TemporaryDirectory(prefix="llmb-environments-") as folder:
            caches = {"PIP_CACHE_DIR": f"{folder}/pip", "UV_CACHE_DIR": f"{folder}/uv"}
            os.environ.update(caches)
            for cache in ("cold", "warm"):
                made = _environment(options.lock, kind, Path(folder) / cache)
                start, used = time.perf_counter(), cpu_seconds()
                with Reporter(Path(folder) / "logs") as reporter:
                    made.ensure(reporter)
                wall, cpu = time.perf_counter() - start, cpu_seconds() - used
                print(f"{options.lock}, {kind}, {cache} cache: {cpu:.1f} s of CPU, {wall:.1f} s", flush=True)
                if kind == "uv":
                    _refuse_pip(Path(folder) / "logs")
                shutil.rmtree(Path(folder) / cache)


def _environment(lock: str, kind: str, folder: Path) -> Environment:
    if lock == "tool":
        return replace(tool_environment(CLONE, folder), kind=kind)
    return cpu_engine(CLONE, folder, kind, release=ENGINES[lock])


def _refuse_pip(logs: Path) -> None:
    """The installer falls back to pip where uv fails: that would be a time of both."""
    for log in logs.iterdir():
        if "error:" in (text := log.read_text()):
            print("uv failed somewhere, and pip did it:", *text.splitlines()[-5:], sep="\n  ")


if __name__ == "__main__":
    main()
