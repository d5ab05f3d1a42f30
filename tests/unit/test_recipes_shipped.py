"""Summaries of the shipped recipes: what the recipes say, and never of a recipe that is another one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from llmb_common.errors import RecipeError
from llmb_common.recipes import loading
from llmb_common.recipes.folders import recipe_folders
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.shipped import SHIPPED, read_summary, shipped_text, summary_of

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ["grok1", "llama3.1", "llama4", "mbridge", "nemotron4"]


def test_the_shipped_summaries_are_those_of_the_recipes() -> None:
    text = shipped_text(recipe_folders(ROOT))
    assert SHIPPED.read_text() == text, "python -m tools.readme_tables --write"


@pytest.mark.parametrize("name", RECIPES)
def test_a_shipped_recipe_is_not_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = summary_of(load_recipe(ROOT / name))
    monkeypatch.delattr(loading, "load_recipe")
    assert read_summary(ROOT / name) == whole


def test_another_recipe_is_read_however_little_differs(tmp_path: Path) -> None:
    text = (ROOT / "grok1" / "recipe.yaml").read_text()
    (tmp_path / "recipe.yaml").write_text(text.replace("title: Grok-1\n", "title: Grok-7\n"))
    assert read_summary(tmp_path) == read_summary(ROOT / "grok1")._replace(title="Grok-7")


def test_another_catalogue_is_read(tmp_path: Path) -> None:
    """Only the catalogue beside recipe.yaml differs."""
    for file in (ROOT / "mbridge").iterdir():
        shutil.copy(file, tmp_path)
    file = tmp_path / "catalogue-0.6.2.json"
    catalogue = json.loads(file.read_text())
    first = catalogue["index"].pop(0)
    file.write_text(json.dumps(catalogue))
    shipped, read = read_summary(ROOT / "mbridge"), read_summary(tmp_path)
    assert len(read.configurations) == len(shipped.configurations) - 1
    assert first[1] in shipped.sizes
    file.unlink()
    with pytest.raises(RecipeError, match="cannot read the catalogue"):
        read_summary(tmp_path)


def test_a_folder_without_a_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"no recipe\.yaml in"):
        read_summary(tmp_path)
