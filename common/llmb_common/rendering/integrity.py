"""Whether a run is still what was planned; checked before its script is submitted or executed."""

from __future__ import annotations

from llmb_common.errors import RecordError
from llmb_common.rendering.job import job_text
from llmb_common.rendering.script import render_script
from llmb_common.runs.code import hash_of_packed
from llmb_common.runs.ownership import own_run
from llmb_common.runs.record import RunRecord


def check_unchanged(record: RunRecord, *, code: bool = True) -> None:
    """Compare script and job.json on disk with what the plan renders, and ``code`` with its hash on record.

    Raises:
        RecordError: they differ; code ``not-yours`` where a file belongs to somebody else.
    """
    paths = record.paths
    with own_run(paths.folder) as run:
        planned = {
            paths.script: render_script(record.plan, paths).encode(),
            paths.job: job_text(record.plan, paths),
        }
        for path, content in planned.items():
            if run.read(path.name) != content:
                raise _changed(record, f"{path} is not what the plan gives")
        if code and hash_of_packed(run.read(paths.code.name)) != record.manifest.get("code_sha256"):
            raise _changed(record, f"the training code in {paths.code} is not the one that was planned")


def _changed(record: RunRecord, what: str) -> RecordError:
    return RecordError(
        f"{what}: it was changed, or another version of LLMB wrote it",
        remedy=f"remove the folder {record.paths.folder} and run the same command again",
        code="changed",
    )
