"""A new run on disk: folder, script, job.json, code and record, before anything is submitted."""

from __future__ import annotations

import errno
import secrets
import time
from pathlib import Path
from typing import Any

from llmb_common.decoding.structs import json_text
from llmb_common.errors import RecordError
from llmb_common.machine.files import fsync_folder
from llmb_common.machine.process import identify
from llmb_common.planning.job_plan import JobPlan
from llmb_common.rendering.job import job_text
from llmb_common.rendering.script import render_script
from llmb_common.runs.code import pack_code
from llmb_common.runs.folders import reserve, write_new
from llmb_common.runs.paths import RunPaths, experiments_folder
from llmb_common.runs.record import SUBMITTING, RunRecord, Submission


def create_run(
    plan: JobPlan, code: Path | bytes, manifest: dict[str, Any], submission: Submission | None = None
) -> RunRecord:
    """Make the run folder with script, job.json, code and record, synced: the intent, before submission.

    ``code`` is the folder of the ``llmb_train`` package to run, or what ``pack_code`` made of it.

    Raises:
        RequestError: the plan cannot be rendered. Nothing has been written.
        RecordError: the folder cannot be written.
    """
    probe = RunPaths(
        experiments_folder(plan.workload_folder), plan.experiment_name, str(int(time.time())), secrets.token_hex(4)
    )
    render_script(plan, probe)  # a path that cannot be rendered must not leave anything behind
    try:
        paths, making = reserve(probe)
        record = RunRecord(paths, plan, manifest=manifest, submission=submission or Submission(), submitter=identify())
        record = record.with_state(SUBMITTING)
        _fill(making, record, code if isinstance(code, bytes) else pack_code(code))
        making.rename(paths.folder)
        fsync_folder(paths.folder.parent)
    except OSError as error:
        raise RecordError(
            f"cannot write the run folder in {probe.folder.parent}: {error.strerror or error}",
            remedy=_where_to_write(error),
        ) from error
    return record


def _where_to_write(error: OSError) -> str:
    """What to do when a run folder cannot be created."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "in somebody else's installation, keep your runs elsewhere: export LLMB_WORKLOAD=/a/folder/of/yours"
    return "check that LLMB_INSTALL exists, and check free space and quota; then run the same command again"


def _fill(making: Path, record: RunRecord, code: bytes) -> None:
    """Write all files of ``record`` into the folder ``making``, which will become the run's."""
    paths, plan = record.paths, record.plan

    def here(path: Path) -> Path:
        return making / path.relative_to(paths.folder)

    for folder in (paths.output, paths.profiles) if plan.profile else (paths.output,):
        here(folder).mkdir(mode=0o755)
    write_new(here(paths.code), code)
    write_new(here(paths.job), job_text(plan, paths))
    write_new(here(paths.script), render_script(plan, paths).encode(), mode=0o755)
    # The intent must survive a power failure. If one took the other files, the job would fail and say why.
    write_new(here(paths.record), json_text(record.as_dict()), sync=True)
