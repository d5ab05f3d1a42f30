"""Every documented variable of ``launch.sh``, once: what it means, what it may be, its default, its name in messages.

Reading, typing errors, the READMEs' tables and the options of ``llmb-run`` are made from this table. It imports little:
every help text does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmb_common.platform import gpus
from llmb_common.platform.cluster_types import LOCAL, Variable, ways

OF_SCHEDULERS = {name: variable for way in ways().values() for name, variable in way.variables.items()}
"""The variables that only schedulers read, each its own."""
_OFF = "`false`"


COLUMNS = {
    name.upper(): name
    for name in (
        *("tp", "pp", "cp", "ep", "etp", "vp", "mbs", "gbs"),
        *("fsdp", "cuda_graph", "recompute_layers", "offload_layers"),
    )
}
"""The variables that override one column of a row, and the column's name. ``columns`` has the types, of just these."""

PATIENCE = {
    "LLMB_START_SECONDS": "how long a job may take to its first iteration before it is ended",
    "LLMB_HANG_SECONDS": "how long it may take from one iteration to the next",
    "LLMB_TEARDOWN_SECONDS": "how long it may take to exit after its last iteration",
    "LLMB_WATCH_SECONDS": "how often a job checks that it makes progress; 15 by default",
}
"""Variables of the caller that ``supervise.sh`` reads in the job, and what they set."""


def _per_node() -> str:
    """``1 for r100, 4 for gb300 and gb200, else 8``."""
    few = sorted({gpu.per_node for gpu in gpus.GPUS.values()} - {8})
    names = {count: [name for name, gpu in gpus.GPUS.items() if gpu.per_node == count] for count in few}
    said = [f"{count} for {', '.join(names[count][:-1])}" + (" and " if names[count][1:] else "") for count in few]
    return "".join(f"{text}{names[count][-1]}, " for count, text in zip(few, said, strict=True)) + "else 8"


def _where_jobs_run() -> str:
    """``slurm where sbatch answers, else local``."""
    schedulers = [way for way in ways().values() if way.submits_with]
    return "".join(f"`{way.name}` where `{way.submits_with}` answers, else " for way in schedulers) + f"`{LOCAL}`"


VARIABLES: dict[str, Variable] = {
    "JOB_TOTAL_GPUS": Variable(
        "number of GPUs (on a CPU: of ranks)",
        "required on Slurm, else what the machine has",
        option="--scale",
        metavar="GPUS",
    ),
    "GPU_TYPE": Variable(
        gpus.gpu_types(), "`cluster_config.yaml`, else {gpu_type}", option="--gpu-type", metavar="TYPE"
    ),
    "MODEL_SIZE": Variable("model size", "{model_size}; without GPUs `smoke`", option="-s", metavar="SIZE"),
    "DTYPE": Variable(("bf16", "fp8", "nvfp4"), "{dtype}", option="--dtype", metavar="DTYPE"),
    "FP8_RECIPE": Variable(
        "FP8 scaling: cs per-tensor current, ds delayed, mx MXFP8, sc sub-channel",
        "{fp8_recipe}",
        ("cs", "ds", "mx", "sc"),
    ),
    "CONFIG_VARIANT": Variable(
        "variant of the configurations, where a recipe has several",
        "the newest with that size, dtype and number of GPUs",
        option="--variant",
        metavar="NAME",
    ),
    "GPUS_PER_NODE": Variable("GPUs per node", _per_node()),
    "MAX_STEPS": Variable("training steps", "{max_steps}", option="--max-steps", metavar="N"),
    "TIME_LIMIT": Variable(
        "Slurm time limit: 90m, 8h, HH:MM:SS, or minutes",
        "{time_limit}, longer for some configurations",
        option="--time-limit",
        metavar="TIME",
    ),
    **dict.fromkeys(COLUMNS, Variable("override one column of the configuration", "the configuration's")),
    "MEGATRON_SETTINGS": Variable(
        "Megatron-Bridge settings, such as ddp.overlap_grad_reduce=true",
        option="--megatron",
        metavar="SETTING",
    ),
    **OF_SCHEDULERS,
    "RUN_CONF_IMAGE": Variable(
        "container image: a file, or a name as in a registry", "{image}", option="--image", metavar="IMAGE"
    ),
    "RUN_CONF_MOUNTS": Variable("more container mounts, separated by commas"),
    "ENABLE_PROFILE": Variable("profile with Nsight Systems", _OFF, option="--profile"),
    "PROFILE_START_STEP": Variable("first profiled step", "{profile_start}"),
    "PROFILE_STOP_STEP": Variable("step at which profiling stops", "{profile_stop}"),
    "RUN_CONF_PROFILE_START_STEP": Variable("first profiled step", "as `PROFILE_START_STEP`"),
    "RUN_CONF_PROFILE_STOP_STEP": Variable("step at which profiling stops", "as `PROFILE_STOP_STEP`"),
    "PROFILE_RANKS": Variable("profiled ranks: all, or 0,2,8-15", "{profile_ranks}"),
    "ENABLE_GPU_METRICS": Variable("GPU metrics in the profile", _OFF),
    "ENABLE_NCCLTRACE": Variable("trace NCCL into the log, for 5 steps", _OFF),
    "ENABLE_CHECKPOINT": Variable("save a checkpoint", _OFF),
    "CHECKPOINT_INTERVAL": Variable("save every N steps", "only at the end"),
    "CHECKPOINT_DIR": Variable("where checkpoints go", "`checkpoints/` in the run's folder"),
    "LOAD_CHECKPOINT_PATH": Variable("folder of checkpoints to resume from"),
    "ENABLE_VBOOST": Variable("request the GPUs' clock boost, which needs `sudo nvidia-smi` on the nodes", _OFF),
    "STRONG_SCALING": Variable("the same GBS for every number of GPUs", _OFF),
    "CPU_PER_TASK_PINNING": Variable("CPUs bound to each task", "0"),
    "ENABLE_PCT_BINDING": Variable("mbridge on B300: two cores per rank, as in NVIDIA's launcher", "`true`"),
    "MOE_ROUTING": Variable(
        "drop: tokens beyond an expert's capacity are dropped; balanced: equal load is forced, nothing is dropped",
        "`drop`",
        ("drop", "balanced"),
    ),
    "FORCE": Variable("accept any number of GPUs that the layout divides", _OFF, option="--force"),
    "PREFLIGHT": Variable(
        "what to do with jobs that may not fit: default, strict, warn or off",
        "`default`",
        ("default", "strict", "warn", "off"),
        option="--preflight",
        metavar="MODE",
    ),
    "LLMB_ENGINE": Variable(
        "release of Megatron-Bridge, where a recipe runs on several",
        "{engine}",
        option="--engine",
        metavar="RELEASE",
    ),
    "LLMB_ENGINE_CHECK": Variable("off: train with whatever Megatron-Bridge the image has", "`on`", ("on", "off")),
    "LLMB_PYTHON": Variable("the Python that LLMB is installed in", "active environment, then `LLMB_INSTALL`"),
    "CLUSTER_TYPE": Variable(" or ".join(ways()), _where_jobs_run()),
    "DRY_RUN": Variable("true: print the batch script; json: print the plan", _OFF),
    "LLMB_INSTALL": Variable("top folder of the installation", "required"),
    "LLMB_WORKLOAD": Variable("folder of the workload", "{workload_folder}"),
    "LLMB_REPO": Variable("clone of the repository", "this clone"),
    "STAGE_PATH": Variable("the old name of LLMB_INSTALL; refused"),
    "HF_TOKEN": Variable("Hugging Face token", "not needed: synthetic data, null tokenizer"),
}


@dataclass(frozen=True)
class FieldNames:
    """Names for messages. ``options``: the option for a field, by the field's variable; without one, the variable."""

    options: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, variable: str, value: object = None) -> str:
        """``JOB_TOTAL_GPUS=128`` or ``--scale 128``; a switch that is on is its option alone."""
        option = self.options.get(variable)
        if option is None:
            return variable if value is None else f"{variable}={value}"
        return option if value in (None, "true") else f"{option} {value}"


VARIABLE_NAMES = FieldNames()
"""The columns by the names that ``launch.sh`` uses."""
