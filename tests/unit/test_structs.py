"""Records can be read by several threads at once, even for the first time in a process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from llmb_common.planning.job_plan import plan_as_dict
from support.runs import PUBLISHED, ROOT, plan_for

PROCESSES = 20

# Each fork is a process that has converted nothing yet. Threads switch every few instructions: without the lock, about
# one in three of these processes crashes.
FOUR_THREADS = f"""
import os, sys, threading
sys.path[:0] = sys.argv[1:2]
import msgspec.json
from llmb_common.planning.job_plan import JobPlan
from llmb_common.base.structs import from_json
content = sys.stdin.buffer.read()
sys.setswitchinterval(1e-6)
def read_in_threads():
    begin = threading.Barrier(4)
    read = []
    def work():
        begin.wait()
        read.append(from_json(content, JobPlan))
    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    os._exit(len(read) != 4)
for _ in range({PROCESSES}):
    pid = os.fork()
    if pid == 0:
        read_in_threads()
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_four_threads_read_their_first_record(tmp_path: Path) -> None:
    plan = json.dumps(plan_as_dict(plan_for(tmp_path, **PUBLISHED)))
    command = [sys.executable, "-c", FOUR_THREADS, str(ROOT / "common")]
    ends = subprocess.run(command, input=plan, text=True, check=True, stdout=subprocess.PIPE).stdout.split()
    assert ends == ["0"] * PROCESSES


def test_nobody_converts_without_the_lock() -> None:
    sources = [path for folder in ("common", "cli", "installer") for path in (ROOT / folder).rglob("*.py")]
    users = {path.name for path in sources if re.search(r"msgspec\.(convert|json\.decode)\(", path.read_text())}
    assert users == {"structs.py"}
