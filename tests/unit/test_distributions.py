"""Student's t, F and their helpers, against published tables and against each other."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from llmb_common.results.decision import (
    REPEATS,
    REQUIRED,
    RERUNS,
    Decision,
    SuiteAttempt,
    decide,
    follow,
    tolerance_of,
)
from llmb_common.results.steps import StepTime
from llmb_common.timing.statistics import (
    beta_cdf,
    digamma,
    f_tail,
    t_quantile,
    t_tail,
    trigamma,
    trigamma_inverse,
)
from tools.verdict_simulation import CASES, NOISES, Noise, campaign, repeats

EULER = 0.5772156649015329


@pytest.mark.parametrize(
    ("rate", "degrees", "quantile"),
    [
        (0.05, 1, 6.3138),
        (0.05, 2, 2.9200),
        (0.05, 5, 2.0150),
        (0.025, 6, 2.4469),
        (0.025, 10, 2.2281),
        (0.005, 3, 5.8409),
        (0.05, 30, 1.6973),
        (0.05, 1000, 1.6464),
    ],
)
def test_t_quantiles_are_those_of_the_tables(rate, degrees, quantile):
    assert t_quantile(rate, degrees) == pytest.approx(quantile, abs=5e-5)
    assert t_tail(t_quantile(rate, degrees), degrees) == pytest.approx(rate)
    assert t_tail(-t_quantile(rate, degrees), degrees) == pytest.approx(1 - rate)


def test_t_of_one_degree_is_cauchys():
    for t in (0.1, 1.0, 7.0):
        assert t_tail(t, 1) == pytest.approx(0.5 - math.atan(t) / math.pi)


@pytest.mark.parametrize(
    ("above", "below", "f"), [(1, 6, 5.9874), (2, 6, 5.1433), (4, 6, 4.5337), (6, 4, 6.1631), (10, 20, 2.3479)]
)
def test_f_tails_are_those_of_the_tables(above, below, f):
    assert f_tail(f, above, below) == pytest.approx(0.05, abs=1e-5)
    assert f_tail(0.0, above, below) == 1.0


def test_t_squared_is_f_with_one_degree_above():
    assert f_tail(2.2**2, 1, 7) == pytest.approx(2 * t_tail(2.2, 7))


def test_beta_is_a_distribution():
    assert beta_cdf(2, 3, 0) == 0.0
    assert beta_cdf(2, 3, 1) == 1.0
    assert beta_cdf(1, 1, 0.3) == pytest.approx(0.3)
    assert beta_cdf(2, 3, 0.4) + beta_cdf(3, 2, 0.6) == pytest.approx(1)
    assert beta_cdf(2, 3, 0.4) == pytest.approx(0.5248), "6 x^2 - 8 x^3 + 3 x^4"


def test_polygamma_at_one_and_a_half():
    assert digamma(1) == pytest.approx(-EULER)
    assert digamma(0.5) == pytest.approx(-EULER - 2 * math.log(2))
    assert trigamma(1) == pytest.approx(math.pi**2 / 6)
    assert trigamma(0.5) == pytest.approx(math.pi**2 / 2)
    for x in (0.3, 3.0, 40.0):
        assert trigamma_inverse(trigamma(x)) == pytest.approx(x)


def test_the_log_of_a_sample_variance_has_the_mean_that_digamma_says():
    """ln(s^2 / sigma^2) of f degrees: digamma(f / 2) - ln(f / 2), with variance trigamma(f / 2)."""
    source = random.Random(1)
    logs = [math.log(source.gammavariate(2, 1) / 2) for _ in range(20000)]
    assert sum(logs) / len(logs) == pytest.approx(digamma(2) - math.log(2), abs=0.02)
    mean = sum(logs) / len(logs)
    assert sum((log - mean) ** 2 for log in logs) / len(logs) == pytest.approx(trigamma(2), rel=0.05)


# Looks at growing data: what a campaign does next, and how often it is wrong in the end.


def at(seconds: float) -> SuiteAttempt:
    return SuiteAttempt(StepTime(seconds, 0.0, count=10, mean=seconds, steps=400))


def judge(times: Sequence[StepTime]) -> Decision:
    """Against 10 s, as a campaign with four reruns does."""
    return decide(times, 10.0, tolerance=tolerance_of(REQUIRED))


NODE = SuiteAttempt(fault="a node failed")


def test_95_per_cent_of_the_performance_are_5_26_per_cent_more_time() -> None:
    assert 1 + tolerance_of(0.95) == pytest.approx(1.0526, abs=1e-4)


def test_the_first_look_comes_after_the_repeats() -> None:
    assert follow([], 3, 4, judge).attempts == 3
    assert follow([at(10), None, at(10)], 3, 4, judge).answer is None
    found = follow([at(10), at(10), at(10)], 3, 4, judge)
    assert (found.answer, found.attempts, found.reruns) == ("pass", 3, ())


def test_inconclusive_runs_are_rerun_up_to_the_limit_and_no_further() -> None:
    ended = [at(10.5)] * 3
    seen = []
    while (found := follow(ended, 3, 4, judge)).answer is None:
        seen.append(found.attempts)
        ended += [at(10.5)] * (found.attempts - len(ended))
    assert (found.answer, found.attempts, len(found.reruns)) == ("inconclusive", 7, 4)
    assert seen == [5, 7], "at five, and at all that are allowed"
    assert [rerun.attempt for rerun in found.reruns] == [4, 5, 6, 7]
    assert found.reruns[0].reason == "inconclusive after 3 runs"


def test_what_is_decided_stays_decided_when_it_is_followed_again() -> None:
    """A campaign that was killed finds the same runs, and must come to the same reruns."""
    ended = [at(10.3)] * 7
    whole = follow(ended, 3, 4, judge)
    assert follow(ended[: whole.attempts], 3, 4, judge) == whole
    assert whole.answer == "pass"


def test_a_run_that_a_node_ended_is_replaced_before_there_is_a_look() -> None:
    found = follow([at(10), NODE, at(10)], 3, 4, judge)
    assert (found.answer, found.attempts) == (None, 4)
    assert [(rerun.attempt, rerun.reason) for rerun in found.reruns] == [(4, "run 2: a node failed")]
    again = follow([at(10), NODE, at(10), NODE], 3, 4, judge)
    assert [(rerun.attempt, rerun.reason) for rerun in again.reruns] == [
        (4, "run 2: a node failed"),
        (5, "run 4: a node failed"),
    ]
    assert follow([at(10), NODE, at(10), NODE, at(10)], 3, 4, judge).answer == "pass"


def test_faults_beyond_the_limit_leave_what_there_is_to_decide() -> None:
    found = follow([NODE, NODE, at(10), at(10)], 3, 1, judge)
    assert (found.answer, found.attempts) == ("pass", 4)
    found = follow([NODE] * 4, 3, 1, judge)
    assert (found.answer, found.trouble) == ("inconclusive", "4 of 4 runs say nothing, the last one: a node failed")


def test_a_failure_ends_it_once_the_others_have_ended() -> None:
    failed = SuiteAttempt(failure="out of memory")
    assert follow([failed, None, at(10)], 3, 4, judge).answer is None
    assert follow([failed], 3, 4, judge).answer == "fail", "the two others never started"
    found = follow([at(10), failed, at(10)], 3, 4, judge)
    assert (found.answer, found.trouble, found.decision) == ("fail", "out of memory", None)


def test_where_only_success_counts_nothing_is_judged() -> None:
    assert follow([SuiteAttempt()], 1, 1, None).answer == "pass"
    assert follow([NODE], 1, 1, None).attempts == 2
    assert follow([NODE, NODE], 1, 1, None).answer == "inconclusive"


def test_the_page_says_what_the_code_does() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "acceptance.md").read_text()
    for line in (f"(default {REPEATS})", f"(default {RERUNS})", f"(default {REQUIRED})"):
        assert line in text, line
    for first, more in CASES:
        assert f"| {NOISES[1].title} | yes | {first} + {more} |" in text


@pytest.mark.parametrize("noise", NOISES[::2], ids=lambda noise: noise.title)
def test_campaigns_are_wrong_in_at_most_five_per_cent(noise: Noise) -> None:
    source = random.Random(f"campaigns {noise.title}")
    answers = {
        performance: Counter(campaign(repeats(noise, source, 7), performance, 3, 4)[0] for _ in range(120))
        for performance in (1.0, REQUIRED)
    }
    assert answers[1.0]["fail"] == 0
    assert max(answers[REQUIRED]["pass"], answers[REQUIRED]["fail"]) / 120 <= 0.06
    assert answers[1.0]["pass"] > 60, "reruns decide"
