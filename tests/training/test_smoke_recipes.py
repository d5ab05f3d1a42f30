"""The smoke size of every recipe, on two ranks: trained, profiled, saved, and resumed to exactly the same loss.

What launch.sh, torchrun and fresh interpreters add is the same for all of them: ``test_launched_smoke.py``, and for
loading ``tests/cluster/test_launch_on_slurm.py``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from training_jobs import (
    LOSS_TOLERANCE,
    REPOSITORY,
    SMOKE_LOSSES,
    SMOKE_PROFILE,
    SMOKE_SAVING,
    SMOKE_SIZE,
    Engine,
    TrainingRun,
    document,
    make_job,
    printed_losses,
)

from llmb_common.planning.plan import make_plan
from llmb_common.planning.request.read import read_request
from llmb_common.planning.site.cluster import cluster_config
from llmb_common.planning.site.machine import Machine
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.model import model_flops

LAYOUTS: dict[str, dict[str, str]] = {
    "llama3.1": {},
    # Every stage has to know which of its layers are MoE, and which have no rotary embedding.
    "llama4": {"EP": "1", "PP": "2", "VP": "2"},
    # Experts are distributed over the tensor-parallel ranks; no expert is split.
    "grok1": {"TP": "2", "EP": "2", "ETP": "1"},
    # Another length than documented; the ranks compare that of the model and of the data with the plan's.
    "nemotron4": {"TP": "2", "SEQ_LENGTH": "96"},
}


RESUMED = ("llama4", "grok1")


def train(engine: Engine, recipe: str, folder: Path, **variables: str) -> TrainingRun:
    """Plan the recipe's smoke size on two ranks of this machine, as launch.sh would, and train it in ``folder``."""
    request = read_request({"LLMB_INSTALL": str(folder), **SMOKE_SIZE, **variables})
    plan = make_plan(load_recipe(REPOSITORY / recipe), cluster_config(), request, Machine(cluster_type="local"))
    return engine.train(folder, document(plan, str(folder)))


@pytest.mark.parametrize("recipe", LAYOUTS)
def test_smoke_trains_saves_and_resumes(recipe: str, engine: Engine, tmp_path: Path) -> None:
    """Dense models resume in ``test_layouts.py`` and, on two ranks, in ``test_other_engine.py``."""
    profile = SMOKE_PROFILE if recipe == "llama3.1" else {}
    whole = train(engine, recipe, tmp_path / "whole", **LAYOUTS[recipe], **SMOKE_SAVING, **profile)
    losses = printed_losses(whole.log)
    assert sorted(losses) == [1, 2, 3]
    if profile:
        # As on the other engine: test_other_engine.py
        assert {step: float(loss) for step, loss in losses.items()} == pytest.approx(SMOKE_LOSSES, abs=LOSS_TOLERANCE)
        (trace,) = tmp_path.glob("whole/output/*profile*/**/*.json*")
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
        assert "aten::bmm" in {event.get("name") for event in events}
    (checkpoint,) = tmp_path.glob("whole/**/checkpoints/iter_0000002")
    if recipe not in RESUMED:
        return
    resumed = train(engine, recipe, tmp_path / "resumed", **LAYOUTS[recipe], LOAD_CHECKPOINT_PATH=str(checkpoint))
    assert printed_losses(resumed.log) == {3: losses[3]}


@pytest.mark.parametrize("recipe", LAYOUTS)
def test_flops_on_another_length_are_those_of_megatron_bridges_log(recipe: str, engine: Engine) -> None:
    asked = SMOKE_SIZE | {"LLMB_INSTALL": "/i", "JOB_TOTAL_GPUS": "1", "SEQ_LENGTH": "192"}
    plan = make_plan(
        load_recipe(REPOSITORY / recipe), cluster_config(), read_request(asked), Machine(cluster_type="local")
    )
    assert plan.architecture is not None
    ((of_bridge, _),) = engine.ask("flops", {recipe: document(plan)}).values()
    assert model_flops(plan.architecture, 192, "causal").total / 192 == pytest.approx(of_bridge, rel=1e-9)


def test_experts_routed_without_dropping_are_forced_to_balance(engine: Engine, tmp_path: Path) -> None:
    job = make_job("grok1", performance={"moe_routing": "balanced"}, steps={"train": 2})
    run = engine.train(tmp_path, job)
    assert sorted(run.steps) == [1, 2]
    assert "load_balancing_loss" in run.steps[2].text
    assert re.search(r"^LLMB notice: .*\bMoE\b.*\bbalanced\b", run.log, re.MULTILINE)
