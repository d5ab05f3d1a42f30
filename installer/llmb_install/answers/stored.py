"""What is on disk already: the recipes of a clone, the answers of an installation."""

from __future__ import annotations

import os
from pathlib import Path

from llmb_common.decoding.strict_yaml import convert
from llmb_common.errors import ConfigError, EnvironmentLacks
from llmb_common.machine.files import require_trusted
from llmb_common.recipes.loading import load_recipe, recipe_folders
from llmb_common.recipes.recipe import Recipe
from llmb_install.answers.answers import Answers
from llmb_install.answers.checks import read_given
from llmb_install.parts.folders import ANSWERS_FILE as ANSWERS_FILE


def load_recipes(clone: Path) -> dict[str, Recipe]:
    """All recipes of the clone, by workload name."""
    recipes = [load_recipe(folder) for folder in recipe_folders(clone)]
    if not recipes:
        raise EnvironmentLacks(
            f"{clone} contains no recipe", remedy="run ./installer.py of the clone, or set LLMB_REPO to the clone"
        )
    return {recipe.workload: recipe for recipe in recipes}


def stored_answers(install: Path) -> Answers | None:
    """The answers that the installation was made with, with its present path; None where there is none.

    Raises:
        ConfigError: the file was damaged by hand, is of a newer release (with file and line), or not to be trusted.
    """
    path = install / ANSWERS_FILE
    if not os.path.lexists(path):
        return None
    require_trusted(path, install)
    data, lines = read_given(path)
    return convert({**data, "install_path": str(install)}, lines, Answers, str(path), ConfigError)


def required_answers(install: Path) -> Answers:
    """As ``stored_answers``, for commands that need an installation.

    Raises:
        EnvironmentLacks: there is none.
    """
    answers = stored_answers(install)
    if answers is None:
        raise EnvironmentLacks(
            f"there is no installation in {install}",
            remedy="set LLMB_INSTALL or --install-path to one, or make one with ./installer.py",
        )
    return answers
