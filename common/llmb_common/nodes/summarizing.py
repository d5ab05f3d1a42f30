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
    """Return a summary of what a run's nodes recorded, with everything in it that speaks against the run's result.

    ``needs`` is what the run needed of its nodes, ``found`` their records. Findings have problems before notes.
    Where no node left a readable record, all but ``findings`` is as by default.
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
    """Return the fields of ``NodeSummary`` on the peak of GPU memory, in GiB, by name.

    They are ``memory_gib`` and ``memory_reserved_gib``, numbers, each the highest of all ranks; empty where no rank
    recorded any.
    """
    peaks = list(chain.from_iterable(node.peaks for node in nodes))
    if not peaks:
        return {}
    return {
        "memory_gib": max(peak.allocated for peak in peaks) / GIB,
        "memory_reserved_gib": max(peak.reserved for peak in peaks) / GIB,
    }


def _gpus_of(node: NodeFacts) -> str | None:
    """Return the number and product of a node's GPUs as text, ``8 x NVIDIA B200``; None: it shows none.

    Several products are joined by ", ", in the order of GPUs; a GPU that does not tell its own is an
    ``unknown GPU``.
    """
    products = Counter(gpu.product or "unknown GPU" for gpu in node.gpus)
    return ", ".join(f"{count} x {name}" for name, count in products.items()) or None


def _adapters_of(node: NodeFacts) -> str | None:
    """Return how many adapters NCCL used on a node and their rates, as text: ``8 at 400 Gbit/s``; None: not known.

    Different rates are sorted, ``200/400``; without any known rate it is the number alone.
    """
    used = used_adapters(node)
    rates = {port.rate_gbps for port in used.values() if port and port.rate_gbps}
    rate = f" at {'/'.join(f'{rate:g}' for rate in sorted(rates))} Gbit/s" if rates else ""
    return f"{len(used)}{rate}" if used else None


def _pcie_of(run: GpuRun) -> str | None:
    """Return the PCIe link of a GPU at its first look at work, as text: ``16x generation 5``.

    None: there is no such look, or width or generation is not known.
    """
    look = next(iter(run.busy), None)
    known = look and look.pcie_width and look.pcie_generation
    return f"{look.pcie_width} generation {look.pcie_generation:g}" if look and known else None


def _limit_of(run: GpuRun) -> str | None:
    """Return a GPU's power limit as text, ``700 W``, or ``600 of 700 W`` where it is not the default.

    None: the limit is not known. An unknown default is not named.
    """
    limit, default = run.gpu.power_limit_w, run.gpu.default_power_limit_w
    of = f" of {default:g}" if default and limit != default else ""
    return f"{limit:g}{of} W" if limit else None


def _clocks_of(run: GpuRun) -> str | None:
    """Return a GPU's highest clock as text, ``up to 1980 MHz``, with the clock at which somebody holds it, in
    parentheses.

    The latter is in the words of ``held_clock``, and left out where nobody does. None: the highest clock is not
    known.
    """
    highest = run.gpu.boost_mhz or run.gpu.max_sm_mhz
    fixed_clock = held_clock(run)
    return (f"up to {highest:g} MHz" + (f" ({fixed_clock})" if fixed_clock else "")) if highest else None


def _yes_no(value: bool | None) -> str | None:
    """Return ``yes`` or ``no``; None for None, which stands for not known."""
    if value is None:
        return None
    return "yes" if value else "no"


def _values_with_counts(values: Iterable[str | None]) -> str:
    """Return the value that all have; where they differ, the four commonest with their counts: ``a (3) / b (1)``.

    The commonest comes first, of equally frequent ones the earlier; further ones are dropped without a mark. None
    and empty values are left out; empty text: there are no others.
    """
    counts = Counter(value for value in values if value)
    if len(counts) < 2:
        return next(iter(counts), "")
    return " / ".join(f"{value} ({count})" for value, count in counts.most_common(4))
