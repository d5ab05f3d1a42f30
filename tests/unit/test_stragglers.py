"""Whom the others waited for: by layouts, by who stands out, and how rarely chance does."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.paths import dry_run_paths
from llmb_common.runs.stragglers import Waits, read_waits, straggler_in, straggler_of
from llmb_common.submission.job_files import job_document
from support.campaigns import Site
from support.documented_jobs import documented_rows, plan_of
from support.gpu_nodes import write_node
from support.texts import Texts

STEP = 2.0


def plan(gpus: int, **changes: Any) -> JobPlan:
    usual = plan_of(*next(documented_rows()))
    layout = {"tp": 1, "pp": 1, "nodes": max(1, gpus // 8), "gpus_per_node": min(gpus, 8), **changes}
    return msgspec.structs.replace(usual, gpus=gpus, **layout)


def recorded(gpus: int, wait: Callable[[int, int], float], steps: int = 5) -> Waits:
    """``wait`` of a rank in a step."""
    waited = tuple(tuple(wait(rank, step) for step in range(steps)) for rank in range(gpus))
    return Waits(1, tuple(range(46, 46 + steps)), (STEP,) * steps, waited)


def all_but(*slow: int, by: float = 0.3) -> Callable[[int, int], float]:
    """Everybody waits ``by`` seconds more than ``slow``, and a little of their own."""
    dice = random.Random(1)
    return lambda rank, step: dice.uniform(0.01, 0.03) + (0.0 if rank in slow else by)


def named(layout: JobPlan, waits: Waits) -> tuple[str, tuple[int, ...]] | None:
    found = straggler_of(layout, waits)
    return (found.what, found.ranks) if found else None


@pytest.mark.parametrize("gpus", [2, 4, 64])
def test_a_rank_that_never_waits_is_the_one_that_the_others_wait_for(gpus: int) -> None:
    assert named(plan(gpus), recorded(gpus, all_but(1))) == ("rank", (1,))


def test_where_a_tensor_parallel_group_waits_as_a_whole_it_is_named() -> None:
    assert named(plan(16, tp=4), recorded(16, all_but(4, 5, 6, 7))) == ("TP group", (4, 5, 6, 7))
    assert named(plan(16, tp=4), recorded(16, all_but(5))) == ("rank", (5,))


def test_a_node_whose_ranks_are_all_slow() -> None:
    assert named(plan(64), recorded(64, all_but(*range(8, 16)))) == ("node", tuple(range(8, 16)))


@pytest.mark.parametrize("gpus", [8, 64])
def test_two_slow_ranks_are_both_named(gpus: int) -> None:
    """Each was compared with the other, and neither was ever found."""
    assert named(plan(gpus), recorded(gpus, all_but(1, 6))) == ("rank", (1, 6))


def test_of_many_slow_ranks_the_others_are_fast() -> None:
    assert named(plan(8), recorded(8, all_but(1, 3, 6))) is None


def test_in_a_mixture_of_experts_it_may_be_the_load(texts: Texts) -> None:
    plans = [plan_of(*row) for row in documented_rows()]
    for experts in (False, True):
        kind = next(made for made in plans if made.has_experts == experts)
        layout = msgspec.structs.replace(kind, gpus=8, tp=1, pp=1, nodes=1, gpus_per_node=8)
        found = straggler_of(layout, recorded(8, all_but(1, 6)))
        assert found is not None
        texts(found.text)


def test_stages_of_a_pipeline_are_compared_each_with_itself() -> None:
    later = lambda rank, step: 0.8 if rank >= 8 else 0.1 + 0.001 * rank  # noqa: E731
    assert named(plan(16, pp=2), recorded(16, later)) is None, "the second stage waits for the first by design"
    slow = all_but(11)
    assert named(plan(16, pp=2), recorded(16, lambda r, s: later(r, s) + slow(r, s))) == ("rank", (11,))
    assert named(plan(2, pp=2), recorded(2, later)) is None, "with one replica there is nothing to compare"


@pytest.mark.parametrize(
    "wait",
    [
        lambda rank, step: 0.01 if rank == step % 4 else 0.3,
        lambda rank, step: 0.01 if rank == 1 and step not in (1, 3) else 0.3,
        lambda rank, step: 0.01 if rank in (1, 2) else 0.3,
        lambda rank, step: 0.01 if rank == 1 else 0.1,
        lambda rank, step: 0.01 if rank == 1 else (0.12, 0.9, 0.5, 0.2, 0.7)[step],
    ],
    ids=["another each time", "not always", "two of them", "too little", "unevenly"],
)
def test_nobody_is_named_where_it_may_be_chance(wait: Callable[[int, int], float]) -> None:
    assert named(plan(4), recorded(4, wait)) is None


def at_work(
    dice: random.Random, gpus: int, noise: float, slow: float = 0.0, pause: float = 0.0, who: tuple[int, ...] = (1,)
) -> Waits:
    """Six steps whose length is that of the slowest rank's work: ranks ``who`` take ``slow`` longer, and in one step
    another one pauses."""
    work = [[dice.lognormvariate(0, noise) + slow * (rank in who) for rank in range(gpus)] for _ in range(6)]
    work[dice.randrange(6)][0] += pause
    seconds = tuple(0.1 + max(step) for step in work)
    waited = tuple(tuple(max(step) - step[rank] + dice.uniform(0.05, 0.06) for step in work) for rank in range(gpus))
    return Waits(1, tuple(range(45, 51)), seconds, waited)


@pytest.mark.parametrize("noise", [0.02, 0.1])
@pytest.mark.parametrize("gpus", [2, 8, 64])
def test_runs_without_a_slow_rank_name_one_at_most_in_one_of_a_hundred(gpus: int, noise: float) -> None:
    dice, planned = random.Random(7), plan(gpus)
    tried = 400 if gpus < 64 else 50
    assert sum(named(planned, at_work(dice, gpus, noise)) is not None for _ in range(tried)) <= tried // 100


@pytest.mark.parametrize("pause", [0.0, 1.0])
@pytest.mark.parametrize("gpus", [2, 8, 64])
def test_a_rank_slower_by_a_fifth_is_named_though_another_one_pauses_in_a_step(gpus: int, pause: float) -> None:
    dice, planned = random.Random(8), plan(gpus)
    found = [named(planned, at_work(dice, gpus, 0.01, slow=0.2, pause=pause)) for _ in range(50)]
    assert set(found) <= {("rank", (1,)), None}
    assert found.count(("rank", (1,))) >= 45


@pytest.mark.parametrize("gpus", [8, 64])
def test_two_ranks_slower_by_a_fifth_are_named(gpus: int) -> None:
    dice, planned = random.Random(9), plan(gpus)
    found = [named(planned, at_work(dice, gpus, 0.01, slow=0.2, who=(1, 5))) for _ in range(50)]
    assert found.count(("rank", (1, 5))) >= 45


def test_too_few_steps_and_other_numbers_of_ranks_say_nothing() -> None:
    assert named(plan(4), recorded(4, all_but(1), steps=2)) is None
    assert named(plan(8), recorded(4, all_but(1))) is None


def test_the_file_is_not_believed_and_the_node_is_named(tmp_path: Path, texts: Texts) -> None:
    content = msgspec.to_builtins(recorded(16, all_but(9)))
    (tmp_path / "waits.json").write_text(json.dumps(content))
    write_node(tmp_path, "n1", rank=0)
    write_node(tmp_path, "n2", rank=8)
    found = straggler_in(tmp_path, plan(16))
    assert found is not None
    texts(found.text)
    for wrong in ("[]", "{", json.dumps({**content, "seconds": [1]}), json.dumps({**content, "waited": [["x"] * 5]})):
        (tmp_path / "waits.json").write_text(wrong)
        assert read_waits(tmp_path) is None
        assert straggler_in(tmp_path, plan(16)) is None


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({}, 45),
        ({"max_steps": 47}, 45),
        ({"max_steps": 46}, None),
        ({"max_steps": 100}, 81),
        ({"exit_after": 50}, None),
        ({"gpus": 1}, None),
    ],
)
def test_ranks_record_their_waits_only_after_the_measured_steps(changes: dict[str, Any], first: int | None) -> None:
    usual = plan_of(*next(documented_rows()))
    assert (usual.measurement.last, usual.max_steps) == (44, 50)
    document = job_document(msgspec.structs.replace(usual, **changes), dry_run_paths("/w", "x"))
    assert document["steps"]["waits_from"] == first


def test_show_and_why_name_whom_the_others_waited_for(site: Site, texts: Texts) -> None:
    done = site("single", "-w", "pretrain_llama3.1", "-s", "smoke", "--scale", "2", "--json")
    (job,) = done.data["jobs"]
    word, folder = job["run_id"], Path(job["folder"])
    texts(site("why", "--slow", word).out)
    (folder / "waits.json").write_text(json.dumps(msgspec.to_builtins(recorded(2, all_but(1)))))
    (said,) = [line for line in site("why", "--slow", word).out.splitlines() if "rank 1" in line]
    texts(said)
    assert said.partition("rank 1")[2] in site("show", word).out
    assert site("why", "--slow", word, "--json").data["runs"][0]["straggler"]["ranks"] == [1]
    assert site("show", word, "--json").data["straggler"]["what"] == "rank"
    (folder / "waits.json").write_text(json.dumps(msgspec.to_builtins(recorded(2, all_but(0, 1)))))
    texts(site("why", "--slow").out)
    assert site("show", word, "--json").data["straggler"] is None
