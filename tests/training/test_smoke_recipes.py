"""The smoke size of every recipe: trained, profiled, saved, and resumed to exactly the same loss.

What launch.sh, torchrun and fresh interpreters add is the same for all of them: ``test_launched_smoke.py``, and for
loading ``tests/cluster/test_launch_on_slurm.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from training_jobs import (
    LOSS_TOLERANCE,
    SMOKE_LOSSES,
    SMOKE_PROFILE,
    SMOKE_SAVING,
    SMOKE_SIZE,
    Engine,
    TrainingRun,
    printed_losses,
)

from llmb_common.planning.plan import make_plan
from llmb_common.recipes.loading import load_recipe
from llmb_common.rendering.job import job_document
from llmb_common.request.read import read_request
from llmb_common.runs.paths import dry_run_paths
from llmb_common.site.cluster import cluster_config
from llmb_common.site.machine import Machine

ROOT = Path(__file__).resolve().parents[2]
LAYOUTS: list[tuple[str, dict[str, str]]] = [
    ("llama3.1", {}),
    ("llama4", {"EP": "2"}),
    ("grok1", {"EP": "2", "GBS": "4"}),
    ("grok1", {"EP": "1", "PP": "2", "VP": "2", "TP": "1", "GBS": "4"}),
    ("nemotron4", {"TP": "2"}),
]


def train(engine: Engine, recipe: str, folder: Path, **variables: str) -> TrainingRun:
    """Plan the recipe's smoke size on two ranks of this machine, as launch.sh would, and train it in ``folder``."""
    request = read_request({"LLMB_INSTALL": str(folder), **SMOKE_SIZE, **variables})
    plan = make_plan(load_recipe(ROOT / recipe), cluster_config(), request, Machine(cluster_type="local"))
    return engine.train(folder, job_document(plan, dry_run_paths(str(folder), plan.experiment_name)))


@pytest.mark.parametrize(("recipe", "layout"), LAYOUTS, ids=lambda v: v if isinstance(v, str) else "-".join(v) or "row")
def test_smoke_trains_saves_and_resumes(recipe: str, layout: dict[str, str], engine: Engine, tmp_path: Path) -> None:
    whole = train(engine, recipe, tmp_path / "whole", **layout, **SMOKE_SAVING, **SMOKE_PROFILE)
    losses = printed_losses(whole.log)
    assert sorted(losses) == [1, 2, 3, 4]
    if recipe == "llama3.1":  # as on the other engine: test_other_engine.py
        assert {step: float(loss) for step, loss in losses.items()} == pytest.approx(SMOKE_LOSSES, abs=LOSS_TOLERANCE)
    assert list(tmp_path.glob("whole/output/*profile*/**/*.json*")), "the PyTorch profiler left no trace"
    (checkpoint,) = tmp_path.glob("whole/**/checkpoints/iter_0000003")
    resumed = train(engine, recipe, tmp_path / "resumed", **layout, LOAD_CHECKPOINT_PATH=str(checkpoint))
    assert printed_losses(resumed.log) == {4: losses[4]}
