"""Architectures: exact parameter counts, and smoke sizes that exercise what the real ones do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from llmb_common.errors import RecipeError
from llmb_common.recipes import loading
from llmb_common.recipes.loading import load_recipe, recipe_folders
from llmb_common.recipes.model import Model
from llmb_common.recipes.recipe import Recipe
from llmb_common.recipes.shipped import SHIPPED, read_summary, shipped_text, summary_of

ROOT = Path(__file__).resolve().parents[2]
RECIPES = {name: load_recipe(ROOT / name) for name in ("llama3.1", "llama4", "grok1", "nemotron4")}
SMOKE = [(recipe, recipe.model("smoke")) for recipe in RECIPES.values()]


def ids(item: Recipe | Model) -> str:
    return item.name if isinstance(item, Recipe) else item.size


@pytest.mark.parametrize(
    ("name", "size", "billions"),
    [
        ("llama3.1", "8b", 8.0303),
        ("llama3.1", "70b", 70.5537),
        ("llama3.1", "405b", 405.8534),
        ("nemotron4", "15b", 15.6288),
        ("nemotron4", "340b", 341.0292),
        ("grok1", "314b", 316.4547),
        ("llama4", "400b", 400.7118),
    ],
)
def test_parameters_as_counted_on_the_real_model(name: str, size: str, billions: float):
    assert round(RECIPES[name].model(size).parameters / 1e9, 4) == billions


@pytest.mark.parametrize("size", ["405b", "405b-proxy"])
def test_the_proxies_are_405b_with_fewer_layers(size: str):
    recipe = RECIPES["llama3.1"]
    big, proxy = recipe.model("405b").architecture, recipe.model("405b-proxy").architecture
    differ = {f for f in big.__struct_fields__ if getattr(big, f) != getattr(proxy, f)}
    assert differ == {"layers"}
    assert [row.layers for row in recipe.rows if row.size == "405b-proxy"] == [8, 30, 62]


@pytest.mark.parametrize(("recipe", "smoke"), SMOKE, ids=ids)
def test_smoke_has_the_same_architecture(recipe: Recipe, smoke: Model):
    real = recipe.model(recipe.defaults.model_size).architecture
    kind = ("activation", "gated", "norm", "norm_epsilon", "zero_centered_gamma", "rope_base", "rope_scaling",
            "rotary_percent", "rope_interleaved", "no_rope_interval", "tied_embeddings")  # fmt: skip
    assert {f: getattr(smoke.architecture, f) for f in kind} == {f: getattr(real, f) for f in kind}
    assert (smoke.architecture.attention_chunk is None) == (real.attention_chunk is None)
    assert (smoke.architecture.moe is None) == (real.moe is None)
    if smoke.architecture.moe and real.moe:
        same = ("top_k", "every", "router", "pre_softmax", "aux_loss", "capacity_factor", "probabilities_on_input")
        assert {f: getattr(smoke.architecture.moe, f) for f in same} == {f: getattr(real.moe, f) for f in same}
        assert (smoke.architecture.moe.shared_ffn is None) == (real.moe.shared_ffn is None)


@pytest.mark.parametrize(("recipe", "smoke"), SMOKE, ids=ids)
def test_smoke_runs_on_one_to_eight_ranks_in_the_newest_variant(recipe: Recipe, smoke: Model):
    rows = [row for row in recipe.rows if row.size == smoke.size]
    assert sorted(scale for row in rows for scale in row.scales) == [1, 2, 4, 8]
    assert {(row.variant, row.gpu, row.dtypes) for row in rows} == {(recipe.variants[0].name, "any", ("bf16",))}


def test_smoke_of_two_ranks_shows_the_parallelism_of_its_family():
    def row(name: str):
        return next(r for r in RECIPES[name].rows if r.size == "smoke" and r.gpus_min == 2)

    assert (row("llama3.1").tp, row("nemotron4").tp, row("llama4").ep, row("grok1").ep) == (2, 2, 2, 2)
    # PP=2 VP=2 as an override: every chunk needs a layer.
    assert RECIPES["grok1"].model("smoke").architecture.layers % 4 == 0


# Summaries of the shipped recipes: what the recipes say, and never of a recipe that is another one.


RECIPES_SHIPPED = ["grok1", "llama3.1", "llama4", "mbridge", "nemotron4"]


def test_the_shipped_summaries_are_those_of_the_recipes() -> None:
    text = shipped_text(recipe_folders(ROOT))
    assert SHIPPED.read_text() == text, "python -m tools.readme_tables --write"


@pytest.mark.parametrize("name", RECIPES_SHIPPED)
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
    (tmp_path / "without").mkdir()
    with pytest.raises(RecipeError, match="cannot read the catalogue"):
        read_summary(Path(shutil.copy(tmp_path / "recipe.yaml", tmp_path / "without")).parent)


def test_a_folder_without_a_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"no recipe\.yaml in"):
        read_summary(tmp_path)
