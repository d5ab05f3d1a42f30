"""What is known of a plan's step time: this site's own runs first, then published results, then the work alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from llmb_common.planning.job_plan import CheckpointPlan, JobPlan
from llmb_common.planning.published import published_results
from llmb_common.planning.step_time.bands import Band, learned, place_of, predict
from llmb_common.planning.step_time.work import work_of
from llmb_common.recipes.recipe import Recipe
from llmb_common.recipes.releases import container_release, same_release


@dataclass(frozen=True)
class Measured:
    """What this site's runs say of a job that is planned."""

    same: Band | None = None
    """Step times of runs of exactly this job, with this software."""
    alike: Iterable[tuple[JobPlan, float]] = ()
    """The newest runs of the same model, each with the seconds of its steps: read where nothing nearer is known."""
    watts: float | None = None
    """Mean power of a GPU in the newest of all these runs that measured it."""
    memory: Callable[[str], Sequence[float]] = lambda kind: ()
    """Of runs of a kind (``memory.kinds``) in this software: peak of memory over the predicted one."""


NOTHING_MEASURED = Measured()

Look = Callable[[JobPlan], Measured]
"""Looks for what was measured; plans themselves read no file."""


def expected(plan: JobPlan, recipe: Recipe, own: Measured = NOTHING_MEASURED) -> Band | None:
    """The step time of ``plan``, without what it does beside training; None where nothing says it."""
    if own.same is not None:
        return own.same
    work = work_of(plan, recipe)
    if work is None:
        return None
    alike = ((done, seconds) for run, seconds in own.alike if (done := work_of(run, recipe)) is not None)
    return predict(work, _published(plan, recipe), alike)


def _published(plan: JobPlan, recipe: Recipe) -> tuple[float, bool] | None:
    """Seconds of the result of exactly this job in the container nearest to its own, and whether that is its own.

    One of another framework is a result of the same model, and no more.
    """
    bare = msgspec.structs.replace(plan, checkpoint=CheckpointPlan(), profile=None, nccl_trace=False)
    found = [
        (result.step_seconds, recipe.document(result).container or "")
        for result in published_results(bare, recipe)
        if recipe.document(result).framework == "Megatron-Bridge"
    ]
    own, containers = container_release(plan.image), learned().containers
    if not found:
        return None
    at = place_of(own or "", containers)
    seconds, container = min(found, key=lambda item: abs(place_of(item[1], containers) - at))
    return seconds, same_release(own, container)
