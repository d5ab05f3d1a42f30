"""Where recipes are, and which workloads they are, without reading the rest of them: a shell waits for completion."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from llmb_common.base.errors import RecipeError, RequestError
from llmb_common.base.strict_yaml import read_text, value_on_line


def recipe_folders(root: Path) -> Iterator[Path]:
    """Yields the folders directly under ``root`` that hold a recipe.yaml, by name; nothing where there are none."""
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


def workload_in(folder: Path) -> str:
    """The workload of the recipe in ``folder``, by the line of its file that names it; empty where none does.

    Nothing else of the file is looked at, and it may be no recipe at all.
    """
    try:
        return str(value_on_line(read_text(folder / "recipe.yaml", RecipeError), "workload") or "")
    except RecipeError:
        return ""
