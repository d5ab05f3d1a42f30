#!/usr/bin/env python3
"""How long the log parser takes on a huge log, compared with ``grep -c`` on the same file.

    python benchmarks/parse_log.py [--gigabytes 1] [--rounds 9]

Writes a log of 50 iterations among NCCL trace lines (the same bytes every time) to a temporary folder, reads it once to
fill the page cache, then alternates between the two. Exit status 1 if the parser takes more than 1.5 times as long as
grep.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from many_runs import RECORD

PARSER = Path(__file__).parents[1] / "common" / "parse_train_timing_mbridge.sh"
ITERATIONS = 50
LIMIT = 1.5

USUAL = {"seconds": 5.7415, "milliseconds": 5741.5, "tflops": 1636.8, "loss": 6.958428, "total": ITERATIONS}


def write_log(path: Path, size: int) -> None:
    """``ITERATIONS`` records with ``size`` bytes of trace lines spread between them."""
    source = random.Random(20261120)
    lines = []
    for _ in range(20_000):
        rank = source.randrange(128)
        operation = source.choice(["AllReduce", "AllGather", "ReduceScatter", "Broadcast"])
        lines.append(
            f"node{rank // 8:03d}:{1000 + rank}:{2000 + rank} [{rank % 8}] NCCL INFO {operation}: opCount "
            f"{source.randrange(4000):x} sendbuff 0x7ff{source.randrange(1 << 36):09x} recvbuff "
            f"0x7ff{source.randrange(1 << 36):09x} count {source.randrange(1 << 24)} datatype {source.randrange(10)} "
            f"op 0 root 0 comm 0x5555{source.randrange(1 << 32):08x} [nranks=128] stream "
            f"0x5555{source.randrange(1 << 32):08x}\n"
        )
    block = "".join(lines).encode()
    repeats = max(1, round(size / ITERATIONS / len(block)))
    with path.open("wb") as file:
        for index in range(1, ITERATIONS + 1):
            for _ in range(repeats):
                file.write(block)
            file.write(RECORD.format(**USUAL, index=index, samples=64 * index).encode())


def seconds(command: list[str | Path]) -> float:
    environment = os.environ | {"LLMB_PYTHON": sys.executable}
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return time.perf_counter() - start


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gigabytes", type=float, default=1.0, help="size of the log (default: 1)")
    options.add_argument("--rounds", type=int, default=9, help="runs of each (default: 9)")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="llmb-benchmark-") as folder:
        log = Path(folder) / "log-benchmark.out"
        write_log(log, round(chosen.gigabytes * 1e9))
        grep: list[str | Path] = ["grep", "-c", "elapsed time per iteration", log]
        parser: list[str | Path] = [PARSER, folder]
        seconds(grep), seconds(parser)
        times = [(seconds(grep), seconds(parser)) for _ in range(chosen.rounds)]
        size = log.stat().st_size
    by_grep, by_parser = (statistics.median(column) for column in zip(*times, strict=True))
    ratio = by_parser / by_grep
    print(f"log       {size / 1e9:.2f} GB, {ITERATIONS} iterations, page cache warm, median of {chosen.rounds}")
    print(f"grep -c   {by_grep:.3f} s")
    print(f"parser    {by_parser:.3f} s")
    print(f"ratio     {ratio:.2f} (limit {LIMIT})")
    return 0 if ratio <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
