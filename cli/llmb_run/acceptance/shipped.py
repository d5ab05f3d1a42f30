"""The suites that come with LLMB: for each GPU type and scale the configurations that the recipes document.

    python -m llmb_run.acceptance.shipped --write

A model that is documented in two generations is in the one with a published result at that scale, else the newest.
Where nothing is published, a baseline of the site is used, or it is enough that the runs succeed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from llmb_common import gpus
from llmb_common.recipes.folders import recipe_folders, recipes_root
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.recipe import Recipe
from llmb_common.recipes.rows import Row
from llmb_run.acceptance.suite import SUITES

SCALES = (64, 128, 512)

PRESCREEN_STEPS = 20


def suites() -> dict[str, str]:
    """Name to content of every suite for GPUs."""
    recipes = [load_recipe(folder) for folder in recipe_folders(recipes_root())]
    # A catalogue has hundreds of functions: which of them matter, a suite of the site's own says.
    recipes = [recipe for recipe in recipes if recipe.catalogue_file is None]
    found = {}
    for gpu_type in sorted(gpus.GPUS):
        for scale in SCALES:
            rows = [(recipe, row, dtypes) for recipe in recipes for row, dtypes in _rows(recipe, gpu_type, scale)]
            if rows:
                found[f"{gpu_type}-{scale}"] = _text(gpu_type, scale, rows)
    return found


def _rows(recipe: Recipe, gpu_type: str, scale: int) -> Iterator[tuple[Row, Sequence[str]]]:
    """The documented rows at ``scale``, each with those of its dtypes that are in no better one."""
    known = [
        row
        for row in recipe.rows_for(gpu_type)
        if row.gpu != "any" and scale in row.scales and not row.size.endswith("-proxy")
    ]
    chosen: dict[tuple[str, str], Row] = {}
    for row in known:
        for dtype in row.dtypes:
            if dtype not in gpus.GPUS[gpu_type].peaks:
                continue
            best = chosen.get((row.size, dtype))
            if best is None or (_published(recipe, row, dtype, scale) and not _published(recipe, best, dtype, scale)):
                chosen[row.size, dtype] = row
    for model in recipe.models:
        for row in known:
            if row.size == model.size and (dtypes := [d for d in row.dtypes if chosen.get((row.size, d)) is row]):
                yield row, dtypes


def _published(recipe: Recipe, row: Row, dtype: str, scale: int) -> bool:
    own = (row.variant, row.gpu, row.size, dtype, scale)
    return any((r.variant, r.gpu, r.size, r.dtype, r.gpus) == own for r in recipe.results)


def _text(gpu_type: str, scale: int, rows: Sequence[tuple[Recipe, Row, Sequence[str]]]) -> str:
    smallest = min(rows, key=lambda item: item[0].model(item[1].size).parameters or 0)
    return "\n".join(
        [
            f"# What the recipes document for {scale} GPUs of type {gpu_type}. Generated from the recipes:",
            "# python -m llmb_run.acceptance.shipped --write",
            f"name: {gpu_type}-{scale}",
            "prescreen:  # short, on as many nodes as the tests: what its nodes say is looked at",
            f"  - {{{_job(smallest[0], smallest[1], smallest[2][:1])}, max_steps: {PRESCREEN_STEPS}}}",
            "defaults:",
            f"  gpu_type: {gpu_type}",
            f"  scale: {scale}",
            "  reference: optional  # this site's baseline, or what is published; without either a run has to succeed",
            "tests:",
            *(f"  - {{{_job(recipe, row, dtypes)}}}" for recipe, row, dtypes in rows),
            "",
        ]
    )


def _job(recipe: Recipe, row: Row, dtypes: Sequence[str]) -> str:
    words = [f"workload: {recipe.workload}", f"size: {row.size}", f"dtype: [{', '.join(dtypes)}]"]
    return ", ".join([*words, *([f"variant: {row.variant}"] if len(recipe.variants) > 1 else [])])


def main() -> None:
    """Write the files, or say which are not as they should be."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    made = suites()
    for path in sorted(SUITES.glob("*-*.yaml")):
        if path.stem not in made:
            print(f"no longer documented: {path.name}")
            if write:
                path.unlink()
    for name, text in made.items():
        path = SUITES / f"{name}.yaml"
        if not path.exists() or path.read_text() != text:
            print(f"{'written' if write else 'differs'}: {path.name}")
            if write:
                path.write_text(text)


if __name__ == "__main__":
    main()
