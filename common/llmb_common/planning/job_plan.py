"""``JobPlan``: one job, complete and frozen. Scripts, job.json, records and reports are functions of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec.structs import force_setattr

from llmb_common.base.cluster_types import ClusterType, Traits, traits_of
from llmb_common.base.engines import DEFAULT_ENGINE
from llmb_common.base.printable import counted
from llmb_common.base.structs import from_plain
from llmb_common.planning.divisibility import Layout
from llmb_common.planning.scheduler import SchedulerPart
from llmb_common.recipes.columns import (
    Bookkeeping,
    Columns,
    Count,
    Derived,
    Division,
    Extent,
    Parameters,
    Place,
    Positive,
    Speed,
    Work,
)
from llmb_common.recipes.model import Architecture, Reduced
from llmb_common.recipes.rows import Measurement, precision

if TYPE_CHECKING:
    Part = SchedulerPart | None
else:
    Part = Any  # whose it is, ``cluster_type`` says

Flops = Annotated[float, msgspec.Meta(ge=1, lt=1e30)]
"""Operations of one token; MFU divides by them."""
Scalar = bool | int | float | str | None
Setting = Scalar | list[Scalar] | dict[str, Any]
"""The value of a setting of the framework, as JSON has it."""


class EnvironmentValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One environment variable of a job: its value, and who set it.

    ``source`` is ``recipe``, ``cluster_config.yaml`` (the site) or ``environment`` (the caller).
    ``job_environment`` makes it. An unknown key or another source is refused when it is decoded.
    """

    value: str
    source: Literal["recipe", "cluster_config.yaml", "environment"]


class ProfilePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a job profiles: by which tool, in which steps, on which ranks, and into which file; a part of ``JobPlan``.

    ``profile_plan`` makes it. An unknown key or another tool is refused when it is decoded.
    """

    tool: Literal["nsys", "torch"]
    start: Positive
    """The first profiled step."""
    stop: Positive
    """The step just before which profiling ends."""
    ranks: tuple[Count, ...] | None
    """Their numbers, sorted; None: all."""
    file: str
    """The report's name, with variables left in that only a rank knows."""
    gpu_metrics: bool
    """Whether nsys samples the GPU's hardware counters."""
    trace: str = "nvtx,cuda"
    """What nsys traces; records from before it could be chosen have none."""


class CheckpointPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether and where a job writes and reads checkpoints; a part of ``JobPlan``.

    ``checkpoint_plan`` makes it, with ``resume`` off; ``resuming_plan`` turns it on, for a job that goes on from
    another run's checkpoint. Folders are absolute paths. The property ``is_used`` is True where it writes, loads or
    resumes any. An unknown key is refused when it is decoded.
    """

    enabled: bool = False
    """Whether it writes checkpoints."""
    save: str | None = None
    """The folder to write to; None: ``checkpoints`` in the run's own folder."""
    interval: Positive | None = None
    """Steps between two checkpoints; None: one, at the end."""
    load: str | None = None
    """The checkpoint to load; None: none."""
    resume: bool = False
    """Whether to start from the newest finished checkpoint in ``save``, if there is one."""
    save_seconds: Count = 120
    """What writing one checkpoint takes, by the site's rate: so long before its time limit Slurm tells the job to
    write one."""

    @property
    def is_used(self) -> bool:
        """Whether the job writes checkpoints (``enabled``), loads one (``load``) or would resume from one
        (``resume``).
        """
        return self.enabled or self.load is not None or self.resume


class StageMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The predicted GPU memory, in GiB by part, of one rank of some pipeline stages, when it holds most.

    ``stages_memory`` makes it. Neighboring stages that are alike, ``first`` to ``last``, are one instance. The
    property ``parts`` is a dict of the fields from ``weights`` to ``transient`` by name, in this order; the property
    ``total`` is their sum. An unknown key is refused when it is decoded.
    """

    first: Count
    """The first stage, from 0."""
    last: Count
    """The last stage that is like it."""
    layers: Count
    """Number of layers of each of these stages."""
    weights: float
    gradients: float
    optimizer: float
    activations: float
    """What all micro-batches under way have saved for the backward pass."""
    logits: float
    """Those of the last stage; 0 on others."""
    dummy_gradients: float
    """Transformer Engine's placeholders, one for each shape of a weight."""
    transient: float
    """What lives at the peak only."""

    @property
    def parts(self) -> dict[str, float]:
        """The parts of the memory of one rank of this stage in GiB, by name, in the order in which they are shown.

        Names are those of the fields, ``weights`` to ``transient``.
        """
        return {name: getattr(self, name) for name in self.__struct_fields__[3:]}

    @property
    def total(self) -> float:
        """The predicted peak of allocated GPU memory on one rank of this stage, in GiB: the sum of its parts."""
        return sum(self.parts.values())


class MemoryEstimate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The predicted GPU memory of a job, in GiB on one rank, and how far such a prediction can be trusted.

    ``estimate_of`` makes it. There is at least one stage. Properties: ``fullest`` is the ``StageMemory`` that needs
    most, of equal ones the first, ``peak`` its total, and ``likely`` the peak times ``factor``; ``fits`` is True where
    ``likely`` and ``reserve`` are together at most ``limit``; ``certain`` is True where ``at_least`` (0 for None) and
    ``reserve`` together exceed it; ``verdict`` is ``fits``, ``may fit`` (but another job like it ran out of memory),
    ``may not fit`` or ``does not fit`` (``certain``). An unknown key is refused when it is decoded.
    """

    stages: tuple[StageMemory, ...]
    """In order; neighboring stages that are alike are one entry."""
    reserve: float
    """What PyTorch's allocator does not see (CUDA's context, NCCL's buffers), and what it loses to fragments."""
    limit: float
    """All memory of the GPU that PyTorch sees."""
    kind: str
    """The kind of job whose measured peaks count, such as ``dense, bf16``."""
    knowledge: Literal["validated", "validated here", "not validated"]
    """How well this kind is known: by published peaks, by runs of this site, or not."""
    low: float | None = None
    """The lowest error of the prediction, in percent of the measured peak; None: nobody measured any."""
    high: float | None = None
    """The highest error, likewise."""
    pairs: Count = 0
    """Number of pairs of a measured and a predicted peak that these come from."""
    factor: float = 1.0
    """What such jobs need of the predicted peak: measured over predicted; 1.0 where nobody measured any."""
    at_least: float | None = None
    """A validated lower bound of the peak; None: there is none."""
    knob: str = ""
    """The change that would save most, ``PP 8 instead of 4 saves 13 GiB``; empty: it fits, or none helps."""
    ran_out: str = ""
    """Who saw a job of this kind run out of memory though predicted to need no more than this one; empty:
    nobody."""

    @property
    def fullest(self) -> StageMemory:
        """The pipeline stage of this job whose ranks need the most GPU memory, of equal ones the first."""
        return max(self.stages, key=lambda stage: stage.total)

    @property
    def peak(self) -> float:
        """The predicted peak of allocated GPU memory on a rank of the fullest pipeline stage, in GiB."""
        return self.fullest.total

    @property
    def likely(self) -> float:
        """The peak of GPU memory to expect on a rank of the fullest pipeline stage, in GiB.

        It is the predicted peak times what jobs of this kind were measured to need of it; as predicted where nobody
        measured any.
        """
        return self.peak * self.factor

    @property
    def fits(self) -> bool:
        """Whether this job's ``likely`` peak and the reserve together are at most the memory that the GPU has."""
        return self.likely + self.reserve <= self.limit

    @property
    def certain(self) -> bool:
        """Whether the job certainly does not fit: ``at_least``, a validated lower bound, and the reserve exceed the
        GPU's memory.

        Without such a bound the reserve alone would have to.
        """
        return (self.at_least or 0) + self.reserve > self.limit

    @property
    def verdict(self) -> str:
        """Whether the job fits in GPU memory: ``fits``, ``may fit``, ``may not fit`` or ``does not fit``.

        ``may fit`` is predicted to, but another job like it ran out of memory; ``may not fit`` is predicted not to,
        uncertainly; ``does not fit`` is certain.
        """
        if self.fits:
            return "may fit" if self.ran_out else "fits"
        return "does not fit" if self.certain else "may not fit"


class Difference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing in which a planned job differs from the published one, with both values as tables show them.

    ``differences`` makes it. Values are as users write them, such as ``8``, ``true`` or ``none``. ``str()`` gives
    ``NAME PUBLISHED (here PLANNED)``. An unknown key is refused when it is decoded.
    """

    name: str
    """What differs, in a word for people, such as ``GPUs``."""
    published: str
    planned: str

    def __str__(self) -> str:
        return f"{self.name} {self.published} (here {self.planned})"


class PublishedTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The published step time nearest to a planned job, and how the job that it was measured on differs.

    ``published_time`` makes it. ``step_seconds`` is in seconds. ``software`` names framework and container for
    people, ``source`` the document and line of the result, ``grok1.md:41``. An unknown key is refused when it is
    decoded.
    """

    step_seconds: float
    gpus: Positive
    """Number of GPUs of the published job."""
    gpu_type: str
    container: str | None
    """The release of NVIDIA's container; None: not published."""
    software: str
    source: str
    likeness: Literal["exact", "weak scaling", "nearest"]
    """``exact``: the same job, whatever the plan does beside training (checkpoints, profiles, traces). ``weak
    scaling``: the same layout and work for each GPU on another number of GPUs. ``nearest``: another job of this model,
    whose step time says nothing of this one's."""
    differs: tuple[Difference, ...] = ()
    """All differences between the two jobs."""


class Deviation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that jobs do, on purpose, otherwise than NVIDIA's runner of performance recipes; ``TABLE`` has them
    all.

    ``name`` is its key, ``gather-under-graph``. The others are clauses for people, without a period; ``why`` is the
    reason, to follow "because". An unknown key is refused when it is decoded.
    """

    name: str
    jobs: str
    """Which jobs it concerns."""
    nvidia: str
    """What NVIDIA's runner does."""
    here: str
    """What the job does instead."""
    why: str


class Preflight(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a job before it runs: memory, step time, published results and warnings; a part of ``JobPlan``.

    ``make_plan`` fills it in. Memory is in GiB on one rank, times in seconds; None: not known. An unknown key is
    refused when it is decoded.
    """

    memory_gib: float | None = None
    """Predicted peak of allocated memory on the fullest rank."""
    memory_limit_gib: float | None = None
    """All memory of the GPU that PyTorch sees."""
    fits: bool | None = None
    """Whether the GPU has room for the expected peak and a reserve."""
    memory: MemoryEstimate | None = None
    """The prediction part by part."""
    predicted_step_seconds: float | None = None
    """The mean of this site's own runs of the same job in the same software."""
    predicted_low: float | None = None
    """A further run's step time is between this and ``predicted_high`` in 9 of 10 cases."""
    predicted_high: float | None = None
    """A further run's step time is between ``predicted_low`` and this in 9 of 10 cases."""
    own_runs: Count | None = None
    """Number of the site's own runs that the step time is known from."""
    knowledge: str | None = None
    """``own runs`` where a step time is predicted. Records of earlier releases have further words."""
    reference_step_seconds: float | None = None
    """Step time of the published result of exactly this job, which its runs are compared with."""
    reference_software: str | None = None
    """What the published step time was measured with."""
    published: PublishedTime | None = None
    """The published result nearest to this job; None: nothing was published for its model."""
    deviations: tuple[Deviation, ...] = ()
    """What it does otherwise than NVIDIA's runner, on purpose; each is among ``warnings``, too."""
    warnings: tuple[str, ...] = ()
    """The plan's notices, one sentence each."""


class PlannedFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The function of Megatron-Bridge that a job calls, and what its catalogue says of it; ``planned_function``
    makes it.

    ``name`` is the function's exact name. An unknown key is refused when it is decoded.
    """

    name: str
    release: str
    """The release of Megatron-Bridge, such as ``0.6.2``."""
    catalogue: str
    """SHA-256 of the catalogue's functions, hexadecimal."""
    columns: Columns[Positive]
    """The layout columns as the function gives them, at its own scale."""
    sequence_length: Positive
    """As the function gives it, in tokens."""
    flops_per_token: Flops | None
    """Bridge's count on sequences of the job's length, by which NVIDIA publishes; None: not known."""
    own_flops_per_token: Flops | None = None
    """LLMB's own count, likewise (``llmb_train.counts``); None: not known."""
    experts: bool
    """Whether the model is a mixture of experts."""
    reduced: Reduced | None = None
    """The numbers of a small copy that trains in place of the model; None: the model itself trains."""
    adapters: bool = False
    """It trains adapters (LoRA) beside a model that it loads, and does not resume what is loaded."""


class JobPlan(Columns[Positive], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job, complete and frozen: everything after planning is derived from it. ``make_plan`` makes it.

    It is the ``plan`` in a run's ``run.json``. Times are seconds or Slurm durations, paths absolute strings.
    ``variant`` is the name of the recipe's variant, ``dtype`` is ``bf16``, ``fp8`` or ``nvfp4``. Each field's type
    says what it is for (``roles``), and from that follows in what two jobs are the same. An unknown key, a wrong
    form or an unknown ``cluster_type`` is refused when it is decoded. Properties: ``traits``, the way of running
    jobs (ValueError: unknown); ``precision``, text such as ``fp8 (mx)``; ``scale``, text such as
    ``128 GB200 GPUs``; ``tokens_per_gpu``, a float, of one step; ``trained_steps``, ``exit_after`` or else
    ``max_steps``; ``has_experts``, whether the model is a mixture of experts; ``layout``, the columns as a
    ``Layout``. ``on_nodes`` and ``after_days`` return another plan, which asks for the nodes of a host list, or
    begins so many days later; they raise a RequestError where the scheduler knows no such thing.
    """

    schema: Bookkeeping[Literal[1]] = 1
    workload: Work[str]
    """The recipe's workload, ``pretrain_llama3.1``."""
    recipe: Derived[str]
    """The recipe's name, ``llama3.1``."""
    family: Derived[str]
    """The model's name in Megatron-Bridge's functions, or the recipe's family without one."""
    variant: Speed[str]
    model_size: Work[str]
    dtype: Speed[str]
    fp8_recipe: Speed[str | None]
    """The scaling, such as ``cs``; None: not in FP8."""
    gpu_type: Speed[str]
    """Such as ``h100``, or ``cpu``."""
    device: Speed[Literal["cuda", "cpu"]]
    cluster_type: Place[ClusterType]
    gpus: Division[Positive]
    """In all; on CPUs the number of ranks."""
    nodes: Derived[Positive]
    """Number of nodes."""
    gpus_per_node: Division[Positive]
    """That the job uses on each node."""
    seq_len: Work[Positive]
    """Tokens of a sequence."""
    layers: Work[Positive]
    """Number of layers that it trains."""
    parameters: Derived[Parameters | None]
    """Number of the model's parameters; None: not known."""
    dp: Derived[Positive]
    """Data-parallel size."""
    expert_dp: Derived[Positive | None]
    """Data-parallel size of the experts; None without EP."""
    ga: Derived[Positive]
    """Micro-batches that a rank runs in one step."""
    wgrad_deferral: Division[Positive | None] = None
    """Micro-batches whose weight gradients of the output layer wait for the pipeline's drain; None: not deferred."""
    overridden: Derived[tuple[str, ...]]
    """Names of the columns that the user set, sorted."""
    megatron: Speed[dict[str, Setting]] = msgspec.field(default_factory=dict)
    """Settings of the framework by section and field, ``{"model.attention_dropout": 0.0}``: set last, on every rank."""
    moe_routing: Work[str | None]
    """``drop`` or ``balanced``: how experts get their tokens; None: not decided here."""
    max_steps: Extent[Positive]
    """Steps that the training schedule has."""
    exit_after: Extent[Positive | None]
    """Steps after which a resumed job ends; None: after ``max_steps``."""
    time_limit: Bookkeeping[str]
    """As Slurm writes it, such as ``01:30:00``."""
    image: Place[str | None]
    """A file's path or a registry's name; None: no container."""
    mounts: Bookkeeping[tuple[str, ...]]
    """Container mounts, ``SOURCE:TARGET[:ro]``."""
    experiment_name: Bookkeeping[str]
    """The name of its experiment, and of that one's folder (``experiment_name``)."""
    env: Speed[dict[str, EnvironmentValue]]
    """The job's variables by name, each with who set it."""
    scheduler: Place[Part] = msgspec.field(name="slurm")
    """What its scheduler is asked for; None: it has none. Plans were first written where that was Slurm, hence
    their key."""
    engine: Place[str] = DEFAULT_ENGINE
    """The minor release of Megatron-Bridge that the job runs on, ``0.6``; records from before there were two have
    none."""
    engine_python: Place[str | None]
    """The path of the Python that trains outside a container; None: the site has none for this release."""
    profile: Speed[ProfilePlan | None]
    """What is profiled; None: nothing."""
    nccl_trace: Speed[bool]
    """Whether NCCL logs its collectives."""
    checkpoint: Speed[CheckpointPlan]
    vboost: Speed[bool]
    """Whether to request the GPUs' clock boost."""
    cpu_pinning: Speed[Count]
    """CPUs bound to each rank; 0: none are."""
    fast_cores: Speed[tuple[Positive, Positive] | None] = None
    """(stride, count): rank r of a node runs on ``count`` cores from number r * ``stride`` on, where the node finds
    them fast and in the NUMA node beside its GPU; else, and for None, on any core there."""
    memory_clock: Speed[Positive | None] = None
    """MHz at which the memory of the GPUs is held while the job runs; None: as it is."""
    check_fabric: Bookkeeping[bool] = False
    """Whether its own nodes are checked before it trains, under load, too."""
    measurement: Speed[Measurement]
    """The steps over which its result is measured."""
    architecture: Work[Architecture | None]
    """The numbers of the model that the training code builds; None: it calls ``function``."""
    function: Derived[PlannedFunction | None] = None
    """What is called instead of building ``architecture``."""
    install: Bookkeeping[str]
    """The folder of the installation."""
    workload_folder: Bookkeeping[str]
    """The folder below which its runs are made."""
    preflight: Bookkeeping[Preflight]

    def __post_init__(self) -> None:
        traits = traits_of(self.cluster_type)  # a record may be of an installation that knows more ways of running jobs
        if self.scheduler is not None and not isinstance(self.scheduler, SchedulerPart):
            force_setattr(self, "scheduler", from_plain(self.scheduler, traits.settings_type.part))

    @property
    def traits(self) -> Traits:
        """What this job's way of running jobs (such as Slurm or this machine) can do.

        Raises:
            ValueError: this installation does not know it
        """
        return traits_of(self.cluster_type)

    @property
    def precision(self) -> str:
        """This job's dtype, with the scaling of FP8 in parentheses, if it has one: ``bf16``, ``fp8 (mx)``."""
        return precision(self.dtype, self.fp8_recipe)

    @property
    def scale(self) -> str:
        """The number of this job's GPUs and their type for people: ``128 GB200 GPUs``, ``1 rank on CPUs``."""
        on_cpus = self.device == "cpu"
        return (
            f"{counted(self.gpus, 'rank')} on CPUs" if on_cpus else counted(self.gpus, f"{self.gpu_type.upper()} GPU")
        )

    @property
    def tokens_per_gpu(self) -> float:
        """The tokens that this job trains in one step, divided by the number of its GPUs."""
        return self.gbs * self.seq_len / self.gpus

    @property
    def trained_steps(self) -> int:
        """The number of steps that this job trains: ``exit_after``, which resumed ones have, else ``max_steps``."""
        return self.exit_after or self.max_steps

    @property
    def has_experts(self) -> bool:
        """Whether this job's model is a mixture of experts."""
        if self.function is not None:
            return self.function.experts
        return self.architecture is not None and self.architecture.moe is not None

    def on_nodes(self, nodes: str) -> JobPlan:
        """Return a plan of the same job on the nodes of a host list, such as ``n[1-4]``; this one stays as it is.

        The nodes replace those asked for before; ``self.nodes`` stays, and how many there are is not checked.

        Raises:
            RequestError: the job's scheduler does not let jobs choose their nodes, or there is none
        """
        return msgspec.structs.replace(self, scheduler=(self.scheduler or SchedulerPart()).on_nodes(nodes))

    def after_days(self, days: int) -> JobPlan:
        """Return a plan of the same job that begins, at the earliest, ``days`` days from this hour; this one stays
        as it is.

        This hour is the full one that is past at the call.

        Raises:
            RequestError: the job's scheduler does not let jobs wait, or there is none
        """
        return msgspec.structs.replace(self, scheduler=(self.scheduler or SchedulerPart()).after_days(days))

    @property
    def layout(self) -> Layout:
        """The layout columns of this job (TP, PP, batch sizes and so on) as a ``Layout``."""
        return Layout(**{name: getattr(self, name) for name in Layout.__struct_fields__})


def plan_as_dict(plan: JobPlan) -> dict[str, Any]:
    """Return a plan as plain JSON values by field: what ``DRY_RUN=json`` prints and ``run.json`` keeps.

    All fields are there, also those at their default; properties are not. The key of the scheduler's part is
    ``slurm``, whatever the scheduler is.
    """
    value: dict[str, Any] = msgspec.to_builtins(plan)
    return value
