#!/usr/bin/env python3
"""What it costs to make an environment of an installation, beside pip: CPU and wall time, and their ratio.

    python benchmarks/environments.py [tool | engine-cpu | engine-cpu-0.6]

One environment is made by the installer's own code (uv, from the lock with hashes, byte code included, and imported at
the end), one by ``venv`` and pip from the same lock; both with empty caches of packages. Needs the package index, and
ensurepip; writes to a temporary folder, which ``TMPDIR`` moves.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from timed import cpu_seconds

from llmb_install.parts.engine import KINDS, cpu_engine, tool_environment
from llmb_install.parts.environment import Environment
from llmb_install.parts.environment_build import HASHED
from llmb_install.working.reporter import Reporter

CLONE = Path(__file__).resolve().parent.parent
ENGINES = {engine.name: release for release, engine in KINDS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lock", nargs="?", choices=["tool", *ENGINES], default="tool")
    lock = parser.parse_args().lock
    with tempfile.TemporaryDirectory(prefix="llmb-environments-") as name:
        folder = Path(name)
        made = tool_environment(CLONE, folder) if lock == "tool" else cpu_engine(CLONE, folder, release=ENGINES[lock])
        with Reporter(folder / "logs") as reporter:
            ours = _measured(f"{lock}, the installer", lambda: made.ensure(reporter))
        pip = _measured(f"{lock}, venv and pip", lambda: _with_pip(made, folder / "pip"))
    print(f"{lock}: {ours[0] / pip[0]:.2f} of pip's CPU time, {ours[1] / pip[1]:.2f} of its wall time")


def _measured(what: str, work: Callable[[], object]) -> tuple[float, float]:
    """CPU and wall seconds."""
    start, used = time.perf_counter(), cpu_seconds()
    work()
    wall, cpu = time.perf_counter() - start, cpu_seconds() - used
    print(f"{what}: {cpu:.1f} s of CPU, {wall:.1f} s", flush=True)
    return cpu, wall


def _with_pip(environment: Environment, folder: Path) -> None:
    subprocess.run([environment.python, "-m", "venv", folder], check=True)
    argv = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *HASHED, "-r", environment.lock]
    subprocess.run(argv, check=True, env={**os.environ, "PIP_NO_CACHE_DIR": "1"}, stdout=sys.stderr)


if __name__ == "__main__":
    main()
