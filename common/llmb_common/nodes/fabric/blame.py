"""Who is to blame for slow groups: their nodes again, each with partners that are known to be fast."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from llmb_common.nodes.fabric.grouping import SMALL, by_domain, group_size, natural_order
from llmb_common.nodes.fabric.measurement import FabricMeasurement
from llmb_common.nodes.fabric.verdict import FabricVerdict, GroupSpeed

ASKED = 2
"""Times that a node is asked with other partners before it is blamed."""
MOST_ROUNDS = 8
"""After the first one: what is not known by then stays unknown. Two are the rule; many slow groups need more, because
each suspect takes up the fast partners of a whole group."""
ENOUGH = 48
"""Groups that show well how much healthy ones differ."""
CONTROLS = 3
"""Groups of fast nodes that cross switches, where suspects have to: crossing may cost something by itself."""


def next_round(measurement: FabricMeasurement, judged: FabricVerdict) -> list[list[str]]:
    """Disjoint groups to measure next, to find out who makes groups slow; empty: there is nothing to ask.

    Each node of a slow group gets partners out of the fastest groups, of its own switch where there are any, and others
    the second time. A group of which every node is fast with others is measured once more. With up to five nodes, each
    is measured with each.
    """
    if not measurement.rounds or len(measurement.rounds) > MOST_ROUNDS:
        return []
    present = [host for host in natural_order(measurement.hosts) if host not in measurement.missing]
    known = Witnesses(judged.groups)
    responding = [host for host in present if host not in known.hung]
    if len(responding) <= SMALL:
        return _pairs_left(responding, judged.groups)
    sizes = [len(group.nodes) for group in measurement.rounds[0]]
    size = sizes[0] if sizes else group_size(len(present))
    return _Round(responding, size, known, judged.topology).groups()


def _pairs_left(hosts: Sequence[str], groups: Sequence[GroupSpeed]) -> list[list[str]]:
    """Pairs of ``hosts`` that ``groups`` has not measured yet, as many as go at once: each node is in one at most."""
    done = {frozenset(group.nodes) for group in groups}
    pairs: list[list[str]] = []
    taken: set[str] = set()
    for at, one in enumerate(hosts):
        for other in hosts[at + 1 :]:
            if one not in taken and other not in taken and frozenset((one, other)) not in done:
                pairs.append([one, other])
                taken |= {one, other}
    return pairs


class Witnesses:
    """What all groups of all rounds say of single nodes: who was fast with whom, and who was always slow."""

    def __init__(self, groups: Sequence[GroupSpeed]) -> None:
        self.groups = [group for group in groups if group.slow is not None]
        self.hung = set(chain.from_iterable(group.hung for group in groups))
        everybody = set(chain.from_iterable(group.nodes for group in groups))
        self._from = 0 if len(everybody) <= SMALL else 1
        """The first round that counts against a node: those with partners that were chosen for it."""
        self.cleared = set(chain.from_iterable(group.nodes for group in self.groups if not group.slow))
        """Nodes of a fast group: whatever they are in, they slow down nobody."""
        self.fast = {frozenset(group.nodes) for group in self.groups if not group.slow}
        """Groups, by their nodes, that were fast at least once."""
        self._of: dict[str, list[GroupSpeed]] = {}
        for group in self.groups:
            for host in group.nodes:
                self._of.setdefault(host, []).append(group)

    def best(self, host: str) -> float:
        """The largest share of what is usual that a group with this node gave; 0 where no group with it gave any."""
        return max((group.share or 0.0 for group in self._of.get(host, ())), default=0.0)

    def groups_against(self, host: str) -> list[GroupSpeed]:
        """The slow groups in which nobody but ``host`` can be the cause; empty for a node that was ever fast.

        They count where its partners were chosen for it: from the second round on, in small fleets from the first.
        """
        if host in self.cleared:
            return []
        return [
            group
            for group in self._of.get(host, ())
            if group.slow
            and group.round >= self._from
            and all(other in self.cleared for other in group.nodes if other != host)
        ]

    def partners(self, host: str) -> set[str]:
        """The nodes that ``host`` was measured with, itself among them."""
        return set(chain.from_iterable(group.nodes for group in self._of.get(host, ())))

    def unexplained(self, named: Iterable[str]) -> list[GroupSpeed]:
        """The slow groups in which no node is ``named`` or hung, and which were not fast another time; empty: none."""
        causes = {*named, *self.hung}
        return [
            group
            for group in self.groups
            if group.slow and causes.isdisjoint(group.nodes) and frozenset(group.nodes) not in self.fast
        ]

    def figures_of(self, nodes: Iterable[str]) -> list[GroupSpeed]:
        """Every measurement of exactly this group of nodes."""
        wanted = frozenset(nodes)
        return [group for group in self.groups if frozenset(group.nodes) == wanted]

    def nodes_to_blame(self) -> list[str]:
        """The nodes to blame: slow with every partner, with two sets of fast ones or more, and by enough.

        Those that hung are not among them.
        """
        found = []
        for host in self._of:
            witnesses = self.groups_against(host)
            if host not in self.hung and len(witnesses) >= ASKED and is_slow(witnesses):
                found.append(host)
        return found


def is_slow(groups: Sequence[GroupSpeed]) -> bool:
    """Whether the groups' bandwidth is beyond the limit in the mean; True where none has a figure."""
    known = [group.excess for group in groups if group.excess is not None]
    return not known or sum(known) / len(known) > 1


class _Round:
    """The groups of the next round, made one by one out of nodes that are still free."""

    def __init__(self, hosts: Sequence[str], size: int, known: Witnesses, topology: dict[str, str]) -> None:
        self._hosts = frozenset(hosts)
        self._size = size
        self._known = known
        self._topology = topology
        self._suspects = [
            host for host in hosts if host not in known.cleared and len(known.groups_against(host)) < ASKED
        ]
        free = [host for host in hosts if host in known.cleared]
        self._free = sorted(free, key=known.best, reverse=True)
        self._groups: list[list[str]] = []

    def groups(self) -> list[list[str]]:
        """The groups of the next round; empty where nothing is left to ask."""
        again = self._slow_only_together()
        for group in again:
            self._add_group(group)
        if any(self._has_to_cross(host) for host in self._suspects):
            self._add_controls()
        # Who was asked least often first, and of those the slowest.
        for host in sorted(
            self._suspects, key=lambda host: (len(self._known.groups_against(host)), self._known.best(host))
        ):
            if len(self._free) < self._size - 1:
                break
            self._add_group([host, *self._partners(host)])
        if self._groups and len(self._known.groups) < ENOUGH:
            self._add_mixed_groups()
        return self._groups

    def _add_mixed_groups(self) -> None:
        """Add groups of the nodes that are still free, other ones than before, each within one switch.

        How much healthy ones differ is better known then, at no cost.
        """
        for hosts in by_domain(self._free, self._topology).values():
            count = len(hosts) // self._size
            for at in range(count):
                self._add_group(hosts[at::count][: self._size])

    def _has_to_cross(self, host: str) -> bool:
        """Whether too few free nodes share the host's switch to make a group there."""
        at_home = [other for other in self._free if self._topology.get(other) == self._topology.get(host)]
        return len(at_home) < self._size - 1

    def _add_group(self, group: list[str]) -> None:
        """Add a group to the round; its nodes are free no more."""
        self._groups.append(group)
        self._free = [host for host in self._free if host not in group]

    def _partners(self, host: str) -> list[str]:
        """The partners that a suspect gets, of the free nodes: on its own switch, new to it, and fast, if possible.

        They are as many as make a group with it.
        """
        known = self._known.partners(host)
        domain = self._topology.get(host)

        def rank(other: str) -> tuple[bool, bool]:
            """A sort key: partners on another switch last, then known ones."""
            return self._topology.get(other) != domain, other in known

        return sorted(self._free, key=rank)[: self._size - 1]  # stable: the fastest first

    def _slow_only_together(self) -> list[list[str]]:
        """Disjoint groups to measure again: slow once, though each of their nodes is fast with others; empty: none."""
        once = Counter(frozenset(group.nodes) for group in self._known.groups)
        found: list[list[str]] = []
        taken: set[str] = set()
        for group in self._known.unexplained(self._known.nodes_to_blame()):
            is_new = once[frozenset(group.nodes)] < ASKED and taken.isdisjoint(group.nodes)
            is_there = self._hosts.issuperset(group.nodes)
            if is_new and is_there and self._known.cleared.issuperset(group.nodes):
                found.append(list(group.nodes))
                taken.update(group.nodes)
        return found

    def _add_controls(self) -> None:
        """Add groups of fast nodes of two switches, unless enough were measured: what crossing costs by itself."""
        measured = [
            group
            for group in self._known.groups
            if spans(group.nodes, self._topology) and self._known.cleared.issuperset(group.nodes)
        ]
        for _ in range(CONTROLS - len(measured)):
            first = self._free[0] if self._free else ""
            rest = [host for host in self._free if self._topology.get(host) != self._topology.get(first)]
            if len(rest) < self._size - 1:
                return
            self._add_group([first, *rest[: self._size - 1]])


def spans(group: Sequence[str], topology: Mapping[str, str]) -> bool:
    """Whether the nodes of a group are on different switches, by ``topology``: the switch of each host."""
    return len({topology.get(host, "") for host in group}) > 1


@dataclass(frozen=True)
class Blame:
    """Who or what is slow once all witnesses are heard."""

    nodes: tuple[str, ...] = ()
    """Each slow with every partner."""
    domains: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Switches or segments, and their slow nodes, which are not in ``nodes``."""
    together: tuple[GroupSpeed, ...] = ()
    """Groups that are slow, again, though each of their nodes is fast with others: the path between them."""
    once: tuple[GroupSpeed, ...] = ()
    """Groups that were slow the first time only."""
    unknown: tuple[GroupSpeed, ...] = ()
    """Groups of which nobody could say who it is."""


_OF_DOMAIN = 0.75
"""Of a switch's measured nodes: as many slow ones have the switch in common, and are not each a fault."""


def blame(groups: Sequence[GroupSpeed], topology: dict[str, str]) -> Blame:
    """What slow groups have in common: single nodes, a switch or segment, or a path; else nobody is blamed.

    ``topology`` has the switch, segment or NVL72 domain of hosts.
    """
    known = Witnesses(groups)
    named = known.nodes_to_blame()
    domains = _slow_domains(named, known, topology)
    in_domains = set(chain.from_iterable(domains.values()))
    together: dict[frozenset[str], GroupSpeed] = {}
    unknown: dict[frozenset[str], GroupSpeed] = {}
    for group in known.unexplained(named):
        nodes = frozenset(group.nodes)
        figures = known.figures_of(nodes)
        if is_slow(figures):
            is_sure = known.cleared.issuperset(nodes) and (len(figures) >= ASKED or len(nodes) == 2)
            if is_sure:
                together.setdefault(nodes, group)
            else:
                unknown.setdefault(nodes - known.cleared, group)  # the same suspects again are no further finding
    return Blame(
        nodes=tuple(host for host in named if host not in in_domains),
        domains=domains,
        together=tuple(together.values()),
        once=tuple(group for group in known.groups if is_slow([group]) and frozenset(group.nodes) in known.fast),
        unknown=tuple(unknown.values()),
    )


def _slow_domains(named: Sequence[str], known: Witnesses, topology: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """The switches or segments of which most nodes are slow, each with these nodes."""
    members: dict[str, set[str]] = {}
    for group in known.groups:
        for host in group.nodes:
            members.setdefault(topology.get(host, ""), set()).add(host)
    found = {}
    for domain, hosts in members.items():
        slow = tuple(host for host in natural_order(named) if host in hosts)
        if domain and len(members) > 1 and len(slow) >= max(3, _OF_DOMAIN * len(hosts)):
            found[domain] = slow
    return found
