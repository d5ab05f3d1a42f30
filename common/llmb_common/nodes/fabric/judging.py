"""A fabric judged by its own spread: the answer first, what was found, and what so many groups can show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from llmb_common.base.printable import counted, first_few, percent, printable
from llmb_common.nodes.fabric.alone import alone_findings, measure
from llmb_common.nodes.fabric.expectation import Expectation
from llmb_common.nodes.fabric.grouping import usable_topology
from llmb_common.nodes.fabric.halving import halving_findings
from llmb_common.nodes.fabric.measurement import FabricMeasurement
from llmb_common.nodes.fabric.naming import group_findings
from llmb_common.nodes.fabric.rails import with_rails
from llmb_common.nodes.fabric.speeds import group_speeds
from llmb_common.nodes.fabric.spread import RATIO_FROM
from llmb_common.nodes.fabric.verdict import Answer, FabricFinding, FabricVerdict, GroupSpeed, Measure, new_finding
from llmb_common.nodes.fabric.words import figure, nodes_text
from llmb_common.planning.site.cluster import HealthSettings

_ORDER = ("fail", "warn", "note")


def judge(
    measurement: FabricMeasurement,
    topology: Mapping[str, str] | None = None,
    expectation: HealthSettings | None = None,
) -> FabricVerdict:
    """Return the verdict on a fabric and its nodes by what was measured: findings, medians and speeds of groups.

    Slow GPUs, nodes and paths are warned of; they fail only below the site's ``expectation`` (None: there is none).
    GPUs and nodes that report an error fail, and so do nodes that hung, are missing or gave no figure with any partner.
    Nothing is measured here. ``topology`` has the switch, segment or NVL72 domain of hosts; None: not known. Little
    data is no error: where no group could be compared with others, and nothing fails or is warned of, the level is
    ``not judged``.
    """
    domains = usable_topology(measurement.hosts, topology or {})
    expected = Expectation(expectation or HealthSettings(), measurement.device)
    measures, findings = alone_findings(measurement, expected)
    groups, of_groups = group_speeds(measurement, domains, expected)
    of_all_nodes = _all_nodes_measures(measurement, expected)
    measures += [*of_groups, *of_all_nodes]
    findings += [
        *_missing_findings(measurement),
        *_error_findings(measurement),
        *_without_hung_by_missing(group_findings(groups, domains, expected), measurement),
        # Halves follow every switch that is known, also where groups could not.
        *halving_findings(measurement, topology or {}, expected),
        *_below_expectation(measures),
    ]
    findings = _worst_first(with_rails(findings, measurement, expected))
    level = _worst_level(findings, groups)
    return FabricVerdict(
        level=level,
        answer=_answer_line(level, findings, measurement, of_groups, of_all_nodes),
        findings=tuple(findings),
        coarseness=_coarseness_text(of_groups, measurement.device),
        measures=tuple(measures),
        groups=tuple(groups),
        topology=domains,
    )


def with_findings(verdict: FabricVerdict, findings: Sequence[FabricFinding]) -> FabricVerdict:
    """Return a copy of the verdict with ``findings`` instead of its own, and with level and answer to match.

    The rest stays. At least one of the findings must warn or fail, which is not checked. They may be in any order, and
    come out worst first.
    """
    ordered = _worst_first(findings)
    level: Answer = "fail" if ordered[0].level == "fail" else "warn"
    return msgspec.structs.replace(verdict, level=level, answer=_of_worst(level, ordered), findings=tuple(ordered))


def _worst_first(findings: Sequence[FabricFinding]) -> list[FabricFinding]:
    """Return the findings with those that fail first, then warnings, then notes, each in their former order.

    A new list; ``findings`` is not changed.
    """
    return sorted(findings, key=lambda finding: _ORDER.index(finding.level))  # stable


def _without_hung_by_missing(findings: Sequence[FabricFinding], measured: FabricMeasurement) -> list[FabricFinding]:
    """Return ``findings`` without those of hung nodes that are missing, too, in the same order.

    ``measured`` tells which are missing. Of a node that died it is enough to say that it is missing.
    """
    return [
        finding
        for finding in findings
        if finding.kind != "hung" or not all(host in measured.missing for host in finding.hosts)
    ]


def _missing_findings(measured: FabricMeasurement) -> list[FabricFinding]:
    """Return a failure for each node that did not take part in the check to the end, with the reason.

    The reason is cut to 200 characters. Empty: there are none. In the order of ``measured.missing``. The kind is
    ``missing``.
    """
    return [
        new_finding("missing", "fail", (host,), f"{host} did not take part, or not to the end: {printable(why)[:200]}")
        for host, why in measured.missing.items()
    ]


def _error_findings(measured: FabricMeasurement) -> list[FabricFinding]:
    """Return a failure for each GPU, and each node measured by itself, that reports an error; empty: there are none.

    One more, with empty ``hosts``, follows if all nodes together were measured and gave no figure. Errors of groups
    are not among them. GPUs come first, then nodes, each in the order of ``measured``. The kind is ``no-figure``,
    of all nodes together ``whole-fleet``.
    """
    found = [
        new_finding("no-figure", "fail", (node.host,), f"{node.host}: GPU {node.gpu}: {printable(node.error)[:200]}")
        for node in measured.nodes
        if node.error
    ]
    found += [
        new_finding(
            "no-figure",
            "fail",
            group.nodes,
            f"{nodes_text(group.nodes)}: all-reduce in the node: {printable(group.error)[:200]}",
        )
        for group in measured.within
        if group.error
    ]
    whole = measured.whole
    if whole is not None and whole.busbw_gbps is None:
        found.append(
            new_finding(
                "whole-fleet",
                "fail",
                (),
                f"all {len(whole.nodes)} nodes together gave no figure: {printable(whole.error)[:200]}",
            )
        )
    return found


def _all_nodes_measures(measured: FabricMeasurement, expected: Expectation) -> list[Measure]:
    """Return the summary of the one all-reduce over all nodes, as a list of one; empty where it gave no figure.

    ``measured`` has the figure (``whole``). The summary has the least figure that the site accepts, by
    ``expected``, but no limit: there is nothing to compare it with.
    """
    whole = measured.whole
    if whole is None or whole.busbw_gbps is None:
        return []
    return [measure("whole", [whole.busbw_gbps], None, expected.least("whole"), len(whole.nodes))]


def _below_expectation(measures: Sequence[Measure]) -> list[FabricFinding]:
    """Return a failure for each measure whose median is below what the site accepts; empty: none is.

    They are about no node in particular: their ``hosts`` are empty. In the order of ``measures``; those without a
    ``least`` are left out. The kind is ``below-expectation``.
    """
    findings = []
    for item in measures:
        if item.least is None or item.median >= item.least:
            continue
        found = figure(item.median, item.unit)
        if item.count > 1:
            found += " (median)"
        text = f"{item.word}: {found}, the site expects at least {figure(item.least, item.unit)}"
        findings.append(new_finding("below-expectation", "fail", (), text))
    return findings


def _worst_level(findings: Sequence[FabricFinding], groups: Sequence[GroupSpeed]) -> Answer:
    """Return the verdict in a word: ``fail`` or ``warn`` by the worst of ``findings``; notes alone do not count.

    Else it is ``ok``, or ``not judged`` where none of ``groups`` could be compared with others, also because there
    are none.
    """
    levels = {finding.level for finding in findings}
    if "fail" in levels:
        return "fail"
    if "warn" in levels:
        return "warn"
    return "ok" if any(group.slow is not None for group in groups) else "not judged"


def _answer_line(
    level: Answer,
    findings: Sequence[FabricFinding],
    measured: FabricMeasurement,
    of_groups: Sequence[Measure],
    of_all_nodes: Sequence[Measure],
) -> str:
    """Return the verdict on a fabric with its reason as one line, such as ``ok: no node is slower than the others``.

    Without a full stop. ``fail`` and ``warn`` quote the first two findings of that level and count the others; ``ok``
    and ``not judged`` end with the bus bandwidths of ``of_groups`` and ``of_all_nodes``, the summaries of groups and of
    all nodes together. ``ok`` tells of two kinds of nodes, if a finding does. ``measured`` gives the number of groups
    that were too few to judge.
    """
    if level == "not judged":
        count = len(measured.rounds[0]) if measured.rounds else 0
        few = f"{counted(count, 'group')}, too few to compare (at least {RATIO_FROM})"
        if not count:
            few = "no two nodes were measured together"
        return f"not judged: {few}{_bandwidths_text(of_groups, of_all_nodes)}"
    if level == "ok":
        kinds = [finding.what for finding in findings if finding.kind == "two-kinds"]
        reason = kinds[0] if kinds else "no node is slower than the others"
        return f"ok: {reason}{_bandwidths_text(of_groups, of_all_nodes)}"
    return _of_worst(level, findings)


def _of_worst(level: Answer, findings: Sequence[FabricFinding]) -> str:
    """Return the line of a verdict that warns or fails: its ``level``, a colon, and two findings of that level.

    They are the first two. A semicolon is between the two; further ones are only counted, ``and 3 more``. No full
    stop.
    """
    worst = [finding.said for finding in findings if finding.level == level]
    return f"{level}: {first_few(worst, 2, '; ')}"


def _bandwidths_text(of_groups: Sequence[Measure], of_all_nodes: Sequence[Measure]) -> str:
    """Return the bus bandwidths of groups and of all nodes as the rest of a sentence; each part begins with ``; ``.

    Such as ``; 12 groups of 2 nodes gave 300 GB/s in the median; all 24 together 250 GB/s``, without a full stop. Empty
    where neither was measured. Of the groups only the commonest kind is told, which comes first in ``of_groups``.
    """
    parts = []
    if of_groups:
        item = of_groups[0]
        groups = f"{counted(item.count, 'group')} of {item.nodes} nodes"
        parts.append(f"; {groups} gave {figure(item.median, item.unit)} in the median")
    parts += [f"; all {item.nodes} together {figure(item.median, item.unit)}" for item in of_all_nodes]
    return "".join(parts)


def _coarseness_text(of_groups: Sequence[Measure], device: str) -> str:
    """Return how slow a node must be for the measured groups to show it, in whole sentences with periods.

    ``of_groups`` are the summaries of groups, the commonest kind first, which alone counts; ``device`` is ``cuda`` or
    ``cpu``. Where groups are too few to compare, that is said instead.
    """
    main = of_groups[0] if of_groups else None
    if main is None or main.limit is None:
        return "Fewer than three groups cannot be compared. health: in cluster_config.yaml can say what to expect."
    limit = percent(1 - main.limit / main.median)
    blind = "What slows all nodes equally shows only against the site's expectation."
    if device == "cpu":
        return f"On CPUs a group is called slow only if it is {limit} slower than the others. {blind}"
    if main.deviation is None:
        return (
            f"So few groups do not show how much healthy ones differ: only one that is {limit} slower is called slow."
            f" {blind}"
        )
    differ = percent(main.deviation / main.median, 2)
    # Two deviations beyond the limit: chance seldom lifts such a node above it.
    sure = percent((main.median - main.limit + 2 * main.deviation) / main.median)
    return (
        f"{counted(main.count, 'group')} of {main.nodes} nodes differ by {differ}: a group that is {limit} slower"
        f" counts as slow, and a node that costs {sure} is nearly always found. {blind}"
    )
