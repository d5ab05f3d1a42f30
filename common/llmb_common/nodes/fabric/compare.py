"""Two measurements of a fabric, such as of two days: the fleet as a whole, and who changed unlike the others."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from llmb_common.base.printable import percent
from llmb_common.base.statistics import robust_deviation
from llmb_common.nodes.fabric.measurement import FabricMeasurement
from llmb_common.nodes.fabric.spread import DEVIATIONS, FLOOR, SPREAD_FROM, Usual, usual
from llmb_common.nodes.fabric.words import MEASURES, MeasureName, figure, nodes_text

Comparison = Literal["slower", "faster", "no difference", "nothing in common"]


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """How one measure (such as the matrix product) changed from the first to the second measurement of a fabric.

    ``compare_fabrics`` makes it. Only figures of a GPU, node or group that both measurements have are compared; the
    larger is the better. ``name`` is the measure's, a key of ``MEASURES``; of all nodes together (``whole``) only
    one figure counts. ``slower`` has names such as ``n1 GPU 0``, ``n1`` or ``n[1-4]`` as its keys, and ratios of
    second to first; it needs six figures or more.
    """

    name: MeasureName
    count: int
    """GPUs, nodes or groups that both have."""
    first: float
    """Median of the first measurement, in the measure's unit (TFLOPS or 10^9 bytes/s)."""
    second: float
    """Median of the second measurement, of the same GPUs, nodes or groups."""
    ratio: float
    """Median of the ratios of second to first, each of the same GPU, node or group; below 1: slower."""
    is_real: bool
    """Whether the change of the median is beyond what chance explains, and more than half a percent."""
    slower: dict[str, float] = {}
    """GPUs, nodes or groups that became slower unlike the others, with the ratio of each; empty: none, or too few to
    tell."""


class FabricComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between two measurements of a fabric: ``answer`` in a word or two, ``lines`` to print.

    ``compare_fabrics`` makes it. ``answer`` is ``slower``, ``faster``, ``no difference`` or ``nothing in common``, of
    the second measurement's bandwidths and speeds.
    """

    answer: Comparison
    """The verdict on the second measurement."""
    lines: tuple[str, ...]
    """The whole comparison for people; the first line is the verdict as a sentence."""
    changes: tuple[Changed, ...] = ()
    """One for each measure that both have figures of; empty: they share none."""
    only_first: tuple[str, ...] = ()
    """Hosts of the first measurement only, sorted; empty: none."""
    only_second: tuple[str, ...] = ()
    """Hosts of the second measurement only, sorted; empty: none."""


def compare_fabrics(first: FabricMeasurement, second: FabricMeasurement) -> FabricComparison:
    """Return how the second measurement differs from the first one, GPU by GPU, node by node, group by group.

    Only figures that both have are compared: matrix products, copies within a GPU's memory, all-reduces within
    nodes and in the groups of the first round, and collectives over all nodes. Hosts go by their names, GPUs by
    host and number, groups by their hosts in any order, collectives by their name, numbers of nodes and ranks, and
    message size. Nothing is refused: measurements that share none, such as one of CPUs and one of GPUs, have no
    ``changes`` and the answer ``nothing in common``. Hosts that only one of them has are listed, sorted, in any
    case.
    """
    changes = []
    for name, of in _SAME.items() if first.device == second.device else ():
        change = _change_of_measure(name, of(first), of(second))
        if change is not None:
            changes.append(change)
    one, other = set(first.hosts), set(second.hosts)
    found = FabricComparison(
        answer=_comparison_answer(changes),
        lines=(),
        changes=tuple(changes),
        only_first=tuple(sorted(one - other)),
        only_second=tuple(sorted(other - one)),
    )
    return msgspec.structs.replace(found, lines=tuple(_comparison_lines(found)))


def as_data(found: FabricComparison) -> dict[str, Any]:
    """Return a comparison of two fabric measurements as JSON values.

    The keys are ``answer``, ``lines``, ``changes``, ``only_first`` and ``only_second``; each change has the fields of
    ``Changed``.
    """
    data: dict[str, Any] = msgspec.to_builtins(found)
    return data


def _matrix_figures(measured: FabricMeasurement) -> dict[str, float]:
    """Return the TFLOPS of the matrix product by GPU, such as ``n1 GPU 0``, in the order of measurement.

    GPUs without a figure are left out; empty: none gave one.
    """
    return {f"{node.host} GPU {node.gpu}": node.tflops for node in measured.nodes if node.tflops}


def _copy_figures(measured: FabricMeasurement) -> dict[str, float]:
    """Return the bandwidth of copies within a GPU's memory in 10^9 bytes/s, by GPU, such as ``n1 GPU 0``.

    In the order of measurement. GPUs without a figure are left out; empty: none gave one.
    """
    return {f"{node.host} GPU {node.gpu}": node.copy_gbps for node in measured.nodes if node.copy_gbps}


def _node_figures(measured: FabricMeasurement) -> dict[str, float]:
    """Return the bus bandwidth of an all-reduce within each node in 10^9 bytes/s, by host.

    In the order of measurement. Nodes without a figure are left out; empty: none gave one.
    """
    return {group.nodes[0]: group.busbw_gbps for group in measured.within if group.busbw_gbps}


def _group_figures(measured: FabricMeasurement) -> dict[str, float]:
    """Return the bus bandwidth of each group of the first round in 10^9 bytes/s, by its host list (``n[1-4]``).

    Host lists are sorted, so that the order of nodes does not matter. Groups without a bandwidth are left out; empty
    where there was no round. Later rounds are not compared, because their groups depend on what was slow.
    """
    first = measured.rounds[0] if measured.rounds else ()
    return {nodes_text(sorted(group.nodes)): group.busbw_gbps for group in first if group.busbw_gbps}


def _all_nodes_figures(measured: FabricMeasurement) -> dict[str, float]:
    """Return the bus bandwidths of collectives over all nodes in 10^9 bytes/s, the largest message first.

    The keys are such as ``all_reduce of 8 nodes, 64 ranks, 1073741824 bytes``; of two measurements with the same key,
    ``whole`` wins over ``sizes``. Collectives without a figure are left out; empty: all nodes were not measured
    together.
    """
    whole = (measured.whole,) if measured.whole is not None else ()
    sizes = sorted((*measured.sizes, *whole), key=lambda group: -group.bytes)
    return {
        f"{group.collective} of {len(group.nodes)} nodes, {group.ranks} ranks, {group.bytes} bytes": group.busbw_gbps
        for group in sizes
        if group.busbw_gbps
    }


_SAME: dict[MeasureName, Callable[[FabricMeasurement], dict[str, float]]] = {
    "groups": _group_figures,
    "whole": _all_nodes_figures,
    "within": _node_figures,
    "matrix": _matrix_figures,
    "copy": _copy_figures,
}
"""By what is the same in both; the most telling first."""


def _change_of_measure(name: MeasureName, first: Mapping[str, float], second: Mapping[str, float]) -> Changed | None:
    """Return how the figures of the measure ``name`` changed; None: the two measurements share no figure of it.

    ``first`` and ``second`` have the figures of each measurement, all above 0, by GPU, node or group, under the
    same keys in both. Of the measure ``whole`` only the first shared key in the order of ``first`` counts, which
    must have the largest message first. With fewer than six shared figures, nothing is singled out as ``slower``,
    and a change is real if it is more than half a percent.
    """
    both = [key for key in first if key in second]
    if name == "whole":
        both = both[:1]  # bandwidth grows with the size, so that one says all
    if not both:
        return None
    ratios = {key: second[key] / first[key] for key in both}
    values = list(ratios.values())
    middle = statistics.median(values)
    own: Usual | None = None
    if len(values) >= SPREAD_FROM:
        own = usual(values, times=DEVIATIONS, ratio=1.0)  # nobody asks again
    # The error of a median of many that differ by so much; of few nothing is known but the floor.
    error = 1.25 * robust_deviation(values) / len(values) ** 0.5 if own else 0.0
    return Changed(
        name=name,
        count=len(both),
        first=statistics.median(first[key] for key in both),
        second=statistics.median(second[key] for key in both),
        ratio=middle,
        # Three standard errors of the median: chance alone seldom makes as much.
        is_real=abs(middle - 1) > max(FLOOR, 3 * error),
        slower={key: ratio for key, ratio in ratios.items() if own is not None and ratio < own.limit},
    )


def _comparison_answer(changes: list[Changed]) -> Comparison:
    """Return the verdict on the second measurement by how each measure changed.

    ``slower`` where one measure really dropped, or a single GPU, node or group became slower unlike the others,
    whatever else rose; else ``faster`` where one really rose, else ``no difference``; ``nothing in common`` without
    ``changes``.
    """
    if not changes:
        return "nothing in common"
    real = [change for change in changes if change.is_real]
    if any(change.slower for change in changes) or any(change.ratio < 1 for change in real):
        return "slower"
    return "faster" if real else "no difference"


def _comparison_lines(found: FabricComparison) -> list[str]:
    """Return a comparison of two fabric measurements as lines, without line breaks; the first one is the verdict.

    Then comes each measure that both have, followed by the GPUs, nodes or groups that became slower unlike the others,
    indented, the worst first; last the hosts of one measurement only. The ``lines`` of ``found`` are not looked at.
    """
    only_in = {
        "slower": "slower: the second measurement has less than the first, see below",
        "faster": "faster: the second measurement has more than the first",
        "no difference": "no difference: each measure differs by less than 0.5 %, or by no more than chance",
        "nothing in common": "nothing in common: no node or group has the same work in both measurements",
    }
    lines = [only_in[found.answer]]
    for change in found.changes:
        word = MEASURES[change.name]
        # A minus comes with the number.
        sign = "" if change.ratio < 1 else "+"
        real = "" if change.is_real else ", no difference"
        lines.append(
            f"{word.word}: {figure(change.first, word.unit)}, then {figure(change.second, word.unit)}"
            f" ({sign}{percent(change.ratio - 1)} of the same {change.count}{real})"
        )
        for key, ratio in sorted(change.slower.items(), key=lambda item: item[1]):
            lines.append(f"  {key}: {percent(ratio - 1)}, unlike the others")
    if found.only_first:
        lines.append(f"only in the first: {nodes_text(found.only_first)}")
    if found.only_second:
        lines.append(f"only in the second: {nodes_text(found.only_second)}")
    return lines
