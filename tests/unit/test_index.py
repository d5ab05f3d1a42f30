"""The index says what the run.json files say, whatever happened to it or to them."""

from __future__ import annotations

import os
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.index import database
from llmb_common.index.runs import RunFilter
from llmb_common.index.search import find_runs, note
from llmb_common.runs.record import RunRecord, Submission, update_record
from llmb_common.submission.single import create_run
from support.crashes import start
from support.run_site import RunSite


class Runs:
    """Creates runs without an executor, and indexes them unless told not to."""

    def __init__(self, folder: Path) -> None:
        self.site = RunSite(folder, "local")
        self.install = self.site.install
        self.code = folder / "llmb_train"
        self.code.mkdir()

    def make(self, state: str = "COMPLETED", *, noted: bool = True, job: str | None = None, **plan: str) -> RunRecord:
        record = create_run(self.site.plan(**plan), self.code, {}, Submission(key=plan.get("MAX_STEPS", "")))
        record = update_record(record.paths.folder, lambda found: replace(found.with_state(state), job_id=job))
        if noted:
            assert note(record)
        return record

    def ids(self, **conditions: object) -> list[str]:
        return [row.run_id for row in find_runs(self.install, RunFilter(**conditions))]  # type: ignore[arg-type]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_a_row_says_what_the_record_says(runs: Runs) -> None:
    record = runs.make("FAILED", job="17")
    (row,) = find_runs(runs.install)
    plan = record.plan
    assert (row.run_id, row.name, row.folder) == (record.paths.run_id, record.paths.name, record.paths.folder)
    assert (row.workload, row.model_size, row.dtype, row.gpu_type) == ("pretrain_llama3.1", "smoke", "bf16", "cpu")
    assert (row.variant, row.fp8_recipe) == ("mbridge", None)
    assert (row.gpus, row.nodes, row.executor, row.job_id) == (plan.gpus, plan.nodes, "local", "17")
    assert (row.state, row.state_time, row.created) == ("FAILED", record.state_time, record.created)


def test_a_run_that_nobody_noted_is_found(runs: Runs) -> None:
    runs.make()
    assert len(runs.ids()) == 1
    forgotten = runs.make(noted=False, MAX_STEPS="60")
    assert forgotten.paths.run_id in runs.ids()
    another = runs.make(noted=False, JOB_TOTAL_GPUS="2")
    assert another.paths.run_id in runs.ids(), "also in an experiment folder of its own"


def test_a_run_within_the_same_tick_of_a_coarse_clock_is_found(runs: Runs) -> None:
    first = runs.make(noted=False)
    parent = first.paths.folder.parent
    before = parent.stat()
    assert len(runs.ids()) == 1
    runs.make(noted=False)
    os.utime(parent, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert len(runs.ids()) == 2


def test_removed_folders_leave_the_index(runs: Runs) -> None:
    kept, removed = runs.make(), runs.make()
    assert len(runs.ids()) == 2
    shutil.rmtree(removed.paths.folder)
    assert runs.ids() == [kept.paths.run_id]
    shutil.rmtree(kept.paths.experiments)
    assert runs.ids() == []


@pytest.mark.parametrize("damage", ["absent", "garbage", "empty", "truncated", "other schema", "newer"])
def test_a_damaged_index_is_rebuilt(runs: Runs, damage: str) -> None:
    ids = {runs.make().paths.run_id, runs.make("RUNNING").paths.run_id}
    assert set(runs.ids()) == ids
    file = database.index_file(runs.install)
    content = file.read_bytes()
    if damage == "absent":
        shutil.rmtree(file.parent)
    elif damage in ("other schema", "newer"):
        with sqlite3.connect(file) as connection:
            statement = "DROP TABLE runs" if damage == "other schema" else "PRAGMA user_version=99"
            connection.execute(statement)
        connection.close()
    else:
        file.write_bytes({"garbage": b"x" * 9000, "empty": b"", "truncated": content[:5000]}[damage])
    assert set(runs.ids()) == ids
    with database.read_index(runs.install) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (2,), "the file itself is healed"


def test_a_reader_without_rights_still_sees_all(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    record = runs.make(noted=False)

    def locked(install: Path) -> sqlite3.Connection:
        raise sqlite3.OperationalError("attempt to write a readonly database")

    monkeypatch.setattr("llmb_common.index.search.open_index", locked)
    assert runs.ids() == [record.paths.run_id]
    assert not note(record)


def test_unfinished_and_unrelated_folders_are_not_runs(runs: Runs) -> None:
    record = runs.make()
    (record.paths.folder.parent / ".making-x_1").mkdir()
    (record.paths.folder.parent / "notes").mkdir()
    assert runs.ids() == [record.paths.run_id]


@pytest.mark.parametrize("writable", [True, False])
def test_a_folder_outside_in_which_no_run_was_noted_yet(runs: Runs, tmp_path: Path, writable: bool) -> None:
    record = runs.make(LLMB_WORKLOAD=str(tmp_path / "elsewhere"), noted=False)
    if not writable:
        (runs.install / ".llmb").write_text("where the index would be")
    assert runs.ids() == []
    (row,) = find_runs(runs.install, roots=[record.paths.experiments, tmp_path / "nowhere"])
    assert row.run_id == record.paths.run_id
    assert runs.ids() == ([row.run_id] if writable else []), "known from now on, where that can be kept"


def test_several_processes_build_the_index_at_once(runs: Runs) -> None:
    """The second process must not mistake a half-built index for a damaged one."""
    record = runs.make(noted=False)
    for _ in range(5):
        shutil.rmtree(database.index_file(runs.install).parent, ignore_errors=True)
        children = [start(lambda: check_seen(runs, record)) for _ in range(6)]
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6


def check_seen(runs: Runs, record: RunRecord) -> None:
    for _ in range(3):
        assert runs.ids() == [record.paths.run_id]
        assert note(record)
