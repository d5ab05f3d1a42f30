"""Where an answer changes: the last value on either side of each rule that a verdict follows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import NormalDist

import pytest

from llmb_common.results.anomalies import anomalies
from llmb_common.results.decision import PRIOR_DEVIATION, PRIOR_RUNS, Decision, decide, t_quantile
from llmb_common.results.estimate import StepTime, estimate
from llmb_common.results.sequential import REQUIRED, Attempt, Progress, error_rate, follow, tolerance_of
from llmb_common.timing.records import Iteration
from llmb_common.timing.statistics import Window


def run(seconds: float, error: float = 0.0) -> StepTime:
    return StepTime(seconds, error, count=10, mean=seconds)


# The step time of one run


def test_steps_that_differ_by_rounding_only_have_no_error() -> None:
    measured = estimate([0.1 + 0.2, 0.3] * 5)
    assert 0.1 + 0.2 != 0.3
    assert (measured.error, measured.correlation) == (0.0, 0.0)


def test_three_steps_are_enough_for_a_deviation() -> None:
    measured = estimate([9.9, 10.0, 10.1])
    assert measured.error == pytest.approx(0.1 / math.sqrt(3))
    assert measured.correlation == 0.0, "neighbours that say nothing of each other"


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


# What is odd about it

WINDOW = Window(35, 44)


def said(seconds: Sequence[float], window: Window = WINDOW) -> tuple[str, ...]:
    """What is odd about a run whose steps take ``seconds``, the first one iteration 1."""
    iterations = [Iteration(index, len(seconds), value) for index, value in enumerate(seconds, 1)]
    return anomalies(iterations, window, estimate([item.seconds for item in window.select(iterations)]))


@pytest.mark.parametrize(
    ("first", "named"),
    [
        ((10.6, 10.3, 10.1), True),
        ((10.5, 10.3, 10.1), False),  # five per cent are allowed
        ((10.6, 10.25, 10.1), False),  # and half of that for the second
        ((10.6, 10.3, 9.9), True),  # three steps fall; the fourth may be any
    ],
)
def test_warm_up_is_three_falling_steps_the_first_beyond_five_per_cent(first: tuple[float, ...], named: bool) -> None:
    # Two levels around 10 s, so that none of the first steps is a spike; their median is 10 s exactly.
    later = (10.2, 9.8, 10.0, 9.8, 10.2, 10.0, 10.0)
    found = said([*[10.0] * 34, *first, *later])
    assert any(text.startswith("warm-up reaches into the window") for text in found) is named


@pytest.mark.parametrize(("noise", "named"), [(0.135, True), (0.16, False)])
def test_drift_is_larger_than_four_standard_errors(noise: float, named: bool) -> None:
    """3 % over 39 steady steps. The error of a third's median: 1.2533 times that of its mean."""
    steady = [level + (noise if at % 2 else -noise) for level in (10.0, 10.15, 10.3) for at in range(13)]
    deviation = math.sqrt(13 * noise**2 * (1 - 1 / 13**2) / 12)
    error = 1.2533 * deviation * math.sqrt(2) / math.sqrt(13)
    assert (4 * error < 0.3) is named
    assert 5 * error > 0.3
    found = said([*[10.0] * 10, *steady], Window(24, 36))
    assert any(text.startswith("steps become slower: +3.0%") for text in found) is named


@pytest.mark.parametrize(("count", "named"), [(12, True), (11, False)])
def test_drift_needs_four_steps_on_either_side(count: int, named: bool) -> None:
    steady = [10.0] * 4 + [10.2] * (count - 8) + [10.4] * 4
    found = said([*[10.0] * 10, *steady], Window(15, 18))
    assert any(text.startswith("steps become slower") for text in found) is named


# Runs against a reference


def test_student_t_by_the_expansion_worked_by_hand() -> None:
    """Abramowitz and Stegun, 26.7.5, where the normal quantile is 1 and 2: its four terms are round numbers."""
    one, two = (NormalDist().cdf(z) for z in (1, 2))
    assert t_quantile(one, 1) == pytest.approx(1 + 0.5 + 0.25 + 0.0625)
    assert t_quantile(one, 2) == pytest.approx(1 + 0.5 / 2 + 0.25 / 4 + 0.0625 / 8)
    assert t_quantile(two, 1) == pytest.approx(2 + 2.5 + 3.0625 + 2.859375)
    assert t_quantile(1 - two, 1) == pytest.approx(-10.421875), "odd"


def test_a_bound_at_the_limit_passes_and_does_not_fail() -> None:
    # The tolerances put the limit on the bounds to the last bit.
    free = decide([run(10.0)], 10.0)
    assert decide([run(10.0)], 10.0, tolerance=free.high - 1).limit == free.high
    assert decide([run(10.0)], 10.0, tolerance=free.high - 1).answer == "pass"
    assert decide([run(10.0)], 10.0, tolerance=free.low - 1).limit == free.low
    assert decide([run(10.0)], 10.0, tolerance=free.low - 1).answer == "inconclusive"


def test_thirty_more_runs_are_the_most_that_are_asked_for() -> None:
    # With 31 runs in all the half width is `reach` times the ratio, and meets the limit 1.05 just here:
    reach = t_quantile(0.965, PRIOR_RUNS + 30) * PRIOR_DEVIATION / math.sqrt(31)
    ratio = 1.05 / (1 + reach)
    assert decide([run(10 * (ratio - 1e-9))], 10.0).more_runs == 30
    assert decide([run(10 * (ratio + 1e-9))], 10.0).more_runs is None


def test_beyond_the_limit_more_runs_would_fail() -> None:
    slow = decide([run(10.7)], 10.0)
    assert (slow.answer, slow.more_runs) == ("inconclusive", 8)
    assert decide([run(10.7)] * 9, 10.0).answer == "fail"


# Looks at growing data


def judge(times: Sequence[StepTime]) -> Decision:
    """Against 10 s, as a campaign with twelve reruns does."""
    return decide(times, 10.0, tolerance=tolerance_of(REQUIRED), error_rate=error_rate(12))


def test_the_first_look_asks_for_what_should_decide_and_the_second_for_all_that_is_left() -> None:
    ended = [Attempt(run(10.3))] * 3
    assert judge([run(10.3)] * 3).more_runs == 5
    first = follow(ended, 3, 12, judge)
    assert first.attempts == 3 + 5
    # The five runs scatter: still open, and the last look comes after all that are allowed.
    ended += [Attempt(run(seconds)) for seconds in (9.7, 10.9, 9.8, 10.8, 10.5)]
    assert follow(ended, 3, 12, judge).attempts == 15


def test_where_a_campaign_stands_is_said_in_full() -> None:
    failed = Attempt(failure="out of memory")
    assert follow([], 3, 4, judge) == Progress(3)
    assert follow([failed], 3, 4, judge) == Progress(3, answer="fail", trouble="out of memory")
    assert follow([failed, None], 3, 4, judge) == Progress(3, trouble="out of memory"), "what runs is waited for"
