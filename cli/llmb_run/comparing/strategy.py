"""Which runs of a comparison are due, and what those that have ended say: pure, from the runs on record."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from llmb_common.results.paired import ORDERS, Answer, Comparison, Pair, compare_pairs, look, looks, order
from llmb_common.results.scatter import STATED, Scatter
from llmb_common.results.verdict import whole_time
from llmb_run.campaigns.conduct import Arm, Due, Run, Runs

BROKEN = 4
"""Blocks that may be lost to faults of machines; each is made up for by another one."""


@dataclass(frozen=True)
class Rule:
    """When to stop: ``resolution`` and ``budget`` as a share and in GPU-hours, ``most`` blocks, an even number."""

    resolution: float
    most: int
    budget: float | None = None


@dataclass(frozen=True)
class Block:
    """Two pairs that share nodes. ``runs`` in their order; None: not on record."""

    number: int
    letters: str
    runs: tuple[Run | None, ...]

    @property
    def ended(self) -> bool:
        return all(run is not None and run.attempt is not None for run in self.runs)

    @property
    def waits(self) -> bool:
        """Whether one of its runs has a job, and has not ended."""
        return any(run is not None and run.live and not run.unsettled for run in self.runs)

    @property
    def nodes(self) -> str:
        """Where its runs were, as a host list; empty before one has ended."""
        jobs = [run.record.manifest.get("job", {}) for run in self.runs if run is not None and run.attempt is not None]
        return next((str(job["nodes"]) for job in jobs if job.get("nodes")), "")

    @property
    def due(self) -> Iterator[Due]:
        """Its runs without a job, in their order."""
        for (arm, attempt), run in zip(places(self.number, self.letters), self.runs, strict=True):
            if run is None or run.unsettled:
                yield Due(arm, attempt, block=self.number, nodes=self.nodes, why=f", block {self.number}")

    def pairs(self, arms: Sequence[Arm]) -> list[Pair]:
        """Those of its two pairs of which both runs have a step time."""
        return [pair for at in (0, 2) if (pair := self._pair(at, arms)) is not None]

    def _pair(self, at: int, arms: Sequence[Arm]) -> Pair | None:
        times = {}
        for letter, run in zip(self.letters[at : at + 2], self.runs[at : at + 2], strict=True):
            if run is None or run.measured is None or run.attempt is None or run.attempt.time is None:
                return None
            times[letter] = whole_time(run.measured.timing)
        first, second = times["A"], times["B"]
        work = math.log(arms[1].plan.tokens_per_gpu / arms[0].plan.tokens_per_gpu)
        return Pair(first, second, self.letters[at] == "A", work) if first and second else None


def places(number: int, letters: str) -> list[tuple[int, int]]:
    """Arm and attempt of each run of a block, in their order."""
    found, seen = [], {"A": 2 * number - 2, "B": 2 * number - 2}
    for letter in letters:
        seen[letter] += 1
        found.append((1 if letter == "A" else 2, seen[letter]))
    return found


@dataclass(frozen=True)
class Standing:
    """Where a comparison stands, by the runs of its blocks."""

    arms: Sequence[Arm]
    blocks: Sequence[Block]
    rule: Rule
    scatter: Scatter

    @cached_property
    def failure(self) -> str:
        """Why an arm cannot be timed; empty where it can."""
        for block in self.blocks:
            for letter, run in zip(block.letters, block.runs, strict=True):
                if run is not None and run.attempt is not None and run.attempt.failure:
                    return f"{letter} failed: {run.attempt.failure} ({run.record.paths.run_id})"
        return ""

    @cached_property
    def good(self) -> list[Block]:
        """Blocks that count."""
        return [block for block in self.blocks if block.ended and len(block.pairs(self.arms)) == 2]

    @cached_property
    def counted(self) -> list[Block]:
        """Of these as many of either order, in couples: else a slow first run of a job would favour a side."""
        sides = ([block for block in self.good if block.letters == letters] for letters in ORDERS)
        return list(itertools.chain(*zip(*sides, strict=False)))

    @cached_property
    def broken(self) -> list[Block]:
        """Blocks that were lost: a run of theirs has no step time, and that is not the configuration's fault."""
        return [block for block in self.blocks if block.ended and block not in self.good]

    @cached_property
    def comparison(self) -> Comparison | None:
        """Of the last look; None before the first."""
        seen = self.counted[: look(len(self.counted), self.rule.most)]
        return compare_pairs([pair for block in seen for pair in block.pairs(self.arms)], self.scatter)

    @property
    def answer(self) -> Answer:
        return self.comparison.answer(self.rule.resolution) if self.comparison else "open"

    def lacks(self, more: Sequence[Block]) -> bool:
        """Whether another block is to be begun beside ``more``, for the next look or to make up for a lost one."""
        if self.failure or self.answer != "open" or self.stopped:
            return False
        letters = [block.letters for block in (*self.blocks, *more) if block not in self.broken]
        return 2 * min(letters.count(order) for order in ORDERS) < self._next

    @property
    def _next(self) -> int:
        return next((size for size in looks(self.rule.most) if size > len(self.counted)), 0)

    @cached_property
    def stopped(self) -> str:
        """Why no more blocks are begun, though the answer is open; empty where they are."""
        if self.answer != "open":
            return ""
        if len(self.broken) > BROKEN:
            return f"{len(self.broken)} blocks were lost to faults of machines"
        if not self._next:
            return f"{2 * self.rule.most} pairs are the most that were allowed (--pairs)"
        spent, more = self.hours, self._next - len(self.counted)
        each = spent / len(self.good) if self.good else 0.0
        if self.rule.budget is not None and spent + more * each > self.rule.budget:
            return f"{spent:.2g} GPU-hours are spent, and {more} more blocks exceed the budget of {self.rule.budget:g}"
        return ""

    @property
    def hours(self) -> float:
        """GPU-hours that all of its runs held."""
        return sum(run.hours for block in self.blocks for run in block.runs if run is not None)


@dataclass(frozen=True)
class InTurns:
    """The strategy of a comparison: blocks of four runs, ABBA or BAAB by chance, until a look answers."""

    seed: str
    rule: Rule
    scatter: Scatter = STATED

    def due(self, arms: Sequence[Arm], runs: Runs) -> list[Due]:
        """All blocks until the next look; and what has no job yet of those that were begun."""
        standing = self.standing(arms, runs)
        open_ = [] if standing.failure else [block for block in standing.blocks if not (block.ended or block.waits)]
        new: list[Block] = []
        while standing.lacks(new):
            new.append(self._block(len(standing.blocks) + len(new) + 1, {}))
        return [due for block in (*open_, *new) for due in block.due]

    def standing(self, arms: Sequence[Arm], runs: Runs) -> Standing:
        """Where it stands, by the runs on record."""
        known = {(arm, run.number): run for arm, these in runs.items() for run in these}
        last = (max((number for _, number in known), default=0) + 1) // 2
        blocks = [self._block(number, known) for number in range(1, last + 1)]
        return Standing(arms, blocks, self.rule, self.scatter)

    def _block(self, number: int, known: Mapping[tuple[int, int], Run]) -> Block:
        letters = order(number, self.seed)
        return Block(number, letters, tuple(known.get(place) for place in places(number, letters)))
