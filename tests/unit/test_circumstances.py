"""What is said of runs that are judged together: shared days, unlike runs, slow nodes."""

from __future__ import annotations

import random

import pytest

from llmb_common.results.circumstances import remarks_on, slow_node, unlike
from llmb_common.results.decision import decide
from llmb_common.results.estimate import StepTime
from llmb_common.results.scatter import STATED, Scatter, Stalls


def run(seconds: float, nodes: str = "", day: str = "") -> StepTime:
    return StepTime(seconds, 0.0, count=10, nodes=nodes, day=day, steps=400)


def remarks(runs: list[StepTime], scatter: Scatter = STATED) -> tuple[str, ...]:
    return remarks_on(runs, decide(runs, 10.0, scatter=scatter), scatter)


def test_calm_runs_of_their_own_days_have_nothing_to_say() -> None:
    assert remarks([run(10 + step, day=f"{step}") for step in (0.0, 0.03, 0.05, 0.09)]) == ()
    assert remarks([run(10.0, day="1")]) == (), "one run shares its day with none"


def test_repeats_that_share_a_day_say_so() -> None:
    (text,) = remarks([run(10.0, day="1"), run(10.0, day="1"), run(10.0, day="1")])
    assert text.startswith("its 3 runs share one day or the same nodes")
    assert text.endswith("repeats on other days would (--spread)")
    (text,) = remarks([run(10.0, day="1"), run(10.0, day="1"), run(10.0, day="2")])
    assert text.startswith("its 3 runs share 2 days or sets of nodes")


def test_runs_that_the_record_does_not_know_so_wild_say_so() -> None:
    quiet = Scatter(0.0, 15.0, 0.002, 15.0, Stalls(0, 0, 2000), learned=True)
    (text,) = remarks([run(9.8), run(10.0), run(10.2)], quiet)
    assert text == "these runs scatter more than this site's record says (0.2%): by 2.0%; the interval is theirs"
    (text,) = remarks([run(9.0), run(10.0), run(11.0)])
    assert text.startswith("these runs scatter more than runs of one cluster should: by 10.")


def test_slow_runs_are_counted_and_their_common_node_named() -> None:
    runs = [run(10.0 + at / 1000, f"gpu{at},gpu{at + 10}") for at in range(5)]
    runs += [run(11.0, "gpu7,gpu20"), run(11.01, "gpu30,gpu7")]
    assert unlike(runs).startswith(
        "2 of 7 runs are 10.0% slower than the others; all of them had gpu7, and no other run"
    )


def test_how_often_chance_would_name_a_node_is_said() -> None:
    # 21 ways to choose two of seven runs: one node that two runs had is in both slow ones in 4.8 % of the cases.
    nodes = ["a,1", "b,2", "c,3", "d,4", "e,5", "bad,6", "bad,7"]
    runs = [run(10.0 if "bad" not in had else 11.0, had) for had in nodes]
    assert unlike(runs).endswith("all of them had bad, and no other run (so would chance in 5% of such cases)")
    many = [run(10.0, f"n{at}") for at in range(12)] + [run(11.0, "bad,x"), run(11.0, "bad,y"), run(11.0, "z,bad")]
    assert unlike(many).endswith("all of them had bad, and no other run"), "1 of 455"


def test_a_single_fast_run_is_the_odd_one() -> None:
    runs = [run(10.0, "a,b"), run(10.01, "a,b"), run(10.0, "a,b"), run(9.0, "c,d")]
    assert unlike(runs).startswith("1 of 4 runs is 10.0% faster than the others; it had c, d, and no other run")


@pytest.mark.parametrize(
    ("seconds", "named"),
    [
        ((10.0, 10.0, 10.0), False),
        ((10.0, 10.0, 10.0, 10.09), False),
        ((10.0, 10.0, 10.0, 10.11), True),
        ((10.0, 10.02, 10.1, 10.41), True),
        ((10.0, 10.02, 10.1, 10.39), False),
    ],
)
def test_runs_are_unlike_where_the_gap_is_three_times_what_either_kind_scatters(seconds, named):
    assert bool(unlike([run(value) for value in seconds])) is named


def test_healthy_runs_are_rarely_called_unlike() -> None:
    source = random.Random(1)
    named = [
        bool(unlike([run(source.gauss(10, 0.2)) for _ in range(count)])) for count in (5, 7, 10) for _ in range(400)
    ]
    assert sum(named) / len(named) < 0.03


def allocated(source: random.Random, count: int, slow: float, of: int = 16, each: int = 4) -> list[StepTime]:
    """Runs on ``each`` of ``of`` nodes, slower by ``slow`` where n0 is among them."""
    found = []
    for _ in range(count):
        nodes = source.sample(range(of), each)
        seconds = 10 * (1 + source.gauss(0, 0.02)) * (1 + slow * (0 in nodes))
        found.append(run(seconds, ",".join(sorted(f"n{node}" for node in nodes))))
    return found


def test_a_slow_node_is_named_once_it_was_in_enough_runs() -> None:
    source = random.Random(3)
    texts = [slow_node(allocated(source, 30, 0.10), trials=199) for _ in range(20)]
    named = [text for text in texts if "with n0 are" in text]
    assert len(named) >= 18
    assert "runs with n0 are" in named[0]
    assert named[0].endswith("slower than those without (chance: at most 1%)")


def test_healthy_nodes_are_named_in_one_case_of_a_hundred() -> None:
    source = random.Random(4)
    assert sum(bool(slow_node(allocated(source, 20, 0.0), trials=199)) for _ in range(150)) <= 5


def test_few_runs_or_nodes_that_all_had_name_none() -> None:
    assert slow_node([run(10.0, "a"), run(11.0, "b"), run(10.0, "a")]) == ""
    assert slow_node([run(10.0 + at, "a,b") for at in range(10)]) == ""
    assert slow_node([run(10.0 + at) for at in range(10)]) == ""
    source = random.Random(5)
    assert slow_node(allocated(source, 60, 0.2), trials=0) == "", "no trials that fit, no claim"
