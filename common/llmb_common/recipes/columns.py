"""The layout columns of a configuration, once: recipes list them in rows, requests override them, plans fix them.

What each field of a plan is for is declared beside it, and from that follows who compares it:

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
from typing import Annotated, Generic, Literal, TypeAlias, TypeVar, get_type_hints

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
    """Return what each field of ``struct`` is for, by the field's name: its role, such as ``work`` or ``speed``.

    The field's annotation declares it (``Work[int]``); fields that declare none are left out, inherited ones are
    there. The answer is kept: do not change it.
    """
    found: dict[str, Role] = {}
    for name, hint in get_type_hints(struct, include_extras=True).items():
        for meta in getattr(hint, "__metadata__", ()):
            if isinstance(meta, msgspec.Meta) and meta.extra and "role" in meta.extra:
                found[name] = meta.extra["role"]
    return found


@lru_cache
def fields_of(struct: type[msgspec.Struct], *roles: Role) -> tuple[str, ...]:
    """Return the names of the fields of ``struct`` that have any of ``roles``, in the order of declaration.

    Empty where no field has one, or no role is given.
    """
    known = roles_of(struct)
    return tuple(name for name in struct.__struct_fields__ if known.get(name) in roles)


MOST = 2**31 - 1
"""The largest number that any file may give of anything but a model's parameters: more is damage."""
Positive = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Parameters = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
"""The number of a model's weights."""

Batch = TypeVar("Batch")


class Columns(msgspec.Struct, Generic[Batch], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The layout of a job: parallel sizes, batch sizes, and what saves GPU memory or launch time.

    ``ep`` and ``vp`` None: not used; ``etp`` None: not given, so that the experts are divided as by ``tp``. ``mbs`` and
    ``gbs`` are the micro-batch and global batch sizes in samples; ``gbs`` is a formula of GPUs in a recipe's row
    (``GPUs*2``), and a number everywhere else. ``recompute_layers`` and ``offload_layers`` count the layers whose
    activations are computed again or kept in CPU memory; ``fsdp`` and ``cuda_graph`` say whether these are on. The
    property ``parallelism`` is the parallel sizes above 1 as text, ``TP8 PP8 FSDP``, in the order TP, PP, CP, VP, EP,
    FSDP and without ETP; empty: all are 1, and FSDP is off. Unknown keys, sizes below 1, negative counts and numbers
    above ``MOST`` are refused when it is decoded, not when it is made.
    """

    tp: Division[Positive] = 1
    pp: Division[Positive] = 1
    cp: Division[Positive] = 1
    ep: Division[Positive | None] = None
    etp: Division[Positive | None] = None
    vp: Division[Positive | None] = None
    mbs: Division[Positive]
    gbs: Work[Batch]
    fsdp: Division[bool] = False
    cuda_graph: Division[bool] = False
    recompute_layers: Division[Count] = 0
    offload_layers: Division[Count] = 0

    @property
    def parallelism(self) -> str:
        """The layout's parallel sizes above 1 as text for people: ``TP8 PP8 VP5 FSDP``.

        The order is TP, PP, CP, VP, EP, FSDP; ETP is not shown. Empty where all are 1 and FSDP is off.
        """
        sizes = {name: getattr(self, name) or 1 for name in ("tp", "pp", "cp", "vp", "ep")}
        words = [f"{name.upper()}{size}" for name, size in sizes.items() if size > 1]
        if self.fsdp:
            words.append("FSDP")
        return " ".join(words)
