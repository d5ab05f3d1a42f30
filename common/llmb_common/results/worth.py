"""What published results say that a change of a configuration is worth: pairs of them that differ in nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from itertools import permutations
from typing import TypeAlias

import msgspec

from llmb_common.planning.job_plan import JobPlan
from llmb_common.platform.engines import container_release, release_order
from llmb_common.recipes.recipe import Recipe, find_row
from llmb_common.recipes.rows import Result
from llmb_common.request.columns import Columns
from llmb_common.results.references import release_spread

Facts: TypeAlias = Mapping[str, object]
_CONTAINER = "container"


class Worth(msgspec.Struct, frozen=True):
    """How the time for a token changes, as shares: -0.05 is 5 % less. ``of``: what was compared, in words."""

    low: float
    median: float
    high: float
    pairs: int
    of: str

    def __str__(self) -> str:
        span = f"{self.low:+.1%}" if self.low == self.high else f"{self.low:+.1%} to {self.high:+.1%}"
        return f"{span} in {self.pairs} pair{'s' if self.pairs != 1 else ''} of {self.of}"


def worth_of(before: JobPlan, after: JobPlan, recipe: Recipe) -> Worth | None:
    """What the change from one plan to the other is worth; None where no published results differ in just that.

    Results of the same model are compared, those of the plans' GPU type if there are any. Of a change of nothing but
    the container, of which they have no pair, it is how far one release is from the next (``release_spread``).
    """
    wanted = _apart(_of_plan(before), _of_plan(after))
    if not wanted:
        return None
    known = [_of_result(result, recipe) for result in recipe.results if result.size == before.model_size]
    pairs = [
        (one["gpu"], seconds / base - 1)
        for (one, base), (other, seconds) in permutations([item for item in known if item is not None], 2)
        if _apart(one, other) == wanted
    ]
    own = [ratio for gpu, ratio in pairs if gpu == before.gpu_type]
    if found := own or [ratio for _, ratio in pairs]:
        of = "published rows" if own else "published rows of other GPUs"
        return Worth(min(found), statistics.median(found), max(found), len(found), of)
    return _between_releases(before, wanted)


def _between_releases(plan: JobPlan, wanted: Mapping[str, tuple[object, object]]) -> Worth | None:
    one, other = wanted.get(_CONTAINER, (None, None))
    if wanted.keys() != {_CONTAINER} or not isinstance(one, tuple) or not isinstance(other, tuple):
        return None
    spread = release_spread(plan)
    changes = [spread.fastest, spread.median, spread.slowest]
    low, median, high = sorted(1 / (1 + change) - 1 for change in changes) if other < one else changes
    of = "published rows of consecutive releases (5th to 95th percentile, all models of its kind)"
    return Worth(low, median, high, spread.pairs, of)


def _apart(one: Facts, other: Facts) -> dict[str, tuple[object, object]]:
    names = dict.fromkeys([*one, *other])
    return {name: (one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)}


def _of_plan(plan: JobPlan) -> Facts:
    known = {
        "variant": plan.variant,
        "gpu": plan.gpu_type,
        "gpus": plan.gpus,
        **_precision(plan.dtype, plan.fp8_recipe),
    }
    return {**known, **_columns(plan), "gbs": plan.gbs, _CONTAINER: _order(container_release(plan.image))}


def _of_result(result: Result, recipe: Recipe) -> tuple[Facts, float] | None:
    """With its seconds for each sample and GPU; None where it has no row."""
    row = find_row(recipe, result)
    if row is None:
        return None
    gbs = row.global_batch_size(result.gpus)
    fp8 = result.fp8_recipe or recipe.variant(result.variant).fp8_recipe
    known = {"variant": result.variant, "gpu": result.gpu, "gpus": result.gpus, **_precision(result.dtype, fp8)}
    release = _order(result.container or recipe.document(result).container)
    # Of a plan these two are None: rows of one model and scale have the same.
    more = {"layers": row.layers, "sequence_length": row.sequence_length}
    facts = {**known, **_columns(row), **more, "gbs": gbs, _CONTAINER: release}
    return facts, result.step_seconds * result.gpus / gbs


def _precision(dtype: str, fp8_recipe: str | None) -> Facts:
    return {"dtype": dtype, "fp8_recipe": fp8_recipe if dtype == "fp8" else None}


def _columns(item: Columns[int] | Columns[str]) -> Facts:
    return {name: getattr(item, name) or 0 for name in Columns.__struct_fields__ if name != "gbs"} | {
        name: getattr(item, name) or 1 for name in ("vp", "ep", "etp")
    }


def _order(release: str | None) -> tuple[int, ...] | None:
    return release_order(release) if release else None
