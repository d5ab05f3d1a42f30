"""How runs differ: what they share, what a site's record says of it, and whose runs it is learned from."""

from __future__ import annotations

import itertools
import math
import random
import re
import statistics
from pathlib import Path

import msgspec
import pytest

from llmb_common.base.statistics import digamma, t_quantile, trigamma
from llmb_common.planning.own_runs import OwnRuns
from llmb_common.results.configuration import configuration_key
from llmb_common.results.decision import decide
from llmb_common.results.level import level
from llmb_common.results.odd_runs import _chance_of_shared_node, culprit, odd_runs_clause, slow_node_clause
from llmb_common.results.own_runs import _mean_and_range, own_runs_lookup
from llmb_common.results.scatter import (
    NOTHING_SEEN,
    STATED,
    PastRun,
    PastRuns,
    Scatter,
    _excess_variance,
    _variance_prior,
    batches,
    learn_scatter,
    squares,
)
from llmb_common.results.steps import StepTime
from llmb_common.results.verdict import remarks_on
from llmb_common.runs.index import database
from llmb_common.runs.index.database import PastTime
from support.runs import PUBLISHED, plan_for
from support.texts import Texts


def run(log: float = 0.0, day: str = "", nodes: str = "", stalls: tuple[float, ...] = (), steps: int = 40) -> StepTime:
    return StepTime(math.exp(log), 0.0, count=10, day=day, nodes=nodes, stalls=stalls, steps=steps)


def sizes(runs: list[StepTime]) -> list[int]:
    return sorted(map(len, batches(runs)))


def record(count: int, day: float, single: float, seed: int = 1, days: int = 3, each: int = 2) -> list[list[StepTime]]:
    """Configurations of ``days`` days with ``each`` runs."""
    source = random.Random(seed)
    groups = []
    for _ in range(count):
        levels = [source.gauss(0, day) for _ in range(days)]
        groups.append(
            [run(level + source.gauss(0, single), f"{at}") for at, level in enumerate(levels) for _ in range(each)]
        )
    return groups


def test_runs_of_one_day_are_one_batch_and_runs_of_unknown_days_are_alone() -> None:
    assert sizes([run(day="1"), run(day="1"), run(day="2")]) == [1, 2]
    assert sizes([run(), run(), run()]) == [1, 1, 1]


def test_runs_on_the_nodes_that_others_did_not_have_are_one_batch() -> None:
    assert sizes([run(day="1", nodes="a"), run(day="2", nodes="a"), run(day="3", nodes="b")]) == [1, 2]
    assert sizes([run(day="1", nodes="a"), run(day="2", nodes="a")]) == [1, 1], "the only nodes are the system"


def test_what_links_two_batches_joins_them() -> None:
    apart = [run(day="1", nodes="a"), run(day="2", nodes="b"), run(day="3", nodes="c")]
    assert sizes(apart) == [1, 1, 1]
    assert sizes([*apart, run(day="1", nodes="b")]) == [1, 3]
    assert sizes([*apart, run(day="1", nodes="b"), run(day="2", nodes="c")]) == [5]


def test_squares_are_within_batches_and_between_their_means() -> None:
    found = squares([[run(0.0), run(0.2)], [run(0.5)]])
    assert found.within == pytest.approx(0.02)
    assert (found.within_degrees, found.between_degrees) == (1, 1)
    assert found.between == pytest.approx(2 * 0.2**2)
    assert found.share == pytest.approx(0.75)
    assert squares([]) == (0.0, 0, 0.0, 0, 0.0)


def test_a_site_without_enough_runs_has_what_is_stated() -> None:
    assert learn_scatter([]) == STATED
    few = learn_scatter([[run(day="1"), run(0.1, day="2")]])
    assert (few.day, few.run, few.learned) == (STATED.day, STATED.run, False)


@pytest.mark.parametrize(("day", "single"), [(0.0, 0.002), (0.0, 0.02), (0.02, 0.005), (0.03, 0.03)])
def test_a_record_gives_back_the_scatter_of_its_days_and_of_its_runs(day: float, single: float) -> None:
    found = learn_scatter(record(60, day, single))
    assert found.learned
    assert found.runs == 360
    assert found.run == pytest.approx(single, rel=0.15)
    assert found.day == pytest.approx(day, rel=0.2, abs=0.4 * single)
    assert 5 < found.run_degrees <= 15.1


def test_eight_degrees_of_freedom_are_enough_and_seven_are_not() -> None:
    def pairs(count: int) -> list[list[StepTime]]:
        return [[run(0.0, "1"), run(0.01, "1")] for _ in range(count)]

    assert not learn_scatter(pairs(7)).learned
    assert learn_scatter(pairs(8)).learned


def test_one_run_a_day_is_split_as_stated() -> None:
    found = learn_scatter(record(60, 0.0, 0.01, days=5, each=1))
    assert found.total == pytest.approx(0.01, rel=0.15)
    assert found.day / found.run == pytest.approx(STATED.day / STATED.run)
    assert found.day_degrees == found.run_degrees


def test_runs_that_never_differ_leave_a_scatter_above_zero() -> None:
    found = learn_scatter(record(20, 0.0, 0.0))
    assert 0 < found.run < 1e-4


def test_how_unlike_configurations_are_is_what_chance_leaves_unexplained() -> None:
    """DerSimonian and Laird (1986). Of two, weighted by their noise, it is (difference^2 - both noises) / 2; of equal
    noise, the sample variance less that noise. The stated likeness counts for four groups more."""
    stated = math.pi**2 / 6 - 1 - 1 / 4  # trigamma(3), of six degrees of freedom
    assert _excess_variance([1.5], [0.2]) == pytest.approx(stated), "one alone does not show it"
    assert _excess_variance([1.0, 3.5], [0.2, 0.7]) == pytest.approx((4 * stated + (2.5**2 - 0.2 - 0.7) / 2) / 5)
    logs = [0.1, 2.9, 1.4, -0.6, 1.1]
    beyond = statistics.variance(logs) - 0.3
    assert _excess_variance(logs, [0.3] * 5) == pytest.approx((4 * stated + 4 * beyond) / 8)
    assert _excess_variance([1.0, 1.1], [0.2, 0.7]) == pytest.approx(4 * stated / 5), "chance alone would do more"
    least = math.pi**2 / 2 - 4 * sum(1 / odd**2 for odd in range(1, 15, 2))  # trigamma(7.5), of 15
    assert _excess_variance([1.0] * 40, [0.3] * 40) == pytest.approx(least)


@pytest.mark.parametrize(("count", "degrees", "drawn"), [(2, 2, "usual"), (9, 4, "usual"), (30, 200, "plain")])
def test_a_record_counts_for_as_many_degrees_as_what_it_foretells_varies(count: int, degrees: int, drawn: str) -> None:
    """The log variance of one more configuration varies as configurations do and as the mean of these is uncertain; of
    f degrees it varies by trigamma(f / 2), and is in the mean digamma(f / 2) - ln(f / 2) less than the true one's."""
    variance, counted = _variance_prior([(0.03**2, degrees)] * count)
    chance = trigamma(degrees / 2)
    unlike = _excess_variance([0.0] * count, [chance] * count)
    assert trigamma(counted / 2) == pytest.approx(unlike + (unlike + chance) / count)

    def bias(free: float) -> float:
        return digamma(free / 2) - math.log(free / 2)

    usual = 0.03**2 * math.exp(bias(counted) - bias(degrees))
    assert variance == pytest.approx(usual if drawn == "usual" else 0.03**2)
    assert (usual > 0.03**2) is (drawn == "usual")


def test_a_plain_average_of_few_quiet_groups_counts_no_less_than_what_is_stated() -> None:
    loud = [(1.0, 40), (1.0, 40), (1e-8, 40), (1e-8, 40)]
    assert _variance_prior(loud) == (pytest.approx((1.0 + 2e-8) / 3), STATED.run_degrees), "one is set aside"
    kept = [(1e-8, 10), (1.0, 40), (1.0, 20)]
    assert _variance_prior(kept)[0] == pytest.approx((1e-7 + 20) / 30), "each by its degrees"


def test_configurations_that_are_unlike_count_for_fewer_degrees_of_freedom() -> None:
    alike = learn_scatter(record(40, 0.0, 0.01))
    unlike = learn_scatter([*record(20, 0.0, 0.002), *record(20, 0.0, 0.05, seed=2)])
    assert unlike.run_degrees < 0.6 * alike.run_degrees


def test_where_runs_are_of_two_kinds_the_record_is_not_that_of_groups_that_met_one_of_them() -> None:
    """A quarter of the runs is 8 % slow: of four runs a third of the groups meets none, and a few nothing else."""
    source = random.Random(1)
    groups = [
        [run(0.08 * (source.random() < 0.25) + source.gauss(0, 0.003), f"{at // 2}") for at in range(4)]
        for _ in range(40)
    ]
    found = learn_scatter(groups)
    assert found.total > 0.8 * 0.08 * math.sqrt(0.25 * 0.75)
    assert min(found.run_degrees, found.day_degrees) >= STATED.run_degrees, "a few quiet runs do not talk it down"


def test_one_configuration_that_changed_makes_no_site_loud() -> None:
    groups = record(12, 0.0, 0.004)
    groups[3] = [run(item.log + 0.2 * (item.day == "2"), item.day) for item in groups[3]]
    assert learn_scatter(groups).total < 0.006


def test_the_loudest_configuration_in_ten_may_be_an_accident() -> None:
    """One at least is set aside, and one always counts."""

    def alternating(log: float, count: int) -> list[list[StepTime]]:
        return [[run(log * (-1) ** at, "1") for at in range(9)] for _ in range(count)]

    quiet, loud = alternating(0.004, 9), alternating(0.1, 3)
    usual = learn_scatter(quiet).run
    assert learn_scatter(quiet[:1]).run == pytest.approx(usual, rel=0.05)
    assert learn_scatter([quiet[0], loud[0]]).run < 0.02, "of two one is set aside"
    assert learn_scatter([*quiet, *loud[:2]]).run == pytest.approx(usual, rel=0.05), "of eleven two"
    assert learn_scatter([*quiet, *loud]).run > 0.03, "of twelve two, too"


def test_a_record_knows_what_stalls_do_to_the_mean() -> None:
    """Of every second run two steps in forty take three times as long: 10 % of its time."""
    calm = [[run(day=f"{at}") for at in range(6)] for _ in range(10)]
    stalling = [[run(day=f"{at}", stalls=(2.0, 2.0) if at % 2 else ()) for at in range(6)] for _ in range(10)]
    assert learn_scatter(calm).total < 0.001
    assert learn_scatter(stalling).total == pytest.approx(math.log(1.1) / 2 * math.sqrt(6 / 5), rel=0.1)


# Past runs


def past(groups: list[list[StepTime]]) -> list[PastRun]:
    return [PastRun(f"c{at}", f"c{at} r{n}", time) for at, runs in enumerate(groups) for n, time in enumerate(runs)]


def test_a_configuration_is_judged_by_the_others() -> None:
    loud = past(record(1, 0.0, 0.10))
    calm = [item._replace(configuration=f"x{item.configuration}") for item in past(record(9, 0, 0.001))]
    known = PastRuns([*loud, *calm])
    assert known.scatter("c0") == PastRuns(calm).scatter("another")
    assert known.scatter("xc1").run_degrees < 0.8 * known.scatter("c0").run_degrees, "the loud one has a say in others"


def test_among_many_configurations_one_more_changes_nothing() -> None:
    known = PastRuns(past(record(60, 0.0, 0.01)))
    assert known.scatter("c0") is known.scatter("c1")
    few = PastRuns(past(record(50, 0.0, 0.01)))
    assert few.scatter("c0") is few.scatter("c0")
    assert few.scatter("c0") != few.scatter("c1")


def test_other_runs_of_a_configuration_are_those_that_are_not_judged() -> None:
    runs = [run(0.1, "1"), run(0.2, "1"), run(0.35, "2"), run(0.3, "2"), run(0.5, "3")]
    known = PastRuns(past([runs, [run(0.4)]]))
    for left_out in ([], ["c0 r1"], ["c0 r0", "c0 r1"], ["c0 r4", "c0 r2"], ["another"]):
        rest = [time for at, time in enumerate(runs) if f"c0 r{at}" not in left_out]
        assert known.squares_without("c0", left_out) == pytest.approx(squares(batches(rest)))
    assert known.squares_without("c0", [f"c0 r{at}" for at in range(5)]) == NOTHING_SEEN
    assert known.squares_without("nothing", []) == NOTHING_SEEN


def test_the_forty_newest_runs_say_how_a_configuration_differs() -> None:
    found = PastRuns(past([[run(0.0)] * 40 + [run(9.0)] * 10])).squares_without("c0", [])
    assert (found.between_degrees, found.between) == (39, 0.0)


def test_a_run_counts_once() -> None:
    once = past([[run(0.1), run(0.2)]])
    assert PastRuns([*once, *once]).squares_without("c0", []).between_degrees == 1


# What is said of runs that are judged together: shared days, unlike runs, slow nodes.


def judged(seconds: float, nodes: str = "", day: str = "") -> StepTime:
    return StepTime(seconds, 0.0, count=10, nodes=nodes, day=day, steps=400)


def remarks(runs: list[StepTime], scatter: Scatter = STATED) -> tuple[str, ...]:
    return remarks_on(runs, decide(runs, 10.0, scatter=scatter), scatter)


def test_calm_runs_of_their_own_days_have_nothing_to_say() -> None:
    assert remarks([judged(10 + step, day=f"{step}") for step in (0.0, 0.03, 0.05, 0.09)]) == ()
    assert remarks([judged(10.0, day="1")]) == (), "one run shares its day with none"


def test_repeats_that_share_a_day_say_so(texts: Texts) -> None:
    (text,) = remarks([judged(10.0, day="1"), judged(10.0, day="1"), judged(10.0, day="1")])
    texts(text)
    assert "--spread" in text
    (text,) = remarks([judged(10.0, day="1"), judged(10.0, day="1"), judged(10.0, day="2")])
    texts(text)


def test_runs_of_as_many_days_as_show_how_days_differ_need_no_others() -> None:
    """Two of them on one of five days: repeating on other days is no advice any more."""
    noise = (0.0, 0.03, 0.05, 0.09, 0.02, 0.06)
    assert remarks([judged(10 + step, day=day) for step, day in zip(noise, "123455", strict=True)]) == ()
    (text,) = remarks([judged(10 + step, day=day) for step, day in zip(noise, "123444", strict=True)])
    assert "only 4 days" in text


def test_runs_that_the_record_does_not_know_so_wild_say_so(texts: Texts) -> None:
    quiet = Scatter(0.0, 15.0, 0.002, 15.0, learned=True)
    (text,) = remarks([judged(9.8), judged(10.0), judged(10.2)], quiet)
    texts(text)
    (text,) = remarks([judged(9.0), judged(10.0), judged(11.0)])
    texts(text)
    assert "this site" not in text
    (text,) = remarks([judged(9.0), judged(10.0), judged(11.0)], quiet)
    texts(text)


def test_what_runs_are_said_to_differ_by_is_what_does_not_fit_the_record(texts: Texts) -> None:
    """Their stalls, where steady steps agree; or repeats of a day, where all runs together scatter no more."""
    quiet = Scatter(0.0, 15.0, 0.002, 15.0, learned=True)
    stalling = [msgspec.structs.replace(judged(10.0), stalls=stalls) for stalls in ((), (), (20.0,))]
    (text,) = remarks(stalling, quiet)
    texts(text)
    days = Scatter(0.02, 15.0, 0.001, 60.0, learned=True)
    repeats = [judged(10.0 + 0.1 * at, day=day) for at in (0, 1) for day in "1234"]
    texts(remarks(repeats, days)[-1])


def test_a_single_run_differs_from_none_however_wild_the_earlier_ones_were() -> None:
    alone = [judged(10.0)]
    found = decide(alone, 10.0, earlier=squares(batches([judged(8.0), judged(10.0), judged(12.0)])))
    assert found.source == "runs"
    assert remarks_on(alone, found, STATED) == ()


def test_slow_runs_are_counted_and_their_common_node_named(texts: Texts) -> None:
    runs = [judged(10.0 + at / 1000, f"gpu{at},gpu{at + 10}") for at in range(5)]
    runs += [judged(11.0, "gpu7,gpu20"), judged(11.01, "gpu30,gpu7")]
    texts(odd_runs_clause(runs))


def test_how_often_chance_would_name_a_node_is_said(texts: Texts) -> None:
    # 21 ways to choose two of seven runs: one node that two runs had is in both slow ones in 4.8 % of the cases.
    nodes = ["a,1", "b,2", "c,3", "d,4", "e,5", "bad,6", "bad,7"]
    runs = [judged(10.0 if "bad" not in had else 11.0, had) for had in nodes]
    texts(odd_runs_clause(runs))
    many = [judged(10.0, f"n{at}") for at in range(12)] + [
        judged(11.0, "bad,x"),
        judged(11.0, "bad,y"),
        judged(11.0, "z,bad"),
    ]
    texts(odd_runs_clause(many))


def test_a_single_fast_run_is_the_odd_one(texts: Texts) -> None:
    runs = [judged(10.0, "a,b"), judged(10.01, "a,b"), judged(10.0, "a,b"), judged(9.0, "c,d")]
    texts(odd_runs_clause(runs))


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
    assert bool(odd_runs_clause([judged(value) for value in seconds])) is named


def test_runs_whose_steps_have_two_speeds_are_all_of_one_kind() -> None:
    """As a published submission: 2 of 10 runs had one slow step more, and steady steps that took 33 % longer."""
    alike = [run(0.0, stalls=(0.33,) * 13), run(0.001, stalls=(0.33,) * 13), run(0.002, stalls=(0.33,) * 13)]
    other = run(math.log(1.33), stalls=(-0.25,) * 24)
    assert abs(other.mean_log - alike[0].mean_log) < 0.03
    assert odd_runs_clause([*alike, other]) == ""
    assert odd_runs_clause([*alike, run(math.log(1.33), stalls=(0.33,) * 13)]).startswith(
        "1 of 4 runs is 32.9 % slower"
    )


def test_healthy_runs_are_rarely_called_unlike() -> None:
    source = random.Random(1)
    named = [
        bool(odd_runs_clause([judged(source.gauss(10, 0.2)) for _ in range(count)]))
        for count in (5, 7, 10)
        for _ in range(400)
    ]
    assert sum(named) / len(named) < 0.03


def allocated(source: random.Random, count: int, slow: float, of: int = 16, each: int = 4) -> list[StepTime]:
    """Runs on ``each`` of ``of`` nodes, slower by ``slow`` where n0 is among them."""
    found = []
    for _ in range(count):
        nodes = source.sample(range(of), each)
        seconds = 10 * (1 + source.gauss(0, 0.02)) * (1 + slow * (0 in nodes))
        found.append(judged(seconds, ",".join(sorted(f"n{node}" for node in nodes))))
    return found


def days_of_runs(source: random.Random, days: int, runs: int, scatter: float, slow: float = 0.0) -> list[StepTime]:
    """Runs on 8 of 24 nodes, the same in four of five runs in a row of a day; days differ by ``scatter``, runs by half
    a percent, and those with n0 are slower by ``slow``."""
    found = []
    for day in range(days):
        level, nodes = source.gauss(0, scatter), source.sample(range(24), 8)
        for _ in range(runs):
            nodes = nodes if source.random() < 0.8 else source.sample(range(24), 8)
            seconds = 10 * math.exp(level + source.gauss(0, 0.005)) * (1 + slow * (0 in nodes))
            found.append(judged(seconds, ",".join(sorted(f"n{node}" for node in nodes)), f"{day}"))
    return found


@pytest.mark.parametrize(("days", "runs", "scatter"), [(3, 5, 0.02), (5, 4, 0.01), (4, 5, 0.02)])
def test_no_node_is_blamed_for_the_day_that_its_runs_were_on(days: int, runs: int, scatter: float) -> None:
    source = random.Random(7)
    named = sum(culprit(days_of_runs(source, days, runs, scatter)) is not None for _ in range(60))
    assert named <= 3, "20 to 50 where runs are shuffled across days"
    assert culprit(days_of_runs(source, 12, 3, 0.005, slow=0.05)).nodes == ("n0",)


def test_slow_runs_that_also_share_a_day_are_said_to_do_so() -> None:
    calm = [judged(10.0 + at / 1000, f"n{at}", "1") for at in range(8)]
    slow = [judged(11.0, f"bad,m{at}", "2") for at in range(3)]
    assert "bad, and no other run did (nor on the same days" in odd_runs_clause([*calm, *slow])
    for other in (
        [msgspec.structs.replace(run, day=f"{at}") for at, run in enumerate(slow, 2)],
        [msgspec.structs.replace(run, day="1") for run in slow],
    ):
        assert odd_runs_clause([*calm, *other]).endswith("no other run did")


def test_a_slow_node_is_named_once_it_was_in_enough_runs(texts: Texts) -> None:
    source = random.Random(3)
    said = [slow_node_clause(allocated(source, 30, 0.10), trials=199) for _ in range(20)]
    named = [text for text in said if "with n0 are" in text]
    assert len(named) >= 18
    texts(named[0])


def test_runs_and_nodes_too_many_to_shuffle_a_hundred_times_name_none() -> None:
    many, few = (allocated(random.Random(3), 40, 0.10, of=1000, each=each) for each in (300, 200))
    assert slow_node_clause(many) == "", "12,000 places"
    assert slow_node_clause(few) != "", "8,000 of them"


def test_healthy_nodes_are_named_in_one_case_of_a_hundred() -> None:
    source = random.Random(4)
    assert sum(bool(slow_node_clause(allocated(source, 20, 0.0), trials=199)) for _ in range(150)) <= 5


def test_the_culprit_is_the_node_of_all_slow_runs_also_where_these_are_most() -> None:
    few = [judged(10.0 + at / 1000, f"n{at}") for at in range(8)] + [judged(11.0, f"bad,m{at}") for at in range(4)]
    most = [judged(10.0, f"n{at}") for at in range(4)] + [judged(11.0 + at / 1000, f"bad,m{at}") for at in range(8)]
    for runs, slow in ((few, 4), (most, 8)):
        found = culprit(runs)
        assert found is not None
        assert (found.nodes, found.slow, found.others) == (("bad",), slow, 12 - slow)
        assert found.share == pytest.approx(0.1, abs=0.001)
    assert culprit(allocated(random.Random(3), 30, 0.10)).nodes == ("n0",), "also where it is only slower on average"


def test_what_a_slow_node_costs_is_told_without_the_stalls_of_other_runs() -> None:
    fast = [judged(10.0 + at / 1000, f"n{at}") for at in range(8)]
    slow = [judged(11.0, f"bad,m{at}") for at in range(4)]
    found = culprit(
        [msgspec.structs.replace(run, mean=run.seconds * (1.3 if run is fast[0] else 1.0)) for run in [*fast, *slow]]
    )
    assert found is not None
    assert found.others_seconds == pytest.approx(10.0, abs=0.01)
    assert found.share == pytest.approx(0.1, abs=0.001)


def test_no_node_is_blamed_where_chance_would_do_the_same() -> None:
    nodes = ["a,1", "b,2", "c,3", "d,4", "e,5", "bad,6", "bad,7"]
    assert culprit([judged(10.0 if "bad" not in had else 11.0, had) for had in nodes]) is None
    assert culprit([judged(10.0 + at / 1000, f"n{at}") for at in range(12)]) is None
    source = random.Random(4)
    assert sum(culprit(allocated(source, 20, 0.0)) is not None for _ in range(60)) <= 3


def test_few_runs_or_nodes_that_all_had_name_none() -> None:
    assert slow_node_clause([judged(10.0, "a"), judged(11.0, "b"), judged(10.0, "a")]) == ""
    assert slow_node_clause([judged(10.0 + at, "a,b") for at in range(10)]) == ""
    assert slow_node_clause([judged(10.0 + at) for at in range(10)]) == ""
    source = random.Random(5)
    assert slow_node_clause(allocated(source, 60, 0.2), trials=0) == "", "no trials that fit, no claim"


def test_one_more_run_scatters_as_the_runs_do_where_these_scatter_more_than_expected() -> None:
    wild = [run(0.2 * (-1) ** number, day=f"d{number}") for number in range(6)]
    spread = level(wild).spread
    assert spread.source == "runs"
    assert spread.another == pytest.approx(0.2**2 * 6 / 5, rel=0.3), "not by what is stated"
    steady = level([run(0.001 * number, day=f"d{number}") for number in range(4)]).spread
    assert steady.source == "stated"
    assert steady.another == pytest.approx(STATED.total**2)


def test_a_further_run_lies_in_the_range_of_many_in_nine_of_ten_cases() -> None:
    source = random.Random(3)
    scatter = 0.05
    logs = [source.gauss(0.0, scatter) for _ in range(4000)]
    known = _mean_and_range([math.exp(log) for log in logs])
    inside = sum(math.log(known.low) <= source.gauss(0.0, scatter * math.sqrt(2)) <= math.log(known.high) for _ in logs)
    assert inside / len(logs) == pytest.approx(0.9, abs=0.02), "of another day: it differs like two runs"


# What a site's record is made of


def test_a_single_day_is_one_in_which_days_do_not_differ() -> None:
    assert STATED.of_one_day == Scatter(0.0, 6.0, STATED.run, 6.0, learned=True, one_day=True)
    assert (STATED.learned, STATED.runs, STATED.one_day) == (False, 0, False)


def test_a_site_that_knows_only_its_runs_has_the_stated_days() -> None:
    known = learn_scatter([[run(0.0, "1"), run(0.01, "1")] for _ in range(8)])
    assert (known.day, known.day_degrees, known.runs) == (STATED.day, STATED.day_degrees, 16)
    assert known.run < STATED.run


@pytest.mark.parametrize(("count", "learned"), [(7, False), (8, True)])
def test_eight_degrees_of_freedom_between_days_are_enough_as_well(count: int, learned: bool) -> None:
    known = learn_scatter([[run(0.0, "1"), run(0.01, "2")] for _ in range(count)])
    assert (known.learned, known.runs) == (learned, 2 * count)


def test_what_days_do_is_what_their_means_differ_by_beyond_their_share_of_runs() -> None:
    """Days of one run and of three: their means vary by what days do, and by (1 + 1/3) / 2 of what runs do."""
    groups = [[run(at / 100, "1"), *[run(0.03 + step / 100, "2") for step in (-1, 0, 1)]] for at in range(9)]
    known = learn_scatter(groups)
    (found,) = {squares(batches(groups[0])).within_degrees}
    between = [(squares(batches(runs)).between, 1) for runs in groups]
    assert found == 2
    assert known.day**2 + known.run**2 * 2 / 3 == pytest.approx(_variance_prior(between)[0])
    calm = learn_scatter([[run(0.0, "1"), run(0.04, "1"), run(0.0, "2"), run(0.04, "2")]] * 9)
    assert calm.day == 0, "its runs explain more than all of it"


def test_fifty_one_configurations_are_many() -> None:
    known = PastRuns(past([[run(0.0, "1"), run(0.01 * at, "1")] for at in range(51)]))
    assert known.scatter("c0") is known.scatter("c1")


def test_the_range_of_a_further_run_is_that_of_the_difference_of_two() -> None:
    """By Student's t at 5 % a side, with what is stated for as many degrees as it counts and what these runs add."""
    alone = _mean_and_range([10.0])
    half = t_quantile(0.05, 6) * STATED.total * math.sqrt(2)
    assert (alone.low, alone.high) == (pytest.approx(10 * math.exp(-half)), pytest.approx(10 * math.exp(half)))
    two = _mean_and_range([10.0 * math.exp(-0.1), 10.0 * math.exp(0.1)])
    half = t_quantile(0.05, 7) * math.sqrt(2 * (6 * STATED.total**2 + 2 * 0.1**2) / 7)
    assert (two.high, two.low) == (pytest.approx(10 * math.exp(half)), pytest.approx(10 * math.exp(-half)))


# Nodes that the slow runs share


def test_of_two_halves_the_slower_one_is_the_odd_one() -> None:
    halves = [judged(10.0, "a"), judged(10.0, "b"), judged(11.0, "c"), judged(11.0, "d")]
    most = odd_runs_clause([*halves, judged(11.0, "e")])
    assert re.findall(r"[\d.]+|slower|faster", odd_runs_clause(halves)) == ["2", "4", "10.0", "slower"]
    assert re.findall(r"[\d.]+|slower|faster", most) == ["2", "5", "9.1", "faster"], "1 / 1.1 is 9.1 % less"


def test_up_to_four_nodes_are_named() -> None:
    def clause(nodes: str) -> str:
        return odd_runs_clause([judged(10.0, "x") for _ in range(120)] + [judged(11.0, nodes)])

    assert " a, b, c, d, and " in clause("d,c,b,a")
    assert " a, b, c, d, ..., and " in clause("e,d,c,b,a")


def test_the_chance_that_runs_share_a_node_is_that_of_drawing_them() -> None:
    """Of all pairs of seven runs those that had a node alone: 2 of 21, less by what a product of chances loses."""
    nodes = ["a,b", "a,b", "c", "c", "d", "d,e", "f,d"]
    runs = [judged(10.0, had) for had in nodes]
    sets = [set(had.split(",")) for had in nodes]
    drawn = [
        bool(
            set.intersection(*(sets[at] for at in pair)) - set().union(*(sets[at] for at in range(7) if at not in pair))
        )
        for pair in itertools.combinations(range(7), 2)
    ]
    assert sum(drawn) == 2
    assert _chance_of_shared_node(runs, 2) == pytest.approx(sum(drawn) / len(drawn), abs=0.003)
    assert _chance_of_shared_node(runs, 3) == pytest.approx(1 / 35), "the three that had d"
    assert _chance_of_shared_node(runs, 4) == 0


def students_t(inside: list[float], outside: list[float]) -> float:
    """The textbook's, of two samples with one variance."""
    squares_of = sum((value - statistics.fmean(side)) ** 2 for side in (inside, outside) for value in side)
    variance = squares_of / (len(inside) + len(outside) - 2)
    error = math.sqrt(variance * (1 / len(inside) + 1 / len(outside)))
    return (statistics.fmean(inside) - statistics.fmean(outside)) / error


def test_the_node_that_is_named_has_the_largest_t_of_all_that_two_runs_had_and_two_had_not() -> None:
    named = 0
    for seed in range(12):
        runs = allocated(random.Random(seed), 25, 0.06, of=8, each=3)
        had = {node: [node in item.nodes.split(",") for item in runs] for node in (f"n{at}" for at in range(8))}
        found = {
            node: students_t(
                [item.log for item, was in zip(runs, there, strict=True) if was],
                [item.log for item, was in zip(runs, there, strict=True) if not was],
            )
            for node, there in had.items()
            if 2 <= sum(there) <= 23
        }
        if text := slow_node_clause(runs, trials=199):
            assert f" with {max(found, key=lambda node: found[node])} are " in text
            named += 1
    assert named > 4


@pytest.mark.parametrize(("slow", "named"), [(1, False), (2, True), (38, True), (39, False)])
def test_a_node_is_one_that_two_runs_had_and_two_had_not(slow: int, named: bool) -> None:
    runs = [judged(11.0 + at / 1e4, "bad") for at in range(slow)] + [judged(10.0 + at / 1e4) for at in range(40 - slow)]
    assert bool(slow_node_clause(runs)) is named


@pytest.mark.parametrize(("trials", "named"), [(99, False), (100, True)])
def test_a_hundred_shuffles_show_what_comes_once_in_a_hundred(trials: int, named: bool) -> None:
    runs = [judged(11.0 + at / 1e4, "bad") for at in range(10)] + [judged(10.0 + at / 1e4) for at in range(10)]
    assert bool(slow_node_clause(runs, trials=trials)) is named
    assert slow_node_clause([judged(11.0, "bad")] * 2 + [judged(10.0)], trials=trials) == ""


def test_of_two_kinds_of_runs_and_of_a_slow_node_either_is_remarked_and_the_kinds_first() -> None:
    kinds = [judged(seconds, day=f"{at}") for at, seconds in enumerate((10.0, 10.001, 11.0, 10.002))]
    assert remarks(kinds)[-1] == odd_runs_clause(kinds) != ""
    assert slow_node_clause(kinds) == ""
    mixed = [
        msgspec.structs.replace(item, day=f"{at}") for at, item in enumerate(allocated(random.Random(3), 40, 0.10))
    ]
    assert odd_runs_clause(mixed) == ""
    assert remarks(mixed)[-1] == slow_node_clause(mixed) != ""
    both = [judged(11.0 + at / 1e4, "bad", f"{at}") for at in range(10)] + [
        judged(10.0, "", f"x{at}") for at in range(10)
    ]
    assert slow_node_clause(both) != ""
    assert remarks(both)[-1] == odd_runs_clause(both) != ""
    calm = [judged(10.0, day=f"{at}") for at in range(3)]
    waiting = [judged(11.0, day="later")]
    assert remarks_on(calm, decide(calm, 10.0), STATED, waiting) == (odd_runs_clause([*calm, *waiting]),)


def test_the_forty_newest_runs_of_the_newest_software_say_how_long_a_step_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a plan without an image, whose software only the runs know."""
    plan = msgspec.structs.replace(plan_for(tmp_path, **PUBLISHED), image=None, engine="0.6")
    asked: list[str] = []
    known: list[PastTime] = []

    def past_times(install: Path, configuration: str) -> list[PastTime]:
        asked.append(configuration)
        return known

    monkeypatch.setattr(database, "past_times", past_times)
    lookup = own_runs_lookup(tmp_path)
    assert (lookup(plan), asked) == (OwnRuns(), []), "there is no index"
    (tmp_path / ".llmb").mkdir(exist_ok=True)
    (tmp_path / ".llmb" / "index.db").touch()
    assert lookup(plan).time is None
    newest, older = (f"{configuration_key(plan)} Megatron-Bridge 0.6.{patch}" for patch in (2, 1))
    assert asked == [newest[:-1]]
    known += [PastTime(configuration, seconds) for seconds in (5.0, 5.0) for configuration in (newest, older)]
    known += [PastTime(newest, 5.0)] * 38 + [PastTime(newest, 50.0)] * 10
    found = lookup(plan).time
    assert found is not None
    assert (found.runs, found.seconds) == (40, pytest.approx(5.0))
    assert own_runs_lookup(None)(plan) == OwnRuns()
