"""The index says what the run.json files say, whatever happened to it or to them; questions, and what it answers."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.base import structs
from llmb_common.base.errors import RecordError, RequestError
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.index import database, search
from llmb_common.runs.index.database import LogFigures, keep_figures, kept_figures
from llmb_common.runs.index.runs import UNREADABLE, RunFilter, row_of
from llmb_common.runs.index.search import find_run, find_runs, index_records, rebuild
from llmb_common.runs.record import RunRecord, Submission, load_record, update_record
from llmb_common.submission.single import create_run
from support.crashes import start
from support.texts import Texts


class Runs:
    """Runs of plans that differ in what the index knows; ``make`` notes them."""

    def __init__(self, plan: JobPlan, folder: Path) -> None:
        self.install = folder / "install"
        self.install.mkdir()
        workload = self.install / "workloads" / "pretrain_llama3.1"
        self.plan = msgspec.structs.replace(plan, install=str(self.install), workload_folder=str(workload))

    def make(
        self, state: str = "COMPLETED", *, noted: bool = True, job: str | None = None, key: str = "", **plan: object
    ) -> RunRecord:
        record = create_run(msgspec.structs.replace(self.plan, **plan), b"", {}, Submission(key=key))
        record = update_record(record.paths.folder, lambda found: replace(found.with_state(state), job_id=job))
        if noted:
            assert index_records(record)
        return record

    def find(self, **conditions: object) -> list[str]:
        """Run ids."""
        return [row.run_id for row in find_runs(self.install, RunFilter(**conditions))]  # type: ignore[arg-type]

    def refused(self, word: str) -> RequestError:
        with pytest.raises(RequestError) as caught:
            find_run(self.install, word)
        return caught.value


@pytest.fixture
def runs(plan: JobPlan, tmp_path: Path) -> Runs:
    return Runs(plan, tmp_path)


def ids(*records: RunRecord) -> set[str]:
    return {record.paths.run_id for record in records}


def test_a_row_says_what_the_record_says(runs: Runs) -> None:
    record = runs.make("FAILED", job="17", key="night")
    (row,) = find_runs(runs.install)
    plan = record.plan
    assert row == row_of(load_record(record.paths.folder))
    assert (row.run_id, row.name, row.folder) == (record.paths.run_id, record.paths.name, record.paths.folder)
    for name in ("workload", "model_size", "dtype", "gpu_type", "variant", "fp8_recipe", "gpus", "nodes"):
        assert getattr(row, name) == getattr(plan, name)
    assert (row.executor, row.job_id, row.key, row.detail, row.chain) == ("slurm", "17", "night", "", "")
    assert (row.state, row.state_time, row.created) == ("FAILED", record.state_time, record.created)


def test_a_run_that_nobody_noted_is_found(runs: Runs) -> None:
    runs.make()
    assert len(runs.find()) == 1
    forgotten = runs.make(noted=False, max_steps=60)
    assert forgotten.paths.run_id in runs.find()
    another = runs.make(noted=False, experiment_name="another")
    assert another.paths.run_id in runs.find(), "also in an experiment folder of its own"


def test_an_installation_behind_a_link_has_each_run_once(runs: Runs, tmp_path: Path) -> None:
    record, real = runs.make(), runs.install
    link = tmp_path / "link"
    link.symlink_to(real)
    assert [row.folder for row in find_runs(link)] == [record.paths.folder]
    runs.install = link
    runs.plan = msgspec.structs.replace(
        runs.plan, install=str(link), workload_folder=str(link / "workloads" / "pretrain_llama3.1")
    )
    noted, unnoted = runs.make(), runs.make(noted=False)
    for install in (real, link):
        rows = find_runs(install, roots=[noted.paths.experiments])
        assert {row.run_id for row in rows} == ids(record, noted, unnoted)
        assert len(rows) == 3
        assert all(row.folder.is_relative_to(real) for row in rows)
        for run in (record, noted):
            assert find_run(install, str(run.paths.folder)).run_id == run.paths.run_id
            assert find_run(install, str(link / run.paths.folder.relative_to(run.plan.install))).name == run.paths.name


def test_a_copied_installation_has_its_own_runs_and_the_original_keeps_its(runs: Runs, tmp_path: Path) -> None:
    outside = runs.make(workload_folder=str(tmp_path / "scratch" / "pretrain_llama3.1"))
    record, original, copy = runs.make(), runs.install, tmp_path / "copy"
    assert set(runs.find()) == ids(record, outside)
    shutil.copytree(original, copy)
    later = runs.make()
    copied = copy / record.paths.folder.relative_to(original)
    assert {row.folder for row in find_runs(copy)} == {copied, outside.paths.folder}
    assert index_records(load_record(copied)), "its plan still names the original"
    assert set(runs.find()) == ids(record, outside, later)
    assert all(not row.folder.is_relative_to(copy) for row in find_runs(original))
    (row,) = find_runs(copy, roots=[later.paths.experiments])[:1]
    assert row.folder == later.paths.folder, "who names a folder means it"


def test_a_folder_has_one_name_whichever_link_leads_to_it(runs: Runs, tmp_path: Path) -> None:
    record = runs.make(noted=False)
    link = tmp_path / "link"
    link.symlink_to(runs.install)
    assert [row.folder for row in find_runs(link)] == [record.paths.folder]
    assert [row.folder for row in find_runs(runs.install)] == [record.paths.folder]


def test_a_run_within_the_same_tick_of_a_coarse_clock_is_found(runs: Runs) -> None:
    first = runs.make(noted=False)
    parent = first.paths.folder.parent
    before = parent.stat()
    assert len(runs.find()) == 1
    runs.make(noted=False)
    os.utime(parent, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert len(runs.find()) == 2


def test_removed_folders_leave_the_index(runs: Runs) -> None:
    kept, removed = runs.make(), runs.make()
    assert len(runs.find()) == 2
    shutil.rmtree(removed.paths.folder)
    assert runs.find() == [kept.paths.run_id]
    shutil.rmtree(kept.paths.experiments)
    assert runs.find() == []


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> dict[Path, int]:
    """Errors, as numbers, with which folders cannot be listed, nor anything in them looked at, by folder."""
    failing: dict[Path, int] = {}
    scandir, lstat = os.scandir, os.lstat

    def refuse(path: str | Path) -> None:
        for folder, error in failing.items():
            if Path(path).is_relative_to(folder):
                raise OSError(error, os.strerror(error), str(path))

    def list_folder(path: str | Path) -> Any:
        refuse(path)
        return scandir(path)

    def look_at(path: str | Path, **more: Any) -> os.stat_result:
        refuse(Path(path).parent)
        return lstat(path, **more)

    monkeypatch.setattr("llmb_common.runs.index.roots.os.scandir", list_folder)
    monkeypatch.setattr("llmb_common.runs.index.runs.os.lstat", look_at)
    return failing


@pytest.mark.parametrize("level", range(5), ids=["run", "experiment", "experiments", "workload", "workloads"])
def test_runs_in_a_folder_that_cannot_be_listed_stay_as_they_are_and_the_folder_is_named(
    runs: Runs, failing: dict[Path, int], capsys: pytest.CaptureFixture[str], texts: Texts, level: int
) -> None:
    record, live = runs.make(), runs.make("RUNNING")
    folder = str(record.paths.folder)
    assert keep_figures(runs.install, [LogFigures(folder, "stamp", "configuration", b"0", b"1")])
    for error in (errno.EACCES, errno.ESTALE, errno.EIO):
        for at in (record, live):
            failing[[at.paths.folder, *at.paths.folder.parents][level]] = error
        assert set(runs.find()) == ids(record, live)
        said = capsys.readouterr().err
        if level:
            texts(said)
        else:
            assert said == "", "another user's run may be private"
    failing.clear()
    assert kept_figures(runs.install, [folder], LogFigures) != []
    for error in (errno.ENOENT, errno.ENOTDIR):
        failing[record.paths.experiments] = error
        assert runs.find() == []


def test_a_link_that_leads_nowhere_hides_none_of_its_neighbours(
    runs: Runs, capsys: pytest.CaptureFixture[str], texts: Texts
) -> None:
    record = runs.make(noted=False)
    (record.paths.experiments / "circle").symlink_to("circle")
    (record.paths.experiments / "nowhere").symlink_to("nothing")
    assert runs.find() == [record.paths.run_id]
    texts(capsys.readouterr().err)


@pytest.mark.parametrize("damage", ["absent", "garbage", "empty", "truncated", "other schema", "newer"])
def test_a_damaged_index_is_rebuilt(runs: Runs, damage: str) -> None:
    ids = {runs.make().paths.run_id, runs.make("RUNNING").paths.run_id}
    assert set(runs.find()) == ids
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
    assert set(runs.find()) == ids
    with database.read_index(runs.install) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (2,), "the file itself is healed"


def test_a_reader_without_rights_still_sees_all(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    record = runs.make(noted=False)

    def locked(install: Path) -> sqlite3.Connection:
        raise sqlite3.OperationalError("attempt to write a readonly database")

    monkeypatch.setattr("llmb_common.runs.index.search.open_index", locked)
    assert runs.find() == [record.paths.run_id]
    assert not index_records(record)


def test_a_reader_without_rights_reads_only_what_is_new(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    known = [runs.make() for _ in range(3)]
    runs.find()
    record = runs.make(noted=False)
    loaded: list[Path] = []

    def load(folder: Path) -> RunRecord:
        loaded.append(folder)
        return load_record(folder)

    monkeypatch.setattr("llmb_common.runs.index.runs.load_record", load)
    monkeypatch.setattr(search, "open_index", full_disk)
    assert set(runs.find()) == ids(*known, record)
    assert loaded == [record.paths.folder]


def full_disk(*_: object, **__: object) -> sqlite3.Connection:
    raise sqlite3.OperationalError("database or disk is full")


def test_a_damaged_index_that_cannot_be_replaced_costs_time_only(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    record = runs.make()
    file = database.index_file(runs.install)
    content = file.read_bytes()
    file.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    monkeypatch.setattr(search, "build_index", full_disk)
    assert runs.find() == [record.paths.run_id]


@pytest.mark.parametrize("by", ["SQLite", "lock"])
def test_who_does_not_let_go_of_the_index_is_waited_for_once_and_named(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], texts: Texts, by: str
) -> None:
    records = [runs.make()]
    waits: list[float] = []
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.01)
    monkeypatch.setattr(structs, "_PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(database, "_STUCK_SECONDS", 0.0)
    connect, locked = sqlite3.connect, structs.locked
    file = database.index_file(runs.install)
    with contextlib.closing(connect(file, isolation_level=None)) as other, contextlib.ExitStack() as stack:
        if by == "SQLite":
            other.execute("BEGIN EXCLUSIVE")
        else:
            stack.enter_context(locked(file))
            records.append(runs.make(noted=False))

        def note_wait(*arguments: Any, timeout: float = 0.0, **more: Any) -> sqlite3.Connection:
            waits.append(timeout)
            return connect(*arguments, timeout=timeout, **more)

        def note_patience(file: Path, patience: float | None = None) -> contextlib.AbstractContextManager[None]:
            waits.append(0.01 if patience is None else patience)
            return locked(file, patience)

        monkeypatch.setattr(sqlite3, "connect", note_wait)
        monkeypatch.setattr(database, "locked", note_patience)
        for _ in range(2):
            assert set(runs.find()) == ids(*records), "from the folders"
            assert keep_figures(runs.install, []) is False
    assert waits.count(0.01) == (1 if by == "SQLite" else 2), "a reader does not need the lock"
    assert {*waits} == {0.01, 0.0}
    texts(capsys.readouterr().err)
    assert keep_figures(runs.install, []) is True, "it is used again as soon as that is possible"


def test_who_reads_while_the_index_is_built_anew_reads_on(runs: Runs) -> None:
    record = runs.make()
    with database.read_index(runs.install) as connection:
        before = database.inode_of(database.index_file(runs.install))
        assert rebuild(runs.install) == 1
        assert connection.execute("SELECT run_id FROM runs").fetchall() == [(record.paths.run_id,)]
    assert database.inode_of(database.index_file(runs.install)) != before
    assert [path.name for path in (runs.install / ".llmb").glob(".index.db.new*")] == []


def test_a_rebuild_that_fails_leaves_the_index_that_was_there(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    record = runs.make()
    before = database.index_file(runs.install).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(search, "update", full_disk)
        with pytest.raises(RecordError):
            rebuild(runs.install)
    assert database.index_file(runs.install).read_bytes() == before
    assert runs.find() == [record.paths.run_id]
    assert not list((runs.install / ".llmb").glob(".index.db.new*"))


def test_of_two_that_found_a_damaged_index_one_builds_it(runs: Runs) -> None:
    runs.make()
    file = database.index_file(runs.install)
    database.build_index(runs.install, full_disk, instead_of=database.inode_of(file) + 1)  # the other was faster
    with pytest.raises(sqlite3.OperationalError):
        database.build_index(runs.install, full_disk, instead_of=database.inode_of(file))


def test_what_a_killed_writer_left_of_the_old_file_does_not_change_the_new(runs: Runs) -> None:
    record = runs.make("RUNNING")
    file = database.index_file(runs.install)

    def die() -> None:
        connection = sqlite3.connect(file, isolation_level=None)
        connection.execute("PRAGMA cache_size=1")
        connection.execute("BEGIN IMMEDIATE")
        for number in range(500):
            connection.execute("UPDATE runs SET detail = ?", (str(number) * 9000,))
        os.kill(os.getpid(), 9)

    os.waitpid(start(die), 0)
    journal = file.with_name("index.db-journal")
    assert journal.stat().st_size > 512
    assert rebuild(runs.install) == 1
    assert not journal.exists()
    assert runs.find() == [record.paths.run_id]


def test_unfinished_and_unrelated_folders_are_not_runs(runs: Runs) -> None:
    record = runs.make()
    (record.paths.folder.parent / ".making-x_1").mkdir()
    (record.paths.folder.parent / "notes").mkdir()
    assert runs.find() == [record.paths.run_id]


@pytest.mark.parametrize("writable", [True, False])
def test_a_folder_outside_in_which_no_run_was_noted_yet(runs: Runs, tmp_path: Path, writable: bool) -> None:
    record = runs.make(workload_folder=str(tmp_path / "elsewhere"), noted=False)
    if not writable:
        (runs.install / ".llmb").write_text("where the index would be")
    assert runs.find() == []
    (row,) = find_runs(runs.install, roots=[record.paths.experiments, tmp_path / "nowhere"])
    assert row.run_id == record.paths.run_id
    assert runs.find() == ([row.run_id] if writable else []), "known from now on, where that can be kept"


def test_several_processes_build_the_index_at_once(runs: Runs) -> None:
    """The second process must not mistake a half-built index for a damaged one."""
    record = runs.make(noted=False)
    for _ in range(3):
        shutil.rmtree(database.index_file(runs.install).parent, ignore_errors=True)
        children = [start(lambda: check_seen(runs, record)) for _ in range(6)]
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6


def check_seen(runs: Runs, record: RunRecord) -> None:
    for _ in range(3):
        assert runs.find() == [record.paths.run_id]
        assert index_records(record)


# Conditions


def test_each_condition_chooses_by_what_it_says(runs: Runs) -> None:
    plain = runs.make(job="1")
    other = runs.make(
        "RUNNING", key="night", model_size="405b", dtype="fp8", gpu_type="h100", gpus=512, workload="pretrain_grok1"
    )
    for name, value in (
        ("workloads", "pretrain_grok1"),
        ("model_sizes", "405b"),
        ("dtypes", "fp8"),
        ("gpu_types", "h100"),
        ("gpus", 512),
        ("states", "RUNNING"),
    ):
        assert runs.find(**{name: (value,)}) == [other.paths.run_id], name
        plains = getattr(row_of(plain), name if name == "gpus" else name.removesuffix("s"))
        assert set(runs.find(**{name: (value, plains)})) == ids(plain, other), name
    assert runs.find(key="night") == [other.paths.run_id]
    assert runs.find(key="") == [plain.paths.run_id], "an empty key is one, too"
    assert runs.find(experiment_name=plain.paths.experiment_name, gpus=(512,)) == [other.paths.run_id]
    assert runs.find(experiment_name="another") == runs.find(chain="another") == []


def test_runs_since_a_time_include_those_of_that_time(runs: Runs) -> None:
    record = runs.make()
    assert runs.find(since=record.created) == [record.paths.run_id]
    assert runs.find(since=record.created + 0.001) == []


def test_the_newest_come_first_and_as_many_as_are_wanted(runs: Runs) -> None:
    records = [runs.make() for _ in range(3)]
    newest_first = [record.paths.run_id for record in reversed(records)]
    assert runs.find() == newest_first
    assert runs.find(limit=2) == newest_first[:2]
    assert runs.find(limit=0) == []


def damage(record: RunRecord) -> None:
    record.paths.record.write_text("{")


def test_live_runs_are_those_that_may_still_change(runs: Runs) -> None:
    live = [runs.make(state) for state in ("SUBMITTING", "PENDING", "RUNNING", "A_NEWER_STATE")]
    over = [runs.make(state) for state in ("COMPLETED", "FAILED", "LOST", "NOT_SUBMITTED")]
    damaged = runs.make("RUNNING")
    damage(damaged)
    assert set(runs.find(live=True)) == ids(*live)
    assert set(runs.find(live=False)) == ids(*over) | {""}
    assert len(runs.find()) == len(runs.find(live=True)) + len(runs.find(live=False))


def test_a_run_with_a_damaged_record_says_where_it_is_and_what_is_wrong(runs: Runs, texts: Texts) -> None:
    record = runs.make("RUNNING")
    damage(record)
    (row,) = find_runs(runs.install)
    assert (row.state, row.folder, row.name) == (UNREADABLE, record.paths.folder, record.paths.name)
    assert runs.refused("").code == "no-run", "an unset variable names no run, though this one's id is empty"
    assert (row.experiment_name, row.workload) == (record.paths.experiment_name, "pretrain_llama3.1")
    assert (row.run_id, row.job_id, row.gpus, row.nodes, row.created) == ("", None, 0, 0, row.state_time)
    texts(row.detail)


def test_a_record_of_another_folder_is_not_that_folders(runs: Runs) -> None:
    record = runs.make()
    moved = record.paths.folder.with_name(f"{record.paths.experiment_name}_1")
    record.paths.folder.rename(moved)
    (row,) = find_runs(runs.install)
    assert (row.folder, row.state) in ((moved, "COMPLETED"), (moved, UNREADABLE))


# What is read again


def test_a_run_that_lives_is_read_again(runs: Runs) -> None:
    record = runs.make("RUNNING")
    update_record(record.paths.folder, lambda found: found.with_state("FAILED", "found out elsewhere"))
    assert [(row.state, row.detail) for row in find_runs(runs.install)] == [("FAILED", "found out elsewhere")]


def test_after_a_rebuild_every_record_was_read(runs: Runs) -> None:
    record = runs.make()
    update_record(record.paths.folder, lambda found: found.with_state("FAILED"))
    rebuild(runs.install)
    assert [row.state for row in find_runs(runs.install)] == ["FAILED"], "the record is the truth"


@pytest.mark.parametrize("state", ["LOST", "NOT_SUBMITTED"])
def test_one_that_was_given_up_without_proof_is_read_again(runs: Runs, state: str) -> None:
    record = runs.make(state)
    update_record(record.paths.folder, lambda found: found.with_state("COMPLETED"))
    assert [row.state for row in find_runs(runs.install)] == ["COMPLETED"]


def test_a_run_whose_record_is_gone_is_none(runs: Runs) -> None:
    record = runs.make("RUNNING")
    record.paths.record.unlink()
    assert find_runs(runs.install) == []


def test_nothing_to_note_is_noted_and_what_cannot_be_is_put_right_later(runs: Runs) -> None:
    assert index_records() is True
    record = runs.make(noted=False)
    (runs.install / ".llmb").write_text("in the way")
    assert index_records(record) is False
    assert [row.run_id for row in find_runs(runs.install)] == [record.paths.run_id], "from the folders"
    (runs.install / ".llmb").unlink()
    assert index_records(record) is True


def test_an_index_that_cannot_be_built_says_what_to_look_at(runs: Runs, texts: Texts) -> None:
    runs.make(noted=False)
    (runs.install / ".llmb").write_text("in the way")
    with texts.raises(RecordError):
        rebuild(runs.install)


@pytest.mark.parametrize("elsewhere", ["elsewhere", "other/site/elsewhere"])
def test_runs_outside_the_installation_outlive_the_index(runs: Runs, tmp_path: Path, elsewhere: str) -> None:
    (tmp_path / "other" / ".llmb").mkdir(parents=True)  # another installation, in which none of the runs is
    record = runs.make(workload_folder=str(tmp_path / elsewhere))
    assert rebuild(runs.install) == 1
    assert runs.find() == [record.paths.run_id]
    database.index_file(runs.install).unlink()
    assert runs.find() == [record.paths.run_id]


def test_a_workload_behind_a_link_has_each_run_once(runs: Runs, tmp_path: Path) -> None:
    """By the link, as the installation sees it, and by the folder that ``LLMB_WORKLOAD`` may name."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (runs.install / "workloads").mkdir()
    (runs.install / "workloads" / "pretrain_llama3.1").symlink_to(scratch)
    both = runs.make(), runs.make(workload_folder=str(scratch))
    assert sorted(runs.find()) == sorted(ids(*both))
    rebuild(runs.install)
    assert sorted(runs.find()) == sorted(ids(*both))


def test_a_link_in_place_of_the_index_leads_to_nothing_that_is_changed(runs: Runs, tmp_path: Path) -> None:
    precious = tmp_path / "precious.sqlite"
    with contextlib.closing(sqlite3.connect(precious)) as connection:
        connection.execute("CREATE TABLE runs (mine)")
    before = precious.read_bytes()
    record = runs.make(noted=False)
    file = database.index_file(runs.install)
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    file.symlink_to(precious)
    assert index_records(record)
    assert runs.find() == [record.paths.run_id]
    assert (precious.read_bytes(), file.is_symlink()) == (before, False)


def test_an_index_of_an_earlier_release_is_made_anew_and_keeps_what_only_it_knows(runs: Runs, tmp_path: Path) -> None:
    inside = runs.make(noted=False, fp8_recipe="cs")
    outside = runs.make(noted=False, variant="nemo", workload_folder=str(tmp_path / "elsewhere"))
    file = database.index_file(runs.install)
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    with sqlite3.connect(file) as connection:
        connection.executescript(
            "CREATE TABLE runs (folder, state); CREATE TABLE roots (folder); PRAGMA user_version=2"
        )
        connection.execute("INSERT INTO runs VALUES ('/gone', 'RUNNING')")
        connection.execute("INSERT INTO roots VALUES (?)", (str(outside.paths.experiments),))
    connection.close()
    rows = {row.folder: (row.variant, row.fp8_recipe, row.state) for row in find_runs(runs.install)}
    assert rows == {
        inside.paths.folder: ("mbridge", "cs", "COMPLETED"),
        outside.paths.folder: ("nemo", None, "COMPLETED"),
    }


def test_figures_go_with_their_run(runs: Runs) -> None:
    record = runs.make()
    folder = str(record.paths.folder)
    assert keep_figures(runs.install, [LogFigures(folder, "stamp", "configuration", b"0", b"1")])
    assert index_records(record), "and stay when its state is noted"
    assert [kept.figures for kept in kept_figures(runs.install, [folder], LogFigures)] == [b"0"]
    shutil.rmtree(record.paths.folder)
    assert runs.find() == []
    assert kept_figures(runs.install, [folder], LogFigures) == []


# Names of runs


def test_a_run_is_named_by_id_beginning_name_job_or_folder(runs: Runs) -> None:
    record = runs.make(job="4711")
    runs.make(job="4712")
    folder = str(record.paths.folder)
    words = (record.paths.run_id, record.paths.name, "4711", folder, f"{folder}/")
    assert {find_run(runs.install, word).run_id for word in words} == ids(record)


def test_a_folder_may_be_named_from_where_one_is(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    record = runs.make()
    monkeypatch.chdir(record.paths.folder.parent)
    assert find_run(runs.install, record.paths.name).run_id == record.paths.run_id
    monkeypatch.chdir(record.paths.experiments)
    assert find_run(runs.install, f"./{record.paths.experiment_name}/{record.paths.name}").folder == record.paths.folder


@pytest.fixture
def named(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunRecord]:
    """Make a run with this id."""

    def make(run_id: str, **more: object) -> RunRecord:
        with monkeypatch.context() as patch:
            patch.setattr("secrets.token_hex", lambda size: run_id)
            return runs.make(**more)  # type: ignore[arg-type]

    return make


def test_the_beginning_of_an_id_is_enough_where_it_means_one(
    runs: Runs, named: Callable[..., RunRecord], texts: Texts
) -> None:
    first, second = named("abc10000"), named("abd20000")
    assert find_run(runs.install, "abc").folder == first.paths.folder
    error = runs.refused("ab")
    assert error.code == "ambiguous"
    assert first.paths.name in error.message
    assert second.paths.name in error.message
    texts(error)


def test_a_number_is_a_job_and_not_the_beginning_of_an_id(runs: Runs, named: Callable[..., RunRecord]) -> None:
    record = named("77710000", job="4711")
    assert runs.refused("777").code == "no-run"
    assert find_run(runs.install, "77710000").folder == record.paths.folder


@pytest.mark.parametrize("word", ["abc1%", "a_c", "%", "_", ""])
def test_signs_of_a_pattern_are_none(runs: Runs, named: Callable[..., RunRecord], word: str) -> None:
    named("abc10000")
    assert runs.refused(word).code == "no-run"


def test_an_unknown_word_gets_near_ones(runs: Runs, named: Callable[..., RunRecord], texts: Texts) -> None:
    named("abc10000", job="471100")
    error = runs.refused("abd10000")
    texts(f"{error.message}\n  -> {error.remedy}")
    texts(runs.refused("471101").message)


def test_of_runs_under_one_job_the_newest_is_meant_but_ours_first(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = runs.make(job="7"), runs.make(job="7")
    assert find_run(runs.install, "7").folder == theirs.paths.folder
    monkeypatch.setattr(search, "is_ours", lambda folder: folder == ours.paths.folder)
    assert find_run(runs.install, "7").folder == ours.paths.folder
    monkeypatch.setattr(search, "is_ours", lambda folder: False)
    assert find_run(runs.install, "7").folder == theirs.paths.folder
