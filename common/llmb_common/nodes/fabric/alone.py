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
    """One figure that a GPU or a node gave by itself, for one measure, in that measure's unit: TFLOPS or 10^9 bytes/s.

    ``_figures_by_measure`` makes it. ``host`` is the node's name, ``gpu`` the GPU's number there, from 0; None: the
    figure is of the whole node. The larger, the better.
    """

    host: str
    gpu: int | None
    figure: float


def alone_findings(measured: FabricMeasurement, expected: Expectation) -> tuple[list[Measure], list[FabricFinding]]:
    """Return (measures, findings) of what GPUs and nodes gave by themselves: nothing between nodes.

    ``measured`` has the figures; ``expected`` is what the site expects. The measures are the matrix product, copies in
    memory, to the GPU and from it, and the all-reduce within a node, in this order; one that nobody gave a figure for
    is left out. Both lists are empty where nobody gave any. Findings come in the same order, and are only on slow GPUs
    and nodes and on two kinds of nodes, not on errors and missing figures.
    """
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
    """Return the figures that GPUs and nodes gave by themselves, by the measure's name.

    Each list is in the order of the measurement. All five names, ``matrix``, ``copy``, ``to_gpu``, ``from_gpu`` and
    ``within``, are always there, in this order, in which they are reported; a list is empty where nobody gave a
    figure of that measure. A figure of 0 counts as none, and one within several nodes is left out.
    """
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
    """Return the summary of ``figures``, all of one kind: their number, median, lowest, spread and limits.

    All are in the unit of the measure ``name``. The median is that of ``own``, what is usual among them, which leaves
    out a slower kind; where that is None, as figures are too few, it is the median of all, and there is neither spread
    nor limit. The lowest is of all. ``least`` is the least figure that the site accepts; None: it expects none.
    ``nodes`` is the number of nodes in a group.

    Raises:
        ValueError: ``figures`` is empty
    """
    return Measure(
        name=name,
        word=MEASURES[name].word,
        unit=MEASURES[name].unit,
        nodes=nodes,
        count=len(figures),
        # Of two kinds of nodes it is that of the usual one, which others are compared with.
        median=own.median if own else statistics.median(figures),
        lowest=min(figures),
        deviation=own.seen if own else None,
        limit=own.limit if own else None,
        least=least,
    )


def _measure_findings(
    name: MeasureName, values: Sequence[Value], own: Usual | None, expected: Expectation
) -> list[FabricFinding]:
    """Return one finding for each node with slow figures of one measure, in the order of measurement; empty: none.

    ``values`` are the figures of the measure ``name``, of all nodes; ``expected`` is what the site expects. A node's
    slowest figure decides. A figure is slow below the limit of ``own`` (None: there is none), or where it fails. It
    fails where it is below what the site expects while the median of all is not; other slow ones are warned of. Where
    too many nodes are slow (``is_too_many``), those that do not fail share one note, which comes last, that there are
    two kinds of nodes. That note comes, too, where nobody is slow but the figures fall into two clusters. The kind is
    ``slow-within`` for the measure ``within``, else ``slow-gpu``; that of the note is ``two-kinds``.

    Raises:
        ValueError: ``values`` is empty
    """
    median = statistics.median(value.figure for value in values)
    least = expected.least(name)
    usual_figure = own.median if own else median
    slow: dict[str, list[Value]] = {}
    for value in values:
        is_slow = own is not None and value.figure < own.limit
        if is_slow or expected.fails(value.figure, median, least):
            slow.setdefault(value.host, []).append(value)
    findings = []
    of_kind: list[str] = []
    many = is_too_many(len(slow), len({value.host for value in values}))
    for host, found in slow.items():
        worst = min(found, key=lambda value: value.figure)
        fails = expected.fails(worst.figure, median, least)
        # Whoever fails what the site expects is named, however many others do as well.
        if many and not fails:
            of_kind.append(host)
        else:
            level: Level = "fail" if fails else "warn"
            deviations = own.deviations(worst.figure) if own else None
            findings.append(_slow_node(name, level, found, usual_figure, deviations))
    if of_kind:
        figures = [value.figure for value in chain.from_iterable(slow[host] for host in of_kind)]
        findings.append(two_kinds_note(name, of_kind, statistics.median(figures), usual_figure))
    # Two kinds can lie closer together than the limit: then nobody is slow, and it is still worth knowing.
    elif own and own.lower and not slow:
        findings.append(two_kinds_note(name, [], own.lower[1], usual_figure))
    return findings


def _slow_node(
    name: MeasureName, level: Level, found: Sequence[Value], usual_figure: float, deviations: float | None
) -> FabricFinding:
    """Return the finding, of the level ``level``, that one node has the slow figures ``found`` of the measure ``name``.

    Its slowest figure decides, which is compared with ``usual_figure``; ``deviations`` is how far it is from that.
    """
    worst = min(found, key=lambda value: value.figure)
    measure_kind = MEASURES[name]
    text = f"{measure_kind.word} {figure(worst.figure, measure_kind.unit)}, {slower(worst.figure, usual_figure)}"
    return new_finding(
        "slow-within" if name == "within" else "slow-gpu",
        level,
        (worst.host,),
        f"{worst.host}: {_gpus_prefix(found)}{text}",
        deviations=deviations,
    )


def _gpus_prefix(found: Sequence[Value]) -> str:
    """Return the GPUs of some figures of one node as the beginning of a sentence, ``GPUs 2,5: `` or ``GPU 2: ``.

    It ends with a blank. They come in the order of ``found``. Empty where the figures are of whole nodes, or there are
    none.
    """
    gpus = [str(value.gpu) for value in found if value.gpu is not None]
    if not gpus:
        return ""
    return f"GPU {gpus[0]}: " if len(gpus) == 1 else f"GPUs {','.join(gpus)}: "


OF_FLEET = 0.2
"""Of the nodes: more slow ones are not single faults, but have something in common."""


def is_too_many(slow: int, of: int) -> bool:
    """Return whether ``slow`` nodes out of ``of`` are too many to be single faults.

    That is at least four and at least a fifth of all: they are another kind of node, or have a common cause.
    """
    return slow >= max(4, OF_FLEET * of)


def two_kinds_note(name: MeasureName, hosts: Sequence[str], lower: float, median: float) -> FabricFinding:
    """Return the finding, of the level ``note``, that the fleet has two kinds of nodes, one slower than the other.

    ``hosts`` are the nodes of the slower kind; empty: it is not known which they are. ``lower`` and ``median`` are
    the median figures of the slower and of the usual kind, in the unit of the measure ``name``; ``median`` must not
    be 0. Its kind is ``two-kinds``.
    """
    slower_nodes = f"{len(hosts)} of them, {nodes_text(hosts)}," if hosts else "some"
    return new_finding(
        "two-kinds",
        "note",
        hosts,
        f"there are two kinds of nodes: {slower_nodes} give {slower(lower, median)} {MEASURES[name].unit}"
        f" ({MEASURES[name].word})",
    )
