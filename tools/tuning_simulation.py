"""How often ``llmb-run tune`` finds the fastest configuration, and at what cost: its own strategy, with made-up runs.

A made-up space has settings whose effects multiply, what pairs of them do together, and what each configuration has of
its own. ``Tuning`` decides what is due, as in a real tuning; each run that is due gets a time with noise, or crashes.
Nothing is predicted. Costs are in trials of the base: what a run holds its nodes for over what the base's trial does.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from llmb_common.recipes.rows import Measurement
from llmb_common.results.sequential import SuiteAttempt
from llmb_common.results.steps import StepTime
from llmb_common.runs.timing.records import Iteration
from llmb_common.runs.timing.window import Window
from llmb_run.campaigns.campaign import Arm
from llmb_run.campaigns.conduct import Due, Run
from llmb_run.tuning.answer import crashed_candidates
from llmb_run.tuning.halving import CRASHED
from llmb_run.tuning.strategy import Tuning
from tools.markdown import lines, print_tables

CLOSE = 0.02
"""Share by which a configuration that is good enough may be slower than the fastest."""

START = 120.0
SHORT = 20
FULL = 50
"""Seconds before the first step; steps of a trial and of a whole run."""

DAY = 100
"""Trials of the base over which a drift comes about."""


class Plan(msgspec.Struct, frozen=True):
    """What the strategy asks a plan for."""

    max_steps: int = FULL
    exit_after: None = None
    measurement: Measurement = Measurement(first=35, last=44)
    tokens_per_gpu: float = 1.0
    nodes: int = 1
    gpus_per_node: int = 1


@dataclass(frozen=True)
class Noise:
    """What happens to runs. Shares of the step time: ``run`` is the standard deviation between runs, ``drift`` what
    ``DAY`` trials change. ``crash``: how many runs crash by chance; ``slow``: how many meet a node slower by 8 %.

    ``best``: in which runs the fastest of all crashes for certain: ``trials``, ``whole`` runs, or none.
    """

    title: str
    run: float = 0.01
    drift: float = 0.0
    crash: float = 0.015
    slow: float = 0.0
    best: str = ""


@dataclass(frozen=True)
class Space:
    """``logs``: the true step times; ``holds``: which have the memory. The first is the base."""

    logs: tuple[float, ...]
    holds: tuple[bool, ...]

    @property
    def fastest(self) -> int:
        """Which candidate is, of those that have the memory."""
        return min((at for at in range(1, len(self.logs)) if self.holds[at]), key=lambda at: self.logs[at])

    def only(self, kept: Sequence[int]) -> Space:
        return Space(tuple(self.logs[at] for at in kept), tuple(self.holds[at] for at in kept))


@dataclass(frozen=True)
class Kind:
    """How spaces are made: ``candidates`` of all combinations of ``settings``, each with so many values.

    Standard deviations: ``effect`` of one step of a setting, ``pair`` of what two do together, ``own``.
    ``lacking``: the share of the candidates that run out of memory; ``sample``: how many are tried, 0: all.
    """

    title: str
    candidates: int = 60
    sample: int = 0
    settings: tuple[int, ...] = (4, 3, 3, 2, 2, 2)
    effect: float = 0.08
    pair: float = 0.03
    own: float = 0.01
    lacking: float = 0.0

    def make(self, source: random.Random) -> Space:
        """The base is one that somebody chose well: of the faster half, and not of the fastest tenth."""
        combinations = source.sample([*itertools.product(*map(range, self.settings))], self.candidates + 1)
        effects = [_course(count, self.effect, source) for count in self.settings]
        weights = [_course(count, 0.25, source) for count in self.settings]
        pairs: dict[tuple[int, int, int, int], float] = {}
        for a, b in itertools.combinations(range(len(self.settings)), 2):
            for i, j in itertools.product(range(self.settings[a]), range(self.settings[b])):
                pairs[a, b, i, j] = source.gauss(0, self.pair)
        logs: list[float] = []
        memory: list[float] = []
        for combination in combinations:
            two = itertools.combinations(range(len(combination)), 2)
            together = sum(pairs[a, b, combination[a], combination[b]] for a, b in two)
            alone = sum(effect[place] for effect, place in zip(effects, combination, strict=True))
            logs.append(alone + together / math.sqrt(len(combination) - 1) + source.gauss(0, self.own))
            memory.append(sum(weight[place] for weight, place in zip(weights, combination, strict=True)))
        limit = sorted(memory)[math.ceil((1 - self.lacking) * len(memory)) - 1]
        running = sorted((at for at in range(len(logs)) if memory[at] <= limit), key=lambda at: logs[at])
        base = running[source.randrange(len(running) // 10, len(running) // 2 + 1)]
        order = [base, *(at for at in range(len(logs)) if at != base)]
        return Space(tuple(logs[at] for at in order), tuple(memory[at] <= limit for at in order))


def _course(count: int, size: float, source: random.Random) -> list[float]:
    """What each value of a setting does: a walk from one to the next."""
    return list(itertools.accumulate((source.gauss(0, size) for _ in range(count - 1)), initial=0.0))


@dataclass(frozen=True)
class Found:
    """How a tuning ended.

    Args:
        loss: by which share its answer is slower than the fastest of all that run
        cost: of all runs, in trials of the base
        proof: of the whole runs among them
        runs: how many
        out: whether the fastest of all is out because it crashed
        named: whether the answer names it then
    """

    loss: float
    cost: float
    proof: float
    runs: int
    out: bool
    named: bool


class Site:
    """Where the runs of one tuning happen, one after the other."""

    def __init__(self, space: Space, noise: Noise, best: int, source: random.Random) -> None:
        self.space = space
        self.noise = noise
        self.best = best
        self.source = source
        self.scale = 5 / math.exp(space.logs[0])
        self.unit = (START + SHORT * 5) / 3600
        self.sign = source.choice((-1, 1))
        self.hours = 0.0

    def run(self, due: Due) -> Run:
        """What comes of a run that is due."""
        at, is_full_run = due.arm - 1, due.plan is None
        steps = FULL if is_full_run else SHORT
        seconds = self.scale * math.exp(self.space.logs[at] + self._off())
        began, self.hours = self.hours, self.hours + (START + steps * seconds) / 3600
        if not self.space.holds[at]:
            self.hours = began + START / 3600
            return _run(due, "OUT_OF_MEMORY", began, self.hours, SuiteAttempt(failure="out of memory"))
        certain = at == self.best and self.noise.best == ("whole" if is_full_run else "trials")
        if certain or self.source.random() < self.noise.crash:
            self.hours = began + (START + self.source.uniform(0, steps) * seconds) / 3600
            return _run(due, "FAILED", began, self.hours, SuiteAttempt(failure="it crashed"))
        time = StepTime(seconds, 0.001 * seconds, count=10, mean=seconds, steps=steps)
        return _run(due, "COMPLETED", began, self.hours, SuiteAttempt(time), _timing(seconds) if is_full_run else None)

    def _off(self) -> float:
        noise, source = self.noise, self.source
        drift = self.sign * noise.drift * min(self.hours / self.unit / DAY, 1)
        return drift + source.gauss(0, noise.run) + (0.08 if source.random() < noise.slow else 0.0)


def _run(due: Due, state: str, began: float, ended: float, attempt: SuiteAttempt, timing: Any = None) -> Run:
    record: Any = SimpleNamespace(
        state=state,
        submission=SimpleNamespace(in_series=False),
        manifest={},
        job_id="",
        paths=SimpleNamespace(run_id=f"{due.arm}.{due.attempt}"),
    )
    measured: Any = SimpleNamespace(timing=timing, why=None) if timing is not None else None
    return Run(due.attempt, record, measured, attempt, began, ended - began)


def _timing(seconds: float) -> SimpleNamespace:
    """What a comparison reads of a whole run's log."""
    measurement = Plan().measurement
    iterations = [Iteration(index, FULL, seconds * (1 + 0.001 * (index % 3 - 1))) for index in range(1, FULL + 1)]
    return SimpleNamespace(iterations=iterations, window=Window(measurement.first, measurement.last), restarts=())


def tune(space: Space, noise: Noise, source: random.Random, best: int = 0, budget: float = math.inf) -> Found:
    """One tuning to its end. ``best``: who crashes where ``noise.best`` says so; ``budget`` in trials of the base."""
    site = Site(space, noise, best, source)
    plan: Any = Plan()
    arms = [Arm(plan, Path(), str(at)) for at in range(len(space.logs))]
    tuning = Tuning(arms, str(source.random()), SHORT, budget * site.unit)
    runs: dict[int, list[Run]] = {number: [] for number in range(1, len(arms) + 1)}
    while batch := tuning.due(arms, runs):
        for due in batch:
            runs[due.arm].append(site.run(due))
    state = tuning.state(runs)
    proved = state.proof is not None and state.proof.answer == "faster"
    every = list(itertools.chain.from_iterable(runs.values()))
    full_run_hours = sum(run.hours for run in every if run.number > len(space.logs))
    return Found(
        space.logs[state.search.leader if proved else 0],
        state.spent / site.unit,
        full_run_hours / site.unit,
        len(every),
        state.search.out.get(best) in CRASHED,
        any(row["title"] == str(best) for row in crashed_candidates(tuning, runs, state)),
    )


def tunings(kind: Kind, noise: Noise, count: int, seed: int) -> Iterator[Found]:
    """Tunings of as many spaces. Where the fastest crashes for certain, the loss is over the fastest of the others."""
    for number in range(count):
        source = random.Random(f"{seed} {kind.title} {noise.title} {number}")
        space = kind.make(source)
        best = space.fastest
        kept = [*range(len(space.logs))]
        if kind.sample:
            kept = [0, *source.sample(kept[1:], kind.sample)]
        tried = kept.index(best) if best in kept else 0
        found = tune(space.only(kept), noise, source, tried)
        running = [at for at, holds in enumerate(space.holds) if holds and not (noise.best and at == best)]
        fastest = min(space.logs[at] for at in running)
        yield replace(found, loss=math.expm1(found.loss - fastest))


def row(kind: Kind, noise: Noise, count: int, seed: int) -> tuple[str, ...]:
    """Of a table: how often the answer is good enough, the mean loss, what it costs, how often a crash is named."""
    found = [*tunings(kind, noise, count, seed)]
    good = sum(item.loss <= CLOSE for item in found) / count
    loss = sum(item.loss for item in found) / count
    cost = sum(item.cost for item in found) / count
    proof = sum(item.proof for item in found) / count
    runs = sum(item.runs for item in found) / count
    out = [item for item in found if item.out]
    named = f"{sum(item.named for item in out)} of {len(out)}" if noise.best else ""
    figures = (f"{100 * good:.1f}", f"{100 * loss:.2f}", f"{cost - proof:.1f}", f"{cost:.1f}", f"{runs:.1f}")
    return kind.title, noise.title, *figures, named


ALL, SAMPLE = Kind("all 60"), Kind("24 of 60", sample=24)
USUAL = Noise("1 %")
NOISES = (
    USUAL,
    Noise("1 %, drift of 3 % in a day", drift=0.03),
    Noise("3 %", 0.03),
    Noise("1 %, 5 % on slow nodes", slow=0.05),
)
BEST_CRASHES = (
    Noise("1 %, the fastest crashes in every trial", best="trials"),
    Noise("1 %, the fastest crashes in every whole run", best="whole"),
)
OTHERS = (
    Kind("all 60, a quarter lacks memory", lacking=0.25),
    Kind("all 12", 12, settings=(3, 2, 2, 2)),
    Kind("all 3", 3, settings=(3, 2, 2, 2)),
    Kind("all 60, effects do not add up", effect=0.02, pair=0.08, own=0.03),
    Kind("all 60, small effects", effect=0.03, pair=0.01, own=0.005),
)

PARTS: dict[str, tuple[Sequence[Kind], Sequence[Noise]]] = {
    "noises": ((ALL, SAMPLE), NOISES),
    "crashes": ((ALL,), BEST_CRASHES),
    "spaces": (OTHERS, (USUAL,)),
}

HEAD = ("candidates", "runs differ by", "within 2 %", "mean loss %", "trials cost", "all costs", "runs", "named")


def _rows(kinds: Sequence[Kind], noises: Sequence[Noise], count: int, seed: int) -> Iterator[str]:
    return lines(HEAD, (row(kind, noise, count, seed) for kind, noise in itertools.product(kinds, noises)), words=2)


def main() -> None:
    """Print the parts that the command line names, or all of them."""
    print_tables(__doc__, {name: partial(_rows, *part) for name, part in PARTS.items()}, "tunings", 500)


if __name__ == "__main__":
    main()
