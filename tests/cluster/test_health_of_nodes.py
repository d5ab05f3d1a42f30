"""``llmb-run health`` on a real Slurm, whose nodes have made-up tools and kernel files (``support/node_trees.py``)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmb_common.runs.finding import attempts_of
from llmb_common.runs.record import load_record
from llmb_common.runs.timing.job_events import read_events
from llmb_common.submission.excluded_nodes import exclusions
from support.node_trees import NodeTrees
from support.processes import wait_until
from support.run_site import RunSite
from support.slurm_cluster import SlurmCluster


class Site:
    """An installation on nodes that are as a test makes them."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        site = RunSite(folder, "slurm")
        self.install, self.trees = site.install, NodeTrees(folder / "trees")
        (self.install / "workloads").mkdir()
        config = self.install / "cluster_config.yaml"
        config.write_text(config.read_text().replace("gpu_type: cpu\n", ""))
        self.env = {**os.environ, **cluster.env, **self.trees.variables, "LLMB_INSTALL": str(self.install)}
        self.env["PATH"] = f"{self.trees.folder / 'bin'}{os.pathsep}{cluster.env['PATH']}"

    def run(self, *words: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "llmb_run", *words]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=600)
        return done.returncode, done.stdout, done.stderr

    def health(self, *words: str) -> tuple[int, dict[str, Any]]:
        status, output, _ = self.run("health", "--json", *words)
        return status, json.loads(output)


@pytest.fixture
def site(slurm: SlurmCluster, tmp_path: Path) -> Site:
    return Site(slurm, tmp_path)


def failed(found: dict[str, Any]) -> dict[str, list[str]]:
    """The checks that fail, by node."""
    return {
        node["node"]: sorted({remark["check"] for remark in node["remarks"] if remark["level"] == "fail"})
        for node in found["data"]["nodes"]
    }


def test_healthy_nodes_of_three_kinds(site: Site) -> None:
    for number in range(1, 5):
        site.trees.node(f"gpu{number}", "h100" if number < 3 else "b200")
    site.trees.node("grace1", "gb200")
    site.trees.node("grace2", "gb200")
    for nodes, unknown in (("gpu[1-2]", []), ("gone-0,gpu[3-4]", ["gone-0"]), ("grace[1-2]", [])):
        status, found = site.health("--nodes", nodes)
        assert [node["status"] for node in found["data"]["nodes"]] == ["ok", "ok"], found
        assert (status, list(found["data"]["not_asked"])) == (len(unknown), unknown), "a pod that is gone, or a mistake"


def test_one_ill_node_one_that_hangs_and_one_that_is_silent(site: Site, slurm: SlurmCluster) -> None:
    trees = site.trees
    for number in range(1, 5):
        trees.node(f"gpu{number}")
    trees.smi(
        "gpu2", driver="570.86.15", changes={3: {"fabric": "In Progress"}, 5: {"failure": "Yes", "used": "9000 MiB"}}
    )
    trees.adapter("gpu2", "mlx5_1", state="1: DOWN", phys="2: Polling")
    trees.tool("gpu2", "nvidia-smi nvlink -s", "GPU 0: x\n\t Link 0: <inactive>\n\t Link 1: 26.562 GB/s\n")
    trees.tool("gpu2", "dmesg", "[99990.000000] NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.\n")
    trees.write("gpu2", "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
    trees.hang("gpu3", "nvidia-smi")
    slurm.stop_node("gpu4")
    try:
        status, output, errors = site.run("health", "--exclude-failed", "--days", "2", "--json")
        found = json.loads(output)
    finally:
        slurm.start_node("gpu4")
    assert status == 1, errors
    ill = failed(found)
    assert ill["gpu1"] == []
    assert set(ill["gpu2"]) == {"fabric", "memory-rows", "gpu-in-use", "ports-up", "nvlink", "xid"}
    assert ill["gpu3"] == ["answer", "no-gpu-facts"]
    assert ill["gpu4"] == ["answer"]
    assert found["data"]["drift"]["driver"] == {"580.95.05": ["gpu1", "gpu3"], "570.86.15": ["gpu2"]}
    kept = {item.node: item for item in exclusions(site.install)}
    assert sorted(kept) == ["gpu2", "gpu3", "gpu4"]
    assert kept["gpu2"].reason.startswith("health: ")
    assert round((kept["gpu2"].expires or 0) - kept["gpu2"].added) == 2 * 86400
    status, output, errors = site.run("health")
    assert (status, output) == (0, ""), f"the others are not asked again: {errors}"
    assert "3 excluded" in errors


def on_cpus(site: Site) -> None:
    config = site.install / "cluster_config.yaml"
    config.write_text(config.read_text() + "gpu_type: cpu\n")
    for number in range(1, 5):
        site.trees.node(f"gpu{number}")
    site.trees.tool("gpu1", "dmesg", "[99000.000000] EXT4-fs (nvme0n1p2): Remounting filesystem read-only\n")


def test_a_job_is_kept_away_from_a_node_that_fails(site: Site) -> None:
    on_cpus(site)
    status, output, errors = site.run(
        "single", "-w", "pretrain_llama3.1", "-s", "smoke", "--scale", "1", "--health", "--json"
    )
    assert status == 0, errors
    assert re.search(r"\bgpu1\b.* EXT4-fs \(nvme0n1p2\): Remounting filesystem read-only", errors), "and why"
    (job,) = json.loads(output)["data"]["jobs"]
    record = json.loads((Path(job["folder"]) / "run.json").read_text())
    assert record["submission"]["options"] == ["--exclude=gpu1"]
    site.run("wait", job["run_id"])
    status, found = site.health(job["run_id"])
    assert (status, [node["status"] for node in found["data"]["nodes"]]) == (0, ["ok"]), "the node of that run"
    status, found = site.health("-w", "pretrain_llama3.1", "-s", "smoke", "--scale", "1")
    assert (status, len(found["data"]["nodes"]), list(found["data"]["not_asked"])) == (0, 3, ["gpu1"])
    command = ("single", "-w", "pretrain_llama3.1", "-s", "smoke", "--scale", "1", "--health", "--nodelist", "gpu1")
    status, output, _ = site.run(*command, "--json")
    assert (status, json.loads(output)["error"]["code"]) == (1, "unhealthy-nodes")
    for number in (2, 3, 4):
        site.trees.tool(
            f"gpu{number}", "dmesg", f"[99000.000000] mce: Uncorrected hardware memory error at {number}f\n"
        )
    command = ("single", "-w", "pretrain_llama3.1", "-s", "smoke", "--scale", "1", "--health", "--json")
    status, output, errors = site.run(*command)
    error = json.loads(output)["error"]
    assert (status, error["code"]) == (1, "unhealthy-nodes"), errors
    assert re.findall(r"\b\d+\b", error["message"]) == ["3", "1"], "that fail, that were excluded before"


def test_a_campaign_looks_at_its_nodes_first(site: Site, tmp_path: Path) -> None:
    on_cpus(site)
    suite = tmp_path / "one.yaml"
    test = (
        "{workload: pretrain_llama3.1, size: smoke, scale: 1, repeats: 1, reference: none, env: {STANDIN_STEPS: job}}"
    )
    suite.write_text(f"name: one\nhealth: true\ntests:\n  - {test}\n")
    status, output, errors = site.run("accept", str(suite), "--json")
    assert status == 4, errors
    folder = Path(json.loads(output)["data"]["folder"])
    found = json.loads((folder / "health.json").read_text())["nodes"]
    assert {node["node"]: node["status"] for node in found} == {
        "gpu1": "fail",
        "gpu2": "ok",
        "gpu3": "ok",
        "gpu4": "ok",
    }
    assert [item.node for item in exclusions(site.install)] == ["gpu1"]


def test_nodes_at_work_over_gloo(site: Site, engine_python: Path) -> None:
    config = site.install / "cluster_config.yaml"
    stand_in = str(site.install.parent / "engine")
    config.write_text(config.read_text().replace(stand_in, str(engine_python)) + "gpu_type: cpu\n")
    for number in range(1, 5):
        site.trees.node(f"gpu{number}")
    status, found = site.health("--fabric", "--sizes")
    assert status == 0
    # Four nodes on one busy machine may differ.
    assert {node["status"] for node in found["data"]["nodes"]} <= {"ok", "warn"}, found
    measured = found["data"]["fabric"]["measurement"]
    assert [[group["nodes"] for group in groups] for groups in measured["rounds"][:1]] == [
        [["gpu1", "gpu2"], ["gpu3", "gpu4"]]
    ]
    assert len(measured["whole"]["nodes"]) == 4
    assert [(group["bytes"], group["error"]) for group in measured["sizes"]] == [
        (65536, ""),
        (262144, ""),
        (1048576, ""),
        (4194304, ""),
        (16777216, ""),
    ]
    assert found["data"]["fabric"]["verdict"]["level"] in ("ok", "warn")


SLOW_GPU2 = """
import os, sys, time
if os.environ.get("SLURMD_NODENAME") == "gpu2" and "zlib" in str(sys.orig_argv):
    import torch.distributed as dist
    reduce = dist.all_reduce
    dist.all_reduce = lambda *words, **more: (time.sleep(0.2), reduce(*words, **more))[1]
"""
"""What Python does when it starts on a node."""


def test_a_job_trains_without_the_node_that_its_own_check_finds_slow(
    site: Site, slurm: SlurmCluster, engine_python: Path, tmp_path: Path
) -> None:
    """It measures over gloo, with the real engine; a stand-in trains."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_GPU2)
    stand_in = site.install.parent / "engine"
    measures = f'if [[ $1 == -c ]]; then PYTHONPATH={tmp_path} exec {engine_python} "$@"; fi'
    stand_in.write_text(stand_in.read_text().replace("\n", f"\n{measures}\n", 1))
    config = site.install / "cluster_config.yaml"
    config.write_text(config.read_text() + "gpu_type: cpu\nhealth: {all_reduce_gb_per_s: 0.02, tolerance_percent: 0}\n")
    for number in range(1, 5):
        site.trees.node(f"gpu{number}")
    site.env["LLMB_PYTHON"] = sys.executable
    three = ("--scale", "3", "--force", "--set", "tp=1", "--set", "gbs=3", "--env", "GPUS_PER_NODE=1")
    words = ("-w", "pretrain_llama3.1", "-s", "smoke", *three, "--env", "STANDIN_STEPS=job")
    status, output, errors = site.run("single", *words, "--health", "--fabric", "--json")
    assert (status, "health: " in errors) == (0, False), f"no other nodes are asked: {errors}"
    (job,) = json.loads(output)["data"]["jobs"]
    folder = Path(job["folder"])
    events = folder / "events.jsonl"
    wait_until(lambda: read_events(events).unfit == "gpu2", "the verdict on its nodes", timeout=180)
    # Slurm waits for two minutes: nodes refuse credentials of a job that are no newer than its end there.
    slurm.wait_for_state(job["job_id"], "PENDING")
    slurm.run(["scontrol", "update", f"JobId={job['job_id']}", "StartTime=now+5"])
    site.run("wait", job["run_id"])
    record = load_record(folder)
    assert record.state == "COMPLETED"
    assert [(item.state, item.nodes, item.failed) for item in attempts_of(record)] == [("UNFIT", "gpu[1-3]", "gpu2")]
    assert read_events(events).nodes == "gpu[1,3-4]"
    levels = []
    for restart in (0, 1):
        kept = json.loads((folder / f"fabric-{restart}.json").read_text())
        levels.append(kept["fabric"]["verdict"]["level"])
    # On a busy machine one of three healthy nodes may look a little slower than the others.
    assert levels in (["fail", "ok"], ["fail", "warn"])
    assert [item.node for item in exclusions(site.install)] == ["gpu2"]
