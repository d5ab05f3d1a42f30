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
    """Mixture-of-experts part of an architecture. Sizes are hidden sizes of one expert."""

    experts: int
    top_k: int
    ffn: int
    shared_ffn: int | None
    every: Literal[1, 2]
    """2: every second layer is MoE, starting with the second."""
    router: Literal["softmax", "sigmoid"]
    pre_softmax: bool
    aux_loss: float
    capacity_factor: float
    probabilities_on_input: bool


@dataclass(frozen=True)
class Architecture:
    """The model of a job that describes it, in Megatron's numbers."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    query_groups: int
    head_dim: int
    vocabulary: int
    activation: Literal["silu", "squared_relu"]
    gated: bool
    norm: Literal["rmsnorm", "layernorm"]
    norm_epsilon: float
    zero_centered_gamma: bool
    rope_base: int
    rope_scaling: float | None
    rotary_percent: float
    rope_interleaved: bool
    no_rope_interval: int | None
    """4: every fourth layer has no rotary position embedding."""
    attention_chunk: int | None
    """Tokens that attend to each other in layers with rotary embedding; null: the whole sequence."""
    tied_embeddings: bool
    init_std: float
    moe: Moe | None


@dataclass(frozen=True)
class Precision:
    """The dtype and, for FP8, its scaling."""

    dtype: Literal["bf16", "fp8", "nvfp4"]
    fp8_recipe: Literal["cs", "ds", "mx", "sc"] | None


@dataclass(frozen=True)
class Parallelism:
    """How ranks divide the model; null: not divided so."""

    tp: int
    pp: int
    vp: int | None
    cp: int
    ep: int | None
    etp: int | None
    fsdp: bool


@dataclass(frozen=True)
class Batch:
    """The micro batch and the global batch, in sequences."""

    mbs: int
    gbs: int


@dataclass(frozen=True)
class Performance:
    """What makes steps faster or smaller, and how experts get their tokens."""

    cuda_graph: bool
    recompute_layers: int
    offload_layers: int
    wgrad_deferral: int | None
    """Micro-batches whose weight gradients of the output layer wait for the pipeline's drain; null: not deferred."""
    moe_routing: Literal["drop", "balanced"] | None


@dataclass(frozen=True)
class Steps:
    """How many steps are trained, and when a run ends before them."""

    train: int
    exit_after: int | None
    """End after this many further steps (further than the loaded checkpoint, where there is one)."""
    waits_from: int | None = None
    """From this step on, the first after the measured ones, ranks record how long they wait for each other."""


@dataclass(frozen=True)
class Profile:
    """Which steps and ranks are profiled, and by what."""

    tool: Literal["nsys", "torch"]
    start: int
    stop: int
    ranks: list[int] | None
    """null: all ranks."""


@dataclass(frozen=True)
class Checkpoint:
    """Where checkpoints are saved and loaded; null: nowhere."""

    save: str | None
    interval: int | None
    """Steps between saves; null: at the end only."""
    load: str | None

    @property
    def used(self) -> bool:
        """Whether the run saves or loads a checkpoint."""
        return self.save is not None or self.load is not None


@dataclass(frozen=True)
class Columns(Batch, Parallelism):
    """The columns of a function as it is shipped, at its own number of GPUs."""

    cuda_graph: bool
    recompute_layers: int
    offload_layers: int
    sequence_length: int


@dataclass(frozen=True)
class Reduced:
    """A copy of the function's model that is small enough for a CPU; every other size follows from these."""

    layers: int
    hidden: int
    experts: int | None
    """null: the model has none."""


@dataclass(frozen=True)
class Function:
    """A performance recipe of Megatron-Bridge, by the name of its function in ``megatron.bridge.perf_recipes``."""

    name: str
    release: str
    """The Megatron-Bridge whose functions the catalogue lists."""
    catalogue: str
    """SHA-256 of the catalogue that the job was planned with."""
    columns: Columns
    reduced: Reduced | None


@dataclass(frozen=True)
class AnyJob:
    """The fields that every job has, whether it describes an architecture or names a function."""

    schema: int
    run_id: str
    experiment_name: str
    output_dir: str
    engine: str
    """The release of Megatron-Bridge that the job was planned for: ``0.6``."""
    device: Device
    gpu_type: str
    gpu_generation: Generation | None
    """null: no GPU."""
    model_size: str
    sequence_length: int
    precision: Precision
    world_size: int
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
    """Settings of the framework by section and field, set last."""

    @property
    def resumed(self) -> str | None:
        """The path of the checkpoint that the run goes on from; None: it starts from random weights."""
        return self.checkpoint.load

    @property
    def data_parallel(self) -> int:
        """The data-parallel size, world size / (TP * PP * CP); experts do not count."""
        p = self.parallelism
        return self.world_size // (p.tp * p.pp * p.cp)

    @property
    def release(self) -> Release:
        """The release of Megatron-Bridge that the job was planned for; perhaps one that is newer than LLMB knows."""
        release = release_of(self.engine)
        assert release is not None  # checked when the job was read
        return release


@dataclass(frozen=True)
class Job(AnyJob):
    """A job that describes the architecture of its model."""

    family: Family
    architecture: Architecture


@dataclass(frozen=True)
class FunctionJob(AnyJob):
    """A job that names a function, which makes its configuration."""

    family: str
    """The function's model, ``deepseek_v3``."""
    function: Function

    @property
    def adapters(self) -> bool:
        """Whether the job trains adapters (LoRA) beside the model that it loads."""
        return "_peft_" in self.function.name

    @property
    def resumed(self) -> str | None:
        """The path of the checkpoint that the run goes on from.

        None: random weights, or adapters, whose model is loaded apart.
        """
        return None if self.adapters else self.checkpoint.load


def parse_job(content: Any, where: str = "job.json") -> Job | FunctionJob:
    """The job that ``content`` (parsed JSON) describes, checked against the schema.

    ``where`` names it in messages. What can be combined is checked when a job is planned, not here.

    Raises:
        JobError: an unknown or missing key, a wrong type, another schema number, an engine that there is not, or
            numbers that do not divide.
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
    content = {"megatron": {}, **content}
    try:
        job = _from_mapping(FunctionJob, content) if "function" in content else _from_mapping(Job, content)
    except ValueError as error:
        raise JobError(f"{where}: {error}") from error
    _check_engine(job, where)
    _check_numbers(job, where)
    return job


def load_job(path: Path) -> Job | FunctionJob:
    """The job in the file ``path``, checked.

    Raises:
        JobError: the file is missing or not JSON, or as in ``parse_job``.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise JobError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise JobError(f"{path} is not JSON: {error}") from error
    return parse_job(content, where=str(path))


def _check_engine(job: AnyJob, where: str) -> None:
    """Refuse a release of Megatron-Bridge that such a job cannot have.

    Raises:
        JobError: it is older than LLMB knows, no release, or has no functions for a job that names one
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
    """Refuse a job whose ranks, batch or experts do not divide; planning does not know all of them for reduced
    copies.

    Raises:
        JobError: names the numbers
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
    """The dataclass ``cls`` made of ``content``, whose keys are in ``where`` of the file.

    Raises:
        ValueError: a key is unknown or missing, or has a wrong type; the message has the dotted key
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
    """The path of a field in messages: ``parallelism.tp``."""
    return f"{where}.{name}" if where else name


def _convert_value(kind: Any, value: Any, where: str) -> Any:
    """A JSON value as one of type ``kind``.

    Raises:
        ValueError: it is of another type; the message begins with ``where``
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
