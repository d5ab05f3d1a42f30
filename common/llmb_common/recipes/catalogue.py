"""The catalogue of an engine's performance recipes: functions by name, read lazily; and what Megatron says of them.

``python -m llmb_train.catalogue`` writes both files (the README of ``mbridge/`` says more). Opening a catalogue takes
3 ms: the index is decoded, and of the functions only those that are asked for.
"""

from __future__ import annotations

import contextlib
import functools
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
    """One entry of a catalogue's index: what the name of a Megatron-Bridge function says.

    ``name`` is the whole name, ``model`` the model size in a recipe (``llama3_70b``), ``gpus`` the number of GPUs
    of the whole job, ``gpu`` their type (``h100``), ``suffix`` the rest of the name (None: nothing left). The
    properties ``dtype`` (``bf16``, ``fp8`` or ``nvfp4``) and ``fp8_recipe`` (``cs``, ``mx`` and so on; None: not in
    FP8) are the two parts of ``precision``. ``variant`` returns the CONFIG_VARIANT that selects the function; its
    argument is what plain pretraining is called there. In JSON an entry is a list of the fields; another task or
    precision is refused when it is decoded.
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
        """The dtype that the function trains in, by its name: ``bf16``, ``fp8`` or ``nvfp4``."""
        return _PRECISIONS[self.precision][0]

    @property
    def fp8_recipe(self) -> str | None:
        """The FP8 scaling (``cs``, ``ds``, ``mx``, ``sc``) by the function's name; None in other precisions."""
        return _PRECISIONS[self.precision][1]

    def variant(self, base: str) -> str:
        """Return the CONFIG_VARIANT that selects the function: its task and suffix, joined by ``_``: ``sft``.

        The task ``pretrain`` is left out; for pretraining without a suffix it is ``base``, as it is given.
        """
        words = [word for word in (self.task if self.task != "pretrain" else None, self.suffix) if word]
        return "_".join(words) or base


class Chunks(msgspec.Struct, frozen=True, array_like=True):
    """NVIDIA's own division of a model's layers among ``pp`` pipeline stages of ``vp`` chunks each.

    ``layers`` is the number of layers of each of the ``pp`` x ``vp`` chunks, in the model's order. ``vp`` 1: no
    virtual stages. ``str()`` gives ``PP=4 VP=2`` or ``PP=4 VP=NA``, without the layers. ``Function.layouts`` has them;
    in JSON it is a list of the three.
    """

    pp: int
    vp: int
    layers: tuple[int, ...]

    def __str__(self) -> str:
        return f"PP={self.pp} VP={self.vp if self.vp > 1 else 'NA'}"


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """One function of Megatron-Bridge as a catalogue describes it: its layout columns, model and settings.

    ``Catalogue.function`` decodes it; unknown keys are ignored then, but not in ``columns``. ``columns`` are those at
    the number of GPUs in the function's name; ``architecture`` has the numbers of the model. FLOPs are those of one
    training step per token, at ``sequence_length`` (tokens): ``flops_per_token`` is Megatron-Bridge's count,
    ``own_flops_per_token`` LLMB's. None there and in ``parameters`` (their number): not known. ``stages``: the
    function assigns its layers to pipeline stages itself. ``chunks`` returns the numbers of layers of each chunk for a
    PP and VP in ``layouts``, None for others. The property ``captures_iterations`` is True where its CUDA graphs
    capture whole iterations. ``settings`` are further Megatron settings by name without section, ``env`` environment
    variables that it sets. ``hugging_face``: the model there whose configuration it asks for; None: none.
    """

    columns: Columns[int]
    sequence_length: int
    architecture: Shape
    parameters: int | None = None
    flops_per_token: float | None = None
    own_flops_per_token: float | None = None
    layers: Layers | None = None
    """The layers and their weights; None: the catalogue is older than these, or nobody counts such a model."""
    stages: bool = False
    layouts: tuple[Chunks, ...] = ()
    """Layouts for other PP and VP that NVIDIA's runner has for a function with ``stages``; empty: it has none."""
    settings: dict[str, Any] = {}
    env: dict[str, str] = {}
    hugging_face: str | None = None

    @property
    def captures_iterations(self) -> bool:
        """Whether the function's CUDA graphs, by its settings, capture whole iterations instead of single modules.

        False also where it sets no CUDA graphs.
        """
        settings = [self.settings.get(f"cuda_graph_{name}") for name in ("impl", "scope", "modules")]
        return "full_iteration" in str(settings)

    def chunks(self, pp: int, vp: int | None) -> tuple[int, ...] | None:
        """Return the number of layers of each chunk at ``pp`` pipeline stages of ``vp`` chunks, by ``layouts``.

        They are in the model's order, ``pp`` x ``vp`` in number. ``vp`` None or 1 is one chunk per stage. None
        where NVIDIA has no layout of its own for these numbers.
        """
        for known in self.layouts:
            if (known.pp, known.vp) == (pp, vp or 1):
                return known.layers
        return None


class FlopsPerToken(NamedTuple):
    """FLOPs per token of a training step, by Megatron-Bridge's count and by LLMB's own; None: not known.

    ``Catalogue.flops`` and ``ByLength.flops`` return it.
    """

    of_bridge: float | None = None
    own: float | None = None


class ByLength(msgspec.Struct, frozen=True, kw_only=True):
    """How the FLOPs per token of one model's functions follow the sequence length (``llmb_train.lengths``).

    A catalogue's file has one for each model. They are a + b x length + c / length, with the length in tokens.
    ``bridge`` and ``own`` are (b, c) for Megatron-Bridge's and for LLMB's count; None: not known. The formula holds
    from ``least`` tokens on. ``flops`` returns the FLOPs per token of one function, whose own FLOPs give a, at another
    length; None for a count that is not known, or below ``least``.
    """

    least: int
    bridge: tuple[float, float] | None = None
    own: tuple[float, float] | None = None

    def flops(self, function: Function, length: int) -> FlopsPerToken:
        """Return the FLOPs per token of ``function`` on sequences of ``length`` tokens; below ``least``, both None.

        A count is also None where the function has none at its own length, or its growth with the length is not known.
        """
        if length < self.least:
            return FlopsPerToken()

        def scaled_to_length(known: float | None, growth: tuple[float, float] | None) -> float | None:
            """Return ``known`` FLOPs per token, counted at the function's own sequence length, converted to ``length``.

            ``growth`` is (b, c) of the formula; ``length`` and ``function`` are those of the enclosing method. None
            where either argument is None.
            """
            if known is None or growth is None:
                return None
            b, c = growth
            return known + b * (length - function.sequence_length) + c * (1 / length - 1 / function.sequence_length)

        return FlopsPerToken(
            scaled_to_length(function.flops_per_token, self.bridge),
            scaled_to_length(function.own_flops_per_token, self.own),
        )


class _CatalogueFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a catalogue's JSON file; each function stays undecoded until it is asked for.

    ``_read_catalogue`` reads it; keys that are not listed here are ignored. ``release`` is that of Megatron-Bridge and
    ``core`` that of megatron-core; ``date`` is the day of writing, ``2026-08-31``; ``sha256`` is taken over all
    functions' lines. ``base``: the name of the file beside it that has the functions missing here; None: none are.
    ``index`` has one entry for each function, ``functions`` their JSON by name.
    """

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
    """By model, as ``FunctionName.model`` names it; empty in catalogues from before it was looked at."""
    index: tuple[FunctionName, ...]
    functions: dict[str, msgspec.Raw]


def _read_catalogue(path: Path) -> _CatalogueFile:
    """Return the content of the catalogue's file ``path``, of whose functions only the names are checked.

    A file that has not changed is decoded once: the recipe's own catalogue is also the base of its other releases'.

    Raises:
        RecipeError: the file is missing or unreadable, or its content is no catalogue; the remedy is to write it again
    """
    stamp: tuple[int, ...] = ()
    with contextlib.suppress(OSError):  # reading it says why
        status = path.stat()
        stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
    return _decoded_catalogue(path, stamp)


@functools.lru_cache(maxsize=2)
def _decoded_catalogue(path: Path, stamp: tuple[int, ...]) -> _CatalogueFile:
    """Return what ``_read_catalogue`` does; ``stamp`` tells the file's present content from an earlier one.

    Raises:
        RecipeError: as ``_read_catalogue``
    """
    remedy = (
        "write it again: llmb-install adopt and its image, or in an engine that has the functions: "
        "python -m llmb_train.catalogue FILE"
    )
    found: _CatalogueFile = read_generated(path, _CatalogueFile, remedy=remedy, what="the catalogue ")
    return found


class Catalogue:
    """The functions of one release of Megatron-Bridge, read from the catalogue's file ``path`` on construction.

    ``base`` is the variant of plain pretraining. ``path`` stays readable; ``release``, ``sha256`` and ``date`` are
    texts of the file, ``assumed`` its dict from a model of Hugging Face to what nobody read from that one's file,
    ``missing`` from a function that could not be called to the reason, and ``index`` is a tuple of what each function's
    name says, in the file's order. A function's own line is decoded only when it is asked for, and a damaged line is
    noticed only then; ``is_intact`` returns whether all lines have the file's SHA-256. ``entry`` returns the index
    entry, ``function`` the ``Function`` and ``flops`` the FLOPs per token at a sequence length, each of a function's
    exact name; they raise a RecipeError where there is none, or its line is damaged (``entry`` reads no line). What a
    recipe lists: the properties ``sizes`` (names of models) and ``variants`` (those beside ``base``) are tuples,
    ``model`` returns the model of one of ``sizes``, and ``configurations`` (what selects each function) and
    ``rows`` (functions as rows) are iterators. ``model`` and ``rows`` raise a RecipeError at a damaged line.

    Raises:
        RecipeError: the file, or the one that it builds on, cannot be read
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
        # A file that builds on another has only the functions that differ from that one's.
        self._functions = (
            found.functions
            if found.base is None
            else _read_catalogue(path.with_name(found.base)).functions | found.functions
        )
        self._decoded: dict[str, Function] = {}

    def is_intact(self) -> bool:
        """Return whether the lines of all the catalogue's functions, as read, have the SHA-256 that its file states.

        False also where a function of the index is missing or is not UTF-8. The file is not read again.
        """
        lines = []
        try:
            for entry in self.index:
                function = bytes(self._functions[entry.name]).decode()
                lines.append(f"{json.dumps(entry.name)}:{function}")
        except (KeyError, UnicodeDecodeError):
            return False
        # Joined just as ``llmb_train.catalogue`` joined them when it took the hash.
        return hashlib.sha256(",\n".join(lines).encode()).hexdigest() == self.sha256

    def entry(self, name: str) -> FunctionName:
        """Return the index entry of the function of exactly this ``name``: its model, task, GPUs and precision.

        Raises:
            RecipeError: the catalogue has no such function; the message suggests a near name, if there is one
        """
        for entry in self.index:
            if entry.name == name:
                return entry
        near = did_you_mean(name, (entry.name for entry in self.index))
        raise RecipeError(f"{self.path} has no function {name!r}{near}", remedy="correct the name")

    def function(self, name: str) -> Function:
        """Return the function of exactly this ``name``: its layout columns, model and settings. It is decoded once.

        Raises:
            RecipeError: the catalogue has no such function, or its line is damaged
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

    def flops(self, name: str, sequence_length: int) -> FlopsPerToken:
        """Return the FLOPs per token of the function ``name``, on sequences of ``sequence_length`` tokens.

        ``name`` is matched exactly. At the function's own length they are the catalogue's counts, at another one they
        follow from these. A count that is not known for this length is None.

        Raises:
            RecipeError: the catalogue has no such function, or its line is damaged
        """
        function = self.function(name)
        if sequence_length == function.sequence_length:
            return FlopsPerToken(function.flops_per_token, function.own_flops_per_token)
        by_length = self._by_length.get(self.entry(name).model)
        return by_length.flops(function, sequence_length) if by_length is not None else FlopsPerToken()

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """The names of all models that the catalogue has functions for, each once, in the file's order."""
        return tuple(dict.fromkeys(entry.model for entry in self.index))

    def model(self, size: str) -> Model:
        """Return the model ``size``, as its first function in the file has it.

        It has that function's number of parameters and sequence length, and no ``architecture``; its title is
        ``size``, too. ``size`` must be one of ``sizes``, else there is a StopIteration.

        Raises:
            RecipeError: the line of that function is damaged
        """
        name = next(entry.name for entry in self.index if entry.model == size)
        function = self.function(name)
        return Model(size=size, title=size, parameters=function.parameters, sequence_length=function.sequence_length)

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """The catalogue's variants beside plain pretraining, sorted by name; empty where there are none.

        Each is a copy of the base variant under its own name, which also ends the names of its runs, and jobs are of it
        only where CONFIG_VARIANT names it.
        """
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
        """Yield what selects each function: model, GPU type, precision, variant and GPU count; in the file's order.

        Only the index is read. ``in_image`` is the catalogue of the recipe's own image: ``release`` is None for a
        function whose name that one has, too, and this catalogue's release for any other.
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
        """Yield the functions that match, each as a row of a configuration table, in the file's order.

        ``gpus`` are GPU types in order of preference: only the first one that the catalogue has any function for
        counts, whether or not the other arguments leave one of it, and nothing is yielded if it has none for any.
        ``size`` is one of ``sizes``, ``variant`` that of ``FunctionName.variant``, ``dtype`` without the FP8 scaling;
        all are matched exactly, and an unknown one matches nothing. An empty ``gpus``, or None for another argument,
        matches all.

        Raises:
            RecipeError: the line of a matching function is damaged
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
        """Return the configuration row that stands for the function ``entry``, under the CONFIG_VARIANT ``variant``.

        Its only GPU count is the function's own; ``gbs`` is a formula that keeps the samples per GPU
        (``_gbs_formula``).

        Raises:
            RecipeError: the line of the function is damaged
        """
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
    """Return a formula that keeps the samples per GPU at any scale: ``GPUs``, ``GPUs*2``, ``GPUs/4``, ``GPUs*3/2``.

    ``gbs`` is the global batch size at ``gpus`` GPUs; their ratio is reduced.
    """
    common = math.gcd(gbs, gpus)
    samples, of_gpus = gbs // common, gpus // common
    times = f"*{samples}" if samples > 1 else ""
    return f"GPUs{times}" + (f"/{of_gpus}" if of_gpus > 1 else "")


class Validated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What Megatron's own validation of arguments says of one function at its own number of GPUs.

    ``needs``, texts for people: packages of the container that the validation asks for, and what the user must
    give; empty: nothing. ``refused``: why Megatron does not train the function even with these, in its words; None:
    it does. ``read_validation`` reads it as a part of a ``Validation``, and refuses unknown keys.
    """

    needs: tuple[str, ...]
    refused: str | None


class Validation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a validation file: what Megatron says of each function of one release, by the function's name.

    ``release`` is that of Megatron-Bridge, ``core`` that of megatron-core, ``date`` the day of the validation,
    ``2026-08-31``. ``read_validation`` reads it and refuses unknown keys.
    """

    schema: Literal[1]
    release: str
    core: str
    date: str
    functions: dict[str, Validated]


def read_validation(path: Path) -> Validation:
    """Return the content of the validation file ``path``.

    Raises:
        RecipeError: the file is missing or unreadable, or its content is no validation; the remedy is to write it again
    """
    remedy = "write it again: python -m llmb_train.catalogue FILE --validation, in the engine of the catalogue"
    document: Validation = read_generated(path, Validation, remedy=remedy)
    return document
