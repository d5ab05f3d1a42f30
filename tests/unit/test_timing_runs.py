"""Finding runs: the documented layout, plain folders, and runs that died before they wrote anything."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from llmb_common.timing.runs import find_runs


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def run_folder(root: Path, experiment: str, timestamp: str, *, log: bool = True, record: bool = True) -> Path:
    folder = root / experiment / f"{experiment}_{timestamp}"
    folder.mkdir(parents=True)
    if record:
        put(folder / "job.json", "{}")
    if log:
        put(folder / experiment / f"log-{experiment}.out")
        put(folder / experiment / f"sbatch_{experiment}.out")
    return folder


def names(folder: Path) -> list[str]:
    return [run.name for run in find_runs(folder)]


def test_every_run_of_every_experiment(tmp_path):
    run_folder(tmp_path, "b", "1732000000")
    run_folder(tmp_path, "a", "1732000001")
    run_folder(tmp_path, "a", "1732000002")
    assert names(tmp_path) == ["a_1732000001", "a_1732000002", "b_1732000000"]


@pytest.mark.parametrize("at", ["workload", "experiments", "experiment", "run"])
def test_the_folder_may_be_any_level(tmp_path, at):
    run = run_folder(tmp_path / "experiments", "a", "1732000001")
    folder = {"workload": tmp_path, "experiments": tmp_path / "experiments", "experiment": run.parent, "run": run}[at]
    assert names(folder) == ["a_1732000001"]


def test_a_run_without_a_log_is_a_run(tmp_path):
    run_folder(tmp_path, "a", "1732000001", log=False)
    run_folder(tmp_path, "b", "1732000002", log=False, record=False)  # by its name alone
    assert [(run.name, run.log) for run in find_runs(tmp_path)] == [("a_1732000001", None), ("b_1732000002", None)]


def test_a_plain_folder_of_logs(tmp_path):
    put(tmp_path / "log-pretrain_grok1_314b_bf16_256_388660.out")
    put(tmp_path / "deeper" / "still" / "log-other.out")
    put(tmp_path / "other.out")
    assert names(tmp_path) == ["other", "pretrain_grok1_314b_bf16_256_388660"]


def test_a_log_itself(tmp_path):
    assert names(put(tmp_path / "log-x.out")) == ["x"]


def test_equal_names_are_distinguished_by_their_paths(tmp_path):
    put(tmp_path / "one" / "log-x.out")
    put(tmp_path / "two" / "log-x.out")
    assert names(tmp_path) == ["one/log-x.out", "two/log-x.out"]


def test_several_logs_of_one_run(tmp_path):
    run = run_folder(tmp_path, "a", "1732000001")
    put(run / "a" / "log-a_retry.out")
    assert names(tmp_path) == ["a_1732000001/a", "a_1732000001/a_retry"]


def test_checkpoints_and_code_are_not_searched(tmp_path):
    for pruned in ("checkpoints", "code", "nsys_profile"):
        put(tmp_path / pruned / "log-x.out")
    assert names(tmp_path) == []


def test_an_unfinished_run_folder_is_not_a_run(tmp_path):
    put(tmp_path / "a" / ".making-x" / "job.json", "{}")
    assert names(tmp_path) == []


def test_a_folder_named_like_a_log_is_reported_not_searched(tmp_path):
    put(tmp_path / "log-x.out" / "log-y.out")
    assert names(tmp_path) == ["x"]


def test_a_folder_that_cannot_be_listed_is_reported():
    # Root may list everything, so it becomes nobody for the moment; pytest's own folders are closed to nobody.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        put(folder / "log-x.out")
        (folder / "closed").mkdir(mode=0)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            found = find_runs(folder)
        finally:
            if root:
                os.seteuid(0)
            (folder / "closed").chmod(0o755)
    assert [(run.name, run.log) for run in found] == [("closed", folder / "closed"), ("x", folder / "log-x.out")]
