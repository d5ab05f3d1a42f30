"""A wrong recipe.yaml is rejected, with the location and the remedy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmb_common.errors import RecipeError, RequestError
from llmb_common.recipes.loading import load_recipe, recipes_root
from llmb_common.recipes.recipe import Recipe

ROOT = Path(__file__).resolve().parents[2]
GOOD = (ROOT / "grok1" / "recipe.yaml").read_text()


def broken(tmp_path: Path, old: str, new: str) -> tuple[Path, int]:
    """The folder of a Grok-1 recipe with its first ``old`` replaced, and the line number of that."""
    assert old in GOOD
    (tmp_path / "recipe.yaml").write_text(GOOD.replace(old, new, 1))
    return tmp_path, GOOD[: GOOD.index(old)].count("\n") + 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("family: grok1", "family: grok1\nfamly: grok1", "unknown key 'famly' (did you mean 'family'?)"),
        ("mbs: 1, gbs: GPUs*2, cuda_graph", "mbs: 1, gbs: GPUs*2, cuda_grph", "(did you mean 'cuda_graph'?)"),
        ("title: Grok-1\n", "title: Grok-1\ntitle: Grok-2\n", "duplicate key 'title'"),
        ("tp: 4, pp: 1", "tp: 4, tp: 8, pp: 1", "duplicate key 'tp'"),
        ("dtypes: [bf16, fp8]", "dtypes: [bf16, fp9]", "fp9"),
        ("tp: 4, pp: 1", "tp: 0, pp: 1", "at least 1"),
        ("tp: 4, pp: 1", "tp: four, pp: 1", "but a whole number is expected"),
        ('image: "nvcr.io#nvidia/nemo:26.02.01"', "image: 26.02", "put the value in quotes"),
        ("step_seconds: 7.325", "step_seconds: -7.325", "more than 0"),
        ('time_limit: "00:45:00"', 'time_limit: "45m"', "characters, or a length, that are not allowed"),
        ('time_limit: "00:45:00"', 'time_limit: "00:45:00\\n"', "characters, or a length, that are not allowed"),
        ("layers: 64,", "layers: 64.5,", "is a number (64.5)"),
        ("rows:\n", "rows: [\n", "not valid YAML"),
    ],
)
def test_a_mistake_is_reported_with_file_and_line(tmp_path: Path, old: str, new: str, message: str):
    folder, line = broken(tmp_path, old, new)
    with pytest.raises(RecipeError) as caught:
        load_recipe(folder)
    text = str(caught.value)
    assert message in text
    found = re.match(rf"{re.escape(str(folder / 'recipe.yaml'))}:(\d+): ", text)
    assert found, text
    # A duplicate key is one line further down; a broken bracket is noticed where the parser gives up.
    assert int(found[1]) in (line, line + 1) or "not valid YAML" in text


def test_a_missing_key_names_the_place(tmp_path: Path):
    folder, _ = broken(tmp_path, "    sequence_length: 8192\n", "")
    with pytest.raises(RecipeError, match=r"recipe\.yaml:\d+: the key 'sequence_length' is missing \(at models\[0\]\)"):
        load_recipe(folder)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("model_size: 314b", "model_size: 315b", "default model size '315b' is not among the models"),
        ("size: 314b,  dtypes", "size: 341b,  dtypes", "unknown model size '341b' (did you mean '314b'?)"),
        ("{variant: nemo2, gpu", "{variant: nemo3, gpu", "unknown variant 'nemo3' (did you mean 'nemo2'?)"),
        ("layers: 64", "layers: 63", "model 314b: parameters is 316454737920, and its architecture has"),
        ("- size: smoke", "- size: 314b", "the model size '314b' appears twice"),
        ("gpu: gb200, size: 314b,  dtypes", "gpu: gb20, size: 314b,  dtypes", "'gb20' (did you mean 'gb200'?)"),
        ("gpu: gb200, size: 314b,  dtypes", "gpu: h200, size: 314b,  dtypes", "unknown GPU type 'h200'"),
        ("gpus_max: 512", "gpus_max: 500", "gpus_max is not a doubling of gpus_min"),
        ("gpus_max: 512", "gpus_max: 64", "gpus_max is not a doubling of gpus_min"),
        ("gbs: GPUs*2", "gbs: 2*GPUs", "gbs ('2*GPUs') has characters, or a length, that are not allowed"),
        ("gbs: GPUs*2", "gbs: GPUs/0", "gbs ('GPUs/0') has characters"),
        ("gpus_min: 2,   gpus_max: 8", "gpus_min: 1,   gpus_max: 8", "bf16 on 1 GPUs is also in the row of LLMB"),
        ("first: 11, last: 44", "first: 44, last: 11", "the measurement ends before it starts"),
        ("start: 45, stop: 50", "start: 50, stop: 50", "profiling stops before it starts"),
        ("{model_size}", "{model_siz}", "experiment_name has characters, or a length, that are not allowed"),
        ("mbs{mbs}_gbs", "mbs{mbs} gbs", "experiment_name has characters, or a length, that are not allowed"),
        ("ranks: all,", "ranks: all, suffix: '$(x)',", "suffix ('$(x)') has characters"),
        ("_${SLURM_LOCALID}", "_${HOME}", "profiling.file has characters"),
        ("corrected: {mfu_percent: 47.63}", "corrected: {mfu: 47.63}", "a key of results[0].corrected: invalid"),
        ("47.21}, why: *rounded", "47.21}", "'corrected' and 'why' go together"),
        ("dtype: bf16,  gpus: 128,", "dtype: bf16,  gpus: 1024,", "no row has bf16 on 1024 GPUs"),
        ("dtype: bf16,  gpus: 256,", "dtype: bf16,  gpus: 128,", "appears twice"),
        ("  grok1.md: {", "  grok.md: {", "no document 'grok1.md' (did you mean 'grok.md'?)"),
        (', container: "25.04.00"}', "}", "no container"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(tmp_path: Path, old: str, new: str, message: str):
    folder, _ = broken(tmp_path, old, new)
    with pytest.raises(RecipeError, match=re.escape(message)) as caught:
        load_recipe(folder)
    assert caught.value.remedy


def test_a_folder_without_a_recipe(tmp_path: Path):
    with pytest.raises(RecipeError, match=r"no recipe\.yaml in .*\n  -> run from a recipe folder"):
        load_recipe(tmp_path)


def test_an_empty_recipe(tmp_path: Path):
    (tmp_path / "recipe.yaml").write_text("# nothing\n")
    with pytest.raises(RecipeError, match="the file is empty"):
        load_recipe(tmp_path)


@pytest.fixture(scope="module")
def llama() -> Recipe:
    return load_recipe(ROOT / "llama3.1")


def test_sizes_and_variants_are_found_in_any_case_and_misses_list_what_there_is(llama: Recipe):
    assert llama.model("405B").size == "405b"
    assert llama.variant("NeMo2").name == "nemo2"
    with pytest.raises(RequestError, match=r"no model size '404b' \(did you mean '405b'\?\)"):
        llama.model("404b")
    with pytest.raises(RequestError, match="the variants are mbridge, nemo2"):
        llama.variant("bridge")


def test_gbs_formulas(llama: Recipe):
    gbs = {row.gbs: row for row in llama.rows}
    assert gbs["GPUs/2"].global_batch_size(128) == 64
    assert gbs["GPUs*16"].global_batch_size(8) == 128
    assert gbs["64"].global_batch_size(32) == 64
    with pytest.raises(RequestError, match=r"129 GPUs are not divisible by 2\n  -> use a multiple of 2 GPUs"):
        gbs["GPUs/2"].global_batch_size(129)


def test_scales_are_doublings(llama: Recipe):
    scales = {row.size: row.scales for row in llama.rows if (row.variant, row.gpu) == ("mbridge", "gb300")}
    assert scales["405b"] == (128, 256, 512, 1024)
    assert scales["8b"] == (8, 16, 32, 64, 128)


def test_llmb_repo_without_recipes_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LLMB_REPO", str(tmp_path))
    with pytest.raises(RequestError, match=r"contains no recipe\n  -> set it to the clone"):
        recipes_root()
    monkeypatch.setenv("LLMB_REPO", str(ROOT))
    assert recipes_root() == ROOT
    monkeypatch.delenv("LLMB_REPO")
    assert recipes_root() == ROOT, "the clone that holds this library"
