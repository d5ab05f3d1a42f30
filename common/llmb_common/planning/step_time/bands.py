"""How fast the work of a step is done, and how sure that is: learned from the published results.

``step_times.json`` beside the shipped recipes is written by ``tools.step_times``. It holds how many times longer than
at full rate each part takes (``weights``), what is left of each published result beside that (``rows``), and by class
of knowledge and kind of model how far predictions were from results that they did not know (``bands``).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

import llmb_common.recipes
from llmb_common.decoding.structs import read_generated
from llmb_common.planning.step_time.work import Work, seconds_by_part
from llmb_common.recipes.releases import release_order

FILE = Path(llmb_common.recipes.__file__).with_name("step_times.json")

CLASSES = {
    "own runs": "runs of exactly this job at this site",
    "published": "the published result of this job in this container",
    "other container": "the published result of this job in another container",
    "other layout": "results of this model on this GPU type, in other layouts, frameworks or numbers of GPUs",
    "other GPU type": "results of this model on other GPU types only",
    "new model": "results of other models only",
}
"""What a prediction can know, the best first, in words."""

_FAR = 0.4
"""A result at this distance counts e times less than one of the same configuration."""

_DISTANCES = {"container": 0.2, "precision": 0.5, "gpu": 0.5, "column": 0.25}
"""Between two results: of each release between their containers, and of each thing in which they differ."""

_SHRINK = 0.3
"""How much the model alone counts beside its nearest result."""


class Band(NamedTuple):
    """Seconds of a step: most likely, and between what at least 90 of 100 steps' times lie. ``knowledge``: a class."""

    seconds: float
    low: float
    high: float
    knowledge: str


class Known(msgspec.Struct, frozen=True, array_like=True):
    """A result, and ``left``: the natural logarithm of its time over what the weights make of its work."""

    model: str
    gpu: str
    precision: str
    container: str
    columns: tuple[int, ...]
    left: float


class Width(msgspec.Struct, frozen=True):
    """How wide the band of a class is. ``half``: of the logarithm. The rest says how that was found.

    ``rows``: errors, of so many ``groups`` (models, or configurations), with their ``median``; ``coverage``: the share
    of them that lie inside a band of the same ``level`` that is made from other groups' errors.
    """

    half: float
    level: float
    rows: int
    groups: int
    median: float
    coverage: float


class Learned(msgspec.Struct, frozen=True):
    """The content of ``step_times.json``; ``bands`` by class and kind of model."""

    containers: tuple[str, ...]
    weights: dict[str, float]
    bands: dict[str, dict[str, Width]]
    rows: tuple[Known, ...]


@lru_cache(maxsize=1)
def learned() -> Learned:
    """What the published results say."""
    found: Learned = read_generated(FILE, Learned, remedy="write it again: python -m tools.step_times --write")
    return found


def predict(
    work: Work, known: tuple[float, bool] | None, own: Iterable[tuple[Work, float]] = (), what: Learned | None = None
) -> Band | None:
    """How long a step of ``work`` takes; None where nothing can be said.

    Args:
        work: what is asked for
        known: seconds of the published result of exactly this job, and whether in this container
        own: this site's runs of the same model, each with its step time in seconds
    """
    what = what or learned()
    if known is not None:
        seconds, here = known
        return banded(seconds, "published" if here else "other container", work.kind, what)
    if not seconds_by_part(work).keys() <= what.weights.keys():
        return None  # of a generation without results
    mine = known_of(work, 0.0)
    rows = [*(row for row in what.rows if row.model == mine.model)]
    rows += [known_of(run, math.log(seconds / modelled(run, what))) for run, seconds in own]
    knowledge = "new model" if not rows else "other GPU type"
    if any(row.gpu == mine.gpu for row in rows):
        knowledge = "other layout"
    seconds = modelled(work, what) * math.exp(anchor(mine, rows, what.containers))
    return banded(seconds, knowledge, work.kind, what)


def banded(seconds: float, knowledge: str, kind: str, what: Learned) -> Band | None:
    """``seconds`` with the class's band; None where too few results say how wide that is."""
    width = what.bands[knowledge].get(kind)
    if width is None:
        return None
    return Band(seconds, seconds * math.exp(-width.half), seconds * math.exp(width.half), knowledge)


def known_of(work: Work, left: float) -> Known:
    """``work`` as a result."""
    layout = work.layout
    columns = (layout.tp, layout.pp, layout.cp, layout.vp or 1, layout.ep or 1, layout.mbs, int(layout.fsdp))
    return Known(work.model, work.gpu_type, work.precision, work.container or "", columns, left)


def modelled(work: Work, what: Learned) -> float:
    """Seconds of a step by its work alone."""
    return math.fsum(seconds * what.weights[name] for name, seconds in seconds_by_part(work).items())


def anchor(mine: Known, rows: Sequence[Known], containers: Sequence[str]) -> float:
    """What results of the same model have left, the nearest most: to add to the logarithm of a prediction."""
    if not rows:
        return 0.0
    near = [math.exp(-_distance(mine, row, containers) / _FAR) for row in rows]
    return math.fsum(a * row.left for a, row in zip(near, rows, strict=True)) / (math.fsum(near) + _SHRINK * max(near))


def _distance(one: Known, other: Known, containers: Sequence[str]) -> float:
    apart = abs(place_of(one.container, containers) - place_of(other.container, containers))
    columns = sum(a != b for a, b in zip(one.columns, other.columns, strict=True))
    found = _DISTANCES["container"] * apart + _DISTANCES["column"] * columns
    found += _DISTANCES["precision"] * (one.precision != other.precision)
    return found + _DISTANCES["gpu"] * (one.gpu != other.gpu)


def place_of(container: str, containers: Sequence[str]) -> int:
    """The release's place in the order of those that results are known of; an unknown one is newer than all."""
    if not container:
        return len(containers)
    return bisect_right([release_order(name) for name in containers], release_order(container))
