"""What a reader must know of runs that are judged together: what they share, and which of them are unlike the others.

A fact is named whenever it is one ("2 of 7 runs are 10 % slower; both had gpu7, and no other run"), with how often
chance alone would do the same; ``slow_node`` names a node only where chance hardly would.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence

from llmb_common.command.printable import counted
from llmb_common.results.decision import Decision
from llmb_common.results.estimate import StepTime
from llmb_common.results.scatter import Scatter

_SHIFT = 0.01
"""Step times closer than this are not two kinds of run."""

_GAP = 3.0
"""How many times the wider of two kinds' own ranges lies between them."""

_FEWEST = 4
"""Runs among which some can be unlike the others."""

_ALARM = 0.01
_TRIALS = 499
_WORK = 1_000_000
"""Runs times their nodes times trials that are worth a word: half a second."""


def remarks_on(
    runs: Sequence[StepTime], decision: Decision, scatter: Scatter, waiting: Sequence[StepTime] = ()
) -> tuple[str, ...]:
    """In words; empty where there is nothing to say. ``waiting``: further runs, which count at the next look."""
    every = [*runs, *waiting]
    found = [_shared(runs, decision), _scattered(runs, decision, scatter), unlike(every) or slow_node(every)]
    return tuple(text for text in found if text)


def _shared(runs: Sequence[StepTime], decision: Decision) -> str:
    """Repeats that share a day say less than as many of different days."""
    if decision.days == len(runs):
        return ""
    what = "one day or the same nodes" if decision.days == 1 else f"{decision.days} days or sets of nodes"
    return (
        f"its {len(runs)} runs share {what}, and what that does to all of them no repeat shows:"
        " repeats on other days would (--spread)"
    )


def _scattered(runs: Sequence[StepTime], decision: Decision, scatter: Scatter) -> str:
    if len(runs) < 2 or (not decision.scattered and decision.source != "runs"):
        return ""
    spread = statistics.stdev(run.log for run in runs)
    known = f"this site's record says ({scatter.total:.1%})" if scatter.learned else "runs of one cluster should"
    return f"these runs scatter more than {known}: by {spread:.1%}; the interval is theirs"


def unlike(runs: Sequence[StepTime]) -> str:
    """Where some runs are apart from the others by far more than either kind scatters, and what nodes they had."""
    if len(runs) < _FEWEST:
        return ""
    ordered = sorted(runs, key=lambda run: run.log)
    gap, at = max((b.log - a.log, at) for at, (a, b) in enumerate(itertools.pairwise(ordered), 1))
    fast, slow = ordered[:at], ordered[at:]
    ranges = [side[-1].log - side[0].log for side in (fast, slow)]
    if gap < _GAP * max(ranges) or gap < _SHIFT:
        return ""
    shift = statistics.fmean(run.log for run in slow) - statistics.fmean(run.log for run in fast)
    few, word = (slow, "slower") if len(slow) <= len(fast) else (fast, "faster")
    many = fast if few is slow else slow
    share = math.expm1(shift) if few is slow else -math.expm1(-shift)
    text = f"{len(few)} of {len(runs)} runs {'is' if len(few) == 1 else 'are'} {share:.1%} {word} than the others"
    return text + _with_nodes(few, many, runs)


def _with_nodes(few: Sequence[StepTime], many: Sequence[StepTime], runs: Sequence[StepTime]) -> str:
    """The nodes that the few had in common and the many never had."""
    sets = [_nodes(run) for run in runs]
    only = frozenset.intersection(*map(_nodes, few)).difference(*map(_nodes, many))
    if not only:
        return ""
    patterns = {tuple(node in had for had in sets) for node in frozenset().union(*sets)}
    as_often = sum(sum(pattern) == len(few) for pattern in patterns)
    chance = 1 - (1 - 1 / math.comb(len(runs), len(few))) ** as_often
    names = ", ".join(sorted(only)[:4]) + (", ..." if len(only) > 4 else "")
    doubt = "" if chance <= _ALARM else f" (so would chance in {chance:.0%} of such cases)"
    return f"; {'it' if len(few) == 1 else 'all of them'} had {names}, and no other run{doubt}"


def _nodes(run: StepTime) -> frozenset[str]:
    return frozenset(run.nodes.split(",")) if run.nodes else frozenset()


def slow_node(runs: Sequence[StepTime], trials: int = _TRIALS, seed: int = 1) -> str:
    """The node with which runs are slower than without it, where shuffling the runs hardly ever does as much.

    The largest difference over all nodes, each with and without in two runs or more, in standard errors.
    """
    sets = [_nodes(run) for run in runs]
    counts = {node: sum(node in had for had in sets) for node in frozenset().union(*sets)}
    patterns: dict[tuple[int, ...], str] = {}
    for node in sorted(node for node, count in counts.items() if 2 <= count <= len(runs) - 2):
        patterns.setdefault(tuple(at for at, had in enumerate(sets) if node in had), node)
    trials = min(trials, _WORK // max(sum(map(len, patterns)), 1))
    if len(runs) < _FEWEST or not patterns or trials * _ALARM < 1:
        return ""
    middle = statistics.fmean(run.log for run in runs)
    apart = [run.log - middle for run in runs]
    squared = math.fsum(value * value for value in apart)

    def largest(values: Sequence[float]) -> tuple[float, tuple[int, ...]]:
        return max((_t(math.fsum(values[at] for at in had), len(had), len(values), squared), had) for had in patterns)

    seen, had = largest(apart)
    source = random.Random(seed)
    beyond = 1
    for _ in range(trials):
        source.shuffle(apart)
        beyond += largest(apart)[0] >= seen
        if beyond > _ALARM * (trials + 1):
            return ""
    inside = statistics.fmean(runs[at].log for at in had)
    rest = statistics.fmean(run.log for at, run in enumerate(runs) if at not in had)
    with_it = f"{len(had)} of {counted(len(runs), 'run')} with {patterns[had]} are"
    return f"the {with_it} {math.expm1(inside - rest):.1%} slower than those without (chance: at most {_ALARM:.0%})"


def _t(total: float, count: int, runs: int, squared: float) -> float:
    """Of the difference between ``count`` centred values that sum to ``total`` and the others."""
    between = total * total / count + total * total / (runs - count)
    return math.copysign(math.sqrt(between / max((squared - between) / (runs - 2), 1e-30)), total)
