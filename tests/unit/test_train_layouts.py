"""Layout columns as fields of the model provider, with a stand-in for torch's one dtype."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmb_common.rendering.job import job_document
from llmb_common.runs.paths import dry_run_paths
from llmb_train.errors import JobError
from llmb_train.job import Job, parse_job
from support.runs import plan_for

NAME = "llmb_train.settings.parallelism"


@pytest.fixture
def parallelism(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    before = sys.modules.pop(NAME, None)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(bfloat16="bfloat16"))
    yield importlib.import_module(NAME)
    del sys.modules[NAME]
    if before is not None:
        sys.modules[NAME] = before


def job(folder: Path, *, layers: int = 126, performance: Any = None, **layout: Any) -> Job:
    """Llama 3.1 405b with another layout."""
    plan = plan_for(folder, GPU_TYPE="b200", JOB_TOTAL_GPUS="128")
    made = parse_job(job_document(plan, dry_run_paths(plan.workload_folder, plan.experiment_name)))
    assert isinstance(made, Job)
    flat: dict[str, Any] = {"tp": 1, "pp": 1, "vp": None, "cp": 1, "ep": None, "etp": None, "fsdp": False}
    quiet = {"cuda_graph": False, "recompute_layers": 0, "offload_layers": 0, **(performance or {})}
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
        (126, {}, {}),
        (
            126,
            {"tp": 2, "cp": 4},
            {"tensor_model_parallel_size": 2, "sequence_parallel": True, "context_parallel_size": 4},
        ),
        (126, {"vp": 1}, {}),
        (126, {"pp": 2}, {"pipeline_model_parallel_size": 2}),
        (126, {"pp": 2, "vp": 3}, {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 3}),
        (126, {"pp": 8}, {"pipeline_model_parallel_size": 8, **SPLIT}),
        (
            126,
            {"pp": 8, "vp": 8},
            {"pipeline_model_parallel_size": 8, "virtual_pipeline_model_parallel_size": 8, **SPLIT},
        ),
        (2, {"pp": 2}, {"pipeline_model_parallel_size": 2}),
    ],
)
def test_columns_become_fields(parallelism, tmp_path, layers, layout, others):
    assert parallelism.fields(job(tmp_path, layers=layers, **layout)) == FLAT | others


def test_layers_that_fill_no_stages_are_refused(parallelism: Any, tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        parallelism.fields(job(tmp_path, pp=5, vp=2))
    assert str(caught.value) == (
        "126 layers do not divide into PP * VP = 5 * 2 stages, and neither do 128, with embedding and loss as a layer "
        "each\n  -> choose PP and VP whose product divides one of the two"
    )
    with pytest.raises(JobError, match=r"PP \* VP = 5 \* 1 stages"):
        parallelism.fields(job(tmp_path, pp=5))


def test_layers_are_recomputed_or_offloaded_as_the_columns_say(parallelism: Any, tmp_path: Path) -> None:
    recomputed = parallelism.fields(job(tmp_path, performance={"recompute_layers": 7}))
    assert recomputed == FLAT | {
        "recompute_granularity": "full",
        "recompute_method": "block",
        "recompute_num_layers": 7,
    }
    offloaded = parallelism.fields(job(tmp_path, performance={"offload_layers": 125}))
    assert offloaded == FLAT | {
        "cpu_offloading": True,
        "cpu_offloading_weights": False,
        "cpu_offloading_num_layers": 125,
    }
    with pytest.raises(
        JobError, match="126 layers to offload, but the model has 126\n  -> set OFFLOAD_LAYERS to at most 125"
    ):
        parallelism.fields(job(tmp_path, performance={"offload_layers": 126}))


@pytest.mark.parametrize(("ep", "size"), [(None, 1), (4, 4)])
def test_experts_have_a_layout_of_their_own(parallelism: Any, tmp_path: Path, ep: int | None, size: int) -> None:
    dense = job(tmp_path, ep=ep, etp=2)
    sparse = replace(dense, architecture=replace(dense.architecture, moe=object()))
    assert parallelism.fields(sparse) == FLAT | {"expert_model_parallel_size": size, "expert_tensor_parallel_size": 2}
    assert parallelism.fields(dense) == FLAT
