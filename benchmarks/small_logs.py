#!/usr/bin/env python3
"""How long the log parser takes on thousands of small logs, compared with ``grep -rc`` over the same folder.

    python benchmarks/small_logs.py [--logs 5000] [--rounds 5]

Writes logs of 50 iterations, one for each run folder (21 KB each, without records), reads them once to fill the page
cache, then alternates between the two. CPU time, user and system, of whole processes. Exit status 1 if the parser takes
more than 15 times as long as grep.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from many_runs import log_text
from timed import cpu_seconds

PARSER = Path(__file__).parents[1] / "common" / "parse_train_timing_mbridge.sh"
LIMIT = 15.0


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--logs", type=int, default=5000)
    options.add_argument("--rounds", type=int, default=5)
    chosen = options.parse_args()
    environment = os.environ | {"LLMB_PYTHON": sys.executable}

    def run(*command: str | Path) -> float:
        before = cpu_seconds()
        subprocess.run(command, check=True, capture_output=True, env=environment)
        return cpu_seconds() - before

    with tempfile.TemporaryDirectory(prefix="llmb-benchmark-") as name:
        for number in range(chosen.logs):  # as every launcher of these recipes makes them
            own = Path(name, "small", f"small_{1_700_000_000 + number}", "small")
            own.mkdir(parents=True)
            (own / "log-small.out").write_text(log_text(6.0, 1200.0, number))
        grep: list[str | Path] = ["grep", "-rc", "elapsed time per iteration", name]
        parser: list[str | Path] = [PARSER, name]
        run(*grep), run(*parser)
        times = [(run(*grep), run(*parser)) for _ in range(chosen.rounds)]
    by_grep, by_parser = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"logs      {chosen.logs}, page cache warm, CPU time, median of {chosen.rounds}")
    print(f"grep -rc  {by_grep:.3f} s")
    print(f"parser    {by_parser:.3f} s")
    print(f"ratio     {by_parser / by_grep:.1f} (limit {LIMIT:g})")
    return 0 if by_parser <= LIMIT * by_grep else 1


if __name__ == "__main__":
    sys.exit(main())
