"""Each arithmetic rule of a layout at its edge: the last value that Megatron takes, and the first that it does not."""

from __future__ import annotations

import msgspec
import pytest

from llmb_common.errors import RequestError
from llmb_common.planning.divisibility import Layout, check_layout
from llmb_common.planning.job_plan import JobPlan
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.model import Architecture
from llmb_common.rendering.job import job_document
from llmb_common.rendering.script import render_script
from llmb_common.runs.paths import dry_run_paths
from llmb_common.site.cluster import ClusterConfig, SlurmSettings
from llmb_common.site.machine import Machine
from support.plans import ROOT, plan


def architecture(recipe: str, size: str) -> Architecture:
    return load_recipe(ROOT / recipe).model(size).architecture


DENSE = architecture("llama3.1", "405b")  # 128 heads, 8 query groups, 126 layers
EXPERTS = architecture("llama4", "400b")  # 128 experts
PLAIN = {
    **{"gpus": 128, "tp": 1, "pp": 1, "cp": 1, "ep": None, "etp": None, "vp": None, "mbs": 1, "gbs": 128},
    **{"fsdp": False, "cuda_graph": False, "recompute_layers": 0, "offload_layers": 0},
}


def layout(**columns: object) -> Layout:
    return Layout(**{**PLAIN, **columns})  # type: ignore[arg-type]


def check(model: Architecture = DENSE, length: int = 8192, **columns: object) -> None:
    check_layout(layout(**columns), model, length, "llama3")


def refusal(model: Architecture = DENSE, length: int = 8192, **columns: object) -> str:
    with pytest.raises(RequestError) as caught:
        check(model, length, **columns)
    assert caught.value.code == "does-not-divide"
    return str(caught.value)


def test_the_ranks_of_one_model_divide_the_gpus() -> None:
    check(tp=4, pp=2, cp=2)
    message = refusal(gpus=24, tp=4, pp=2, cp=2, gbs=24)
    assert "24 GPUs are not divisible by TP*PP*CP = 4*2*2 = 16" in message
    assert "use a multiple of 16 GPUs" in message


def test_sequence_parallelism_divides_the_sequence_by_tp_and_cp_together() -> None:
    check(length=8192, tp=4, cp=2)
    check(length=24, tp=4, cp=2)
    assert "is not divisible by TP*CP = 2" in refusal(length=25, tp=2)
    assert "sequence of 20 tokens is not divisible by TP*CP = 8" in refusal(length=20, tp=4, cp=2)
    check(length=8191)  # one rank: nothing is divided


def test_context_parallelism_halves_each_ranks_part_again() -> None:
    """A causal mask gives later tokens more work, so each rank takes one piece from the front and one from the end."""
    check(length=24, cp=4)
    assert "CP=4 needs a sequence length divisible by 2*CP = 8; it is 20" in refusal(length=20, cp=4)
    check(length=21, cp=1)


def test_chunks_of_attention_that_hold_the_whole_sequence_may_be_divided() -> None:
    smoke = architecture("llama4", "smoke")  # chunks of 64 tokens
    check(smoke, 64, cp=2, ep=1)
    assert "attention chunks of 64 tokens" in refusal(smoke, 128, cp=2, ep=1)
    check(smoke, 128, ep=1)


def test_a_batch_holds_whole_micro_batches_for_every_replica() -> None:
    check(gbs=256, mbs=2)
    check(gbs=64, tp=2)  # 64 replicas
    message = refusal(gbs=192, mbs=2)
    assert "GBS=192 is not divisible by MBS*DP = 2*128 = 256" in message
    assert "use a multiple of 256 as GBS" in message


def test_interleaving_runs_the_micro_batches_of_a_step_in_rounds_of_the_pipeline() -> None:
    # 16 replicas: a GBS of 128 is 8 micro batches, one round of 8 stages.
    check(pp=8, vp=8, gbs=128)
    check(pp=8, vp=8, gbs=256)
    message = refusal(pp=8, vp=8, gbs=192)
    assert "GBS/(MBS*DP) = 12) must be divisible by PP = 8" in message
    check(pp=8, vp=None, gbs=192)
    check(pp=8, vp=1, gbs=192)


def test_virtual_stages_need_real_ones() -> None:
    check(vp=1)
    assert "VP=2 needs PP > 1" in refusal(vp=2)


def test_layers_fill_the_stages_with_or_without_a_slot_for_embedding_and_loss() -> None:
    check(pp=8, gbs=128)  # 126 + 2 layers
    check(pp=2, gbs=128)  # 126
    assert "neither 126 layers nor 128 (with embedding and loss) are divisible by PP = 5" in refusal(
        gpus=160, pp=5, gbs=160
    )
    assert "divisible by PP*VP = 8*3" in refusal(pp=8, vp=3, gbs=128)


def test_experts_divide_among_their_ranks_and_these_among_the_gpus() -> None:
    check(EXPERTS, ep=128, etp=1)
    check(EXPERTS, ep=64, etp=2, tp=2)
    message = refusal(EXPERTS, ep=128, etp=2, tp=2)
    assert "128 GPUs are not divisible by ETP*EP*PP = 2*128*1 = 256" in message
    # Without ETP experts are divided as the rest is, by TP.
    assert "ETP*EP*PP = 2*128*1" in refusal(EXPERTS, ep=128, tp=2)
    assert "ETP*EP*PP = 1*64*4 = 256" in refusal(EXPERTS, ep=64, etp=1, pp=4)
    check(EXPERTS, ep=32, etp=1, pp=4)


def test_each_rank_has_a_whole_number_of_experts_and_of_their_columns() -> None:
    assert EXPERTS.moe is not None
    assert "EP=3 does not divide the 128 experts" in refusal(EXPERTS, gpus=96, gbs=96, ep=3, etp=1)
    odd = msgspec.structs.replace(EXPERTS, moe=msgspec.structs.replace(EXPERTS.moe, ffn=1001))
    assert "ETP=2 does not divide the experts' FFN size 1001" in refusal(odd, ep=1, etp=2)
    check(odd, ep=1, etp=7, gpus=112, gbs=112)


def test_a_dense_model_has_no_experts_to_divide() -> None:
    check(ep=1, etp=1)
    assert "EP=2: this model has no experts" in refusal(ep=2)
    assert "ETP=2: this model has no experts" in refusal(etp=2)


def test_offloading_keeps_a_layer_and_excludes_recomputing_and_stages() -> None:
    check(offload_layers=125)
    assert "OFFLOAD_LAYERS=126 is not less than the 126 layers" in refusal(offload_layers=126)
    assert "exclude each other" in refusal(offload_layers=1, recompute_layers=1)
    assert "needs PP=1" in refusal(offload_layers=1, pp=2)
    check(pp=2)


def test_fsdp_has_no_stages() -> None:
    check(fsdp=True)
    assert "FSDP needs PP=1" in refusal(fsdp=True, pp=2)


def test_sizes_of_groups() -> None:
    columns = {"gpus": 256, "tp": 2, "pp": 2, "cp": 2, "ep": 8, "mbs": 2, "gbs": 512}
    assert (layout(**columns).dp, layout(**columns).ga) == (32, 8)
    assert layout(**columns).expert_dp == 8  # 256 / (2 stages * 8 experts' ranks * TP 2)
    assert layout(**columns, etp=1).expert_dp == 16
    assert layout().expert_dp is None


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
    waits_from = None if exit_after else steps - 4  # beyond the window, where ranks record whom they wait for
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
    assert plan(ClusterConfig(gpus_per_node=2), **job).gpus_per_node == 2
    assert plan(ClusterConfig(gpus_per_node=2), GPUS_PER_NODE="1", **job).gpus_per_node == 1


def test_the_users_word_on_slurm_goes_before_the_sites() -> None:
    site = ClusterConfig(
        slurm=SlurmSettings(
            account="site", gpu_partition="sitepart", gres=False, additional_params="qos=low;exclusive;comment=a"
        )
    )
    job = {"GPU_TYPE": "h100", "MODEL_SIZE": "8b", "JOB_TOTAL_GPUS": "8"}
    slurm = plan(site, **job).slurm
    assert slurm is not None
    assert (slurm.account, slurm.partition, slurm.gres) == ("site", "sitepart", False)
    assert slurm.additional == (("qos", "low"), ("exclusive", None), ("comment", "a"))
    mine = {"SBATCH_ACCOUNT": "me", "SBATCH_PARTITION": "mine", "SBATCH_GPUS_PER_NODE": "h100:8"}
    slurm = plan(site, ADDITIONAL_SLURM_PARAMS="qos=high", **mine, **job).slurm
    assert slurm is not None
    assert (slurm.account, slurm.partition, slurm.gres, slurm.gres_type) == ("me", "mine", True, "h100")
    assert slurm.additional == (("exclusive", None), ("comment", "a"), ("qos", "high"))


def test_images_come_from_the_sites_folder_the_installation_or_the_user() -> None:
    job = {"GPU_TYPE": "gb200", "JOB_TOTAL_GPUS": "256"}
    assert plan(**job).image == "/install/images/nvidia+nemo+26.02.01.sqsh"
    assert plan(ClusterConfig(image_folder="/images"), **job).image == "/images/nvidia+nemo+26.02.01.sqsh"
    bare = ClusterConfig(slurm=SlurmSettings(runtime="none"))
    assert plan(bare, **job).image is None
    with pytest.raises(RequestError, match="this site runs without containers"):
        plan(bare, RUN_CONF_IMAGE="/a.sqsh", **job)


def test_what_is_trained_where_goes_by_the_request_before_the_site() -> None:
    job = {"MODEL_SIZE": "8b", "JOB_TOTAL_GPUS": "8"}
    site = ClusterConfig(gpu_type="h100")
    assert plan(site, **job).gpu_type == "h100"
    assert plan(site, GPU_TYPE="b200", **job).gpu_type == "b200"
    machine = Machine(cluster_type="local", gpu_type="h100", gpus=8)
    assert plan(machine, **job).gpu_type == "h100"
    assert plan(machine, ClusterConfig(gpu_type="b200"), **job).gpu_type == "b200"
    assert plan(machine, LLMB_WORKLOAD="/elsewhere/w", **job).workload_folder == "/elsewhere/w"
    assert plan(machine, **job).workload_folder == "/install/workloads/pretrain_llama3.1"
