"""One rank is made slow, in each of the places where ranks are: the others wait, it does not, and it is named."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from training_jobs import Engine, make_job

from llmb_common.runs.stragglers import read_waits, straggler_of


def named(folder: Path, **layout: int) -> tuple[str, tuple[int, ...]] | None:
    waits = read_waits(folder)
    assert waits is not None
    plan: Any = SimpleNamespace(
        has_experts=False, **{"gpus": len(waits.waited), "nodes": 1, "gpus_per_node": 8, "pp": 1, "tp": 1, **layout}
    )
    found = straggler_of(plan, waits)
    return (found.what, found.ranks) if found else None


def train_slowly(engine: Engine, folder: Path, job: dict[str, Any], slow: str, seconds: float, **layout: int) -> Any:
    """What is named, and its run. On a busy machine all ranks wait for cores now and then: then it is slower still."""
    for factor in (1, 4, 16):
        here = folder / str(factor)
        here.mkdir()
        (here / "slow").write_text(f"{slow}:{factor * seconds}")
        run = engine.train(here, job, script="train_slowly.py")
        if found := named(here, **layout):
            break
    return found, run, json.loads((here / "waits.json").read_text())


STEPS: dict[str, Any] = {"steps": {"train": 13, "waits_from": 4}}
"""Ten measured steps, each of as few sequences as there are ranks that divide them."""


@pytest.mark.parametrize("slow", ["0:data", "1:optimizer"])
def test_a_slow_rank_is_named(engine: Engine, tmp_path: Path, slow: str) -> None:
    job = make_job(world_size=2, batch={"gbs": 2}, **STEPS)
    found, run, waits = train_slowly(engine, tmp_path, job, slow, 0.2)
    assert found == ("rank", (int(slow[0]),))
    assert sorted(run.steps) == [*range(1, 14)]
    assert waits["steps"] == [*range(4, 14)]


def test_a_slow_rank_of_a_tensor_parallel_group_is_named(engine: Engine, tmp_path: Path) -> None:
    job = make_job(world_size=4, parallelism={"tp": 2}, batch={"gbs": 2}, **STEPS)
    found, _, _ = train_slowly(engine, tmp_path, job, "2:forward", 0.3, tp=2)
    assert found in (("rank", (2,)), ("TP group", (2, 3)))
