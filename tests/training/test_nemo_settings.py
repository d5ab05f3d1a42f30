"""What the scripts behind the NeMo 2 results set, against the jobs that LLMB makes of the same rows.

``tests/data/nemo_era_settings.json`` holds what NeMo's scripts set, each field with its source. Every documented row of
the variant ``nemo2`` goes the real way (recipe, plan, job.json, configuration, Bridge's own validation), and every
field is compared. What differs on purpose stands in ``DELIBERATE`` with its reason, and nowhere else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from training_jobs import DATA

from support.documented_jobs import HOLDS, documented_rows, label, plan_of

CASES = [case for case in documented_rows() if HOLDS[case[0]["source"]][1] == "nemo2"]
ENTRIES: list[dict[str, Any]] = json.loads((DATA / "nemo_era_settings.json").read_text(encoding="utf-8"))["entries"]

Where = dict[str, list[Any]]
"""``{"recipe": ["grok1"], "gpu": ["h100"]}``: rows that have one of the values under each key."""


@dataclass(frozen=True)
class Difference:
    """Fields that LLMB sets to ``ours`` although NeMo's scripts had something else."""

    where: Where
    ours: dict[str, Any]
    reason: str


DELIBERATE = [
    Difference(
        {},
        {"ddp.check_for_nan_in_grad": False},
        "Bridge's performance configurations switch it off (scripts/performance/utils/overrides.py, v0.3.1): a "
        "synchronization for every bucket of gradients",
    ),
    Difference({}, {"optimizer.adam_eps": 1e-8}, "a number that costs nothing; Bridge's Llama configurations have it"),
    Difference({"recipe": ["nemotron4"]}, {"optimizer.lr": 3e-4}, "a number that costs nothing, the same for all"),
    Difference(
        {},
        {"model.attention_backend": None, "env.NVTE_FLASH_ATTN": None, "env.NVTE_FUSED_ATTN": None},
        "Transformer Engine allows both kernels by itself, and chooses",
    ),
    Difference(
        {"recipe": ["llama3.1", "nemotron4"]},
        {"model.cross_entropy_fusion_impl": "te"},
        "NeMo's own scripts and Bridge's take Transformer Engine's from v2.3.0 on, for every model",
    ),
    Difference(
        {"recipe": ["grok1"]},
        {"model.masked_softmax_fusion": True, "model.persist_layer_norm": True},
        "neither is used: attention and norms are Transformer Engine's",
    ),
    Difference(
        {"recipe": ["grok1"]},
        {"model.moe_grouped_gemm": True, "model.moe_permute_fusion": True},
        "every rank has one expert, whose GEMM is the same; Bridge's configurations of MoE models have both",
    ),
    Difference(
        {"recipe": ["llama3.1"], "size": ["8b", "70b"]},
        {"model.init_method_std": 0.02, "model.rope_scaling": True},
        "the scripts took Llama 3, the recipe has Llama 3.1; neither costs time",
    ),
    Difference(
        {"recipe": ["llama3.1"], "size": ["405b-proxy"], "gpus": [32]},
        {
            "model.defer_embedding_wgrad_compute": False,
            "model.wgrad_deferral_limit": -1,
            "model.account_for_embedding_in_pipeline_split": False,
            "model.account_for_loss_in_pipeline_split": False,
        },
        "with one pipeline stage there is no drain to fill (core 0.16 refuses it) and nothing to split",
    ),
    Difference(
        {"recipe": ["llama3.1"], "size": ["70b"]}, {"model.vocab_size": 128256}, "the true vocabulary: 0.2 % fewer rows"
    ),
    Difference(
        {"recipe": ["llama3.1"], "size": ["405b", "405b-proxy"]},
        {"model.vocab_size": 128256},
        "the true vocabulary: 0.6 % fewer rows",
    ),
    Difference({"recipe": ["grok1"]}, {"model.vocab_size": 128256}, "the true vocabulary: 0.2 % fewer rows"),
    Difference({"recipe": ["llama4"]}, {"model.vocab_size": 202048}, "the true vocabulary: 0.1 % fewer rows"),
    Difference(
        {"recipe": ["llama4"], "gpu": ["gb200"]},
        {"env.CUDA_DEVICE_MAX_CONNECTIONS": "32"},
        "Bridge's scripts set it for every job on Blackwell (scripts/performance/perf_plugins.py, v0.3.1)",
    ),
    Difference(
        {"recipe": ["llama3.1", "nemotron4"], "dtype": ["bf16"]},
        {"optimizer.use_precision_aware_optimizer": True},
        "NeMo's scripts of the next release set it for every model (llmb-nemo-r2.3.0, v2.4.0), and so do Bridge's",
    ),
    Difference(
        {"recipe": ["nemotron4"], "size": ["340b"]},
        {"env.NVTE_NORM_FWD_USE_CUDNN": "1", "env.NVTE_NORM_BWD_USE_CUDNN": "1"},
        "NeMo's script of 340b sets them from v2.3.0 on",
    ),
    Difference(
        {"recipe": ["llama3.1"], "size": ["405b", "405b-proxy"]},
        {"env.NVTE_NORM_FWD_USE_CUDNN": "1", "env.NVTE_NORM_BWD_USE_CUDNN": "1"},
        "NeMo's script of 405b sets them from v2.3.0 on",
    ),
    Difference({}, {"plan.vboost": False}, "needs sudo on the nodes: ENABLE_VBOOST=true; tables and results say so"),
]


def matches(case: tuple[dict[str, Any], str, int], where: Where) -> bool:
    item, dtype, gpus = case
    row = {"recipe": HOLDS[item["source"]][0], "size": item["size"].lower(), "gpu": item["gpu"].lower()}
    row |= {"dtype": dtype, "gpus": gpus}
    assert where.keys() <= row.keys(), where
    return all(row[key] in values for key, values in where.items())


def of_nemo(case: tuple[dict[str, Any], str, int]) -> dict[str, Any]:
    """What NeMo's scripts set for this row."""
    fields: dict[str, Any] = {}
    for entry in ENTRIES:
        if matches(case, entry["where"]):
            fields |= entry["fields"]
    return fields


def deliberate(case: tuple[dict[str, Any], str, int]) -> dict[str, Any]:
    """What LLMB sets differently for this row."""
    fields: dict[str, Any] = {}
    for difference in DELIBERATE:
        if matches(case, difference.where):
            assert not fields.keys() & difference.ours.keys(), "one reason for each difference"
            fields |= difference.ours
    return fields


@pytest.mark.parametrize("case", CASES, ids=label)
def test_a_job_has_what_nemos_scripts_set(case, documented):
    plan = plan_of(*case)
    fields = documented[label(case)]["fields"] | {"plan.vboost": plan.vboost}
    fields |= {f"env.{name}": item.value for name, item in plan.env.items()}
    expected = of_nemo(case)
    unknown = {name for name in expected if name not in fields and not name.startswith("env.")}
    assert unknown == set(), "the table names fields that do not exist"
    found = {name: fields.get(name) for name in expected}
    assert {name: value for name, value in found.items() if value != expected[name]} == deliberate(case)


def test_every_entry_of_the_table_and_of_the_list_is_about_a_documented_row() -> None:
    for entry in ENTRIES:
        assert any(matches(case, entry["where"]) for case in CASES), entry
        assert entry["source"]
        assert entry["fields"]
    for difference in DELIBERATE:
        assert any(matches(case, difference.where) for case in CASES), difference
        assert difference.reason


def test_the_table_covers_all_rows_and_what_decides_their_speed() -> None:
    assert len(CASES) == 74
    for case in CASES:
        fields = of_nemo(case)
        assert len(fields) >= 60, label(case)
        assert {"model.fp8", "comm_overlap.tp_comm_overlap", "model.defer_embedding_wgrad_compute"} <= fields.keys()
