"""From what a run's nodes recorded to their summary."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import Any

from llmb_common.nodes.facts import GIB, NodeFacts, Nodes, domains_of, used_adapters
from llmb_common.nodes.findings import find
from llmb_common.nodes.gpu_run import GpuRun, gpu_runs_of, held_clock
from llmb_common.nodes.needs import Needs
from llmb_common.nodes.summary import NodeSummary


def summarize(needs: Needs, found: Nodes) -> NodeSummary:
    """What the nodes of a run recorded, in short, with what in it speaks against the run's result.

    All is empty without nodes.
    """
    nodes = found.nodes
    under_load = chain.from_iterable(node.load.gpus for node in nodes)
    power = [gpu.power_w for gpu in under_load if gpu.power_w]
    runs = list(chain.from_iterable(map(gpu_runs_of, nodes)))
    clocks = [run.clock for run in runs if run.clock]
    transports: Counter[str] = Counter()
    for node in nodes:
        transports.update(node.nccl.transports if node.nccl else {})
    return NodeSummary(
        nodes=len(nodes),
        hosts=tuple(node.host for node in nodes),
        gpus=_values_with_counts(_gpus_of(node) for node in nodes),
        driver=_values_with_counts(node.driver for node in nodes),
        cuda=_values_with_counts(node.before.cuda for node in nodes),
        kernel=_values_with_counts(node.machine.kernel for node in nodes),
        cpu=_values_with_counts(node.machine.cpu for node in nodes),
        nccl=_values_with_counts(node.nccl.version if node.nccl else None for node in nodes),
        network=_values_with_counts(node.nccl.network if node.nccl else None for node in nodes),
        transports=dict(transports),
        channels=", ".join(sorted(transports)),
        adapters=_values_with_counts(_adapters_of(node) for node in nodes),
        gpudirect=_values_with_counts(_yes_no(node.nccl.direct) if node.nccl else None for node in nodes),
        nvlink=_values_with_counts(
            f"{node.nccl.clique} GPUs" if node.nccl and node.nccl.clique else None for node in nodes
        ),
        domains=dict(domains_of(nodes)),
        fabric=_values_with_counts(run.gpu.fabric for run in runs),
        pcie=_values_with_counts(_pcie_of(run) for run in runs),
        power_limit=_values_with_counts(_limit_of(run) for run in runs),
        clocks=_values_with_counts(_clocks_of(run) for run in runs),
        clock_mhz=statistics.median(clocks) if clocks else None,
        power_w=sum(power) / len(power) if power else None,
        **_memory_fields(nodes),
        findings=find(needs, found),
    )


def _memory_fields(nodes: tuple[NodeFacts, ...]) -> dict[str, Any]:
    """The fields of the summary that say how much memory of the GPUs was in use, in GiB; empty where no rank said."""
    peaks = list(chain.from_iterable(node.peaks for node in nodes))
    if not peaks:
        return {}
    return {
        "memory_gib": max(peak.allocated for peak in peaks) / GIB,
        "memory_reserved_gib": max(peak.reserved for peak in peaks) / GIB,
        "memory_device_gib": min(peak.device for peak in peaks) / GIB,
        "memory_ranks": len(peaks),
    }


def _gpus_of(node: NodeFacts) -> str | None:
    """The node's GPUs in words, ``8 x NVIDIA B200``; None: it shows none."""
    products = Counter(gpu.product or "unknown GPU" for gpu in node.gpus)
    return ", ".join(f"{count} x {name}" for name, count in products.items()) or None


def _adapters_of(node: NodeFacts) -> str | None:
    """How many adapters NCCL used on the node, and how fast they are: ``8 at 400 Gbit/s``; None: not known."""
    used = used_adapters(node)
    rates = {port.rate_gbps for port in used.values() if port and port.rate_gbps}
    rate = f" at {'/'.join(f'{rate:g}' for rate in sorted(rates))} Gbit/s" if rates else ""
    return f"{len(used)}{rate}" if used else None


def _pcie_of(run: GpuRun) -> str | None:
    """The width and generation of a GPU's PCIe link under load; None: not known."""
    look = next(iter(run.busy), None)
    known = look and look.pcie_width and look.pcie_generation
    return f"{look.pcie_width} generation {look.pcie_generation:g}" if look and known else None


def _limit_of(run: GpuRun) -> str | None:
    """A GPU's power limit, ``600 of 700 W`` where it is not the product's own; None: not known."""
    limit, default = run.gpu.power_limit_w, run.gpu.default_power_limit_w
    of = f" of {default:g}" if default and limit != default else ""
    return f"{limit:g}{of} W" if limit else None


def _clocks_of(run: GpuRun) -> str | None:
    """A GPU's highest clock, and where it is held; None: not known."""
    highest = run.gpu.boost_mhz or run.gpu.max_sm_mhz
    fixed_clock = held_clock(run)
    return (f"up to {highest:g} MHz" + (f" ({fixed_clock})" if fixed_clock else "")) if highest else None


def _yes_no(value: bool | None) -> str | None:
    """``yes`` or ``no``; None for None."""
    if value is None:
        return None
    return "yes" if value else "no"


def _values_with_counts(values: Iterable[str | None]) -> str:
    """The value that all have; where they differ, each with its count: ``a (3) / b (1)``; empty: nobody has one."""
    counts = Counter(value for value in values if value)
    if len(counts) < 2:
        return next(iter(counts), "")
    return " / ".join(f"{value} ({count})" for value, count in counts.most_common(4))
