"""What NVIDIA's launchers set around a function of Megatron-Bridge, beside what the function itself says.

Megatron-Bridge 0.6.0, ``scripts/performance``: ``setup_experiment.py`` and ``utils/executors.py`` (variables, cores,
clocks), ``utils/utils.py`` (the function that other scales start from). DGX Cloud Benchmarking 26.06.01: ``launch.sh``
of ``llama3.1``, ``nemotron-h`` and ``qwen3/pretrain`` (InfiniBand queue pairs). What it sets in the configuration is in
``llmb_train.functions.runner``. ``tests/data/launcher.json`` is what the launcher itself said.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmb_common.planning.case import Case
from llmb_common.platform import gpus
from llmb_common.recipes.rows import Row

_BLACKWELL = ("b200", "b300", "gb200", "gb300")

_QUEUE_PAIRS: dict[str, tuple[tuple[str, ...], tuple[str, ...], int]] = {
    "70b": (("b300",), (), 512),
    "405b": (("b300",), (), 512),
    "llama3_70b": (("b300",), (), 512),
    "llama31_405b": (("b300",), (), 512),
    "nemotronh_56b": (("gb200", "gb300", "b300"), (), 512),
    "qwen3_235b_a22b": (_BLACKWELL, ("bf16",), 1),
}
"""By size: GPU types, dtypes (none: all) and the number of GPUs from which NCCL gets four queue pairs a connection."""

_STARTS_SMALL = ("llama3_8b", "nemotronh_56b", "qwen3_30b_a3b")
"""Models of which the smallest function is the base of other scales (utils.py: _DEFAULT_GPU_COUNT_OVERRIDES)."""

_ALIASES = {
    *(f"llama31_405b_pretrain_256gpu_b200_{precision}_config" for precision in ("bf16", "fp8cs", "fp8mx")),
    *(f"llama31_405b_pretrain_256gpu_b300_{precision}_config" for precision in ("fp8cs", "fp8mx", "nvfp4")),
    *(f"qwen3_235b_a22b_pretrain_256gpu_{gpu}_nvfp4_full_iteration_config" for gpu in _BLACKWELL),
}
"""Names of functions that are defined elsewhere, which NVIDIA's launcher does not see when it looks for a base."""


def variables(case: Case) -> dict[str, str]:
    """Those that depend on the GPU type, the model and the scale, for every recipe."""
    values: dict[str, str] = {}
    if gpus.rows_of(case.gpu_type) == "gb200":
        values |= {"NCCL_NET_GDR_LEVEL": "PHB", "NCCL_NET_GDR_C2C": "1"}  # GPUDirect over the C2C link
    types, dtypes, least = _QUEUE_PAIRS.get(case.model.size, ((), (), 0))
    if case.gpu_type in types and case.dtype in (dtypes or (case.dtype,)) and case.gpus >= least:
        values["NCCL_IB_QPS_PER_CONNECTION"] = "4"
    return values


def fast_cores(case: Case) -> tuple[int, int] | None:
    """As ``Gpu.fast_cores``; None where the job's ranks may use any core of their socket."""
    gpu = gpus.GPUS.get(case.gpu_type)
    if gpu is None or case.function is None or case.model.reduced or case.request.cpu_pinning:
        return None
    return None if _any_core(case) or not case.request.fast_cores else gpu.fast_cores


def _any_core(case: Case) -> bool:
    """Models for which the launcher leaves the cores alone (setup_experiment.py: main)."""
    assert case.row.function is not None
    assert case.recipe.catalogue is not None
    entry = case.recipe.catalogue.entry(case.row.function)
    return (
        (entry.model == "nemotron_3_super" and entry.dtype == "bf16")
        or (entry.model == "deepseek_v3" and entry.suffix != "large_scale")
        or (entry.model.startswith(("llama", "kimi")) and entry.task == "pretrain")
    )


def memory_clock(case: Case) -> int | None:
    """MHz at which the GPUs' memory is held; None: as it is."""
    gpu = gpus.GPUS.get(case.gpu_type)
    return gpu.memory_clock if gpu is not None and case.function is not None and not case.model.reduced else None


def base(rows: Sequence[Row]) -> Row | None:
    """The function that a job on an undocumented number of GPUs starts from; None where the rows are no functions."""
    functions = [row for row in rows if row.function is not None and row.gpus_min == row.gpus_max]
    if len(functions) < len(rows):
        return None
    defined = [row for row in functions if row.function not in _ALIASES] or functions
    smallest = defined[0].size in _STARTS_SMALL
    return min(defined, key=lambda row: row.gpus_min if smallest else -row.gpus_min)
