"""Looks at growing data: what a campaign does next, and how often it is wrong in the end."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from llmb_common.results.decision import Decision, decide
from llmb_common.results.estimate import StepTime
from llmb_common.results.sequential import REPEATS, REQUIRED, RERUNS, Attempt, follow, tolerance_of
from tools.verdict_simulation import CASES, NOISES, Noise, campaign, repeats


def at(seconds: float) -> Attempt:
    return Attempt(StepTime(seconds, 0.0, count=10, mean=seconds, steps=400))


def judge(times: Sequence[StepTime]) -> Decision:
    """Against 10 s, as a campaign with four reruns does."""
    return decide(times, 10.0, tolerance=tolerance_of(REQUIRED))


NODE = Attempt(fault="a node failed")


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
    failed = Attempt(failure="out of memory")
    assert follow([failed, None, at(10)], 3, 4, judge).answer is None
    assert follow([failed], 3, 4, judge).answer == "fail", "the two others never started"
    found = follow([at(10), failed, at(10)], 3, 4, judge)
    assert (found.answer, found.trouble, found.decision) == ("fail", "out of memory", None)


def test_where_only_success_counts_nothing_is_judged() -> None:
    assert follow([Attempt()], 1, 1, None).answer == "pass"
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
