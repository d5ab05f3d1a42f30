"""Names of runs: NVIDIA's names for the published configurations, and a suffix for everything else."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from llmb_common.base.errors import RecipeError
from llmb_common.planning.plan import make_plan
from llmb_common.planning.request.read import read_request
from llmb_common.planning.site.cluster import cluster_config
from llmb_common.planning.site.machine import detect_machine
from llmb_common.recipes.loading import load_recipe
from support.documented_jobs import documented_rows, plan_of
from support.plans import plan, rows
from support.texts import Texts

ROOT = Path(__file__).resolve().parents[2]

OLD = "MODEL_SIZE=405b JOB_TOTAL_GPUS=512 GPU_TYPE=h100 CONFIG_VARIANT=nemo2"
NEW = "MODEL_SIZE=8b JOB_TOTAL_GPUS=8 GPU_TYPE=gb200"
NEW_NAME = "pretrain_llama3.1_8b_fp8_cs_gpus8_tp1_pp1_cp1_vpNone_ep1_mbs2_gbs"


def name(*words: str) -> str:
    return plan(*words).experiment_name


def test_what_is_documented_has_the_documented_name() -> None:
    for item, dtype, gpus in documented_rows():
        made = plan_of(item, dtype, gpus)
        assert re.search(r"_[0-9]+$|_gbs[0-9]+$", made.experiment_name), made.experiment_name


NAMED = {
    OLD: """
        -> pretrain_llama3.1_405b_fp8_512
        TP=8 PP=8 -> pretrain_llama3.1_405b_fp8_512
        TP=4 -> pretrain_llama3.1_405b_fp8_512_tp4
        GBS=512 -> pretrain_llama3.1_405b_fp8_512_gbs512
        STRONG_SCALING=true -> pretrain_llama3.1_405b_fp8_512_gbs1024
        PP=1 VP=NA RECOMPUTE_LAYERS=3 -> pretrain_llama3.1_405b_fp8_512_pp1_vp0_rl3
        CUDA_GRAPH=true ENABLE_PROFILE=true -> pretrain_llama3.1_405b_fp8_512_cg1_nsys
        ENABLE_NCCLTRACE=true -> pretrain_llama3.1_405b_fp8_512_nccltrace
        JOB_TOTAL_GPUS=640 FORCE=true GBS=320 -> pretrain_llama3.1_405b_fp8_640
        JOB_TOTAL_GPUS=640 FORCE=true GBS=640 -> pretrain_llama3.1_405b_fp8_640_gbs640
    """,
    NEW: f"""
        -> {NEW_NAME}128
        GBS=64 -> {NEW_NAME}64
        CUDA_GRAPH=false -> {NEW_NAME}128_cg0
        CUDA_GRAPH=false RECOMPUTE_LAYERS=2 -> {NEW_NAME}128_cg0_rl2
        CUDA_GRAPH=false OFFLOAD_LAYERS=4 -> {NEW_NAME}128_cg0_ol4
        CUDA_GRAPH=false FSDP=true -> {NEW_NAME}128_fsdp1_cg0
    """,
}


@pytest.mark.parametrize(("words", "names"), rows(NAMED))
def test_columns_that_are_not_as_documented_follow_the_name_unless_it_holds_them(words: str, names: list[str]) -> None:
    assert [name(words)] == names


def test_no_two_overrides_of_one_column_or_of_two_share_a_name() -> None:
    overrides = ["", "TP=4", "TP=4 RECOMPUTE_LAYERS=1", "RECOMPUTE_LAYERS=1", "RECOMPUTE_LAYERS=2", "GBS=512", "MBS=2"]
    overrides += ["CP=1", "VP=NA", "CUDA_GRAPH=true", "FP8_RECIPE=cs"]
    assert len({name(OLD, override) for override in overrides}) == len(overrides)


def test_dropless_routing_has_one_name_whoever_turns_the_graphs_off() -> None:
    grok = "grok1 JOB_TOTAL_GPUS=128 GPU_TYPE=gb200 MOE_ROUTING=balanced"
    assert name(grok) == name(grok, "CUDA_GRAPH=false")
    assert name(grok).endswith("_gbs256_balanced")


@pytest.mark.parametrize("name", ["../../../tmp/{model_size}", "a/b", ".hidden", "", "a b", "a\x1bb", "-o", "$(id)"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str, texts: Texts) -> None:
    recipe = load_recipe(ROOT / "llama3.1")
    variants = tuple(msgspec.structs.replace(variant, experiment_name=name) for variant in recipe.variants)
    bad = msgspec.structs.replace(recipe, listed_variants=variants)
    variables = {"LLMB_INSTALL": str(tmp_path), "JOB_TOTAL_GPUS": "128", "GPU_TYPE": "gb200", "CLUSTER_TYPE": "slurm"}
    request = read_request(variables)
    with texts.raises(RecipeError):
        make_plan(bad, cluster_config(), request, detect_machine(cluster_config(), request))
