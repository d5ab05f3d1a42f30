"""Bus bandwidths that others have published, each with its source and day (``published.json``)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from llmb_common.base.structs import read_generated


class PublishedBandwidth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One bus bandwidth that somebody published for a number of GPUs and nodes, as its source has it.

    ``published_bandwidths`` returns it, from ``published.json``, in which unknown fields are refused. ``nodes`` and
    ``gpus`` are numbers; ``collective`` is in the words of nccl-tests, ``all_reduce``; ``network`` is free text for
    people.
    """

    gpu: str
    """LLMB's name of the GPU type, such as ``h100``."""
    nodes: int
    gpus: int
    """On all nodes together."""
    collective: str
    size: str
    """The message size, in the source's own words."""
    busbw_gbps: float
    """Bus bandwidth in 10^9 bytes/s."""
    network: str
    published: str | None
    """The day, ``YYYY-MM-DD``; None: the source has none."""
    source: str
    """Its address on the web."""
    says: str
    """Who published it, and what matters of how it was measured."""


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``published.json``: the published bandwidths, and the day on which they were looked up.

    ``_published_file`` reads it; other fields are refused when it is decoded. ``figures`` are in the order of the
    file.
    """

    looked_up: str
    """The day, ``YYYY-MM-DD``."""
    figures: tuple[PublishedBandwidth, ...]


@lru_cache
def _published_file() -> _File:
    """Return the content of this release's ``published.json``, which is read once and then kept; after an error, again.

    Raises:
        RecipeError: the file cannot be read, or is damaged
    """
    found: _File = read_generated(
        Path(__file__).with_name("published.json"), _File, remedy="restore the file from the release"
    )
    return found


def lookup_date() -> str:
    """Return the day on which the published bandwidths were looked up, ``YYYY-MM-DD``.

    Raises:
        RecipeError: ``published.json`` cannot be read, or is damaged
    """
    return _published_file().looked_up


def published_bandwidths(
    gpu: str | None, nodes: int, gpus: int, collective: str = "all_reduce"
) -> Sequence[PublishedBandwidth]:
    """Return the published bus bandwidths of a collective over ``gpus`` GPUs in all, on ``nodes`` nodes.

    ``gpu`` is LLMB's name of the GPU type, ``h100`` in lower case, ``collective`` one in the words of nccl-tests;
    another spelling of either finds nothing. The fastest comes first, of equally fast ones the first in
    ``published.json``. Empty where nothing was published for exactly these numbers, on which bus bandwidth depends, and
    for a ``gpu`` of None.

    Raises:
        RecipeError: ``published.json`` cannot be read, or is damaged
    """
    found = [
        item
        for item in _published_file().figures
        if item.gpu == gpu and item.nodes == nodes and item.gpus == gpus and item.collective == collective
    ]
    return sorted(found, key=lambda item: -item.busbw_gbps)
