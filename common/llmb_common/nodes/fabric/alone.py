"""Each GPU and each node by itself, held against the others."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from llmb_common.nodes.fabric.expectation import Expectation
from llmb_common.nodes.fabric.measurement import FabricMeasurement
from llmb_common.nodes.fabric.spread import DEVIATIONS, Usual, usual
from llmb_common.nodes.fabric.verdict import FabricFinding, Level, Measure, new_finding
from llmb_common.nodes.fabric.words import MEASURES, MeasureName, figure, nodes_text, slower


class Value(NamedTuple):
    """One figure of a GPU by itself; ``gpu`` None: of its whole node."""

    host: str
    gpu: int | None
    figure: float


def alone_findings(measured: FabricMeasurement, expected: Expectation) -> tuple[list[Measure], list[FabricFinding]]:
    """(measures, findings) of matrix products, copies and all-reduces within a node; empty without figures."""
    measures: list[Measure] = []
    findings: list[FabricFinding] = []
    for name, values in _figures_by_measure(measured).items():
        if values:
            own = usual(
                [value.figure for value in values],
                times=DEVIATIONS,
                ratio=expected.ratio(name),
                by_ratio=expected.by_ratio,
            )
            measures.append(measure(name, [value.figure for value in values], own, expected.least(name)))
            findings += _measure_findings(name, values, own, expected)
    return measures, findings


def _figures_by_measure(measured: FabricMeasurement) -> dict[MeasureName, list[Value]]:
    """The figures that GPUs and nodes gave by themselves, by what was measured; empty where nobody gave one."""
    matrix = [Value(node.host, node.gpu, node.tflops) for node in measured.nodes if node.tflops]
    copy = [Value(node.host, node.gpu, node.copy_gbps) for node in measured.nodes if node.copy_gbps]
    within = [
        Value(group.nodes[0], None, group.busbw_gbps)
        for group in measured.within
        if group.busbw_gbps and len(group.nodes) == 1
    ]
    to_gpu = [Value(node.host, node.gpu, node.to_gpu_gbps) for node in measured.nodes if node.to_gpu_gbps]
    from_gpu = [Value(node.host, node.gpu, node.from_gpu_gbps) for node in measured.nodes if node.from_gpu_gbps]
    return {"matrix": matrix, "copy": copy, "to_gpu": to_gpu, "from_gpu": from_gpu, "within": within}


def measure(
    name: MeasureName, figures: Sequence[float], own: Usual | None, least: float | None, nodes: int = 1
) -> Measure:
    """All figures of one kind as one measure: their median, lowest and limit.

    ``own`` is what is usual, None where too few figures say it; ``least`` is the site's expectation.
    """
    return Measure(
        name=name,
        word=MEASURES[name].word,
        unit=MEASURES[name].unit,
        nodes=nodes,
        count=len(figures),
        median=own.median if own else statistics.median(figures),
        lowest=min(figures),
        deviation=own.seen if own else None,
        limit=own.limit if own else None,
        least=least,
    )


def _measure_findings(
    name: MeasureName, values: Sequence[Value], own: Usual | None, expected: Expectation
) -> list[FabricFinding]:
    """What slow figures of one kind say of GPUs and nodes; empty where none is slow.

    Where many are slow, that is one note: there are two kinds of machine.
    """
    median = statistics.median(value.figure for value in values)
    least = expected.least(name)
    slow: dict[str, list[Value]] = {}
    for value in values:
        is_slow = own is not None and value.figure < own.limit
        if is_slow or expected.fails(value.figure, median, least):
            slow.setdefault(value.host, []).append(value)
    usual_figure = own.median if own else median
    finding_kind = "slow-within" if name == "within" else "slow-gpu"
    findings = []
    kind: list[str] = []
    many = is_too_many(len(slow), len({value.host for value in values}))
    for host, found in slow.items():
        worst = min(found, key=lambda value: value.figure)
        level: Level = "fail" if expected.fails(worst.figure, median, least) else "warn"
        if many and level != "fail":
            kind.append(host)
            continue
        findings.append(
            new_finding(
                finding_kind,
                level,
                (host,),
                f"{host}: {_gpus_prefix(found)}{MEASURES[name].word} {figure(worst.figure, MEASURES[name].unit)},"
                f" {slower(worst.figure, usual_figure)}",
                deviations=own.deviations(worst.figure) if own else None,
            )
        )
    if kind:
        of_kind = chain.from_iterable(slow[host] for host in kind)
        median = statistics.median(value.figure for value in of_kind)
        findings.append(two_kinds_note(name, kind, median, usual_figure))
    elif own and own.lower and not slow:
        findings.append(two_kinds_note(name, [], own.lower[1], usual_figure))
    return findings


def _gpus_prefix(found: Sequence[Value]) -> str:
    """The GPUs of the figures, to begin a sentence with: ``GPUs 2,5: ``; empty for whole nodes."""
    gpus = [str(value.gpu) for value in found if value.gpu is not None]
    if not gpus:
        return ""
    return f"GPU {gpus[0]}: " if len(gpus) == 1 else f"GPUs {','.join(gpus)}: "


OF_FLEET = 0.2
"""Of the nodes: more slow ones are not single faults, but have something in common."""


def is_too_many(slow: int, of: int) -> bool:
    """Whether so many slow nodes are too many for single faults: another kind of node, or a common cause.

    ``of``: how many nodes there are.
    """
    return slow >= max(4, OF_FLEET * of)


def two_kinds_note(name: MeasureName, hosts: Sequence[str], lower: float, median: float) -> FabricFinding:
    """The note that there are two kinds of nodes, of which the slower one is ``hosts``; empty: not known.

    ``lower`` and ``median`` are the medians of the slower and of the usual kind.
    """
    slower_nodes = f"{len(hosts)} of them, {nodes_text(hosts)}," if hosts else "some"
    return new_finding(
        "two-kinds",
        "note",
        hosts,
        f"there are two kinds of nodes: {slower_nodes} give {slower(lower, median)} {MEASURES[name].unit}"
        f" ({MEASURES[name].word})",
    )
