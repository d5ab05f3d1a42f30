"""How often ``llmb-run tune`` finds the fastest configuration, and what that costs: a search driven by made-up times.

A made-up space has settings whose effects multiply, what pairs of them do together, what each configuration has of its
own, and memory that ends at a cliff. The search sees what it would see of real runs: noisy times, in a drift, now and
then on a slow node, and what fails.

The oracle knows which configurations matter, those within 5 % of the fastest that runs, and must still find the winner
among them and prove it: by the same search, with the same noise, over these and the base alone.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from llmb_common.results.search import Option, SearchState, Trial, look
from llmb_common.results.steps import StepTime
from llmb_common.results.surrogate import Point
from tools.markdown import lines, print_tables

MATTERS = 0.05
"""Share by which a configuration that matters may be slower than the fastest."""

START, SHORT, FULL = 120.0, 20, 50
"""Seconds before the first step; steps of a trial and of a full run."""


@dataclass(frozen=True)
class Noise:
    """Standard deviations as shares of the step time. ``run``: between runs.

    ``drift``: change over the whole search, as a line; ``walk``: of a random walk, from run to run; ``wave``: of a
    wave of a day; ``jump``: of a sudden change that comes once. ``slow``: how many runs meet a node that is ``slower``
    by so much; ``heavy``: runs differ as Student's t with 3 degrees of freedom.
    """

    title: str
    run: float = 0.01
    drift: float = 0.0
    walk: float = 0.0
    wave: float = 0.0
    jump: float = 0.0
    slow: float = 0.0
    slower: float = 0.08
    heavy: bool = False

    def times(self, source: random.Random) -> Iterator[float]:
        """Logarithms of what the runs of one search are off, in their order."""
        sign, at, phase = source.choice((-1, 1)), source.randrange(5, 40), source.uniform(0, math.tau)
        state = 0.0
        for number in itertools.count():
            state += source.gauss(0, self.walk)
            off = sign * self.drift * min(number / 60, 1) + state + self.wave * math.sin(phase + number / 4)
            off += self.jump * (number >= at) + (self.slower if source.random() < self.slow else 0.0)
            yield off + self.run * (_student(source) if self.heavy else source.gauss(0, 1))


def _student(source: random.Random) -> float:
    """Of 3 degrees of freedom, with a standard deviation of 1."""
    return source.gauss(0, 1) / math.sqrt(sum(source.gauss(0, 1) ** 2 for _ in range(3)))


TUNED = tuple(
    Noise(f"{100 * run:.0f} %, drift of 5 %, 5 % on slow nodes", run, drift=0.05, slow=0.05)
    for run in (0.01, 0.02, 0.03, 0.05)
)
OTHERS = (
    Noise("2 %, random walk of 0.5 %", 0.02, walk=0.005),
    Noise("2 %, wave of 4 %", 0.02, wave=0.04),
    Noise("1 %, jump of 10 %", 0.01, jump=0.10),
    Noise("3 %, heavy tails", 0.03, heavy=True),
    Noise("2 %, 10 % on nodes slower by 20 %", 0.02, slow=0.10, slower=0.20),
    Noise("2 %, drift of 10 %, 5 % on slow nodes", 0.02, drift=0.10, slow=0.05),
)


@dataclass(frozen=True)
class Space:
    """``logs``: the true step times; ``holds``: which have the memory. The first is the base."""

    options: tuple[Option, ...]
    logs: tuple[float, ...]
    holds: tuple[bool, ...]

    @property
    def best(self) -> float:
        return min(log for log, holds in zip(self.logs, self.holds, strict=True) if holds)

    def only(self, kept: Sequence[int]) -> Space:
        return Space(
            tuple(self.options[at] for at in kept),
            tuple(self.logs[at] for at in kept),
            tuple(self.holds[at] for at in kept),
        )

    @property
    def what_matters(self) -> Space:
        """As an oracle sees it."""
        near = [at for at, log in enumerate(self.logs) if self.holds[at] and log <= self.best + math.log1p(MATTERS)]
        return self.only([0, *(at for at in near if at)])


@dataclass(frozen=True)
class Kind:
    """How spaces are made: ``settings``, how many values each has; a share of the combinations is legal.

    Standard deviations: ``effect`` of one step of a setting, ``pair`` of what two do together, ``own``; ``blind``: of
    the prediction's error, None: nothing is predicted.
    """

    title: str
    settings: tuple[int, ...] = (4, 3, 3, 2, 2)
    legal: float = 0.3
    effect: float = 0.08
    pair: float = 0.03
    own: float = 0.01
    blind: float | None = 0.10

    def make(self, source: random.Random) -> Space:
        combinations = [
            combination for combination in itertools.product(*map(range, self.settings)) if source.random() < self.legal
        ]
        effects = [_course(count, self.effect, source) for count in self.settings]
        weights = [_course(count, 0.25, source) for count in self.settings]
        pairs = {
            (a, b, i, j): source.gauss(0, self.pair)
            for a, b in itertools.combinations(range(len(self.settings)), 2)
            for i in range(self.settings[a])
            for j in range(self.settings[b])
        }
        logs, memory = [], []
        for combination in combinations:
            together = sum(
                pairs[a, b, combination[a], combination[b]]
                for a, b in itertools.combinations(range(len(combination)), 2)
            ) / math.sqrt(len(combination) - 1)
            logs.append(
                sum(e[p] for e, p in zip(effects, combination, strict=True)) + together + source.gauss(0, self.own)
            )
            memory.append(sum(w[p] for w, p in zip(weights, combination, strict=True)))
        limit = sorted(memory)[int(0.75 * len(memory))]
        off = source.gauss(0, 0.06)
        predicted = [math.exp(value - limit + off + source.gauss(0, 0.05)) for value in memory]
        holds = [value <= limit for value in memory]
        running = sorted((log, at) for at, log in enumerate(logs) if holds[at])
        base = running[source.randrange(len(running) // 4, len(running) // 2 + 1)][1]
        order = [base, *(at for at in range(len(combinations)) if at != base)]
        blind = self.blind
        options = []
        for at in order:
            seconds = 5 * math.exp(logs[at] - logs[base])
            said = 0.0 if blind is None or at == base else logs[at] - logs[base] + source.gauss(0, blind)
            point = Point(tuple(map(float, combinations[at])), said)
            options.append(Option(point, predicted[at], START + SHORT * seconds, START + FULL * seconds))
        return Space(tuple(options), tuple(logs[at] for at in order), tuple(holds[at] for at in order))


@dataclass(frozen=True)
class Modelled(Kind):
    """Spaces whose step times come from a small model of a job, so that nothing adds up: computing, an exchange that it
    hides or not, launches that graphs save, the pipeline's bubble. Predictions know neither dispatchers nor graphs, and
    of 15 % of the configurations nobody knows the memory."""

    def make(self, source: random.Random) -> Space:
        draw = source.uniform
        gpus, gbs = source.choice((16, 32, 64)), source.choice((128, 256, 512))
        loss, small, exchange, launch, again = (
            draw(0.02, 0.1),
            draw(0.05, 0.5),
            draw(0.02, 0.25),
            draw(0, 0.12),
            draw(1.08, 1.3),
        )
        dispatchers = {name: draw(0, 0.4) for name in ("alltoall", "deepep", "hybridep")}
        weights, activations = draw(20, 120), draw(5, 25)
        logs, memory = dict[tuple[float | str, ...], float](), dict[tuple[float | str, ...], float]()
        for mbs, tp, pp, graphs, name, kept in itertools.product(
            (1, 2, 4), (1, 2, 4, 8), (1, 2, 4), "gn", dispatchers, "kr"
        ):
            dp = gpus // (tp * pp)
            if not dp or gbs % (dp * mbs) or (rounds := gbs // (dp * mbs)) < pp:
                continue
            computing = mbs / (tp * pp) * (1 + loss * math.log2(tp)) * (1 + small / mbs) * (again if kept == "r" else 1)
            moved = exchange * mbs * (tp - 1) / tp / pp * (3 if tp > 4 else 1) + dispatchers[name] * mbs / (tp * pp)
            one = max(computing + (launch / pp if graphs == "n" else 0), moved) + 0.35 * min(computing, moved)
            point = (math.log2(mbs), math.log2(tp), math.log2(pp), graphs, name, kept)
            logs[point] = math.log(one * (rounds + pp - 1) + 0.3) + source.gauss(0, self.own)
            saved = (0.55 if kept == "r" else 1) * (1 + 0.1 * (pp - 1))
            memory[point] = weights / (tp * pp) + activations * mbs / tp * saved + (3 if graphs == "g" else 0)
        return self._near(logs, memory, source)

    def _near(
        self,
        logs: dict[tuple[float | str, ...], float],
        memory: dict[tuple[float | str, ...], float],
        source: random.Random,
    ) -> Space:
        """A base that somebody tuned a little, and some of what differs from it in three settings at most."""
        limit = source.uniform(0.45, 0.9) * max(memory.values()) / 2
        running = sorted((at for at in logs if memory[at] <= limit), key=lambda at: logs[at])
        base = running[source.randrange(len(running) // 10, len(running) // 2 + 1)]
        near = [at for at in logs if 0 < sum(a != b for a, b in zip(at, base, strict=True)) <= 3]
        order = [base, *source.sample(near, min(len(near), source.choice((25, 40, 60))))]
        bias = {other: source.gauss(0, 0.08) for other in dict.fromkeys(at[3:5] for at in logs)}
        options = []
        for at in order:
            seconds = 12 * math.exp(logs[at] - logs[base])
            said = logs[at] - logs[base] + bias[at[3:5]] - bias[base[3:5]] + source.gauss(0, 0.06)
            known = None if source.random() < 0.15 else memory[at] / limit * math.exp(source.gauss(0, 0.05))
            point = Point(at, 0.0 if at == base else said)
            options.append(Option(point, known, START + SHORT * seconds, START + FULL * seconds))
        return Space(tuple(options), tuple(logs[at] for at in order), tuple(memory[at] <= limit for at in order))


def _course(count: int, size: float, source: random.Random) -> list[float]:
    """What each value of a setting does: a walk from one to the next."""
    return list(itertools.accumulate((source.gauss(0, size) for _ in range(count - 1)), initial=0.0))


KINDS = (
    Kind("43 of 144, predicted"),
    Kind("43 of 144, not predicted", blind=None),
)
OTHER_KINDS = (
    Kind("12 of 24", settings=(3, 2, 2, 2), legal=0.5, blind=0.15),
    Kind("no sum of effects", effect=0.02, pair=0.08, own=0.03, blind=0.12),
    Kind("86 of 288", settings=(4, 4, 3, 3, 2), legal=0.3),
)

MODELLED = (Modelled("a job's model"),)


@dataclass(frozen=True)
class Found:
    """``loss``: by which share the winner is slower than the fastest; ``cost`` and ``trials`` of the search."""

    loss: float
    cost: float
    trials: int
    state: SearchState


def tune(space: Space, noise: Noise, source: random.Random, budget: float = math.inf) -> Found:
    """One search to its end."""
    trials: list[Trial] = []
    times = noise.times(source)
    while True:
        state = look(space.options, trials, budget=budget)
        if not state.run or len(trials) > 400:
            loss = math.exp(space.logs[state.leader] - space.best) - 1
            return Found(loss, state.spent, len(trials), state)
        trials += [_tried(space, at, state.full, next(times)) for at in state.run]


def _tried(space: Space, at: int, full: bool, off: float) -> Trial:
    if not space.holds[at]:
        return Trial(at, "out of memory", cost=START)
    option = space.options[at]
    seconds = math.exp(space.logs[at] + off)
    time = StepTime(seconds, 0.001 * seconds, count=10, mean=seconds, steps=20)
    return Trial(at, "timed", time, full, option.proof_cost if full else option.cost)


def tunings(kind: Kind, noise: Noise, count: int, seed: int) -> tuple[list[Found], list[Found]]:
    """Searches over as many spaces, and the oracle's over what matters of each."""
    found, known = [], []
    for number in range(count):
        space = kind.make(random.Random(f"{seed} {kind.title} {number}"))
        found.append(tune(space, noise, random.Random(f"{seed} {number} {noise.title}")))
        known.append(tune(space.what_matters, noise, random.Random(f"{seed} {number} {noise.title} oracle")))
    return found, known


def row(kind: Kind, noise: Noise, count: int, seed: int) -> tuple[str, ...]:
    """Of a table: how often the winner is within 2 %, the mean loss, what it costs, and what the oracle needs."""
    found, known = tunings(kind, noise, count, seed)
    good = sum(item.loss <= 0.02 for item in found) / count
    lost = sum(item.loss for item in found) / count
    trials, others = (sum(item.trials for item in side) / count for side in (found, known))
    cost = sum(item.cost for item in found) / sum(item.cost for item in known)
    knows = sum(item.loss <= 0.02 for item in known) / count
    figures = (f"{100 * good:.1f}", f"{100 * lost:.2f}", f"{trials:.1f}", f"{others:.1f}", f"{cost:.2f}")
    return kind.title, noise.title, *figures, f"{100 * knows:.1f}"


PARTS: dict[str, tuple[Sequence[Kind], Sequence[Noise]]] = {
    "tuned": (KINDS, TUNED),
    "others": (KINDS[:1], OTHERS),
    "spaces": (OTHER_KINDS, (TUNED[0], TUNED[2])),
    "modelled": (MODELLED, (*TUNED, OTHERS[0], OTHERS[2])),
}

HEAD = (
    *("space", "noise", "within 2 %", "mean loss %", "trials", "the oracle's", "cost, oracle 1"),
    "oracle within 2 %",
)


def _rows(kinds: Sequence[Kind], noises: Sequence[Noise], count: int, seed: int) -> Iterator[str]:
    return lines(HEAD, (row(kind, noise, count, seed) for kind, noise in itertools.product(kinds, noises)), words=2)


def main() -> None:
    """Print the parts that the command line names, or all of them."""
    print_tables(__doc__, {name: partial(_rows, *part) for name, part in PARTS.items()}, "tunings", 500)


if __name__ == "__main__":
    main()
