"""Which layers a rank of each pipeline stage has, and how many of them hold a micro-batch at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from llmb_common.planning.divisibility import Layout, pipeline_slots
from llmb_common.planning.memory.layers import Body, Layer


class Stage(msgspec.Struct, frozen=True):
    """The layers of one stage, chunk by chunk; ``under_way``: how many micro-batches of each chunk are at the peak."""

    chunks: tuple[tuple[Layer, ...], ...]
    under_way: tuple[int, ...]
    first: bool
    last: bool

    @property
    def layers(self) -> tuple[Layer, ...]:
        return tuple(layer for chunk in self.chunks for layer in chunk)


def stages_of(body: Body, layout: Layout, counts: Sequence[int] | None = None, *, early: int = 0) -> list[Stage]:
    """The stages in order. ``counts``: layers of each chunk in the order of the model, where a recipe says so itself.

    ``early``: micro-batches that a schedule starts before its usual ones.
    """
    parts = layout.pp * (layout.vp or 1)
    sizes = list(counts) if counts is not None and len(counts) == parts else _even(len(body.layers), layout)
    ends = list(accumulate(sizes))
    pieces = [body.layers[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    return [
        Stage(
            tuple(pieces[rank :: layout.pp]),
            under_way(layout, rank, early),
            first=rank == 0,
            last=rank == layout.pp - 1,
        )
        for rank in range(layout.pp)
    ]


def _even(layers: int, layout: Layout) -> list[int]:
    """Equal chunks; of 126 layers in 128 slots the first and the last have one less."""
    parts = layout.pp * (layout.vp or 1)
    slots = pipeline_slots(layers, layout.pp, layout.vp)
    if slots is None:  # where a function divides them in its own way
        return [layers * (part + 1) // parts - layers * part // parts for part in range(parts)]
    sizes = [slots // parts] * parts
    if slots > layers:
        sizes[0] -= 1
        sizes[-1] -= 1
    return sizes


def chunks_of(settings: Mapping[str, Any], layout: Layout, layers: int) -> tuple[int, ...] | None:
    """Layers of each chunk where a function says so itself; None where they are divided evenly.

    A layout is a list of names for each chunk, or a text: ``Et*4|(t*4|)*14tmL``, where ``t`` is a layer.
    """
    said = settings.get("pipeline_model_parallel_layout")
    if isinstance(said, str):
        whole = re.sub(r"\(([^()]*)\)\*([0-9]+)", lambda found: found[1] * int(found[2]), said)
        flat = re.sub(r"(.)\*([0-9]+)", lambda found: found[1] * int(found[2]), whole)
        return tuple(chunk.count("t") for chunk in flat.split("|"))
    if said:
        return tuple(chunk.count("decoder") for chunk in said)
    first, last = (settings.get(f"num_layers_in_{end}_pipeline_stage") for end in ("first", "last"))
    if first is None or last is None or layout.pp < 3 or (layout.vp or 1) > 1:
        return None
    return (first, *[(layers - first - last) // (layout.pp - 2)] * (layout.pp - 2), last)


def under_way(layout: Layout, rank: int, early: int = 0) -> tuple[int, ...]:
    """Micro-batches of each chunk that a rank holds at the end of its warm-up, one forward pass further on.

    megatron-core 0.16 to 0.19, ``pipeline_parallel/schedules.py``: without interleaving a rank runs PP - rank - 1
    forward passes ahead; with it 2(PP - rank - 1) + (VP - 1)PP, in groups of PP micro-batches a chunk.
    """
    vp = layout.vp or 1
    if vp == 1:
        return (min(layout.pp - rank, layout.ga),)
    ahead = 2 * (layout.pp - rank - 1) + (vp - 1) * layout.pp + early
    passes = min(ahead + 1, layout.ga * vp)
    return tuple(sum((turn // layout.pp) % vp == chunk for turn in range(passes)) for chunk in range(vp))
