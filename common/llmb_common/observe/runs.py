"""``observe``: records in, records as they are now out; ``run.json`` is written only where a state changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmb_common.run import RunRecord


@dataclass(frozen=True)
class Observation:
    """A run as it is now.

    ``unknown`` says why nobody could be asked (then ``record`` is as it was); empty otherwise. ``reason`` is the
    queue's (``Resources``, ``Priority``), ``nodes`` a host list, ``start`` the real or expected start as Unix time.
    """

    record: RunRecord
    unknown: str = ""
    reason: str = ""
    nodes: str = ""
    start: float | None = None


def observe(records: Sequence[RunRecord]) -> list[Observation]:
    """One observation per record, in their order. Ended runs are not asked about. Never raises for a scheduler."""
    raise NotImplementedError


def refresh(records: Iterable[RunRecord]) -> list[RunRecord]:
    """The records of ``observe``."""
    return [item.record for item in observe(list(records))]
