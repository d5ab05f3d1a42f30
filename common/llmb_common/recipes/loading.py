"""Where recipes are, and reading one: types by ``recipe``, what types cannot say by ``checks``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from llmb_common.errors import RecipeError, RequestError
from llmb_common.recipes.checks import check_recipe
from llmb_common.recipes.recipe import Recipe
from llmb_common.strict_yaml import load_struct


def load_recipe(folder: Path) -> Recipe:
    """The recipe in ``folder``.

    Raises:
        RecipeError: there is none, or it is wrong; with file and line.
    """
    path = folder / "recipe.yaml"
    if not path.is_file():
        raise RecipeError(f"no recipe.yaml in {folder}", remedy="run from a recipe folder, such as llama3.1/")
    recipe = load_struct(path, Recipe, RecipeError)
    files = {name: getattr(recipe, name) for name in ("catalogue_file", "results_file", "validation_file")}
    beside = {name: str((folder / file).absolute()) for name, file in files.items() if file is not None}
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
