"""Combinations of workloads, sizes, dtypes and scales as single asks."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llmb_common.errors import RequestError
from llmb_common.planning import choose
from llmb_common.planning.choose import Given
from llmb_common.planning.engine import choose_functions
from llmb_common.planning.job_plan import JobPlan
from llmb_common.platform.cluster_types import ClusterType, traits_of
from llmb_common.request.read import read_request
from llmb_common.runs.record import RunRecord
from llmb_common.site.machine import look_at_machine
from llmb_run.place import Place
from llmb_run.starting.requests import Ask, ask_of, names_for, variables_for
from llmb_run.starting.varying import Dimensions, changed, combinations
from llmb_run.words import split


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
) -> tuple[Ask, dict[str, list[str]]]:
    """The options of ``options.many_jobs`` and ``options.job_settings``: what all jobs have, and the lists.

    Raises:
        RequestError: a value is not what it should be
    """
    lists = {"workload": workload, "size": size, "dtype": dtype, "scale": scale}
    return ask_of(**settings), {name: split(values) for name, values in lists.items()}


def sweep(
    base: Ask,
    place: Place,
    dimensions: Dimensions,
    zipped: Sequence[Dimensions] = (),
    *,
    min_scale: int | None = None,
    max_scale: int | None = None,
    repeats: int = 1,
    spread: int = 0,
    apart: bool = False,
) -> list[Ask]:
    """One ask per combination and repeat; a dimension without values leaves the choice to the recipe.

    The ``workload`` is among the dimensions. Scales are those given, or the documented ones where ``all`` or a bound is
    given. Repeats are spread evenly over ``spread`` days, beginning today. ``apart``: they are to have different nodes.

    Raises:
        RequestError: a name or a number is wrong, or no scale is within the bounds
    """
    check_apart(repeats, apart=apart)
    given = {name: values for name, values in dimensions.items() if values}
    scales = given.get("scale", [])
    _check_scales(scales, bounded=bool(min_scale or max_scale))
    kind = place.cluster.cluster_type
    if spread > 1 and kind is not None:
        _require_queue(kind)
    assert place.install  # without one nothing can be planned: say so once
    given = _check_names(base, place, given)
    for name in sorted(set(given) & {name for group in zipped for name in group}):
        raise RequestError(f"{name} is given, and zipped", remedy="give its values once")
    single = {name: values[0] for name, values in given.items() if len(values) == 1 and name != "scale"}
    several = {name: values for name, values in given.items() if len(values) > 1 and name != "scale"}
    base = replace(changed(base, single), varied={})
    asks: list[Ask] = []
    for combination in combinations(several, zipped):
        ask = changed(base, combination)
        for gpus in _scales(ask, place, scales, min_scale, max_scale):
            at = changed(ask, {"scale": gpus}) if len(scales) > 1 and gpus else replace(ask, scale=gpus)
            for number in range(1, repeats + 1):
                day = (number - 1) * spread // repeats
                asks.append(replace(at, repeat=number, days=day))
    if not asks:
        raise RequestError(
            "the recipe has no number of GPUs within the bounds", remedy="llmb-run list shows its numbers of GPUs"
        )
    return asks


def check_apart(repeats: int, *, apart: bool) -> None:
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


def _check_names(base: Ask, place: Place, given: Dimensions) -> dict[str, Sequence[str]]:
    """``given`` with workloads by their names, where none of its sizes and dtypes is a slip."""
    if "workload" not in given and not base.workload:
        raise RequestError("no workload is given", remedy="-w NAME; llmb-run list shows them")
    names = given.get("workload") or [base.workload]
    recipes = [_given(replace(base, workload=name), place).recipe for name in names]
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
    ask: Ask, place: Place, scales: Sequence[str], min_scale: int | None, max_scale: int | None
) -> list[str | None]:
    """The scales of one combination. One that cannot be planned keeps its own: planning says why, or leaves it out."""
    bounded = min_scale is not None or max_scale is not None
    if not scales and not bounded:
        return [ask.scale]
    if not scales or "all" in [scale.lower() for scale in scales]:
        try:
            found = documented_scales(ask, place)
        except RequestError:
            found = []
        if not found:
            return [ask.scale]
    else:
        found = [int(scale) for scale in scales]
    return [str(n) for n in found if (min_scale or 1) <= n and (max_scale is None or n <= max_scale)]


def documented_scales(ask: Ask, place: Place) -> list[int]:
    """The scales that the recipe documents for ``ask`` (its own ``scale`` is not looked at)."""
    return choose.documented_scales(_given(ask, place))


def _given(ask: Ask, place: Place) -> Given:
    """What there is to plan ``ask`` with: the recipe has the functions of its release."""
    recipe = place.workload(ask.workload).recipe
    request = read_request(variables_for(replace(ask, scale=None), place), names_for(ask))
    machine = look_at_machine(place.cluster, request)
    return choose_functions(Given(recipe=recipe, cluster=place.cluster, request=request, machine=machine))
