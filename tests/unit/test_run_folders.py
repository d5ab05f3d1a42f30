"""Names and folders of runs: which is free, what is removed, who may open what, and how that is said."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import stat
import time
import zipfile
from pathlib import Path

import msgspec
import pytest

from llmb_common.base.errors import EnvironmentLacks, RecordError
from llmb_common.base.files import sha256_of
from llmb_common.base.processes import identify
from llmb_common.planning.job_plan import JobPlan, ProfilePlan
from llmb_common.runs import folders
from llmb_common.runs import manifest as code_module
from llmb_common.runs.finding import read_manifest_line
from llmb_common.runs.folders import close_to_others, is_ours, own_run, refusal, remove_run, reserve, write_new
from llmb_common.runs.manifest import hash_of_packed, image_line, image_receipt, pack_code, training_code
from llmb_common.runs.paths import RunPaths, dry_run_paths, numbered
from llmb_common.runs.record import RunRecord, Submission, load_record
from llmb_common.submission import single
from llmb_common.submission.single import create_run
from support.documented_jobs import documented_rows, plan_of
from support.texts import Texts

DAY = 86400


def probe(experiments: Path, second: int = 1_763_776_628) -> RunPaths:
    return RunPaths(experiments, "exp", str(second), "0011aabb")


# A free name


def test_runs_of_one_second_are_numbered_and_those_of_the_next_are_not(tmp_path: Path) -> None:
    names = []
    for second in (1_763_776_628, 1_763_776_628, 1_763_776_628, 1_763_776_629):
        paths, making = reserve(probe(tmp_path, second))
        assert (making.name, making.is_dir()) == (f".making-{paths.name}", True)
        making.rename(paths.folder)
        names.append(paths.stamp)
    assert names == ["1763776628", "1763776628-0002", "1763776628-0003", "1763776629"]
    assert numbered(7, 1) < numbered(7, 2) < numbered(8, 1), "by name is by time"


def test_a_name_that_another_process_has_or_makes_is_passed_over(tmp_path: Path) -> None:
    taken = probe(tmp_path)
    taken.folder.mkdir(parents=True)
    (taken.folder.parent / ".making-exp_1763776628-0002").mkdir()
    assert reserve(taken)[0].stamp == "1763776628-0003"


def test_a_second_has_ten_thousand_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    monkeypatch.setattr(folders, "_MOST_IN_A_SECOND", 2)
    reserve(probe(tmp_path))[1].rmdir()
    probe(tmp_path).folder.mkdir()
    monkeypatch.setattr(folders, "_newest_stamp", {})
    with texts.raises(RecordError):
        reserve(probe(tmp_path))


# What was left behind


def aged(path: Path, seconds: float) -> Path:
    when = time.time() - seconds
    os.utime(path, (when, when))
    return path


def test_what_killed_processes_left_goes_after_a_day(tmp_path: Path) -> None:
    experiment = tmp_path / "exp"
    for name in (".making-exp_1", ".making-exp_2", ".array-old", ".array-recent", ".array-used", "exp_3"):
        (experiment / name).mkdir(parents=True)
    for name, run in ((".array-old", "exp_gone"), (".array-recent", "exp_gone"), (".array-used", "exp_3")):
        (experiment / name / "0").symlink_to(f"../{run}")
        (experiment / name / "array.sbatch").touch()
    (experiment / ".making-exp_1" / "code.zip").touch()
    for name in (".making-exp_1", ".array-old", ".array-used", "exp_3"):
        aged(experiment / name, DAY + 60)
    aged(experiment / ".making-exp_2", DAY - 60)
    reserve(probe(tmp_path))[1].rmdir()
    left = sorted(path.name for path in experiment.iterdir())
    assert left == [".array-recent", ".array-used", ".making-exp_2", "exp_3"]


def test_what_another_user_left_is_not_ours_to_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (".making-exp_1", ".array-old"):
        (tmp_path / "exp" / name).mkdir(parents=True)
        aged(tmp_path / "exp" / name, 2 * DAY)
    monkeypatch.setattr(folders, "effective_user_id", lambda: os.geteuid() + 1)
    reserve(probe(tmp_path))[1].rmdir()
    assert len(list((tmp_path / "exp").iterdir())) == 2


# New files


def test_a_new_file_replaces_none_and_has_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_new(tmp_path / "a", b"text")
        write_new(tmp_path / "b", b"text", mode=0o755, sync=True)
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"] == [0o644, 0o755]
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "a", b"other")
    assert (tmp_path / "a").read_bytes() == b"text"


def test_what_must_survive_a_power_cut_is_whole_when_it_is_synced(tmp_path, monkeypatch):
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    write_new(tmp_path / "a", b"text")
    write_new(tmp_path / "b", b"text", sync=True)
    assert synced == [4]


# Whose it is


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    return tmp_path / "run"


def test_a_run_is_ours_where_folder_and_record_are(run: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    assert (is_ours(run), refusal(run)) == (True, None)
    monkeypatch.setattr(folders, "effective_user_id", lambda: 4_000_001)
    monkeypatch.setattr(folders, "_owner_of_new_file", lambda descriptor: None)
    found = refusal(run)
    texts(found.message)
    assert found.code == "not-yours"
    texts(found.remedy)


def test_where_every_file_is_given_to_one_user_that_one_is_us(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a mounted Windows share; it is tried with a file that is gone afterwards."""
    monkeypatch.setattr(folders, "effective_user_id", lambda: 4_000_001)
    assert is_ours(run)
    assert [path.name for path in run.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "cannot read {}/run.json: No such file or directory"),
        (lambda path: path.mkdir(), "{}/run.json is not a regular file"),
        (lambda path: os.mkfifo(path), "{}/run.json is not a regular file"),
        (lambda path: path.symlink_to("/etc/hostname"), "cannot read {}/run.json: Too many levels of symbolic links"),
    ],
)
def test_a_record_is_a_plain_file(run: Path, make: object, says: str) -> None:
    (run / "run.json").unlink()
    make(run / "run.json")  # type: ignore[operator]
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    found = refusal(run)
    assert found.message == says.format(run)
    assert len(os.listdir("/proc/self/fd")) == before, "nothing stays open"  # noqa: PTH208


def test_a_folder_is_no_link(run: Path, tmp_path: Path, texts: Texts) -> None:
    (tmp_path / "link").symlink_to(run)
    for path in (tmp_path / "link", tmp_path / "none"):
        with texts.raises(RecordError), own_run(path):
            pass


def test_a_folder_that_others_may_write_to_gets_the_sticky_bit(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    wanted = {0o755: 0o755, 0o775: 0o1775, 0o777: 0o1777, 0o1777: 0o1777, 0o2775: 0o3775, 0o757: 0o1757}
    for mode, closed in wanted.items():
        tmp_path.chmod(mode)
        close_to_others(tmp_path)
        assert stat.S_IMODE(tmp_path.stat().st_mode) == closed, f"{mode:o}"
    close_to_others(tmp_path / "none")  # somebody else's affair
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_folder_of_another_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setattr(folders, "effective_user_id", lambda: os.geteuid() + 1)
    close_to_others(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o777


# One change at a time


def test_a_lock_is_held_and_given_back(run: Path) -> None:
    with own_run(run) as own, folders.locked(own):
        descriptor = os.open(run / ".lock", os.O_WRONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
    assert stat.S_IMODE((run / ".lock").stat().st_mode) == 0o600, "nobody else may hold it"


def test_who_holds_it_too_long_is_named(run: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    monkeypatch.setattr(folders, "LOCK_SECONDS", 0.0)
    with (run / ".lock").open("w") as held, own_run(run) as own:
        fcntl.flock(held, fcntl.LOCK_EX)
        with (
            texts.raises(RecordError) as caught,
            folders.locked(own),
        ):
            pass
    texts(caught.value.remedy)


def test_a_lock_that_cannot_be_had_is_an_error_of_ours(
    run: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    def fail(descriptor: int, seconds: float) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with own_run(run) as own:
        (run / ".lock").mkdir()
        with texts.raises(RecordError), folders.locked(own):
            pass
        (run / ".lock").rmdir()
        monkeypatch.setattr(folders, "lock_within", fail)
        with texts.raises(RecordError), folders.locked(own):
            pass


# What a run takes along, and what is known of it


def test_the_same_code_is_the_same_archive(tmp_path: Path, texts: Texts) -> None:
    packed = []
    for name in ("a", "b"):
        code = tmp_path / name / "llmb_train"
        (code / "settings").mkdir(parents=True)
        for file in ("settings/x.py", "__main__.py", "numbers.json", "notes.txt"):
            (code / file).write_text(file)
            aged(code / file, 1000 * (1 + len(name)))
        packed.append(pack_code(code))
    assert packed[0] == packed[1]
    names = zipfile.ZipFile(io.BytesIO(packed[0])).namelist()
    assert names == ["llmb_train/__main__.py", "llmb_train/numbers.json", "llmb_train/settings/x.py"]
    with texts.raises(RecordError):
        hash_of_packed(b"no archive")
    content = bytearray(packed[0])
    content[content.index(b"PK\x01\x02") + 10] ^= (
        8  # as if its first file was compressed, which it is not, or the reverse
    )
    with pytest.raises(RecordError):
        hash_of_packed(bytes(content))


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (b'noise\nLLMB manifest: {"torch": "2.9"}\nmore\n', {"torch": "2.9"}),
        (b'LLMB manifest: {"torch": "2.8"}\nLLMB manifest: {"torch": "2.9"}\n', {"torch": "2.9"}),
        (b'LLMB manifest: {"torch": ', None),
        (b"LLMB manifest: [1]\n", None),
        (b"nothing\n", None),
    ],
)
def test_the_last_line_about_software_counts(tmp_path: Path, log: bytes, expected: object) -> None:
    (tmp_path / "log").write_bytes(log)
    assert read_manifest_line(tmp_path / "log") == expected
    assert read_manifest_line(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("image", "line"),
    [
        (None, ""),
        ("text", ""),
        ({"path": "/i.sqsh"}, "/i.sqsh, no digest on record"),
        ({"path": "/i.sqsh", "receipt": "{"}, "/i.sqsh, no digest on record"),
        ({"path": "/i.sqsh", "receipt": "[]"}, "/i.sqsh, no digest on record"),
        ({"path": "/i.sqsh", "receipt": 5}, "/i.sqsh, no digest on record"),
        ({"receipt": '{"sha256": "ab", "source": "nvcr.io/x"}'}, "?, sha256:ab, of nvcr.io/x"),
    ],
)
def test_an_image_is_told_by_path_digest_and_source(image: object, line: str) -> None:
    assert image_line({"image": image}) == line
    assert image_receipt({"image": {"receipt": '{"sha256": "ab"}'}}) == {"sha256": "ab"}


def test_dry_runs_of_the_same_job_have_the_same_paths() -> None:
    paths = dry_run_paths("/w", "exp")
    assert str(paths.folder) == "/w/experiments/exp/exp_TIMESTAMP"
    assert (paths.job_name, paths.log.name) == ("exp.RUNID", "log-exp.out")
    assert str(paths.batch_log) == "/w/experiments/exp/exp_TIMESTAMP/exp/sbatch_exp.out"
    assert str(paths.series("ab12").script) == "/w/experiments/.series-ab12/series.sbatch"
    assert paths.series("ab12").job_name == "llmb.series-ab12"


# Removal of a refused run


def test_a_refused_run_goes_with_its_empty_parents(plan: JobPlan, tmp_path: Path) -> None:
    refused = create_run(plan, b"", {})
    remove_run(refused.paths)
    assert list((tmp_path / "workload").iterdir()) == []
    remove_run(refused.paths)  # somebody else was faster: not an error that would hide the refusal


def test_parents_that_others_use_stay(plan: JobPlan) -> None:
    refused, neighbour = create_run(plan, b"", {}), create_run(plan, b"", {})
    remove_run(refused.paths)
    assert [path.name for path in refused.paths.folder.parent.iterdir()] == [neighbour.paths.name]


# A new run on disk: what is in its folder, who may change it, and what it says when it cannot be made.


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
    assert (record.state, record.submission.key) == ("SUBMITTING", "night")
    assert record.manifest == {"llmb": "1", "supervisor_sha256": sha256_of(paths.supervisor)}
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
    assert {found[name] for name in ("run.json", "job.json", "code.zip", "supervisor.sh")} == {"644"}


def test_a_profiled_run_has_a_place_for_its_profiles(plan: JobPlan, code: Path) -> None:
    profile = ProfilePlan(tool="nsys", start=45, stop=50, ranks=(0,), file="profile", gpu_metrics=False)
    assert create_run(msgspec.structs.replace(plan, profile=profile), code, {}).paths.profiles.is_dir()


@pytest.mark.parametrize(
    "number",
    [
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.ENOSPC,
    ],
)
def test_a_folder_that_cannot_be_written_says_why_and_where_to_go(plan, code, monkeypatch, number, texts: Texts):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number), "/somewhere")

    monkeypatch.setattr(single, "reserve", refuse)
    with texts.raises(RecordError):
        create_run(plan, code, {})


def test_a_disk_that_gets_full_is_left_as_it_was(
    plan: JobPlan, code: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    def refuse(*_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(single, "job_text", refuse)
    with texts.raises(RecordError):
        create_run(plan, code, {})
    assert list(Path(plan.workload_folder).glob("experiments/*/.making-*")) == []


def test_the_training_code_is_that_of_this_installation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, texts: Texts
) -> None:
    import llmb_common

    assert training_code() == Path(llmb_common.__file__).resolve().parents[1] / "llmb_train"
    monkeypatch.setattr(code_module, "__file__", str(tmp_path / "llmb_common" / "runs" / "code.py"))
    with texts.raises(EnvironmentLacks):
        training_code()
