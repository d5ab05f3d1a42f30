"""Architectures: exact parameter counts, and smoke sizes that exercise what the real ones do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from llmb_common.errors import RecipeError
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.model import Model
from llmb_common.recipes.recipe import Recipe

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


def test_a_damaged_catalogue_and_a_folder_without_a_recipe_are_refused(tmp_path: Path) -> None:
    shutil.copy(ROOT / "mbridge" / "recipe.yaml", tmp_path)
    with pytest.raises(RecipeError, match="cannot read the catalogue"):
        list(load_recipe(tmp_path).configurations)
    (tmp_path / "recipe.yaml").unlink()
    with pytest.raises(RecipeError, match=r"no recipe\.yaml in"):
        load_recipe(tmp_path)
