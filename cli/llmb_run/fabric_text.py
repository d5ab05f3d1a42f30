"""What a measurement of the fabric says, for people: the answer first."""

from __future__ import annotations

from itertools import chain

from llmb_common.base.printable import counted
from llmb_common.health.verdicts import Fabric
from llmb_common.nodes.fabric.measurement import FabricMeasurement, bus_factor
from llmb_common.nodes.fabric.verdict import Measure
from llmb_run.terminal import table

MEASURED = ("measured", "of", "median", "lowest", "scatter", "slow below", "algorithm bandwidth")
"""The heads of ``measured_rows``."""


def fabric_text(fabric: Fabric) -> str:
    """Return what a measurement of the network fabric says, as text for people with a final newline.

    First the answer, then findings that concern no single node or are notes (``LEVEL: TEXT``), unless the answer has
    them, and how fine a difference can be seen; below, after empty lines, tables of what was measured, remedies
    (``to do: ...``), and the account of the measurement. What there is nothing to say of is left out.
    """
    verdict = fabric.verdict
    of_all = [item for item in verdict.findings if not item.hosts or item.level == "note"]
    lines = [verdict.answer]
    lines += [f"{item.level}: {item.said}" for item in of_all if item.said not in verdict.answer]
    lines += [verdict.coarseness] if verdict.coarseness else []
    measured = table(list(MEASURED), measured_rows(fabric), list(MEASURED[2:]))
    parts = ["".join(f"{line}\n" for line in lines), measured, _sizes_table(fabric.measurement)]
    remedies = dict.fromkeys(item.remedy for item in verdict.findings if item.remedy)
    parts.append("".join(f"to do: {text}\n" for text in remedies))
    parts.append("".join(f"{line}\n" for line in fabric.account))
    return "\n".join(filter(None, parts))


def measured_rows(fabric: Fabric) -> list[list[str]]:
    """Return the table of a fabric measurement: a row for each kind of measurement, in the order of the verdict's.

    A row has a text for each heading in ``MEASURED``, in that order. An empty cell: not known.
    """
    return [_measure_row(item, fabric.measurement) for item in fabric.verdict.measures]


def _measure_row(item: Measure, measured: FabricMeasurement) -> list[str]:
    """Return one row of the table of a fabric measurement, a text for each heading in ``MEASURED``.

    The row is on the measure ``item``; median (with the unit), lowest and limit are in its unit, the algorithm
    bandwidth, given for collectives alone, in GB/s. ``measured`` is the whole measurement. Scatter is the standard
    deviation in per cent of the median, ``0.52 %``. An empty text: not known.
    """
    scatter = f"{100 * item.deviation / item.median:.2f} %" if item.deviation is not None else ""
    slow = f"{item.limit:.4g}" if item.limit is not None else ""
    algorithm = ""
    if item.name in ("within", "groups", "whole"):
        nodes = 1 if item.name == "within" else item.nodes
        algorithm = f"{item.median / bus_factor('all_reduce', nodes * _ranks_per_node(measured)):.4g} GB/s"
    return [
        item.word if item.name in ("matrix", "copy", "to_gpu", "from_gpu") else f"{item.word}, bus bandwidth",
        _count_text(item),
        f"{item.median:.4g} {item.unit}",
        f"{item.lowest:.4g}",
        scatter,
        slow,
        algorithm,
    ]


def _count_text(item: Measure) -> str:
    """Return what the measure ``item`` was taken of: ``8 groups of 4 nodes``, ``16 nodes`` or ``32 GPUs``.

    The first of groups, the second of the measures ``whole`` and ``within``, the last of all others.
    """
    if item.name == "groups":
        return f"{counted(item.count, 'group')} of {counted(item.nodes, 'node')}"
    if item.name == "whole":
        return counted(item.nodes, "node")
    return counted(item.count, "node" if item.name == "within" else "GPU")


def _ranks_per_node(measured: FabricMeasurement) -> int:
    """Return the number of ranks, one per GPU, on a node of a fabric measurement, by its first group of nodes.

    1 where no group was measured.
    """
    groups = [*measured.within, *chain.from_iterable(measured.rounds)]
    return groups[0].gpus_per_node if groups else 1


def _sizes_table(measured: FabricMeasurement) -> str:
    """Return the bandwidths by message size as a table with the columns of ``all_reduce_perf``: bytes, us, GB/s.

    With headings and a final newline. Sizes stand in the order of the measurement. Those without a time are left
    out; empty text where none has one.
    """
    rows = [
        [str(group.bytes), f"{1e6 * group.seconds:.1f}", f"{group.algbw_gbps:.2f}", f"{group.busbw_gbps:.2f}"]
        for group in measured.sizes
        if group.seconds is not None
    ]
    heads = ["size (B)", "time (us)", "algbw (GB/s)", "busbw (GB/s)"]
    return table(heads, rows, heads)
