"""Which rail makes nodes slow: GPU i of each node of a slow group by themselves, for each i at the same time.

On most clusters GPU i of every node reaches the network through adapter i, and these share a switch: a rail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import msgspec

from llmb_common.base.printable import counted, printable
from llmb_common.nodes.fabric.expectation import Expectation
from llmb_common.nodes.fabric.measurement import FabricMeasurement, GroupMeasurement
from llmb_common.nodes.fabric.spread import DEVIATIONS, usual
from llmb_common.nodes.fabric.verdict import FabricFinding, FabricVerdict, new_finding
from llmb_common.nodes.fabric.words import figure, nodes_text

MOST_GROUPS = 16
"""Groups whose rails are measured: these are examples, and what they share shows in a few."""
_FEW_GROUPS = 4
"""The same where no group is slower than the others, and all are slower than the site expects."""
SHARED = 3
"""Findings with the same slow rail are one: two nodes of 100 have theirs in common by chance."""
_MOST_ADAPTERS = 4
_OF_ONE = ("slow-node", "slow-path", "unknown")

_Rails = dict[int, GroupMeasurement]


def rail_groups(measured: FabricMeasurement, judged: FabricVerdict) -> list[list[str]]:
    """Return disjoint groups of hosts to measure again by rail: GPU i of each node by itself, for each i.

    ``judged`` is the verdict on ``measured``. The groups are slow ones that gave a figure, with at least one node that
    a warning or failure is about; those of late rounds come first, of one round the slowest, at most 16. Where there
    are none, but a measure is below what the site expects, the first four groups of the first round with a figure
    serve. Groups with missing nodes are left out. Empty: there is nothing to ask. Nothing is measured here.
    """
    weighty = [finding for finding in judged.findings if finding.level != "note"]
    blamed = set(chain.from_iterable(finding.hosts for finding in weighty))
    slow = [group for group in judged.groups if group.slow and group.busbw_gbps]
    slow = [group for group in slow if blamed.intersection(group.nodes)]
    # Those of later rounds have one suspect each.
    slow.sort(key=lambda group: (-group.round, group.share or 0.0))
    wanted = [group.nodes for group in slow]
    most = MOST_GROUPS
    if not wanted and any(finding.kind == "below-expectation" for finding in judged.findings):
        wanted = [group.nodes for group in measured.rounds[0] if group.busbw_gbps] if measured.rounds else []
        most = _FEW_GROUPS
    # Missing nodes count as taken: no group with one of them can be measured.
    taken = set(measured.missing)
    chosen: list[list[str]] = []
    for nodes in wanted:
        if len(chosen) < most and taken.isdisjoint(nodes):
            chosen.append(list(nodes))
            taken.update(nodes)
    return chosen


def with_rails(
    findings: Sequence[FabricFinding], measured: FabricMeasurement, expected: Expectation
) -> list[FabricFinding]:
    """Return ``findings``, those with a rail that is slow in all measured groups with a node of it as copies that name
    it.

    The others, and notes, stay as they are, in their order. A rail is the way of one GPU number to the network, the
    same on all nodes. Three or more warnings with the same slow rail, of slow nodes, of paths, or of groups of
    which it is open who is slow, are replaced by one finding on that rail, and one is added for a rail that is slow
    in all groups, at least two, if no finding, be it a note, is about a node of theirs; both come at the end.
    Unchanged where no rails were measured. ``measured`` has the rails; ``expected`` only says below which share of
    the median a rail is slow, on CPUs and where too few were measured to know their spread.
    """
    slow = _slow_rails(measured, expected)
    rails = [_rails_of(finding, slow) for finding in findings]
    sharing: dict[int, list[int]] = {}
    for at, finding in enumerate(findings):
        if finding.kind in _OF_ONE and finding.level == "warn":
            for number in rails[at]:
                sharing.setdefault(number, []).append(at)
    shared = {number: places for number, places in sharing.items() if len(places) >= SHARED}
    together = set(chain.from_iterable(shared.values()))
    with_named_rails = [_with_rails(finding, rails[at]) for at, finding in enumerate(findings) if at not in together]
    for number, places in shared.items():
        hosts = dict.fromkeys(chain.from_iterable(findings[at].hosts for at in places))
        with_named_rails.append(_rail_finding(number, list(hosts), slow))
    everywhere = _rails_in_all(list(slow.values())) if len(slow) > 1 else {}
    named_numbers = {*shared, *chain.from_iterable(rails)}
    with_named_rails += [_rail_finding(number, [], slow) for number in everywhere if number not in named_numbers]
    return with_named_rails


def _slow_rails(measured: FabricMeasurement, expected: Expectation) -> dict[tuple[str, ...], _Rails]:
    """Return the slow rails of each group that was measured by rail, by the group's nodes.

    Each is by the GPU's number, with its measurement. Slow is what is below the limit for all rails of groups of that
    size; on CPUs, and for fewer than six rails, ``expected`` has that limit as a share of the median. Empty for a
    group where half of the rails or more are slow, as then no rail stands out, or where too few were measured to say
    what is usual. Rails without a figure do not count. ``measured`` has the figures. Empty where no rails were
    measured.
    """
    by_nodes: dict[tuple[str, ...], _Rails] = {}
    by_size: dict[int, list[float]] = {}
    for group in measured.rails:
        if group.rail is not None and group.busbw_gbps is not None:
            by_nodes.setdefault(group.nodes, {})[group.rail] = group
            by_size.setdefault(len(group.nodes), []).append(group.busbw_gbps)
    limits: dict[int, float] = {}
    for size, figures in by_size.items():
        own = usual(figures, times=DEVIATIONS, ratio=expected.ratio("groups"), by_ratio=expected.by_ratio)
        # Rails of groups of one size are compared over all groups: one group alone has too few.
        limits[size] = own.limit if own else 0.0
    found: dict[tuple[str, ...], _Rails] = {}
    for nodes, rails in by_nodes.items():
        slow = {number: rail for number, rail in rails.items() if _rail_bandwidth(rail) < limits[len(nodes)]}
        found[nodes] = slow if 2 * len(slow) < len(rails) else {}
    return found


def _rail_bandwidth(rail: GroupMeasurement) -> float:
    """Return the bus bandwidth of one rail (one GPU a node) in 10^9 bytes/s; 0 where it gave no figure."""
    return rail.busbw_gbps or 0.0


def _rails_of(finding: FabricFinding, slow: Mapping[tuple[str, ...], _Rails]) -> _Rails:
    """Return the rails that are slow in every measured group with a node of ``finding``, by GPU number.

    ``slow`` has the slow rails of each group, by its nodes. Empty: there is no such rail, or no such group was
    measured.
    """
    groups = [rails for nodes, rails in slow.items() if not set(nodes).isdisjoint(finding.hosts)]
    return _rails_in_all(groups)


def _rails_in_all(groups: Sequence[_Rails]) -> _Rails:
    """Return the rails that are in every one of ``groups``, by GPU number, with the first group's measurements.

    Empty: no rail is in all, or there are no groups.
    """
    if not groups:
        return {}
    first = groups[0]
    in_all = [number for number in first if all(number in rails for rails in groups)]
    return {number: first[number] for number in in_all}


def _with_rails(finding: FabricFinding, rails: _Rails) -> FabricFinding:
    """Return a copy of ``finding`` that names the slow ``rails`` in its text and has their numbers.

    ``rails`` are measurements by GPU number. Behind the text comes
    ``; only by rail 3 (mlx5_3, 12.5 GB/s of one GPU a node)``, with " and " between several rails. Without any, and
    for a note, it is ``finding`` itself.
    """
    if not rails or finding.level == "note":
        return finding
    rails_text = " and ".join(_rail_text(number, [rail]) for number, rail in rails.items())
    return msgspec.structs.replace(finding, what=f"{finding.what}; only by {rails_text}", rails=tuple(rails))


def _rail_text(number: int, rails: Sequence[GroupMeasurement]) -> str:
    """Return a rail as text, with adapters and lowest bandwidth: ``rail 3 (mlx5_3, 12.5 GB/s of one GPU a node)``.

    ``rails`` are its measurements in several groups, at least one, of which one without a figure counts as 0; of their
    adapters the first four are named, each once. ``number`` is the GPU's on each node, from 0.
    """
    names = chain.from_iterable(rail.adapters for rail in rails)
    adapters = dict.fromkeys(printable(name)[:40] for name in names)
    lowest = figure(min(_rail_bandwidth(rail) for rail in rails), "GB/s")
    words = [*list(adapters)[:_MOST_ADAPTERS], f"{lowest} of one GPU a node"]
    return f"rail {number} ({', '.join(words)})"


def _rail_finding(number: int, hosts: Sequence[str], slow: Mapping[tuple[str, ...], _Rails]) -> FabricFinding:
    """Return the warning that rail ``number`` is slow on ``hosts``; empty hosts: in all groups measured by rail.

    ``slow`` has the slow rails of each group; at least one must have this rail. Its kind is ``slow-rail``.
    """
    of_groups = [rails[number] for rails in slow.values() if number in rails]
    where = nodes_text(hosts) if hosts else f"all {counted(len(of_groups), 'group')} that were measured by rail"
    return new_finding(
        "slow-rail", "warn", hosts, f"{_rail_text(number, of_groups)} is slow, of {where}", rails=(number,)
    )
