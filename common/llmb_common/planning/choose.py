"""Which row of a recipe a request means: GPU type, model size, dtype, scale, variant."""

from __future__ import annotations

from collections.abc import Sequence

from llmb_common.errors import RequestError, did_you_mean
from llmb_common.recipes.recipe import GPU_TYPES, Model, Recipe, Row, Variant
from llmb_common.request.read import Request
from llmb_common.site.cluster import ClusterConfig
from llmb_common.site.machine import Machine


def choose_gpu_type(
    recipe: Recipe, cluster: ClusterConfig, request: Request, machine: Machine, notices: list[str]
) -> str:
    """The GPU type: asked for, the site's, this machine's, or the recipe's default, which is said in ``notices``."""
    local = machine.gpu_type if machine.cluster_type == "local" else None
    gpu_type = request.gpu_type or cluster.gpu_type or local
    if gpu_type is None and machine.cluster_type == "local":
        gpu_type = "cpu"
        if machine.gpus:
            notices.append("the GPUs of this machine are none that the recipes know: training runs on the CPU")
    if gpu_type is None and recipe.defaults.gpu_type:
        gpu_type = recipe.defaults.gpu_type
        notices.append(f"GPU_TYPE is not set: {gpu_type}, the default of {recipe.name}")
    if gpu_type is None:
        raise RequestError("GPU_TYPE is not set", remedy=f"GPU_TYPE is one of {', '.join(GPU_TYPES)}")
    if gpu_type not in GPU_TYPES:
        raise RequestError(
            f"GPU_TYPE={gpu_type} is unknown{did_you_mean(gpu_type, GPU_TYPES)}",
            remedy=f"one of {', '.join(GPU_TYPES)}",
        )
    if local not in (None, "cpu", gpu_type) and gpu_type != "cpu":
        notices.append(f"GPU_TYPE is {gpu_type}, and this machine has {local}")
    return gpu_type


def row_gpu(gpu_type: str) -> str:
    """The GPU type whose rows ``gpu_type`` runs: an H200 runs the H100's with more memory."""
    return "h100" if gpu_type == "h200" else gpu_type


def choose_row(
    recipe: Recipe, request: Request, gpu_type: str, machine: Machine, notices: list[str]
) -> tuple[Model, Row, Variant, str, int]:
    """The model, the row, its variant, the dtype and the number of GPUs."""
    size = request.model_size
    if size is None:
        size = recipe.defaults.model_size
        if gpu_type == "cpu":
            size = "smoke"
            notices.append("no GPU: MODEL_SIZE is smoke, a tiny model of the same architecture")
    model = recipe.model(size)
    rows = [r for r in recipe.rows if r.size == model.size and r.gpu in (row_gpu(gpu_type), "any")]
    if not rows:
        known = sorted({r.gpu for r in recipe.rows if r.size == model.size})
        raise RequestError(
            f"{recipe.name} {model.size} has no configuration for GPU_TYPE={gpu_type}",
            remedy=f"it has them for {', '.join(known)}" + _smoke_hint(recipe, gpu_type),
        )
    if request.variant:
        name = recipe.variant(request.variant).name
        rows = [r for r in rows if r.variant == name]
        if not rows:
            raise RequestError(
                f"the variant {name} of {recipe.name} has no {model.size} on {gpu_type}",
                remedy="choose another MODEL_SIZE, GPU_TYPE or CONFIG_VARIANT",
            )
    dtype = _dtype(recipe, request, gpu_type, model, rows, notices)
    rows = _newest_first(recipe, [r for r in rows if dtype in r.dtypes])
    gpus = _gpus(request, rows, machine, gpu_type)
    row = _row_for(recipe, request, rows, gpus, gpu_type, model, dtype, notices)
    return model, row, recipe.variant(row.variant), dtype, gpus


def _smoke_hint(recipe: Recipe, gpu_type: str) -> str:
    has_smoke = any(model.size == "smoke" for model in recipe.models)
    return "; MODEL_SIZE=smoke runs without GPUs" if gpu_type == "cpu" and has_smoke else ""


def _newest_first(recipe: Recipe, rows: Sequence[Row]) -> list[Row]:
    order = [variant.name for variant in recipe.variants]
    return sorted(rows, key=lambda row: order.index(row.variant))


def _dtype(
    recipe: Recipe, request: Request, gpu_type: str, model: Model, rows: Sequence[Row], notices: list[str]
) -> str:
    available = list(dict.fromkeys(dtype for row in rows for dtype in row.dtypes))
    if request.dtype is None:
        if recipe.defaults.dtype in available:
            return recipe.defaults.dtype
        notices.append(f"{model.size} on {gpu_type} has no {recipe.defaults.dtype}: DTYPE is {available[0]}")
        return available[0]
    if request.dtype not in available:
        if gpu_type == "cpu":
            raise RequestError(
                f"DTYPE={request.dtype} cannot run on a CPU: it would silently train in bf16",
                remedy="unset DTYPE or use DTYPE=bf16",
            )
        raise RequestError(
            f"{recipe.name} {model.size} has no DTYPE={request.dtype} on {gpu_type}",
            remedy=f"it has {', '.join(available)}",
        )
    return request.dtype


def _gpus(request: Request, rows: Sequence[Row], machine: Machine, gpu_type: str) -> int:
    if request.gpus is not None:
        return request.gpus
    if machine.cluster_type == "slurm":
        raise RequestError("JOB_TOTAL_GPUS is not set", remedy="for example JOB_TOTAL_GPUS=128")
    if machine.gpus and gpu_type != "cpu":
        return machine.gpus
    # Two ranks show communication without crowding a laptop.
    return max(row.gpus_min for row in rows)


def _row_for(
    recipe: Recipe,
    request: Request,
    rows: Sequence[Row],
    gpus: int,
    gpu_type: str,
    model: Model,
    dtype: str,
    notices: list[str],
) -> Row:
    for row in rows:
        if gpus in row.scales:
            return row
    scales = sorted({scale for row in rows for scale in row.scales})
    listed = ", ".join(str(scale) for scale in scales)
    what = f"{recipe.name} {model.size} {dtype} on {gpu_type}"
    if not request.force:
        raise RequestError(
            f"JOB_TOTAL_GPUS={gpus} is not a documented scale of {what}",
            remedy=f"documented: {listed}; FORCE=true accepts another one where it divides",
            code="undocumented-scale",
        )
    nearest = min(rows, key=lambda row: max(row.gpus_min - gpus, gpus - row.gpus_max, 0))
    notices.append(f"{gpus} GPUs are not a documented scale of {what} (documented: {listed})")
    return nearest
