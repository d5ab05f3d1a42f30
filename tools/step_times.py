"""What published step times say of step times in general: ``python -m tools --write step_times``.

It writes ``step_times.json``, which plans read, and the table in docs/planning.md. Run it after results were added to
``mbridge/published.json`` or a recipe.

The weights of the parts of a step are a least-squares fit of the relative errors, in which each configuration counts
once, outliers little (Huber), and each weight is drawn to a stated one. A prediction whose error is counted knows
neither the result itself nor, for its weights, any result of its model. The band of a class is a quantile of these
errors: of the lowest level from 90 % on (92 % where the nearest results decide) at which at least that share of
the results lies inside the bands that are made without them; without all results of their model, except where the very
configuration is known, without those of that.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from llmb_common.planning import step_time
from llmb_common.planning.divisibility import Layout
from llmb_common.planning.step_time import (
    CLASSES,
    FILE,
    Learned,
    Residual,
    Width,
    Work,
    attention_columns,
    seconds_by_part,
)
from llmb_common.platform.engines import release_order
from llmb_common.platform.gpus import GPUS
from llmb_common.recipes.catalogue import Catalogue
from llmb_common.recipes.loading import load_recipe, recipe_folders
from llmb_common.recipes.model import model_flops
from llmb_common.recipes.recipe import Recipe, find_row
from llmb_common.recipes.rows import PublishedResult, PublishedRow, read_published
from llmb_common.request.columns import Columns
from tools.markdown import fill

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs" / "planning.md"

WEIGHTS = {
    "hopper bf16": 1.4,
    "hopper fp8": 1.7,
    "blackwell bf16": 1.6,
    "blackwell fp8": 1.8,
    "blackwell nvfp4": 2.5,
    "bf16": 2.0,
    "experts": 4.0,
    "memory": 1.2,
    "tensor": 0.36,
    "exchange by NVLink": 1.0,
    "exchange by network": 0.5,
    "launches": 0.5,
    "FSDP": 0.3,
}
"""What each part is drawn to: plausible before any result was seen."""

DRAWN = 0.4
"""Standard deviation of a weight around that, as a share of it."""

NOISE = 0.12
"""Of a result around the fit, as a share; errors beyond ``OUTLIER`` count less and less."""
OUTLIER = 0.15
ROUNDS = 6

OF_CONFIGURATIONS = ("published", "other container")
"""Classes in which the very configuration is known, and with it the model."""

COVERAGE = 0.90
NEARER = 0.92
"""In classes whose predictions rest on the nearest results of the same model: where some of these are missing, others
that are farther take their place (``benchmarks/step_time_coverage.py``)."""
OF_NEAREST = ("other container", "other layout", "other GPU type")
FEWEST = 10
"""Errors of others from which on they make a band; models, to speak for all."""

PRECISIONS = {
    "BF16": ("bf16", None),
    "NVFP4": ("nvfp4", None),
    "MXFP8": ("fp8", "mx"),
    "FP8-MX": ("fp8", "mx"),
    "FP8-CS": ("fp8", "cs"),
    "FP8": ("fp8", "cs"),
}


class Point(NamedTuple):
    """A published result. ``odd``: its publisher calls it a regression.

    That it is far from others around it is known only afterwards, and does not count.
    """

    work: Work
    seconds: float
    odd: bool

    @property
    def container(self) -> str:
        assert self.work.container is not None, "a result names it"
        return self.work.container

    @property
    def release(self) -> tuple[int, ...]:
        return release_order(self.container)

    @property
    def configuration(self) -> tuple[object, ...]:
        """Everything but the container."""
        return (*self.scaled, self.work.layout.gpus, self.work.layout.gbs)

    @property
    def scaled(self) -> tuple[object, ...]:
        """The same for the same work on each GPU, at whatever scale."""
        work, layout = self.work, self.work.layout
        known = step_time.known_of(work, 0.0)
        each = layout.gbs / layout.gpus
        return known.model, work.shape.layers, known.gpu, known.precision, known.columns, work.sequence_length, each


def points() -> list[Point]:
    """Every result that was published for pretraining, once."""
    found: dict[tuple[object, ...], Point] = {}
    for folder in recipe_folders(ROOT):
        recipe = load_recipe(folder)
        listed = [point for result in recipe.listed_results if (point := of_result(recipe, result))]
        for point in (*listed, *of_catalogue(recipe)):
            found.setdefault((point.configuration, point.release, point.seconds), point)
    return list(found.values())


def of_result(recipe: Recipe, result: PublishedResult) -> Point | None:
    row = find_row(recipe, result)
    if row is None:
        return None
    model = recipe.model(result.size)
    shape = msgspec.structs.replace(model.listed, layers=row.layers or model.listed.layers)
    fp8 = result.fp8_recipe or recipe.variant(result.variant).fp8_recipe
    columns = {name: getattr(row, name) for name in Columns.__struct_fields__}
    layout = Layout(gpus=result.gpus, **columns | {"gbs": row.global_batch_size(result.gpus)})
    per_token = model_flops(shape, model.sequence_length).total / model.sequence_length
    container = recipe.document(result).container
    words = (layout, result.gpu, result.dtype, fp8 if result.dtype == "fp8" else None, container)
    return Point(Work(*words, model.sequence_length, shape, per_token), result.step_seconds, odd=False)


def of_catalogue(recipe: Recipe) -> Iterable[Point]:
    """The printed rows, also those of no function: these have their model's numbers, and their own columns.

    Rows that drop tokens are other work; rows of what nobody knows are named.
    """
    if recipe.results_file is None or recipe.catalogue is None:
        return
    # All functions are dropless: without rows whose experts were given no more tokens than they had room for.
    rows = [row for row in read_published(Path(recipe.results_file)) if "tokendrop" not in row.model]
    sizes = {row.model.partition(" (")[0]: row.size for row in rows if row.size}
    for row in rows:
        size = row.size or sizes.get(row.model.partition(" (")[0])
        catalogue = recipe.of_release(row.release).catalogue or recipe.catalogue
        point = of_printed(catalogue, row, size)
        if point is not None:
            yield point
        else:
            print(f"left out: {row.document}:{row.line}: {row.model} {row.precision} on {row.gpu}", file=sys.stderr)


def of_printed(catalogue: Catalogue, row: PublishedRow, size: str | None) -> Point | None:
    """None: the catalogue has no such model, or the GPU or its precision is not known."""
    names = [item.name for item in catalogue.index if (item.model, item.task) == (size, "pretrain")]
    known = PRECISIONS.get(row.precision)
    gpu = GPUS.get(row.gpu)
    if not names or known is None or gpu is None or known[0] not in gpu.peaks or not gpu.memory_bandwidth:
        return None
    function = catalogue.function(row.function or names[0])
    if function.flops_per_token is None:
        return None
    columns: dict[str, Any] = {name: n for name, n in row.columns.items() if name != "seqlen" and n is not None}
    layout = Layout(gpus=row.gpus, **columns | {"fsdp": bool(columns.get("fsdp"))})
    sequence = row.columns["seqlen"] or function.sequence_length
    longer = 6 * attention_columns(function.architecture) * (sequence - function.sequence_length)
    words = (layout, row.gpu, *known, row.container, sequence, function.architecture)
    return Point(Work(*words, function.flops_per_token + longer), row.step_seconds, odd=bool(row.note))


def fit(known: Sequence[Point], parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """The weights with which the parts of all steps come nearest to their times."""
    names, size = list(WEIGHTS), len(WEIGHTS)
    often = Counter(point.configuration for point in known)
    shares = [[part.get(name, 0.0) / point.seconds for name in names] for point, part in zip(known, parts, strict=True)]
    counts = [1 / often[point.configuration] for point in known]
    drawn = [1 / (DRAWN * WEIGHTS[name]) ** 2 for name in names]
    weights = list(WEIGHTS.values())
    for _ in range(ROUNDS):
        errors = [abs(math.fsum(map(float.__mul__, row, weights)) - 1) for row in shares]
        trust = [n * min(1.0, OUTLIER / max(e, 1e-9)) / NOISE**2 for n, e in zip(counts, errors, strict=True)]
        trusted = list(zip(trust, shares, strict=True))
        matrix = [[math.fsum(t * row[a] * row[b] for t, row in trusted) for b in range(size)] for a in range(size)]
        right = [math.fsum(t * row[a] for t, row in trusted) for a in range(size)]
        for a, name in enumerate(names):
            matrix[a][a] += drawn[a]
            right[a] += drawn[a] * WEIGHTS[name]
        weights = [max(value, 0.02 * WEIGHTS[name]) for value, name in zip(solved(matrix, right), names, strict=True)]
    return {name: float(f"{value:.4g}") for name, value in zip(names, weights, strict=True)}


def solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of a symmetric positive definite system: elimination without pivots."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for at in range(size):
        for below in range(at + 1, size):
            share = rows[below][at] / rows[at][at]
            rows[below] = [x - share * y for x, y in zip(rows[below], rows[at], strict=True)]
    found = [0.0] * size
    for at in reversed(range(size)):
        rest = math.fsum(rows[at][other] * found[other] for other in range(at + 1, size))
        found[at] = (rows[at][size] - rest) / rows[at][at]
    return found


def left_over(known: Sequence[Point], weights: dict[str, float]) -> list[Residual]:
    """What each result has left."""
    bare = Learned((), weights, {}, ())
    return [step_time.known_of(p.work, round(math.log(p.seconds / step_time.modelled(p.work, bare)), 4)) for p in known]


class Miss(NamedTuple):
    """The natural logarithm of a result's time over what was predicted without it, and what it is left out with.

    ``of``: which of its model's results; predictions that know the same count once. ``configuration``: of the result.
    """

    group: str
    error: float
    of: int
    configuration: str


def misses(known: Sequence[Point], containers: Sequence[str]) -> dict[tuple[str, str], list[Miss]]:
    """The errors by class of knowledge and kind of model."""
    found: dict[tuple[str, str], set[Miss]] = defaultdict(set)
    parts = [seconds_by_part(point.work) for point in known]
    for model in dict.fromkeys(point.work.model for point in known):
        others = [(point, part) for point, part in zip(known, parts, strict=True) if point.work.model != model]
        weights = fit(*map(list, zip(*others, strict=True)))
        own = [point for point in known if point.work.model == model]
        rows = left_over(own, weights)
        for at, (point, row) in enumerate(zip(own, rows, strict=True)):
            configuration = str(point.configuration)
            found["new model", point.work.kind].add(Miss(model, row.left, at, configuration))
            every = [pair for pair in zip(own, rows, strict=True) if pair[0] is not point and not pair[0].odd]
            for pool in _known_then(point, every):
                for knowledge, error in _misses_of(point, row, pool, containers):
                    group = configuration if knowledge in OF_CONFIGURATIONS else model
                    found[knowledge, point.work.kind].add(Miss(group, error, at, configuration))
    return {key: list(errors) for key, errors in found.items()}


def _known_then(point: Point, every: Sequence[tuple[Point, Residual]]) -> Iterable[Sequence[tuple[Point, Residual]]]:
    """What is known of a model when a job like ``point`` is planned: in a new container, in the newest, in an old one.

    Of its own configuration nothing later: such a job would have a result of its own.
    """
    yield [pair for pair in every if pair[0].release < point.release]
    yield [pair for pair in every if pair[0].release <= point.release]
    yield [pair for pair in every if pair[0].configuration != point.configuration]


def _misses_of(
    point: Point, row: Residual, others: Sequence[tuple[Point, Residual]], containers: Sequence[str]
) -> Iterable[tuple[str, float]]:
    """``row``: what the point has left; ``others``: other results of its model, with what these have left."""
    elsewhere = [left for other, left in others if other.work.gpu_type != point.work.gpu_type]
    if elsewhere:
        yield "other GPU type", row.left - step_time.anchor(row, elsewhere, containers)
    # A scale that only repeats the work of each GPU is too easy to speak for other layouts.
    unlike = [left for other, left in others if other.scaled != point.scaled]
    if any(left.gpu == row.gpu for left in unlike):
        yield "other layout", row.left - step_time.anchor(row, unlike, containers)
    same = [other for other, _ in others if other.configuration == point.configuration]
    if apart := [other for other in same if other.release != point.release]:
        yield "other container", math.log(point.seconds / nearest(point.container, apart, containers).seconds)
    # The nearest to a second measurement in one container: that in another patch of the same release.
    for other in same:
        if other.release[:2] == point.release[:2] and other.release < point.release:
            yield "published", math.log(point.seconds / other.seconds)


def nearest(container: str, others: Sequence[Point], containers: Sequence[str]) -> Point:
    """The result in the container next to ``container``, the newer of two."""
    at = step_time.position_of(container, containers)
    return min(
        others,
        key=lambda other: (abs(step_time.position_of(other.container, containers) - at), [-n for n in other.release]),
    )


def width(knowledge: str, found: Sequence[Miss]) -> Width | None:
    """The band of a class; None where too few results of too few models speak for it.

    Of few models, none is an exception: then the band of a new one holds the results of each of them.
    """
    groups = sorted({miss.group for miss in found})
    few = knowledge == "new model" and len(groups) < FEWEST
    least = NEARER if knowledge in OF_NEAREST else COVERAGE
    for per_mille in range(round(least * 1000), 1000, 5):
        level, inside = per_mille / 1000, list[tuple[Miss, bool]]()
        for group in groups:
            others = [miss for miss in found if miss.group != group]
            if len(others) >= FEWEST:
                half = quantile(others, level)
                inside += [(miss, abs(miss.error) <= half) for miss in found if miss.group == group]
        if inside and min(shares(knowledge, inside)) >= least:
            half, middle = quantile(found, level), statistics.median(abs(miss.error) for miss in found)
            if few:
                half = max(quantile([miss for miss in found if miss.group == group], level) for group in groups)
            coverage = round(shares(knowledge, inside)[0], 3)
            return Width(round(half, 4), level, len(found), len(groups), round(middle, 4), coverage)
    return None


def shares(knowledge: str, inside: Sequence[tuple[Miss, bool]]) -> tuple[float, float]:
    """The share of predictions that are inside; and with each configuration counted once, unless the class knows it.

    Those in many containers are the better known ones, and a job of which nothing is published is none of them.
    """
    every = sum(held for _, held in inside) / len(inside)
    if knowledge in OF_CONFIGURATIONS:
        return every, every
    often = Counter(miss.configuration for miss, _ in inside)
    return every, math.fsum(held / often[miss.configuration] for miss, held in inside) / len(often)


def quantile(found: Sequence[Miss], level: float) -> float:
    """Below which the error of a further configuration lies with at least the probability ``level``, whatever the sign.

    One of n known ones and a new one is the worst with 1 / (n + 1) (conformal prediction). Results of a configuration
    in many containers are alike: n is the number of configurations.
    """
    ordered, n = sorted(abs(miss.error) for miss in found), len({miss.configuration for miss in found})
    return ordered[min(len(ordered), math.ceil(len(ordered) * level * (n + 1) / n)) - 1]


def learn(known: Sequence[Point]) -> Learned:
    releases = {point.release: point.container for point in known}  # one has two names
    containers = [releases[release] for release in sorted(releases)]
    found = misses(known, containers)
    made: dict[str, dict[str, Width]] = {name: {} for name in CLASSES if name != "own runs"}
    for (name, kind), errors in sorted(found.items(), reverse=True):
        if (band := width(name, errors)) is not None:
            made[name][kind] = band
    weights = fit(known, [seconds_by_part(point.work) for point in known])
    rows = left_over([point for point in known if not point.odd], weights)
    return Learned(tuple(containers), weights, made, tuple(dict.fromkeys(rows)))


def as_text(what: Learned) -> str:
    """One row a line."""
    head = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(what, rows=())), indent=1).decode()
    rows = ",\n".join(msgspec.json.encode(row).decode() for row in what.rows)
    return head.replace('"rows": []', f'"rows": [\n{rows}\n]') + "\n"


def as_table(what: Learned) -> list[str]:
    lines = ["| class | kind | predictions | of | median error | 90 % band | inside a band made without them |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name, kinds in what.bands.items():
        of = "configurations" if name in OF_CONFIGURATIONS else "models"
        for kind, known in kinds.items():
            band = f"+{math.expm1(known.half):.0%} / −{-math.expm1(-known.half):.0%}"
            cells = (name, kind, known.rows, f"{known.groups} {of}", f"{math.expm1(known.median):.1%}", band)
            lines.append(f"| {' | '.join(map(str, cells))} | {known.coverage:.1%} |")
    return lines


def files() -> dict[Path, str]:
    """The file that plans read, and the table on its page."""
    what = learn(points())
    page = fill(DOCS.read_text(encoding="utf-8"), DOCS.name, {"bands": lambda: as_table(what)}, {})
    return {FILE: as_text(what), DOCS: page}
