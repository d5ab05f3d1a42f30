"""Runs seen together, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class View:
    """``name`` is the key of ``data`` in JSON; ``names`` and ``lines`` are CSV, ``columns`` and ``rows`` a table."""

    name: str
    data: Sequence[Any]
    names: Sequence[str]
    lines: Sequence[dict[str, Any]]
    columns: Sequence[str]
    right: Sequence[str]
    """The columns of figures."""
    rows: Sequence[list[str]]
    empty: str = ""
    """What to say where there is nothing."""
    conclusions: Sequence[str] = ()
    """Sentences above the table."""
