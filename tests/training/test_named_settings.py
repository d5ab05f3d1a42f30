"""Settings of the framework by name, on the ranks: set last, seen in the resolved configuration, or refused at once.

Those of Megatron-Bridge 0.6 are tried in ``test_other_engine.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from training_jobs import REPOSITORY, Engine, make_job

SETTINGS = {
    "model.attention_dropout": 0.25,
    "model.hidden_dropout": 0,
    "optimizer.weight_decay": 0,
    "ddp.overlap_grad_reduce": False,
}
LISTS = REPOSITORY / "common" / "llmb_common" / "planning" / "fields"


def test_a_described_job_trains_with_them(engine: Engine, tmp_path: Path) -> None:
    run = engine.train(tmp_path, make_job(steps={"train": 2}, megatron=SETTINGS))
    assert sorted(run.steps) == [1, 2]
    assert "set by --megatron (MEGATRON_SETTINGS), beside what the recipe has: model.attention_dropout=0.25," in run.log
    assert "model.hidden_dropout=0.0 is what this job has anyway" in run.log
    assert "model.attention_dropout=0.25 is what" not in run.log
    resolved = (tmp_path / "config.yaml").read_text()
    for line in ("  attention_dropout: 0.25\n", "  weight_decay: 0.0\n", "  overlap_grad_reduce: false\n"):
        assert line in resolved


REFUSED = {
    "model.attention_dropot": (0.1, 2, "has no field attention_dropot (did you mean attention_dropout?)"),
    "modl.attention_dropout": (0.1, 2, "this job has no section modl\n  -> it has checkpoint,"),
    "model.attention_dropout": ("much", 2, "model.attention_dropout is 'much', and Provider takes float"),
    "model.params_dtype": ("bfloat17", 2, "model.params_dtype is 'bfloat17', and Provider takes dtype"),
    "ddp.grad_reduce_in_fp32": (False, 3, "ddp.grad_reduce_in_fp32 (set mixed_precision.grad_reduce_in_fp32)  off"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_set_ends_the_job_before_its_first_step(engine: Engine, tmp_path: Path, name: str) -> None:
    value, status, said = REFUSED[name]
    run = engine.train(tmp_path, make_job(steps={"train": 2}, megatron={name: value}), expect=status)
    assert said in run.log
    assert not run.steps


def check_list(engine: Engine, release: str, folder: Path) -> None:
    """The list of settings that is shipped is what the engine writes."""
    status, _, said = engine.cpu.run(["-m", "llmb_train.catalogue", str(folder / "fields.json"), "--fields"], folder)
    assert status == 0, said
    assert (folder / "fields.json").read_bytes() == (LISTS / f"{release}.json").read_bytes()


def test_the_list_is_what_the_engine_writes(engine: Engine, tmp_path: Path) -> None:
    check_list(engine, "0.3", tmp_path)
