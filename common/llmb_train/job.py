"""``job.json`` as frozen dataclasses, and the strict loader.

The file is written by ``llmb_common.submission.job_files`` and read by every rank. Unknown keys, missing keys and wrong
types are errors that name the key, because a key that nothing reads is a setting that silently does nothing. There may
be no validation library in the container.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from llmb_train.engine import RELEASES, Device, Release, release_of
from llmb_train.errors import JobError

SCHEMA = 1

T = TypeVar("T")

Generation = Literal["hopper", "blackwell", "rubin"]
Family = Literal["llama3", "llama4", "grok1", "nemotron4"]


@dataclass(frozen=True)
class Moe:
    """The mixture-of-experts part of a model's architecture, as job.json describes it.

    ``experts`` is their number in a layer, without a shared one. ``router`` is the function of the router's scores.
    All keys are required.
    """

    experts: int
    top_k: int
    """Experts that each token is routed to."""
    ffn: int
    """Inner size of the MLP of one routed expert."""
    shared_ffn: int | None
    """Inner size of the shared expert's MLP; null: there is none."""
    every: Literal[1, 2]
    """2: every second layer is MoE, starting with the second; 1: every layer."""
    router: Literal["softmax", "sigmoid"]
    pre_softmax: bool
    """The router's softmax comes before the choice of experts, not after it."""
    aux_loss: float
    """Coefficient of the load-balancing loss."""
    capacity_factor: float
    """An expert's most tokens relative to an even spread (1.0); used with the routing ``drop`` only."""
    probabilities_on_input: bool
    """An expert's input, not its output, is multiplied by the router's probability."""


@dataclass(frozen=True)
class Architecture:
    """The architecture of the model that a job trains, as job.json describes it, in Megatron's terms.

    ``layers``, ``heads`` (of attention) and ``query_groups`` (heads of keys and values) are numbers of them;
    ``hidden``, ``ffn`` and ``head_dim`` are numbers of elements. ``activation`` is that of the MLPs.
    ``norm_epsilon`` is added to a norm's variance. ``rope_base`` is the base of rotary positions,
    ``rope_interleaved`` whether pairs of neighboring elements are rotated, not halves. All keys are required.
    """

    layers: int
    hidden: int
    ffn: int
    """Inner size of the MLP of a layer without experts."""
    heads: int
    query_groups: int
    head_dim: int
    vocabulary: int
    """Tokens in the vocabulary, without padding."""
    activation: Literal["silu", "squared_relu"]
    gated: bool
    """The MLP has a gate: with ``silu`` it is SwiGLU."""
    norm: Literal["rmsnorm", "layernorm"]
    norm_epsilon: float
    zero_centered_gamma: bool
    """Weights of norms are stored minus one."""
    rope_base: int
    rope_scaling: float | None
    """Factor by which rotary positions are stretched; null: not at all."""
    rotary_percent: float
    """Part of a head that is rotated, from 0 to 1."""
    rope_interleaved: bool
    no_rope_interval: int | None
    """4: the layers 4, 8, 12 ... (from 1) have no rotary position embedding; null: every layer has one."""
    attention_chunk: int | None
    """Tokens that attend to each other in layers with rotary embedding; null: the whole sequence."""
    tied_embeddings: bool
    """Embedding and output layer share their weights."""
    init_std: float
    """Standard deviation of the initial weights."""
    moe: Moe | None
    """null: a model without experts."""


@dataclass(frozen=True)
class Precision:
    """The data type that a job trains in (``dtype``) and, for FP8, how its values are scaled.

    Both keys are required in job.json.
    """

    dtype: Literal["bf16", "fp8", "nvfp4"]
    fp8_recipe: Literal["cs", "ds", "mx", "sc"] | None
    """Tensor-wise current, delayed, MXFP8 or block-wise scaling, in this order; null: the dtype is not ``fp8``."""


@dataclass(frozen=True)
class Parallelism:
    """How a job's ranks divide model and batch, as sizes of Megatron's parallelisms; 1 or null: not divided that way.

    ``tp`` tensor, ``pp`` pipeline, ``vp`` virtual pipeline (chunks of each stage), ``cp`` context, ``ep`` expert
    and ``etp`` expert tensor parallelism (null: Megatron takes ``tp``). All keys are required in job.json.
    """

    tp: int
    pp: int
    vp: int | None
    cp: int
    ep: int | None
    etp: int | None
    fsdp: bool
    """Megatron-FSDP shards parameters, gradients and optimizer states."""


@dataclass(frozen=True)
class Batch:
    """The sizes of a job's batches, in sequences: ``mbs`` of a micro-batch, ``gbs`` of the global batch of a step.

    A micro-batch is of one model replica. Both keys are required in job.json.
    """

    mbs: int
    gbs: int


@dataclass(frozen=True)
class Performance:
    """A job's settings that make steps faster or use less memory, and how its experts get their tokens.

    ``cuda_graph``: training steps, or their layers, are captured in CUDA graphs. ``recompute_layers`` counts layers
    of each pipeline stage (of each of its chunks, where it has several), ``offload_layers`` those of the model; 0:
    none. All keys are required in job.json.
    """

    cuda_graph: bool
    recompute_layers: int
    """Layers whose activations are recomputed in the backward pass."""
    offload_layers: int
    """Layers whose activations are kept in the host's memory."""
    wgrad_deferral: int | None
    """Micro-batches whose weight gradients of the output layer wait for the pipeline's drain; null: not deferred."""
    moe_routing: Literal["drop", "balanced"] | None
    """``drop``: an expert takes its capacity of tokens and no more; ``balanced``: tokens are forced to spread evenly;
    null: a function routes them itself, or no experts."""


@dataclass(frozen=True)
class Steps:
    """How many steps a job trains, when a run of it ends before them, and when ranks record their waits.

    All keys are required in job.json, also ``waits_from``.
    """

    train: int
    """Number of the last step, counted from the beginning of the training, not of a resumed run."""
    exit_after: int | None
    """End after this many further steps (further than the loaded checkpoint, where there is one); null: do not."""
    waits_from: int | None = None
    """From this step on, after the measured ones, ranks record how long they wait for each other; null: never.
    Counted from the beginning of the training."""


@dataclass(frozen=True)
class Profile:
    """Which training steps and ranks of a job are profiled, and by which tool.

    ``tool`` is ``nsys`` (Nsight Systems) or ``torch`` (PyTorch's profiler). Steps are counted from the beginning of the
    training. All keys are required in job.json.
    """

    tool: Literal["nsys", "torch"]
    start: int
    """The first profiled step."""
    stop: int
    """Profiling ends just before this step."""
    ranks: list[int] | None
    """The numbers of the ranks that are profiled, from 0; null: all ranks."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a job saves its checkpoints and how often, and which one it loads.

    Paths are as a job's ranks see them. All keys are required in job.json. The property ``used`` tells, as a bool,
    whether it saves or loads any.
    """

    save: str | None
    """The folder that checkpoints are saved in; null: none is saved."""
    interval: int | None
    """Steps between saves, beside the one at the end; null: at the end only."""
    load: str | None
    """The checkpoint to load: an ``iter_*`` folder, or the folder of those, whose newest is loaded; null: none is."""

    @property
    def used(self) -> bool:
        """Whether the run saves or loads a checkpoint, by this section of the job alone."""
        return self.save is not None or self.load is not None


@dataclass(frozen=True)
class Columns(Batch, Parallelism):
    """The columns of a performance recipe as shipped, at its own number of GPUs: parallelism, batch and others.

    Fields are as in ``Batch``, ``Parallelism`` and (``cuda_graph``, ``recompute_layers``, ``offload_layers``)
    ``Performance``; ``sequence_length`` is in tokens. What the job itself has may differ, and is in the job's own
    sections. All keys are required in job.json.
    """

    cuda_graph: bool
    recompute_layers: int
    offload_layers: int
    sequence_length: int


@dataclass(frozen=True)
class Reduced:
    """The sizes of a small copy of the function's model, to train on a CPU; all others follow from them.

    ``layers`` and ``experts`` (of a layer) are numbers of them, ``hidden`` the hidden size in elements. All keys
    are required in job.json.
    """

    layers: int
    hidden: int
    experts: int | None
    """null: the model has none."""


@dataclass(frozen=True)
class Function:
    """The performance recipe of Megatron-Bridge that a job trains, and what the plan assumed of it.

    ``name`` is the recipe's function, such as ``llama3_8b_pretrain_8gpu_h100_bf16_config``. All keys are required in
    job.json.
    """

    name: str
    release: str
    """The Megatron-Bridge release, such as ``0.6.2``, whose functions the catalogue lists."""
    catalogue: str
    """SHA-256 of the catalogue that the job was planned with."""
    columns: Columns
    """As the catalogue has them, before the plan changes any."""
    reduced: Reduced | None
    """The sizes of the copy that is trained; null: the whole model is."""


@dataclass(frozen=True)
class AnyJob:
    """One job.json: what a run trains, on how many ranks and how. These are the fields that every job has.

    ``parse_job`` makes one, a ``Job``, which also describes an architecture, or a ``FunctionJob``, which names a
    performance recipe. All are required but ``megatron``. ``schema`` is ``SCHEMA``; ``run_id`` and
    ``experiment_name`` name the run; ``model_size`` is the recipe's word for it, such as ``8b``;
    ``sequence_length`` is in tokens, ``seed`` that of all random numbers, ``profile`` null where nothing is
    profiled. Properties: ``resumed`` is the path of the checkpoint to go on from, or None; ``data_parallel`` the
    data-parallel size of the dense layers, an int; ``release`` the ``Release`` of ``engine``, with what LLMB knows
    of it (the job must have been checked).
    """

    schema: int
    run_id: str
    experiment_name: str
    output_dir: str
    """The folder for what the job writes (logs, profiles, checkpoints), in the run's folder."""
    engine: str
    """The release of Megatron-Bridge that the job was planned for: ``0.6``."""
    device: Device
    """``cpu`` or ``cuda``."""
    gpu_type: str
    """Such as ``gb200``; ``cpu`` where the device is one."""
    gpu_generation: Generation | None
    """Such as ``blackwell``; null: no GPU."""
    model_size: str
    sequence_length: int
    precision: Precision
    world_size: int
    """Ranks of the job, one for each GPU."""
    parallelism: Parallelism
    batch: Batch
    performance: Performance
    steps: Steps
    profile: Profile | None
    checkpoint: Checkpoint
    data_workers: int
    """Processes beside each rank that prepare its batches; 0: the rank does it between two steps. On GPUs functions
    keep their own number."""
    seed: int
    megatron: dict[str, Any]
    """Settings of the framework that the user named, set last: JSON values by section and field with a dot between
    them ("model.num_layers"); empty: none, and the key may be missing."""

    @property
    def resumed(self) -> str | None:
        """The path of the checkpoint that the run resumes, weights and step; None: it starts from random weights.

        An ``iter_*`` folder, or the folder of those. A requeued job may go on from a newer one that it saved itself.
        """
        return self.checkpoint.load

    @property
    def data_parallel(self) -> int:
        """The job's data-parallel size of the dense layers: world size / (TP * PP * CP), whatever EP is."""
        p = self.parallelism
        return self.world_size // (p.tp * p.pp * p.cp)

    @property
    def release(self) -> Release:
        """The Megatron-Bridge release that the job was planned for; it may be newer than LLMB knows.

        The job must have come from ``parse_job``, which refuses releases that LLMB cannot place.
        """
        release = release_of(self.engine)
        assert release is not None  # checked when the job was read
        return release


@dataclass(frozen=True)
class Job(AnyJob):
    """A job whose job.json describes the architecture of its model, from which the configuration is built.

    ``family`` is that of the documented recipe: ``llama3``, ``llama4``, ``grok1`` or ``nemotron4``. Properties are
    those of ``AnyJob``.
    """

    family: Family
    architecture: Architecture


@dataclass(frozen=True)
class FunctionJob(AnyJob):
    """A job that names a performance recipe of Megatron-Bridge, whose function makes the configuration.

    The property ``adapters`` tells, as a bool, whether it trains adapters (LoRA) on a loaded model. ``resumed`` is
    as of any job, but None for adapters, whose model is loaded separately. Other properties are those of
    ``AnyJob``.
    """

    family: str
    """The function's model, ``deepseek_v3``."""
    function: Function

    @property
    def adapters(self) -> bool:
        """Whether the job trains adapters (LoRA) on a loaded model, not the model itself.

        That is so if the recipe's name has ``_peft_`` in it.
        """
        return "_peft_" in self.function.name

    @property
    def resumed(self) -> str | None:
        """The path of the checkpoint that the run resumes, weights and step; None: it starts anew, or trains adapters.

        An ``iter_*`` folder, or the folder of those. The model that adapters train on is loaded separately.
        """
        return None if self.adapters else self.checkpoint.load


def parse_job(content: Any, where: str = "job.json") -> Job | FunctionJob:
    """Return the job that ``content``, the parsed JSON of a job.json, describes, checked against the schema.

    It is a FunctionJob where ``function`` is neither missing, null nor empty. Every key is required, but for
    ``megatron`` and the one of ``architecture`` and ``function`` that the job does not have. ``where`` names the
    file in messages. Whether settings can be combined is checked when a job is planned, not here.

    Raises:
        JobError: it is no JSON object; an unknown or missing key, a wrong type, another schema number, an unknown
            engine, or numbers of ranks, batch or experts that are below 1 or do not divide
    """
    if not isinstance(content, dict):
        raise JobError(f"{where}: expected a JSON object, found {type(content).__name__}")
    if content.get("schema") != SCHEMA:
        raise JobError(
            f"{where}: schema is {content.get('schema')!r}, this llmb_train reads schema {SCHEMA}",
            remedy="submit the run again with one version of LLMB",
        )
    # Every job has one of the two; whoever writes it may say null for the other.
    content = {key: value for key, value in content.items() if key not in ("architecture", "function") or value}
    # Only a job with such settings has the key.
    content = {"megatron": {}, **content}
    try:
        job = _from_mapping(FunctionJob, content) if "function" in content else _from_mapping(Job, content)
    except ValueError as error:
        raise JobError(f"{where}: {error}") from error
    _check_engine(job, where)
    _check_numbers(job, where)
    return job


def load_job(path: Path) -> Job | FunctionJob:
    """Return the job that the job.json file ``path`` describes, checked against the schema.

    Raises:
        JobError: the file is missing, unreadable or not JSON, or its content is refused by ``parse_job``
    """
    return parse_job(read_json(path), where=str(path))


def read_json(path: Path) -> Any:
    """Return the value that the JSON file ``path`` holds.

    Raises:
        JobError: the file is missing, unreadable or not JSON
    """
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise JobError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise JobError(f"{path} is not JSON: {error}") from error


def _check_engine(job: AnyJob, where: str) -> None:
    """Raise unless the Megatron-Bridge release in the job's ``engine``, which every job has, can run the job.

    ``where`` names the file in the message. A release newer than LLMB knows passes.

    Raises:
        JobError: the release is older than LLMB knows, between known ones or not just two numbers (``0.6``), or it has
            no functions and the job names a function
    """
    named = isinstance(job, FunctionJob)
    release = release_of(job.engine)
    if release is None or release.bridge != job.engine or (named and not release.functions):
        known = [release.bridge for release in RELEASES if release.functions or not named]
        raise JobError(
            f"{where}: engine is {job.engine!r}, and {'a job that names a function' if named else 'a job'} needs "
            f"Megatron-Bridge {' or '.join(known)}",
            remedy="plan the job again; a newer release than these is written as 0.7",
        )


def _check_numbers(job: Job | FunctionJob, where: str) -> None:
    """Raise if the job's ranks or batch, or the experts of a reduced copy, do not divide evenly.

    World size must be a multiple of TP * PP * CP, the global batch size one of micro-batch size * DP, and a reduced
    copy's experts one of EP. Planning does not know all of these numbers for reduced copies. ``where`` names the
    file in the message. VP, and the experts of a whole model, are not checked.

    Raises:
        JobError: world size, TP, PP, CP or a batch size is below 1, or a number no multiple of another; the message
            names them
    """
    p, ep = job.parallelism, job.parallelism.ep or 1
    batch = {"mbs": job.batch.mbs, "gbs": job.batch.gbs}
    counts = {"world_size": job.world_size, "tp": p.tp, "pp": p.pp, "cp": p.cp, **batch}
    for name, count in counts.items():
        if count < 1:
            raise JobError(f"{where}: {name} is {count}, expected 1 or more")
    if job.world_size % (p.tp * p.pp * p.cp):
        raise JobError(
            f"{where}: world_size {job.world_size} is not a multiple of tp * pp * cp = {p.tp * p.pp * p.cp}",
            remedy="use a number of ranks that is a multiple of TP * PP * CP",
        )
    if job.batch.gbs % (job.batch.mbs * job.data_parallel):
        raise JobError(
            f"{where}: batch.gbs {job.batch.gbs} is not a multiple of mbs * DP = {job.batch.mbs} * {job.data_parallel}"
        )
    reduced = job.function.reduced if isinstance(job, FunctionJob) else None
    if reduced is not None and (reduced.experts or ep) % ep:
        raise JobError(f"{where}: the number of experts, {reduced.experts}, is not a multiple of ep = {ep}")


def _from_mapping(cls: type[T], content: Mapping[str, Any], where: str = "") -> T:
    """Return an instance of the dataclass ``cls`` made of the JSON object ``content``, nested ones too.

    Every field is required, also one with a default. ``where`` is the dotted path of ``content`` in the file;
    empty: the whole file.

    Raises:
        ValueError: a key is unknown or missing, or has a wrong type; the message has the dotted key of the first,
            unknown ones before missing ones
    """
    hints = get_type_hints(cls)
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    unknown = sorted(set(content) - set(names))
    if unknown:
        raise ValueError(f"unknown key {_field_path(where, unknown[0])}; known are {', '.join(names)}")
    missing = [name for name in names if name not in content]
    if missing:
        raise ValueError(f"missing key {_field_path(where, missing[0])}")
    return cls(**{name: _convert_value(hints[name], content[name], _field_path(where, name)) for name in names})


def _field_path(where: str, name: str) -> str:
    """Return the dotted path of a field for messages, ``parallelism.tp``; the ``name`` alone if ``where`` is empty."""
    return f"{where}.{name}" if where else name


def _convert_value(kind: Any, value: Any, where: str) -> Any:
    """Return the JSON ``value`` as one of type ``kind``: dataclass, union with None, literal, list, dict or scalar.

    A union is of one type and None. An int is accepted for a float, and converted; a bool never for a number. A
    literal's value must be equal to one of its choices, a dataclass's an object with all of its fields. The values
    in a dict are not checked. ``where`` is the dotted path of the value.

    Raises:
        ValueError: the value, or one in it, is of another type; the message names its path
    """
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):  # of one type and None
        if value is None:
            return None
        (choice,) = (choice for choice in get_args(kind) if choice is not types.NoneType)
        return _convert_value(choice, value, where)
    if origin is Literal:
        # bool is an int to Python: True would pass for 1.
        if isinstance(value, bool) or value not in get_args(kind):
            raise ValueError(f"{where} is {value!r}, expected one of {', '.join(map(repr, get_args(kind)))}")
        return value
    if origin is list:
        if not isinstance(value, list):
            raise ValueError(f"{where} is {value!r}, expected a list")
        (item,) = get_args(kind)
        return [_convert_value(item, entry, f"{where}[{i}]") for i, entry in enumerate(value)]
    if origin is dict or is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise ValueError(f"{where} is {value!r}, expected an object")
        return _from_mapping(kind, value, where) if is_dataclass(kind) else dict(value)  # type: ignore[arg-type]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{where} is {value!r}, expected {kind.__name__}")
    return value
