"""The READMEs say what recipe.yaml says, and show every documented example."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from llmb_common.base.errors import RecipeError
from llmb_common.planning.request.variables import VARIABLES
from llmb_common.recipes.folders import recipe_folders
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.model import achieved_tflops, model_flops
from support.texts import Texts
from tools import readmes
from tools.__main__ import main, update
from tools.readme_functions import TABLES
from tools.readmes import fill_readme

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ["grok1", "llama3.1", "llama4", "mbridge", "nemotron4"]
COMMANDS = json.loads((ROOT / "tests" / "data" / "documents" / "commands.json").read_text())


def test_these_are_all_recipes():
    assert [folder.name for folder in recipe_folders(ROOT)] == RECIPES


def test_tables_of_the_readmes_are_those_of_the_recipes():
    assert update(readmes.files(), write=False) == 0, "python -m tools --write"


@pytest.mark.parametrize("name", RECIPES)
def test_readme_has_a_table_for_every_row_and_result(name: str):
    recipe = load_recipe(ROOT / name)
    marks = set(re.findall(r"<!-- table: (.*?) -->", (ROOT / name / "README.md").read_text()))
    if recipe.catalogue is not None:
        assert marks == {*TABLES, "variants", "defaults"}
        return
    wanted = {f"configurations {row.variant} {row.gpu}" for row in recipe.rows}
    wanted |= {f"results {result.variant} {result.gpu}" for result in recipe.results}
    wanted |= {"sizes", "variants", "defaults"}
    if any(model.checkpoint for model in recipe.models):
        wanted.add("checkpoints")
    if recipe.other_engines:
        wanted.add("engines")
    assert marks == wanted


def test_the_reference_names_every_variable_and_the_readmes_those_with_defaults_of_their_own():
    reference = (ROOT / "docs" / "reference.md").read_text()
    assert [variable for variable in VARIABLES if f"`{variable}`" not in reference] == []
    own = {name for name, variable in VARIABLES.items() if "{" in variable.default}
    for name in RECIPES:
        text = (ROOT / name / "README.md").read_text()
        assert "docs/reference.md#variables" in text
        optional = {"LLMB_ENGINE"} if not load_recipe(ROOT / name).other_engines else set()
        assert {variable for variable in own if f"`{variable}`" not in text} <= optional, name


@pytest.mark.parametrize("example", COMMANDS, ids=lambda e: f"{e['recipe']}: {e['command']}")
def test_readme_shows_every_documented_command(example: dict[str, str]):
    text = (ROOT / example["recipe"] / "README.md").read_text()
    commands = [line.partition(" #")[0].strip() for line in text.splitlines()]
    assert example["command"] in commands


def test_an_outdated_table_is_found_and_regenerated(
    tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str], texts: Texts
):
    monkeypatch.setenv("LLMB_REPO", str(tmp_path))
    folder = tmp_path / "grok1"
    shutil.copytree(ROOT / "grok1", folder)
    recipe = folder / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("step_seconds: 5.298", "step_seconds: 5.299"))
    assert main(["readmes"]) == 1
    texts(capsys.readouterr().out)
    assert main(["--write", "readmes"]) == 0
    texts(capsys.readouterr().out)
    assert "| 5.299" in (folder / "README.md").read_text()
    assert main(["readmes"]) == 0


def test_a_corrected_figure_comes_with_the_printed_one_and_the_reason(texts: Texts):
    text = fill_readme("<!-- table: results nemo2 gb200 -->\n<!-- end -->", load_recipe(ROOT / "llama4"), "README.md")
    texts(text, about="[1]")


@pytest.mark.parametrize(
    "text",
    [
        "<!-- table: sizs -->\n<!-- end -->",
        "<!-- table: results nemo2 b200 -->\n<!-- end -->",
        "<!-- table: configurations nemo2 b200 -->\n<!-- end -->",
        "<!-- table: sizes gb200 -->\n<!-- end -->",
        "<!-- table: results nemo2 -->\n<!-- end -->",
        "<!-- table: sizes -->\n",
        "<!-- table: sizes -->\n<!-- figure: peaks -->x<!-- end -->",
        "<!-- table: sizes -->\n<!-- table: variants -->\n<!-- end -->",
    ],
)
def test_a_wrong_mark_is_an_error(text: str, texts: Texts):
    with texts.raises(RecipeError) as caught:
        fill_readme(text, load_recipe(ROOT / "grok1"), "README.md")
    assert caught.value.remedy


def test_all_recipes_are_checked_and_the_first_problem_ends_it(tmp_path, monkeypatch, capsys, texts: Texts):
    for name in ("grok1", "llama4"):
        shutil.copytree(ROOT / name, tmp_path / name)
    monkeypatch.setenv("LLMB_REPO", str(tmp_path))
    assert main(["readmes"]) == 0
    readme = tmp_path / "llama4" / "README.md"
    readme.write_text(readme.read_text().replace("<!-- table: sizes -->", "<!-- table: sizs -->"))
    with texts.raises(RecipeError):
        main(["readmes"])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("script", ["launch.sh", "setup.sh"])
def test_the_scripts_of_all_recipes_are_the_same_file(script: str):
    assert len({(ROOT / name / script).read_bytes() for name in RECIPES}) == 1
    assert all((ROOT / name / script).stat().st_mode & 0o111 == 0o111 for name in RECIPES)


# Figures in the text of the READMEs: the generated ones add up, the others match the recipes.


EVERY = ["grok1", "llama3.1", "llama4", "nemotron4"]
LLAMA = load_recipe(ROOT / "llama3.1")


def readme(name: str) -> str:
    return " ".join((ROOT / name / "README.md").read_text().split())


def figures(name: str, kind: str) -> list[str]:
    text = (ROOT / name / "README.md").read_text()
    return re.findall(rf"<!-- figure: {kind}[^\n]*? -->(.*?)<!-- end -->", text, re.DOTALL)


@pytest.mark.parametrize("name", EVERY)
def test_the_readmes_worked_examples_are_right_to_the_last_digit(name: str) -> None:
    blocks = figures(name, "example") + figures(name, "breakdown")
    lines = [line for block in blocks for line in block.splitlines() if " = " in line]
    assert len(lines) >= 3
    for line in lines:
        left, right = line.split(" = ")[-2:]
        expression = left.rpartition(" = ")[2].replace("x", "*").replace("^", "**").replace(",", "")
        assert re.fullmatch(r"[0-9eE.+*/() ]+", expression), line
        factor = 100 if right.endswith("%") else 1
        value, shown = factor * eval(expression), right.removesuffix(" %").replace(",", "")
        if "E+" in shown:
            assert f"{value:.3E}" == shown, line
        else:
            assert f"{value:.{len(shown.partition('.')[2])}f}" == shown, line


@pytest.mark.parametrize("name", EVERY)
def test_large_numbers_in_the_text_are_generated_or_printed_by_nvidia(name: str) -> None:
    """``8.918E+14`` was printed where the recipe gives 8.920E+14, and no test noticed."""
    text = (ROOT / name / "README.md").read_text()
    typed = set(re.findall(r"[0-9.]+E\+[0-9]+", re.sub(r"<!-- figure: .*?<!-- end -->", "", text, flags=re.DOTALL)))
    of_the_documents = {"grok1": {"4.27E+15"}, "llama3.1": {"4.74E+14", "3.94E+15"}, "nemotron4": {"1.01E+16"}}
    assert typed == of_the_documents.get(name, set())
    assert not re.search(r"(?<!-->)GB300 and GB200 2450", text), "peaks are generated"


@pytest.mark.parametrize(
    ("name", "figure", "text"),
    [
        ("llama4", "flops 400b", "8.920E+14"),
        ("grok1", "flops 314b", "4.274E+15"),
        ("llama3.1", "flops 70b", "3.944E+15"),
        ("llama3.1", "flops 70b causal", "3.680E+15"),
        ("nemotron4", "flops 340b", "8.621E+15"),
        ("grok1", "checkpoint 314b", "4.0 TiB"),
        ("grok1", "peaks", "GB300 and GB200 2450 / 4900, B200 2250 / 4500, H100 989 / 1979"),
    ],
)
def test_single_figures(name: str, figure: str, text: str) -> None:
    marks = (f"<!-- figure: {figure} -->", "<!-- end -->")
    assert fill_readme("3".join(marks), load_recipe(ROOT / name), "README.md") == text.join(marks)


@pytest.mark.parametrize(
    "text",
    [
        "<!-- figure: flop 8b -->x<!-- end -->",
        "<!-- figure: flops -->x<!-- end -->",
        "<!-- figure: flops 8b half -->x<!-- end -->",
        "<!-- figure: flops 8b full causal -->x<!-- end -->",
        "<!-- figure: example mbridge 405b nvfp4 h100 8 -->x<!-- end -->",
        "<!-- figure: peaks -->x",
        "<!-- figure: peaks -->x <!-- figure: peaks -->y<!-- end -->",
        "<!-- figure: peaks -->x <!-- table: sizes -->y<!-- end -->",
        "<!-- figure: example nemo2 8b bf16 h100 9 -->x<!-- end -->",
    ],
)
def test_a_figure_with_a_wrong_mark_is_an_error(text: str, texts: Texts) -> None:
    with texts.raises(RecipeError) as caught:
        fill_readme(text, LLAMA, "README.md")
    assert caught.value.remedy


def total(name: str, size: str, attention: str = "causal") -> float:
    model = load_recipe(ROOT / name).model(size)
    return model_flops(model.architecture, model.sequence_length, "full" if attention == "full" else "causal").total


def test_figures_about_the_documents_mistakes_are_what_the_recipes_give() -> None:
    example = achieved_tflops(total("llama4", "400b"), 1024, 3.685, 512)
    assert f"gives {example:.0f} for 3.685 s" in readme("llama4")
    assert f"is {100 * (527.78 / example - 1):.0f} % above the formula" in readme("llama4")
    exact = 100 * achieved_tflops(total("grok1", "314b"), 1024, 13.433, 512) / 1979
    rounded = 100 * achieved_tflops(4.27e15, 1024, 13.433, 512) / 1979
    assert f"exact model FLOPs ({exact:.2f} %); the rounded 4.27E+15 gives {rounded:.1f} %" in readme("grok1")
    gb200 = achieved_tflops(total("llama3.1", "405b"), 64, 5.74147, 128)
    assert f"ms is about {round(gb200, -1):.0f} TFLOPS and {100 * gb200 / 4900:.1f} %" in readme("llama3.1")
    for size, share in (("15b", "15B is 0.886 of the printed figure"), ("340b", "340B 0.854")):
        printed = {"15b": 434.478891663360e12, "340b": 1.0094e16}[size]
        assert f"{total('nemotron4', size, 'full') / printed:.3f}" in share
        assert share in readme("nemotron4")
