"""Results that NVIDIA published for performance recipes of Megatron-Bridge, as their own file beside ``recipe.yaml``.

The file keeps every row as printed, with the function whose columns it has; ``function`` null: no function of the
catalogue has them all, and nothing is compared with that row.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from llmb_common.errors import RecipeError
from llmb_common.recipes.generated import read_generated
from llmb_common.recipes.rows import Dtype, Fp8Recipe, Result


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
    variant: str | None = None
    size: str | None = None
    dtype: Dtype | None = None
    fp8_recipe: Fp8Recipe | None = None
    tflops_of_bridge: float | None = None
    why: str = ""
    """Why it belongs to no function, or what is odd in it."""


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
    return tuple(_result(row) for row in read_published(path) if row.function is not None)


def _result(row: PublishedRow) -> Result:
    if row.variant is None or row.size is None or row.dtype is None:
        raise RecipeError(f"{row.document}:{row.line}: a function without variant, size and dtype", remedy="give them")
    return Result(
        variant=row.variant,
        gpu=row.gpu,
        size=row.size,
        dtype=row.dtype,
        fp8_recipe=row.fp8_recipe,
        gpus=row.gpus,
        container=row.container,
        step_seconds=row.step_seconds,
        tokens_per_second=row.tokens_per_second_per_gpu * row.gpus,
        tflops_per_gpu=row.tflops_per_gpu,
        # Of a row that belongs to a function, only its TFLOPS can be odd: another count of FLOPs than Bridge's.
        corrected={"tflops_per_gpu": row.tflops_of_bridge} if row.why and row.tflops_of_bridge is not None else {},
        why=row.why,
        source=f"{row.document}:{row.line}",
    )
