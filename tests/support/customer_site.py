"""An installation as a supplier hands its report to a customer: ``python -m support.customer_site FOLDER``.

Twelve repeats of one configuration over ten nodes, one of them slow, failures among them, a second configuration, and
names that are long and must not be executed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from llmb_common.runs.finding import with_job_facts
from support.gpu_nodes import smi_answer, snapshot, write_node
from support.report_site import DAY, HOSTILE, START, dated, noisy_log
from support.runs import make_run

LARGE = {"GPU_TYPE": "h100", "MODEL_SIZE": "70b", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "64"}
SMALL = {"GPU_TYPE": "h100", "MODEL_SIZE": "8b", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "8"}
SLOW = "dgx-h100-rack07-node03.cluster-frankfurt-2.example-customer.internal"
NODES = tuple(
    f"dgx-h100-rack{7 - at // 4:02}-node{at % 4:02}.cluster-frankfurt-2.example-customer.internal" for at in range(24)
)


REPEATED = "llama3.1 70b mbridge fp8 (cs) on 64 h100"
OPERATOR = "Jane Doe, Example Systems GmbH <jane.doe@example.com>"


def make_customer_site(install: Path) -> None:
    """Put the runs into the installation ``install``."""
    install.mkdir(parents=True, exist_ok=True)
    (install / "cluster_config.yaml").write_text(
        f"schema: 1\ncluster_name: Frankfurt 2 (DGX SuperPOD)\noperator: {OPERATOR}\n"
    )
    for number in range(12):
        hosts = [NODES[(number * 7 + at) % len(NODES)] for at in range(8)]
        if number == 2:
            hosts[0] = SLOW
        seconds = 9.95 + 0.02 * (number % 5) + (0.9 if SLOW in hosts else 0)
        log = noisy_log(seconds, seed=number, work=7353.0, spikes=(38, 41) if number == 4 else ())
        record = make_run(install, variables=LARGE, log=log, job_id=f"48{number:05}")
        record = dated(record, START + number * DAY / 6, hosts)
        if SLOW in hosts:
            write_node(record.paths.folder, SLOW, load=snapshot(1100.0, smi_answer(changes={3: {"thermal": "Active"}})))
            with_job_facts(record).save()
    for number, text in enumerate(("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB", HOSTILE)):
        log = noisy_log(10.9, seed=50 + number, printed=17) + f"[rank3]: {text}\n"
        dated(make_run(install, variables=LARGE, state="FAILED", log=log), START + 3 * DAY + number * DAY, NODES[:8])
    for number in range(4):
        log = noisy_log(9.12 + 0.05 * number, seed=70 + number, work=5600.0)
        dated(make_run(install, variables=SMALL, log=log), START + 5 * DAY + number * DAY / 3, [NODES[8 + number]])


if __name__ == "__main__":
    make_customer_site(Path(sys.argv[1]))
