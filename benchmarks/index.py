#!/usr/bin/env python3
"""How fast the index finds runs among 10,000: whole processes, compared with a bare Python start.

    python benchmarks/index.py [--runs 10000] [--live 50] [--rounds 15]

Creates the run folders in a temporary installation, with nothing but a ``run.json`` in each. Also prints how long a
rebuild takes. Exit status 1 if any query except the one for all rows takes more than 0.1 s over a bare start. For whole
commands, see startup.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from llmb_common.runs.index.search import rebuild  # noqa: E402
from llmb_common.runs.record import update_record  # noqa: E402
from llmb_common.submission.single import create_run  # noqa: E402
from support.run_site import RunSite  # noqa: E402

EXPERIMENTS = 100
LIMIT = 0.1


def main() -> int:
    parser = argparse.ArgumentParser(description="Time to find runs among many.")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--live", type=int, default=50, help="how many of them have not ended")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        site = RunSite(Path(folder), "local")
        make_runs(site, Path(folder), options.runs, options.live)
        begun = time.perf_counter()
        rebuild(site.install)
        print(f"rebuild of {options.runs} runs: {time.perf_counter() - begun:.2f} s")
        return measure(site, options.rounds)


def make_runs(site: RunSite, folder: Path, count: int, live: int) -> None:
    code = folder / "llmb_train"
    code.mkdir()
    record = create_run(site.plan(), code, {})
    record = update_record(record.paths.folder, lambda found: found.with_state("RUNNING").with_state("COMPLETED"))
    value = record.as_dict()
    experiment = record.paths.experiment_name
    for number in range(count - 1):
        name = f"{experiment}_{number % EXPERIMENTS}"
        value |= {"run_id": f"{number:08x}", "experiment_name": name, "name": f"{name}_{number}", "job_id": str(number)}
        state = "RUNNING" if number < live else "COMPLETED"
        value["states"][-1]["state"] = state
        run = record.paths.experiments / name / f"{name}_{number}"
        run.mkdir(parents=True)
        (run / "run.json").write_text(json.dumps(value, indent=2))


def measure(site: RunSite, rounds: int) -> int:
    find = "import sys; from pathlib import Path; from llmb_common.runs.index.runs import RunFilter; "
    find += "from llmb_common.runs.index.search import find_runs; "
    find += "find_runs(Path(sys.argv[1]), RunFilter("
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "newest 100": [sys.executable, "-c", find + "limit=100))", str(site.install)],
        "live ones": [sys.executable, "-c", find + "live=True))", str(site.install)],
        "all": [sys.executable, "-c", find + "))", str(site.install)],
    }
    environment = {**os.environ, "LLMB_INSTALL": str(site.install)}
    times: dict[str, list[float]] = {name: [] for name in commands}
    for round_number in range(rounds + 1):
        for name, command in commands.items():
            begun = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, env=environment)
            if round_number:  # the first round warms caches
                times[name].append(time.perf_counter() - begun)
    bare = statistics.median(times["python -c pass"])
    slow = False
    for name, values in times.items():
        median = statistics.median(values)
        slow = slow or (name != "all" and median - bare > LIMIT)
        print(f"{name:16} median {median:.3f} s  {median - bare:+.3f} s over bare")
    return int(slow)


if __name__ == "__main__":
    raise SystemExit(main())
