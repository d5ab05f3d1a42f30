"""How often ``llmb-run ab`` is wrong, by simulation: runs that drift, scatter, and differ by a known amount.

    python -m tools.paired_simulation [--trials 1000] [--seed 1] [disturbances | table]

prints the tables of ``docs/benchmarks.md``. Each cell: faster / slower / no difference in per cent of the trials (the
rest is open when the budget is spent), whether the last interval holds the truth, and the mean number of pairs.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from llmb_common.results.paired import RESOLUTION, Answer, Block, Comparison, compare_blocks, look_schedule, order
from llmb_run.comparing.strategy import Rule
from tools.markdown import lines, print_tables
from tools.verdict_simulation import Noise, simulate

GAINS = (0.0, 0.005, 0.01, 0.02, 0.05)
"""How much less time B takes."""

MOST = 12
"""Blocks that the budget allows."""

USUAL = Rule(RESOLUTION, MOST)

NODES = 0.03
"""Standard deviation between the nodes of blocks."""

Disturbance: TypeAlias = Callable[[random.Random, str], Iterator[float]]
"""What it does to each of the runs, given their sides, as a share of the step time."""


def _none(source: random.Random, sides: str) -> Iterator[float]:
    return itertools.repeat(0.0)


@dataclass(frozen=True)
class Cluster:
    """What makes runs differ beside the configuration. Shares of the step time."""

    title: str
    noise: Noise
    disturbed: Disturbance = _none


def _quiet(percent: float, stalls: float = 0.0, times: float = 4.0) -> Noise:
    return Noise(f"runs {percent:g} %", percent / 100, correlation=0.5, stalls=stalls, times=times)


def _walk(source: random.Random, sides: str) -> Iterator[float]:
    return itertools.accumulate(source.gauss(0, 0.01) for _ in sides)


def _cold(source: random.Random, sides: str) -> Iterator[float]:
    return (0.0 if at % 4 else 0.02 for at in range(len(sides)))


def _sine(period: float, drift: float = 0.0) -> Disturbance:
    def wave(source: random.Random, sides: str) -> Iterator[float]:
        phase = source.random()
        return (0.02 * math.sin(2 * math.pi * (at / period + phase)) + drift * at for at in range(len(sides)))

    return wave


def _jumps(source: random.Random, sides: str) -> Iterator[float]:
    return itertools.accumulate(source.gauss(0, 0.05) if source.random() < 0.15 else 0.0 for _ in sides)


def _lag(source: random.Random, sides: str) -> Iterator[float]:
    return itertools.accumulate((source.gauss(0, 0.01) for _ in sides), lambda before, new: 0.9 * before + new)


def _sample(share: float, slower: float) -> Disturbance:
    return lambda source, sides: (slower * (source.random() < share) for _ in sides)


def _heavy(source: random.Random, sides: str) -> Iterator[float]:
    """Student's t of 2 degrees."""
    return (0.005 * source.gauss(0, 1) / math.sqrt(max(source.expovariate(1), 1e-4)) for _ in sides)


def _restless(source: random.Random, sides: str) -> Iterator[float]:
    return (source.gauss(0, 0.02) if side == "B" else 0.0 for side in sides)


CLUSTERS = (
    *(Cluster(f"runs {percent:g} %", _quiet(percent)) for percent in (0.2, 0.5, 1, 2, 3)),
    Cluster("runs 1 %, random walk of 1 %", _quiet(1), _walk),
    Cluster("runs 1 %, the first of a job 2 % slower", _quiet(1), _cold),
    Cluster("runs 1 %, 1 % of the steps 3 times as long", _quiet(1, stalls=0.01, times=3.0)),
)

DISTURBED = (
    *(Cluster(f"sine of 2 %, period {period} runs", _quiet(0.3), _sine(period)) for period in (2, 3, 4, 6, 9, 12, 24)),
    Cluster("the same with a period of 6, each run 0.5 % slower", _quiet(0.3), _sine(6, 0.005)),
    Cluster("jumps of 5 %, one in 7 runs", _quiet(0.3), _jumps),
    Cluster("correlation of 0.9 from run to run", _quiet(0.3), _lag),
    Cluster("a tenth of the runs 30 % slower", _quiet(0.3), _sample(0.1, 0.3)),
    Cluster("runs not pinned, a third of the nodes 5 % slower", _quiet(0.3), _sample(1 / 3, 0.05)),
    Cluster("heavy tails (t of 2 degrees, 0.5 %)", _quiet(0.1), _heavy),
    Cluster("A scatters by 0.5 %, B by 2 %", _quiet(0.5), _restless),
)
"""At 0.3 % between runs, where a disturbance is most of what is seen."""


def runs(cluster: Cluster, gain: float, source: random.Random) -> list[Block]:
    """All that the budget allows, each block on nodes of its own, in the order of time."""
    seed = f"{source.random()}"
    orders = [order(number, seed) for number in range(1, MOST + 1)]
    sides = "".join(orders)
    disturbed_pairs = zip(sides, cluster.disturbed(source, sides), strict=False)
    blocks = []
    for letters in orders:
        node = source.gauss(0, NODES)
        levels = [
            math.exp(node + by) * (1 - gain if side == "B" else 1)
            for side, by in itertools.islice(disturbed_pairs, len(letters))
        ]
        blocks.append(
            Block(letters, tuple(simulate(cluster.noise, source, level, "0", whole_run=True) for level in levels))
        )
    return blocks


def compare(cluster: Cluster, gain: float, source: random.Random) -> tuple[Answer, Comparison]:
    """One comparison to its end."""
    blocks = runs(cluster, gain, source)
    last = None
    for size in look_schedule(MOST):
        found = compare_blocks(blocks[:size])
        if found is None:
            continue
        last = found
        if USUAL.is_met(last):
            break
    assert last is not None
    return last.answer(RESOLUTION), last


@dataclass(frozen=True)
class Cell:
    """What came of many comparisons."""

    answers: Counter[Answer]
    covered: float
    pairs: float

    def wrong(self, gain: float) -> float:
        """Share of answers that are not true: the other winner, any winner of two equals, no difference where one is
        larger than the resolution."""
        bad = self.answers["slower"] + (self.answers["faster"] if not gain else 0)
        bad += self.answers["no difference"] if gain > RESOLUTION else 0
        return bad / self.answers.total()

    def __str__(self) -> str:
        shares = (100 * self.answers[answer] / self.answers.total() for answer in ("faster", "slower", "no difference"))
        return " / ".join(f"{share:.1f}" for share in shares) + f"; {100 * self.covered:.1f}; {self.pairs:.1f}"


def cell(cluster: Cluster, gain: float, *, trials: int, seed: int) -> Cell:
    """Many comparisons of two sides that differ by ``gain``."""
    source = random.Random(f"{seed} {cluster.title} {gain}")
    ends = [compare(cluster, gain, source) for _ in range(trials)]
    truth = math.log1p(-gain)
    covered = sum(found.low <= truth <= found.high for _, found in ends) / trials
    return Cell(Counter(answer for answer, _ in ends), covered, sum(found.pairs for _, found in ends) / trials)


def _table(clusters: tuple[Cluster, ...], gains: tuple[float, ...], trials: int, seed: int) -> Iterator[str]:
    def row(cluster: Cluster) -> list[str | Cell]:
        cells = [cell(cluster, gain, trials=trials, seed=seed) for gain in gains]
        return [cluster.title, *cells]

    return lines(["Cluster", *(f"{100 * gain:g} %" for gain in gains)], map(row, clusters))


def main() -> None:
    """Print the tables: how long it takes; equals, and a difference of 2 %, under what else changes."""
    tables = {"table": partial(_table, CLUSTERS, GAINS), "disturbances": partial(_table, DISTURBED, (0.0, 0.02))}
    print_tables(__doc__, tables)


if __name__ == "__main__":
    main()
