"""The configuration as the framework resolved it, compared with ``job.json``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from llmb_train import named_settings
from llmb_train.errors import Contradiction
from llmb_train.job import FunctionJob, Job

_FP8_RECIPES = {"tensorwise": "cs", "delayed": "ds", "mxfp8": "mx", "blockwise": "sc"}
_UNKNOWN = object()
"""What this release has no field for contradicts nothing."""

_RECOMPUTATION = {"model.recompute_granularity", "model.recompute_modules", "model.recompute_method"}

Row = tuple[str, Any, Any]
"""A setting, as planned and as resolved."""


def require_agreement(job: Job | FunctionJob, config: Any) -> None:
    """Raise if the framework has resolved a setting that decides speed or loss otherwise than ``job`` plans it.

    ``config`` is Megatron-Bridge's resolved configuration. A setting for which this release has no field passes.

    Raises:
        Contradiction: settings differ; the message is a table of their planned and resolved values, a line each,
            without those that agree
    """
    remedy = f"use the container {job.release.container}, which LLMB's settings for this recipe are written for"
    if job.release.is_newer:
        remedy = f"Megatron-Bridge {job.engine} is newer than LLMB: leave out what differs, or LLMB_ENGINE"
    require_same(settings_of(job, config), remedy=f"see config.yaml in the run's folder; {remedy}")


def require_same(rows: Iterable[Row], remedy: str) -> None:
    """Raise if a planned value is not the resolved one; ``rows`` are (setting, planned, resolved).

    The setting is a name for the message. Passes without any rows, and where the resolved value is ``_UNKNOWN``:
    this release of the framework has no such field. ``remedy`` is what to do, an imperative clause.

    Raises:
        Contradiction: values differ; the message is a table of those only
    """
    found = different(rows)
    if not found:
        return
    table = [("setting", "planned", "resolved"), *found]
    first = max(len(name) for name, _, _ in table)
    second = max(len(planned) for _, planned, _ in table)
    lines = [f"  {name:<{first}}  {planned:<{second}}  {resolved}" for name, planned, resolved in table]
    shown = "\n".join(lines)
    raise Contradiction(f"the framework would train something else than was planned:\n{shown}", remedy=remedy)


def different(rows: Iterable[Row]) -> list[tuple[str, str, str]]:
    """Return the settings whose planned and resolved values differ, each as texts (name, planned, resolved).

    ``rows`` are (name, planned, resolved) with values of any type. In their order; empty where all agree. A setting
    whose resolved value is ``_UNKNOWN``, as this release of the framework has no field for it, never differs.
    """
    return [
        (name, _value_text(planned), _value_text(resolved))
        for name, planned, resolved in rows
        if resolved is not _UNKNOWN and planned != resolved
    ]


def settings_of(job: Job | FunctionJob, config: Any) -> Iterator[Row]:
    """Yield the settings that decide speed or loss, each as (name, value in ``job``, value in ``config``).

    ``config`` is Megatron-Bridge's configuration, resolved. The name is for messages; the last is ``_UNKNOWN``
    where this release of the framework has no such field. Sizes of the model are among them only for a ``Job``,
    whose job.json has them; parallelism and batch come first, settings that the user named last. Recomputed layers
    are left out where the user has named their settings for a ``Job``, and for a ``FunctionJob`` that recomputes
    none.
    """
    yield from _layout_rows(job, config)
    model, plan = config.model, job.performance
    if isinstance(job, Job):
        yield from _architecture_rows(job, model)
        # Settings of the framework that the user named take the place of the planned recomputation.
        compare_recomputation = not _RECOMPUTATION & job.megatron.keys()
    else:  # the function's model is what it is; its columns were compared when it was called
        compare_recomputation = plan.recompute_layers > 0
    if compare_recomputation:
        yield "recomputed layers", plan.recompute_layers, _recomputed_layers(model)
    recipe = f" ({job.precision.fp8_recipe})" if job.precision.fp8_recipe else ""
    yield "precision", job.precision.dtype + recipe, _precision(model)
    yield "CUDA graphs", plan.cuda_graph, _field_value(model, "cuda_graph_impl", "none") not in (None, "none")
    offloaded = _field_value(model, "cpu_offloading")
    if offloaded is not _UNKNOWN:
        offloaded = _field_value(model, "cpu_offloading_num_layers") if offloaded else 0
    yield "offloaded layers", plan.offload_layers, offloaded
    yield "seed", job.seed, _field_value(config.rng, "seed")
    for name, value in job.megatron.items():
        yield named_settings.title(config, name), value, named_settings.value_in(config, name)


def _layout_rows(job: Job | FunctionJob, config: Any) -> Iterator[Row]:
    """Yield parallelism, batch and sequence length, each as (name, value in ``job``, value in ``config``).

    ``config`` is Megatron-Bridge's configuration, resolved. The last is ``_UNKNOWN`` where it has no such field. In
    this order: TP, PP, VP, CP, EP, DP, Megatron-FSDP, batch sizes, and the sequence length of the model and of the
    data. Where nothing is interleaved, both values are 1. Expert parallelism is there only for a model with experts.
    """
    p, model = job.parallelism, config.model
    yield "tensor parallelism", p.tp, _field_value(model, "tensor_model_parallel_size")
    yield "pipeline parallelism", p.pp, _field_value(model, "pipeline_model_parallel_size")
    # Plan and framework may each say None or 1 where nothing is interleaved.
    virtual = _field_value(model, "virtual_pipeline_model_parallel_size")
    yield "virtual pipeline stages", p.vp or 1, virtual if virtual is _UNKNOWN else virtual or 1
    yield "context parallelism", p.cp, _field_value(model, "context_parallel_size")
    if _field_value(model, "num_moe_experts", None):
        yield "expert parallelism", p.ep or 1, _field_value(model, "expert_model_parallel_size")
    yield "data parallelism", job.data_parallel, _field_value(config, "data_parallel_size")
    yield "Megatron-FSDP", p.fsdp, _field_value(config.ddp, "use_megatron_fsdp")
    yield "micro batch size", job.batch.mbs, _field_value(config.train, "micro_batch_size")
    yield "global batch size", job.batch.gbs, _field_value(config.train, "global_batch_size")
    yield "sequence length of the model", job.sequence_length, _field_value(model, "seq_length")
    yield "sequence length of the data", job.sequence_length, _field_value(config.dataset, "sequence_length")


def _architecture_rows(job: Job, model: Any) -> Iterator[Row]:
    """Yield the model's sizes, each as (name for messages, value in the job's architecture, value in ``model``).

    ``model`` is that section of the configuration; the last is ``_UNKNOWN`` where it has no such field. They are, in
    this order, for a model with experts their number and how many take each token, then the number of layers, the
    hidden size and the number of attention heads.
    """
    a = job.architecture
    if a.moe is not None:
        yield "experts", a.moe.experts, _field_value(model, "num_moe_experts")
        yield "experts a token", a.moe.top_k, _field_value(model, "moe_router_topk")
    yield "layers", a.layers, _field_value(model, "num_layers")
    yield "hidden size", a.hidden, _field_value(model, "hidden_size")
    yield "attention heads", a.heads, _field_value(model, "num_attention_heads")


def _precision(model: Any) -> Any:
    """Return the precision of the model's configuration, as plans write it: ``bf16``, ``fp8 (mx)`` or ``nvfp4``.

    ``model`` is that section of Megatron-Bridge's configuration. A text that fits no plan
    (``neither bf16, fp8 nor nvfp4``, or ``fp8`` with an unknown recipe) where it is none of these; ``_UNKNOWN``
    where the configuration has no such field.
    """
    if _field_value(model, "fp4", None):
        return "nvfp4"
    if _field_value(model, "fp8", None):
        recipe = _field_value(model, "fp8_recipe", None)
        return f"fp8 ({_FP8_RECIPES.get(str(recipe), recipe)})"
    half = _field_value(model, "bf16")
    if half is _UNKNOWN:
        return half
    return "bf16" if half else "neither bf16, fp8 nor nvfp4"


def _recomputed_layers(model: Any) -> Any:
    """Return how many layers' activations the model's configuration recomputes fully, as a number; 0: none.

    ``model`` is that section of Megatron-Bridge's configuration. A text, such as ``selective recomputation``, where
    it recomputes parts of layers; ``_UNKNOWN`` where it has no field ``recompute_granularity``.
    """
    granularity = _field_value(model, "recompute_granularity")
    if granularity in (_UNKNOWN, None):
        return _UNKNOWN if granularity is _UNKNOWN else 0
    return (
        (_field_value(model, "recompute_num_layers") or 0) if granularity == "full" else f"{granularity} recomputation"
    )


def _field_value(section: Any, name: str, default: Any = _UNKNOWN) -> Any:
    """Return the field ``name`` of a section of the configuration; of an enumeration's member its value.

    ``default`` where there is no such field; without one, ``_UNKNOWN``.
    """
    value = getattr(section, name, default)
    return getattr(value, "value", value)  # of an enumeration


def _value_text(value: Any) -> str:
    """Return ``value`` as text for a message: ``on`` or ``off`` for True or False, else its ``str``."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
