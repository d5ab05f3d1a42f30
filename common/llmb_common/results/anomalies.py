"""What is odd about a run's steps, in words: each makes a reader doubt the figure, none of them changes it silently."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from llmb_common.command.printable import counted, first_few
from llmb_common.results.estimate import StepTime
from llmb_common.timing.records import Iteration
from llmb_common.timing.statistics import Window

DRIFT = 0.02
"""A change over the steady steps that is worth a word, as a share of the step time."""

WARM_UP = 0.05
"""How much slower than the rest the window's first steps may be."""

FLOPS_MISMATCH = 0.15
"""Engines count attention, embeddings and routing differently, by less than this; beyond, plan and log disagree."""

OTHER_WORK = 0.25
"""Beyond this it is not a matter of counting."""


def anomalies(iterations: Sequence[Iteration], window: Window, measured: StepTime) -> tuple[str, ...]:
    """Everything odd about the steps of a run whose window is complete.

    Args:
        iterations: all of the log, in order
        window: the measured ones
        measured: their step time
    """
    inside = window.select(iterations)
    steady = [item for item in iterations if item.index >= steady_from(window)]
    found = [
        _spikes(inside, measured),
        _warm_up(inside, measured),
        _drift(steady, {inside[at].index for at in measured.spikes}),
        _skipped(iterations),
    ]
    return tuple(text for text in found if text)


def steady_from(window: Window) -> int:
    """The first iteration after warm-up: the eleventh, by NVIDIA's older READMEs, unless the window begins earlier."""
    return min(window.first, 11)


def _spikes(inside: Sequence[Iteration], measured: StepTime) -> str:
    if not measured.spikes:
        return ""
    odd = [inside[at] for at in measured.spikes]
    largest = max((item.seconds for item in odd), key=lambda seconds: abs(math.log(seconds / measured.seconds)))
    one = len(odd) == 1
    most = "" if one else "up to " if largest > measured.seconds else "as little as "
    return (
        f"{len(odd)} of {len(inside)} measured steps {'is' if one else 'are'} unlike the others ({_named(odd)},"
        f" {most}{largest / measured.seconds:.2g} times their time): the steady step time leaves"
        f" {'it' if one else 'them'} out, the mean ({measured.mean / measured.seconds - 1:+.1%}) does not"
    )


def _warm_up(inside: Sequence[Iteration], measured: StepTime) -> str:
    """The window starts too early: its first steps fall towards the level of the others."""
    head = [item.seconds for item in inside[:3]]
    rest = [item.seconds for item in inside[3:]]
    if len(rest) < 4:
        return ""
    level = statistics.median(rest)
    if head == sorted(head, reverse=True) and head[0] > (1 + WARM_UP) * level and head[1] > (1 + WARM_UP / 2) * level:
        return f"warm-up reaches into the window: its first step takes {head[0] / level - 1:.0%} longer than later ones"
    return ""


def _drift(steady: Sequence[Iteration], aside: set[int]) -> str:
    """The last third against the first, where the difference is larger than chance."""
    kept = [item for item in steady if item.index not in aside]
    third = len(kept) // 3
    if third < 4:
        return ""
    first, last = ([item.seconds for item in part] for part in (kept[:third], kept[-third:]))
    before, after = statistics.median(first), statistics.median(last)
    error = 1.2533 * math.hypot(statistics.stdev(first), statistics.stdev(last)) / math.sqrt(third)
    change = after / before - 1
    if abs(change) < DRIFT or abs(after - before) < 4 * error:
        return ""
    where = f"from iteration {kept[0].index} to {kept[-1].index}"
    return (
        f"steps become {'slower' if change > 0 else 'faster'}: {change:+.1%} {where} (clocks, temperature, neighbors?)"
    )


def _skipped(iterations: Sequence[Iteration]) -> str:
    odd = [item for item in iterations if item.skipped]
    return f"the optimizer skipped {counted(len(odd), 'step')} ({_named(odd)})" if odd else ""


def logged_tflop(inside: Sequence[Iteration]) -> float | None:
    """TFLOP (10^12 operations) of one GPU in one step, as the log's own TFLOPS and times make them; None: unknown."""
    # Small models on CPUs and the like make less than 1, of which a single decimal is printed.
    rates = [item.tflops * item.seconds for item in inside if item.tflops and 1 <= item.tflops < math.inf]
    return statistics.median(rates) if rates else None


def flops_mismatch(logged: float | None, planned: float | None, allowed: float = FLOPS_MISMATCH) -> tuple[str, ...]:
    """Where the work of a step, as the log counts it, is not the plan's; both in TFLOP of one GPU, None: unknown."""
    if logged is None or planned is None or abs(logged / planned - 1) <= allowed:
        return ()
    return (
        f"TFLOPS and step time of the log make {logged / planned:.2f} times the work of a planned step:"
        " another model, sequence length, batch or GPU count than planned, or a log of another run",
    )


def _named(odd: Sequence[Iteration]) -> str:
    return f"iteration{'s' * (len(odd) != 1)} {first_few([item.index for item in odd], 5)}"
