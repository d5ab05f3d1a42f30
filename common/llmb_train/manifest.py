"""What the job itself sees of its machine, printed once for the run's record."""

from __future__ import annotations

import json
import platform
import socket

from llmb_train.engine import Engine
from llmb_train.evidence.machine import DRIVER_FILE, driver_version
from llmb_train.job import AnyJob
from llmb_train.versions import package_version

PREFIX = "LLMB manifest: "
NOTICE_PREFIX = "LLMB notice: "


def collect(job: AnyJob, engine: Engine) -> dict[str, str | int | None]:
    """Versions and names; null where there is nothing to report."""
    import torch

    gpu = engine.device == "cuda"
    return {
        "run_id": job.run_id,
        "hostname": socket.gethostname(),
        "device": engine.device,
        "gpu": torch.cuda.get_device_name(0) if gpu else None,
        "world_size": job.world_size,
        "layers": "transformer_engine" if engine.transformer_engine else "local",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "megatron_bridge": package_version("megatron-bridge"),
        "megatron_core": package_version("megatron-core"),
        "transformer_engine": package_version("transformer-engine") if engine.transformer_engine else None,
        "cuda": torch.version.cuda if gpu else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if gpu else None,
        "driver": driver_version(DRIVER_FILE) if gpu else None,
    }


def print_header(job: AnyJob, engine: Engine, notices: list[str]) -> None:
    """One ``LLMB manifest: {json}`` line and one line per notice, on stdout."""
    print(PREFIX + json.dumps(collect(job, engine), sort_keys=True), flush=True)
    for notice in notices:
        print(NOTICE_PREFIX + notice, flush=True)
