"""What lists and completion show of a recipe."""

from __future__ import annotations

from typing import NamedTuple


class Configuration(NamedTuple):
    """What selects a row, and the numbers of GPUs that it documents."""

    size: str
    gpu: str
    dtype: str
    fp8_recipe: str | None
    variant: str
    release: str | None
    """Of Megatron-Bridge, where the recipe's image has another one without it; else None."""
    scales: tuple[int, ...]
    layout: str = ""
    """``TP8 PP8 VP5``: what is not 1; only in summaries."""
    published: tuple[float, float] | None = None
    """The shortest and the longest step time that was published for these scales, in seconds; only in summaries."""


class Summary(NamedTuple):
    """The names of a recipe, its model sizes and its configurations."""

    name: str
    workload: str
    title: str
    sizes: tuple[str, ...]
    configurations: tuple[Configuration, ...]
