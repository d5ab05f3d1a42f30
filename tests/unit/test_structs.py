"""Records can be read by several threads at once, even for the first time in a process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from llmb_common.planning.job_plan import plan_as_dict
from support.runs import PUBLISHED, ROOT, plan_for

# Threads switch every few instructions: without the lock, about one in three of these processes crashes.
FOUR_THREADS = """
import sys, threading
sys.path[:0] = sys.argv[1:2]
from llmb_common.planning.job_plan import JobPlan
from llmb_common.structs import from_json
content = sys.stdin.buffer.read()
begin = threading.Barrier(4)
read = []
def work():
    begin.wait()
    read.append(from_json(content, JobPlan))
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
sys.exit(len(read) != 4)
"""
PROCESSES = 20


def test_four_threads_read_their_first_record(tmp_path: Path) -> None:
    plan = json.dumps(plan_as_dict(plan_for(tmp_path, **PUBLISHED)))
    command = [sys.executable, "-c", FOUR_THREADS, str(ROOT / "common")]
    ends = [subprocess.run(command, input=plan, text=True, check=False).returncode for _ in range(PROCESSES)]
    assert ends == [0] * PROCESSES


def test_nobody_converts_without_the_lock() -> None:
    sources = [path for folder in ("common", "cli", "installer") for path in (ROOT / folder).rglob("*.py")]
    users = {path.name for path in sources if re.search(r"msgspec\.(convert|json\.decode)\(", path.read_text())}
    assert users == {"structs.py"}
