"""The simulations behind the pages: what is drawn, what is counted, and what the tables say."""

from __future__ import annotations

import random
import re
import runpy
from collections.abc import Iterator
from typing import Any

import pytest

from llmb_common.results import sequential_simulation, simulation
from llmb_common.results.estimate import StepTime, estimate
from llmb_common.results.sequential_simulation import campaign, outcomes
from llmb_common.results.simulation import NOISES, Noise, simulate


class Fixed(random.Random):
    """Draws ``sigma`` standard deviations each time, and 0.5 where any number up to 1 is asked for."""

    def __init__(self, sigma: float) -> None:
        super().__init__(1)
        self.sigma = sigma

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        return mu + self.sigma * sigma

    def random(self) -> float:
        return 0.5


def run(seconds: float) -> StepTime:
    return StepTime(seconds, 0.0, count=10, mean=seconds)


# What is drawn

WORDS = {
    r"runs (\d+) %": "run",
    r"steps (\d+) %": "step",
    r"correlated (0\.\d+)": "correlation",
    r"(\d+) % fourfold spikes": "spikes",
    r"drift of (\d+) %": "drift",
}


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.title)
def test_a_noise_is_what_its_title_says(noise: Noise) -> None:
    said = {}
    for pattern, field in WORDS.items():
        found = re.search(pattern, noise.title)
        said[field] = (float(found[1]) / (1 if "." in found[1] else 100)) if found else 0.0
    assert noise == Noise(noise.title, **said)


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
def test_a_spike_takes_four_times_as_long(share: float, seconds: float) -> None:
    assert simulate(Noise("", 0.0, 0.0, spikes=share), Fixed(1)).seconds == seconds


def test_no_step_takes_less_than_a_hundredth() -> None:
    assert simulate(Noise("", 0.0, 2.0), Fixed(-1)).seconds == pytest.approx(0.01)


# What is counted


def test_a_campaign_ends_at_the_look_that_decides() -> None:
    assert campaign([run(1.0)] * 15, 1.0, 3, 12) == ("pass", 3)
    assert campaign([run(1.2)] * 15, 1.0, 3, 12) == ("fail", 3)
    assert campaign([run(1.04)] * 15, 1.0, 3, 12) == ("pass", 15), "9.6 runs more, and then all"
    assert campaign([run(1.05)] * 15, 1.0, 3, 12) == ("inconclusive", 15)
    assert campaign([run(1.05)], 1.0, 1, 0) == ("inconclusive", 1)
    assert campaign([run(0.9923)], 1.0, 1, 0) == ("pass", 1), "the limit is 1 / 0.95, and not 1.05"


def test_each_run_is_in_one_campaign_and_what_is_left_in_none() -> None:
    runs = [run(1.0)] * 3 + [run(1.2)] * 3 + [run(1.0)] * 2
    counted, mean = outcomes(runs, 1.0, 3, 0)
    assert counted == {"pass": 1, "fail": 1}
    assert mean == 3
    counted, mean = outcomes([run(1.0)] * 15 + [run(1.05)] * 15, 1.0, 3, 12)
    assert counted == {"pass": 1, "inconclusive": 1}
    assert mean == (3 + 15) / 2


def test_performance_is_that_of_the_system_under_test() -> None:
    """At 93 % of the reference's performance a run takes 1 / 0.93 of its time."""
    assert outcomes([run(1.0)] * 30, 0.93, 3, 12)[0] == {"fail": 2}
    assert outcomes([run(1.0)] * 30, 1.00, 3, 12)[0] == {"pass": 2}


# The tables


def test_the_table_of_campaigns() -> None:
    header, rule, *rows = sequential_simulation.table(2, 1)
    assert header == (
        "| Noise | Repeats + reruns | true performance 100 % | true performance 97 % | true performance 95 %"
        " | true performance 93 % |"
    )
    assert rule == "|---|---:|---:|---:|---:|---:|"
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[0] for row in cells] == [noise.title for noise in NOISES for _ in range(4)]
    assert [row[1] for row in cells[:4]] == ["1 + 0", "1 + 2", "3 + 4", "3 + 12"]
    for row in cells:
        repeats, reruns = map(int, row[1].split(" + "))
        for cell in row[2:]:
            shares, _, mean = cell.rstrip(")").partition(" (")
            assert sum(map(float, shares.split(" / "))) == 100.0
            assert repeats <= float(mean) <= repeats + reruns
    assert cells[3][2] == "100.0 / 0.0 / 0.0 (3.0)", "quiet runs at the reference pass at the first look"
    assert cells[3][5].startswith("0.0 / 100.0 / 0.0 ("), "and at 93 % fail"


@pytest.mark.parametrize(("module", "trials"), [(simulation, 3000), (sequential_simulation, 1000)])
def test_the_documented_commands_print_the_documented_number_of_trials(
    module: Any, trials: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lines(trials: int, seed: int) -> Iterator[str]:
        yield f"{trials!r} trials, seed {seed!r}"

    monkeypatch.setattr(module, "table", lines)
    for arguments, said in (
        ([], f"{trials} trials, seed 1\n"),
        (["--trials", "5", "--seed", "9"], "5 trials, seed 9\n"),
    ):
        monkeypatch.setattr("sys.argv", ["simulation", *arguments])
        module.main()
        assert capsys.readouterr().out == said


@pytest.mark.parametrize("module", [simulation, sequential_simulation])
def test_a_simulation_runs_as_a_program(
    module: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def parse_args(self: object, arguments: object = None, namespace: object = None) -> object:
        raise SystemExit("asked")

    monkeypatch.setattr("argparse.ArgumentParser.parse_args", parse_args)
    with pytest.raises(SystemExit, match="asked"):
        runpy.run_path(str(module.__file__), run_name="__main__")
    runpy.run_path(str(module.__file__), run_name="imported")  # nobody asks for trials
