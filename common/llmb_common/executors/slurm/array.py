"""Start several runs with a single ``sbatch``: identical ones as a job array, or any as a series in one allocation.

Each run keeps its folder, its own script and its logs; the shared script only finds the run folders.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from llmb_common.errors import AnswerLost, RecordError, SchedulerError
from llmb_common.executors.slurm.command import run_slurm
from llmb_common.executors.slurm.sbatch import sbatch
from llmb_common.executors.slurm.script import render_array
from llmb_common.executors.slurm.series import render_series
from llmb_common.machine.files import write_atomic
from llmb_common.runs.facts import stay_submitting
from llmb_common.runs.paths import SharedPaths
from llmb_common.runs.record import SUBMITTED, SUBMITTING, RunRecord, update_record

ASK_SECONDS = 30
AT_ONCE = 4
FRESH_SECONDS = 60
"""Older records are confirmed before ``sbatch``, lest others take the runs for abandoned."""


def largest_array() -> int:
    """How many tasks a job array of this cluster may have; 0 where it has none or does not say."""
    try:
        answer = run_slurm(["scontrol", "show", "config"], ASK_SECONDS)
    except SchedulerError:
        return 0
    limits = re.findall(r"^MaxArraySize\s*=\s*([0-9]+)$|\bmax_array_tasks=([0-9]+)", answer.output, re.MULTILINE)
    # Task numbers must be below MaxArraySize, and ours begin at 0.
    return min((int(size or tasks) for size, tasks in limits), default=0) if answer.status == 0 else 0


def start_array(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Submit runs in state SUBMITTING, the tasks 0, 1, ... of one array or the turns of a series; their records, saved.

    Raises:
        AnswerLost: nobody knows whether there are jobs. The records stay SUBMITTING.
        SchedulerError: there is no job. The caller removes the runs, or submits them individually.
    """
    first = records[0]
    array = first.shared
    assert array is not None
    _prepare(array, records)
    if time.time() - first.created > FRESH_SECONDS:
        for record in records:
            update_record(record.paths.folder, _confirmed)
    try:
        job_id, remark = sbatch(first.submission.options, array.script, array.job_name)
    except AnswerLost as error:
        for record in records:
            stay_submitting(record, error)
        raise
    except SchedulerError:
        shutil.rmtree(array.folder, ignore_errors=True)
        raise
    with ThreadPoolExecutor(AT_ONCE, "accepted") as pool:  # the disk, not Python, takes the time
        return list(pool.map(lambda record: _accepted(record, job_id, remark), records))


def _prepare(array: SharedPaths, records: Sequence[RunRecord]) -> None:
    plan = records[0].plan
    text = render_array(plan, array, len(records)) if array.kind == "array" else render_series(records, array)
    try:
        array.folder.mkdir(mode=0o755)  # its links say which scripts run: nobody else changes them
        for index, record in enumerate(records):
            (array.folder / str(index)).symlink_to(os.path.relpath(record.paths.folder, array.folder))
    except OSError as error:
        with contextlib.suppress(OSError):
            shutil.rmtree(array.folder)
        raise RecordError(
            f"cannot write {array.folder}: {error.strerror or error}",
            remedy="check free space, quota and permissions there; or submit without job arrays (--no-array)",
        ) from error
    write_atomic(array.script, text, mode=0o755)


def _confirmed(found: RunRecord) -> RunRecord:
    if found.state != SUBMITTING:
        raise AnswerLost(
            f"another process has taken {found.paths.name} for abandoned",
            remedy="run the same command again to settle it",
        )
    return found.with_state(SUBMITTING, "confirmed")


def _accepted(record: RunRecord, job_id: str, remark: str) -> RunRecord:
    if (place := record.submission.array_index) is not None:
        job_id = f"{job_id}_{place}"
    try:
        return update_record(
            record.paths.folder, lambda found: replace(found, job_id=job_id).with_state(SUBMITTED, remark)
        )
    except RecordError as error:  # the run must stay: its job exists
        raise AnswerLost(
            f"job {job_id} was accepted, but {error.message}", remedy="llmb-run jobs settles it"
        ) from error
