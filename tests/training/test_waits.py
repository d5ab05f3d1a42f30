"""One rank is made slow, in each of the places where ranks are: the others wait, it does not, and it is named."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from training_jobs import Engine, make_job

from llmb_common.runs.evidence.stragglers import read_waits, straggler_of


def named(folder: Path, **layout: int) -> tuple[str, tuple[int, ...]] | None:
    waits = read_waits(folder)
    assert waits is not None
    plan: Any = SimpleNamespace(
        **{"gpus": len(waits.waited), "nodes": 1, "gpus_per_node": 8, "pp": 1, "tp": 1, **layout}
    )
    found = straggler_of(plan, waits)
    return (found.what, found.ranks) if found else None


@pytest.mark.parametrize(("slow", "where"), [(0, "data"), (1, "optimizer")])
def test_a_slow_rank_is_named(engine: Engine, tmp_path: Path, slow: int, where: str) -> None:
    job = make_job(world_size=2, steps={"train": 7, "waits_from": 3})
    (tmp_path / "slow").write_text(f"{slow}:{where}:{0.8 if where == 'optimizer' else 0.2}")
    run = engine.train(tmp_path, job, script="train_slowly.py")
    assert named(tmp_path) == ("rank", (slow,))
    assert sorted(run.steps) == [1, 2, 3, 4, 5, 6, 7]
    assert json.loads((tmp_path / "waits.json").read_text())["steps"] == [3, 4, 5, 6, 7]


def test_a_slow_rank_of_a_tensor_parallel_group_is_named(engine: Engine, tmp_path: Path) -> None:
    job = make_job(world_size=4, parallelism={"tp": 2}, steps={"train": 7, "waits_from": 3})
    (tmp_path / "slow").write_text("2:forward:0.3")
    engine.train(tmp_path, job, script="train_slowly.py")
    assert named(tmp_path, tp=2) in (("rank", (2,)), ("TP group", (2, 3)))
