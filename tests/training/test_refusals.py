"""What a rank rejects before it imports torch, as it would on a GPU with Transformer Engine. Needs no engine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from training_jobs import make_job

from llmb_train.engine import Engine
from llmb_train.errors import JobError
from llmb_train.job import Job, parse_job
from llmb_train.settings import capabilities, fusions, refusals
from llmb_train.versions import says

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


GRAPHS = {"performance": {"cuda_graph": True}}
OF_0_6 = {
    "core/transformer/transformer_config.py": "    cuda_graph_modules: list[str]\n    cuda_graph_scope: None\n",
    "bridge/utils/cuda_graph.py": "def validate_cuda_graph_configuration(config): ...\n",
    "bridge/training/config.py": "    def _validate_and_apply_megatron_fsdp_configs(self): ...\n",
}
OF_0_3 = {
    "core/transformer/transformer_config.py": "    cuda_graph_scope: list[str]\n    cuda_graph_modules2: int\n",
    "bridge/training/config.py": "",
}


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, str]], None]]:
    """Puts a Megatron of these sources where this Python would import it from."""
    known = {name for name in sys.modules if name.partition(".")[0] == "megatron"}

    def put(files: dict[str, str]) -> None:
        for name, text in files.items():
            path = tmp_path / "megatron" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        says.cache_clear()

    yield put
    for name in {name for name in sys.modules if name.partition(".")[0] == "megatron"} - known:
        del sys.modules[name]
    says.cache_clear()


@pytest.mark.parametrize("engine", ["0.6", "0.7", "1.3"])
def test_graphs_of_single_layers_are_refused_where_the_source_refuses_them(
    sources: Callable[[dict[str, str]], None], engine: str
) -> None:
    sources(OF_0_6)
    message = refusal("grok1", engine=engine, **GRAPHS)
    assert (
        f"Megatron-Bridge {engine} has megatron-core's own CUDA graphs for whole iterations only, and grok1" in message
    )
    refusals.check(parse_job(make_job("llama3", **ON_GPU, engine=engine, **GRAPHS)), GPU)


@pytest.mark.parametrize("engine", ["0.3", "0.7"])
def test_graphs_of_single_layers_are_taken_where_the_source_has_them(
    sources: Callable[[dict[str, str]], None], engine: str
) -> None:
    sources(OF_0_3)
    refusals.check(parse_job(make_job("grok1", **ON_GPU, engine=engine, **GRAPHS)), GPU)


@pytest.mark.parametrize(
    ("files", "implementation", "field", "aware"),
    [(OF_0_3, "local", "cuda_graph_scope", False), (OF_0_6, "full_iteration", "cuda_graph_modules", True)],
    ids=["old names", "new names"],
)
def test_fields_have_the_names_that_the_source_has(
    sources: Callable[[dict[str, str]], None], files: dict[str, str], implementation: str, field: str, aware: bool
) -> None:
    sources(files)
    found = capabilities.fields()
    assert (found.iteration_graph["cuda_graph_impl"], found.fsdp_precision_aware) == (implementation, aware)
    assert all(set(graphs) == {"cuda_graph_impl", field} for graphs in (found.no_graphs, found.iteration_graph))
    job = parse_job(make_job("llama3", **ON_GPU, engine="0.7", **GRAPHS))
    assert isinstance(job, Job)
    assert fusions.fields(job, GPU)["cuda_graph_impl"] == implementation


def test_attention_chunks_must_not_be_cut() -> None:
    """Those of this Llama 4 have 64 tokens."""
    assert "sequence_length 100 is not a multiple of attention_chunk 64" in refusal("llama4", sequence_length=100)
    cut = {"world_size": 2, "parallelism": {"cp": 2}, "sequence_length": 128}
    assert "context parallelism would cut the attention chunks of 64 tokens" in refusal("llama4", **cut)
    refusals.check(parse_job(make_job("llama4", **ON_GPU, **{**cut, "sequence_length": 64})), GPU)
