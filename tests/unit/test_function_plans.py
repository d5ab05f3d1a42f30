"""Jobs that call a function of Megatron-Bridge: the shipped catalogues, planned and rendered without Megatron."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmb_common.base.errors import RequestError
from llmb_common.base.structs import read_generated
from llmb_common.planning.published import published_results
from llmb_common.planning.site.machine import Machine
from llmb_common.recipes import catalogue
from llmb_common.recipes.catalogue import read_validation
from llmb_common.recipes.rows import read_published
from llmb_common.results.steps import window_of
from llmb_common.results.verdict import figures, judge_result
from llmb_common.runs.paths import dry_run_paths
from llmb_common.runs.timing.log_files import find_runs
from llmb_common.runs.timing.runs import analyse
from llmb_common.submission.job_files import job_document, job_text
from llmb_common.submission.script import render_script
from llmb_common.submission.supervisor import render_supervisor
from llmb_train.job import FunctionJob, load_job
from llmb_train.perf_recipes import PUBLISHED
from support import plans
from support.functions import (
    CATALOGUE,
    IMPOSSIBLE,
    LAPTOP,
    MEGATRON_REFUSES,
    NEWEST,
    RECIPE,
    ROOT,
    SLURM,
    asked,
    plan,
)
from support.plans import check_answers, check_fields, rows
from support.runs import make_run, steady_log
from support.shellcheck import check_scripts
from support.texts import Texts
from tools.readme_functions import accepted


def test_a_catalogue_that_is_anothers_base_is_decoded_once_and_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("catalogue-0.6.0.json", "catalogue-0.6.2.json"):
        (tmp_path / name).write_bytes((ROOT / "mbridge" / name).read_bytes())
    read: list[str] = []

    def noted(path: Path, kind: object, **more: str) -> object:
        read.append(path.name)
        return read_generated(path, kind, **more)

    monkeypatch.setattr(catalogue, "read_generated", noted)
    newest = tmp_path / "catalogue-0.6.2.json"
    assert catalogue.Catalogue(newest, RECIPE.variants[0]).is_intact()
    assert catalogue.Catalogue(tmp_path / "catalogue-0.6.0.json", RECIPE.variants[0]).is_intact()
    assert read == ["catalogue-0.6.2.json", "catalogue-0.6.0.json"]
    newest.write_text(newest.read_text().replace('"release": "0.6.2"', '"release": "0.6.9"'))
    assert catalogue.Catalogue(newest, RECIPE.variants[0]).release == "0.6.9"


@pytest.mark.slow
def test_every_function_is_planned_and_rendered_at_its_own_scale(tmp_path: Path) -> None:
    """ShellCheck, which takes a moment for each script, sees one of every shape."""
    shapes = dict[str, str]()
    for release, recipe in RECIPE.releases.items():
        assert recipe.catalogue is not None
        refused, names = {}, set()
        for entry in recipe.catalogue.index:
            try:
                planned = plan(**asked(entry), **(NEWEST if release == CATALOGUE.release else {}))
            except RequestError as error:
                refused[entry.name] = error.code
                continue
            assert planned.function is not None
            assert (planned.function.name, planned.function.release) == (entry.name, release)
            assert planned.function.columns == recipe.catalogue.function(entry.name).columns
            assert (entry.gpu, planned.experiment_name) not in names
            names.add((entry.gpu, planned.experiment_name))
            script = plans.script_of(planned)
            shapes[plans.shape_of(script, planned)] = script
        there = {entry.name for entry in recipe.catalogue.index}
        assert {name for name, code in refused.items() if code == "does-not-divide"} == IMPOSSIBLE & there
        assert {name for name, code in refused.items() if code == "refused-by-megatron"} == MEGATRON_REFUSES & there
        # Planning and Megatron's own validation agree on every function; the README counts the validation's.
        assert recipe.validation_file is not None
        validated = read_validation(Path(recipe.validation_file)).functions
        assert set(validated) == there
        assert set(refused) == {name for name, result in validated.items() if result.refused is not None}
        assert len(names) == len(there) - len(refused) == len(accepted(recipe))
    assert len(shapes) < 6
    check_scripts(tmp_path / "scripts", list(shapes.values()), render_supervisor("slurm").decode())


DOCUMENTED = "MODEL_SIZE=deepseek_v3 GPU_TYPE=gb300 JOB_TOTAL_GPUS=256"
HOPPER = "MODEL_SIZE=deepseek_v3 GPU_TYPE=h100 JOB_TOTAL_GPUS=1024"
EIGHT = "MODEL_SIZE=llama3_8b JOB_TOTAL_GPUS=8"
DENSE = "MODEL_SIZE=llama3_70b GPU_TYPE=gb300 DTYPE=nvfp4"
ADAPTERS = "MODEL_SIZE=llama3_70b GPU_TYPE=h100 JOB_TOTAL_GPUS=8 DTYPE=bf16 CONFIG_VARIANT=peft"
PARTIAL_GRAPHS = f"{DOCUMENTED} DTYPE=fp8 CONFIG_VARIANT=partial_cg_dev"
BLACKWELL = "MODEL_SIZE=deepseek_v3 GPU_TYPE=b200 JOB_TOTAL_GPUS=256 DTYPE=bf16"
RUBIN = "MODEL_SIZE=deepseek_v3 GPU_TYPE=vr200 DTYPE=bf16"
LIGHTNING = "MODEL_SIZE=nemotron_3_5_lightning GPU_TYPE=b200 JOB_TOTAL_GPUS=8 DTYPE=bf16"
MINE = "RUN_CONF_IMAGE=/images/mine.sqsh"

PLANNED = {
    DOCUMENTED: """
        DTYPE=fp8 FP8_RECIPE=mx -> function.name=deepseek_v3_pretrain_256gpu_gb300_fp8mx_config
        DTYPE=fp8 FP8_RECIPE=mx -> tp=1 pp=2 vp=8 ep=32 etp=1 mbs=1 gbs=4096 family=deepseek_v3 layers=61 seq_len=4096
        DTYPE=fp8 FP8_RECIPE=mx -> nodes=64 dp=128 ga=32 has_experts=True image=/install/images/nvidia+nemo+26.08.sqsh
    """,
    HOPPER: """
        -> fp8_recipe=cs
        TP=4 -> tp=4
    """,
    DENSE: """
        JOB_TOTAL_GPUS=64 -> gbs=256 ga=16
        JOB_TOTAL_GPUS=128 FORCE=true -> gbs=512 ga=16
        JOB_TOTAL_GPUS=128 FORCE=true STRONG_SCALING=true -> gbs=256
    """,
    EIGHT: """
        GPU_TYPE=b300 -> function.name=llama3_8b_pretrain_8gpu_b300_fp8mx_config
        GPU_TYPE=h200 -> function.name=llama3_8b_pretrain_8gpu_h100_fp8cs_config
    """,
    ADAPTERS: """
        LOAD_CHECKPOINT_PATH=/base -> function.name=llama3_70b_peft_8gpu_h100_bf16_config function.adapters=True
        LOAD_CHECKPOINT_PATH=/base -> max_steps=50 exit_after=None
    """,  # nothing is resumed
    BLACKWELL: f"""
        -> function.release=0.6.0 pp=16 engine=0.6
        DTYPE=fp8 -> fp8_recipe=mx
        LLMB_ENGINE=0.6 -> function.release=0.6.0 pp=16 engine=0.6
        RUN_CONF_IMAGE=/images/nvidia+nemo+26.08.sqsh -> function.release=0.6.0 pp=16 engine=0.6
        {MINE} -> function.release=0.6.2 pp=8 engine=0.6
        {MINE} LLMB_ENGINE=0.6.0 -> function.release=0.6.0 pp=16 engine=0.6
    """,  # the functions are those of the image
    RUBIN: "JOB_TOTAL_GPUS=256 FORCE=true -> gpus=256",
    LIGHTNING: f"LLMB_ENGINE=0.6.2 {MINE} -> engine=0.6",
    "laptop": "-> model_size=smoke",
}


@pytest.mark.parametrize(("words", "fields"), rows(PLANNED))
def test_what_is_asked_for_becomes_the_function_and_its_columns(words: str, fields: list[str]) -> None:
    check_fields(plans.plan("mbridge", words), *fields)


SIZED = {
    "llama3.1": "MODEL_SIZE=8b GPU_TYPE=h100 JOB_TOTAL_GPUS=8",
    "llama4": "GPU_TYPE=h100 JOB_TOTAL_GPUS=512",
    "grok1": "GPU_TYPE=h100 JOB_TOTAL_GPUS=512",
    "nemotron4": "MODEL_SIZE=15b GPU_TYPE=h100 JOB_TOTAL_GPUS=64",
}
ASSUMED = "does not say which Megatron-Bridge"
IMAGES = {
    # What a job of the documented recipes meets, and one of the functions.
    "nemo:26.02.01": (None, "no functions of Megatron-Bridge 0.3.1"),
    "nemo:26.04.01": ("has Megatron-Bridge 0.4", "no functions of Megatron-Bridge 0.4.2"),
    "nemo:26.06": ("has Megatron-Bridge 0.5", "no functions of Megatron-Bridge 0.5.0"),
    "nemo:26.08": ("has Megatron-Bridge 0.6", None),
    "nemo:26.08.01": ("has Megatron-Bridge 0.6", "note: planned with the functions of 0.6.0"),
    "nemo:26.08.02": ("has Megatron-Bridge 0.6", f"note: {ASSUMED}"),
    "nemo:26.09": (f"note: {ASSUMED}", f"note: {ASSUMED}"),
    "nemo:26.10": ("has Megatron-Bridge 0.7", "no functions of Megatron-Bridge 0.7.0"),
    "nemo:26.10.01": ("has Megatron-Bridge 0.7", "no functions of Megatron-Bridge 0.7.1"),
    "nemo:27.01": ("newer than the containers that LLMB knows", "newer than the containers that LLMB knows"),
    "mine": (f"note: {ASSUMED}", f"note: {ASSUMED}"),
}


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("recipe", [*SIZED, "mbridge"])
def test_an_image_is_refused_noted_or_planned_by_what_is_known_of_it(recipe: str, image: str) -> None:
    documented, functions = IMAGES[image]
    said = functions if recipe == "mbridge" else documented
    words = SIZED.get(recipe, f"{DOCUMENTED} DTYPE=fp8 FP8_RECIPE=mx")
    asked = f"{words} RUN_CONF_IMAGE=nvcr.io#nvidia/{image}"
    if said is None or said.startswith("note: "):
        notes = plans.notes(recipe, asked)
        assert (said or "note: ").removeprefix("note: ") in notes
        assert (ASSUMED in notes) is (said is not None and ASSUMED in said)
        return
    assert said in plans.refusal(recipe, asked)
    assert plans.plan(recipe, f"{asked} LLMB_ENGINE_CHECK=off").image.endswith(image), "any image may be tried"


NOTED = {
    "": """
        MODEL_SIZE=qwen3_30b_a3b GPU_TYPE=h100 JOB_TOTAL_GPUS=32 DTYPE=bf16 CONFIG_VARIANT=dev \
            -> a development variant, for which NVIDIA has published neither a result nor the image
        MODEL_SIZE=deepseek_v4_flash GPU_TYPE=gb300 JOB_TOTAL_GPUS=128 \
            -> expects the Megatron in its images not to work (Megatron-Bridge v0.6.0, examples/models/deepseek_v4
        MODEL_SIZE=gpt_oss_120b GPU_TYPE=gb300 JOB_TOTAL_GPUS=64 DTYPE=bf16 \
            -> numbers of openai/gpt-oss-120b that were not read from its config.json: all: defaults
    """,
    EIGHT: """
        GPU_TYPE=h100 -> !development variant & !not to work
        GPU_TYPE=b300 -> nothing
        GPU_TYPE=h200 -> it runs those of h100
    """,
    BLACKWELL: f"""
        -> !numbers of & !planned with
        {MINE} -> mine.sqsh does not say which Megatron-Bridge it has: planned with & the functions of 0.6.2
        {MINE} LLMB_ENGINE=0.6.0 -> !mine.sqsh does not say which Megatron-Bridge it has: planned with
    """,
    PARTIAL_GRAPHS: f"{MINE} -> is refused by the Megatron of the recipe's image",
}


@pytest.mark.parametrize(("words", "answers"), rows(NOTED))
def test_the_plan_says_what_is_written_of_a_function(words: str, answers: list[str]) -> None:
    check_answers(plans.notes("mbridge", words), answers)


REFUSED = {
    "": """
        MODEL_SIZE=glm51 GPU_TYPE=gb200 -> has only variants that must be named
        MODEL_SIZE=deepseek-v3 GPU_TYPE=gb300 JOB_TOTAL_GPUS=256 -> did you mean 'deepseek_v3'
    """,
    DENSE: "JOB_TOTAL_GPUS=128 -> no configuration of",
    HOPPER: """
        FP8_RECIPE=mx -> FP8_RECIPE=mx on h100 & it has cs, sc
    """,
    DOCUMENTED: """
        DTYPE=bf16 JOB_TOTAL_GPUS=64 -> on 64 GPUs there is CONFIG_VARIANT fsdp
        EP=128 -> joins 72 GPUs
    """,
    "MODEL_SIZE=kimi_k2 JOB_TOTAL_GPUS=256": """
        GPU_TYPE=r100 -> it has configurations for vr200, gb300, gb200, b300
        GPU_TYPE=gb200 DTYPE=nvfp4 -> it has bf16, fp8
    """,
    PARTIAL_GRAPHS: """
        -> deepseek_v3_pretrain_256gpu_gb300_fp8mx_partial_cg_dev_config is refused by Megatron itself
        -> virtual_pipeline_model_parallel_size conflicts with pipeline_model_parallel_layout
        -> set RUN_CONF_IMAGE to an image in which it is right
    """,
    RUBIN: "JOB_TOTAL_GPUS=128 -> 128 GPUs are not divisible by ETP*EP*PP",
    ADAPTERS: """
        -> no checkpoint of one is given
        -> set LOAD_CHECKPOINT_PATH to a Megatron checkpoint of llama3_70b
    """,
    LIGHTNING: """
        -> nemotron_3_5_lightning_pretrain_8gpu_b200_bf16_config is not in Megatron-Bridge 0.6.0
        -> nvcr.io#nvidia/nemo:26.08 & 0.6.2 has it: use LLMB_ENGINE=0.6.2, and RUN_CONF_IMAGE to an image
    """,
    BLACKWELL: f"""
        LLMB_ENGINE=0.6.2 -> nvcr.io#nvidia/nemo:26.08 has Megatron-Bridge 0.6.0
        RUN_CONF_IMAGE=nvcr.io#nvidia/nemo:26.06 -> no functions of Megatron-Bridge 0.5.0, which nvcr.io
        {MINE} LLMB_ENGINE=0.6.1 -> no functions of Megatron-Bridge 0.6.1
        LLMB_ENGINE=0.6.9 -> no image with this release & set RUN_CONF_IMAGE to one, or releases."0.6.9"
    """,
}


@pytest.mark.parametrize(("words", "answers"), rows(REFUSED))
def test_what_is_no_function_there_is_refused_and_what_there_is_named(words: str, answers: list[str]) -> None:
    check_answers(plans.refusal("mbridge", words), answers)


def test_a_variant_is_in_the_name() -> None:
    named = plans.plan("mbridge", DOCUMENTED, "DTYPE=bf16 JOB_TOTAL_GPUS=64 CONFIG_VARIANT=fsdp")
    assert named.fsdp
    assert named.experiment_name.endswith("_fsdp")


RANKS, QUEUES, MESSAGES = (
    "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "NCCL_P2P_NET_CHUNKSIZE",
)
NANO = "MODEL_SIZE=nemotron_3_nano GPU_TYPE=h100 JOB_TOTAL_GPUS=16 DTYPE=bf16"
LARGE = "MODEL_SIZE=llama3_70b GPU_TYPE=h100 JOB_TOTAL_GPUS=64 DTYPE=bf16 PREFLIGHT=off"


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (DOCUMENTED, RANKS, "32"),
        (f"{DOCUMENTED} EP=64", RANKS, "64"),
        (f"{HOPPER} EP=32", RANKS, "8"),
        (NANO, QUEUES, "32"),
        (f"{NANO} CP=4", QUEUES, "1"),
        (f"{NANO} TP=2", QUEUES, "1"),
        (f"{DOCUMENTED} CP=2", QUEUES, "32"),  # one queue is for GPUs before Blackwell
        (LARGE, QUEUES, "1"),
        (f"{LARGE} TP=1 CP=1 PP=8 VP=5", QUEUES, "32"),
        (LARGE, MESSAGES, "2097152"),
        (f"{LARGE} PP=1 VP=NA", MESSAGES, None),
        ("MODEL_SIZE=llama3_8b GPU_TYPE=h100 JOB_TOTAL_GPUS=8 DTYPE=bf16 PP=2", MESSAGES, None),
    ],
)
def test_variables_follow_other_columns_as_in_nvidias_launcher(words: str, name: str, value: str | None) -> None:
    found = plans.plan("mbridge", words).env.get(name)
    assert (found.value if found else None) == value


def test_the_job_names_the_function_and_its_own_columns() -> None:
    p = plan(MODEL_SIZE="llama3_8b", GPU_TYPE="h100", JOB_TOTAL_GPUS="16", DTYPE="bf16", FORCE="true")
    paths = dry_run_paths(p.workload_folder, p.experiment_name)
    job = job_document(p, paths)
    assert "\n# llama3_8b_pretrain_8gpu_h100_bf16_config of Megatron-Bridge 0.6.0\n" in render_script(p, paths)
    assert job["architecture"] is None
    assert job["function"]["name"] == "llama3_8b_pretrain_8gpu_h100_bf16_config"
    of_image = RECIPE.releases["0.6.0"].catalogue
    assert of_image is not None
    assert (job["function"]["release"], job["function"]["catalogue"]) == ("0.6.0", of_image.sha256)
    assert job["function"]["columns"]["gbs"] == 128
    assert (job["batch"]["gbs"], job["world_size"]) == (256, 16)
    assert job["function"]["reduced"] is None


@pytest.mark.parametrize(
    ("machine", "variables"),
    [
        (SLURM, {"MODEL_SIZE": "deepseek_v3", "GPU_TYPE": "h100", "JOB_TOTAL_GPUS": "1024", "FP8_RECIPE": "sc"}),
        (SLURM, {"MODEL_SIZE": "llama3_8b", "GPU_TYPE": "vr200", "JOB_TOTAL_GPUS": "8", "DTYPE": "nvfp4"}),
        (LAPTOP, {"MODEL_SIZE": "gpt_oss_120b-smoke"}),
    ],
)
def test_the_ranks_strict_reader_takes_the_job(tmp_path: Path, machine: Machine, variables: dict[str, str]) -> None:
    p = plan(machine, **variables)
    (tmp_path / "job.json").write_bytes(job_text(p, dry_run_paths(p.workload_folder, p.experiment_name)))
    job = load_job(tmp_path / "job.json")
    assert p.function is not None
    assert isinstance(job, FunctionJob)
    assert job.function.name == p.function.name


@pytest.mark.parametrize("columns", [{"CP": "2"}, {"VP": "2"}], ids=str)
def test_a_reduced_copy_is_divided_among_its_ranks(columns: dict[str, str], texts: Texts) -> None:
    with texts.raises(RequestError):
        plan(LAPTOP, MODEL_SIZE="smoke", JOB_TOTAL_GPUS="2", **columns)


def test_the_environment_is_the_functions_and_the_callers_wins() -> None:
    common = {"MODEL_SIZE": "deepseek_v3", "GPU_TYPE": "gb300", "JOB_TOTAL_GPUS": "256"}
    p = plan(**common, NCCL_NVLS_ENABLE="1", USE_MNNVL="0")
    function = CATALOGUE.function("deepseek_v3_pretrain_256gpu_gb300_fp8mx_config")
    for name, value in function.env.items():
        if name not in ("NCCL_NVLS_ENABLE", "USE_MNNVL"):
            assert (p.env[name].value, p.env[name].source) == (value, "recipe")
    assert (p.env["NCCL_NVLS_ENABLE"].value, p.env["NCCL_NVLS_ENABLE"].source) == ("1", "environment")
    assert p.env["USE_MNNVL"].value == "0"


@pytest.mark.parametrize("size", [model.size for model in RECIPE.listed_models])
def test_a_reduced_copy_is_planned_on_a_cpu(size: str) -> None:
    p = plan(LAPTOP, MODEL_SIZE=size)
    assert p.function is not None
    assert p.function.reduced is not None
    assert (p.device, p.dtype, p.layers, p.seq_len, p.gpus) == ("cpu", "bf16", 4, 64, 2)
    assert set(p.env) == {"TOKENIZERS_PARALLELISM", "TRANSFORMERS_OFFLINE"}


def test_published_rows_have_the_columns_of_the_function_they_belong_to() -> None:
    """What NVIDIA printed, column by column, against what its function gives."""
    rows = read_published(ROOT / "mbridge" / "published.json")
    assert len(rows) == 282
    belonging = [row for row in rows if row.function is not None]
    assert len(belonging) == 203
    for row in belonging:
        assert row.function is not None
        catalogue = RECIPE.of_release(row.release).catalogue
        assert catalogue is not None
        entry, function = catalogue.entry(row.function), catalogue.function(row.function)
        assert (row.gpu, row.gpus, row.size) == (entry.gpu, entry.gpus, entry.model)
        assert (row.dtype, row.fp8_recipe, row.variant) == (entry.dtype, entry.fp8_recipe, entry.variant("pretrain"))
        for name, printed in row.columns.items():
            own = function.sequence_length if name == "seqlen" else getattr(function.columns, name)
            if name == "fsdp":
                assert printed is None or bool(printed) == own
            elif printed is not None or name in ("vp", "ep"):
                assert (printed or 1) == (own or 1), (row.function, name)
    for row in rows:
        assert row.function is not None or row.why


def test_deviating_tflops_are_marked() -> None:
    """Bridge's own FLOPs at the printed tokens/s against the printed TFLOPS: beyond 2 % the row says so."""
    for row in read_published(ROOT / "mbridge" / "published.json"):
        if row.function is None:
            continue
        per_token = CATALOGUE.function(row.function).flops_per_token
        assert per_token is not None
        counted = per_token * row.tokens_per_second_per_gpu / 1e12
        assert row.tflops_of_bridge == pytest.approx(counted, abs=0.06)
        assert bool(row.why) == (abs(counted / row.tflops_per_gpu - 1) > 0.02), row


def test_a_job_is_compared_with_the_row_of_its_own_container_first() -> None:
    p = plan(MODEL_SIZE="deepseek_v3", GPU_TYPE="gb300", JOB_TOTAL_GPUS="256")
    found = published_results(p, RECIPE)
    assert (found[0].container, found[0].step_seconds, found[0].tflops_per_gpu) == ("26.08", 10.422, 1635)
    assert p.preflight.reference_step_seconds == 10.422
    changed = plan(MODEL_SIZE="deepseek_v3", GPU_TYPE="gb300", JOB_TOTAL_GPUS="256", EP="64")
    assert published_results(changed, RECIPE) == []
    for gpu_type, seconds in (("gb300", 7.969), ("gb200", 8.428)):  # printed with EP 64, which 0.6.2 has changed to 32
        flash = {"MODEL_SIZE": "deepseek_v4_flash", "GPU_TYPE": gpu_type, "JOB_TOTAL_GPUS": "128"}
        assert [result.step_seconds for result in published_results(plan(**flash), RECIPE)] == [seconds]
        assert published_results(plan(**flash, **NEWEST), RECIPE) == []


def test_every_model_that_a_function_asks_hugging_face_for_has_numbers_with_a_source() -> None:
    asked = {CATALOGUE.function(entry.name).hugging_face for entry in CATALOGUE.index} - {None}
    assert asked == set(PUBLISHED)
    assert all(model.source for model in PUBLISHED.values())
    layers = {name: model.numbers.get("hybrid_override_pattern", "") for name, model in PUBLISHED.items()}
    ultra = layers["nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16"]
    assert (len(ultra), ultra.count("*"), ultra.count("M"), ultra.count("E")) == (108, 12, 48, 48)


def test_every_published_row_stands_there_as_printed() -> None:
    raw = json.loads((ROOT / "tests" / "data" / "megatron_bridge_published.json").read_text())["rows"]
    # One line of the older tables holds several precisions.
    printed = {(row["source"].rpartition("/")[2], row["precision"]): row for row in raw if row["task"] == "pretrain"}
    rows = read_published(ROOT / "mbridge" / "published.json")
    assert {(f"{row.document}:{row.line}", row.precision) for row in rows} == set(printed)
    for row in rows:
        source = printed[f"{row.document}:{row.line}", row.precision]
        assert (row.container, row.model) == (source["container"], source["model"])
        assert (row.gpu, row.gpus, row.step_seconds) == (source["gpu"].lower(), source["gpus"], source["step_seconds"])
        assert row.tokens_per_second_per_gpu == source["tokens_per_s_per_gpu"]
        assert row.tflops_per_gpu == source["tflops_per_gpu"]
        assert row.columns == {name: source[name] for name in row.columns}
        assert row.note == source.get("note", "")


@pytest.mark.parametrize(("ratio", "kind"), [(0.95, "pass"), (1.30, "fail")])
def test_a_run_of_a_function_gets_a_verdict_and_figures(tmp_path: Path, ratio: float, kind: str) -> None:
    """As a user would check a published row: plan, log of known speed, verdict; MFU from Bridge's FLOPs."""
    variables = {"GPU_TYPE": "gb300", "MODEL_SIZE": "deepseek_v3", "JOB_TOTAL_GPUS": "256"}
    record = make_run(tmp_path, "mbridge", log=steady_log(10422 * ratio, tflops=None), variables=variables)
    timing = analyse(find_runs(record.paths.folder)[0], window_of(record.plan))
    verdict = judge_result(record.plan, RECIPE, timing)
    assert (verdict.kind, verdict.difference) == (kind, pytest.approx(ratio - 1, abs=1e-6))
    assert verdict.reference is not None
    assert verdict.reference.same_software
    found = figures(record.plan, RECIPE, timing, 10.422)
    assert found.tokens_per_second == pytest.approx(6288 * 256, rel=1e-3)
    assert found.tflops_per_gpu == pytest.approx(1635, rel=0.002)
    assert found.mfu == pytest.approx(1635 / 4900, rel=0.002)


def test_the_index_says_what_the_names_say_and_every_line_is_complete() -> None:
    document = json.loads((ROOT / "mbridge" / "catalogue-0.6.2.json").read_text())
    assert (document["release"], document["core"]) == ("0.6.2", "0.19.2")
    assert [line[0] for line in document["index"]] == list(document["functions"]) == sorted(document["functions"])
    for entry in CATALOGUE.index:
        word = f"_{entry.suffix}" if entry.suffix else ""
        assert entry.name == f"{entry.model}_{entry.task}_{entry.gpus}gpu_{entry.gpu}_{entry.precision}{word}_config"
        CATALOGUE.function(entry.name)
