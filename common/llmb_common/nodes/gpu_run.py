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
    """One GPU of a node over a run: its states before, under load and after training; ``gpu_runs_of`` makes it.

    Its properties: ``where`` names it, ``n3 GPU 5``. ``busy`` is a tuple of the states under load with at least
    50 % utilization, or an unknown one, in order of time. ``clock`` is its median SM clock in MHz over these, None
    where fewer than three show it. ``shares`` is a dict: for each reason (``sw_power_cap``) the share of the run, 0
    to 1, for which it held down the clocks; empty: not known. ``hot`` is True where any look found it within 3
    degrees of the temperature that slows it down.
    """

    host: str
    gpu: GpuState
    """At the first look that showed it."""
    end: GpuState | None
    """After training; None: no look showed it then."""
    samples: tuple[GpuState, ...]
    """Under load, in order of time, with only what changes."""
    elapsed: float
    """Seconds between the looks before and after training; means nothing without both."""
    before: GpuState | None
    """Before training; None: no look showed it then."""

    @property
    def where(self) -> str:
        """The host and the number of this GPU: ``n3 GPU 5``."""
        return f"{self.host} GPU {self.gpu.index}"

    @cached_property
    def busy(self) -> tuple[GpuState, ...]:
        """The states of this GPU under load that show at least 50 % utilization, or do not tell it, in order of time.

        Empty: none does.
        """
        return tuple(look for look in self.samples if look.utilization is None or look.utilization >= _BUSY)

    @cached_property
    def clock(self) -> float | None:
        """The median SM clock in MHz of this GPU's ``busy`` states; None where fewer than three of them show it."""
        seen = [look.sm_mhz for look in self.busy if look.sm_mhz]
        return statistics.median(seen) if len(seen) >= FEWEST_SAMPLES else None

    @cached_property
    def shares(self) -> dict[str, float]:
        """For which share of the run, 0 to 1, each reason held down this GPU's clocks, by the driver's counters.

        Reasons are nvidia-smi's names, such as ``sw_power_cap``; only those with a counter after training are
        there, 0 where there was none before. Empty where a look before or after training is missing, no time is
        between them, or nothing is counted.
        """
        if not self.before or not self.end or self.elapsed <= 0:
            return {}
        start = self.before.throttled_us
        # A reason without a counter at the start counts as never seen: its later value may be from before the run.
        grown = {reason: after - start.get(reason, after) for reason, after in self.end.throttled_us.items()}
        shares = {reason: value / 1e6 / self.elapsed for reason, value in grown.items()}
        return {reason: min(1.0, max(0.0, share)) for reason, share in shares.items()}

    @property
    def hot(self) -> bool:
        """Whether any look found this GPU or its memory at most 3 degrees below the temperature that slows it down.

        False, too, where temperatures or limits are not known.
        """
        looks = [look for look in (self.before, *self.samples, self.end) if look]
        margins = chain.from_iterable(_margins(look, self.gpu) for look in looks)
        return any(margin is not None and margin <= _HOT for margin in margins)


def gpu_runs_of(node: NodeFacts) -> Iterator[GpuRun]:
    """Yield each GPU of a node with its states before, under load and after a run; nothing where no GPU was seen.

    The GPUs are those of the first look that showed any, in its order. Those of other looks are matched by their
    numbers.
    """
    before, end = _by_index(node.before), _by_index(node.after)
    looks = [_by_index(look) for look in node.samples]
    for gpu in node.gpus:
        samples = tuple(look[gpu.index] for look in looks if gpu.index in look)
        elapsed = node.after.time - node.before.time
        yield GpuRun(node.host, gpu, end.get(gpu.index), samples, elapsed, before.get(gpu.index))


def throttled(run: GpuRun) -> str:
    """Return what held down the clocks of one GPU in a run, as phrases joined by "; "; empty: nothing.

    There are four: ``hardware slowdown``, ``power brake``, ``too hot, slowed by hardware`` and
    ``too hot, slowed by the driver``. A phrase ends with the share of the run (``power brake, 12 % of the time``)
    where the driver counted 1 % or more; such phrases come first. Without that, the hardware slowdown must show in
    two looks under load, or in the only one; each of the others in one look, also before or after training. What
    the driver calls heat counts only if ``run.hot``. A power cap is not among them.
    """
    known = {name: text for name, text in _HARD.items() if name != _FOLLOWS or run.hot}
    seen = Counter(chain.from_iterable(look.throttle for look in run.samples))
    # One look may meet a clock that is just changing.
    least = min(2, len(run.samples))
    active = {reason for reason, times in seen.items() if reason in _AT_REST or times >= least}
    for look in (run.before, run.end):
        if look:
            active |= {reason for reason in look.throttle if reason in _AT_REST}
    reasons = {
        name: f"{text}, {percent(run.shares[name], 0)} of the time"
        for name, text in known.items()
        if run.shares.get(name, 0) >= LONG_SHARE
    }
    reasons |= {name: text for name, text in known.items() if name in active and name not in reasons}
    return "; ".join(reasons.values())


def slow_bus(run: GpuRun) -> str:
    """Return how far a GPU's PCIe link was below what GPU and slot can do: ``8x of 16x``, ``generation 4 of 5``.

    Both are joined by ", ". It must be so in every one of ``run.busy``, because links slow down at rest; the last
    one is quoted. Empty: it was not, or nothing is known.
    """
    gpu, looks = run.gpu, run.busy
    words, widest = [], _pcie_lanes(gpu.pcie_width_max)
    # 99 stands for an unknown width, which is no evidence.
    if widest and looks and all((_pcie_lanes(look.pcie_width) or 99) < widest for look in looks):
        words.append(f"{looks[-1].pcie_width} of {gpu.pcie_width_max}")
    highest = gpu.pcie_generation_max
    if highest and looks and all((look.pcie_generation or 99) < highest for look in looks):
        words.append(f"generation {looks[-1].pcie_generation:g} of {highest:g}")
    return ", ".join(words)


def lowered_limit(run: GpuRun) -> str:
    """Return a GPU's power limit if it is more than 1 W below the product's default, ``600 W of 700 W``.

    That is at the first look that showed the GPU. Empty: it is not, or not known.
    """
    limit, default = run.gpu.power_limit_w, run.gpu.default_power_limit_w
    return f"{limit:g} W of {default:g} W" if limit and default and limit < default - 1 else ""


def own_limit(run: GpuRun) -> float | None:
    """Return a GPU's power limit in watts at the first look; None where it is not known, or ``lowered_limit``
    reports it.
    """
    return None if lowered_limit(run) else run.gpu.power_limit_w


def held_clock(run: GpuRun) -> str:
    """Return the clock at which somebody holds a GPU below its highest, as a phrase; empty: nobody is known to do so.

    ``application clock 1200 MHz of 1980`` where the application clock is below its default. nvidia-smi does not
    show locked clocks; they are told by what they do: in at least three looks, all of ``run.busy``, the clock is
    the same, below 97 % of the boost clock, with utilization known and no reason for it reported but
    ``applications_clocks_setting``: ``1200 MHz of 1980 under load, constant, and no throttle reason reported``.
    """
    gpu, seen = run.gpu, {look.sm_mhz for look in run.busy}
    if gpu.application_mhz and gpu.default_application_mhz and gpu.application_mhz < gpu.default_application_mhz:
        return f"application clock {gpu.application_mhz:g} MHz of {gpu.default_application_mhz:g}"
    if len(run.busy) < FEWEST_SAMPLES or len(seen) > 1 or not gpu.boost_mhz:
        return ""
    (mhz,) = seen
    # That reason says that a clock is set, not that something slows it down.
    reasons = set(chain.from_iterable(look.throttle for look in run.busy)) - {"applications_clocks_setting"}
    unknown = any(look.utilization is None for look in run.busy)
    if mhz is None or mhz >= _NEAR * gpu.boost_mhz or reasons or unknown:
        return ""
    return f"{mhz:g} MHz of {gpu.boost_mhz:g} under load, constant, and no throttle reason reported"


def outside_fabric(run: GpuRun) -> str:
    """Return the state of a GPU that has not joined its NVLink fabric, in nvidia-smi's words; empty: it has.

    It is the state and, if known, the status, ``In Progress, Success``. The look after training counts, if it shows
    the state, else the first look. Empty, too, where there is no fabric, or nothing is known.
    """
    gpu = run.end if run.end and run.end.fabric else run.gpu
    state, status = gpu.fabric or "Completed", gpu.fabric_status or "Success"
    if (state, status) == ("Completed", "Success"):
        return ""
    return f"{state}, {status}" if gpu.fabric_status else state


def unhealthy_fabric(run: GpuRun) -> str:
    """Return ``Unhealthy`` if nvidia-smi says so of the NVLink fabric that a GPU has joined; empty: it does not.

    The look after training counts, if there is one, else the first look.
    """
    gpu = run.end or run.gpu
    return "Unhealthy" if gpu.fabric_health == "Unhealthy" else ""


def narrow_fabric(run: GpuRun) -> str:
    """Return ``Limited Capacity`` or ``Degraded`` if a GPU has not all bandwidth of its NVLink fabric; empty: it has.

    The words are nvidia-smi's. The look after training counts, if there is one, else the first look. Empty, too, where
    nothing is known, or ``unhealthy_fabric`` reports it.
    """
    gpu = run.end or run.gpu
    if gpu.fabric_health == "Limited Capacity":
        return "Limited Capacity"
    return "Degraded" if gpu.fabric_bandwidth == "Degraded" and not unhealthy_fabric(run) else ""


def new_memory_errors(run: GpuRun) -> str:
    """Return the uncorrectable memory errors that a GPU had during a run, and rows that wait for repair or failed it.

    ``2 uncorrectable errors, rows to remap at the next reset, remapping rows failed``: those that apply. Empty:
    none, or not known. Without a look before training, all errors since the driver loaded count; with that look
    alone, none are new. Rows count as the last look shows them, also from before the run.
    """
    gpu = run.end or run.gpu
    new = (gpu.uncorrected or 0) - (run.before.uncorrected or 0 if run.before else 0)
    words = [f"{new:.0f} uncorrectable errors"] if new > 0 else []
    words += ["rows to remap at the next reset"] if gpu.rows_pending == "Yes" else []
    words += ["remapping rows failed"] if gpu.rows_failed == "Yes" else []
    return ", ".join(words)


def old_memory_errors(run: GpuRun) -> str:
    """Return how many uncorrectable memory errors a GPU had before a run, since its driver loaded:
    ``2 uncorrectable errors``.

    Empty: it had none, or it is not known.
    """
    old = run.before.uncorrected if run.before else None
    return f"{old:.0f} uncorrectable errors" if old else ""


def _margins(sample: GpuState, gpu: GpuState) -> Iterator[float | None]:
    """Yield how many degrees Celsius were left to the limits of a GPU in the look ``sample``; None: not known.

    There are always three: by nvidia-smi's own margin, by the GPU's temperature and by its memory's. The limits of the
    last two are those of ``gpu``, the GPU at the first look. Negative: it was above.
    """
    yield sample.temperature_margin_c
    for now, limit in (
        (sample.temperature_c, gpu.temperature_limit_c),
        (sample.memory_temperature_c, gpu.memory_temperature_limit_c),
    ):
        yield limit - now if now is not None and limit is not None else None


def _pcie_lanes(width: str | None) -> int:
    """Return the number of PCIe lanes in nvidia-smi's ``16x``; 0: None, or no number."""
    digits = (width or "").rstrip("x")
    return int(digits) if digits.isdecimal() else 0


def _by_index(snapshot: Snapshot) -> dict[int, GpuState]:
    """Return the GPUs of one look at a node by their numbers; empty where it shows none."""
    return {gpu.index: gpu for gpu in snapshot.gpus}
