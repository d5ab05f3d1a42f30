"""How two sides of runs compare: by how much runs differ, and by ranks."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from llmb_common.base.statistics import t_quantile
from llmb_common.results.comparison import (
    Change,
    Contender,
    _rank_interval,
    _rank_sums,
    compare_times,
    differences,
    facts_of_plan,
    loss_difference,
    ranked,
    unequal_work,
)
from llmb_common.results.level import ERROR_RATE, difference_of_bounds, level
from llmb_common.results.scatter import NOTHING_SEEN, STATED, Scatter, Squares, batches, squares
from llmb_common.results.steps import StepTime
from llmb_common.runs.record import RunRecord
from support.runs import PUBLISHED, losses, make_run, plan_for, took


def test_a_change_is_real_where_its_interval_leaves_out_one() -> None:
    assert not Change(1.1, 1.0, 1.2).is_real
    assert Change(1.1, 1.01, 1.2).is_real
    assert Change(0.9, 0.8, 0.99).is_real
    assert not Change(0.9, 0.8, 1.0).is_real


def test_the_interval_of_a_comparison_is_made_of_the_two_sides() -> None:
    one, other = [took(10.0), took(10.2)], [took(11.0), took(11.1), took(11.3)]
    of_one, of_other = squares(batches(one)), squares(batches(other))
    for alike, of_either in ((True, of_other), (False, of_other.weighing_as(of_one))):
        found = compare_times(one, other, alike=alike)
        before, after = level(one, STATED, of_either), level(other, earlier=of_one)
        assert found.ratio == pytest.approx(statistics.geometric_mean([11.0, 11.1, 11.3]) / math.sqrt(10.0 * 10.2))
        assert math.log(found.ratio / found.low) == pytest.approx(math.hypot(before.half, after.half))
        swapped = compare_times(other, one, alike=alike)
        assert (swapped.low, swapped.high) == pytest.approx((1 / found.high, 1 / found.low))


def test_of_many_runs_only_as_many_say_how_few_others_scatter() -> None:
    many, few = Squares(0.4, 4, 0.9, 9, 0.5), Squares(0.0, 0, 0.5, 2, 1.0)
    assert many.weighing_as(few) == pytest.approx(Squares(0.0, 0, 0.2, 2, 0.5)), "the same variance"
    assert few.weighing_as(many) == few
    assert many.weighing_as(NOTHING_SEEN) == pytest.approx(NOTHING_SEEN._replace(share=0.5))


@pytest.mark.parametrize(("many", "few"), [(20, 3), (10, 4)])
def test_few_runs_that_scatter_more_are_not_called_different(many: int, few: int) -> None:
    source = random.Random(5)
    wrong = 0
    for _ in range(300):
        calm = [took(10 * math.exp(source.gauss(0, 0.005))) for _ in range(many)]
        noisy = [took(10 * math.exp(source.gauss(0, 0.03))) for _ in range(few)]
        wrong += compare_times(calm, noisy).is_real
    assert wrong / 300 < 0.06, "0.1 to 0.2 where all of the calm runs say how the few scatter"


def apart(first: Sequence[float], second: Sequence[float]) -> Change:
    """Two sides, each run on a day of its own."""
    return compare_times([took(value) for value in first], [took(value) for value in second])


NINE = (9.06, 9.08, 9.11, 9.13, 9.17)
"""Seconds of five runs; of other runs, 3 % slower."""
TEN = (9.34, 9.36, 9.39, 9.43, 9.48)


def test_five_runs_of_each_that_lie_apart_show_a_difference() -> None:
    found = apart(NINE, TEN)
    assert found.is_real
    assert (found.low, found.high) == pytest.approx((9.34 / 9.17, 9.48 / 9.06)), "of any two runs"
    swapped = apart(TEN, NINE)
    assert (swapped.low, swapped.high) == pytest.approx((1 / found.high, 1 / found.low))
    by_scatter = compare_times([took(value) for value in NINE], [took(value) for value in TEN], ranks=False)
    assert not by_scatter.is_real
    wild = apart(NINE, (*TEN[:4], 15.0))
    assert wild.is_real, "one odd run does not hide it"


@pytest.mark.parametrize(("few", "many"), [(3, 3), (4, 4), (2, 5), (4, 5)])
def test_fewer_runs_may_lie_apart_by_chance(few: int, many: int) -> None:
    assert not apart(NINE[:few], TEN[:many]).is_real
    assert not apart(NINE[:many], TEN[:few]).is_real


def test_runs_of_two_evenings_are_one_of_each() -> None:
    sides = [
        [msgspec.structs.replace(took(value), day=day) for value in side] for side, day in ((NINE, "1"), (TEN, "2"))
    ]
    assert not compare_times(*sides).is_real, "a day may do as much to all of them"
    together = [[msgspec.structs.replace(run, day="1") for run in side] for side in sides]
    assert compare_times(*together).is_real, "it does the same to both"
    near = [
        [msgspec.structs.replace(took(10.0 + step / 100 + more), day="1") for step in range(5)] for more in (0.0, 0.1)
    ]
    assert compare_times(*near).is_real, "1 % apart, and each run counts for itself"


def test_ranks_hold_whatever_the_distribution() -> None:
    """Of equal sides at most 1.2 % are called different, and with ten of each some of them need not lie apart."""
    source = random.Random(5)
    draws = [[source.paretovariate(2) for _ in range(10)] for _ in range(4000)]
    found = [bounds for values in draws if (bounds := _rank_interval(values[:5], values[5:]))]
    assert len(found) == 4000
    assert sum(not low <= 0 <= high for low, high in found) / 4000 < 0.012
    shifted = [value + 4.5 for value in range(10)]
    low, high = _rank_interval([float(value) for value in range(10)], shifted) or (0, 0)
    assert 0 < low < 4.5 < high
    assert _rank_interval([1.0] * 5, [2.0] * 5) is not None
    assert _rank_interval([1.0] * 4, [2.0] * 20) is None, "the four may scatter more than the twenty"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (NINE, (9.07, 9.10, 9.12, 9.15, 9.20)),
        (NINE, (NINE[-1], *TEN[1:])),  # the two that meet are no difference
        ((*[9.0 + step / 100 for step in range(9)], 30.0), [9.2 + step / 100 for step in range(10)]),
    ],
    ids=["mixed", "touching", "one odd run turns the means around"],
)
def test_ranks_have_no_say_where_they_show_no_difference_or_another_one(
    first: Sequence[float], second: Sequence[float]
) -> None:
    for one, other in ((first, second), (second, first)):
        sides = [took(value) for value in one], [took(value) for value in other]
        assert compare_times(*sides) == compare_times(*sides, ranks=False)


def test_runs_that_do_not_differ_at_all_show_what_there_is_between_the_sides() -> None:
    found = apart([1.0] * 5, [1.03] * 5)
    assert (found.low, found.ratio, found.high) == (pytest.approx(1.03),) * 3, "of each of the 25 pairs"


def orders(first: int, second: int) -> Counter[int]:
    """In how many orders of all values so many pairs have the second side's value first: each order looked at."""
    every = range(first + second)
    return Counter(
        sum(a > b for a in places for b in set(every) - set(places)) for places in itertools.combinations(every, first)
    )


def test_the_orders_of_two_sides_are_counted() -> None:
    for first, second in ((2, 3), (3, 3), (1, 4), (4, 2)):
        seen = orders(first, second)
        assert _rank_sums(first, second) == [seen[ways] for ways in range(first * second + 1)]


@pytest.mark.parametrize("sizes", [(5, 6), (6, 5), (6, 6), (5, 9)])
def test_bounds_by_ranks_are_the_shifts_that_a_test_of_all_orders_just_bears(sizes: tuple[int, int]) -> None:
    """Of so many orders at most half of the error rate may be as far from the middle, or farther."""
    source = random.Random(7)
    one, other = ([source.random() for _ in range(size)] for size in sizes)
    seen = orders(*sizes)

    def chance(shift: float) -> float:
        """Of as few pairs as these, or fewer, in which the second side is ahead of the first by less than that."""
        pairs = sum(b - a < shift for a in one for b in other)
        return sum(ways for count, ways in seen.items() if count <= pairs) / seen.total()

    low, high = _rank_interval(one, other) or (0.0, 0.0)
    backward = [-value for value in one], [-value for value in other]
    assert _rank_interval(*backward) == (-high, -low)
    assert low < high
    assert chance(low - 1e-9) <= ERROR_RATE / 2 < chance(low + 1e-9)


def test_more_than_forty_days_of_a_side_are_not_ranked() -> None:
    few, most, many = ([float(value) for value in range(count)] for count in (5, 40, 41))
    assert _rank_interval(few, most)
    assert _rank_interval(most, few)
    assert _rank_interval(few, many) is None
    assert _rank_interval(many, few) is None


def test_what_a_day_does_it_does_to_both_sides_of_a_comparison() -> None:
    apart = [msgspec.structs.replace(took(seconds), day=day) for seconds, day in ((10.0, "1"), (10.2, "2"))]
    together = [msgspec.structs.replace(item, day="1") for item in apart]
    ratios = [compare_times(side[:1], side[1:]) for side in (apart, together)]
    assert ratios[1].high < ratios[0].high
    unknown = compare_times([took(10.0)], [took(10.2)])
    assert unknown.high == pytest.approx(ratios[0].high)


def test_what_one_side_saw_of_stalls_the_other_may_have_missed() -> None:
    """Of runs that are alike, every third loses 16 steps' time at once: three of a side often meet none."""
    calm, stalled = took(10.0, steps=40), took(10.0, steps=40, stalls=(16.0,))
    assert not compare_times([calm] * 5, [calm, stalled, calm, stalled, calm]).is_real
    assert not compare_times([calm], [stalled]).is_real
    assert not compare_times([calm] * 3, [stalled] * 3).is_real
    assert compare_times([calm] * 10, [stalled] * 10).is_real


def test_stalls_count_in_a_comparison() -> None:
    stalling = msgspec.structs.replace(took(10.0), stalls=(1.0,) * 40)
    assert compare_times([took(10.0)], [stalling]).ratio == pytest.approx(1.1)


def test_losses_that_are_no_numbers_are_not_compared() -> None:
    assert loss_difference(losses(2.0, math.nan, 4.0), losses(2.2, 9.0, 4.0)) == (1, pytest.approx(0.1))
    assert loss_difference(losses(2.0, 3.0), losses(math.inf, None)) is None
    assert loss_difference(losses(0.0), losses(1.0)) is None


def test_what_is_left_is_as_uncertain_as_all_that_is_taken_off() -> None:
    low, middle, high = difference_of_bounds((-0.10, -0.07, -0.06), [(-0.06, -0.03, -0.02), (-0.03, -0.01, 0.01)])
    assert middle == pytest.approx(-0.03)
    assert middle - low == pytest.approx(math.hypot(0.03, 0.01, 0.02))
    assert high - middle == pytest.approx(math.hypot(0.01, 0.03, 0.02))


def test_variables_are_told_in_the_order_of_their_names(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, **PUBLISHED, NCCL_PROTO="LL", NCCL_ALGO="Ring")
    for env in (plan.env, dict(reversed(plan.env.items()))):
        names = [name for name in facts_of_plan(msgspec.structs.replace(plan, env=env)) if name.startswith("env ")]
        assert {"env NCCL_ALGO", "env NCCL_PROTO"} <= {*names}
        assert names == sorted(names)


def test_a_side_without_runs_is_compared_with_nothing() -> None:
    for first, second in (([], [took(1.0)]), ([took(1.0)], []), ([], [])):
        with pytest.raises(ValueError, match="a side without"):
            compare_times(first, second)


def on_days(days: str, *seconds: float, stalls: tuple[float, ...] = ()) -> list[StepTime]:
    return [took(value, day=day, stalls=stalls) for value, day in zip(seconds, days, strict=True)]


def test_sides_of_the_same_two_days_differ_by_what_runs_do_and_not_by_what_days_do() -> None:
    """Two days of one run each: a side's mean varies by half of a run's variance, and the difference by all of it."""
    first, second = on_days("12", 10.0, 10.0), on_days("12", 11.0, 11.0)
    stated = compare_times(first, second)
    assert math.log(stated.high / stated.ratio) == pytest.approx(t_quantile(ERROR_RATE, 6) * STATED.run)
    site = Scatter(0.02, 12.0, 0.01, 12.0, learned=True)
    still = compare_times(on_days("12", 10.0, 10.0), on_days("34", 11.0, 11.0), replace(site, day=0.0))
    assert compare_times(first, second, site) == still
    assert compare_times(first, on_days("13", 11.0, 11.0), site).high > still.high, "another day may be another one"


def test_where_the_record_is_contradicted_the_days_that_both_have_still_count_for_neither() -> None:
    """Runs of a day that differ by 2 % at a site that knows 0.1 %: what is stated of runs is pooled with them."""
    site = Scatter(0.02, 15.0, 0.001, 15.0, learned=True)
    days = "1122"
    sides = [on_days(days, *(level * 1.02 ** (at % 2) for at in range(4))) for level in (10.0, 12.0)]
    assert compare_times(*sides, site) == compare_times(*sides, STATED, ranks=False)


@pytest.mark.parametrize("stalled", [0, 1])
def test_the_runs_of_either_side_may_have_stalled_by_chance(stalled: int) -> None:
    """Three runs show how stalls scatter only where a site knows how its runs do."""
    sides = [on_days("123", 10.0, 10.0, 10.0, stalls=(30.0,) * (side == stalled)) for side in range(2)]
    stated = compare_times(*sides)
    known = compare_times(*sides, Scatter(STATED.day, 6.0, STATED.run, 6.0, learned=True))
    assert math.log(stated.high / stated.low) > 1.5 * math.log(known.high / known.low)


def test_ranks_have_no_say_where_there_is_a_difference_already() -> None:
    sides = [took(value) for value in NINE], [took(1.2 * value) for value in TEN]
    assert compare_times(*sides, ranks=False).is_real
    assert compare_times(*sides) == compare_times(*sides, ranks=False)


def test_the_largest_difference_of_losses_is_a_share_of_the_firsts_wherever_it_is() -> None:
    one = losses(2.0, 4.0, 8.0, None)
    assert loss_difference(one, losses(2.2, 3.0, 8.0, 9.0, 5.0)) == (2, pytest.approx(0.25)), "also a smaller one"
    assert loss_difference(one, losses(2.0, 4.0), losses(2.0, 4.4, 10.0)) == (3, pytest.approx(0.25)), "of any other"
    assert loss_difference(one, losses(3.0, 6.0)) == (2, pytest.approx(0.5)), "of equal ones the last"
    assert loss_difference(one, losses(None, None, None, 1.0)) is None
    assert loss_difference(one) is None


def test_a_value_of_a_side_is_told_with_how_many_runs_have_it(tmp_path: Path) -> None:
    record = make_run(tmp_path)
    runs = {llmb: replace(record, manifest={"llmb": llmb} if llmb else {}) for llmb in ("", "a", "b")}
    first = [runs["a"], runs["b"], runs["b"], runs[""]]
    assert differences(first, [runs["b"]]) == [("llmb", "b (2) / a (1) / - (1)", "b")]
    assert differences([runs["a"], runs["b"]], [runs["b"], runs["a"]]) == [("llmb", "a (1) / b (1)", "b (1) / a (1)")]
    assert differences([runs["a"]] * 2, [runs["a"]]) == []


def test_of_the_hosts_of_repeats_each_node_is_counted(tmp_path: Path) -> None:
    """A node that all runs of one side had, and none of the other, is what two sets of nodes are compared for."""
    record = make_run(tmp_path)

    def on(*hosts: str) -> RunRecord:
        return replace(record, manifest={"job": {"evidence": {"nodes": len(hosts), "hosts": hosts}}})

    slow, others = [on("n1", "n7"), on("n2", "n7")], [on("n1", "n2")] * 2
    assert differences(slow, others) == [("hosts", "n7 (2) / n1 (1) / n2 (1)", "n1, n2")]


def test_the_variant_is_work_only_where_a_function_is_called(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, **PUBLISHED)
    other = msgspec.structs.replace(plan, variant="another")
    assert unequal_work(plan, other) == ()
    function = SimpleNamespace()
    for one, two in ((True, False), (False, True), (True, True)):
        calling = [
            msgspec.structs.replace(item, function=function if calls else None)
            for item, calls in ((plan, one), (other, two))
        ]
        assert "variant" in unequal_work(*calling)
        assert "variant" not in unequal_work(calling[0], calling[0])
    assert unequal_work(plan, msgspec.structs.replace(plan, gbs=2 * plan.gbs)) == ("gbs",)


def test_which_values_somebody_chose_is_no_fact_of_a_plan(tmp_path: Path) -> None:
    chosen = plan_for(tmp_path, **PUBLISHED, TP="4")
    assert chosen.overridden == ("tp",)
    assert facts_of_plan(chosen) == facts_of_plan(msgspec.structs.replace(chosen, overridden=()))


def test_contenders_share_a_place_with_the_fastest_of_it_and_are_ranked_by_their_time_per_token() -> None:
    quiet = Scatter(0.0, 15.0, 0.002, 15.0, learned=True)

    def contender(name: str, seconds: float, tokens: float) -> Contender:
        return Contender(name, [took(seconds)] * 3, tokens, quiet)

    # Of 2 000 tokens in 20.06 s, one takes 0.3 % longer than of 1 000 in 10 s.
    all_of_them = [contender("slow", 12.0, 1000), contender("near", 20.06, 2000), contender("fast", 10.0, 1000)]
    found = ranked([*all_of_them, contender("last", 12.01, 1000)])
    assert [(item.of, place) for item, place, _ in found] == [("fast", 1), ("near", 1), ("slow", 3), ("last", 3)]
    first, near, slow, _ = (change for _, _, change in found)
    assert first is None
    assert near is not None
    assert slow is not None
    assert (near.ratio, slow.ratio) == (pytest.approx(1.003), pytest.approx(1.2))
    assert near.low < 1 < near.high
    assert math.log(near.ratio / near.low) == pytest.approx(math.log(near.high / near.ratio)), "of runs that scatter"
    assert near.high / near.ratio == pytest.approx(slow.high / slow.ratio)
    assert all_of_them[1].seconds == pytest.approx(0.01003)
    assert ranked([]) == []
