"""``llmb-config_<job id>.yaml`` beside a run: by it the tools of NVIDIA's DGX Cloud Benchmarking know a job.

Sections and fields are those that its ``run_config.create_llmb_config`` writes, in its order (release 26.06.01,
2026-06), and its ``job_history`` and ``archive`` read. LLMB itself never reads it.

Jobs are found again by the first digits of ``job_id``, which a task of an array shares with the others.
"""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Any

from llmb_common import __version__
from llmb_common.errors import LLMBError
from llmb_common.platform.engines import container_release
from llmb_common.recipes.loading import load_recipe, recipes_root
from llmb_common.runs.manifest import image_receipt

if TYPE_CHECKING:
    from pathlib import Path

    from llmb_common.planning.job_plan import JobPlan
    from llmb_common.recipes.recipe import Recipe


def config_name(job_id: str) -> str:
    """The file's name in the folder of the run that has the job."""
    return f"llmb-config_{job_id}.yaml"


def config_text(job_id: str, created: float, plan: JobPlan, manifest: dict[str, Any]) -> str:
    """The file of a job; ``created``: when its run was, in seconds since 1970."""
    import yaml

    # libyaml's takes a sixth of the time, once for each job.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    # What the image was made of, as a registry calls it, where that is known; else its path; empty without one.
    image = str(image_receipt(manifest).get("source") or plan.image or "")
    overrides = manifest.get("environment_overrides")
    content = {
        "job_info": {
            "job_id": job_id,
            # There, an sbatch script with a folder of its own for each job.
            "launcher_type": "configured_sbatch",
            "launch_time": time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(created)),
            "experiment_id": None,
        },
        "workload_info": {
            "framework": "megatron_bridge",
            "gsw_version": __version__,
            "fw_version": container_release(image) or (image.rpartition(":")[2] if ":" in image else "unknown"),
            "workload_type": "pretrain",
            "synthetic_dataset": True,
        },
        "model_info": {
            "model_name": plan.recipe,
            "model_size": plan.model_size,
            "dtype": plan.dtype,
            "scale": plan.gpus,
            "gpu_type": plan.gpu_type,
        },
        "cluster_info": {
            "cluster_name": "",
            "gpus_per_node": plan.gpus_per_node,
            "llmb_install": plan.install,
            "llmb_repo": str(_root()),
            "slurm_account": (plan.scheduler and plan.scheduler.account) or "",
            "slurm_gpu_partition": (plan.scheduler and plan.scheduler.queue) or "",
            "slurm_cpu_partition": "",
        },
        "container_info": {"images": [image] if image else []},
        "job_config": {
            "profile_enabled": plan.profile is not None,
            "proxy": plan.model_size.endswith("-proxy"),
            "strong_scaling": _is_strong_scaling(plan),
            "env_overrides": dict(overrides) if isinstance(overrides, dict) else {},
            "model_overrides": {name: getattr(plan, name) for name in plan.overridden},
        },
    }
    text: str = yaml.dump(content, Dumper=dumper, default_flow_style=False, sort_keys=False)
    return text


def _is_strong_scaling(plan: JobPlan) -> bool:
    """Whether the batch is not the one of its scale, without anybody having said which."""
    if "gbs" in plan.overridden:
        return False
    try:
        rows = _recipe(plan.recipe).rows_for(
            plan.gpu_type, size=plan.model_size, variant=plan.variant, dtype=plan.dtype
        )
        return bool(rows) and all(row.global_batch_size(plan.gpus) != plan.gbs for row in rows)
    except LLMBError:  # a recipe that is gone, or a scale that its formula does not divide
        return False


@cache
def _root() -> Path:
    return recipes_root()


@cache
def _recipe(name: str) -> Recipe:
    return load_recipe(_root() / name)
