"""All nodes together far slower than any group of them: which half it is in, or which way between two parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise

import msgspec

from llmb_common.nodes.fabric.blame import spans
from llmb_common.nodes.fabric.expectation import Expectation
from llmb_common.nodes.fabric.grouping import by_domain, group_size
from llmb_common.nodes.fabric.measurement import FabricMeasurement
from llmb_common.nodes.fabric.verdict import FabricFinding, Level, new_finding
from llmb_common.nodes.fabric.words import figure, nodes_text

STEP = 1 / 3
"""Of what the slowest group gives: below it all nodes together are asked in halves; and of what a part gives: below it
its like is the slower one. Twice as many nodes give half as much where latency counts, and that is no fault."""
BY_DESIGN = 0.1
"""Of what each of two parts gives: uplinks that are fewer by design leave more than that to both. On CPUs only this is
a step, as nodes that share cores are far slower together."""
_NEAR = 1 / 8
"""Of some nodes: so near to their middle, the border of a switch halves them."""


class Crossing(msgspec.Struct, frozen=True):
    """Two disjoint parts of the fleet, as hosts, that are each fast by themselves, and slow when measured together.

    ``_Search`` makes it. A part may be a single node, which counts as fast by itself. The property ``nodes`` is a
    tuple of the hosts of both, first those of ``one``, then those of ``other``.
    """

    one: tuple[str, ...]
    other: tuple[str, ...]
    is_sure: bool
    """Whether others that are as large and lie as far apart are much faster: size and uplinks do not explain it."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The hosts of both parts, first those of ``one``, then those of ``other``, as they are measured together."""
        return (*self.one, *self.other)


def next_halves(measured: FabricMeasurement, topology: Mapping[str, str], expected: Expectation) -> list[list[str]]:
    """Return lists of hosts to measure next, each as one group, to find where the fleet is slow together.

    ``measured`` has all figures so far. The lists are disjoint. They are halves of the fleet, where all nodes
    together give at most a third (on CPUs, as ``expected`` tells, a tenth) of the slowest group; then halves of the
    slow half; and where both halves are fast, halves of one with halves of the other. Empty: nothing is left to
    ask, all nodes were not measured together or are not slow, or a node is missing. Nothing is measured here.
    ``topology`` has the switch of each host; those that it lacks count as on one.
    """
    return _search(measured, topology, expected).wanted


def halving_findings(
    measured: FabricMeasurement, topology: Mapping[str, str], expected: Expectation
) -> list[FabricFinding]:
    """Return the findings on where in the fleet nodes are slow together only, from measurements of its halves.

    They are slow paths, then one finding for all parts that are slow with each other while nothing like them is fast,
    then parts for which there was no time; or else one note that nothing stands out, if halves were measured. Empty
    where all nodes together are not far slower than the groups, or were not measured; also where a node was lost
    meanwhile. ``topology`` has the switch of each host; ``expected`` only tells whether it ran on CPUs, where far
    slower is a tenth, else a third.
    """
    search = _search(measured, topology, expected)
    findings = [_slow_path(crossing, search) for crossing in search.found if crossing.is_sure]
    alike = [crossing for crossing in search.found if not crossing.is_sure]
    if alike:
        findings.append(_alike(alike, search))
    findings += [_unfinished(part, search) for part in search.unfinished]
    if measured.halves and not findings and not search.lost:
        findings.append(_smooth(search))
    return findings


def _search(measured: FabricMeasurement, topology: Mapping[str, str], expected: Expectation) -> _Search:
    """Return the search for the slow part of the fleet, carried on as far as the figures in ``measured`` lead.

    ``topology`` has the switch of each host, ``expected`` is what the site expects. Nothing is measured here: parts
    without a figure end up in its ``wanted``.
    """
    search = _Search(measured, topology, expected)
    search.run()
    return search


class _Search:
    """The search, by halves, for the parts of a fleet that are slow when they reduce together.

    It is made from a measurement, the switch of each host and the site's expectation, and measures nothing. After
    ``run``, which returns None and is called once, ``found`` has the slow pairs of parts (``Crossing``), ``wanted``
    the parts (lists of hosts) to measure before it can go on, and ``unfinished`` the slow parts (tuples of hosts)
    that these would split up; all are lists, and empty where there is nothing to search for, or no part stands out.
    ``of`` returns the bus bandwidth of a part in 10^9 bytes/s (0: without a figure; infinity: a single node;
    KeyError: it was not measured), ``slowest`` is that of the slowest group (0: none gave a figure), ``whole`` is a
    tuple of the hosts that were measured all together (empty: they were not), and ``lost`` is True where one of
    them went missing, which ends the search.
    """

    def __init__(self, measured: FabricMeasurement, topology: Mapping[str, str], expected: Expectation) -> None:
        self._topology = topology
        self._step = BY_DESIGN if expected.by_ratio else STEP
        self._figures: dict[frozenset[str], float] = {}
        best: dict[frozenset[str], float] = {}
        for group in chain.from_iterable(measured.rounds):
            if group.busbw_gbps is not None:
                nodes = frozenset(group.nodes)
                # A group that was slow once and fast again is as fast as its best figure.
                best[nodes] = max(best.get(nodes, 0.0), group.busbw_gbps)
        self.slowest = min(best.values(), default=0.0)
        """The bus bandwidth in 10^9 bytes/s of the slowest group; 0 where none gave a figure."""
        self.whole = measured.whole.nodes if measured.whole else ()
        """The hosts that were measured all together; empty: they were not."""
        self.lost = not measured.missing.keys().isdisjoint(self.whole)
        """Whether one of them was lost later, so that parts with it cannot be measured any more."""
        for group in (*chain.from_iterable(measured.halves), *([measured.whole] if measured.whole else [])):
            # A part without a figure counts as slow, and is searched like one.
            self._figures[frozenset(group.nodes)] = group.busbw_gbps or 0.0
        self.wanted: list[list[str]] = []
        """Parts to measure next, without which the search cannot go on."""
        self.unfinished: list[tuple[str, ...]] = []
        """Slow parts that the ``wanted`` ones would split up."""
        self.found: list[Crossing] = []
        """Pairs of parts that are slow together only."""

    def run(self) -> None:
        """Search for the parts of the fleet that are slow together, once for each instance.

        Fills ``wanted``, ``unfinished`` and ``found``. All stay empty where all nodes together are not far slower than
        the slowest group, a node is missing, or the fleet is no larger than a group.
        """
        if len(self.whole) <= group_size(len(self.whole)) or self.lost:
            return
        if self._is_step(self.of(self.whole), self.slowest):
            self._inside(self._in_order(self.whole), is_sure=False)

    def of(self, nodes: Sequence[str]) -> float:
        """Return the bus bandwidth that the part ``nodes`` gave when measured together, in 10^9 bytes/s.

        0 where it was measured without a figure, infinity for a single node. The order of nodes does not matter. The
        part must have been measured, else there is a KeyError.
        """
        return self._figures[frozenset(nodes)] if len(nodes) > 1 else float("inf")

    def _inside(self, nodes: Sequence[str], *, is_sure: bool) -> None:
        """Search for the slow part within ``nodes``, at least two that are slow together: compare their two halves.

        Appends what is found to ``found``, and to ``unfinished`` each part whose halves were not measured; these go
        into ``wanted``. ``is_sure``: whether others that are alike were much faster, so that size and uplinks do
        not explain it.
        """
        one, other = self._halved(nodes)
        if len(nodes) == 2:
            self._found(one, other, is_sure=is_sure)
            return
        if not self._know([one, other]):
            self.unfinished.append(tuple(nodes))
            return
        # A half is fast if the whole gives far less than it does.
        slow = [half for half in (one, other) if not self._is_step(self.of(nodes), self.of(half))]
        if not slow:
            self._across(one, other, is_sure=is_sure)
            return
        if len(slow) == 1:
            fast = other if slow[0] is one else one
            # Without switches, the slow half may be the only one that crosses them.
            is_known = bool(self._topology) and self._is_like(fast, slow[0])
            is_step = self._is_step(self.of(slow[0]), self.of(fast))
            is_sure = is_sure or (is_known and is_step)
        for half in slow:
            if self._is_step(self.of(half), self.slowest):
                self._inside(half, is_sure=is_sure)

    def _across(self, one: Sequence[str], other: Sequence[str], *, is_sure: bool) -> None:
        """Search between two parts, each fast by itself, for those halves of both that are slow with each other.

        ``one`` and ``other`` are hosts, at least one each. Appends what is found to ``found``: two single nodes, or
        the parts whose halves do not differ; and to ``unfinished`` the hosts of both, if pairs of halves were not
        measured, which go into ``wanted``. ``is_sure``: whether others that are alike were much faster, so that
        size and uplinks do not explain it.
        """
        if len(one) == len(other) == 1:
            self._found(one, other, is_sure=is_sure)
            return
        (first, second), (third, fourth) = self._halved(one), self._halved(other)
        asked: list[tuple[Sequence[str], Sequence[str]]] = []
        # The pairs of one round are disjoint, so that they are measured at once; the crossed ones follow.
        for pairs in ([(first, third), (second, fourth)], [(first, fourth), (second, third)]):
            real = [(left, right) for left, right in pairs if left and right]
            if not self._know([_both(pair) for pair in real]):
                self.unfinished.append((*one, *other))
                return
            asked += real
            figures = sorted(self.of(_both(pair)) for pair in asked)
            if len(figures) > 1 and self._is_step(figures[0], figures[1]):
                slow = min(asked, key=lambda pair: self.of(_both(pair)))
                # The slow pair is sure only if it crosses no switch that the fast ones do not cross.
                is_new = all(self._is_like(_both(pair), _both(slow)) for pair in asked)
                self._across(*slow, is_sure=is_sure or is_new)
                return
        self._found(one, other, is_sure=is_sure)

    def _found(self, one: Sequence[str], other: Sequence[str], *, is_sure: bool) -> None:
        """Append two parts of the fleet that are slow together to ``found``, as a ``Crossing``.

        ``one`` and ``other`` are their hosts, ``is_sure`` its field.
        """
        self.found.append(Crossing(tuple(one), tuple(other), is_sure))

    def _know(self, parts: Sequence[Sequence[str]]) -> bool:
        """Return whether each of ``parts``, lists of hosts, has been measured; a single node needs no measurement.

        All that have not are appended to ``wanted``, the parts to measure next.
        """
        unknown = [list(part) for part in parts if len(part) > 1 and frozenset(part) not in self._figures]
        self.wanted += unknown
        return not unknown

    def _is_step(self, low: float, high: float) -> bool:
        """Return whether the bandwidth ``low`` is so far below ``high`` that the number of nodes hardly explains it.

        That is a third of it or less, on CPUs a tenth. False where ``high`` is 0.
        """
        return high > 0 and low <= self._step * high

    def _is_like(self, fast: Sequence[str], slow: Sequence[str]) -> bool:
        """Return whether the figure of the nodes ``fast`` can be held against that of ``slow``.

        It cannot where only the slow ones span switches: crossing may be what costs. Without a topology it always can.
        """
        return spans(fast, self._topology) or not spans(slow, self._topology)

    def _in_order(self, nodes: Sequence[str]) -> list[str]:
        """Return the nodes switch by switch, so that halves keep a switch together.

        Each comes once, in natural order within its switch.
        """
        return list(chain.from_iterable(by_domain(nodes, self._topology).values()))

    def _halved(self, nodes: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return (first half, second half) of ``nodes`` in their order; the second is empty for a single node.

        They are cut between two switches, if that is within an eighth of all nodes from the middle, else in the middle,
        where the first half has the odd node.
        """
        middle = (len(nodes) + 1) // 2
        switches = [self._topology.get(host, "") for host in nodes]
        borders = [at for at, (left, right) in enumerate(pairwise(switches), 1) if left != right]
        nearest = min(borders, key=lambda at: abs(at - middle), default=middle)
        at = nearest if abs(nearest - middle) <= _NEAR * len(nodes) else middle
        return list(nodes[:at]), list(nodes[at:])


def _both(pair: tuple[Sequence[str], Sequence[str]]) -> list[str]:
    """Return the hosts of both parts of ``pair``, those of its first part first."""
    left, right = pair
    return [*left, *right]


def _slow_path(crossing: Crossing, search: _Search) -> FabricFinding:
    """Return the warning that the path between two parts of the fleet is slow, where other paths like it are fast.

    ``search`` has the figures of the parts of ``crossing``. The warning is about the nodes, in its ``hosts``, only
    where both parts together are no larger than a group; its text names them always. Its kind is ``slow-path``.
    """
    what = f"{_witnesses(crossing, search)}: the path between them"
    return new_finding("slow-path", "warn", _few(crossing, search), what)


def _alike(crossings: Sequence[Crossing], search: _Search) -> FabricFinding:
    """Return one finding for all parts of the fleet that are slow together, where nothing like them is fast.

    ``search`` has the figures of their parts. The finding is a note, as uplinks that are fewer by design explain it; a
    warning of a slow path where both together give less than a tenth of what either gives by itself and of the slowest
    group. The text quotes the slowest of ``crossings``, which must not be empty, and counts the others. Only a warning
    about a single crossing that is no larger than a group has ``hosts``. The kind is ``halves`` for the note,
    ``slow-path`` for the warning.
    """
    lowest = min(crossings, key=lambda crossing: search.of(crossing.nodes))
    witnesses = _witnesses(lowest, search)
    if len(crossings) > 1:
        witnesses += f", and {len(crossings) - 1} more parts of the fleet likewise"
    parts = min(search.of(lowest.one), search.of(lowest.other), search.slowest)
    if search.of(lowest.nodes) < BY_DESIGN * parts:
        hosts = _few(lowest, search) if len(crossings) == 1 else ()
        return new_finding("slow-path", "warn", hosts, f"{witnesses}: the path between them")
    return new_finding("halves", "note", (), f"{witnesses}: uplinks that are fewer than the nodes explain as much")


def _few(crossing: Crossing, search: _Search) -> tuple[str, ...]:
    """Return the hosts of both parts for a finding to name; empty where together they are more than a group has.

    ``search`` tells how large the fleet is, and so a group.
    """
    return crossing.nodes if len(crossing.nodes) <= group_size(len(search.whole)) else ()


def _unfinished(part: Sequence[str], search: _Search) -> FabricFinding:
    """Return the finding that the nodes in ``part`` are slow together, and that no time was left to ask which.

    ``search`` has the figures; ``part`` must have been measured. The finding warns below a tenth of what the slowest
    group gave, else it is a note. Its ``hosts`` are empty, so that no node is marked. Its kind is ``unfinished``.
    """
    level: Level = "warn" if search.of(part) < BY_DESIGN * search.slowest else "note"
    what = f"all-reduce within {nodes_text(part)} {_gave(part, search)}, in groups at least"
    what = f"{what} {figure(search.slowest, 'GB/s')}; its halves were not measured in time"
    # All of them are slow together: that is no mark on each.
    return msgspec.structs.replace(new_finding("unfinished", level, part, what), hosts=())


def _smooth(search: _Search) -> FabricFinding:
    """Return the note that all nodes together are slow, but no part of the fleet is slower than its like.

    All nodes must have been measured together, which is not checked. Its kind is ``halves``, and its ``hosts`` are
    empty.
    """
    together = f"all {len(search.whole)} nodes together gave {_gave(search.whole, search)}"
    what = f"{together}, and no part of them is slower than its like: it falls with the number of nodes"
    return new_finding("halves", "note", (), what)


def _witnesses(crossing: Crossing, search: _Search) -> str:
    """Return the bandwidths of two parts by themselves and together, as the beginning of a finding's sentence.

    Such as ``all-reduce within n[1-4] 300 GB/s, within n[5-8] 310 GB/s, across both 20 GB/s``, without punctuation
    at its end. A single node has no bandwidth by itself, which is left out (``..., with n5 20 GB/s``); of two
    single nodes there is that of both together, and the slowest group's to hold it against:
    ``all-reduce between n1 and n2 20 GB/s, in groups at least 300 GB/s``. ``search`` has the figures of the parts
    of ``crossing``.
    """
    both = _gave(crossing.nodes, search)
    sides = [part for part in (crossing.one, crossing.other) if len(part) > 1]
    if not sides:
        named = f"{nodes_text(crossing.one)} and {nodes_text(crossing.other)}"
        return f"all-reduce between {named} {both}, in groups at least {figure(search.slowest, 'GB/s')}"
    within = ", ".join(f"within {nodes_text(part)} {_gave(part, search)}" for part in sides)
    alone = [part for part in (crossing.one, crossing.other) if len(part) == 1]
    across = f"with {nodes_text(alone[0])}" if alone else "across both"
    return f"all-reduce {within}, {across} {both}"


def _gave(nodes: Sequence[str], search: _Search) -> str:
    """Return the bus bandwidth of some nodes together as text, ``300 GB/s``, or ``no figure``.

    They must have been measured together. ``search`` has the figures.
    """
    value = search.of(nodes)
    return figure(value, "GB/s") if value else "no figure"
