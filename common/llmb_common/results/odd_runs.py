"""Which of the runs that are judged together are unlike the others, and which node they share.

A fact is named whenever it is one ("2 of 7 runs are 10 % slower; both had gpu7, and no other run"), with how often
chance alone would do the same. ``culprit`` names a node only where chance hardly would.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from llmb_common.base.printable import counted, percent
from llmb_common.results.slow_nodes import NodeRuns, node_runs
from llmb_common.results.steps import StepTime

_SHIFT = 0.01
"""Step times closer than this are not two kinds of run."""

_GAP = 3.0
"""How many times the wider of two kinds' own ranges lies between them."""

_IN_THE_MEAN = 0.5
"""How much of the difference of steady steps the mean step times of two kinds show at least, stalls included. Where all
runs have steps of two speeds, chance decides in each which of these are the steady ones."""

_FEWEST = 4
"""Runs among which some can be unlike the others."""

_ALARM = 0.01
_TRIALS = 499
_SEED = 1
_WORK = 1_000_000
"""Runs times their nodes times trials that are worth a word: half a second."""


class SlowNode(msgspec.Struct, frozen=True):
    """A node with which runs of a configuration are slower than without it, by more than chance explains.

    ``nodes`` are host names, sorted: several where all slow runs had all of them, so that it may be any. ``slow`` and
    ``others`` count the runs with it and without it, those whose nodes are not on record among the latter, and
    ``seconds`` and ``others_seconds`` are their mean steady step times in seconds. The property ``share`` is how much
    slower the runs with it are: 0.02 is 2 %. ``culprit`` finds it.
    """

    nodes: tuple[str, ...]
    slow: int
    """Runs that had it."""
    others: int
    seconds: float
    """Mean steady step time of the runs that had it: a stall is in a step, and no node's doing in every step."""
    others_seconds: float

    @property
    def share(self) -> float:
        """How much slower runs with the node are, as a share of the step time without it: 0.02 is 2 %."""
        return self.seconds / self.others_seconds - 1


def culprit(runs: Sequence[StepTime]) -> SlowNode | None:
    """Return the node that seems to slow down some of the ``runs``, all of one configuration.

    That is: all clearly slow runs had it and no other run did, or else runs with it are slower in the mean. None where
    no node is suspected, also where chance alone shows as much in more than 1 % of cases, the days of those runs may
    be what was slow, there are fewer than four runs, or their nodes are not on record.
    """
    parts = _two_kinds(runs)
    if parts is not None:
        fast, slow = parts
        only = _nodes_only_in(slow, fast)
        if only and _chance_of_shared_node(runs, len(slow)) <= _ALARM and _is_slower_than_days(min(only), runs):
            return _slow_node_of(tuple(sorted(only)), slow, fast)
    found = _slowest_node(tuple(runs), _TRIALS)
    if found is None:
        return None
    node, had = found
    with_it = [run for at, run in enumerate(runs) if at in had]
    without = [run for at, run in enumerate(runs) if at not in had]
    return _slow_node_of((node,), with_it, without)


def _slow_node_of(nodes: tuple[str, ...], slow: Sequence[StepTime], fast: Sequence[StepTime]) -> SlowNode:
    """Return ``nodes`` as a suspect, with the numbers and mean step times of the ``slow`` and the ``fast`` runs.

    There is at least one run of each; the order of nodes is kept.
    """
    return SlowNode(
        nodes,
        len(slow),
        len(fast),
        statistics.fmean(run.seconds for run in slow),
        statistics.fmean(run.seconds for run in fast),
    )


def _two_kinds(runs: Sequence[StepTime]) -> tuple[list[StepTime], list[StepTime]] | None:
    """Return the runs as (fast, slow), each sorted by step time, where they are clearly of two kinds.

    That is: the gap between the kinds' steady steps is at least 1 %, and three times the range of either; and their
    mean step times differ, too. None where it is not so, or there are fewer than four runs.
    """
    if len(runs) < _FEWEST:
        return None
    ordered = sorted(runs, key=lambda run: run.seconds)
    logs = [run.log for run in ordered]
    gaps = [(logs[at] - logs[at - 1], at) for at in range(1, len(logs))]
    gap, at = max(gaps)
    fast, slow = ordered[:at], ordered[at:]
    ranges = [side[-1].log - side[0].log for side in (fast, slow)]
    if gap < _GAP * max(ranges) or gap < _SHIFT:
        return None
    steady_shift = statistics.fmean(run.log for run in slow) - statistics.fmean(run.log for run in fast)
    mean_shift = statistics.fmean(run.mean_log for run in slow) - statistics.fmean(run.mean_log for run in fast)
    if mean_shift < _IN_THE_MEAN * steady_shift:
        return None
    return fast, slow


def odd_runs_clause(runs: Sequence[StepTime]) -> str:
    """Return a clause about the minority of runs that are far from the rest, with nodes that only they had.

    ``2 of 6 runs are 4.1 % slower than the rest; all of them ran on n5, and no other run did``, without a full stop. It
    ends before the semicolon where there is no such node; it names up to four, and adds in brackets how often chance
    alone would do this where that is above 1 %, or else that the runs shared days that no other run was on, which may
    be why. The runs may be the slower or the faster ones; of two halves it is the
    slower. Far: the gap of steady steps is at least 1 %, and three times the range of either kind, and the mean step
    times differ, too. Empty where all runs are of one kind, or there are fewer than four.
    """
    parts = _two_kinds(runs)
    if parts is None:
        return ""
    fast, slow = parts
    slow_mean = statistics.fmean(run.log for run in slow)
    fast_mean = statistics.fmean(run.log for run in fast)
    shift = slow_mean - fast_mean
    few, word = (slow, "slower") if len(slow) <= len(fast) else (fast, "faster")
    many = fast if few is slow else slow
    share = math.expm1(shift) if few is slow else -math.expm1(-shift)
    verb = "is" if len(few) == 1 else "are"
    text = f"{len(few)} of {len(runs)} runs {verb} {percent(share)} {word} than the rest"
    only = _nodes_only_in(few, many)
    if not only:
        return text
    chance = _chance_of_shared_node(runs, len(few))
    names = ", ".join(sorted(only)[:4]) + (", ..." if len(only) > 4 else "")
    if chance > _ALARM:
        doubt = f" (chance alone would do this in {percent(chance, 0)} of cases)"
    else:
        doubt = " (nor on the same days, which may be why)" if _share_days(few, many) else ""
    return f"{text}; {'it' if len(few) == 1 else 'all of them'} ran on {names}, and no other run did{doubt}"


def _share_days(runs: Sequence[StepTime], others: Sequence[StepTime]) -> bool:
    """Return whether some of ``runs`` were on the same day, and none was on a day of one of the ``others``."""
    days = {run.day for run in runs}
    other_days = {run.day for run in others}
    all_known = "" not in days
    several_a_day = len(days) < len(runs)
    return all_known and several_a_day and days.isdisjoint(other_days)


def _nodes_only_in(runs: Sequence[StepTime], others: Sequence[StepTime]) -> frozenset[str]:
    """Return the nodes that every run of ``runs``, at least one, had and no run of ``others`` did."""
    return frozenset.intersection(*map(_nodes, runs)).difference(*map(_nodes, others))


def _chance_of_shared_node(runs: Sequence[StepTime], few: int) -> float:
    """Return the probability that ``few`` runs drawn from ``runs`` by chance share a node that no other run had.

    ``few`` is from 1 to the number of runs. Nodes that were always in the same runs count once.
    """
    sets = [_nodes(run) for run in runs]
    nodes = frozenset().union(*sets)
    # Nodes that were always together have one chance, not several.
    patterns = {tuple(node in had for had in sets) for node in nodes}
    as_often = sum(sum(pattern) == few for pattern in patterns)
    return 1 - (1 - 1 / math.comb(len(runs), few)) ** as_often


def _nodes(run: StepTime) -> frozenset[str]:
    """Return the host names of a run's nodes; empty where they are not on record."""
    return frozenset(run.nodes.split(",")) if run.nodes else frozenset()


def slow_node_clause(runs: Sequence[StepTime], trials: int = _TRIALS) -> str:
    """Return a clause that names the node with which runs are slower than without.

    ``the 3 of 9 runs with n5 are 2.0 % slower than those without (chance alone: at most 1 %)``, without a full
    stop. ``trials`` is how often the runs are shuffled to see what chance shows. Empty where that is as much in
    more than 1 % of cases, the runs are too few to tell (fewer than four, or no node that at least two had and two
    had not), or ``trials`` is below 100.
    """
    found = _slowest_node(tuple(runs), trials)
    if found is None:
        return ""
    node, had = found
    inside = statistics.fmean(runs[at].log for at in had)
    rest = statistics.fmean(run.log for at, run in enumerate(runs) if at not in had)
    slower = percent(math.expm1(inside - rest))
    with_it = f"{len(had)} of {counted(len(runs), 'run')} with {node} are {slower} slower"
    return f"the {with_it} than those without (chance alone: at most {percent(_ALARM, 0)})"


def _is_slower_than_days(node: str, runs: Sequence[StepTime]) -> bool:
    """Return whether runs with the node ``node`` are slower than those without by more than their days may explain.

    Runs of a day often have the same nodes, and what else a day brings: shuffling runs does not tell the two apart.
    """
    change = NodeRuns(node_runs([("", _nodes(run), run) for run in runs])).change(node)
    return change is not None and change.low > 1


# A verdict's remarks and the summary ask for the same runs, of which there may be many.
@functools.lru_cache(maxsize=256)
def _slowest_node(runs: tuple[StepTime, ...], trials: int) -> tuple[str, Collection[int]] | None:
    """Return (node, positions of the runs that had it) of the node with which runs are slower than without.

    It has the largest Student's t of all nodes that at least two runs had and two had not; of nodes that were in
    exactly the same runs it is the first by name. None where shuffling the runs ``trials`` times reaches that t in
    more than 1 % of cases, the runs' days may explain it, the runs are too few to tell, or no node is such; also where
    fewer than 100 shuffles are made. Of many runs and nodes, fewer than ``trials`` are. The same runs always give the
    same answer.
    """
    sets = [_nodes(run) for run in runs]
    counts = Counter(itertools.chain.from_iterable(sets))
    patterns: dict[tuple[int, ...], str] = {}
    shared = sorted(node for node, count in counts.items() if 2 <= count <= len(runs) - 2)
    for node in shared:
        with_node = tuple(at for at, nodes in enumerate(sets) if node in nodes)
        patterns.setdefault(with_node, node)
    trials = min(trials, _WORK // max(sum(map(len, patterns)), 1))
    if len(runs) < _FEWEST or not patterns or trials * _ALARM < 1:
        return None
    middle = statistics.fmean(run.log for run in runs)
    deviations = [run.log - middle for run in runs]
    squared = math.fsum(value * value for value in deviations)

    def student_t(values: Sequence[float], had: tuple[int, ...]) -> float:
        """Return Student's t of the difference between the runs at the positions ``had`` and the others.

        ``values`` are the deviations from the mean of all runs in any order: their sum of squares is ``squared`` of the
        enclosing function. Positive: those at ``had`` are slower.
        """
        total = math.fsum(values[at] for at in had)
        without = len(values) - len(had)
        between = total * total / len(had) + total * total / without
        variance = max((squared - between) / (len(values) - 2), 1e-30)
        return math.copysign(math.sqrt(between / variance), total)

    def largest_t(values: Sequence[float]) -> tuple[float, tuple[int, ...]]:
        """Return (largest Student's t, positions of the runs that had that node) over the nodes in ``patterns``.

        ``values`` are as for ``student_t``; ``patterns`` is the enclosing function's.
        """
        return max((student_t(values, had), had) for had in patterns)

    seen, had = largest_t(deviations)
    if not _is_slower_than_days(patterns[had], runs):
        return None
    source = random.Random(_SEED)
    # The actual order is one of those that chance could have made.
    beyond = 1
    for _ in range(trials):
        source.shuffle(deviations)
        beyond += largest_t(deviations)[0] >= seen
        if beyond > _ALARM * (trials + 1):
            return None
    return patterns[had], had
