"""The layout columns of a configuration, once: recipes list them in rows, requests override them, plans fix them."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

import msgspec

from llmb_common.decoding.roles import Division, Work
from llmb_common.request.variables import COLUMNS

Positive = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]

Batch = TypeVar("Batch")


class Columns(msgspec.Struct, Generic[Batch], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parallel sizes, batch sizes and what saves memory. ``ep``, ``etp``, ``vp`` None: not used.

    ``gbs`` is a formula in the row of a recipe, a number everywhere else.
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
        """``TP8 PP8 VP5 FSDP``, for people; empty where there is data parallelism only."""
        sizes = {name: getattr(self, name) or 1 for name in ("tp", "pp", "cp", "vp", "ep")}
        words = [f"{name.upper()}{size}" for name, size in sizes.items() if size > 1]
        return " ".join([*words, *(["FSDP"] if self.fsdp else [])])


assert Columns.__struct_fields__ == tuple(COLUMNS.values())  # which help texts need before msgspec
