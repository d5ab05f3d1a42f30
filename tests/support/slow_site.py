"""A site of 18 runs of which one node slows some: ``python -m support.slow_site FOLDER`` makes one to look at.

Llama 3.1 70B on 64 H100: 7 runs as fast as published, 5 slow ones, which all had ``SLOW_NODE``, 2 that ran out of
memory. 8B on 8 H100: 4 runs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from llmb_common.runs.finding import with_job_facts
from llmb_common.runs.record import RunRecord
from support.gpu_nodes import smi_answer, snapshot, write_node
from support.report_site import DAY, START, dated, noisy_log, put_node
from support.runs import make_run

SLOW_NODE = "rack07-node03"
LARGE = {"GPU_TYPE": "h100", "MODEL_SIZE": "70b", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "64"}
SMALL = {"GPU_TYPE": "h100", "MODEL_SIZE": "8b", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "8"}
HOT = {"thermal": "Active", "sm": "1200 MHz", "temperature": "89 C"}
"""Of the slow node's GPU 3, under load."""


def hosts_of(number: int, *, slow: bool) -> list[str]:
    """Eight of sixteen healthy nodes, other ones for each run; the slow node in place of the last."""
    names = [f"rack{6 + (number + at) % 2:02}-node{10 + (3 * number + 2 * at) % 16:02}" for at in range(8)]
    return [*names[:7], SLOW_NODE] if slow else names


def make_slow_site(install: Path) -> dict[str, RunRecord]:
    """The runs by what they are an example of; the newest last."""
    runs: dict[str, RunRecord] = {}
    order = "fsffsfsffsfs"  # fast, slow
    for number, kind in enumerate(order):
        slow = kind == "s"
        log = noisy_log((10.87 if slow else 9.99) + 0.01 * (number % 3), seed=number, work=7353.0)
        hosts = hosts_of(number, slow=slow)
        record = make_run(install, variables=LARGE, log=log, job_id=str(100 + number))
        for host in hosts:
            if host == SLOW_NODE:
                hot = snapshot(1100.0, smi_answer(changes={3: HOT}))
                write_node(record.paths.folder, host, load=hot)
            else:
                put_node(record, host)
        runs[f"{'slow' if slow else 'fast'} {number}"] = with_job_facts(dated(record, START + number * DAY))
    for number in range(2):
        log = noisy_log(10.0, seed=70 + number, work=7353.0, printed=17)
        log += "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total\n"
        record = make_run(install, variables=LARGE, state="FAILED", log=log, job_id=str(200 + number))
        runs[f"failed {number}"] = dated(record, START + (12 + number) * DAY)
    for number in range(4):
        log = noisy_log(9.17 + 0.02 * number, seed=90 + number, work=7591.0)
        record = make_run(install, variables=SMALL, log=log, job_id=str(300 + number))
        runs[f"8b {number}"] = dated(record, START + (14 + number) * DAY, [f"rack06-node{10 + number}"])
    return runs


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    print(json.dumps({name: run.paths.run_id for name, run in make_slow_site(folder).items()}, indent=1))
