"""The histories that a report shows: as many runs as can be drawn, with every change of level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmb_common.results.history import DatedRun, History
from llmb_run.reporting.steps import stretches

MOST_HISTORIES = 30

_MOST_RUNS = 1500
"""Runs in all histories of a report together."""


def shown_histories(histories: Sequence[History]) -> list[History]:
    """Return those of ``histories`` that a report draws, in their order, thinned to what there is room for.

    They are those of two runs or more; of more than ``MOST_HISTORIES``, those with most runs, of equals the first.
    Each gets an equal share of ``_MOST_RUNS`` runs, and keeps its extremes where it has more (``_thin_runs``). The
    answer has copies; those given stay. Empty: none has two runs.
    """
    several = [item for item in histories if len(item.moments) > 1]
    longest = sorted(several, key=lambda item: -len(item.moments))[:MOST_HISTORIES]
    kept = {item.key for item in longest}
    most = _MOST_RUNS // max(1, len(longest))
    return [replace(item, moments=_thin_runs(item, most)) for item in several if item.key in kept]


def _thin_runs(history: History, most: int) -> tuple[DatedRun, ...]:
    """Return about ``most`` runs of a history to draw, in order: all of them if they are no more, else the extremes.

    These are of each stretch of runs the fastest and the slowest. The first and the last run of all stay, and those
    where a level of speed began, so that it may be more than ``most``.
    """
    moments = history.moments
    if len(moments) <= most:
        return moments
    began = {shift.run_id for shift in history.shifts}
    kept = {0, len(moments) - 1}
    kept.update(at for at, moment in enumerate(moments) if moment.run_id in began)
    # Two runs of each stretch are kept.
    for places in stretches(len(moments), max(1, most // 2)):
        kept.add(min(places, key=lambda at: moments[at].seconds))
        kept.add(max(places, key=lambda at: moments[at].seconds))
    return tuple(moments[at] for at in sorted(kept))
