"""recipe.yaml: what is refused and where, what may be left out, which rows a request gets, and the models in it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.base.errors import RecipeError, RequestError
from llmb_common.recipes import folders, loading
from llmb_common.recipes.folders import recipe_folders, recipes_root, workload_in
from llmb_common.recipes.loading import COMPILED, compiled, load_recipe
from llmb_common.recipes.model import Architecture, Checkpoint, Model, MoE
from llmb_common.recipes.recipe import Flops, Recipe, RecipeDefaults, find_row
from llmb_common.recipes.rows import Document, Measurement, NcclTrace, Profiling, PublishedResult, Row, Variant
from support.texts import Texts

ROOT = Path(__file__).resolve().parents[2]
RECIPES = {name: load_recipe(ROOT / name) for name in ("llama3.1", "llama4", "grok1", "nemotron4")}
LLAMA, GROK = RECIPES["llama3.1"], RECIPES["grok1"]
GOOD = (ROOT / "grok1" / "recipe.yaml").read_text()


def broken(tmp_path: Path, old: str, new: str) -> tuple[Path, int]:
    """The folder of a Grok-1 recipe with its first ``old`` replaced, and the line number of that."""
    assert old in GOOD
    (tmp_path / "recipe.yaml").write_text(GOOD.replace(old, new, 1))
    return tmp_path, GOOD[: GOOD.index(old)].count("\n") + 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("family: grok1", "family: grok1\nfamly: grok1"),
        ("mbs: 1, gbs: GPUs*2, cuda_graph", "mbs: 1, gbs: GPUs*2, cuda_grph"),
        ("title: Grok-1\n", "title: Grok-1\ntitle: Grok-2\n"),
        ("tp: 4, pp: 1", "tp: 4, tp: 8, pp: 1"),
        ("dtypes: [bf16, fp8]", "dtypes: [bf16, fp9]"),
        ("tp: 4, pp: 1", "tp: 0, pp: 1"),
        ("tp: 4, pp: 1", "tp: four, pp: 1"),
        ('image: "nvcr.io#nvidia/nemo:26.02.01"', "image: 26.02"),
        ("step_seconds: 7.325", "step_seconds: -7.325"),
        ('time_limit: "00:45:00"', 'time_limit: "45m"'),
        ('time_limit: "00:45:00"', 'time_limit: "00:45:00\\n"'),
        ("layers: 64,", "layers: 64.5,"),
        ("rows:\n", "rows: [\n"),
    ],
)
def test_a_mistake_is_reported_with_file_and_line(tmp_path: Path, old: str, new: str, texts: Texts):
    folder, line = broken(tmp_path, old, new)
    with pytest.raises(RecipeError) as caught:
        load_recipe(folder)
    text = str(caught.value)
    texts(text)
    found = re.match(rf"{re.escape(str(folder / 'recipe.yaml'))}:(\d+): ", text)
    assert found, text
    # A duplicate key is one line further down; a broken bracket is noticed where the parser gives up.
    assert int(found[1]) in (line, line + 1) or "not valid YAML" in text


def test_a_missing_key_names_the_place(tmp_path: Path, texts: Texts):
    folder, _ = broken(tmp_path, "    sequence_length: 8192\n", "")
    with texts.raises(RecipeError):
        load_recipe(folder)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("model_size: 314b", "model_size: 315b"),
        ("size: 314b,  dtypes", "size: 341b,  dtypes"),
        ("{variant: nemo2, gpu", "{variant: nemo3, gpu"),
        ("layers: 64", "layers: 63"),
        ("- size: smoke", "- size: 314b"),
        ("gpu: gb200, size: 314b,  dtypes", "gpu: gb20, size: 314b,  dtypes"),
        ("gpu: gb200, size: 314b,  dtypes", "gpu: h200, size: 314b,  dtypes"),
        ("gpus_max: 512", "gpus_max: 500"),
        ("gpus_max: 512", "gpus_max: 64"),
        ("gbs: GPUs*2", "gbs: 2*GPUs"),
        ("gbs: GPUs*2", "gbs: GPUs/0"),
        ("gpus_min: 2,   gpus_max: 8", "gpus_min: 1,   gpus_max: 8"),
        ("first: 11, last: 44", "first: 44, last: 11"),
        ("start: 45, stop: 50", "start: 50, stop: 50"),
        ("{model_size}", "{model_siz}"),
        ("mbs{mbs}_gbs", "mbs{mbs} gbs"),
        ("ranks: all,", "ranks: all, suffix: '$(x)',"),
        ("_${SLURM_LOCALID}", "_${HOME}"),
        ("corrected: {mfu_percent: 47.63}", "corrected: {mfu: 47.63}"),
        ("47.21}, why: *rounded", "47.21}"),
        ("dtype: bf16,  gpus: 128,", "dtype: bf16,  gpus: 1024,"),
        ("dtype: bf16,  gpus: 256,", "dtype: bf16,  gpus: 128,"),
        ("  grok1.md: {", "  grok.md: {"),
        (', container: "25.04.00"}', "}"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(tmp_path: Path, old: str, new: str, texts: Texts):
    folder, _ = broken(tmp_path, old, new)
    with texts.raises(RecipeError) as caught:
        load_recipe(folder)
    assert caught.value.remedy


@pytest.mark.parametrize("name", [folder.name for folder in recipe_folders(ROOT)])
def test_a_compiled_recipe_says_what_its_yaml_says(tmp_path: Path, name: str) -> None:
    """``python -m tools --write recipes`` makes it again."""
    assert (ROOT / name / COMPILED).read_text() == compiled(ROOT / name / "recipe.yaml")
    for file in ("recipe.yaml", COMPILED):
        shutil.copy(ROOT / name / file, tmp_path)
    with_both = load_recipe(tmp_path)
    (tmp_path / COMPILED).unlink()
    loading._recipe.cache_clear()
    assert load_recipe(tmp_path) == with_both


@pytest.mark.parametrize(
    ("yaml", "beside", "title"),
    [
        (GOOD, None, "compiled"),
        (GOOD.replace("title: Grok-1\n", "title: Grok-2\n"), None, "Grok-2"),
        (GOOD, "[5858,965405", "Grok-1"),
        (GOOD, '[1,2,{"schema":2}]', "Grok-1"),
    ],
    ids=["whole", "edited", "cut off", "of another release"],
)
def test_only_the_compiled_recipe_of_this_very_text_is_taken(tmp_path, yaml: str, beside: str | None, title: str):
    marked = (ROOT / "grok1" / COMPILED).read_text().replace('"title":"Grok-1"', '"title":"compiled"')
    (tmp_path / "recipe.yaml").write_text(yaml)
    (tmp_path / COMPILED).write_text(marked if beside is None else beside)
    assert load_recipe(tmp_path).title == title


def test_a_folder_without_a_recipe(tmp_path: Path, texts: Texts):
    with texts.raises(RecipeError):
        load_recipe(tmp_path)


def test_an_empty_recipe(tmp_path: Path, texts: Texts):
    (tmp_path / "recipe.yaml").write_text("# nothing\n")
    with texts.raises(RecipeError):
        load_recipe(tmp_path)


def test_gbs_formulas(texts: Texts):
    gbs = {row.gbs: row for row in LLAMA.rows}
    assert gbs["GPUs/2"].global_batch_size(128) == 64
    assert gbs["GPUs*16"].global_batch_size(8) == 128
    assert gbs["64"].global_batch_size(32) == 64
    with texts.raises(RequestError):
        gbs["GPUs/2"].global_batch_size(129)


def test_llmb_repo_without_recipes_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts):
    monkeypatch.setenv("LLMB_REPO", str(tmp_path))
    with texts.raises(RequestError):
        recipes_root()
    monkeypatch.setenv("LLMB_REPO", str(ROOT))
    assert recipes_root() == ROOT
    monkeypatch.delenv("LLMB_REPO")
    assert recipes_root() == ROOT, "the clone that holds this library"


FORMS = [
    (Variant, "name", "nemo2", "-v"),
    (Variant, "time_limit", "4:00:00", "30:00"),
    (Variant, "time_limit", "1-0:00:00", "1-123:00:00"),
    (Variant, "max_steps", 1, 0),
    (Model, "size", "8b", ""),
    (Model, "size", "70b", "70B"),
    (Recipe, "hugging_face", "meta-llama/Llama@" + "b4d08b7a" * 5, "meta-llama/Llama"),
    (Recipe, "hugging_face", None, "meta-llama/Llama@b4d08b7"),
    (PublishedResult, "container", "25.04.00", "25.4"),
    (Row, "gpus_min", 1, 0),
]


@pytest.mark.parametrize(("kind", "field", "right", "wrong"), FORMS)
def test_a_value_of_another_form_is_refused(kind: type, field: str, right: object, wrong: object) -> None:
    described = next(item for item in msgspec.structs.fields(kind) if item.name == field)
    assert msgspec.convert(right, described.type) == right
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, described.type)


ARCHITECTURE = {
    **{"layers": 4, "hidden": 8, "ffn": 32, "heads": 2, "query_groups": 1, "head_dim": 4, "vocabulary": 100},
    **{"activation": "silu", "gated": True, "norm": "rmsnorm", "norm_epsilon": 1e-5, "rope_base": 10000},
}


PROFILING = {"start": 45, "stop": 50, "ranks": "0", "file": "profile"}
VARIANT = {"name": "v", "title": "V", "experiment_name": "x", "profiling": PROFILING, "fp8_recipe": "cs"}
DEFAULTS = [
    (Architecture, ARCHITECTURE, {"zero_centered_gamma": False, "rope_scaling": None, "rotary_percent": 1.0}),
    (Architecture, ARCHITECTURE, {"rope_interleaved": False, "no_rope_interval": None, "attention_chunk": None}),
    (Architecture, ARCHITECTURE, {"tied_embeddings": False, "init_std": 0.02, "moe": None}),
    (MoE, {"experts": 8, "top_k": 2, "ffn": 16}, {"shared_ffn": None, "every": 1, "router": "softmax"}),
    (MoE, {"experts": 8, "top_k": 2, "ffn": 16}, {"pre_softmax": False, "aux_loss": 0.0, "capacity_factor": 1.0}),
    (MoE, {"experts": 8, "top_k": 2, "ffn": 16}, {"probabilities_on_input": False}),
    (Profiling, PROFILING, {"suffix": "", "steps": None}),
    (Measurement, {"first": 35, "last": 44}, {"statistic": "mean"}),
    (NcclTrace, {}, {"steps": 5, "suffix": ""}),
    (Variant, VARIANT | {"measurement": {"first": 35, "last": 44}}, {"max_steps": 50, "time_limit": "00:30:00"}),
    (Variant, VARIANT | {"measurement": {"first": 35, "last": 44}}, {"vboost": False, "flops_attention": None}),
    (Model, {"size": "8b", "title": "8B", "sequence_length": 16}, {"large": False, "checkpoint": None}),
]


@pytest.mark.parametrize(("kind", "least", "defaults"), DEFAULTS)
def test_what_may_be_left_out(kind: type, least: dict[str, Any], defaults: dict[str, Any]) -> None:
    said = msgspec.to_builtins(msgspec.convert(least, kind))
    assert said | defaults == said


@pytest.mark.parametrize(
    "kind",
    [
        *(MoE, Architecture, Checkpoint, Model, Profiling, Measurement, NcclTrace),
        *(Variant, Row, Document, PublishedResult, RecipeDefaults, Flops, Recipe),
    ],
)
def test_an_unknown_key_is_refused_at_every_level(kind: type) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `famly`"):
        msgspec.convert({"famly": 1}, kind)


# Rows and results


def test_rows_of_a_request_are_those_of_its_gpu_and_of_any_gpu() -> None:
    found = LLAMA.rows_for("h100")
    assert {row.gpu for row in found} == {"h100", "any"}
    assert {row.size for row in LLAMA.rows_for("h100", size="8b")} == {"8b"}
    assert {row.variant for row in LLAMA.rows_for("h100", variant="nemo2")} == {"nemo2"}
    assert all("nvfp4" in row.dtypes for row in LLAMA.rows_for("gb300", dtype="nvfp4"))
    assert LLAMA.rows_for("h100", dtype="nvfp4") == []


def test_the_newest_generation_comes_first() -> None:
    names = [row.variant for row in LLAMA.rows_for("h100")]
    assert names == sorted(names, key=[variant.name for variant in LLAMA.variants].index)
    assert set(names) == {"mbridge", "nemo2"}


def test_a_published_result_belongs_to_the_row_that_has_its_gpu_count() -> None:
    for result in GROK.results:
        row = find_row(GROK, result)
        assert (row.gpu, row.size) == (result.gpu, "314b")
        assert result.gpus in row.scales
    assert find_row(GROK, msgspec.structs.replace(GROK.results[0], gpus=1024)) is None


def test_a_result_is_of_its_own_container_or_else_of_its_documents() -> None:
    first = GROK.results[0]
    assert GROK.document(first).container == "25.04.00"
    assert GROK.document(msgspec.structs.replace(first, container="25.07")).container == "25.07"


def test_a_size_or_variant_is_found_in_any_case_and_a_slip_is_refused_with_those_that_are_meant(texts: Texts) -> None:
    assert (LLAMA.model("405B").size, LLAMA.variant("NeMo2").name) == ("405b", "nemo2")
    with texts.raises(RequestError) as caught:
        LLAMA.model("404b", among=["8b", "405b"])
    assert caught.value.field == "MODEL_SIZE"
    with texts.raises(RequestError) as caught:
        LLAMA.variant("nemo3", among=["nemo2"])
    assert caught.value.field == "CONFIG_VARIANT"


def test_which_sizes_are_meant_is_looked_at_only_for_the_message() -> None:
    sizes, variants = iter(["8b"]), iter(["nemo2"])
    assert (LLAMA.model("70b", among=sizes).size, LLAMA.variant("mbridge", among=variants).name) == ("70b", "mbridge")
    assert [*sizes, *variants] == ["8b", "nemo2"]


# Where recipes are


def test_recipes_are_folders_with_a_recipe_by_name(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / name).mkdir()
    (tmp_path / "b" / "recipe.yaml").touch()
    (tmp_path / "a" / "recipe.yaml").touch()
    assert list(recipe_folders(tmp_path)) == [tmp_path / "a", tmp_path / "b"]


def test_a_recipe_names_its_workload_on_a_line_of_its_own(tmp_path: Path) -> None:
    for folder in recipe_folders(ROOT):
        assert workload_in(folder) == load_recipe(folder).workload
    assert workload_in(tmp_path) == "", "no recipe"


def test_an_installed_package_brings_its_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLMB_REPO", raising=False)
    monkeypatch.setattr(folders, "__file__", str(tmp_path / "site-packages/llmb_common/recipes/folders.py"))
    assert recipes_root() == tmp_path / "site-packages/llmb_common/_recipes"


# Names, steps, windows and defaults that users and other tools rely on.


def test_defaults():
    found = {n: (r.defaults.model_size, r.defaults.dtype, r.defaults.gpu_type) for n, r in RECIPES.items()}
    assert found == {
        "llama3.1": ("405b", "fp8", "h100"),
        "llama4": ("400b", "bf16", None),
        "grok1": ("314b", "fp8", "gb200"),
        "nemotron4": ("15b", "fp8", "h100"),
    }


def test_each_generation_has_the_fp8_scaling_and_the_clock_boost_of_its_results():
    """NeMo's performance scripts ran delayed scaling and vboost; the Megatron-Bridge document names ``fp8_cs``."""
    found = {(name, v.name): (v.fp8_recipe, v.vboost) for name, r in RECIPES.items() for v in r.variants}
    assert found.pop(("llama3.1", "mbridge")) == ("cs", False)
    assert set(found) == {(name, "nemo2") for name in RECIPES}
    assert set(found.values()) == {("ds", True)}


def test_time_limits_are_those_of_nvidias_launchers():
    """Llama 4 on H100: dgxc-benchmarking v25.05, llama4/launch.sh:110; 405b: v26.02, llama3.1/launch.sh:89."""
    found = {(n, row.size, row.gpu): row.time_limit for n, r in RECIPES.items() for row in r.rows if row.time_limit}
    assert found.pop(("llama4", "400b", "h100")) == "00:55:00"
    assert found.pop(("grok1", "314b", "h100")) == "00:45:00"
    assert found == {("llama3.1", "405b", gpu): "02:00:00" for gpu in ("gb300", "gb200", "b200", "h100")}


def test_a_published_run_fits_into_its_time_limit_with_ten_minutes_to_start():
    for recipe in RECIPES.values():
        for result in recipe.results:
            row, variant = find_row(recipe, result), recipe.variant(result.variant)
            hours, minutes, seconds = map(int, (row.time_limit or variant.time_limit).split(":"))
            limit = 3600 * hours + 60 * minutes + seconds
            assert variant.max_steps * result.step_seconds + 600 <= limit, result.source


@pytest.mark.parametrize(
    ("name", "variant", "window", "profiled", "ranks", "report"),
    [
        ("llama3.1", "mbridge", (35, 44, "mean"), (45, 50, None), "all",
         "profile_${SLURM_JOB_ID}_${SLURM_NODEID}_${SLURM_LOCALID}"),
        ("llama3.1", "nemo2", (35, 44, "last"), (20, 25, 25), "0-8", "profile_${PROCESS_ID}"),
        ("llama4", "nemo2", (11, 44, "mean"), (45, 50, None), "0-8",
         "profile_${SLURM_JOB_ID}_${SLURM_NODEID}_${SLURM_PROCID}"),
        ("grok1", "nemo2", (11, 44, "mean"), (45, 50, None), "all",
         "${MODEL}-${MODEL_SIZE}-${DTYPE}_${NUM_GPUS}g_${SLURM_JOB_ID}_${SLURM_NODEID}_${SLURM_LOCALID}"),
        ("nemotron4", "nemo2", (35, 44, "last"), (20, 25, 25), "0-8", "profile_${PROCESS_ID}"),
    ],
)  # fmt: skip
def test_measurement_and_profiling(name, variant, window, profiled, ranks, report):
    v = RECIPES[name].variant(variant)
    assert v.max_steps == 50
    assert v.nccl_trace.steps == 5
    assert (v.measurement.first, v.measurement.last, v.measurement.statistic) == window
    assert (v.profiling.start, v.profiling.stop, v.profiling.steps) == profiled
    assert (v.profiling.ranks, v.profiling.file) == (ranks, report)


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


def test_a_missing_catalogue_is_refused_when_it_is_read(tmp_path: Path, texts: Texts) -> None:
    shutil.copy(ROOT / "mbridge" / "recipe.yaml", tmp_path)
    with texts.raises(RecipeError):
        list(load_recipe(tmp_path).configurations)
