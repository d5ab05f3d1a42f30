"""What the disk says before a job is submitted."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from llmb_common.errors import EnvironmentLacks, RequestError
from llmb_common.planning.job_plan import CheckpointPlan, JobPlan
from llmb_common.preflight import check_disk
from support.documented_jobs import documented_rows, plan_of


def plan(folder: Path, size: str = "405b", **checkpoint: object) -> JobPlan:
    item, dtype, gpus = next(case for case in documented_rows() if case[0]["size"] == size)
    changes = {"workload_folder": str(folder / "not" / "yet"), "checkpoint": CheckpointPlan(**checkpoint)}  # type: ignore[arg-type]
    return msgspec.structs.replace(plan_of(item, dtype, gpus), **changes)


def test_a_checkpoint_needs_distcp_files(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"holds no \*\.distcp"):
        check_disk(plan(tmp_path, load=str(tmp_path)))
    with pytest.raises(RequestError, match="is no folder"):
        check_disk(plan(tmp_path, load=str(tmp_path / "none")))
    (tmp_path / "iter_0000050").mkdir()
    (tmp_path / "iter_0000050" / "__0_0.distcp").touch()
    check_disk(plan(tmp_path, load=str(tmp_path)))
    check_disk(plan(tmp_path, load=str(tmp_path / "iter_0000050")))


def test_space_for_a_checkpoint_is_asked_of_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacks) as caught:
        check_disk(plan(tmp_path, enabled=True))
    assert "5,292 GiB" in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    check_disk(plan(tmp_path, enabled=False))


def test_every_save_counts(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacks, match=r"5 checkpoint\(s\) of 405b need 26,459 GiB"):
        check_disk(plan(tmp_path, enabled=True, interval=10))
