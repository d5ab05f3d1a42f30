"""Which nodes are measured together first: disjoint groups of one size, along the network."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from llmb_common.nodes.fabric.spread import RATIO_FROM, SPREAD_FROM

FOURS_FROM = 24
"""Nodes from which groups of four are enough to know their spread: six of them."""

SMALL = 5
"""With up to so many nodes, each is measured with each: fewer than three pairs at once cannot be compared."""


def first_groups(hosts: Sequence[str], topology: Mapping[str, str] | None = None) -> list[list[str]]:
    """Disjoint groups of four, of two with fewer than 24 nodes, so that a slow switch shows as slow groups.

    ``topology`` has the switch, segment or NVL72 domain of hosts, as far as that is known. A group lies within one of
    them. Who is left over there, by an odd number, is in no group: ``blame.next_round`` gives it partners that are
    known to be fast, because a group of another size could be compared with none. Nodes of domains that are smaller
    than a group form groups with each other. Empty: there is nobody to reduce with.
    """
    domains = usable_topology(hosts, topology or {})
    within, scattered = _groups_by_domain(hosts, domains, group_size(len(hosts)))
    if max(len(within), len(scattered)) < SPREAD_FROM:
        within, scattered = _groups_by_domain(hosts, domains, 2)
    return within + scattered


def usable_topology(hosts: Sequence[str], topology: Mapping[str, str]) -> dict[str, str]:
    """``topology`` of the hosts, if groups follow it; empty where too few of them could be compared then: those within
    one switch, or those between several."""
    known = {host: topology[host] for host in hosts if topology.get(host)}
    within, scattered = _groups_by_domain(hosts, known, 2)
    is_worth_it = len(hosts) > SMALL and max(len(within), len(scattered)) >= RATIO_FROM
    return known if is_worth_it else {}


def _groups_by_domain(
    hosts: Sequence[str], topology: Mapping[str, str], size: int
) -> tuple[list[list[str]], list[list[str]]]:
    """(groups within one domain each, groups of nodes of domains smaller than a group), each of ``size`` nodes."""
    within: list[list[str]] = []
    scattered: list[str] = []
    for _, members in sorted(by_domain(hosts, topology).items(), key=lambda item: _natural_sort_key(item[0])):
        if len(members) < size:
            scattered += members
        else:
            within += _split_groups(members, size)
    return within, _split_groups(scattered, size)


def by_domain(hosts: Sequence[str], topology: Mapping[str, str]) -> dict[str, list[str]]:
    """The hosts of each domain (switch, segment), in natural order; under ``""`` those of which it is not known."""
    domains: dict[str, list[str]] = {}
    for host in natural_order(hosts):
        domains.setdefault(topology.get(host, ""), []).append(host)
    return domains


def group_size(count: int) -> int:
    """The number of nodes in a group, in a fleet of ``count`` nodes."""
    return 4 if count >= FOURS_FROM else 2


def natural_order(hosts: Sequence[str]) -> list[str]:
    """The hosts, each once, in the order of their numbers: ``n2`` before ``n10``."""
    return sorted(dict.fromkeys(hosts), key=_natural_sort_key)


def _natural_sort_key(name: str) -> list[tuple[int, str]]:
    """A sort key that compares the digits in names as numbers."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _split_groups(members: Sequence[str], size: int) -> list[list[str]]:
    """The nodes in groups of ``size``, in order; those that are left over at the end are in none."""
    return [list(members[at : at + size]) for at in range(0, len(members) - size + 1, size)]
