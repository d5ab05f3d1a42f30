"""The settings that no column names, against what Megatron-Bridge's own Llama configurations resolve to.

``tests/data/llama_performance_settings.json`` holds the resolved fields of its 42 performance configurations. Each
is planned here as a job with the same columns, resolved by Bridge, and compared field by field.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from training_jobs import DATA, Engine, make_job

REFERENCE: dict[str, Any] = json.loads((DATA / "llama_performance_settings.json").read_text(encoding="utf-8"))
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    name: {**REFERENCE["common"], **own} for name, own in REFERENCE["configs"].items()
}

_PRECISIONS = {
    "bf16": {"dtype": "bf16", "fp8_recipe": None},
    "fp8_cs": {"dtype": "fp8", "fp8_recipe": "cs"},
    "fp8_mx": {"dtype": "fp8", "fp8_recipe": "mx"},
    "nvfp4": {"dtype": "nvfp4", "fp8_recipe": None},
}


def _size(name: str) -> str:
    return name.split("/")[0].split("_")[1]


def _job(name: str) -> dict[str, Any]:
    """The job whose columns are those of the reference configuration ``name`` (``llama3_70b/gb200/fp8_cs``)."""
    reference = CONFIGURATIONS[name]
    _, gpu, precision = name.split("/")
    return make_job(
        _size(name),
        device="cuda",
        gpu_type=gpu,
        precision=_PRECISIONS[precision],
        world_size=reference["_num_gpus"],
        parallelism={
            "tp": reference["model.tensor_model_parallel_size"],
            "pp": reference["model.pipeline_model_parallel_size"],
            "vp": reference["model.virtual_pipeline_model_parallel_size"],
            "cp": reference["model.context_parallel_size"],
            "fsdp": reference["ddp.use_megatron_fsdp"],
        },
        batch={"mbs": reference["train.micro_batch_size"], "gbs": reference["train.global_batch_size"]},
        performance={
            "cuda_graph": reference["model.cuda_graph_impl"] == "local",
            "recompute_layers": reference["model.recompute_num_layers"] or 0,
            "offload_layers": reference["model.cpu_offloading_num_layers"],
        },
    )


def _expected(name: str) -> dict[str, Any]:
    """The reference, with the intended differences and the reason for each."""
    reference = {key: value for key, value in CONFIGURATIONS[name].items() if key != "_num_gpus"}
    # Bridge replaces it during set-up: a model that brings its own vocabulary size is not padded.
    reference["model.should_pad_vocab"] = False
    # Nothing is offloaded by module; core's default says so with an empty list.
    reference["model.offload_modules"] = []
    if reference["ddp.use_megatron_fsdp"]:
        # The reference saves nothing; saving under FSDP takes this format.
        reference["checkpoint.ckpt_format"] = "fsdp_dtensor"
        # Bridge says that it cannot work with FSDP and turns it off, and then its post-overrides turn it on again.
        reference["optimizer.use_precision_aware_optimizer"] = False
    if reference["model.tensor_model_parallel_size"] == 1:
        # Bridge turns the overlap off if there is no tensor parallelism; we never turn it on.
        reference["comm_overlap.tp_comm_overlap"] = False
    if not reference["comm_overlap.tp_comm_overlap"]:
        # A preset that nothing uses.
        reference["comm_overlap.tp_comm_overlap_cfg"] = None
    if reference["model.cuda_graph_impl"] == "local":
        # The graph would wait for a gather outside itself; later releases leave it out (pull request 5788).
        reference["optimizer.overlap_param_gather_with_optimizer_step"] = False
        reference["comm_overlap.overlap_param_gather_with_optimizer_step"] = None
    if reference["model.cuda_graph_impl"] == "none":
        # A scope without graphs.
        reference["model.cuda_graph_scope"] = []
    if _size(name) == "405b" and reference["model.pipeline_model_parallel_size"] == 1:
        # With one stage there is nothing to divide, and these have no effect.
        reference["model.account_for_embedding_in_pipeline_split"] = False
        reference["model.account_for_loss_in_pipeline_split"] = False
    return reference


@pytest.fixture(scope="module")
def resolved(engine: Engine) -> dict[str, dict[str, Any]]:
    """Validation result of every configuration by name, from one process."""
    return engine.ask("resolved", {name: _job(name) for name in CONFIGURATIONS})


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_settings_are_the_published_ones(resolved: dict[str, dict[str, Any]], name: str) -> None:
    result = resolved[name]
    assert result["error"] is None
    fields = result["fields"]
    different = {
        key: {"ours": fields.get(key, "no such field"), "reference": value}
        for key, value in _expected(name).items()
        if fields.get(key, "no such field") != value
    }
    assert different == {}


def test_all_42_configurations_are_compared() -> None:
    assert len(CONFIGURATIONS) == 42
    assert len(_expected("llama31_405b/b200/bf16")) > 100


def test_validation_takes_one_process(engine: Engine) -> None:
    """A wrong job gets its own line, and the others are validated anyway."""
    on_gpu = {"device": "cuda", "gpu_type": "h100"}
    jobs = {"bad": make_job("8b", **on_gpu, batch={"gbs": 9}, world_size=2), "good": make_job("8b", **on_gpu)}
    found = engine.ask("resolved", jobs)
    assert not found["bad"]["ok"]
    assert "batch.gbs 9 " in found["bad"]["error"]
    assert found["good"]["ok"]
