"""Variables that NVIDIA's scripts set for some models, GPUs and precisions only, row by row.

mbridge: ``scripts/performance/perf_plugins.py`` of Megatron-Bridge 0.3.1. nemo2: ``scripts/performance/llm`` of NeMo
2.3.0 to 2.3.2.
"""

from __future__ import annotations

from typing import Any

import pytest
from test_plan import plan

from support.documented_jobs import documented_rows, label, plan_of

CUDNN_NORMS = {"NVTE_NORM_FWD_USE_CUDNN": "1", "NVTE_NORM_BWD_USE_CUDNN": "1"}
WITH_CUDNN_NORMS = {
    ("llama3.1-mbridge.md", "405b", "GB300"),
    ("llama3.1-mbridge.md", "405b", "GB200"),
    ("llama3.1-mbridge.md", "70b", "GB300"),
    ("llama3.1-mbridge.md", "70b", "GB200"),
    ("llama3.1-mbridge.md", "8b", "H100"),
    ("llama3.1-nemo2.md", "405b", "H100"),
    ("llama3.1-nemo2.md", "405b-proxy", "H100"),
    ("nemotron4.md", "340b", "H100"),
}


def cudnn_norms(variables: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name in CUDNN_NORMS}


@pytest.mark.parametrize("case", list(documented_rows()), ids=label)
def test_cudnn_norms_and_the_ctas_of_user_buffers_are_where_the_published_runs_had_them(
    case: tuple[dict[str, Any], str, int],
) -> None:
    item, dtype, gpus = case
    variables = {name: entry.value for name, entry in plan_of(item, dtype, gpus).env.items()}
    place = (item["source"], item["size"].lower(), item["gpu"])
    assert cudnn_norms(variables) == (CUDNN_NORMS if place in WITH_CUDNN_NORMS else {})
    user_buffers = place == ("llama3.1-mbridge.md", "8b", "H100")
    assert variables.get("NCCL_CTA_POLICY") == ("1" if user_buffers else None)


def test_mxfp8_has_its_own_norms() -> None:
    row = {"MODEL_SIZE": "70b", "GPU_TYPE": "gb200", "JOB_TOTAL_GPUS": "64"}
    for recipe, expected in (("cs", CUDNN_NORMS), ("mx", {})):
        entries = plan(FP8_RECIPE=recipe, **row).env.items()
        assert cudnn_norms({name: entry.value for name, entry in entries}) == expected


def test_the_ctas_of_user_buffers_go_with_fsdp() -> None:
    row = {"MODEL_SIZE": "8b", "GPU_TYPE": "h200", "JOB_TOTAL_GPUS": "8", "CONFIG_VARIANT": "mbridge"}
    assert "NCCL_CTA_POLICY" in plan(**row).env
    assert "NCCL_CTA_POLICY" not in plan(FSDP="false", **row).env
