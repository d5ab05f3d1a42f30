"""What only the job could see, kept in the record when it ends: nodes, times, restarts, hardware, network, versions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmb_common.errors import AnswerLost
from llmb_common.machine.files import open_plain
from llmb_common.run_states import is_live
from llmb_common.runs.evidence.account import KEY, as_plain, make_account
from llmb_common.runs.record import CANCELLED, NOT_SUBMITTED, SUBMITTING, RunRecord, update_record
from llmb_common.timing.job_events import read_events

_PREFIX = b"LLMB manifest: "
_REACH = 16 << 20
"""The line is near the start of a log: NCCL prints less than this before it."""


def with_job_facts(record: RunRecord) -> RunRecord:
    """``record`` whose manifest has ``job``: events.jsonl's account, the log's manifest line as ``software``, and the
    nodes' own account as ``evidence``."""
    events = as_plain(read_events(record.paths.events))
    seen = {"software": read_manifest_line(record.paths.log), KEY: as_plain(make_account(record))}
    return replace(record, manifest={**record.manifest, "job": {**events, **seen}})


def give_up(record: RunRecord) -> RunRecord:
    """Put on record that the run was cancelled, unless it has ended by itself meanwhile.

    Raises:
        RecordError: the record cannot be written.
    """

    def change(found: RunRecord) -> RunRecord:
        if not is_live(found.state) and found.state != NOT_SUBMITTED:
            return found
        return with_job_facts(found.with_state(CANCELLED, "cancelled"))

    return update_record(record.paths.folder, change)


def stay_submitting(record: RunRecord, error: AnswerLost) -> None:
    """Put on record, with its time, that the scheduler's answer was lost: from now on it must not take long until the
    job shows, if there is one. A run whose job somebody has found meanwhile stays as it is.

    Raises:
        RecordError: the record cannot be written.
    """

    def change(found: RunRecord) -> RunRecord:
        return found if found.job_id is not None else found.with_state(SUBMITTING, error.message[:500])

    update_record(record.paths.folder, change)


def read_manifest_line(log: Path) -> dict[str, Any] | None:
    """The JSON of the last ``LLMB manifest:`` line near the start of ``log``; None where there is none."""
    try:
        with open_plain(log) as stream:
            head = stream.read(_REACH)
    except OSError:
        return None
    at = head.rfind(_PREFIX)
    if at < 0:
        return None
    try:
        value = json.loads(head[at + len(_PREFIX) :].partition(b"\n")[0])
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
