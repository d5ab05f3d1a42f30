"""Summaries of the recipes that we ship, without parsing their YAML and their catalogue.

``shipped.json`` holds them, each with a fingerprint of every file that it was made from. A recipe whose files differ
from those is read in full. ``python -m tools.readme_tables --write`` writes the file, and a test compares
it with the recipes. Standard library only: this module decides how soon ``llmb-run list`` and a shell's completion
answer.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmb_common.recipes.summary import Configuration, Summary

if TYPE_CHECKING:
    from llmb_common.recipes.recipe import Recipe

SHIPPED = Path(__file__).with_name("shipped.json")


def read_summary(folder: Path) -> Summary:
    """The summary of the recipe in ``folder``.

    Raises:
        RecipeError: there is none, or it is wrong; with file and line.
    """
    found = _shipped_summary(folder)
    if found is not None:
        return found
    from llmb_common.recipes.loading import load_recipe

    return summary_of(load_recipe(folder))


def summary_of(recipe: Recipe) -> Summary:
    """The summary of a recipe that has been read."""
    rows = [row for row in recipe.listed_rows for _ in row.dtypes]
    rows += recipe.catalogue.rows() if recipe.catalogue is not None else ()
    seconds = _published(recipe)
    known = (
        one._replace(layout=row.parallelism, published=_span([seconds.get((*one[:5], scale)) for scale in one.scales]))
        for one, row in zip(recipe.configurations, rows, strict=True)
    )
    return Summary(recipe.name, recipe.workload, recipe.title, recipe.sizes, tuple(known))


def _published(recipe: Recipe) -> dict[tuple[object, ...], float]:
    """Step times by what selects a row, and the number of GPUs.

    Of the recipe's own container, else of the newest; of several results, the first.
    """
    from llmb_common.platform.engines import container_release, release_order

    own = release_order(container_release(recipe.image) or "0")
    found: dict[tuple[object, ...], float] = {}
    # A release is named where its function has other columns than the one that is listed.
    results = [(release_order(recipe.document(r).container or "0"), r) for r in recipe.results if r.release is None]
    for _, result in sorted(results, key=lambda item: (item[0] == own, item[0]), reverse=True):
        fp8 = result.fp8_recipe or recipe.variant(result.variant).fp8_recipe if result.dtype == "fp8" else None
        key = (result.size, result.gpu, result.dtype, fp8, result.variant, result.gpus)
        found.setdefault(key, result.step_seconds)
    return found


def _span(values: Iterable[float | None]) -> tuple[float, float] | None:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else None


def shipped_text(folders: Iterable[Path]) -> str:
    """The content of ``shipped.json`` for the recipes in ``folders``: by the fingerprint of recipe.yaml, one a line."""
    from llmb_common.recipes.loading import load_recipe

    lines = []
    for folder in folders:
        recipe = load_recipe(folder)
        catalogues = (one.catalogue_file for one in (recipe, *recipe.releases.values()))
        beside = dict.fromkeys(Path(file).name for file in (*catalogues, recipe.results_file) if file)
        files = {name: _fingerprint(folder / name) for name in beside}
        entry = json.dumps([files, summary_of(recipe)], separators=(",", ":"))
        lines.append(f'"{_fingerprint(folder / "recipe.yaml")}":{entry}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _shipped_summary(folder: Path) -> Summary | None:
    """The shipped summary; None unless every file that it was made from is in ``folder``, unchanged."""
    try:
        files, values = _shipped()[_fingerprint(folder / "recipe.yaml")]
        if any(_fingerprint(folder / name) != known for name, known in files.items()):
            return None
    except (OSError, KeyError):
        return None
    name, workload, title, sizes, configurations = values
    rows = (
        Configuration._make((*row, tuple(scales), layout, span and tuple(span)))
        for *row, scales, layout, span in configurations
    )
    return Summary(name, workload, title, tuple(sizes), tuple(rows))


@lru_cache(maxsize=1)
def _shipped() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(SHIPPED.read_bytes())
    return content


def _fingerprint(path: Path) -> str:
    """Tells whether a file has been edited, not whether somebody forged it: who can write there owns the recipe.

    Importing hashlib takes longer than everything else here.
    """
    content = path.read_bytes()
    return f"{len(content)}-{zlib.crc32(content):08x}-{zlib.adler32(content):08x}"
