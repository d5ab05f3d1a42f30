"""Llama 3.1's documented configurations on Megatron-Bridge 0.6: that release's settings, and training without a GPU.

Each configuration goes the whole way (recipe, plan, job.json, configuration, Bridge's validation), and so does NVIDIA's
function for the same model, GPU and precision with the columns of the row (``questions.py``). Every difference
stands in ``MEANT`` with its reason. Below them is what other files ask of the first engine, asked of this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from test_named_settings import SETTINGS, check_list
from test_random_jobs import what_differs
from test_smoke_recipes import train
from training_jobs import (
    LOSS_TOLERANCE,
    REPOSITORY,
    SMOKE_LOSSES,
    SMOKE_SAVING,
    Engine,
    document,
    make_function_job,
    printed_losses,
)

from llmb_common.planning.plan import make_plan
from llmb_common.planning.request.read import read_request
from llmb_common.planning.site.cluster import cluster_config
from llmb_common.planning.site.machine import Machine
from llmb_common.recipes.loading import load_recipe

ON_0_6 = {"LLMB_ENGINE": "0.6"}


@dataclass(frozen=True)
class Case:
    size: str
    gpu: str
    gpus: int
    function: str
    precision: str = "fp8cs"

    @property
    def name(self) -> str:
        return f"{self.size}-{self.gpu}-{self.precision}"

    @property
    def variables(self) -> dict[str, str]:
        scaling = {"fp8cs": {"FP8_RECIPE": "cs"}, "fp8mx": {"FP8_RECIPE": "mx"}, "bf16": {}}[self.precision]
        job = {"GPU_TYPE": self.gpu, "MODEL_SIZE": self.size, "JOB_TOTAL_GPUS": str(self.gpus)}
        return job | {"DTYPE": self.precision[:3] if scaling else "bf16"} | scaling


def _case(size: str, gpu: str, gpus: int, precision: str = "fp8cs", of: int | None = None) -> Case:
    model = "llama31" if size == "405b" else "llama3"
    return Case(size, gpu, gpus, f"{model}_{size}_pretrain_{of or gpus}gpu_{gpu}_{precision}_config", precision)


CASES = [
    *(_case("405b", gpu, 128) for gpu in ("gb300", "gb200", "b200")),
    _case("405b", "h100", 1024),
    *(_case("70b", gpu, 64) for gpu in ("gb300", "gb200", "b200", "h100")),
    *(_case("8b", gpu, 8) for gpu in ("gb300", "gb200", "b200", "h100")),
    # The other precisions of the documents that NVIDIA has functions for.
    *(_case("8b", gpu, 8, "fp8mx") for gpu in ("gb300", "gb200", "b200")),
    _case("405b", "b200", 128, "fp8mx"),
    _case("405b", "h100", 512, "bf16"),
    _case("70b", "h100", 64, "bf16"),
    _case("8b", "h100", 8, "bf16"),
]
ALL = {case.name for case in CASES}
FSDP = {f"405b-{gpu}-fp8cs" for gpu in ("gb300", "gb200")} | {
    *(f"70b-{gpu}-fp8cs" for gpu in ("gb300", "gb200", "b200")),
    "8b-h100-fp8cs",
}

LLAMA_3 = {name for name in ALL if not name.startswith("405b")}
UNSHARDED_TP1 = {f"70b-{gpu}-fp8cs" for gpu in ("gb300", "gb200", "b200")}
DEFERRED = {"405b-h100-bf16", "70b-h100-bf16"}
MEANT: list[tuple[str, set[str], tuple[str, ...]]] = [
    (
        "nothing is saved unless asked for, and then so that it loads at another TP and PP, and without a tokenizer",
        ALL,
        ("checkpoint.save_interval", "checkpoint.save_tokenizer_assets"),
    ),
    ("the same, in the format that is not FSDP's", ALL - FSDP, ("checkpoint.dist_ckpt_optim_fully_reshardable",)),
    ("nothing is saved; saving under FSDP takes this format", FSDP, ("checkpoint.ckpt_format",)),
    (
        "the throughput of each iteration is logged; nothing goes to TensorBoard in either",
        ALL,
        ("logger.log_throughput", "logger.log_timers_to_tensorboard"),
    ),
    (
        "the functions are of Llama 3, and the documents name Llama 3.1, whose rotary frequencies are scaled once",
        LLAMA_3,
        ("model.rope_scaling", "model.rope_scaling_factor"),
    ),
    (
        "a schedule that lets a run of a few steps learn, and a cosine; its arithmetic costs the same",
        ALL,
        (
            "scheduler.lr_warmup_iters",
            "scheduler.lr_warmup_steps",
            "scheduler.start_weight_decay",
            "scheduler.end_weight_decay",
            "scheduler.lr_wsd_decay_style",
        ),
    ),
    (
        "a resumed run goes on with the schedule that it was saved with",
        ALL,
        ("scheduler.use_checkpoint_opt_param_scheduler", "scheduler.override_opt_param_scheduler"),
    ),
    ("nothing is evaluated: eval_iters is 0 in both", ALL, ("train.eval_interval", "validation.eval_interval")),
    ("core's default, and off either way", ALL, ("model.offload_modules",)),
    ("there are no experts", ALL, ("model.moe_token_dispatcher_type",)),
    (
        "a model that brings its own vocabulary size is not padded, and 128256 needs none; the null tokenizer adds the "
        "token that ends a document",
        ALL,
        ("model.should_pad_vocab", "tokenizer.vocab_size"),
    ),
    (
        "this machine lacks the kernel that Bridge's provider looks for when it is made (models/gpt_provider.py); the "
        "container has it",
        ALL - FSDP,
        ("model.gradient_accumulation_fusion",),
    ),
    (
        "with one pipeline stage there is nothing to divide",
        {"405b-gb300-fp8cs", "405b-gb200-fp8cs"},
        ("model.account_for_embedding_in_pipeline_split", "model.account_for_loss_in_pipeline_split"),
    ),
    (
        "without tensor parallelism Bridge turns it off (model.tp_comm_overlap is the same); we do not turn it on",
        UNSHARDED_TP1,
        ("comm_overlap.tp_comm_overlap", "comm_overlap.tp_comm_overlap_cfg", "model.tp_comm_overlap_cfg"),
    ),
    (
        "NVIDIA's own functions with FSDP have it (70b; 405b in BF16 on GB300), its launcher's option alone does not",
        {"405b-gb300-fp8cs", "405b-gb200-fp8cs", "8b-h100-fp8cs"},
        ("ddp.fsdp_double_buffer",),
    ),
    (
        "0.6 has no FSDP of this model, GPU and precision any more: what it had in 0.3.1, when this row was NVIDIA's",
        {"8b-h100-fp8cs"},
        ("ddp.nccl_ub", "ddp.fsdp_manual_registration", "ddp.keep_fp8_transpose_cache"),
    ),
    ("the same", {"405b-gb200-fp8cs"}, ("ddp.num_distributed_optimizer_instances",)),
    (
        "a column of the NeMo 2 generation",
        DEFERRED,
        tuple(
            f"{section}.{name}"
            for section in ("comm_overlap", "model")
            for name in ("defer_embedding_wgrad_compute", "wgrad_deferral_limit")
        ),
    ),
]
"""Reason, the cases it applies to, the fields that differ there."""

OTHERWISE_SAID = (
    *("model.activation_func", "model.transformer_layer_spec"),
    *("model.init_method", "model.embedding_init_method", "model.output_layer_init_method"),
    *("model.attention_chunk_size", "model.hf_model_id", "comm_overlap.user_comm_overlap_cfg"),
)
"""Objects that print as addresses, fields that one of the two providers has, and what follows from other fields."""


@pytest.fixture(scope="module")
def differences(functions_engine: Engine) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Case -> field -> (our value, NVIDIA's value), where the two differ."""
    jobs, recipe = {}, load_recipe(REPOSITORY / "llama3.1")
    for case in CASES:
        request = read_request({"LLMB_INSTALL": "/x", **case.variables, **ON_0_6})
        plan = make_plan(recipe, cluster_config(), request, Machine(cluster_type="slurm"))
        jobs[case.name] = document(plan) | {"run_id": case.function}
    ours = functions_engine.ask("resolved", jobs).values()
    nvidias = functions_engine.ask("launched", jobs).values()
    found = {}
    for case, one, other in zip(CASES, ours, nvidias, strict=True):
        assert one["error"] is None, case.name
        fields = dict.fromkeys([*one["fields"], *other["fields"]])
        pairs = {name: (one["fields"].get(name, "none"), other["fields"].get(name, "none")) for name in fields}
        found[case.name] = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        for name in OTHERWISE_SAID:
            found[case.name].pop(name, None)
    return found


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_every_setting_is_that_of_nvidias_function_or_differs_for_a_stated_reason(differences, name):
    meant = {field for _, cases, fields in MEANT if name in cases for field in fields}
    assert {field: values for field, values in differences[name].items() if field not in meant} == {}
    assert meant - differences[name].keys() == set(), "these no longer differ"


def test_smoke_trains_saves_and_resumes_on_the_other_engine(functions_engine: Engine, tmp_path: Path) -> None:
    whole = train(functions_engine, "llama3.1", tmp_path / "whole", **SMOKE_SAVING, **ON_0_6)
    assert whole.manifest["megatron_bridge"].startswith("0.6.")
    losses = printed_losses(whole.log)
    assert {step: float(loss) for step, loss in losses.items()} == pytest.approx(SMOKE_LOSSES, abs=LOSS_TOLERANCE)
    (checkpoint,) = tmp_path.glob("whole/**/checkpoints/iter_0000002")
    resumed = train(functions_engine, "llama3.1", tmp_path / "resumed", LOAD_CHECKPOINT_PATH=str(checkpoint), **ON_0_6)
    assert printed_losses(resumed.log) == {3: losses[3]}


def test_19_configurations_of_over_700_settings_are_compared(differences):
    assert (len(CASES), len(differences)) == (19, 19)
    stated = [(name, field) for _, cases, fields in MEANT for name in cases for field in fields]
    assert len(stated) == len(set(stated)), "a difference is stated twice"


def test_a_function_trains_with_settings_by_name(functions_engine: Engine, tmp_path: Path) -> None:
    settings = SETTINGS | {"model.attention_backend": "unfused", "optimizer.exp_avg_dtype": "float32"}
    run = functions_engine.train(tmp_path, make_function_job(steps={"train": 2}, megatron=settings))
    assert sorted(run.steps) == [1, 2]
    assert "  attention_dropout: 0.25\n" in (tmp_path / "config.yaml").read_text()


def test_the_list_of_settings_is_what_this_engine_writes(functions_engine: Engine, tmp_path: Path) -> None:
    check_list(functions_engine, "0.6", tmp_path)


def test_random_jobs_of_functions_and_llama_are_taken_and_refused_alike(functions_engine: Engine) -> None:
    assert what_differs("0.6", functions_engine) == []
