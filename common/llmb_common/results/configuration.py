"""Which runs are repeats of each other: everything of a plan that decides its speed, and the software it ran on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from llmb_common.planning.job_plan import JobPlan
from llmb_common.recipes.releases import container_release
from llmb_common.runs.facts import read_manifest_line
from llmb_common.runs.record import RunRecord

_FIELDS = (
    *("workload", "variant", "model_size", "dtype", "fp8_recipe", "gpu_type", "device", "gpus", "gpus_per_node"),
    *("seq_len", "layers", "tp", "pp", "cp", "ep", "etp", "vp", "mbs", "gbs", "fsdp", "cuda_graph"),
    *("recompute_layers", "offload_layers", "wgrad_deferral", "moe_routing", "nccl_trace", "vboost", "cpu_pinning"),
)


def configuration(plan: JobPlan) -> dict[str, Any]:
    """The plan without names, paths, limits and accounts: two runs with the same one do the same work the same way.

    Variables of the caller's environment count (``NCCL_ALGO=Ring`` is another configuration); the recipe's and the
    site's do not: they follow from the rest, and a change of the site's is what comparing over time is to show.
    """
    found = {name: getattr(plan, name) for name in _FIELDS}
    found["profiled"] = plan.profile.tool if plan.profile else None
    found["checkpoints"] = plan.checkpoint.enabled or plan.checkpoint.load is not None or plan.checkpoint.resume
    found["measured"] = (plan.measurement.first, plan.measurement.last)
    if plan.fast_cores is not None:  # keys of runs from before there was the choice stay what they were
        found["fast_cores"] = plan.fast_cores
    found["environment"] = {name: item.value for name, item in plan.env.items() if item.source == "environment"}
    return found


def kind_of_job(plan: JobPlan) -> str:
    """What people call jobs of every scale that differ in nothing else: ``mbridge llama3_70b sft fp8 (cs)``."""
    return f"{plan.recipe} {plan.model_size} {plan.variant} {plan.precision}"


_MANY = 1024
_keys: dict[int, tuple[JobPlan, str]] = {}
"""By the identity of plans, which are kept with them: thousands of repeats share one (``runs.record``)."""


def configuration_key(plan: JobPlan) -> str:
    """The same for equal configurations, and else not: twelve hexadecimal digits."""
    if id(plan) not in _keys:
        text = json.dumps(configuration(plan), sort_keys=True)
        if len(_keys) >= _MANY:
            _keys.clear()
        _keys[id(plan)] = plan, hashlib.sha256(text.encode()).hexdigest()[:12]
    return _keys[id(plan)][1]


def configuration_of(record: RunRecord) -> str:
    """Of a run's configuration and software: equal for repeats of each other."""
    return f"{configuration_key(record.plan)} {software_of(record)}"


def software_of_plan(plan: JobPlan) -> str:
    """What a run of the plan will train with; empty outside containers, where only the run itself can tell."""
    release = container_release(plan.image)
    return f"nemo:{release}" if release else Path(plan.image).name if plan.image else ""


def software_of(record: RunRecord) -> str:
    """What a run trained with, for people and for equality: ``nemo:26.02.01``, an image's name, or package versions."""
    if named := software_of_plan(record.plan):
        return named
    job = record.manifest.get("job")
    said = job.get("software") if isinstance(job, dict) else None
    if not isinstance(said, dict):
        said = read_manifest_line(record.paths.log) or {}
    names = {"megatron_bridge": "Megatron-Bridge", "megatron_core": "megatron-core", "torch": "torch"}
    found = [f"{title} {said[name]}" for name, title in names.items() if said.get(name)]
    return ", ".join(found) or "unknown software"
