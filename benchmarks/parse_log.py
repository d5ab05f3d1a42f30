#!/usr/bin/env python3
"""How long the log parser takes on a huge log, finished and unfinished, compared with ``grep -c`` on the same file.

    python benchmarks/parse_log.py [--gigabytes 1] [--rounds 9] [--beside CHECKOUT]

Writes logs of 50 iterations among NCCL trace lines (the same bytes every time) to a temporary folder: one of a run with
50 steps, the same with a bar or a progress bar on each trace line, one of a run with 60 steps, which ended early, and
one whose last 90 % are trace lines, as of a run that hung. Reads each once to fill the page cache, then takes turns
with grep, and with the parser of another checkout. CPU time of whole processes. Exit status 1 if the parser takes more
than 1.5 times as long as grep.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from many_runs import RECORD
from timed import cpu_seconds

PARSER = "common/parse_train_timing_mbridge.sh"
ITERATIONS = 50
LIMIT = 1.5

USUAL = {"seconds": 5.7415, "milliseconds": 5741.5, "tflops": 1636.8, "loss": 6.958428}

LOGS = {
    "finished": (50, 1.0, ""),
    "a bar on each line": (50, 1.0, "| "),
    "a progress bar on each line": (50, 1.0, " 12%|█▏        | 6/50 [00:34<04:05,  5.58s/it]"),
    "unfinished": (60, 1.0, ""),
    "hung": (60, 0.1, ""),
}
"""Steps that the log promises, the share of trace lines before the last record, what each trace line begins with."""


def write_log(path: Path, size: int, total: int, share: float, more: str) -> None:
    """``ITERATIONS`` records of ``total`` with ``share`` of ``size`` bytes of trace lines spread between them, and the
    rest behind them."""
    source = random.Random(20261120)
    lines = []
    for _ in range(20_000):
        rank = source.randrange(128)
        operation = source.choice(["AllReduce", "AllGather", "ReduceScatter", "Broadcast"])
        lines.append(
            f"{more}node{rank // 8:03d}:{1000 + rank}:{2000 + rank} [{rank % 8}] NCCL INFO {operation}: opCount "
            f"{source.randrange(4000):x} sendbuff 0x7ff{source.randrange(1 << 36):09x} recvbuff "
            f"0x7ff{source.randrange(1 << 36):09x} count {source.randrange(1 << 24)} datatype {source.randrange(10)} "
            f"op 0 root 0 comm 0x5555{source.randrange(1 << 32):08x} [nranks=128] stream "
            f"0x5555{source.randrange(1 << 32):08x}\n"
        )
    block = "".join(lines).encode()
    repeats = max(1, round(share * size / ITERATIONS / len(block)))
    with path.open("wb") as file:
        for index in range(1, ITERATIONS + 1):
            for _ in range(repeats):
                file.write(block)
            file.write(RECORD.format(**USUAL, index=index, total=total, samples=64 * index).encode())
        while file.tell() < size:
            file.write(block)


def seconds(command: list[str | Path]) -> float:
    """CPU time of the command, whose status does not matter: a log may be that of a failed run."""
    before = cpu_seconds()
    subprocess.run(command, check=False, capture_output=True, env=os.environ | {"LLMB_PYTHON": sys.executable})
    return cpu_seconds() - before


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gigabytes", type=float, default=1.0, help="size of each log (default: 1)")
    options.add_argument("--rounds", type=int, default=9, help="runs of each (default: 9)")
    options.add_argument("--beside", type=Path, help="another checkout, whose parser is run beside this one's")
    chosen = options.parse_args()
    roots = [Path(__file__).parents[1], *([chosen.beside] if chosen.beside else [])]
    worst = 0.0
    for name, (total, share, more) in LOGS.items():
        with tempfile.TemporaryDirectory(prefix="llmb-benchmark-") as folder:
            log = Path(folder) / "log-benchmark.out"
            write_log(log, round(chosen.gigabytes * 1e9), total, share, more)
            commands: list[list[str | Path]] = [["grep", "-c", "elapsed time per iteration", log]]
            commands += [[root / PARSER, folder] for root in roots]
            times = [[seconds(command) for command in commands] for _ in range(chosen.rounds + 1)][1:]
        by_grep, *by_parser = (statistics.median(column) for column in zip(*times, strict=True))
        told = "  ".join(f"{parser:.3f} s ({parser / by_grep:.2f})" for parser in by_parser)
        print(f"{name:27}  grep -c {by_grep:.3f} s  parser {told}")
        worst = max(worst, by_parser[0] / by_grep)
    print(f"in brackets: times grep's CPU time (limit {LIMIT})")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
