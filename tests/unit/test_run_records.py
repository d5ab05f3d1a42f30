"""run.json: what it holds, how it changes, and what of it is not believed."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmb_common import __version__
from llmb_common.base.errors import RecordError
from llmb_common.base.files import sha256_of
from llmb_common.base.processes import identify
from llmb_common.planning.job_plan import plan_as_dict
from llmb_common.runs.finding import Finding, may_change
from llmb_common.runs.manifest import git_state, hash_of_packed, make_manifest, pack_code
from llmb_common.runs.record import RunRecord, State, Submission, Turn, load_record, update_record
from llmb_common.submission.single import create_run
from support.run_site import RECIPE, RunSite
from support.runs import make_run
from support.texts import Texts


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "clone" / "llmb_train"
    (folder / "sub").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "sub" / "a.py").write_text("x = 1\n")
    return folder


@pytest.fixture
def record(tmp_path: Path, code: Path) -> RunRecord:
    plan = RunSite(tmp_path, "slurm").plan(NCCL_ALGO="Ring")
    return create_run(plan, code, make_manifest(plan, RECIPE, code), Submission(key="k", options=("--hold",)))


def content(record: RunRecord) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(record.paths.record.read_text())
    return value


EIGHT_IN_THE_EVENING = 1793304000.0
"""2026-10-29, 20:00 UTC."""


def test_runs_of_one_evening_share_a_day_wherever_somebody_asks(record, monkeypatch):
    def day(hours: float, offset: object = 0) -> str:
        states = (State("PENDING", 0.0, ""), State("RUNNING", EIGHT_IN_THE_EVENING + 3600 * hours, ""))
        return replace(record, states=states, manifest={**record.manifest, "utc_offset": offset}).day

    assert [day(hours) for hours in (0, 3.9, 5, 9.9)] == ["2026-10-29"] * 4
    assert (day(10), day(-14.1)) == ("2026-10-30", "2026-10-28")
    assert day(0, offset=10 * 3600) == "2026-10-30", "it is six in the morning there"
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert day(0.9) == "2026-10-29"
        assert day(0.9, offset="9 hours") == day(0.9, offset=10**9) == "2026-10-29", "of older records as here"
        assert day(1.1, offset=None) == "2026-10-30"
    time.tzset()


def test_a_new_run_is_on_disk_as_it_was_asked_for(record: RunRecord) -> None:
    value = content(record)
    assert (value["schema"], value["state"], value["job_id"], value["results"]) == (1, "SUBMITTING", None, None)
    assert value["run_id"] == record.paths.run_id
    assert value["name"] == record.paths.folder.name
    assert value["experiment_name"] == record.paths.folder.parent.name
    assert (value["workload"], value["executor"]) == (record.plan.workload, "slurm")
    assert value["plan"] == json.loads(json.dumps(plan_as_dict(record.plan)))
    assert value["submission"] == {"key": "k", "options": ["--hold"], "chain": "", "link": 0, "task": None}
    assert load_record(record.paths.folder) == record


def test_its_manifest_says_what_is_needed_to_repeat_it(record: RunRecord, code: Path) -> None:
    manifest = content(record)["manifest"]
    assert manifest["llmb"] == __version__
    assert (manifest["python"], manifest["host"]) == (platform.python_version(), platform.node())
    assert manifest["command"] == [Path(sys.argv[0]).name, *sys.argv[1:]]
    assert manifest["recipe_sha256"] == sha256_of(RECIPE / "recipe.yaml")
    assert manifest["code_sha256"] == hash_of_packed(pack_code(code))
    assert manifest["environment_overrides"] == {"NCCL_ALGO": "Ring"}
    assert manifest["image"] is None


def test_states_follow_each_other_in_time_and_each_is_said_once(record: RunRecord) -> None:
    assert (record.state, record.detail) == ("SUBMITTING", "")
    now = record.state_time
    waits = record.with_state("PENDING", "Priority", since=now + 10.00049)
    assert (waits.state, waits.detail, waits.state_time) == ("PENDING", "Priority", now + 10)
    assert waits.with_state("PENDING", since=now + 20) is waits
    assert waits.with_state("PENDING", "Priority", since=now + 20) is waits
    assert waits.with_state("PENDING", "Resources", since=now + 20).detail == "Resources"
    early = waits.with_state("RUNNING", since=now - 100)
    assert early.state_time == waits.state_time, "another machine's clock is late; history stays in order"
    assert (early.created, record.created) == (now, now)
    assert abs(waits.with_state("FAILED", since=None).state_time - max(time.time(), waits.state_time)) < 3600


def test_a_change_is_written_under_a_lock_and_only_where_there_is_one(record: RunRecord) -> None:
    changed = update_record(record.paths.folder, lambda found: found.with_state("SUBMITTED"))
    assert load_record(record.paths.folder) == changed
    assert changed.state == "SUBMITTED"
    before = record.paths.record.stat().st_ino
    update_record(record.paths.folder, lambda found: found)
    assert record.paths.record.stat().st_ino == before


def test_a_run_that_was_moved_is_not_written_to(record: RunRecord, texts: Texts) -> None:
    folder = record.paths.folder
    moved = folder.with_name(f"{folder.name}-1")
    folder.rename(moved)
    value = json.loads((moved / "run.json").read_text())
    assert load_record(moved).paths.folder == moved, "it can be looked at"
    elsewhere = moved.parent.parent / "other"
    elsewhere.mkdir()
    again = elsewhere / moved.name
    moved.rename(again)
    with texts.raises(RecordError):
        update_record(again, lambda found: found.with_state("SUBMITTED"))
    assert json.loads((again / "run.json").read_text()) == value


LATE, EARLY = 1e11, -1.0
BAD: list[dict[str, Any]] = [
    {"run_id": "../x"},
    {"run_id": "x" * 33},
    {"run_id": ""},
    {"run_id": 7},
    {"job_id": "7;scancel"},
    {"job_id": "7_"},
    {"job_id": 7},
    {"experiment_name": "../x"},
    {"experiment_name": "another"},
    {"states": [{"state": 1, "time": 1.0, "detail": ""}]},
    {"states": [{"state": "FAILED", "time": 1.0, "detail": None}]},
    {"states": [{"state": "FAILED", "time": EARLY, "detail": ""}]},
    {"states": [{"state": "FAILED", "time": LATE, "detail": ""}]},
    {"states": [{"state": "FAILED", "time": True, "detail": ""}]},
    {"states": [{"state": "FAILED", "time": "1", "detail": ""}]},
    {"states": [{"state": "FAILED", "time": math.nan, "detail": ""}]},
    {"states": "FAILED"},
    {"missing_since": EARLY},
    {"missing_since": "now"},
    {"manifest": []},
    {"results": []},
    {"submission": {}, "plan": {}},
    {"submission": {"kee": ""}},
    {"process": {"pid": 1}},
    {"plan": {}},
]


@pytest.mark.parametrize("changes", BAD, ids=lambda changes: json.dumps(changes)[:60])
def test_a_record_that_nobody_here_wrote_is_refused(record: RunRecord, changes: dict[str, Any]) -> None:
    text = json.dumps({**content(record), **changes})
    with pytest.raises(RecordError) as caught:
        load_record(record.paths.folder, text.encode())
    assert str(record.paths.folder) in caught.value.message


@pytest.mark.parametrize("changed", [7, "x", {"account": 7}, {"acount": "a"}], ids=json.dumps)
def test_so_is_one_whose_scheduler_is_asked_for_what_it_does_not_know(record: RunRecord, changed: Any) -> None:
    plan = content(record)["plan"]
    part = {**plan["slurm"], **changed} if isinstance(changed, dict) else changed
    with pytest.raises(RecordError) as caught:
        load_record(record.paths.folder, json.dumps({**content(record), "plan": {**plan, "slurm": part}}).encode())
    assert "run.json" in caught.value.message


GOOD: list[dict[str, Any]] = [
    {"run_id": "A" * 32},
    {"job_id": "7"},
    {"job_id": "7_12"},
    {"results": {}},
    {"missing_since": 0},
    {"states": [{"state": "FAILED", "time": 0, "detail": "x"}]},
    {"states": []},
]


@pytest.mark.parametrize("changes", GOOD, ids=json.dumps)
def test_one_that_could_be_ours_is_read(record: RunRecord, changes: dict[str, Any]) -> None:
    found = load_record(record.paths.folder, json.dumps({**content(record), **changes}).encode())
    assert found.plan == record.plan


def test_nothing_in_it_may_be_missing(record: RunRecord, texts: Texts) -> None:
    for key in ("schema", "run_id", "experiment_name", "job_id", "states", "plan", "manifest", "results"):
        value = content(record)
        del value[key]
        with pytest.raises(RecordError) as caught:
            load_record(record.paths.folder, json.dumps(value).encode())
        assert key in caught.value.message
    texts(caught.value)


def test_another_versions_record_says_so(record: RunRecord, texts: Texts) -> None:
    value = {**content(record), "schema": 2}
    with texts.raises(RecordError):
        load_record(record.paths.folder, json.dumps(value).encode())


def test_a_record_in_another_runs_folder_is_refused(record: RunRecord, texts: Texts) -> None:
    folder = record.paths.folder
    for name in ("another_1763776628", f"{record.paths.experiment_name}_", "x"):
        with pytest.raises(RecordError) as caught:
            load_record(folder.with_name(name), json.dumps(content(record)).encode())
    texts(caught.value)


def test_a_record_is_not_read_through_a_link(record: RunRecord, tmp_path: Path, texts: Texts) -> None:
    record.paths.record.rename(tmp_path / "elsewhere.json")
    with texts.raises(RecordError):
        load_record(record.paths.folder)
    record.paths.record.symlink_to(tmp_path / "elsewhere.json")
    with texts.raises(RecordError):
        load_record(record.paths.folder)


def test_a_lock_that_everybody_could_hold_is_closed(record: RunRecord) -> None:
    lock = record.paths.folder / ".lock"
    lock.touch()
    lock.chmod(0o666)
    update_record(record.paths.folder, lambda found: found)
    assert lock.stat().st_mode & 0o777 == 0o600


def test_a_run_alone_has_no_turn_in_a_series() -> None:
    submission = Submission(key="k", turn=Turn("a", 3, 4))
    assert submission.alone() == Submission(key="k")


def test_repeats_have_one_plan(tmp_path: Path) -> None:
    """It is most of a record, and thousands of runs are looked at together."""
    one, other = (load_record(make_run(tmp_path).paths.folder) for _ in range(2))
    assert one.plan is other.plan
    assert one.paths.run_id != other.paths.run_id
    file = other.paths.record
    file.write_text(file.read_text().replace('"gpus": 128', '"gpus": "128"', 1))
    with pytest.raises(RecordError, match=r"plan\.gpus is text"):
        load_record(other.paths.folder)


# The recorded commit: of your own clone, of a colleague's, or without any clone.


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    recipe = folder / "recipe"
    recipe.mkdir(parents=True)
    (recipe / "recipe.yaml").write_text("a: 1\n")
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for arguments in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(folder), *arguments], check=True)
    return recipe


def head_of(folder: Path) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True
    ).stdout.strip()


def test_ones_own_clone(clone: Path) -> None:
    assert git_state(clone) == {"commit": head_of(clone), "dirty": False}
    (clone / "recipe.yaml").write_text("a: 2\n")
    assert git_state(clone) == {"commit": head_of(clone), "dirty": True}


def test_a_colleagues_clone_has_a_commit_and_runs_nothing(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``git status`` would run programs that the clone's configuration names."""
    commit, ran = head_of(clone), clone.parent / "ran"
    subprocess.run(["git", "-C", str(clone), "config", "core.fsmonitor", f"touch {ran}; false"], check=True)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git's own switch for this
    assert git_state(clone) == {"commit": commit, "dirty": None}
    assert not ran.exists()


def test_no_clone(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None


def test_a_clone_without_a_commit(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert git_state(tmp_path) is None


def test_a_git_that_says_nothing(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = tmp_path / "bin" / "git"
    git.parent.mkdir()
    git.write_text("#!/bin/sh\nexit 0\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(git.parent), prepend=":")
    assert git_state(clone) is None


# How what was found out about a run goes into its record, and who else may write beside it.


def test_a_job_id_and_a_process_are_filled_in_once_and_never_replaced(record: RunRecord) -> None:
    me, parent = identify(), identify(os.getppid())
    assert (Finding().apply(record).job_id, Finding().apply(record).process) == (None, None)
    found = Finding(job_id="7", process=me).apply(record)
    for later in (found, Finding(job_id="8", process=parent).apply(found), Finding().apply(found)):
        assert (later.job_id, later.process) == ("7", me)


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
