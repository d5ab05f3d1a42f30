"""Model families in layouts that their smoke sizes do not use: train, save, and resume where they stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_jobs import Engine, make_job


@pytest.mark.parametrize(
    ("family", "parallelism"),
    [
        # Experts are distributed over the tensor-parallel ranks; no expert is split.
        pytest.param("grok1", {"tp": 2, "ep": 2, "etp": 1}, id="grok1-TP2-EP2-ETP1"),
        # Every stage has to know which of its layers are MoE, and which have no rotary embedding.
        pytest.param("llama4", {"pp": 2, "vp": 2}, id="llama4-PP2xVP2"),
    ],
)
def test_a_resumed_run_repeats_the_uninterrupted_one(engine, tmp_path, family, parallelism):
    layout = {"world_size": 2, "parallelism": parallelism, "steps": {"train": 4}, "batch": {"gbs": 4}}
    checkpoints = tmp_path / "checkpoints"
    whole = engine.train(
        tmp_path / "whole", make_job(family, **layout, checkpoint={"save": str(checkpoints), "interval": 2})
    ).steps
    assert sorted(whole) == [1, 2, 3, 4]
    assert whole[4].loss < whole[1].loss

    resumed = engine.train(
        tmp_path / "resumed", make_job(family, **layout, checkpoint={"load": str(checkpoints / "iter_0000002")})
    ).steps
    assert sorted(resumed) == [3, 4]
    for number, step in resumed.items():
        assert step.loss == pytest.approx(whole[number].loss, abs=1e-6)
        assert step.grad_norm == pytest.approx(whole[number].grad_norm, abs=1e-3)


def test_experts_routed_without_dropping_are_forced_to_balance(engine: Engine, tmp_path: Path) -> None:
    job = make_job("grok1", performance={"moe_routing": "balanced"}, steps={"train": 2})
    run = engine.train(tmp_path, job)
    assert sorted(run.steps) == [1, 2]
    assert "load_balancing_loss" in run.steps[2].text
    assert "LLMB notice: MoE routing is dropless" in run.log
