"""Which runs are repeats of each other: everything of a plan that decides its speed, and the software it ran on."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from llmb_common.base.engines import container_release
from llmb_common.base.printable import as_written
from llmb_common.planning.job_plan import JobPlan
from llmb_common.recipes.columns import Role, fields_of

if TYPE_CHECKING:  # plans, which ask for their key, start faster without runs/
    from llmb_common.runs.record import RunRecord


def _caller_variables(plan: JobPlan) -> dict[str, str]:
    """Return the plan's environment variables that the user's own environment set, as name to value; may be empty.

    Those that the plan says come from recipe or site are left out: the former follow from the rest of the plan, and
    a comparison over time is just to show what a change of the latter does.
    """
    return {name: item.value for name, item in plan.env.items() if item.source == "environment"}


def _uses_checkpoints(plan: JobPlan) -> bool:
    """Return whether the plan's run writes or reads checkpoints, which changes its speed."""
    return plan.checkpoint.is_used


_ASPECTS: dict[str, tuple[str, Callable[[JobPlan], Any]]] = {
    "profile": ("profiled", lambda plan: plan.profile.tool if plan.profile else None),
    "checkpoint": ("checkpoints", _uses_checkpoints),
    "measurement": ("measured", lambda plan: (plan.measurement.first, plan.measurement.last)),
    "env": ("environment", _caller_variables),
    "architecture": ("architecture", lambda plan: None),  # of the workload, its size and its number of layers
}
"""What of a field counts, and its name in a configuration."""


def aspects(plan: JobPlan, *roles: Role) -> dict[str, Any]:
    """Return the values of the plan's fields that have any of ``roles`` (``recipes.columns``), by the field's name.

    The names are in the order of declaration. Of a field in ``_ASPECTS`` only what matters to speed counts, mostly
    under another name: ``profiled`` is the profiler's name or None, ``checkpoints`` whether there are any, ``measured``
    (first, last step), ``environment`` the variables that the user set, ``architecture`` always None. Empty for no
    roles.
    """
    known = (_ASPECTS.get(name, (name, attrgetter(name))) for name in fields_of(JobPlan, *roles))
    return {called: aspect(plan) for called, aspect in known}


def configuration(plan: JobPlan) -> dict[str, Any]:
    """Return everything of a plan that decides a step's work and speed, by name; equal for runs that are repeats.

    These are the ``aspects`` of the roles work, division and speed. Names, paths, limits, accounts, the image and the
    engine are left out. A variable that the user's own environment set counts: ``NCCL_ALGO=Ring`` makes another
    configuration; those of recipe and site do not.
    """
    return aspects(plan, "work", "division", "speed")


def differing_settings(plans: Sequence[JobPlan]) -> dict[str, list[str]]:
    """Return the settings in which ``plans`` differ: by name, each plan's value in order (``-``: none), as text.

    There is at least one plan. Names are those of ``values_of``: layout columns, variables and Megatron settings, in no
    order to rely on, then ``engine`` and ``image``, of which one is dropped where it tells nothing more.
    ``gpus_per_node`` is left out where ``gpus`` differ. Images are given as file names where these tell them apart.
    Empty where the plans are alike, or there is only one.
    """
    values = [values_of(plan) for plan in plans]
    names = dict.fromkeys(chain.from_iterable(values))
    found: dict[str, list[str]] = {}
    # Engine and image stand last, also where only one plan has a variable that the others lack.
    for name in sorted(names, key=lambda name: name in ("engine", "image")):
        of_each = [plan_values.get(name, "-") for plan_values in values]
        if len(set(of_each)) > 1:
            found[name] = of_each
    if "gpus" in found:
        found.pop("gpus_per_node", None)  # on one machine, the same again
    if _image_is_engine(plans, found):
        all_released = all(container_release(plan.image) for plan in plans)
        found.pop("image" if all_released else "engine")
    if "image" in found:
        found["image"] = _short_names(found["image"])
    return found


def _image_is_engine(plans: Sequence[JobPlan], differing: dict[str, list[str]]) -> bool:
    """Return whether images and engine releases both differ among ``plans`` and each image goes with just one engine.

    Then one of the two tells all. ``plans`` has at least one. ``differing`` is what ``differing_settings`` has found so
    far: each plan's value by name; it is not changed.
    """
    images = set(differing.get("image", []))
    engines = set(differing.get("engine", []))
    pairs = {(plan.image, plan.engine) for plan in plans}
    return len(images) == len(engines) == len(pairs)


def _short_names(images: list[str]) -> list[str]:
    """Return the file name of each image, in order; its whole path where a different image has the same file name."""
    name_counts = Counter(Path(image).name for image in set(images))
    return [image if name_counts[Path(image).name] > 1 else Path(image).name for image in images]


def distinguishing_settings(plans: Iterable[JobPlan | None]) -> list[str]:
    """Return, for each plan in order, what tells it from others of its ``kind_of_job``: ``tp=2, NCCL_ALGO=Ring``.

    The number of GPUs and settings that a plan lacks are left out; each of more than 40 characters is cut there, and
    ends with three dots. Empty text for None, for the only plan of its kind, and where nothing differs.
    """
    listed = list(plans)
    kinds: dict[str, dict[int, JobPlan]] = {}
    for at, plan in enumerate(listed):
        if plan is not None:
            kinds.setdefault(kind_of_job(plan), {})[at] = plan
    texts = [""] * len(listed)
    for together in kinds.values():
        differing = differing_settings([*together.values()])
        shown = {name: values for name, values in differing.items() if name not in _SCALE}
        for number, at in enumerate(together):
            own = {name: values[number] for name, values in shown.items()}
            texts[at] = ", ".join(_shorten(f"{name}={value}") for name, value in own.items() if value != "-")
    return texts


def values_of(plan: JobPlan) -> dict[str, str]:
    """Return a plan's configuration, engine and image as text for tables, by name: ``{"tp": "2"}``; ``-``: no value.

    Variables that the user set and Megatron settings stand beside the names of ``configuration``, each under its
    own name; one that is not set has no entry. ``engine`` and ``image`` come last.
    """
    values: dict[str, str] = {}
    for name, value in {**configuration(plan), "engine": plan.engine, "image": plan.image}.items():
        parts = value.items() if isinstance(value, dict) else [(name, value)]
        values |= {part: "-" if item is None else as_written(item) for part, item in parts}
    return values


def kind_of_job(plan: JobPlan) -> str:
    """Return the plan's recipe, model size, variant and precision as one text: ``mbridge llama3_70b sft fp8 (cs)``."""
    return f"{plan.recipe} {plan.model_size} {plan.variant} {plan.precision}"


def title_of(plan: JobPlan) -> str:
    """Return a line that names a plan's configuration: ``llama3.1 405b mbridge fp8 (cs) on 128 gb200, tp=4``.

    What follows the GPU type is what differs from the recipe's documents (``deviations``). It has no period.
    """
    return f"{kind_of_job(plan)} on {plan.gpus} {plan.gpu_type}{deviations(plan)}"


def deviations(plan: JobPlan) -> str:
    """Return what of a plan differs from its recipe's documents, to append to a title: ``, tp=4, NCCL_ALGO=Ring``.

    That is overridden columns, Megatron settings, variables that the user set, switches (``nccl_trace``, ``vboost``,
    ``cpu_pinning``) that are on, a profiler (``profiled by nsys``) and ``checkpoints``, in this order; each of more
    than 40 characters is cut there, and ends with three dots. Empty: nothing differs.
    """
    found = [f"{name}={as_written(getattr(plan, name))}" for name in plan.overridden]
    found += [f"{name}={as_written(value)}" for name, value in sorted(plan.megatron.items())]
    found += [f"{name}={value}" for name, value in sorted(_caller_variables(plan).items())]
    found += [f"{name}={as_written(getattr(plan, name))}" for name in _SWITCHES if getattr(plan, name)]
    found += [f"profiled by {plan.profile.tool}"] if plan.profile else []
    found += ["checkpoints"] if _uses_checkpoints(plan) else []
    return "".join(f", {_shorten(text)}" for text in found)


def _shorten(text: str) -> str:
    """Return ``text``; if it is longer than ``_LONGEST`` (40) characters, its first 40 with three dots behind them."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


_SWITCHES = ("nccl_trace", "vboost", "cpu_pinning")
_SCALE = ("gpus", "gpus_per_node")
_LONGEST = 40
_MANY = 1024
_keys: dict[int, tuple[JobPlan, str]] = {}
"""By the identity of plans, which are kept with them: thousands of repeats share one (``runs.record``)."""


def configuration_key(plan: JobPlan) -> str:
    """Return twelve hexadecimal digits that are equal for two plans if, and only if, their ``configuration`` is.

    The answer is kept in memory, together with ``plan``.
    """
    if id(plan) not in _keys:
        text = json.dumps(configuration(plan), sort_keys=True)
        if len(_keys) >= _MANY:
            _keys.clear()
        # The plan is kept with its key, so that no other plan can get its id.
        _keys[id(plan)] = plan, hashlib.sha256(text.encode()).hexdigest()[:12]
    return _keys[id(plan)][1]


def configuration_of(record: RunRecord) -> str:
    """Return a run's configuration key and, after a blank, its software; the same text for repeats of one job only.

    ``1a2b3c4d5e6f nemo:26.02.01``: the parts are ``configuration_key`` and ``software_of``. Outside containers, where
    the run's record does not name its software, that reads the run's log.
    """
    return f"{configuration_key(record.plan)} {software_of(record)}"


def memory_key(plan: JobPlan, kind: str) -> str:
    """Return the key under which measured GPU memory of runs like ``plan`` is stored: ``KIND | nemo:26.02.01``.

    ``kind`` is the text that ``planning.memory`` makes of the plan: what decides how much memory such a job takes.
    Behind it stands ``software_of_plan``, or outside containers the engine's release: ``KIND | 0.6``.
    """
    return f"{kind} | {software_of_plan(plan) or plan.engine}"


def software_of_plan(plan: JobPlan) -> str:
    """Return the software that runs of ``plan`` train with: ``nemo:26.02.01``, or the file name of its image.

    Empty for a plan without an image: only the run itself can tell then.
    """
    return software_of_image(plan.image or "")


def software_of_image(image: str) -> str:
    """Return the software of a container image: ``nemo:26.02.01``, or its file name; empty for an empty path.

    The former for NVIDIA's NeMo images, whose path or reference has the release, such as ``nvidia+nemo+26.02.01.sqsh``.
    """
    release = container_release(image)
    return f"nemo:{release}" if release else Path(image).name


class RunImage(NamedTuple):
    """A run's container image: ``image`` is its path or reference, ``content`` identifies the file's content.

    ``content`` is the recorded digest, ``sha256:`` and its first twelve digits. Either is empty where there is none:
    ``image`` for a run outside containers, ``content`` where no digest was recorded or may be compared. ``image_of``
    makes it.
    """

    image: str
    content: str


def image_of(record: RunRecord) -> RunImage:
    """Return the container image that a run trained in; both parts are empty for a run outside containers.

    ``content`` is ``sha256:`` and twelve digits. It is empty where the run's record has no digest, and for a NeMo
    release that LLMB imported, as each import makes another file of the same content.
    """
    from llmb_common.runs.manifest import image_receipt

    image, receipt = record.plan.image or "", image_receipt(record.manifest)
    imported = container_release(image) and receipt.get("adopted") is False
    digest = receipt.get("sha256")
    if not digest or imported:
        return RunImage(image, "")
    return RunImage(image, f"sha256:{str(digest)[:12]}")


def image_marks(images: Sequence[RunImage]) -> list[str]:
    """Return, for each image in order, text to append to its software's name that tells it from others of that name.

    It begins with a blank: `` (sha256:1a2b3c4d5e6f)`` or `` (/a/x.sqsh)``. Only the images given are compared. Empty
    where the name stands for one image only, such as for one digest in several folders, or a path whose digest was not
    recorded for every run; but an image that only its path identifies is marked also then, if its file is called
    otherwise than that name (``/a/nemo+26.02.01-own.sqsh`` of ``nemo:26.02.01``).
    """
    digests: dict[str, set[str]] = {}
    for image, content in set(images):
        known = digests.setdefault(image, set())
        if content:
            known.add(content)
    found = {item: item.content or _image_identity(item.image, digests[item.image]) for item in set(images)}
    names = {image: software_of_image(image) for image in digests}
    marked = {(names[item.image], mark) for item, mark in found.items() if mark}
    name_counts = Counter(name for name, _ in marked)
    marks = []
    for item in images:
        name, mark = names[item.image], found[item]
        # The only image of a name needs no mark, unless its file is called otherwise.
        needed = mark and (name_counts[name] > 1 or _has_other_file_name(name, mark))
        marks.append(f" ({mark})" if needed else "")
    return marks


def _has_other_file_name(name: str, image: str) -> bool:
    """Return whether ``image`` is a path whose file name differs from the software's ``name``; False for a digest.

    A digest begins with ``sha256:``.
    """
    return not image.startswith("sha256:") and Path(image).name != name


def _image_identity(image: str, digests: set[str]) -> str:
    """Return what identifies an image without a digest of its own: the only digest of that path, else the path.

    ``digests`` are all those on record for the path. Empty, where they are not just one, for a file that is named
    exactly like a NeMo release: it is taken for that release.
    """
    release = container_release(image)
    if len(digests) == 1:
        return next(iter(digests))
    return "" if release and image.removesuffix(".sqsh").endswith(release) else image


def software_of(record: RunRecord) -> str:
    """Return what a run trained with, as text: ``nemo:26.02.01``, an image's file name, or package versions.

    Outside containers the versions, with commas between them (``Megatron-Bridge 0.6.0, torch 2.9``), come from the
    run's record, else from its log; ``unknown software`` where neither has them.
    """
    if named := software_of_plan(record.plan):
        return named
    job = record.manifest.get("job")
    recorded = job.get("software") if isinstance(job, dict) else None
    if not isinstance(recorded, dict):
        from llmb_common.runs.finding import read_manifest_line

        recorded = read_manifest_line(record.paths.log) or {}
    names = {"megatron_bridge": "Megatron-Bridge", "megatron_core": "megatron-core", "torch": "torch"}
    found = [f"{title} {recorded[name]}" for name, title in names.items() if recorded.get(name)]
    return ", ".join(found) or "unknown software"
