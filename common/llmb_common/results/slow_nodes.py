"""Which node slows down the runs that it takes part in, by repeats of the same configurations with it and without it.

``NodeRuns.slowest`` names the node that stands out among all of them. ``witnesses`` says what runs tell of a few nodes
that something else has named already: that they are slow there, too, that they are not, or nothing.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple

import msgspec

from llmb_common.results.comparison import Change, compare_times
from llmb_common.results.level import ERROR_RATE
from llmb_common.results.steps import StepTime

_WORTH = 1.02
"""A smaller ratio of step times is nobody's slow node."""

_CLEAR = 1.05
"""Where runs surely differ by less than this ratio, the node costs them nothing that an acceptance would notice."""

_ALARM = 0.01
"""How often, about, some healthy node is called slow."""

_ENDLESS = 10**9
"""Steps of a run of which it is known that none stalls."""


def without_stalls(time: StepTime) -> StepTime:
    """Return a copy of the step time without stalls, as a slow node slows down each step.

    Its number of steps is one so large that the run is known to have no stalls; all else stays.
    """
    return msgspec.structs.replace(time, stalls=(), steps=_ENDLESS)


class NodeRun(NamedTuple):
    """One of several repeats of a configuration, with its nodes, for the search for slow nodes.

    ``group`` is the configuration, as the caller of ``node_runs`` names it, and ``hosts`` are host names. ``time``
    is the steady step time, without stalls, whose ``seconds`` and ``error`` are shares of the mean of the repeats
    (1.02: 2 % slower than these). ``node_runs`` makes it.
    """

    group: str
    hosts: frozenset[str]
    time: StepTime


class Witness(NamedTuple):
    """What repeats say of a node (``says``): they are ``slower`` with it, ``not slower``, or ``nothing``.

    ``with_it`` and ``without`` count the runs with the node and those of the same configurations without it.
    ``share``: how much slower the former are in the mean (0.1: a tenth); for ``not slower``, how much they may be
    at the very most, which is 0.05 or less. ``together``: host names of other nodes in exactly the same slower
    runs, any of which may be the cause. For ``nothing`` all these are 0 or empty. ``witnesses`` makes it.
    """

    says: Literal["slower", "not slower", "nothing"]
    with_it: int = 0
    without: int = 0
    """Runs of the same configurations."""
    share: float = 0.0
    together: tuple[str, ...] = ()


class _Total(NamedTuple):
    """The number of some repeats (``runs``), and the sum of their step times (``seconds``).

    These times are shares of their configuration's mean. ``_total`` makes it.
    """

    runs: int
    seconds: float


def node_runs(runs: Iterable[tuple[str, Collection[str], StepTime]]) -> list[NodeRun]:
    """Return those of ``runs`` that have repeats, with relative step times; grouped by configuration.

    Each run is given as (any name of its configuration, its hosts, its step time). The configurations are in the
    order of their first runs, the runs of each in the order given, and a single run of one is left out. Empty: no
    configuration has two.
    """
    groups: dict[str, list[tuple[frozenset[str], StepTime]]] = {}
    for group, hosts, time in runs:
        groups.setdefault(group, []).append((frozenset(hosts), without_stalls(time)))
    found = []
    for group, repeats in groups.items():
        mean = statistics.fmean(time.seconds for _, time in repeats)
        if len(repeats) > 1 and mean:
            for hosts, time in repeats:
                relative = msgspec.structs.replace(time, seconds=time.seconds / mean, error=time.error / mean)
                found.append(NodeRun(group, hosts, relative))
    return found


def witnesses(nodes: Collection[str], runs: Sequence[NodeRun]) -> dict[str, Witness]:
    """Return what ``runs`` say of each of a few ``nodes`` that are suspected for another reason, by node.

    ``nodes`` are host names, at least one, and ``runs`` an answer of ``node_runs``. A node is not blamed for runs
    that a slower node explains. Each of ``nodes`` has an entry, in no order to rely on; one without runs says
    ``nothing``.
    """
    found: dict[str, Witness] = {}
    left = NodeRuns(runs)
    while worst := left.slowest(len(nodes)):
        hosts, slower = worst
        for node in hosts:
            if node in nodes:
                together = tuple(host for host in hosts if host != node)
                found.setdefault(node, Witness("slower", *left.counts(node), slower, together))
        left = left.without(hosts[0])
    for node in nodes:
        if node not in found:
            found[node] = _not_slow(node, left)
    return found


def _not_slow(node: str, runs: NodeRuns) -> Witness:
    """Return what ``runs`` say of a node that is not known to slow them down: ``not slower``, or ``nothing``.

    ``node`` is a host name. It is ``not slower`` where the upper bound of their ratio is at most ``_CLEAR``, and
    the lower one no more than 1.
    """
    change = runs.change(node)
    if change is None or change.low > 1 or change.high > _CLEAR:
        return Witness("nothing")
    return Witness("not slower", *runs.counts(node), max(change.high - 1, 0.0))


class NodeRuns:
    """Repeats of some configurations, to find the node with which they are slower than with others.

    It is made from an answer of ``node_runs``; the attribute ``every`` is that list, ``on_host`` has each host's
    repeats by its name. Of a node, only its own repeats and those of the same configurations elsewhere are
    compared, and only of configurations that ran both with and without it. ``slowest`` returns (host names that
    nothing tells apart, how much slower: 0.1 is a tenth) of the slowest node, None if none stands out; its
    ``looked_at`` is how many nodes are tested, at least one. ``counts`` returns (repeats with the node, repeats
    without it); ``change`` how their step times compare, above 1: slower with it, None where there is nothing to
    compare; ``without`` a copy that lacks all repeats of a node. A host that is in none of the repeats is no error.
    """

    def __init__(self, every: Sequence[NodeRun]) -> None:
        self.every = every
        self.on_host: dict[str, list[NodeRun]] = {}
        groups: dict[str, list[NodeRun]] = {}
        for repeat in every:
            groups.setdefault(repeat.group, []).append(repeat)
            for host in repeat.hosts:
                self.on_host.setdefault(host, []).append(repeat)
        self._totals = {group: _total(repeats) for group, repeats in groups.items()}

    def without(self, host: str) -> NodeRuns:
        """Return a copy of these repeats that lacks those in which the node ``host`` was.

        The other hosts of these lose them, too.
        """
        return NodeRuns([repeat for repeat in self.every if host not in repeat.hosts])

    def slowest(self, looked_at: int) -> tuple[tuple[str, ...], float] | None:
        """Return (nodes, how much slower runs with them are) for the node that is surely the slowest; 0.1 is a tenth.

        The nodes are that one and all others in exactly the same repeats, which nothing can tell apart, sorted by name.
        None where no node stands out: each is slower by less than 2 %, or perhaps by chance. ``looked_at`` is how many
        nodes are tested in all, at least one: the more, the surer it must be, as each may seem slow by chance.
        """
        sure = {host: self._sureness(host) for host in self.on_host}
        worst = max(sure, key=lambda host: sure[host], default="")
        if not sure:
            return None
        # Each node that is looked at is another chance of a slow one by accident (Bonferroni).
        wanted = NormalDist().inv_cdf(1 - _ALARM / looked_at)
        reported = NormalDist().inv_cdf(1 - ERROR_RATE)
        needed = wanted / reported
        if sure[worst] <= needed:
            return None
        where = self.on_host[worst]
        hosts = tuple(sorted(host for host, repeats in self.on_host.items() if repeats == where))
        return hosts, self._ratio(worst) - 1

    def counts(self, host: str) -> tuple[int, int]:
        """Return (repeats that the node was in, repeats of the same configurations without it).

        ``host`` is the node's host name. Only configurations that have both count, so a node that none of the
        repeats had gives (0, 0).
        """
        with_it = self._inside(host)
        return len(with_it), len(self._outside(host, with_it))

    def change(self, host: str) -> Change | None:
        """Return how the step time of repeats with the node compares with that of repeats without it; above 1: slower.

        ``host`` is the node's host name. None where no configuration has both.
        """
        with_it = self._inside(host)
        if not with_it:
            return None
        inside = [repeat.time for repeat in with_it]
        outside = [repeat.time for repeat in self._outside(host, with_it)]
        if {item.day for item in inside} <= {item.day for item in outside}:
            # What a day does, it does to runs with and without the node.
            inside = [msgspec.structs.replace(item, day="") for item in inside]
            outside = [msgspec.structs.replace(item, day="") for item in outside]
        # Ranks have an interval of one width only, which many nodes cannot make stricter.
        return compare_times(outside, inside, alike=True, ranks=False)

    def _ratio(self, host: str) -> float:
        """Return the mean step time of the repeats with the node over that of those without it: 1.1 is a tenth slower.

        ``host`` is the node's host name. Only configurations that have both count; 0 where there is none.
        """
        inside = self._inside(host)
        if not inside:
            return 0.0
        mine = _total(inside)
        groups = {repeat.group for repeat in inside}
        runs = sum(self._totals[group].runs for group in groups) - mine.runs
        seconds = math.fsum(self._totals[group].seconds for group in groups) - mine.seconds
        return (mine.seconds / mine.runs) / (seconds / runs)

    def _inside(self, host: str) -> list[NodeRun]:
        """Return the repeats on the node ``host``, of configurations that also ran without it, in the order given.

        Empty where there are none, or no such node.
        """
        on_it = self.on_host.get(host, [])
        counts = Counter(repeat.group for repeat in on_it)
        both = {group for group, count in counts.items() if count < self._totals[group].runs}
        return [repeat for repeat in on_it if repeat.group in both]

    def _outside(self, host: str, with_it: Sequence[NodeRun]) -> list[NodeRun]:
        """Return the repeats that ran without the node ``host``, of the configurations of ``with_it``.

        They are in the order given. ``with_it`` are repeats of the same ``NodeRuns``; without any it is empty.
        """
        groups = {repeat.group for repeat in with_it}
        return [repeat for repeat in self.every if repeat.group in groups and host not in repeat.hosts]

    def _sureness(self, host: str) -> float:
        """Return how sure it is that the node is slow: its ratio's distance from 1 in half intervals (1: barely).

        ``host`` is the node's host name. 0 where the node is not slower, or by too little to matter.
        """
        if self._ratio(host) < _WORTH:
            return 0.0
        change = self.change(host)
        assert change is not None  # else there is no ratio either
        return math.log(change.ratio) / math.log(change.high / change.ratio)


def _total(repeats: Sequence[NodeRun]) -> _Total:
    """Return the number of ``repeats`` and the sum of their step times."""
    return _Total(len(repeats), math.fsum(repeat.time.seconds for repeat in repeats))
