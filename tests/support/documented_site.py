"""The installation in which the pages' ``console`` blocks run: ``python -m support.documented_site FOLDER``.

A cluster of H100 with five runs of Llama 3.1 8B on five days, five in another image, and one that ran out of memory.
"""

from __future__ import annotations

import sys
from pathlib import Path

from support.report_site import DAY, START, dated, noisy_log
from support.runs import make_run

SITE = """\
schema: 1
cluster_name: Example
cluster_type: slurm
gpu_type: h100
slurm: {account: bench, gpu_partition: gpu}
releases: {"0.7.0": {image: /lustre/images/ours.sqsh}}
"""
WORK = 6576.0
"""TFLOP of one H100 in a step of Llama 3.1 8B, as its published logs have it."""
JOB = {"GPU_TYPE": "h100", "MODEL_SIZE": "8b", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "8"}
OTHERS = {
    "grok1": (7.39, 8548.0, {"GPU_TYPE": "gb200", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "256"}),
    "llama4": (7.781, 7136.0, {"GPU_TYPE": "gb200", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "128"}),
    "nemotron4": (2.67, 1540.0, {"GPU_TYPE": "h100", "DTYPE": "bf16", "MODEL_SIZE": "15b", "JOB_TOTAL_GPUS": "64"}),
}
"""A run of each of the other recipes, for their parsers: published step time, TFLOP of a GPU in a step, job."""
OTHER_IMAGE = {"LLMB_ENGINE": "0.6"}


def make_documented_site(install: Path) -> None:
    """Put the runs into the installation ``install``; the newest is the one that failed."""
    install.mkdir(parents=True, exist_ok=True)
    (install / "cluster_config.yaml").write_text(SITE)
    for recipe, (seconds, work, variables) in OTHERS.items():
        make_run(install, recipe, variables=variables, log=noisy_log(seconds, seed=60, work=work), job_id="48400")
    for number in range(10):
        newer = number >= 5
        seconds = 9.05 + 0.03 * (number % 5) + (0.3 if newer else 0)
        log = noisy_log(seconds, seed=number, work=WORK)
        record = make_run(install, variables=JOB | (OTHER_IMAGE if newer else {}), log=log, job_id=f"{48213 + number}")
        dated(record, START + number * DAY, [f"gpu{number + 1:03}"])
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"
    failed = noisy_log(9.1, seed=50, work=WORK, printed=17) + f"[rank3]: {text}\n"
    dated(make_run(install, variables=JOB, state="FAILED", log=failed, job_id="48300"), START + 11 * DAY, ["gpu007"])


if __name__ == "__main__":
    make_documented_site(Path(sys.argv[1]))
