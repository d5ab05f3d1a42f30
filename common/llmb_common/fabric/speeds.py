"""Groups of nodes held against groups of their size."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from llmb_common.fabric.alone import measure
from llmb_common.fabric.blame import spans
from llmb_common.fabric.expectation import Expectation
from llmb_common.fabric.grouping import SMALL
from llmb_common.fabric.measurement import FabricMeasurement, GroupMeasurement
from llmb_common.fabric.spread import RATIO_FROM, Usual, usual
from llmb_common.fabric.verdict import GroupSpeed, Measure

DEVIATIONS = 4.0
"""Robust deviations below the median from which a group is slow: its nodes are asked again before one is named. Chosen
by simulation (docs/fabric.md)."""


class _Kind(NamedTuple):
    """Groups that can be compared: of one size, and with or without a switch between their nodes."""

    size: int
    spans: bool


def group_speeds(
    measured: FabricMeasurement, topology: Mapping[str, str], expected: Expectation
) -> tuple[list[GroupSpeed], list[Measure]]:
    """Every group of every round by what is usual among its like, and what is usual, the commonest size first."""
    domains = dict(topology)
    reference = _References(measured, domains, expected)
    found: list[GroupSpeed] = []
    slow_at_first: set[str] = set()
    for number, groups in enumerate(measured.rounds):
        for group in groups:
            own = reference.of(_kind(group, domains))
            is_again = not slow_at_first.isdisjoint(group.nodes)
            found.append(_speed(group, number, own, is_again))
        if number == 0:
            slow_at_first = {host for speed in found if speed.slow for host in speed.nodes}
    return found, reference.measures()


def _kind(group: GroupMeasurement, domains: dict[str, str]) -> _Kind:
    return _Kind(len(group.nodes), spans(group.nodes, domains))


def _speed(group: GroupMeasurement, number: int, own: Usual | None, is_again: bool) -> GroupSpeed:
    value = group.busbw_gbps
    if value is None:
        # Whoever gives no figure is slow, whatever the others give.
        why = group.error or "it gave no figure"
        return GroupSpeed(nodes=group.nodes, round=number, slow=True, why=why, hung=_hung(group))
    if own is None:
        return GroupSpeed(nodes=group.nodes, round=number, busbw_gbps=value)
    return GroupSpeed(
        nodes=group.nodes,
        round=number,
        busbw_gbps=value,
        share=value / own.median,
        deviations=own.deviations(value),
        slow=value < (own.limit_again if is_again else own.limit),
    )


def _hung(group: GroupMeasurement) -> tuple[str, ...]:
    """The nodes of the ranks that hung, where those of others did not: where all did, it may be any of them."""
    hosts = {
        group.nodes[rank // group.gpus_per_node]
        for rank in group.hung_ranks
        if 0 <= rank < len(group.nodes) * group.gpus_per_node
    }
    return tuple(host for host in group.nodes if host in hosts) if len(hosts) < len(group.nodes) else ()


class _References:
    """What is usual of each kind of groups."""

    def __init__(self, measured: FabricMeasurement, domains: dict[str, str], expected: Expectation) -> None:
        self._expected = expected
        self._first: dict[_Kind, list[float]] = {}
        self._later: dict[_Kind, list[float]] = {}
        for number, groups in enumerate(measured.rounds):
            values = self._later if number else self._first
            for group in groups:
                if group.busbw_gbps is not None:
                    values.setdefault(_kind(group, domains), []).append(group.busbw_gbps)
        self._groups = [(_kind(group, domains), group) for groups in measured.rounds[1:] for group in groups]
        hosts = {host for groups in measured.rounds for group in groups for host in group.nodes}
        self._few_nodes = len(hosts) if len(hosts) <= SMALL else 0
        self._usual: dict[_Kind, Usual | None] = {
            kind: self._of_first(kind, values) for kind, values in self._first.items()
        }
        fast = {host for group in measured.rounds[0] if self._is_fast(group, domains) for host in group.nodes}
        for kind in self._later:
            if self._usual.get(kind) is None:
                self._usual[kind] = self._of_later(kind, fast)

    def of(self, kind: _Kind) -> Usual | None:
        return self._usual.get(kind)

    def measures(self) -> list[Measure]:
        """In short; of groups that only a later round has, nothing."""
        ordered = sorted(self._first.items(), key=lambda item: -len(item[1]))
        return [
            measure("groups", values, self.of(kind), self._expected.least("groups", kind.size), kind.size)
            for kind, values in ordered
        ]

    def _of_first(self, kind: _Kind, values: Sequence[float]) -> Usual | None:
        ratio = self._expected.ratio("groups")
        if self._few_nodes:
            return _of_few(self._few_nodes, [*values, *self._later.get(kind, ())], ratio)
        return usual(values, times=DEVIATIONS, ratio=ratio, by_ratio=self._expected.by_ratio)

    def _is_fast(self, group: GroupMeasurement, domains: dict[str, str]) -> bool:
        own = self._usual.get(_kind(group, domains))
        return own is not None and group.busbw_gbps is not None and group.busbw_gbps >= own.limit

    def _of_later(self, kind: _Kind, fast: set[str]) -> Usual | None:
        """Of groups that cross switches because suspects found no partners at home: what those give whose nodes were
        all ``fast`` at first; without any, what the faster half gives. Their spread is that of the first round."""
        values = sorted(self._later[kind], reverse=True)
        clean = [
            group.busbw_gbps
            for own, group in self._groups
            if own == kind and group.busbw_gbps is not None and fast.issuperset(group.nodes)
        ]
        known = [own for own in self._usual.values() if own is not None]
        if len(values) < RATIO_FROM or not known:
            return None
        median = statistics.median(clean or values[: (len(values) + 1) // 2])
        widest = max(known, key=lambda own: own.count)
        limit = widest.limit / widest.median * median
        deviation = None if widest.deviation is None else widest.deviation / widest.median * median
        return Usual(median, limit, len(values), deviation)


def _of_few(nodes: int, values: Sequence[float], ratio: float) -> Usual | None:
    """Of pairs of so few nodes that each is measured with each: what those give that one slow node is not in."""
    without_one = (nodes - 1) * (nodes - 2) // 2
    if len(values) < RATIO_FROM:
        return None
    median = statistics.median(sorted(values, reverse=True)[:without_one])
    return Usual(median, ratio * median, len(values))
