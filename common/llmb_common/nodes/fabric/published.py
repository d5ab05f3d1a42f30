"""Bus bandwidths that others have published, each with its source and day (``published.json``)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from llmb_common.base.structs import read_generated


class PublishedBandwidth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published bandwidth, as its source has it."""

    gpu: str
    nodes: int
    gpus: int
    collective: str
    size: str
    """In the source's own words."""
    busbw_gbps: float
    network: str
    published: str | None
    """The day; None: the source has none."""
    source: str
    says: str
    """Who, and what matters of how."""


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``published.json``."""

    looked_up: str
    figures: tuple[PublishedBandwidth, ...]


@lru_cache
def _published_file() -> _File:
    """The published figures of this release."""
    found: _File = read_generated(
        Path(__file__).with_name("published.json"), _File, remedy="restore the file from the release"
    )
    return found


def lookup_date() -> str:
    """The day on which the published figures were looked up."""
    return _published_file().looked_up


def published_bandwidths(
    gpu: str | None, nodes: int, gpus: int, collective: str = "all_reduce"
) -> Sequence[PublishedBandwidth]:
    """What was published for as many GPUs of this type on as many nodes, the fastest first.

    Empty for other numbers, because bus bandwidth depends on them.
    """
    found = [
        item
        for item in _published_file().figures
        if item.gpu == gpu and item.nodes == nodes and item.gpus == gpus and item.collective == collective
    ]
    return sorted(found, key=lambda item: -item.busbw_gbps)
