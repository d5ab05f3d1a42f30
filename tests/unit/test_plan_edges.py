"""What a plan says at its edges: time that is just enough, scales just beside a documented one, ranks just beyond."""

from __future__ import annotations

import pytest

from llmb_common.errors import RequestError
from llmb_common.executors.slurm.words import SlurmSettings
from llmb_common.planning.job_plan import JobPlan
from llmb_common.recipes.loading import load_recipe
from llmb_common.rendering.job import job_document
from llmb_common.rendering.script import render_script
from llmb_common.runs.paths import dry_run_paths
from llmb_common.site.cluster import cluster_config
from llmb_common.site.machine import Machine
from support.plans import LAPTOP, ROOT, SLURM, plan, refusal

BIG = {"GPU_TYPE": "gb200", "JOB_TOTAL_GPUS": "256"}


def notes(machine: Machine = SLURM, recipe: str = "llama3.1", **variables: str) -> str:
    return "\n".join(plan(machine, recipe=recipe, **variables).preflight.warnings)


@pytest.mark.parametrize(
    ("ranks", "profiled", "said"),
    [
        ("all", None, ""),
        ("0", (0,), ""),
        ("255", (255,), ""),
        (" 3 , 1-2 ", (1, 2, 3), ""),
        ("5-5,5", (5,), ""),
        ("255-256", (255,), "the job has ranks 0 to 255; ignored: 256"),
        ("0,256", (0,), "ignored: 256"),
        ("250-300,7,400-401", (7, 250, 251, 252, 253, 254, 255), "ignored: 256-300, 400-401"),
    ],
)
def test_ranks_of_a_profile(ranks: str, profiled: tuple[int, ...] | None, said: str) -> None:
    made = plan(ENABLE_PROFILE="true", PROFILE_RANKS=ranks, **BIG)
    assert made.profile is not None
    assert made.profile.ranks == profiled
    (note,) = [note for note in made.preflight.warnings if "PROFILE_RANKS" in note] or [""]
    assert said in note
    assert bool(said) == bool(note)


@pytest.mark.parametrize("ranks", ["256", "300-400"])
def test_ranks_that_the_job_does_not_have(ranks: str) -> None:
    assert "the job has only ranks 0 to 255" in refusal(ENABLE_PROFILE="true", PROFILE_RANKS=ranks, **BIG)


@pytest.mark.parametrize("ranks", ["", "3-2", "a", "1,,2", "1-2-3", "-1"])
def test_what_is_no_list_of_ranks(ranks: str) -> None:
    if not ranks:
        assert plan(ENABLE_PROFILE="true", PROFILE_RANKS=ranks, **BIG).profile is not None
        return
    assert "is not a list of ranks" in refusal(ENABLE_PROFILE="true", PROFILE_RANKS=ranks, **BIG)


def test_a_profile_starts_before_it_stops_and_stops_within_the_job() -> None:
    steps = {"ENABLE_PROFILE": "true", "MAX_STEPS": "20", **BIG}
    made = plan(PROFILE_START_STEP="19", PROFILE_STOP_STEP="20", **steps)
    assert made.profile is not None
    assert (made.profile.start, made.profile.stop) == (19, 20)
    assert "stops at step 20, before or at its start 20" in refusal(
        PROFILE_START_STEP="20", PROFILE_STOP_STEP="20", **steps
    )
    assert "stops at step 21, and the job has 20" in refusal(PROFILE_START_STEP="1", PROFILE_STOP_STEP="21", **steps)


def test_a_local_profile_is_nsys_where_there_are_gpus_and_nsys_and_else_says_why_not() -> None:
    profile = {"ENABLE_PROFILE": "true", "MODEL_SIZE": "8b"}
    gpus = Machine(cluster_type="local", gpu_type="h100", gpus=8, has_nsys=True)
    made = plan(gpus, **profile)
    assert made.profile is not None
    assert (made.profile.tool, "the profile is" in str(made.preflight.warnings)) == ("nsys", False)
    without = Machine(cluster_type="local", gpu_type="h100", gpus=8)
    assert "nsys is not on this machine: the profile is PyTorch's" in notes(without, **profile)
    laptop = {"ENABLE_PROFILE": "true"}
    assert "nsys is not on this machine" in notes(Machine(cluster_type="local", gpu_type="cpu"), **laptop)
    with_nsys = Machine(cluster_type="local", gpu_type="cpu", has_nsys=True)
    assert "nsys sees nothing of a run on CPUs: the profile is PyTorch's" in notes(with_nsys, **laptop)


def test_the_name_of_a_profile_holds_what_was_profiled() -> None:
    made = plan(recipe="grok1", ENABLE_PROFILE="true", JOB_TOTAL_GPUS="128", DTYPE="fp8")
    assert made.profile is not None
    assert not {"${MODEL}", "${MODEL_SIZE}", "${DTYPE}", "${NUM_GPUS}"} & set(made.profile.file.split("_"))
    for part in ("314b", "fp8", "128"):
        assert part in made.profile.file


SAVE = {"ENABLE_CHECKPOINT": "true", "MODEL_SIZE": "15b", "JOB_TOTAL_GPUS": "64"}


@pytest.mark.parametrize(("interval", "steps", "noted"), [("50", "50", False), ("51", "50", True), ("1", "50", False)])
def test_an_interval_is_noted_where_no_step_reaches_it(interval: str, steps: str, noted: bool) -> None:
    said = notes(recipe="nemotron4", CHECKPOINT_INTERVAL=interval, MAX_STEPS=steps, **SAVE)
    assert ("saves at its end only" in said) is noted
    assert not noted or f"CHECKPOINT_INTERVAL={interval}: the run has {steps} steps" in said


def test_checkpoints_are_remarked_on_outside_the_scales_that_were_tested() -> None:
    model = load_recipe(ROOT / "nemotron4").model("15b")
    assert model.checkpoint is not None
    low, high = model.checkpoint.scales
    job = {"recipe": "nemotron4", "MODEL_SIZE": "15b", "FORCE": "true"}
    saving = f"was tested on {low} to {high} GPUs, not on "
    for gpus in (low, high):
        assert saving not in notes(**job, ENABLE_CHECKPOINT="true", JOB_TOTAL_GPUS=str(gpus))  # type: ignore[arg-type]
    for gpus in (low // 2, high * 2):
        assert f"{saving}{gpus}" in notes(**job, ENABLE_CHECKPOINT="true", JOB_TOTAL_GPUS=str(gpus))  # type: ignore[arg-type]
    least = model.checkpoint.load_minimum
    loading = {**job, "LOAD_CHECKPOINT_PATH": "/c"}
    assert "may run out of memory" not in notes(**loading, JOB_TOTAL_GPUS=str(least))  # type: ignore[arg-type]
    assert f"tested on {least} GPUs or more; {least // 2} may run out of memory" in notes(
        **loading,  # type: ignore[arg-type]
        JOB_TOTAL_GPUS=str(least // 2),
    )


def test_an_undocumented_scale_needs_force_and_takes_the_nearest_row() -> None:
    message = refusal(GPU_TYPE="gb200", JOB_TOTAL_GPUS="64")
    assert "JOB_TOTAL_GPUS=64: no configuration of llama3.1 405b fp8 on gb200 has that number of GPUs" in message
    assert "the recipe has 128, 256, 512" in message
    assert "FORCE=true accepts other numbers of GPUs that the layout divides" in message
    below = plan(GPU_TYPE="gb200", JOB_TOTAL_GPUS="64", FORCE="true")
    row = plan(GPU_TYPE="gb200", JOB_TOTAL_GPUS="128")
    assert (below.tp, below.pp, below.cp, below.fsdp) == (row.tp, row.pp, row.cp, row.fsdp)
    assert "has 64 GPUs" in "\n".join(below.preflight.warnings)


def test_without_a_number_of_gpus_slurm_is_told_the_documented_ones_and_a_machine_gives_its_own() -> None:
    assert "JOB_TOTAL_GPUS is not set\n  -> the recipe has 128, 256, 512" in refusal(GPU_TYPE="gb200")
    meant = "JOB_TOTAL_GPUS is not set (GPUS=256 is: did you mean JOB_TOTAL_GPUS=256?)"
    assert meant in refusal(GPU_TYPE="gb200", GPUS="256")
    machine = Machine(cluster_type="local", gpu_type="h100", gpus=8)
    assert plan(machine, MODEL_SIZE="8b").gpus == 8
    assert plan(machine, GPU_TYPE="cpu", MODEL_SIZE="smoke").gpus == 2


def test_a_dtype_that_a_gpu_or_model_lacks() -> None:
    assert "llama3.1 405b has no DTYPE=nvfp4 on gb200" in refusal(DTYPE="nvfp4", **BIG)
    assert "DTYPE=fp8 cannot run on a CPU: it would silently train in bf16" in refusal(LAPTOP, DTYPE="fp8")
    assert plan(LAPTOP, DTYPE="bf16").dtype == "bf16"
    assert "FP8_RECIPE=cs has no effect with DTYPE=bf16" in notes(LAPTOP, DTYPE="bf16", FP8_RECIPE="cs")


def test_what_a_cpu_cannot_do() -> None:
    assert "CUDA_GRAPH=true cannot run on a CPU" in refusal(LAPTOP, CUDA_GRAPH="true")
    assert "OFFLOAD_LAYERS cannot run on a CPU" in refusal(LAPTOP, OFFLOAD_LAYERS="1")
    assert "FSDP cannot save or load" in refusal(LAPTOP, FSDP="true", LOAD_CHECKPOINT_PATH="/c")
    assert plan(LAPTOP, FSDP="true").fsdp
    assert "the log will hold no NCCL lines" in notes(LAPTOP, ENABLE_NCCLTRACE="true")
    assert "NCCL lines" not in notes(ENABLE_NCCLTRACE="true", **BIG)


@pytest.mark.parametrize(("steps", "noted"), [("44", False), ("43", True), ("50", False)])
def test_a_job_too_short_for_its_result_is_told_so(steps: str, noted: bool) -> None:
    said = notes(MAX_STEPS=steps, **BIG)
    assert ("there will be no verdict" in said) is noted


def test_a_slurm_variable_that_is_not_passed_on_is_said_with_what_to_use() -> None:
    said = notes(SBATCH_TIMELIMIT="10", SBATCH_GRES="gpu:8", SBATCH_QOS="high", SBATCH_RESERVATION="r", **BIG)
    assert "SBATCH_TIMELIMIT: not passed to sbatch; use TIME_LIMIT" in said
    assert "SBATCH_GRES: not passed to sbatch; use JOB_TOTAL_GPUS and SBATCH_GPUS_PER_NODE" in said
    assert "SBATCH_QOS, SBATCH_RESERVATION: not passed to sbatch; use ADDITIONAL_SLURM_PARAMS" in said


def test_a_variable_of_nearly_a_documented_name_is_remarked_on() -> None:
    assert "PROFILE=true is not a variable of LLMB (did you mean ENABLE_PROFILE=true?)" in notes(PROFILE="true", **BIG)


def test_strong_scaling_keeps_the_batch_of_the_largest_documented_scale() -> None:
    largest = plan(GPU_TYPE="gb200", JOB_TOTAL_GPUS="512").gbs
    assert plan(STRONG_SCALING="true", **BIG).gbs == largest
    assert plan(**BIG).gbs < largest
    assert "STRONG_SCALING and GBS cannot be combined" in refusal(STRONG_SCALING="true", GBS="128", **BIG)


# Variables that NVIDIA's performance scripts set, by what decides about them.
ALWAYS = {"TORCH_NCCL_AVOID_RECORD_STREAMS": "1", "TORCH_NCCL_HIGH_PRIORITY": "1", "NCCL_NVLS_ENABLE": "0"}
ALWAYS |= {"NVTE_FWD_LAYERNORM_SM_MARGIN": "16", "NVTE_BWD_LAYERNORM_SM_MARGIN": "16"}
EVERYWHERE = {"TOKENIZERS_PARALLELISM": "False", "TRANSFORMERS_OFFLINE": "1"}
PIPELINE = {"MODEL_SIZE": "405b", "GPU_TYPE": "h100", "JOB_TOTAL_GPUS": "1024"}


@pytest.mark.parametrize(
    ("variables", "present", "absent"),
    [
        (BIG, {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "NCCL_NET_GDR_LEVEL": "PHB", "NCCL_NET_GDR_C2C": "1"}, "P2P_NET"),
        (BIG, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "NVTE_NORM_FWD_USE_CUDNN": "1"}, "NCCL_DEBUG"),
        ({**BIG, "GPU_TYPE": "gb300"}, {"NVTE_NORM_BWD_USE_CUDNN": "1"}, "GDR"),
        ({**BIG, "GPU_TYPE": "gb300"}, {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}, "PYTORCH_CUDA_ALLOC_CONF"),
        (PIPELINE, {"NCCL_P2P_NET_CHUNKSIZE": "2097152", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "GDR"),
        ({"MODEL_SIZE": "8b", "GPU_TYPE": "h100", "JOB_TOTAL_GPUS": "8"}, {"NCCL_CTA_POLICY": "1"}, "P2P_NET"),
        (
            {"MODEL_SIZE": "8b", "GPU_TYPE": "h100", "JOB_TOTAL_GPUS": "8"},
            {"CUDA_DEVICE_MAX_CONNECTIONS": "8", "NVTE_NORM_FWD_USE_CUDNN": "1"},
            "PYTORCH_CUDA",
        ),
        ({**BIG, "ENABLE_NCCLTRACE": "true"}, {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL,P2P,NET"}, "CTA"),
    ],
)
def test_variables_of_a_job(variables: dict[str, str], present: dict[str, str], absent: str) -> None:
    env = {name: item.value for name, item in plan(**variables).env.items()}
    expected = {**EVERYWHERE, **ALWAYS, **present}
    assert {name: env.get(name) for name in expected} == expected
    assert not [name for name in env if absent in name]


def test_a_job_on_cpus_has_none_of_those_for_gpus() -> None:
    assert {name: item.value for name, item in plan(LAPTOP).env.items()} == EVERYWHERE


def test_a_variable_is_the_callers_before_the_sites_before_the_recipes() -> None:
    site = cluster_config(environment={"NCCL_NVLS_ENABLE": "1", "NCCL_IB_HCA": "mlx5"})
    env = plan(site, NCCL_IB_HCA="mlx6", UCX_TLS="rc", **BIG).env
    said = {name: (env[name].value, env[name].source) for name in ("NCCL_NVLS_ENABLE", "NCCL_IB_HCA", "UCX_TLS")}
    assert said == {
        "NCCL_NVLS_ENABLE": ("1", "cluster_config.yaml"),
        "NCCL_IB_HCA": ("mlx6", "environment"),
        "UCX_TLS": ("rc", "environment"),
    }
    assert env["NVTE_FWD_LAYERNORM_SM_MARGIN"].source == "recipe"
    assert list(env) == sorted(env)


# Site, machine and request together


def script(made: JobPlan) -> str:
    return render_script(made, dry_run_paths(made.workload_folder, made.experiment_name))


@pytest.mark.parametrize(("gpus", "segment"), [("68", 17), ("72", 18), ("76", 1), ("80", 10), ("144", 18)])
def test_a_segment_is_at_most_the_18_nodes_of_a_rack(gpus: str, segment: int) -> None:
    made = plan(GPU_TYPE="gb200", MODEL_SIZE="8b", JOB_TOTAL_GPUS=gpus, FORCE="true")
    assert f"#SBATCH --segment={segment}\n" in script(made)


RESUMED = {"recipe": "nemotron4", "MODEL_SIZE": "15b", "JOB_TOTAL_GPUS": "16", "LOAD_CHECKPOINT_PATH": "/install/c"}


@pytest.mark.parametrize(
    ("variables", "steps", "exit_after"),
    [
        ({}, 50, 1),  # as documented: one step further
        ({"MAX_STEPS": "60"}, 60, None),  # to the step that was asked for
        ({"MAX_STEPS": "60", "LOAD_CHECKPOINT_PATH": ""}, 60, None),
        ({"LOAD_CHECKPOINT_PATH": ""}, 50, None),
    ],
)
def test_a_resumed_job_ends_after_one_step_unless_it_is_told_where(
    variables: dict[str, str], steps: int, exit_after: int | None
) -> None:
    made = plan(**{**RESUMED, **variables})  # type: ignore[arg-type]
    assert (made.max_steps, made.exit_after) == (steps, exit_after)
    document = job_document(made, dry_run_paths(made.workload_folder, made.experiment_name))
    waits_from = None if exit_after else 45  # beyond the window, where ranks record whom they wait for
    assert document["steps"] == {"train": steps, "exit_after": exit_after, "waits_from": waits_from}


@pytest.mark.parametrize(
    ("gpus", "nodes", "each"), [("4", 1, 4), ("8", 1, 8), ("16", 2, 8), ("1024", 128, 8), ("1", 1, 1)]
)
def test_jobs_fill_whole_nodes_or_a_part_of_one(gpus: str, nodes: int, each: int) -> None:
    made = plan(GPU_TYPE="h100", MODEL_SIZE="8b", JOB_TOTAL_GPUS=gpus, FORCE="true")
    assert (made.nodes, made.gpus_per_node) == (nodes, each)


def test_a_part_of_a_second_node_is_refused() -> None:
    with pytest.raises(RequestError, match=r"12 GPUs do not fill nodes of 8 GPUs") as caught:
        plan(GPU_TYPE="h100", MODEL_SIZE="8b", JOB_TOTAL_GPUS="12", FORCE="true", GBS="24")
    assert "use a multiple of 8" in caught.value.remedy


@pytest.mark.parametrize(("gpu_type", "each"), [("gb300", 4), ("gb200", 4), ("b200", 8), ("h200", 8), ("h100", 8)])
def test_nodes_have_as_many_gpus_as_the_type_has_unless_site_or_user_say_otherwise(gpu_type: str, each: int) -> None:
    job = {"GPU_TYPE": gpu_type, "MODEL_SIZE": "8b", "JOB_TOTAL_GPUS": "16", "FORCE": "true"}
    assert plan(**job).gpus_per_node == each
    assert plan(cluster_config(gpus_per_node=2), **job).gpus_per_node == 2
    assert plan(cluster_config(gpus_per_node=2), GPUS_PER_NODE="1", **job).gpus_per_node == 1


def test_the_users_word_on_slurm_goes_before_the_sites() -> None:
    site = cluster_config(
        slurm=SlurmSettings(
            account="site", gpu_partition="sitepart", gres=False, additional_params="qos=low;exclusive;comment=a"
        )
    )
    job = {"GPU_TYPE": "h100", "MODEL_SIZE": "8b", "JOB_TOTAL_GPUS": "8"}
    slurm = plan(site, **job).scheduler
    assert slurm is not None
    assert (slurm.account, slurm.partition, slurm.gres) == ("site", "sitepart", False)
    assert slurm.additional == (("qos", "low"), ("exclusive", None), ("comment", "a"))
    mine = {"SBATCH_ACCOUNT": "me", "SBATCH_PARTITION": "mine", "SBATCH_GPUS_PER_NODE": "h100:8"}
    slurm = plan(site, ADDITIONAL_SLURM_PARAMS="qos=high", **mine, **job).scheduler
    assert slurm is not None
    assert (slurm.account, slurm.partition, slurm.gres, slurm.gres_type) == ("me", "mine", True, "h100")
    assert slurm.additional == (("exclusive", None), ("comment", "a"), ("qos", "high"))


def test_images_come_from_the_sites_folder_the_installation_or_the_user() -> None:
    job = {"GPU_TYPE": "gb200", "JOB_TOTAL_GPUS": "256"}
    assert plan(**job).image == "/install/images/nvidia+nemo+26.02.01.sqsh"
    assert plan(cluster_config(image_folder="/images"), **job).image == "/images/nvidia+nemo+26.02.01.sqsh"
    bare = cluster_config(slurm=SlurmSettings(runtime="none"))
    assert plan(bare, **job).image is None
    with pytest.raises(RequestError, match="this site runs without containers"):
        plan(bare, RUN_CONF_IMAGE="/a.sqsh", **job)


def test_what_is_trained_where_goes_by_the_request_before_the_site() -> None:
    job = {"MODEL_SIZE": "8b", "JOB_TOTAL_GPUS": "8"}
    site = cluster_config(gpu_type="h100")
    assert plan(site, **job).gpu_type == "h100"
    assert plan(site, GPU_TYPE="b200", **job).gpu_type == "b200"
    machine = Machine(cluster_type="local", gpu_type="h100", gpus=8)
    assert plan(machine, **job).gpu_type == "h100"
    assert plan(machine, cluster_config(gpu_type="b200"), **job).gpu_type == "b200"
    assert plan(machine, LLMB_WORKLOAD="/elsewhere/w", **job).workload_folder == "/elsewhere/w"
    assert plan(machine, **job).workload_folder == "/install/workloads/pretrain_llama3.1"
