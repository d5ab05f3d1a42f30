"""Lets a machine without GPUs build and validate the configuration of a GPU job. For the engine's Python.

Nothing of Transformer Engine runs; only its version is claimed, for the version gates of megatron-core.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

CLAIMED_TRANSFORMER_ENGINE = {"0.3": "2.12.0", "0.6": "2.16.0"}
"""The versions in NVIDIA's containers for these releases of Megatron-Bridge; of 26.08 the one in 26.06, before it."""


def prepare(device: str) -> Any:
    """Emulate the device (``cpu``, or ``meta`` for models without memory) and import Megatron.

    Returns the ``llmb_train`` engine of a GPU with Transformer Engine.
    """
    warnings.simplefilter("ignore")
    os.environ["MEGATRON_SUPPRESS_FUSION_WARNINGS"] = "1"
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("LOCAL_RANK", "0")
    from llmb_train import cpu, engine

    release = engine.release_of(engine.package_version("megatron-bridge"))
    assert release is not None
    engine.find("cpu", release)
    cpu.install(device)
    import megatron.core.utils as core_utils
    from packaging.version import Version

    core_utils._te_version = Version(CLAIMED_TRANSFORMER_ENGINE[release.bridge])
    return engine.Engine(device="cuda", transformer_engine=True)


def resolve(job_file: Path, engine: Any) -> Any:
    """Job file -> configuration after Bridge's own update and ``ConfigContainer.validate()``, as ``pretrain`` does it.

    Two fused kernels are switched off after the configuration is built: core imports them while it validates.
    """
    from megatron.bridge.training.config import runtime_config_update

    from llmb_train import validation
    from llmb_train.config import build_config
    from llmb_train.job import load_job

    job = load_job(job_file)
    os.environ["WORLD_SIZE"] = str(job.world_size)
    config = validation.without_kernels(build_config(job, engine))
    with validation.claimed(validation.NEEDS[:1]):
        runtime_config_update(config)
    return config
