"""The step time of a run with its error, and the answer that runs give: pass, fail or inconclusive."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest

from llmb_common.results import simulation
from llmb_common.results.decision import PRIOR_DEVIATION, decide, t_quantile
from llmb_common.results.estimate import StepTime, estimate, spike_positions


def run(seconds: float, error: float = 0.0) -> StepTime:
    return StepTime(seconds, error, count=10, mean=seconds)


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
    assert spike_positions([10.0] * 9 + [10.4]) == ()
    assert spike_positions([10.0] * 9 + [10.6]) == (9,)


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


def test_a_single_run_needs_room_for_what_runs_differ_by():
    at_reference = decide([run(10.0)], 10.0)
    assert at_reference.answer == "inconclusive"
    assert at_reference.high - at_reference.ratio == pytest.approx(t_quantile(0.965, 6) * PRIOR_DEVIATION, rel=1e-3)
    assert at_reference.more_runs == 1
    assert decide([run(9.9)], 10.0).answer == "pass"
    assert decide([run(11.2)], 10.0).answer == "fail"


def test_steady_repeats_outweigh_the_prior():
    resolutions = [decide([run(10.0)] * count, 10.0).resolution for count in (1, 2, 3, 5, 10)]
    assert resolutions == sorted(resolutions, reverse=True)
    assert decide([run(10.0)] * 2, 10.0).answer == "pass"
    assert resolutions[-1] < 0.015


def test_scattered_repeats_widen_the_interval():
    calm = decide([run(10.0), run(10.0), run(10.0)], 10.0)
    wild = decide([run(9.0), run(10.0), run(11.0)], 10.0)
    assert wild.ratio == calm.ratio
    assert wild.resolution > 2 * calm.resolution
    assert wild.answer == "inconclusive"


def test_three_per_cent_slow_passes_and_six_per_cent_slow_never_does():
    assert decide([run(10.3)] * 10, 10.0).answer == "pass"
    assert decide([run(10.6)] * 30, 10.0).answer == "fail"


def test_the_run_own_error_counts():
    assert decide([run(9.9)], 10.0).answer == "pass"
    assert decide([run(9.9, error=0.4)], 10.0).answer == "inconclusive"


def test_slower_runs_differ_by_more_seconds():
    assert decide([run(15.0)], 10.0).resolution == pytest.approx(1.5 * decide([run(10.0)], 10.0).resolution)


def test_a_reference_with_an_error_of_its_own_widens_the_interval():
    exact = decide([run(10.0)] * 5, 10.0)
    measured = decide([run(10.0)] * 5, 10.0, reference_error=0.01)
    assert measured.resolution > exact.resolution


def test_runs_do_not_make_up_for_a_reference_of_a_single_run():
    """More runs would decide against an exact reference; against this one none do, and it is not the limit's fault."""
    once = StepTime(10.0, 0.0, count=10)
    exact, rough = decide([once], 10.0), decide([once], 10.0, reference_error=0.027)
    assert (exact.answer, exact.more_runs, exact.reference_too_uncertain) == ("inconclusive", 1, False)
    assert (rough.answer, rough.more_runs, rough.reference_too_uncertain) == ("inconclusive", None, True)
    assert not decide([once], 10.0 / 1.05, reference_error=0.027).reference_too_uncertain, "at the limit anyway"


def test_a_ratio_at_the_limit_is_never_decided():
    assert decide([run(10.5)] * 3, 10.0).more_runs is None


def test_more_runs_say_how_many():
    asked = decide([run(10.3)], 10.0)
    assert asked.answer == "inconclusive"
    assert asked.more_runs is not None
    assert decide([run(10.3)] * (1 + asked.more_runs), 10.0).answer == "pass"


def test_the_tolerance_can_be_changed():
    assert decide([run(11.0)] * 3, 10.0, tolerance=0.20).answer == "pass"
    assert decide([run(10.2)] * 9, 10.0, tolerance=0.0).answer == "fail"


@pytest.mark.parametrize(("runs", "reference"), [([], 10.0), ([run(1.0)], 0.0), ([run(1.0)], float("nan"))])
def test_nothing_to_compare_is_refused(runs, reference):
    with pytest.raises(ValueError, match="at least one run"):
        decide(runs, reference)


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(5, 2.0150), (6, 1.9432), (7, 1.8946), (10, 1.8125), (30, 1.6973), (1000, 1.6464)]
)
def test_t_quantiles_are_those_of_the_tables(degrees, quantile):
    assert t_quantile(0.95, degrees) == pytest.approx(quantile, abs=0.002)


# How often the answers are wrong


@pytest.mark.parametrize("noise", simulation.NOISES, ids=lambda noise: noise.title)
def test_wrong_answers_stay_below_five_per_cent(noise):
    source = random.Random(f"wrong {noise.title}")
    runs = [simulation.simulate(noise, source) for _ in range(1600)]
    for repeats in (1, 4):
        undecided = []
        for ratio in simulation.RATIOS:
            counted = simulation.answers(runs, ratio, repeats)
            trials = counted.total()
            if ratio <= 1.05:
                assert counted["fail"] / trials <= 0.05, f"wrong fail at {ratio}, {repeats} runs"
            if ratio >= 1.05:
                assert counted["pass"] / trials <= 0.05, f"wrong pass at {ratio}, {repeats} runs"
            undecided.append(counted["inconclusive"] / trials)
        if repeats == 1:
            single = undecided
    for ratio, before, after in zip(simulation.RATIOS, single, undecided, strict=True):
        if ratio != 1.05:
            assert after < before, f"repeats decide at {ratio}"


def test_the_table_is_the_same_for_the_same_seed():
    first, second = (list(itertools.islice(simulation.table(20, seed=7), 6)) for _ in range(2))
    assert first == second
