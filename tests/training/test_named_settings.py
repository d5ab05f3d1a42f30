"""Settings of the framework by name, on the ranks: set last, seen in the resolved configuration, or refused at once.

Those of Megatron-Bridge 0.6 are tried in ``test_other_engine.py``.
"""

from __future__ import annotations

import re
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
    notices = re.findall(r"^LLMB notice: (.*)$", run.log, re.MULTILINE)
    of = {name: [line for line in notices if name in line] for name in SETTINGS}
    (all_of_them,) = of["model.attention_dropout"]
    assert all(f"{name}={value}" in all_of_them for name, value in SETTINGS.items())
    assert len(of["model.hidden_dropout"]) == 2, "and that this job has it anyway"
    resolved = (tmp_path / "config.yaml").read_text()
    for line in ("  attention_dropout: 0.25\n", "  weight_decay: 0.0\n", "  overlap_grad_reduce: false\n"):
        assert line in resolved


REFUSED = {
    "model.attention_dropot": (0.1, 2, ("attention_dropot", "attention_dropout")),
    "modl.attention_dropout": (0.1, 2, ("modl", "checkpoint", "ddp")),
    "model.attention_dropout": ("much", 2, ("model.attention_dropout", "much", "float")),
    "model.params_dtype": ("bfloat17", 2, ("model.params_dtype", "bfloat17", "dtype")),
    "ddp.grad_reduce_in_fp32": (False, 3, ("ddp.grad_reduce_in_fp32", "mixed_precision.grad_reduce_in_fp32")),
}
"""Of each: the value, the exit status, and the names that are said."""


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_set_ends_the_job_before_its_first_step(engine: Engine, tmp_path: Path, name: str) -> None:
    value, status, names = REFUSED[name]
    run = engine.train(tmp_path, make_job(steps={"train": 2}, megatron={name: value}), expect=status)
    said = run.log[run.log.index("llmb_train: error: ") :]
    assert all(re.search(rf"(?<![\w.]){re.escape(one)}\b", said) for one in names), said
    assert not run.steps


def check_list(engine: Engine, release: str, folder: Path) -> None:
    """The list of settings that is shipped is what the engine writes."""
    status, _, said = engine.cpu.run(["-m", "llmb_train.catalogue", str(folder / "fields.json"), "--fields"], folder)
    assert status == 0, said
    assert (folder / "fields.json").read_bytes() == (LISTS / f"{release}.json").read_bytes()


def test_the_list_is_what_the_engine_writes(engine: Engine, tmp_path: Path) -> None:
    check_list(engine, "0.3", tmp_path)
