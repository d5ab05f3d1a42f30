"""Settings of the framework by name (``--megatron``): how they are written, what each takes, what a plan has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmb_common.base.errors import RequestError
from llmb_common.planning.settings import fields_of_release, value_of
from llmb_common.planning.site.cluster import SiteRelease, cluster_config
from llmb_common.recipes.loading import load_recipe
from llmb_common.results.configuration import configuration_key, title_of
from llmb_common.results.references import published_references
from llmb_common.runs.paths import dry_run_paths
from llmb_common.submission.job_files import job_document
from support.cli import Cli
from support.plans import ROOT, plan, refusal
from support.texts import Texts

LLAMA = {"JOB_TOTAL_GPUS": "64", "GPU_TYPE": "h100", "MODEL_SIZE": "70b", "DTYPE": "fp8"}
LLAMA31 = {"JOB_TOTAL_GPUS": "8", "GPU_TYPE": "h100", "MODEL_SIZE": "llama3_8b", "DTYPE": "bf16"}
DEEPSEEK = {"JOB_TOTAL_GPUS": "1024", "GPU_TYPE": "h100", "MODEL_SIZE": "deepseek_v3", "DTYPE": "bf16"}


def test_settings_are_in_the_plan_the_job_the_name_and_the_title() -> None:
    made = plan("mbridge", **DEEPSEEK, MEGATRON_SETTINGS="model.moe_token_dispatcher_type=alltoall;ddp.bucket_size=4")
    assert made.megatron == {"model.moe_token_dispatcher_type": "alltoall", "ddp.bucket_size": 4}
    assert job_document(made, dry_run_paths("/w", made.experiment_name))["megatron"] == made.megatron
    assert made.experiment_name.endswith("_ddp.bucket_size-4_model.moe_token_dispatcher_type-alltoall")
    assert title_of(made).endswith(", ddp.bucket_size=4, model.moe_token_dispatcher_type=alltoall")


def test_it_is_another_configuration_and_is_not_compared_with_a_published_one() -> None:
    plain, with_setting = plan(**LLAMA), plan(**LLAMA, MEGATRON_SETTINGS="optimizer.weight_decay=0.2")
    recipe = load_recipe(ROOT / "llama3.1")
    assert published_references(plain, recipe)
    assert not published_references(with_setting, recipe)
    assert configuration_key(plain) != configuration_key(with_setting)
    assert "megatron" not in job_document(plain, dry_run_paths("/w", "x")), "as jobs that are queued have it"


QWEN = {"JOB_TOTAL_GPUS": "256", "GPU_TYPE": "h100", "MODEL_SIZE": "qwen3_235b_a22b", "DTYPE": "bf16"}
OWN = {
    "model.moe_token_dispatcher_type=flex": DEEPSEEK,
    "model.recompute_modules=[mlp,mla_up_proj]": DEEPSEEK,
    "model.moe_paged_stash=false;model.offload_modules=none": DEEPSEEK,
    "comm_overlap.overlap_moe_expert_parallel_comm=true": QWEN,
    "comm_overlap.tp_comm_overlap=false": QWEN | {"TP": "1"},
}
"""What the function has anyway."""


@pytest.mark.parametrize("settings", OWN)
def test_what_a_function_has_anyway_is_no_change_of_it(settings: str, texts: Texts) -> None:
    plain, made = plan("mbridge", **OWN[settings]), plan("mbridge", **OWN[settings], MEGATRON_SETTINGS=settings)
    assert (made.megatron, made.experiment_name) == ({}, plain.experiment_name)
    texts("\n".join(made.preflight.warnings), about="already")


CONFLICTS: dict[str, tuple[dict[str, str], str]] = {
    "model.moe_token_dispatcher_type=allgather": (QWEN, "the allgather dispatcher is not overlapped"),
    "model.moe_flex_dispatcher_backend=deepep": (QWEN, "the alltoall dispatcher has no backends"),
    "model.moe_token_dispatcher_type=flex;model.moe_flex_dispatcher_backend=hybridep": (QWEN, "variables of HybridEP"),
    "model.moe_token_dispatcher_type=flex": (LLAMA31, "it has no experts"),
    "model.recompute_granularity=selective;model.recompute_modules=[moe]": (QWEN, "not overlapped where moe is recom"),
    "model.recompute_granularity=selective;model.recompute_modules=[mla_up_proj]": (QWEN, "it has no mla_up_proj"),
    "model.recompute_modules=[moe_act]": (QWEN, "does nothing without model.recompute_granularity=selective"),
    "comm_overlap.overlap_moe_expert_parallel_comm=true": (DEEPSEEK | {"EP": "1"}, "needs EP > 1"),
    "comm_overlap.tp_comm_overlap=true": (QWEN | {"TP": "1"}, "the overlap of TP's exchange needs TP > 1"),
    "model.moe_flex_dispatcher_backend=deepep ": (
        DEEPSEEK | {"GPU_TYPE": "gb200", "JOB_TOTAL_GPUS": "256"},
        "DeepEP is",
    ),
}


@pytest.mark.parametrize("settings", CONFLICTS)
def test_what_megatron_would_refuse_is_refused_before_the_queue(settings: str) -> None:
    asked, message = CONFLICTS[settings]
    assert message in refusal("mbridge", **asked, MEGATRON_SETTINGS=settings.strip())


def test_lists_within_lists_have_an_end() -> None:
    deep = "[" * 2000 + "]" * 2000
    assert refusal("mbridge", **DEEPSEEK, MEGATRON_SETTINGS=f"ddp.bucket_size={deep}")


def test_memory_with_settings_is_not_validated() -> None:
    fits = {"JOB_TOTAL_GPUS": "8", "GPU_TYPE": "h100", "MODEL_SIZE": "8b", "DTYPE": "bf16"}
    assert plan(**fits).preflight.memory.knowledge == "validated"  # type: ignore[union-attr]
    other = plan(**fits, MEGATRON_SETTINGS="optimizer.weight_decay=0.2").preflight.memory
    assert (other.kind, other.knowledge) == ("dense, bf16, settings", "not validated")  # type: ignore[union-attr]


PLANNED = {
    "model.tensor_model_parallel_size=4": "use --set tp=VALUE (TP)",
    "train.micro_batch_size=2": "use --set mbs=VALUE (MBS)",
    "train.train_iters=5": "use --max-steps (MAX_STEPS)",
    "model.bf16=true": "use --dtype and FP8_RECIPE",
    "model.num_layers=2": "choose another size",
    "checkpoint.save=/tmp": "use ENABLE_CHECKPOINT",
    "profiling.use_nsys_profiler=true": "use -p (ENABLE_PROFILE)",
    "model.recompute_granularity=full": "use --set recompute_layers=VALUE",
    "model.cuda_graph_impl=local": "use --set cuda_graph=true",
    "rng.seed=1": "runs are comparable only with the same one",
}


@pytest.mark.parametrize("setting", PLANNED)
def test_what_a_plan_sets_itself_is_refused_with_the_option_to_use(setting: str) -> None:
    assert PLANNED[setting] in refusal(**LLAMA, MEGATRON_SETTINGS=setting)


WRONG = {
    "moe_grouped_gemm=true": "MEGATRON_SETTINGS 'moe_grouped_gemm=true' is not SECTION.FIELD=VALUE",
    "model.moe_grouped_gemm": "is not SECTION.FIELD=VALUE",
    "model.moe_grouped_gemm=": "model.moe_grouped_gemm has no value",
    "model.attention_dropout=0;model.attention_dropout=0.1": "is given twice\n  -> give it once; llmb-run sweep --vary "
    "model.attention_dropout=0,0.1 tries both",
    "model.moe_token_dispatcher_typ=flex": "has no setting model.moe_token_dispatcher_typ (did you mean 'model.moe_to",
    "ddp.moe_token_dispatcher_type=flex": "(did you mean 'model.moe_token_dispatcher_type'?)\n  -> sections: ",
    "model.moe_token_dispatcher_type=flexx": "=flexx is not a valid value (did you mean 'flex'?)\n  -> one of allgat",
    "model.attention_dropout=much": "model.attention_dropout=much is not a valid value\n  -> a number",
    "model.attention_dropout=nan": "is not a valid value",
    "ddp.overlap_grad_reduce=1": "is not a valid value\n  -> true or false",
    "optimizer.exp_avg_dtype=bfloat": "optimizer.exp_avg_dtype=bfloat is not",
}


@pytest.mark.parametrize("setting", WRONG)
def test_a_wrong_setting_is_refused_before_the_queue(setting: str) -> None:
    assert WRONG[setting] in refusal(**LLAMA, MEGATRON_SETTINGS=setting)


def test_what_no_list_knows_is_left_to_the_ranks(texts: Texts) -> None:
    asked = {"MEGATRON_SETTINGS": "model.brand_new=[a,2]"}
    assert plan(**LLAMA, **asked, LLMB_ENGINE_CHECK="off").megatron == {"model.brand_new": ["a", 2]}
    own = cluster_config(releases={"0.7": SiteRelease(image="/images/own.sqsh")})
    made = plan(own, **LLAMA, **asked, LLMB_ENGINE="0.7")
    assert made.megatron == {"model.brand_new": ["a", 2]}
    texts("\n".join(made.preflight.warnings), about="brand_new")


VALUES: list[tuple[str, str, Any]] = [
    ("int", "4", 4),
    ("float", "4", 4.0),
    ("bool|none", "None", None),
    ("bool", "True", True),
    ('"alltoall"|"flex"', "flex", "flex"),
    ("list|none", "[core_attn, 'mlp']", ["core_attn", "mlp"]),
    ("dict|none|str", '{"a": 1}', {"a": 1}),
    ("str", "7", "7"),
    ("dtype", "bfloat16", "bfloat16"),
    ('"none"|"rope"', "none", "none"),
    ('"0"|"1"|"2"', "1", 1),
    ('float|"0"', "0", 0),
    ("", "1e-4", 1e-4),
    ("", "text", "text"),
    ("", "[1, true, x]", [1, True, "x"]),
]


@pytest.mark.parametrize(("kinds", "text", "value"), VALUES)
def test_a_value_is_what_the_field_takes(kinds: str, text: str, value: Any) -> None:
    found = value_of(text, kinds.split("|") if kinds else [], "--megatron: x.y")
    assert (found, type(found)) == (value, type(value))


def test_lists_of_both_releases_are_there() -> None:
    for engine in ("0.3", "0.6"):
        sections = fields_of_release(engine)
        assert {"model", "optimizer", "ddp", "comm_overlap", "mixed_precision"} <= sections.keys()
        assert sections["model"]["attention_dropout"] == "float"
    assert not fields_of_release("0.7")


def test_options_join_the_variable_and_win(cli: Cli, texts: Texts) -> None:
    words = ("single", "-w", "llama3.1", "-s", "8b", "--scale", "8", "--gpu-type", "h100", "--dry-run", "--json")
    given = {"MEGATRON_SETTINGS": "model.attention_dropout=0.1;optimizer.weight_decay=0.2"}
    done = cli(*words, "--megatron", "model.attention_dropout=0.3", **given)
    settings = done.data["jobs"][0]["plan"]["megatron"]
    assert settings == {"model.attention_dropout": 0.3, "optimizer.weight_decay": 0.2}
    texts(cli(*words[:-1], "--megatron", "model.x=").err)


def test_they_are_swept_and_in_task_files(cli: Cli, tmp_path: Path, texts: Texts) -> None:
    base = ("-w", "llama3.1", "-s", "8b", "--scale", "8", "--gpu-type", "h100", "--dry-run", "--json")
    data = cli("sweep", *base, "--vary", "ddp.overlap_grad_reduce=true,false,maybe").data
    assert [item["plan"]["megatron"] for item in data["planned"]] == [
        {"ddp.overlap_grad_reduce": True},
        {"ddp.overlap_grad_reduce": False},
    ]
    texts(data["refused"][0]["error"]["message"])
    file = tmp_path / "tasks.yaml"
    file.write_text(
        "tasks:\n  - {workload: llama3.1, size: 8b, scale: 8, gpu_type: h100, megatron: {ddp.overlap_grad_reduce: "
        "[true, false], model.attention_dropout: 0.1}}\n"
    )
    jobs = cli("bulk", file, "--dry-run", "--json").data["jobs"]
    assert [job["plan"]["megatron"]["ddp.overlap_grad_reduce"] for job in jobs] == [True, False]
    assert {job["plan"]["megatron"]["model.attention_dropout"] for job in jobs} == {0.1}


@pytest.mark.parametrize("value", ["$(reboot)", "'; rm -rf /", "../../x", "é", "a" * 300, "\x1b[31m"])
def test_a_hostile_value_stays_a_value(value: str) -> None:
    setting = f"logger.wandb_project={value}"
    if "\x1b" in value or ";" in value:
        with pytest.raises(RequestError):
            plan(**LLAMA, MEGATRON_SETTINGS=setting)
        return
    made = plan(**LLAMA, MEGATRON_SETTINGS=setting)
    assert made.megatron == {"logger.wandb_project": value}
    assert len(made.experiment_name) <= 200
