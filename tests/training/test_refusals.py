"""What a rank rejects before it imports torch, as it would on a GPU with Transformer Engine. Needs no engine."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from training_jobs import make_function_job, make_job

from llmb_train import refusals, settings
from llmb_train.engine import RELEASES, Engine, source_has_word
from llmb_train.errors import JobError
from llmb_train.job import Job, parse_job
from support.texts import Texts

GPU = Engine(device="cuda", transformer_engine=True)
GPU_ALONE = Engine(device="cuda", transformer_engine=False)
CPU = Engine(device="cpu", transformer_engine=False)
ON_GPU = {"device": "cuda", "gpu_type": "h100"}
FP8 = {"dtype": "fp8", "fp8_recipe": "cs"}


def refusal(name: str = "llama3", **changes: Any) -> str:
    with pytest.raises(JobError) as caught:
        refusals.check(parse_job(make_job(name, **ON_GPU, **changes)), GPU)
    return str(caught.value)


def test_experts_that_are_gathered_late_are_named_in_the_log() -> None:
    """Only if there are experts and parameters are gathered in the optimizer step."""
    layout = {"world_size": 64, "batch": {"gbs": 64}}
    for family, pipeline, noted in (("grok1", 2, True), ("grok1", None, False), ("llama3", 2, False)):
        moe = {"ep": 4} if family == "grok1" else {}
        job = make_job(family, **ON_GPU, **layout, parallelism={"pp": 2, "vp": pipeline, **moe})
        assert any("experts" in line for line in refusals.notices(parse_job(job), GPU)) is noted


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
        source_has_word.cache_clear()

    yield put
    for name in {name for name in sys.modules if name.partition(".")[0] == "megatron"} - known:
        del sys.modules[name]
    source_has_word.cache_clear()


@pytest.mark.parametrize("engine", ["0.6", "0.7", "1.3"])
def test_graphs_of_single_layers_are_refused_where_the_source_refuses_them(sources, engine):
    sources(OF_0_6)
    message = refusal("grok1", engine=engine, **GRAPHS)
    assert all(name in message for name in (f"Megatron-Bridge {engine} ", "grok1", "CUDA_GRAPH=false"))
    refusals.check(parse_job(make_job("llama3", **ON_GPU, engine=engine, **GRAPHS)), GPU)


@pytest.mark.parametrize("engine", ["0.3", "0.7"])
def test_graphs_of_single_layers_are_taken_where_the_source_has_them(sources, engine):
    sources(OF_0_3)
    refusals.check(parse_job(make_job("grok1", **ON_GPU, engine=engine, **GRAPHS)), GPU)


@pytest.mark.parametrize(
    ("files", "implementation", "field", "aware"),
    [(OF_0_3, "local", "cuda_graph_scope", False), (OF_0_6, "full_iteration", "cuda_graph_modules", True)],
    ids=["old names", "new names"],
)
def test_fields_have_the_names_that_the_source_has(sources, files, implementation, field, aware):
    sources(files)
    for graphs, expected in ((GRAPHS, implementation), ({}, "none")):
        job = parse_job(make_job("llama3", **ON_GPU, engine="0.7", parallelism={"fsdp": True}, **graphs))
        assert isinstance(job, Job)
        fields = settings.cuda_graph_fields(job)
        assert (fields["cuda_graph_impl"], set(fields)) == (expected, {"cuda_graph_impl", field, "use_te_rng_tracker"})
        assert settings.precision_aware(job, GPU) is aware


@pytest.mark.parametrize(("dtype", "recipe"), [("fp8", "sc"), ("fp8", None), ("bf16", "cs")])
def test_a_precision_that_has_no_configuration_is_refused(dtype: str, recipe: str | None) -> None:
    message = refusal("llama3", precision={"dtype": dtype, "fp8_recipe": recipe})
    assert re.search(rf"\b{dtype}\b.*\b{recipe or 'null'}\b", message)


OFFLOAD, CAPTURED = {"offload_layers": 1}, {"cuda_graph": True}


@pytest.mark.parametrize("engine", [CPU, GPU_ALONE], ids=["cpu", "gpu"])
@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"precision": FP8}, "DTYPE=bf16"),
        ({"performance": CAPTURED}, "CUDA_GRAPH=false"),
        ({"performance": OFFLOAD}, "OFFLOAD_LAYERS=0"),
        ({"parallelism": {"fsdp": True}, "checkpoint": {"save": "/c"}}, "FSDP=false"),
    ],
    ids=["fp8", "graphs", "offload", "sharded checkpoints"],
)
def test_what_needs_transformer_engine_is_refused_without_it(texts, engine, changes, setting):
    device = ON_GPU if engine.device == "cuda" else {}
    with texts.raises(JobError) as caught:
        refusals.check(parse_job(make_job(**device, **changes)), engine)
    assert f" {setting}" in caught.value.remedy
    refusals.check(parse_job(make_job(**ON_GPU, **changes)), GPU)
    for alone in ({}, {"parallelism": {"fsdp": True}}, {"checkpoint": {"save": "/c"}}):
        refusals.check(parse_job(make_job(**device, **alone)), engine)


def named(family: str, of: str, **changes: Any) -> Any:
    function = {"name": f"{family}_{of}_8gpu_h100_bf16_config", **changes.pop("function", {})}
    return parse_job(make_function_job(function=function, **changes) | {"family": family})


@pytest.mark.parametrize(
    ("job", "engine"),
    [
        pytest.param(named("llama3_8b", "peft", checkpoint={"load": "/nowhere"}), GPU, id="no checkpoint"),
        pytest.param(named("nemotronh_56b", "pretrain"), CPU, id="nemotronh_56b"),
        pytest.param(named("qwen3_next_80b_a3b", "pretrain"), CPU, id="qwen3_next_80b_a3b"),
        pytest.param(named("qwen35_vl_35b_a3b", "pretrain"), CPU, id="qwen35_vl_35b_a3b"),
        pytest.param(named("qwen3_vl_30b_a3b", "pretrain"), CPU, id="qwen3_vl_30b_a3b"),
        pytest.param(named("glm51", "sft"), CPU, id="glm51"),
        pytest.param(named("deepseek_v4_pro", "pretrain"), CPU, id="deepseek_v4_pro"),
        pytest.param(named("wan_14b", "pretrain"), GPU_ALONE, id="wan_14b"),
        pytest.param(named("llama3_8b", "pretrain", function={"reduced": None}), CPU, id="too large"),
        pytest.param(named("llama3_8b", "pretrain", **ON_GPU, parallelism={"fsdp": True}), GPU_ALONE, id="sharded"),
    ],
)
def test_a_function_that_this_engine_cannot_train_is_refused(texts: Texts, job: Any, engine: Engine) -> None:
    with texts.raises(JobError):
        refusals.check(job, engine)
    if job.checkpoint.load is None and not job.adapters:
        refusals.check(job, GPU)


def test_adapters_are_for_transformer_engines_layers_only(tmp_path: Any) -> None:
    (tmp_path / "iter_0000007").mkdir()
    (tmp_path / "iter_0000007" / "__0_0.distcp").touch()
    job = named("llama3_8b", "peft", checkpoint={"load": str(tmp_path / "iter_0000007")})
    refusals.check(job, GPU)
    with pytest.raises(JobError, match="adapters") as caught:
        refusals.check(job, CPU)
    assert "container" in caught.value.remedy


def test_a_model_that_modelopt_changed_is_not_loaded_without_it(tmp_path: Path) -> None:
    checkpoint = tmp_path / "iter_0000002"
    checkpoint.mkdir()
    (checkpoint / "__0_0.distcp").touch()
    job = parse_job(make_job(checkpoint={"load": str(checkpoint)}))
    refusals.check(job, CPU)
    (checkpoint / "modelopt_state").mkdir()
    with pytest.raises(JobError, match="ModelOpt"):
        refusals.check(job, CPU)
    refusals.check(job, GPU)


def test_reduced_copies_train_on_cpus_sharded_or_not() -> None:
    for fsdp in (True, False):
        refusals.check(named("llama3_8b", "pretrain", parallelism={"fsdp": fsdp}), CPU)
    refusals.check(named("llama3_8b", "pretrain", **ON_GPU), GPU_ALONE)


def test_a_profile_ends_with_the_run_or_before() -> None:
    profile = {"tool": "nsys", "start": 3, "ranks": None}
    refusals.check(parse_job(make_job(**ON_GPU, profile={**profile, "stop": 5})), GPU)
    message = refusal(profile={**profile, "stop": 6})
    assert re.findall(r"\d+", message) == ["6", "5"]
    assert "PROFILE_STOP_STEP" in message


@pytest.fixture
def tested_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the settings are written for."""
    monkeypatch.setattr(refusals, "_untested", lambda job, engine: [])


NSYS = {"profile": {"tool": "nsys", "start": 1, "stop": 2, "ranks": None}}
TORCH = {"profile": {"tool": "torch", "start": 1, "stop": 2, "ranks": None}}


@pytest.mark.parametrize(
    ("job", "engine", "notices"),
    [
        pytest.param(make_job(**ON_GPU), GPU, 0, id="gpu"),
        pytest.param(make_job(**ON_GPU, **NSYS), GPU, 0, id="gpu, nsys"),
        pytest.param(make_job(**ON_GPU), GPU_ALONE, 1, id="gpu alone"),
        pytest.param(make_job(), CPU, 1, id="cpu"),
        pytest.param(make_job(**TORCH), CPU, 1, id="cpu, torch's profiler"),
        pytest.param(make_job(**NSYS), CPU, 2, id="cpu, nsys"),
        pytest.param(make_job("grok1", **ON_GPU, performance={"moe_routing": "balanced"}), GPU, 1, id="gpu, balanced"),
        pytest.param(make_function_job(**ON_GPU, function={"reduced": None}), GPU, 0, id="gpu, whole function"),
        pytest.param(make_function_job(**ON_GPU), GPU, 1, id="gpu, reduced function"),
        pytest.param(make_function_job("deepseek_v3"), CPU, 3, id="cpu, reduced function"),
    ],
)
@pytest.mark.usefixtures("tested_versions")
def test_the_log_says_what_its_reader_must_know(
    texts: Texts, job: dict[str, Any], engine: Engine, notices: int
) -> None:
    said = refusals.notices(parse_job(job), engine)
    assert len(said) == notices
    if said:
        texts("\n".join(said))


def test_untested_versions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"megatron-bridge": "0.3.1", "megatron-core": None}
    monkeypatch.setattr(refusals, "package_version", versions.get)
    (line,) = refusals.notices(parse_job(make_job(**ON_GPU)), GPU)
    assert line.startswith("megatron-core ")
    assert RELEASES[0].bridge == "0.3"
