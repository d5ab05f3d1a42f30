"""Checks of the disk before a job is submitted."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from llmb_common.base.cluster_types import LOCAL
from llmb_common.base.errors import EnvironmentLacks, RequestError
from llmb_common.planning.job_plan import CheckpointPlan, JobPlan
from llmb_common.submission.preflight import check_disk, check_job
from support.documented_jobs import documented_rows, plan_of
from support.functions import plan as planned
from support.texts import Texts


def plan(folder: Path, size: str = "405b", **checkpoint: object) -> JobPlan:
    item, dtype, gpus = next(case for case in documented_rows() if case[0]["size"] == size)
    changes = {"workload_folder": str(folder / "not" / "yet"), "checkpoint": CheckpointPlan(**checkpoint)}  # type: ignore[arg-type]
    return msgspec.structs.replace(plan_of(item, dtype, gpus), **changes)


def plan_of_function() -> JobPlan:
    """A job of DeepSeek-V3, whose layout a test changes."""
    return planned(MODEL_SIZE="deepseek_v3", GPU_TYPE="gb300", JOB_TOTAL_GPUS="256")


def checkpoint(folder: Path, step: int = 20) -> Path:
    """What a run leaves behind: one folder per saved step, and a note of the latest."""
    (folder / f"iter_{step:07d}").mkdir(parents=True)
    (folder / f"iter_{step:07d}" / "__0_0.distcp").touch()
    (folder / "latest_checkpointed_iteration.txt").write_text(f"{step}\n")
    return folder


def refused(job: JobPlan, words: str) -> str:
    """What ``check_disk`` says of a wrong request, in which ``words`` are; it begins with what the user has set."""
    with pytest.raises(RequestError, match=words) as caught:
        check_disk(job)
    assert re.match(rf"LOAD_CHECKPOINT_PATH(=|: ){re.escape(str(job.checkpoint.load))}\b", caught.value.message)
    return caught.value.remedy


LATEST = "latest_checkpointed_iteration.txt"


def test_a_checkpoint_needs_a_note_of_its_latest_step_and_distcp_files(tmp_path: Path, texts: Texts) -> None:
    refused(plan(tmp_path, load=str(tmp_path / "none")), "is not a directory")
    refused(plan(tmp_path, load=str(tmp_path)), rf"{LATEST}.* is missing")
    folder = checkpoint(tmp_path / "checkpoints")
    job = plan(tmp_path, load=str(folder))
    check_disk(job)
    check_disk(plan(tmp_path, load=str(folder / "iter_0000020")))
    (folder / "iter_0000020" / "__0_0.distcp").unlink()
    refused(job, r"iter_0000020 holds no \*\.distcp")
    for text in (b"twenty", b"", b"-20", b"1234567890", b"20 30", b"20\xff"):
        (folder / LATEST).write_bytes(text)
        texts(refused(job, "holds no finished checkpoint"))
    refused(job, rf"{LATEST}, which names the last one, is missing or wrong")
    (folder / LATEST).unlink()  # its save was cut off
    refused(job, "is missing or wrong")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "__0_0.distcp").touch()
    refused(plan(tmp_path, load=str(tmp_path)), "NeMo 2")


@pytest.mark.parametrize("setting", ["load", "save"])
def test_an_inaccessible_folder_is_named_with_the_reason_as_the_system_says_it(
    tmp_path: Path, setting: str, texts: Texts
) -> None:
    with pytest.raises(EnvironmentLacks) as caught:
        check_disk(plan(tmp_path, enabled=setting == "save", **{setting: "/" + "x" * 5000}))
    texts(caught.value, mask="x{5000}")


@pytest.mark.parametrize(
    ("saved", "ep", "refused"),
    [
        ("1.1", 8, True),
        ("2.4.16", 1, True),
        ("1.1", 1, False),
        ("2.4.16", 8, False),  # of which EP above 1, does not matter
        ("1.1", None, False),  # no experts
    ],
)
def test_a_checkpoint_whose_experts_optimizer_cannot_be_loaded(tmp_path, saved, ep, refused, texts: Texts):
    folder = checkpoint(tmp_path / "checkpoints")
    index = folder / "iter_0000020" / ".metadata"
    index.write_bytes(b"\x8c\x18rng_state/shard_0.0.0_%s\x94" % saved.encode())
    for load in (folder, folder / "iter_0000020"):
        job = msgspec.structs.replace(plan_of_function(), checkpoint=CheckpointPlan(load=str(load)), ep=ep)
        if refused:
            with texts.raises(RequestError):
                check_disk(job)
        else:
            check_disk(job)


def test_a_link_out_of_the_installation_is_followed_by_hand(tmp_path: Path, texts: Texts) -> None:
    elsewhere = checkpoint(tmp_path / "elsewhere")
    install = tmp_path / "install"
    install.mkdir()
    (install / "link").symlink_to(elsewhere)
    linked = msgspec.structs.replace(plan(tmp_path, load=str(install / "link")), install=str(install))
    with texts.raises(RequestError):
        check_disk(linked)
    check_disk(msgspec.structs.replace(linked, image=None))
    check_disk(plan(tmp_path, load=str(elsewhere)))
    (tmp_path / "install-by-link").symlink_to(install)
    inside = checkpoint(install / "inside")
    through = msgspec.structs.replace(linked, install=str(tmp_path / "install-by-link"))
    load = CheckpointPlan(load=str(tmp_path / "install-by-link" / inside.name))
    check_disk(msgspec.structs.replace(through, checkpoint=load))


def test_a_resumed_run_needs_steps_beyond_the_checkpoint(tmp_path: Path, texts: Texts) -> None:
    folder = checkpoint(tmp_path / "checkpoints")
    resumed = plan(tmp_path, load=str(folder))
    with texts.raises(RequestError):
        check_disk(msgspec.structs.replace(resumed, max_steps=20))
    check_disk(msgspec.structs.replace(resumed, max_steps=21))
    check_disk(msgspec.structs.replace(resumed, max_steps=20, exit_after=1))


def test_space_for_a_checkpoint_is_asked_of_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacks) as caught:
        check_disk(plan(tmp_path, enabled=True))
    assert "5,292 GiB" in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    check_disk(plan(tmp_path, enabled=False))


@pytest.mark.parametrize(("interval", "saves"), [(10, 5), (30, 2), (50, 1), (100, 1)])
def test_every_save_counts_the_one_at_the_end_too(tmp_path: Path, interval: int, saves: int) -> None:
    with pytest.raises(EnvironmentLacks) as caught:
        check_disk(plan(tmp_path, enabled=True, interval=interval))
    assert (caught.value.code, caught.value.message.split()[0]) == ("no-space", str(saves))
    assert f"{saves * 5291.71:,.0f} GiB" in caught.value.message


def test_the_step_of_a_single_checkpoint_is_in_its_name(tmp_path: Path, texts: Texts) -> None:
    folder = checkpoint(tmp_path / "checkpoints", 30) / "iter_0000030"
    job = plan(tmp_path, load=str(folder))
    check_disk(msgspec.structs.replace(job, max_steps=31))
    with texts.raises(RequestError):
        check_disk(msgspec.structs.replace(job, max_steps=30))


def test_a_job_that_ends_early_saves_once(tmp_path: Path) -> None:
    """``exit_after`` counts, not MAX_STEPS, which such a job never reaches."""
    job = msgspec.structs.replace(plan(tmp_path, enabled=True, interval=10), exit_after=1)
    with pytest.raises(EnvironmentLacks) as caught:
        check_disk(job)
    assert (caught.value.code, caught.value.message.split()[0]) == ("no-space", "1")


def test_space_counts_where_checkpoints_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    (tmp_path / "large").mkdir()
    free = {tmp_path: 5000 << 30, tmp_path / "large": 5292 << 30}
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=free[Path(folder)]))
    check_disk(plan(tmp_path, enabled=True, save=str(tmp_path / "large" / "checkpoints")))
    with texts.raises(EnvironmentLacks):
        check_disk(plan(tmp_path, enabled=True))


def test_an_installation_that_does_not_exist_is_said_by_its_variable(tmp_path: Path, texts: Texts) -> None:
    """Everything else may be in place: an image by name, the programs of the scheduler."""
    engine = tmp_path / "python"
    engine.touch()
    job = msgspec.structs.replace(
        plan(tmp_path), cluster_type=LOCAL, device="cpu", engine_python=str(engine), install=str(tmp_path / "gone")
    )
    with texts.raises(RequestError):
        check_job(job)
    check_job(msgspec.structs.replace(job, install=str(tmp_path)))
    engine.unlink()
    with texts.raises(EnvironmentLacks):
        check_job(msgspec.structs.replace(job, install=str(tmp_path)))


def test_all_of_it_is_looked_at_before_a_submission(tmp_path: Path, texts: Texts) -> None:
    engine = tmp_path / "python"
    engine.touch()
    job = msgspec.structs.replace(
        plan(tmp_path, load=str(tmp_path / "none")),
        cluster_type=LOCAL,
        device="cpu",
        engine_python=str(engine),
        install=str(tmp_path),
    )
    with texts.raises(RequestError):
        check_job(job)
