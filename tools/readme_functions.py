"""Tables of a recipe whose rows are functions of a catalogue: models and scales, variants, published results."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from llmb_common.base.engines import CONTAINERS, LOOKED_UP, release_order
from llmb_common.base.errors import RecipeError
from llmb_common.base.gpus import GPUS
from llmb_common.recipes.catalogue import Catalogue, FunctionName, read_validation
from llmb_common.recipes.recipe import Recipe
from llmb_common.recipes.rows import PublishedRow, read_published
from tools.markdown import table


def models(recipe: Recipe) -> list[str]:
    """Every model, with its numbers and the GPU counts of plain pretraining for each GPU type."""
    catalogue = _catalogue(recipe)
    base = recipe.listed_variants[0].name
    types = _gpu_types(catalogue)
    rows = []
    for size in catalogue.sizes:
        entries = [entry for entry in catalogue.index if entry.model == size]
        function = catalogue.function(entries[0].name)
        shape = function.architecture
        plain = [entry for entry in entries if entry.variant(base) == base]
        rows.append(
            [
                f"`{size}`",
                f"{function.parameters / 1e9:,.1f}B" if function.parameters else "",
                str(shape.layers),
                f"{shape.moe.top_k} of {shape.moe.experts}" if shape.moe else "",
                _counts(catalogue.function(entry.name).sequence_length for entry in plain),
                *(_counts(entry.gpus for entry in _on(name, plain)) for name in types),
            ]
        )
    header = ["`MODEL_SIZE`", "parameters", "layers", "experts", "sequence", *(name.upper() for name in types)]
    return table(header, rows)


def precisions(recipe: Recipe) -> list[str]:
    """Which precisions each model has on each GPU type, in plain pretraining."""
    catalogue = _catalogue(recipe)
    base = recipe.listed_variants[0].name
    types = _gpu_types(catalogue)
    rows = []
    for size in catalogue.sizes:
        plain = [entry for entry in catalogue.index if entry.model == size and entry.variant(base) == base]
        rows.append([f"`{size}`", *(_words(_on(name, plain)) for name in types)])
    return table(["`MODEL_SIZE`", *(name.upper() for name in types)], rows)


def named(recipe: Recipe) -> list[str]:
    """The variants that CONFIG_VARIANT names, with the models that have them."""
    catalogue = _catalogue(recipe)
    base = recipe.listed_variants[0].name
    found: dict[str, list[FunctionName]] = defaultdict(list)
    for entry in catalogue.index:
        found[entry.variant(base)].append(entry)
    found.pop(base, None)
    rows = []
    for name, entries in sorted(found.items()):
        of_models = dict.fromkeys(f"`{entry.model}`" for entry in entries)
        rows.append([f"`{name}`", str(len(entries)), ", ".join(of_models)])
    return table(["`CONFIG_VARIANT`", "functions", "models"], rows)


def newest(recipe: Recipe) -> list[str]:
    """The published result of each function in the newest container that has one."""
    best: dict[str, PublishedRow] = {}
    for row in _published(recipe):
        if row.function is None:
            continue
        other = best.get(row.function)
        if other is None or release_order(row.container) > release_order(other.container):
            best[row.function] = row
    rows = [
        [
            f"`{row.size}`" + (f" `{row.variant}`" if row.variant != recipe.listed_variants[0].name else ""),
            row.gpu.upper(),
            str(row.gpus),
            f"{row.dtype}" + (f" {row.fp8_recipe}" if row.fp8_recipe else ""),
            row.container,
            f"{row.step_seconds:g}",
            f"{row.tokens_per_second_per_gpu:,.0f}",
            f"{row.tflops_per_gpu:,.0f}",
            f"**{row.tflops_of_bridge:,.0f}**" if row.why and row.tflops_of_bridge else "",
        ]
        for _, row in sorted(best.items())
    ]
    header = [
        "model",
        "GPU",
        "GPUs",
        "precision",
        "container",
        "s/step",
        "tokens/s/GPU",
        "TFLOPS/GPU",
        "Bridge 0.6 counts",
    ]
    return table(header, rows)


def containers(recipe: Recipe) -> list[str]:
    """How many published rows there are of each container, and how many have all the columns of a function."""
    found: dict[str, list[PublishedRow]] = defaultdict(list)
    for row in _published(recipe):
        found[row.container].append(row)
    rows = []
    for name in sorted(found, key=release_order, reverse=True):
        with_function = [row for row in found[name] if row.function is not None]
        rows.append([name, str(len(found[name])), str(len(with_function))])
    return table(["container", "published rows", "equal to a function"], rows)


def validation(recipe: Recipe) -> list[str]:
    """What Megatron's own validation says of the functions, and how many share it."""
    if recipe.validation_file is None:
        raise RecipeError(f"{recipe.name} names no validation", remedy="leave this table out")
    document = read_validation(Path(recipe.validation_file))
    found = Counter((result.refused or "", "; ".join(result.needs)) for result in document.functions.values())
    rows = [
        [str(count), f"refused: {refused}" if refused else "passed", needs or "-"]
        for (refused, needs), count in sorted(found.items(), key=lambda item: (item[0][0] != "", -item[1], item[0]))
    ]
    where = f"Megatron-Bridge {document.release} and megatron-core {document.core}, {document.date}:"
    return [where, "", *table(["functions", "result", "needs"], rows)]


def accepted(recipe: Recipe) -> list[str]:
    """The functions of one release that jobs can call at their own number of GPUs: Megatron accepts them. Planning
    accepts and refuses the same ones, which a test shows of every function."""
    document = read_validation(Path(recipe.validation_file or ""))
    return [name for name, result in document.functions.items() if result.refused is None]


def releases(recipe: Recipe) -> list[str]:
    """The releases whose functions are shipped: the containers that have each, how many of them jobs can call, and how
    it differs from the newest."""
    newest = _catalogue(recipe)
    names = {entry.name for entry in newest.index}
    rows = []
    for release, of_release in recipe.releases.items():
        catalogue = _catalogue(of_release)
        known = {entry.name for entry in catalogue.index}
        lacks = sorted({entry.model for entry in newest.index if entry.name not in known})
        other = [name for name in known & names if catalogue.function(name).columns != newest.function(name).columns]
        changed = sorted({f"`{newest.entry(name).model}`" for name in other})
        rows.append(
            [
                release,
                ", ".join(f"`nemo:{name}`" for name, held in CONTAINERS.items() if held == release)
                or f"none known on {LOOKED_UP}",
                str(len(known)),
                str(len(accepted(of_release))),
                f"{len(names - known)}, of {', '.join(f'`{name}`' for name in lacks)}" if lacks else "",
                f"{len(other)}, of {', '.join(changed)}" if other else "",
            ]
        )
    return table(["release", "containers", "functions", "plannable", "lacking", "with other columns"], rows)


TABLES: dict[str, Callable[..., list[str]]] = {
    "releases": releases,
    "functions": models,
    "precisions": precisions,
    "named": named,
    "newest": newest,
    "containers": containers,
    "validation": validation,
}


def _catalogue(recipe: Recipe) -> Catalogue:
    if recipe.catalogue is None:
        raise RecipeError(f"{recipe.name} has no catalogue", remedy="leave this table out")
    return recipe.catalogue


def _gpu_types(catalogue: Catalogue) -> list[str]:
    known = {entry.gpu for entry in catalogue.index}
    return [name for name in GPUS if name in known]


def _on(gpu_type: str, entries: Iterable[FunctionName]) -> list[FunctionName]:
    """Those of the functions that are for a GPU type."""
    return [entry for entry in entries if entry.gpu == gpu_type]


def _published(recipe: Recipe) -> tuple[PublishedRow, ...]:
    return read_published(Path(recipe.results_file)) if recipe.results_file else ()


def _counts(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(numbers))))


def _words(entries: Iterable[FunctionName]) -> str:
    return ", ".join(
        sorted({f"{entry.dtype}{f' {entry.fp8_recipe}' if entry.fp8_recipe else ''}" for entry in entries})
    )
