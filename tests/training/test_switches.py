"""What a run does besides training: saves on SIGTERM, profiles, rejects what it cannot do."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from training_jobs import REPOSITORY, Engine, TrainingRun, make_job

from llmb_common.runs.timing.iterations import Ending, read_ending
from support.processes import die_with_parent


def _start(engine: Engine, folder: Path, job: dict[str, Any]) -> subprocess.Popen[str]:
    """One rank without torchrun, as srun starts it, so that its exit status and signals are its own."""
    (folder / "job.json").write_text(json.dumps({**job, "output_dir": str(folder / "output")}), encoding="utf-8")
    with (folder / "log.out").open("w", encoding="utf-8") as log:
        return subprocess.Popen(
            [str(engine.python), "-m", "llmb_train", str(folder / "job.json")],
            cwd=folder,
            env={**engine.environment(), "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def _wait_for_step(log: Path, number: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 600
    while number not in TrainingRun(0, log.read_text(encoding="utf-8")).steps:
        assert process.poll() is None, log.read_text(encoding="utf-8")[-8000:]
        assert time.monotonic() < deadline, f"step {number} never came"
        time.sleep(0.1)


@pytest.fixture
def saving(request: pytest.FixtureRequest, engine: Engine, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run of 100000 steps that saves, at its second step or later; it is never left behind. The parameter: how often,
    or nothing."""
    checkpoint = {"save": str(tmp_path / "checkpoints"), **getattr(request, "param", {})}
    job = make_job(steps={"train": 100_000}, batch={"gbs": 1}, checkpoint=checkpoint, data_workers=2)
    process = _start(engine, tmp_path, job)
    try:
        _wait_for_step(tmp_path / "log.out", 2, process)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_sigterm_saves_a_checkpoint_that_a_run_resumes_from(engine, tmp_path, saving):
    """Slurm signals the whole step: with the eight data loader workers used on GPUs, the first to die ended the rank
    unsaved."""
    checkpoints, process = tmp_path / "checkpoints", saving
    assert len(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()) >= 2
    os.killpg(process.pid, signal.SIGTERM)
    status, said = process.wait(timeout=1500), (tmp_path / "log.out").read_text(encoding="utf-8")
    assert status == 0, said[-3000:]
    (saved,) = checkpoints.glob("iter_*")
    last = max(TrainingRun(0, said).steps)
    assert saved.name == f"iter_{last:07d}"
    assert_documented_lines(said, "save", checkpoints, last)
    with FileIO(tmp_path / "log.out") as log:
        assert read_ending(log) == Ending(saved=last, told_to_end=True), "by this a run that was told to end is known"

    job = make_job(batch={"gbs": 1}, steps={"exit_after": 1}, checkpoint={"load": str(checkpoints)})
    resumed = engine.train(tmp_path / "resumed", job)
    assert list(resumed.steps) == [last + 1]
    assert_documented_lines(resumed.log, "load", checkpoints, last)


@pytest.mark.parametrize("saving", [{"interval": 2}], indirect=True)
def test_one_that_has_saved_before_saves_again_and_is_told_until_it_has_ended(tmp_path, saving):
    """The signal ends what serves megatron-core's queue, and Python gives it its default back when it exits."""
    while not list((tmp_path / "checkpoints").glob("iter_*/metadata.json")):
        assert saving.poll() is None
        time.sleep(0.1)
    while saving.poll() is None:
        os.killpg(saving.pid, signal.SIGTERM)
        time.sleep(0.05)
    said = (tmp_path / "log.out").read_text(encoding="utf-8")
    assert saving.returncode == 0, said[-3000:]
    last = max(TrainingRun(0, said).steps)
    assert (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == str(last)


def assert_documented_lines(log: str, of: str, checkpoints: Path, step: int) -> None:
    """The lines that docs/checkpoints.md shows of a save or a load are in ``log``, with its own numbers and ranks."""
    page = (REPOSITORY / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    (block,) = [text for text in re.findall(r"```\n(.*?)```", page, re.DOTALL) if f"{of}-checkpoint" in text]
    for line in block.splitlines():
        pattern = re.sub(r"(?:\\ )*50\b", rf"\\s+{step}", re.escape(line.strip()))
        pattern = re.sub(r"\d+/\d+", r"\\d+/\\d+", re.sub(r"\d+\\\.\d+", r"[0-9.]+", pattern))
        pattern = pattern.replace(re.escape("<run>/<experiment_name>/checkpoints"), re.escape(str(checkpoints)))
        assert re.search(pattern, log), f"{line!r} is not in the log: {pattern}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": {"dtype": "nvfp4"}}, "nvfp4 is not available on a CPU"),
        ({"world_size": 2, "parallelism": {"tp": 2}}, "job.json is for 2 ranks, but 1 were started"),
    ],
)
def test_what_would_be_ignored_is_refused(engine, tmp_path, changes, message):
    """By a fresh interpreter; ``test_refusals.py`` has the others."""
    process = _start(engine, tmp_path, make_job(**changes))
    assert process.wait(timeout=1500) == 2
    log = (tmp_path / "log.out").read_text(encoding="utf-8")
    assert f"llmb_train: error: {message}" in log
    assert "Traceback" not in log
