"""The step time of a run with its error, and what is odd about its steps."""

from __future__ import annotations

import itertools
import math
import random
import re
import statistics
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from llmb_common.results.steps import (
    OTHER_WORK,
    StepTime,
    after_warm_up,
    anomalies,
    estimate,
    flops_mismatch,
    logged_tflop,
    step_time,
    step_time_after_warm_up,
)
from llmb_common.runs.timing.log_files import RunFiles
from llmb_common.runs.timing.records import Iteration
from llmb_common.runs.timing.runs import RunTiming, Status
from llmb_common.runs.timing.window import Window
from support.texts import Texts


def noisy(count: int, deviation: float, seed: int = 1, correlation: float = 0.0) -> list[float]:
    source = random.Random(seed)
    state, values = source.gauss(0, 1), []
    for _ in range(count):
        state = correlation * state + (1 - correlation**2) ** 0.5 * source.gauss(0, 1)
        values.append(1 + deviation * state)
    return values


def test_a_spike_moves_the_mean_and_not_the_step_time():
    steps = [10.0, 10.1, 9.9, 10.0, 40.0, 10.1, 9.9, 10.0, 10.0, 10.0]
    measured = estimate(steps)
    assert measured.seconds == pytest.approx(10.0, abs=0.01)
    assert measured.spikes == (4,)
    assert measured.count == 9
    assert measured.mean == pytest.approx(13.0)


def test_one_fast_last_step_after_49_slow_ones_is_the_odd_one():
    # The older documents measure the last step: one of 14.66 s after 49 of 20 s must not make a run "as published".
    measured = estimate([20.0] * 9 + [14.66])
    assert measured.seconds == 20.0
    assert measured.spikes == (9,)


def test_stalls_of_all_steps_after_warm_up_are_kept_with_what_they_cost():
    window = [10.0] * 9 + [40.0]
    measured = estimate(window, [10.0] * 15 + [20.0] + [10.0] * 14 + window)
    assert measured.spikes == (9,)
    assert measured.stalls == (1.0, 3.0)
    assert measured.steps == 40
    assert measured.seconds * (1 + sum(measured.stalls) / measured.steps) == pytest.approx((38 * 10 + 60) / 40)


def test_stalls_that_come_by_chance_are_as_uncertain_as_the_sum_of_their_squares() -> None:
    """Of a number by Poisson's law. Of the mean's logarithm, so as a share of the mean, which they make longer."""
    measured = StepTime(10.0, 0.0, count=10, steps=40, stalls=(3.0, 4.0))
    assert measured.stall_error == pytest.approx(5 / 40 / (1 + 7 / 40))
    assert msgspec.structs.replace(measured, steps=0).stall_error == pytest.approx(5 / 10 / (1 + 7 / 10)), (
        "of the window alone"
    )


def test_stalled_steps_in_a_row_are_one_stall():
    steps = [10.0] * 8 + [30.0, 20.0, 40.0] + [10.0] * 8 + [20.0, 5.0, 5.0] + [10.0] * 8
    measured = estimate([10.0] * 10, steps)
    assert measured.stalls == (6.0, 1.0, -1.0), "fast steps after slow ones are another thing"
    assert measured.seconds * (1 + sum(measured.stalls) / measured.steps) == pytest.approx(sum(steps) / len(steps))


def test_a_window_on_another_level_than_the_rest_is_measured_and_not_set_aside():
    """Thermal throttling from iteration 31 on: the documented window is slow, and that is the run's step time."""
    measured = estimate([11.0] * 10, [10.0] * 25 + [11.0] * 15)
    assert (measured.seconds, measured.stalls, measured.steps) == (11.0, (), 10)
    both = estimate([10.0] * 6 + [11.0] * 4, [10.0] * 30 + [10.0] * 6 + [11.0] * 4)
    assert both.seconds == 10.0
    assert both.stalls == pytest.approx((0.4,)), "of one cause"


def test_a_short_series_does_not_hide_its_correlation():
    found = [estimate(noisy(40, 0.02, seed, correlation=0.7)).correlation for seed in range(300)]
    assert statistics.mean(found) == pytest.approx(0.7, abs=0.03), "the textbook estimate is 0.6 here"


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_the_error_covers_the_truth(correlation):
    # Ten measured steps of forty: the true step time lies within two standard errors in 95 % of the runs.
    beyond = 0
    for seed in range(600):
        steps = noisy(40, 0.04, seed, correlation)
        measured = estimate(steps[25:35], steps)
        beyond += abs(measured.seconds - 1) > 2 * measured.error
    assert beyond / 600 < 0.10


def test_a_window_without_steps_is_refused(texts: Texts):
    with texts.raises(ValueError):
        estimate([])


def test_the_error_of_uncorrelated_steps_is_that_of_their_mean() -> None:
    steps = [10.0, 10.2, 9.9, 9.8, 10.1]
    measured = estimate(steps)
    # Neighbours of these steps differ more than chance would have it: no correlation to correct for.
    deviation = math.sqrt(sum((step - 10.0) ** 2 for step in steps) / 4)
    assert measured.correlation == 0.0
    assert measured.seconds == pytest.approx(10.0)
    assert measured.error == pytest.approx(deviation / math.sqrt(5))
    assert (measured.count, measured.spikes, measured.mean) == (5, (), pytest.approx(10.0))


def test_the_deviation_of_few_steps() -> None:
    assert estimate([9.9, 10.0, 10.1]).error == pytest.approx(0.1 / math.sqrt(3))
    assert estimate([10.0, 10.2]).error == pytest.approx(0.2 / math.sqrt(2) / math.sqrt(2))
    assert estimate([10.0]).error == 0.0


def test_noise_of_a_longer_series_counts_and_a_shorter_one_does_not() -> None:
    window = [10.0, 10.1, 9.9, 10.0]
    calm = [*window, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0]
    assert estimate(window, calm).error < estimate(window).error
    assert estimate(window, calm).seconds == estimate(window).seconds
    assert estimate(window, [10.0, 10.0, 10.0]) == estimate(window)
    assert estimate(window, [10.0, 10.0, 10.0, 10.0]) == estimate(window), "as long as the window is not longer"


def test_spikes_lie_beyond_five_robust_deviations_and_five_per_cent() -> None:
    noisy = [9.0, 9.5, 10.0, 10.0, 10.5, 11.0]  # with one more above: median 10, and 0.5 of the deviations
    limit = 5 * 1.4826 * 0.5
    assert estimate([*noisy, 10 + limit - 0.01]).spikes == ()
    assert estimate([*noisy, 10 + limit + 0.01]).spikes == (6,)
    assert estimate([10.0] * 5 + [10.5]).spikes == (), "just five per cent"
    assert estimate([10.0] * 5 + [10.51, 9.49]).spikes == (5, 6)
    assert estimate([1.0, 5.0]).spikes == ()
    assert estimate([1.0, 1.0, 5.0]).spikes == (2,)


def test_steps_that_differ_by_rounding_only_have_no_error() -> None:
    measured = estimate([0.1 + 0.2, 0.3] * 5)
    assert 0.1 + 0.2 != 0.3
    assert (measured.error, measured.correlation) == (0.0, 0.0)


def _by_hand(steps: Sequence[float]) -> tuple[float, float, float]:
    """Squares around the mean, lag-1 correlation as it is, and corrected for the shortness of the series."""
    mean = math.fsum(steps) / len(steps)
    centred = [step - mean for step in steps]
    squares = math.fsum(value**2 for value in centred)
    raw = math.fsum(one * other for one, other in itertools.pairwise(centred)) / squares
    return squares, raw, raw + (1 + 4 * raw) / len(steps)


def test_the_correlation_of_a_short_series_is_corrected_for_its_bias() -> None:
    steps = [10.0, 10.2, 10.1, 9.9, 9.8, 10.0, 10.1, 10.2, 9.9, 9.8, 10.0, 10.0]
    squares, raw, corrected = _by_hand(steps)
    assert 0.1 < raw < corrected < 0.9
    measured = estimate(steps)
    assert measured.correlation == pytest.approx(corrected)
    inflation = 1 + 2 * sum((1 - lag / 12) * corrected**lag for lag in range(1, 12))
    assert measured.error == pytest.approx(math.sqrt(squares / (12 - inflation)) * math.sqrt(inflation / 12))


def test_however_correlated_they_are_a_tenth_of_few_steps_counts() -> None:
    rising = [10.0, 10.1, 10.2, 10.3, 10.4, 10.5]
    squares, _, corrected = _by_hand(rising)
    inflation = 1 + 2 * sum((1 - lag / 6) * 0.95**lag for lag in range(1, 6))
    assert corrected > 0.95
    assert inflation > 0.9 * 6
    assert estimate(rising).error == pytest.approx(math.sqrt(squares / (0.1 * 6)) * math.sqrt(inflation / 6))


# What is odd about them


WINDOW = Window(35, 44)


def timed(seconds: Sequence[float]) -> list[Iteration]:
    return [Iteration(index, len(seconds), value, tflops=500.0) for index, value in enumerate(seconds, 1)]


def steps(count: int = 50, **changed: float) -> list[Iteration]:
    return timed([changed.get(f"i{index}", 10.0) for index in range(1, count + 1)])


def timing(iterations: Sequence[Iteration], window: Window = WINDOW, restarts: tuple[int, ...] = ()) -> RunTiming:
    files = RunFiles("x", None, None)
    return RunTiming(files, Status("Success"), window, iterations=iterations, restarts=restarts)


def said(iterations: list[Iteration], step_tflop: float | None = None, window: Window = WINDOW) -> tuple[str, ...]:
    inside = window.select(iterations)
    found = anomalies(timing(iterations, window), estimate([item.seconds for item in inside]))
    return found if step_tflop is None else found + flops_mismatch(logged_tflop(inside), step_tflop)


def test_an_outlier_is_never_said_to_be_as_the_others_are() -> None:
    assert "iteration 40; 1.06 times the usual" in said(steps(i40=10.6))[0]


def drifts(change: float, deviation: float, correlation: float) -> int:
    """In how many of 100 runs that become slower by ``change`` a drift is seen."""
    runs = (noisy(50, deviation, seed, correlation) for seed in range(100))
    slower = ([value * (1 + change * at / 50) for at, value in enumerate(run)] for run in runs)
    return sum(any("steps get" in text for text in said(timed(run))) for run in slower)


def test_steps_that_are_like_those_before_them_are_no_drift() -> None:
    assert drifts(0.0, 0.02, correlation=0.8) <= 5, "16 where steps count as independent"
    assert drifts(0.05, 0.005, correlation=0.0) >= 90


def test_the_largest_spike_is_named_whether_it_is_fast_or_slow(texts: Texts) -> None:
    (text,) = said(steps(i36=20.0, i38=2.5))
    texts(text)


def test_five_spikes_are_named_and_a_sixth_is_not(texts: Texts) -> None:
    spikes = {f"i{index}": 20.0 for index in range(40, 45)}
    window = Window(31, 50)
    texts(said(steps(**spikes), window=window)[0])
    texts(said(steps(**spikes, i45=20.0), window=window)[0])


def test_warm_up_is_over_after_ten_steps_unless_the_window_begins_before() -> None:
    for window, begins, first in (
        (WINDOW, 1, 11),
        (Window(12, 44), 1, 11),
        (Window(5, 44), 1, 5),
        (Window(1, 1), 2, 2),
    ):
        assert after_warm_up(timing(steps()[begins - 1 :], window))[0].index == first
    assert after_warm_up(timing([])) == []


def test_a_run_that_goes_on_from_a_checkpoint_warms_up_again() -> None:
    resumed = [item._replace(index=item.index + 50) for item in steps(i1=60.0, i2=9.0, i3=8.0)]
    measured = step_time(timing(resumed, Window(85, 94)))
    assert measured == step_time(timing(steps()))
    assert measured.stalls == ()


def test_steps_after_a_restart_are_warm_up_but_for_those_of_the_window() -> None:
    slow = timing(steps(i21=60.0, i30=12.0, i40=30.0), restarts=(21, 40))
    assert [item.index for item in after_warm_up(slow)] == [*range(11, 21), *range(31, 45), 50]
    assert step_time(slow).stalls == (2.0,), "of the window nothing is left out"
    assert len(step_time(replace(slow, restarts=())).stalls) == 3


@pytest.mark.parametrize(
    ("first", "second", "third", "named"),
    [
        (10.49, 10.3, 10.1, False),  # five per cent for the first step
        (10.51, 10.3, 10.1, True),
        (10.6, 10.24, 10.1, False),  # half of that for the second
        (10.6, 10.26, 10.1, True),
        (10.6, 10.3, 10.4, False),  # they fall towards the level of the others
        (10.6, 10.3, 9.99, True),  # and only these three
    ],
)
def test_how_slow_the_first_steps_of_a_window_may_be(first: float, second: float, third: float, named: bool) -> None:
    iterations = [step._replace(seconds=step.seconds + step.index % 2 / 100) for step in steps()]
    for index, seconds in ((35, first), (36, second), (37, third)):
        iterations[index - 1] = iterations[index - 1]._replace(seconds=seconds + 0.005)
    found = anomalies(timing(iterations), StepTime(10.005, 0.0, count=10))
    assert any("warm-up" in text for text in found) is named


def test_the_first_step_is_compared_with_the_later_ones(texts: Texts) -> None:
    found = said(steps(i35=10.45, i36=10.45, i37=10.45, i38=9.5, i39=9.5, i40=9.5, i41=9.5, i42=9.5, i43=9.5, i44=9.5))
    texts("\n".join(found))


def test_a_window_of_six_steps_is_too_short_to_see_warm_up() -> None:
    odd = {"i35": 10.4, "i36": 10.4, "i37": 10.4}
    short = {f"i{index}": 9.6 for index in range(38, 42)}
    assert any(text.startswith("warm-up") for text in said(steps(**odd, **short), window=Window(35, 41)))
    assert not any(text.startswith("warm-up") for text in said(steps(**odd, **short), window=Window(35, 40)))


def test_drift_below_two_per_cent_is_not_worth_a_word(texts: Texts) -> None:
    def drifting(change: float) -> tuple[str, ...]:
        first = {f"i{index}": 10.0 for index in range(11, 24)}
        last = {f"i{index}": 10.0 * (1 + change) for index in range(38, 51)}
        return said(steps(**first, **last), window=Window(24, 37))

    assert drifting(0.019) == ()
    for change in (0.021, -0.03):
        (told,) = drifting(change)
        texts(told)


def test_skipped_steps_are_counted_and_named() -> None:
    iterations = [item._replace(skipped=item.index in (3, 9)) for item in steps()]
    (told,) = said(iterations)
    assert re.findall(r"\d+", told) == ["2", "3", "9"], "how many, which"


@pytest.mark.parametrize(("planned", "named"), [(4400.0, False), (4300.0, True), (5800.0, False), (6000.0, True)])
def test_tflops_of_the_log_may_be_fifteen_per_cent_off_the_plans(planned: float, named: bool, texts: Texts) -> None:
    found = said(steps(), planned)
    assert bool(found) is named
    if named:
        texts(found[0])


@pytest.mark.parametrize(("noise", "named"), [(0.135, True), (0.16, False)])
def test_drift_is_larger_than_four_standard_errors(noise: float, named: bool) -> None:
    """3 % over 39 steady steps. The error of a third's median: 1.2533 times that of its mean."""
    steady = [level + (noise if at % 2 else -noise) for level in (10.0, 10.15, 10.3) for at in range(13)]
    deviation = math.sqrt(13 * noise**2 * (1 - 1 / 13**2) / 12)
    error = 1.2533 * deviation * math.sqrt(2) / math.sqrt(13)
    assert (4 * error < 0.3) is named
    assert 5 * error > 0.3
    found = said(timed([*[10.0] * 10, *steady]), window=Window(24, 36))
    assert any("+3.0 %" in text for text in found) is named


@pytest.mark.parametrize(("count", "named"), [(12, True), (11, False)])
def test_drift_needs_four_steps_on_either_side(count: int, named: bool) -> None:
    steady = [10.0] * 4 + [10.2] * (count - 8) + [10.4] * 4
    found = said(timed([*[10.0] * 10, *steady]), window=Window(15, 18))
    assert any("slower" in text for text in found) is named


def test_a_calm_run_one_with_a_spike_and_one_without_tflops_say_no_more_than_they_must(texts: Texts) -> None:
    assert said(steps(), 5000.0) == ()
    (text,) = said(steps(i39=400.0))
    texts(text)
    assert said([step._replace(tflops=math.nan) for step in steps()], 5000.0) == ()


# Long warm-ups


@pytest.mark.parametrize("end", [11, 25, 34])
def test_slow_steps_from_the_start_on_are_warm_up_and_no_stalls(end: int, texts: Texts) -> None:
    slow = steps(**{f"i{index}": 30.0 for index in range(1, end + 1)})
    assert after_warm_up(timing(slow))[0].index == end + 1
    assert step_time(timing(slow)).stalls == ()
    (text,) = said(slow)
    texts(text)


@pytest.mark.parametrize(("count", "first"), [(19, 11), (20, 13)])
def test_fewer_than_twenty_steps_show_no_long_warm_up(count: int, first: int) -> None:
    slow = timed([30.0] * 12 + [10.0] * (count - 12))
    assert after_warm_up(timing(slow, Window(15, 19)))[0].index == first


@pytest.mark.parametrize(("restart", "inside"), [(43, True), (44, True), (45, False)])
def test_a_warm_up_that_begins_with_the_last_step_of_the_window_is_in_it(restart: int, inside: bool) -> None:
    slow = timing(steps(100, **{f"i{index}": 30.0 for index in range(restart, 70)}), restarts=(restart,))
    (text,) = [text for text in anomalies(slow, estimate([10.0] * 10)) if text.startswith(("warm-up", "iterations"))]
    assert text.startswith("warm-up (compilation?) lasts to iteration 69" if inside else f"iterations {restart} to 69")


@pytest.mark.parametrize("end", [38, 44, 80])
def test_a_window_in_a_long_warm_up_is_measured_and_the_settled_time_is_said(end: int, texts: Texts) -> None:
    slow = steps(300, **{f"i{index}": 30.0 for index in range(1, end + 1)})
    text = next(text for text in said(slow) if text.startswith("warm-up"))
    mean = (min(end, 44) - 34) * 2 + 10
    assert f" {mean} s" in text
    texts(text)
    assert f"--window={end + 1}-{end + 10}" in text
    assert [item.index for item in after_warm_up(timing(slow))][:10] == list(range(35, 45))


def test_a_restart_may_warm_up_as_long() -> None:
    slow = steps(100, **{f"i{index}": 30.0 for index in range(51, 70)})
    assert [item.index for item in after_warm_up(timing(slow, restarts=(51,)))] == [*range(11, 51), *range(70, 101)]
    assert any(item.index == 65 for item in after_warm_up(timing(slow))), "without a restart they are a stall"


@pytest.mark.parametrize(
    "seconds",
    [
        [10.0 * (1.3 - 0.3 * step / 300) for step in range(300)],  # faster all the time
        [10.8 if step < 150 else 10.0 for step in range(300)],  # another level
        [30.0 if step < 8 else 10.0 for step in range(300)],  # the usual warm-up
        [30.0 if step < 30 and step % 6 else 10.0 for step in range(300)],  # with breaks
        [30.0 if step < 45 else 10.0 for step in range(50)],  # nothing has settled
    ],
)
def test_what_no_long_warm_up_is(seconds: list[float]) -> None:
    assert after_warm_up(timing(timed(seconds)))[0].index == 11


# Rules of steps


def test_what_a_step_time_does_not_tell_is_not_known() -> None:
    plain = StepTime(5.0, 0.25, 0)
    assert (plain.mean, plain.steps, plain.correlation, plain.spikes, plain.stalls) == (0, 0, 0, (), ())
    assert (plain.day, plain.nodes) == ("", "")
    assert (plain.stall_share, plain.stall_error, plain.relative_error) == (0, 0, 0.05)
    assert plain.mean_log == plain.log == math.log(5.0)
    alone = msgspec.structs.replace(plain, stalls=(0.5,))
    assert (alone.stall_share, alone.stall_error) == (0.5, pytest.approx(1 / 3)), "of the only step there is"
    assert msgspec.structs.replace(plain, stalls=(-50.0,), steps=20).stall_share == -0.9


def test_neighbors_that_tell_nothing_of_each_other_are_not_correlated() -> None:
    """A wave of four steps, of which each is a quarter off the one before: products of neighbors are all 0."""
    measured = estimate([1.03125, 1.0, 0.96875, 1.0] * 2)
    assert measured.correlation == 0
    assert measured.error == pytest.approx(0.03125 * math.sqrt(4 / 7) / math.sqrt(8))


def test_work_at_the_limit_of_what_counts_may_differ_by_is_none_of_another_job() -> None:
    for logged in (0.75, 1.25):
        assert flops_mismatch(logged, 1.0, OTHER_WORK) == ()
        assert len(flops_mismatch(logged, 1.0, OTHER_WORK - 1e-9)) == 1
    assert OTHER_WORK == 0.25
    assert flops_mismatch(None, 1.0) == flops_mismatch(1.0, None) == flops_mismatch(None, None) == ()


def test_a_count_of_flops_is_the_median_over_steps_that_print_a_rate() -> None:
    rates = (500.0, 100.0, 400.0, None, math.inf, 0.9, math.nan)
    printed = [Iteration(at, 9, 2.0, tflops=rate) for at, rate in enumerate(rates, 1)]
    assert logged_tflop(printed) == 800.0
    assert logged_tflop(printed[3:]) is None


@pytest.mark.parametrize(("seconds", "first"), [(10.9, 11), (11.1, 26)])
def test_a_long_warm_up_is_a_tenth_slower_than_what_follows(seconds: float, first: int) -> None:
    slow = steps(100, **{f"i{index}": seconds for index in range(1, 26)})
    assert after_warm_up(timing(slow))[0].index == first


@pytest.mark.parametrize(("seconds", "first"), [(10.2, 26), (10.3, 11)])
def test_after_a_long_warm_up_ten_steps_are_nearer_to_the_level_than_to_the_limit(seconds: float, first: int) -> None:
    """Five per cent above the level of the last third is the limit: the ten steps may be half of that above it."""
    slow = steps(150, **{f"i{index}": 20.0 for index in range(1, 26)}, **{f"i{at}": seconds for at in range(26, 36)})
    assert after_warm_up(timing(slow, Window(60, 69)))[0].index == first


def test_a_window_that_would_reach_beyond_the_log_is_offered_up_to_its_end() -> None:
    slow = steps(60, **{f"i{index}": 30.0 for index in range(1, 43)})
    found = [text for text in said(slow, window=Window(31, 52)) if text.startswith("warm-up")]
    assert ["--window=43-60" in text for text in found] == [True]
    assert " 10 s, the window" in found[0], "what settled steps take"


@pytest.mark.parametrize(("end", "inside"), [(34, False), (35, True)])
def test_a_warm_up_that_ends_before_the_window_is_not_in_it(end: int, inside: bool) -> None:
    slow = steps(200, **{f"i{index}": 30.0 for index in range(1, end + 1)})
    text = next(text for text in said(slow) if "warm-up" in text)
    assert text.startswith("warm-up (compilation?) lasts to") is inside
    if not inside:
        assert text.startswith("iterations 1 to 34 ")
        assert " 3 times as long" in text


def test_a_step_time_after_warm_up_is_of_all_steps_from_there_to_the_end_of_the_window() -> None:
    seconds = [10.0 + index / 100 for index in range(1, 51)]
    measured = step_time_after_warm_up(timing(timed(seconds)))
    assert measured == estimate(seconds[10:44])
    assert step_time_after_warm_up(timing(timed(seconds[:43]))) is None


@pytest.mark.parametrize(("seconds", "steps"), [(0.95, 40), (1.05, 40), (0.949, 10), (1.051, 10)])
def test_a_window_is_another_stretch_where_its_level_is_more_than_five_per_cent_off(seconds: float, steps: int) -> None:
    assert estimate([seconds] * 10, [1.0] * 30 + [seconds] * 10).steps == steps
