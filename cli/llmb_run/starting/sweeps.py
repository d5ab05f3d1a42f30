"""What is varied of a job: dimensions, every combination of their values, and which of these can be planned.

A dimension is a column (``tp``), a variable of the job (``NCCL_ALGO``), a setting of the framework
(``model.moe_token_dispatcher_type``), or what a job is asked for by (``size``, ``dtype``, ``scale``, ``engine``,
``image``, ...). Dimensions that are zipped change together: ``tp=1,2 pp=4,2`` is two combinations.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import msgspec

from llmb_common.errors import RequestError, did_you_mean
from llmb_common.planning.choose import PlanningInput, documented_scales
from llmb_common.planning.engine import choose_functions
from llmb_common.planning.job_plan import JobPlan
from llmb_common.platform.cluster_types import ClusterType, traits_of
from llmb_common.request.read import read_request
from llmb_common.request.values import is_setting, pairs
from llmb_common.request.variables import COLUMNS, VARIABLES
from llmb_common.runs.record import RunRecord
from llmb_common.site.machine import look_at_machine
from llmb_common.submission.rounds import digest_of_plan
from llmb_run.starting.command_line import FIELDS, check_job_variable, columns_of
from llmb_run.starting.requests import JobSpec, PlannedJob, Refused, job_spec, names_for, variables_for
from llmb_run.terminal import split
from llmb_run.workspace import Workspace

MOST = 1000
"""Combinations of one command or task: planning them takes a few seconds, and nobody looks at more."""

Dimensions = Mapping[str, Sequence[str]]
"""Name of each dimension, and its values."""

NAMED = ("workload", "size", "dtype", "scale", "gpu_type", "variant", "engine", "image")
"""Dimensions that have options of their own."""


def once_each(outcomes: Iterable[PlannedJob | Refused]) -> tuple[list[PlannedJob], list[Refused]]:
    """What was planned, and what was not. A combination that is the same job as one before it is refused, too."""
    planned, refused = list[PlannedJob](), list[Refused]()
    known: dict[str, PlannedJob] = {}
    for outcome in outcomes:
        if isinstance(outcome, Refused):
            refused.append(outcome)
            continue
        said = msgspec.structs.replace(outcome.plan, overridden=())
        first = known.setdefault(digest_of_plan(said), outcome)
        if first.spec.varied == outcome.spec.varied:
            planned.append(outcome)
        else:
            error = RequestError(f"the same job as {first.spec.combination}", remedy="leave it out", code="same-job")
            refused.append(Refused(outcome.spec, error))
    return planned, refused


def combinations(dimensions: Dimensions, zipped: Sequence[Dimensions] = ()) -> list[dict[str, str]]:
    """Each combination as changes, in the order of the values; the last dimension changes first.

    Raises:
        RequestError: a dimension has no value or one twice, zipped ones have not as many as each other, or there are
            too many combinations
    """
    groups: list[list[dict[str, str]]] = [
        *([{name: value} for value in _once(name, values)] for name, values in dimensions.items()),
        *map(_zipped, zipped),
    ]
    names = [name for group in groups for name in group[0]]
    if twice := {name for name in names if names.count(name) > 1}:
        raise RequestError(f"{', '.join(sorted(twice))}: varied twice", remedy="give all its values at once")
    if (count := math.prod(map(len, groups))) > MOST:
        sizes = " x ".join(f"{len(group)} {' and '.join(group[0])}" for group in groups)
        raise RequestError(
            f"{count} combinations ({sizes}) are more than {MOST}", remedy="give fewer values, or zip dimensions"
        )
    return [{name: value for part in parts for name, value in part.items()} for parts in product(*groups)]


def _once(name: str, values: Sequence[str]) -> Sequence[str]:
    if not values:
        raise RequestError(f"{name} has no value", remedy=f"for example {name}=1,2")
    if len(set(values)) < len(values):
        again = next(value for value in values if values.count(value) > 1)
        raise RequestError(f"{name}: {again} is given twice", remedy="give each value once")
    return values


def _zipped(group: Dimensions) -> list[dict[str, str]]:
    counts = {name: len(values) for name, values in group.items()}
    if len(counts) < 2 or len(set(counts.values())) != 1 or 0 in counts.values():
        said = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise RequestError(
            f"values that change together are as many of each of several dimensions: {said or 'none is given'}",
            remedy="for example tp=1,2 pp=4,2",
        )
    rows = [dict(zip(group, values, strict=True)) for values in zip(*group.values(), strict=True)]
    _once(" and ".join(group), [" ".join(row.values()) for row in rows])
    return rows


def changed(spec: JobSpec, changes: Mapping[str, str | None]) -> JobSpec:
    """``spec`` with another value in each dimension of ``changes``, which are called as ``dimension`` calls them.

    None: the recipe has the choice.

    Raises:
        RequestError: a dimension cannot have that value
    """
    given = {name: value for name, value in changes.items() if value is not None}
    for name, value in given.items():
        if name in COLUMNS.values():
            columns_of([f"{name}={value}"])
        elif name not in NAMED and not is_setting(name):
            check_job_variable(name, value, name)
    return replace(spec.having(changes), varied={**spec.varied, **dict.fromkeys(changes, "-"), **given})


def dimension(text: str) -> str:
    """The dimension that ``text`` names: ``tp`` of ``TP``, ``scale`` of ``JOB_TOTAL_GPUS``.

    Raises:
        RequestError: it is none
    """
    name = text.strip().replace("-", "_")
    if is_setting(name):
        return name
    lower = FIELDS.get(name.upper(), name.lower())
    if lower in NAMED or lower in COLUMNS.values():
        return lower
    if name.isupper() and lower not in FIELDS.values():
        return name
    known = [*COLUMNS.values(), *NAMED, *(set(VARIABLES) - {*COLUMNS, *FIELDS})]
    near = did_you_mean(name.upper(), known) if name.upper() in known else did_you_mean(lower, known)
    raise RequestError(
        f"{text!r} cannot be varied{near}",
        remedy=f"a column ({', '.join(COLUMNS.values())}), {', '.join(NAMED)}, a variable of the job (NCCL_ALGO), "
        "or a setting of Megatron-Bridge (model.moe_token_dispatcher_type)",
        code="unknown-dimension",
    )


def dimensions_of(words: Iterable[str], option: str) -> dict[str, list[str]]:
    """``tp=1,2`` and the like as ``option`` gives them. A value in quotes or brackets may hold commas.

    Raises:
        RequestError: one is not NAME=VALUE,VALUE, or no dimension
    """
    found: dict[str, list[str]] = {}
    for word, values in pairs(words, option, f"{option} tp=1,2", form="NAME=VALUE,VALUE"):
        name = dimension(word)
        if name in found:
            raise RequestError(f"{option}: {name} is given twice", remedy="give all its values at once")
        found[name] = values_of(values, f"{option} {name}")
    return found


def values_of(text: str, where: str) -> list[str]:
    """The values of ``1,2``, ``"COLL,NET",ALL`` or ``[core_attn,mlp],[mlp]``.

    Raises:
        RequestError: one is empty, and not said to be by ``""``
    """
    parts = _parts(text)
    if not all(parts):
        raise RequestError(f"{where}: a value of {text!r} is empty", remedy="give every value, or leave it out")
    return [_without_quotes(part) for part in parts]


def one_value(value: str) -> str:
    """The text that ``values_of`` reads as this single value.

    Raises:
        RequestError: there is none
    """
    for text in (value, f'"{value}"'):
        if text and [_without_quotes(part) for part in _parts(text)] == [value]:
            return text
    raise RequestError(f"{value!r} cannot be written as one value, because of its commas and quotes")


def _parts(text: str) -> list[str]:
    """``text`` at its commas, but for those in quotes or brackets."""
    parts, depth, quoted = [""], 0, False
    for letter in text:
        quoted ^= letter == '"'
        depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and not quoted and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _without_quotes(part: str) -> str:
    return part[1:-1] if len(part) > 1 and part[0] == part[-1] == '"' else part


def spread_over(plan: JobPlan, repeats: int, days: int, record: RunRecord) -> list[JobPlan]:
    """``plan`` for each repeat of the run of ``record``, on so many days on which that did not run: from today on, or
    from tomorrow.

    Raises:
        RequestError: its jobs start at once
    """
    _require_queue(plan.cluster_type)
    first = int(record.day == record.day_of(time.time()))
    begins = (first + number * days // repeats for number in range(repeats))
    return [plan.after_days(day) if day else plan for day in begins]


def _require_queue(kind: ClusterType) -> None:
    if not traits_of(kind).queued:
        raise RequestError(
            "--spread: jobs on this machine start at once",
            remedy="repeat the command on other days; results counts all repeats",
        )


def many_jobs(
    *, workload: Sequence[str], size: Sequence[str], dtype: Sequence[str], scale: Sequence[str], **settings: Any
) -> tuple[JobSpec, dict[str, list[str]]]:
    """The options of ``options.many_jobs`` and ``options.job_settings``: what all jobs have, and the lists.

    Raises:
        RequestError: a value is not what it should be
    """
    lists = {"workload": workload, "size": size, "dtype": dtype, "scale": scale}
    return job_spec(**settings), {name: split(values) for name, values in lists.items()}


def sweep(
    base: JobSpec,
    workspace: Workspace,
    dimensions: Dimensions,
    zipped: Sequence[Dimensions] = (),
    *,
    min_scale: int | None = None,
    max_scale: int | None = None,
    repeats: int = 1,
    spread: int = 0,
) -> list[JobSpec]:
    """One spec per combination and repeat; a dimension without values leaves the choice to the recipe.

    The ``workload`` is among the dimensions. Scales are those given, or the documented ones where ``all`` or a bound is
    given. Repeats are spread evenly over ``spread`` days, beginning today.

    Raises:
        RequestError: a name or a number is wrong, or no scale is within the bounds
    """
    scales = dimensions.get("scale", [])
    _check_scales(scales, bounded=bool(min_scale or max_scale))
    kind = workspace.cluster.cluster_type
    if spread > 1 and kind is not None:
        _require_queue(kind)
    assert workspace.install  # without one nothing can be planned: say so once
    given = _check_names(base, workspace, {name: values for name, values in dimensions.items() if values})
    for name in sorted(set(given) & {name for group in zipped for name in group}):
        raise RequestError(f"{name} is given, and zipped", remedy="give its values once")
    given.pop("scale", None)
    base = replace(changed(base, {name: values[0] for name, values in given.items()}), varied={})
    several = {name: values for name, values in given.items() if len(values) > 1}
    specs: list[JobSpec] = []
    for combination in combinations(several, zipped):
        spec = changed(base, combination)
        for gpus in _scales(spec, workspace, scales, min_scale, max_scale):
            at = changed(spec, {"scale": gpus}) if len(scales) > 1 and gpus else spec.having({"scale": gpus})
            for number in range(1, repeats + 1):
                day = (number - 1) * spread // repeats
                specs.append(replace(at, repeat=number, days=day))
    if not specs:
        raise RequestError(
            "the recipe has no number of GPUs within the bounds", remedy="llmb-run list shows its numbers of GPUs"
        )
    return specs


def check_apart(repeats: int, apart: bool) -> None:
    """Raise RequestError where one run is to keep from the nodes of others."""
    if apart and repeats == 1:
        raise RequestError("--spread-nodes is about several repeats", remedy="--repeats N, or leave it out")


def _check_scales(scales: Sequence[str], *, bounded: bool) -> None:
    every = any(scale.lower() == "all" for scale in scales)
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
    """``given`` with workloads by their names, where none of its sizes and dtypes is a slip."""
    if "workload" not in given and not base.workload:
        raise RequestError("no workload is given", remedy="-w NAME; llmb-run list shows them")
    names = given.get("workload") or [base.workload]
    recipes = [_given(base.having({"workload": name}), workspace).recipe for name in names]
    for size in given.get("size", ()):
        # A size of one of several workloads is a combination; a size of none is a slip.
        if not any(size.lower() in recipe.sizes for recipe in recipes):
            recipes[0].model(size)
    for wanted in given.get("dtype", ()):
        known = sorted({configuration.dtype for recipe in recipes for configuration in recipe.configurations})
        if wanted.lower() not in known:
            raise RequestError(f"--dtype {wanted}: no configuration has it", remedy=f"it is one of {', '.join(known)}")
    return {"workload": [recipe.workload for recipe in recipes]} | {k: v for k, v in given.items() if k != "workload"}


def _scales(
    spec: JobSpec, workspace: Workspace, scales: Sequence[str], min_scale: int | None, max_scale: int | None
) -> list[str | None]:
    """The scales of one combination. One that cannot be planned keeps its own: planning says why, or leaves it out."""
    if scales and "all" not in [scale.lower() for scale in scales]:
        return [*scales]
    found: list[int] = []
    if scales or min_scale is not None or max_scale is not None:
        with suppress(RequestError):
            found = documented_scales(_given(spec, workspace))
    if not found:
        return [spec.settings.get("scale")]
    return [str(n) for n in found if (min_scale or 1) <= n and (max_scale is None or n <= max_scale)]


def _given(spec: JobSpec, workspace: Workspace) -> PlanningInput:
    """What there is to plan ``spec`` with, at any scale: the recipe has the functions of its release."""
    recipe = workspace.workload(spec.workload).recipe
    request = read_request(variables_for(spec.having({"scale": None}), workspace), names_for(spec))
    machine = look_at_machine(workspace.cluster, request)
    return choose_functions(PlanningInput(recipe=recipe, cluster=workspace.cluster, request=request, machine=machine))
