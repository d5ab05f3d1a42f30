"""A real collective over gloo that one of four ranks never joins, through the real script of a local run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmb_common.base.errors import CheckFailed
from llmb_common.causes.diagnosis import diagnose
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.submission.single import submit
from support.run_site import RECIPE, RunSite

TRAINING = """
import os, sys, time
from pathlib import Path
from llmb_train.evidence.hang import HangReporter
from llmb_train.ranks import find_rank

rank = find_rank(os.environ)
HangReporter(Path(os.environ["LLMB_RUN_DIR"]), rank, os.environ).start(os.environ, uses_nccl=False)
import torch
import torch.distributed as dist

def read_next_batch():
    while True:
        time.sleep(0.2)

dist.init_process_group("gloo")
total = torch.ones(4)
for step in range(1, 9):
    if rank.rank == 2 and step == 4:
        read_next_batch()
    dist.all_reduce(total)
    if rank.rank == 0:
        print(f" [now] iteration {step:8d}/       8 | elapsed time per iteration (ms): 10.5 |", flush=True)
"""


@pytest.fixture
def hung(engine_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    site = RunSite(tmp_path, "local")
    training = tmp_path / "training.py"
    training.write_text(TRAINING)
    choose = f"[[ $3 != llmb_train ]] || set -- -u {training}"  # torchrun is the engine's, too
    site.engine.write_text(f'#!/bin/bash\n{choose}\nexec {engine_python} "$@"\n')
    for name, value in {"LLMB_WATCH_SECONDS": "1", "LLMB_HANG_SECONDS": "3", "LLMB_ENGINE_CHECK": "off"}.items():
        monkeypatch.setenv(name, value)
    records: list[RunRecord] = []
    with pytest.raises(CheckFailed, match=r"\b124\b.*\brank 2\b.*\ball_reduce\b"):
        submit(site.plan(JOB_TOTAL_GPUS="4"), RECIPE, on_record=records.append)
    return load_record(records[0].paths.folder)


def test_a_rank_that_is_stuck_is_named_with_its_collective_and_its_line(hung: RunRecord) -> None:
    found = diagnose(hung)
    assert found.cause is not None
    assert (found.cause.kind, found.cause.rank, found.cause.step, found.cause.sure) == ("hang", 2, 3, "certain")
    assert re.search(r"\b4\b[^(]*\bdefault_pg\b", found.summary), "the collective's number and group"
    assert "read_next_batch" in found.summary
    assert hung.paths.folder.joinpath("flight", "rank_0").exists()
