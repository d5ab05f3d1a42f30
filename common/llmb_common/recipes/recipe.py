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
    """The model size, dtype and GPU type that jobs of a recipe have where the request names none.

    Each is a name as the recipe spells it. ``gpu_type`` None: the recipe has no default. An unknown key is refused
    when recipe.yaml is loaded.
    """

    model_size: Name
    dtype: Dtype
    gpu_type: Name | None = None


class Flops(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a recipe's document counts attention's FLOPs: over the sequence squared (``full``) or half (``causal``).

    An unknown key is refused when recipe.yaml is loaded.
    """

    attention: Literal["full", "causal"]


class Functions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files that describe the functions of one release of Megatron-Bridge: catalogue and validation.

    They are file names in the folder of the recipe's own catalogue. ``validation`` None: that release was not
    validated. An unknown key is refused when recipe.yaml is loaded; whether the files exist is not looked at then.
    """

    catalogue: str
    validation: str | None = None


class FunctionNotice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What users of some functions must know: ``says``, a clause without a full stop, and its ``source`` for people.

    It is for the functions whose names contain the text ``functions``, anywhere and with case; all notices that fit a
    function apply. An unknown key is refused when recipe.yaml is loaded.
    """

    functions: str
    says: str
    source: str


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """The content of a recipe.yaml, as ``load_recipe`` makes it, with the catalogue of functions that it may name.

    Properties: ``models``, ``variants``, ``rows`` and ``results`` are tuples of what recipe.yaml lists
    (``listed_models`` and so on), then of the catalogue's or results file's; ``sizes`` are the names of the models.
    ``configurations`` is a new iterator over what selects each row. ``engines`` maps releases (``0.6``) that jobs can
    run to their images, the default first. ``catalogue`` is None where all rows are listed; ``releases`` maps exact
    releases (``0.6.0``) to the recipe with that one's functions (empty: it has one catalogue only, or none). Methods:
    ``of_release`` returns the latter, or the recipe itself; ``rows_for`` a list of rows for a GPU type; ``model`` and
    ``variant`` the one of a name in any case, RequestError for an unknown one. ``smoke_of`` returns the size that is a
    small copy of a model, ``refusal`` why Megatron does not train a function, ``function`` that of a row, each None
    where there is none. ``document`` returns the publication of a result (KeyError for a result of another recipe),
    ``measured_as`` the variant by whose rules runs are measured. Files are read when first asked for: all but
    ``engines``, ``smoke_of``, ``document`` and ``measured_as`` may raise RecipeError for one that cannot be read. What
    else does not fit is refused by ``load_recipe``.
    """

    schema: Literal[1]
    name: Name
    """The recipe's own name (``grok1``), as run records and messages have it."""
    workload: Name
    """The name that users choose it by, and that its folder of runs has: ``pretrain_grok1``."""
    title: str
    family: Literal["llama3", "llama4", "grok1", "nemotron4", "functions"]
    """What the training code builds; ``functions``: what the function of a row gives."""
    image: str
    """The container image of its jobs: ``nvcr.io#nvidia/nemo:26.02.01``."""
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
    """Further releases of the engine (``0.6.0``), whose functions are not quite those of ``catalogue``."""
    notices: tuple[FunctionNotice, ...] = ()
    """What users of some of the catalogue's functions must know."""

    @cached_property
    def releases(self) -> dict[str, Recipe]:
        """This recipe with the functions of each release, by the exact release of Megatron-Bridge (``0.6.0``).

        The recipe's own release comes first, as this recipe itself. Empty where the recipe has a catalogue for one
        release only, or none. The other releases' catalogues are not read here, and may be found to be unreadable
        later.

        Raises:
            RecipeError: the recipe's own catalogue cannot be read
        """
        if not self.other_catalogues or self.catalogue is None:
            return {}
        # Unlike ``catalogue_file``, the names of these files were not made absolute when the recipe was loaded.
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
        """Return this recipe with the functions of the exact ``release`` (``0.6.0``) of Megatron-Bridge.

        The recipe itself for None, and for a release that it has no catalogue of; so also where it has no catalogue at
        all.

        Raises:
            RecipeError: the recipe's own catalogue cannot be read
        """
        return self.releases.get(release or "", self)

    @cached_property
    def catalogue(self) -> Catalogue | None:
        """The catalogue of functions that the recipe names, read once; None where it lists all its rows itself.

        Raises:
            RecipeError: the catalogue's file cannot be read
        """
        if self.catalogue_file is None:
            return None
        from llmb_common.recipes.catalogue import Catalogue

        return Catalogue(Path(self.catalogue_file), self.listed_variants[0])

    @property
    def engines(self) -> dict[str, str]:
        """The releases of Megatron-Bridge (``0.6``) that the recipe's jobs can run, each with its container image.

        The default comes first, then the others in the order of recipe.yaml.
        """
        return {self.engine: self.image, **self.other_engines}

    @property
    def sizes(self) -> tuple[str, ...]:
        """The names of all the recipe's models: first those that recipe.yaml lists, then its catalogue's.

        Raises:
            RecipeError: the catalogue's file cannot be read
        """
        return (*(model.size for model in self.listed_models), *(self.catalogue.sizes if self.catalogue else ()))

    @cached_property
    def models(self) -> tuple[Model, ...]:
        """All the recipe's models: first those that recipe.yaml lists, then its catalogue's.

        Raises:
            RecipeError: the catalogue's file cannot be read, or is damaged
        """
        return tuple(self.model(size) for size in self.sizes)

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """All the recipe's variants: first those that recipe.yaml lists, then its catalogue's.

        Raises:
            RecipeError: the catalogue's file cannot be read
        """
        return (*self.listed_variants, *(self.catalogue.variants if self.catalogue else ()))

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """All the recipe's configuration rows: those that recipe.yaml lists, then one per catalogued function.

        Both are in the order of their file.

        Raises:
            RecipeError: the catalogue's file cannot be read, or is damaged
        """
        return (*self.listed_rows, *(self.catalogue.rows() if self.catalogue else ()))

    @cached_property
    def results(self) -> tuple[PublishedResult, ...]:
        """All results that NVIDIA published for the recipe: those in recipe.yaml, then the results file's.

        Both are in the order of their file; empty where there are none. Of the latter only those that belong to a
        function.

        Raises:
            RecipeError: the results file cannot be read
        """
        if self.results_file is None:
            return self.listed_results
        from llmb_common.recipes.rows import read_results

        return (*self.listed_results, *read_results(Path(self.results_file)))

    def results_of(self, size: str) -> tuple[PublishedResult, ...]:
        """Return those of ``results`` that are of the model size ``size``, in their order; empty: there is none.

        The results file has hundreds, and a plan needs those of one model. They are kept.

        Raises:
            RecipeError: the results file cannot be read
        """
        if size not in self._results_by_size:
            listed = tuple(result for result in self.listed_results if result.size == size)
            published: tuple[PublishedResult, ...] = ()
            if self.results_file is not None:
                from llmb_common.recipes.rows import read_results

                published = read_results(Path(self.results_file), size)
            self._results_by_size[size] = (*listed, *published)
        return self._results_by_size[size]

    @cached_property
    def _results_by_size(self) -> dict[str, tuple[PublishedResult, ...]]:
        """What ``results_of`` has found, by model size."""
        return {}

    def rows_for(
        self, gpu_type: str, *, size: str | None = None, variant: str | None = None, dtype: str | None = None
    ) -> list[Row]:
        """Return the configuration rows that jobs on ``gpu_type`` may run, in the order of the recipe's variants.

        Of the rows that recipe.yaml lists, they are those of that type, of the type whose rows it shares, and those
        for any GPU; of a catalogue, only those of the first of these types that it has any function for, also where
        the other arguments leave none of that type's. Of one variant, the rows that recipe.yaml lists come first.
        All names are matched exactly, ``dtype`` without the FP8 scaling; None for another argument: any. An unknown
        type has only the rows for any GPU. Empty: no row matches.

        Raises:
            RecipeError: the catalogue's file cannot be read, or is damaged
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
        """A new iterator over what selects each row, with the row's numbers of GPUs.

        That is model size, GPU type, precision and variant. A row with several dtypes gives one for each. The rows of
        recipe.yaml come first; of a catalogue only the index is read.

        Raises:
            RecipeError: a catalogue's file cannot be read; only while the iterator is used
        """
        for row in self.listed_rows:
            for dtype in row.dtypes:
                fp8 = row.fp8_recipe or self.variant(row.variant).fp8_recipe if dtype == "fp8" else None
                yield Configuration(row.size, row.gpu, dtype, fp8, row.variant, None, row.scales)
        if self.catalogue is not None:
            in_image = self.of_release(bridge_release(self.image)).catalogue
            yield from self.catalogue.configurations(in_image or self.catalogue)

    def model(self, size: str, among: Iterable[str] = ()) -> Model:
        """Return the recipe's model of the name ``size``, in upper or lower case.

        ``among`` serves the error's message alone: the sizes to suggest there; empty: all.

        Raises:
            RequestError: the recipe has no such size; for ``8b-smoke`` it says which size is the small copy of ``8b``
            RecipeError: the catalogue's file cannot be read, or is damaged
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
        """Return the recipe's size that is a small copy of the model ``size``, to train without GPUs.

        None: there is none. ``size`` is in lower case. A recipe whose small model calls no function has that one for
        every ``size``, known or not. Only the rows that recipe.yaml lists are looked at, so nothing is read.
        """
        for row in self.listed_rows:
            # Without a function, the row is of the recipe's one small model; else of a copy of that function's model.
            if row.gpu == "any" and (row.function is None or row.function.startswith(f"{size}_pretrain_")):
                return row.size
        return None

    @cached_property
    def _validated(self) -> dict[str, Validated]:
        """What Megatron's validation says of each function, by the function's name, read once.

        Empty where the recipe names no validation file.

        Raises:
            RecipeError: the validation file cannot be read
        """
        if self.validation_file is None:
            return {}
        from llmb_common.recipes.catalogue import read_validation

        return read_validation(Path(self.validation_file)).functions

    def refusal(self, function: str | None) -> str | None:
        """Return why Megatron does not train ``function`` at its own number of GPUs; None: it does, or nobody tried.

        ``function`` is a function's exact name; None, or a name that is not known, also gives None. The reason is the
        text of the validation file.

        Raises:
            RecipeError: the validation file cannot be read
        """
        validated = self._validated.get(function or "")
        return validated.refused if validated is not None else None

    def function(self, row: Row) -> Function | None:
        """Return the catalogue's function that jobs of ``row`` call; None where the row names none.

        ``row`` is one of this recipe's rows: an assertion fails for a row with a function where the recipe has no
        catalogue.

        Raises:
            RecipeError: the catalogue cannot be read, has no such function, or its line is damaged
        """
        if row.function is None:
            return None
        assert self.catalogue is not None  # checked when the recipe was loaded
        return self.catalogue.function(row.function)

    def document(self, result: PublishedResult) -> Document:
        """Return a copy of the document that published ``result``, with the container that this result was measured in.

        ``container`` stays None where neither names one.

        Raises:
            KeyError: the recipe does not have the document that ``result`` names; it does for each of its own results
        """
        document = self.documents[result.source.partition(":")[0]]
        return msgspec.structs.replace(document, container=result.container or document.container)

    def variant(self, name: str, among: Iterable[str] = ()) -> Variant:
        """Return the recipe's variant called ``name``, in upper or lower case.

        ``among`` serves the error's message alone: the variants to suggest there; empty: all.

        Raises:
            RequestError: the recipe has no such variant
            RecipeError: the catalogue's file cannot be read
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
        """Return an error, for the caller to raise, that the recipe has no ``kind`` (``model size``) called ``name``.

        Its message suggests a near name, and its remedy lists the ``known`` names that are also in ``among``; where
        that is empty, all. ``field`` is the variable of the request that has the name (``MODEL_SIZE``).
        """
        wanted = set(among)
        names = [one for one in known if not wanted or one in wanted]
        return RequestError(
            f"{self.name} has no {kind} {name!r}{did_you_mean(name.lower(), names)}",
            remedy=f"the {kind.split()[-1]}s are {', '.join(names)}",
            field=field,
        )

    def measured_as(self, variant: str) -> Variant:
        """Return the recipe's variant by whose rules runs of ``variant`` are measured: window, statistic and more.

        That is the variant itself if recipe.yaml lists exactly that name, in lower case; for any other, such as a
        catalogue's or an unknown one, it is the first one listed. Nothing is read.
        """
        return next((known for known in self.listed_variants if known.name == variant), self.listed_variants[0])


def find_row(recipe: Recipe, result: PublishedResult) -> Row | None:
    """Return the configuration row that ``result`` was measured with; None where the recipe has none.

    It must fit GPU type and number of GPUs, model size, variant and dtype, and the FP8 scaling where row and result
    both name one; the first that fits counts. The functions are those of the result's release.

    Raises:
        RecipeError: the recipe's catalogue cannot be read, or is damaged
    """
    recipe = recipe.of_release(result.release)
    rows = recipe.rows_for(result.gpu, size=result.size, variant=result.variant, dtype=result.dtype)
    fits = (row for row in rows if None in (row.fp8_recipe, result.fp8_recipe) or row.fp8_recipe == result.fp8_recipe)
    return next((row for row in fits if result.gpus in row.scales), None)
