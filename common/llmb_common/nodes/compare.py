"""Nodes against each other: what has no absolute meaning is held against what most of them have."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from llmb_common.base.gpus import GPUS, type_of
from llmb_common.base.printable import percent
from llmb_common.base.statistics import robust_deviation
from llmb_common.nodes import gpu_run
from llmb_common.nodes.facts import NodeFacts
from llmb_common.nodes.rule import Fleet, Found, against_median

SLOW_CLOCK = 0.9
"""Under load a GPU's clock below this share of the median GPU's: all others wait for it."""

OUTLIER = 5.0
"""And so many standard deviations below it, by how much the GPUs of the run differ: the slowest of 1,024 healthy ones
is three or four below it."""

USUAL_DEVIATION = 0.03
"""Of the clocks of healthy GPUs at their power limit, as a share: it counts like ``_WORTH`` GPUs more."""
_WORTH = 16


# Whole runs


def unreadable(fleet: Fleet) -> Iterator[Found]:
    """Yield a finding for each file of nodes' records that cannot be read, with its name; of no node in particular.

    In the order of ``fleet.unreadable``; nothing where all can be read.
    """
    yield from (Found("", name) for name in fleet.unreadable)


def missing_nodes(fleet: Fleet) -> Iterator[Found]:
    """Yield one finding, how many nodes left a record (``3 of 4``), where the job was planned on more; else nothing.

    It is of no node in particular: its host is empty. Damaged records count as left. Planned are
    ``fleet.needs.nodes``.
    """
    seen = len(fleet.nodes) + len(fleet.unreadable)
    if seen < fleet.needs.nodes:
        yield Found("", f"{seen} of {fleet.needs.nodes}")


def other_gpus(fleet: Fleet) -> Iterator[Found]:
    """Yield one finding, of no node in particular, where the commonest product of the GPUs is not of the planned type.

    Such as ``planned for H100, but the GPUs are NVIDIA H200``; a product of no known type counts as another one.
    Nothing where no type is planned, its product names are not known, or no GPU has told its product. A single GPU
    unlike the others is another rule's matter.
    """
    known = GPUS.get(fleet.needs.gpu_type)
    products = Counter(run.gpu.product for run in fleet.gpus if run.gpu.product)
    if known is None or not known.products or not products:
        return  # what nvidia-smi calls such a GPU is not known, or it has not said
    usual = products.most_common(1)[0][0]
    if type_of(usual) != fleet.needs.gpu_type:
        yield Found("", f"planned for {fleet.needs.gpu_type.upper()}, but the GPUs are {usual}")


def slow_clocks(fleet: Fleet) -> Iterator[Found]:
    """Yield a finding for each GPU whose clock under load is far below the median GPU's.

    Such as ``900 MHz on n3 GPU 5 (median 1600)``. That is below 90 % of it, and further below than healthy GPUs come
    (``OUTLIER``, 5 standard deviations). All GPUs of all nodes are compared; those without a known clock are left out.
    In the order of ``fleet.gpus``; nothing where none is slow.
    """
    clocks = [(run, run.clock) for run in fleet.gpus]
    known = [(run, mhz) for run, mhz in clocks if mhz]
    if not known:
        return
    rates = [mhz for _, mhz in known]
    median = statistics.median(rates)
    outlier = median - OUTLIER * _deviation(rates, median)
    limit = min(SLOW_CLOCK * median, outlier)
    for run, mhz in known:
        if mhz < limit:
            yield Found(run.host, f"{mhz:.0f} MHz on {run.where} (median {median:.0f})")


def _deviation(clocks: Sequence[float], median: float) -> float:
    """Return the standard deviation of healthy GPUs' clocks in MHz, from ``clocks``, among which may be slow ones.

    ``clocks`` are in MHz, at least one. The fewer they are, the more the usual deviation counts, which is a fixed
    share of ``median`` (MHz).
    """
    # The slow ones themselves do not widen it. Few GPUs say little of how much they differ.
    seen = robust_deviation(clocks)
    usual = USUAL_DEVIATION * median
    weight = len(clocks) / (len(clocks) + _WORTH)
    return math.sqrt(weight * seen**2 + (1 - weight) * usual**2)


def slow_buses(fleet: Fleet) -> Iterator[Found]:
    """Yield a finding for each GPU whose PCIe link is slow, unless all GPUs of the nodes are slow alike.

    Such as ``n3 GPU 5 (8x of 16x)``. If all are, it is a matter of ``slow_buses_everywhere``. In the order of
    ``fleet.gpus``; nothing where no link is slow.
    """
    yield from _slow_buses(fleet, on_all=False)


def slow_buses_everywhere(fleet: Fleet) -> Iterator[Found]:
    """Yield a finding for each GPU whose PCIe link is slow, where all GPUs are slow alike: it may be the platform's.

    Such as ``n3 GPU 5 (8x of 16x)``. So it is, too, where there is just one GPU. In the order of ``fleet.gpus``;
    nothing where no link is slow, or the GPUs differ.
    """
    yield from _slow_buses(fleet, on_all=True)


def _slow_buses(fleet: Fleet, *, on_all: bool) -> Iterator[Found]:
    """Yield a finding for each GPU with a slow PCIe link, where all GPUs are alike (``on_all``), or else differ.

    Alike is with the same link, slow or not; so is a single GPU. In the order of ``fleet.gpus``.
    """
    found = [(run, gpu_run.slow_bus(run)) for run in fleet.gpus]
    are_alike = len({text for _, text in found}) == 1
    for run, text in found:
        if text and are_alike == on_all:
            yield Found(run.host, f"{run.where} ({text})")


def power_capped(fleet: Fleet) -> Iterator[Found]:
    """Yield one finding, how many GPUs were held at their power limit for long, and how long at most; else nothing.

    For long is at least ``LONG_SHARE`` (1 %) of the time that they were watched; how long is a percentage of that
    time. It is of no node in particular: ``3 GPUs were at their power limit, for up to 40 % of the time``.
    """
    shares = [run.shares.get("sw_power_cap", 0) for run in fleet.gpus]
    long = [share for share in shares if share >= gpu_run.LONG_SHARE]
    if long:
        held = "1 GPU was at its" if len(long) == 1 else f"{len(long)} GPUs were at their"
        yield Found("", f"{held} power limit, for up to {percent(max(long), 0)} of the time")


# Numbers of nodes before a job; is_far is asked with a number and the median of all


def memory_gib(node: NodeFacts) -> float | None:
    """Return the node's main memory, not its GPUs', in GiB; None where it is not known."""
    return node.machine.memory_gib


def cpus(node: NodeFacts) -> float | None:
    """Return the number of the node's CPUs as Linux counts them; None where it is not known."""
    return node.machine.cpus


def numa_nodes(node: NodeFacts) -> float | None:
    """Return the number of NUMA nodes that the node has; None where it is not known."""
    return node.system.numa_nodes


def hottest_gpu(node: NodeFacts) -> float | None:
    """Return the temperature of the node's hottest GPU before the job, in degrees Celsius; None: not known."""
    temperatures = [gpu.temperature_c for gpu in node.before.gpus if gpu.temperature_c is not None]
    return max(temperatures, default=None)


def seconds_of_driver(node: NodeFacts) -> float | None:
    """Return the seconds that nvidia-smi took to answer on the node; None where it showed no GPUs, or they are not
    known.
    """
    return node.seconds.get("gpus") if node.before.gpus else None


def is_5_percent_less(number: float, median: float) -> bool:
    """Return whether a node's number is more than 5 % below the median of all nodes; exactly 5 % is not."""
    return number < 0.95 * median


def is_less(number: float, median: float) -> bool:
    """Return whether a node's number is below the median of all nodes, be it by ever so little."""
    return number < median


def is_20_more(number: float, median: float) -> bool:
    """Return whether a node's number is more than 20, in its own unit, above the median of all nodes."""
    return number > median + 20


def is_slow_answer(number: float, median: float) -> bool:
    """Return whether an answer of ``number`` seconds took more than 8 and more than three times the nodes' median.

    Both are needed.
    """
    return number > 8 and number > 3 * median


CLOCK_SECONDS = 30


def clock_skew(fleet: Fleet) -> Iterator[Found]:
    """Yield a finding for each node whose time of day is more than 30 seconds from the median of all nodes, either way.

    Such as ``its clock is +45 s from the others'``. Nothing where fewer than three nodes tell theirs. In the order of
    ``fleet.nodes``.
    """
    for host, number, median in against_median(fleet, lambda node: node.system.clock):
        if abs(number - median) > CLOCK_SECONDS:
            yield Found(host, f"its clock is {number - median:+.0f} s from the others'")


# What should be the same, and fails no node


def _settings_of_enroot(node: NodeFacts) -> str | None:
    """Return Enroot's settings on the node as one text, ``name=value`` with blanks between, sorted by name.

    None where it has none, or they are not known; never empty.
    """
    settings = sorted(node.software.enroot_settings.items())
    return " ".join(f"{name}={value}" for name, value in settings) or None


def _vbios(node: NodeFacts) -> str | None:
    """Return the VBIOS versions of the node's GPUs, each once and sorted, with blanks between; None: none is known."""
    return " ".join(sorted({gpu.vbios for gpu in node.before.gpus if gpu.vbios})) or None


def _firmware(node: NodeFacts) -> str | None:
    """Return the types and firmware of the node's network adapters, each once, sorted, as one text.

    ``TYPE FIRMWARE`` for each, with blanks between; what the kernel does not tell of an adapter is the word None.
    The result is None where no adapter is known.
    """
    kinds = {f"{port.type} {port.firmware}" for port in node.machine.adapters}
    return " ".join(sorted(kinds)) or None


def _board_ids(node: NodeFacts) -> str | None:
    """Return the board ids of the node's network adapters, each once and sorted, with blanks between; None: unknown.

    None where no adapter tells its id, or there is none.
    """
    return " ".join(sorted({port.board for port in node.ports if port.board})) or None


_SAME: dict[str, Callable[[NodeFacts], object]] = {
    "driver": lambda node: node.driver,
    "CUDA of the driver": lambda node: node.before.cuda,
    "kernel": lambda node: node.machine.kernel,
    "operating system": lambda node: node.software.os,
    "OFED": lambda node: node.software.ofed,
    "Enroot": lambda node: node.software.enroot,
    "settings of Enroot": _settings_of_enroot,
    "CPU": lambda node: node.machine.cpu,
    "kernel parameters": lambda node: node.system.cmdline,
    "page size": lambda node: node.system.page_size,
    "virtual machine": lambda node: node.system.virtual,
    "VBIOS": _vbios,
    "firmware of adapters": _firmware,
    "model of adapters": _board_ids,
}


def drift(nodes: Sequence[NodeFacts]) -> dict[str, dict[str, list[str]]]:
    """Return in what nodes differ that should be alike: by fact (``driver``), then by value, the names of the nodes.

    Facts have names for people, such as ``firmware of adapters``, and come in a fixed order; the value of most
    nodes comes first, of equals the first by alphabet. Values are texts, cut to 200 characters, and nodes in the
    order of ``nodes``. Empty where they differ in nothing; a node that does not tell a fact is left out of it.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for name, value in _SAME.items():
        hosts: dict[str, list[str]] = {}
        for node in nodes:
            known = value(node)
            if known is not None:
                hosts.setdefault(str(known)[:200], []).append(node.host)
        if len(hosts) > 1:
            # The most frequent value first.
            by_frequency = sorted(hosts.items(), key=lambda item: (-len(item[1]), item[0]))
            found[name] = dict(by_frequency)
    return found
