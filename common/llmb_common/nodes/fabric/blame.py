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
TOGETHER = 3
"""Times that a group is measured which is slow though its nodes are fast with others: other jobs may slow down two."""
MOST_ROUNDS = 8
"""After the first one: what is not known by then stays unknown. Two are the rule; many slow groups need more, because
each suspect takes up the fast partners of a whole group."""
ENOUGH = 48
"""Groups that show well how much healthy ones differ."""
CONTROLS = 3
"""Groups of fast nodes that cross switches, where suspects have to: crossing may cost something by itself."""


def next_round(measurement: FabricMeasurement, judged: FabricVerdict) -> list[list[str]]:
    """Return disjoint groups of hosts to measure next, to find out which nodes make groups slow.

    ``judged`` is the verdict on ``measurement``. Groups have as many hosts as those of the first round. Each node
    that was in no fast group yet gets partners out of the fastest groups, of its own switch where there are any,
    and others the second time, as far as partners last; after two slow groups with such partners it is asked no
    more. A slow group of which every node is fast with others is measured twice more. With up to five nodes that
    respond, each pair is measured, in as many rounds as that takes. Empty: nothing is left to ask, there was no
    first round, or nine rounds have been measured. Nodes that hung or are missing are in no group. Nothing is
    measured here.
    """
    if not measurement.rounds or len(measurement.rounds) > MOST_ROUNDS:
        return []
    present = [host for host in natural_order(measurement.hosts) if host not in measurement.missing]
    known = Witnesses(judged.groups)
    responding = [host for host in present if host not in known.hung]
    if len(responding) <= SMALL:
        return _pairs_left(responding, judged.groups)
    sizes = [len(group.nodes) for group in measurement.rounds[0]]
    # Groups of another size could not be compared with those of the first round.
    size = sizes[0] if sizes else group_size(len(present))
    return _Round(responding, size, known, judged.topology).groups()


def _pairs_left(hosts: Sequence[str], groups: Sequence[GroupSpeed]) -> list[list[str]]:
    """Return disjoint pairs of ``hosts`` that have not been measured by themselves.

    Measured is what is exactly one of ``groups``. Each host in turn that is still free is paired with the first free
    one after it that it was not measured with, which may leave over two that could have been paired otherwise. Empty:
    every pair has been measured, or there are fewer than two hosts.
    """
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
    """What the measured groups of all rounds say of each node: with whom it was fast, and whether it ever was.

    It is made from the speeds of these groups, in the order of rounds. Groups that could not be judged, for lack of
    anything to compare them with, are left out. The sets ``cleared`` and ``hung`` have the nodes of at least one
    fast group, and those that hung; ``fast`` has the groups that were fast at least once, as frozensets of nodes.
    ``best`` returns the best share of the usual bandwidth that a node had part in (1.0: as usual; 0.0: none),
    ``groups_against`` the list of slow groups that only it can explain, ``partners`` the set of nodes that it was
    measured with, itself included, and ``figures_of`` a list of all measurements of exactly one group.
    ``nodes_to_blame`` returns the list of nodes that are the cause of slow groups, and ``unexplained`` that of slow
    groups that the nodes passed to it, and those that hung, do not explain. Empty where there are none; nothing is
    raised for an unknown node.
    """

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
        """Return the best that any judged group with ``host`` gave, as a share of the usual bus bandwidth.

        1.0 is as usual; 0.0 where no such group gave a figure, and for an unknown host.
        """
        return max((group.share or 0.0 for group in self._of.get(host, ())), default=0.0)

    def groups_against(self, host: str) -> list[GroupSpeed]:
        """Return the slow groups in which nobody but ``host`` can be the cause: all others were fast elsewhere.

        Only groups count whose partners were chosen for the node: those from the second round on, in fleets of up to
        five nodes from the first. Empty: there are none, or the node was in a fast group itself, or is unknown.
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
        """Return the nodes that shared a judged group with ``host`` in any round, ``host`` itself among them.

        Empty for a host that was in no such group.
        """
        return set(chain.from_iterable(group.nodes for group in self._of.get(host, ())))

    def unexplained(self, named: Iterable[str]) -> list[GroupSpeed]:
        """Return the slow groups in which no node hung and none is in ``named``; one such node explains its group.

        They come in the order of measurement, a group that was measured twice as two. Left out are groups that were
        fast in another measurement of exactly the same nodes. Empty: there are none.
        """
        causes = {*named, *self.hung}
        return [
            group
            for group in self.groups
            if group.slow and causes.isdisjoint(group.nodes) and frozenset(group.nodes) not in self.fast
        ]

    def figures_of(self, nodes: Iterable[str]) -> list[GroupSpeed]:
        """Return every judged measurement of exactly the group ``nodes``, in the order of rounds.

        The order of nodes does not matter. Empty: there was none.
        """
        wanted = frozenset(nodes)
        return [group for group in self.groups if frozenset(group.nodes) == wanted]

    def nodes_to_blame(self) -> list[str]:
        """Return the nodes that are themselves the cause of slow groups, each once; empty: no node is.

        Such a node was in no fast group, was slow at least twice with partners that are all fast elsewhere, and these
        groups are beyond the limit in the mean, or gave no figure at all. Nodes that hung are not among them. They come
        in the order in which they were first measured.
        """
        found = []
        for host in self._of:
            witnesses = self.groups_against(host)
            if host not in self.hung and len(witnesses) >= ASKED and is_slow(witnesses):
                found.append(host)
        return found


def is_slow(groups: Sequence[GroupSpeed]) -> bool:
    """Return whether ``groups`` together are below the limit for slow ones: their mean ``excess`` is above 1.

    Groups without a figure do not count. True where no group has one, and for no groups at all.
    """
    known = [group.excess for group in groups if group.excess is not None]
    return not known or sum(known) / len(known) > 1


class _Round:
    """The groups of hosts to measure in the next round, put together one by one; a node is in one of them at most.

    It is made from the hosts that still respond, the number of nodes in a group, what is known so far and the switch
    of each host. An instance is for one call of ``groups``, which returns lists of hosts (empty: nothing is left to
    ask) and uses up the free nodes.
    """

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
        """Put together and return the groups of hosts to measure in the next round; empty: nothing is left to ask.

        First come groups that were slow though all their nodes are fast elsewhere, then, if a suspect has to be
        measured across switches, groups of fast nodes across them. Then come suspects with fast partners, those that
        were asked least first, as far as partners last. If there is any group by then, and fewer than 48 groups were
        measured in all rounds so far, fresh groups of fast nodes follow. To be called once.
        """
        again = self._slow_only_together()
        for group in again:
            self._add_group(group)
        if any(self._has_to_cross(host) for host in self._suspects):
            self._add_controls()
        # Who was asked least often first, and of those the slowest.
        for host in sorted(
            self._suspects, key=lambda host: (len(self._known.groups_against(host)), self._known.best(host))
        ):
            # The suspects that are left wait for a later round.
            if len(self._free) < self._size - 1:
                break
            self._add_group([host, *self._partners(host)])
        if self._groups and len(self._known.groups) < ENOUGH:
            self._add_mixed_groups()
        return self._groups

    def _add_mixed_groups(self) -> None:
        """Add groups of the fast nodes that are still free to this round, newly mixed, each within one switch.

        Nodes that fill no whole group stay free. They cost no time, as all groups are measured at once, and show better
        how much healthy ones differ.
        """
        for hosts in by_domain(self._free, self._topology).values():
            count = len(hosts) // self._size
            for at in range(count):
                # Strided, because the first round grouped neighbors.
                self._add_group(hosts[at::count][: self._size])

    def _has_to_cross(self, host: str) -> bool:
        """Return whether a group around ``host`` must span switches: its own has too few free fast nodes.

        Hosts whose switch is not known count as on one switch.
        """
        home = self._topology.get(host)
        at_home = [other for other in self._free if self._topology.get(other) == home]
        return len(at_home) < self._size - 1

    def _add_group(self, group: list[str]) -> None:
        """Add ``group``, a list of hosts, to the groups to measure in this round, and take its nodes off the free."""
        self._groups.append(group)
        self._free = [host for host in self._free if host not in group]

    def _partners(self, host: str) -> list[str]:
        """Return the free fast nodes that complete the group of the suspect ``host``, which is not among them.

        Preferred are nodes on its own switch, then those it was not measured with yet, then the fastest. They are fewer
        than needed where too few are free. They stay free until the group is added.
        """
        known = self._known.partners(host)
        domain = self._topology.get(host)

        def rank(other: str) -> tuple[bool, bool]:
            """Return a sort key for a suspect's partners: those on another switch last, then those it already had.

            ``domain`` and ``known`` of the enclosing function are the suspect's switch and its former partners.
            """
            return self._topology.get(other) != domain, other in known

        return sorted(self._free, key=rank)[: self._size - 1]  # stable: the fastest first

    def _slow_only_together(self) -> list[list[str]]:
        """Return disjoint groups that were slow in fewer than three measurements, though each node is fast with others.

        They are to be measured again; nothing is added to this round yet. Of groups that overlap the first measured
        comes. Left out are groups with a node that no longer responds, or is blamed itself. Empty: there are none.
        """
        once = Counter(frozenset(group.nodes) for group in self._known.groups)
        found: list[list[str]] = []
        taken: set[str] = set()
        for group in self._known.unexplained(self._known.nodes_to_blame()):
            is_new = once[frozenset(group.nodes)] < TOGETHER and taken.isdisjoint(group.nodes)
            is_there = self._hosts.issuperset(group.nodes)
            if is_new and is_there and self._known.cleared.issuperset(group.nodes):
                found.append(list(group.nodes))
                taken.update(group.nodes)
        return found

    def _add_controls(self) -> None:
        """Add groups of fast nodes that span switches to the round: they show what crossing costs by itself.

        Together with those measured in earlier rounds there are three then, or fewer where the free fast nodes run out;
        nothing is added where three were measured before.
        """
        measured = [
            group
            for group in self._known.groups
            if spans(group.nodes, self._topology) and self._known.cleared.issuperset(group.nodes)
        ]
        for _ in range(CONTROLS - len(measured)):
            # ``_add_group`` takes nodes off the free ones, so that the fastest one left is another each time.
            first = self._free[0] if self._free else ""
            home = self._topology.get(first)
            rest = [host for host in self._free if self._topology.get(host) != home]
            if len(rest) < self._size - 1:
                return
            self._add_group([first, *rest[: self._size - 1]])


def spans(group: Sequence[str], topology: Mapping[str, str]) -> bool:
    """Return whether the nodes of ``group`` are on more than one switch, by ``topology``: the switch of each host.

    All hosts that ``topology`` lacks count as being on one switch of their own. False for an empty group.
    """
    return len({topology.get(host, "") for host in group}) > 1


@dataclass(frozen=True)
class Blame:
    """What explains the slow groups of a fabric check: nodes, switches, paths between nodes, or nothing yet.

    ``blame`` makes it. Slow groups with a node that hung are explained by it, and in neither ``together`` nor
    ``unknown``. An empty field: nothing of that kind was found.
    """

    nodes: tuple[str, ...] = ()
    """Nodes that are slow with every partner, but for those of slow ``domains``."""
    domains: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Slow switches or segments by name, with their slow nodes, which are not in ``nodes``."""
    together: tuple[GroupSpeed, ...] = ()
    """Groups that are slow repeatedly, or are pairs, though each node is fast with others: the path between them."""
    once: tuple[GroupSpeed, ...] = ()
    """Measurements that were slow of groups that were fast another time."""
    unknown: tuple[GroupSpeed, ...] = ()
    """Slow groups that nothing explains: which of their nodes it is could not be told."""


_OF_DOMAIN = 0.75
"""Of a switch's measured nodes: as many slow ones have the switch in common, and are not each a fault."""


def blame(groups: Sequence[GroupSpeed], topology: dict[str, str]) -> Blame:
    """Return what the slow groups have in common: single nodes, a switch or segment, or a path between nodes.

    ``groups`` are the speeds of the groups of all rounds, in their order. Slow groups that nothing explains, and
    that are beyond the limit in the mean of all their measurements, are in its ``unknown``, one for each set of
    suspects. All fields are empty where no group is slow. ``topology`` has the switch, segment or NVL72 domain of
    each host; hosts that it lacks belong to none.
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
            # A pair is sure at once: where both nodes are fast with others, only the path is left.
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
    """Return the switches or segments of which three quarters of the nodes, and at least three, are in ``named``.

    ``named`` are nodes to blame, ``known`` tells which were measured, ``topology`` has the switch of each host. Of a
    switch's nodes only those count that were in a judged group. Each switch has its nodes in ``named``, in natural
    order. Empty: no switch is to blame, or all nodes are on a single one, which cannot be compared with another.
    """
    members: dict[str, set[str]] = {}
    for group in known.groups:
        for host in group.nodes:
            members.setdefault(topology.get(host, ""), set()).add(host)
    found = {}
    for domain, hosts in members.items():
        slow = tuple(host for host in natural_order(named) if host in hosts)
        # With one switch only, slow nodes say nothing of it: there is no other to compare it with.
        if domain and len(members) > 1 and len(slow) >= max(3, _OF_DOMAIN * len(hosts)):
            found[domain] = slow
    return found
