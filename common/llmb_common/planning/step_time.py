"""How long a step will take: a band, and the class of knowledge that it comes from.

This site's own runs come first, then published results, then the work alone. A step takes a weighted sum of the seconds
that each part of the hardware needs for its share at its full rate, the weights being how far from it each part runs.
All parts are one GPU's, with the pipeline's bubble. Counted are the products of matrices (6 FLOPs per weight and
token), the causal half of attention, and per token and layer the bytes that element-wise kernels, tensor parallelism
(five all-gathers and reduce-scatters) and the exchange of experts' tokens (dispatch and combine, forward and backward)
move.

``step_times.json`` beside the shipped recipes is written by ``tools.step_times``. It holds the weights, what is left of
each published result beside them (``rows``), and by class of knowledge and kind of model how far predictions were from
results that they did not know (``bands``).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

import llmb_common.recipes
from llmb_common.decoding.structs import read_generated
from llmb_common.planning.divisibility import Layout
from llmb_common.planning.job_plan import CheckpointPlan, JobPlan, PlannedFunction
from llmb_common.planning.published import published_results
from llmb_common.platform.engines import container_release, release_order, same_release
from llmb_common.platform.gpus import GPUS, Gpu
from llmb_common.recipes.model import AnyShape, Architecture, Shape, model_flops
from llmb_common.recipes.recipe import Recipe
from llmb_common.recipes.rows import precision

_LEAST_HIDDEN = 1024
"""Smaller models wait for launches: no published result says how long."""

_HEAD = 128
"""Head size where a catalogue does not say it."""

_MOST_OF_EXPERTS = 0.6
"""Share of the products that experts have at most: of hybrids a catalogue does not say which layers have them."""


class Work(msgspec.Struct, frozen=True):
    """What decides how long a step takes. ``flops_per_token``: of forward and backward; ``container``: its release."""

    layout: Layout
    gpu_type: str
    dtype: str
    fp8_recipe: str | None
    container: str | None
    sequence_length: int
    shape: AnyShape
    flops_per_token: float

    @property
    def kind(self) -> str:
        return "dense" if self.shape.moe is None else "MoE"

    @property
    def precision(self) -> str:
        return precision(self.dtype, self.fp8_recipe)

    @property
    def model(self) -> str:
        """The same for the same layers, whatever a recipe calls them and however many there are."""
        shape = self.shape
        experts = shape.moe.experts if shape.moe else 0
        return f"{shape.hidden}-{shape.heads}-{shape.query_groups}-{shape.ffn or 0}-{experts}"


def work_of(plan: JobPlan, recipe: Recipe) -> Work | None:
    """The work of the plan's steps; None where no published result is like it: CPUs, small models, fine-tuning."""
    shape: AnyShape | None
    if plan.function is not None:
        shape, per_token = _pretrained(plan.function, recipe), plan.function.flops_per_token
    else:
        shape = plan.architecture
        per_token = model_flops(plan.architecture, plan.seq_len).total / plan.seq_len if plan.architecture else None
    gpu = GPUS.get(plan.gpu_type)
    if shape is None or per_token is None or shape.hidden < _LEAST_HIDDEN:
        return None
    if gpu is None or plan.dtype not in gpu.peaks or not gpu.memory_bandwidth:
        return None
    return Work(
        layout=plan.layout,
        gpu_type=plan.gpu_type,
        dtype=plan.dtype,
        fp8_recipe=plan.fp8_recipe,
        container=container_release(plan.image),
        sequence_length=plan.seq_len,
        shape=shape,
        flops_per_token=per_token,
    )


def _pretrained(function: PlannedFunction, recipe: Recipe) -> Shape | None:
    """The model of a function for pretraining; None of one that only a site's own release has."""
    catalogue = recipe.of_release(function.release).catalogue
    if catalogue is None or not any(
        entry.name == function.name and entry.task == "pretrain" for entry in catalogue.index
    ):
        return None
    return catalogue.function(function.name).architecture


def seconds_by_part(work: Work) -> dict[str, float]:
    """Seconds of a step at full rate, by what needs them; parts that a job does not have are missing or 0."""
    layout, shape, gpu = work.layout, work.shape, GPUS[work.gpu_type]
    tokens = layout.gbs * work.sequence_length / layout.gpus
    half, dense = (gpu.sustained(dtype) * 1e12 for dtype in ("bf16", work.dtype))
    products = tokens * work.flops_per_token
    per_token = 6 * work.sequence_length * attention_columns(shape) + 6 * shape.hidden * (shape.vocabulary or 0)
    in_bf16 = min(tokens * per_token, products / 2)
    experts, routed = _experts(shape, tokens, products - in_bf16)
    generation = f"{gpu.generation} {work.dtype}"
    found = {generation: (products - in_bf16 - experts) / dense, "experts": experts / dense, "bf16": in_bf16 / half}
    found["tensor"] = 20 * tokens * shape.layers * shape.hidden * (layout.tp - 1) / gpu.nvlink
    if shape.moe is not None:
        columns = shape.moe.top_k * shape.moe.ffn + (shape.moe.shared_ffn or 0)
        width = 28 * shape.hidden + 6 * columns + (0 if work.dtype == "bf16" else 4 * (3 * shape.hidden + columns))
        found["memory"] = 3 * (tokens * shape.layers * width + 8 * routed) / gpu.memory_bandwidth
        ranks = layout.ep or 1
        inside = min(1.0, gpu.nvlink_gpus / ranks)
        exchanged = 6 * routed * (ranks - 1) / ranks
        found["exchange by NVLink"] = exchanged * inside / gpu.nvlink
        found["exchange by network"] = exchanged * (1 - inside) / gpu.network
        found["launches"] = 1e-3 * layout.ga * shape.layers / layout.pp
    bubble = 1 + (layout.pp - 1) / ((layout.vp or 1) * layout.ga)
    found = {name: seconds * bubble for name, seconds in found.items()}
    if layout.fsdp:
        weights = (products - experts) / tokens / 6 / (layout.tp * layout.pp)
        found["FSDP"] = layout.ga * weights * (6 if work.dtype == "bf16" else 4) / _between_ranks(gpu, layout)
    return found


def _experts(shape: AnyShape, tokens: float, products: float) -> tuple[float, float]:
    """FLOPs of the routed experts, and what is routed: tokens times columns, of all layers."""
    if shape.moe is None:
        return 0.0, 0.0
    layers = shape.layers // shape.moe.every
    counted = min(18 * shape.hidden * shape.moe.ffn * shape.moe.top_k * layers * tokens, _MOST_OF_EXPERTS * products)
    return counted, counted / (18 * shape.moe.ffn)


def _between_ranks(gpu: Gpu, layout: Layout) -> float:
    """Bytes/s of a rank among those that share weights."""
    if layout.gpus <= gpu.nvlink_gpus:
        return gpu.nvlink
    return min(gpu.nvlink, gpu.network * max(1, min(8, gpu.nvlink_gpus // layout.tp)))


def attention_columns(shape: AnyShape) -> int:
    """Columns of all attention layers; 0 for hybrids, most of whose layers have none."""
    if isinstance(shape, Architecture):
        return shape.layers * shape.heads * shape.head_dim
    return 0 if shape.provider.startswith("Hybrid") else shape.layers * shape.heads * _HEAD


FILE = Path(llmb_common.recipes.__file__).with_name("step_times.json")

CLASSES = {
    "own runs": "runs of exactly this job at this site",
    "published": "the published result of this job in this container",
    "other container": "the published result of this job in another container",
    "other layout": "results of this model on this GPU type, in other layouts, frameworks or numbers of GPUs",
    "other GPU type": "results of this model on other GPU types only",
    "new model": "results of other models only",
}
"""What a prediction can know, the best first, in words."""

_FAR = 0.4
"""A result at this distance counts e times less than one of the same configuration."""

_DISTANCES = {"container": 0.2, "precision": 0.5, "gpu": 0.5, "column": 0.25}
"""Between two results: of each release between their containers, and of each thing in which they differ."""

_SHRINK = 0.3
"""How much the model alone counts beside its nearest result."""


class Band(NamedTuple):
    """Seconds of a step: most likely, and between what at least 90 of 100 steps' times lie. ``knowledge``: a class."""

    seconds: float
    low: float
    high: float
    knowledge: str


class Residual(msgspec.Struct, frozen=True, array_like=True):
    """A result by its job, and ``left``: the natural logarithm of its time over what the weights make of its work."""

    model: str
    gpu: str
    precision: str
    container: str
    columns: tuple[int, ...]
    left: float


class Width(msgspec.Struct, frozen=True):
    """How wide the band of a class is. ``half``: of the logarithm. The rest says how that was found.

    ``rows``: errors, of so many ``groups`` (models, or configurations), with their ``median``; ``coverage``: the share
    of them that lie inside a band of the same ``level`` that is made from other groups' errors.
    """

    half: float
    level: float
    rows: int
    groups: int
    median: float
    coverage: float


class Learned(msgspec.Struct, frozen=True):
    """The content of ``step_times.json``; ``bands`` by class and kind of model."""

    containers: tuple[str, ...]
    weights: dict[str, float]
    bands: dict[str, dict[str, Width]]
    rows: tuple[Residual, ...]


@lru_cache(maxsize=1)
def learned() -> Learned:
    """What the published results say."""
    found: Learned = read_generated(FILE, Learned, remedy="write it again: python -m tools.step_times --write")
    return found


def predict(
    work: Work, known: tuple[float, bool] | None, own: Iterable[tuple[Work, float]] = (), what: Learned | None = None
) -> Band | None:
    """How long a step of ``work`` takes; None where nothing can be said.

    Args:
        work: what is asked for
        known: seconds of the published result of exactly this job, and whether in this container
        own: this site's runs of the same model, each with its step time in seconds
    """
    what = what or learned()
    if known is not None:
        seconds, here = known
        return banded(seconds, "published" if here else "other container", work.kind, what)
    if not seconds_by_part(work).keys() <= what.weights.keys():
        return None  # of a generation without results
    mine = known_of(work, 0.0)
    rows = [*(row for row in what.rows if row.model == mine.model)]
    rows += [known_of(run, math.log(seconds / modelled(run, what))) for run, seconds in own]
    knowledge = "new model" if not rows else "other GPU type"
    if any(row.gpu == mine.gpu for row in rows):
        knowledge = "other layout"
    seconds = modelled(work, what) * math.exp(anchor(mine, rows, what.containers))
    return banded(seconds, knowledge, work.kind, what)


def banded(seconds: float, knowledge: str, kind: str, what: Learned) -> Band | None:
    """``seconds`` with the class's band; None where too few results say how wide that is."""
    width = what.bands[knowledge].get(kind)
    if width is None:
        return None
    return Band(seconds, seconds * math.exp(-width.half), seconds * math.exp(width.half), knowledge)


def known_of(work: Work, left: float) -> Residual:
    """``work`` as a result."""
    layout = work.layout
    columns = (layout.tp, layout.pp, layout.cp, layout.vp or 1, layout.ep or 1, layout.mbs, int(layout.fsdp))
    return Residual(work.model, work.gpu_type, work.precision, work.container or "", columns, left)


def modelled(work: Work, what: Learned) -> float:
    """Seconds of a step by its work alone."""
    return math.fsum(seconds * what.weights[name] for name, seconds in seconds_by_part(work).items())


def anchor(mine: Residual, rows: Sequence[Residual], containers: Sequence[str]) -> float:
    """What results of the same model have left, the nearest most: to add to the logarithm of a prediction."""
    if not rows:
        return 0.0
    near = [math.exp(-_distance(mine, row, containers) / _FAR) for row in rows]
    return math.fsum(a * row.left for a, row in zip(near, rows, strict=True)) / (math.fsum(near) + _SHRINK * max(near))


def _distance(one: Residual, other: Residual, containers: Sequence[str]) -> float:
    apart = abs(position_of(one.container, containers) - position_of(other.container, containers))
    columns = sum(a != b for a, b in zip(one.columns, other.columns, strict=True))
    return (
        _DISTANCES["container"] * apart
        + _DISTANCES["column"] * columns
        + _DISTANCES["precision"] * (one.precision != other.precision)
        + _DISTANCES["gpu"] * (one.gpu != other.gpu)
    )


def position_of(container: str, containers: Sequence[str]) -> int:
    """The release's position in the order of those that results are known of; an unknown one is newer than all."""
    if not container:
        return len(containers)
    return bisect_right([release_order(name) for name in containers], release_order(container))


@dataclass(frozen=True)
class SiteTimes:
    """What this site's runs say of a job that is planned."""

    same: Band | None = None
    """Step times of runs of exactly this job, with this software."""
    alike: Iterable[tuple[JobPlan, float]] = ()
    """The newest runs of the same model, each with the seconds of its steps: read where nothing nearer is known."""
    memory: Callable[[str], Sequence[float]] = lambda kind: ()
    """Of runs of a kind (``memory.kind_of``) in this software: peak of memory over the predicted one."""


Look = Callable[[JobPlan], SiteTimes]
"""Looks for what was measured; plans themselves read no file."""


def expected(plan: JobPlan, recipe: Recipe, own: SiteTimes = SiteTimes()) -> Band | None:
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
    at = position_of(own or "", containers)
    seconds, container = min(found, key=lambda item: abs(position_of(item[1], containers) - at))
    return seconds, same_release(own, container)
