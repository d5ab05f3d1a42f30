"""A run is submitted as it was planned: what was changed in its folder since is noticed, whoever did it."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from llmb_common.errors import RecordError
from llmb_common.rendering.integrity import check_unchanged
from llmb_common.runs.manifest import make_manifest
from llmb_common.runs.record import RunRecord, Submission
from llmb_common.submission.create import create_run
from support.run_site import RECIPE, RunSite


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    code = tmp_path / "clone" / "llmb_train"
    code.mkdir(parents=True)
    (code / "__main__.py").write_text("print('trains')\n")
    plan = RunSite(tmp_path, "slurm").plan()
    return create_run(plan, code, make_manifest(plan, RECIPE, code), Submission())


def refusal(record: RunRecord) -> str:
    with pytest.raises(RecordError) as caught:
        check_unchanged(record)
    assert caught.value.code == "changed"
    assert f"remove the folder {record.paths.folder}" in caught.value.remedy
    return caught.value.message


def test_a_run_as_it_was_planned_may_start(record: RunRecord) -> None:
    check_unchanged(record)


def test_another_script_or_job_is_refused(record: RunRecord) -> None:
    for path in (record.paths.script, record.paths.job):
        before = path.read_bytes()
        path.write_bytes(before + b"\n")
        assert f"{path} is not what the plan gives" in refusal(record)
        path.write_bytes(before)
    check_unchanged(record)


def test_so_is_other_code_unless_nobody_asks(record: RunRecord) -> None:
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("llmb_train/__main__.py", "print('mines')\n")
    record.paths.code.write_bytes(other.getvalue())
    assert "the training code in" in refusal(record)
    check_unchanged(record, code=False)


def test_code_under_another_name_is_other_code(record: RunRecord) -> None:
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("llmb_train/main.py", "print('trains')\n")
    record.paths.code.write_bytes(other.getvalue())
    assert "the training code in" in refusal(record)


def test_an_archive_that_is_none_is_an_error_of_its_own(record: RunRecord) -> None:
    record.paths.code.write_bytes(b"not a zip")
    with pytest.raises(RecordError, match="the packed training code cannot be read"):
        check_unchanged(record)
