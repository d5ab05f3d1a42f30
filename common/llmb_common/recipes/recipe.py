"""``recipe.yaml``: the single source of truth of a recipe, as frozen structs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from llmb_common.base.engines import DEFAULT_ENGINE, bridge_release
from llmb_common.base.errors import RequestError, did_you_mean
from llmb_common.base.gpus import row_types
from llmb_common.recipes.model import Model, Name
from llmb_common.recipes.rows import Configuration, Document, Dtype, PublishedResult, Row, Variant

if TYPE_CHECKING:  # read where a recipe has one
    from llmb_common.recipes.catalogue import Catalogue, Function, Validated

EngineRelease = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+\.[0-9]+\Z")]
BridgeRelease = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+\Z")]
NO_COPY = "no copy of {} runs without GPUs, but a dry run plans it"
"""What can be done with a model that has no smoke size, for messages."""


class RecipeDefaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a recipe runs where the request does not say: model size, dtype and GPU type."""

    model_size: Name
    dtype: Dtype
    gpu_type: Name | None = None


class Flops(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the recipe's document counts model FLOPs: attention over the full sequence squared, or the causal half."""

    attention: Literal["full", "causal"]


class Functions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files that describe one release's functions: the catalogue, and what validation says of it."""

    catalogue: str
    validation: str | None = None


class FunctionNotice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user should know of the functions whose names contain ``functions``, and where it is written."""

    functions: str
    says: str
    source: str


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A whole ``recipe.yaml``, with the catalogue of functions that it may name.

    ``models``, ``variants``, ``rows`` and ``results`` are those of both; a catalogue is read when they are asked for.
    """

    schema: Literal[1]
    name: Name
    workload: Name
    title: str
    family: Literal["llama3", "llama4", "grok1", "nemotron4", "functions"]
    """What the training code builds; ``functions``: what the function of a row gives."""
    image: str
    engine: EngineRelease = DEFAULT_ENGINE
    """The release of Megatron-Bridge that its jobs run, without the last number; the image has it."""
    other_engines: dict[EngineRelease, str] = {}
    """Further releases that its jobs run where LLMB_ENGINE asks for them, each with its image."""
    hugging_face: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+@[0-9a-f]{40}\Z")] | None = None
    """Where the model's tokenizer and configuration are, with the commit: ``owner/name@commit``.

    The benchmarks do without: a null tokenizer, mock data.
    """
    defaults: RecipeDefaults
    flops: Flops
    listed_models: tuple[Model, ...] = msgspec.field(name="models", default=())
    listed_variants: tuple[Variant, ...] = msgspec.field(name="variants")
    documents: dict[str, Document] = {}
    """By the name that ``source`` begins with: ``grok1.md:41`` is line 41 of ``grok1.md``."""
    listed_rows: tuple[Row, ...] = msgspec.field(name="rows", default=())
    listed_results: tuple[PublishedResult, ...] = msgspec.field(name="results", default=())
    catalogue_file: str | None = msgspec.field(name="catalogue", default=None)
    """Functions of Megatron-Bridge, as ``llmb_train.catalogue`` writes them; absolute once the recipe is loaded."""
    results_file: str | None = msgspec.field(name="published", default=None)
    """Results that NVIDIA published for these functions; absolute once the recipe is loaded."""
    validation_file: str | None = msgspec.field(name="validation", default=None)
    """What Megatron's own validation says of these functions; absolute once the recipe is loaded."""
    other_catalogues: dict[BridgeRelease, Functions] = {}
    """Further releases of the engine, whose functions are not quite those of ``catalogue``."""
    notices: tuple[FunctionNotice, ...] = ()

    @cached_property
    def releases(self) -> dict[str, Recipe]:
        """The recipe with each release's functions, by the exact release of Megatron-Bridge.

        Empty where all releases have the same functions.
        """
        if not self.other_catalogues or self.catalogue is None:
            return {}
        folder = Path(self.catalogue.path).parent
        others = {
            release: msgspec.structs.replace(
                self,
                catalogue_file=str(folder / files.catalogue),
                validation_file=str(folder / files.validation) if files.validation is not None else None,
                other_catalogues={},
            )
            for release, files in self.other_catalogues.items()
        }
        return {self.catalogue.release: self, **others}

    def of_release(self, release: str | None) -> Recipe:
        """The recipe with that release's functions; this one where nobody knows the release."""
        return self.releases.get(release or "", self)

    @cached_property
    def catalogue(self) -> Catalogue | None:
        """The recipe's catalogue of functions, read when first asked for; None where all its rows are listed.

        Raises:
            RecipeError: the file cannot be read
        """
        if self.catalogue_file is None:
            return None
        from llmb_common.recipes.catalogue import Catalogue

        return Catalogue(Path(self.catalogue_file), self.listed_variants[0])

    @property
    def engines(self) -> dict[str, str]:
        """Every release of Megatron-Bridge that its jobs can run, with its image; the first is the default."""
        return {self.engine: self.image, **self.other_engines}

    @property
    def sizes(self) -> tuple[str, ...]:
        """The names of all models, those of the catalogue included."""
        return (*(model.size for model in self.listed_models), *(self.catalogue.sizes if self.catalogue else ()))

    @cached_property
    def models(self) -> tuple[Model, ...]:
        """All models, those of the catalogue included."""
        return tuple(self.model(size) for size in self.sizes)

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """All variants, those of the catalogue included."""
        return (*self.listed_variants, *(self.catalogue.variants if self.catalogue else ()))

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """All configuration rows, those of the catalogue included."""
        return (*self.listed_rows, *(self.catalogue.rows() if self.catalogue else ()))

    @cached_property
    def results(self) -> tuple[PublishedResult, ...]:
        """All published results, those in the file of results included.

        Raises:
            RecipeError: that file cannot be read
        """
        if self.results_file is None:
            return self.listed_results
        from llmb_common.recipes.rows import read_results

        return (*self.listed_results, *read_results(Path(self.results_file)))

    def rows_for(
        self, gpu_type: str, *, size: str | None = None, variant: str | None = None, dtype: str | None = None
    ) -> list[Row]:
        """The rows that jobs on ``gpu_type`` run, in the order of variants; None as size, variant or dtype: any.

        They are its own, those of its relative, and those for any GPU. Empty: there are none.
        """
        order = [known.name for known in self.variants]
        types = row_types(gpu_type)
        found = [
            row
            for row in self.listed_rows
            if row.gpu in types
            and size in (None, row.size)
            and variant in (None, row.variant)
            and (dtype is None or dtype in row.dtypes)
        ]
        if self.catalogue is not None:
            found += self.catalogue.rows(types, size, variant, dtype)
        return sorted(found, key=lambda row: order.index(row.variant))

    @property
    def configurations(self) -> Iterator[Configuration]:
        """Yields what every row is selected by, with its numbers of GPUs. Of catalogues only their indexes are read."""
        for row in self.listed_rows:
            for dtype in row.dtypes:
                fp8 = row.fp8_recipe or self.variant(row.variant).fp8_recipe if dtype == "fp8" else None
                yield Configuration(row.size, row.gpu, dtype, fp8, row.variant, None, row.scales)
        if self.catalogue is not None:
            in_image = self.of_release(bridge_release(self.image)).catalogue
            yield from self.catalogue.configurations(in_image or self.catalogue)

    def model(self, size: str, among: Iterable[str] = ()) -> Model:
        """The model of ``size``, in upper or lower case.

        Raises:
            RequestError: there is none; the message lists the sizes, of those ``among`` (looked at only then).
        """
        for model in self.listed_models:
            if model.size == size.lower():
                return model
        if self.catalogue is not None and size.lower() in self.catalogue.sizes:
            return self.catalogue.model(size.lower())
        full_size = size.lower().removesuffix("-smoke")
        if full_size != size.lower() and full_size in self.sizes:
            own = self.smoke_of(full_size)
            raise RequestError(
                f"{self.name} has no model size {size!r}" + (f" (did you mean {own!r}?)" if own else ""),
                remedy=f"{own} is the small copy of {full_size}" if own else NO_COPY.format(full_size),
                field="MODEL_SIZE",
            )
        raise self._unknown_name_error("model size", size, "MODEL_SIZE", self.sizes, among)

    def smoke_of(self, size: str) -> str | None:
        """The size that is a small copy of the model ``size`` for machines without GPUs; None where there is none."""
        for row in self.listed_rows:
            if row.gpu == "any" and (row.function is None or row.function.startswith(f"{size}_pretrain_")):
                return row.size
        return None

    @cached_property
    def _validated(self) -> dict[str, Validated]:
        """What validation says of each function, by name; empty where the recipe names no such file."""
        if self.validation_file is None:
            return {}
        from llmb_common.recipes.catalogue import read_validation

        return read_validation(Path(self.validation_file)).functions

    def refusal(self, function: str | None) -> str | None:
        """Why Megatron does not train ``function`` at its own number of GPUs; None: it does, or nobody tried.

        Raises:
            RecipeError: the recipe's file of validations cannot be read
        """
        validated = self._validated.get(function or "")
        return validated.refused if validated is not None else None

    def function(self, row: Row) -> Function | None:
        """The function that jobs of ``row`` call, from the recipe's catalogue; None where the row names none.

        Raises:
            RecipeError: the catalogue has none of that name, or its line is damaged.
        """
        if row.function is None:
            return None
        assert self.catalogue is not None  # checked when the recipe was loaded
        return self.catalogue.function(row.function)

    def document(self, result: PublishedResult) -> Document:
        """Where ``result``, one of this recipe's, was published, with the container that it was measured in."""
        document = self.documents[result.source.partition(":")[0]]
        return msgspec.structs.replace(document, container=result.container or document.container)

    def variant(self, name: str, among: Iterable[str] = ()) -> Variant:
        """Return the variant whose name is ``name`` in lower case.

        ``among`` serves the message alone: no variant is refused for not being in it, and it is looked at only on
        failure.

        Raises:
            RequestError: there is none; the message lists the variants, of those ``among``
        """
        for variant in self.variants:
            if variant.name == name.lower():
                return variant
        raise self._unknown_name_error(
            "variant", name, "CONFIG_VARIANT", [known.name for known in self.variants], among
        )

    def _unknown_name_error(
        self, kind: str, name: str, field: str, known: Sequence[str], among: Iterable[str]
    ) -> RequestError:
        """An error, for the caller to raise, for a ``name`` of a ``kind`` that is not among ``known``.

        It lists those that are also in ``among``; an empty one: all. ``field`` is the variable that says the name.
        """
        wanted = set(among)
        names = [one for one in known if not wanted or one in wanted]
        return RequestError(
            f"{self.name} has no {kind} {name!r}{did_you_mean(name.lower(), names)}",
            remedy=f"the {kind.split()[-1]}s are {', '.join(names)}",
            field=field,
        )

    def measured_as(self, variant: str) -> Variant:
        """The variant by whose rules runs of ``variant`` are measured: itself if the recipe lists it, else the first
        one.
        """
        return next((known for known in self.listed_variants if known.name == variant), self.listed_variants[0])


def find_row(recipe: Recipe, result: PublishedResult) -> Row | None:
    """The configuration row that a published result was measured with; None where the recipe has none such."""
    recipe = recipe.of_release(result.release)
    rows = recipe.rows_for(result.gpu, size=result.size, variant=result.variant, dtype=result.dtype)
    fits = (row for row in rows if None in (row.fp8_recipe, result.fp8_recipe) or row.fp8_recipe == result.fp8_recipe)
    return next((row for row in fits if result.gpus in row.scales), None)
