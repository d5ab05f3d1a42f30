"""A real training run leaves its evidence, and none of a framework that would train something else."""

from __future__ import annotations

from pathlib import Path

from training_jobs import Engine, make_job


def test_a_framework_that_resolves_something_else_ends_the_job(engine: Engine, tmp_path: Path) -> None:
    """The engine gets another batch and sequence than job.json says: what a changed release would do."""
    run = engine.train(tmp_path, make_job(steps={"train": 3}), script="train_otherwise.py", expect=3)
    values = [line.split()[-2:] for line in run.log.splitlines()]
    assert ["4", "16"] in values, "the global batch size: planned, resolved"
    assert ["1234", "99"] in values, "the seed"
    assert not run.steps


def test_a_folder_that_takes_no_evidence_trains_all_the_same(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("a file")
    (tmp_path / "config.yaml").mkdir()
    run = engine.train(tmp_path, make_job(steps={"train": 2}))
    assert sorted(run.steps) == [1, 2]
