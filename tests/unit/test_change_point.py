"""Changes of level in a series of day means: found where they are, sized, and not seen where there is none."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from dataclasses import replace

import pytest

from llmb_common.base.statistics import t_quantile, t_tail
from llmb_common.results import history
from llmb_common.results.history import ALARM_RATE, LEAST_DAYS, LevelChange, Prior, day_prior, level_changes, standing
from llmb_common.results.level import ERROR_RATE
from llmb_common.results.scatter import STATED
from tools import change_point_simulation as simulated

PRIOR = Prior(0.01, 14.0)


def series(source: random.Random, *levels: tuple[int, float], deviation: float = 0.01) -> list[float]:
    """So many days at each level."""
    return [level + source.gauss(0, deviation) for count, level in levels for _ in range(count)]


def edges(days: list[float], prior: Prior = PRIOR, rate: float = 0.01) -> list[int]:
    return [change.at for change in level_changes(days, prior, rate)]


def test_a_change_to_the_digit() -> None:
    """Two levels of five days: the two-sample t with a prior of 14 degrees of freedom."""
    calm = [0.0, 0.002, -0.002, 0.001, -0.001]
    days = [*calm, *(0.05 + value for value in calm)]
    (found,) = level_changes(days, PRIOR)
    squares = 2 * sum(value**2 for value in calm)
    error = math.sqrt((14 * 0.01**2 + squares) / 22 * (1 / 5 + 1 / 5))
    # The days alternate, so nothing widens the interval.
    assert (found.at, found.shift) == (5, pytest.approx(0.05))
    assert found.reach == pytest.approx(t_quantile(ERROR_RATE, 22) * error)
    assert (found.earliest, found.latest) == (5, 5)


CALM = [0.0, 0.002, -0.002, 0.001, -0.001, 0.0015, -0.0015]
"""Days that alternate, so that nothing widens an interval."""


def chance(days: list[float], at: int, degrees: float, deviation: float) -> float:
    """Of a two-sample t as large as at ``at``, or larger, on either side, at any of the places with two days a side."""
    sides = days[:at], days[at:]
    squares = sum((value - statistics.fmean(side)) ** 2 for side in sides for value in side)
    free = degrees + len(days) - 2
    variance = (degrees * deviation**2 + squares) / free
    error = math.sqrt(variance * (1 / at + 1 / (len(days) - at)))
    shift = statistics.fmean(sides[1]) - statistics.fmean(sides[0])
    return 2 * (len(days) - 3) * t_tail(abs(shift) / error, free)


@pytest.mark.parametrize(
    ("count", "shift", "prior", "searches"),
    [
        (3, 0.04, PRIOR, 1),
        (5, 0.005, Prior(0.05, 14.0), 2),  # of days that speak for themselves, and with the prior
        (6, 0.005, Prior(0.05, 14.0), 4),  # of all days, and of the last eight
    ],
)
def test_a_change_is_reported_at_the_rate_at_which_chance_would_make_it_anywhere(
    count: int, shift: float, prior: Prior, searches: int
) -> None:
    days = [*CALM[:count], *(shift + value for value in CALM[:count])]
    known = prior if prior is PRIOR else Prior(0.0, 0.0)
    rate = searches * chance(days, count, known.degrees, known.deviation)
    assert 0 < rate < 0.2
    assert edges(days, prior, 1.001 * rate) == [count]
    assert edges(days, prior, 0.999 * rate) == []


def test_the_prior_of_days_is_of_their_own_scatter_and_of_their_runs() -> None:
    scatter = replace(STATED, day=0.02, day_degrees=6.0, run=0.01, run_degrees=12.0, learned=True)
    alone, many = day_prior(scatter, [1, 1]), day_prior(scatter, [1000])
    assert alone.deviation == pytest.approx(math.hypot(0.02, 0.01))
    assert alone.degrees == pytest.approx((0.02**2 + 0.01**2) ** 2 / (0.02**4 / 6 + 0.01**4 / 12))
    assert many.deviation == pytest.approx(0.02, abs=1e-5)
    assert many.degrees == pytest.approx(6.0, rel=1e-2)
    assert day_prior(scatter, [1, 2]).deviation == pytest.approx(math.hypot(0.02, 0.01 * math.sqrt(0.75)))


def test_days_that_hardly_scatter_show_a_change_though_nothing_is_known_of_the_site() -> None:
    """Twelve days, and nine that are 4.1 % slower."""
    before = [5.756, 5.809, 5.773, 5.784, 5.737, 5.719, 5.786, 5.734, 5.688, 5.709, 5.742, 5.738]
    after = [5.999, 6.014, 6.008, 5.991, 6.027, 5.956, 5.888, 6.031, 5.973]
    prior = day_prior(STATED, [1])
    (found,) = level_changes([math.log(seconds) for seconds in before + after], prior)
    assert (found.at, found.earliest, found.latest) == (12, 12, 12)
    assert found.shift == pytest.approx(0.041, abs=0.001)
    assert found.reach < 0.025
    assert level_changes([math.log(seconds) for seconds in before], prior) == ()


NINE = [9.06, 9.17, 9.11, 9.13, 9.08]
"""Seconds on five days, and on five days with another image."""
TEN = [9.43, 9.34, 9.48, 9.36, 9.39]


@pytest.mark.parametrize("prior", [day_prior(STATED, [1]), Prior(0.027, 14.0)], ids=["stated", "site"])
@pytest.mark.parametrize("sides", [(NINE, TEN), (TEN, NINE)])
def test_five_days_of_each_that_lie_apart_are_a_change_whatever_is_said_of_the_site(
    prior: Prior, sides: tuple[list[float], list[float]]
) -> None:
    days = [math.log(seconds) for side in sides for seconds in side]
    (found,) = level_changes(days, prior)
    assert (found.at, abs(found.shift)) == (5, pytest.approx(0.031, abs=0.001))
    assert 0 < found.reach < abs(found.shift)
    assert level_changes(days, prior, ALARM_RATE), "an alarm rings"
    assert level_changes(days[1:-1], Prior(0.027, 14.0)) == (), "four of each may do so by chance"


def test_four_days_are_the_fewest() -> None:
    assert LEAST_DAYS == 4
    assert edges([0.0, 0.0, 0.2, 0.2]) == [2]
    assert edges([0.0, 0.2, 0.2]) == []
    assert edges([]) == []


def test_the_scatter_of_the_days_counts_where_it_is_more_than_the_prior_says() -> None:
    loud = [0.0, 0.1, 0.0, 0.1, 0.0, 0.1, 0.1, 0.2, 0.1, 0.2, 0.1, 0.2]
    assert edges(loud, Prior(0.0001, 1000.0)) == [], "a prior cannot make loud days quiet"
    quiet = [value / 100 for value in loud[:4]] + [0.05 + value / 100 for value in loud[:4]]
    assert edges(quiet, Prior(0.05, 6.0)) == [], "nor few quiet days a loud site"
    assert edges(quiet, Prior(0.002, 6.0)) == [4]


def test_one_bad_day_is_no_change_of_level() -> None:
    assert edges([0.0] * 20 + [0.3, 0.0], Prior(0.01, 6.0)) == []
    assert edges([0.0] * 20 + [0.3], Prior(0.01, 6.0)) == []
    assert edges([0.0] * 20 + [0.3, 0.3], Prior(0.01, 6.0)) == [20]
    assert edges([0.3, 0.0] + [0.0] * 20, Prior(0.01, 6.0)) == []
    assert edges([0.0] * 20 + [0.3, 0.10, 0.3], Prior(0.01, 6.0)) == [], "a day within half of the change"
    assert edges([0.0] * 20 + [-0.3, -0.3], Prior(0.01, 6.0)) == [20]


@pytest.mark.parametrize("days", [2, 3, 4, 5])
@pytest.mark.parametrize("shift", [0.3, -0.3])
def test_a_change_is_seen_from_either_end(days: int, shift: float) -> None:
    """One within the first four days was never reported, whatever followed."""
    series = [0.0] * 20 + [shift] * days
    assert edges(series, Prior(0.01, 6.0)) == [20]
    assert edges(series[::-1], Prior(0.01, 6.0)) == [days]


def test_days_that_follow_each_other_show_less() -> None:
    drifting = [0.01 * math.sin(day / 5) for day in range(30)]
    moved = [value + 0.008 * (day >= 15) for day, value in enumerate(drifting)]
    assert edges(moved, Prior(0.005, 14.0)) == []
    source = random.Random(1)
    shuffled = drifting[:]
    source.shuffle(shuffled)
    moved = [value + 0.016 * (day >= 15) for day, value in enumerate(shuffled)]
    assert len(edges(moved, Prior(0.005, 14.0))) == 1


def test_an_interval_is_wider_by_the_correlation_of_the_days() -> None:
    waves = [0.001, 0.001, -0.001, -0.001, -0.001, 0.001] * 2
    days = [value + 0.08 * (at >= 6) for at, value in enumerate(waves)]
    (found,) = level_changes(days, PRIOR)
    squares = sum(value**2 for value in waves)
    raw = sum(one * other for one, other in itertools.pairwise(waves)) / squares
    correlation = raw + (1 + 4 * raw) / 12 + 0.5 / math.sqrt(12)
    error = math.sqrt((14 * 0.01**2 + squares) / 24 * (1 / 6 + 1 / 6))
    assert 0 < correlation < 0.8
    expected = t_quantile(ERROR_RATE, 24) * error * math.sqrt((1 + correlation) / (1 - correlation))
    assert found.reach == pytest.approx(expected)


@pytest.mark.parametrize("count", [4, 11, 12, 30, 365])
def test_the_searches_of_one_series_share_one_error_rate(count: int) -> None:
    parts = history._searched_lengths(count)
    assert parts[0][0] == count
    assert sum(share for _, share in parts) == pytest.approx(1)
    assert all(8 <= size < count for size, _ in parts[1:])
    assert len(parts) == {4: 1, 11: 1, 12: 2, 30: 4, 365: 10}[count]


def test_a_level_that_rose_and_fell_again_is_two_changes() -> None:
    source = random.Random(2)
    assert edges(series(source, (10, 0.0), (10, 0.05), (10, 0.0), deviation=0.005)) == [10, 20]
    assert edges(series(source, (10, 0.0), (7, 0.05), (10, 0.0), (3, 0.05), deviation=0.005)) == [10, 17, 27]


def test_the_days_between_which_a_change_may_lie() -> None:
    quiet = [0.004 * (-1) ** day for day in range(20)]
    sharp = [value + 0.05 * (day >= 10) for day, value in enumerate(quiet)]
    soft = [value + 0.02 * min(max((day - 7) / 4, 0), 1) for day, value in enumerate(quiet)]
    (one,), (other,) = (level_changes(days, PRIOR) for days in (sharp, soft))
    assert (one.earliest, one.at, one.latest) == (10, 10, 10)
    assert other.earliest < other.at < other.latest


def change(at: int, shift: float) -> LevelChange:
    return LevelChange(at, shift, 0.01, at, at)


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ((0.0, 0.04), 4),
        ((0.0, -0.04), None),
        ((0.0, 0.04, 0.0), None),
        ((0.0, 0.04, 0.019), None),
        ((0.0, 0.04, 0.021), 4),  # more than half of it is left
        ((0.0, 0.04, 0.06), 8),
        ((0.0, -0.04, 0.0), 8),
        ((0.0, 0.04, 0.06, 0.05), 8),
        ((0.0, 0.04, 0.06, 0.03), 4),
    ],
)
def test_what_stands_of_changes_to_the_worse(levels: tuple[float, ...], expected: int | None) -> None:
    days = [level for level in levels for _ in range(4)]
    changes = [change(4 * number, level - levels[number - 1]) for number, level in enumerate(levels) if number]
    found = standing(days, changes)
    assert (found.at if found else None) == expected


def test_nothing_stands_where_nothing_changed() -> None:
    assert standing([0.0, 0.1], []) is None
    assert standing([], []) is None


def test_false_alarms_are_rare() -> None:
    """2,000 looks at 12 to 30 days without a change: 0.2 % of them may be wrong, 1 % of the reports."""
    source = random.Random(3)
    looks = [series(source, (source.randint(12, 30), 0.0)) for _ in range(2000)]
    assert sum(bool(edges(days, rate=ALARM_RATE)) for days in looks) <= 4
    assert sum(bool(edges(days)) for days in looks) <= 20


def test_changes_of_four_standard_deviations_are_found() -> None:
    source = random.Random(4)
    late = [series(source, (27, 0.0), (3, 0.04)) for _ in range(100)]
    assert sum(edges(days) == [27] for days in late) >= 85
    undone = [series(source, (10, 0.0), (10, 0.04), (10, 0.0)) for _ in range(100)]
    assert sum(len(edges(days)) == 2 for days in undone) >= 90


def test_intervals_hold_the_truth() -> None:
    """Of changes that were found: as often as the intervals of all other tables, or more."""
    source = random.Random(5)
    found = [item for _ in range(300) for item in level_changes(series(source, (15, 0.0), (15, 0.03)), PRIOR)]
    assert len(found) >= 290
    assert sum(abs(item.shift - 0.03) <= item.reach for item in found) >= 0.92 * len(found)
    assert sum(item.earliest <= 15 <= item.latest for item in found) >= 0.92 * len(found)


def test_a_year_of_days_is_no_burden(monkeypatch: pytest.MonkeyPatch) -> None:
    """One look is linear in the days."""
    counted = []
    splits = history._splits

    def counting(values: list[float]) -> list[object]:
        found = list(splits(values))
        counted.append(len(found))
        return found

    monkeypatch.setattr(history, "_splits", counting)
    assert edges(series(random.Random(6), (365, 0.0))) == []
    assert sum(counted) <= 3 * 365


# The simulation behind the page


def test_the_tables_of_changes_over_time() -> None:
    lines = list(simulated.table(2, 1))
    gap = lines.index("")
    false, power = lines[2:gap], lines[gap + 3 :]
    assert (len(false), len(power)) == (4 * 4 * 2, 4 * 2 * 3)
    assert {line.count("|") for line in lines[:gap]} == {7}
    assert {line.count("|") for line in lines[gap + 1 :]} == {9}
    assert power[5] == "| 0.5 % | site | 6 % | 100 | 100 | 100 | 100 | 2 days |"


@pytest.mark.parametrize("noise", simulated.NOISES)
def test_days_scatter_as_much_as_is_said(noise: str) -> None:
    source = random.Random(1)
    days = [day for _ in range(400) for day in simulated.NOISES[noise](source, 0.02)]
    assert statistics.fmean(days) == pytest.approx(0, abs=0.002)
    expected = 0.02 * (math.sqrt(0.75) if noise == "two runs a day" else 1)  # a mean of two
    assert statistics.stdev(days) == pytest.approx(expected, rel=0.2)


def test_an_alarm_counts_its_days_from_the_change() -> None:
    assert simulated.delays(0.5, "site", 0.001, 3, random.Random(1)) == [2, 2, 2]
    assert simulated.delays(0.0, "stated", 0.001, 3, random.Random(1)) == [math.inf] * 3
    assert simulated.found([0] * 10 + [1] * 20, 0.5, "site", 0.001, 3, random.Random(1)) == 1.0


# Rules of single splits, each by its definition


def split_of(days: list[float], at: int) -> tuple[float, float]:
    """(shift, squares around the means of the two sides)."""
    sides = days[:at], days[at:]
    squares = sum((value - statistics.fmean(side)) ** 2 for side in sides for value in side)
    return statistics.fmean(sides[1]) - statistics.fmean(sides[0]), squares


def test_splits_are_all_that_leave_two_days_a_side() -> None:
    days = series(random.Random(8), (4, 0.2), (5, 0.3))
    found = list(history._splits(days))
    assert [item.at for item in found] == [2, 3, 4, 5, 6, 7]
    for item in found:
        assert (item.shift, item.squares) == pytest.approx(split_of(days, item.at))
    assert list(history._splits(days[:3])) == []
    assert [item.at for item in history._splits(days[:4])] == [2]


@pytest.mark.parametrize(("count", "own"), [(6, False), (7, True)])
def test_more_than_six_days_are_never_quieter_than_they_are(count: int, own: bool) -> None:
    """By a prior of as many degrees that says nothing scatters, half of what they show is left of few days."""
    split = history._Split(3, 1.0, 8.0)
    variance = 8.0 / (count - 2)
    assert history._day_variance(split, count, Prior(0.0, count - 2)) == pytest.approx(variance * (1 if own else 0.5))
    assert history._day_variance(split, count, Prior(10.0, count - 2)) == pytest.approx((100 + variance) / 2)
    assert history._day_variance(history._Split(3, 1.0, 0.0), count, Prior(0.0, 1.0)) > 0


def test_days_that_drift_widen_an_error_to_the_threefold_at_most_and_those_that_alternate_not_at_all() -> None:
    """A correlation of 0.8 is the strongest that is believed: sqrt(1.8 / 0.2) = 3."""
    drifting = [0.01 * day for day in range(20)]
    assert history._autocorrelation_factor(drifting, 10) == pytest.approx(3.0)
    assert history._autocorrelation_factor([(-1.0) ** day for day in range(20)], 10) == 1.0
    assert history._autocorrelation_factor([0.0] * 10 + [1.0] * 10, 10) == pytest.approx(
        math.sqrt((1 + 1 / 20 + 0.5 / math.sqrt(20)) / (1 - 1 / 20 - 0.5 / math.sqrt(20)))
    ), "days that do not differ show no correlation, and that with an error"


@pytest.mark.parametrize(("count", "wider"), [(7, False), (8, True)])
def test_fewer_than_eight_days_do_not_show_how_they_follow_each_other(count: int, wider: bool) -> None:
    assert (history._autocorrelation_factor([0.01 * day for day in range(count)], 4) > 1) is wider


@pytest.mark.parametrize(("count", "agrees"), [(3, False), (4, False), (5, True)])
@pytest.mark.parametrize("sign", [1, -1])
def test_each_day_of_the_shorter_side_must_agree_where_it_has_four_at_most(
    count: int, agrees: bool, sign: float
) -> None:
    """One day of the new level lies below half of the change; of a side of five that is chance."""
    level = [*[sign * 0.3] * (count - 1), sign * 0.1]
    late, early = [0.0] * 20 + level, level + [0.0] * 20
    for days, at in ((late, 20), (early, count)):
        assert history._side_agrees(days, history._Split(at, *split_of(days, at))) is agrees
    half = [0.0] * 20 + [sign * 0.5, sign * 0.25, sign * 0.0]
    assert history._side_agrees(half[:-1], history._Split(20, sign * 0.5, 0.0)), "half of it agrees"
    assert not history._side_agrees(half, history._Split(20, sign * 0.5, 0.0))


def test_half_of_a_change_may_be_undone_and_it_stands() -> None:
    days = [0.0] * 4 + [0.5] * 4 + [0.25] * 4
    changes = [change(4, 0.5), change(8, -0.25)]
    assert standing(days, changes) == changes[0]
    assert standing([*days[:8], *[0.2] * 4], changes) is None


@pytest.mark.parametrize("seed", range(12))
def test_a_change_may_lie_wherever_another_split_of_the_same_way_is_within_six_variances(seed: int) -> None:
    source = random.Random(seed)
    days = series(source, (6, 0.0), (1, 0.015), (1, 0.02), (7, 0.03), deviation=0.006)
    prior = Prior(0.006, 10.0)
    found = level_changes(days, prior)
    if len(found) != 1:
        return
    (item,) = found
    shift, squares = split_of(days, item.at)
    # Of the days around their two levels, and never less than they themselves show.
    variance = max((10 * 0.006**2 + squares) / (10 + len(days) - 2), squares / (len(days) - 2))
    near = [
        at
        for at in range(2, len(days) - 1)
        if split_of(days, at)[1] <= squares + 6 * variance and split_of(days, at)[0] * shift > 0
    ]
    assert (item.earliest, item.latest) == (near[0], near[-1])
    assert item.shift == pytest.approx(shift)


def test_an_opposite_split_is_none_of_those_where_a_change_may_lie() -> None:
    """A level that fell after three days fits nearly as well as one that rose after nine, and goes the other way."""
    days = [0.5, 0.5, 0.5, *[0.0] * 6, *[0.5] * 3]
    found = history._level_change(days, 9, 100, Prior(0.5, 6.0))
    shift = split_of(days, 9)[0]
    assert found.shift == pytest.approx(shift) != 0
    near = [at for at in range(2, 11) if split_of(days, at)[0] * shift > 0]
    assert set(range(2, 11)) - {*near}, "there are others"
    assert (found.at, found.earliest, found.latest) == (109, 100 + near[0], 100 + near[-1])
