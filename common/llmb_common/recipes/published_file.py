"""Results that NVIDIA published for performance recipes of Megatron-Bridge, as their own file beside ``recipe.yaml``.

The file keeps every row as printed, with the function whose columns it has; ``function`` null: no function of the
catalogue has them all, and nothing is compared with that row.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import msgspec

from llmb_common.decoding.structs import read_generated
from llmb_common.errors import RecipeError
from llmb_common.recipes.releases import release_order
from llmb_common.recipes.rows import Dtype, Fp8Recipe, Result

FAR_APART = 0.25
"""Share of a step time by which a result that differs from its neighbours in time is said to."""


class PublishedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row as printed. ``tflops_of_bridge``: TFLOP/s per GPU that Bridge's FLOPs make of the printed tokens/s."""

    document: str
    line: int
    container: str
    model: str
    gpu: str
    gpus: int
    precision: str
    columns: dict[str, int | None]
    tokens_per_second_per_gpu: float
    tflops_per_gpu: float
    step_seconds: float
    function: str | None = None
    release: str | None = None
    """The release of Megatron-Bridge whose function it is, where the newest catalogue has that with other columns."""
    variant: str | None = None
    size: str | None = None
    dtype: Dtype | None = None
    fp8_recipe: Fp8Recipe | None = None
    tflops_of_bridge: float | None = None
    why: str = ""
    """Why it belongs to no function, or what is odd in it."""
    note: str = ""
    """What NVIDIA says of it, in a footnote."""

    @property
    def drops_tokens(self) -> bool:
        """Whether experts were given no more tokens than they had room for; all functions are dropless."""
        return "tokendrop" in self.model


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: int
    rows: tuple[PublishedRow, ...]


def read_published(path: Path) -> tuple[PublishedRow, ...]:
    """All rows of the file.

    Raises:
        RecipeError: it cannot be read.
    """
    document: _Document = read_generated(path, _Document, remedy="restore it from the repository")
    return document.rows


def read_results(path: Path) -> tuple[Result, ...]:
    """The rows that belong to a function, as results to compare with.

    Raises:
        RecipeError: the file cannot be read.
    """
    rows = [row for row in read_published(path) if row.function is not None]
    together: dict[str | None, list[PublishedRow]] = defaultdict(list)
    for row in rows:
        together[row.function].append(row)
    return tuple(_result(row, together[row.function]) for row in rows)


def _result(row: PublishedRow, rows: list[PublishedRow]) -> Result:
    """``rows``: those of its function."""
    if row.variant is None or row.size is None or row.dtype is None:
        raise RecipeError(f"{row.document}:{row.line}: a function without variant, size and dtype", remedy="give them")
    if row.drops_tokens:
        raise RecipeError(
            f"{row.document}:{row.line}: a run that drops tokens does less work than {row.function}, which drops none",
            remedy="take its function away, and say why",
        )
    return Result(
        variant=row.variant,
        gpu=row.gpu,
        size=row.size,
        dtype=row.dtype,
        fp8_recipe=row.fp8_recipe,
        gpus=row.gpus,
        container=row.container,
        release=row.release,
        step_seconds=row.step_seconds,
        tokens_per_second=row.tokens_per_second_per_gpu * row.gpus,
        tflops_per_gpu=row.tflops_per_gpu,
        # Of a row that belongs to a function, only its TFLOPS can be odd: another count of FLOPs than Bridge's.
        corrected={"tflops_per_gpu": row.tflops_of_bridge} if row.why and row.tflops_of_bridge is not None else {},
        why=row.why,
        notes=tuple(note for note in (row.note, _apart(row, rows)) if note),
        source=f"{row.document}:{row.line}",
    )


def _apart(row: PublishedRow, rows: list[PublishedRow]) -> str:
    """That the two results nearest in time are both further away than releases should differ; empty where they agree.

    Two, so that an outlier makes none of its neighbours look odd: the first and the last have both on one side.
    """
    order = sorted({release_order(other.container) for other in rows})
    place = order.index(release_order(row.container))
    others = [other for other in rows if release_order(other.container) != order[place]]
    others.sort(key=lambda other: abs(order.index(release_order(other.container)) - place))
    changes = [row.step_seconds / other.step_seconds - 1 for other in others[:2]]
    if not changes or min(map(abs, changes)) <= FAR_APART:
        return ""
    apart = zip(changes, others, strict=False)
    said = " and ".join(f"{change:+.0%} against {other.container}" for change, other in apart)
    return f"its step time is far from those of the same function in the releases around it: {said}"
