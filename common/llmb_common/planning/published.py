"""Which published result a job is compared with, and which is nearest to it: the one rule for plans, results and
comparisons.

Only like is compared with like: the published GPU type, scale, dtype and FP8 scaling, no column changed, from
random weights, with nothing besides training that costs time. The software is the one thing that may differ: whoever
compares says so.

A plan is also told of the nearest result of its model. In what two jobs are unlike is compared in this order, and the
first that tells two results apart decides: GPU type, dtype, FP8 scaling, variant, how many columns and settings differ
(the global batch as its share of each GPU), number of GPUs, container. Where only the number of GPUs is another, the
layout and the work of each GPU are the same (weak scaling).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from llmb_common.base.engines import container_release, release_order, same_release
from llmb_common.base.printable import as_written
from llmb_common.planning.job_plan import Difference, JobPlan, PublishedTime
from llmb_common.recipes.columns import Columns
from llmb_common.recipes.recipe import Recipe, find_row
from llmb_common.recipes.rows import PublishedResult, Row, precision

_GPUS = "GPUs"

_BESIDE_TRAINING = ("checkpoints", "profile", "NCCL trace")
"""Differences that cost time of their own, and leave the steps between them as they are."""


def published_result(plan: JobPlan, recipe: Recipe) -> PublishedResult | None:
    """Return the published result of exactly the plan's job, of its own container or else of the newest; None: there
    is none.

    Of several of one container it is the recipe's first. ``recipe`` is the plan's, as it was read.

    Raises:
        RecipeError: the recipe's results or functions cannot be read
        RequestError: the global batch size of a result's row is no whole number at the result's number of GPUs
    """
    return next(iter(published_results(plan, recipe)), None)


def published_results(plan: JobPlan, recipe: Recipe) -> list[PublishedResult]:
    """Return every published result of exactly the plan's job, the nearest software first; empty: there is none.

    That is the plan's own container, then the newest, and last results without a container; within one container
    the recipe's order. ``recipe`` is the plan's, as it was read.

    Raises:
        RecipeError: the recipe's results or functions cannot be read
        RequestError: the global batch size of a result's row is no whole number at the result's number of GPUs
    """
    found = []
    for result in recipe.results_of(plan.model_size):
        if result.gpus != plan.gpus or not _same_kind(plan, result):  # thousands of runs are compared with each result
            continue
        if differences(plan, recipe, result) == []:
            found.append(result)
    return sorted(found, key=lambda result: _software_distance(plan, recipe, result))


def published_time(plan: JobPlan, recipe: Recipe) -> PublishedTime | None:
    """Return the published step time nearest to the plan's job, and how that job differs.

    None: nothing is published of its model, or the recipe has no row of the nearest kind's jobs. Nearest is first
    of the same GPU type, then of the same dtype, FP8 scaling and variant, as far as there is any (that is the
    kind); of these with the fewest differences in what a step does, the nearest number of GPUs (by ratio; of
    equally near ones the smaller) and then the nearest software. ``recipe`` is the plan's, as it was read.

    Raises:
        RecipeError: the recipe's results or functions cannot be read
        RequestError: the global batch size of a result's row is no whole number at the result's number of GPUs
    """
    of_model = recipe.results_of(plan.model_size)
    if not of_model:
        return None
    nearest_kind = min(_kind_distance(plan, recipe, result) for result in of_model)
    compared: list[tuple[PublishedResult, list[Difference]]] = []
    for result in of_model:
        if _kind_distance(plan, recipe, result) != nearest_kind:
            continue
        differs = differences(plan, recipe, result)
        if differs is not None:
            compared.append((result, differs))
    if not compared:
        return None
    result, differs = min(
        compared,
        key=lambda item: (
            len(_step_differences(item[1])),
            # Twice as many GPUs are as far away as half as many.
            abs(math.log(item[0].gpus / plan.gpus)),
            item[0].gpus,
            _software_distance(plan, recipe, item[0]),
        ),
    )
    likeness: Literal["exact", "weak scaling", "nearest"] = "exact"
    if _step_differences(differs):
        likeness = "nearest"
    elif any(item.name == _GPUS for item in differs):
        likeness = "weak scaling"
    document = recipe.document(result)
    return PublishedTime(
        step_seconds=result.step_seconds,
        gpus=result.gpus,
        gpu_type=result.gpu,
        container=document.container,
        software=document.software,
        source=result.source,
        likeness=likeness,
        differs=tuple(differs),
    )


def differences(plan: JobPlan, recipe: Recipe, result: PublishedResult) -> list[Difference] | None:
    """Return how the plan's job differs from the one of a published result, but for their software.

    ``recipe`` is the plan's, as it was read, and ``result`` one of its results. Empty: it does not. None: the
    recipe has no row for the published job. They come in the order of size, GPU type, dtype, variant, layout
    columns, sequence length, work of each GPU, and what no published job has, such as profiles. Functions are
    compared last, and only where nothing else differs in what a step does.

    Raises:
        RecipeError: the recipe's functions cannot be read
        RequestError: the global batch size of the result's row is no whole number at the result's number of GPUs
    """
    row = find_row(recipe, result)
    if row is None:
        return None
    compared = [
        *_compare_kind(plan, recipe, result),
        *_compare_columns(plan, result, row),
        *_compare_length(plan, recipe, row),
        *_compare_work(plan, result, row),
        *_compare_settings(plan),
    ]
    found = [
        Difference(name, as_written(published), as_written(planned))
        for name, published, planned in compared
        if published != planned
    ]
    if not _step_differences(found):
        found += _function_difference(plan, recipe, result, row)
    return found


_Compared = Iterator[tuple[str, object, object]]
"""Name, the published value, the plan's."""


def _compare_kind(plan: JobPlan, recipe: Recipe, result: PublishedResult) -> _Compared:
    """Yield (name, published, planned) for model size, GPU type, dtype and variant, whether they differ or not.

    Raises:
        RecipeError: the recipe's functions cannot be read
    """
    yield "size", result.size, plan.model_size
    yield "GPU type", result.gpu, plan.gpu_type
    planned = plan.fp8_recipe if plan.dtype == "fp8" else None
    yield "dtype", precision(result.dtype, _fp8_scaling(recipe, result)), precision(plan.dtype, planned)
    yield "variant", result.variant, plan.variant


def _compare_columns(plan: JobPlan, result: PublishedResult, row: Row) -> _Compared:
    """Yield (name, published, planned) for the layout columns but GBS and sequence length, whether they differ or not.

    Names are in capitals. ``row`` is that of ``result``. Where both jobs are of one row at one scale, only columns
    that the user changed are there: the others are the row's.
    """
    same_row = result.gpus == plan.gpus and _same_kind(plan, result)
    for name in plan.overridden if same_row else Columns.__struct_fields__:
        if name not in ("gbs", "seq_len"):
            yield name.upper(), getattr(row, name), getattr(plan, name)


def _compare_length(plan: JobPlan, recipe: Recipe, row: Row) -> _Compared:
    """Yield (name, published, planned) for the length of a sequence in tokens, whether they differ or not.

    ``row`` is that of the published job. A row that names no length has that of its model; for a plan that does not
    override it, that counts as its own.

    Raises:
        RecipeError: the recipe's functions cannot be read
    """
    documented = row.sequence_length or plan.seq_len
    if "seq_len" in plan.overridden and row.sequence_length is None:
        documented = recipe.model(row.size).sequence_length
    yield "sequence length", documented, plan.seq_len


def _compare_work(plan: JobPlan, result: PublishedResult, row: Row) -> _Compared:
    """Yield (name, published, planned) for the number of GPUs and the work of each, whether they differ or not.

    ``row`` is that of ``result``. On another number of GPUs, GBS is there only where a GPU's part of it differs.
    Layers and the deferral of weight gradients are there only where the two jobs may be of different rows.

    Raises:
        RequestError: the row's global batch size is no whole number at the result's number of GPUs
    """
    published = row.global_batch_size(result.gpus)
    if result.gpus == plan.gpus:
        yield "GBS", published, plan.gbs
    elif published * plan.gpus != plan.gbs * result.gpus:
        yield "GBS", f"{published} on {result.gpus} GPUs", f"{plan.gbs} on {plan.gpus} GPUs"
    yield _GPUS, result.gpus, plan.gpus
    if result.gpus == plan.gpus and _same_kind(plan, result):
        return  # else another row: its model may have other layers
    yield "layers", row.layers or plan.layers, plan.layers
    yield "wgrad deferral", row.wgrad_deferral if row.pp > 1 else None, plan.wgrad_deferral


def _compare_settings(plan: JobPlan) -> _Compared:
    """Yield (name, published, planned) for what no published job has, whether they differ or not.

    First each of the framework's settings that the plan changes, by ``section.field`` (published: ``unset``), then
    ``routing``, ``checkpoints``, ``profile`` and ``NCCL trace``. (Saving takes time and switches overlaps off, and
    so does loading.)
    """
    for name, value in plan.megatron.items():
        yield name, "unset", value
    # Published jobs drop tokens; forced balance is another benchmark.
    yield "routing", plan.moe_routing if plan.moe_routing != "balanced" else None, plan.moe_routing
    yield "checkpoints", False, plan.checkpoint.is_used
    yield "profile", False, plan.profile is not None
    yield "NCCL trace", False, plan.nccl_trace


def _function_difference(plan: JobPlan, recipe: Recipe, result: PublishedResult, row: Row) -> list[Difference]:
    """Return the difference in functions as a list of one: another function, or the same with other columns.

    ``row`` is that of ``result``. The same function has other columns in another release of Megatron-Bridge. Empty:
    there is none, or one of the two jobs has no function. What else the functions set is not compared.

    Raises:
        RecipeError: the catalogue of the published job's release cannot be read
    """
    measured = recipe.of_release(result.release).function(row)
    if plan.function is None or measured is None:
        return []
    if row.function == plan.function.name and measured.columns == plan.function.columns:
        return []
    release = f" of {result.release}" if result.release else ""
    return [Difference("function", f"{row.function}{release}", f"{plan.function.name} of {plan.function.release}")]


def _step_differences(differs: list[Difference]) -> list[Difference]:
    """Return those of ``differs`` that change what a step does, in their order.

    Left out are the number of GPUs and what happens beside training (``_BESIDE_TRAINING``).
    """
    return [item for item in differs if item.name != _GPUS and item.name not in _BESIDE_TRAINING]


def _same_kind(plan: JobPlan, result: PublishedResult) -> bool:
    """Return whether plan and result have the same size, GPU type, dtype and variant; the FP8 scaling is not
    compared.
    """
    planned = (plan.variant, plan.model_size, plan.gpu_type, plan.dtype)
    return (result.variant, result.size, result.gpu, result.dtype) == planned


def _kind_distance(plan: JobPlan, recipe: Recipe, result: PublishedResult) -> tuple[bool, ...]:
    """Return a sort key of a result, the least is the nearest: for GPU type, dtype, FP8 scaling and variant whether
    it differs.

    They come in this order, as the former counts more. ``recipe`` is the plan's, ``result`` one of its results.

    Raises:
        RecipeError: the recipe's functions cannot be read
    """
    scaling = plan.fp8_recipe if plan.dtype == "fp8" else None
    return (
        result.gpu != plan.gpu_type,
        result.dtype != plan.dtype,
        _fp8_scaling(recipe, result) != scaling,
        result.variant != plan.variant,
    )


def _fp8_scaling(recipe: Recipe, result: PublishedResult) -> str | None:
    """Return the FP8 scaling (``cs``) that a published result was measured with; None for dtypes other than FP8.

    That of its variant in ``recipe``, where the result names none.

    Raises:
        RecipeError: the recipe's functions, of which one may have the variant, cannot be read
    """
    if result.dtype != "fp8":
        return None
    return result.fp8_recipe or recipe.variant(result.variant).fp8_recipe


def _software_distance(plan: JobPlan, recipe: Recipe, result: PublishedResult) -> tuple[bool, list[int]]:
    """Return a sort key for results, the least is the nearest: those of the plan's own container, then of newer
    before older ones.

    Results without a container come last. ``recipe`` is the plan's, ``result`` one of its results (else there may be
    a KeyError).
    """
    container = recipe.document(result).container
    # Results without a container come last.
    newest_first = [-number for number in release_order(container or "00.00")]
    return not same_release(container_release(plan.image), container), newest_first
