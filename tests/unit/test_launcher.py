"""Plans of ``mbridge`` against NVIDIA's own launcher, whose answers for every function are in ``data/launcher.json``.

What differs is in one table, with its reason. A difference that is not in it fails, and so does an entry that explains
none any more.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from llmb_common.planning.job_plan import JobPlan
from llmb_common.recipes.catalogue import Catalogue, Entry
from support.functions import CATALOGUE, IMPOSSIBLE, MEGATRON_REFUSES, NEWEST, RECIPE, asked, plan
from support.plans import script_of

LAUNCHER = json.loads((Path(__file__).parents[1] / "data" / "launcher.json").read_text(encoding="utf-8"))

IMAGE = {"LLMB_ENGINE": CATALOGUE.release, "RUN_CONF_IMAGE": "/images/newest.sqsh"}
EXPLAINED = {
    ("HF_HUB_OFFLINE", "0", None): "it is Hugging Face's own default, and a site may have another",
    ("NCCL_IB_QPS_PER_CONNECTION", None, "4"): "NVIDIA's recipes of DGX Cloud Benchmarking set it for these models",
    ("segment", None, 8): "R100, of which a node has one GPU: NVIDIA asks where it has four, and NVLink joins 72 nodes",
}
"""By name: NVIDIA's value and ours, None where there is none."""


def launched(entry: Entry, catalogue: Catalogue) -> dict[str, Any]:
    """What NVIDIA's launcher says, and the variables that its bootstrap adds from the function."""
    row = dict(LAUNCHER["launched"][entry.name])
    env = LAUNCHER["everywhere"]["env"] | row.pop("env", {}) | catalogue.function(entry.name).env
    return row | env | LAUNCHER["everywhere"]["sbatch"] | dict.fromkeys(LAUNCHER["everywhere"]["srun"], True)


def planned(job: JobPlan) -> dict[str, Any]:
    script = script_of(job)
    directives = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", script, re.MULTILINE))
    assert job.scheduler is not None
    found: dict[str, Any] = {name: item.value for name, item in job.env.items()}
    # numa.sh gives two CPUs with memory half of a node's ranks each.
    ranks = range(job.gpus_per_node)
    sockets = {ranks_each for ranks_each in (2, 4) if all(r * 2 // len(ranks) == r // ranks_each for r in ranks)}
    return found | {
        **{"nodes": int(directives["nodes"]), "per_node": job.gpus_per_node, "socket": max(sockets)},
        **{"segment": job.scheduler.segment, "cores": job.fast_cores and list(job.fast_cores)},
        **{"memory_clock": job.memory_clock, "mem": directives["mem"], "exclusive": "exclusive" in directives},
        **{option: f"  {option}" in script for option in LAUNCHER["everywhere"]["srun"]},
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize(("release", "chosen"), [(CATALOGUE.release, IMAGE), ("0.6.0", {})])
def test_every_plan_is_what_nvidias_launcher_makes_of_the_function_but_for_what_is_explained(release, chosen):
    catalogue = RECIPE.releases[release].catalogue
    assert catalogue is not None
    assert LAUNCHER["launched"].keys() == {entry.name for entry in CATALOGUE.index}
    seen = set()
    for entry in catalogue.index:
        if entry.name in IMPOSSIBLE | MEGATRON_REFUSES:
            continue
        theirs, ours = launched(entry, catalogue), planned(plan(**asked(entry), **chosen))
        for name in theirs.keys() | ours.keys():
            if theirs.get(name) != ours.get(name):
                seen.add((name, theirs.get(name), ours.get(name)))
    assert seen == EXPLAINED.keys()


@pytest.mark.exhaustive
def test_other_numbers_of_gpus_start_from_the_function_that_nvidias_launcher_takes() -> None:
    for what, fields in LAUNCHER["configured"].items():
        name, gpus = what.split()
        if name in IMPOSSIBLE | MEGATRON_REFUSES:
            continue
        job = plan(
            **asked(CATALOGUE.entry(name)) | {"JOB_TOTAL_GPUS": gpus, "FORCE": "true", "PREFLIGHT": "off"} | NEWEST
        )
        assert (what, job.function.name, job.gbs) == (what, name, fields["gbs"])


def test_fast_cores_are_left_out_on_request_and_where_tasks_are_bound_otherwise() -> None:
    wanted = asked(CATALOGUE.entry("qwen3_30b_a3b_pretrain_8gpu_b300_fp8mx_config"))
    assert plan(**wanted).fast_cores == (16, 2)
    assert plan(**wanted, ENABLE_PCT_BINDING="false").fast_cores is None
    assert plan(**wanted, CPU_PER_TASK_PINNING="14").fast_cores is None


def test_cores_and_the_memory_clock_stand_in_the_script() -> None:
    for name, said in (
        ("qwen3_30b_a3b_pretrain_8gpu_b300_fp8mx_config", "core_stride=16 core_count=2"),
        ("llama3_8b_pretrain_8gpu_vr200_bf16_config", "  sudo -n nvidia-smi -lmc 4752,4752 || clock=$?"),
    ):
        job = plan(**asked(CATALOGUE.entry(name)))
        assert said in script_of(job).splitlines()
    job = plan(**asked(CATALOGUE.entry("llama3_8b_pretrain_8gpu_b300_fp8mx_config")))
    assert "core_stride" not in script_of(job)
