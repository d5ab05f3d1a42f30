"""What the user asked for: the documented variables, read strictly, from ``launch.sh`` and ``llmb-run`` alike.

``read_request`` turns a mapping of variables into a frozen ``Request``. A value that makes no sense, and a name that is
one slip away from a documented one, is a RequestError: on a cluster, a silently ignored ``JOB_TOTAL_GPU=256`` costs a
night. But a user's environment holds hundreds of variables of other programs. So a shorter name (``PROFILE`` for
``ENABLE_PROFILE``) is remarked on only where its value is one that the documented variable takes, and the documented
variable is not set.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.cluster_types import ClusterType
from llmb_common.base.errors import RequestError
from llmb_common.base.words import SECRET_VARIABLES, is_secret_name
from llmb_common.planning.request.values import Reader, gres_count, refuse_disagreement
from llmb_common.planning.request.variables import (
    COLUMNS,
    OF_SCHEDULERS,
    PATIENCE,
    VARIABLE_NAMES,
    VARIABLES,
    FieldNames,
)

# Real variables of other programs that look like ours.
_NOT_TYPOS = {
    "CPU_TYPE",
    "CHECKPOINT_PATH",
    "ENABLE_TRACE",
    "SBATCH_GPUS",
    "SBATCH_GPUS_PER_TASK",
    "SBATCH_MEM_PER_NODE",
    "SBATCH_NO_REQUEUE",
}
_OTHERS = ("SLURM_", "SALLOC_", "SRUN_")

_TRUE = r"true|yes|on|1"
_NUMBER = r"[1-9][0-9]{0,5}"
_PREFIXES = {"ENABLE_": _TRUE, "JOB_TOTAL_": _NUMBER, "JOB_": _NUMBER, "MAX_": _NUMBER}
"""Beginnings that users leave out, and the values that make it likely that they mean us. ``PROFILE=false`` asks for
what happens anyway."""
_SYNONYMS = {
    **dict.fromkeys(("NUM_GPUS", "NGPUS", "N_GPUS"), "JOB_TOTAL_GPUS"),
    **dict.fromkeys(("NUM_STEPS", "TRAIN_STEPS"), "MAX_STEPS"),
    **dict.fromkeys(("NCCL_TRACE", "TRACE_NCCL"), "ENABLE_NCCLTRACE"),
    **dict.fromkeys(("PRECISION", "DATA_TYPE"), "DTYPE"),
    **dict.fromkeys(("SEQUENCE_LENGTH", "MAX_SEQ_LENGTH"), "SEQ_LENGTH"),
    "PROFILING": "ENABLE_PROFILE",
}
_SYNONYM_VALUES = {"DTYPE": r"bf16|fp8|nvfp4", "JOB_TOTAL_GPUS": _NUMBER, "MAX_STEPS": _NUMBER, "SEQ_LENGTH": _NUMBER}


def refuse_typos(variables: Mapping[str, str], documented: Collection[str]) -> None:
    """Raise if a name of ``variables`` is probably a misspelling of one of ``documented``; values are not looked at.

    ``documented`` are in capital letters. Names of fewer than five letters, secrets, Slurm's own, and those that
    are known to mean something else are passed over; a documented name in other letters' case is a misspelling.

    Raises:
        RequestError: code ``unknown-variable``: one is; the alphabetically first such name is in the message
    """
    # Short names (TP, VP) are too close to everything; a slip in those is caught by nothing but the plan's own print.
    candidates = tuple(name for name in documented if len(name) >= 5)
    for name in sorted(variables):
        if len(name) < 5 or name in documented or name in _NOT_TYPOS or name in SECRET_VARIABLES:
            continue
        if name.startswith(_OTHERS):
            continue
        if near := _misspelt_name(name, candidates):
            raise RequestError(
                f"the variable {name} is unknown (did you mean {near}?)",
                remedy=f"rename it to {near}, or unset {name} if it is meant for something else",
                code="unknown-variable",
            )


@functools.cache  # the requests of a sweep or a campaign are read in one environment, and comparing takes longest
def _misspelt_name(name: str, candidates: tuple[str, ...]) -> str:
    """Return the nearest of ``candidates`` that ``name`` is a likely misspelling of; empty: there is none.

    ``candidates`` must be in capital letters; the case of ``name`` does not matter.
    """
    cutoff, name = 0.85 if len(name) > 7 else 0.79, name.upper()
    letters = set(name)
    possible = []
    for other, others_letters in _with_letters(candidates):
        # Letters of only one of the two have no partner: this rules out most candidates, 20 times as fast as the rest.
        most = (1 - cutoff) * (len(name) + len(other))
        if abs(len(name) - len(other)) > most or len(letters ^ others_letters) > most:
            continue
        in_both = sum(min(name.count(letter), other.count(letter)) for letter in letters)
        if len(name) + len(other) - 2 * in_both <= most:
            possible.append(other)
    if not possible:
        return ""
    import difflib  # seldom: for hardly any variable there is a candidate

    return next(iter(difflib.get_close_matches(name, possible, 1, cutoff)), "")


@functools.cache
def _with_letters(names: tuple[str, ...]) -> list[tuple[str, set[str]]]:
    """Return (name, set of its letters) for each of ``names``, so that comparing them with others is quick.

    The answer is kept: do not change it.
    """
    return [(name, set(name)) for name in names]


def shorter_names(variables: Mapping[str, str], documented: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return the (name, value) that was probably set instead of a documented variable, by that variable's name.

    Such as ``{"ENABLE_PROFILE": ("PROFILE", "true")}``. ``variables`` are values by name, ``documented`` names. The
    documented one must not be set, or be blank, the other must not be documented itself, and its value, which comes
    without blanks around it, must look like one of the documented one's. These are only reported, and not read. Empty:
    there are none.
    """
    known = {name: (meant, _SYNONYM_VALUES.get(meant, _TRUE)) for name, meant in _SYNONYMS.items()}
    for meant in documented:
        for prefix, values in _PREFIXES.items():
            if meant.startswith(prefix):
                known.setdefault(meant.removeprefix(prefix), (meant, values))
    found: dict[str, tuple[str, str]] = {}
    for name, (meant, values) in known.items():
        value = variables.get(name, "").strip()
        is_meant_set = variables.get(meant, "").strip() != ""
        if name in documented or is_meant_set:
            continue
        if re.fullmatch(values, value.lower()):
            found.setdefault(meant, (name, value))
    return found


TUNING_PREFIXES = (
    "NCCL_", "TORCH_NCCL_", "NVTE_", "UCX_", "GLOO_", "OMPI_MCA_", "PYTORCH_", "SHARP_", "FI_", "NVSHMEM_",
    "CUDNNFE_",
)  # fmt: skip
_TUNING = re.compile(
    rf"({'|'.join(TUNING_PREFIXES)})[A-Z0-9_]+\Z"
    r"|(NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN|NUM_OF_TOKENS_PER_CHUNK_COMBINE_API|NVLINK_DOMAIN_SIZE|USE_MNNVL)\Z"
    r"|(CUDA_DEVICE_MAX_CONNECTIONS|TOKENIZERS_PARALLELISM|TRANSFORMERS_OFFLINE|OMP_NUM_THREADS|MASTER_PORT)\Z"
    r"|LLMB_ENGINE_CHECK\Z"
)
"""Variables of the caller that change how a job runs: they go on record in the plan."""

_HONOURED = {name for name in VARIABLES if name.startswith("SBATCH_")}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One job as the user asks for it; None: not said, so that the recipe or the site decides.

    ``read_request`` makes it of variables, with absolute paths and whole numbers from 1 (``cpu_pinning``, and the
    columns that count layers, from 0); values are checked one by one there, not against recipe and site. The
    property ``checks_engine`` is False where LLMB_ENGINE_CHECK is ``off``: settings are not compared with the
    release of Megatron-Bridge in the job's image.
    """

    gpus: int | None = None
    """In all; on CPUs the number of ranks."""
    gpu_type: str | None = None
    """In small letters, such as ``h100``, or ``cpu``; any name is taken here."""
    model_size: str | None = None
    """The name of a model of the recipe (``70b``), in small letters."""
    dtype: str | None = None
    """``bf16``, ``fp8`` or ``nvfp4``, in small letters; any name is taken here."""
    fp8_recipe: str | None = None
    """The FP8 scaling, ``cs``, ``ds``, ``mx`` or ``sc``."""
    variant: str | None = None
    """The name of a variant of the recipe, in small letters."""
    gpus_per_node: int | None = None
    """GPUs that a node has."""
    max_steps: int | None = None
    """Steps to train."""
    time_limit: str | None = None
    """As Slurm writes it, such as ``01:30:00``."""
    columns: Mapping[str, int | bool | None] = msgspec.field(default_factory=dict)
    """Layout columns to change, by their names in small letters, such as ``tp``; None as a value: not used
    (``NA``).
    """
    megatron: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Settings of the framework, from ``section.field`` to text."""
    scheduler: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Variables that only schedulers read, values by name."""
    engine: str | None = None
    """A release of Megatron-Bridge, ``0.6`` or ``0.6.2``."""
    image: str | None = None
    """A container image: a file's path or a registry's name."""
    mounts: tuple[str, ...] = ()
    """Container mounts beside the site's, ``SOURCE:TARGET[:ro]``."""
    profile: bool = False
    """Whether to profile the job."""
    profile_start: int | None = None
    """The first profiled step."""
    profile_stop: int | None = None
    """The step just before which profiling ends."""
    profile_ranks: str | None = None
    """``all``, or such as ``0,2,8-15``."""
    profile_trace: str | None = None
    """What nsys traces, such as ``nvtx,cuda``."""
    gpu_metrics: bool = False
    """Whether nsys samples the GPU's hardware counters."""
    nccl_trace: bool = False
    """Whether NCCL logs its collectives."""
    checkpoint: bool = False
    """Whether to save checkpoints."""
    checkpoint_interval: int | None = None
    """Steps between two checkpoints."""
    checkpoint_dir: Path | None = None
    """The folder to write checkpoints to."""
    load_checkpoint: Path | None = None
    """The folder of checkpoints to resume from, or with adapters the model's."""
    vboost: bool = False
    """Whether to request the GPUs' clock boost."""
    strong_scaling: bool = False
    """Whether to keep the global batch of the largest documented scale for every number of GPUs."""
    cpu_pinning: int = 0
    """CPUs to bind to each rank; 0: none."""
    fast_cores: bool = True
    """False: ranks run on any core of their socket."""
    moe_routing: str | None = None
    """``drop`` or ``balanced``."""
    check_fabric: bool = False
    """Whether the job checks its own nodes before it trains."""
    force: bool = False
    """Whether to accept a number of GPUs that the recipe does not document."""
    preflight: str | None = None
    """``default``, ``strict``, ``warn`` or ``off``: what a job that may not fit in memory leads to."""
    cluster_type: ClusterType | None = None
    """How jobs run, such as ``slurm`` or ``local``."""
    dry_run: str | None = None
    """``script`` or ``json``: what to print instead of starting the job."""
    install: Path | None = None
    """The folder of the installation."""
    workload: Path | None = None
    """The folder below which its runs are made."""
    tuning: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Variables of the caller that change how a job runs (``NCCL_...`` and the like), values by name."""
    ignored: tuple[str, ...] = ()
    """``SBATCH_*`` variables that were set for other jobs: sbatch never sees them, because they would override the
    script."""
    unread: Mapping[str, tuple[str, str]] = msgspec.field(default_factory=dict)
    """Documented variables that are not set, and the near-miss (``PROFILE``, ``true``) that was set instead."""
    say: FieldNames = VARIABLE_NAMES
    """How messages call the variables."""

    @property
    def checks_engine(self) -> bool:
        """Whether the job's settings are compared with the release of Megatron-Bridge that its image holds.

        False only where the caller's LLMB_ENGINE_CHECK is ``off``, in any case of letters.
        """
        return self.tuning.get("LLMB_ENGINE_CHECK", "").strip().lower() != "off"


def read_request(variables: Mapping[str, str], say: FieldNames = VARIABLE_NAMES) -> Request:
    """Return the request that ``variables``, usually ``os.environ``, make; a blank value counts as not set.

    Variables that LLMB does not know are ignored, unless they look like a misspelling. ``say`` has the front end's
    names for messages. Nothing is looked up in recipe or site, and no file is read.

    Raises:
        RequestError: a value is wrong, two contradict each other, a variable is misspelled, or ``STAGE_PATH`` is
            set
        OSError: a path is relative, and the current folder has been removed
    """
    if variables.get("STAGE_PATH"):
        raise RequestError(
            "STAGE_PATH is the old name of the installation folder",
            remedy="unset STAGE_PATH and export LLMB_INSTALL instead; results are now under "
            "$LLMB_INSTALL/workloads/<workload>/experiments",
            code="stage-path",
        )
    refuse_typos(variables, [*VARIABLES, *PATIENCE])
    read = Reader(variables, say)
    values_by_variable = {name: getattr(read, known.read)(name) for name, known in VARIABLES.items()}
    gres = ("SBATCH_GPUS_PER_NODE", gres_count(values_by_variable.get("SBATCH_GPUS_PER_NODE")))
    refuse_disagreement(("GPUS_PER_NODE", values_by_variable["GPUS_PER_NODE"]), gres)
    fields: dict[str, str] = {}  # of a request, each with its variable; where several mean one, they have to agree
    for name, known in VARIABLES.items():
        if known.sets and values_by_variable[name] is not None:
            other = fields.setdefault(known.sets, name)
            refuse_disagreement((other, values_by_variable[other]), (name, values_by_variable[name]))
    values: dict[str, Any] = {field: values_by_variable[name] for field, name in fields.items()}
    request = Request(
        **{"gpus_per_node": gres[1]} | values,
        columns={
            column: values_by_variable[name] for name, column in COLUMNS.items() if variables.get(name, "").strip()
        },
        scheduler={name: values_by_variable[name] for name in OF_SCHEDULERS if values_by_variable[name]},
        tuning={
            name: read.one_line(name, value)
            for name, value in sorted(variables.items())
            if _TUNING.match(name) and not is_secret_name(name)
        },
        ignored=tuple(sorted(name for name in variables if name.startswith("SBATCH_") and name not in _HONOURED)),
        unread=shorter_names(variables, VARIABLES),
        say=say,
    )
    for name in PATIENCE:  # read by the job itself
        read.positive(name, remedy="whole seconds, at least 1")
    _refuse_contradictions(request)
    return request


def _refuse_contradictions(request: Request) -> None:
    """Raise if variables of a request contradict each other, or need one that is not set; return None otherwise.

    Profile and trace of NCCL exclude each other; details of profiles and of checkpoints need these switched on.

    Raises:
        RequestError: they do; the message names the first such pair
    """
    if request.profile and request.nccl_trace:
        raise RequestError(
            f"{request.say('ENABLE_PROFILE')} and ENABLE_NCCLTRACE cannot be combined",
            remedy="run once with each of them",
        )
    of_profiles = {
        "ENABLE_GPU_METRICS": request.gpu_metrics,
        "PROFILE_START_STEP": request.profile_start,
        "PROFILE_STOP_STEP": request.profile_stop,
        "PROFILE_RANKS": request.profile_ranks,
        "PROFILE_TRACE": request.profile_trace,
    }
    of_checkpoints = {"CHECKPOINT_INTERVAL": request.checkpoint_interval, "CHECKPOINT_DIR": request.checkpoint_dir}
    for switch, on, dependent in (
        (request.say("ENABLE_PROFILE", "true"), request.profile, of_profiles),
        ("ENABLE_CHECKPOINT=true", request.checkpoint, of_checkpoints),
    ):
        for name, value in dependent.items():
            if value and not on:
                raise RequestError(f"{name} needs {switch}", remedy="set both, or neither")
