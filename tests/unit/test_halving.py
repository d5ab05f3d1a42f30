"""Successive halving, from how trials ended to what is due and who leads."""

from __future__ import annotations

import math
import re

import pytest

from llmb_run.tuning.halving import Outcome, Standing, Trial, search_standing, trials_of

FAILED = Trial("failed")
WHOLE_CRASH = Trial("failed", full=True)


def timed(*seconds: float) -> list[Trial]:
    return [Trial("timed", math.log(value)) for value in seconds]


def searched(true: list[float], runs: list[list[Trial]] | None = None) -> tuple[Standing, list[list[Trial]]]:
    """To its end, each trial taking what is ``true``."""
    runs = runs or [[] for _ in true]
    while (standing := search_standing(runs, "seed")).due:
        for at in standing.due:
            runs[at] += timed(true[at])
    return standing, runs


def test_the_better_half_goes_on_and_the_last_two_have_three_trials() -> None:
    true = [1.0, *(1.3 - 0.05 * number for number in range(8))]
    standing, runs = searched(true)
    assert [len(known) for known in runs] == [3, 1, 1, 1, 1, 2, 2, 3, 3]
    assert (standing.leader, standing.order) == (8, (8, 7, 6, 5, 4, 3, 2, 1))
    assert standing.ratios[8] == pytest.approx(0.95)


@pytest.mark.parametrize(("candidates", "trials"), [(1, 6), (2, 9), (3, 10), (8, 17), (24, 52), (60, 125)])
def test_the_number_of_trials_is_known_beforehand(candidates: int, trials: int) -> None:
    _, runs = searched([1.0 + 0.01 * number for number in range(candidates + 1)])
    assert sum(map(len, runs)) == trials_of(candidates) == trials


def test_who_remains_has_been_in_the_same_rounds_as_the_base_whose_first_run_is_alone() -> None:
    runs: list[list[Trial]] = [[] for _ in range(9)]
    assert search_standing(runs, "seed").due == (0,)
    runs[0] += timed(1.0)
    first = search_standing(runs, "seed").due
    assert (sorted(first), first != tuple(sorted(first))) == ([*range(1, 9)], True)
    for at in first:
        runs[at] += timed(1.0 + at / 100)
    second = search_standing(runs, "seed")
    assert (second.round, second.remaining) == (2, (1, 2, 3, 4))
    assert [at for at in second.due if at] == [at for at in reversed(first) if at <= 4], "every second one turns round"


def test_one_crash_is_tried_again_last_and_the_next_takes_a_candidate_out() -> None:
    runs = [timed(1.0), [FAILED], [], timed(0.9)]
    assert search_standing(runs, "seed").due == (2, 1)
    runs[1] += timed(0.8)
    standing, _ = searched([1.0, 0.8, 1.1, 0.9], runs)
    assert (standing.leader, standing.out) == (1, {})
    runs[1].append(WHOLE_CRASH)
    assert search_standing(runs, "seed").leader == 1, "it had run in between"
    runs[1].append(WHOLE_CRASH)
    after = search_standing(runs, "seed")
    assert (after.leader, after.out, after.due) == (3, {1: "crashed twice"}, ())
    assert after.ratios[1] == pytest.approx(0.8), "what it was is still known"


def test_three_crashes_take_a_candidate_out_though_it_runs_in_between() -> None:
    runs = [timed(1.0, 1.0), [FAILED, *timed(0.8), FAILED, *timed(0.8)], timed(0.9, 0.9)]
    assert search_standing(runs, "seed").out == {}
    runs[1].append(FAILED)
    out = search_standing(runs, "seed").out
    assert {index: re.findall(r"\d+", why) for index, why in out.items()} == {1: ["3"]}


@pytest.mark.parametrize("outcome", ["out of memory", "other work"])
def test_a_known_cause_takes_a_candidate_out_at_once(outcome: Outcome) -> None:
    standing, runs = searched([1.0, 0.8, 0.9], [[], [Trial(outcome)], []])
    assert (standing.leader, standing.out, len(runs[1])) == (2, {1: outcome}, 1)


def test_where_the_base_is_the_fastest_it_leads() -> None:
    standing, _ = searched([1.0, 1.1, 1.2])
    assert (standing.leader, standing.order) == (0, (1, 2))


def test_where_nobody_else_runs_the_search_is_over() -> None:
    standing = search_standing([timed(1.0), [Trial("out of memory")], [FAILED, FAILED]], "seed")
    assert (standing.due, standing.leader, standing.base_fails) == ((), 0, False)


@pytest.mark.parametrize(
    ("base", "fails"),
    [
        ([FAILED], False),
        ([FAILED, FAILED], True),
        ([*timed(1.0), FAILED, FAILED], False),
        ([*timed(1.0), FAILED, FAILED, FAILED], True),
        ([*timed(1.0, 1.0), FAILED, FAILED], False),
        ([Trial("out of memory")], True),
        ([Trial("no answer")] * 2, False),
    ],
)
def test_a_base_that_fails_more_often_than_it_runs_ends_it(base: list[Trial], fails: bool) -> None:
    standing = search_standing([base, []], "seed")
    assert (standing.base_fails, standing.due == ()) == (fails, fails)


def test_candidates_that_join_later_run_what_they_lack() -> None:
    """As after a larger budget; the others do not run again."""
    _, runs = searched([1.0, 0.9, 1.1])
    standing = search_standing([*runs, [], []], "seed")
    assert (standing.round, sorted(standing.due)) == (1, [3, 4])
