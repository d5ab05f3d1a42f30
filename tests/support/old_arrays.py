"""A job array as releases before 0.3 submitted identical runs. Goes with ``executors/slurm/old_arrays.py``."""

from __future__ import annotations

import secrets
import subprocess
from dataclasses import replace
from shlex import quote

from llmb_common.executors.slurm.options import output_pattern, sbatch_line
from llmb_common.executors.slurm.script import directives
from llmb_common.runs.record import SUBMITTED, RunRecord, Submission, Turn, update_record
from llmb_common.submission.jobs import JobToSubmit, SubmissionContext
from llmb_common.submission.single import new_run


def make_old_array(job: JobToSubmit, number: int, array_id: str = "") -> list[RunRecord]:
    """The runs on record, with the folder of their array; nothing is submitted."""
    array_id = array_id or secrets.token_hex(4)
    context, plan = SubmissionContext([job]), job.plan
    records = [new_run(job, Submission(turn=Turn(array_id, index)), context) for index in range(number)]
    array = records[0].paths.old_array(array_id)
    array.folder.mkdir()
    for index, record in enumerate(records):
        (array.folder / str(index)).symlink_to(f"../{record.paths.name}")
    name = plan.experiment_name
    output = f"{output_pattern(str(array.folder))}/%a/{output_pattern(f'{name}/sbatch_{name}.out')}"
    lines = ["#!/bin/bash", *directives(plan, array.job_name, output)]
    lines += [sbatch_line("array", f"0-{number - 1}"), ""]
    lines += [f'exec bash {quote(str(array.folder))}/"$SLURM_ARRAY_TASK_ID"/{quote(f"{name}.sbatch")}', ""]
    array.script.write_text("\n".join(lines))
    return records


def submit_old_array(records: list[RunRecord]) -> list[RunRecord]:
    """The runs of an array with their job ids, ``123_0``, ``123_1``, ..."""
    script = records[0].submitted_script
    answer = subprocess.run(["sbatch", "--parsable", str(script)], check=True, capture_output=True, text=True)
    job = answer.stdout.strip()
    return [_accepted(record, f"{job}_{index}") for index, record in enumerate(records)]


def _accepted(record: RunRecord, job_id: str) -> RunRecord:
    return update_record(record.paths.folder, lambda found: replace(found.with_state(SUBMITTED), job_id=job_id))
