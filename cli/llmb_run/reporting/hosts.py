"""What ran on which nodes, and which of them slow the runs down that they take part in."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from statistics import NormalDist
from typing import NamedTuple

import msgspec

from llmb_common.results.comparison import compare_times
from llmb_common.results.level import ERROR_RATE
from llmb_common.results.steps import StepTime
from llmb_run.reporting.differences import MOST_NAMED
from llmb_run.reporting.seen import SeenRun

_WORTH = 1.02
"""A smaller ratio of step times is nobody's slow node."""

_ALARM = 0.01
"""How often, about, some healthy node is called slow."""


class HostLine(msgspec.Struct, frozen=True, kw_only=True):
    """One node. ``ratio`` is the median, over the repeats with it, of a run's step time over the mean of all repeats of
    its configuration; None without repeats.

    ``slower`` is for a slow node, and None for any other: the mean step time of the repeats with it over that of the
    repeats without it, less 1. Slow is one where that is more than chance for as many nodes as were looked at, and no
    slower node explains it. ``together``: others that were in just the same repeats, so that it may be any of them.
    """

    host: str
    runs: tuple[str, ...]
    """The first of them."""
    count: int
    """How many runs it was in."""
    gpus: str
    ratio: float | None
    problems: int
    """Runs among them with a problem of this node, or of no node in particular."""
    findings: tuple[str, ...] = ()
    """What these problems are."""
    slower: float | None = None
    together: tuple[str, ...] = ()


class _Repeat(NamedTuple):
    """A run that has repeats, with its step time as a share of their mean."""

    group: str
    hosts: frozenset[str]
    time: StepTime


class _Total(NamedTuple):
    """The number of some runs, and the sum of their step times."""

    runs: int
    seconds: float


def host_lines(seen: Sequence[SeenRun]) -> tuple[HostLine, ...]:
    """Every node that a run's account names: slow ones first, then those with problems, then those in slower runs."""
    on_host: dict[str, list[SeenRun]] = {}
    for run in seen:
        for host in run.hosts:
            on_host.setdefault(host, []).append(run)
    repeats = _Repeats(_repeats(seen))
    lines = {host: _line(host, on_host[host], repeats) for host in sorted(on_host)}
    while worst := repeats.slowest(len(lines)):
        hosts, slower = worst
        for host in hosts:
            others = tuple(other for other in hosts if other != host)
            lines[host] = msgspec.structs.replace(lines[host], slower=slower, together=others)
        repeats = _Repeats([repeat for repeat in repeats.every if hosts[0] not in repeat.hosts])
    return tuple(sorted(lines.values(), key=lambda line: (-(line.slower or 0), not line.problems, -(line.ratio or 0))))


def _line(host: str, runs: Sequence[SeenRun], repeats: _Repeats) -> HostLine:
    """What is known of the node ``host`` by ``runs``, all that it had, at least one.

    Whether it is slow is not said here.
    """
    known = [repeat.time.seconds for repeat in repeats.on_host.get(host, ())]
    by_run = [_problems(host, run) for run in runs]
    problems = [texts for texts in by_run if texts]
    return HostLine(
        host=host,
        runs=tuple(run.run_id for run in runs[:MOST_NAMED]),
        count=len(runs),
        gpus=runs[-1].gpus,
        ratio=statistics.median(known) if known else None,
        problems=len(problems),
        findings=tuple(dict.fromkeys(chain.from_iterable(problems)))[:MOST_NAMED],
    )


def _problems(host: str, run: SeenRun) -> list[str]:
    """The problems of ``run`` that name the node ``host``, or none of the run's nodes."""
    named = [(text, {word.strip(".") for word in re.findall(r"[\w.-]+", text)}) for text in run.problems]
    return [text for text, words in named if host in words or words.isdisjoint(run.hosts)]


def _repeats(seen: Sequence[SeenRun]) -> list[_Repeat]:
    """The runs that have repeats among ``seen``, each with its step time as a share of their mean."""
    groups: dict[str, list[tuple[frozenset[str], StepTime]]] = {}
    for run in seen:
        if time := run.steady:
            key = run.run.configuration + run.run.image
            groups.setdefault(key, []).append((frozenset(run.hosts), time))
    found = []
    for key, runs in groups.items():
        mean = statistics.fmean(time.seconds for _, time in runs)
        if len(runs) > 1 and mean:
            for hosts, time in runs:
                relative = replace(time, seconds=time.seconds / mean, error=time.error / mean)
                found.append(_Repeat(key, hosts, relative))
    return found


class _Repeats:
    """Repeated runs of the same configurations, to find the node on which they are slower than on the others.

    Only a node's own repeats are looked at, with those of the same configurations elsewhere, and only of configurations
    that ran both with and without it.
    """

    def __init__(self, every: Sequence[_Repeat]) -> None:
        self.every = every
        self.on_host: dict[str, list[_Repeat]] = {}
        groups: dict[str, list[_Repeat]] = {}
        for repeat in every:
            groups.setdefault(repeat.group, []).append(repeat)
            for host in repeat.hosts:
                self.on_host.setdefault(host, []).append(repeat)
        self._totals = {group: _total(repeats) for group, repeats in groups.items()}

    def slowest(self, looked_at: int) -> tuple[tuple[str, ...], float] | None:
        """The nodes that are surely slow, and by which fraction (0.1: a tenth slower); None where no node stands
        out.

        The nodes are one node with all those that were in exactly the same repeats, between which nothing can tell.
        ``looked_at``: how many nodes are tested in all; the more, the surer it has to be, as each may be slow by
        chance.
        """
        sure = {host: self._sureness(host) for host in self.on_host}
        worst = max(sure, key=lambda host: sure[host], default="")
        if not sure:
            return None
        # Each node that is looked at is another chance of a slow one by accident (Bonferroni).
        needed = NormalDist().inv_cdf(1 - _ALARM / looked_at) / NormalDist().inv_cdf(1 - ERROR_RATE)
        if sure[worst] <= needed:
            return None
        where = self.on_host[worst]
        hosts = tuple(sorted(host for host, repeats in self.on_host.items() if repeats == where))
        return hosts, self._ratio(worst) - 1

    def _ratio(self, host: str) -> float:
        """The mean step time of the repeats with the node over that of those without it.

        Only of configurations that have both. 0 where no configuration has both; 1.1 is a tenth slower with it.
        """
        inside = self._inside(host)
        if not inside:
            return 0.0
        mine = _total(inside)
        groups = {repeat.group for repeat in inside}
        runs = sum(self._totals[group].runs for group in groups) - mine.runs
        seconds = math.fsum(self._totals[group].seconds for group in groups) - mine.seconds
        return (mine.seconds / mine.runs) / (seconds / runs)

    def _inside(self, host: str) -> list[_Repeat]:
        """The repeats on the node ``host`` whose configuration also ran without it."""
        counts = Counter(repeat.group for repeat in self.on_host[host])
        both = {group for group, count in counts.items() if count < self._totals[group].runs}
        return [repeat for repeat in self.on_host[host] if repeat.group in both]

    def _sureness(self, host: str) -> float:
        """How sure it is that the node is slow: how far beyond 1 its ratio is, in half widths of the interval.

        0 where the node is not slower, or by too little to matter.
        """
        if self._ratio(host) < _WORTH:
            return 0.0
        with_it = self._inside(host)
        groups = {repeat.group for repeat in with_it}
        inside = [repeat.time for repeat in with_it]
        outside = [repeat.time for repeat in self.every if repeat.group in groups and host not in repeat.hosts]
        if {item.day for item in inside} <= {item.day for item in outside}:
            # What a day does, it does to runs with and without the node.
            inside = [replace(item, day="") for item in inside]
            outside = [replace(item, day="") for item in outside]
        # Ranks have an interval of one width only, which many nodes cannot make stricter.
        change = compare_times(outside, inside, ranks=False)
        return math.log(change.ratio) / math.log(change.high / change.ratio)


def _total(repeats: Sequence[_Repeat]) -> _Total:
    """Number and summed step times of repeats."""
    return _Total(len(repeats), math.fsum(repeat.time.seconds for repeat in repeats))
