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
    """The rule for when a comparison of two configurations stops. ``rule_of`` makes it.

    ``resolution``: the smallest change of the step time that matters, as a share. ``most``: how many blocks of four
    runs may count. ``budget``: in GPU-hours; None: no limit. ``is_met`` returns whether statistics answer by this
    rule, False for None; ``is_that_of`` whether a saved result was found under an equal rule (``LookupError`` if it
    has none).
    """

    resolution: float
    most: int
    budget: float | None = None

    def is_met(self, found: Comparison | None) -> bool:
        """Return whether ``found`` says which side is faster, or that none is, to this rule's resolution.

        False for None, and while the answer is open.
        """
        return found is not None and found.answer(self.resolution) != "open"

    def is_that_of(self, result: Mapping[str, Any]) -> bool:
        """Return whether the ``result`` of a finished campaign was found under this rule, by its key ``rule``.

        All fields must be equal, the budget too. Further fields of that rule do not matter.

        Raises:
            LookupError: the result has no such key, or its rule lacks a field
        """
        kept = result["rule"]
        return all(kept[name] == value for name, value in asdict(self).items())


def rule_of(resolution: str, pairs: int, budget: float | None) -> Rule:
    """Return the rule for when to stop a comparison, from the command line's values.

    ``resolution`` is a text in per cent: ``1%``, ``0.5 %`` or ``1``. ``pairs`` is the most pairs of runs, two to a
    block; an odd one does not count, and whether there are any is not checked. ``budget`` is in GPU-hours; None: no
    limit.

    Raises:
        RequestError: the resolution is no number of per cent above 0 and below 100
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
    """A block of a comparison: two runs of side A and two of side B that share nodes.

    ``number`` counts from 1; ``letters`` is the order of the sides, such as ``ABBA``. ``runs`` are in that order;
    None: not on record. A block is good, and counts for the answer, when it has ``ended`` and is not ``lost`` (too
    few runs with a step time).

    Properties: ``ended``; ``lost``; ``waits``: one of its runs has a job that has not ended; ``counted``: a tuple of
    the runs that count, in their places, None in the others; ``nodes``: a host list, empty if not known. ``due`` yields
    the runs to start, or, of a block that is lost or not ``wanted``, to cancel; ``timed``, called with sides A and B,
    returns the block as the statistics take it; OSError if a log cannot be read any more.
    """

    number: int
    letters: str
    runs: tuple[Run | None, ...]

    @property
    def ended(self) -> bool:
        """Whether every run of this block has ended, or will not be started as the block is lost."""
        return all(self.lost if run is None else run.attempt is not None for run in self.runs)

    @property
    def waits(self) -> bool:
        """Whether one of the block's runs has a job that has not ended, so that no other may start now."""
        return any(run is not None and run.live and not run.unsettled for run in self.runs)

    @property
    def lost(self) -> bool:
        """Whether this block can no longer count: too few of its runs can have a step time in one allocation.

        Too few are fewer than ``ENOUGH``. Runs that have not ended are taken to succeed.
        """
        together = sum(run is not None for run in self.counted)
        in_series = any(run is not None and run.record.submission.in_series for run in self.runs)
        if self.waits or not in_series:
            return together + self._open_runs < ENOUGH
        return max(together, self._open_runs) < ENOUGH  # what is to come gets another allocation

    @property
    def _open_runs(self) -> int:
        """How many of the block's runs have not ended, those that were never submitted included."""
        return sum(run is None or run.attempt is None for run in self.runs)

    @cached_property
    def counted(self) -> tuple[Run | None, ...]:
        """The block's runs that count for the answer, each at its place, None at the places of the others.

        A run counts that has a step time and was in the allocation that most such runs of the block share, of equals
        the first. Runs that were submitted one by one are taken as sharing one.
        """
        timed: list[Run | None] = []
        for run in self.runs:
            has_time = run is not None and run.attempt is not None and run.attempt.time
            timed.append(run if has_time else None)
        where = Counter(_allocation_id(run) for run in timed if run is not None)
        most = max(where, key=lambda allocation: where[allocation], default="")
        return tuple(run if run is not None and _allocation_id(run) == most else None for run in timed)

    @property
    def nodes(self) -> str:
        """The nodes on which the block's runs were, as a host list.

        They are those of the first run that counts, else of the first that has ended. Empty: not known.
        """
        ended = [run for run in (*self.counted, *self.runs) if run is not None and run.attempt is not None]
        jobs = [run.record.manifest.get("job", {}) for run in ended]
        return next((str(job["nodes"]) for job in jobs if job.get("nodes")), "")

    def due(self, *, wanted: bool) -> Iterator[Due]:
        """Yield what to do for those of this block's runs that have no job, in their order: start or cancel them.

        A run is to be started on the nodes of the others, if these are known. If the block is lost or not ``wanted``, a
        run on record whose job was never submitted is to be cancelled, and nothing is started.
        """
        for (arm, attempt), run in zip(arms_and_attempts(self.number, self.letters), self.runs, strict=True):
            if not wanted or self.lost:
                if run is not None and run.record.state == NOT_SUBMITTED:
                    yield Due(arm, attempt, cancel=True)
            elif run is None or run.unsettled:
                yield Due(arm, attempt, block=self.number, nodes=self.nodes, why=f", block {self.number}")

    def timed(self, arms: Sequence[Arm]) -> paired.Block:
        """Return the block as the statistics take it: the order of the sides, each run's time, and the ratio of work.

        The time is the step time after warm-up, None for a run that does not count. ``arms`` are sides A and B, in
        this order: if they train different numbers of tokens per GPU, times are compared per token.

        Raises:
            OSError: the log of a run that was read before cannot be read any more
        """
        work = math.log(arms[1].plan.tokens_per_gpu / arms[0].plan.tokens_per_gpu)
        times = (step_time_after_warm_up(run.measured.timing) if run and run.measured else None for run in self.counted)
        return paired.Block(self.letters, tuple(times), work)


def _allocation_id(run: Run) -> str:
    """Return which allocation a run had: job id and nodes (a host list), with a blank between, ``4711 n[1-4]``.

    Empty for a run that was submitted by itself. The nodes, empty while they are not known, tell a job that was queued
    again, and got others, from its first start.
    """
    nodes = run.record.manifest.get("job", {}).get("nodes", "")
    return f"{run.record.job_id} {nodes}" if run.record.submission.in_series else ""


def arms_and_attempts(number: int, letters: str) -> list[tuple[int, int]]:
    """Return (arm, attempt) of each run of block ``number``, in their order; arm 1 is side A, arm 2 is B.

    Blocks and attempts count from 1. ``letters``: the order of the sides, such as ``ABBA``. Each side has two attempts
    in a block.
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
    """Where a comparison of two configurations stands, by the runs of its blocks on record.

    ``InTurns.standing`` makes it. ``arms`` are side A and side B; ``blocks`` are in order of their number; ``rule``
    says when to stop. The object does not change: newer runs need another one. All but ``lacks`` are properties.
    ``good``, a list, are the blocks that have ended and count; ``broken``, a list, those that have ended and are lost.
    ``comparison`` is the statistics at the last look, None before the first; ``answer`` how B compares with A by them
    (``faster``, ``slower``, ``no difference`` or ``open``). ``failure`` says why a side cannot be timed, and
    ``stopped`` why no more blocks are begun; each is empty where that is not so. ``hours`` are the GPU-hours held by
    ended runs. ``lacks``, called with the new blocks that are about to be begun, returns whether to begin one more.
    OSError, from ``comparison`` and what follows from it (``answer``, ``lacks``, ``stopped``): a run's log cannot be
    read any more.
    """

    arms: Sequence[Arm]
    blocks: Sequence[RunBlock]
    rule: Rule

    @cached_property
    def failure(self) -> str:
        """Why a side of the comparison cannot be timed: ``B failed: ...``, by the first run that failed.

        It is the first in the order of the blocks and of their runs; the text ends with its id. Empty: no run has
        failed; machine faults are no failures.
        """
        for block in self.blocks:
            for letter, run in zip(block.letters, block.runs, strict=True):
                if run is not None and run.attempt is not None and run.attempt.failure:
                    return f"{letter} failed: {run.attempt.failure} ({run.record.paths.run_id})"
        return ""

    @cached_property
    def good(self) -> list[RunBlock]:
        """The blocks that have ended and are not ``lost``, in the order of ``blocks``: they count for the answer.

        At least ``ENOUGH`` runs of each block have a step time.
        """
        return [block for block in self.blocks if block.ended and not block.lost]

    @cached_property
    def broken(self) -> list[RunBlock]:
        """The blocks that have ended and are ``lost``, in order: too few runs of each have a step time.

        Mostly by faults of machines; the runs of a side that fails (``failure``) make such blocks, too.
        """
        return [block for block in self.blocks if block.ended and block.lost]

    @cached_property
    def comparison(self) -> Comparison | None:
        """The statistics of the last look at the good blocks; None: before the first look, or too few blocks.

        Looks are at fixed numbers of blocks, so good blocks since the last one do not count yet.

        Raises:
            OSError: the log of a run that was read before cannot be read any more
        """
        seen = self.good[: blocks_at_last_look(len(self.good), self.rule.most)]
        return _compared(tuple(block.timed(self.arms) for block in seen))

    @property
    def answer(self) -> Answer:
        """How side B compares with A by the last look: ``faster``, ``slower``, ``no difference`` or ``open``.

        ``open`` before the first look, too.

        Raises:
            OSError: the log of a run that was read before cannot be read any more
        """
        return self.comparison.answer(self.rule.resolution) if self.comparison else "open"

    def lacks(self, more: Sequence[RunBlock]) -> bool:
        """Return whether to begin one more block of runs beyond ``more``, the new blocks that are about to be begun.

        It is for the next look, or makes up for a lost block. False where a side failed, the answer is known, or a
        limit (of pairs, budget, or lost blocks) is reached.

        Raises:
            OSError: the log of a run that was read before cannot be read any more
        """
        if self.failure or self.rule.is_met(self.comparison) or self.stopped:
            return False
        return len(self.blocks) + len(more) - len(self.broken) < self._next_look

    @property
    def _next_look(self) -> int:
        """The number of good blocks at which the comparison is looked at next; 0: there is no further look."""
        return next((size for size in look_schedule(self.rule.most) if size > len(self.good)), 0)

    @cached_property
    def stopped(self) -> str:
        """Why no more blocks of runs are begun though there is no answer: faults, or a limit.

        A clause: ``8 pairs were the limit (--pairs)``. Faults are more than ``BROKEN`` lost blocks. The limit is of
        pairs, or of the budget where the blocks until the next look would exceed it. Empty: there is an answer, or
        more may be begun; a failed side is not looked at.

        Raises:
            OSError: the log of a run that was read before cannot be read any more
        """
        if self.rule.is_met(self.comparison):
            return ""
        if len(self.broken) > BROKEN:
            return f"{len(self.broken)} blocks were lost to machine faults"
        if not self._next_look:
            return f"{2 * self.rule.most} pairs were the limit (--pairs)"
        # What lost blocks took is a part of what a good one costs.
        spent, more = self.hours, self._next_look - len(self.good)
        each = spent / len(self.good) if self.good else 0.0
        if self.rule.budget is not None and spent + more * each > self.rule.budget:
            return f"{spent:.2g} GPU-hours spent; {more} more blocks would exceed the budget of {self.rule.budget:g}"
        return ""

    @property
    def hours(self) -> float:
        """The GPU-hours that all ended runs of the comparison have held, those that do not count included."""
        runs = chain.from_iterable(block.runs for block in self.blocks)
        return sum(run.hours for run in runs if run is not None)


@dataclass(frozen=True)
class InTurns:
    """The strategy of a comparison: blocks of four runs, until a look at them answers.

    The order of a block is drawn by chance from ``seed``, the same again for the same seed and number. ``rule``
    says when to stop. ``due`` returns a list of the runs to start or cancel next, maybe empty, and raises OSError where
    a run's log cannot be read any more; ``standing`` returns where the comparison is, a ``ComparisonProgress``. Both
    take the runs on record by number of the side (1 is A, 2 is B).
    """

    seed: str
    rule: Rule

    def due(self, arms: Sequence[Arm], runs: Runs) -> list[Due]:
        """Return the runs to start: of new blocks until the next look, and what is missing of begun ones.

        Those of begun blocks come first. A block of which a run has a job that has not ended gets nothing now.
        Where a side has failed, or a block is lost, its runs whose job was never submitted are returned to be
        cancelled, and nothing of it is started. Empty: nothing to do now. ``arms`` are sides A and B; ``runs`` has
        those of each by its number, 1 and 2.

        Raises:
            OSError: the log of a run that was read before cannot be read any more
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
        """Return where the comparison stands, by the runs on record.

        ``arms`` are sides A and B, in this order. ``runs`` holds those of every arm, by its number from 1. The answer
        has all blocks up to the last one of which a run is on record.
        """
        known = {(arm, run.number): run for arm, run in with_arms(runs)}
        # Each side has two attempts in a block.
        last = (max((number for _, number in known), default=0) + 1) // 2
        blocks = [self._block(number, known) for number in range(1, last + 1)]
        return ComparisonProgress(arms, blocks, self.rule)

    def _block(self, number: int, known: Mapping[tuple[int, int], Run]) -> RunBlock:
        """Return the block ``number``, from 1, with its sides in the order that the seed gives that block.

        Its runs come from ``known``, which has them by (arm, attempt); None for each that is not there.
        """
        letters = order(number, self.seed)
        return RunBlock(number, letters, tuple(known.get(key) for key in arms_and_attempts(number, letters)))
