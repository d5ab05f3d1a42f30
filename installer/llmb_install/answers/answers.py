"""Where the answers of an installation come from, and go to: play files, the installation's own file, defaults.

Prompts, flags and play files all fill the same ``Answers``; ``questions`` says all about each.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import fields
from itertools import chain
from pathlib import Path

from llmb_common.base.errors import ConfigError, EnvironmentLacks, RequestError
from llmb_common.base.files import require_trusted, user_path
from llmb_common.base.strict_yaml import Lines, convert
from llmb_common.base.words import Secret
from llmb_common.recipes.folders import recipe_folders
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.recipe import Recipe
from llmb_install.answers.checks import SECRETS, check_answers, listed_engines, place_in, read_given
from llmb_install.answers.detect import has_rows
from llmb_install.answers.given import Given, expand_workloads
from llmb_install.answers.questions import QUESTIONS, Answers, with_defaults
from llmb_install.parts.credentials import Secrets
from llmb_install.parts.files import ANSWERS_FILE as ANSWERS_FILE
from llmb_install.parts.files import no_installation_error


def read_play(path: Path) -> tuple[Given, Secrets, Lines]:
    """Return (answers by field, secrets, the line of each key), as the play file ``path`` has them.

    Secrets are set apart from the answers. Lines are numbers from 1, keyed by ``$.key``. An empty secret counts as
    not given. The secrets that are given are marked to be kept in the installation. Values of answers are not
    checked.

    Raises:
        ConfigError: the file is missing, cannot be read, is no YAML, is empty or of a newer release, has an unknown
            or repeated key, or a secret that is not text; with file and line
    """
    data, lines = read_given(path, SECRETS)
    found: dict[str, Secret] = {}
    for key in SECRETS:
        value = data.pop(key, None)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{path}:{lines[f'$.{key}']}: {key} must be text", remedy="put the value in quotes")
        if value:
            found[key] = Secret(value)
    secrets = Secrets(hf_token=found.get("hf_token"), ngc_api_key=found.get("ngc_api_key"), keep=frozenset(found))
    return data, secrets, lines


def complete_answers(
    given: Given, recipes: Mapping[str, Recipe], *, where: str = "", lines: Lines | None = None
) -> Answers:
    """Return all answers of an installation: those in ``given``, checked, and defaults for the others.

    None counts as not given. Choices must be in lower case. Paths become absolute, and names of workloads full; they
    must be in ``recipes``, which are all by name. ``workloads: all`` becomes those that have a configuration for the
    GPU type; beside other names, ``all`` is every recipe. The defaults depend on the answers alone, not on the
    machine, except for ``arch`` of a CPU installation. ``where`` names the play file ("": there is none), and
    ``lines`` the line of each of its keys by ``$.key`` (None: not known), for messages. ``given`` stays as it is.
    The disk is not looked at, but for recipes' catalogues.

    Raises:
        RequestError: an answer is missing, wrong, or contradicts another
        ConfigError: a value in the play file ``where`` is of a type that its field does not have; with its line
        RecipeError: a recipe's catalogue cannot be read
    """
    check_answers(given, recipes, where, lines)
    values = with_defaults({key: value for key, value in given.items() if value is not None})
    names = expand_workloads(values["workloads"], recipes)
    if values["workloads"] in ("all", ["all"], ("all",)):  # those that have a configuration for the GPU type
        names = [name for name in names if has_rows(recipes[name], values["gpu_type"])]
    values["workloads"] = names
    if "engines" in values:
        values["engines"] = listed_engines(values["engines"])
        line = (lines or {}).get("$.engines")
        require_engines(values["engines"], [recipes[name] for name in values["workloads"]], place_in(where, line))
    for question in QUESTIONS:
        path = values.get(question.field)
        if path and question.kind.is_path:
            values[question.field] = str(user_path(str(path), f"{question.field} {path}"))
    return convert(values, lines or {}, Answers, where or "the answers", ConfigError if where else RequestError)


def require_engines(releases: Collection[str], recipes: Collection[Recipe], at: str = "") -> None:
    """Raise unless each of ``releases`` of Megatron-Bridge runs at least one of ``recipes``.

    Without ``releases`` nothing is raised. They must be spelled as in recipes, such as ``0.6``.

    Raises:
        RequestError: none of the recipes runs on a release; the message begins with ``at`` (``FILE:LINE: ``, or
            empty) and names the first such release, the remedy the ones they run on
    """
    known = sorted(set(chain.from_iterable(recipe.engines for recipe in recipes)))
    for release in releases:
        if release not in known:
            names = ", ".join(recipe.workload for recipe in recipes)
            raise RequestError(
                f"{at}engines: {names} cannot run on Megatron-Bridge {release}",
                remedy=f"the releases are {', '.join(known)}; a newer one is the site's own: releases and "
                "engine.releases in cluster_config.yaml",
            )


def as_given(answers: Answers) -> Given:
    """Return the answers as a dictionary by field name, in the order of the questions, without None values.

    Defaults are in it like answers that somebody gave, as are ``schema`` and ``space_check``, which nobody is
    asked. Values are those of the fields: texts, bools and tuples of texts, and ``schema`` a number.
    """
    values = {known.name: getattr(answers, known.name) for known in fields(answers)}
    return {name: value for name, value in values.items() if value is not None}


def to_yaml(answers: Answers) -> str:
    """Return the text of a play file with these answers: YAML below a comment on its use; without secrets.

    ``--play`` and ``read_play`` read it. Answers that are None are left out. The text ends with a line break.
    Nothing is written.
    """
    import yaml

    header = "# Answers for the installer: ./installer.py --play THIS_FILE. Secrets are never recorded.\n"
    return header + yaml.safe_dump(as_given(answers), sort_keys=False, allow_unicode=True, width=4096)


def load_recipes(clone: Path) -> dict[str, Recipe]:
    """Return all recipes of the repository clone at ``clone``, by workload name; never empty.

    A recipe is a folder right below ``clone`` with a ``recipe.yaml``; they are in the order of the folders' names.

    Raises:
        EnvironmentLacks: the folder holds no recipe or does not exist
        RecipeError: a recipe cannot be read or is wrong; with file and line
        OSError: a recipe's folder may not be looked at
    """
    recipes = [load_recipe(folder) for folder in recipe_folders(clone)]
    if not recipes:
        raise EnvironmentLacks(
            f"{clone} contains no recipe", remedy="run ./installer.py of the clone, or set LLMB_REPO to the clone"
        )
    return {recipe.workload: recipe for recipe in recipes}


def stored_answers(install: Path) -> Answers | None:
    """Return the answers that the installation in ``install`` was made with; None where it has no answer file.

    Their ``install_path`` is ``install``, whatever the file says: an installation may have been moved. Fields that
    the file lacks have the defaults of ``Answers``. Whether the workloads exist, and whether answers that have such
    a default are missing, is not checked.

    Raises:
        ConfigError: the answer file is unreadable, empty or damaged, lacks an answer without a default, has one
            that no command line may have, is of a newer release (with file and line), or is not to be trusted
        OSError: the folder ``install`` cannot be examined
    """
    path = install / ANSWERS_FILE
    if not os.path.lexists(path):
        return None
    require_trusted(path, install)
    data, lines = read_given(path)
    given = {"schema": 1, **data, "install_path": str(install)}
    answers = convert(given, lines, Answers, str(path), ConfigError)
    workloads = answers.workloads or ("all",)  # none where all were removed
    try:
        # What another release asks besides may come with the next command, and its clone may lack a workload.
        check_answers({**given, "workloads": workloads}, workloads, str(path), lines, missing_too=False)
    except RequestError as error:
        raise ConfigError(error.message, remedy=error.remedy) from error
    return answers


def required_answers(install: Path) -> Answers:
    """Return the answers that the installation in ``install`` was made with, for commands that need an installation.

    Raises:
        EnvironmentLacks: there is no installation
        ConfigError: its answer file is damaged or not to be trusted
        OSError: the folder ``install`` cannot be examined
    """
    answers = stored_answers(install)
    if answers is None:
        raise no_installation_error(install)
    return answers
