"""The layout columns of a configuration, once: recipes list them in rows, requests override them, plans fix them."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

import msgspec

from llmb_common.request.variables import COLUMNS

Positive = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]

Batch = TypeVar("Batch")


class Columns(msgspec.Struct, Generic[Batch], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parallel sizes, batch sizes and what saves memory. ``ep``, ``etp``, ``vp`` None: not used.

    ``gbs`` is a formula in the row of a recipe, a number everywhere else.
    """

    tp: Positive = 1
    pp: Positive = 1
    cp: Positive = 1
    ep: Positive | None = None
    etp: Positive | None = None
    vp: Positive | None = None
    mbs: Positive
    gbs: Batch
    fsdp: bool = False
    cuda_graph: bool = False
    recompute_layers: Count = 0
    offload_layers: Count = 0


assert Columns.__struct_fields__ == tuple(COLUMNS.values())  # which help texts need before msgspec
