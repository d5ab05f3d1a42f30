"""An architecture as fields of the model provider, and the manifest that a job prints, with stand-ins for torch and
Megatron. ``training/`` builds the models."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmb_common.runs.paths import dry_run_paths
from llmb_common.submission.job_files import job_document
from llmb_train import __main__, refusals
from llmb_train.engine import Engine
from llmb_train.job import Job, Moe, parse_job
from support.runs import plan_for
from support.without_engine import without_engine

GPU = Engine(device="cuda", transformer_engine=True)
CPU = Engine(device="cpu", transformer_engine=False)
MOE = Moe(8, 2, 64, None, 1, "softmax", False, 0.01, 1.25, False)


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    with without_engine("config") as module:
        yield module


def job(folder: Path, routing: Any = None, **changes: Any) -> Job:
    plan = plan_for(folder, GPU_TYPE="b200", JOB_TOTAL_GPUS="128")
    made = parse_job(job_document(plan, dry_run_paths(plan.workload_folder, plan.experiment_name)))
    assert isinstance(made, Job)
    performance = replace(made.performance, moe_routing=routing)
    return replace(made, architecture=replace(made.architecture, **changes), performance=performance)


def test_sizes_are_those_of_the_architecture(model: Any, tmp_path: Path) -> None:
    """Each another number, so that none takes another's place."""
    sizes = {"layers": 2, "hidden": 3, "ffn": 4, "heads": 5, "query_groups": 6, "head_dim": 7, "vocabulary": 8}
    more = {"norm_epsilon": 0.5, "rope_base": 9, "rotary_percent": 0.25, "init_std": 0.75, "attention_chunk": 10}
    made = replace(job(tmp_path, **sizes, **more), sequence_length=11)
    fields = model.architecture_fields(made, GPU)
    names = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels")
    assert [fields[name] for name in (*names, "vocab_size")] == [2, 3, 4, 5, 6, 7, 8]
    names = ("layernorm_epsilon", "rotary_base", "rotary_percent", "init_method_std", "attention_chunk_size")
    assert [fields[name] for name in (*names, "seq_length")] == [0.5, 9, 0.25, 0.75, 10, 11]
    assert {fields[name] for name in ("hidden_dropout", "attention_dropout")} == {0.0}
    assert (fields["add_bias_linear"], fields["position_embedding_type"]) == (False, "rope")


@pytest.mark.parametrize("on", [True, False])
def test_each_switch_is_its_own(model: Any, tmp_path: Path, on: bool) -> None:
    switches = {
        "gated": "gated_linear_unit",
        "zero_centered_gamma": "layernorm_zero_centered_gamma",
        "rope_interleaved": "rotary_interleaved",
        "tied_embeddings": "share_embeddings_and_output_weights",
    }
    for name, field in switches.items():
        plain = dict.fromkeys(switches, not on)
        fields = model.architecture_fields(job(tmp_path, **plain | {name: on}), GPU)
        assert [fields[other] is on for other in switches.values()] == [other == field for other in switches.values()]


def test_what_is_named_becomes_the_frameworks_own(model: Any, tmp_path: Path) -> None:
    one = model.architecture_fields(job(tmp_path, activation="silu", norm="rmsnorm", rope_scaling=8.0), GPU)
    other = model.architecture_fields(
        job(tmp_path, activation="squared_relu", norm="layernorm", rope_scaling=None), CPU
    )
    names = ("activation_func", "normalization", "rope_scaling", "rope_scaling_factor", "transformer_layer_spec")
    assert [one[name] for name in names] == [model.silu, "RMSNorm", True, 8.0, model.transformer_engine_block]
    assert [other[name] for name in names] == [model.squared_relu, "LayerNorm", False, 1.0, model.local_block]
    assert (one["use_cpu_initialization"], other["use_cpu_initialization"]) == (False, True)
    assert one["no_rope_freq"] is None
    interval = model.architecture_fields(job(tmp_path, layers=5, no_rope_interval=2), GPU)
    assert interval["no_rope_freq"] == [0, 1, 0, 1, 0]


def experts(model: Any, folder: Path, routing: str, engine: Engine = GPU, **changes: Any) -> dict[str, Any]:
    fields = model.architecture_fields(job(folder, routing, layers=4, moe=replace(MOE, **changes)), engine)
    return {name: value for name, value in fields.items() if "moe" in name}


def test_experts_drop_what_exceeds_their_capacity_or_are_balanced_by_force(model: Any, tmp_path: Path) -> None:
    dropping, balanced = experts(model, tmp_path, "drop"), experts(model, tmp_path, "balanced")
    names = ("expert_capacity_factor", "pad_expert_input_to_capacity", "router_force_load_balancing")
    assert [dropping[f"moe_{name}"] for name in names] == [1.25, True, False]
    assert [balanced[f"moe_{name}"] for name in names] == [None, False, True]
    assert {name: value for name, value in dropping.items() if name.removeprefix("moe_") not in names} == {
        **{"num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 64, "moe_layer_freq": 1},
        **{"moe_shared_expert_intermediate_size": None, "moe_shared_expert_overlap": False},
        **{"moe_router_score_function": "softmax", "moe_router_pre_softmax": False, "moe_aux_loss_coeff": 0.01},
        **{"moe_router_load_balancing_type": "aux_loss", "moe_apply_probs_on_input": False},
        **{"moe_token_dispatcher_type": "alltoall", "moe_grouped_gemm": True, "moe_permute_fusion": True},
    }
    assert "num_moe_experts" not in model.architecture_fields(job(tmp_path), GPU)


def test_experts_of_every_second_layer_and_shared_ones(model: Any, tmp_path: Path) -> None:
    more = {"every": 2, "shared_ffn": 32, "router": "sigmoid", "pre_softmax": True, "probabilities_on_input": True}
    fields = experts(model, tmp_path, "drop", **more)
    assert (fields["moe_layer_freq"], fields["moe_shared_expert_intermediate_size"]) == ([0, 1, 0, 1], 32)
    assert (fields["moe_router_score_function"], fields["moe_router_pre_softmax"]) == ("sigmoid", True)
    assert fields["moe_apply_probs_on_input"]
    assert fields["moe_shared_expert_overlap"]
    plain = experts(model, tmp_path, "drop", CPU, **more)
    names = ("shared_expert_overlap", "grouped_gemm", "permute_fusion")
    assert [plain[f"moe_{name}"] for name in names] == [False] * 3


@pytest.mark.parametrize("engine", [GPU, CPU], ids=str)
def test_a_job_says_what_it_runs_with(tmp_path, engine, monkeypatch, capsys):
    cuda = SimpleNamespace(get_device_name=lambda index: f"GPU {index}", nccl=SimpleNamespace(version=lambda: (2, 27)))
    torch = SimpleNamespace(__version__="2.9", version=SimpleNamespace(cuda="12.9"), cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(__main__, "package_version", lambda name: f"{name} 1.0")
    monkeypatch.setattr(__main__, "driver_version", lambda file: "575.51")
    monkeypatch.setattr(refusals, "notices", lambda job, engine: ["first", "second"])
    made = job(tmp_path)
    __main__.print_header(made, engine)
    line, *notices = capsys.readouterr().out.splitlines()
    gpu = engine is GPU
    assert json.loads(line.removeprefix("LLMB manifest: ")) == {
        **{"run_id": made.run_id, "hostname": socket.gethostname(), "world_size": 128, "device": engine.device},
        **{"layers": "transformer_engine" if gpu else "local", "python": sys.version.split()[0], "torch": "2.9"},
        **{"megatron_bridge": "megatron-bridge 1.0", "megatron_core": "megatron-core 1.0"},
        "transformer_engine": "transformer-engine 1.0" if gpu else None,
        **({"gpu": "GPU 0", "cuda": "12.9", "nccl": "2.27", "driver": "575.51"} if gpu else {}),
        **({} if gpu else dict.fromkeys(("gpu", "cuda", "nccl", "driver"))),
    }
    assert notices == ["LLMB notice: first", "LLMB notice: second"]
