"""Where recipes are, and which workloads they are, without reading the rest of them: a shell waits for completion."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from llmb_common.base.errors import RecipeError, RequestError
from llmb_common.base.strict_yaml import read_text, value_on_line


def recipe_folders(root: Path) -> Iterator[Path]:
    """Return an iterator over the folders directly under ``root`` that hold a recipe.yaml, sorted by name.

    Empty where there are none, or ``root`` does not exist. The files are not opened.
    """
    return (path.parent for path in sorted(root.glob("*/recipe.yaml")))


def recipes_root() -> Path:
    """Return the folder whose subfolders are the recipes: the first of three that has any.

    They are ``LLMB_REPO``, if set and not empty, taken as it is, without replacing ``~``; the clone of the
    repository that this library is in; the copy inside the package. That last one is returned unseen. Where
    ``LLMB_REPO`` is set, the others do not count.

    Raises:
        RequestError: ``LLMB_REPO`` is set and contains no recipe
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


def workload_in(folder: Path) -> str:
    """Return the workload that recipe.yaml in ``folder`` names (``pretrain_grok1``); empty where it names none.

    Only the first line of that key is looked at, so the file may be wrong elsewhere. A file that is missing or
    unreadable counts as one that names none.
    """
    try:
        return str(value_on_line(read_text(folder / "recipe.yaml", RecipeError), "workload") or "")
    except RecipeError:
        return ""
