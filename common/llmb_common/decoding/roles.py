"""What each field of a job's plan is for. It is declared beside the field, and from it follows who compares it.

=========== =====================================================================================================
work        what a step computes, wherever and however: jobs with the same work have the same losses
division    how the work is divided among GPUs, which may follow their number
speed       what else decides the time of a step
extent      how many steps
place       where the job runs, and with what software: site, image, nodes
bookkeeping names, folders, limits and predictions
derived     follows from the other fields
=========== =====================================================================================================

Two jobs are of the same configuration when work, division and speed are the same.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Literal, TypeAlias, TypeVar, get_type_hints

import msgspec

Role: TypeAlias = Literal["work", "division", "speed", "extent", "place", "bookkeeping", "derived"]
T = TypeVar("T")

Work = Annotated[T, msgspec.Meta(extra={"role": "work"})]
Division = Annotated[T, msgspec.Meta(extra={"role": "division"})]
Speed = Annotated[T, msgspec.Meta(extra={"role": "speed"})]
Extent = Annotated[T, msgspec.Meta(extra={"role": "extent"})]
Place = Annotated[T, msgspec.Meta(extra={"role": "place"})]
Bookkeeping = Annotated[T, msgspec.Meta(extra={"role": "bookkeeping"})]
Derived = Annotated[T, msgspec.Meta(extra={"role": "derived"})]


@lru_cache
def roles_of(struct: type[msgspec.Struct]) -> dict[str, Role]:
    """The role of each field; a field that declares none is missing."""
    found: dict[str, Role] = {}
    for name, hint in get_type_hints(struct, include_extras=True).items():
        for meta in getattr(hint, "__metadata__", ()):
            if isinstance(meta, msgspec.Meta) and meta.extra and "role" in meta.extra:
                found[name] = meta.extra["role"]
    return found


@lru_cache
def fields_of(struct: type[msgspec.Struct], *roles: Role) -> tuple[str, ...]:
    """The fields with one of ``roles``, in the order of the struct."""
    known = roles_of(struct)
    return tuple(name for name in struct.__struct_fields__ if known.get(name) in roles)
