"""Fields that NVIDIA's launcher decides in configurations of jobs (the rest: ``unit/test_plan_environment.py``)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from training_jobs import Engine

LAUNCHER = json.loads((Path(__file__).parents[1] / "data" / "launcher.json").read_text(encoding="utf-8"))
DEFAULTS = dict.fromkeys(LAUNCHER["fields"], False) | {"timeout": 10}
CAPTURED = "a captured iteration would wait for a gather outside itself (Megatron-Bridge pull request 5788)"
EXPLAINED = {
    ("timeout", 10, 60): "adapters are trained beside a model whose checkpoint takes long to load",
    ("gather", True, False): CAPTURED,
    ("overlap_gather", True, None): CAPTURED,
}
"""By name: NVIDIA's value and ours."""


def expected(job: str) -> dict[str, Any]:
    return DEFAULTS | {name: value for name, value in LAUNCHER["configured"][job].items() if name != "gbs"}


ALWAYS = (
    "glm52_sft_416gpu_h100_bf16_config 832",  # no configuration of overlaps
    "kimi_k2_pretrain_256gpu_gb300_bf16_config 512",  # Muon
    "llama3_70b_peft_8gpu_gb200_bf16_config 16",
    "llama3_70b_peft_8gpu_h100_bf16_config 8",
    "llama3_70b_pretrain_64gpu_b200_bf16_config 128",  # a graph of the whole iteration
    "llama3_70b_pretrain_64gpu_gb300_fp8mx_config 128",  # NaN, were parameters gathered early
    "llama3_70b_pretrain_64gpu_gb300_nvfp4_config 128",
    "llama3_70b_sft_32gpu_h100_fp8cs_config 64",
    "nemotron_3_super_pretrain_64gpu_h100_bf16_config 64",
    "qwen3_235b_a22b_pretrain_128gpu_gb300_fp8mx_paged_stash_dev_config 128",
    "qwen3_30b_a3b_pretrain_16gpu_gb200_fp8mx_partial_cg_dev_config 16",
)
JOBS = list(LAUNCHER["configured"]) if os.environ.get("LLMB_TEST_LAYOUTS") == "all" else ALWAYS


@pytest.fixture(scope="module")
def lines(functions_engine: Engine) -> dict[str, dict[str, Any]]:
    return functions_engine.ask("decided_by_the_launcher", {job: job for job in JOBS})


def test_jobs_have_the_fields_of_nvidias_launcher_but_for_what_is_explained(lines: dict[str, dict[str, Any]]) -> None:
    assert lines.keys() == set(JOBS)
    seen = set()
    for job, found in lines.items():
        for name, value in expected(job).items():
            if (found[name] or False) != value:
                seen.add((name, value, found[name]))
    assert seen == EXPLAINED.keys()


EARLY = "comm_overlap.overlap_param_gather_with_optimizer_step"


def test_other_stages_and_fsdp_are_set_as_nvidias_launcher_sets_them(functions_engine: Engine) -> None:
    asked = {f"{one['name']} {one['options']}": one for one in LAUNCHER["changed"]}
    assert len(asked) == 7
    jobs = {what: {"name": one["name"], "columns": one["columns"]} for what, one in asked.items()}
    for what, found in functions_engine.ask("changed_by_columns", jobs).items():
        lists = ("model.cuda_graph_scope", "model.cuda_graph_modules")
        assert (what, {name: value for name, value in found.items() if name not in (*lists, EARLY)}) == (
            what,
            asked[what]["sets"],
        )
        assert not found.get(EARLY)
