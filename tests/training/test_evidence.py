"""A real training run leaves its evidence, and none of a framework that would train something else."""

from __future__ import annotations

from io import FileIO
from pathlib import Path

import pytest
from training_jobs import Engine, make_job

from llmb_common.timing.iterations import Iteration, read_log


def test_a_framework_that_resolves_something_else_ends_the_job(engine: Engine, tmp_path: Path) -> None:
    """The engine gets another batch and sequence than job.json says: what a changed release would do."""
    run = engine.train(tmp_path, make_job(steps={"train": 3}), script="train_otherwise.py", expect=3)
    assert "global batch size  8        16" in run.log
    assert "seed               1234     99" in run.log
    assert not run.steps


def test_a_folder_that_takes_no_evidence_trains_all_the_same(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("a file")
    (tmp_path / "config.yaml").mkdir()
    run = engine.train(tmp_path, make_job(steps={"train": 2}))
    assert sorted(run.steps) == [1, 2]


def iterations_with_energy(engine: Engine, folder: Path, kind: str) -> tuple[Iteration, ...]:
    (folder / "counter").write_text(kind)
    run = engine.train(folder, make_job(steps={"train": 4}, world_size=2), script="train_with_energy.py")
    (folder / "log.out").write_text(run.log)
    with FileIO(folder / "log.out") as file:
        return read_log(file).iterations


def test_energy_of_each_step_as_the_framework_prints_it(engine: Engine, tmp_path: Path) -> None:
    """Each look at the counter adds 5 J, on both ranks, and each step looks once."""
    steps = iterations_with_energy(engine, tmp_path, "counting")
    assert [step.joules for step in steps] == [5.0] * 4
    for step in steps:
        assert step.watts == pytest.approx(5.0 / step.seconds, abs=0.06)


def test_a_container_without_nvml_trains_all_the_same(engine: Engine, tmp_path: Path) -> None:
    """Megatron's own monitor would end the run in nvmlInit."""
    steps = iterations_with_energy(engine, tmp_path, "broken")
    assert [(step.index, step.joules) for step in steps] == [(1, None), (2, None), (3, None), (4, None)]
