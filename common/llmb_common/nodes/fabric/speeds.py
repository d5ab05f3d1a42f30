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
    """Groups that can be compared: of one size, and with or without a switch between their nodes."""

    size: int
    spans: bool


def group_speeds(
    measured: FabricMeasurement, topology: Mapping[str, str], expected: Expectation
) -> tuple[list[GroupSpeed], list[Measure]]:
    """(the speed of every group of every round, what is usual in the first round).

    A group is held against those of its size that cross switches as it does; of the latter the commonest kind is first.
    """
    reference = _References(measured, topology, expected)
    found: list[GroupSpeed] = []
    for number, groups in enumerate(measured.rounds):
        for group in groups:
            kind = _kind(group, topology)
            found.append(_speed(group, number, reference.usual_of(kind), reference.remeasure_limit(kind)))
    return found, reference.measures()


def _kind(group: GroupMeasurement, topology: Mapping[str, str]) -> _Kind:
    """What a group is compared by: its size, and whether it crosses switches."""
    return _Kind(len(group.nodes), spans(group.nodes, topology))


def _speed(group: GroupMeasurement, number: int, own: Usual | None, asked_from: float | None) -> GroupSpeed:
    """How fast a group of round ``number`` was against ``own``, what is usual of its kind (None: not known).

    In the first round it is slow below ``asked_from``. Without a figure it is slow always.
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
    """The nodes of the ranks that hung, where those of others did not; empty where all did: it may be any of them."""
    hung = group.hung_nodes
    return tuple(host for host in group.nodes if host in hung) if len(hung) < len(group.nodes) else ()


class _References:
    """What is usual of each kind of group in a measurement."""

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
        for kind in self._later:
            if self._usual.get(kind) is None:
                self._usual[kind] = self._usual_in_later_rounds(kind)

    def _by_kind(self, rounds: Sequence[Sequence[GroupMeasurement]]) -> dict[_Kind, list[GroupMeasurement]]:
        """The groups that gave a figure, by kind."""
        found: dict[_Kind, list[GroupMeasurement]] = {}
        for groups in rounds:
            for group in groups:
                if group.busbw_gbps is not None:
                    found.setdefault(_kind(group, self._topology), []).append(group)
        return found

    def usual_of(self, kind: _Kind) -> Usual | None:
        """What is usual of a kind of group, bus bandwidth in 10^9 bytes/s; None where too few groups say it."""
        return self._usual.get(kind)

    def remeasure_limit(self, kind: _Kind) -> float | None:
        """The bandwidth below which nodes of a group of the first round are asked again; None: no such limit."""
        return self._asked_from.get(kind)

    def measures(self) -> list[Measure]:
        """A measure for each kind of group in the first round, the commonest first."""
        ordered = sorted(self._first.items(), key=lambda item: -len(item[1]))
        return [
            measure(
                "groups", _figures(groups), self.usual_of(kind), self._expected.least("groups", kind.size), kind.size
            )
            for kind, groups in ordered
        ]

    def _remeasure_limit(self, kind: _Kind, groups: Sequence[GroupMeasurement]) -> float | None:
        """The bandwidth below which groups of a kind are measured again; None where all or none are."""
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
        """What is usual of a kind by these groups, of the first round and ``later`` ones; None: they are too few.

        Not ``sure``: a spread that is small by chance does no harm.
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
        """``own``, with what the site expects as its limit where that is stricter, and most groups give it."""
        least = self._expected.least("groups", kind.size)
        if own is None or least is None or not own.limit < least < own.median:
            return own
        return msgspec.structs.replace(own, limit=least)

    def _fast_groups(self, kind: _Kind) -> list[GroupMeasurement]:
        """The groups of a kind in the first round whose nodes need not be asked again; empty without such a limit."""
        limit = self._asked_from[kind]
        return [] if limit is None else [group for group in self._first[kind] if (group.busbw_gbps or 0.0) >= limit]

    def _usual_in_first_round(self, kind: _Kind, groups: Sequence[GroupMeasurement]) -> Usual | None:
        """What is usual of a kind that the first round has; None where groups are too few.

        Groups of later rounds count where all their nodes were fast at first: they show better how much healthy ones
        differ.
        """
        if self._few_nodes:
            values = _figures([*groups, *self._later.get(kind, ())])
            return self._as_expected(kind, _usual_of_few(self._few_nodes, values, self._expected.ratio("groups")))
        return self._usual_of(kind, groups, self._clean.get(kind, ()))

    def _usual_in_later_rounds(self, kind: _Kind) -> Usual | None:
        """What is usual of a kind of group that only later rounds have; None where they are too few.

        They cross switches, as suspects found no partners at home. It is what those give whose nodes were all fast at
        first; without any, what the faster half gives. Their spread is that of the first round.
        """
        values = sorted(_figures(self._later[kind]), reverse=True)
        known = [own for own in self._usual.values() if own is not None]
        if len(values) < RATIO_FROM or not known:
            return None
        median = statistics.median(_figures(self._clean[kind]) or values[: (len(values) + 1) // 2])
        widest = max(known, key=lambda own: own.count)
        limit = widest.limit / widest.median * median
        deviation = None if widest.deviation is None else widest.deviation / widest.median * median
        return Usual(median, limit, len(values), deviation)


def _figures(groups: Sequence[GroupMeasurement]) -> list[float]:
    """The bus bandwidths of the groups that have one, in 10^9 bytes/s."""
    return [group.busbw_gbps for group in groups if group.busbw_gbps is not None]


def _usual_of_few(nodes: int, values: Sequence[float], ratio: float) -> Usual | None:
    """What is usual of pairs of so few nodes that each is measured with each; None: fewer than three figures.

    It is what those give that one slow node is not in. Below ``ratio`` of it a pair is slow.
    """
    without_one = (nodes - 1) * (nodes - 2) // 2
    if len(values) < RATIO_FROM:
        return None
    median = statistics.median(sorted(values, reverse=True)[:without_one])
    return Usual(median, ratio * median, len(values))
