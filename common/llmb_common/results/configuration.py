"""Which runs are repeats of each other: everything of a plan that decides its speed, and the software it ran on."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from llmb_common.base.engines import container_release
from llmb_common.base.printable import as_written
from llmb_common.planning.job_plan import JobPlan
from llmb_common.recipes.columns import Role, fields_of

if TYPE_CHECKING:  # plans, which ask for their key, start faster without runs/
    from llmb_common.runs.record import RunRecord


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
    known = (_ASPECTS.get(name, (name, attrgetter(name))) for name in fields_of(JobPlan, *roles))
    return {called: aspect(plan) for called, aspect in known}


def configuration(plan: JobPlan) -> dict[str, Any]:
    """The plan without names, paths, limits and accounts: two runs with the same one do the same work the same way.

    ``NCCL_ALGO=Ring`` in the caller's environment is another configuration.
    """
    return aspects(plan, "work", "division", "speed")


def told_apart(plans: Sequence[JobPlan]) -> dict[str, list[str]]:
    """What the plans differ in, by name, with the value of each: columns, variables, settings, image, engine."""
    known = [values_of(plan) for plan in plans]
    everything = dict.fromkeys(name for values in known for name in values)
    names = sorted(everything, key=lambda name: name in ("engine", "image"))  # a variable of one plan comes before
    found = {name: [values.get(name, "-") for values in known] for name in names}
    found = {name: values for name, values in found.items() if len(set(values)) > 1}
    if "gpus" in found:
        found.pop("gpus_per_node", None)  # on one machine, the same again
    if len({*found.get("image", [])}) == len({*found.get("engine", [])}) == len({(p.image, p.engine) for p in plans}):
        found.pop("image" if all(container_release(plan.image) for plan in plans) else "engine")
    if "image" in found:
        often = Counter(Path(image).name for image in set(found["image"]))
        found["image"] = [name if often[name := Path(image).name] == 1 else image for image in found["image"]]
    return found


def apart(plans: Iterable[JobPlan | None]) -> list[str]:
    """What tells each plan from the others of its kind of job but the number of GPUs: ``tp=2, NCCL_ALGO=Ring``."""
    listed = list(plans)
    kinds: dict[str, dict[int, JobPlan]] = {}
    for at, plan in enumerate(listed):
        if plan is not None:
            kinds.setdefault(kind_of_job(plan), {})[at] = plan
    said = [""] * len(listed)
    for together in kinds.values():
        differing = {name: values for name, values in told_apart([*together.values()]).items() if name not in _SCALE}
        for number, at in enumerate(together):
            values = ((name, values[number]) for name, values in differing.items() if values[number] != "-")
            said[at] = ", ".join(_shortened(f"{name}={value}") for name, value in values)
    return said


def values_of(plan: JobPlan) -> dict[str, str]:
    """What tells jobs apart, by the names and in the words of tables: ``tp: 2``, ``NCCL_ALGO: Ring``, ``engine``."""
    said: dict[str, str] = {}
    for name, value in {**configuration(plan), "engine": plan.engine, "image": plan.image}.items():
        parts = value.items() if isinstance(value, dict) else [(name, value)]
        said |= {part: "-" if item is None else as_written(item) for part, item in parts}
    return said


def kind_of_job(plan: JobPlan) -> str:
    """What people call jobs of every scale that differ in nothing else: ``mbridge llama3_70b sft fp8 (cs)``."""
    return f"{plan.recipe} {plan.model_size} {plan.variant} {plan.precision}"


def title_of(plan: JobPlan) -> str:
    """``llama3.1 405b mbridge fp8 (cs) on 128 gb200``, and what of it is not as the recipe documents it: ``, tp=4``."""
    return f"{kind_of_job(plan)} on {plan.gpus} {plan.gpu_type}{deviations(plan)}"


def deviations(plan: JobPlan) -> str:
    """What tells the job from the documented one, each after a comma: columns, the caller's variables, switches."""
    found = [f"{name}={as_written(getattr(plan, name))}" for name in plan.overridden]
    found += [f"{name}={as_written(value)}" for name, value in sorted(plan.megatron.items())]
    found += [f"{name}={value}" for name, value in sorted(_caller(plan).items())]
    found += [f"{name}={as_written(getattr(plan, name))}" for name in _SWITCHES if getattr(plan, name)]
    found += [f"profiled by {plan.profile.tool}"] if plan.profile else []
    found += ["checkpoints"] if _checkpoints(plan) else []
    return "".join(f", {_shortened(text)}" for text in found)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


_SWITCHES = ("nccl_trace", "vboost", "cpu_pinning")
_SCALE = ("gpus", "gpus_per_node")
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
    """What the memory of jobs of ``kind`` (``planning.memory``) is compared within: kind and software."""
    return f"{kind} | {software_of_plan(plan) or plan.engine}"


def software_of_plan(plan: JobPlan) -> str:
    """What a run of the plan will train with; empty outside containers, where only the run itself can tell."""
    return software_of_image(plan.image or "")


def software_of_image(image: str) -> str:
    """What runs in an image train with; empty where there is none."""
    release = container_release(image)
    return f"nemo:{release}" if release else Path(image).name


class RunImage(NamedTuple):
    """The image of a run: its path or reference, and the digest on record, shortened; empty where none is."""

    image: str
    content: str


def image_of(record: RunRecord) -> RunImage:
    """The image of a run.

    Of a release that was imported no digest counts: each import makes another file of the same content.
    """
    from llmb_common.runs.manifest import image_receipt

    image, receipt = record.plan.image or "", image_receipt(record.manifest)
    imported = container_release(image) and receipt.get("adopted") is False
    return RunImage(image, f"sha256:{str(receipt['sha256'])[:12]}" if receipt.get("sha256") and not imported else "")


def image_marks(images: Sequence[RunImage]) -> list[str]:
    """What tells each run's image from others of its name, after a blank: `` (sha256:1a2b3c4d5e6f)``, `` (/a/x.sqsh)``.

    Empty where one name is one image: one digest in several folders is, and a path whose digest was noted only once.
    """
    digests: dict[str, set[str]] = {}
    for image, content in set(images):
        digests.setdefault(image, set()).update([content] if content else [])
    found = {item: item.content or _image(item.image, digests[item.image]) for item in set(images)}
    names = {image: software_of_image(image) for image in digests}
    often = Counter(name for name, mark in {(names[item.image], mark) for item, mark in found.items()} if mark)
    marks = {
        item: f" ({mark})" if mark and (often[names[item.image]] > 1 or _unlike(names[item.image], mark)) else ""
        for item, mark in found.items()
    }
    return [marks[item] for item in images]


def _unlike(name: str, image: str) -> bool:
    """Whether a file's name says more than the release that its software is called by."""
    return not image.startswith("sha256:") and Path(image).name != name


def _image(image: str, digests: set[str]) -> str:
    """An image without a digest on record. What is named like a release, and nothing else, is that release."""
    release = container_release(image)
    if len(digests) == 1:
        return next(iter(digests))
    return "" if release and image.removesuffix(".sqsh").endswith(release) else image


def software_of(record: RunRecord) -> str:
    """What a run trained with, for people and for equality: ``nemo:26.02.01``, an image's name, or package versions."""
    if named := software_of_plan(record.plan):
        return named
    job = record.manifest.get("job")
    said = job.get("software") if isinstance(job, dict) else None
    if not isinstance(said, dict):
        from llmb_common.runs.finding import read_manifest_line

        said = read_manifest_line(record.paths.log) or {}
    names = {"megatron_bridge": "Megatron-Bridge", "megatron_core": "megatron-core", "torch": "torch"}
    found = [f"{title} {said[name]}" for name, title in names.items() if said.get(name)]
    return ", ".join(found) or "unknown software"
