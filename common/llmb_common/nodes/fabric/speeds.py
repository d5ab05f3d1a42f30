"""Groups of nodes held against groups of their size."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from llmb_common.nodes.fabric.alone import measure
from llmb_common.nodes.fabric.blame import spans
from llmb_common.nodes.fabric.expectation import Expectation
from llmb_common.nodes.fabric.grouping import SMALL
from llmb_common.nodes.fabric.measurement import FabricMeasurement, GroupMeasurement
from llmb_common.nodes.fabric.spread import DEVIATIONS, RATIO_FROM, SPREAD_FROM, Usual, usual
from llmb_common.nodes.fabric.verdict import GroupSpeed, Measure

ASKED_FROM = 0.75
SLOW_AGAIN = 0.6
"""Of the way to the limit of ``DEVIATIONS``: from where on nodes of a group are asked again, which costs seconds; and
from where on they are slow again, then, with each partner. Healthy ones seldom are in all of three figures."""


class _Kind(NamedTuple):
    """What groups must have in common to be compared: their number of nodes, and whether they span switches.

    ``_kind`` makes it. They do where their nodes are on more than one, as far as that is known: hosts of which it is
    not known count as on one switch.
    """

    size: int
    """Number of nodes."""
    spans: bool


def group_speeds(
    measured: FabricMeasurement, topology: Mapping[str, str], expected: Expectation
) -> tuple[list[GroupSpeed], list[Measure]]:
    """Return (speed of every group of every round, a summary of each kind of group in the first round).

    Speeds are in the order of rounds. A group is compared with groups of as many nodes that span switches if it does;
    the summaries begin with the commonest kind, and count groups with a figure only. ``topology`` has the switch of
    each host. What is ``expected`` raises the limit below which a group is slow, where it lies between limit and
    median. Both are empty where no group was measured.
    """
    reference = _References(measured, topology, expected)
    found: list[GroupSpeed] = []
    for number, groups in enumerate(measured.rounds):
        for group in groups:
            kind = _kind(group, topology)
            found.append(_speed(group, number, reference.usual_of(kind), reference.remeasure_limit(kind)))
    return found, reference.measures()


def _kind(group: GroupMeasurement, topology: Mapping[str, str]) -> _Kind:
    """Return the kind of a group, by which it is compared: its number of nodes, and whether they span switches.

    ``topology`` has the switch of each host.
    """
    return _Kind(len(group.nodes), spans(group.nodes, topology))


def _speed(group: GroupMeasurement, number: int, own: Usual | None, asked_from: float | None) -> GroupSpeed:
    """Return how fast a group was in round ``number`` (0: the first), compared with ``own``, the usual of its kind.

    In the first round it is slow below ``asked_from``, in 10^9 bytes/s; later, or with None, beyond six tenths of the
    way from the median down to the limit. A group without a figure is slow, whatever ``own`` is; one with a figure is
    not judged where ``own`` is None, and its ``slow`` is None.
    """
    value = group.busbw_gbps
    if value is None:
        # Whoever gives no figure is slow, whatever the others give.
        why = group.error or "no figure"
        return GroupSpeed(nodes=group.nodes, round=number, slow=True, why=why, hung=_hung_nodes(group))
    if own is None:
        return GroupSpeed(nodes=group.nodes, round=number, busbw_gbps=value)
    return GroupSpeed(
        nodes=group.nodes,
        round=number,
        busbw_gbps=value,
        share=value / own.median,
        deviations=own.deviations(value),
        excess=own.excess(value),
        slow=own.excess(value) > SLOW_AGAIN if number or asked_from is None else value < asked_from,
    )


def _hung_nodes(group: GroupMeasurement) -> tuple[str, ...]:
    """Return the nodes of a group whose ranks hung, in the group's order; empty: none hung, or all nodes did.

    Where all hung it may be any of them.
    """
    hung = group.hung_nodes
    if len(hung) >= len(group.nodes):
        return ()
    return tuple(host for host in group.nodes if host in hung)


class _References:
    """What is usual of each kind of group in a measurement: the bus bandwidths that each group is compared with.

    It is made from a measurement, the switch of each host and the site's expectation. ``usual_of`` returns what is
    usual of a kind (``Usual``), for every round (None: too few groups to say, or the kind was not measured), with
    the site's expectation as the limit where that is stricter; ``remeasure_limit`` the bus bandwidth in 10^9
    bytes/s below which a group of the first round is slow (None: there is no such limit); ``measures`` a list of
    summaries (``Measure``) of the kinds in the first round, the commonest first (empty: no group gave a figure).
    """

    def __init__(self, measured: FabricMeasurement, topology: Mapping[str, str], expected: Expectation) -> None:
        self._expected = expected
        self._topology = topology
        groups = chain.from_iterable(measured.rounds)
        hosts = set(chain.from_iterable(group.nodes for group in groups))
        self._few_nodes = len(hosts) if len(hosts) <= SMALL else 0
        self._first = self._by_kind(measured.rounds[:1])
        self._later = self._by_kind(measured.rounds[1:])
        self._asked_from = {kind: self._remeasure_limit(kind, groups) for kind, groups in self._first.items()}
        fast_groups = chain.from_iterable(self._fast_groups(kind) for kind in self._first)
        fast = set(chain.from_iterable(group.nodes for group in fast_groups))
        self._clean = {
            kind: [group for group in groups if fast.issuperset(group.nodes)] for kind, groups in self._later.items()
        }
        self._usual = {kind: self._usual_in_first_round(kind, groups) for kind, groups in self._first.items()}
        # A kind with too few groups in the first round may have enough with later ones.
        for kind in self._later:
            if self._usual.get(kind) is None:
                self._usual[kind] = self._usual_in_later_rounds(kind)

    def _by_kind(self, rounds: Sequence[Sequence[GroupMeasurement]]) -> dict[_Kind, list[GroupMeasurement]]:
        """Return the groups of some rounds that gave a figure, by kind; empty: none gave any.

        ``rounds`` are lists of groups. Kinds and groups come in their order.
        """
        found: dict[_Kind, list[GroupMeasurement]] = {}
        for groups in rounds:
            for group in groups:
                if group.busbw_gbps is not None:
                    found.setdefault(_kind(group, self._topology), []).append(group)
        return found

    def usual_of(self, kind: _Kind) -> Usual | None:
        """Return what bus bandwidth is usual of a kind of group, in 10^9 bytes/s; None: too few to say.

        None, too, for a kind that was not measured.
        """
        return self._usual.get(kind)

    def remeasure_limit(self, kind: _Kind) -> float | None:
        """Return the bus bandwidth in 10^9 bytes/s below which a group of the first round counts as slow.

        Its nodes are then measured again. None: there is no such limit for this kind of group, as in fleets of up to
        five nodes, where there are too few such groups, or where the first round has none.
        """
        return self._asked_from.get(kind)

    def measures(self) -> list[Measure]:
        """Return a summary of the bandwidths of each kind of group in the first round, the commonest kind first.

        Groups without a figure do not count; a kind without any is left out. Empty where no group gave one.
        """
        ordered = sorted(self._first.items(), key=lambda item: -len(item[1]))
        return [
            measure(
                "groups", _figures(groups), self.usual_of(kind), self._expected.least("groups", kind.size), kind.size
            )
            for kind, groups in ordered
        ]

    def _remeasure_limit(self, kind: _Kind, groups: Sequence[GroupMeasurement]) -> float | None:
        """Return the bus bandwidth in 10^9 bytes/s below which groups of a kind are measured again.

        It is nearer to the median than the limit for slow ones, unless there are two kinds of nodes. None where that is
        not asked: in fleets of up to five nodes, in which every pair is measured, and where ``groups`` are too few to
        compare.
        """
        if self._few_nodes:
            return None
        own = self._usual_of(kind, groups, [], sure=False)
        if own is None:
            return None
        return own.limit if own.lower else own.median - ASKED_FROM * (own.median - own.limit)

    def _usual_of(
        self,
        kind: _Kind,
        groups: Sequence[GroupMeasurement],
        later: Sequence[GroupMeasurement],
        *,
        sure: bool = True,
    ) -> Usual | None:
        """Return what bus bandwidth is usual of a kind, by its groups of the first round and ``later`` ones.

        ``groups`` are those of ``kind`` in the first round, ``later`` those of later rounds that count. None: they are
        too few. Its limit is the site's expectation where that is stricter. ``sure``: whether a spread that is small by
        chance must be widened; it need not be where slow groups are only measured again.
        """
        own = usual(
            _figures([*groups, *later]),
            times=DEVIATIONS,
            ratio=self._expected.ratio("groups"),
            by_ratio=self._expected.by_ratio or len(groups) < SPREAD_FROM,
            sure=sure,
        )
        return self._as_expected(kind, own)

    def _as_expected(self, kind: _Kind, own: Usual | None) -> Usual | None:
        """Return ``own`` with the site's expectation as its limit, if that lies above its limit and below its median.

        Else ``own`` itself, also None: the limit is never lowered. ``own`` is what is usual of ``kind``.
        """
        least = self._expected.least("groups", kind.size)
        if own is None or least is None or not own.limit < least < own.median:
            return own
        return msgspec.structs.replace(own, limit=least)

    def _fast_groups(self, kind: _Kind) -> list[GroupMeasurement]:
        """Return the groups of a kind in the first round that are fast enough not to be measured again.

        At the limit is fast enough. The first round must have the kind, or there is a KeyError. Empty: none is, or
        this kind has no such limit.
        """
        limit = self._asked_from[kind]
        if limit is None:
            return []
        return [group for group in self._first[kind] if (group.busbw_gbps or 0.0) >= limit]

    def _usual_in_first_round(self, kind: _Kind, groups: Sequence[GroupMeasurement]) -> Usual | None:
        """Return what bus bandwidth is usual of a kind that the first round has; None: too few groups to say.

        ``groups`` are those of the kind in the first round. Groups of later rounds count, too, if all their nodes were
        fast at first: they show better how much healthy ones differ; with few nodes, all of them count. The limit is
        the site's expectation where that is stricter.
        """
        if self._few_nodes:
            values = _figures([*groups, *self._later.get(kind, ())])
            return self._as_expected(kind, _usual_of_few(self._few_nodes, values, self._expected.ratio("groups")))
        return self._usual_of(kind, groups, self._clean.get(kind, ()))

    def _usual_in_later_rounds(self, kind: _Kind) -> Usual | None:
        """Return what bus bandwidth is usual of a kind that only later rounds say; None: too few groups to say.

        The kinds of the first round must be known by then. Such groups span switches, as suspects found no partners on
        their own. It is the median of groups whose nodes were all fast at first; without any, that of the faster half.
        Their spread is taken from the first round.
        """
        values = sorted(_figures(self._later[kind]), reverse=True)
        known = [own for own in self._usual.values() if own is not None]
        if len(values) < RATIO_FROM or not known:
            return None
        faster_half = values[: (len(values) + 1) // 2]
        median = statistics.median(_figures(self._clean[kind]) or faster_half)
        # The kind with the most groups knows its spread best.
        widest = max(known, key=lambda own: own.count)
        limit = widest.limit / widest.median * median
        deviation = None if widest.deviation is None else widest.deviation / widest.median * median
        return Usual(median, limit, len(values), deviation)


def _figures(groups: Sequence[GroupMeasurement]) -> list[float]:
    """Return the bus bandwidths of those groups that gave one, in 10^9 bytes/s and the groups' order."""
    return [group.busbw_gbps for group in groups if group.busbw_gbps is not None]


def _usual_of_few(nodes: int, values: Sequence[float], ratio: float) -> Usual | None:
    """Return what is usual of the pairs of a small fleet, in which each node is measured with each other one.

    ``nodes`` is the number of nodes, at least three where there are three values or more. That is the median of as many
    of the fastest ``values`` as there are pairs without one slow node. Below the share ``ratio`` of it a pair is slow.
    None: there are fewer than three values. The spread is left unknown.
    """
    # The pairs among all nodes but one, which may be the slow one.
    without_one = (nodes - 1) * (nodes - 2) // 2
    if len(values) < RATIO_FROM:
        return None
    median = statistics.median(sorted(values, reverse=True)[:without_one])
    return Usual(median, ratio * median, len(values))
