"""What is found in the groups of all rounds, as sentences: nodes, switches and paths, or witnesses of nobody known."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import msgspec

from llmb_common.base.printable import printable
from llmb_common.nodes.fabric.alone import is_too_many, two_kinds_note
from llmb_common.nodes.fabric.blame import Blame, Witnesses, blame
from llmb_common.nodes.fabric.expectation import Expectation
from llmb_common.nodes.fabric.spread import DEVIATIONS
from llmb_common.nodes.fabric.verdict import FabricFinding, GroupSpeed, Level, new_finding
from llmb_common.nodes.fabric.words import figure, nodes_text, slower


def group_findings(
    groups: Sequence[GroupSpeed], topology: dict[str, str], expected: Expectation
) -> list[FabricFinding]:
    """Return the findings on hung nodes, slow nodes, switches and paths that the speeds of all groups lead to.

    They come in this order, and last groups that were slow once only, and those of which it is open who is slow.
    Empty where no group was slow or hung. ``groups`` are these speeds, of all rounds in order; ``topology`` has the
    switch of each host. ``expected``, what the site expects, decides whether a slow node or path fails or is only
    warned of.
    """
    known = Witnesses(groups)
    found = blame(groups, topology)
    # Sorted, as a set has another order each time.
    findings = [_hung_finding(host, groups) for host in sorted(known.hung)]
    findings += _node_findings(found, known, expected)
    findings += [_domain_finding(domain, hosts, known) for domain, hosts in found.domains.items()]
    findings += _path_findings(found, topology, expected)
    findings += [_slow_once_note(group) for group in found.once]
    findings += [_unknown_node_finding(group, known, expected) for group in found.unknown]
    return findings


def _hung_finding(host: str, groups: Sequence[GroupSpeed]) -> FabricFinding:
    """Return the failure that the node ``host`` hung in an all-reduce, with the group in which it first did.

    One of ``groups`` must have it among its hung nodes, else there is a StopIteration. Its kind is ``hung``.
    """
    group = next(group for group in groups if host in group.hung)
    return new_finding(
        "hung",
        "fail",
        (host,),
        f"{host} hung in an all-reduce with {_other_nodes_text(host, group)}, which did not: "
        f"{printable(group.why)[:200]}",
    )


def _node_findings(found: Blame, known: Witnesses, expected: Expectation) -> list[FabricFinding]:
    """Return the findings on nodes that are slow with every partner, or never gave a figure; empty: there are none.

    ``found`` tells which nodes are slow, ``known`` what was measured of them. A node that fails by what is
    ``expected``, or gave no figure, has a finding of its own. Where the other slow nodes are too many to be single
    faults, they share one note that there are two kinds of nodes. Where they are not, those that are at least five
    deviations slower, or whose spread is not known, get a warning each, and only the rest share that note. Those
    without a figure come first, then slow nodes, then the note.
    """
    findings: list[FabricFinding] = []
    slow: dict[str, GroupSpeed] = {}
    for host in found.nodes:
        witnesses = known.groups_against(host)
        figures = [group for group in witnesses if group.busbw_gbps is not None]
        # Without a single figure it is no matter of speed.
        if not figures:
            findings.append(_failing_node_finding(host, witnesses))
        else:
            slow[host] = _mean_group(figures)
    levels = {host: _slow_group_level(group, expected) for host, group in slow.items()}
    warned = [host for host, level in levels.items() if level != "fail"]
    everybody = set(chain.from_iterable(group.nodes for group in known.groups))
    if not is_too_many(len(warned), len(everybody)):
        # Less is no fault, and asked for only because many were so.
        warned = [host for host in warned if _is_little(slow[host])]
    findings += [
        _slow_node_finding(host, group, known.groups_against(host), levels[host])
        for host, group in slow.items()
        if host not in warned
    ]
    if warned:
        middle = _median_group([slow[host] for host in warned])
        findings.append(two_kinds_note("groups", warned, middle.busbw_gbps or 0.0, _usual_bandwidth(middle)))
    return findings


def _mean_group(groups: Sequence[GroupSpeed]) -> GroupSpeed:
    """Return a copy of the first of ``groups`` with the mean bandwidth, share and deviations of all.

    They are the groups in which one node was asked, and must not be empty. Deviations are the mean of those that are
    known, None without any; a missing bandwidth or share counts as 0.
    """
    known = [group for group in groups if group.deviations is not None]
    deviations = sum(group.deviations or 0.0 for group in known) / len(known) if known else None
    return msgspec.structs.replace(
        groups[0],
        busbw_gbps=sum(group.busbw_gbps or 0.0 for group in groups) / len(groups),
        share=sum(group.share or 0.0 for group in groups) / len(groups),
        deviations=deviations,
    )


def _median_group(groups: Sequence[GroupSpeed]) -> GroupSpeed:
    """Return the group with the median bus bandwidth, of an even number the faster one of the middle two.

    A group without a figure counts as 0; ``groups`` must not be empty.
    """
    return sorted(groups, key=lambda group: group.busbw_gbps or 0.0)[len(groups) // 2]


def _is_little(group: GroupSpeed) -> bool:
    """Return whether a group is less than five robust deviations below the usual bandwidth.

    From there on a node is named. False where the spread is not known.
    """
    return group.deviations is not None and group.deviations < DEVIATIONS


def _usual_bandwidth(group: GroupSpeed) -> float:
    """Return the bus bandwidth in 10^9 bytes/s that is usual among groups like this one; 0 where that is not known."""
    return (group.busbw_gbps or 0.0) / group.share if group.share else 0.0


def _slow_node_finding(host: str, group: GroupSpeed, witnesses: Sequence[GroupSpeed], level: Level) -> FabricFinding:
    """Return the finding that ``host`` slows down every partner, with the mean bandwidth in ``group``.

    ``witnesses`` are the groups whose other nodes it quotes as the partners; ``level`` is its level. Its kind is
    ``slow-node``, its text ``n3 slows down every partner: 320 GB/s, 3.8 % below 332.7 (with n4, and with n5)``.
    ``group`` must have a share, as of ``_mean_group``.
    """
    return new_finding(
        "slow-node",
        level,
        (host,),
        f"{host} slows down every partner: {_bandwidth_text(group)} (with {_partners_text(host, witnesses)})",
        deviations=group.deviations,
    )


def _failing_node_finding(host: str, witnesses: Sequence[GroupSpeed]) -> FabricFinding:
    """Return the failure that no group with ``host`` gave a figure, with the first group's reason.

    ``witnesses`` are these groups; there must be at least one. Its kind is ``no-figure``.
    """
    return new_finding(
        "no-figure",
        "fail",
        (host,),
        f"{host} fails with every partner ({_partners_text(host, witnesses)}): {printable(witnesses[0].why)[:200]}",
    )


def _partners_text(host: str, witnesses: Sequence[GroupSpeed]) -> str:
    """Return the partners that ``host`` had in each group, as text: ``n[1-3], and with n[4-6]``.

    ``witnesses`` are these groups, in whose order they come. Empty without groups.
    """
    return ", and with ".join(_other_nodes_text(host, group) for group in witnesses)


def _other_nodes_text(host: str, group: GroupSpeed) -> str:
    """Return the nodes of a group except ``host``, as a host list such as ``n[1-3]``, cut to 200 characters.

    Sorted; empty where there is no other node.
    """
    return nodes_text([node for node in group.nodes if node != host])


def _domain_finding(domain: str, hosts: Sequence[str], known: Witnesses) -> FabricFinding:
    """Return the finding that the switch or segment ``domain`` is slow, about its slow nodes ``hosts``.

    It warns, and quotes the median of their groups, as ``known`` has them; it fails where none of these gave a figure.
    Its kind is ``slow-switch``.
    """
    against = chain.from_iterable(known.groups_against(host) for host in hosts)
    groups = [group for group in against if group.busbw_gbps is not None]
    bandwidth = _bandwidth_text(_median_group(groups)) if groups else "no figures"
    return new_finding(
        "slow-switch",
        "warn" if groups else "fail",
        hosts,
        f"{printable(domain)[:80]} is slow, with {len(hosts)} of its nodes: {bandwidth}",
    )


def _path_findings(found: Blame, topology: dict[str, str], expected: Expectation) -> list[FabricFinding]:
    """Return the findings on groups that are slow though each of their nodes is fast with others; empty: none.

    ``found`` has these groups (``together``). Several such groups within one switch are one warning of that switch,
    with the nodes of all, a node of several as often, and the figures of the first; each other group is one finding
    on the path between its nodes, which fails or warns by what is ``expected``. Hosts that ``topology`` lacks are
    on no switch. Findings come in the order of the groups, those of one switch, and those of none or several,
    together.
    """
    shared: dict[str, list[GroupSpeed]] = {}
    for group in found.together:
        domains = {topology.get(host, "") for host in group.nodes}
        shared.setdefault(domains.pop() if len(domains) == 1 else "", []).append(group)
    findings = []
    for domain, groups in shared.items():
        # What several slow groups within one switch have in common is the switch.
        if domain and len(groups) > 1:
            hosts = tuple(chain.from_iterable(group.nodes for group in groups))
            what = f"{printable(domain)[:80]} is slow, where its own nodes work together: {_bandwidth_text(groups[0])}"
            findings.append(new_finding("slow-switch", "warn", hosts, what, deviations=groups[0].deviations))
        else:
            findings += [_path_finding(group, expected) for group in groups]
    return findings


def _bandwidth_text(group: GroupSpeed) -> str:
    """Return a group's bus bandwidth against the usual one, as text: ``320 GB/s, 3.8 % below 332.7``.

    It has no full stop. Of a group without a figure it is the reason instead, cut to 200 characters. What is usual must
    be known for a group with a figure, else there is a ZeroDivisionError.
    """
    if group.busbw_gbps is None:
        return printable(group.why)[:200]
    return f"{figure(group.busbw_gbps, 'GB/s')}, {slower(group.busbw_gbps, _usual_bandwidth(group))}"


def _path_finding(group: GroupSpeed, expected: Expectation) -> FabricFinding:
    """Return the finding that the path between the nodes of ``group`` is slow: each of them is fast with others.

    Its level follows from ``group`` and ``expected``; the latter is not in its text. Its kind is ``slow-path``.
    """
    return new_finding(
        "slow-path",
        _slow_group_level(group, expected),
        group.nodes,
        f"{nodes_text(group.nodes)} are slow only with each other, so it is the path between them: "
        f"{_bandwidth_text(group)}",
        deviations=group.deviations,
    )


def _slow_group_level(group: GroupSpeed, expected: Expectation) -> Level:
    """Return how much a slow group counts: ``fail`` or ``warn``.

    ``expected`` is what the site expects. The group fails without a figure, and below what the site expects while the
    usual bandwidth of its like is not.
    """
    if group.busbw_gbps is None:
        return "fail"
    least = expected.least("groups", len(group.nodes))
    return "fail" if expected.fails(group.busbw_gbps, _usual_bandwidth(group), least) else "warn"


def _slow_once_note(group: GroupSpeed) -> FabricFinding:
    """Return the note that a group was slow in one measurement and fast in another; it quotes the slow one.

    It is about all nodes of the group; its kind is ``slow-once``.
    """
    return new_finding(
        "slow-once",
        "note",
        group.nodes,
        f"{nodes_text(group.nodes)} were slow once, not again: {_bandwidth_text(group)}",
        deviations=group.deviations,
    )


def _unknown_node_finding(group: GroupSpeed, known: Witnesses, expected: Expectation) -> FabricFinding:
    """Return the finding that a node of ``group``, or a path between them, is slow, and that it is open which.

    It fails or warns by the group's speed and what is ``expected``, and is about all its nodes; its text names those
    that are out of the question, because they are fast with others, as ``known`` tells. Its kind is ``unknown``.
    """
    fast = [host for host in group.nodes if host in known.cleared]
    but = f"; it is not {nodes_text(fast)}, fast with others" if fast else ""
    return new_finding(
        "unknown",
        _slow_group_level(group, expected),
        group.nodes,
        f"one of {nodes_text(group.nodes)}, or a path between them, is slow: {_bandwidth_text(group)}{but}",
        deviations=group.deviations,
    )
