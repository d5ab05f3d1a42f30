"""How speed grows with the number of GPUs: one line for each kind of job, beside what was published for it.

Efficiency is tokens/s per GPU over that of the line's smallest scale. That holds for weak scaling, where the global
batch grows with the GPUs as the recipes document it, and for strong scaling, where it stays the same
(``STRONG_SCALING``); the two are never one line. Its interval is that of the ratio of the step times at the two scales
(``comparison``): of the runs' scatter at both, on logarithms, by Student's t.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from llmb_common.base.engines import container_release
from llmb_common.base.errors import RequestError
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.published import published_results
from llmb_common.recipes.model import tokens_per_second
from llmb_common.recipes.recipe import Recipe, find_row
from llmb_common.recipes.rows import PublishedResult
from llmb_common.results.comparison import compare_times
from llmb_common.results.configuration import aspects, deviations, kind_of_job
from llmb_common.results.scatter import STATED, Scatter
from llmb_common.results.steps import StepTime

Kind: TypeAlias = Literal["weak", "strong"]


class ScaledRun(NamedTuple):
    """One successful run that may become part of a scaling line: its plan, recipe, software, and step time.

    ``software`` is the text of ``software_of``. ``seconds`` is the steady step time, above 0; ``time`` has it with
    its error and its stalls, None where these are not known. ``scatter`` is how much repeats differ at this site. The
    property ``steady`` is a copy of ``time`` without its stalls; where that is None, one of ``seconds`` with an error
    of 0. Whoever calls ``scaling`` makes it, and nothing is checked.
    """

    plan: JobPlan
    recipe: Recipe
    software: str
    seconds: float
    time: StepTime | None = None
    scatter: Scatter = STATED

    @property
    def steady(self) -> StepTime:
        """The run's step time without stalls; with an error of 0 where ``time`` is None."""
        return msgspec.structs.replace(self.time, stalls=()) if self.time else StepTime(self.seconds, 0.0, count=0)


@dataclass(frozen=True)
class PublishedPoint:
    """A result that NVIDIA published at one number of GPUs, for the same kind of job as a scaling line.

    ``tokens_per_second`` is that of the whole job. ``efficiency`` is tokens/s per GPU as a fraction of those of the
    published result at the line's smallest scale (1.0 there); None where there is none. ``source`` says for people
    where it was published, and with which framework and container. ``scaling`` makes it.
    """

    gpus: int
    tokens_per_second: float
    efficiency: float | None
    source: str


@dataclass(frozen=True)
class ScalePoint:
    """One number of GPUs on a scaling line: the mean over ``runs`` runs, and the efficiency.

    ``gbs`` is the global batch size in samples, ``seconds`` the mean of the runs' steady step times,
    ``tokens_per_second`` that of the whole job. The efficiency is tokens/s per GPU as a fraction of those at the
    line's smallest scale (above 1: better), with the bounds ``efficiency_low`` and ``efficiency_high`` at a
    verdict's confidence; the smallest scale has 1.0, and None as bounds. ``published`` None: nothing was published
    at this scale. ``scaling`` makes it.
    """

    gpus: int
    gbs: int
    runs: int
    seconds: float
    tokens_per_second: float
    efficiency: float
    published: PublishedPoint | None = None
    efficiency_low: float | None = None
    efficiency_high: float | None = None


@dataclass(frozen=True)
class ScalingLine:
    """How one kind of job scales: its ``points`` at two or more numbers of GPUs, the smallest first.

    ``title`` names the job without its scale. ``kind`` weak: the batch per GPU is the same; strong: the whole batch is.
    ``published`` is what NVIDIA published for this kind of job, the smallest scale first, also at scales that were not
    run; empty for strong lines. ``scaling`` makes it, with ``software`` as text such as ``nemo:26.02.01``.
    """

    title: str
    software: str
    kind: Kind
    points: tuple[ScalePoint, ...]
    published: tuple[PublishedPoint, ...] = field(default=())


def scaling(runs: Iterable[ScaledRun]) -> list[ScalingLine]:
    """Return the scaling lines that ``runs`` make, in the order of the first runs of each kind of job.

    Of one kind, weak lines (one for each batch per GPU) come before strong ones (one for each whole batch). Runs
    belong together if they have the same ``software`` and differ in nothing but scale, layout and batch size; a
    layout column that somebody overrode must be the same, too. A run may be on a weak and on a strong line. Empty
    where no kind of job ran at two scales.

    Raises:
        RecipeError: a file of a run's recipe cannot be read, or is damaged
    """
    families: dict[tuple[object, ...], list[ScaledRun]] = {}
    for run in runs:
        plan = run.plan
        # The layout may follow the scale, but not what somebody overrode.
        overridden = tuple((name, getattr(plan, name, None)) for name in sorted(plan.overridden) if name != "gbs")
        same = {name: value for name, value in aspects(plan, "work", "speed").items() if name != "gbs"}
        family = json.dumps(same, sort_keys=True), run.software, overridden
        families.setdefault(family, []).append(run)
    return list(chain.from_iterable(map(_lines_of_family, families.values())))


def _lines_of_family(family: Sequence[ScaledRun]) -> Iterable[ScalingLine]:
    """Yield the weak, then the strong scaling lines of runs that differ in scale and batch alone.

    ``family`` are these runs, at least one. Weak: the batch per GPU is the same. Strong: the whole batch is. A run
    may be on one of each; runs at a single scale make no line.

    Raises:
        RecipeError: a file of a run's recipe cannot be read, or is damaged
    """
    kinds: tuple[Kind, ...] = ("weak", "strong")
    for kind in kinds:
        together: dict[float, dict[int, list[ScaledRun]]] = {}
        for run in family:
            batch = run.plan.gbs / run.plan.gpus if kind == "weak" else run.plan.gbs
            together.setdefault(batch, {}).setdefault(run.plan.gpus, []).append(run)
        for scales in together.values():
            if len(scales) > 1:
                yield _scaling_line(kind, [scales[gpus] for gpus in sorted(scales)])


def _scaling_line(kind: Kind, scales: Sequence[Sequence[ScaledRun]]) -> ScalingLine:
    """Return the scaling line of runs that are grouped by number of GPUs, the smallest first, each group with a run.

    ``scales`` are these groups, two or more, and ``kind`` what they were grouped for, which is not checked. Its
    title, software and published results are by the first run. Published points are added to weak lines only.

    Raises:
        RecipeError: a file of the recipe cannot be read, or is damaged
    """
    first = scales[0][0]
    plan = first.plan
    published = _published_points(first, plan.gpus) if kind == "weak" else ()
    by_scale = {item.gpus: item for item in published}
    points = tuple(_scale_point(runs, scales[0], by_scale.get(runs[0].plan.gpus)) for runs in scales)
    return ScalingLine(
        f"{kind_of_job(plan)} on {plan.gpu_type}{deviations(plan)}", first.software, kind, points, published
    )


def _scale_point(runs: Sequence[ScaledRun], base: Sequence[ScaledRun], published: PublishedPoint | None) -> ScalePoint:
    """Return the point of a scaling line for ``runs``, at least one, all at one number of GPUs.

    Its efficiency is against ``base``, the runs at the smallest scale; where ``runs`` is the very same object, it is
    1.0 without bounds. ``published`` is the point's published result, or None.
    """
    plan, seconds = runs[0].plan, fmean(run.seconds for run in runs)
    rate = tokens_per_second(plan.seq_len, plan.gbs, seconds)
    if runs is base:
        return ScalePoint(plan.gpus, plan.gbs, len(runs), seconds, rate, 1.0, published)
    smallest = base[0].plan
    work = plan.gbs / plan.gpus / (smallest.gbs / smallest.gpus)
    efficiency = work * fmean(run.seconds for run in base) / seconds
    steady = [run.steady for run in runs]
    base_steady = [run.steady for run in base]
    change = compare_times(steady, base_steady, runs[0].scatter)
    # How sure it is depends on the steady steps, and is laid around the efficiency of the means.
    bounds = (efficiency * bound / change.ratio for bound in (change.low, change.high))
    return ScalePoint(plan.gpus, plan.gbs, len(runs), seconds, rate, efficiency, published, *bounds)


def _published_points(run: ScaledRun, base: int) -> tuple[PublishedPoint, ...]:
    """Return what NVIDIA published for the run's kind of job at each number of GPUs, the smallest first.

    Of several documents the one nearest to the run's software counts. Efficiencies are against the result at ``base``
    GPUs, None where there is none. Empty: nothing was published. Left out are results without a row in the recipe, of
    another number of layers, or whose row's batch size is no whole number there.

    Raises:
        RecipeError: a file of the recipe cannot be read, or is damaged
    """
    found: dict[int, tuple[PublishedResult, int]] = {}
    for result in run.recipe.results:
        row = find_row(run.recipe, result)
        if row is None or result.gpus in found or row.layers not in (None, run.plan.layers):
            continue  # a proxy has as many layers as its scale allows: another model at every scale
        try:
            gbs = row.global_batch_size(result.gpus)
        except RequestError:
            continue
        plan_at_scale = msgspec.structs.replace(run.plan, gpus=result.gpus, gbs=gbs)
        if best := published_results(plan_at_scale, run.recipe):
            found[result.gpus] = best[0], gbs
    rates = {
        gpus: tokens_per_second(run.plan.seq_len, gbs, result.step_seconds)
        for gpus, (result, gbs) in sorted(found.items())
    }
    points = []
    for gpus, rate in rates.items():
        document = run.recipe.document(found[gpus][0])
        container = container_release(f"nemo:{document.container}") or "?"
        source = f"{document.title}, {document.framework}, nemo:{container}"
        efficiency = rate / gpus / (rates[base] / base) if base in rates else None
        points.append(PublishedPoint(gpus, rate, efficiency, source))
    return tuple(points)
