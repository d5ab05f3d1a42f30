"""The nearest values of a column with which a layout that is refused would be taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from msgspec.structs import replace

from llmb_common.errors import RequestError
from llmb_common.planning.divisibility import Layout

_FURTHEST = 256
"""Values that are tried on either side."""


def with_nearest(
    error: RequestError, layout: Layout, asked: Iterable[str], check: Callable[[Layout], None]
) -> RequestError:
    """``error`` with the nearest valid values of each column that was ``asked`` for, or of the number of GPUs."""
    said = []
    for name in [name for name in asked if name not in ("fsdp", "cuda_graph")] or ["gpus"]:
        values = sorted(islice(_valid(layout, name, check), 2))
        if values:
            said.append(f"{'JOB_TOTAL_GPUS' if name == 'gpus' else name.upper()} {' or '.join(map(str, values))}")
    if said:
        error.remedy += f" (nearest: {', '.join(said)})"
    return error


def _valid(layout: Layout, name: str, check: Callable[[Layout], None]) -> Iterator[int]:
    """The next one below and the next one above."""
    own: int = getattr(layout, name) or 1
    least = 0 if name in ("recompute_layers", "offload_layers") else 1
    unit = {"gbs": layout.mbs * max(layout.dp, 1), "gpus": layout.tp * layout.pp * layout.cp}.get(name, 1)
    below = range(own - own % unit - unit * (own % unit == 0), least - 1, -unit)
    for values in (below, range(own - own % unit + unit, own + unit * _FURTHEST, unit)):
        yield from islice((value for value in values[:_FURTHEST] if _is_valid(layout, name, value, check)), 1)


def _is_valid(layout: Layout, name: str, value: int, check: Callable[[Layout], None]) -> bool:
    changed = replace(layout, **{name: value})
    if name == "gpus" and layout.gbs * value % layout.gpus == 0:  # each replica keeps its part of the batch
        changed = replace(changed, gbs=layout.gbs * value // layout.gpus)
    try:
        check(changed)
    except (RequestError, ZeroDivisionError):
        return False
    return True
