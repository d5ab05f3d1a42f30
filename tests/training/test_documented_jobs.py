"""Every published configuration against the real Megatron-Bridge: its own validation, and the real model size."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest
from training_jobs import Engine

from llmb_common.planning.job_plan import JobPlan
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


@pytest.mark.parametrize("case", CASES, ids=label)
def test_megatron_bridge_accepts_the_job_as_planned(case, documented):
    plan, result = plan_of(*case), documented[label(case)]
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
def test_the_optimizer_is_that_of_the_published_runs(case, documented):
    item, dtype, gpus = case
    fields = documented[label(case)]["fields"]
    row = (item["source"], item["size"].lower(), item["gpu"])
    gathered = row in GATHERED_IN_THE_OPTIMIZER_STEP and (row[1], gpus) not in {
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


def test_a_layout_that_megatron_refuses_is_refused(engine: Engine) -> None:
    """The validation above can fail: a CP that does not divide the sequence, which planning would never let through."""
    plan = msgspec.structs.replace(plan_of(*CASES[0]), cp=3, gpus=CASES[0][2] * 3)
    assert engine.ask("resolved", {"job": plan})["job"]["ok"] is False


@cache
def plans() -> dict[tuple[str, str], JobPlan]:
    """The last documented plan of each model, by recipe and model size."""
    return {(plan.recipe, plan.model_size): plan for plan in (plan_of(*case) for case in CASES)}


ONE_RANK = {"gpus": 1, "tp": 1, "pp": 1, "cp": 1, "vp": None, "ep": None, "etp": None, "mbs": 1, "gbs": 1}
UNCHANGED = {**PLAIN, "fsdp": False, "cuda_graph": False, "recompute_layers": 0, "offload_layers": 0}


@pytest.fixture(scope="module")
def whole_models(engine: Engine) -> dict[str, int]:
    """Parameters of each model, built in full on the meta device from its recipe's architecture."""
    jobs = {"-".join(key): msgspec.structs.replace(plans()[key], **ONE_RANK, **UNCHANGED) for key in WHOLE_MODELS}
    return engine.ask("counted", {name: {"job": job} for name, job in jobs.items()})


@pytest.mark.parametrize("key", WHOLE_MODELS, ids="-".join)
def test_the_real_model_has_the_recipes_parameters(key, whole_models):
    assert whole_models["-".join(key)] == plans()[key].parameters
    assert round(whole_models["-".join(key)] / 1e9, 4) == WHOLE_MODELS[key]


def test_the_ranks_of_a_1024_gpu_job_hold_the_whole_model(engine: Engine, whole_models: dict[str, int]) -> None:
    layout = {"gpus": 1024, "tp": 8, "pp": 8, "vp": 8, "cp": 2, "mbs": 1, "gbs": 512}
    plan = msgspec.structs.replace(plans()["llama3.1", "405b"], **UNCHANGED, **layout)
    asked = {str(stage): {"job": plan, "rank": stage * 128} for stage in (0, 1, 7)}
    first, second, last = engine.ask("counted", asked).values()
    hidden, vocabulary = plan.architecture.hidden, plan.architecture.vocabulary
    embedding = vocabulary * hidden // 8
    # 126 layers in 128 places: the first stage gives one to the embedding, the last one to the loss.
    layer = second // 16
    assert (first, last) == (15 * layer + embedding, 15 * layer + embedding + hidden)
    # Norms are on every rank of a tensor-parallel group, matrices are divided among them.
    total = 126 * (8 * (layer - 2 * hidden) + 2 * hidden) + 8 * 2 * embedding + hidden
    assert total == whole_models["llama3.1-405b"]


def test_the_real_model_of_every_layout_can_be_built(engine: Engine) -> None:
    """Unchecked by validation: experts against EP, layers against PP and VP. One rank of each distinct layout."""
    layouts: dict[str, JobPlan] = {}
    for case in CASES:
        plan = plan_of(*case)
        layout = (plan.recipe, plan.layers, plan.tp, plan.pp, plan.vp, plan.ep, plan.etp)
        layouts.setdefault(str(layout), msgspec.structs.replace(plan, **PLAIN))
    for name, total in engine.ask("counted", {name: {"job": plan} for name, plan in layouts.items()}).items():
        plan = layouts[name]
        shards = plan.tp * plan.pp * (plan.ep or 1)
        assert plan.parameters / shards * 0.5 < total < plan.parameters / plan.tp / plan.pp * 1.5
