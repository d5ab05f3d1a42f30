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
    """Return the disjoint groups of nodes to measure in the first round, all of four nodes or all of two.

    They are of four where the fleet has 24 nodes or more and that gives at least six groups to compare, else pairs.
    ``topology`` has the switch, segment or NVL72 domain of hosts, as far as that is known (None: of none): a group lies
    within one of them, so that a slow switch shows as slow groups. Nodes of domains smaller than a group form groups
    with each other, which come last. Hosts come in natural order. Who is left over is in no group; ``next_round`` gives
    it partners. Empty: there are fewer than two hosts. Nothing is measured here.
    """
    domains = usable_topology(hosts, topology or {})
    within, scattered = _groups_by_domain(hosts, domains, group_size(len(hosts)))
    # Too few groups of four to know how they scatter: twice as many pairs tell more.
    if max(len(within), len(scattered)) < SPREAD_FROM:
        within, scattered = _groups_by_domain(hosts, domains, 2)
    return within + scattered


def usable_topology(hosts: Sequence[str], topology: Mapping[str, str]) -> dict[str, str]:
    """Return the switch of each of ``hosts`` that ``topology`` knows, if groups should follow switches; else {}.

    Hosts whose switch is not known, or empty, are left out. Empty where neither three pairs within switches nor three
    across them could be made, so that none could be compared, and where ``hosts`` are five or fewer.
    """
    known = {host: topology[host] for host in hosts if topology.get(host)}
    # Pairs are the smallest groups: if they are too few to compare, so are all others.
    within, scattered = _groups_by_domain(hosts, known, 2)
    is_worth_it = len(hosts) > SMALL and max(len(within), len(scattered)) >= RATIO_FROM
    return known if is_worth_it else {}


def _groups_by_domain(
    hosts: Sequence[str], topology: Mapping[str, str], size: int
) -> tuple[list[list[str]], list[list[str]]]:
    """Return (groups within one domain each, groups across domains), each of exactly ``size`` hosts, in natural order.

    They come domain by domain, in the natural order of the domains' names. Those across are of nodes whose domains have
    fewer than ``size`` of ``hosts``. Who is left over is in no group; hosts that ``topology`` lacks count as one
    domain.
    """
    within: list[list[str]] = []
    scattered: list[str] = []
    for _, members in sorted(by_domain(hosts, topology).items(), key=lambda item: _natural_sort_key(item[0])):
        if len(members) < size:
            scattered += members
        else:
            within += _split_groups(members, size)
    return within, _split_groups(scattered, size)


def by_domain(hosts: Sequence[str], topology: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the hosts of each domain (switch or segment) by its name, each host once, in natural order.

    Domains come in the order of their first host. Under ``""`` are the hosts that ``topology`` lacks. Empty without
    hosts.
    """
    domains: dict[str, list[str]] = {}
    for host in natural_order(hosts):
        domains.setdefault(topology.get(host, ""), []).append(host)
    return domains


def group_size(count: int) -> int:
    """Return how many nodes a group to measure has in a fleet of ``count`` nodes: 4 from 24 nodes on, else 2."""
    return 4 if count >= FOURS_FROM else 2


def natural_order(hosts: Sequence[str]) -> list[str]:
    """Return the hosts, each once, sorted so that numbers in their names count as numbers: ``n2`` before ``n10``."""
    return sorted(dict.fromkeys(hosts), key=_natural_sort_key)


def _natural_sort_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key for a host or switch name that compares its digits as numbers: ``n2`` before ``n10``."""
    parts = re.split(r"(\d+)", name)
    # Both in one shape, so that letters and numbers at one place never meet in a comparison.
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _split_groups(members: Sequence[str], size: int) -> list[list[str]]:
    """Return ``members`` in groups of exactly ``size``, in order; those that are left over at the end are dropped.

    Empty where there are fewer members than ``size``.
    """
    return [list(members[at : at + size]) for at in range(0, len(members) - size + 1, size)]
