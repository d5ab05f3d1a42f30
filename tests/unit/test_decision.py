"""The answer that runs give: pass, fail or open."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from llmb_common.base.statistics import f_tail, t_quantile
from llmb_common.results.decision import LOOKS, Decision, _projected_level, decide, doubling, runs_at_last_look
from llmb_common.results.level import CONFIDENCE, ERROR_RATE, Level, level, mean_error, pooled
from llmb_common.results.scatter import NOTHING_SEEN, STATED, Scatter, Squares, batches, squares
from llmb_common.results.steps import StepTime, estimate
from support.runs import took
from support.texts import Texts

QUIET = Scatter(0.0, 15.0, 0.002, 15.0, learned=True)
"""A site whose runs differ by 0.2 %."""


def one_run_half(error_rate: float = ERROR_RATE) -> float:
    """Half the interval of a single run without any record, as a logarithm: the stated day and run together."""
    day, single = STATED.day**2, STATED.run**2
    degrees = (day + single) ** 2 / (day**2 / 6 + single**2 / 6)
    return t_quantile(error_rate, degrees) * math.sqrt(day + single)


def test_a_single_run_needs_room_for_what_runs_differ_by():
    at_reference = decide([took(10.0, steps=10**7)], 10.0)
    assert at_reference.answer == "open"
    assert (at_reference.source, at_reference.days, at_reference.runs) == ("stated", 1, 1)
    assert math.log(at_reference.high) == pytest.approx(one_run_half(), rel=1e-3)
    assert math.log(at_reference.low) == pytest.approx(-one_run_half(), rel=1e-3)
    assert STATED.total == pytest.approx(0.027, abs=1e-4)
    assert at_reference.more_runs == 2


def test_steady_repeats_on_days_of_their_own_outweigh_the_prior():
    resolutions = [decide([took(10.0)] * count, 10.0).resolution for count in (1, 2, 3, 5, 10)]
    assert resolutions == sorted(resolutions, reverse=True)
    assert decide([took(10.0)] * 3, 10.0).answer == "pass"
    assert resolutions[-1] < 0.02


def test_repeats_of_one_evening_are_one_where_nothing_is_known_of_days():
    evening = decide([took(10.0, day="1")] * 10, 10.0)
    assert (evening.answer, evening.days) == ("open", 1)
    assert evening.resolution > t_quantile(ERROR_RATE, 100) * STATED.day
    assert evening.more_runs is not None, "on other days"
    apart = decide([took(10.0, day=f"{at}") for at in range(10)], 10.0)
    assert (apart.answer, apart.days) == ("pass", 10)


def test_a_site_that_knows_its_days_lets_repeats_of_one_evening_count():
    calm = Scatter(0.001, 12, 0.005, 12, learned=True)
    loud = Scatter(0.03, 12, 0.005, 12, learned=True)
    evening = [took(10.0 + step, day="1") for step in (-0.05, 0.0, 0.05)]
    assert decide(evening, 10.0, scatter=calm).resolution < 0.015
    assert decide(evening, 10.0, scatter=loud).resolution > 0.06


def test_scattered_repeats_widen_the_interval():
    calm = decide([took(10.0)] * 3, 10.0)
    wild = decide([took(9.0), took(10.0), took(11.0)], 10.0)
    assert wild.ratio == pytest.approx(calm.ratio, rel=0.01)
    assert wild.resolution > 2 * calm.resolution
    assert (wild.answer, wild.source) == ("open", "runs")


def test_a_record_that_the_runs_contradict_is_dropped_for_what_is_stated_and_that_for_their_own_scatter():
    apart = [took(10.0), took(10.1), took(10.2)]
    assert decide(apart, 10.0, scatter=QUIET).source == "stated"
    assert decide(apart, 10.0, scatter=QUIET).scattered
    near = [took(10.0), took(10.01), took(10.02)]
    assert (decide(near, 10.0, scatter=QUIET).source, decide(near, 10.0, scatter=QUIET).scattered) == ("site", False)
    wild = [took(9.0), took(10.0), took(11.0)]
    found = level(wild, QUIET)
    assert (found.spread.source, found.spread.scattered, found.spread.degrees) == ("runs", True, 2)
    assert mean_error(wild) == pytest.approx(statistics.stdev(item.log for item in wild) / math.sqrt(3))
    assert not decide(wild, 10.0).scattered, "there is no record that could be wrong"


def test_a_conflict_is_a_scatter_that_chance_makes_in_less_than_one_case_of_ten():
    calm = Scatter(0.0, 15.0, 0.01, 15.0, learned=True)

    def scattered(by: float) -> bool:
        return level([took(math.exp(value)) for value in (-by, 0.0, by)], calm).spread.scattered

    # Three runs at -b, 0, +b have the variance b^2, of two degrees of freedom.
    edge = next(f / 1000 for f in range(1000, 9000) if f_tail(f / 1000, 2, 15) < 0.10)
    assert not scattered(0.01 * math.sqrt(edge * 0.99))
    assert scattered(0.01 * math.sqrt(edge * 1.01))


def test_the_site_speaks_for_a_configuration_that_ran_three_times():
    assert decide([took(10.0)], 10.0, scatter=QUIET).source == "stated"
    assert decide([took(10.0)] * 2, 10.0, scatter=QUIET).source == "stated"
    assert decide([took(10.0)] * 3, 10.0, scatter=QUIET).source == "site"
    before = [took(11.0), took(11.01), took(11.02)]
    known = decide([took(10.0)], 10.0, scatter=QUIET, earlier=squares(batches(before)))
    assert (known.source, known.answer) == ("site", "pass"), "a single run equal to its reference"
    assert known.ratio == pytest.approx(1.0), "earlier runs do not say how fast it is"


def test_how_many_more_runs_follows_from_the_record_that_will_speak_then():
    """Two runs later; what is stated would ask for more than thirty."""
    single = decide([took(10.3)], 10.0, scatter=QUIET)
    assert (single.source, single.more_runs, single.other_days) == ("stated", 2, False)
    assert (decide([took(10.3)], 10.0).more_runs or 99) > 9
    assert decide([took(10.3)] * 3, 10.0, scatter=QUIET).answer == "pass"


def test_a_site_that_is_louder_than_what_is_stated_is_believed_at_once():
    loud = Scatter(0.0, 15.0, 0.04, 15.0, learned=True)
    single = decide([took(11.5)], 10.0, scatter=loud)
    assert (single.source, single.answer, decide([took(11.5)], 10.0).answer) == ("site", "open", "fail")


def test_a_quiet_site_resolves_one_per_cent_with_five_runs():
    calm = Scatter(0.0, 15.0, 0.005, 15.0, learned=True)
    source = random.Random(1)
    found = [decide([took(source.gauss(10.0, 0.05)) for _ in range(5)], 10.0, scatter=calm) for _ in range(100)]
    assert statistics.median(item.resolution for item in found) < 0.01
    slow = [decide([took(source.gauss(10.65, 0.05)) for _ in range(5)], 10.0, scatter=calm) for _ in range(100)]
    assert sum(item.answer == "fail" for item in slow) >= 95


def test_slower_runs_differ_by_more_seconds():
    assert decide([took(15.0)], 10.0).resolution == pytest.approx(1.5 * decide([took(10.0)], 10.0).resolution)


def test_runs_do_not_make_up_for_a_reference_of_a_single_run():
    """More runs would decide against an exact reference; against this one none do, and it is not the limit's fault."""
    exact, rough = decide([took(10.0)], 10.0), decide([took(10.0)], 10.0, reference_error=0.027)
    assert (exact.answer, exact.more_runs, exact.reference_too_uncertain) == ("open", 2, False)
    assert (rough.answer, rough.more_runs, rough.reference_too_uncertain) == ("open", None, True)
    assert not decide([took(10.0)], 10.0 / 1.05, reference_error=0.027).reference_too_uncertain, "at the limit anyway"
    many = decide([took(10.0, day=str(number % 3)) for number in range(80)], 10.0, reference_error=0.03)
    assert (many.answer, many.more_runs, many.reference_too_uncertain) == ("open", None, True), "of three days"


@pytest.mark.parametrize(
    ("seconds", "runs", "more", "answer"),
    [
        (9.5, 1, {}, "pass"),
        (9.6, 1, {}, "pass"),
        (9.6, 1, {"error_rate": 0.001}, "open"),
        (11.5, 1, {}, "fail"),
        (10.3, 20, {}, "pass"),
        (10.8, 20, {}, "fail"),
        (11.0, 3, {"tolerance": 0.25}, "pass"),
        (10.5, 9, {"tolerance": 0.0}, "fail"),
    ],
)
def test_a_ratio_its_number_of_runs_and_what_is_asked_make_the_answer(seconds, runs, more, answer):
    assert decide([took(seconds)] * runs, 10.0, **more).answer == answer
    assert decide([took(seconds / 20)] * runs, 0.5, **more).answer == answer, "also of less than a second"


def test_the_error_of_a_run_counts():
    assert decide([took(9.6, error=0.4)], 10.0).answer == "open"


@pytest.mark.parametrize(("seconds", "then"), [(10.3, "pass"), (10.8, "fail"), (10.49, None), (10.5, None)])
def test_more_runs_lead_to_the_look_that_decides(seconds, then):
    """Forty runs are the most that are asked for, and at the limit none would do."""
    asked = decide([took(seconds)], 10.0)
    assert asked.answer == "open"
    assert (asked.more_runs is None) == (then is None)
    if then:
        assert 1 + asked.more_runs in LOOKS
        assert decide([took(seconds)] * (1 + asked.more_runs), 10.0).answer == then


@pytest.mark.parametrize(("steps", "rarest"), [((2,), 1), ((40,), 13), ((40, 41), 27)])
def test_a_stall_of_a_third_of_the_steps_is_seen_in_19_of_20_cases(steps: tuple[int, ...], rarest: int) -> None:
    found = decide([took(10.0, steps=count) for count in steps], 10.0).rarest_stall
    assert found == rarest
    assert found == 1 or (1 - 1 / found) ** sum(steps) < 0.05


def test_nothing_to_compare_is_refused(texts: Texts) -> None:
    for runs, reference in (([], 10.0), ([took(1.0)], 0.0), ([took(1.0)], float("nan"))):
        with pytest.raises(ValueError) as refused:  # noqa: PT011
            decide(runs, reference)
    texts(refused.value)


def on_days(runs: Sequence[StepTime], days: int) -> list[StepTime]:
    """The same, in turns on so many days."""
    return [msgspec.structs.replace(run, day=str(number % days)) for number, run in enumerate(runs)]


@pytest.mark.parametrize(("count", "answer"), [(1, "open"), (3, "fail"), (5, "fail")])
def test_two_of_ten_measured_steps_at_ten_times_their_length_are_no_pass(count, answer):
    steps = [10.0] * 30 + [100.0, 10.0, 10.0, 10.0, 100.0, *[10.0] * 5]
    measured = estimate(steps[-10:], steps)
    found = decide([measured] * count, 10.0)
    assert found.answer == answer
    assert found.stall_share == pytest.approx(18 / 40)
    assert found.steady == pytest.approx(1.0)
    assert found.ratio == pytest.approx(1.45)


def test_steady_steps_alone_pass_while_their_stalls_do_not():
    found = decide([took(10.0, stalls=(0.5,) * 40)] * 3, 10.0)
    assert (found.answer, found.steady_answer) == ("open", "pass")
    dear = decide([took(10.0, stalls=(1.0,) * 60)] * 3, 10.0)
    assert (dear.answer, dear.steady_answer) == ("fail", "pass")
    assert dear.stall_share == pytest.approx(0.15)


@pytest.mark.parametrize("count", [3, 5, 7, 10])
def test_stalls_that_come_as_regularly_as_those_of_the_reference_pass(count: int) -> None:
    """Every 25th step takes three times as long, in each run alike: the mean is as certain as that of steady steps."""
    steps = [30.0 if index % 25 == 0 else 10.0 for index in range(11, 51)]
    runs = on_days([estimate(steps[24:34], steps)] * count, 5)
    found = decide(runs, 11.0)
    assert (found.answer, found.ratio) == ("pass", pytest.approx(1.0))
    calm = decide(on_days([took(11.0)] * count, 5), 11.0)
    assert found.high == pytest.approx(calm.high)
    assert decide(runs, 10.0 / 1.05).answer != "pass", "what they cost counts"


def test_the_runs_own_means_say_how_far_they_are_to_be_trusted() -> None:
    """Stalls of some runs only leave more open than as many in all."""
    even = level([took(10.0, stalls=(0.5,) * 4)] * 5)
    burst = level([took(10.0, stalls=(0.5,) * 20), *[took(10.0)] * 4])
    assert burst.stalls == pytest.approx(even.stalls, abs=1e-4)
    assert burst.mean_half > even.mean_half
    wild = level([took(10.0, stalls=(4.0,) * 20), *[took(10.0)] * 4])
    assert wild.spread.source == "runs"
    assert wild.half == even.half, "the steady steps are as they were"


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_runs_do_not_show_how_often_steps_stall(count: int) -> None:
    one, ten = ([took(10.0, steps=40, stalls=shares)] * count for shares in ((2.0,), (0.2,) * 10))
    assert level(one).stalls == pytest.approx(level(ten).stalls)
    assert level(one).mean_half > level(ten).mean_half > level([took(10.0)] * count).mean_half


@pytest.mark.parametrize("count", [3, 7])
def test_stalls_of_a_single_day_fail_nothing(count: int) -> None:
    """On four days of five there are none: runs of two days have seen them by accident in one case of 25."""
    runs = [took(10.0, steps=40, stalls=(1.0,) * 8)] * count
    once, twice = decide(on_days(runs, 1), 10.0), decide(on_days(runs, 2), 10.0)
    assert (once.answer, once.held, once.other_days, twice.answer, twice.held) == (
        *("open", True, True),
        *("fail", False),
    )
    assert once.ratio == pytest.approx(1.2)
    assert (once.more_runs or 0) > 0
    slow = [took(12.0, steps=40, stalls=(1.0,) * 8)] * count
    assert decide(on_days(slow, 1), 10.0).answer == "fail", "as its steady steps do"


def test_stalls_of_the_evening_that_is_judged_count():
    stalling = [msgspec.structs.replace(estimate([10.0] * 10, ([10.0] * 9 + [30.0]) * 4), day="1")] * 5
    assert decide(stalling, 10.0).answer == "open", "other days may have none"
    assert decide(stalling, 10.0, scatter=STATED.of_one_day).answer == "fail"


def test_one_burst_of_slow_steps_fails_no_run():
    """Eight steps in a row of three times the time: the mean is 40 % off, and has one cause."""
    once = msgspec.structs.replace(estimate([10.0] * 10, [10.0] * 22 + [30.0] * 8 + [10.0] * 10), day="1")
    assert decide([once], 10.0).answer == "open"
    assert decide([once, *[took(10.0)] * 4], 10.0).answer == "open"
    often = estimate([10.0] * 10, ([10.0, 30.0] * 8 + [10.0] * 24))
    assert often.stalls == (2.0,) * 8
    assert decide([often] * 3, 10.0).answer == "fail"


def test_how_often_steps_are_fast_is_as_uncertain_as_how_often_they_are_slow():
    """Every eighth step takes 80 % of the time; in some runs by chance hardly any does, and they are not slow."""
    source = random.Random(1)

    def one(day: int) -> StepTime:
        steps = [0.8 if source.random() < 0.125 else source.gauss(1, 0.001) for _ in range(40)]
        return msgspec.structs.replace(estimate(steps[24:34], steps), day=str(day))

    fails = sum(
        decide([one(day) for day in range(5)], 0.975 / 1.05, scatter=QUIET).answer == "fail" for _ in range(300)
    )
    assert fails <= 9
    assert level([took(1.0, steps=20, stalls=(-50.0,))]).mean > -3, "no step takes less than no time"


def test_unusually_fast_steps_win_nothing():
    """Skipped steps take half of the time; the run without them would not pass."""
    slow = decide([took(10.6, stalls=(-0.5,) * 100)] * 10, 10.0)
    assert slow.ratio < 1.0
    assert slow.answer != "pass"
    assert slow.steady == pytest.approx(1.06)


# Days that a site without a record has not seen


def test_below_five_days_no_less_than_the_stated_scatter_is_believed() -> None:
    """All days so far may be of one kind, and repeats of a day add nothing to it."""
    spreads = [level(on_days([took(10.0)] * count, days)).spread for count, days in ((4, 4), (8, 4), (12, 4))]
    for spread in spreads:
        assert spread.variance == pytest.approx(STATED.total**2 / 4)
    settled = level(on_days([took(10.0)] * 5, 5)).spread
    assert settled.variance < 0.8 * STATED.total**2 / 5
    twice = level(on_days([took(10.0)] * 10, 5)).spread
    assert twice.variance < settled.variance, "then repeats of a day count"
    rough, fewer = (level(on_days([took(10.0, error=0.5)] * count, 4)).spread for count in (12, 4))
    assert rough.variance < fewer.variance, "the error inside a run is its own, and not the day's"
    known = squares(batches(on_days([took(9.0)] * 4, 4)))
    assert level(on_days([took(10.0)] * 4, 4), earlier=known).spread.variance < spreads[0].variance, "eight days"
    assert level(on_days([took(10.0)] * 4, 4), QUIET).spread.variance < spreads[0].variance / 10, "a record knows"


def test_verdicts_come_at_fixed_numbers_of_runs():
    assert [runs_at_last_look(count) for count in (0, 1, 2, 3, 4, 5, 9, 10, 39, 40, 79, 80, 400)] == [
        *(0, 1, 1, 3, 3, 5, 5, 10, 20, 40, 40, 80, 320)
    ]
    assert pytest.approx(0.9767, abs=1e-4) == CONFIDENCE


# To the digit, and at its edges


def test_a_decision_to_the_digit() -> None:
    runs = [took(10.0), took(10.4)]
    found = decide(runs, 10.0, tolerance=0.2, reference_error=0.01)
    middle = math.sqrt(1.04)
    # Two days of one run each: their scatter is pooled with the stated variance of a day's mean.
    day, single = STATED.day**2, STATED.run**2
    prior = (day + single) ** 2 / (day**2 / 6 + single**2 / 6)
    variance = (prior * (day + single) + math.log(1.04) ** 2 / 2) / (prior + 1)
    half = t_quantile(ERROR_RATE, prior + 1) * math.sqrt(variance / 2 + 0.01**2)
    assert (found.ratio, found.limit, found.runs) == (pytest.approx(middle), pytest.approx(1.2), 2)
    assert found.low == pytest.approx(middle * math.exp(-half))
    assert found.high == pytest.approx(middle * math.exp(half), rel=1e-3)
    assert found.steady_half == pytest.approx(middle * math.expm1(half))
    assert found.resolution == pytest.approx(found.high - middle)
    assert (found.answer, found.more_runs) == ("pass", None)


@pytest.mark.parametrize(
    "earlier",
    [NOTHING_SEEN, Squares(within=3e-6, within_degrees=1), Squares(between=9e-6, between_degrees=1)],
    ids=["nothing", "a pair of a day", "a pair of days"],
)
def test_the_level_two_runs_later_is_that_of_two_runs_which_scatter_as_the_record_says(earlier: Squares) -> None:
    """Each variance is the mean of the record's, of what was seen and of these two, each as often as it counts."""
    site = Scatter(0.002, 9.0, 0.001, 12.0, learned=True)
    run = (12 * 0.001**2 + earlier.within + 2 * 0.001**2) / (14 + earlier.within_degrees)
    one_more = 0.002**2 + run
    # Of the sum of two variances (Satterthwaite).
    degrees = one_more**2 / (0.002**4 / 9 + run**2 / (14 + earlier.within_degrees))
    every = degrees + earlier.between_degrees + 2
    variance = (degrees * one_more + earlier.between + 2 * (0.002**2 + 0.001**2)) / every
    now = level([took(10.0)], site, earlier, error_rate=0.004, extra_error=0.003)
    assert now.spread.source == "stated"
    then = _projected_level(now, [took(10.0)], site, earlier, 0.004, 0.003)
    assert then.spread.source == "site"
    assert then.mean_half == pytest.approx(t_quantile(0.004, every) * math.sqrt(variance + 0.003**2))


def test_runs_that_say_how_far_the_record_is_to_be_trusted_say_it_of_later_ones_as_well() -> None:
    for runs, site in (
        ([took(10.0)] * 3, QUIET),  # they confirm it
        ([took(10.0), took(10.1), took(10.2)], QUIET),  # they contradict it
        ([took(9.0), took(10.0), took(11.0)], STATED),
        ([took(10.0)], replace(QUIET, learned=False)),  # there is none
    ):
        now = level(runs, site)
        assert _projected_level(now, runs, site, NOTHING_SEEN, ERROR_RATE, 0.0) is now


def test_a_bound_at_the_limit_passes_and_does_not_fail() -> None:
    free = level([took(10.0)])
    for bound, at, beside in ((free.high, "pass", "open"), (free.low, "open", "fail")):
        tolerance = math.exp(bound) / 10.0 - 1
        assert decide([took(10.0)], 10.0, tolerance=tolerance * (1 + 1e-12) + 1e-12).answer == at
        assert decide([took(10.0)], 10.0, tolerance=tolerance - 1e-9).answer == beside


@pytest.mark.parametrize(
    ("judged", "waiting", "room", "more"),
    [
        ("11111", "1111", 0.32, 11),  # one day of nine runs, and eleven of one: sqrt(1/9 + 11) / 12 = 0.278
        ("11111", "1111", 0.20, 31),
        ("11111", "1111", 0.10, None),
        ("11111", "1112", 0.32, 11),  # days of eight and of one, and eleven of one
        ("11111", "", 0.42, 5),  # sqrt(1/5 + 5) / 6 = 0.380
        ("1234512345", "12345", 0.25, 25),  # five days of three: sqrt(5/3 + 5) / 10 = 0.258 is too much
        ("1111122222", "", 0.29, 10),  # sqrt(2/5 + 10) / 12 = 0.269
        ("1111122222", "", 0.20, 30),
    ],
)
def test_how_many_more_runs_follows_from_the_mean_of_days_with_so_many_runs_each(
    judged: str, waiting: str, room: float, more: int | None
) -> None:
    """A day's mean of n runs varies by 1/n of what a run does where days do not differ, and the mean of days by the sum
    of that over the square of their number. Its bound is to be in the room that is left up to the limit."""
    site = Scatter(0.0, 1e6, 0.01, 1e6, learned=True)
    unit = t_quantile(ERROR_RATE, 1e6) * site.run
    for sign in (-1, 1):  # to pass, and to fail
        runs = [took(10.5 * math.exp(sign * room * unit), day=day) for day in judged + waiting]
        found = decide(runs[: len(judged)], 10.0, scatter=site, waiting=runs[len(judged) :])
        assert (found.answer, found.more_runs) == ("open", more)
    days = [(judged + waiting).count(day) for day in set(judged + waiting)]
    sizes = [size - len(runs) for size in LOOKS if size > len(runs)]
    halves = {size: math.sqrt(sum(1 / count for count in days) + size) / (len(days) + size) for size in sizes}
    assert more == next((size for size in sizes if halves[size] <= room), None)


@pytest.mark.parametrize("count", [3, 4, 6, 7, 8, 9, 10, 15, 19])
def test_the_runs_that_would_decide_do_where_they_are_like_these(count: int) -> None:
    """Of one evening: also where some of its runs wait for the next look, and none is promised of the same evening."""
    noise = (0.004, -0.005, 0.001, -0.002, 0.005)
    evening = [took(10.024 * (1 + noise[at % len(noise)]), day="first", steps=40) for at in range(count)]
    judged, waiting = evening[: runs_at_last_look(count)], evening[runs_at_last_look(count) :]
    found = decide(judged, 10.0, waiting=waiting)
    assert (found.answer, found.other_days) == ("open", True)
    assert found.more_runs is not None
    assert runs_at_last_look(count + found.more_runs) == count + found.more_runs
    further = [msgspec.structs.replace(evening[at % len(noise) % count], day=f"{at}") for at in range(found.more_runs)]
    assert decide([*evening, *further], 10.0).answer == "pass"


def known(**fields: Any) -> Decision:
    return Decision("pass", **{"ratio": 1.0, "low": 0.9, "high": 1.1, "limit": 1.05, "runs": 3} | fields)


def test_what_a_decision_does_not_tell_is_not_known() -> None:
    """As somebody makes one who knows no more than the interval."""
    told = known()
    assert (told.more_runs, told.other_days, told.reference_too_uncertain, told.held) == (None, False, False, False)
    assert (told.source, told.scattered, told.days) == ("stated", False, 1)
    assert (told.stall_share, told.steady_answer, told.steps, told.rarest_stall) == (0.0, "pass", 0, 1)
    assert (told.steady, told.steady_half) == (0.0, 0.0)


def test_what_is_resolved_is_the_distance_to_the_farther_bound() -> None:
    assert known(low=0.75, high=1.125).resolution == 0.25
    assert known(low=0.875, high=1.5).resolution == 0.5


def test_steady_steps_at_the_limit_pass_and_do_not_fail() -> None:
    assert known(steady=1.0, steady_half=0.5, limit=1.5).steady_answer == "pass"
    assert known(steady=1.0, steady_half=0.5, limit=1.25).steady_answer == "open"
    assert known(steady=1.0, steady_half=0.5, limit=0.5).steady_answer == "open"
    assert known(steady=1.0, steady_half=0.5, limit=0.25).steady_answer == "fail"
    assert known(ratio=1.5, steady=1.2).stall_share == pytest.approx(0.25)


def test_looks_go_on_at_each_doubling() -> None:
    assert list(itertools.islice(doubling((2, 3, 5)), 6)) == [2, 3, 5, 10, 20, 40]


def test_steps_of_runs_that_do_not_know_all_of_theirs_are_those_that_were_measured() -> None:
    assert decide([took(10.0, steps=0, count=12), took(10.0, steps=30)], 10.0).steps == 42


def test_runs_of_unknown_days_repeated_on_their_own_days_decide_nothing() -> None:
    """Of a single run at the reference two more would decide on other days, and on the same one none would."""
    assert decide([took(10.0)], 10.0).other_days
    loud = Scatter(0.02, 15.0, 0.02, 15.0, learned=True).of_one_day
    (single, three) = (decide([took(10.3, day="1")] * count, 10.0, scatter=loud) for count in (1, 3))
    assert (single.answer, three.answer) == ("open", "open")
    assert single.more_runs is not None
    assert (single.other_days, three.other_days) == (False, False), "there are none for it"


def test_more_runs_are_one_at_least() -> None:
    for count in (1, 3, 5, 10):
        found = decide([took(10.35, day="1")] * count, 10.0)
        assert found.answer == "open"
        assert found.more_runs is None or found.more_runs > 0


def test_a_reference_without_an_error_is_never_too_uncertain() -> None:
    for count in (1, 5, 40, 60):
        found = decide([took(10.5, day=str(at % 3)) for at in range(count)], 10.0)
        assert (found.answer, found.more_runs, found.reference_too_uncertain) == ("open", None, False)


def test_a_reference_is_too_uncertain_where_the_last_look_would_decide_without_its_error() -> None:
    """And not one before: forty days would resolve what twenty leave open."""
    site = Scatter(0.0, 1e6, 0.01, 1e6, learned=True)
    unit = t_quantile(ERROR_RATE, 1e6) * site.run

    def uncertain(room: float) -> bool:
        run = took(10.5 * math.exp(-room * unit))
        earlier = squares(batches([took(10.0), took(10.1), took(10.2)]))
        found = decide([run], 10.0, reference_error=0.02, scatter=site, earlier=earlier)
        assert (found.answer, found.more_runs) == ("open", None)
        return found.reference_too_uncertain

    assert uncertain(1.02 / math.sqrt(20))
    assert uncertain(1.02 / math.sqrt(40))
    assert not uncertain(0.98 / math.sqrt(40))


# The level and what it is made of


def test_intervals_have_the_truth_in_them_in_97_7_per_cent() -> None:
    assert pytest.approx(0.9767, abs=1e-4) == CONFIDENCE


def made(steady: float, half: float, stalls: float, mean_half: float, *, repeated: bool) -> Level:
    return Level(steady, half, stalls, mean_half, repeated, level([took(1.0)]).spread)


def test_bounds_reach_as_high_as_those_of_the_steady_steps_and_as_low_where_stalls_do_not_count() -> None:
    counted, alone = (made(2.0, 0.5, 1.0, 0.25, repeated=repeated) for repeated in (True, False))
    assert counted.bounded == (2.75, 3.0, 3.25)
    assert alone.bounded == (1.5, 3.0, 3.25)
    fast = made(2.0, 0.5, -1.0, 0.25, repeated=True)
    assert fast.bounded == (0.75, 1.0, 2.5)
    wide = made(2.0, 0.5, 0.0, 1.0, repeated=False)
    assert wide.bounded == (1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("stalls", "repeated"),
    [("++", True), ("+.", False), ("..", False), ("--", False), ("+-", False), (".+", False), ("++-", True)],
)
def test_stalls_count_where_steps_were_slower_on_two_days(stalls: str, repeated: bool) -> None:
    shares = {"+": (0.5,), "-": (-0.5,), ".": ()}
    runs = [took(10.0, day=str(at), stalls=shares[sign]) for at, sign in enumerate(stalls)]
    assert level(runs).repeated is repeated
    assert level(runs, STATED.of_one_day).repeated


def test_a_site_that_is_just_as_loud_as_is_stated_is_not_believed_at_once() -> None:
    as_loud = replace(STATED, learned=True)
    louder = replace(STATED, run=STATED.run * 1.001, learned=True)
    assert [level([took(10.0)], site).spread.source for site in (as_loud, louder)] == ["stated", "site"]


def test_what_days_share_is_all_until_days_are_known_and_else_their_part_of_the_variance() -> None:
    site = Scatter(0.02, 12.0, 0.01, 12.0, learned=True)
    runs = [took(10.0, day=day) for day in "1122"]
    # The two runs of either day do not differ: twelve degrees of what is known, and two of nothing.
    run = 12 * 0.01**2 / 14
    assert level(runs, site).spread.day_share == pytest.approx(0.02**2 / (0.02**2 + run / 2))
    assert level(runs, replace(site, day=0.0)).spread.day_share == 0
    assert level(runs).spread.day_share == 1, "of two days nobody knows"
    assert level(runs, site).spread.another == pytest.approx(0.02**2 + run)


def test_a_single_day_is_as_uncertain_as_a_day_and_a_share_of_its_runs() -> None:
    spread = level([took(10.0, day="1")] * 4).spread
    run = 6 * STATED.run**2 / 9
    assert spread.variance == pytest.approx(STATED.day**2 + run / 4)
    assert spread.day_share == pytest.approx(STATED.day**2 / (STATED.day**2 + run / 4))


def test_variances_are_pooled_by_their_degrees_unless_what_is_seen_is_too_large() -> None:
    assert pooled(4.0, 6.0, 0.0, 0) == (4.0, 6.0, False)
    assert pooled(4.0, 6.0, 2.0, 2) == (pytest.approx(26 / 8), 8.0, False)
    assert pooled(4.0, 6.0, 0.0, 10) == (pytest.approx(24 / 16), 16.0, False), "less is never a conflict"
    assert pooled(0.0, 6.0, 3.0, 2) == (1.5, 2.0, True), "nothing was to be expected"
    assert pooled(0.0, 6.0, 0.0, 2) == (0.0, 8.0, False)
    assert pooled(1.0, 6.0, 400.0, 4) == (100.0, 4.0, True)


def test_degrees_of_earlier_runs_count_beside_those_of_these() -> None:
    earlier = Squares(within=4e-5, within_degrees=3, between=5e-5, between_degrees=2)
    site = Scatter(0.02, 12.0, 0.01, 12.0, learned=True)
    runs = [took(10.0, day="1"), took(10.0, day="1"), took(10.0, day="2")]
    run = (12 * 0.01**2 + 4e-5) / (12 + 3 + 1)
    part = run * (1 + 1 / 2) / 2
    prior = (0.02**2 + part) ** 2 / (0.02**4 / 12 + part**2 / 16)
    total = (prior * (0.02**2 + part) + 5e-5) / (prior + 2 + 1)
    spread = level(runs, site, earlier).spread
    assert spread.source == "site"
    assert (spread.variance, spread.degrees) == (pytest.approx(total / 2), pytest.approx(prior + 3))


@pytest.mark.parametrize(("seconds", "answer"), [(9.0, "pass"), (12.0, "fail")])
def test_what_is_decided_asks_for_nothing_more(seconds: float, answer: str) -> None:
    for more in ({}, {"reference_error": 0.01}, {"waiting": [took(10.5)]}):
        found = decide([took(seconds, day=day, stalls=(0.5,)) for day in "11"], 10.0, **more)
        assert found.answer == answer
        assert (found.more_runs, found.other_days, found.reference_too_uncertain, found.held) == (None, *[False] * 3)
