"""Two configurations compared in turns: the statistics of pairs, and ``llmb-run ab`` to its answer."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import msgspec
import pytest

from llmb_common.results.estimate import StepTime
from llmb_common.results.paired import LOOKS, Pair, compare_pairs, look, looks, order
from llmb_common.results.scatter import STATED
from llmb_common.runs.record import ArrayTask
from llmb_run.campaigns.attempts import attempt_of
from llmb_run.comparing.outcome import as_text
from llmb_run.place import Place
from llmb_run.results.measuring import measure
from support import instant
from support.campaigns import Site
from support.cli import Cli, Done
from support.crashes import run_and_crash
from support.runs import make_run, steady_log
from tools.paired_simulation import CLUSTERS, Cluster, cell
from tools.verdict_simulation import Noise


def run(seconds: float) -> StepTime:
    return StepTime(seconds, 0.0, count=34, mean=seconds, steps=40)


def pairs(*differences: float, drift: float = 0.0) -> list[Pair]:
    """In which B takes e^difference as long, each run e^drift as long as the one before it; A first, B first, ..."""
    found = []
    for at, value in enumerate(differences):
        first = at % 2 == 0
        found.append(Pair(run(1.0), run(math.exp(value + (drift if first else -drift))), first))
    return found


# Statistics


def test_a_drift_is_no_difference() -> None:
    found = compare_pairs(pairs(0.02, 0.02, 0.02, 0.02, drift=0.05))
    assert found is not None
    assert (found.difference, found.drift) == (pytest.approx(0.02), pytest.approx(0.05))
    assert found.noise == pytest.approx(0, abs=1e-9)
    assert (found.answer(), found.pairs) == ("slower", 4)


def test_the_interval_is_students_of_the_pairs() -> None:
    """Four pairs, two parameters: the tail of Student's t with 2 degrees is 0.5 % beyond 9.9248."""
    found = compare_pairs(pairs(0.01, 0.01, -0.01, -0.01))
    assert found is not None
    half = 9.9248 * math.sqrt(4 * 0.01**2 / 2 / 4)
    assert (found.low, found.high) == (pytest.approx(-half, rel=1e-4), pytest.approx(half, rel=1e-4))
    assert found.answer(0.01) == "open"
    assert found.answer(0.2) == "no difference"
    assert compare_pairs(pairs(0.1, 0.1)) is None


def test_a_slow_first_run_of_a_job_is_no_difference_and_no_scatter() -> None:
    """In blocks of both orders; from the fourth on it does not widen the interval either."""
    ends = []
    for cold in (0.0, 0.05):
        found = compare_pairs([pair for number in range(4) for pair in _block(number % 2 == 0, cold)])
        assert found is not None
        ends.append((found.low, found.high))
    assert ends[0] == pytest.approx(ends[1])


def _block(a_first: bool, cold: float) -> list[Pair]:
    one, other = (math.exp(cold), 1.01) if a_first else (1.0, 1.01 * math.exp(cold))
    return [Pair(run(one), run(other), a_first), Pair(run(1.003), run(1.0), not a_first)]


def test_pairs_are_no_surer_than_their_steps() -> None:
    exact = pairs(0.01, 0.01, 0.01, 0.01)
    rough = [replace(pair, first=replace(pair.first, error=0.02)) for pair in exact]
    found = compare_pairs(rough)
    assert found is not None
    assert found.noise == pytest.approx(0.02)


def test_what_the_site_knows_makes_pairs_surer_unless_they_contradict_it() -> None:
    known = replace(STATED, run=0.001, run_degrees=15, day=0.0, learned=True)
    calm, wild = pairs(0.001, 0.001, -0.001, -0.001), pairs(0.05, 0.05, -0.05, -0.05)
    for some, surer in ((calm, True), (wild, False)):
        alone, with_it = compare_pairs(some), compare_pairs(some, known)
        assert alone is not None
        assert with_it is not None
        assert (with_it.high - with_it.low < alone.high - alone.low) is surer


def test_a_step_of_twice_the_work_may_take_twice_the_time() -> None:
    found = compare_pairs([Pair(run(1), run(2), bool(n % 2), work=math.log(2)) for n in range(4)])
    assert found is not None
    assert found.difference == pytest.approx(0)


def test_stalls_count_where_they_are_certain() -> None:
    calm = run(1.0)
    stalled = replace(calm, stalls=(3.0,) * 4)
    found = compare_pairs([Pair(calm, stalled, bool(n % 2)) for n in range(4)])
    assert found is not None
    assert found.stalls == found.difference == pytest.approx(math.log1p(4 * 3 / 40))
    once = compare_pairs([Pair(calm, replace(calm, stalls=(3.0,)) if n == 1 else calm, bool(n % 2)) for n in range(4)])
    assert once is not None
    assert once.stalls == 0, "it may have been an accident"


def test_blocks_come_in_couples_of_both_orders() -> None:
    orders = [order(block, "seed") for block in range(1, 41)]
    assert {frozenset(orders[at : at + 2]) for at in range(0, 40, 2)} == {frozenset(("ABBA", "BAAB"))}
    assert len(set(orders[::2])) == 2, "which is first is left to chance"
    assert orders == [order(block, "seed") for block in range(1, 41)], "whoever asks"


def test_looks_are_at_fixed_numbers_of_blocks() -> None:
    assert looks(12) == [*LOOKS]
    assert looks(10) == [2, 4, 6, 8, 10]
    assert looks(30)[-2:] == [24, 30]
    assert [look(blocks, 12) for blocks in (0, 1, 2, 3, 7, 11, 13)] == [0, 0, 2, 2, 6, 8, 12]


@pytest.mark.parametrize("cluster", [CLUSTERS[2], CLUSTERS[-2], replace(CLUSTERS[1], cold=0.02)], ids=lambda c: c.title)
def test_wrong_winners_stay_below_five_per_cent(cluster: Cluster) -> None:
    """Of 60 trials, with what chance adds to 5 % there. ``docs/compare.md`` has the table."""
    found = cell(cluster, 0.0, trials=60, seed=1, known=False)
    assert found.wrong(0.0) <= 0.12
    assert found.covered >= 0.88
    assert cell(cluster, 0.05, trials=20, seed=1, known=False).answers["faster"] >= 18


def test_the_simulation_draws_what_it_says() -> None:
    calm = Cluster("calm", Noise("", 0.0, 0.0), node=0.0)
    assert cell(calm, 0.02, trials=2, seed=1, known=False).pairs == 4
    assert random.Random("1 a").random() == random.Random("1 a").random()


# The command

BASE = ("ab", "-w", "pretrain_llama3.1", "-s", "smoke", "--dtype", "bf16", "--scale", "1", "--env", "STEP_MS=100")


def test_six_per_cent_less_time_is_a_gain(site: Site) -> None:
    done = site(*BASE, "--change", "STEP_MS=94", "--json")
    assert (done.status, done.data["answer"], done.data["equal_work"]) == (0, "faster", True), done.err
    found = done.data["difference"]
    assert found["low_percent"] < found["difference_percent"] == pytest.approx(-6, abs=0.3)
    assert found["high_percent"] < -4
    assert [block["order"] for block in done.data["blocks"]] in (["ABBA", "BAAB"], ["BAAB", "ABBA"])
    text = site(*BASE, "--change", "STEP_MS=94")
    assert "B takes 6." in text.out or "B takes 5.9 % less time than A (95% interval: -" in text.out
    assert "the same work" in text.out
    assert "this comparison is over; --again begins another one" in text.err
    assert len(instant.accepted()) == 8


def test_equals_are_told_to_be_equal(site: Site) -> None:
    done = site(*BASE)
    assert done.status == 0, done.err
    assert "no difference larger than 1 % (95% interval: " in done.out
    assert "without --change both sides are the same" in done.err


def test_another_loss_is_no_gain(site: Site) -> None:
    for number in range(1, 5):
        instant.direct(f"2.{number}", "90", "unlike")
    done = site(*BASE, "--change", "mbs=2")
    assert done.status == 1
    assert "not the same work, so this is no gain" in done.out


def test_a_side_that_fails_ends_it(site: Site) -> None:
    instant.direct("2.1", "torch.OutOfMemoryError: CUDA out of memory.", "FAILED")
    done = site(*BASE, "--change", "mbs=4", "--json")
    assert (done.status, done.data["answer"]) == (1, "failed")
    assert "B failed: " in done.data["why"]
    assert "CUDA out of memory" in done.data["why"]


def test_a_block_that_a_node_ended_is_made_up_for(site: Site) -> None:
    instant.direct("1.2", "NODE_FAIL")
    done = site(*BASE, "--change", "STEP_MS=94")
    assert done.status == 0, done.err
    assert " did not count: a run has no step time" in done.out
    blocks = site(*BASE, "--change", "STEP_MS=94", "--json").data["blocks"]
    assert {block["order"] for block in blocks if block["counts"]} == {"ABBA", "BAAB"}, "else a slow first run counts"
    assert blocks[-1]["counts"], "no block was begun that no other needs"
    assert len(instant.accepted()) == 4 * len(blocks)


def test_a_run_that_its_allocation_cut_short_has_not_failed(cli: Cli) -> None:
    """One that was ended at its own limit has: the batch script says which it was."""
    record = make_run(cli.install, log=steady_log(100.0, steps=50)[:600])
    (item,) = measure([record.paths.folder], Place(cli.install))
    submission = msgspec.structs.replace(record.submission, task=ArrayTask("s", 1, 4))
    cut = replace(record, submission=submission).with_state("TIMEOUT")
    assert attempt_of(item, cut, timed=True, strict=False).fault.startswith("its allocation ended before")
    events = [{"event": name, "time": 1, "job_id": "1"} for name in ("start", "limit")]
    cut.paths.events.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    assert not attempt_of(item, cut, timed=True, strict=False).fault


def test_what_a_budget_leaves_open_is_said(site: Site) -> None:
    done = site(*BASE, "--change", "STEP_MS=100.4", "--pairs", "4", "--resolution", "0.1%")
    assert done.status == 4
    assert "no difference larger than 2.3 %, and not decided within that (95% interval: -1.5 to +2.3 %): " in done.out
    assert "4 pairs are the most that were allowed (--pairs)" in done.out
    more = site(*BASE, "--change", "STEP_MS=100.4", "--pairs", "8", "--resolution", "5%")
    assert more.status == 0, "the same comparison goes on"
    assert len(instant.accepted()) == 8


def test_killed_at_any_moment_it_goes_on(site: Site) -> None:
    def compare() -> Done:
        return site(*BASE, "--change", "STEP_MS=94", "--json")

    at, crashed = 10, True
    while crashed:
        crashed = run_and_crash(compare, at, site.install)
        at += 90
    done = compare()
    assert (done.status, done.data["answer"]) == (0, "faster")
    keys = [key.rpartition(":")[2] for _, key in instant.accepted()]
    assert sorted(keys) == [f"{arm}.{number}" for arm in (1, 2) for number in range(1, 5)], "each once"


def test_a_run_can_be_the_base(site: Site) -> None:
    """With all that was asked of it, and is not said again: columns, variables, settings of the framework."""
    asked = ("--set", "mbs=2", "--megatron", "ddp.overlap_grad_reduce=false")
    run_id = site("single", *BASE[1:], *asked, "--json", ENABLE_VBOOST="true").data["jobs"][0]["run_id"]
    done = site("ab", "--base", run_id, "--change", "STEP_MS=94", "--json")
    assert (done.status, done.data["answer"]) == (0, "faster"), done.err
    assert "would be another run today" not in done.err
    assert "mbs=2" in done.data["a"]
    assert "overlap_grad_reduce" in done.data["a"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "side A is one job"),
        (("--base", "x", "-w", "y"), "side A is one job"),
        (("-w", "pretrain_llama3.1", "--change", "mbs=1,2"), "mbs has several values"),
        (("-w", "pretrain_llama3.1", "--change", "mbss=1"), "cannot be varied"),
        (("-w", "pretrain_llama3.1", "--resolution", "none"), "is not a percentage"),
        ((*BASE[1:], "--max-steps", "9"), "it ends before step 44"),
        ((*BASE[1:], "--change", "STEP_MS=100"), "--change STEP_MS=100: side A has that already"),
        ((*BASE[1:], "--change", "mbs=1"), "side A has that already"),
    ],
)
def test_what_cannot_be_compared(site: Site, words: tuple[str, ...], said: str) -> None:
    done = site("ab", *words)
    assert done.status == 2
    assert said in done.err


def test_unequal_work_is_said() -> None:
    """A step of another batch is compared by the time for each token, and is no gain."""
    result = {
        "a": "A (a)",
        "b": "B (gbs=8)",
        "rule": {"resolution": 0.01},
        "answer": "faster",
        "why": "",
        "difference": {"difference_percent": -3.0, "low_percent": -4.0, "high_percent": -2.0, "stalls_percent": 0.0}
        | {"pairs": 4, "noise_percent": 0.5, "drift_percent": 0.1},
        "unequal_work": ["gbs"],
        "loss": None,
        "per_token": True,
        "equal_work": False,
        "gpu_hours": 1.5,
        "blocks": [],
    }
    assert "B takes 3.0 % less GPU time for each token than A" in as_text(result)
    assert "not the same work (gbs): the time is for each token and GPU, and this is no gain" in as_text(result)


def test_a_slow_run_is_told_what_the_fastest_has_otherwise(site: Site) -> None:
    """``why --slow``: each difference with the command that shows what it is worth."""
    ids = []
    for milliseconds, mbs, algorithm in (("100", "1", "Tree"), ("90", "2", "Ring")):
        words = ("single", *BASE[1:-2], "--env", f"STEP_MS={milliseconds}", "--env", f"NCCL_ALGO={algorithm}")
        ids.append(site(*words, "--set", f"mbs={mbs}", "--json").data["jobs"][0]["run_id"])
    slow, fast = ids
    words = ("single", *BASE[1:-2], "--env", "STEP_MS=95", "--env", "NCCL_DEBUG=WARN", "--json")
    slower_alone = site(*words).data["jobs"][0]["run_id"]
    (found,) = site("why", "--slow", slow, "--json").data["runs"]
    gap = found["gap"]
    assert (gap["best"], gap["slower"]) == (fast, pytest.approx(100 / 90 - 1, abs=0.002))
    told = {item["name"]: (item["kind"], item["here"], item["there"], item["test"]) for item in gap["differences"]}
    command = f"llmb-run ab --base {slow} --change"
    assert told["mbs"] == ("setting", "1", "2", f"{command} mbs=2")
    assert told["env NCCL_ALGO"] == ("setting", "Tree", "Ring", f"{command} NCCL_ALGO=Ring")
    assert set(told) == {"mbs", "env NCCL_ALGO", "env STEP_MS"}
    (found,) = site("why", "--slow", slower_alone, "--json").data["runs"]
    told = {item["name"]: item["test"] for item in found["gap"]["differences"]}
    assert told["env NCCL_DEBUG"] == f"llmb-run ab --base {fast} --change NCCL_DEBUG=WARN", "nobody can unset it"
    text = site("why", "--slow", slow).out
    assert f"{fast}: this run takes 11.1% more time" in text
    assert f"{command} mbs=2" in text
    assert "no faster run of the same work is on record here" in site("why", "--slow", fast).out
