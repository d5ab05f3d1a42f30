"""The READMEs say what recipe.yaml says, and show every documented example."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from llmb_common.errors import RecipeError
from llmb_common.recipes.folders import recipe_folders
from llmb_common.recipes.loading import load_recipe
from llmb_common.request.variables import VARIABLES
from tools.readme_functions import TABLES
from tools.readme_tables import fill, main

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ["grok1", "llama3.1", "llama4", "mbridge", "nemotron4"]
COMMANDS = json.loads((ROOT / "tests" / "data" / "documents" / "commands.json").read_text())


def test_these_are_all_recipes():
    assert [folder.name for folder in recipe_folders(ROOT)] == RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_tables_of_the_readme_are_those_of_the_recipe(name: str, capsys: pytest.CaptureFixture[str]):
    assert main(["--check", str(ROOT / name)]) == 0, capsys.readouterr().out + "python -m tools.readme_tables --write"


@pytest.mark.parametrize("name", RECIPES)
def test_readme_has_a_table_for_every_row_and_result(name: str):
    recipe = load_recipe(ROOT / name)
    marks = set(re.findall(r"<!-- table: (.*?) -->", (ROOT / name / "README.md").read_text()))
    if recipe.catalogue is not None:
        assert marks == {*TABLES, "variants", "variables"}
        return
    wanted = {f"configurations {row.variant} {row.gpu}" for row in recipe.rows}
    wanted |= {f"results {result.variant} {result.gpu}" for result in recipe.results}
    wanted |= {"sizes", "variants", "variables"}
    if any(model.checkpoint for model in recipe.models):
        wanted.add("checkpoints")
    if recipe.other_engines:
        wanted.add("engines")
    assert marks == wanted


@pytest.mark.parametrize("name", RECIPES)
def test_readme_names_every_variable(name: str):
    text = (ROOT / name / "README.md").read_text()
    exempt = {"CONFIG_VARIANT"} if name != "llama3.1" else {"MOE_ROUTING"}
    exempt |= {"LLMB_ENGINE"} if not load_recipe(ROOT / name).other_engines else set()
    exempt |= {"MOE_ROUTING"} if name in ("nemotron4", "mbridge") else set()
    assert {variable for variable in VARIABLES if f"`{variable}`" not in text} <= exempt


@pytest.mark.parametrize("example", COMMANDS, ids=lambda e: f"{e['recipe']}: {e['command']}")
def test_readme_shows_every_documented_command(example: dict[str, str]):
    text = (ROOT / example["recipe"] / "README.md").read_text()
    commands = [line.partition(" #")[0].strip() for line in text.splitlines()]
    assert example["command"] in commands


def test_an_outdated_table_is_found_and_regenerated(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "grok1"
    shutil.copytree(ROOT / "grok1", folder)
    recipe = folder / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("step_seconds: 5.298", "step_seconds: 5.299"))
    assert main(["--check", str(folder)]) == 1
    assert "differs from recipe.yaml" in capsys.readouterr().out
    assert main(["--write", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}/README.md: written\n"
    assert "| 5.299" in (folder / "README.md").read_text()
    assert main(["--check", str(folder)]) == 0


def test_a_corrected_figure_comes_with_the_printed_one_and_the_reason():
    text = fill("<!-- table: results nemo2 gb200 -->\n<!-- end -->\n", load_recipe(ROOT / "llama4"), "README.md")
    assert "**37.43** (printed 18.71)" in text
    assert "- [1] NVIDIA's 25.05.04 README divides the BF16 run by the FP8 peak" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- table: sizs -->\n<!-- end -->", "no table 'sizs'"),
        ("<!-- table: results nemo2 b200 -->\n<!-- end -->", "no nemo2 result on b200"),
        ("<!-- table: configurations nemo2 b200 -->\n<!-- end -->", "no nemo2 row for b200"),
        ("<!-- table: sizes gb200 -->\n<!-- end -->", "no table 'sizes gb200'"),
        ("<!-- table: results nemo2 -->\n<!-- end -->", "no table 'results nemo2'"),
        ("<!-- table: sizes -->\n", "no <!-- end -->"),
        ("<!-- table: sizes -->\n<!-- figure: peaks -->x<!-- end -->", "no <!-- end -->"),
        ("<!-- table: sizes -->\n<!-- table: variants -->\n<!-- end -->", "no <!-- end -->"),
    ],
)
def test_a_wrong_mark_is_an_error(text: str, message: str):
    with pytest.raises(RecipeError, match=re.escape(message)) as caught:
        fill(text, load_recipe(ROOT / "grok1"), "README.md")
    assert caught.value.remedy


def test_without_folders_all_recipes_are_checked_and_the_first_problem_ends_it(tmp_path, monkeypatch, capsys):
    for name in ("grok1", "llama4"):
        shutil.copytree(ROOT / name, tmp_path / name)
    monkeypatch.setenv("LLMB_REPO", str(tmp_path))
    assert main([]) == 0
    readme = tmp_path / "llama4" / "README.md"
    readme.write_text(readme.read_text().replace("<!-- table: sizes -->", "<!-- table: sizs -->"))
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(
        f"error: {readme}: no table 'sizs'\n  -> one of sizes, variants, checkpoints, variables,"
    )
    assert "results VARIANT GPU" in said.err


@pytest.mark.parametrize("script", ["launch.sh", "setup.sh"])
def test_the_scripts_of_all_recipes_are_the_same_file(script: str):
    assert len({(ROOT / name / script).read_bytes() for name in RECIPES}) == 1
    assert all((ROOT / name / script).stat().st_mode & 0o111 == 0o111 for name in RECIPES)
