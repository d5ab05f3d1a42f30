"""Every published configuration against the real Megatron-Bridge: its own validation, and the real model size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from training_jobs import Engine

from llmb_common.planning.job_plan import JobPlan
from llmb_common.rendering.job import job_document
from llmb_common.runs.paths import dry_run_paths
from support.documented_jobs import documented_rows, label, plan_of

CASES = list(documented_rows())
WHOLE_MODELS = {
    ("llama3.1", "8b"): 8.0303,
    ("llama3.1", "70b"): 70.5537,
    ("llama3.1", "405b"): 405.8534,
    ("nemotron4", "15b"): 15.6288,
    ("nemotron4", "340b"): 341.0292,
    ("grok1", "314b"): 316.4547,
    ("llama4", "400b"): 400.7118,
}
"""Billions of parameters."""

PLAIN = {"dtype": "bf16", "fp8_recipe": None}
"""Building layers for FP8 needs Transformer Engine itself; the parameters are the same."""


def write_job(plan: JobPlan, file: Path) -> Path:
    file.write_text(json.dumps(job_document(plan, dry_run_paths(plan.workload_folder, plan.experiment_name))))
    return file


@pytest.fixture(scope="module")
def validated(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The real ``ConfigContainer.validate()`` of every case at its own world size, by label."""
    folder = tmp_path_factory.mktemp("jobs")
    files = [write_job(plan_of(*case), folder / f"{number}.json") for number, case in enumerate(CASES)]
    results = engine.json_lines("validate_jobs.py", *files)
    return {label(case): result for case, result in zip(CASES, results, strict=True)}


@pytest.mark.parametrize("case", CASES, ids=label)
def test_megatron_bridge_accepts_the_job_as_planned(case, validated):
    plan, result = plan_of(*case), validated[label(case)]
    assert result["error"] is None
    assert (result["data_parallel"], result["microbatches"]) == (plan.dp, plan.ga)
    assert result["contradictions"] == [], "the job would end before its first iteration"
    fields = result["fields"]
    columns = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    assert tuple(fields[f"model.{name}"] for name in columns) == (plan.tp, plan.pp, plan.cp)
    assert fields["ddp.use_megatron_fsdp"] == plan.fsdp
    assert fields["model.cpu_offloading_num_layers"] == plan.offload_layers
    assert (fields["model.recompute_num_layers"] or 0) == plan.recompute_layers
    assert (fields["model.cuda_graph_impl"] != "none") == plan.cuda_graph
    if plan.ep:
        assert fields["model.expert_model_parallel_size"] == plan.ep


GATHERED_IN_THE_OPTIMIZER_STEP = {
    ("llama3.1-mbridge.md", "405b", "H100"),
    ("llama3.1-mbridge.md", "70b", "H100"),
    ("llama3.1-mbridge.md", "405b", "B200"),
    ("llama3.1-nemo2.md", "70b", "H100"),
    ("llama3.1-nemo2.md", "405b", "H100"),
    ("llama3.1-nemo2.md", "405b-proxy", "H100"),  # on 128 GPUs: those on 64 have no data parallelism
    ("nemotron4.md", "340b", "H100"),
    ("grok1.md", "314b", "H100"),
    ("llama4.md", "400b", "GB200"),
}
"""Interleaved pipelines with data parallelism: document, size, GPU."""


@pytest.mark.parametrize("case", CASES, ids=label)
def test_the_optimizer_is_that_of_the_published_runs(case, validated):
    item, dtype, gpus = case
    fields = validated[label(case)]["fields"]
    place = (item["source"], item["size"].lower(), item["gpu"])
    gathered = place in GATHERED_IN_THE_OPTIMIZER_STEP and (place[1], gpus) not in {
        ("405b-proxy", 32),
        ("405b-proxy", 64),
    }
    assert fields["optimizer.overlap_param_gather_with_optimizer_step"] is gathered
    if gathered:  # what megatron-core's own training insists on
        assert fields["ddp.overlap_param_gather"]
        assert fields["ddp.use_distributed_optimizer"]
        assert fields["model.virtual_pipeline_model_parallel_size"]
    assert fields["optimizer.use_precision_aware_optimizer"] is (dtype == "bf16")
    for state in ("main_grads", "main_params", "exp_avg", "exp_avg_sq"):
        assert fields[f"optimizer.{state}_dtype"] == "torch.float32"


def test_37_of_97_documented_plans_are_bf16() -> None:
    assert (sum(dtype == "bf16" for _, dtype, _ in CASES), len(CASES)) == (37, 97)


def test_a_layout_that_megatron_refuses_is_refused(engine: Engine, tmp_path: Path) -> None:
    """The validation above can fail: a CP that does not divide the sequence, which planning would never let through."""
    plan = msgspec.structs.replace(plan_of(*CASES[0]), cp=3, gpus=CASES[0][2] * 3)
    (result,) = engine.json_lines("validate_jobs.py", write_job(plan, tmp_path / "job.json"))
    assert result["ok"] is False


@pytest.fixture(scope="module")
def whole_models(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], int]:
    """Parameters of each model, built in full on the meta device from its recipe's architecture."""
    folder = tmp_path_factory.mktemp("models")
    one_rank = {"gpus": 1, "tp": 1, "pp": 1, "cp": 1, "vp": None, "ep": None, "etp": None, "mbs": 1, "gbs": 1}
    rest = {**PLAIN, "fsdp": False, "cuda_graph": False, "recompute_layers": 0, "offload_layers": 0}
    plans = {(plan.recipe, plan.model_size): plan for plan in (plan_of(*case) for case in CASES)}
    wanted = [plans[key] for key in WHOLE_MODELS]
    files = [
        write_job(msgspec.structs.replace(plan, **one_rank, **rest), folder / f"{plan.recipe}-{plan.model_size}.json")
        for plan in wanted
    ]
    results = engine.json_lines("count_parameters.py", *files)
    return {key: result["total"] for key, result in zip(WHOLE_MODELS, results, strict=True)}


@pytest.mark.parametrize("key", WHOLE_MODELS, ids="-".join)
def test_the_real_model_has_the_recipes_parameters(key, whole_models):
    plans = {(plan.recipe, plan.model_size): plan for plan in (plan_of(*case) for case in CASES)}
    assert whole_models[key] == plans[key].parameters
    assert round(whole_models[key] / 1e9, 4) == WHOLE_MODELS[key]


def test_the_real_model_of_every_layout_can_be_built(engine: Engine, tmp_path: Path) -> None:
    """Unchecked by validation: experts against EP, layers against PP and VP. One rank of each distinct layout."""
    layouts: dict[tuple[object, ...], JobPlan] = {}
    for case in CASES:
        plan = plan_of(*case)
        layouts.setdefault(
            (plan.recipe, plan.layers, plan.tp, plan.pp, plan.vp, plan.ep, plan.etp),
            msgspec.structs.replace(plan, **PLAIN),
        )
    files = [write_job(plan, tmp_path / f"{number}.json") for number, plan in enumerate(layouts.values())]
    results = engine.json_lines("count_parameters.py", *files)
    for plan, result in zip(layouts.values(), results, strict=True):
        shards = plan.tp * plan.pp * (plan.ep or 1)
        assert plan.parameters / shards * 0.5 < result["total"] < plan.parameters / plan.tp / plan.pp * 1.5
