"""Which runs of a comparison are due, and what those that have ended say: pure, from the runs on record."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any

from llmb_common.base.errors import RequestError
from llmb_common.results import paired
from llmb_common.results.paired import (
    ENOUGH,
    Answer,
    Comparison,
    blocks_at_last_look,
    compare_blocks,
    look_schedule,
    order,
)
from llmb_common.results.steps import step_time_after_warm_up
from llmb_common.runs.record import NOT_SUBMITTED
from llmb_run.campaigns.campaign import Arm
from llmb_run.campaigns.conduct import Due, Run, Runs, with_arms

BROKEN = 4
"""Blocks that may be lost to faults of machines; each is made up for by another one."""


@dataclass(frozen=True)
class Rule:
    """When to stop: ``resolution`` and ``budget`` as a share and in GPU-hours, ``most`` blocks.

    ``is_met`` is whether a comparison answers which side is faster to that resolution, False for None. ``is_that_of``
    is whether the result of a finished campaign was under this rule, which is in it under ``rule``.
    """

    resolution: float
    most: int
    budget: float | None = None

    def is_met(self, found: Comparison | None) -> bool:
        """Whether ``found`` answers which side is faster, to this rule's resolution.

        False for None and while it is open.
        """
        return found is not None and found.answer(self.resolution) != "open"

    def is_that_of(self, result: Mapping[str, Any]) -> bool:
        """Whether this is the rule in the ``result`` of a campaign that is over, which may have more of a rule."""
        kept = result["rule"]
        return all(kept[name] == value for name, value in asdict(self).items())


def rule_of(resolution: str, pairs: int, budget: float | None) -> Rule:
    """The rule for when to stop a comparison, from the values of the options of ``options.until_clear``.

    ``resolution`` is in per cent: ``1%``, ``0.5 %`` or ``1``; ``pairs`` is the most pairs of runs, two to a block;
    ``budget`` is in GPU-hours, None: without end.

    Raises:
        RequestError: the resolution is no number of per cent between 0 and 100
    """
    try:
        value = float(resolution.strip().removesuffix("%"))
    except ValueError:
        value = 0.0
    if not 0 < value < 100:
        raise RequestError(f"--resolution {resolution!r} is not a percentage", remedy="for example --resolution 0.5%")
    return Rule(value / 100, pairs // 2, budget)


@dataclass(frozen=True)
class RunBlock:
    """Two runs of either side that share nodes. ``runs`` in their order; None: not on record."""

    number: int
    letters: str
    runs: tuple[Run | None, ...]

    @property
    def ended(self) -> bool:
        """Whether every run of the block has ended, or will not be started because the block is lost."""
        return all((run is None and self.lost) or (run is not None and run.attempt is not None) for run in self.runs)

    @property
    def waits(self) -> bool:
        """Whether one of the block's runs has a job, and has not ended."""
        return any(run is not None and run.live and not run.unsettled for run in self.runs)

    @property
    def lost(self) -> bool:
        """Whether too few of the block's runs can have a step time in one allocation, whatever is to come."""
        together = sum(run is not None for run in self.counted)
        if self.waits or not any(run is not None and run.record.submission.in_series for run in self.runs):
            return together + self._open_runs < ENOUGH
        return max(together, self._open_runs) < ENOUGH  # what is to come gets another allocation

    @property
    def _open_runs(self) -> int:
        """How many of the block's runs have not ended."""
        return sum(run is None or run.attempt is None for run in self.runs)

    @cached_property
    def counted(self) -> tuple[Run | None, ...]:
        """The block's runs that count, each at its place, None at the places of the others.

        Those count that have a step time in the allocation that most of these share; runs submitted one by one count as
        sharing one.
        """
        timed = [run if run is not None and run.attempt is not None and run.attempt.time else None for run in self.runs]
        where = Counter(_allocation_id(run) for run in timed if run is not None)
        most = max(where, key=lambda allocation: where[allocation], default="")
        return tuple(run if run is not None and _allocation_id(run) == most else None for run in timed)

    @property
    def nodes(self) -> str:
        """The nodes on which the block's runs were, as a host list, by a run that counts where there is one.

        Empty: not known.
        """
        ended = [run for run in (*self.counted, *self.runs) if run is not None and run.attempt is not None]
        jobs = [run.record.manifest.get("job", {}) for run in ended]
        return next((str(job["nodes"]) for job in jobs if job.get("nodes")), "")

    def due(self, *, wanted: bool) -> Iterator[Due]:
        """Yields what is to be done for the block's runs without a job, in their order.

        They are to be started, on the nodes of the others where these are known; or, where the block is lost or not
        ``wanted``, cancelled, which is yielded only for runs on record that were not submitted.
        """
        for (arm, attempt), run in zip(arms_and_attempts(self.number, self.letters), self.runs, strict=True):
            if not wanted or self.lost:
                if run is not None and run.record.state == NOT_SUBMITTED:
                    yield Due(arm, attempt, cancel=True)
            elif run is None or run.unsettled:
                yield Due(arm, attempt, block=self.number, nodes=self.nodes, why=f", block {self.number}")

    def timed(self, arms: Sequence[Arm]) -> paired.Block:
        """The block as the statistics take it: the order of its runs, and the step time of each, None if it is lost."""
        work = math.log(arms[1].plan.tokens_per_gpu / arms[0].plan.tokens_per_gpu)
        times = (step_time_after_warm_up(run.measured.timing) if run and run.measured else None for run in self.counted)
        return paired.Block(self.letters, tuple(times), work)


def _allocation_id(run: Run) -> str:
    """Which allocation a run had: the id of its job, and the job's nodes, which are others if it was queued again.

    Empty for a run that was submitted by itself.
    """
    nodes = run.record.manifest.get("job", {}).get("nodes", "")
    return f"{run.record.job_id} {nodes}" if run.record.submission.in_series else ""


def arms_and_attempts(number: int, letters: str) -> list[tuple[int, int]]:
    """The arm (1 is side A, 2 is B) and attempt of each run of block ``number``, in their order; both count from 1.

    ``letters``: the order of the sides, such as ``ABBA``. Each side has two attempts in a block.
    """
    found, seen = [], {"A": 2 * number - 2, "B": 2 * number - 2}
    for letter in letters:
        seen[letter] += 1
        found.append((1 if letter == "A" else 2, seen[letter]))
    return found


_compared = lru_cache(maxsize=64)(compare_blocks)
"""Whoever conducts a comparison asks again whenever a run ends."""


@dataclass(frozen=True)
class ComparisonProgress:
    """Where a comparison stands, by the runs of its blocks on record."""

    arms: Sequence[Arm]
    blocks: Sequence[RunBlock]
    rule: Rule

    @cached_property
    def failure(self) -> str:
        """Why a side of the comparison cannot be timed: ``B failed: ...``, by the first of its runs that failed.

        Empty: both can.
        """
        for block in self.blocks:
            for letter, run in zip(block.letters, block.runs, strict=True):
                if run is not None and run.attempt is not None and run.attempt.failure:
                    return f"{letter} failed: {run.attempt.failure} ({run.record.paths.run_id})"
        return ""

    @cached_property
    def good(self) -> list[RunBlock]:
        """The blocks that have ended and count for the answer."""
        return [block for block in self.blocks if block.ended and not block.lost]

    @cached_property
    def broken(self) -> list[RunBlock]:
        """The blocks that have ended and were lost, which is not the configuration's fault."""
        return [block for block in self.blocks if block.ended and block.lost]

    @cached_property
    def comparison(self) -> Comparison | None:
        """What the last look at the good blocks has found; None before the first look, or where they are too few."""
        seen = self.good[: blocks_at_last_look(len(self.good), self.rule.most)]
        return _compared(tuple(block.timed(self.arms) for block in seen))

    @property
    def answer(self) -> Answer:
        """The answer of the last look; ``open`` before the first."""
        return self.comparison.answer(self.rule.resolution) if self.comparison else "open"

    def lacks(self, more: Sequence[RunBlock]) -> bool:
        """Whether one more block is to be begun beside ``more``, which are about to be.

        It is for the next look, or makes up for a lost one. False where a side failed, the answer is known, or a limit
        is reached.
        """
        if self.failure or self.rule.is_met(self.comparison) or self.stopped:
            return False
        return len(self.blocks) + len(more) - len(self.broken) < self._next_look

    @property
    def _next_look(self) -> int:
        """The number of good blocks at which the comparison is looked at next; 0 where there is no further look."""
        return next((size for size in look_schedule(self.rule.most) if size > len(self.good)), 0)

    @cached_property
    def stopped(self) -> str:
        """Why no more blocks are begun, though there is no answer yet: faults, pairs or budget.

        Empty where more are, or none is needed.
        """
        if self.rule.is_met(self.comparison):
            return ""
        if len(self.broken) > BROKEN:
            return f"{len(self.broken)} blocks were lost to machine faults"
        if not self._next_look:
            return f"{2 * self.rule.most} pairs were the limit (--pairs)"
        spent, more = self.hours, self._next_look - len(self.good)
        each = spent / len(self.good) if self.good else 0.0
        if self.rule.budget is not None and spent + more * each > self.rule.budget:
            return f"{spent:.2g} GPU-hours spent; {more} more blocks would exceed the budget of {self.rule.budget:g}"
        return ""

    @property
    def hours(self) -> float:
        """The GPU-hours that all runs of the comparison have held."""
        runs = chain.from_iterable(block.runs for block in self.blocks)
        return sum(run.hours for run in runs if run is not None)


@dataclass(frozen=True)
class InTurns:
    """The strategy of a comparison: blocks of four runs, in an order drawn by chance, until a look answers."""

    seed: str
    rule: Rule

    def due(self, arms: Sequence[Arm], runs: Runs) -> list[Due]:
        """The runs to start now: all blocks until the next look, and what has no job yet of blocks that were begun.

        Where a side has failed, begun blocks are given up instead: runs without a job are to be cancelled. Empty:
        nothing.
        """
        standing = self.standing(arms, runs)
        open_ = [block for block in standing.blocks if not (block.ended or block.waits)]
        new: list[RunBlock] = []
        while standing.lacks(new):
            new.append(self._block(len(standing.blocks) + len(new) + 1, {}))
        found: list[Due] = []
        for block in (*open_, *new):
            found += block.due(wanted=not standing.failure)
        return found

    def standing(self, arms: Sequence[Arm], runs: Runs) -> ComparisonProgress:
        """Where the comparison stands, by the runs on record: ``runs`` are those of every arm, by its number."""
        known = {(arm, run.number): run for arm, run in with_arms(runs)}
        last = (max((number for _, number in known), default=0) + 1) // 2
        blocks = [self._block(number, known) for number in range(1, last + 1)]
        return ComparisonProgress(arms, blocks, self.rule)

    def _block(self, number: int, known: Mapping[tuple[int, int], Run]) -> RunBlock:
        """The block with a ``number``, from 1, with its arms in the order that the seed gives that block.

        Its runs are those in ``known``, by arm and attempt, in the order of ``arms_and_attempts``; None for each not
        there.
        """
        letters = order(number, self.seed)
        return RunBlock(number, letters, tuple(known.get(key) for key in arms_and_attempts(number, letters)))
