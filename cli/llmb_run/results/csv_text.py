"""Results as CSV, for spreadsheets and scripts: full precision, no cell that a spreadsheet would evaluate."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

from llmb_common.printable import csv_cell
from llmb_run.results.measuring import Measured, as_dict

_RUN_COLUMNS = {
    "experiment": "name",
    "status": "status",
    "time_mean_s": "step_seconds_mean",
    "time_std_s": "step_seconds_std",
    "tflops_per_gpu_mean": "log_tflops_per_gpu_mean",
    "tflops_per_gpu_std": "log_tflops_per_gpu_std",
    **{
        name: name
        for name in (
            *("run_id", "workload", "variant", "model_size", "dtype", "fp8_recipe", "gpu_type", "gpus", "nodes", "gbs"),
            *("seq_len", "job_id", "state"),
        )
    },
    "date": "created",
    "step_s": "step_seconds",
    "steady_step_s": "steady_step_seconds",
    **{name: name for name in ("tokens_per_second", "tflops_per_gpu", "mfu_percent", "log_mfu_percent", "days_1t")},
    "published_step_s": "published.step_seconds",
    "published_tokens_per_second": "published.tokens_per_second",
    "published_mfu_percent": "published.mfu_percent",
    "published_tflops_per_gpu": "published.tflops_per_gpu",
    "reference_step_s": "reference.seconds",
    "reference_software": "reference.software",
    **{
        name: name
        for name in (
            *("verdict", "indication", "difference", "difference_low", "difference_high", "tolerance", "more_runs"),
            *("reason", "iteration", "own_tflops_per_gpu", "not_training"),
        )
    },
}
"""Column -> where ``as_dict`` has it; NVIDIA's columns first."""

_STEP_COLUMNS = ("index", "seconds", "tflops", "loss", "grad_norm", "joules", "watts", "skipped")


def runs_csv(items: Sequence[Measured]) -> str:
    """A line for each run; times in seconds, dates in ISO 8601 (UTC), empty where a figure does not exist."""
    rows = []
    for item in items:
        found = as_dict(item)
        row = [_at(found, place) for place in _RUN_COLUMNS.values()]
        rows.append([_date(value) if name == "date" else value for name, value in zip(_RUN_COLUMNS, row, strict=True)])
    return _csv(list(_RUN_COLUMNS), rows)


def steps_csv(items: Sequence[Measured]) -> str:
    """A line for each iteration of each run; ``measured`` says whether it is in the window."""
    rows = []
    for item in items:
        run = item.record.paths.run_id if item.record else item.timing.files.name
        for step in item.timing.iterations:
            values = [getattr(step, name) for name in _STEP_COLUMNS]
            rows.append([run, step.index in item.timing.window, *values])
    heads = (
        "iteration",
        "seconds",
        "tflops_per_gpu",
        "loss",
        "grad_norm",
        "joules_per_gpu",
        "watts_per_gpu",
        "skipped",
    )
    return _csv(["run", "measured", *heads], rows)


def lines_csv(columns: Sequence[str], lines: Sequence[dict[str, Any]]) -> str:
    """Lines that all have the same names, which are the header."""
    return _csv(columns, [[line[name] for name in columns] for line in lines])


def _at(found: dict[str, Any], place: str) -> Any:
    section, dot, name = place.partition(".")
    value = found.get(section)
    return (value or {}).get(name) if dot else value


def _date(value: float | None) -> str | None:
    return datetime.fromtimestamp(value, timezone.utc).isoformat(timespec="seconds") if value else None


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        # Numbers in full: the shortest text that reads back as the same number.
        writer.writerow([_cell(value) for value in row])
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return csv_cell("; ".join(value) if isinstance(value, list) else value)
