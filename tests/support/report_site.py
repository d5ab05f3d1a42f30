"""An installation with a past, for tests of reports and for looking at one: ``python -m support.report_site FOLDER``.

Two containers, repeats, four scales, a spike, a slow node, failures, and names that a page must not execute.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from llmb_common.base.gpus import GPUS
from llmb_common.runs.finding import with_job_facts
from llmb_common.runs.record import RunRecord, State
from support.gpu_nodes import smi_answer, snapshot, write_node
from support.iteration_logs import mbridge_line
from support.runs import make_run

HOSTILE = "<img src=x onerror=alert(1)>&lt;</script><script>alert(2)</script>"
DAY = 86_400.0
START = 1_790_000_000.0  # 2026-09-21


def noisy_log(
    seconds: float,
    *,
    seed: int,
    work: float = 10338.0,
    steps: int = 50,
    spikes: Iterable[int] = (),
    printed: int | None = None,
) -> str:
    """A log whose steps scatter by 1 %, slow at first, with a falling loss; ``work`` is TFLOP of one GPU in a step."""
    noise = random.Random(seed)
    lines = []
    for index in range(1, (printed or steps) + 1):
        warm = 1 + 1.5 * math.exp(-index / 1.5)
        factor = warm * (1 + noise.gauss(0, 0.01)) * (4 if index in set(spikes) else 1)
        loss = 11.8 - 4.2 * (1 - math.exp(-index / 18)) + noise.gauss(0, 0.02)
        noise.gauss(0, 1)  # one number more for each step, as when pages got their figures
        line = mbridge_line(
            index,
            steps,
            milliseconds=f"{1000 * seconds * factor:.1f}",
            tflops=f"{work / seconds / factor:.1f}",
            loss=f"{loss:.6E}",
        )
        lines.append(line)
    return "".join(lines)


def put_node(record: RunRecord, host: str, **changes: object) -> None:
    """A healthy node with the GPUs that the run's plan is for."""
    plan = record.plan
    products = {number: {"product": GPUS[plan.gpu_type].products[0]} for number in range(plan.gpus_per_node)}
    answer = smi_answer(plan.gpus_per_node, changes=products)
    looks = {name: snapshot(at, answer) for name, at in (("before", 1000.0), ("load", 1100.0), ("after", 2000.0))}
    write_node(record.paths.folder, host, **looks, **changes)


def dated(record: RunRecord, when: float, hosts: Iterable[str] = ()) -> RunRecord:
    """The run as of ``when``, with the accounts of its nodes, which its record keeps as of any run that has ended."""
    for host in hosts:
        put_node(record, host)
    record = replace(
        record, states=tuple(State(item.state, when + at, item.detail) for at, item in enumerate(record.states))
    )
    if hosts:
        record = with_job_facts(record)
    record.save()
    return record


def make_site(install: Path) -> dict[str, RunRecord]:
    """The runs by what they are an example of; the newest last."""
    large = {"GPU_TYPE": "gb200", "MODEL_SIZE": "405b", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "128"}
    old = {**large, "RUN_CONF_IMAGE": "nvcr.io#nvidia/nemo:25.11.01"}
    runs: dict[str, RunRecord] = {}
    day = START
    for number in range(3):
        day += DAY
        log = noisy_log(6.25 + 0.04 * number, seed=number)
        runs[f"old {number}"] = dated(make_run(install, variables=old, log=log), day)
    for number in range(5):
        day += DAY
        hosts = [f"node{host:03}" for host in (1, 2, 3, 4 if number != 4 else 9)]
        seconds = 5.70 + 0.05 * (number % 3) + (0.45 if number == 4 else 0)
        log = noisy_log(seconds, seed=10 + number, spikes=(38,) if number == 2 else ())
        runs[f"new {number}"] = dated(make_run(install, variables=large, log=log), day, hosts)
    for gpus, seconds in ((8, 12.2), (16, 12.4), (32, 12.9), (64, 13.6)):
        day += DAY / 4
        small = {"GPU_TYPE": "h100", "MODEL_SIZE": "8b", "DTYPE": "bf16", "JOB_TOTAL_GPUS": str(gpus)}
        small["CONFIG_VARIANT"] = "nemo2"
        log = noisy_log(seconds, seed=gpus, work=7591.0)
        runs[f"8b {gpus}"] = dated(make_run(install, variables=small, log=log), day, [f"h{gpus:03}"])
    day += DAY
    slow = {"GPU_TYPE": "h100", "MODEL_SIZE": "70b", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "64"}
    for number in range(3):
        log = noisy_log(12.1 + 0.05 * number, seed=80 + number, work=7353.0)
        runs[f"slow {number}"] = dated(make_run(install, variables=slow, log=log), day + number, ["h001"])
    broken = make_run(install, variables=large, state="FAILED", log=noisy_log(5.7, seed=99, printed=17))
    runs["failed"] = dated(broken, day + DAY)
    runs["running"] = dated(
        make_run(install, variables=large, state="COMPLETED", log=noisy_log(5.7, seed=98, printed=50)), day + 2 * DAY
    )
    hostile = make_run(install, variables=large, log=noisy_log(5.72, seed=97))
    put_node(hostile, "node001", machine={"kernel": HOSTILE, "cpu": HOSTILE, "cpus": 8, "adapters": []})
    hostile = replace(hostile, manifest={**hostile.manifest, "llmb": HOSTILE})
    runs["hostile"] = dated(hostile, day + 3 * DAY)
    return runs


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    print(json.dumps({name: run.paths.run_id for name, run in make_site(folder).items()}, indent=1))
