"""Where recipes are, and reading them: types by ``recipe``, and here what types cannot say."""

from __future__ import annotations

import os
import re
import string
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import msgspec

from llmb_common.decoding.strict_yaml import convert, load_text, read_text
from llmb_common.errors import RecipeError, RequestError, did_you_mean
from llmb_common.platform.engines import ENGINES, is_newer
from llmb_common.platform.gpus import gpu_types, rows_of
from llmb_common.recipes.flops import count_parameters
from llmb_common.recipes.model import Model
from llmb_common.recipes.recipe import Recipe, find_row
from llmb_common.recipes.rows import FIGURES, GBS_FORMULA, Result, Row, Variant, precision

NAME_PLACEHOLDERS = (
    "model_size", "dtype", "precision", "gpus", "tp", "pp", "cp", "vp", "ep", "etp", "mbs", "gbs",
)  # fmt: skip
"""What ``experiment_name`` may hold in braces."""

FILE_PLACEHOLDERS = (
    r"\$\{(MODEL|MODEL_SIZE|DTYPE|NUM_GPUS|PROCESS_ID|SLURM_JOB_ID|SLURM_NODEID|SLURM_LOCALID|SLURM_PROCID)\}"
)
"""What the name of a profile may hold, as a regular expression."""


def check_recipe(recipe: Recipe, path: Path) -> None:
    """Check what the types cannot say; ``path`` names the file.

    Raises:
        RecipeError: the first thing that does not fit.
    """
    sizes = [model.size for model in recipe.listed_models]
    variants = [variant.name for variant in recipe.listed_variants]
    _no_repeats(path, "model size", sizes)
    _no_repeats(path, "variant", variants)
    # A catalogue is not read here: every command loads every recipe.
    if recipe.catalogue_file is None and recipe.defaults.model_size not in sizes:
        raise RecipeError(
            f"{path}: the default model size {recipe.defaults.model_size!r} is not among the models",
            remedy=f"one of {', '.join(sizes)}",
        )
    _check_engines(recipe, path)
    for model in recipe.listed_models:
        _check_parameters(model, path)
    for variant in recipe.listed_variants:
        _check_variant(variant, path)
    with_rows = [gpu for gpu in gpu_types() if rows_of(gpu) == gpu] + ["any"]
    items: tuple[Row | Result, ...] = (*recipe.listed_rows, *recipe.listed_results)
    for item in items:
        _known(path, item, "model size", item.size, sizes)
        _known(path, item, "variant", item.variant, variants)
        _known(path, item, "GPU type", item.gpu, with_rows)
    for row in recipe.listed_rows:
        _check_row(row, path)
        if row.function is None and recipe.model(row.size).architecture is None:
            raise RecipeError(
                f"{path}: {_which(row)} names no function, and its model has no architecture", remedy="give one of them"
            )
        if row.function is not None and recipe.catalogue_file is None:
            raise RecipeError(f"{path}: {_which(row)} names a function", remedy="name the catalogue that has it")
    _rows_do_not_overlap(recipe, path)
    for result in recipe.listed_results:
        _check_result(recipe, result, path)
    _no_repeats(path, "result", [_identity(recipe, result) for result in recipe.listed_results])


def _check_engines(recipe: Recipe, path: Path) -> None:
    if recipe.engine in recipe.other_engines:
        raise RecipeError(
            f"{path}: other_engines: {recipe.engine} is the engine already", remedy="give its image as image"
        )
    for engine in recipe.engines:
        if engine not in ENGINES and not is_newer(engine):
            raise RecipeError(
                f"{path}: there are no settings for the engine {engine!r}",
                remedy=f"one of {', '.join(ENGINES)}, or a newer one",
            )


def _identity(recipe: Recipe, result: Result) -> str:
    document = recipe.document(result)
    where = f"{document.title} {document.container}"
    dtype = precision(result.dtype, result.fp8_recipe)
    return f"{result.variant} {result.size} {dtype} on {result.gpus} {result.gpu} of {where}"


def _which(item: Row | Result) -> str:
    return f"{'row' if isinstance(item, Row) else 'result'} {item.size} on {item.gpu} ({item.source})"


def _no_repeats(path: Path, kind: str, names: list[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise RecipeError(f"{path}: the {kind} {name!r} appears twice", remedy="keep one")


def _known(path: Path, item: Row | Result, kind: str, name: str, names: list[str]) -> None:
    if name not in names:
        raise RecipeError(
            f"{path}: {_which(item)}: unknown {kind} {name!r}{did_you_mean(name, names)}",
            remedy=f"one of {', '.join(names)}",
        )


def _check_parameters(model: Model, path: Path) -> None:
    if model.architecture is None:
        return
    counted = count_parameters(model.architecture)
    if model.parameters != counted:
        raise RecipeError(
            f"{path}: model {model.size}: parameters is {model.parameters}, and its architecture has {counted}",
            remedy="correct the architecture, or the number",
        )


def _check_variant(variant: Variant, path: Path) -> None:
    where = f"{path}: variant {variant.name}"
    if variant.measurement.first > variant.measurement.last:
        raise RecipeError(f"{where}: the measurement ends before it starts", remedy="first is at most last")
    if variant.profiling.start >= variant.profiling.stop:
        raise RecipeError(f"{where}: profiling stops before it starts", remedy="start is less than stop")
    for literal, name, _, _ in string.Formatter().parse(variant.experiment_name):
        _is_file_name(where, "experiment_name", literal)
        if name is not None and name not in NAME_PLACEHOLDERS:
            raise RecipeError(
                f"{where}: experiment_name holds {{{name}}}{did_you_mean(name, NAME_PLACEHOLDERS)}",
                remedy=f"one of {', '.join(NAME_PLACEHOLDERS)}",
            )

    for suffix in (variant.profiling.suffix, variant.nccl_trace.suffix):
        _is_file_name(where, "suffix", suffix)
    if left := re.search(r"[${}]", re.sub(FILE_PLACEHOLDERS, "", variant.profiling.file)):
        raise RecipeError(
            f"{where}: profiling.file holds {left[0]!r} outside a placeholder",
            remedy="the placeholders are those of the other recipes, for example ${SLURM_PROCID}",
        )


def _is_file_name(where: str, key: str, text: str) -> None:
    """Experiment names become folders, files and names of jobs, which Slurm is asked for in lists with commas."""
    if found := re.search(r"[^A-Za-z0-9._-]", text):
        raise RecipeError(f"{where}: {key} holds {found[0]!r}", remedy="letters, digits, dots, dashes and underscores")


def _check_row(row: Row, path: Path) -> None:
    where = f"{path}: {_which(row)}"
    if not GBS_FORMULA.match(row.gbs):
        raise RecipeError(f"{where}: gbs {row.gbs!r} is not a formula", remedy="write a number, GPUs, GPUs*N or GPUs/N")
    if row.gpus_max < row.gpus_min or row.scales[-1] != row.gpus_max:
        raise RecipeError(f"{where}: gpus_max is not a doubling of gpus_min", remedy="correct the range")


def _rows_do_not_overlap(recipe: Recipe, path: Path) -> None:
    """One request must mean one row."""
    seen: dict[tuple[str, str, str, str, int], Row] = {}
    for row in recipe.listed_rows:
        for dtype in row.dtypes:
            for gpus in row.scales:
                other = seen.setdefault((row.variant, row.gpu, row.size, dtype, gpus), row)
                if other is not row:
                    raise RecipeError(
                        f"{path}: {_which(row)}: {dtype} on {gpus} GPUs is also in the row of {other.source}",
                        remedy="correct the dtypes or the range of one of the two",
                    )


def _check_result(recipe: Recipe, result: Result, path: Path) -> None:
    where = f"{path}: {_which(result)}"
    for figure in result.corrected:
        if figure not in FIGURES:
            raise RecipeError(f"{where}: no figure {figure!r}", remedy=f"one of {', '.join(FIGURES)}")
    if bool(result.corrected) != bool(result.why):
        raise RecipeError(f"{where}: 'corrected' and 'why' go together", remedy="give both, or neither")
    name = result.source.partition(":")[0]
    if name not in recipe.documents:
        raise RecipeError(
            f"{where}: no document {name!r}{did_you_mean(name, recipe.documents)}",
            remedy="describe it under documents: title, date, framework, container",
        )
    if recipe.document(result).container is None:
        raise RecipeError(f"{where}: no container", remedy=f"give it here, or for all results of {name}")
    if find_row(recipe, result) is None:
        raise RecipeError(
            f"{where}: no row has {result.dtype} on {result.gpus} GPUs", remedy="add the row, or correct the result"
        )


def load_recipe(folder: Path) -> Recipe:
    """The recipe in ``folder``: the same one as long as its ``recipe.yaml`` says the same.

    Raises:
        RecipeError: there is none, or it is wrong; with file and line.
    """
    path = folder / "recipe.yaml"
    if not path.is_file():
        raise RecipeError(f"no recipe.yaml in {folder}", remedy="run from a recipe folder, such as llama3.1/")
    return _recipe(read_text(path, RecipeError), path, path.absolute())


@lru_cache(maxsize=16)
def _recipe(text: str, path: Path, absolute: Path) -> Recipe:
    """A campaign plans dozens of jobs of one recipe, whose file takes 50 ms to parse, and reads its results once."""
    data, lines = load_text(text, str(path), RecipeError)
    recipe = convert(data, lines, Recipe, str(path), RecipeError)
    files = {name: getattr(recipe, name) for name in ("catalogue_file", "results_file", "validation_file")}
    beside = {name: str(absolute.parent / file) for name, file in files.items() if file is not None}
    if beside:
        recipe = msgspec.structs.replace(recipe, **beside)
    check_recipe(recipe, path)
    return recipe


def recipe_folders(root: Path) -> Iterator[Path]:
    """Folders under ``root`` that hold a recipe.yaml, by name."""
    return (path.parent for path in sorted(root.glob("*/recipe.yaml")))


def recipes_root() -> Path:
    """Where the recipes are: ``LLMB_REPO``, else the clone that holds this library, else the copy in the package.

    Raises:
        RequestError: ``LLMB_REPO`` is set and contains no recipe.
    """
    if repo := os.environ.get("LLMB_REPO"):
        if next(recipe_folders(Path(repo)), None) is None:
            raise RequestError(
                f"LLMB_REPO={repo} contains no recipe", remedy="set it to the clone of the repository, or unset it"
            )
        return Path(repo)
    clone = Path(__file__).resolve().parents[3]
    if next(recipe_folders(clone), None) is not None:
        return clone
    return Path(__file__).resolve().parents[1] / "_recipes"
