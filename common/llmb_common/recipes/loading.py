"""Reading recipes: types by ``recipe``, and here what types cannot say.

Beside a ``recipe.yaml`` may lie a ``recipe.json``, its checked content: to import a YAML parser takes as long as a bare
Python does to start.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TypeAlias

import msgspec

from llmb_common.base.engines import ENGINES, is_newer
from llmb_common.base.errors import RecipeError, did_you_mean
from llmb_common.base.gpus import gpu_types, rows_of
from llmb_common.base.strict_yaml import convert, load_text, read_text
from llmb_common.base.structs import from_json
from llmb_common.recipes.model import count_parameters
from llmb_common.recipes.recipe import Recipe, find_row
from llmb_common.recipes.rows import PublishedResult, Row, precision


def load_recipe(folder: Path) -> Recipe:
    """Return the checked recipe in ``folder``; the same object as long as its recipe.yaml has the same text.

    The last 16 recipes are kept. A recipe.json in ``folder`` that was made from exactly that text is read in its
    place, as that is faster. The recipe's names of files (catalogue, results, validation) become absolute paths; of
    these files at most the catalogue is opened, for results that recipe.yaml lists itself.

    Raises:
        RecipeError: there is no recipe.yaml, or it cannot be read or is wrong; the message has file and line where
            known
        OSError: ``folder`` may not be looked at
    """
    path = folder / "recipe.yaml"
    if not path.is_file():
        raise RecipeError(f"no recipe.yaml in {folder}", remedy="run from a recipe folder, such as llama3.1/")
    return _recipe(read_text(path, RecipeError), path, path.absolute())


@lru_cache(maxsize=16)
def _recipe(text: str, path: Path, absolute: Path) -> Recipe:
    """Return the checked recipe that ``text``, of the recipe.yaml at ``path``, holds.

    The last 16 are kept, as a campaign plans dozens of jobs of one recipe. Names of other files (catalogue, results,
    validation) become paths in the folder of ``absolute``; messages use ``path``.

    Raises:
        RecipeError: the recipe is wrong; the message has file and line where known
    """
    recipe = _compiled_recipe(text, path) or _checked(text, path)
    files = {name: getattr(recipe, name) for name in ("catalogue_file", "results_file", "validation_file")}
    beside = {name: str(absolute.parent / file) for name, file in files.items() if file is not None}
    return msgspec.structs.replace(recipe, **beside) if beside else recipe


def _checked(text: str, path: Path) -> Recipe:
    """Return the recipe parsed and checked from ``text``, of the recipe.yaml at ``path``.

    Names of other files stay as they are in the text.

    Raises:
        RecipeError: the recipe is wrong; the message has file and line where known
    """
    data, lines = load_text(text, str(path), RecipeError)
    recipe = convert(data, lines, Recipe, str(path), RecipeError)
    for problem, remedy in _problems(recipe):
        raise RecipeError(f"{path}: {problem}", remedy=remedy)
    return recipe


COMPILED = "recipe.json"


class _Compiled(msgspec.Struct, frozen=True, array_like=True):
    """The content of a recipe.json: a checked recipe, and what tells whether its recipe.yaml has changed since.

    ``length`` (characters) and ``crc32`` (of its UTF-8 bytes) are those of the YAML text that it was made from.
    ``compiled`` returns such a text; in JSON it is a list of the three.
    """

    length: int
    crc32: int
    recipe: Recipe


def compiled(path: Path) -> str:
    """Return the JSON text, with a final newline, of the recipe.json that belongs to the recipe.yaml at ``path``.

    Nothing is written.

    Raises:
        RecipeError: the recipe.yaml cannot be read or is wrong; the message has file and line where known
    """
    text = read_text(path, RecipeError)
    _checked(text, path)
    data, _ = load_text(text, str(path), RecipeError)
    content = [len(text), zlib.crc32(text.encode()), data]
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False) + "\n"


def _compiled_recipe(text: str, path: Path) -> Recipe | None:
    """Return the recipe from the recipe.json beside ``path``, if that was made from exactly ``text``; else None.

    It is not checked again: its text was when the file was made. Names of other files stay as they are. None also
    where the file is missing, unreadable, or of a release with other types.
    """
    try:
        found: _Compiled = from_json(path.with_name(COMPILED).read_bytes(), _Compiled)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    same = (found.length, found.crc32) == (len(text), zlib.crc32(text.encode()))
    return found.recipe if same else None


Problems: TypeAlias = Iterator[tuple[str, str]]
"""What is wrong, each with its remedy."""


def _problems(recipe: Recipe) -> Problems:
    """Yield (problem, remedy) for each thing that is wrong in ``recipe`` beyond its types; nothing for a right recipe.

    A catalogue is read only for results that recipe.yaml lists itself. The caller stops at the first problem, and later
    checks rely on that.

    Raises:
        RecipeError: the catalogue cannot be read
    """
    sizes = [model.size for model in recipe.listed_models]
    variants = [variant.name for variant in recipe.listed_variants]
    yield from _duplicate_names("model size", sizes)
    yield from _duplicate_names("variant", variants)
    # A catalogue is not read here: every command loads every recipe.
    if recipe.catalogue_file is None and recipe.defaults.model_size not in sizes:
        default = recipe.defaults.model_size
        yield f"the default model size {default!r} is not among the models", f"one of {', '.join(sizes)}"
    yield from _problems_of_engines(recipe)
    for model in recipe.listed_models:
        counted = count_parameters(model.architecture) if model.architecture is not None else model.parameters
        if model.parameters != counted:
            problem = f"model {model.size}: parameters is {model.parameters}, and its architecture has {counted}"
            yield problem, "correct the architecture, or the number"
    for variant in recipe.listed_variants:
        if variant.measurement.first > variant.measurement.last:
            yield f"variant {variant.name}: the measurement ends before it starts", "first is at most last"
        if variant.profiling.start >= variant.profiling.stop:
            yield f"variant {variant.name}: profiling stops before it starts", "start is less than stop"
    yield from _unknown_names(recipe, sizes, variants)
    yield from _problems_of_rows(recipe)
    for result in recipe.listed_results:
        yield from _problems_of_result(recipe, result)
    yield from _duplicate_names("result", [_result_identity(recipe, result) for result in recipe.listed_results])


def _problems_of_engines(recipe: Recipe) -> Problems:
    """Yield (problem, remedy) for each engine of ``recipe`` that is there twice, or for which there are no settings."""
    if recipe.engine in recipe.other_engines:
        yield (
            f"other_engines: {recipe.engine} is the engine already",
            "remove it there; the image of the engine itself belongs in the key 'image'",
        )
    for engine in recipe.engines:
        if engine not in ENGINES and not is_newer(engine):
            yield f"there are no settings for the engine {engine!r}", f"one of {', '.join(ENGINES)}, or a newer one"


def _unknown_names(recipe: Recipe, sizes: Sequence[str], variants: Sequence[str]) -> Problems:
    """Yield (problem, remedy) for each model size, variant or GPU type of a row or result that does not exist.

    ``sizes`` and ``variants`` are those that ``recipe`` has.
    """
    with_rows = [gpu for gpu in gpu_types() if rows_of(gpu) == gpu] + ["any"]
    items: tuple[Row | PublishedResult, ...] = (*recipe.listed_rows, *recipe.listed_results)
    for item in items:
        known = {
            "model size": (item.size, sizes),
            "variant": (item.variant, variants),
            "GPU type": (item.gpu, with_rows),
        }
        for kind, (name, names) in known.items():
            if name not in names:
                near = did_you_mean(name, names)
                yield f"{_row_title(item)}: unknown {kind} {name!r}{near}", f"one of {', '.join(names)}"


def _result_identity(recipe: Recipe, result: PublishedResult) -> str:
    """Return a line that tells one published result of ``recipe`` from all others: what was measured, and where.

    ``VARIANT 70b fp8 (cs) on 64 h100 of TITLE 25.09``: variant, model size, precision, GPUs, title of the document,
    container. A recipe must not list two results with the same. The document must be one of ``recipe.documents``,
    else there is a KeyError.
    """
    document = recipe.document(result)
    dtype = precision(result.dtype, result.fp8_recipe)
    what = f"{result.variant} {result.size} {dtype} on {result.gpus} {result.gpu}"
    return f"{what} of {document.title} {document.container}"


def _row_title(item: Row | PublishedResult) -> str:
    """Return how messages name a row or a published result: ``row 70b on h100 (llama3.md:41)``.

    Of a result, the first word is ``result``.
    """
    return f"{'row' if isinstance(item, Row) else 'result'} {item.size} on {item.gpu} ({item.source})"


def _duplicate_names(kind: str, names: list[str]) -> Problems:
    """Yield (problem, remedy) for each name that occurs more than once in ``names``, once for each.

    Names are compared exactly; ``kind`` says in the problem what they name (``variant``).
    """
    for name, count in Counter(names).items():
        if count > 1:
            yield f"the {kind} {name!r} appears twice", "keep one"


def _problems_of_rows(recipe: Recipe) -> Problems:
    """Yield (problem, remedy) for what is wrong in the rows that recipe.yaml lists; nothing where all are right.

    That is: a range of GPUs that does not end on a doubling of its beginning, a row with no function whose model
    has no architecture, a function without a catalogue, and two rows that the same request selects. The models of
    rows must be known.
    """
    seen: dict[tuple[str, str, str, str, int], Row] = {}
    for row in recipe.listed_rows:
        if row.gpus_max < row.gpus_min or row.scales[-1] != row.gpus_max:
            yield f"{_row_title(row)}: gpus_max is not a doubling of gpus_min", "correct the range"
        if row.function is None and recipe.model(row.size).architecture is None:
            yield f"{_row_title(row)} names no function, and its model has no architecture", "give one of them"
        if row.function is not None and recipe.catalogue_file is None:
            yield f"{_row_title(row)} names a function", "name the catalogue that has it"
        for dtype, gpus in product(row.dtypes, row.scales):  # one request must mean one row
            other = seen.setdefault((row.variant, row.gpu, row.size, dtype, gpus), row)
            if other is not row:
                problem = f"{_row_title(row)}: {dtype} on {gpus} GPUs is also in the row of {other.source}"
                yield problem, "correct the dtypes or the range of one of the two"


def _problems_of_result(recipe: Recipe, result: PublishedResult) -> Problems:
    """Yield (problem, remedy) for what is wrong in one published ``result``; nothing where it is right.

    That is: a correction without a reason or the reverse, an unknown document, a container that neither result nor
    document names, and no row of the recipe that it was measured with.

    Raises:
        RecipeError: the recipe names a catalogue, and that cannot be read
    """
    where = _row_title(result)
    if bool(result.corrected) != bool(result.why):
        yield f"{where}: 'corrected' and 'why' go together", "give both, or neither"
    name = result.source.partition(":")[0]
    if name not in recipe.documents:
        near = did_you_mean(name, recipe.documents)
        yield f"{where}: no document {name!r}{near}", "describe it under documents: title, date, framework, container"
    # The document is known here: the caller stops at the first problem, which an unknown one is.
    if recipe.document(result).container is None:
        yield f"{where}: no container", f"give it here, or for all results of {name}"
    if find_row(recipe, result) is None:
        yield f"{where}: no row has {result.dtype} on {result.gpus} GPUs", "add the row, or correct the result"
