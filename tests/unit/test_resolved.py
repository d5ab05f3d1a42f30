"""Plan and resolved configuration side by side, with a stand-in for the framework's configuration.

The real one is compared for every documented job in ``training/test_documented_jobs.py``.
"""

from __future__ import annotations

import enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmb_common.rendering.job import job_document
from llmb_common.runs.paths import dry_run_paths
from llmb_train.errors import Contradiction
from llmb_train.evidence.resolved import contradictions, require_agreement
from llmb_train.job import Job, parse_job
from support.runs import plan_for


class Recipe(str, enum.Enum):
    """As megatron-core's ``Fp8Recipe``."""

    tensorwise = "tensorwise"
    delayed = "delayed"


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Llama 3.1 70b on 64 H100 in FP8: TP 4, PP 8, VP 5, 5 layers recomputed."""
    plan = plan_for(tmp_path, GPU_TYPE="h100", MODEL_SIZE="70b", DTYPE="fp8", JOB_TOTAL_GPUS="64")
    return parse_job(job_document(plan, dry_run_paths(plan.workload_folder, plan.experiment_name)))


@pytest.fixture
def config(job: Job) -> Any:
    """What the framework makes of it."""
    p, a = job.parallelism, job.architecture
    return SimpleNamespace(
        data_parallel_size=job.data_parallel,
        ddp=SimpleNamespace(use_megatron_fsdp=False),
        train=SimpleNamespace(micro_batch_size=job.batch.mbs, global_batch_size=job.batch.gbs),
        dataset=SimpleNamespace(sequence_length=8192),
        rng=SimpleNamespace(seed=1234),
        model=SimpleNamespace(
            tensor_model_parallel_size=p.tp,
            pipeline_model_parallel_size=p.pp,
            virtual_pipeline_model_parallel_size=p.vp,
            context_parallel_size=p.cp,
            seq_length=8192,
            num_layers=a.layers,
            hidden_size=a.hidden,
            num_attention_heads=a.heads,
            bf16=True,
            fp8="hybrid",
            fp8_recipe=Recipe.tensorwise,
            fp4=None,
            recompute_granularity="full",
            recompute_num_layers=job.performance.recompute_layers,
            cpu_offloading=False,
            cpu_offloading_num_layers=0,
            cuda_graph_impl="none",
        ),
    )


def test_what_was_planned_contradicts_nothing(job: Job, config: Any) -> None:
    assert contradictions(job, config) == []
    require_agreement(job, config)


CHANGED = [
    ("model.tensor_model_parallel_size", 8, ("tensor parallelism", "4", "8")),
    ("model.pipeline_model_parallel_size", 4, ("pipeline parallelism", "8", "4")),
    ("model.virtual_pipeline_model_parallel_size", None, ("virtual pipeline stages", "5", "1")),
    ("model.context_parallel_size", 2, ("context parallelism", "1", "2")),
    ("data_parallel_size", 1, ("data parallelism", "2", "1")),
    ("ddp.use_megatron_fsdp", True, ("Megatron-FSDP", "off", "on")),
    ("train.micro_batch_size", 2, ("micro batch size", "1", "2")),
    ("train.global_batch_size", 64, ("global batch size", "128", "64")),
    ("model.seq_length", 4096, ("sequence length of the model", "8192", "4096")),
    ("dataset.sequence_length", 4096, ("sequence length of the data", "8192", "4096")),
    ("model.num_layers", 40, ("layers", "80", "40")),
    ("model.hidden_size", 4096, ("hidden size", "8192", "4096")),
    ("model.num_attention_heads", 32, ("attention heads", "64", "32")),
    ("model.fp8", None, ("precision", "fp8 (cs)", "bf16")),
    ("model.fp8_recipe", Recipe.delayed, ("precision", "fp8 (cs)", "fp8 (ds)")),
    ("model.fp4", "e2m1", ("precision", "fp8 (cs)", "nvfp4")),
    ("model.recompute_granularity", "selective", ("recomputed layers", "5", "selective recomputation")),
    ("model.cuda_graph_impl", "local", ("CUDA graphs", "off", "on")),
    ("rng.seed", 1, ("seed", "1234", "1")),
]


@pytest.mark.parametrize(("field", "value", "found"), CHANGED, ids=[name for name, *_ in CHANGED])
def test_each_setting_is_compared(job: Job, config: Any, field: str, value: Any, found: tuple[str, str, str]) -> None:
    section, _, name = field.rpartition(".")
    setattr(getattr(config, section) if section else config, name, value)
    assert contradictions(job, config) == [found]
    with pytest.raises(Contradiction) as refused:
        require_agreement(job, config)
    assert refused.value.exit_status == 3
    assert f"use the container {job.release.container}, which" in str(refused.value)
    heading, row = str(refused.value).splitlines()[1:3]
    assert heading.split() == ["setting", "planned", "resolved"]
    assert [row.index(text) for text in found[:2]] == [heading.index("setting"), heading.index("planned")]


def test_offloading_and_recomputation_count_their_layers(job: Job, config: Any) -> None:
    config.model.cpu_offloading, config.model.cpu_offloading_num_layers = True, 20
    config.model.recompute_num_layers = 3
    assert contradictions(job, config) == [("recomputed layers", "5", "3"), ("offloaded layers", "0", "20")]
    config.model.recompute_granularity = None
    assert contradictions(job, config)[0] == ("recomputed layers", "5", "0")


def test_a_field_that_another_release_lacks_contradicts_nothing(job: Job, config: Any) -> None:
    empty = SimpleNamespace()
    fields = dict.fromkeys(("model", "ddp", "train", "dataset", "rng"), empty)
    assert contradictions(job, SimpleNamespace(**fields)) == []


@pytest.mark.parametrize(
    ("recipe", "name"), [("delayed", "ds"), ("mxfp8", "mx"), ("blockwise", "sc"), ("of another release", None)]
)
def test_scalings_of_fp8_have_our_names(job: Job, config: Any, recipe: str, name: str | None) -> None:
    config.model.fp8_recipe = recipe
    assert contradictions(job, config) == [("precision", "fp8 (cs)", f"fp8 ({name or recipe})")]
    config.model.fp8, config.model.bf16 = None, False
    assert contradictions(job, config) == [("precision", "fp8 (cs)", "neither bf16, fp8 nor nvfp4")]


def test_experts_are_compared_where_a_model_has_them(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, "grok1", GPU_TYPE="h100", DTYPE="bf16", JOB_TOTAL_GPUS="512")
    grok = parse_job(job_document(plan, dry_run_paths(plan.workload_folder, plan.experiment_name)))
    empty = SimpleNamespace()
    model = SimpleNamespace(expert_model_parallel_size=1, num_moe_experts=16, moe_router_topk=1)
    fields = dict.fromkeys(("ddp", "train", "dataset", "rng"), empty)
    assert contradictions(grok, SimpleNamespace(model=model, **fields)) == [
        ("expert parallelism", "8", "1"),
        ("experts", "8", "16"),
        ("experts a token", "2", "1"),
    ]
