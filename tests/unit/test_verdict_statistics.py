"""The step time of a run with its error, and the answer that runs give: pass, fail or inconclusive."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from llmb_common.results.decision import CONFIDENCE, ERROR_RATE, LOOKS, decide, level, look, next_look, steady_error
from llmb_common.results.scatter import STATED, Scatter, Stalls, batches, squares
from llmb_common.results.steps import StepTime, estimate
from llmb_common.timing.statistics import f_tail, t_quantile


def run(
    seconds: float, error: float = 0.0, day: str = "", stalls: tuple[float, ...] = (), steps: int = 400
) -> StepTime:
    """Of so many steps that stalls nobody saw hardly count."""
    return StepTime(seconds, error, count=10, mean=seconds, day=day, stalls=stalls, steps=steps)


QUIET = Scatter(0.0, 15.0, 0.002, 15.0, Stalls(0.0, 0.0, 2000), learned=True)
"""A site whose runs differ by 0.2 %."""


def noisy(count: int, deviation: float, seed: int = 1, correlation: float = 0.0) -> list[float]:
    source = random.Random(seed)
    state, values = source.gauss(0, 1), []
    for _ in range(count):
        state = correlation * state + (1 - correlation**2) ** 0.5 * source.gauss(0, 1)
        values.append(1 + deviation * state)
    return values


# One run


def test_a_spike_moves_the_mean_and_not_the_step_time():
    steps = [10.0, 10.1, 9.9, 10.0, 40.0, 10.1, 9.9, 10.0, 10.0, 10.0]
    measured = estimate(steps)
    assert measured.seconds == pytest.approx(10.0, abs=0.01)
    assert measured.spikes == (4,)
    assert measured.count == 9
    assert measured.mean == pytest.approx(13.0)


def test_three_fourfold_spikes_of_ten_steps_are_still_spikes():
    steps = [10.0, 41.0, 10.1, 9.9, 40.0, 10.0, 39.0, 10.1, 9.9, 10.0]
    assert estimate(steps).spikes == (1, 4, 6)


def test_one_fast_last_step_after_49_slow_ones_is_the_odd_one():
    # The older documents measure the last step: one of 14.66 s after 49 of 20 s must not make a run "as published".
    measured = estimate([20.0] * 9 + [14.66])
    assert measured.seconds == 20.0
    assert measured.spikes == (9,)


def test_steps_within_five_per_cent_are_never_spikes():
    assert estimate([10.0] * 9 + [10.4]).spikes == ()
    assert estimate([10.0] * 9 + [10.6]).spikes == (9,)


def test_stalls_of_all_steps_after_warm_up_are_kept_with_what_they_cost():
    window = [10.0] * 9 + [40.0]
    measured = estimate(window, [10.0] * 15 + [20.0] + [10.0] * 14 + window)
    assert measured.spikes == (9,)
    assert measured.stalls == (1.0, 3.0)
    assert measured.steps == 40
    assert measured.seconds * (1 + sum(measured.stalls) / measured.steps) == pytest.approx((38 * 10 + 60) / 40)


def test_a_fast_step_is_a_stall_that_gains():
    assert estimate([10.0] * 9 + [5.0]).stalls == (-0.5,)


def test_a_window_on_another_level_than_the_rest_is_measured_and_not_set_aside():
    """Thermal throttling from iteration 31 on: the documented window is slow, and that is the run's step time."""
    measured = estimate([11.0] * 10, [10.0] * 25 + [11.0] * 15)
    assert (measured.seconds, measured.stalls, measured.steps) == (11.0, (), 10)
    both = estimate([10.0] * 6 + [11.0] * 4, [10.0] * 30 + [10.0] * 6 + [11.0] * 4)
    assert (both.seconds, len(both.stalls)) == (10.0, 4)


def test_ordinary_noise_has_no_spikes():
    found = [len(estimate(noisy(10, 0.03, seed)).spikes) for seed in range(200)]
    assert statistics.mean(found) < 0.2, "of ten steps"


def test_equal_steps_have_no_error():
    assert estimate([5.0] * 10).error == 0.0


def test_the_error_is_that_of_a_mean():
    errors = [estimate(noisy(400, 0.02, seed)).error for seed in range(20)]
    assert statistics.mean(errors) == pytest.approx(0.02 / 400**0.5, rel=0.15)


def test_autocorrelated_steps_tell_less():
    errors = [estimate(noisy(400, 0.02, seed, correlation=0.8)).error for seed in range(20)]
    # A first-order process: the variance of the mean grows by (1 + 0.8) / (1 - 0.8) = 9.
    assert statistics.mean(errors) == pytest.approx(3 * 0.02 / 400**0.5, rel=0.2)


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


def test_noise_comes_from_all_steady_steps_and_the_location_from_the_window():
    window = [10.0] * 10
    steady = [9.5, 10.5] * 10 + window
    measured = estimate(window, steady)
    assert measured.seconds == 10.0
    assert measured.error > 0


def test_a_window_without_steps_is_refused():
    with pytest.raises(ValueError, match="without steps"):
        estimate([])


@pytest.mark.parametrize("count", [1, 2])
def test_very_short_windows_have_a_step_time(count):
    assert estimate([3.0] * count).seconds == 3.0


# Runs against a reference


def one_run_half(error_rate: float = ERROR_RATE) -> float:
    """Half the interval of a single run without any record, as a logarithm: the stated day and run together."""
    day, single = STATED.day**2, STATED.run**2
    degrees = (day + single) ** 2 / (day**2 / 6 + single**2 / 6)
    return t_quantile(error_rate, degrees) * math.sqrt(day + single)


def test_a_single_run_needs_room_for_what_runs_differ_by():
    at_reference = decide([run(10.0, steps=10**7)], 10.0)
    assert at_reference.answer == "inconclusive"
    assert (at_reference.source, at_reference.days, at_reference.runs) == ("stated", 1, 1)
    assert math.log(at_reference.high) == pytest.approx(one_run_half(), rel=1e-3)
    assert math.log(at_reference.low) == pytest.approx(-one_run_half(), rel=1e-3)
    assert STATED.total == pytest.approx(0.027, abs=1e-4)
    assert at_reference.more_runs == 2
    assert decide([run(9.5)], 10.0).answer == "pass"
    assert decide([run(11.5)], 10.0).answer == "fail"


def test_steady_repeats_on_days_of_their_own_outweigh_the_prior():
    resolutions = [decide([run(10.0)] * count, 10.0).resolution for count in (1, 2, 3, 5, 10)]
    assert resolutions == sorted(resolutions, reverse=True)
    assert decide([run(10.0)] * 3, 10.0).answer == "pass"
    assert resolutions[-1] < 0.02


def test_repeats_of_one_evening_are_one_where_nothing_is_known_of_days():
    evening = decide([run(10.0, day="1")] * 10, 10.0)
    assert (evening.answer, evening.days) == ("inconclusive", 1)
    assert evening.resolution > t_quantile(ERROR_RATE, 100) * STATED.day
    assert evening.more_runs is not None, "on other days"
    apart = decide([run(10.0, day=f"{at}") for at in range(10)], 10.0)
    assert (apart.answer, apart.days) == ("pass", 10)


def test_a_site_that_knows_its_days_lets_repeats_of_one_evening_count():
    calm = Scatter(0.001, 12, 0.005, 12, Stalls(0, 0, 2000), learned=True)
    loud = Scatter(0.03, 12, 0.005, 12, Stalls(0, 0, 2000), learned=True)
    evening = [run(10.0 + step, day="1") for step in (-0.05, 0.0, 0.05)]
    assert decide(evening, 10.0, scatter=calm).resolution < 0.015
    assert decide(evening, 10.0, scatter=loud).resolution > 0.06


def test_scattered_repeats_widen_the_interval():
    calm = decide([run(10.0)] * 3, 10.0)
    wild = decide([run(9.0), run(10.0), run(11.0)], 10.0)
    assert wild.ratio == pytest.approx(calm.ratio, rel=0.01)
    assert wild.resolution > 2 * calm.resolution
    assert (wild.answer, wild.source) == ("inconclusive", "runs")


def test_a_record_that_the_runs_contradict_is_dropped_for_what_is_stated_and_that_for_their_own_scatter():
    apart = [run(10.0), run(10.1), run(10.2)]
    assert decide(apart, 10.0, scatter=QUIET).source == "stated"
    assert decide(apart, 10.0, scatter=QUIET).scattered
    near = [run(10.0), run(10.01), run(10.02)]
    assert (decide(near, 10.0, scatter=QUIET).source, decide(near, 10.0, scatter=QUIET).scattered) == ("site", False)
    wild = [run(9.0), run(10.0), run(11.0)]
    found = level(wild, QUIET)
    assert (found.source, found.scattered, found.degrees) == ("runs", True, 2)
    assert steady_error(wild) == pytest.approx(statistics.stdev(item.log for item in wild) / math.sqrt(3))
    assert not decide(wild, 10.0).scattered, "there is no record that could be wrong"


def test_a_conflict_is_a_scatter_that_chance_makes_in_less_than_one_case_of_ten():
    calm = Scatter(0.0, 15.0, 0.01, 15.0, Stalls(0, 0, 2000), learned=True)

    def scattered(by: float) -> bool:
        return level([run(math.exp(value)) for value in (-by, 0.0, by)], calm).scattered

    # Three runs at -b, 0, +b have the variance b^2, of two degrees of freedom.
    edge = next(f / 1000 for f in range(1000, 9000) if f_tail(f / 1000, 2, 15) < 0.10)
    assert not scattered(0.01 * math.sqrt(edge * 0.99))
    assert scattered(0.01 * math.sqrt(edge * 1.01))


def test_the_site_speaks_for_a_configuration_that_ran_three_times():
    assert decide([run(10.0)], 10.0, scatter=QUIET).source == "stated"
    assert decide([run(10.0)] * 2, 10.0, scatter=QUIET).source == "stated"
    assert decide([run(10.0)] * 3, 10.0, scatter=QUIET).source == "site"
    before = [run(11.0), run(11.01), run(11.02)]
    known = decide([run(10.0)], 10.0, scatter=QUIET, earlier=squares(batches(before)))
    assert (known.source, known.answer) == ("site", "pass"), "a single run equal to its reference"
    assert known.ratio == pytest.approx(1.0), "earlier runs do not say how fast it is"


def test_how_many_more_runs_follows_from_the_record_that_will_speak_then():
    """Two runs later; what is stated would ask for more than thirty."""
    single = decide([run(10.3)], 10.0, scatter=QUIET)
    assert (single.source, single.more_runs, single.other_days) == ("stated", 2, False)
    assert (decide([run(10.3)], 10.0).more_runs or 99) > 9
    assert decide([run(10.3)] * 3, 10.0, scatter=QUIET).answer == "pass"


def test_a_site_that_is_louder_than_what_is_stated_is_believed_at_once():
    loud = Scatter(0.0, 15.0, 0.04, 15.0, Stalls(0, 0, 2000), learned=True)
    single = decide([run(11.5)], 10.0, scatter=loud)
    assert (single.source, single.answer, decide([run(11.5)], 10.0).answer) == ("site", "inconclusive", "fail")


def test_a_quiet_site_resolves_one_per_cent_with_five_runs():
    calm = Scatter(0.0, 15.0, 0.005, 15.0, Stalls(0.0, 0.0, 4000), learned=True)
    source = random.Random(1)
    found = [decide([run(source.gauss(10.0, 0.05)) for _ in range(5)], 10.0, scatter=calm) for _ in range(100)]
    assert statistics.median(item.resolution for item in found) < 0.01
    slow = [decide([run(source.gauss(10.65, 0.05)) for _ in range(5)], 10.0, scatter=calm) for _ in range(100)]
    assert sum(item.answer == "fail" for item in slow) >= 95


def test_three_per_cent_slow_passes_and_eight_per_cent_slow_never_does():
    assert decide([run(10.3)] * 20, 10.0).answer == "pass"
    assert decide([run(10.8)] * 20, 10.0).answer == "fail"


def test_the_run_own_error_counts():
    assert decide([run(9.6)], 10.0).answer == "pass"
    assert decide([run(9.6, error=0.4)], 10.0).answer == "inconclusive"


def test_slower_runs_differ_by_more_seconds():
    assert decide([run(15.0)], 10.0).resolution == pytest.approx(1.5 * decide([run(10.0)], 10.0).resolution)


def test_a_reference_with_an_error_of_its_own_widens_the_interval():
    exact = decide([run(10.0)] * 5, 10.0)
    measured = decide([run(10.0)] * 5, 10.0, reference_error=0.01)
    assert measured.resolution > exact.resolution


def test_runs_do_not_make_up_for_a_reference_of_a_single_run():
    """More runs would decide against an exact reference; against this one none do, and it is not the limit's fault."""
    exact, rough = decide([run(10.0)], 10.0), decide([run(10.0)], 10.0, reference_error=0.027)
    assert (exact.answer, exact.more_runs, exact.reference_too_uncertain) == ("inconclusive", 2, False)
    assert (rough.answer, rough.more_runs, rough.reference_too_uncertain) == ("inconclusive", None, True)
    assert not decide([run(10.0)], 10.0 / 1.05, reference_error=0.027).reference_too_uncertain, "at the limit anyway"


def test_a_ratio_at_the_limit_is_never_decided():
    assert decide([run(10.5)] * 3, 10.0).more_runs is None


def test_more_runs_lead_to_the_look_that_decides():
    asked = decide([run(10.3)], 10.0)
    assert asked.answer == "inconclusive"
    assert asked.more_runs is not None
    assert 1 + asked.more_runs in LOOKS
    assert decide([run(10.3)] * (1 + asked.more_runs), 10.0).answer == "pass"


def test_the_tolerance_can_be_changed():
    assert decide([run(11.0)] * 3, 10.0, tolerance=0.25).answer == "pass"
    assert decide([run(10.5)] * 9, 10.0, tolerance=0.0).answer == "fail"


@pytest.mark.parametrize(("runs", "reference"), [([], 10.0), ([run(1.0)], 0.0), ([run(1.0)], float("nan"))])
def test_nothing_to_compare_is_refused(runs, reference):
    with pytest.raises(ValueError, match="at least one run"):
        decide(runs, reference)


# Stalls


@pytest.mark.parametrize(("count", "answer"), [(1, "inconclusive"), (3, "fail"), (5, "fail")])
def test_two_of_ten_measured_steps_at_ten_times_their_length_are_no_pass(count, answer):
    steps = [10.0] * 30 + [100.0, 10.0, 10.0, 10.0, 100.0, *[10.0] * 5]
    measured = estimate(steps[-10:], steps)
    found = decide([measured] * count, 10.0)
    assert found.answer == answer
    assert found.stall_share == pytest.approx(18 / 40)
    assert found.steady == pytest.approx(1.0)
    assert found.ratio == pytest.approx(1.45)


def test_a_fifth_of_all_steps_thirty_per_cent_slower_never_passes():
    source, passes = random.Random(2), 0
    for _ in range(200):
        runs = []
        for _ in range(3):
            steps = [source.gauss(10, 0.05) * (1.3 if source.random() < 0.2 else 1) for _ in range(40)]
            runs.append(estimate(steps[-10:], steps))
        passes += decide(runs, 10.0).answer == "pass"
    assert passes == 0


def test_steady_steps_alone_pass_while_their_stalls_do_not():
    found = decide([run(10.0, stalls=(0.5,) * 40)] * 3, 10.0)
    assert (found.answer, found.steady_answer) == ("inconclusive", "pass")
    dear = decide([run(10.0, stalls=(1.0,) * 60)] * 3, 10.0)
    assert (dear.answer, dear.steady_answer) == ("fail", "pass")
    assert dear.stall_share == pytest.approx(0.15)


def test_one_stall_is_an_accident_among_five_runs_and_not_among_four():
    stalled, calm = run(10.0, stalls=(3.0,), steps=40), run(10.0, steps=40)
    four, five = decide([stalled, *[calm] * 3], 10.0), decide([stalled, *[calm] * 4], 10.0)
    assert four.stall_share == pytest.approx(3 / 160)
    assert five.stall_share == 0.0
    assert five.answer == "pass"
    two = decide([stalled, stalled, *[calm] * 3], 10.0)
    assert two.stall_share == pytest.approx(6 / 200), "two are no accident"


def test_stalls_that_nobody_saw_are_priced_by_the_steps_that_were_seen():
    few, many = (decide([run(10.0, steps=steps)] * 3, 10.0) for steps in (40, 4000))
    assert few.high > many.high
    assert few.low == pytest.approx(many.low), "and never fail a run"


def test_a_history_without_stalls_makes_a_stall_that_nobody_saw_unlikely():
    with_stalls = Scatter(0.0, 15.0, 0.002, 15.0, Stalls(40.0, 120.0, 2000), learned=True)
    calm, stalling = (decide([run(10.0, steps=40)] * 3, 10.0, scatter=scatter) for scatter in (QUIET, with_stalls))
    assert stalling.high > calm.high + 0.01


def test_the_upper_bound_of_stalls_holds_where_they_are_of_unlike_size():
    """A tenth of the steps takes 40 % longer on average, exponentially distributed."""
    source = random.Random(1)

    def one() -> StepTime:
        stalls = tuple(source.expovariate(2.5) for _ in range(40) if source.random() < 0.1)
        return StepTime(1.0, 0.0, count=10, stalls=stalls, steps=40)

    bounds = [level([one() for _ in range(3)]).stalls_high for _ in range(1000)]
    assert sum(bound < math.log1p(0.04) for bound in bounds) <= 35


def test_stalls_in_some_runs_only_leave_more_open_than_as_many_in_all():
    even = level([run(10.0, stalls=(0.5,) * 4)] * 4)
    burst = level([run(10.0, stalls=(0.5,) * 16), *[run(10.0)] * 3])
    assert burst.stalls == pytest.approx(even.stalls)
    assert burst.stalls_high > even.stalls_high
    assert burst.stalls_low < even.stalls_low


def test_unusually_fast_steps_win_nothing():
    """Skipped steps take half of the time; the run without them would not pass."""
    slow = decide([run(10.6, stalls=(-0.5,) * 100)] * 10, 10.0)
    assert slow.ratio < 1.0
    assert slow.answer != "pass"
    assert slow.steady == pytest.approx(1.06)


# Looks


def test_verdicts_come_at_fixed_numbers_of_runs():
    assert [look(count) for count in (0, 1, 2, 3, 4, 5, 9, 10, 39, 40, 79, 80, 400)] == [
        *(0, 1, 1, 3, 3, 5, 5, 10, 20, 40, 40, 80, 320)
    ]
    assert [next_look(count) for count in (0, 1, 3, 4, 20, 40, 80)] == [1, 3, 5, 5, 40, 80, 160]
    assert pytest.approx(0.9767, abs=1e-4) == CONFIDENCE
