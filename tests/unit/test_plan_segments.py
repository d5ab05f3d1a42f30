"""--segment: every job on NVL72 racks requests it, with a notice if its node count is an awkward one."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb_common.executors.slurm.words import SlurmSettings, best_segment, choose_segment
from llmb_common.planning.job_plan import JobPlan
from llmb_common.site.cluster import ClusterConfig, cluster_config
from llmb_common.site.machine import Machine
from support import plans

ROOT = Path(__file__).resolve().parents[2]
NEW, OLD = (Machine(cluster_type="slurm", release=release) for release in ((24, 5), (24, 4)))
RACK = 18


def plan(machine: Machine = NEW, cluster: ClusterConfig | None = None, **variables: str) -> JobPlan:
    return plans.plan(machine, cluster, **{"FORCE": "true", "MODEL_SIZE": "8b", **variables})


def segment_line(p: JobPlan) -> str | None:
    return next((line for line in plans.script_of(p).splitlines() if "--segment" in line), None)


@pytest.mark.parametrize(
    ("nodes", "segment"),
    [(1, 1), (2, 2), (16, 16), (17, 17), (18, 18), (19, 1), (20, 10), (32, 16), (36, 18), (64, 16), (288, 18)],
)
def test_all_nodes_up_to_a_rack_then_the_largest_divisor_that_fits_one(nodes: int, segment: int) -> None:
    assert best_segment(nodes, RACK) == segment


@pytest.mark.parametrize("gpu_type", ["gb200", "gb300"])
@pytest.mark.parametrize(("gpus", "segment"), [("4", 1), ("8", 2), ("64", 16), ("256", 16)])
def test_every_job_on_nvl72_asks_for_its_segment(gpu_type: str, gpus: str, segment: int) -> None:
    p = plan(GPU_TYPE=gpu_type, JOB_TOTAL_GPUS=gpus)
    assert segment_line(p) == f"#SBATCH --segment={segment}"
    assert not any("segment" in note for note in p.preflight.warnings)


@pytest.mark.parametrize("gpu_type", ["b200", "h100"])
def test_other_gpus_have_no_racks(gpu_type: str) -> None:
    assert segment_line(plan(GPU_TYPE=gpu_type, JOB_TOTAL_GPUS="64")) is None


def test_an_awkward_node_count_gets_a_better_one_suggested() -> None:
    p = plan(GPU_TYPE="gb200", JOB_TOTAL_GPUS="76")
    (note,) = (note for note in p.preflight.warnings if "segment" in note)
    assert "19 nodes divide only into segments of 1" in note
    assert "no more than 4 GPUs" in note
    assert "20 nodes (80 GPUs) would divide into segments of 10" in note


def test_the_number_that_is_named_is_better_and_the_nearest() -> None:
    for nodes in range(1, 600):
        segment, notice = choose_segment("gb200", nodes, 4, slurm_segments=True)
        assert segment == best_segment(nodes, RACK)
        assert bool(notice) == (nodes > 18 and best_segment(nodes, RACK) < RACK // 2)
        if notice:
            better = int(notice.partition("; ")[2].split()[0])
            assert best_segment(better, RACK) >= RACK // 2
            assert all(best_segment(between, RACK) < RACK // 2 for between in range(nodes, better))


def test_one_node_needs_no_segment_from_a_slurm_that_has_none() -> None:
    assert choose_segment("gb200", 1, 4, slurm_segments=False) == (None, "")
    segment, notice = choose_segment("gb200", 2, 4, slurm_segments=False)
    assert segment is None
    assert "24.05 and later have it" in notice


def test_a_slurm_without_the_option_is_not_given_it_and_the_plan_says_so() -> None:
    p = plan(OLD, GPU_TYPE="gb200", JOB_TOTAL_GPUS="64")
    assert segment_line(p) is None
    assert any("no --segment (24.05 and later have it)" in note for note in p.preflight.warnings)
    assert not plan(OLD, GPU_TYPE="h100", JOB_TOTAL_GPUS="64").preflight.warnings[1:]


def test_fewer_gpus_of_a_node_leave_the_rack_as_it_is() -> None:
    assert segment_line(plan(GPU_TYPE="gb200", JOB_TOTAL_GPUS="64", GPUS_PER_NODE="2")) == "#SBATCH --segment=16"


def test_nodes_of_more_gpus_are_no_racks() -> None:
    p = plan(GPU_TYPE="gb200", JOB_TOTAL_GPUS="64", GPUS_PER_NODE="8")
    assert segment_line(p) is None
    assert any("nodes of 8 GPUs are not those of an NVL72 rack" in note for note in p.preflight.warnings)


@pytest.mark.parametrize("who", ["user", "site"])
def test_the_user_and_the_site_have_the_last_word(who: str) -> None:
    site = cluster_config(slurm=SlurmSettings(additional_params="segment=4"))
    asked = {"ADDITIONAL_SLURM_PARAMS": "segment=4"} if who == "user" else {}
    p = plan(NEW, site if who == "site" else None, GPU_TYPE="gb200", JOB_TOTAL_GPUS="76", **asked)
    assert segment_line(p) == "#SBATCH --segment=4"
    assert not any("segment" in note for note in p.preflight.warnings)
