#!/usr/bin/env python3
"""What it costs to make an environment of an installation with pip and with uv: CPU and wall time, cold and warm cache.

    python benchmarks/environments.py [tool | engine-cpu | engine-cpu-0.6] [--with pip uv]

Each environment is made by the installer's own code (from the lock with hashes, byte code included, and imported at the
end) twice: with an empty cache of packages, then with what that has left. uv's cache ends with each environment, so it
is always cold. Needs the package index; writes to a temporary folder, which ``TMPDIR`` moves.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from timed import cpu_seconds

from llmb_install.parts import uv
from llmb_install.parts.engine import KINDS, cpu_engine
from llmb_install.parts.environments import Environment
from llmb_install.parts.tool import tool_environment
from llmb_install.working.reporter import Reporter

CLONE = Path(__file__).resolve().parent.parent
ENGINES = {engine.name: release for release, engine in KINDS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lock", nargs="?", choices=["tool", *ENGINES], default="tool")
    parser.add_argument("--with", nargs="+", choices=["pip", "uv"], default=["pip", "uv"], dest="programs")
    options = parser.parse_args()
    find = uv.find
    for program in options.programs:
        uv.find = find if program == "uv" else lambda environment: None
        with tempfile.TemporaryDirectory(prefix="llmb-environments-") as folder:
            os.environ["PIP_CACHE_DIR"] = f"{folder}/pip"
            for cache in ("cold", "warm") if program == "pip" else ("cold",):
                made = _environment(options.lock, program, Path(folder) / cache)
                start, used = time.perf_counter(), cpu_seconds()
                with Reporter(Path(folder) / "logs") as reporter:
                    made.ensure(reporter)
                wall, cpu = time.perf_counter() - start, cpu_seconds() - used
                print(f"{options.lock}, {program}, {cache} cache: {cpu:.1f} s of CPU, {wall:.1f} s", flush=True)
                if program == "uv":
                    _refuse_pip(Path(folder) / "logs")
                shutil.rmtree(Path(folder) / cache)


def _environment(lock: str, program: str, folder: Path) -> Environment:
    if lock != "tool":
        return cpu_engine(CLONE, folder, release=ENGINES[lock])
    tool = tool_environment(CLONE, folder)
    return tool if program == "uv" else replace(tool, uv_lock=None)


def _refuse_pip(logs: Path) -> None:
    """The installer falls back to pip where uv fails: that would be a time of both."""
    for log in logs.iterdir():
        if "error:" in (text := log.read_text()):
            print("uv failed somewhere, and pip did it:", *text.splitlines()[-5:], sep="\n  ")


if __name__ == "__main__":
    main()
