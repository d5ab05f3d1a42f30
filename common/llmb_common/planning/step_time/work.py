"""The work of a training step: the seconds that each part of the hardware needs for its share at its full rate.

A step takes a weighted sum of them, the weights being how far from its full rate each part runs (``bands``). All parts
are one GPU's, with the pipeline's bubble. Counted are the products of matrices (6 FLOPs per weight and token), the
causal half of attention, and per token and layer the bytes that element-wise kernels, tensor parallelism (five
all-gathers and reduce-scatters) and the exchange of experts' tokens (dispatch and combine, forward and backward) move.
"""

from __future__ import annotations

import msgspec

from llmb_common.planning.divisibility import Layout
from llmb_common.planning.job_plan import JobPlan, PlannedFunction
from llmb_common.platform.gpus import GPUS, Gpu
from llmb_common.recipes import flops
from llmb_common.recipes.model import AnyShape, Architecture, Shape
from llmb_common.recipes.recipe import Recipe
from llmb_common.recipes.releases import container_release
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
    if plan.function is None:
        shape: AnyShape | None = plan.architecture
        per_token = (
            flops.model_flops(plan.architecture, plan.seq_len).total / plan.seq_len if plan.architecture else None
        )
    else:
        shape, per_token = _pretrained(plan.function, recipe), plan.function.flops_per_token
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
    entries = catalogue.index if catalogue is not None else ()
    known = any(entry.name == function.name and entry.task == "pretrain" for entry in entries)
    return catalogue.function(function.name).architecture if catalogue is not None and known else None


def seconds_by_part(work: Work) -> dict[str, float]:
    """Seconds of a step at full rate, by what needs them; parts that a job does not have are missing or 0."""
    layout, shape, gpu = work.layout, work.shape, GPUS[work.gpu_type]
    tokens = layout.gbs * work.sequence_length / layout.gpus
    half, dense = (gpu.sustained(dtype) * 1e12 for dtype in ("bf16", work.dtype))
    in_bf16 = tokens * (
        6 * work.sequence_length * attention_columns(shape) + 6 * shape.hidden * (shape.vocabulary or 0)
    )
    products = tokens * work.flops_per_token
    in_bf16 = min(in_bf16, products / 2)
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


def attention_columns(shape: AnyShape) -> int:
    """Columns of all attention layers; 0 for hybrids, most of whose layers have none."""
    if isinstance(shape, Architecture):
        return shape.layers * shape.heads * shape.head_dim
    return 0 if shape.provider.startswith("Hybrid") else shape.layers * shape.heads * _HEAD


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
