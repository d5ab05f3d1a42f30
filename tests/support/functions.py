"""Jobs that call a function of the shipped catalogue, for tests of them."""

from __future__ import annotations

from pathlib import Path

from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.site.machine import Machine
from llmb_common.recipes.catalogue import FunctionName
from llmb_common.recipes.loading import load_recipe
from support import plans

ROOT = Path(__file__).resolve().parents[2]
RECIPE = load_recipe(ROOT / "mbridge")
assert RECIPE.catalogue is not None
CATALOGUE = RECIPE.catalogue
NEWEST = {"LLMB_ENGINE": CATALOGUE.release, "LLMB_ENGINE_CHECK": "off"}
"""For jobs of the newest functions, which no image of NVIDIA's has."""
UNCHECKED = {"LLMB_ENGINE_CHECK": "off"}
"""For jobs in images that have no functions."""
SLURM = Machine(cluster_type="slurm")
LAPTOP = Machine(cluster_type="local", gpu_type="cpu")

_NVFP4 = ("nvfp4", "nvfp4_full_iteration")
_THREE = ("bf16", "fp8cs", "fp8mx")
_LAYERS = (
    "qwen35_vl_35b_a3b_pretrain_16gpu_h100",
    "qwen35_vl_397b_a17b_pretrain_256gpu_h100",
    "qwen3_vl_235b_a22b_pretrain_256gpu_h100",
)
IMPOSSIBLE = {
    *(f"qwen3_235b_a22b_pretrain_64gpu_gb300_{what}_config" for what in ("bf16", "fp8cs", "fp8mx", *_NVFP4)),
    *(f"qwen3_235b_a22b_pretrain_64gpu_gb200_{what}_config" for what in ("fp8cs", "fp8mx", *_NVFP4)),
    *(f"deepseek_v3_pretrain_128gpu_vr200_{what}_config" for what in ("bf16", "fp8cs", "fp8mx", "nvfp4")),
    *(f"deepseek_v3_pretrain_64gpu_h100_{what}_config" for what in ("bf16", "fp8cs")),
    *(f"nemotronh_56b_pretrain_256gpu_{gpu}_bf16_config" for gpu in ("b200", "gb300")),
    *(f"qwen35_vl_397b_a17b_pretrain_64gpu_{gpu}_{what}_config" for gpu in ("b200", "gb200") for what in _THREE),
    *(f"{name}_{what}_config" for name in _LAYERS for what in ("bf16", "fp8cs")),
}
"""Functions of NVIDIA's that do not divide at their own number of GPUs."""
MEGATRON_REFUSES = {
    *(f"deepseek_v3_pretrain_256gpu_{gpu}_fp8mx_partial_cg_dev_config" for gpu in ("gb200", "gb300")),
    "deepseek_v4_pro_pretrain_256gpu_gb300_fp8mx_config",
    "qwen3_235b_a22b_pretrain_128gpu_b200_fp8mx_deepep_dev_config",
}
"""Those that divide and are refused by Megatron 0.6.2's own validation all the same."""


def plan(machine: Machine = SLURM, **variables: str) -> JobPlan:
    """The plan of a job of the recipe ``mbridge``."""
    return plans.plan("mbridge", machine, **variables)


def asked(entry: FunctionName) -> dict[str, str]:
    """The variables that ask for a function."""
    wanted = {"MODEL_SIZE": entry.model, "GPU_TYPE": entry.gpu, "JOB_TOTAL_GPUS": str(entry.gpus), "DTYPE": entry.dtype}
    if entry.fp8_recipe:
        wanted["FP8_RECIPE"] = entry.fp8_recipe
    if entry.variant("pretrain") != "pretrain":
        wanted["CONFIG_VARIANT"] = entry.variant("pretrain")
    if entry.task == "peft":
        wanted["LOAD_CHECKPOINT_PATH"] = "/checkpoints/base"
    return wanted
