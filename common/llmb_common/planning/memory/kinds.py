"""Kinds of jobs, and how well the estimate is known for each: from peaks that were measured, by others or on this site.

The errors are those of ``tests/data/memory_peaks.json`` (a test compares), in percent of the measured peak; how they
came about stands in docs/planning.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from llmb_common.planning.memory.estimate import Job

Knowledge = Literal["validated", "validated here", "not validated"]

ENOUGH = 5
"""Pairs of one site and software from which on its own residual counts."""

_APART = 1.25
"""How far a further run may be off where a site's runs say anything: runs that contradict each other say nothing."""

_T = 2.13
"""Student's t of 5 % and four degrees of freedom, those of the fewest runs that count."""


class Known(NamedTuple):
    """How well a kind of job is known: the lowest and the highest error in percent (None: nobody measured), of so many
    peaks."""

    knowledge: Knowledge
    low: float | None = None
    high: float | None = None
    peaks: int = 0
    factor: float = 1.0
    """Measured over predicted: of a site's own runs the mean, of published peaks of what is not validated the most."""


MEASURED = {
    "dense, bf16": Known("validated", -0.3, 0.1, 27),
    # Latent attention, one micro-batch or two, experts of a fixed capacity: DeepSeek on one node only.
    "experts, bf16": Known("not validated", -0.3, 0.1, 12),
    "experts, bf16, CUDA graphs": Known("not validated", -17.3, -10.0, 2),
    "experts, bf16, recomputation, CUDA graphs": Known("not validated", -11.2, -11.2, 1),
    "experts, bf16, recomputation, heads for further tokens": Known("not validated", -19.7, -19.7, 1),
    "experts, bf16, CUDA graphs, heads for further tokens": Known("not validated", -15.6, -15.6, 1),
    "experts, bf16, recomputation, offload, CUDA graphs, heads for further tokens": Known(
        "not validated", -19.3, -19.3, 1
    ),
    "experts, fp8 (mx), FSDP, heads for further tokens": Known("not validated", -12.1, -12.1, 1),
    "dense, fp8 (cs), VP": Known("not validated", -4.6, 16.4, 4),
}


def kind_of(job: Job, precision: str, *, graphs: bool, adapters: bool, settings: bool = False) -> str:
    """``dense, bf16``, ``experts, fp8 (mx), VP, offload``: what decides how well the memory of a job is known."""
    layout = job.layout
    words = {
        "VP": (layout.vp or 1) > 1,
        "FSDP": layout.fsdp,
        "recomputation": bool(layout.recompute_layers or job.recomputed),
        "offload": bool(layout.offload_layers or job.offloaded),
        "CUDA graphs": graphs,
        "heads for further tokens": job.body.further > 0,
        "adapters": adapters,
        "settings": settings,
    }
    found = [word for word, there in words.items() if there]
    return ", ".join(["experts" if job.body.has_experts else "dense", precision, *found])


def known_here(ratios: Sequence[float]) -> Known | None:
    """What a site's runs say of their kind: peaks over predictions. None where they are too few, or contradict.

    The errors are those between which a further run lies in 9 of 10 cases, and never nearer than a percent: repeats of
    one job are alike, and another job of the kind is not.
    """
    if len(ratios) < ENOUGH:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    middle = math.fsum(logs) / len(logs)
    spread = math.sqrt(math.fsum((log - middle) ** 2 for log in logs) / (len(logs) - 1))
    half = max(_T * spread * math.sqrt(1 + 1 / len(logs)), math.log(1.01))
    if half > math.log(_APART):
        return None
    low, high = (100 * (math.exp(error) - 1) for error in (-middle - half, -middle + half))
    return Known("validated here", round(low, 1), round(high, 1), len(ratios), math.exp(middle))


def known(kind: str) -> Known:
    """How well jobs of ``kind`` are known from published peaks."""
    found = MEASURED.get(kind, Known("not validated"))
    if found.knowledge == "validated" or found.low is None:
        return found
    return found._replace(factor=max(1.0, 1 / (1 + found.low / 100)))
