"""The catalogue of an engine's performance recipes: functions by name, read lazily; and what Megatron says of them.

``python -m llmb_train.catalogue`` writes both files (the README of ``mbridge/`` says more). Opening a catalogue takes
3 ms: the index is decoded, and of the functions only those that are asked for.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from llmb_common.base.errors import RecipeError, did_you_mean
from llmb_common.base.structs import from_json, read_generated
from llmb_common.recipes.columns import Columns
from llmb_common.recipes.model import Layers, Model, Shape
from llmb_common.recipes.rows import Configuration, Row, Variant

_PRECISIONS = {
    "bf16": ("bf16", None),
    "fp8cs": ("fp8", "cs"),
    "fp8ds": ("fp8", "ds"),
    "fp8mx": ("fp8", "mx"),
    "fp8sc": ("fp8", "sc"),
    "nvfp4": ("nvfp4", None),
}
"""Dtype and FP8 scaling by the word in a function's name."""


class FunctionName(msgspec.Struct, frozen=True, array_like=True):
    """What the name of a function of Megatron-Bridge says: model, task, GPUs and precision. One line of a
    catalogue's index.
    """

    name: str
    model: str
    task: Literal["pretrain", "sft", "peft"]
    gpus: int
    gpu: str
    precision: Literal["bf16", "fp8cs", "fp8ds", "fp8mx", "fp8sc", "nvfp4"]
    suffix: str | None

    @property
    def dtype(self) -> str:
        """``bf16``, ``fp8`` or ``nvfp4``, by the word in the function's name."""
        return _PRECISIONS[self.precision][0]

    @property
    def fp8_recipe(self) -> str | None:
        """The FP8 scaling (``cs``, ``ds``, ``mx``, ``sc``) by the function's name; None in other precisions."""
        return _PRECISIONS[self.precision][1]

    def variant(self, base: str) -> str:
        """The CONFIG_VARIANT that selects the function: ``base`` for plain pretraining, else its task and its name's
        suffix.
        """
        words = [word for word in (self.task if self.task != "pretrain" else None, self.suffix) if word]
        return "_".join(words) or base


class Chunks(msgspec.Struct, frozen=True, array_like=True):
    """NVIDIA's layout of a model for ``pp`` pipeline stages of ``vp`` chunks: the layers of each chunk, in the
    model's order.
    """

    pp: int
    vp: int
    layers: tuple[int, ...]

    def __str__(self) -> str:
        return f"PP={self.pp} VP={self.vp if self.vp > 1 else 'NA'}"


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """What calling a function of Megatron-Bridge gives: its layout columns, its model and its settings.

    ``stages``: it assigns its layers to pipeline stages itself. FLOPs per token are Megatron-Bridge's count and LLMB's
    own; None: not known.
    """

    columns: Columns[int]
    sequence_length: int
    architecture: Shape
    parameters: int | None = None
    flops_per_token: float | None = None
    own_flops_per_token: float | None = None
    layers: Layers | None = None
    """None: a catalogue from before there were any, or a model that nobody counts."""
    stages: bool = False
    layouts: tuple[Chunks, ...] = ()
    """Where NVIDIA's runner has a layout of one that does; empty where it has none for other PP and VP."""
    settings: dict[str, Any] = {}
    env: dict[str, str] = {}
    hugging_face: str | None = None

    @property
    def captures_iterations(self) -> bool:
        """Whether its CUDA graphs, if it has any, capture whole iterations, and not single modules."""
        settings = [self.settings.get(f"cuda_graph_{name}") for name in ("impl", "scope", "modules")]
        return "full_iteration" in str(settings)

    def chunks(self, pp: int, vp: int | None) -> tuple[int, ...] | None:
        """The layers of each chunk at ``pp`` stages of ``vp`` chunks; None where no layout of NVIDIA's is for these."""
        return next((known.layers for known in self.layouts if (known.pp, known.vp) == (pp, vp or 1)), None)


class Flops(NamedTuple):
    """FLOPs per token of a training step, by Megatron-Bridge's count and by LLMB's own; None: not known."""

    of_bridge: float | None = None
    own: float | None = None


class ByLength(msgspec.Struct, frozen=True, kw_only=True):
    """How the FLOPs of a model's functions follow the length of the sequence (``llmb_train.lengths``): each count as
    the ``b`` and ``c`` of a + b x length + c / length, which holds from ``least`` tokens on."""

    least: int
    bridge: tuple[float, float] | None = None
    own: tuple[float, float] | None = None

    def flops(self, function: Function, length: int) -> Flops:
        """The FLOPs per token of ``function`` on sequences of ``length`` tokens; unknown for lengths below
        ``least``.
        """
        if length < self.least:
            return Flops()

        def scaled_to_length(known: float | None, growth: tuple[float, float] | None) -> float | None:
            """``known`` FLOPs, counted at the function's own length, at ``length``; None where either is not known."""
            if known is None or growth is None:
                return None
            b, c = growth
            return known + b * (length - function.sequence_length) + c * (1 / length - 1 / function.sequence_length)

        return Flops(
            scaled_to_length(function.flops_per_token, self.bridge),
            scaled_to_length(function.own_flops_per_token, self.own),
        )


class _CatalogueFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a catalogue's file; functions stay undecoded until one is asked for."""

    schema: Literal[1]
    release: str
    core: str
    date: str
    sha256: str
    assumed: dict[str, str] = {}
    """By model of Hugging Face, which numbers nobody read from its file, and where they come from."""
    missing: dict[str, str] = {}
    """Functions of the release that could not be called where the catalogue was written, and why."""
    base: str | None = None
    by_length: dict[str, ByLength] = {}
    """By model; empty in catalogues from before it was looked at."""
    index: tuple[FunctionName, ...]
    functions: dict[str, msgspec.Raw]


def _read_catalogue(path: Path) -> _CatalogueFile:
    """The content of a catalogue's file.

    Raises:
        RecipeError: it cannot be read
    """
    remedy = (
        "write it again: llmb-install adopt and its image, or in an engine that has the functions: "
        "python -m llmb_train.catalogue FILE"
    )
    found: _CatalogueFile = read_generated(path, _CatalogueFile, remedy=remedy, what="the catalogue ")
    return found


class Catalogue:
    """The functions of one release of Megatron-Bridge, read from the file ``path`` when made; ``index`` lists what
    each function's name says, in the file's order.

    A function's line is decoded when it is asked for: ``function`` fails then where it is damaged. ``is_intact``
    compares all functions with the SHA-256 in the file; ``configurations`` and ``rows`` give them as parts of a recipe.
    ``base``: the variant that plain pretraining runs.

    Raises:
        RecipeError: the file, or the one it builds on, cannot be read.
    """

    def __init__(self, path: Path, base: Variant) -> None:
        found = _read_catalogue(path)
        self.path, self._base = path, base
        self.release = found.release
        self.sha256 = found.sha256
        self.date = found.date
        self.assumed = found.assumed
        self.missing = found.missing
        self.index = found.index
        self._by_length = found.by_length
        self._functions = (
            found.functions
            if found.base is None
            else _read_catalogue(path.with_name(found.base)).functions | found.functions
        )
        self._decoded: dict[str, Function] = {}

    def is_intact(self) -> bool:
        """Whether the functions are those that the SHA-256 in the file was taken of; False where one is missing."""
        try:
            lines = [f"{json.dumps(entry.name)}:{bytes(self._functions[entry.name]).decode()}" for entry in self.index]
        except (KeyError, UnicodeDecodeError):
            return False
        return hashlib.sha256(",\n".join(lines).encode()).hexdigest() == self.sha256

    def entry(self, name: str) -> FunctionName:
        """What the name of the function ``name`` says: model, task, GPUs and precision.

        Raises:
            RecipeError: the catalogue has no such function.
        """
        for entry in self.index:
            if entry.name == name:
                return entry
        near = did_you_mean(name, (entry.name for entry in self.index))
        raise RecipeError(f"{self.path} has no function {name!r}{near}", remedy="correct the name")

    def function(self, name: str) -> Function:
        """The function ``name``: its columns, model and settings, decoded once.

        Raises:
            RecipeError: the catalogue has none of that name, or its line is damaged.
        """
        if name not in self._decoded:
            self.entry(name)
            try:
                self._decoded[name] = from_json(self._functions[name], Function)
            except (KeyError, msgspec.MsgspecError) as error:
                raise RecipeError(
                    f"{self.path}: function {name}: {error}", remedy="write the catalogue again"
                ) from error
        return self._decoded[name]

    def flops(self, name: str, sequence_length: int) -> Flops:
        """The FLOPs per token of the function ``name`` on sequences of ``sequence_length`` tokens, as far as they
        are known.

        Raises:
            RecipeError: as ``function`` does
        """
        function = self.function(name)
        if sequence_length == function.sequence_length:
            return Flops(function.flops_per_token, function.own_flops_per_token)
        by_length = self._by_length.get(self.entry(name).model)
        return by_length.flops(function, sequence_length) if by_length is not None else Flops()

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """The names of all models that the catalogue has functions for, each once, in its order."""
        return tuple(dict.fromkeys(entry.model for entry in self.index))

    def model(self, size: str) -> Model:
        """The model ``size``, which must be one of ``sizes``; its sequence length is that of its first function."""
        name = next(entry.name for entry in self.index if entry.model == size)
        function = self.function(name)
        return Model(size=size, title=size, parameters=function.parameters, sequence_length=function.sequence_length)

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """The variants beside plain pretraining, by name; they are run only where CONFIG_VARIANT names them."""
        names = dict.fromkeys(sorted(entry.variant(self._base.name) for entry in self.index))
        return tuple(
            msgspec.structs.replace(
                self._base,
                name=name,
                title=f"NVIDIA's functions for {name}",
                experiment_name=f"{self._base.experiment_name}_{name}",
                by_name=True,
            )
            for name in names
            if name != self._base.name
        )

    def configurations(self, in_image: Catalogue) -> Iterator[Configuration]:
        """Yields of each function what selects it (model, GPU, precision, variant, scale), from the index alone.

        A function that the recipe's image, whose catalogue ``in_image`` is, does not have is marked with this release.
        """
        known = {entry.name for entry in in_image.index}
        for entry in self.index:
            variant = entry.variant(self._base.name)
            needs = None if entry.name in known else self.release
            yield Configuration(entry.model, entry.gpu, entry.dtype, entry.fp8_recipe, variant, needs, (entry.gpus,))

    def rows(
        self,
        gpus: tuple[str, ...] = (),
        size: str | None = None,
        variant: str | None = None,
        dtype: str | None = None,
    ) -> Iterator[Row]:
        """Yields the functions that fit, each as the row of a configuration table; None or empty: any.

        ``gpus``: GPU types in order of preference; only the first that has functions counts. Nothing where none has.

        Raises:
            RecipeError: a function's line is damaged
        """
        known = {entry.gpu for entry in self.index}
        gpu = next((name for name in gpus if name in known), None)
        if gpus and gpu is None:
            return
        for entry in self.index:
            if gpu in (None, entry.gpu) and size in (None, entry.model) and dtype in (None, entry.dtype):
                name = entry.variant(self._base.name)
                if variant in (None, name):
                    yield self._row(entry, name)

    def _row(self, entry: FunctionName, variant: str) -> Row:
        """The configuration row that one function stands for; ``variant`` is its CONFIG_VARIANT."""
        function = self.function(entry.name)
        values = {name: getattr(function.columns, name) for name in Columns.__struct_fields__}
        return Row(
            **values | {"gbs": _gbs_formula(function.columns.gbs, entry.gpus)},
            variant=variant,
            gpu=entry.gpu,
            size=entry.model,
            dtypes=(entry.dtype,),  # type: ignore[arg-type]
            fp8_recipe=entry.fp8_recipe,  # type: ignore[arg-type]
            gpus_min=entry.gpus,
            gpus_max=entry.gpus,
            sequence_length=function.sequence_length,
            function=entry.name,
            source=f"Megatron-Bridge {self.release}",
        )


def _gbs_formula(gbs: int, gpus: int) -> str:
    """The global batch size as a formula of GPUs: each GPU keeps its number of samples at another scale."""
    common = math.gcd(gbs, gpus)
    samples, of_gpus = gbs // common, gpus // common
    times = f"*{samples}" if samples > 1 else ""
    return f"GPUs{times}" + (f"/{of_gpus}" if of_gpus > 1 else "")


class Validated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What Megatron's own validation says of one function at its own number of GPUs.

    ``needs``: packages of the container that validation asked for, and what the user has to give. ``refused``: why
    Megatron does not train it even then; None: it does.
    """

    needs: tuple[str, ...]
    refused: str | None


class Validation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the validation of one release of the engine says of its functions, by their names."""

    schema: Literal[1]
    release: str
    core: str
    date: str
    functions: dict[str, Validated]


def read_validation(path: Path) -> Validation:
    """The content of a file of validation results.

    Raises:
        RecipeError: it cannot be read
    """
    remedy = "write it again: python -m llmb_train.catalogue FILE --validation, in the engine of the catalogue"
    document: Validation = read_generated(path, Validation, remedy=remedy)
    return document
