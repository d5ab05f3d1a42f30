"""A new run on disk: what is in its folder, who may change it, and what it says when it cannot be made."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import msgspec
import pytest

from llmb_common.errors import EnvironmentLacks, RecordError
from llmb_common.planning.job_plan import JobPlan, ProfilePlan
from llmb_common.process import identify
from llmb_common.runs.code import pack_code
from llmb_common.runs.record import RunRecord, Submission, load_record
from llmb_common.submission import code as code_module
from llmb_common.submission import create, training_code
from llmb_common.submission.create import create_run
from support.documented_jobs import documented_rows, plan_of


@pytest.fixture
def plan(tmp_path: Path) -> JobPlan:
    (tmp_path / "workload").mkdir()
    plan = plan_of(*next(documented_rows()))
    return msgspec.structs.replace(plan, workload_folder=str(tmp_path / "workload"), install=str(tmp_path))


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code" / "llmb_train"
    folder.mkdir(parents=True)
    (folder / "__main__.py").write_text("print('trained')\n")
    return folder


def modes(record: RunRecord) -> dict[str, str]:
    """Permissions of the files and folders of a run."""
    folder = record.paths.folder
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*")} | {".": folder}
    return {name: f"{stat.S_IMODE(path.stat().st_mode):o}" for name, path in found.items()}


def test_the_folder_holds_everything_that_the_job_needs(plan: JobPlan, code: Path) -> None:
    record = create_run(plan, code, {"llmb": "1"}, Submission(key="night", options=("--exclude=n1",)))
    paths = record.paths
    assert load_record(paths.folder) == record
    assert (record.state, record.manifest, record.submission.key) == ("SUBMITTING", {"llmb": "1"}, "night")
    assert record.submitter == identify()
    assert paths.code.read_bytes() == pack_code(code)
    assert json.loads(paths.job.read_text())["run_id"] == paths.run_id
    assert paths.script.read_text().startswith("#!/bin/bash\n")
    assert paths.output.is_dir()
    assert not paths.profiles.exists(), "nothing is profiled"
    assert [path.name for path in paths.folder.parent.iterdir()] == [paths.folder.name], "and nothing else is left"


def test_packed_code_is_taken_as_it_is(plan: JobPlan, code: Path) -> None:
    record = create_run(plan, b"packed before", {})
    assert record.paths.code.read_bytes() == b"packed before"
    assert record.submission == Submission()


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_everybody_may_read_a_run_and_only_its_owner_change_it(plan: JobPlan, code: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        record = create_run(plan, code, {})
    finally:
        os.umask(before)
    found = modes(record)
    if umask == 0:
        assert found["."] == found[record.paths.output.name] == "755"
    assert found[record.paths.script.name] == "755"
    assert {found[name] for name in ("run.json", "job.json", "code.zip")} == {"644"}


def test_a_profiled_run_has_a_place_for_its_profiles(plan: JobPlan, code: Path) -> None:
    profile = ProfilePlan(tool="nsys", start=45, stop=50, ranks=(0,), file="profile", gpu_metrics=False)
    assert create_run(msgspec.structs.replace(plan, profile=profile), code, {}).paths.profiles.is_dir()


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EROFS, "export LLMB_WORKLOAD=/a/folder/of/yours"),
        (errno.EACCES, "export LLMB_WORKLOAD=/a/folder/of/yours"),
        (errno.EPERM, "export LLMB_WORKLOAD=/a/folder/of/yours"),
        (errno.ENOSPC, "check free space and quota; then run the same command again"),
    ],
)
def test_a_folder_that_cannot_be_written_says_why_and_where_to_go(plan, code, monkeypatch, number, remedy):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number), "/somewhere")

    monkeypatch.setattr(create, "reserve", refuse)
    with pytest.raises(RecordError, match=f"^cannot write the run folder in [^:]*: {os.strerror(number)}") as caught:
        create_run(plan, code, {})
    assert remedy in caught.value.remedy


def test_the_training_code_is_that_of_this_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import llmb_common

    assert training_code() == Path(llmb_common.__file__).resolve().parents[1] / "llmb_train"
    monkeypatch.setattr(code_module, "__file__", str(tmp_path / "llmb_common" / "submission" / "code.py"))
    with pytest.raises(EnvironmentLacks, match=f"the training code {tmp_path / 'llmb_train'} is missing") as caught:
        training_code()
    assert caught.value.remedy == "reinstall LLMB"
