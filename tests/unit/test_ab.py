"""Two configurations compared in turns: the statistics of pairs, and ``llmb-run ab`` to its answer."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from llmb_common.base.statistics import t_quantile
from llmb_common.measured.measure import measure
from llmb_common.planning.workspace import Workspace
from llmb_common.results import paired
from llmb_common.results.paired import (
    LOOKS,
    ORDERS,
    Block,
    Comparison,
    blocks_at_last_look,
    compare_blocks,
    look_schedule,
    order,
)
from llmb_common.results.sequential import SuiteAttempt
from llmb_common.runs.record import Turn, load_record
from llmb_run.campaigns.conduct import Run, attempt_of, start_and_gpu_hours
from llmb_run.comparing import ab
from llmb_run.comparing.ab import as_text, signed
from llmb_run.comparing.strategy import InTurns, Rule, RunBlock
from support import instant
from support.campaigns import Site
from support.cli import Cli, Done
from support.crashes import run_and_crash
from support.runs import make_run, steady_log, took
from support.texts import Texts
from tools.paired_simulation import CLUSTERS, DISTURBED, Cluster, cell
from tools.verdict_simulation import Noise


def blocks(values: Sequence[float], *orders: str) -> list[Block]:
    """Of which the runs take e^value, in order."""
    rest = iter(values)
    return [Block(letters, tuple(took(math.exp(next(rest))) for _ in letters)) for letters in orders]


def scattered(gain: float, *orders: str) -> list[Block]:
    """In which B takes e^gain as long, and runs scatter by 0.5 %."""
    source = random.Random(1)
    return blocks([source.gauss(0, 0.005) + gain * (side == "B") for side in "".join(orders)], *orders)


# Statistics


def test_every_order_of_two_and_two_is_drawn() -> None:
    assert sorted(ORDERS) == sorted({"".join(order) for order in itertools.permutations("AABB")})


def test_no_other_draw_is_as_extreme() -> None:
    """The bounds of three blocks, by their definition: the least difference with which the draw leads all others."""
    some = scattered(0.02, "ABBA", "BABA", "AABB")
    found = compare_blocks(some)
    assert found is not None
    for bound, beyond in ((found.low, -1e-6), (found.high, 1e-6)):
        first = [_extremes(some, bound + shift) for shift in (beyond, -beyond)]
        assert first == [True, False]


def _extremes(some: list[Block], taken: float) -> bool:
    """Whether these orders find a larger, or a smaller, difference than any others, once ``taken`` is off B."""
    left = [
        [value - taken * (side == "B") for side, value in zip(block.order, block.steady, strict=True)] for block in some
    ]
    found = {orders: _statistic(orders, left) for orders in itertools.product(ORDERS, repeat=len(some))}
    own = found.pop(tuple(block.order for block in some))
    return own > max(found.values()) or own < min(found.values())


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(first, second, strict=True))


def _statistic(orders: tuple[str, ...], values: list[list[float]]) -> float:
    """B's mean less A's, clear of a drift that blocks share, in units of its standard error."""
    turns = (-1.5, -0.5, 0.5, 1.5)
    sides = [[0.5 if side == "B" else -0.5 for side in letters] for letters in orders]
    tilt = sum(_dot(row, turns) for row in sides) / (5 * len(orders))
    own = [[side - tilt * turn for side, turn in zip(row, turns, strict=True)] for row in sides]
    return sum(map(_dot, own, values)) / math.sqrt(sum(_dot(row, row) for row in own))


def test_a_drift_is_no_difference() -> None:
    orders = ("AABB", "AABB", "ABAB")
    found = compare_blocks(
        blocks([0.05 * at + 0.02 * (side == "B") for at, side in enumerate("".join(orders))], *orders)
    )
    assert found is not None
    assert (found.difference, found.drift) == (pytest.approx(0.02), pytest.approx(0.05))
    assert (found.low, found.high) == (pytest.approx(0.02), pytest.approx(0.02))
    assert found.noise == pytest.approx(0, abs=1e-9)
    assert (found.answer(), found.pairs) == ("slower", 6)


def test_two_blocks_say_nothing_and_three_say_no_more_than_their_runs() -> None:
    assert compare_blocks(scattered(0.5, "ABBA", "BAAB")) is None
    calm = compare_blocks(scattered(0.0, "ABBA", "BAAB", "ABAB"))
    assert calm is not None
    assert (calm.answer(0.001), calm.answer(0.2)) == ("open", "no difference")


def test_what_turns_do_is_no_difference_and_no_scatter() -> None:
    """From the sixth block on: a slow first run of a job, and whatever else each block has at the same place."""
    orders = ("ABBA", "AABB", "BABA", "BAAB", "ABAB", "ABBA")
    ends = []
    for first in (0.0, 0.05):
        odd = scattered(0.01, *orders)
        odd = [replace(block, times=(took(math.exp(block.steady[0] + first)), *block.times[1:])) for block in odd]
        found = compare_blocks(odd)
        assert found is not None
        ends.append((found.low, found.high))
    assert ends[0] == pytest.approx(ends[1])


def test_what_runs_scatter_is_what_blocks_a_drift_and_the_difference_leave() -> None:
    """In blocks of ABBA levels, drift and difference are polynomials of the turn, to which a cubic one is orthogonal:
    its squares are all that is left of twelve runs, of which three levels, a drift and a difference were estimated."""
    cubic = [0.001 * value for value in (-1, 3, -3, 1)]
    found = compare_blocks(blocks(cubic * 3, "ABBA", "ABBA", "ABBA"))
    assert found is not None
    assert (found.difference, found.drift) == (pytest.approx(0, abs=1e-12), pytest.approx(0, abs=1e-12))
    squares = 3 * math.fsum(value**2 for value in cubic)
    assert found.noise == pytest.approx(math.sqrt(2 * squares / (12 - 3 - 1 - 1)))


def test_from_the_sixth_block_on_draws_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled: list[int] = []
    sample = paired._sample_draws
    monkeypatch.setattr(
        paired, "_sample_draws", lambda tables, rate: sampled.append(len(tables)) or sample(tables, rate)
    )
    for count in (3, 5, 6):
        assert compare_blocks(scattered(0.02, *ORDERS[:count])) is not None
    assert sampled == [6]


def test_a_lost_run_takes_only_itself_away() -> None:
    whole = scattered(0.02, "ABBA", "BABA", "AABB")
    lost = [replace(whole[0], times=(*whole[0].times[:2], None, whole[0].times[3])), *whole[1:]]
    ends = [compare_blocks(some) for some in (whole, lost)]
    assert [end.pairs for end in ends if end] == [6, 5]
    assert [end.answer() for end in ends if end] == ["slower"] * 2


def test_more_looks_than_usual_are_rarer_wrong() -> None:
    """So that all of them together stay below 5 %."""
    orders = [order(number, "x") for number in range(1, 25)]
    both = [compare_blocks(scattered(0.0, *orders[:count])) for count in (12, 24)]
    widths = [(found.high - found.low) * math.sqrt(found.pairs) for found in both if found]
    assert widths[1] > widths[0] * 1.02


def test_a_step_of_twice_the_work_may_take_twice_the_time() -> None:
    orders = ("ABBA", "BABA", "AABB")
    twice = blocks([math.log(2) * (side == "B") for side in "".join(orders)], *orders)
    found = compare_blocks([replace(block, work=math.log(2)) for block in twice])
    assert found is not None
    assert found.difference == pytest.approx(0)


def test_stalls_count_where_they_are_certain() -> None:
    orders = ("ABBA", "BABA", "AABB")
    found = []
    for at in (range(12), range(1, 2)):
        stalls = [(3.0,) * (4 if n in at and side == "B" else 0) for n, side in enumerate("".join(orders))]
        rest = iter(stalls)
        blocks = [Block(letters, tuple(took(1.0, steps=40, stalls=next(rest)) for _ in letters)) for letters in orders]
        found.append(compare_blocks(blocks))
    often, once = found
    assert often is not None
    assert often.stalls == often.difference == pytest.approx(math.log1p(4 * 3 / 40))
    assert often.low > 0
    assert once is not None
    assert once.stalls == 0, "it may have been an accident"


def test_orders_are_drawn_for_each_block() -> None:
    orders = [order(block, "seed") for block in range(1, 201)]
    assert set(orders) == set(ORDERS)
    assert max(map(orders.count, ORDERS)) < 60
    assert orders == [order(block, "seed") for block in range(1, 201)], "whoever asks"
    firsts = {tuple(due.arm for due in InTurns(f"{n}", Rule(0.01, 12)).due([], {})[:4]) for n in range(60)}
    assert len(firsts) == len(ORDERS), "by the campaign's id"


def test_looks_are_at_fixed_numbers_of_blocks() -> None:
    assert look_schedule(12) == [*LOOKS]
    assert look_schedule(10) == [3, 5, 8, 10]
    assert look_schedule(30)[-2:] == [24, 30]
    assert [blocks_at_last_look(blocks, 12) for blocks in (0, 1, 2, 3, 7, 11, 13)] == [0, 0, 0, 3, 5, 8, 12]


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [CLUSTERS[2], DISTURBED[-3]], ids=lambda c: c.title)
def test_wrong_winners_stay_below_five_per_cent(cluster: Cluster) -> None:
    """Of 30 trials, with what chance adds to 5 % there. ``docs/benchmarks.md`` has the tables."""
    found = cell(cluster, 0.0, trials=30, seed=1)
    assert found.wrong(0.0) <= 0.12
    assert found.covered >= 0.88
    assert cell(cluster, 0.2, trials=5, seed=1).answers["faster"] == 5


def test_the_simulation_draws_what_it_says() -> None:
    found = cell(Cluster("calm", Noise("", 0.0, 0.0)), 0.02, trials=2, seed=1)
    assert (found.pairs, found.answers["faster"]) == (6, 2)


# The command

BASE = ("ab", "-w", "pretrain_llama3.1", "-s", "smoke", "--dtype", "bf16", "--scale", "1", "--env", "STEP_MS=100")


def test_six_per_cent_less_time_is_a_gain(site: Site, texts: Texts) -> None:
    done = site(*BASE, "--change", "STEP_MS=94", "--json")
    assert (done.status, done.data["answer"], done.data["equal_work"]) == (0, "faster", True), done.err
    found = done.data["difference"]
    assert found["low_percent"] < found["difference_percent"] == pytest.approx(-6, abs=0.6)
    assert found["high_percent"] < -4
    assert [sorted(block["order"]) for block in done.data["blocks"]] == [list("AABB")] * 3
    text = site(*BASE, "--change", "STEP_MS=94")
    assert re.search(r"B takes [56]\.[0-9] % less time than A \(95 % interval: -", text.out)
    texts(text.out, about="same work")
    texts(text.err, about="over")
    assert len(instant.accepted()) == 12


def test_a_comparison_that_ended_under_release_0_2_is_still_over(site: Site, texts: Texts) -> None:
    """Its rule had a rate and whether it was precise; its own software it could not go on with."""
    assert site(*BASE, "--change", "STEP_MS=94").status == 0
    (result,) = site.install.glob("campaigns/ab-*/1/result.json")
    content = json.loads(result.read_text())
    content["rule"] |= {"rate": 0.005, "precise": False}
    result.write_text(json.dumps(content))
    frozen = result.with_name("campaign.json")
    frozen.write_text(
        frozen.read_text()
        .replace('"llmb":"', '"llmb":"0.2.0 and before ')
        .replace('"llmb": "', '"llmb": "0.2.0 and before ')
    )
    done = site(*BASE, "--change", "STEP_MS=94")
    assert done.status == 0, done.err
    texts(done.err, about="over")
    assert site(*BASE, "--change", "STEP_MS=94", "--pairs", "30").status == 2, "another rule goes on, with its software"


def test_equals_are_told_to_be_equal(site: Site, texts: Texts) -> None:
    done = site(*BASE)
    assert done.status == 0, done.err
    texts(done.out, about="no difference")
    texts(done.err, about="--change")
    assert [signed(percent) for percent in (-0.04, 0.04, -0.06)] == ["+0.0", "+0.0", "-0.1"]


def test_another_loss_is_no_gain(site: Site, texts: Texts) -> None:
    for number in range(1, 7):
        instant.direct(f"2.{number}", "90", "unlike")
    done = site(*BASE, "--change", "mbs=2")
    assert done.status == 1
    texts(done.out, about="gain")


@pytest.mark.parametrize("how", ["nan", "brief"])
def test_a_variable_that_breaks_the_training_is_no_gain(site: Site, how: str, texts: Texts) -> None:
    """The plans are of the same work; what the job printed is not."""
    instant.direct("2.1", how)
    done = site(*BASE, "--change", "STEP_MS=90", "--json")
    assert (done.status, done.data["answer"], done.data["unequal_work"]) == (1, "failed", [])
    texts(done.data["why"])


def test_a_side_that_fails_ends_it(site: Site, texts: Texts) -> None:
    instant.direct("2.1", "torch.OutOfMemoryError: CUDA out of memory.", "FAILED")
    done = site(*BASE, "--change", "mbs=4", "--json")
    assert (done.status, done.data["answer"]) == (1, "failed")
    texts(done.data["why"])


def test_a_block_that_has_lost_a_run_counts_and_one_that_has_lost_two_is_made_up_for(site: Site, texts: Texts) -> None:
    """Its last run, which nothing would come of, is not started."""
    instant.direct("1.2", "NODE_FAIL")
    for key in ("1.3", "2.3"):
        instant.direct(key, "NODE_FAIL")
    done = site(*BASE, "--change", "STEP_MS=94", "--json")
    assert (done.status, done.data["answer"]) == (0, "faster"), done.err
    assert [block["counts"] for block in done.data["blocks"]] == [True, False, True, True]
    assert [len(block["lost"]) for block in done.data["blocks"]][:1] == [1]
    assert done.data["difference"]["pairs"] == 5
    started = Counter(block["block"] for block in done.data["blocks"] for _ in block["runs"])
    assert (started[1], started[3], started[4]) == (4, 4, 4)
    letters = done.data["blocks"][1]["order"]
    lost = [at for at in range(4) if letters[:at].count(letters[at]) == 0]
    assert started[2] == lost[1] + 1 <= 3, "none after the second that was lost"
    texts(site(*BASE, "--change", "STEP_MS=94").out, about="did not count")


@pytest.mark.parametrize(
    ("runs", "counted", "due"),
    [
        ("1111", "yyyy", ""),
        ("11.1", "yy.y", ""),
        ("1112", "yyy.", ""),
        ("11.2", "yy..", "lost"),
        ("11mm", "yy..", "lost"),
        ("1mmm", ".yyy", ""),
        ("1 2 ", "y...", "lost"),
        ("11. ", "yy..", "lost"),
        (".   ", "....", "   "),
        (".222", ".yyy", ""),
        ("111 ", "yyy.", " "),
    ],
)
def test_runs_count_with_those_of_their_allocation(cli: Cli, runs: str, counted: str, due: str) -> None:
    """``1``, ``2``: a job in which a run got a step time, ``m`` the first one on other nodes; ``.``: it got none; a
    space: its series ended before."""
    record = make_run(cli.install)
    task = msgspec.structs.replace(record.submission, turn=Turn("s", 1, 4))

    def of(number: int, kind: str) -> Run:
        one = replace(record, submission=task, job_id="1" if kind in "1.m" else kind)
        one = replace(one, manifest={"job": {"nodes": "gpu2" if kind == "m" else "gpu1"}})
        if kind == " ":
            return Run(number, one.with_state("NOT_SUBMITTED"))
        return Run(
            number, one.with_state("COMPLETED"), None, SuiteAttempt(took(1.0) if kind != "." else None, fault="x")
        )

    block = RunBlock(1, "AABB", tuple(of(number, kind) for number, kind in enumerate(runs, 1)))
    assert "".join("y" if item else "." for item in block.counted) == counted
    assert (block.ended, block.lost) == (" " not in runs, due == "lost")
    found = [item.cancel for item in block.due(wanted=True)]
    assert found == ([True] * runs.count(" ") if due == "lost" else [False] * len(due))
    assert [item.cancel for item in block.due(wanted=False)] == [True] * runs.count(" "), "a side has failed"
    assert start_and_gpu_hours(record.with_state("CANCELLED"))[1] == 0, "it waited, and held nothing"


def test_a_run_that_its_allocation_cut_short_has_not_failed(cli: Cli, texts: Texts) -> None:
    """One that was ended at its own limit has: the batch script says which it was."""
    record = make_run(cli.install, log=steady_log(100.0, steps=50)[:600])
    (item,) = measure([record.paths.folder], Workspace(cli.install))
    submission = msgspec.structs.replace(record.submission, turn=Turn("s", 1, 4))
    cut = replace(record, submission=submission).with_state("TIMEOUT")
    texts(attempt_of(item, cut, timed=True, strict=False).fault)
    events = [{"event": name, "time": 1, "job_id": "1"} for name in ("start", "limit")]
    cut.paths.events.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    assert not attempt_of(item, cut, timed=True, strict=False).fault


def test_a_run_whose_nodes_were_unfit_says_nothing_of_its_configuration(cli: Cli) -> None:
    record = make_run(cli.install, state="UNFIT", log="")
    (item,) = measure([record.paths.folder], Workspace(cli.install))
    assert "UNFIT" in attempt_of(item, record, timed=True, strict=False).fault


def test_what_a_budget_leaves_open_is_said(site: Site, texts: Texts) -> None:
    done = site(*BASE, "--change", "STEP_MS=100.04", "--pairs", "6", "--resolution", "0.01%")
    assert done.status == 4
    assert re.search(r"open: no difference larger than [.0-9]+ % \(95 % interval: -", done.out)
    texts(done.out, about="(--pairs)")
    more = site(*BASE, "--change", "STEP_MS=100.04", "--pairs", "8", "--resolution", "5%")
    assert more.status == 0, "the same comparison goes on"
    assert len(instant.accepted()) == 12


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
    assert sorted(keys) == [f"{arm}.{number}" for arm in (1, 2) for number in range(1, 7)], "each once"


def test_a_run_can_be_the_base(site: Site) -> None:
    """With all that was asked of it, and is not said again: columns, variables, settings of the framework."""
    asked = ("--set", "mbs=2", "--megatron", "ddp.overlap_grad_reduce=false")
    run_id = site("single", *BASE[1:], *asked, "--json", ENABLE_VBOOST="true").data["jobs"][0]["run_id"]
    done = site("ab", "--base", run_id, "--change", "STEP_MS=94", "--json")
    assert (done.status, done.data["answer"]) == (0, "faster"), done.err
    assert not [text for text in done.envelope["notices"] if run_id in text], "it would run as it did"
    assert "mbs=2" in done.data["a"]
    assert "overlap_grad_reduce" in done.data["a"]


def test_what_a_run_would_do_otherwise_today_is_told_by_value(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    job = site("single", *BASE[1:], "--json").data["jobs"][0]
    record = load_record(Path(job["folder"]))
    environment = {name: item for name, item in record.plan.env.items() if name != "STEP_MS"}
    told: list[str] = []
    monkeypatch.setattr(ab, "notice", told.append)
    ab.say_what_changed(record, msgspec.structs.replace(record.plan, tp=2, env=environment))
    assert [text.split()[0] for text in told] == [job["run_id"]] * 2
    assert {text.rpartition(" today: ")[2] for text in told} == {"tp: 1 -> 2", "env STEP_MS: 100 -> none"}


def test_what_side_a_sets_may_be_left_out_of_side_b(site: Site, texts: Texts) -> None:
    """The dry run shows what differs, and both sides of a run that is the base have what it had."""
    asked = (*BASE[1:], "--env", "NCCL_DEBUG=WARN", "--set", "mbs=2")
    left_out = ("--unset", "NCCL_DEBUG", "--unset", "mbs", "--change", "STEP_MS=94")
    head, *rows = site("ab", *asked, *left_out, "--dry-run").out.splitlines()
    assert head.split()[:5] == ["job", "STEP_MS", "NCCL_DEBUG", "runs", "GPUs"]
    assert [row.split()[1:3] for row in rows] == [["100", "WARN"], ["94", "-"]]
    run_id = site("single", *asked, "--json").data["jobs"][0]["run_id"]
    done = site("ab", "--base", run_id, *left_out, "--json")
    assert (done.status, done.data["answer"]) == (0, "faster"), done.err
    assert done.data["changes"] == {"STEP_MS": "94", "NCCL_DEBUG": None, "mbs": None}
    texts(done.data["b"])
    plans = [load_record(folder).plan for folder in site.install.glob("workloads/*/experiments/*/*_*")]
    assert {("NCCL_DEBUG" in plan.env, plan.mbs, plan.env["STEP_MS"].value) for plan in plans} == {
        (True, 2, "100"),
        (False, 1, "94"),
    }


INCOMPARABLE = (
    (),
    ("--base", "x", "-w", "y"),
    ("-w", "pretrain_llama3.1", "--change", "mbs=1,2"),
    ("-w", "pretrain_llama3.1", "--change", "mbss=1"),
    ("-w", "pretrain_llama3.1", "--resolution", "none"),
    (*BASE[1:], "--budget", "nan"),
    (*BASE[1:], "--budget", "inf"),
    (*BASE[1:], "--max-steps", "9"),
    (*BASE[1:], "--change", "STEP_MS=100"),
    (*BASE[1:], "--change", "mbs=1"),
    (*BASE[1:], "--unset", "NCCL_DEBUG"),
    (*BASE[1:], "--unset", "workload"),
    (*BASE[1:], "--unset", "STEP_MS", "--change", "STEP_MS=9"),
    (*BASE[1:], "--set", "mbs=1", "--unset", "MBS"),
)


def test_what_cannot_be_compared(site: Site, texts: Texts) -> None:
    said = []
    for words in INCOMPARABLE:
        done = site("ab", *words)
        assert (done.status, instant.accepted()) == (2, [])
        dry = site("ab", *words, "--dry-run")
        assert (dry.status, dry.err.replace(" --dry-run", "")) == (2, done.err)
        said.append(done.err)
    texts("".join(said))


def test_unequal_work_is_said(texts: Texts) -> None:
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
    texts(as_text(result))


# Rules of pairs


def compared(low: float, high: float) -> Comparison:
    return Comparison(6, (low + high) / 2, low, high, 0.01, 0.0)


def test_a_bound_at_zero_is_no_difference_and_one_at_the_resolution_is_none_either() -> None:
    limit = math.log1p(0.01)
    answers = {
        (-0.5, 0.0): "open",
        (0.0, 0.5): "open",
        (-0.5, -0.001): "faster",
        (0.001, 0.5): "slower",
        (-limit, limit): "no difference",
        (0.0, 0.0): "no difference",
        (-limit, 0.02): "open",
        (-0.02, limit): "open",
    }
    assert {bounds: compared(*bounds).answer() for bounds in answers} == answers
    assert compared(-0.02, 0.02).answer(0.03) == "no difference"
    assert compared(-0.02, 0.02).stalls == 0.0


def test_blocks_of_which_one_side_has_lost_all_say_nothing() -> None:
    whole = scattered(0.02, "ABBA", "BABA", "AABB")
    for side in "AB":
        left = [
            replace(
                block,
                times=tuple(
                    None if letter == side else time for letter, time in zip(block.order, block.times, strict=True)
                ),
            )
            for block in whole
        ]
        assert compare_blocks(left) is None
        assert [len(block.of(side)) for block in left] == [0, 0, 0]
    assert compare_blocks([]) is None
    lost = replace(whole[0], times=(None, *whole[0].times[1:]))
    assert (lost.turns, len(lost.of("A")), len(lost.of("B"))) == ([1, 2, 3], 1, 2)
    assert lost.steady == whole[0].steady[1:]


@pytest.mark.parametrize(("share", "counts"), [(1.01, True), (0.99, False)])
@pytest.mark.parametrize("worse", ["A", "B"])
def test_stalls_count_from_a_certainty_of_one_in_a_thousand_on(worse: str, share: float, counts: bool) -> None:
    """A fifth of the rate of wrong answers, by Student's t of six runs a side."""
    noise = 0.01
    # Each side's six runs lie as far above as below its own level.
    squares = 12 * noise**2
    half = t_quantile(0.005 / 5, 10) * math.sqrt(squares / 10 * (1 / 6 + 1 / 6))
    seen = Counter[str]()
    blocks = []
    for letters in ("ABBA", "BABA", "AABB"):
        times = []
        for side in letters:
            seen[side] += 1
            log = 0.05 + noise * (-1) ** seen[side] + share * half * (side == worse)
            times.append(took(1.0, steps=40, stalls=(40 * math.expm1(log),)))
        blocks.append(Block(letters, tuple(times)))
    found = compare_blocks(blocks)
    assert found is not None
    sign = 1 if worse == "B" else -1
    assert found.stalls == (pytest.approx(sign * share * half) if counts else 0)


def test_three_runs_tell_of_stalls_and_two_do_not() -> None:
    stalled, calm = took(1.0, steps=40, stalls=(4.0,)), took(1.0, steps=40)
    assert paired._stall_difference([stalled, stalled], [calm], 0.01) == pytest.approx((math.log(1.1),) * 3)
    assert paired._stall_difference([stalled], [calm], 0.01) == (0.0, 0.0, 0.0)
    assert paired._stall_difference([calm], [stalled, stalled], 0.01)[1] == pytest.approx(-math.log(1.1))


def test_a_sample_of_draws_leaves_ten_beyond_either_bound() -> None:
    """With the actual draw itself, of which there is one: 2 000 at a rate of one in 200."""
    tables = [[[float(row)] for row in range(6)] for _ in range(7)]
    for rate, count in ((0.005, 2000), (0.0025, 4000)):
        drawn = list(paired._sample_draws(tables, rate))
        assert len(drawn) + 1 == count
        assert rate * count == 10
        assert drawn == list(paired._sample_draws(tables, rate))
    shares = Counter(draw[0][0] for draw in drawn)
    assert all(abs(times / len(drawn) - 1 / 6) < 0.03 for times in shares.values())
    assert len(shares) == 6


def test_sampled_bounds_are_those_with_which_the_draw_is_among_the_ten_most_extreme(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of seven blocks, by the definition: with the bound off B, nine of the other draws lead the actual one, or ten."""
    orders = ("ABBA", "BABA", "AABB", "BAAB", "ABAB", "BBAA", "ABBA")
    some = scattered(0.02, *orders)
    design = paired._Design(some)
    drawn: list[tuple[list[float], ...]] = []
    sample = paired._sample_draws

    def keeping(tables: Sequence[Sequence[list[float]]], rate: float) -> list[tuple[list[float], ...]]:
        drawn.extend(sample(tables, rate))
        return drawn

    monkeypatch.setattr(paired, "_sample_draws", keeping)
    steady = [block.steady for block in some]
    bounds = design.interval(steady, 0.005)
    assert bounds is not None

    def leading(taken: float, sign: int) -> int:
        """How many of the sampled draws find more, in units of their own error, once ``taken`` is off B's runs."""
        own = seen((), taken)
        return sum(sign * seen(draw, taken) > sign * own for draw in drawn)

    def seen(draw: tuple[list[float], ...], taken: float) -> float:
        if not draw:  # the actual one
            along = math.fsum(value**2 for value in design._own)
            return (math.fsum(map(math.prod, zip(design._own, left, strict=True))) - taken * along) / math.sqrt(along)
        score, along, squared, *shared = map(sum, zip(*draw, strict=True))
        return (score - taken * along) / math.sqrt(squared - sum(part * part for part in shared))

    left = design._residual(paired._join_centred(steady))
    low, middle, high = bounds
    assert low < middle < high
    # A larger difference taken off makes the actual draw lead fewer of the others.
    assert leading(low - 1e-9, 1) < leading(low + 1e-9, 1) == 10
    assert leading(high + 1e-9, -1) < leading(high - 1e-9, -1) == 10
