"""Megatron's own validation of the functions, asked again of a sample and held against the results that are shipped."""

from __future__ import annotations

import json
from typing import Any

import pytest
from training_jobs import REPOSITORY, Engine

from llmb_train.perf_recipes import PUBLISHED
from support.golden import check_golden

MBRIDGE = REPOSITORY / "mbridge"
SHIPPED = json.loads((MBRIDGE / "validation-0.6.2.json").read_text(encoding="utf-8"))["functions"]
CATALOGUE = json.loads((MBRIDGE / "catalogue-0.6.2.json").read_text(encoding="utf-8"))["functions"]

COUNTED = {
    "qwen3_next_80b_a3b_pretrain_128gpu_h100_bf16_config": 79_674_391_296,
    "qwen35_vl_35b_a3b_pretrain_16gpu_h100_bf16_config": 35_107_181_936,
    "glm51_sft_192gpu_gb200_bf16_config": 743_911_218_432,
}
"""Gated delta nets, with a vision encoder, and latent attention with an index of tokens: weights without the head for a
further token, as their vendors state them (80B, 35B, 744B)."""

OTHERS = (
    "llama3_8b_pretrain_8gpu_h100_bf16_config",
    "nemotron_3_nano_pretrain_16gpu_h100_bf16_config",  # its vocabulary is its tokenizer's
    "deepseek_v3_pretrain_1024gpu_h100_fp8cs_config",  # bf16 gradients for the precision-aware optimizer
    "llama3_70b_sft_32gpu_gb200_bf16_config",
    "llama3_70b_peft_8gpu_h100_bf16_config",
    "gpt_oss_20b_pretrain_8gpu_b300_nvfp4_config",
    "deepseek_v3_pretrain_128gpu_vr200_bf16_config",
    "deepseek_v3_pretrain_256gpu_gb300_fp8mx_partial_cg_dev_config",
    "deepseek_v4_pro_pretrain_256gpu_gb300_fp8mx_config",
    "nemotronh_56b_pretrain_256gpu_gb300_bf16_config",
)


OF_FILES = {
    *("aux_loss_alpha", "moe_layer_freq", "num_nextn_predict_layers", "scoring_func", "topk_method"),
    *("compress_ratios", "first_k_dense_replace", "num_hash_layers", "head_dim", "norm_topk_prob"),
    *("mtp_num_hidden_layers", "hybrid_override_pattern", "mtp_hybrid_override_pattern"),
    *("index_skip_topk_offset", "index_topk_freq", "indexer_rope_interleave"),
    *("rope_scaling", "rope_theta", "torch_dtype"),
}
"""Names in ``config.json`` that transformers' classes do not have, or call otherwise."""


@pytest.fixture(scope="module")
def lines(functions_engine: Engine) -> dict[str, dict[str, Any]]:
    asked = [*(f"{name}#" for name in COUNTED), *OTHERS]
    return functions_engine.ask("validated_function", {name.rstrip("#"): name for name in asked})


@pytest.mark.parametrize("name", [*COUNTED, *OTHERS])
def test_the_shipped_results_are_what_megatron_says(lines: dict[str, dict[str, Any]], name: str) -> None:
    assert lines[name]["result"] == SHIPPED[name]


@pytest.mark.parametrize("name", [*COUNTED, *OTHERS])
def test_a_job_that_saves_is_as_valid(lines: dict[str, dict[str, Any]], name: str) -> None:
    """It has the plain optimizer, and so it needs other packages."""
    assert lines[name]["saving"]["refused"] == SHIPPED[name]["refused"]


def test_models_are_what_their_vendors_published(functions_engine: Engine) -> None:
    """The first function of each model whose ``config.json`` LLMB ships the numbers of: every field that is set."""
    first = {row["hugging_face"]: name for name, row in reversed(CATALOGUE.items()) if row["hugging_face"]}
    assert set().union(*functions_engine.ask("unknown", {name: name for name in PUBLISHED}).values()) == OF_FILES
    text = ""
    for name, fields in functions_engine.ask("model_fields", {name: name for name in sorted(first.values())}).items():
        text += f"{name}\n" + "".join(f"  {field}: {json.dumps(fields[field])}\n" for field in sorted(fields))
    check_golden("models-0.6.2.txt", text)


@pytest.mark.parametrize("name", COUNTED)
def test_weights_are_counted_as_by_transformers(lines: dict[str, dict[str, Any]], name: str) -> None:
    assert lines[name]["parameters"] == lines[name]["published"] == COUNTED[name]
    assert CATALOGUE[name]["parameters"] > COUNTED[name]
