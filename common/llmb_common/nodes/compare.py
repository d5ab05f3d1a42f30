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
    """Yields each file of a node's record that cannot be read, by its name; it is said of no node."""
    yield from (Found("", name) for name in fleet.unreadable)


def missing_nodes(fleet: Fleet) -> Iterator[Found]:
    """Yields once how many nodes left a record (``3 of 4``), where the job had more."""
    seen = len(fleet.nodes) + len(fleet.unreadable)
    if seen < fleet.needs.nodes:
        yield Found("", f"{seen} of {fleet.needs.nodes}")


def other_gpus(fleet: Fleet) -> Iterator[Found]:
    """Yields once, for the whole fleet, that most of its GPUs are not of the type that the job is planned for.

    What one GPU has unlike the others is a rule of its own.
    """
    known = GPUS.get(fleet.needs.gpu_type)
    products = Counter(run.gpu.product for run in fleet.gpus if run.gpu.product)
    if known is None or not known.products or not products:
        return  # what nvidia-smi calls such a GPU is not known, or it has not said
    usual = products.most_common(1)[0][0]
    if type_of(usual) != fleet.needs.gpu_type:
        yield Found("", f"planned for {fleet.needs.gpu_type.upper()}, but the GPUs are {usual}")


def slow_clocks(fleet: Fleet) -> Iterator[Found]:
    """Yields each GPU whose clock under load is below 90 % of the median GPU's, and further than healthy ones are."""
    clocks = [(run, run.clock) for run in fleet.gpus]
    known = [(run, mhz) for run, mhz in clocks if mhz]
    if not known:
        return
    median = statistics.median(mhz for _, mhz in known)
    limit = min(SLOW_CLOCK * median, median - OUTLIER * _deviation([mhz for _, mhz in known], median))
    for run, mhz in known:
        if mhz < limit:
            yield Found(run.host, f"{mhz:.0f} MHz on {run.where} (median {median:.0f})")


def _deviation(clocks: Sequence[float], median: float) -> float:
    """The standard deviation of healthy GPUs' clocks in MHz, from ``clocks``, which may have slow ones in them.

    The fewer ``clocks``, the more the usual deviation counts, which is a fixed share of ``median`` (MHz).
    """
    # The slow ones themselves do not widen it. Few GPUs say little of how much they differ.
    seen = robust_deviation(clocks)
    usual = USUAL_DEVIATION * median
    weight = len(clocks) / (len(clocks) + _WORTH)
    return math.sqrt(weight * seen**2 + (1 - weight) * usual**2)


def slow_buses(fleet: Fleet) -> Iterator[Found]:
    """Yields each GPU whose PCIe link is slow, where not all of the fleet say the same."""
    yield from _slow_buses(fleet, on_all=False)


def slow_buses_everywhere(fleet: Fleet) -> Iterator[Found]:
    """Yields each GPU whose PCIe link is slow, where it is on all GPUs in the same way: it may be the platform's."""
    yield from _slow_buses(fleet, on_all=True)


def _slow_buses(fleet: Fleet, *, on_all: bool) -> Iterator[Found]:
    """Yields each GPU with a slow PCIe link: ``on_all`` only where all GPUs are alike, else only where some differ."""
    found = [(run, gpu_run.slow_bus(run)) for run in fleet.gpus]
    are_alike = len({text for _, text in found}) == 1
    for run, text in found:
        if text and are_alike == on_all:
            yield Found(run.host, f"{run.where} ({text})")


def power_capped(fleet: Fleet) -> Iterator[Found]:
    """Yields once how many GPUs were held at their power limit for long; nothing where none was."""
    shares = [run.shares.get("sw_power_cap", 0) for run in fleet.gpus]
    long = [share for share in shares if share >= gpu_run.LONG_SHARE]
    if long:
        held = "1 GPU was at its" if len(long) == 1 else f"{len(long)} GPUs were at their"
        yield Found("", f"{held} power limit, for up to {percent(max(long), 0)} of the time")


# Numbers of nodes before a job; is_far is asked with a number and the median of all


def memory_gib(node: NodeFacts) -> float | None:
    """The node's memory in GiB; None: not known."""
    return node.machine.memory_gib


def cpus(node: NodeFacts) -> float | None:
    """The number of the node's CPUs; None: not known."""
    return node.machine.cpus


def numa_nodes(node: NodeFacts) -> float | None:
    """The number of NUMA nodes; None: not known."""
    return node.system.numa_nodes


def hottest_gpu(node: NodeFacts) -> float | None:
    """The temperature of the node's hottest GPU in degrees Celsius; None: not known."""
    temperatures = [gpu.temperature_c for gpu in node.before.gpus if gpu.temperature_c is not None]
    return max(temperatures, default=None)


def seconds_of_driver(node: NodeFacts) -> float | None:
    """Seconds that nvidia-smi took to answer; None where it did not."""
    return node.seconds.get("gpus") if node.before.gpus else None


def is_5_percent_less(number: float, median: float) -> bool:
    """Whether a number is more than 5 % below the median."""
    return number < 0.95 * median


def is_less(number: float, median: float) -> bool:
    """Whether a number is below the median."""
    return number < median


def is_20_more(number: float, median: float) -> bool:
    """Whether a number is more than 20 above the median."""
    return number > median + 20


def is_slow_answer(number: float, median: float) -> bool:
    """Whether an answer took more than 8 seconds, and three times the median."""
    return number > 8 and number > 3 * median


CLOCK_SECONDS = 30


def clock_skew(fleet: Fleet) -> Iterator[Found]:
    """Yields each node whose time of day is more than 30 seconds from the median of all."""
    for host, number, median in against_median(fleet, lambda node: node.system.clock):
        if abs(number - median) > CLOCK_SECONDS:
            yield Found(host, f"its clock is {number - median:+.0f} s from the others'")


# What should be the same, and fails no node


def _settings_of_enroot(node: NodeFacts) -> str | None:
    """Enroot's settings on the node as one text; None: none are known."""
    settings = sorted(node.software.enroot_settings.items())
    return " ".join(f"{name}={value}" for name, value in settings) or None


def _vbios(node: NodeFacts) -> str | None:
    """The versions of the GPUs' VBIOS as one text; None: none are known."""
    return " ".join(sorted({gpu.vbios for gpu in node.before.gpus if gpu.vbios})) or None


def _firmware(node: NodeFacts) -> str | None:
    """The types and firmware of the network adapters as one text; None: none are known."""
    return " ".join(sorted({f"{port.type} {port.firmware}" for port in node.machine.adapters})) or None


def _board_ids(node: NodeFacts) -> str | None:
    """The board ids of the network adapters as one text; None: none are known."""
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
    """In what nodes differ that should be alike: by its name each value with its nodes, the commonest first.

    Empty where they differ in nothing.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for name, value in _SAME.items():
        hosts: dict[str, list[str]] = {}
        for node in nodes:
            known = value(node)
            if known is not None:
                hosts.setdefault(str(known)[:200], []).append(node.host)
        if len(hosts) > 1:
            found[name] = dict(sorted(hosts.items(), key=lambda item: (-len(item[1]), item[0])))
    return found
