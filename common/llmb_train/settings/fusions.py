"""Fused kernels and CUDA graphs -> fields of the model provider."""

from __future__ import annotations

from typing import Any

from llmb_train.engine import Engine
from llmb_train.job import Job
from llmb_train.settings import capabilities


def fields(job: Job, engine: Engine) -> dict[str, Any]:
    """The model provider's fusion fields.

    On a GPU all are on (Bridge 0.3.1 for Llama; NeMo for the others, where Nemotron-4 leaves bias and dropout
    unfused). On a CPU none is: compiling them with torch.compile would take longer than a tiny run.
    """
    gpu, te = engine.device == "cuda", engine.transformer_engine
    swiglu = job.architecture.activation == "silu" and job.architecture.gated
    return {
        "bias_activation_fusion": gpu and swiglu,
        "bias_dropout_fusion": gpu and job.family != "nemotron4",
        "cross_entropy_loss_fusion": gpu,
        "cross_entropy_fusion_impl": "te" if te else "native",
        "apply_rope_fusion": te,
        # Apex kernels, which come with the containers that have Transformer Engine.
        "masked_softmax_fusion": te,
        "persist_layer_norm": te,
        "gradient_accumulation_fusion": te and not job.parallelism.fsdp,
        **_cuda_graph(job),
    }


def _cuda_graph(job: Job) -> dict[str, Any]:
    release = capabilities.fields()
    if not job.performance.cuda_graph:
        return {**release.no_graphs, "use_te_rng_tracker": False}
    graphs = release.iteration_graph if whole_iteration_graph(job) else release.layer_graphs
    assert graphs is not None  # see refusals
    return {**graphs, "use_te_rng_tracker": True}


def whole_iteration_graph(job: Job) -> bool:
    """Llama: one graph of a whole iteration (Bridge 0.3.1 and 0.6). The others: one per layer, what NeMo's
    enable_cuda_graph captured."""
    return job.performance.cuda_graph and job.family == "llama3"
