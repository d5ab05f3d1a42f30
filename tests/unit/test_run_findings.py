"""How what was found out about a run goes into its record, and who else may write beside it."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.process import identify
from llmb_common.runs.finding import Finding, may_change
from llmb_common.runs.record import RunRecord, Submission
from llmb_common.submission.create import create_run
from support.run_site import RunSite


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "clone" / "llmb_train"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def record(tmp_path: Path, code: Path) -> RunRecord:
    return create_run(RunSite(tmp_path, "slurm").plan(), code, {}, Submission())


def test_a_job_id_is_filled_in_once_and_never_replaced(record: RunRecord) -> None:
    assert Finding().apply(record).job_id is None
    found = Finding(job_id="7").apply(record)
    assert found.job_id == "7"
    assert Finding(job_id="8").apply(found).job_id == "7"
    assert Finding().apply(found).job_id == "7"


def test_so_is_a_process(record: RunRecord) -> None:
    me, parent = identify(), identify(os.getppid())
    assert Finding().apply(record).process is None
    found = Finding(process=me).apply(record)
    assert found.process == me
    assert Finding(process=parent).apply(found).process == me


def test_a_state_brings_its_detail_and_time(record: RunRecord) -> None:
    found = Finding("RUNNING", "on gpu1", since=record.created + 5).apply(record)
    assert (found.state, found.detail, found.state_time) == ("RUNNING", "on gpu1", record.created + 5)
    assert Finding("RUNNING", "on gpu2").apply(found) == found


def test_an_answer_that_was_none_changes_nothing(record: RunRecord) -> None:
    assert Finding("FAILED", job_id="7", missing=True, unknown="timed out").apply(record) == record


@pytest.mark.parametrize(
    ("state", "changes"),
    [
        ("PENDING", True),
        ("RUNNING", True),
        ("LOST", True),
        ("NOT_SUBMITTED", True),
        ("COMPLETED", False),
        ("FAILED", False),
    ],
)
def test_a_late_answer_does_not_wake_a_run_that_has_ended(record: RunRecord, state: str, changes: bool) -> None:
    ended = record.with_state(state)
    assert may_change(ended) is changes
    assert (Finding("CANCELLED").apply(ended) != ended) is changes


def test_missing_is_noted_from_the_first_time_on(record: RunRecord) -> None:
    first = replace(record, missing_since=5.0)
    assert Finding(missing=True).apply(first).missing_since == 5.0
    assert Finding("RUNNING").apply(first).missing_since is None


def test_in_a_folder_of_a_group_nobody_can_rename_anothers_runs(tmp_path: Path, code: Path) -> None:
    umask = os.umask(0o002)
    try:
        made = create_run(RunSite(tmp_path, "slurm").plan(), code, {}, Submission())
    finally:
        os.umask(umask)
    for folder in (made.paths.experiments, made.paths.folder.parent):
        mode = folder.stat().st_mode
        assert mode & stat.S_IWGRP, "colleagues may have runs of the same experiment"
        assert mode & stat.S_ISVTX
    assert not made.paths.folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
