"""Variables of a job by GPU type, model and precision, and who may override them.

The values are those that NVIDIA's performance scripts set for these models; each with the reason for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from llmb_common import gpus
from llmb_common.planning.case import Case
from llmb_common.planning.divisibility import Layout
from llmb_common.planning.functions import function_environment
from llmb_common.planning.job_plan import EnvironmentValue
from llmb_common.site.cluster import ClusterConfig

_CUDNN_NORMS = {
    # Megatron-Bridge 0.3.1, scripts/performance/perf_plugins.py: _set_model_specific_environment_variables.
    ("mbridge", "405b"): {(gpu, "fp8_cs") for gpu in ("gb300", "gb200")},
    ("mbridge", "70b"): {(gpu, precision) for gpu in ("gb300", "gb200") for precision in ("bf16", "fp8_cs")},
    ("mbridge", "8b"): {("h100", "fp8_cs")},
    # NeMo 2.3.0 to 2.3.2, scripts/performance/llm/pretrain_llama31_405b.py and pretrain_nemotron4_340b.py: everywhere.
    ("nemo2", "405b"): None,
    ("nemo2", "405b-proxy"): None,
    ("nemo2", "340b"): None,
}
"""Variant and size whose normalization is cuDNN's, with the GPU of the row and precision; None: all. It overlaps with
communication where Transformer Engine's own takes too many SMs."""


def recipe_environment(case: Case, layout: Layout, fp8_recipe: str | None) -> dict[str, str]:
    """The variables that the recipe asks for, before the site and the caller have their say."""
    model, dtype = case.model, case.dtype
    precision = f"{dtype}_{fp8_recipe}" if fp8_recipe else dtype
    values = {
        # Synthetic data and a null tokenizer: nothing may reach for a hub.
        "TOKENIZERS_PARALLELISM": "False",
        "TRANSFORMERS_OFFLINE": "1",
    }
    if case.request.nccl_trace:
        values |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL,P2P,NET"}
    if case.on_cpu:
        return values
    if case.function is not None:
        return values | function_environment(case, layout)
    row_gpu = gpus.rows_of(case.gpu_type)  # who runs another type's rows runs them as they were run there
    values |= {
        "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",  # frees activations earlier: less fragmentation
        "TORCH_NCCL_HIGH_PRIORITY": "1",  # communication kernels ahead of compute
        "NCCL_NVLS_ENABLE": "0",  # NVLink SHARP takes memory that the largest models need
        # SMs left free for overlapped communication while normalization kernels run.
        "NVTE_FWD_LAYERNORM_SM_MARGIN": "16",
        "NVTE_BWD_LAYERNORM_SM_MARGIN": "16",
        "CUDA_DEVICE_MAX_CONNECTIONS": _max_connections(case.gpu_type, layout),
    }
    if layout.pp > 1 and model.large:
        values["NCCL_P2P_NET_CHUNKSIZE"] = "2097152"  # fewer, larger messages between pipeline stages
    norms = _CUDNN_NORMS.get((case.variant.name, model.size), set())
    if norms is None or (row_gpu, precision) in norms:
        values |= {"NVTE_NORM_FWD_USE_CUDNN": "1", "NVTE_NORM_BWD_USE_CUDNN": "1"}
    if model.size == "8b" and layout.fsdp and precision == "fp8_cs" and row_gpu == "h100":
        # Few SMs for what FSDP sends from registered buffers (llmb_train.settings.data_parallel: nccl_ub).
        values["NCCL_CTA_POLICY"] = "1"
    if model.size == "405b" and dtype == "fp8" and row_gpu == "gb200":
        values["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if row_gpu == "gb200":
        values |= {"NCCL_NET_GDR_LEVEL": "PHB", "NCCL_NET_GDR_C2C": "1"}  # GPUDirect over the C2C link
    return values


def _max_connections(gpu_type: str, layout: Layout) -> str:
    """Hardware queues. One keeps the launch order that TP and CP overlap rely on before Blackwell."""
    if gpus.generation_of(gpu_type) == "blackwell":
        return "32"
    return "1" if layout.tp > 1 or layout.cp > 1 else "8"


def job_environment(
    recipe: Mapping[str, str], cluster: ClusterConfig, caller: Mapping[str, str]
) -> dict[str, EnvironmentValue]:
    """All job variables, sorted by name; the caller's environment wins over the site, the site over the recipe."""
    merged = {name: EnvironmentValue(value, "recipe") for name, value in recipe.items()}
    merged |= {name: EnvironmentValue(value, "cluster_config.yaml") for name, value in cluster.environment.items()}
    merged |= {name: EnvironmentValue(value, "environment") for name, value in caller.items()}
    return dict(sorted(merged.items()))
