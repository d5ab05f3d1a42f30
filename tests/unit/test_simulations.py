"""The simulations behind the pages: what is drawn, what is counted, and what the tables say."""

from __future__ import annotations

import functools
import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from llmb_common.results.decision import decide
from llmb_common.results.steps import estimate
from support.runs import took
from support.texts import Texts
from tools import tuning_simulation as tuning
from tools import verdict_simulation as simulation
from tools.verdict_simulation import (
    CASES,
    DAYS,
    MODELS,
    NOISES,
    PARTS,
    RATIOS,
    Noise,
    campaign,
    looks,
    repeats,
    simulate,
    site,
    verdicts,
    wrong,
)


class Fixed(random.Random):
    """Draws ``sigma`` standard deviations each time, and 0.5 where any number up to 1 is asked for."""

    def __init__(self, sigma: float) -> None:
        super().__init__(1)
        self.sigma = sigma

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        return mu + self.sigma * sigma

    def random(self) -> float:
        return 0.5


# What is drawn


def test_runs_and_steps_multiply() -> None:
    measured = simulate(Noise("", run=0.02, step=0.03), Fixed(1))
    assert measured.seconds == pytest.approx(1.02 * 1.03)
    assert measured.count == 10


def test_neighbouring_steps_share_what_is_correlated() -> None:
    """A process of first order: each state is ``correlation`` of the one before, and the rest is new."""
    state, expected = 1.0, []
    for _ in range(50):
        state = 0.6 * state + 0.8 * 1
        expected.append(1 + 0.01 * state)
    assert simulate(Noise("", 0.0, 0.01, correlation=0.6), Fixed(1)) == estimate(expected[34:44], expected[10:])


def test_drift_is_a_line_through_the_windows_centre() -> None:
    """Iterations 35 to 44, counted from 0 as 34 to 43."""
    steps = [1 + 0.05 * (index - 38.5) / 50 for index in range(50)]
    assert simulate(Noise("", 0.0, 0.0, drift=0.05), Fixed(1)) == estimate(steps[34:44], steps[10:])


@pytest.mark.parametrize(("share", "seconds"), [(0.4, 1.0), (0.6, 4.0)])
def test_a_stalled_step_takes_four_times_as_long(share: float, seconds: float) -> None:
    assert simulate(Noise("", 0.0, 0.0, stalls=share), Fixed(1)).seconds == seconds


def test_no_step_takes_less_than_a_hundredth() -> None:
    assert simulate(Noise("", 0.0, 2.0), Fixed(-1)).seconds == pytest.approx(0.01)


def test_stalls_count_in_the_true_mean() -> None:
    assert Noise("", stalls=0.05, times=3.0).mean == pytest.approx(1.10)
    assert Noise("", 0.03).mean == 1.0


def test_runs_of_a_slower_kind_count_in_the_true_mean() -> None:
    kinds = Noise("", 0.0, 0.0, slow=0.25, slower=0.08)
    found = [run.seconds for run in repeats(kinds, random.Random(1), 400)]
    assert {round(seconds, 6) for seconds in found} == {1.0, 1.08}
    assert sum(found) / 400 == pytest.approx(kinds.mean, abs=0.005)


def test_runs_are_spread_evenly_over_days_that_they_share() -> None:
    noise = Noise("", 0.0, 0.0, day=0.05)
    found = repeats(noise, random.Random(1), 6, 3)
    assert [item.day for item in found] == ["0", "0", "1", "1", "2", "2"]
    assert found[0].seconds == found[1].seconds != found[2].seconds
    assert len({item.seconds for item in repeats(noise, random.Random(1), 4)}) == 4, "each on a day of its own"


def test_a_run_is_of_the_kind_of_the_last_one_on_its_day() -> None:
    sticky = Noise("", 0.0, 0.0, slow=0.5, slower=0.05, sticky=0.9)
    source = random.Random(1)
    evenings = [[run.seconds > 1.02 for run in repeats(sticky, source, 10, 2)] for _ in range(200)]
    changes = sum(a != b for runs in evenings for a, b in itertools.pairwise(runs[:5]))
    assert changes / 800 == pytest.approx(0.05, abs=0.02), "half of those that are drawn anew"
    assert sum(runs[4] != runs[5] for runs in evenings) / 200 == pytest.approx(0.5, abs=0.1), "another day"


def test_a_node_that_is_slow_is_named_in_the_runs_that_had_it() -> None:
    found = repeats(Noise("", 0.0, 0.0, slow=0.5, slower=0.05, nodes=8), random.Random(1), 40)
    assert all(len(run.nodes.split(",")) == 4 for run in found)
    assert all(("n0" in run.nodes.split(",")) == (run.seconds > 1.02) for run in found)


@pytest.mark.slow
@pytest.mark.parametrize("noise", MODELS, ids=lambda noise: noise.title)
def test_the_true_mean_of_a_model_is_that_of_its_runs(noise: Noise) -> None:
    source = random.Random(2)
    means = [math.exp(run.mean_log) for run in repeats(noise, source, 750)]
    error = statistics.stdev(means) / math.sqrt(len(means))
    assert statistics.fmean(means) == pytest.approx(noise.mean, abs=4 * error + 0.001)


def test_a_record_knows_its_site() -> None:
    found = site(Noise("", 0.01, 0.0, day=0.02), random.Random(1))
    assert found.learned
    assert found.run == pytest.approx(0.01, rel=0.35)
    assert found.day == pytest.approx(0.02, rel=0.35)


# What is counted


def test_a_campaign_ends_at_the_look_that_decides() -> None:
    assert campaign([took(1.0)] * 15, 1.0, 3, 12) == ("pass", 3)
    assert campaign([took(1.2)] * 15, 1.0, 3, 12) == ("fail", 3)
    assert campaign([took(1.03)] * 15, 1.0, 3, 12) == ("pass", 10), "after looks at 3 and 5"
    assert campaign([took(1.05)] * 15, 1.0, 3, 12) == ("open", 3), "no further run of the kind would decide"
    assert campaign([took(1.0)], 1.0, 1, 0) == ("open", 1)
    limit = 1 / 0.95 / decide([took(1.0)], 1.0).high
    assert campaign([took(limit * 0.9999)], 1.0, 1, 0) == ("pass", 1), "the limit is 1 / 0.95, and not 1.05"
    assert campaign([took(limit * 1.0001)], 1.0, 1, 0) == ("open", 1)


def test_somebody_who_repeats_until_there_is_an_answer_stops_there() -> None:
    calm = Noise("", 0.0, 0.0)
    assert looks(calm, 1.0, trials=2, source=random.Random(1), known=False) == ({"pass": 2}, 3.0)
    assert looks(calm, 1.05, trials=2, source=random.Random(1), known=False) == ({"open": 2}, 20.0)
    assert looks(calm, 1.5, trials=2, source=random.Random(1), known=False) == ({"fail": 2}, 1.0)


def test_a_wrong_answer_is_a_fail_up_to_the_limit_and_a_pass_from_it_on() -> None:
    answers: Counter[Any] = Counter({"pass": 1, "fail": 2, "open": 7})
    assert (wrong(answers, 1.0), wrong(answers, 1.08), wrong(answers, 1.05)) == (0.2, 0.1, 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, True], ids=["stated", "site"])
@pytest.mark.parametrize(
    ("noise", "count", "days"),
    [
        (NOISES[3], 3, 3),
        (MODELS[5], 5, 3),
        (MODELS[7], 5, 5),
        (DAYS[1], 4, 2),
        (DAYS[3], 6, 3),
    ],
    ids=lambda value: value.title if isinstance(value, Noise) else str(value),
)
def test_wrong_answers_stay_below_five_per_cent(noise, count, days, known, monkeypatch):
    """Of 150 trials, with what chance adds to 5 % there. Sites have less to learn from than those of the tables."""
    monkeypatch.setattr(simulation, "site", functools.partial(site, configurations=10))
    source = random.Random(f"wrong {noise.title} {known}")
    answers = verdicts(noise, 1.05, count, trials=150, source=source, known=known, days=days)
    assert wrong(answers, 1.05) <= 0.09
    assert verdicts(noise, 1.0, count, trials=60, source=source, known=known, days=days)["fail"] <= 1


# The tables


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_a_table_has_a_row_for_each_case_and_cells_that_are_shares(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "site", functools.partial(site, configurations=3))
    for name in ("NOISES", "DAYS", "KINDS"):
        monkeypatch.setattr(simulation, name, getattr(simulation, name)[:3])
    monkeypatch.setattr(simulation, "MODELS", (*MODELS[:1], *MODELS[8:9]) * 5)
    header, rule, *rows = PARTS[part](2, 1)
    assert header.count("|") == rule.count("|")
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert {row[1] for row in cells} == {"no", "yes"}
    last = {"campaigns": len(simulation.PERFORMANCE), "models": len(simulation.SPREAD)}.get(part, len(RATIOS))
    for row in cells:
        for cell in row[-last:]:
            answers = cell.partition(" (")[0].rpartition("; ")[2].split(" / ")
            shares = [float(share) for share in answers if share != "-"]
            assert 0 <= sum(shares) <= 100
    if part == "campaigns":
        assert [row[2] for row in cells[:4]] == [f"{first} + {more}" for first, more in CASES]


def test_the_command_prints_the_parts_that_are_asked_for(monkeypatch, capsys, texts: Texts):
    def lines(trials: int, seed: int) -> Iterator[str]:
        yield f"{trials!r} trials, seed {seed!r}"

    monkeypatch.setattr(simulation, "PARTS", {"one": lines, "two": lines})
    for arguments, said in (
        ([], "1000 trials, seed 1\n\n" * 2),
        (["one", "--trials", "5", "--seed", "9"], "5 trials, seed 9\n\n"),
    ):
        monkeypatch.setattr("sys.argv", ["simulation", *arguments])
        simulation.main()
        assert capsys.readouterr().out == said
    monkeypatch.setattr("sys.argv", ["simulation", "three"])
    with pytest.raises(SystemExit):
        simulation.main()
    texts(capsys.readouterr().err)


# Tunings


def test_a_tuning_among_twelve_finds_what_is_fast() -> None:
    """Of 8 spaces, with what chance adds; the page has tables of 200."""
    kind = next(kind for kind in tuning.OTHERS if kind.candidates == 12)
    found = [*tuning.tunings(kind, tuning.USUAL, 8, 1)]
    assert sum(item.loss <= tuning.CLOSE for item in found) >= 7
    assert all(item.loss >= 0 for item in found)
    assert all(10 < item.cost - item.proof < 60 for item in found)


@pytest.mark.parametrize("noise", tuning.BEST_CRASHES, ids=lambda noise: noise.best)
def test_the_fastest_is_named_where_it_always_crashes(noise: tuning.Noise) -> None:
    kind = next(kind for kind in tuning.OTHERS if kind.candidates == 12)
    out = [item for item in tuning.tunings(kind, noise, 6, 1) if item.out]
    assert len(out) >= 4, "another one may lead by chance: then nobody saw it crash"
    assert all(item.named for item in out)


def test_a_space_is_the_same_each_time_and_its_base_runs() -> None:
    kind = next(kind for kind in tuning.OTHERS if kind.lacking)
    space = kind.make(random.Random(1))
    assert space == kind.make(random.Random(1))
    assert (space.holds[0], len(space.logs), space.holds.count(False)) == (True, 61, 15)
    assert space.holds[space.fastest]
    assert space.logs[space.fastest] < space.logs[0]


def test_a_budget_of_a_tuning_is_never_exceeded() -> None:
    space = tuning.OTHERS[1].make(random.Random(2))
    for budget in (1.5, 30.0, 60.0):
        assert tuning.tune(space, tuning.USUAL, random.Random(1), budget=budget).cost <= budget
