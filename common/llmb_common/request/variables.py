"""Every documented variable of ``launch.sh``, once: what it means, what it may be, its default.

Reading, typing errors, the READMEs' tables and the options of other front ends are made from this table.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmb_common import gpus
from llmb_common.request.columns import COLUMNS

SITE = "`cluster_config.yaml`"
_OFF = "`false`"


@dataclass(frozen=True)
class Variable:
    """``meaning`` is a phrase; ``choices``: the only values there are. ``default`` is for people, ``{...}`` in it the
    recipe's own (see ``recipes.readme_variables``)."""

    meaning: str
    default: str = "-"
    choices: tuple[str, ...] = ()


def _choice(*choices: str, default: str) -> Variable:
    return Variable(" ".join(choices), default, choices)


def _per_node() -> str:
    """``1 for r100, 4 for gb300 and gb200, else 8``."""
    few = sorted({gpu.per_node for gpu in gpus.GPUS.values()} - {8})
    names = {count: [name for name, gpu in gpus.GPUS.items() if gpu.per_node == count] for count in few}
    said = [f"{count} for {', '.join(names[count][:-1])}" + (" and " if names[count][1:] else "") for count in few]
    return "".join(f"{text}{names[count][-1]}, " for count, text in zip(few, said, strict=True)) + "else 8"


VARIABLES: dict[str, Variable] = {
    "JOB_TOTAL_GPUS": Variable("number of GPUs; ranks on a CPU", "required on Slurm, else what the machine has"),
    "GPU_TYPE": Variable(" ".join(gpus.gpu_types()), f"{SITE}, else {{gpu_type}}"),
    "MODEL_SIZE": Variable("model size", "{model_size}; without GPUs `smoke`"),
    "DTYPE": Variable("bf16 fp8 nvfp4", "{dtype}"),
    "FP8_RECIPE": _choice("cs", "ds", "mx", "sc", default="{fp8_recipe}"),
    "CONFIG_VARIANT": Variable(
        "which generation of configurations, if the recipe has two", "the newest with that size, dtype and scale"
    ),
    "GPUS_PER_NODE": Variable("GPUs per node", _per_node()),
    "SBATCH_GPUS_PER_NODE": Variable("GPUs per node; also requests them from Slurm as GRES", SITE),
    "MAX_STEPS": Variable("training steps", "{max_steps}"),
    "TIME_LIMIT": Variable("Slurm time limit", "{time_limit}, longer for some configurations"),
    **dict.fromkeys(COLUMNS, Variable("override one column of the configuration", "from the tables above")),
    "SBATCH_ACCOUNT": Variable("Slurm account", SITE),
    "SBATCH_PARTITION": Variable("Slurm partition", SITE),
    "ADDITIONAL_SLURM_PARAMS": Variable("semicolon-separated key=value or flag"),
    "RUN_CONF_IMAGE": Variable("another container image", "{image}"),
    "RUN_CONF_MOUNTS": Variable("extra container mounts, comma-separated"),
    "ENABLE_PROFILE": Variable("Nsight Systems profile", _OFF),
    "PROFILE_START_STEP": Variable("first profiled step", "{profile_start}"),
    "PROFILE_STOP_STEP": Variable("step at which profiling stops", "{profile_stop}"),
    "RUN_CONF_PROFILE_START_STEP": Variable("first profiled step", "as `PROFILE_START_STEP`"),
    "RUN_CONF_PROFILE_STOP_STEP": Variable("step at which profiling stops", "as `PROFILE_STOP_STEP`"),
    "PROFILE_RANKS": Variable("profiled ranks: all, or 0,2,8-15", "{profile_ranks}"),
    "ENABLE_GPU_METRICS": Variable("GPU metrics in the profile", _OFF),
    "ENABLE_NCCLTRACE": Variable("NCCL trace in the log", _OFF),
    "ENABLE_CHECKPOINT": Variable("save a checkpoint", _OFF),
    "CHECKPOINT_INTERVAL": Variable("save every N steps", "only at the end"),
    "CHECKPOINT_DIR": Variable("where checkpoints go", "`checkpoints/` in the run's folder"),
    "LOAD_CHECKPOINT_PATH": Variable("resume from here"),
    "ENABLE_VBOOST": Variable("clock boost", _OFF),
    "STRONG_SCALING": Variable("the same GBS at every scale", _OFF),
    "CPU_PER_TASK_PINNING": Variable("CPUs bound to each task", "0"),
    "MOE_ROUTING": Variable("drop or balanced", "`drop`", ("drop", "balanced")),
    "FORCE": Variable("accept an undocumented number of GPUs that the layout divides", _OFF),
    "LLMB_ENGINE": Variable("release of Megatron-Bridge that trains: {engines}", "`{engine}`"),
    "LLMB_ENGINE_CHECK": Variable("off: train with any Megatron-Bridge the image has", "`on`", ("on", "off")),
    "LLMB_PYTHON": Variable("the Python that LLMB is installed in", "active environment, then `LLMB_INSTALL`"),
    "CLUSTER_TYPE": Variable("slurm or local", "`slurm` where `sbatch` answers, else `local`"),
    "DRY_RUN": Variable("true: print the batch script; json: print the plan", _OFF),
    "LLMB_INSTALL": Variable("top folder of the installation", "required"),
    "LLMB_WORKLOAD": Variable("folder of the workload", "{workload_folder}"),
    "LLMB_REPO": Variable("clone of the repository", "this clone"),
    "STAGE_PATH": Variable("old name of LLMB_INSTALL"),
    "HF_TOKEN": Variable("Hugging Face token", "not needed: synthetic data, null tokenizer"),
}
