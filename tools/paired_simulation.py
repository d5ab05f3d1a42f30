"""How often ``llmb-run ab`` is wrong, by simulation: pairs of runs that drift, scatter, and differ by a known amount.

    python -m tools.paired_simulation [--trials 1000] [--seed 1]

prints the table of ``docs/compare.md``. Each cell: faster / slower / no difference in per cent of the trials (the
rest is open when the budget is spent), whether the last interval holds the truth, and the mean number of pairs.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from llmb_common.results.estimate import StepTime
from llmb_common.results.paired import RESOLUTION, Answer, Comparison, Pair, compare_pairs, looks, order
from llmb_common.results.scatter import STATED, Scatter
from tools.printed import print_tables
from tools.verdict_simulation import Noise, simulate, site

GAINS = (0.0, 0.005, 0.01, 0.02, 0.05)
"""How much less time B takes."""

MOST = 12
"""Blocks that the budget allows."""


@dataclass(frozen=True)
class Cluster:
    """What makes runs differ beside the configuration. Shares of the step time."""

    title: str
    noise: Noise
    node: float = 0.03
    """Standard deviation between the nodes of blocks."""
    drift: float = 0.0
    """How much slower each run of a block is than the one before it."""
    walk: float = 0.0
    """Standard deviation of what changes at random from one run to the next, and stays."""
    cold: float = 0.0
    """How much slower the first run of an allocation is."""


def _quiet(percent: float, **more: float) -> Noise:
    return Noise(f"runs {percent:g} %", percent / 100, correlation=0.5, **more)


CLUSTERS = (
    *(Cluster(f"runs {percent:g} %", _quiet(percent)) for percent in (0.2, 0.5, 1, 2, 3, 5)),
    *(Cluster(f"runs {percent:g} %, each 0.5 % slower", _quiet(percent), drift=0.005) for percent in (0.5, 1, 3)),
    *(Cluster(f"runs {percent:g} %, random walk of 1 %", _quiet(percent), walk=0.01) for percent in (0.5, 1, 3)),
    Cluster("runs 1 %, the first of a job 2 % slower", _quiet(1), cold=0.02),
    Cluster("runs 1 %, each 1 % slower, walk of 1 %", _quiet(1), drift=0.01, walk=0.01),
    Cluster("runs 1 %, 1 % of the steps 3 times as long", _quiet(1, stalls=0.01, times=3.0)),
)


def block(cluster: Cluster, gain: float, letters: str, source: random.Random) -> list[Pair]:
    """The two pairs of a block, on nodes of its own."""
    level = 1 + source.gauss(0, cluster.node)
    runs: list[StepTime] = []
    for turn, letter in enumerate(letters):
        level *= 1 + (cluster.drift + source.gauss(0, cluster.walk) if turn else 0.0)
        seconds = level * (1 - gain if letter == "B" else 1) * (1 if turn else 1 + cluster.cold)
        runs.append(simulate(cluster.noise, source, seconds, "0", whole=True))
    pairs = []
    for at in (0, 2):
        a_first = letters[at] == "A"
        first, second = runs[at : at + 2] if a_first else reversed(runs[at : at + 2])
        pairs.append(Pair(first, second, a_first))
    return pairs


def compare(
    cluster: Cluster, gain: float, source: random.Random, scatter: Scatter = STATED
) -> tuple[Answer, Comparison]:
    """One comparison to its end."""
    pairs, seed = list[Pair](), f"{source.random()}"
    for blocks in looks(MOST):
        while len(pairs) < 2 * blocks:
            pairs += block(cluster, gain, order(len(pairs) // 2 + 1, seed), source)
        found = compare_pairs(pairs, scatter)
        assert found is not None
        if found.answer(RESOLUTION) != "open":
            break
    assert found is not None
    return found.answer(RESOLUTION), found


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


def cell(cluster: Cluster, gain: float, *, trials: int, seed: int, known: bool) -> Cell:
    """``known``: the site's record says how its runs differ."""
    source = random.Random(f"{seed} {cluster.title} {gain} {known}")
    scatters = [replace(site(cluster.noise, source), day=0.0) for _ in range(min(10, trials))] if known else [STATED]
    ends = [compare(cluster, gain, source, scatters[at % len(scatters)]) for at in range(trials)]
    truth = math.log1p(-gain)
    covered = sum(found.low <= truth <= found.high for _, found in ends) / trials
    return Cell(Counter(answer for answer, _ in ends), covered, sum(found.pairs for _, found in ends) / trials)


def table(trials: int, seed: int) -> Iterator[str]:
    """Markdown."""
    yield "| Cluster | Record | " + " | ".join(f"{100 * gain:g} %" for gain in GAINS) + " |"
    yield "|---|---|" + "---:|" * len(GAINS)
    for cluster in CLUSTERS:
        for known in (False, True):
            cells = (cell(cluster, gain, trials=trials, seed=seed, known=known) for gain in GAINS)
            yield f"| {cluster.title} | {'yes' if known else 'no'} | {' | '.join(map(str, cells))} |"


def main() -> None:
    """Print the table."""
    print_tables(__doc__, {"table": table})


if __name__ == "__main__":
    main()
