"""Student's t, F and their helpers, against published tables and against each other."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from llmb_common.base.statistics import beta_cdf, digamma, f_tail, t_quantile, t_tail, trigamma, trigamma_inverse
from llmb_common.results.decision import Decision, decide
from llmb_common.results.scatter import STATED
from llmb_common.results.sequential import (
    REPEATS,
    REQUIRED,
    RERUNS,
    Needs,
    SuiteAttempt,
    _scaled_time,
    may_decide,
    next_decision,
    tolerance_of,
    what_would_decide,
)
from llmb_common.results.steps import StepTime
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
    assert next_decision([], 3, 4, judge).attempts == 3
    assert next_decision([at(10), None, at(10)], 3, 4, judge).answer is None
    found = next_decision([at(10), at(10), at(10)], 3, 4, judge)
    assert (found.answer, found.attempts, found.reruns) == ("pass", 3, ())


def test_open_runs_are_rerun_up_to_the_limit_and_no_further() -> None:
    """As long as one more fast run, or one more slow one, could give an answer."""
    times = [10.0, 10.3, 10.6] + [10.0, 10.6] * 2
    ended = [at(seconds) for seconds in times[:3]]
    seen = []
    while (found := next_decision(ended, 3, 4, judge)).answer is None:
        seen.append(found.attempts)
        ended += [at(seconds) for seconds in times[len(ended) : found.attempts]]
    assert (found.answer, found.attempts, len(found.reruns)) == ("open", 7, 4)
    assert seen == [5, 7], "at five, and at all that are allowed"
    assert [rerun.attempt for rerun in found.reruns] == [4, 5, 6, 7]
    assert re.findall(r"\d+", found.reruns[0].reason) == ["3"]


def test_no_rerun_is_started_that_cannot_decide() -> None:
    """Where all runs are at the limit, four more like any of them leave the answer open."""
    found = next_decision([at(10.5), at(10.53), at(10.51)], 3, 4, judge)
    assert (found.answer, found.attempts, found.reruns) == ("open", 3, ())
    assert next_decision([at(10.3)] * 3, 3, 1, judge).answer == "open", "one is too few"
    assert next_decision([at(10.3)] * 3, 3, 7, judge).attempts == 5, "ten would pass"
    begun = next_decision([at(10.5)] * 4, 3, 4, judge)
    assert (begun.answer, begun.attempts) == (None, 5), "what somebody has started counts"


def on(day: str, *seconds: float) -> list[SuiteAttempt]:
    return [SuiteAttempt(StepTime(time, 0.0, count=10, mean=time, steps=400, day=day)) for time in seconds]


def test_a_first_evening_that_cannot_decide_ends_open_or_goes_on_on_other_days() -> None:
    """At 99.8 % of the reference: by the stated scatter of days, no run more of that evening would tell."""
    evening = on("1", 10.01, 10.03, 10.02)
    ends = next_decision(evening, 3, 4, judge, spread=False)
    assert (ends.answer, ends.attempts, ends.needs) == ("open", 3, Needs(2, 2)), "two runs, each on a further day"
    later = next_decision(evening, 3, 4, judge)
    assert (later.answer, [rerun.days for rerun in later.reruns]) == (None, [1, 2])
    assert next_decision([*evening, *on("2", 10.01), *on("3", 10.02)], 3, 4, judge).answer == "pass"
    seven = next_decision([*evening, *on("1", 10.01, 10.02, 10.02, 10.03)], 7, 0, judge)
    assert (seven.answer, seven.reruns, seven.needs) == ("open", (), Needs(3, 3))


@pytest.mark.parametrize("seconds", [9.6, 10.0, 10.4, 10.5, 10.8, 11.5])
@pytest.mark.parametrize("further_days", [False, True])
def test_what_may_decide_is_what_some_further_runs_decide(seconds: float, further_days: bool) -> None:
    """Of two kinds of further runs, all as fast as the fastest, or all as slow as the slowest."""
    times = [item.time for item in on("1", seconds, seconds * 1.01, seconds * 0.99)]
    answers = set()
    for like in times:
        for count in (2, 7, 12):
            further = [
                msgspec.structs.replace(like, day=str(2 + number) if further_days else "1") for number in range(count)
            ]
            answers.add(judge([*times, *further]).answer)
    assert may_decide(judge, times, 12, further_days=further_days) == (answers != {"open"})


def test_what_would_decide_are_the_fewest_runs_like_the_middle_one_and_of_the_same_day_if_they_may_be() -> None:
    seconds = [14.0, 9.0, 10.0, 13.0, 12.0]
    # Windows that were not typical: it is the mean that orders them.
    times = [msgspec.structs.replace(item.time, seconds=30 - item.time.mean) for item in on("1", *seconds)]
    asked: list[tuple[int, int]] = []

    def once(runs: int, days: int) -> Callable[[Sequence[StepTime]], Decision]:
        """Judge so that only so many runs on so many days decide."""
        asked.clear()

        def judge(given: Sequence[StepTime]) -> Decision:
            assert list(given[:5]) == times
            assert {time.mean for time in given[5:]} == {12.0}
            asked.append((len(given), len({time.day for time in given})))
            return Decision("pass" if asked[-1] == (runs, days) else "open", 1.0, 1.0, 1.0, 1.05, len(given))

        return judge

    assert what_would_decide(once(10, 1), times) == Needs(5, 0)
    assert what_would_decide(once(10, 6), times) == Needs(5, 5)
    assert what_would_decide(once(40, 1), times) == Needs(35, 0)
    assert what_would_decide(once(80, 1), times) is None
    assert asked == [(10, 1), (10, 6), (20, 1), (20, 16), (40, 1), (40, 36)]


@pytest.mark.parametrize(("count", "reach"), [(1, STATED.run), (2, STATED.run), (3, 0.0), (4, 0.0)])
def test_further_runs_are_tried_at_each_look_as_fast_and_as_slow_as_these_and_like_the_middle_one(
    count: int, reach: float
) -> None:
    """Of one or two runs nobody knows how much they differ: they are taken to differ as is stated."""
    seconds = [10.0, 9.0, 12.0, 11.0][:count]
    times = [time for item in on("1", *seconds) if (time := item.time)]
    asked: list[tuple[float, int]] = []

    def judge(given: Sequence[StepTime]) -> Decision:
        (mean,) = {time.mean for time in given[count:]}
        asked.append((mean, len(given)))
        return Decision("open", 1.0, 1.0, 1.0, 1.05, len(given))

    assert not may_decide(judge, times, 10 - count, further_days=False)
    fastest, middle, slowest = min(seconds), sorted(seconds)[count // 2], max(seconds)
    levels = (fastest * math.exp(-reach), middle, slowest * math.exp(reach))
    sizes = [size for size in (3, 5) if size > count]
    assert asked == [(pytest.approx(level), size) for level in levels for size in (*sizes, 10)]
    asked.clear()
    assert not may_decide(judge, times, 5 - count, further_days=True)
    assert {size for _, size in asked} == {5, *sizes}


def test_what_is_decided_stays_decided_when_it_is_followed_again() -> None:
    """A campaign that was killed finds the same runs, and must come to the same reruns."""
    ended = [at(10.3)] * 7
    whole = next_decision(ended, 3, 4, judge)
    assert next_decision(ended[: whole.attempts], 3, 4, judge) == whole
    assert whole.answer == "pass"


def test_a_run_that_a_node_ended_is_replaced_before_there_is_a_look() -> None:
    found = next_decision([at(10), NODE, at(10)], 3, 4, judge)
    assert (found.answer, found.attempts) == (None, 4)
    told = [(rerun.attempt, re.findall(r"\d+", rerun.reason)) for rerun in found.reruns]
    assert told == [(4, ["2"])], "and which run it replaces"
    again = next_decision([at(10), NODE, at(10), NODE], 3, 4, judge)
    told = [(rerun.attempt, re.findall(r"\d+", rerun.reason)) for rerun in again.reruns]
    assert told == [(4, ["2"]), (5, ["4"])]
    assert next_decision([at(10), NODE, at(10), NODE, at(10)], 3, 4, judge).answer == "pass"


def test_faults_beyond_the_limit_leave_what_there_is_to_decide() -> None:
    found = next_decision([NODE, NODE, at(10), at(10)], 3, 1, judge)
    assert (found.answer, found.attempts) == ("pass", 4)
    found = next_decision([NODE] * 4, 3, 1, judge)
    assert (found.answer, re.findall(r"\d+", found.trouble)) == ("open", ["4", "4"])


def test_a_failure_ends_it_once_the_others_have_ended() -> None:
    failed = SuiteAttempt(failure="out of memory")
    assert next_decision([failed, None, at(10)], 3, 4, judge).answer is None
    assert next_decision([failed], 3, 4, judge).answer == "fail", "the two others never started"
    found = next_decision([at(10), failed, at(10)], 3, 4, judge)
    assert (found.answer, found.trouble, found.decision) == ("fail", "out of memory", None)


def test_where_only_success_counts_nothing_is_judged() -> None:
    assert next_decision([SuiteAttempt()], 1, 1, None).answer == "pass"
    assert next_decision([NODE], 1, 1, None).attempts == 2
    assert next_decision([NODE, NODE], 1, 1, None).answer == "open"


def test_the_page_says_what_the_code_does() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    text = (docs / "acceptance.md").read_text()
    for line in (f"(default {REPEATS})", f"(default {RERUNS})", f"(default {REQUIRED})"):
        assert line in text, line
    tables = (docs / "benchmarks.md").read_text()
    for first, more in CASES:
        assert f"| {NOISES[1].title} | yes | {first} + {more} |" in tables


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES[::4], ids=lambda noise: noise.title)
def test_campaigns_are_wrong_in_at_most_five_per_cent(noise: Noise) -> None:
    source = random.Random(f"campaigns {noise.title}")
    answers = {
        performance: Counter(campaign(repeats(noise, source, 7), performance, 3, 4)[0] for _ in range(120))
        for performance in (1.0, REQUIRED)
    }
    assert answers[1.0]["fail"] == 0
    assert max(answers[REQUIRED]["pass"], answers[REQUIRED]["fail"]) / 120 <= 0.06
    assert answers[1.0]["pass"] > 60, "reruns decide"


def test_runs_that_tell_nothing_are_replaced_in_their_order_as_long_as_reruns_are_left() -> None:
    faults = [SuiteAttempt(fault=f"fault {number}") for number in range(1, 4)]
    found = next_decision(faults, 3, 2, judge)
    assert [(item.attempt, item.replaces, item.reason, item.days) for item in found.reruns] == [
        (4, 1, "run 1: fault 1", 0),
        (5, 2, "run 2: fault 2", 0),
    ]
    assert (found.attempts, found.answer) == (5, None)
    again = next_decision([*faults, at(10.0), SuiteAttempt(fault="fault 5")], 3, 3, judge)
    assert [(item.attempt, item.replaces) for item in again.reruns] == [(4, 1), (5, 2), (6, 3)]
    assert (again.attempts, again.answer) == (6, None)


def test_a_failure_goes_before_a_fault_and_waits_for_what_runs() -> None:
    both = SuiteAttempt(failure="out of memory", fault="a node failed")
    found = next_decision([both, NODE], 2, 4, judge)
    assert (found.answer, found.trouble, found.reruns) == ("fail", "out of memory", ())
    waits = next_decision([both, None], 2, 4, judge)
    assert (waits.answer, waits.trouble, waits.attempts) == (None, "out of memory", 2)


def test_where_the_reference_is_too_uncertain_no_run_is_added() -> None:
    def rough(times: Sequence[StepTime]) -> Decision:
        return msgspec.structs.replace(judge(times), answer="open", reference_too_uncertain=True)

    found = next_decision([at(10.3)] * 3, 3, 4, rough)
    assert (found.answer, found.reruns, found.needs) == ("open", (), None)
    assert found.decision is not None
    assert found.decision.reference_too_uncertain


def test_runs_are_added_up_to_the_next_look_or_to_the_last_that_may_be() -> None:
    """By a judge that says pass once there are so many."""

    def from_on(count: int) -> Callable[[Sequence[StepTime]], Decision]:
        return lambda times: Decision("pass" if len(times) >= count else "open", 1.0, 1.0, 1.0, 1.05, len(times))

    for ended, first, reruns, decided, attempts in (
        (1, 1, 9, 3, 3),
        (2, 2, 9, 3, 3),
        (3, 3, 9, 5, 5),
        (3, 3, 1, 4, 4),
        (4, 4, 9, 5, 5),
        (5, 5, 9, 10, 10),
        (5, 5, 3, 8, 8),
        (40, 40, 99, 80, 80),
    ):
        found = next_decision([at(10.0)] * ended, first, reruns, from_on(decided))
        assert (found.answer, found.attempts) == (None, attempts)
        runs = f"open after {ended} run{'s' * (ended > 1)}"
        assert {item.reason for item in found.reruns} == {runs}
        assert [item.attempt for item in found.reruns] == [*range(ended + 1, attempts + 1)]
    ends = next_decision([at(10.0)] * 3, 3, 0, from_on(5))
    assert (ends.answer, ends.attempts, ends.needs) == ("open", 3, Needs(2, 0))


def test_further_days_come_first_only_where_they_decide_sooner() -> None:
    asked: list[int] = []

    def by_days(times: Sequence[StepTime]) -> Decision:
        """Open until there are as many days as runs, if there are five at least."""
        days = len({time.day for time in times})
        asked.append(days)
        return Decision("pass" if days >= 5 else "open", 1.0, 1.0, 1.0, 1.05, len(times))

    evening = on("1", 10.0, 10.0, 10.0)
    found = next_decision(evening, 3, 9, by_days)
    assert [item.days for item in found.reruns] == [1, 2], "the one after the other"
    ends = next_decision(evening, 3, 9, by_days, spread=False)
    assert (ends.answer, ends.reruns) == ("open", ())
    assert ends.needs == Needs(7, 7), "the fewest days that decide are five, and the look after five runs has three"


def test_a_run_of_twice_the_time_is_as_uncertain_as_a_share_of_it() -> None:
    once = StepTime(10.0, 0.25, 10, mean=11.0, stalls=(4.0,), steps=40, day="1", nodes="a")
    assert _scaled_time(once, 0.0) == once
    twice = _scaled_time(once, math.log(2))
    assert (twice.seconds, twice.error, twice.mean) == (pytest.approx(20.0), pytest.approx(0.5), pytest.approx(22.0))
    assert msgspec.structs.replace(twice, seconds=10.0, error=0.25, mean=11.0) == once
    assert twice.relative_error == pytest.approx(once.relative_error)
