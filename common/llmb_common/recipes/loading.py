"""Reading a recipe: types by ``recipe``, what types cannot say by ``checks``."""

from __future__ import annotations

from pathlib import Path

import msgspec

from llmb_common.errors import RecipeError
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
