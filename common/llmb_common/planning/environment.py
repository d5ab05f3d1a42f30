"""Variables of a job by GPU type, model and precision, and who may override them; cores and clocks.

The values are those that NVIDIA's performance scripts set for these models, each with the reason for it. Around a
function: Megatron-Bridge 0.6.0, ``scripts/performance``: ``setup_experiment.py`` and ``utils/executors.py`` (variables,
cores, clocks); DGX Cloud Benchmarking 26.06.01: ``launch.sh`` of ``llama3.1``, ``nemotron-h`` and ``qwen3/pretrain``
(InfiniBand queue pairs). ``tests/data/launcher.json`` is what the launcher itself said; what it sets in the
configuration is in ``llmb_train.functions``.
"""

from __future__ import annotations

from collections.abc import Mapping

from llmb_common.base import gpus
from llmb_common.base.engines import DEFAULT_ENGINE
from llmb_common.base.errors import RequestError
from llmb_common.planning.choose import Case
from llmb_common.planning.divisibility import Layout
from llmb_common.planning.functions import HYBRID_DOMAIN
from llmb_common.planning.job_plan import EnvironmentValue
from llmb_common.planning.site.cluster import ClusterConfig
from llmb_common.recipes.catalogue import Function, FunctionName

_QUEUE_PAIRS: dict[str, tuple[tuple[str, ...], tuple[str, ...], int]] = {
    "70b": (("b300",), (), 512),
    "405b": (("b300",), (), 512),
    "llama3_70b": (("b300",), (), 512),
    "llama31_405b": (("b300",), (), 512),
    "nemotronh_56b": (("gb200", "gb300", "b300"), (), 512),
    "qwen3_235b_a22b": (("b200", "b300", "gb200", "gb300"), ("bf16",), 1),
}
"""By size: GPU types, dtypes (none: all) and the number of GPUs from which NCCL gets four queue pairs a connection."""


def variables(case: Case) -> dict[str, str]:
    """Return the variables, name to value, that GPU type, model, dtype and scale of a job require in every recipe.

    They are those of GPUDirect (NCCL_NET_GDR_LEVEL, NCCL_NET_GDR_C2C) on GB200 and the types that run its rows, and
    for some models NCCL's number of queue pairs, NCCL_IB_QPS_PER_CONNECTION. Empty: none.
    """
    values: dict[str, str] = {}
    if gpus.rows_of(case.gpu_type) == "gb200":
        values |= {"NCCL_NET_GDR_LEVEL": "PHB", "NCCL_NET_GDR_C2C": "1"}  # GPUDirect over the C2C link
    types, dtypes, least = _QUEUE_PAIRS.get(case.model.size, ((), (), 0))
    of_dtype = not dtypes or case.dtype in dtypes
    if case.gpu_type in types and of_dtype and case.gpus >= least:
        values["NCCL_IB_QPS_PER_CONNECTION"] = "4"
    return values


def fast_cores(case: Case) -> tuple[int, int] | None:
    """Return the cores that a job's ranks are held to, as (stride, count); None: any core of their socket.

    Rank r of a node runs on ``count`` cores from number r * ``stride`` on. None without a function, on CPUs, for
    GPU types without such cores, for a small copy of a model, where the user pins cores or declines, and for jobs
    that NVIDIA's launcher lets run on any core.
    """
    gpu, entry = gpus.GPUS.get(case.gpu_type), case.entry
    is_left_to_user = case.request.cpu_pinning or not case.request.fast_cores
    if gpu is None or entry is None or case.model.reduced or is_left_to_user:
        return None
    return None if _any_core(entry) else gpu.fast_cores


def _any_core(entry: FunctionName) -> bool:
    """Return whether NVIDIA's launcher lets jobs of the function ``entry`` run on any core.

    As in ``main`` of its setup_experiment.py.
    """
    return (
        (entry.model == "nemotron_3_super" and entry.dtype == "bf16")
        or (entry.model == "deepseek_v3" and entry.suffix != "large_scale")
        or (entry.model.startswith(("llama", "kimi")) and entry.task == "pretrain")
    )


def memory_clock(case: Case) -> int | None:
    """Return the MHz at which the memory of a job's GPUs is held; None: it is left as it is.

    None for jobs without a function, for small copies, on CPUs, and for most GPU types.
    """
    gpu = gpus.GPUS.get(case.gpu_type)
    return gpu.memory_clock if gpu is not None and case.function is not None and not case.model.reduced else None


_CUDNN_NORMS = {
    # Megatron-Bridge 0.3.1, scripts/performance/perf_plugins.py: _set_model_specific_environment_variables.
    ("mbridge", "405b"): {("gb300", "fp8_cs"), ("gb200", "fp8_cs")},
    ("mbridge", "70b"): {("gb300", "bf16"), ("gb300", "fp8_cs"), ("gb200", "bf16"), ("gb200", "fp8_cs")},
    ("mbridge", "8b"): {("h100", "fp8_cs")},
    # NeMo 2.3.0 to 2.3.2, scripts/performance/llm/pretrain_llama31_405b.py and pretrain_nemotron4_340b.py: everywhere.
    ("nemo2", "405b"): None,
    ("nemo2", "405b-proxy"): None,
    ("nemo2", "340b"): None,
}
"""Variant and size whose normalization is cuDNN's, with the GPU of the row and precision; None: all. It overlaps with
communication where Transformer Engine's own takes too many SMs."""


_CUDNN_NORMS_0_6 = {
    # Megatron-Bridge 0.6.0, perf_recipes/llama: env_vars of the functions.
    ("8b", "h100", "fp8_cs"): 1,
    ("70b", "gb300", "bf16"): 1,
    ("70b", "gb300", "fp8_cs"): 1,
    ("70b", "gb200", "bf16"): 1,
    ("70b", "gb200", "fp8_cs"): 1,
    ("405b", "gb300", "fp8_cs"): 1,
    ("405b", "gb200", "fp8_cs"): 1,
    ("405b", "b200", "fp8_cs"): 256,
}
"""The same for 0.6 by size, GPU of the row and precision: from how many GPUs on."""


def recipe_environment(case: Case, layout: Layout, fp8_recipe: str | None, engine: str) -> dict[str, str]:
    """Return the variables, name to value, that LLMB sets for a recipe's job, before site and caller have their say.

    ``layout`` is the job's. ``fp8_recipe`` is the FP8 scaling (None: no FP8), ``engine`` the minor release of
    Megatron-Bridge: any but ``0.3`` has the variables of ``0.6``. Neither matters on CPUs and for a job that calls
    a function. Adds a notice to ``case`` where a trace of NCCL is requested on CPUs.

    Raises:
        RequestError: EP is more than the GPUs that NVLink joins, and the function exchanges tokens by it
    """
    values = {
        # Synthetic data and a null tokenizer: nothing may reach for a hub.
        "TOKENIZERS_PARALLELISM": "False",
        "TRANSFORMERS_OFFLINE": "1",
    }
    if case.request.nccl_trace:
        values |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL,P2P,NET"}
        if case.on_cpu:
            case.note("ENABLE_NCCLTRACE: ranks on CPUs talk over gloo, so the log will have no NCCL lines")
    if case.on_cpu:
        return values
    values |= variables(case)
    if case.function is not None:
        return values | _variables_of_function(case, case.function, layout)
    precision = f"{case.dtype}_{fp8_recipe}" if fp8_recipe else case.dtype
    values |= {
        "TORCH_NCCL_HIGH_PRIORITY": "1",  # communication kernels ahead of compute
        "NCCL_NVLS_ENABLE": "0",  # NVLink SHARP takes memory that the largest models need
    }
    if layout.pp > 1 and case.model.large:
        values |= _LARGE_MESSAGES
    if engine == DEFAULT_ENGINE:
        return values | _variables_of_0_3(case, layout, precision)
    return values | bridge_0_6_environment(case.model.size, case.gpu_type, precision, layout)  # a newer one's, too


def _variables_of_0_3(case: Case, layout: Layout, precision: str) -> dict[str, str]:
    """Return the variables, name to value, as the scripts of Megatron-Bridge 0.3.1 and of NeMo 2 set them.

    ``layout`` is the job's, ``precision`` the dtype, with the scaling behind it for FP8: ``bf16``, ``fp8_cs``.
    """
    size = case.model.size
    row_gpu = gpus.rows_of(case.gpu_type)  # who runs another type's rows runs them as they were run there
    values = {
        "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",  # frees activations earlier: less fragmentation
        **_sm_margins(16),
        "CUDA_DEVICE_MAX_CONNECTIONS": _max_connections(case.gpu_type, layout, otherwise=8),
    }
    norms = _CUDNN_NORMS.get((case.variant.name, size), set())
    if norms is None or (row_gpu, precision) in norms:
        values |= _CUDNN
    if size == "8b" and layout.fsdp and precision == "fp8_cs" and row_gpu == "h100":
        # Few SMs for what FSDP sends from registered buffers (llmb_train.settings: nccl_ub).
        values["NCCL_CTA_POLICY"] = "1"
    if size == "405b" and case.dtype == "fp8" and row_gpu == "gb200":
        values["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return values


def bridge_0_6_environment(size: str, gpu_type: str, precision: str, layout: Layout) -> dict[str, str]:
    """Return the variables, name to value, as Megatron-Bridge 0.6.0's functions of Llama have them.

    ``size`` is the model's (``8b``), ``gpu_type`` such as ``h100``, ``precision`` the dtype, with the scaling
    behind it for FP8: ``bf16``, ``fp8_cs``. Nothing is refused: any other size or precision gets none of the
    variables that only some models have, and an unknown type is taken for one that is not of Hopper. See
    ``perf_recipes/llama``, ``env_vars``; where ``layout`` has other columns than the function, the values are as
    its launcher sets them for such columns (``scripts/performance/utils/overrides.py:217-303``).
    """
    row_gpu = gpus.rows_of(gpu_type)
    values = {
        "TORCH_NCCL_AVOID_RECORD_STREAMS": "0" if layout.cuda_graph else "1",
        **_sm_margins(20),
        "CUDA_DEVICE_MAX_CONNECTIONS": _max_connections(gpu_type, layout, otherwise=32),
    }
    if layout.fsdp:  # with one queue Bridge refuses it (training/config.py: _validate_and_apply_megatron_fsdp_configs)
        values["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    else:
        values["NCCL_GRAPH_REGISTER"] = "0"
        reuse = ",graph_capture_record_stream_reuse:True" if layout.cuda_graph else ""
        values["PYTORCH_CUDA_ALLOC_CONF"] = f"expandable_segments:True{reuse}"
    if layout.gpus >= _CUDNN_NORMS_0_6.get((size, row_gpu, precision), layout.gpus + 1):
        values |= _CUDNN
    if (size, row_gpu, precision) == ("8b", "h100", "fp8_cs"):
        values["NCCL_CTA_POLICY"] = "1"
    if (size, row_gpu, precision) == ("70b", "gb300", "bf16") and layout.fsdp:
        # FSDP's registered buffers (llmb_train.settings: nccl_ub).
        values |= {"NCCL_CTA_POLICY": "1", "NCCL_NVLS_ENABLE": "1"}
    if gpu_type == "b300":
        values["NCCL_IGNORE_CPU_AFFINITY"] = "1"
    return values


_LARGE_MESSAGES = {"NCCL_P2P_NET_CHUNKSIZE": "2097152"}
"""Fewer of them between pipeline stages."""
_CUDNN = {"NVTE_NORM_FWD_USE_CUDNN": "1", "NVTE_NORM_BWD_USE_CUDNN": "1"}


def _sm_margins(streaming_multiprocessors: int) -> dict[str, str]:
    """Return the variables that keep SMs of the GPU free for communication in normalization kernels, name to value.

    They are NVTE_FWD_LAYERNORM_SM_MARGIN and NVTE_BWD_LAYERNORM_SM_MARGIN; ``streaming_multiprocessors`` is the
    number of SMs to keep free.
    """
    names = ("NVTE_FWD_LAYERNORM_SM_MARGIN", "NVTE_BWD_LAYERNORM_SM_MARGIN")
    return dict.fromkeys(names, str(streaming_multiprocessors))


def _max_connections(gpu_type: str, layout: Layout, *, otherwise: int, exchange_overlapped: bool = False) -> str:
    """Return the value of CUDA_DEVICE_MAX_CONNECTIONS, the number of hardware queues, as text.

    ``32`` on any GPU type but those of Hopper, also an unknown one. On Hopper it is ``1`` with TP or CP above 1,
    unless ``exchange_overlapped`` (the exchange of experts' tokens is), else ``otherwise``: one queue keeps the
    launch order that the overlap of TP and CP relies on.
    """
    if gpus.generation_of(gpu_type) != "hopper":
        return "32"
    return "1" if (layout.tp > 1 or layout.cp > 1) and not exchange_overlapped else str(otherwise)


def _variables_of_function(case: Case, function: Function, layout: Layout) -> dict[str, str]:
    """Return the variables, name to value, that the function of ``case`` wants set before torch is imported.

    ``function`` is that function; its ``env`` is not changed. The job must be for GPUs. Other columns in ``layout``
    than the function's change some of them, as in NVIDIA's launcher (Megatron-Bridge 0.6.0,
    ``scripts/performance/utils/overrides.py:217-303``); what every function has by itself follows the same rules.

    Raises:
        RequestError: EP is changed to more than the GPUs that NVLink joins, and the function exchanges tokens by it
    """
    values = dict(function.env)
    own = function.columns
    settings = function.settings
    if HYBRID_DOMAIN in values and layout.ep != own.ep:
        gpu, ranks = gpus.GPUS[case.gpu_type], layout.ep or 1
        if gpu.nvlink_nodes > 1 and ranks > gpu.nvlink_gpus:
            raise RequestError(
                f"EP={ranks}: {case.row.function} exchanges tokens by NVLink, which joins {gpu.nvlink_gpus} GPUs",
                remedy=f"choose an EP of at most {gpu.nvlink_gpus}",
                field="EP",
            )
        values[HYBRID_DOMAIN] = str(min(ranks, gpu.nvlink_gpus))
    if (layout.tp, layout.cp) != (own.tp, own.cp) and not layout.fsdp:
        values["CUDA_DEVICE_MAX_CONNECTIONS"] = _max_connections(
            case.gpu_type,
            layout,
            otherwise=32 if settings.get("moe_flex_dispatcher_backend") in ("deepep", "hybridep") else 8,
            exchange_overlapped=bool(settings.get("overlap_moe_expert_parallel_comm")),
        )
    if layout.fsdp and values.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
        values["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"  # Bridge refuses one, as above
    if layout.pp != own.pp:
        values.pop("NCCL_P2P_NET_CHUNKSIZE", None)
        if layout.pp > 1 and case.entry is not None and _has_large_messages(case.entry):
            values |= _LARGE_MESSAGES
    return values


def _has_large_messages(entry: FunctionName) -> bool:
    """Return whether NVIDIA's launcher enlarges NCCL's messages between pipeline stages for the function of
    ``entry``.
    """
    if entry.task == "pretrain":
        return entry.model in ("llama3_70b", "llama31_405b")
    return entry.task == "sft" and entry.model.startswith("llama")


def job_environment(
    recipe: Mapping[str, str], cluster: ClusterConfig, caller: Mapping[str, str]
) -> dict[str, EnvironmentValue]:
    """Return all variables of a job, sorted by name, each with its value and who set it.

    They are those of ``recipe`` (from ``recipe_environment``), of the site (``cluster.environment``) and of
    ``caller`` together, the latter two name to value. Of exactly the same name, the caller's wins over the site's,
    the site's over the recipe's, also where its value is empty. Who set it is ``recipe``, ``cluster_config.yaml``
    or ``environment``.
    """
    merged = {name: EnvironmentValue(value, "recipe") for name, value in recipe.items()}
    merged |= {name: EnvironmentValue(value, "cluster_config.yaml") for name, value in cluster.environment.items()}
    merged |= {name: EnvironmentValue(value, "environment") for name, value in caller.items()}
    return dict(sorted(merged.items()))
