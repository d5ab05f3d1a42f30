"""Checks of the disk before a job is submitted."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from llmb_common.errors import EnvironmentLacks, RequestError
from llmb_common.planning.job_plan import CheckpointPlan, JobPlan
from llmb_common.submission.preflight import check_disk
from support.documented_jobs import documented_rows, plan_of


def plan(folder: Path, size: str = "405b", **checkpoint: object) -> JobPlan:
    item, dtype, gpus = next(case for case in documented_rows() if case[0]["size"] == size)
    changes = {"workload_folder": str(folder / "not" / "yet"), "checkpoint": CheckpointPlan(**checkpoint)}  # type: ignore[arg-type]
    return msgspec.structs.replace(plan_of(item, dtype, gpus), **changes)


def checkpoint(folder: Path, step: int = 20) -> Path:
    """What a run leaves behind: one folder per saved step, and a note of the latest."""
    (folder / f"iter_{step:07d}").mkdir(parents=True)
    (folder / f"iter_{step:07d}" / "__0_0.distcp").touch()
    (folder / "latest_checkpointed_iteration.txt").write_text(f"{step}\n")
    return folder


def test_a_checkpoint_needs_distcp_files(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="is not a directory"):
        check_disk(plan(tmp_path, load=str(tmp_path / "none")))
    with pytest.raises(RequestError, match=r"latest_checkpointed_iteration\.txt.* is missing"):
        check_disk(plan(tmp_path, load=str(tmp_path)))
    folder = checkpoint(tmp_path / "checkpoints")
    check_disk(plan(tmp_path, load=str(folder)))
    check_disk(plan(tmp_path, load=str(folder / "iter_0000020")))
    (folder / "iter_0000020" / "__0_0.distcp").unlink()
    with pytest.raises(RequestError, match=r"iter_0000020 holds no \*\.distcp"):
        check_disk(plan(tmp_path, load=str(folder)))


def test_a_checkpoint_that_training_would_refuse_is_refused_here(tmp_path: Path) -> None:
    """A checkpoint whose save was cut off, and those of NeMo 2, which keep the *.distcp files in weights/."""
    folder = checkpoint(tmp_path / "checkpoints")
    (folder / "latest_checkpointed_iteration.txt").unlink()
    with pytest.raises(RequestError, match="is missing or wrong"):
        check_disk(plan(tmp_path, load=str(folder)))
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "__0_0.distcp").touch()
    with pytest.raises(RequestError, match="NeMo 2"):
        check_disk(plan(tmp_path, load=str(tmp_path)))


def test_a_link_out_of_the_installation_is_followed_by_hand(tmp_path: Path) -> None:
    elsewhere = checkpoint(tmp_path / "elsewhere")
    install = tmp_path / "install"
    install.mkdir()
    (install / "link").symlink_to(elsewhere)
    linked = msgspec.structs.replace(plan(tmp_path, load=str(install / "link")), install=str(install))
    with pytest.raises(RequestError, match=f"is a link to {elsewhere}") as caught:
        check_disk(linked)
    assert caught.value.remedy == f"set LOAD_CHECKPOINT_PATH={elsewhere}"
    check_disk(msgspec.structs.replace(linked, image=None))
    check_disk(plan(tmp_path, load=str(elsewhere)))
    (tmp_path / "install-by-link").symlink_to(install)
    inside = checkpoint(install / "inside")
    through = msgspec.structs.replace(linked, install=str(tmp_path / "install-by-link"))
    load = CheckpointPlan(load=str(tmp_path / "install-by-link" / inside.name))
    check_disk(msgspec.structs.replace(through, checkpoint=load))


def test_a_resumed_run_needs_steps_beyond_the_checkpoint(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoints")
    resumed = plan(tmp_path, load=str(folder))
    with pytest.raises(RequestError, match="is of step 20, so there is nothing left"):
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
    with pytest.raises(EnvironmentLacks, match=rf"{saves} checkpoint\(s\) of 405b need {saves * 5291.71:,.0f} GiB"):
        check_disk(plan(tmp_path, enabled=True, interval=interval))


@pytest.mark.parametrize("setting", [{"enabled": True, "save": "/" + "x" * 5000}, {"load": "/" + "x" * 5000}])
def test_an_inaccessible_folder_gives_no_traceback(tmp_path: Path, setting: dict[str, object]) -> None:
    with pytest.raises(EnvironmentLacks, match="cannot look at"):
        check_disk(plan(tmp_path, **setting))
