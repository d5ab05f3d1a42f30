"""Which runs are repeats of each other: everything of a plan that decides its speed, and the software it ran on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmb_common.planning.job_plan import JobPlan
from llmb_common.recipes.releases import container_release
from llmb_common.roles import Role, fields_of

if TYPE_CHECKING:  # plans, which ask for their key, start faster without runs/
    from llmb_common.runs.record import RunRecord

_OF_NO_CONSEQUENCE: dict[str, Any] = {"fast_cores": None, "memory_clock": None, "architecture": None, "megatron": {}}
"""Fields that are left out at that value: keys of runs from before there was the choice stay what they were."""


def _caller(plan: JobPlan) -> dict[str, str]:
    """Variables of the caller's environment. The recipe's and the site's follow from the rest, and a change of the
    site's is what comparing over time is to show."""
    return {name: item.value for name, item in plan.env.items() if item.source == "environment"}


def _checkpoints(plan: JobPlan) -> bool:
    return plan.checkpoint.enabled or plan.checkpoint.load is not None or plan.checkpoint.resume


_ASPECTS: dict[str, tuple[str, Callable[[JobPlan], Any]]] = {
    "profile": ("profiled", lambda plan: plan.profile.tool if plan.profile else None),
    "checkpoint": ("checkpoints", _checkpoints),
    "measurement": ("measured", lambda plan: (plan.measurement.first, plan.measurement.last)),
    "env": ("environment", _caller),
    "architecture": ("architecture", lambda plan: None),  # of the workload, its size and its number of layers
}
"""What of a field counts, and its name in a configuration."""


def aspects(plan: JobPlan, *roles: Role) -> dict[str, Any]:
    """The values of the fields with one of ``roles``, by name."""
    found = {}
    for name in fields_of(JobPlan, *roles):
        called, aspect = _ASPECTS.get(name, (name, attrgetter(name)))
        value = aspect(plan)
        if name not in _OF_NO_CONSEQUENCE or value != _OF_NO_CONSEQUENCE[name]:
            found[called] = value
    return found


def configuration(plan: JobPlan) -> dict[str, Any]:
    """The plan without names, paths, limits and accounts: two runs with the same one do the same work the same way.

    ``NCCL_ALGO=Ring`` in the caller's environment is another configuration.
    """
    return aspects(plan, "work", "division", "speed")


def told_apart(plans: Sequence[JobPlan]) -> dict[str, list[str]]:
    """What the plans differ in, by name, with the value of each: columns, variables, settings, image, engine."""
    known = [_said(plan) for plan in plans]
    names = dict.fromkeys(name for values in known for name in values)
    found = {name: [values.get(name, "-") for values in known] for name in names}
    found = {name: values for name, values in found.items() if len(set(values)) > 1}
    if "gpus" in found:
        found.pop("gpus_per_node", None)  # on one machine, the same again
    images = [Path(image).name for image in found.get("image", [])]
    if images and len(set(images)) == len(set(found["image"])):
        found["image"] = images
    return found


def _said(plan: JobPlan) -> dict[str, str]:
    said: dict[str, str] = {}
    for name, value in {**configuration(plan), "engine": plan.engine, "image": plan.image}.items():
        parts = value.items() if isinstance(value, dict) else [(name, value)]
        said |= {part: "-" if item is None else _word(item) for part, item in parts}
    return said


def kind_of_job(plan: JobPlan) -> str:
    """What people call jobs of every scale that differ in nothing else: ``mbridge llama3_70b sft fp8 (cs)``."""
    return f"{plan.recipe} {plan.model_size} {plan.variant} {plan.precision}"


def title_of(plan: JobPlan) -> str:
    """``llama3.1 405b mbridge fp8 (cs) on 128 gb200``, and what of it is not as the recipe documents it: ``, tp=4``."""
    return f"{kind_of_job(plan)} on {plan.gpus} {plan.gpu_type}{deviations(plan)}"


def deviations(plan: JobPlan) -> str:
    """What tells the job from the documented one, each after a comma: columns, the caller's variables, switches."""
    found = [f"{name}={_word(getattr(plan, name))}" for name in plan.overridden]
    found += [f"{name}={_word(value)}" for name, value in sorted(plan.megatron.items())]
    found += [f"{name}={value}" for name, value in sorted(_caller(plan).items())]
    found += [f"{name}={_word(getattr(plan, name))}" for name in _SWITCHES if getattr(plan, name)]
    found += [f"profiled by {plan.profile.tool}"] if plan.profile else []
    found += ["checkpoints"] if _checkpoints(plan) else []
    return "".join(f", {text if len(text) <= _LONGEST else f'{text[:_LONGEST]}...'}" for text in found)


def _word(value: object) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


_SWITCHES = ("nccl_trace", "vboost", "cpu_pinning")
_LONGEST = 40
_MANY = 1024
_keys: dict[int, tuple[JobPlan, str]] = {}
"""By the identity of plans, which are kept with them: thousands of repeats share one (``runs.record``)."""


def configuration_key(plan: JobPlan) -> str:
    """A key that is equal for equal configurations only: twelve hexadecimal digits."""
    if id(plan) not in _keys:
        text = json.dumps(configuration(plan), sort_keys=True)
        if len(_keys) >= _MANY:
            _keys.clear()
        _keys[id(plan)] = plan, hashlib.sha256(text.encode()).hexdigest()[:12]
    return _keys[id(plan)][1]


def configuration_of(record: RunRecord) -> str:
    """The key of a run's configuration and software: equal for repeats of each other."""
    return f"{configuration_key(record.plan)} {software_of(record)}"


def memory_key(plan: JobPlan, kind: str) -> str:
    """What the memory of jobs of ``kind`` (``planning.memory.kinds``) is compared within: kind and software."""
    return f"{kind} | {software_of_plan(plan) or plan.engine}"


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
        from llmb_common.runs.facts import read_manifest_line

        said = read_manifest_line(record.paths.log) or {}
    names = {"megatron_bridge": "Megatron-Bridge", "megatron_core": "megatron-core", "torch": "torch"}
    found = [f"{title} {said[name]}" for name, title in names.items() if said.get(name)]
    return ", ".join(found) or "unknown software"
