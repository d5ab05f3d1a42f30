"""Names, steps, windows and defaults that users and other tools rely on."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.recipe import find_row

ROOT = Path(__file__).resolve().parents[2]
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
