"""Another sequence length than documented: other work, with its own name and key, and figures that follow it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from llmb_common.base.errors import RequestError
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.published import published_results
from llmb_common.recipes.loading import load_recipe
from llmb_common.results.configuration import configuration_key, title_of
from llmb_common.results.references import baselines_for, published_references, set_baselines, worth_of
from llmb_common.results.scaling import ScaledRun, scaling
from llmb_common.results.scatter import PastRuns
from llmb_common.results.verdict import figures
from llmb_run.starting.command_line import columns_of, command_for
from llmb_run.starting.sweeps import dimension
from support.cli import Cli
from support.plans import LAPTOP, ROOT, notes, plan, refusal
from support.runs import PUBLISHED, make_run, took
from support.texts import Texts

LLAMA = load_recipe(ROOT / "llama3.1")
MBRIDGE = load_recipe(ROOT / "mbridge")
BIG = "JOB_TOTAL_GPUS=128 GPU_TYPE=gb200 DTYPE=fp8"  # 405B, documented and published with 8192 tokens
SEVENTY = "mbridge MODEL_SIZE=llama3_70b GPU_TYPE=h100 DTYPE=bf16 JOB_TOTAL_GPUS=64"
GPT_OSS = "mbridge MODEL_SIZE=gpt_oss_120b GPU_TYPE=h100 DTYPE=bf16 JOB_TOTAL_GPUS=64"


def figures_of(made: JobPlan, seconds: float = 10.0) -> Any:
    recipe = MBRIDGE if made.recipe == "mbridge" else LLAMA
    return figures(made, recipe, SimpleNamespace(tflops=None), seconds)  # type: ignore[arg-type]


# Other work


def test_another_length_is_other_work_with_its_own_name_and_key(texts: Texts) -> None:
    documented, other = plan(BIG), plan(BIG, SEQ_LENGTH="4096")
    assert (documented.seq_len, other.seq_len) == (8192, 4096)
    assert other.experiment_name == f"{documented.experiment_name}_seq4096"
    assert configuration_key(other) != configuration_key(documented)
    texts(title_of(other))
    texts(notes(BIG, SEQ_LENGTH="4096"))


def test_no_published_result_is_compared_with_it() -> None:
    documented, other = plan(BIG), plan(BIG, SEQ_LENGTH="4096")
    assert published_references(documented, LLAMA)
    assert published_references(other, LLAMA) == published_results(other, LLAMA) == []
    assert other.preflight.reference_step_seconds is None
    nearest = other.preflight.published
    assert nearest is not None
    assert nearest.likeness == "nearest", "its step time is no estimate"
    assert [(item.name, item.published, item.planned) for item in nearest.differs] == [
        ("sequence length", "8192", "4096")
    ]


def test_nor_with_a_function_of_another_length() -> None:
    of_function = {"DTYPE": "fp8", "FP8_RECIPE": "cs"}
    assert published_results(plan(SEVENTY, **of_function), MBRIDGE)
    assert published_results(plan(SEVENTY, **of_function, SEQ_LENGTH="4096"), MBRIDGE) == []


def test_a_change_of_it_has_no_published_worth() -> None:
    for length, known in (("8192", True), ("4096", False)):
        one = plan(BIG, **({} if known else {"SEQ_LENGTH": length}))
        other = msgspec.structs.replace(one, image="nvcr.io#nvidia/nemo:25.09")
        assert (worth_of(one, other, LLAMA) is not None) == known


def test_the_documented_length_said_aloud_is_the_documented_job() -> None:
    documented, said = plan(BIG), plan(BIG, SEQ_LENGTH="8192")
    assert (said.experiment_name, configuration_key(said)) == (
        documented.experiment_name,
        configuration_key(documented),
    )
    assert published_references(said, LLAMA) == published_references(documented, LLAMA)
    assert "other work" not in notes(BIG, SEQ_LENGTH="8192")


def test_its_baselines_are_its_own(tmp_path: Path) -> None:
    record = make_run(tmp_path, variables={**PUBLISHED, "SEQ_LENGTH": "4096"})
    (made,) = set_baselines(tmp_path, [(record, took(5.0))])
    software = made.software
    assert baselines_for(record.plan, software, [made], PastRuns())
    assert baselines_for(plan(BIG), software, [made], past=None) == []  # type: ignore[arg-type]


def test_no_line_over_scales_mixes_lengths() -> None:
    def run(**asked: str) -> ScaledRun:
        made = plan("DTYPE=fp8 GPU_TYPE=gb200", **asked)
        return ScaledRun(made, LLAMA, "nemo:26.02.01", 5.0, took(5.0))

    both = [run(JOB_TOTAL_GPUS="128"), run(JOB_TOTAL_GPUS="256", SEQ_LENGTH="4096")]
    assert list(scaling(both)) == []
    (line,) = scaling([run(JOB_TOTAL_GPUS=gpus, SEQ_LENGTH="4096") for gpus in ("128", "256")])
    assert line.published == ()


# What follows it


def test_tokens_and_days_follow_the_length() -> None:
    documented, other = figures_of(plan(BIG)), figures_of(plan(BIG, SEQ_LENGTH="4096"))
    assert documented.tokens_per_second / other.tokens_per_second == pytest.approx(2)
    assert other.days_1t / documented.days_1t == pytest.approx(2)
    assert documented.tflops_per_gpu / other.tflops_per_gpu > 2, "attention is quadratic"


def test_flops_of_a_function_follow_the_length() -> None:
    documented, other = plan(SEVENTY).function, plan(SEVENTY, SEQ_LENGTH="16384").function
    assert documented is not None
    assert other is not None
    more = 6 * 80 * 64 * 128 * (16384 - 8192)  # layers, heads, head size; half of the tokens, queries and values
    assert other.own_flops_per_token == documented.own_flops_per_token + more
    assert other.flops_per_token == documented.flops_per_token + more
    assert other.sequence_length == 8192, "the ranks compare the function's own"


@pytest.mark.parametrize(("length", "known"), [("256", True), ("128", False)])
def test_flops_are_not_guessed_where_the_formula_does_not_hold(length: str, known: bool) -> None:
    """Every second layer of GPT-OSS looks at 128 tokens at most."""
    made = plan(GPT_OSS, SEQ_LENGTH=length)
    assert made.function is not None
    assert ((made.function.flops_per_token is not None), figures_of(made).tflops_per_gpu is not None) == (known, known)


def test_activations_follow_the_length() -> None:
    found = [plan(SEVENTY, SEQ_LENGTH=length).preflight.memory for length in ("8192", "16384")]
    short, long = (memory.fullest for memory in found if memory is not None)
    assert long.activations == pytest.approx(2 * short.activations)
    assert (long.weights, long.optimizer) == (short.weights, short.optimizer)


# What divides


@pytest.mark.parametrize(
    ("request_", "answers"),
    [
        (f"{SEVENTY} CP=2 SEQ_LENGTH=4100", ("not divisible by TP*CP = 8", "SEQ_LENGTH 4096 or 4112")),
        (f"{SEVENTY} TP=1 PP=4 CP=4 SEQ_LENGTH=4092", ("2*CP = 8",)),
        (f"{BIG} SEQ_LENGTH=1004", ("FP8 needs a multiple of 8", "multiple of 16 as SEQ_LENGTH")),
        ("mbridge MODEL_SIZE=llama3_8b GPU_TYPE=gb200 DTYPE=fp8 FP8_RECIPE=mx JOB_TOTAL_GPUS=8 SEQ_LENGTH=1000",
         ("MXFP8 needs a multiple of 32", "SEQ_LENGTH 992 or 1008")),
        ("mbridge MODEL_SIZE=llama3_8b GPU_TYPE=gb200 DTYPE=nvfp4 JOB_TOTAL_GPUS=8 SEQ_LENGTH=1001",
         ("NVFP4 needs a multiple of 16",)),
        ("llama4 GPU_TYPE=gb200 JOB_TOTAL_GPUS=128 SEQ_LENGTH=12288",
         ("attention chunks of 8192 tokens", "at most 8192 tokens, or a multiple")),
        ("mbridge MODEL_SIZE=qwen3_vl_30b_a3b GPU_TYPE=h100 DTYPE=bf16 JOB_TOTAL_GPUS=16 SEQ_LENGTH=2048",
         ("trains on images", "leave SEQ_LENGTH out")),
        ("laptop mbridge MODEL_SIZE=smoke JOB_TOTAL_GPUS=2 TP=2 SEQ_LENGTH=63", ("not divisible by TP*CP = 2",)),
    ],
)  # fmt: skip
def test_what_does_not_divide_is_refused_with_what_does(request_: str, answers: tuple[str, ...]) -> None:
    said = refusal(request_)
    assert [answer for answer in answers if answer not in said] == [], said


@pytest.mark.parametrize("length", ["4096", "8192", "16384"])
def test_chunks_of_attention_that_fit_are_taken(length: str) -> None:
    made = plan("llama4 GPU_TYPE=gb200 JOB_TOTAL_GPUS=128", SEQ_LENGTH=length, PREFLIGHT="off")
    assert made.seq_len == int(length)


def test_a_small_copy_has_the_length_that_is_asked_for() -> None:
    assert plan("mbridge", LAPTOP, MODEL_SIZE="smoke", JOB_TOTAL_GPUS="1", SEQ_LENGTH="96").seq_len == 96


# How it is asked for


@pytest.mark.parametrize("name", ["seq_length", "seq_len", "SEQ_LENGTH", "seq-length"])
def test_both_names_mean_it(name: str) -> None:
    assert columns_of([f"{name}=4096"]) == {"seq_len": "4096"}
    assert dimension(name) == "seq_len"


def test_twice_is_refused_under_either_name(texts: Texts) -> None:
    with texts.raises(RequestError):
        columns_of(["seq_len=4096", "seq_length=4096"])


JOB = ("-w", "llama3.1", "-s", "8b", "--dtype", "bf16", "--gpu-type", "h100", "--scale", "8")


def test_option_variable_sweep_and_task_file_plan_the_same_job(cli: Cli, tmp_path: Path) -> None:
    cli.patch.setenv("CLUSTER_TYPE", "slurm")
    tasks = tmp_path / "tasks.yaml"
    tasks.write_text(
        "tasks:\n  - {workload: llama3.1, size: 8b, dtype: bf16, gpu_type: h100, scale: 8, set: {seq_length: 4096}}\n"
    )
    option = cli("plan", *JOB, "--set", "seq_length=4096", "--json").data["plan"]
    variable = cli("plan", *JOB, "--json", SEQ_LENGTH="4096").data["plan"]
    (swept,) = cli("sweep", *JOB, "--vary", "seq_length=4096", "--dry-run", "--json").data["planned"]
    (bulk,) = cli("bulk", tasks, "--dry-run", "--json").data["jobs"]
    known = [option, variable, swept["plan"], bulk["plan"]]
    assert {(made["seq_len"], made["experiment_name"], *made["overridden"]) for made in known} == {
        (4096, option["experiment_name"], "seq_len")
    }
    assert option["experiment_name"].endswith("_seq4096")


def test_the_command_of_a_plan_asks_for_its_length(cli: Cli) -> None:
    words = command_for(plan(SEVENTY, SEQ_LENGTH="4096"), MBRIDGE).split()[2:]
    data = cli("plan", *words, "--json", CLUSTER_TYPE="slurm").data
    assert data["plan"]["seq_len"] == 4096
    assert {"name": "sequence length", "value": "4096", "source": "set"} in data["sources"]


def test_runs_are_found_by_it(cli: Cli) -> None:
    make_run(cli.install)
    longer = make_run(cli.install, variables={**PUBLISHED, "SEQ_LENGTH": "4096"}, job_id="102")
    found = cli("jobs", "--where", "seq_length=4096", "--json").data["runs"]
    assert [job["run_id"] for job in found] == [longer.paths.run_id]
