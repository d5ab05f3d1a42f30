"""What each test costs: seconds on the clock and of CPU time, its child processes included.

    PYTHONPATH=tests LLMB_TEST_COSTS=costs.jsonl tests/run tests/training -p support.costs
    python tests/support/costs.py costs.jsonl

Each test adds a line to the file. The second command adds them up by file and lists the most expensive tests. Compare
CPU times: they depend little on what else the machine does. Processes that have left the tree (Slurm's daemons and
their jobs) are not counted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """CPU time of this process and of all that it has started, alive or not."""
    spent: dict[int, tuple[int, float]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        spent[int(folder.name)] = (int(fields[1]), sum(map(int, fields[11:15])) / _TICKS)
    mine = {os.getpid()}
    while True:
        more = {pid for pid, (parent, _) in spent.items() if parent in mine} - mine
        if not more:
            return sum(spent[pid][1] for pid in mine)
        mine |= more


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    start, before = time.time(), cpu_seconds()
    result = yield
    line = {"test": item.nodeid, "worker": os.environ.get("PYTEST_XDIST_WORKER", ""), "start": start}
    line |= {"seconds": time.time() - start, "cpu": cpu_seconds() - before}
    with Path(os.environ["LLMB_TEST_COSTS"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return result


def main(path: str) -> None:
    lines = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    files: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for line in lines:
        for name in (line["test"].partition("::")[0], "all"):
            files[name] = [a + b for a, b in zip(files[name], (1, line["cpu"], line["seconds"]), strict=True)]
    for name, (count, cpu, seconds) in sorted(files.items(), key=lambda item: -item[1][1]):
        print(f"{cpu:8.1f} s CPU {seconds:8.1f} s  {count:5} tests  {name}")
    for line in sorted(lines, key=lambda line: -line["cpu"])[:60]:
        print(f"{line['cpu']:8.1f} s CPU {line['seconds']:8.1f} s  {line['test']}")


if __name__ == "__main__":
    main(sys.argv[1])
