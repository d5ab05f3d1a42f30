"""From a request to a plan: documented columns, defaults, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb_common.errors import RequestError
from llmb_common.executors.slurm.words import SlurmSettings
from llmb_common.planning.plan import make_plan
from llmb_common.planning.published import published_result
from llmb_common.recipes.loading import load_recipe
from llmb_common.request.read import read_request
from llmb_common.site.cluster import cluster_config
from llmb_common.site.machine import Machine
from support.plans import LAPTOP, ROOT, SLURM, plan, refusal

GROK = load_recipe(ROOT / "grok1")


def test_the_documented_default_is_405b_fp8_with_the_documented_columns() -> None:
    p = plan(JOB_TOTAL_GPUS="256", GPU_TYPE="gb200")
    assert (p.model_size, p.dtype, p.fp8_recipe, p.variant) == ("405b", "fp8", "cs", "mbridge")
    assert (p.tp, p.pp, p.cp, p.dp, p.mbs, p.gbs, p.ga) == (2, 1, 1, 128, 1, 128, 1)
    assert (p.fsdp, p.offload_layers, p.nodes, p.gpus_per_node) == (True, 80, 64, 4)
    assert p.experiment_name == "pretrain_llama3.1_405b_fp8_cs_gpus256_tp2_pp1_cp1_vpNone_ep1_mbs1_gbs128"
    assert p.image == "/install/images/nvidia+nemo+26.02.01.sqsh"


def test_names_of_choices_ignore_case() -> None:
    assert plan(JOB_TOTAL_GPUS="1024", GPU_TYPE="H100", MODEL_SIZE="405B", DTYPE="FP8").gpu_type == "h100"


def test_bf16_takes_the_older_variant_because_only_it_has_bf16() -> None:
    assert plan(JOB_TOTAL_GPUS="8", GPU_TYPE="h100", MODEL_SIZE="8b", DTYPE="bf16").variant == "nemo2"


def test_a_scale_that_only_the_older_variant_has_takes_it() -> None:
    assert plan(JOB_TOTAL_GPUS="2048", GPU_TYPE="h100").variant == "nemo2"


def test_h200_runs_the_rows_of_h100() -> None:
    p = plan(JOB_TOTAL_GPUS="64", GPU_TYPE="h200", MODEL_SIZE="70b")
    assert (p.tp, p.pp, p.recompute_layers, p.gpu_type) == (4, 8, 5, "h200")
    assert p.preflight.reference_step_seconds is None, "an H200 must not be judged by an H100's time"


def test_a_proxy_row_brings_its_own_number_of_layers() -> None:
    p = plan(JOB_TOTAL_GPUS="64", GPU_TYPE="h100", MODEL_SIZE="405b-proxy", DTYPE="bf16")
    assert (p.layers, p.architecture.layers, p.pp, p.vp) == (30, 30, 4, 8)


def test_a_laptop_gets_the_smoke_model_on_two_ranks_and_is_told_so() -> None:
    p = plan(LAPTOP)
    assert (p.model_size, p.dtype, p.gpus, p.tp, p.device, p.scheduler) == ("smoke", "bf16", 2, 2, "cpu", None)
    assert any("smoke" in note for note in p.preflight.warnings)
    assert any("no fp8" in note for note in p.preflight.warnings)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"JOB_TOTAL_GPUS": "100"}, ["100", "128, 256, 512", "FORCE=true"]),
        ({"GPU_TYPE": "h1000"}, ["h1000", "did you mean 'h100'", "gb200"]),
        ({"MODEL_SIZE": "404b"}, ["404b", "did you mean '405b'"]),
        ({"TP": "3"}, ["TP*PP*CP = 3*1*1"]),
        ({"CUDA_GRAPH": "true"}, ["OFFLOAD_LAYERS=80 cannot be combined", "CUDA_GRAPH=false"]),
        ({"GBS": "100"}, ["GBS=100", "MBS*DP", "multiple of 128"]),
        ({"VP": "4"}, ["VP=4 needs PP > 1"]),
        ({"EP": "8"}, ["EP=8", "no experts"]),
        ({"PP": "2", "GBS": "512"}, ["OFFLOAD_LAYERS=80 needs PP=1"]),
        ({"OFFLOAD_LAYERS": "126"}, ["126", "less than"]),
        ({"DTYPE": "nvfp4"}, ["nvfp4", "it has fp8"]),
        ({"CONFIG_VARIANT": "mbrige"}, ["mbrige", "did you mean 'mbridge'"]),
        ({"CONFIG_VARIANT": "nemo2"}, ["nemo2", "gb200"]),
        ({"GPUS_PER_NODE": "3"}, ["nodes of 3"]),
        ({"MOE_ROUTING": "drop"}, ["no experts"]),
        ({"STRONG_SCALING": "true", "GBS": "128"}, ["STRONG_SCALING and GBS"]),
        ({"ENABLE_PROFILE": "true", "MAX_STEPS": "20"}, ["step 50", "has 20"]),
        ({"ENABLE_PROFILE": "true", "PROFILE_START_STEP": "9", "PROFILE_STOP_STEP": "9"}, ["before or at its start"]),
        ({"ENABLE_PROFILE": "true", "PROFILE_RANKS": "999"}, ["ranks 0 to 255"]),
        ({"ENABLE_PROFILE": "true", "PROFILE_RANKS": "8-2"}, ["is not a list of ranks"]),
        ({"ENABLE_PROFILE": "true", "PROFILE_RANKS": "²"}, ["is not a list of ranks"]),
        ({"ENABLE_PROFILE": "true", "LOAD_CHECKPOINT_PATH": "/install/c"}, ["trains one step", "MAX_STEPS"]),
        ({"ADDITIONAL_SLURM_PARAMS": "nodes=4"}, ["--nodes is set by the job script"]),
        ({"ADDITIONAL_SLURM_PARAMS": "exclusive;nodelist"}, ["--nodelist needs a value"]),
        ({"SBATCH_GPUS_PER_NODE": "h 100:8"}, ["does not contain a number of GPUs"]),
    ],
)
def test_what_cannot_be_is_refused_with_the_variable_and_the_remedy(
    variables: dict[str, str], words: list[str]
) -> None:
    message = refusal(**{"JOB_TOTAL_GPUS": "256", "GPU_TYPE": "gb200", **variables})
    for word in words:
        assert word in message


def test_an_undocumented_scale_that_divides_is_accepted_by_force_and_noted() -> None:
    p = plan(JOB_TOTAL_GPUS="384", GPU_TYPE="gb200", FORCE="true")
    assert (p.gpus, p.gbs, p.dp) == (384, 192, 192)
    assert any("no configuration of" in note for note in p.preflight.warnings)


def test_force_takes_the_row_whose_range_holds_the_scale() -> None:
    """Only the older rows have this scale within their range; the newest does not."""
    p = plan(JOB_TOTAL_GPUS="1536", GPU_TYPE="h100", FORCE="true")
    assert (p.variant, p.gbs) == ("nemo2", 768)


def test_force_does_not_accept_what_does_not_divide() -> None:
    assert "not divisible" in refusal(JOB_TOTAL_GPUS="100", GPU_TYPE="h100", FORCE="true")


def test_fp8_on_a_cpu_is_refused_when_asked_for() -> None:
    assert "silently train in bf16" in refusal(LAPTOP, DTYPE="fp8")


def test_experts_must_divide() -> None:
    assert "EP=3 does not divide the 8 experts" in refusal(recipe="grok1", JOB_TOTAL_GPUS="128", DTYPE="fp8", EP="3")


def test_strong_scaling_keeps_the_batch_at_every_documented_scale() -> None:
    batches = {
        plan(recipe="nemotron4", MODEL_SIZE="15b", JOB_TOTAL_GPUS=str(gpus), STRONG_SCALING="true").gbs
        for gpus in (16, 64, 2048)
    }
    assert batches == {8192}


def test_without_an_installation_or_gpus_the_message_names_the_variable() -> None:
    with pytest.raises(RequestError, match="LLMB_INSTALL is not set"):
        make_plan(load_recipe(ROOT / "llama3.1"), cluster_config(), read_request({}), SLURM)
    assert "JOB_TOTAL_GPUS is not set" in refusal(GPU_TYPE="gb200")


def test_the_caller_overrides_the_site_and_the_site_the_recipe_and_the_plan_says_who_won() -> None:
    site = cluster_config(environment={"NCCL_NVLS_ENABLE": "1", "NCCL_IB_HCA": "mlx5"})
    env = plan(site, JOB_TOTAL_GPUS="128", GPU_TYPE="gb200", NCCL_IB_HCA="mlx6").env
    assert (env["NCCL_NVLS_ENABLE"].value, env["NCCL_NVLS_ENABLE"].source) == ("1", "cluster_config.yaml")
    assert (env["NCCL_IB_HCA"].value, env["NCCL_IB_HCA"].source) == ("mlx6", "environment")
    assert env["CUDA_DEVICE_MAX_CONNECTIONS"].source == "recipe"


def test_a_secret_never_enters_the_plan() -> None:
    p = plan(JOB_TOTAL_GPUS="128", GPU_TYPE="gb200", HF_TOKEN="hf_canary", NCCL_API_KEY="canary")
    assert "canary" not in repr(p)


def test_the_type_in_sbatch_gpus_per_node_is_asked_for_too() -> None:
    p = plan(JOB_TOTAL_GPUS="1024", GPU_TYPE="h100", SBATCH_GPUS_PER_NODE="h100:8")
    assert p.scheduler is not None
    assert (p.scheduler.gres, p.scheduler.gres_type, p.gpus_per_node) == (True, "h100", 8)


def test_slurm_parameters_of_the_user_win_over_the_site() -> None:
    site = cluster_config(slurm=SlurmSettings(account="a", additional_params="qos=low;comment=site"))
    p = plan(
        site,
        JOB_TOTAL_GPUS="128",
        GPU_TYPE="gb200",
        ADDITIONAL_SLURM_PARAMS="qos=high;exclusive",
        SBATCH_ACCOUNT="b",
    )
    assert p.scheduler is not None
    assert p.scheduler.account == "b"
    assert p.scheduler.additional == (("comment", "site"), ("qos", "high"), ("exclusive", None))


@pytest.mark.parametrize(
    ("variables", "steps"),
    [
        ({}, 50),
        ({"ENABLE_NCCLTRACE": "true"}, 5),
        ({"ENABLE_NCCLTRACE": "true", "MAX_STEPS": "7"}, 7),
        ({"ENABLE_PROFILE": "true"}, 25),
    ],
)
def test_steps_follow_the_switch(variables: dict[str, str], steps: int) -> None:
    assert plan(recipe="nemotron4", JOB_TOTAL_GPUS="16", MODEL_SIZE="15b", **variables).max_steps == steps


def test_a_resumed_job_trains_one_step_and_warns_below_the_tested_scale() -> None:
    p = plan(recipe="nemotron4", JOB_TOTAL_GPUS="16", MODEL_SIZE="15b", LOAD_CHECKPOINT_PATH="/install/c")
    assert (p.checkpoint.load, p.exit_after) == ("/install/c", 1)
    assert any("tested on 64" in note for note in p.preflight.warnings)


@pytest.mark.parametrize("variables", [{"ENABLE_CHECKPOINT": "true"}, {"LOAD_CHECKPOINT_PATH": "/install/c"}])
def test_checkpoints_that_nvidias_launchers_refuse_cause_a_warning(variables: dict[str, str]) -> None:
    for size, gpus, warned in (("405b", "1024", True), ("70b", "128", True), ("8b", "16", False)):
        p = plan(MODEL_SIZE=size, JOB_TOTAL_GPUS=gpus, GPU_TYPE="h100", **variables)
        assert any("known NCCL error" in note for note in p.preflight.warnings) is warned
    without = plan(MODEL_SIZE="70b", JOB_TOTAL_GPUS="128", GPU_TYPE="h100")
    assert not any("NCCL" in note for note in without.preflight.warnings)


def test_ranks_of_a_profile_may_be_a_range_far_beyond_the_job() -> None:
    p = plan(JOB_TOTAL_GPUS="128", GPU_TYPE="gb200", ENABLE_PROFILE="true", PROFILE_RANKS="126-999999999,0")
    assert p.profile is not None
    assert p.profile.ranks == (0, 126, 127)


def test_mxfp8_needs_blackwell() -> None:
    assert plan(JOB_TOTAL_GPUS="128", GPU_TYPE="gb200", FP8_RECIPE="MX").fp8_recipe == "mx"
    assert "MXFP8 needs vr200, r100, gb300, gb200, b300, b200" in refusal(
        JOB_TOTAL_GPUS="1024", GPU_TYPE="h100", FP8_RECIPE="mx"
    )


def test_dropless_routing_turns_the_rows_cuda_graphs_off_and_says_so() -> None:
    p = plan(recipe="grok1", JOB_TOTAL_GPUS="128", MOE_ROUTING="balanced")
    assert (p.moe_routing, p.cuda_graph) == ("balanced", False)
    assert p.experiment_name.endswith("_gbs256_balanced")
    assert any("CUDA graphs are off" in note for note in p.preflight.warnings)
    message = refusal(recipe="grok1", JOB_TOTAL_GPUS="128", MOE_ROUTING="balanced", CUDA_GRAPH="true")
    assert "cannot be combined" in message
    assert "set CUDA_GRAPH=false, or MOE_ROUTING=drop" in message


@pytest.mark.parametrize(("gpu", "variables"), [("h100", {"CUDA_GRAPH": "true"}), ("b200", {"FSDP": "true"})])
def test_8b_runs_with_fsdp_or_with_cuda_graphs_and_not_with_both(gpu: str, variables: dict[str, str]) -> None:
    row = {"MODEL_SIZE": "8b", "GPU_TYPE": gpu, "JOB_TOTAL_GPUS": "8"}
    p = plan(**row)
    assert p.fsdp != p.cuda_graph
    assert "CUDA_GRAPH and FSDP cannot be combined" in refusal(**row, **variables)


def test_slurm_variables_without_effect_are_reported_with_the_option_to_use() -> None:
    p = plan(JOB_TOTAL_GPUS="128", GPU_TYPE="gb200", SBATCH_QOS="high")
    assert any("SBATCH_QOS" in note and "ADDITIONAL_SLURM_PARAMS" in note for note in p.preflight.warnings)


def test_what_the_local_executor_cannot_do_is_said() -> None:
    notes = plan(LAPTOP, ENABLE_VBOOST="true", TIME_LIMIT="10", SBATCH_ACCOUNT="a").preflight.warnings
    assert [note for note in notes if "no effect" in note] == [
        "ENABLE_VBOOST, TIME_LIMIT: no effect on the local executor"
    ]


def test_mounts_without_containers_are_said_to_have_no_effect() -> None:
    site = cluster_config(slurm=SlurmSettings(runtime="none"))
    p = plan(site, JOB_TOTAL_GPUS="128", GPU_TYPE="gb200", RUN_CONF_MOUNTS="/data:/data")
    assert any("RUN_CONF_MOUNTS has no effect" in note for note in p.preflight.warnings)


def test_unknown_gpus_of_a_machine_and_others_than_asked_for_are_noted() -> None:
    unknown = plan(Machine(cluster_type="local", gpu_type=None, gpus=8))
    assert (unknown.device, unknown.gpus) == ("cpu", 2)
    assert any("no type that the recipes know" in note for note in unknown.preflight.warnings)
    h100 = Machine(cluster_type="local", gpu_type="h100", gpus=8)
    other = plan(h100, GPU_TYPE="b200", MODEL_SIZE="8b")
    assert "planned for b200, and this machine has h100" in other.preflight.warnings


def test_a_cpu_is_profiled_by_pytorch_even_where_nsys_is() -> None:
    p = plan(Machine(cluster_type="local", gpu_type="cpu", has_nsys=True), ENABLE_PROFILE="true")
    assert p.profile is not None
    assert p.profile.tool == "torch"


def test_a_checkpoint_may_lie_anywhere() -> None:
    p = plan(JOB_TOTAL_GPUS="128", GPU_TYPE="gb200", LOAD_CHECKPOINT_PATH="/install/../elsewhere")
    assert p.checkpoint.load == "/elsewhere"


def test_checkpoints_with_fsdp_on_a_cpu_are_refused_before_they_hang() -> None:
    metrics = {"ENABLE_PROFILE": "true", "ENABLE_GPU_METRICS": "true"}
    assert "there is no GPU" in refusal(LAPTOP, **metrics)
    assert "there is no GPU" in refusal(GPU_TYPE="cpu", JOB_TOTAL_GPUS="2", **metrics)
    without_nsys = Machine(cluster_type="local", gpu_type="h100", gpus=8)
    assert "needs nsys" in refusal(without_nsys, MODEL_SIZE="8b", **metrics)
    assert "FSDP cannot save" in refusal(LAPTOP, FSDP="true", ENABLE_CHECKPOINT="true")


def test_an_interval_beyond_the_run_is_noted() -> None:
    p = plan(JOB_TOTAL_GPUS="128", GPU_TYPE="gb200", ENABLE_CHECKPOINT="true", CHECKPOINT_INTERVAL="100")
    assert any("saves at its end only" in note for note in p.preflight.warnings)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("nvcr.io#nvidia/nemo:26.02.01", "nvcr.io#nvidia/nemo:26.02.01"),
        ("/images/x.sqsh", "/images/x.sqsh"),
        ("images/x.sqsh", str(Path.cwd() / "images/x.sqsh")),
        ("./x", str(Path.cwd() / "x")),
    ],
)
def test_an_image_file_is_an_absolute_path_for_pyxis_reads_others_as_names(image: str, expected: str) -> None:
    assert plan(JOB_TOTAL_GPUS="128", GPU_TYPE="gb200", RUN_CONF_IMAGE=image).image == expected


@pytest.mark.parametrize(
    "variables",
    [
        {"MBS": "2"},
        {"STRONG_SCALING": "true"},
        {"MOE_ROUTING": "balanced"},
        {"FP8_RECIPE": "mx"},
        {"FP8_RECIPE": "cs"},
        {"ENABLE_PROFILE": "true"},
        {"ENABLE_NCCLTRACE": "true"},
        {"ENABLE_CHECKPOINT": "true"},
        {"LOAD_CHECKPOINT_PATH": "/install/c"},
        {"LOAD_CHECKPOINT_PATH": "/install/c", "MAX_STEPS": "100"},
    ],
)
def test_only_the_published_job_is_compared_with_the_published_time(variables: dict[str, str]) -> None:
    grok = {"recipe": "grok1", "JOB_TOTAL_GPUS": "128"}
    published = plan(**grok, FP8_RECIPE="ds", MOE_ROUTING="drop", ENABLE_VBOOST="true", NCCL_IB_HCA="mlx5")
    assert published.preflight.reference_step_seconds == 5.298
    different = plan(**grok, **variables)
    assert different.preflight.reference_step_seconds is None
    # Whatever judges the run later knows the rule only from the plan.
    assert published_result(published, GROK) is not None
    assert published_result(different, GROK) is None


@pytest.mark.parametrize(
    ("recipe", "size", "variant", "scaling"),
    [
        ("llama3.1", "405b", "mbridge", "cs"),
        ("llama3.1", "405b", "nemo2", "ds"),
        ("llama4", "400b", "nemo2", "ds"),
        ("grok1", "314b", "nemo2", "ds"),
        ("nemotron4", "340b", "nemo2", "ds"),
    ],
)
def test_fp8_is_scaled_as_the_results_were_measured(recipe: str, size: str, variant: str, scaling: str) -> None:
    gpus = "1024" if size in ("405b", "340b") else "512"
    job = {"recipe": recipe, "MODEL_SIZE": size, "GPU_TYPE": "h100", "DTYPE": "fp8", "JOB_TOTAL_GPUS": gpus}
    p = plan(**job, CONFIG_VARIANT=variant)
    assert (p.fp8_recipe, p.preflight.warnings) == (scaling, ())
    other = plan(**job, CONFIG_VARIANT=variant, FP8_RECIPE={"cs": "ds", "ds": "cs"}[scaling])
    assert other.experiment_name != p.experiment_name, "two benchmarks, never under one name"
    assert any(f"measured with {scaling}" in note for note in other.preflight.warnings)


def test_the_output_layers_weight_gradients_wait_for_the_drain_of_a_pipeline() -> None:
    job = {"MODEL_SIZE": "70b", "GPU_TYPE": "h100", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "64"}
    assert plan(**job).wgrad_deferral == 22
    assert plan(**job, PP="1", VP="na", PREFLIGHT="off").wgrad_deferral is None
