"""An order of configurations, in which those that cannot be told apart share a place."""

from __future__ import annotations

import random

import pytest

from llmb_common.results.comparison import Contender, ranked
from llmb_common.results.steps import StepTime


def contender(name: str, seconds: float, *, tokens: float = 1000, runs: int = 3, noise: float = 0.0) -> Contender[str]:
    dice = random.Random(name)
    times = [seconds * (1 + noise * dice.gauss(0, 1)) for _ in range(runs)]
    return Contender(name, [StepTime(time, time / 1000, 10, mean=time, steps=40) for time in times], tokens)


def test_the_fastest_is_first_and_what_is_as_fast_shares_its_place() -> None:
    found = ranked([contender("slow", 2.0), contender("same", 1.001), contender("fast", 1.0), contender("slower", 2.6)])
    assert [(item.of, item.place) for item in found] == [("fast", 1), ("same", 1), ("slow", 3), ("slower", 4)]
    assert found[0].behind is None
    assert [item.behind.ratio for item in found[2:] if item.behind] == [pytest.approx(2.0), pytest.approx(2.6)]


def test_batches_and_scales_are_compared_by_the_token() -> None:
    """Twice the tokens in 1.5 times the time is faster."""
    found = ranked([contender("small", 1.0, tokens=1000), contender("large", 1.5, tokens=2000)])
    assert [(item.of, item.place) for item in found] == [("large", 1), ("small", 2)]
    assert [item.behind.ratio for item in found if item.behind] == [pytest.approx(4 / 3)]


def test_each_is_compared_with_the_first_of_its_place_so_a_slow_slope_ends_a_place() -> None:
    found = ranked([contender(str(number), 1.0 + 0.02 * number) for number in range(8)])
    places = [item.place for item in found]
    assert places[0] == places[1] == 1
    assert places[-1] > 1
    assert places == sorted(places)


def test_nobody_and_a_single_one_have_an_order() -> None:
    assert ranked([]) == []
    assert [item.place for item in ranked([contender("alone", 1.0, runs=1)])] == [1]
