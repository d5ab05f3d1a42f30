"""What ``run.json`` may say. Anybody who can write into an installation can write one, so nothing in it is believed: a
record that names another run's files, or holds what no command expects, is refused when it is read."""

from __future__ import annotations

import re
from typing import Any

from llmb_common.words import is_experiment_name

_RUN_ID = re.compile(r"[0-9A-Za-z]{1,32}\Z")
_JOB_ID = re.compile(r"[0-9]+(_[0-9]+)?\Z")
_LATEST = 1e11  # seconds: the year 5138


def check_fields(value: dict[str, Any], planned_name: str, folder_name: str) -> None:
    """Raise ValueError for a record whose fields cannot be right; ``folder_name`` is that of the folder it is in."""
    experiment = value["experiment_name"]
    if not is_experiment_name(experiment) or experiment != planned_name:
        raise ValueError(f"experiment_name {str(experiment)[:100]!r}")
    if not re.fullmatch(rf"{re.escape(experiment)}_[0-9A-Za-z]+(-[0-9]+)?", folder_name):
        raise ValueError(f"it is the record of a run of {experiment}, and lies in {folder_name}")
    _check_match("run_id", value["run_id"], _RUN_ID)
    if value["job_id"] is not None:
        _check_match("job_id", value["job_id"], _JOB_ID)
    for state in value["states"]:
        if not isinstance(state["state"], str) or not isinstance(state["detail"], str):
            raise ValueError("states: not text")
        _check_time("states", state["time"])
    if value["missing_since"] is not None:
        _check_time("missing_since", value["missing_since"])
    if not isinstance(value["manifest"], dict) or not isinstance(value["results"], dict | None):
        raise ValueError("manifest or results: not an object")


def _check_match(field: str, text: object, pattern: re.Pattern[str]) -> None:
    if not isinstance(text, str) or not pattern.match(text):
        raise ValueError(f"{field} {str(text)[:100]!r}")


def _check_time(field: str, when: Any) -> None:
    number = isinstance(when, int | float) and not isinstance(when, bool)
    if not number or not 0 <= when < _LATEST:  # NaN is in no range
        raise ValueError(f"{field}: the time {str(when)[:40]}")
