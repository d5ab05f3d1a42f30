"""What the trainer sets that no column names: fields handed to the framework, with stand-ins for its classes.

``training/`` compares the real configurations with NVIDIA's, where nothing is saved. Here is what no such row has:
saving, engines without Transformer Engine, layouts that nobody documents.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmb_common.runs.paths import dry_run_paths
from llmb_common.submission.job_files import job_document
from llmb_train import settings, steps
from llmb_train.engine import Engine
from llmb_train.job import Checkpoint, Job, Precision, parse_job
from llmb_train.steps import StartingPoint
from support.runs import plan_for

GPU = Engine(device="cuda", transformer_engine=True)
CPU = Engine(device="cpu", transformer_engine=False)
SIZES = {"8b": "8", "70b": "64", "405b": "128"}


@pytest.fixture(autouse=True)
def framework(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each class gives the fields that it was given."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(bfloat16="bfloat16"))
    classes = ("DistributedDataParallelConfig", "OptimizerConfig", "ProfilingConfig")
    config = SimpleNamespace(**dict.fromkeys(classes, dict))
    presets = SimpleNamespace(CommOverlapConfig=dict, **{name: name for name in _preset_names()})
    monkeypatch.setitem(sys.modules, "megatron.bridge.training.config", config)
    training = SimpleNamespace(config=config, comm_overlap=presets)
    monkeypatch.setitem(sys.modules, "megatron.bridge.training", training)
    monkeypatch.setitem(sys.modules, "megatron.bridge.training.comm_overlap", presets)


def _preset_names() -> set[str]:
    return {name.format(dtype=dtype) for name in settings._OVERLAP_PRESETS.values() for dtype in ("bf16", "fp8")}


def job(folder: Path, size: str = "70b", *, fsdp: bool | None = None, **variables: str) -> Job:
    """A documented job, but in bf16 unless ``DTYPE`` says otherwise."""
    plan = plan_for(folder, **{"GPU_TYPE": "gb200", "MODEL_SIZE": size, "JOB_TOTAL_GPUS": SIZES[size], **variables})
    made = parse_job(job_document(plan, dry_run_paths(plan.workload_folder, plan.experiment_name)))
    assert isinstance(made, Job)
    if "DTYPE" not in variables:
        made = replace(made, precision=replace(made.precision, dtype="bf16", fp8_recipe=None))
    return made if fsdp is None else replace(made, parallelism=replace(made.parallelism, fsdp=fsdp))


@pytest.mark.parametrize("fsdp", [False, True])
def test_fsdp_shards_everything_and_averages_by_itself(tmp_path: Path, fsdp: bool) -> None:
    ddp = settings.ddp_config(job(tmp_path, fsdp=fsdp), GPU)
    assert ddp["average_in_collective"] is not fsdp
    assert ddp["data_parallel_sharding_strategy"] == ("optim_grads_params" if fsdp else "no_shard")
    assert ddp.get("use_megatron_fsdp", False) is fsdp
    assert ddp.get("fsdp_double_buffer", False) is fsdp
    assert {ddp["overlap_grad_reduce"], ddp["overlap_param_gather"], ddp["use_distributed_optimizer"]} == {True}
    assert {ddp["grad_reduce_in_fp32"], ddp["check_for_nan_in_grad"], ddp["check_for_large_grads"]} == {False}
    assert settings.model_fields(job(tmp_path, fsdp=fsdp), GPU)["init_model_with_meta_device"] is fsdp


@pytest.mark.parametrize("fsdp", [False, True])
def test_ranks_on_cpus_overlap_nothing_and_reduce_in_fp32(tmp_path: Path, fsdp: bool) -> None:
    ddp = settings.ddp_config(job(tmp_path, fsdp=fsdp), CPU)
    on = {"use_distributed_optimizer": True, "grad_reduce_in_fp32": True}
    on |= {"use_megatron_fsdp": True} if fsdp else {}
    assert {name: value for name, value in ddp.items() if value is True} == on
    assert "suggested_communication_unit_size" not in ddp
    assert settings.model_fields(job(tmp_path, fsdp=fsdp), CPU)["init_model_with_meta_device"] is False
    assert settings.comm_overlap(job(tmp_path), CPU) is None


def test_two_copies_of_the_sharded_state_need_an_even_number_of_replicas(tmp_path: Path) -> None:
    even = job(tmp_path, "405b", fsdp=True, DTYPE="fp8")
    odd = replace(even, world_size=even.world_size // even.data_parallel * 33)
    assert (even.data_parallel % 2, odd.data_parallel) == (0, 33)
    copies = [settings.ddp_config(it, GPU)["num_distributed_optimizer_instances"] for it in (even, odd)]
    assert copies == [2, 1]


@pytest.mark.parametrize(("fsdp", "form"), [(False, "torch_dist"), (True, "fsdp_dtensor")])
def test_checkpoints_of_fsdp_have_a_format_of_their_own(tmp_path: Path, fsdp: bool, form: str) -> None:
    saving = job(tmp_path, fsdp=fsdp, ENABLE_CHECKPOINT="true", CHECKPOINT_INTERVAL="7", TIME_LIMIT="02:00:00")
    fields = steps.checkpoint_fields(saving, None)
    assert (fields["ckpt_format"], fields["dist_ckpt_optim_fully_reshardable"]) == (form, not fsdp)
    assert (fields["save"], fields["save_interval"]) == (saving.checkpoint.save, 7)
    assert (fields["load"], fields["ckpt_step"], fields["load_rng"]) == (None, None, True)
    assert (fields["async_save"], fields["save_tokenizer_assets"]) == (False, False)
    again = steps.checkpoint_fields(saving, StartingPoint(tmp_path, 12))
    assert (again["load"], again["ckpt_step"]) == (str(tmp_path), 12)


@pytest.mark.parametrize(("saving", "exits"), [("true", 50), ("false", None)])
def test_a_run_that_saves_ends_by_its_interval_and_heeds_the_signal(tmp_path: Path, saving: str, exits: int) -> None:
    made = job(tmp_path, ENABLE_CHECKPOINT=saving, TIME_LIMIT="02:00:00")
    heeds = saving == "true"
    assert steps.training_fields(made, 50) == {
        "train_iters": 50,
        "exit_interval": exits,
        "exit_signal_handler": heeds,
        "exit_signal_handler_for_dataloader": heeds,
    }
    assert steps.timeout_minutes(made) == (60 if heeds else 10)


@pytest.mark.parametrize(
    ("changes", "engine", "fsdp", "aware"),
    [
        ({}, GPU, False, True),
        ({}, GPU, True, False),
        ({}, Engine(device="cuda", transformer_engine=False), False, False),
        ({}, CPU, False, False),
        ({"precision": Precision("fp8", "ds")}, GPU, False, False),
        ({"checkpoint": Checkpoint("/s", None, None)}, GPU, False, False),
        ({"checkpoint": Checkpoint(None, None, "/l")}, GPU, False, False),
    ],
    ids=str,
)
def test_the_precision_aware_optimizer_is_bf16s_alone_and_cannot_save(tmp_path, changes, engine, fsdp, aware):
    made = settings.optimizer_config(replace(job(tmp_path, fsdp=fsdp), **changes), engine)
    assert made["use_precision_aware_optimizer"] is aware
    assert (made["optimizer"], made["bf16"], made["use_distributed_optimizer"]) == ("adam", True, True)


def layout(made: Job, **changes: Any) -> Job:
    return replace(made, parallelism=replace(made.parallelism, **changes))


def test_the_gather_in_the_optimizers_step_needs_interleaving_replicas_and_a_precision_that_bears_it(tmp_path):
    made = layout(job(tmp_path, fsdp=False, CUDA_GRAPH="false"), tp=1, pp=4, vp=5, cp=1)
    assert made.data_parallel == 16
    asked = settings.gather_in_optimizer_step
    assert asked(made)
    assert settings.comm_overlap(made, GPU)["overlap_param_gather_with_optimizer_step"] is True
    assert asked(layout(made, pp=32)), "two replicas are enough"
    graphs = replace(made, performance=replace(made.performance, cuda_graph=True))
    assert asked(replace(graphs, family="nemotron4")), "a graph of each layer"
    for other in (
        layout(made, pp=64),
        layout(made, vp=1),
        layout(made, vp=None),
        replace(made, precision=replace(made.precision, dtype="nvfp4")),
        replace(made, precision=replace(made.precision, dtype="fp8", fp8_recipe="mx")),
        graphs,
        replace(made, checkpoint=replace(made.checkpoint, save="/s")),
        replace(made, checkpoint=replace(made.checkpoint, load="/l")),
    ):
        assert not asked(other), other
        assert settings.comm_overlap(other, GPU)["overlap_param_gather_with_optimizer_step"] is None


def test_tensor_parallel_overlap_needs_transformer_engines_user_buffers(tmp_path: Path) -> None:
    made = layout(job(tmp_path), tp=2)
    found = settings.comm_overlap(made, Engine(device="cuda", transformer_engine=False))
    assert (found["tp_comm_overlap"], found["tp_comm_overlap_cfg"]) == (False, None)
    assert settings.comm_overlap(made, GPU)["tp_comm_overlap_cfg"] is not None
    assert settings.comm_overlap(replace(made, family="llama4"), GPU)["tp_comm_overlap_cfg"] is None


@pytest.mark.parametrize(
    ("limit", "pp", "te", "deferred"),
    [(0, 2, True, True), (8, 4, True, True), (8, 4, False, False)],
)
def test_weight_gradients_wait_for_the_drain_of_a_pipeline(tmp_path, limit, pp, te, deferred):
    made = layout(job(tmp_path), pp=pp)
    made = replace(made, performance=replace(made.performance, wgrad_deferral=limit))
    found = settings.comm_overlap(made, Engine(device="cuda", transformer_engine=te))
    given = {name: found.get(name) for name in ("defer_embedding_wgrad_compute", "wgrad_deferral_limit")}
    assert list(given.values()) == ([True, limit] if deferred else [None, None])


def test_fusions_are_transformer_engines_or_none(tmp_path: Path) -> None:
    made = job(tmp_path, fsdp=False, CUDA_GRAPH="false")
    te = {"apply_rope_fusion", "masked_softmax_fusion", "persist_layer_norm", "gradient_accumulation_fusion"}
    gpu = {"bias_activation_fusion", "bias_dropout_fusion", "cross_entropy_loss_fusion"}

    def on(it: Job, engine: Engine) -> set[str]:
        found = settings.fusion_fields(it, engine)
        assert found["cross_entropy_fusion_impl"] == ("te" if engine.transformer_engine else "native")
        return {name for name in te | gpu if found[name]}

    assert on(made, GPU) == te | gpu
    assert on(made, Engine(device="cuda", transformer_engine=False)) == gpu
    assert on(made, CPU) == set()
    assert on(layout(made, fsdp=True), GPU) == (te | gpu) - {"gradient_accumulation_fusion"}
    assert "bias_dropout_fusion" not in on(replace(made, family="nemotron4"), GPU)
    plain = replace(made.architecture, activation="squared_relu")
    assert "bias_activation_fusion" not in on(replace(made, architecture=plain), GPU)
    plain = replace(plain, activation="silu", gated=False)
    assert "bias_activation_fusion" not in on(replace(made, architecture=plain), GPU)


@pytest.mark.parametrize("tool", ["nsys", "torch"])
def test_a_profile_is_of_the_steps_and_ranks_that_were_asked_for(tmp_path: Path, tool: str) -> None:
    steps_and_ranks = {"PROFILE_START_STEP": "4", "PROFILE_STOP_STEP": "6", "PROFILE_RANKS": "0,9"}
    profiled = job(tmp_path, ENABLE_PROFILE="true", **steps_and_ranks)
    assert profiled.profile is not None
    profiled = replace(profiled, profile=replace(profiled.profile, tool=tool))
    assert steps.profiling_config(profiled) == {
        "use_nsys_profiler": tool == "nsys",
        "use_pytorch_profiler": tool == "torch",
        "profile_step_start": 4,
        "profile_step_end": 6,
        "profile_ranks": [0, 9],
    }
    assert (steps.trace_folder(profiled) is not None) is (tool == "torch")
    assert profiled.profile is not None
    everyone = replace(profiled, profile=replace(profiled.profile, ranks=None))
    assert steps.profiling_config(everyone)["profile_ranks"] == list(range(64))
    nothing = job(tmp_path)
    assert (steps.profiling_config(nothing), steps.trace_folder(nothing)) == ({}, None)


@pytest.mark.parametrize(
    ("hidden", "gpu", "preset"),
    [
        (6144, "blackwell", "userbuffers_bf16_b200_h6144_tp2_mbs1_seqlen4096"),  # in FP8, too
        (18432, "blackwell", "userbuffers_fp8_b200_h18432_tp8_mbs1_seqlen4096"),
        (18432, "hopper", None),
    ],
)
def test_the_overlap_of_nemotron_is_the_one_that_its_scripts_name(tmp_path, hidden, gpu, preset):
    """Where each was read: ``settings.py``. None of its documented rows is on Blackwell."""
    made = replace(layout(job(tmp_path, DTYPE="fp8"), tp=2), family="nemotron4", gpu_generation=gpu)
    made = replace(made, architecture=replace(made.architecture, hidden=hidden))
    assert settings.comm_overlap(made, GPU)["tp_comm_overlap_cfg"] == preset


def laid_out(folder: Path, *, layers: int = 126, **layout: Any) -> Job:
    """Llama 3.1 405b with another layout."""
    made = job(folder, "405b", GPU_TYPE="b200")
    flat: dict[str, Any] = {"tp": 1, "pp": 1, "vp": None, "cp": 1, "ep": None, "etp": None, "fsdp": False}
    quiet = {"cuda_graph": False, "recompute_layers": 0, "offload_layers": 0}
    return replace(
        made,
        architecture=replace(made.architecture, layers=layers),
        parallelism=replace(made.parallelism, **flat | layout),
        performance=replace(made.performance, **quiet),
    )


FLAT = {
    "tensor_model_parallel_size": 1,
    "sequence_parallel": False,
    "pipeline_model_parallel_size": 1,
    "virtual_pipeline_model_parallel_size": None,
    "pipeline_dtype": "bfloat16",
    "context_parallel_size": 1,
}
SPLIT = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}


@pytest.mark.parametrize(
    ("layers", "layout", "others"),
    [
        (126, {"vp": 1}, {}),
        (126, {"pp": 2, "vp": 3}, {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 3}),
        (126, {"pp": 8}, {"pipeline_model_parallel_size": 8, **SPLIT}),
        (2, {"pp": 2}, {"pipeline_model_parallel_size": 2}),
    ],
)
def test_columns_become_fields(tmp_path, layers, layout, others):
    assert settings.layout_fields(laid_out(tmp_path, layers=layers, **layout)) == FLAT | others


@pytest.mark.parametrize(("ep", "size"), [(None, 1), (4, 4)])
def test_experts_have_a_layout_of_their_own(tmp_path: Path, ep: int | None, size: int) -> None:
    dense = laid_out(tmp_path, ep=ep, etp=2)
    sparse = replace(dense, architecture=replace(dense.architecture, moe=object()))
    assert settings.layout_fields(sparse) == FLAT | {
        "expert_model_parallel_size": size,
        "expert_tensor_parallel_size": 2,
    }
    assert settings.layout_fields(dense) == FLAT
