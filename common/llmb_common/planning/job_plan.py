"""``JobPlan``: one job, complete and frozen. Scripts, job.json, records and reports are functions of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import force_setattr

from llmb_common.base.cluster_types import ClusterType, Traits, traits_of
from llmb_common.base.engines import DEFAULT_ENGINE
from llmb_common.base.printable import counted
from llmb_common.base.structs import from_plain
from llmb_common.planning.divisibility import Layout
from llmb_common.planning.scheduler import SchedulerPart
from llmb_common.recipes.columns import Bookkeeping, Columns, Derived, Division, Extent, Place, Speed, Work
from llmb_common.recipes.model import Architecture, Reduced
from llmb_common.recipes.rows import Measurement, precision

if TYPE_CHECKING:
    Part = SchedulerPart | None
else:
    Part = Any  # whose it is, ``cluster_type`` says

Scalar = bool | int | float | str | None
Setting = Scalar | list[Scalar] | dict[str, Any]
"""The value of a setting of the framework, as JSON has it."""


class EnvironmentValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job variable and who set it: the recipe, the site's cluster_config.yaml or the caller's environment."""

    value: str
    source: Literal["recipe", "cluster_config.yaml", "environment"]


class ProfilePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is profiled. ``ranks`` None: all. ``file``: the report's name, with the job's own variables left in.

    ``trace``: what nsys traces; records from before it could be chosen have none.
    """

    tool: Literal["nsys", "torch"]
    start: int
    stop: int
    ranks: tuple[int, ...] | None
    file: str
    gpu_metrics: bool
    trace: str = "nvtx,cuda"


class CheckpointPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where checkpoints are written and read. ``save`` None: into the run's own ``checkpoints`` folder.

    ``resume``: start from the newest finished checkpoint in ``save``, where there is one.
    """

    enabled: bool = False
    save: str | None = None
    interval: int | None = None
    load: str | None = None
    resume: bool = False
    save_seconds: int = 120
    """What writing one checkpoint takes, by the site's rate: how long before its time limit Slurm tells the job to."""

    @property
    def is_used(self) -> bool:
        """Whether the run writes or reads checkpoints."""
        return self.enabled or self.load is not None or self.resume


class StageMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GiB of one rank of the pipeline stages ``first`` to ``last`` (from 0), at the moment when it holds most.

    ``activations``: what all micro-batches under way have saved for the backward pass; ``logits``: those of the last
    stage; ``dummy_gradients``: Transformer Engine's placeholders, one for each shape of a weight; ``transient``: what
    lives for the moment only.
    """

    first: int
    last: int
    layers: int
    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    dummy_gradients: float
    transient: float

    @property
    def parts(self) -> dict[str, float]:
        """The parts of the stage's memory in GiB, by name, in the order in which they are shown."""
        return {name: getattr(self, name) for name in self.__struct_fields__[3:]}

    @property
    def total(self) -> float:
        """The predicted peak of GPU memory that is allocated on a rank of the stage, in GiB."""
        return sum(self.parts.values())


class MemoryEstimate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The memory of a job, in GiB on one rank. Stages that are alike are one entry.

    ``reserve``: what the allocator does not see (CUDA's context, NCCL's buffers) and what it loses to fragments;
    ``limit``: what the device has; ``at_least``: a validated lower bound of the peak, None where there is none.
    ``knowledge`` says how well jobs of the class ``kind`` are known: ``low`` and ``high`` are the errors of ``pairs``
    peaks, in percent of the measured one, None where nobody measured any. ``factor``: what was
    measured over what was predicted, here or by others. ``knob``: what would help most. ``ran_out``: who saw a job of
    this kind run out of memory that was predicted to need less of its GPU than this one; empty: nobody is known.
    """

    stages: tuple[StageMemory, ...]
    reserve: float
    limit: float
    kind: str
    knowledge: Literal["validated", "validated here", "not validated"]
    low: float | None = None
    high: float | None = None
    pairs: int = 0
    factor: float = 1.0
    at_least: float | None = None
    knob: str = ""
    ran_out: str = ""

    @property
    def fullest(self) -> StageMemory:
        """The pipeline stage whose ranks need the most memory."""
        return max(self.stages, key=lambda stage: stage.total)

    @property
    def peak(self) -> float:
        """The predicted peak of GPU memory that is allocated on the fullest rank, in GiB."""
        return self.fullest.total

    @property
    def likely(self) -> float:
        """The expected peak of GPU memory on the fullest rank, in GiB.

        It is ``peak`` times what such jobs were measured to need of it; ``peak`` itself where nobody measured any.
        """
        return self.peak * self.factor

    @property
    def fits(self) -> bool:
        """Whether the likely peak and the reserve together are at most the memory that the GPU has."""
        return self.likely + self.reserve <= self.limit

    @property
    def certain(self) -> bool:
        """Whether the job certainly does not fit: a validated lower bound and the reserve are above the limit.

        False where there is no such bound.
        """
        return (self.at_least or 0) + self.reserve > self.limit

    @property
    def verdict(self) -> str:
        """Whether the job fits in GPU memory, in words: ``fits``, ``may fit`` (predicted to, but another job like it
        ran out), ``may not fit`` (predicted not to, uncertain) or ``does not fit``.
        """
        if self.fits:
            return "may fit" if self.ran_out else "fits"
        return "does not fit" if self.certain else "may not fit"


class Difference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing in which a planned job is not the published one, in the words of tables."""

    name: str
    published: str
    planned: str

    def __str__(self) -> str:
        return f"{self.name} {self.published} (here {self.planned})"


class PublishedTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The published step time nearest to a plan, in seconds, and the job that it was measured on.

    ``likeness``: *exact*, the same job, whatever the plan does beside training (checkpoints, profiles, traces); *weak
    scaling*, the same layout and work for each GPU on another number of GPUs; *nearest*, another job of this model,
    which says nothing of how long a step of this one takes. ``differs`` has all differences.
    """

    step_seconds: float
    gpus: int
    gpu_type: str
    container: str | None
    software: str
    source: str
    likeness: Literal["exact", "weak scaling", "nearest"]
    differs: tuple[Difference, ...] = ()


class Deviation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that a job does otherwise than NVIDIA's runner, on purpose. ``jobs``: which ones do."""

    name: str
    jobs: str
    nvidia: str
    here: str
    why: str


class Preflight(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known before the job runs. Sizes in GiB, times in seconds; None: not known.

    ``memory_gib``: peak of allocated memory on the fullest rank; ``memory_limit_gib``: what the device has; ``fits``:
    whether it holds that and a reserve; ``memory``: part by part.
    """

    memory_gib: float | None = None
    memory_limit_gib: float | None = None
    fits: bool | None = None
    memory: MemoryEstimate | None = None
    predicted_step_seconds: float | None = None
    """The mean of this site's own runs of the same job in the same software."""
    predicted_low: float | None = None
    predicted_high: float | None = None
    """A further run is between the two in 9 of 10 cases."""
    own_runs: int | None = None
    """How many runs that is known from."""
    knowledge: str | None = None
    """``own runs`` where a step time is predicted. Records of earlier releases have further words."""
    reference_step_seconds: float | None = None
    """Of the published result of exactly this job: what its runs are compared with."""
    reference_software: str | None = None
    """What the published step time was measured with."""
    published: PublishedTime | None = None
    """The published result nearest to this job; None: nothing was published for its model."""
    deviations: tuple[Deviation, ...] = ()
    """What it does otherwise than NVIDIA's runner, on purpose; each is among ``warnings``, too."""
    warnings: tuple[str, ...] = ()


class PlannedFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The function of Megatron-Bridge that a job calls, and what its catalogue says of it.

    ``columns``, ``sequence_length``: as the function gives them, at its own scale. ``flops_per_token``: Bridge's count
    on sequences of the job's length, by which NVIDIA publishes; ``own_flops_per_token``: LLMB's
    (``llmb_train.counts``); None: not counted, or not known for that length. ``reduced``: the numbers of a small copy
    that trains in place of the model; None: the model itself trains.
    """

    name: str
    release: str
    catalogue: str
    """SHA-256 of the catalogue's functions."""
    columns: Columns[int]
    sequence_length: int
    flops_per_token: float | None
    own_flops_per_token: float | None = None
    experts: bool
    reduced: Reduced | None = None
    adapters: bool = False
    """It trains adapters (LoRA) beside a model that it loads, and does not resume what is loaded."""


class JobPlan(Columns[int], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job, complete and frozen: everything after planning is a function of it.

    GPU counts are whole numbers, times seconds or Slurm durations, paths absolute strings. Each field says what it is
    for (``roles``), and from that follows in what two jobs are the same.
    """

    schema: Bookkeeping[Literal[1]] = 1
    workload: Work[str]
    recipe: Derived[str]
    family: Derived[str]
    variant: Speed[str]
    model_size: Work[str]
    dtype: Speed[str]
    fp8_recipe: Speed[str | None]
    gpu_type: Speed[str]
    device: Speed[Literal["cuda", "cpu"]]
    cluster_type: Place[ClusterType]
    gpus: Division[int]
    nodes: Derived[int]
    gpus_per_node: Division[int]
    seq_len: Work[int]
    layers: Work[int]
    parameters: Derived[int | None]
    dp: Derived[int]
    expert_dp: Derived[int | None]
    ga: Derived[int]
    wgrad_deferral: Division[int | None] = None
    overridden: Derived[tuple[str, ...]]
    megatron: Speed[dict[str, Setting]] = msgspec.field(default_factory=dict)
    """Settings of the framework by section and field, ``{"model.attention_dropout": 0.0}``: set last, on every rank."""
    moe_routing: Work[str | None]
    max_steps: Extent[int]
    exit_after: Extent[int | None]
    time_limit: Bookkeeping[str]
    image: Place[str | None]
    mounts: Bookkeeping[tuple[str, ...]]
    experiment_name: Bookkeeping[str]
    env: Speed[dict[str, EnvironmentValue]]
    scheduler: Place[Part] = msgspec.field(name="slurm")
    """What its scheduler is asked for. Plans were first written where that was Slurm, hence their key."""
    engine: Place[str] = DEFAULT_ENGINE
    """The release of Megatron-Bridge that the recipe needs, ``0.3``; records from before there were two have none."""
    engine_python: Place[str | None]
    profile: Speed[ProfilePlan | None]
    nccl_trace: Speed[bool]
    checkpoint: Speed[CheckpointPlan]
    vboost: Speed[bool]
    cpu_pinning: Speed[int]
    fast_cores: Speed[tuple[int, int] | None] = None
    """(stride, count): rank r of a node runs on ``count`` cores from r x stride on, where the node finds them in the
    NUMA node beside its GPU and fast; else, and for None, on any core there."""
    memory_clock: Speed[int | None] = None
    """MHz at which the memory of the GPUs is held while the job runs; None: as it is."""
    check_fabric: Bookkeeping[bool] = False
    """Its own nodes are checked before it trains, under load, too."""
    measurement: Speed[Measurement]
    architecture: Work[Architecture | None]
    function: Derived[PlannedFunction | None] = None
    """What is called instead of building ``architecture``."""
    install: Bookkeeping[str]
    workload_folder: Bookkeeping[str]
    preflight: Bookkeeping[Preflight]

    def __post_init__(self) -> None:
        traits = traits_of(self.cluster_type)  # a record may be of an installation that knows more ways of running jobs
        if self.scheduler is not None and not isinstance(self.scheduler, SchedulerPart):
            force_setattr(self, "scheduler", from_plain(self.scheduler, traits.settings_type.part))

    @property
    def traits(self) -> Traits:
        """What the job's way of running (Slurm, this machine) can do."""
        return traits_of(self.cluster_type)

    @property
    def precision(self) -> str:
        """The dtype with its FP8 scaling as people write it: ``fp8 (mx)``."""
        return precision(self.dtype, self.fp8_recipe)

    @property
    def scale(self) -> str:
        """The number of GPUs and their type as people write them: ``128 GB200 GPUs``, ``1 rank on CPUs``."""
        on_cpus = self.device == "cpu"
        return (
            f"{counted(self.gpus, 'rank')} on CPUs" if on_cpus else counted(self.gpus, f"{self.gpu_type.upper()} GPU")
        )

    @property
    def tokens_per_gpu(self) -> float:
        """The number of tokens in a step, divided by the number of GPUs."""
        return self.gbs * self.seq_len / self.gpus

    @property
    def trained_steps(self) -> int:
        """How many steps the job trains: ``exit_after`` where set, beyond its checkpoint; else ``max_steps``."""
        return self.exit_after or self.max_steps

    @property
    def has_experts(self) -> bool:
        """Whether the model is a mixture of experts."""
        if self.function is not None:
            return self.function.experts
        return self.architecture is not None and self.architecture.moe is not None

    def on_nodes(self, nodes: str) -> JobPlan:
        """A plan of the same job on these nodes, a host list: ``n[1-4]``.

        Raises:
            RequestError: its scheduler does not let jobs choose their nodes.
        """
        return msgspec.structs.replace(self, scheduler=(self.scheduler or SchedulerPart()).on_nodes(nodes))

    def after_days(self, days: int) -> JobPlan:
        """A plan of the same job, which begins so many days from now.

        Raises:
            RequestError: its scheduler does not let jobs wait.
        """
        return msgspec.structs.replace(self, scheduler=(self.scheduler or SchedulerPart()).after_days(days))

    @property
    def layout(self) -> Layout:
        """The plan's columns as a ``Layout``."""
        return Layout(**{name: getattr(self, name) for name in Layout.__struct_fields__})


def plan_as_dict(plan: JobPlan) -> dict[str, Any]:
    """The plan as plain JSON values; what ``DRY_RUN=json`` prints and ``run.json`` keeps."""
    value: dict[str, Any] = msgspec.to_builtins(plan)
    return value
