"""How often the verdicts are wrong, by simulation: runs of known speed, with the noise that real runs show.

    python -m llmb_common.results.simulation [--trials 3000] [--seed 1]

prints the table of ``docs/verdicts.md``. Each cell: pass / fail / inconclusive, in per cent of the trials.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from llmb_common.results.decision import Answer, decide
from llmb_common.results.estimate import StepTime, estimate

RATIOS = (1.00, 1.03, 1.05, 1.08)
"""Of the true step time to the reference. 1.05 is the tolerance itself: either answer may come there, seldom."""

REPEATS = (1, 3, 5, 10)

_STEPS = 50
_WARM_UP = 10
_WINDOW = slice(34, 44)  # iterations 35 to 44, the shorter and harder of the documented windows


@dataclass(frozen=True)
class Noise:
    """What makes runs of one speed differ. Standard deviations and drift as shares of the step time."""

    title: str
    run: float
    """Between runs."""
    step: float
    """Between the steps of a run."""
    correlation: float = 0.0
    """Of neighbouring steps."""
    spikes: float = 0.0
    """Share of steps that take four times as long."""
    drift: float = 0.0
    """How much slower the last step is than the first; the window's centre has the true speed."""


NOISES = (
    Noise("runs 1 %, steps 1 %", 0.01, 0.01),
    Noise("runs 2 %, steps 3 %", 0.02, 0.03),
    Noise("runs 3 %, steps 1 %", 0.03, 0.01),
    Noise("runs 3 %, steps 5 %", 0.03, 0.05),
    Noise("runs 3 %, steps 5 %, correlated 0.7", 0.03, 0.05, correlation=0.7),
    Noise("runs 3 %, steps 3 %, correlated 0.9", 0.03, 0.03, correlation=0.9),
    Noise("runs 3 %, steps 3 %, 5 % fourfold spikes", 0.03, 0.03, spikes=0.05),
    Noise("runs 1 %, steps 5 %, 10 % fourfold spikes", 0.01, 0.05, spikes=0.10),
    Noise("runs 3 %, steps 2 %, drift of 5 %", 0.03, 0.02, drift=0.05),
)


def simulate(noise: Noise, source: random.Random) -> StepTime:
    """One run at a true step time of 1 s, measured as a real one is."""
    level = 1 + source.gauss(0, noise.run)
    state = source.gauss(0, 1)
    steps = []
    for index in range(_STEPS):
        state = noise.correlation * state + (1 - noise.correlation**2) ** 0.5 * source.gauss(0, 1)
        seconds = level * (1 + noise.step * state) * (1 + noise.drift * (index - 38.5) / _STEPS)
        steps.append(max(seconds, 0.01) * (4 if source.random() < noise.spikes else 1))
    return estimate(steps[_WINDOW], steps[_WARM_UP:])


def answers(runs: Sequence[StepTime], ratio: float, repeats: int) -> Counter[Answer]:
    """How often ``repeats`` of ``runs`` (each at 1 s, each used once) get each answer where the truth is ``ratio``."""
    groups = (runs[at : at + repeats] for at in range(0, len(runs) - repeats + 1, repeats))
    # Noise grows with the step time: a run at `ratio` seconds against 1 s is one at 1 s against 1 / ratio.
    return Counter(decide(group, 1 / ratio).answer for group in groups)


def table(trials: int, seed: int) -> Iterator[str]:
    """The lines of a Markdown table."""
    yield "| Noise | Runs | " + " | ".join(f"true ratio {ratio:.2f}" for ratio in RATIOS) + " |"
    yield "|---|---:|" + "---:|" * len(RATIOS)
    for noise in NOISES:
        source = random.Random(f"{seed} {noise.title}")
        runs = [simulate(noise, source) for _ in range(trials * max(REPEATS))]
        for repeats in REPEATS:
            cells = []
            for ratio in RATIOS:
                counted = answers(runs[: trials * repeats], ratio, repeats)
                shares = [100 * counted[answer] / trials for answer in ("pass", "fail", "inconclusive")]
                cells.append(" / ".join(f"{share:.1f}" for share in shares))
            yield f"| {noise.title} | {repeats} | " + " | ".join(cells) + " |"


def print_table(table: Callable[[int, int], Iterator[str]], description: str, trials: int) -> None:
    """Print ``table`` of the trials and the seed that the command line names."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=trials)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    for line in table(asked.trials, asked.seed):
        print(line, flush=True)


def main() -> None:
    """Print the table."""
    print_table(table, __doc__, 3000)


if __name__ == "__main__":
    main()
