"""Reduced copies of Megatron-Bridge's own performance recipes, one of each family that a CPU can train.

Grouped attention (Llama 3), experts (Qwen3), latent attention and multi-token prediction (DeepSeek-V3), sinks, windows
and biases (GPT-OSS), a sigmoid router with many experts (Kimi K2): each gives one result, however it is laid out.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from training_jobs import FUNCTIONS, REPOSITORY, Engine, TrainingRun, make_function_job

CATALOGUE = json.loads((REPOSITORY / "mbridge" / "catalogue-0.6.2.json").read_text(encoding="utf-8"))["functions"]

LOSS_TOLERANCE = 1e-5
"""No layout but tensor parallelism changes a loss that is printed with seven digits."""
SPLIT_LOSS_TOLERANCE = 2e-3
"""With TP 2, bf16 sums come in a different order: up to 2.2e-4 and 7e-4 (GPT-OSS) were observed on two processors."""
GRAD_NORM_TOLERANCE = 2e-3
"""Relative: 1.4e-3 was observed for GPT-OSS with TP 2, 5e-4 for the others."""

BATCHES = {"gpt_oss_120b": {"gbs": 8}}
"""Families that train on more sequences than ``make_job`` has: over 4 the norm of GPT-OSS differed by 3.6e-3."""

LAYOUTS: dict[str, dict[str, Any]] = {
    "TP2-SP": {"tp": 2},
    "PP2": {"pp": 2},
    "PP2-VP2": {"pp": 2, "vp": 2},
    "CP2": {"cp": 2},
    "EP2": {"ep": 2},
    "TP2-EP2": {"tp": 2, "ep": 2},
    "DP2": {},
}
ALL = os.environ.get("LLMB_TEST_LAYOUTS") == "all"
ALWAYS = {
    ("llama3_8b", "DP2"),
    ("qwen3_30b_a3b", "TP2-EP2"),
    ("qwen3_30b_a3b", "PP2-VP2"),
    ("deepseek_v3", "PP2"),
    ("gpt_oss_120b", "CP2"),
    ("gpt_oss_120b", "TP2-SP"),
}
"""What a run of the suite takes; LLMB_TEST_LAYOUTS=all takes all. GPT-OSS 20B has the structure of 120B, Kimi K2 that
of DeepSeek-V3."""
FAMILIES = [family for family in FUNCTIONS if ALL or family in {family for family, _ in ALWAYS}]

CASES = [
    (family, layout)
    for family, shipped in FUNCTIONS.items()
    for layout, parallelism in LAYOUTS.items()
    if (shipped["experts"] or "ep" not in parallelism) and (ALL or (family, layout) in ALWAYS)
]


def family_job(family: str, **changes: Any) -> dict[str, Any]:
    """As ``make_function_job``, with the sequences per step that all runs of ``family`` here train on."""
    return make_function_job(family, batch=BATCHES.get(family, {}), **changes)


@dataclass(frozen=True)
class Reference:
    """Four steps of every family on one rank, with the checkpoint of the second."""

    engine: Engine
    folder: Path

    def run(self, family: str) -> tuple[TrainingRun, Path]:
        folder = self.folder / family
        checkpoints = folder / "checkpoints"
        if family not in _RUNS:
            job = family_job(family, steps={"train": 4}, checkpoint={"save": str(checkpoints), "interval": 2})
            _RUNS[family] = self.engine.train(folder, job)
        return _RUNS[family], checkpoints / "iter_0000002"


_RUNS: dict[str, TrainingRun] = {}


@pytest.fixture(scope="module")
def reference(functions_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(functions_engine, tmp_path_factory.mktemp("reference"))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains(reference: Reference, family: str) -> None:
    whole, _ = reference.run(family)
    assert sorted(whole.steps) == [1, 2, 3, 4]
    assert whole.steps[4].loss < whole.steps[1].loss
    assert "throughput per GPU (TFLOP/s/GPU)" in whole.steps[3].text
    assert whole.manifest["megatron_bridge"].startswith("0.6.")
    assert re.search(rf"(?m)^LLMB notice: .*\b{FUNCTIONS[family]['name']}\b.*\b4 layers\b", whole.log)
    if family == "deepseek_v3":
        assert "mtp_1 loss: " in whole.log


@pytest.mark.parametrize("family", FAMILIES if ALL else ["deepseek_v3"])
def test_a_family_resumes_to_the_last_printed_digit(reference: Reference, tmp_path: Path, family: str) -> None:
    """The others resume in another layout, below."""
    whole, checkpoint = reference.run(family)
    job = family_job(family, steps={"train": 4}, checkpoint={"load": str(checkpoint)})
    resumed = reference.engine.train(tmp_path, job).steps
    assert sorted(resumed) == [3, 4]
    for number, step in resumed.items():
        assert (step.loss, step.grad_norm) == (whole.steps[number].loss, whole.steps[number].grad_norm)


@pytest.mark.parametrize(("family", "layout"), CASES, ids=["-".join(case) for case in CASES])
def test_the_next_step_is_the_same_in_every_layout(reference, tmp_path, family, layout):
    expected, checkpoint = reference.run(family)
    job = family_job(
        family, world_size=2, parallelism=LAYOUTS[layout], steps={"exit_after": 1}, checkpoint={"load": str(checkpoint)}
    )
    run = reference.engine.train(tmp_path, job, script="train_weights.py")
    assert list(run.steps) == [3]
    tolerance = SPLIT_LOSS_TOLERANCE if "tp" in LAYOUTS[layout] else LOSS_TOLERANCE
    assert run.steps[3].loss == pytest.approx(expected.steps[3].loss, abs=tolerance)
    assert run.steps[3].grad_norm == pytest.approx(expected.steps[3].grad_norm, rel=GRAD_NORM_TOLERANCE)


def test_sharded_weights_learn_the_same(reference: Reference, tmp_path: Path) -> None:
    """Megatron-FSDP on two ranks, which saves in another format: from the first step on."""
    expected, _ = reference.run("llama3_8b")
    job = make_function_job("llama3_8b", world_size=2, parallelism={"fsdp": True}, steps={"train": 2})
    run = reference.engine.train(tmp_path, job)
    for number in (1, 2):
        assert run.steps[number].loss == pytest.approx(expected.steps[number].loss, abs=LOSS_TOLERANCE)
        assert run.steps[number].grad_norm == pytest.approx(expected.steps[number].grad_norm, rel=GRAD_NORM_TOLERANCE)


def test_supervised_fine_tuning_trains_on_the_mock_data_of_nvidias_runner(reference: Reference, tmp_path: Path) -> None:
    """Megatron-Bridge v0.6.0, scripts/training/run_recipe.py:397-417: the data of pretraining, and its loop."""
    name = "llama3_8b_sft_8gpu_h100_bf16_config"
    row = CATALOGUE[name]
    columns = {**row["columns"], "sequence_length": row["sequence_length"]}
    job = make_function_job("llama3_8b", function={"name": name, "columns": columns}, steps={"train": 4})
    run = reference.engine.train(tmp_path, job)
    pretrained, _ = reference.run("llama3_8b")
    assert run.steps[1].loss == pretrained.steps[1].loss  # the same weights, and the same tokens
    assert run.steps[4].loss < run.steps[1].loss


def test_a_function_with_other_columns_than_the_catalogue_is_not_trained(functions_engine, tmp_path):
    job = make_function_job("llama3_8b")
    job["function"]["columns"]["mbs"] = 77
    run = functions_engine.train(tmp_path, job, expect=3)
    assert re.search(rf"\b{job['function']['name']}\b.*\bmbs +77 +1\b", run.log), "planned, resolved"
    assert "catalogue" in run.log
    assert "0.6.2" in run.log
    assert not run.steps


def test_what_a_cpu_cannot_train_is_refused_before_torch_is_imported(functions_engine: Engine, tmp_path: Path) -> None:
    """``test_refusals.py`` has the others."""
    job = make_function_job() | {"family": "nemotron_3_nano"}
    run = functions_engine.train(tmp_path, job, expect=2)
    assert re.search(r"^llmb_train: error: .*\bnemotron_3_nano\b.*\bMamba\b", run.log, re.MULTILINE)
    assert "LLMB manifest" not in run.log
