"""Runs over scales and over time: what ``results --scaling`` and ``--history`` print, and a report in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

import msgspec

from llmb_common.results.configuration import software_of
from llmb_common.results.history import History, histories
from llmb_common.results.scaling import ScaledRun, ScalingLine, scaling
from llmb_run.place import Place
from llmb_run.results.measuring import Measured
from llmb_run.results.view import View

_SCALING = (
    *("configuration", "software", "scaling", "gpus", "gbs", "runs", "step_seconds", "tokens_per_second"),
    *("tokens_per_second_per_gpu", "efficiency", "published_efficiency", "published_tokens_per_second"),
    "published_source",
)
_HISTORY = (
    *("configuration", "key", "date", "run_id", "software", "step_seconds", "step_error_seconds", "ratio_to_oldest"),
    "changed",
)


def scaling_lines(found: Iterable[Measured], place: Place) -> list[ScalingLine]:
    """Of the successful runs with figures."""
    runs = []
    for item in found:
        if item.record and item.good and item.figures:
            plan = item.record.plan
            recipe = place.workload(plan.workload).recipe
            runs.append(ScaledRun(plan, recipe, software_of(item.record), item.good.seconds))
    return scaling(runs)


def history_lines(found: Iterable[Measured]) -> list[History]:
    """Of the successful runs."""
    return histories((item.record, item.good) for item in found if item.record and item.good)


def scaling_view(lines: Sequence[ScalingLine]) -> View:
    """A row for each scale of each line."""
    columns = (
        *("configuration", "software", "scaling", "GPUs", "GBS", "runs", "step s", "tokens/s", "tokens/s/GPU"),
        *("efficiency %", "published %", "published tokens/s"),
    )
    full, rows = [], []
    for line in lines:
        for point in line.points:
            published = point.published
            per_gpu = point.tokens_per_second / point.gpus
            values = (
                *(line.title, line.software, line.kind, point.gpus, point.gbs, point.runs, point.seconds),
                *(point.tokens_per_second, per_gpu, point.efficiency, published.efficiency if published else None),
                *((published.tokens_per_second, published.source) if published else (None, None)),
            )
            full.append(dict(zip(_SCALING, values, strict=True)))
            rows.append(
                [
                    *(line.title, line.software, line.kind, str(point.gpus), str(point.gbs), str(point.runs)),
                    *(f"{point.seconds:.3f}", f"{point.tokens_per_second:.0f}", f"{per_gpu:.0f}"),
                    f"{100 * point.efficiency:.1f}",
                    f"{100 * published.efficiency:.1f}" if published and published.efficiency else "",
                    f"{published.tokens_per_second:.0f}" if published else "",
                ]
            )
    empty = "no configuration was run with success at two scales or more"
    return View("scaling", msgspec.to_builtins(lines), _SCALING, full, columns, columns[3:], rows, empty)


def history_view(lines: Sequence[History]) -> View:
    """A row for each run of each configuration, the oldest first."""
    columns = ("configuration", "date (UTC)", "run", "software", "step s", "vs. oldest %", "changed since")
    full, rows = [], []
    for line in lines:
        oldest = line.moments[0]
        for moment in line.moments:
            date = datetime.fromtimestamp(moment.created, timezone.utc)
            ratio = moment.seconds / oldest.seconds
            told = "; ".join(f"{item.name}: {item.before} -> {item.after}" for item in moment.changes)
            values = (
                *(line.title, line.key, date.isoformat(timespec="seconds"), moment.run_id, moment.software),
                *(moment.seconds, moment.error, ratio, told),
            )
            full.append(dict(zip(_HISTORY, values, strict=True)))
            changed = ", ".join(item.name for item in moment.changes)
            times = (f"{moment.seconds:.3f}", "" if moment is oldest else f"{100 * (ratio - 1):+.1f}")
            rows.append([line.title, f"{date:%Y-%m-%d %H:%M}", moment.run_id, moment.software, *times, changed])
    right = ("step s", "vs. oldest %")
    data = msgspec.to_builtins(lines)
    return View("history", data, _HISTORY, full, columns, right, rows, "no run ended with success")
