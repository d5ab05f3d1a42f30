"""From the options of ``submit`` and ``sweep``, or a task of a file, to the jobs that they ask for, and their plans."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

from llmb_common.base.cluster_types import ClusterType, traits_of
from llmb_common.base.errors import RequestError
from llmb_common.planning.choose import PlanningInput, documented_scales
from llmb_common.planning.engine import choose_functions
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.request.read import read_request
from llmb_common.planning.site.machine import detect_machine
from llmb_common.planning.workspace import Workspace
from llmb_common.runs.record import RunRecord
from llmb_run.starting.requests import JobSpec, RequestedJobs, job_spec, names_for, plan_each, variables_for
from llmb_run.starting.submitting import StartOptions
from llmb_run.starting.sweeps import Dimensions, changed_spec, combinations, dimensions_of, without_equal_plans
from llmb_run.terminal import split_values


def plan_options(
    workspace: Workspace,
    how: StartOptions,
    *,
    workload: Sequence[str],
    size: Sequence[str],
    dtype: Sequence[str],
    scale: Sequence[str],
    min_scale: int | None,
    max_scale: int | None,
    vary: Sequence[str],
    zipped: Sequence[str],
    repeats: int,
    spread: int,
    **settings: Any,
) -> RequestedJobs:
    """Plan every job that the options of ``options.planned_jobs`` ask for, and return them planned or refused.

    Starts nothing; prints notices on what planning chose. Of combinations that are the same job, all but the first
    are refused. A chain of more than one job (``how.chain``) writes checkpoints where the settings do not say
    otherwise.

    Args:
        workspace: knows the recipes and the cluster
        how: how the jobs are to be started
        workload: names, at least one; these and the next three lists are combined, and a text may be several values
            with commas
        size: model sizes; without any, the recipe has the choice, as with the next two
        dtype: as recipes call them
        scale: numbers of GPUs as text, or ``all``
        min_scale: the fewest GPUs of the documented scales to take; None: no bound
        max_scale: the most; None: no bound
        vary: further dimensions to combine, ``tp=1,2`` each
        zipped: groups of dimensions that change together, ``tp=1,2 pp=4,2`` each
        repeats: how many runs of each combination, from 1
        spread: over how many days, 1 for none
        settings: those of ``job_spec``

    Raises:
        RequestError: an option has a wrong value, a dimension is both varied and set, or nothing can be planned
            here; a single job that cannot be planned is not raised, but is among the refused
        LLMBError: a host list is wrong, or planning a job failed otherwise than by its request
    """
    check_spread(repeats, how.apart)
    base = job_spec(**settings)
    listed = {
        "workload": split_values(workload),
        "size": split_values(size),
        "dtype": split_values(dtype),
        "scale": split_values(scale),
    }
    varied = dimensions_of(vary, "--vary")
    groups = [dimensions_of(text.split(), "--zip") for text in zipped]
    for name in chain(varied, *groups):
        value = ",".join(listed.get(name, [])) or base.settings.get(name)
        if value is not None:
            raise RequestError(f"{name} is varied, and set to {value}", remedy="leave one of them out")
    # Each job of a chain goes on from the checkpoint of the one before.
    if how.chain > 1:
        base = base.with_settings({"ENABLE_CHECKPOINT": "true", **base.settings})
    specs = combined_specs(
        base,
        workspace,
        {**listed, **varied},
        groups,
        min_scale=min_scale,
        max_scale=max_scale,
        repeats=repeats,
        spread=spread,
    )
    to_plan = [replace(spec, dry_run=how.dry_run) for spec in specs]
    planned, refused = without_equal_plans(plan_each(to_plan, workspace))
    return RequestedJobs(specs, planned, refused)


def combined_specs(
    base: JobSpec,
    workspace: Workspace,
    dimensions: Dimensions,
    zipped: Sequence[Dimensions] = (),
    *,
    min_scale: int | None = None,
    max_scale: int | None = None,
    repeats: int = 1,
    spread: int = 1,
) -> list[JobSpec]:
    """Return one job request per combination and repeat; a dimension without values leaves the choice to the recipe.

    They are in the order of the combinations, of whose dimensions the last changes first; then by scale, then by
    repeat. The scale ``all``, in any case, means all that are documented. Whether a combination can be planned is
    not checked.

    Args:
        base: what all have in common; it stays as it is
        workspace: knows the recipes and the cluster
        dimensions: lists of values, as text, by dimension as ``dimension`` calls it, also ``workload`` and ``scale``;
            those with several values are in ``varied`` of the answer, as those of ``zipped`` are
        zipped: groups of dimensions that change together, with equally many values
        min_scale: the fewest GPUs of the documented scales to take; None: no bound
        max_scale: the most; both bounds are included
        repeats: how many runs of each combination, counted from 1 in ``JobSpec.repeat``
        spread: over how many days, beginning today, to spread the repeats, as evenly as can be (``JobSpec.days``)

    Raises:
        RequestError: a name or a number is wrong, a dimension is both in ``dimensions`` and ``zipped``, no scale is
            within the bounds, there are more than ``MOST`` combinations, jobs are to be spread and start at once
            here, or there is no installation
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecipeError: a recipe's catalogue cannot be read
    """
    scales = dimensions.get("scale", [])
    bounded = bool(min_scale or max_scale)
    _check_scales(scales, bounded=bounded)
    kind = workspace.cluster.cluster_type
    if spread > 1 and kind is not None:
        _require_queue(kind)
    assert workspace.install  # without one nothing can be planned: say so once
    given = _check_names(base, workspace, {name: values for name, values in dimensions.items() if values})
    for name in sorted(set(chain.from_iterable(zipped)).intersection(given)):
        raise RequestError(
            f"{name} is given both by itself and together with others", remedy="leave out one of the two"
        )
    # Each combination has documented scales of its own.
    given.pop("scale", None)
    first_values = {name: values[0] for name, values in given.items()}
    base = replace(changed_spec(base, first_values), varied={})
    several = {name: values for name, values in given.items() if len(values) > 1}
    scale_varies = bounded or len(scales) > 1 or _means_all_scales(scales)
    specs: list[JobSpec] = []
    for combination in combinations(several, zipped):
        spec = changed_spec(base, combination)
        for gpus in _requested_scales(spec, workspace, scales, min_scale, max_scale):
            at = changed_spec(spec, {"scale": gpus}) if scale_varies and gpus else spec.with_settings({"scale": gpus})
            for number in range(1, repeats + 1):
                day = (number - 1) * spread // repeats
                specs.append(replace(at, repeat=number, days=day))
    if not specs:
        low = f"--min-scale {min_scale}" if min_scale else ""
        high = f"--max-scale {max_scale}" if max_scale else ""
        bounds = " and ".join(filter(None, (low, high)))
        raise RequestError(
            f"no documented number of GPUs of {base.workload} fits {bounds or '--scale all'}",
            remedy="llmb-run list shows the documented numbers: widen the bounds, or name one with --scale",
        )
    return specs


def check_spread(repeats: int, apart: bool) -> None:
    """Refuse the option ``--spread-nodes`` (``apart``), repeats on different nodes, for a single run.

    Raises:
        RequestError: ``apart`` is set, and ``repeats`` is 1
    """
    if apart and repeats == 1:
        raise RequestError("--spread-nodes needs several repeats", remedy="--repeats N, or leave it out")


def spread_over(plan: JobPlan, repeats: int, days: int, record: RunRecord) -> list[JobPlan]:
    """Return ``plan`` once for each of ``repeats`` more runs, to begin on ``days`` days, as evenly as can be.

    Both numbers are at least 1. They are in order of their days, which begin at six in the morning where the run of
    ``record``, the one that is repeated, was submitted. The first day is today; or tomorrow, where that run was
    today's. Runs of today have ``plan`` itself, which may begin at once; those of later days have copies that begin
    so many days from this hour. Starts nothing.

    Raises:
        RequestError: the plan's jobs start at once, or its scheduler does not let jobs wait
    """
    _require_queue(plan.cluster_type)
    first = int(record.day == record.day_of(time.time()))
    begins = (first + number * days // repeats for number in range(repeats))
    return [plan.after_days(day) if day else plan for day in begins]


def _require_queue(kind: ClusterType) -> None:
    """Refuse the option ``--spread`` on a kind of cluster without a queue, where jobs start at once.

    Raises:
        RequestError: it has none
    """
    if not traits_of(kind).queued:
        raise RequestError(
            "--spread: jobs on this machine start at once",
            remedy="repeat the command on other days; results counts all repeats",
        )


def _means_all_scales(scales: Sequence[str]) -> bool:
    """Return whether any of ``scales`` is the word ``all``, in any case: it asks for all that the recipe documents.

    False without scales. Other scales beside that word do not matter.
    """
    return any(scale.lower() == "all" for scale in scales)


def _check_scales(scales: Sequence[str], *, bounded: bool) -> None:
    """Refuse scales that are neither ``all`` nor numbers of GPUs, or that are asked for in two ways.

    These are ``all`` beside numbers, and numbers beside bounds; ``all`` alone may have bounds. ``bounded``: whether
    ``--min-scale`` or ``--max-scale`` are given, too. Numbers go from 1 to 999999999. Passes without scales.

    Raises:
        RequestError: the scales are so
    """
    every = _means_all_scales(scales)
    if bounded and scales and not (every and len(scales) == 1):
        raise RequestError(
            f"--scale {','.join(scales)} and bounds cannot be combined",
            remedy="give the numbers of GPUs, or --min-scale and --max-scale (in a file min_scale and max_scale)",
        )
    if len(scales) > 1 and every:
        raise RequestError(
            f"--scale {','.join(scales)}: all includes the others", remedy="give all, or the numbers of GPUs"
        )
    for scale in scales:
        if scale.lower() != "all" and not re.fullmatch(r"[1-9][0-9]{0,8}", scale):
            raise RequestError(
                f"--scale {scale} is not a number of GPUs", remedy="llmb-run list shows the recipe's; or --scale all"
            )


def _check_names(base: JobSpec, workspace: Workspace, given: Dimensions) -> dict[str, Sequence[str]]:
    """Return ``given`` with workloads by their full names, after checking all names of workloads, sizes and dtypes.

    ``given`` has at least one value for each dimension that it has; without workloads, the one of ``base`` counts.
    The answer always has ``workload``, as its first key; all else is as given. Upper and lower case of sizes and
    dtypes are the same. One that only some of several workloads have passes. ``workspace`` knows the recipes.

    Raises:
        RequestError: a workload, size or dtype is in no recipe that is asked for, or there is no workload
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecipeError: a recipe's catalogue cannot be read
    """
    if "workload" not in given and not base.workload:
        raise RequestError("no workload is given", complete={"WORKLOAD": ""})
    names = given.get("workload") or [base.workload]
    recipes = [_planning_input(base.with_settings({"workload": name}), workspace).recipe for name in names]
    # What only another release here has is no slip: planning says which one.
    known = list(recipes)
    for recipe in recipes:
        known += workspace.adopted(recipe).values()
    for size in given.get("size", ()):
        # A size of one of several workloads is a combination; a size of none is a slip.
        if not any(size.lower() in recipe.sizes for recipe in known):
            recipes[0].model(size)
    for wanted in given.get("dtype", ()):
        configurations = chain.from_iterable(recipe.configurations for recipe in known)
        dtypes = sorted({configuration.dtype for configuration in configurations})
        if wanted.lower() not in dtypes:
            raise RequestError(f"--dtype {wanted}: no configuration has it", remedy=f"it is one of {', '.join(dtypes)}")
    others = {name: values for name, values in given.items() if name != "workload"}
    return {"workload": [recipe.workload for recipe in recipes], **others}


def _requested_scales(
    spec: JobSpec, workspace: Workspace, scales: Sequence[str], min_scale: int | None, max_scale: int | None
) -> list[str | None]:
    """Return the numbers of GPUs, as texts, for the combination ``spec``.

    They are ``scales`` as given, in their order, or for ``all`` or with a bound the documented numbers within the
    bounds, which are included, the smallest first; ``min_scale`` and ``max_scale`` are None where there is no
    bound. ``workspace`` knows the recipes. Where none are documented, or nothing is asked, it is the one scale that
    ``spec`` has, None where it has none: planning says what is wrong. Empty: none is within the bounds.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecipeError: a recipe's catalogue cannot be read
    """
    if scales and not _means_all_scales(scales):
        return [*scales]
    found: list[int] = []
    if scales or min_scale is not None or max_scale is not None:
        with suppress(RequestError):
            found = documented_scales(_planning_input(spec, workspace))
    if not found:
        return [spec.settings.get("scale")]
    least = min_scale or 1
    most = max(found) if max_scale is None else max_scale
    return [str(scale) for scale in found if least <= scale <= most]


def _planning_input(spec: JobSpec, workspace: Workspace) -> PlanningInput:
    """Return what there is to plan ``spec`` with, whatever its scale: recipe, functions, cluster, request, machine.

    ``workspace`` knows the recipes and the cluster.

    Raises:
        RequestError: there is no such workload, or the request is wrong
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecipeError: a recipe's catalogue cannot be read
    """
    recipe = workspace.workload(spec.workload).recipe
    request = read_request(variables_for(spec.with_settings({"scale": None}), workspace), names_for(spec))
    machine = detect_machine(workspace.cluster, request)
    return choose_functions(PlanningInput(recipe=recipe, cluster=workspace.cluster, request=request, machine=machine))
