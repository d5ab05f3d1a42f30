"""What a rank rejects before it imports torch, as it would on a GPU with Transformer Engine. Needs no engine."""

from __future__ import annotations

from typing import Any

import pytest
from training_jobs import make_job

from llmb_train.engine import Engine
from llmb_train.errors import JobError
from llmb_train.job import parse_job
from llmb_train.settings import refusals

GPU = Engine(device="cuda", transformer_engine=True)
ON_GPU = {"device": "cuda", "gpu_type": "h100"}


def refusal(name: str = "llama3", **changes: Any) -> str:
    with pytest.raises(JobError) as caught:
        refusals.check(parse_job(make_job(name, **ON_GPU, **changes)), GPU)
    return str(caught.value)


def test_experts_that_are_gathered_late_are_named_in_the_log() -> None:
    """Only if there are experts and parameters are gathered in the optimizer step."""
    layout = {"world_size": 64, "batch": {"gbs": 64}}
    late = "gathered one update late"
    for family, pipeline, noted in (("grok1", 2, True), ("grok1", None, False), ("llama3", 2, False)):
        moe = {"ep": 4} if family == "grok1" else {}
        job = make_job(family, **ON_GPU, **layout, parallelism={"pp": 2, "vp": pipeline, **moe})
        assert any(late in line for line in refusals.notices(parse_job(job), GPU)) is noted


@pytest.mark.parametrize(
    ("core", "why"),
    [
        ("0.16.1", "megatron-core 0.16.1 waits inside the graph for an all-gather that was started outside it"),
        ("0.17.1", "megatron-core 0.17.1 cannot capture Megatron-FSDP's gradients"),
        ("0.18.2", "Megatron-Bridge leaves off what megatron-core 0.18.2 needs for it"),
        ("0.19.0", "Megatron-Bridge leaves off what megatron-core 0.19.0 needs for it"),
        (None, "megatron-core of unknown version"),
    ],
)
def test_fsdp_with_cuda_graphs_is_refused_with_what_the_engine_lacks(
    monkeypatch: pytest.MonkeyPatch, core: str | None, why: str
) -> None:
    monkeypatch.setattr(refusals, "package_version", lambda name: core)
    message = refusal(parallelism={"fsdp": True}, performance={"cuda_graph": True})
    assert "Megatron-FSDP and CUDA graphs cannot be combined" in message
    assert why in message
    for alone in ({"parallelism": {"fsdp": True}}, {"performance": {"cuda_graph": True}}):
        refusals.check(parse_job(make_job(**ON_GPU, **alone)), GPU)


def test_graphs_of_single_layers_are_refused_where_the_release_refuses_them() -> None:
    graphs = {"performance": {"cuda_graph": True}}
    message = refusal("grok1", engine="0.6", **graphs)
    assert "Megatron-Bridge 0.6 has megatron-core's own CUDA graphs for whole iterations only, and grok1" in message
    for name, engine in (("grok1", "0.3"), ("llama3", "0.6")):
        refusals.check(parse_job(make_job(name, **ON_GPU, engine=engine, **graphs)), GPU)


def test_attention_chunks_must_not_be_cut() -> None:
    """Those of this Llama 4 have 64 tokens."""
    assert "sequence_length 100 is not a multiple of attention_chunk 64" in refusal("llama4", sequence_length=100)
    cut = {"world_size": 2, "parallelism": {"cp": 2}, "sequence_length": 128}
    assert "context parallelism would cut the attention chunks of 64 tokens" in refusal("llama4", **cut)
    refusals.check(parse_job(make_job("llama4", **ON_GPU, **{**cut, "sequence_length": 64})), GPU)
