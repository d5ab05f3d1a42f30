"""Which row of a recipe a request means: GPU type, model size, dtype, scale, variant."""

from __future__ import annotations

from collections.abc import Sequence

from llmb_common.errors import RequestError, did_you_mean
from llmb_common.gpus import gpu_types, rows_of
from llmb_common.recipes.recipe import Model, Recipe, Row, Variant
from llmb_common.request.read import Request
from llmb_common.site.cluster import FILE_NAME, ClusterConfig
from llmb_common.site.machine import Machine


def choose_gpu_type(
    recipe: Recipe, cluster: ClusterConfig, request: Request, machine: Machine, notices: list[str]
) -> str:
    """The GPU type: asked for, the site's, this machine's, or the recipe's default, which is said in ``notices``."""
    here = machine.traits.this_machine
    local = machine.gpu_type if here else None
    gpu_type = request.gpu_type or cluster.gpu_type or local
    if gpu_type is None and here:
        gpu_type = "cpu"
        if machine.gpus:
            notices.append("the GPUs of this machine are none that the recipes know: training runs on the CPU")
    if gpu_type is None and recipe.defaults.gpu_type:
        gpu_type = recipe.defaults.gpu_type
        notices.append(f"GPU_TYPE is not set: {gpu_type}, the default of {recipe.name}")
    if gpu_type is None or gpu_type not in gpu_types():
        possible = _gpu_types(recipe, request.model_size)
        remedy = f"GPU_TYPE is one of {', '.join(possible)}"
        if gpu_type is None:
            raise RequestError("GPU_TYPE is not set", remedy=remedy)
        # Of two names this short, one that differs in a letter is another GPU: only more or fewer letters are a slip.
        near = did_you_mean(gpu_type, possible, cutoff=0.8)
        raise RequestError(f"GPU_TYPE={gpu_type} is unknown{near}", remedy=remedy)
    if local not in (None, "cpu", gpu_type) and gpu_type != "cpu":
        notices.append(f"GPU_TYPE is {gpu_type}, and this machine has {local}")
    return gpu_type


def _gpu_types(recipe: Recipe, size: str | None) -> list[str]:
    """The GPU types that ``recipe`` has configurations for, of ``size`` or, where none is asked for, of its default."""
    known = {row.gpu for row in recipe.rows if row.size == (size or recipe.defaults.model_size)}
    known = known or {row.gpu for row in recipe.rows}  # a size that does not exist is an error of its own
    if size is None and any(model.size == "smoke" for model in recipe.models):
        known.add("cpu")
    return [name for name in gpu_types() if "any" in known or rows_of(name) in known]


def gpu_said(gpu_type: str, cluster: ClusterConfig, request: Request) -> str:
    """``gpu_type`` and who said so, for messages: a user looks for GPU_TYPE in the shell in vain if the site set it."""
    from_site = request.gpu_type is None and gpu_type == cluster.gpu_type
    return f"{gpu_type} (gpu_type in {FILE_NAME})" if from_site else gpu_type


def choose_row(
    recipe: Recipe, cluster: ClusterConfig, request: Request, gpu_type: str, machine: Machine, notices: list[str]
) -> tuple[Model, Row, Variant, str, int]:
    """The model, the row, its variant, the dtype and the number of GPUs."""
    size = request.model_size
    if size is None:
        size = recipe.defaults.model_size
        if gpu_type == "cpu":
            size = "smoke"
            notices.append("no GPU: MODEL_SIZE is smoke, a tiny model of the same architecture")
    on_gpu = [r for r in recipe.rows if r.gpu in (rows_of(gpu_type), "any")]
    model = recipe.model(size, among={r.size for r in on_gpu})
    rows = [r for r in on_gpu if r.size == model.size]
    said = gpu_said(gpu_type, cluster, request)
    if not rows:
        raise RequestError(
            f"{recipe.name} {model.size} has no configuration for {'GPU_TYPE=' if request.gpu_type else ''}{said}",
            remedy=f"it has them for {', '.join(_gpu_types(recipe, model.size))}" + _smoke_hint(recipe, gpu_type),
        )
    if (lender := rows_of(gpu_type)) != gpu_type:
        notices.append(
            f"no configuration is documented for {gpu_type}: it runs those of {lender}, and there is no published "
            "result to compare with"
        )
    if request.variant:
        name = recipe.variant(request.variant, among={r.variant for r in rows}).name
        rows = [r for r in rows if r.variant == name]
        if not rows:
            raise RequestError(
                f"the variant {name} of {recipe.name} has no {model.size} on {said}",
                remedy="choose another MODEL_SIZE, GPU_TYPE or CONFIG_VARIANT",
            )
    dtype = _dtype(recipe, request, gpu_type, said, model, rows, notices)
    rows = _newest_first(recipe, [r for r in rows if dtype in r.dtypes])
    gpus = _gpus(request, rows, machine, gpu_type)
    row = _row_for(recipe, request, rows, gpus, gpu_type, said, model, dtype, notices)
    if request.variant is None:
        _say_variant(recipe, rows, row, gpus, notices)
    return model, row, recipe.variant(row.variant), dtype, gpus


def _say_variant(recipe: Recipe, rows: Sequence[Row], row: Row, gpus: int, notices: list[str]) -> None:
    """The documents of two generations print the same commands: which one a job is, is never left unsaid."""
    taken = recipe.variant(row.variant)
    newest = rows[0].variant
    if row.variant != newest:
        scales = _scales([r for r in rows if r.variant == newest])
        notices.append(
            f"{gpus} GPUs run as {taken.name} ({taken.title}): {newest} is documented for {scales}; "
            f"CONFIG_VARIANT={taken.name} says that you mean it"
        )
    elif others := [r.variant for r in rows if r.variant != row.variant and gpus in r.scales]:
        other = recipe.variant(others[0])
        notices.append(
            f"two generations document this job, and it runs as {taken.name} ({taken.title}); "
            f"CONFIG_VARIANT={other.name} chooses the other ({other.title})"
        )


def _smoke_hint(recipe: Recipe, gpu_type: str) -> str:
    has_smoke = any(model.size == "smoke" for model in recipe.models)
    return "; MODEL_SIZE=smoke runs without GPUs" if gpu_type == "cpu" and has_smoke else ""


def _newest_first(recipe: Recipe, rows: Sequence[Row]) -> list[Row]:
    order = [variant.name for variant in recipe.variants]
    return sorted(rows, key=lambda row: order.index(row.variant))


def _dtype(
    recipe: Recipe, request: Request, gpu_type: str, said: str, model: Model, rows: Sequence[Row], notices: list[str]
) -> str:
    available = list(dict.fromkeys(dtype for row in rows for dtype in row.dtypes))
    if request.dtype is None:
        if recipe.defaults.dtype in available:
            return recipe.defaults.dtype
        notices.append(f"{model.size} on {gpu_type} has no {recipe.defaults.dtype}: DTYPE is {available[0]}")
        return available[0]
    if request.dtype not in available:
        if gpu_type == "cpu" and any(request.dtype in row.dtypes for row in recipe.rows):
            raise RequestError(
                f"DTYPE={request.dtype} cannot run on a CPU: it would silently train in bf16",
                remedy="unset DTYPE or use DTYPE=bf16",
            )
        raise RequestError(
            f"{recipe.name} {model.size} has no DTYPE={request.dtype} on {said}"
            + did_you_mean(request.dtype, available),
            remedy=f"it has {', '.join(available)}",
        )
    return request.dtype


def _gpus(request: Request, rows: Sequence[Row], machine: Machine, gpu_type: str) -> int:
    if request.gpus is not None:
        return request.gpus
    if not machine.traits.this_machine:
        written = request.unread.get("JOB_TOTAL_GPUS")
        instead = f" ({written} is: did you mean JOB_TOTAL_GPUS={written.partition('=')[2]}?)" if written else ""
        raise RequestError(f"JOB_TOTAL_GPUS is not set{instead}", remedy=f"documented: {_scales(rows)}")
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
    said: str,
    model: Model,
    dtype: str,
    notices: list[str],
) -> Row:
    for row in rows:
        if gpus in row.scales:
            return row
    listed = _scales(rows)
    what = f"{recipe.name} {model.size} {dtype} on {said}"
    if not request.force:
        raise RequestError(
            f"JOB_TOTAL_GPUS={gpus} is not a documented scale of {what}",
            remedy=f"documented: {listed}; "
            + _smaller_model(recipe, request, model, gpu_type, dtype, gpus)
            + "FORCE=true accepts another one where it divides",
            code="undocumented-scale",
        )
    nearest = min(rows, key=lambda row: max(row.gpus_min - gpus, gpus - row.gpus_max, 0))
    notices.append(f"{gpus} GPUs are not a documented scale of {what} (documented: {listed})")
    return nearest


def _scales(rows: Sequence[Row]) -> str:
    return ", ".join(str(scale) for scale in sorted({scale for row in rows for scale in row.scales}))


def _smaller_model(recipe: Recipe, request: Request, model: Model, gpu_type: str, dtype: str, gpus: int) -> str:
    """The stand-in for ``model`` on so many GPUs (``405b-proxy`` for ``405b``), where the recipe has one."""
    for row in recipe.rows:
        same = row.gpu == rows_of(gpu_type) and dtype in row.dtypes and request.variant in (None, row.variant)
        if same and row.size.startswith(f"{model.size}-") and gpus in row.scales:
            return f"MODEL_SIZE={row.size}, {recipe.model(row.size).title}, runs on {gpus}; "
    return ""
