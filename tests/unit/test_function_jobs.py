"""Jobs that name a function: what is set in its configuration, with a stand-in for the framework's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmb_train.errors import Contradiction, JobError
from llmb_train.job import Checkpoint, FunctionJob, parse_job
from support.texts import Texts
from support.without_engine import without_engine

SHIPPED = json.loads((Path(__file__).parents[1] / "data" / "functions.json").read_text())["functions"]["deepseek_v3"]


def job(**changes: Any) -> FunctionJob:
    """DeepSeek-V3 on 256 GB300, as shipped except for ``changes`` of functions."""
    own = {**SHIPPED["columns"], **changes}
    content: dict[str, Any] = {
        **{"schema": 1, "run_id": "x", "experiment_name": "x", "output_dir": "/x", "engine": "0.6", "device": "cuda"},
        **{"gpu_type": "gb300", "gpu_generation": "blackwell", "family": "deepseek_v3", "model_size": "deepseek_v3"},
        **{"architecture": None, "sequence_length": own["sequence_length"], "world_size": 256, "profile": None},
        "precision": {"dtype": "bf16", "fp8_recipe": None},
        "parallelism": {name: own[name] for name in ("tp", "pp", "vp", "cp", "ep", "etp", "fsdp")},
        "batch": {"mbs": own["mbs"], "gbs": own["gbs"]},
        "performance": {
            **{name: own[name] for name in ("cuda_graph", "recompute_layers", "offload_layers")},
            **{"wgrad_deferral": None, "moe_routing": None},
        },
        "steps": {"train": 50, "exit_after": None, "waits_from": None},
        "checkpoint": {"save": None, "interval": None, "load": None},
        **{"data_workers": 8, "seed": 1234},
        "function": {
            **{"name": SHIPPED["name"], "release": "0.6.2", "catalogue": 64 * "0", "reduced": None},
            "columns": SHIPPED["columns"],
        },
    }
    parsed = parse_job(content)
    assert isinstance(parsed, FunctionJob)
    return parsed


@pytest.fixture(scope="module")
def functions() -> Iterator[Any]:
    with without_engine("functions") as module:
        yield module


@pytest.fixture
def config() -> Any:
    """What the function gives."""
    own = SHIPPED["columns"]
    model = SimpleNamespace(
        tensor_model_parallel_size=own["tp"],
        pipeline_model_parallel_size=own["pp"],
        virtual_pipeline_model_parallel_size=own["vp"],
        context_parallel_size=own["cp"],
        expert_model_parallel_size=own["ep"],
        expert_tensor_parallel_size=own["etp"],
        sequence_parallel=own["tp"] > 1,
        pipeline_model_parallel_layout="Et*4|(t*4|)*14tmL",
        num_moe_experts=256,
        seq_length=own["sequence_length"],
        cuda_graph_impl="transformer_engine",
        cuda_graph_modules=["attn"],
        use_te_rng_tracker=True,
        recompute_granularity="selective",
        recompute_method=None,
        recompute_num_layers=None,
        recompute_modules=["moe_act"],
        cpu_offloading=False,
        cpu_offloading_num_layers=0,
    )
    return SimpleNamespace(
        model=model,
        train=SimpleNamespace(micro_batch_size=own["mbs"], global_batch_size=own["gbs"]),
        ddp=SimpleNamespace(use_megatron_fsdp=False),
        rng=SimpleNamespace(te_rng_tracker=True),
        optimizer=SimpleNamespace(overlap_param_gather_with_optimizer_step=True),
        comm_overlap=SimpleNamespace(overlap_param_gather_with_optimizer_step=True),
        env_vars={"NCCL_NVLS_ENABLE": 0, "USE_MNNVL": 1},
    )


def test_a_function_as_shipped_is_left_as_it_is(functions: Any, config: Any) -> None:
    functions.require_own(job(), config)
    before = dict(vars(config.model))
    functions.set_planned(job(), config)
    assert vars(config.model) == before


def test_other_columns_than_the_catalogues_are_shown_side_by_side(functions: Any, config: Any, texts: Texts) -> None:
    config.train.micro_batch_size = 2
    with texts.raises(Contradiction):
        functions.require_own(job(), config)


def test_columns_of_the_plan_are_set(functions: Any, config: Any) -> None:
    planned = job(tp=2, ep=32, gbs=2048, cuda_graph=False, recompute_layers=3, offload_layers=4, sequence_length=8192)
    functions.set_planned(planned, config)
    model = config.model
    assert (model.tensor_model_parallel_size, model.sequence_parallel) == (2, True)
    assert (model.expert_model_parallel_size, model.seq_length) == (32, 8192)
    assert config.train.global_batch_size == 2048
    assert (model.cuda_graph_impl, model.cuda_graph_modules) == ("none", [])
    assert not model.use_te_rng_tracker
    assert not config.rng.te_rng_tracker
    assert (model.recompute_granularity, model.recompute_method, model.recompute_num_layers) == ("full", "block", 3)
    assert (model.cpu_offloading, model.cpu_offloading_num_layers) == (True, 4)


def layouts_of(functions: Any, monkeypatch: pytest.MonkeyPatch, layers: list[int] | None) -> None:
    """Let the framework have this layout for whatever PP and VP a job has."""

    def place_layers(name: str, model: Any) -> None:
        model.pipeline_model_parallel_layout = f"{name}: {model.pipeline_model_parallel_size}"

    monkeypatch.setattr(functions.layouts, "place_layers", place_layers)
    monkeypatch.setattr(functions.layouts, "layers_of_chunks", lambda model: layers)


def test_layers_placed_by_hand_are_not_left_as_they_are(
    functions: Any, config: Any, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    layouts_of(functions, monkeypatch, None)
    with texts.raises(JobError):
        functions.set_planned(job(pp=8, vp=2), config)


def test_layers_placed_by_hand_are_placed_anew_where_the_framework_can(
    functions: Any, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts_of(functions, monkeypatch, [61])
    functions.set_planned(job(pp=8, vp=2), config)
    assert config.model.pipeline_model_parallel_layout == f"{SHIPPED['name']}: 8"
    assert config.optimizer.overlap_param_gather_with_optimizer_step


def test_without_interleaved_stages_parameters_are_gathered_after_the_optimizers_step(
    functions: Any, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts_of(functions, monkeypatch, [61])
    functions.set_planned(job(vp=None), config)
    assert not config.optimizer.overlap_param_gather_with_optimizer_step
    assert config.comm_overlap.overlap_param_gather_with_optimizer_step is None


def test_fsdp_is_turned_on_with_all_that_goes_with_it(
    functions: Any, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts_of(functions, monkeypatch, [61])
    config.comm_overlap.defer_embedding_wgrad_compute = True
    functions.set_planned(job(pp=1, vp=None, fsdp=True, cuda_graph=False), config)
    assert (config.ddp.use_megatron_fsdp, config.ddp.average_in_collective) == (True, False)
    assert config.ddp.data_parallel_sharding_strategy == "optim_grads_params"
    assert config.model.init_model_with_meta_device
    assert config.comm_overlap.defer_embedding_wgrad_compute is False


def test_what_the_plan_leaves_out_at_another_pp_is_not_missed(
    functions: Any, config: Any, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    """As NVIDIA's launcher does; every rank would stop there."""
    config.env_vars = {"NCCL_P2P_NET_CHUNKSIZE": 2097152}
    monkeypatch.delenv("NCCL_P2P_NET_CHUNKSIZE", raising=False)
    functions.require_environment(job(pp=8, vp=2), config)
    with texts.raises(Contradiction):
        functions.require_environment(job(), config)


def test_a_variable_that_the_script_did_not_export_is_missed(
    functions: Any, config: Any, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    monkeypatch.setenv("USE_MNNVL", "0")  # the user's choice
    monkeypatch.delenv("NCCL_NVLS_ENABLE", raising=False)
    with texts.raises(Contradiction) as caught:
        functions.require_environment(job(), config)
    assert "USE_MNNVL" not in str(caught.value)
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    functions.require_environment(job(), config)


def test_adapters_do_not_resume_the_model_that_they_load() -> None:
    content = {"save": None, "interval": None, "load": "/base"}
    resumed = replace(job(), checkpoint=Checkpoint(**content))
    assert (resumed.adapters, resumed.resumed) == (False, "/base")
    name = "llama3_70b_peft_8gpu_h100_bf16_config"
    adapted = replace(resumed, function=replace(resumed.function, name=name))
    assert (adapted.adapters, adapted.resumed) == (True, None)
