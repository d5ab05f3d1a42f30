"""One GPU over a run: what it was at the start, in each look under load, and at the end; and what is wrong with it by
itself, each a small function that says what, or nothing."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from itertools import chain

import msgspec

from llmb_common.base.printable import percent
from llmb_common.nodes.facts import GpuState, NodeFacts, Snapshot

LONG_SHARE = 0.01
"""Clocks held down for longer than this share of the time between the looks before and after training."""

FEWEST_SAMPLES = 3
"""Of a clock under load: a single look meets a GPU in any phase of a step."""

_BUSY = 50.0
"""Utilization in per cent from which a look counts as one under load."""

_HOT = 3.0
"""Degrees below the temperature at which the driver slows a GPU down."""

_HARD = {
    "hw_slowdown": "hardware slowdown",
    "hw_thermal_slowdown": "too hot, slowed by hardware",
    "hw_power_brake_slowdown": "power brake",
    "sw_thermal_slowdown": "too hot, slowed by the driver",
}
_AT_REST = ("hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
"""Those that mean something without load: NVML also reports hw_slowdown while clocks change."""
_FOLLOWS = "sw_thermal_slowdown"
"""Drivers 575.51.02 and 580.173.02 count it up with the power cap (their published dumps; 590.44.01 does not): a sign
of heat only where a temperature says so too."""

_NEAR = 0.97
"""A clock of at least this share of the boost clock is that clock."""


class GpuRun(msgspec.Struct, frozen=True, dict=True):
    """One GPU of node ``host`` over a run: ``gpu`` is as at the start, ``samples`` are the looks under load.

    ``before`` and ``end`` are the looks before and after training; None: there is none.
    """

    host: str
    gpu: GpuState
    end: GpuState | None
    samples: tuple[GpuState, ...]
    elapsed: float
    """Seconds between the looks before and after training."""
    before: GpuState | None

    @property
    def where(self) -> str:
        """The GPU's node and number: ``n3 GPU 5``."""
        return f"{self.host} GPU {self.gpu.index}"

    @cached_property
    def busy(self) -> tuple[GpuState, ...]:
        """The looks under load that met the GPU at work, as far as its utilization is known."""
        return tuple(look for look in self.samples if look.utilization is None or look.utilization >= _BUSY)

    @cached_property
    def clock(self) -> float | None:
        """The GPU's usual clock under load in MHz, the median of its looks; None where too few looks say."""
        seen = [look.sm_mhz for look in self.busy if look.sm_mhz]
        return statistics.median(seen) if len(seen) >= FEWEST_SAMPLES else None

    @cached_property
    def shares(self) -> dict[str, float]:
        """For which share of the time, 0 to 1, each reason held the GPU's clocks down, by the driver's counters.

        Empty where a look before or after training is missing.
        """
        if not self.before or not self.end or self.elapsed <= 0:
            return {}
        start = self.before.throttled_us
        grown = {reason: after - start.get(reason, after) for reason, after in self.end.throttled_us.items()}
        return {reason: min(1.0, max(0.0, value / 1e6 / self.elapsed)) for reason, value in grown.items()}

    @property
    def hot(self) -> bool:
        """Whether a look met the GPU or its memory within 3 degrees of the temperature that slows it down."""
        looks = [look for look in (self.before, *self.samples, self.end) if look]
        margins = chain.from_iterable(_margins(look, self.gpu) for look in looks)
        return any(margin is not None and margin <= _HOT for margin in margins)


def gpu_runs_of(node: NodeFacts) -> Iterator[GpuRun]:
    """Yields each GPU of a node, with what was seen of it before, during and after a run."""
    before, end = _by_index(node.before), _by_index(node.after)
    looks = [_by_index(look) for look in node.samples]
    for gpu in node.gpus:
        samples = tuple(look[gpu.index] for look in looks if gpu.index in look)
        elapsed = node.after.time - node.before.time
        yield GpuRun(node.host, gpu, end.get(gpu.index), samples, elapsed, before.get(gpu.index))


def throttled(run: GpuRun) -> str:
    """What held the GPU's clocks down, and for which share of the time, or at the moment of a look; empty: nothing."""
    known = {name: text for name, text in _HARD.items() if name != _FOLLOWS or run.hot}
    seen = Counter(chain.from_iterable(look.throttle for look in run.samples))
    active = {reason for reason, times in seen.items() if reason in _AT_REST or times >= min(2, len(run.samples))}
    for look in (run.before, run.end):
        active |= {reason for reason in (look.throttle if look else ()) if reason in _AT_REST}
    reasons = {
        name: f"{text}, {percent(run.shares[name], 0)} of the time"
        for name, text in known.items()
        if run.shares.get(name, 0) >= LONG_SHARE
    }
    reasons |= {name: text for name, text in known.items() if name in active and name not in reasons}
    return "; ".join(reasons.values())


def slow_bus(run: GpuRun) -> str:
    """How far the GPU's PCIe link is below what GPU and slot can do, in all looks under load; empty: it is not.

    At rest links drop.
    """
    gpu, looks = run.gpu, run.busy
    words, widest = [], _pcie_lanes(gpu.pcie_width_max)
    if widest and looks and all((_pcie_lanes(look.pcie_width) or 99) < widest for look in looks):
        words.append(f"{looks[-1].pcie_width} of {gpu.pcie_width_max}")
    highest = gpu.pcie_generation_max
    if highest and looks and all((look.pcie_generation or 99) < highest for look in looks):
        words.append(f"generation {looks[-1].pcie_generation:g} of {highest:g}")
    return ", ".join(words)


def lowered_limit(run: GpuRun) -> str:
    """A power limit below the product's own, ``600 W of 700 W``; empty: it is not lowered, or not known."""
    limit, default = run.gpu.power_limit_w, run.gpu.default_power_limit_w
    return f"{limit:g} W of {default:g} W" if limit and default and limit < default - 1 else ""


def own_limit(run: GpuRun) -> float | None:
    """The GPU's power limit in watts; None where ``lowered_limit`` complains of it already, or it is not known."""
    return None if lowered_limit(run) else run.gpu.power_limit_w


def held_clock(run: GpuRun) -> str:
    """A clock that somebody has set; empty: none is known to be.

    nvidia-smi names application clocks, and shows locked ones only by what they do. A GPU at work that nothing slows
    down runs at its boost clock, and one that its power limit slows down says so.
    """
    gpu, seen = run.gpu, {look.sm_mhz for look in run.busy}
    if gpu.application_mhz and gpu.default_application_mhz and gpu.application_mhz < gpu.default_application_mhz:
        return f"application clock {gpu.application_mhz:g} MHz of {gpu.default_application_mhz:g}"
    if len(run.busy) < FEWEST_SAMPLES or len(seen) > 1 or not gpu.boost_mhz:
        return ""
    (mhz,) = seen
    reasons = set(chain.from_iterable(look.throttle for look in run.busy)) - {"applications_clocks_setting"}
    unknown = any(look.utilization is None for look in run.busy)
    if mhz is None or mhz >= _NEAR * gpu.boost_mhz or reasons or unknown:
        return ""
    return f"{mhz:g} MHz of {gpu.boost_mhz:g} under load, constant, and no throttle reason reported"


def outside_fabric(run: GpuRun) -> str:
    """The state of a GPU that has not joined its NVLink fabric; empty: it has, or there is none."""
    gpu = run.end if run.end and run.end.fabric else run.gpu
    state, status = gpu.fabric or "Completed", gpu.fabric_status or "Success"
    if (state, status) == ("Completed", "Success"):
        return ""
    return f"{state}, {status}" if gpu.fabric_status else state


def new_memory_errors(run: GpuRun) -> str:
    """Memory errors of this run, and rows that wait for a repair; empty: none."""
    gpu = run.end or run.gpu
    new = (gpu.uncorrected or 0) - (run.before.uncorrected or 0 if run.before else 0)
    words = [f"{new:.0f} uncorrectable errors"] if new > 0 else []
    words += ["rows to remap at the next reset"] if gpu.rows_pending == "Yes" else []
    words += ["remapping rows failed"] if gpu.rows_failed == "Yes" else []
    return ", ".join(words)


def old_memory_errors(run: GpuRun) -> str:
    """How many memory errors there were between the driver's start and this run; empty: none, or not known."""
    old = run.before.uncorrected if run.before else None
    return f"{old:.0f} uncorrectable errors" if old else ""


def _margins(sample: GpuState, gpu: GpuState) -> Iterator[float | None]:
    """Yields how many degrees Celsius a look leaves to each of the GPU's limits; None: not known."""
    yield sample.temperature_margin_c
    for now, limit in (
        (sample.temperature_c, gpu.temperature_limit_c),
        (sample.memory_temperature_c, gpu.memory_temperature_limit_c),
    ):
        yield limit - now if now is not None and limit is not None else None


def _pcie_lanes(width: str | None) -> int:
    """The number of PCIe lanes in ``16x``; 0: not known."""
    digits = (width or "").rstrip("x")
    return int(digits) if digits.isdecimal() else 0


def _by_index(snapshot: Snapshot) -> dict[int, GpuState]:
    """The GPUs of a look, by their number."""
    return {gpu.index: gpu for gpu in snapshot.gpus}
