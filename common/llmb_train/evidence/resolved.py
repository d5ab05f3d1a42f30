"""The configuration as the framework resolved it, held against ``job.json``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llmb_train.errors import Contradiction
from llmb_train.job import Job

_FP8_RECIPES = {"tensorwise": "cs", "delayed": "ds", "mxfp8": "mx"}
_UNKNOWN = object()
"""What this release has no field for contradicts nothing."""


def require_agreement(job: Job, config: Any) -> None:
    """Compare what decides speed and loss.

    Raises:
        Contradiction: shows both, side by side.
    """
    found = contradictions(job, config)
    if not found:
        return
    rows = [("setting", "planned", "resolved"), *found]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    table = "\n".join(f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows)
    raise Contradiction(
        f"the framework would train something else than was planned:\n{table}",
        remedy="see config.yaml in the run's folder; use the recipe's container, which LLMB's settings are written for",
    )


def contradictions(job: Job, config: Any) -> list[tuple[str, str, str]]:
    """Setting, planned and resolved value of everything that differs."""
    return [
        (name, _say(planned), _say(resolved))
        for name, planned, resolved in _pairs(job, config)
        if resolved is not _UNKNOWN and planned != resolved
    ]


def _pairs(job: Job, config: Any) -> Iterator[tuple[str, Any, Any]]:
    p, a, model = job.parallelism, job.architecture, config.model
    yield "tensor parallelism", p.tp, _get(model, "tensor_model_parallel_size")
    yield "pipeline parallelism", p.pp, _get(model, "pipeline_model_parallel_size")
    virtual = _get(model, "virtual_pipeline_model_parallel_size")
    yield "virtual pipeline stages", p.vp or 1, virtual if virtual is _UNKNOWN else virtual or 1
    yield "context parallelism", p.cp, _get(model, "context_parallel_size")
    if a.moe is not None:
        yield "expert parallelism", p.ep or 1, _get(model, "expert_model_parallel_size")
        yield "experts", a.moe.experts, _get(model, "num_moe_experts")
        yield "experts a token", a.moe.top_k, _get(model, "moe_router_topk")
    yield "data parallelism", job.data_parallel, _get(config, "data_parallel_size")
    yield "Megatron-FSDP", p.fsdp, _get(config.ddp, "use_megatron_fsdp")
    yield "micro batch size", job.batch.mbs, _get(config.train, "micro_batch_size")
    yield "global batch size", job.batch.gbs, _get(config.train, "global_batch_size")
    yield "sequence length of the model", job.sequence_length, _get(model, "seq_length")
    yield "sequence length of the data", job.sequence_length, _get(config.dataset, "sequence_length")
    yield "layers", a.layers, _get(model, "num_layers")
    yield "hidden size", a.hidden, _get(model, "hidden_size")
    yield "attention heads", a.heads, _get(model, "num_attention_heads")
    yield "precision", _planned_precision(job), _precision(model)
    yield "recomputed layers", job.performance.recompute_layers, _recomputed(model)
    yield "offloaded layers", job.performance.offload_layers, _offloaded(model)
    yield "CUDA graphs", job.performance.cuda_graph, _get(model, "cuda_graph_impl", "none") not in (None, "none")
    yield "seed", job.seed, _get(config.rng, "seed")


def _planned_precision(job: Job) -> str:
    recipe = job.precision.fp8_recipe
    return f"{job.precision.dtype} ({recipe})" if recipe else job.precision.dtype


def _precision(model: Any) -> Any:
    if _get(model, "fp4", None):
        return "nvfp4"
    if _get(model, "fp8", None):
        recipe = _get(model, "fp8_recipe", None)
        return f"fp8 ({_FP8_RECIPES.get(str(recipe), recipe)})"
    half = _get(model, "bf16")
    return half if half is _UNKNOWN else ("bf16" if half else "neither bf16, fp8 nor nvfp4")


def _recomputed(model: Any) -> Any:
    granularity = _get(model, "recompute_granularity")
    if granularity in (_UNKNOWN, None):
        return _UNKNOWN if granularity is _UNKNOWN else 0
    return (_get(model, "recompute_num_layers") or 0) if granularity == "full" else f"{granularity} recomputation"


def _offloaded(model: Any) -> Any:
    used = _get(model, "cpu_offloading")
    return used if used is _UNKNOWN else (_get(model, "cpu_offloading_num_layers") if used else 0)


def _get(section: Any, name: str, default: Any = _UNKNOWN) -> Any:
    value = getattr(section, name, default)
    return getattr(value, "value", value)  # of an enumeration


def _say(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
