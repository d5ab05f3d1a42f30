"""What a recipe may leave out, what follows then, and which of its rows and results a request gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.errors import RequestError
from llmb_common.recipes import loading
from llmb_common.recipes.flops import count_parameters
from llmb_common.recipes.loading import load_recipe, recipe_folders, recipes_root
from llmb_common.recipes.model import Architecture, Checkpoint, Model, MoE
from llmb_common.recipes.recipe import Defaults, Flops, Recipe, find_row
from llmb_common.recipes.rows import Document, Measurement, NcclTrace, Profiling, Result, Row, Variant

ROOT = Path(__file__).resolve().parents[2]

ARCHITECTURE = {
    **{"layers": 4, "hidden": 8, "ffn": 32, "heads": 2, "query_groups": 1, "head_dim": 4, "vocabulary": 100},
    **{"activation": "silu", "gated": True, "norm": "rmsnorm", "norm_epsilon": 1e-5, "rope_base": 10000},
}


def architecture(**changes: Any) -> Architecture:
    return msgspec.convert(ARCHITECTURE | changes, Architecture)


@pytest.fixture(scope="module")
def llama() -> Recipe:
    return load_recipe(ROOT / "llama3.1")


@pytest.fixture(scope="module")
def grok() -> Recipe:
    return load_recipe(ROOT / "grok1")


def test_a_plain_architecture_is_an_untied_dense_transformer_with_full_rope() -> None:
    said = msgspec.to_builtins(architecture())
    plain = {
        "zero_centered_gamma": False,
        "rope_scaling": None,
        "rotary_percent": 1.0,
        "rope_interleaved": False,
        "no_rope_interval": None,
        "attention_chunk": None,
        "tied_embeddings": False,
        "init_std": 0.02,
        "moe": None,
    }
    assert said | plain == said


def test_plain_experts_are_in_every_layer_behind_a_softmax_without_an_auxiliary_loss() -> None:
    said = msgspec.to_builtins(msgspec.convert({"experts": 8, "top_k": 2, "ffn": 16}, MoE))
    plain = {
        **{"experts": 8, "top_k": 2, "ffn": 16, "shared_ffn": None, "every": 1},
        **{"router": "softmax", "pre_softmax": False, "aux_loss": 0.0, "capacity_factor": 1.0},
        "probabilities_on_input": False,
    }
    assert said | plain == said


def test_a_variant_that_says_only_what_it_must_trains_50_steps_in_half_an_hour() -> None:
    profiling = {"start": 45, "stop": 50, "ranks": "0", "file": "profile"}
    least = {"name": "v", "title": "V", "experiment_name": "x", "measurement": {"first": 35, "last": 44}}
    variant = msgspec.convert(least | {"profiling": profiling, "fp8_recipe": "cs"}, Variant)
    assert (variant.max_steps, variant.time_limit) == (50, "00:30:00")
    assert (variant.vboost, variant.flops_attention) == (False, None)
    assert variant.measurement.statistic == "mean"
    assert (variant.profiling.suffix, variant.profiling.steps) == ("", None)
    assert (variant.nccl_trace.steps, variant.nccl_trace.suffix) == (5, "")
    assert variant.nccl_trace == NcclTrace()


def test_a_model_is_small_and_without_checkpoints_unless_it_says_so() -> None:
    least = {"size": "8b", "title": "8B", "parameters": 8, "sequence_length": 16, "architecture": ARCHITECTURE}
    model = msgspec.convert(least, Model)
    assert (model.large, model.checkpoint) == (False, None)


@pytest.mark.parametrize(
    ("kind", "field", "wrong"),
    [
        (Variant, "name", "-v"),
        (Variant, "time_limit", "30:00"),
        (Variant, "time_limit", "1-123:00:00"),
        (Variant, "max_steps", 0),
        (Model, "size", ""),
        (Recipe, "hugging_face", "meta-llama/Llama"),
        (Recipe, "hugging_face", "meta-llama/Llama@b4d08b7"),
        (Result, "container", "25.4"),
        (Row, "gpus_min", 0),
    ],
)
def test_values_of_another_form_are_refused(kind: type, field: str, wrong: object) -> None:
    described = next(item for item in msgspec.structs.fields(kind) if item.name == field)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, described.type)


@pytest.mark.parametrize(
    ("kind", "field", "right"),
    [
        (Variant, "time_limit", "1-0:00:00"),
        (Variant, "time_limit", "4:00:00"),
        (Variant, "name", "nemo2"),
        (Result, "container", "25.04"),
        (Result, "container", "25.04.00"),
    ],
)
def test_values_of_the_right_form(kind: type, field: str, right: object) -> None:
    described = next(item for item in msgspec.structs.fields(kind) if item.name == field)
    assert msgspec.convert(right, described.type) == right


@pytest.mark.parametrize(
    "kind",
    [
        *(MoE, Architecture, Checkpoint, Model, Profiling, Measurement, NcclTrace),
        *(Variant, Row, Document, Result, Defaults, Flops, Recipe),
    ],
)
def test_an_unknown_key_is_refused_at_every_level(kind: type) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `famly`"):
        msgspec.convert({"famly": 1}, kind)


# Parameters


def test_parameters_of_a_dense_model_add_up() -> None:
    embeddings, final_norm = 2 * 100 * 8, 8
    layer = 8 * 4 * 2 * (2 + 1) + 2 * 8 + 3 * 8 * 32
    assert count_parameters(architecture()) == embeddings + final_norm + 4 * layer


def test_a_layer_norm_has_two_vectors_and_a_plain_mlp_two_matrices() -> None:
    layer = 8 * 4 * 2 * (2 + 1) + 2 * 16 + 2 * 8 * 32
    assert count_parameters(architecture(norm="layernorm", gated=False)) == 1600 + 16 + 4 * layer


def test_experts_in_every_second_layer_beside_a_shared_one() -> None:
    experts = {"experts": 4, "top_k": 1, "ffn": 16, "shared_ffn": 24, "every": 2}
    common = 8 * 4 * 2 * (2 + 1) + 2 * 8
    dense, sparse = 3 * 8 * 32, 4 * 3 * 8 * 16 + 3 * 8 * 24 + 4 * 8
    assert count_parameters(architecture(moe=experts)) == 1600 + 8 + 4 * common + 2 * dense + 2 * sparse


# Rows and results


def test_rows_of_a_request_are_those_of_its_gpu_and_of_any_gpu(llama: Recipe) -> None:
    found = llama.rows_for("h100")
    assert {row.gpu for row in found} == {"h100", "any"}
    assert {row.size for row in llama.rows_for("h100", size="8b")} == {"8b"}
    assert {row.variant for row in llama.rows_for("h100", variant="nemo2")} == {"nemo2"}
    assert all("nvfp4" in row.dtypes for row in llama.rows_for("gb300", dtype="nvfp4"))
    assert llama.rows_for("h100", dtype="nvfp4") == []


def test_the_newest_generation_comes_first(llama: Recipe) -> None:
    names = [row.variant for row in llama.rows_for("h100")]
    assert names == sorted(names, key=[variant.name for variant in llama.variants].index)
    assert set(names) == {"mbridge", "nemo2"}


def test_a_published_result_belongs_to_the_row_that_has_its_gpu_count(grok: Recipe) -> None:
    for result in grok.results:
        row = find_row(grok, result)
        assert (row.gpu, row.size) == (result.gpu, "314b")
        assert result.gpus in row.scales
    assert find_row(grok, msgspec.structs.replace(grok.results[0], gpus=1024)) is None


def test_a_corrected_figure_stands_for_the_printed_one(grok: Recipe) -> None:
    first = grok.results[0]
    assert (first.mfu_percent, first.value("mfu_percent")) == (47.59, 47.63)
    assert first.value("days_1t") == first.days_1t == 40.43
    assert first.value("tflops_per_gpu") is None


def test_a_result_is_of_its_own_container_or_else_of_its_documents(grok: Recipe) -> None:
    first = grok.results[0]
    assert grok.document(first).container == "25.04.00"
    assert grok.document(msgspec.structs.replace(first, container="25.07")).container == "25.07"


@pytest.mark.parametrize(("formula", "gbs"), [("64", 64), ("GPUs", 6), ("GPUs*3", 18), ("GPUs/2", 3), ("GPUs/3", 2)])
def test_global_batch_sizes(grok: Recipe, formula: str, gbs: int) -> None:
    assert msgspec.structs.replace(grok.rows[0], gbs=formula).global_batch_size(6) == gbs


def test_an_unknown_size_or_variant_is_refused_with_those_that_are_meant(llama: Recipe) -> None:
    with pytest.raises(RequestError) as caught:
        llama.model("404b", among=["8b", "405b"])
    assert caught.value.remedy == "the sizes are 405b, 8b"
    assert caught.value.field == "MODEL_SIZE"
    with pytest.raises(RequestError) as caught:
        llama.variant("nemo3", among=["nemo2"])
    assert (caught.value.remedy, caught.value.field) == ("the variants are nemo2", "CONFIG_VARIANT")
    assert "did you mean 'nemo2'?" in caught.value.message


def test_which_sizes_are_meant_is_looked_at_only_for_the_message(llama: Recipe) -> None:
    sizes, variants = iter(["8b"]), iter(["nemo2"])
    assert (llama.model("70b", among=sizes).size, llama.variant("mbridge", among=variants).name) == ("70b", "mbridge")
    assert [*sizes, *variants] == ["8b", "nemo2"]


# Where recipes are


def test_recipes_are_folders_with_a_recipe_by_name(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / name).mkdir()
    (tmp_path / "b" / "recipe.yaml").touch()
    (tmp_path / "a" / "recipe.yaml").touch()
    assert list(recipe_folders(tmp_path)) == [tmp_path / "a", tmp_path / "b"]


def test_an_installed_package_brings_its_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLMB_REPO", raising=False)
    monkeypatch.setattr(loading, "__file__", str(tmp_path / "site-packages/llmb_common/recipes/loading.py"))
    assert recipes_root() == tmp_path / "site-packages/llmb_common/_recipes"


# Names, steps, windows and defaults that users and other tools rely on.


RECIPES = {name: load_recipe(ROOT / name) for name in ("llama3.1", "llama4", "grok1", "nemotron4")}
COLUMNS = {"precision": "fp8_cs", "cp": 1, "mbs": 1, "etp": 1, "vp": None, "ep": 1}


@pytest.mark.parametrize(
    ("name", "variant", "columns", "expected"),
    [
        ("llama3.1", "mbridge", {"model_size": "405b", "gpus": 128, "tp": 2, "pp": 1, "gbs": 64},
         "pretrain_llama3.1_405b_fp8_cs_gpus128_tp2_pp1_cp1_vpNone_ep1_mbs1_gbs64"),
        ("llama3.1", "nemo2", {"model_size": "8b", "dtype": "bf16", "gpus": 16}, "pretrain_llama3.1_8b_bf16_16"),
        ("llama4", "nemo2", {"model_size": "400b", "dtype": "fp8", "gpus": 128, "tp": 1, "pp": 2, "vp": 12, "ep": 64,
                            "gbs": 1024},
         "pretraining_llama4_maverick_400b_fp8_128_tp1_pp2_cp1_vp12_ep64_etp1_mbs1_gbs1024"),
        ("grok1", "nemo2", {"model_size": "314b", "dtype": "bf16", "gpus": 256, "tp": 4, "pp": 1, "vp": 1, "ep": 8,
                           "etp": 4, "gbs": 512},
         "pretraining_grok1_314b_bf16_256_tp4_pp1_cp1_vp1_ep8_etp4_mbs1_gbs512"),
        ("nemotron4", "nemo2", {"model_size": "15b", "dtype": "bf16", "gpus": 16}, "pretrain_nemotron4_15b_bf16_16"),
    ],
)  # fmt: skip
def test_experiment_names(name, variant, columns, expected):
    pattern = RECIPES[name].variant(variant).experiment_name
    assert pattern.format(**{**COLUMNS, **columns}) == expected


def test_workloads():
    assert {name: recipe.workload for name, recipe in RECIPES.items()} == {
        "llama3.1": "pretrain_llama3.1",
        "llama4": "pretrain_llama4_maverick",
        "grok1": "pretrain_grok1",
        "nemotron4": "pretrain_nemotron4",
    }
    assert {recipe.image for recipe in RECIPES.values()} == {"nvcr.io#nvidia/nemo:26.02.01"}


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


def test_suffixes_keep_profiled_and_traced_runs_of_the_older_generation_apart():
    for name in ("llama3.1", "nemotron4"):
        v = RECIPES[name].variant("nemo2")
        assert (v.profiling.suffix, v.nccl_trace.suffix) == ("_nsys", "_nccltrace")


def test_the_newest_variant_comes_first():
    assert [v.name for v in RECIPES["llama3.1"].variants] == ["mbridge", "nemo2"]


def test_cuda_graphs_of_the_mixture_of_experts_recipes():
    graphs = {(r.gpu, dtype): r.cuda_graph for r in RECIPES["llama4"].rows if r.size == "400b" for dtype in r.dtypes}
    assert graphs == {
        ("gb200", "bf16"): False, ("gb200", "fp8"): False, ("h100", "bf16"): False, ("h100", "fp8"): True,
    }  # fmt: skip
    assert {r.gpu: r.cuda_graph for r in RECIPES["grok1"].rows if r.size == "314b"} == {"gb200": True, "h100": False}
