"""When the optimizer step gathers parameters and when Adam keeps bf16 gradients: one rule for all families.

Needs no engine: the rules look at the job alone. That Megatron takes what they give is in test_documented_jobs.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from training_jobs import make_job

from llmb_train.engine import Engine
from llmb_train.job import Job, parse_job
from llmb_train.settings import optimizer, overlap

GPU = Engine(device="cuda", transformer_engine=True)
INTERLEAVED = {"pp": 8, "vp": 8, "tp": 4}


def job(name: str = "405b", **changes: Any) -> Job:
    base: dict[str, Any] = {"gpu_type": "b200", "world_size": 64, "batch": {"gbs": 64}}
    return parse_job(make_job(name, device="cuda", **{**base, **changes}))


def test_interleaved_pipelines_with_data_parallelism_gather_in_the_optimizer_step() -> None:
    assert overlap.gather_in_optimizer_step(job(parallelism=INTERLEAVED))
    assert overlap.gather_in_optimizer_step(job("340b", parallelism=INTERLEAVED, gpu_type="h100"))
    graphs_of_layers = {"performance": {"cuda_graph": True}}
    assert overlap.gather_in_optimizer_step(job("340b", parallelism=INTERLEAVED, **graphs_of_layers))


@pytest.mark.parametrize(
    "changes",
    [
        {"world_size": 32},
        {"parallelism": {**INTERLEAVED, "vp": None}},
        {"parallelism": {**INTERLEAVED, "vp": 1}},
        {"parallelism": {**INTERLEAVED, "pp": 1, "vp": None}},
        {"precision": {"dtype": "fp8", "fp8_recipe": "mx"}},
        {"precision": {"dtype": "nvfp4", "fp8_recipe": None}},
        {"performance": {"cuda_graph": True}},
        {"checkpoint": {"save": "/c"}},
        {"checkpoint": {"load": "/c"}},
    ],
    ids=str,
)
def test_they_do_not_where_it_would_give_nan_fail_or_be_worth_nothing(changes: dict[str, Any]) -> None:
    assert not overlap.gather_in_optimizer_step(job(**{"parallelism": INTERLEAVED, **changes}))


@pytest.mark.parametrize(
    ("changes", "engine", "expected"),
    [
        ({}, GPU, True),
        ({"precision": {"dtype": "fp8", "fp8_recipe": "ds"}}, GPU, False),
        ({"parallelism": {"fsdp": True}}, GPU, False),
        ({"checkpoint": {"save": "/c"}}, GPU, False),
        ({"checkpoint": {"load": "/c"}}, GPU, False),
        ({}, Engine(device="cuda", transformer_engine=False), False),
        ({}, Engine(device="cpu", transformer_engine=False), False),
    ],
    ids=str,
)
def test_bf16_keeps_its_gradients_where_fused_adam_is(changes: dict[str, Any], engine: Engine, expected: bool) -> None:
    assert optimizer.precision_aware(job(**changes), engine) is expected
