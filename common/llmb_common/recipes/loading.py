"""Reading a recipe: types by ``recipe``, what types cannot say by ``checks``."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec

from llmb_common.decoding.strict_yaml import convert, load_text, read_text
from llmb_common.errors import RecipeError
from llmb_common.recipes.checks import check_recipe
from llmb_common.recipes.recipe import Recipe


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
