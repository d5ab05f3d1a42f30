"""What is found out of a machine: its GPUs, nsys and Slurm, with the programs that it has or lacks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmb_common.request.read import read_request
from llmb_common.site.cluster import ClusterConfig, cluster_config
from llmb_common.site.machine import Machine, look_at_machine


class Programs:
    """The only programs of a machine."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        patch.setenv("PATH", str(folder))

    def has(self, name: str, *lines: str, status: int = 0) -> None:
        said = "".join(f"echo '{line}'\n" for line in lines)
        path = self._folder / name
        path.write_text(f"#!/bin/sh\n{said}exit {status}\n")
        path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    return Programs(tmp_path, monkeypatch)


def look(cluster: ClusterConfig | None = None, **variables: str) -> Machine:
    return look_at_machine(cluster or cluster_config(), read_request(variables))


def test_a_laptop_has_a_cpu(programs: Programs) -> None:
    assert look() == Machine(cluster_type="local", gpu_type="cpu")


@pytest.mark.parametrize(
    ("product", "gpu_type"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GH200 480GB", None),
    ],
)
def test_the_driver_names_the_gpus(programs: Programs, product: str, gpu_type: str | None) -> None:
    programs.has("nvidia-smi", product, product)
    programs.has("nsys")
    assert look() == Machine(cluster_type="local", gpu_type=gpu_type, gpus=2, has_nsys=True)


def test_a_driver_that_cannot_see_a_gpu_shows_none(programs: Programs) -> None:
    programs.has("nvidia-smi", "NVIDIA-SMI has failed because it could not communicate with the driver.", status=9)
    assert look() == Machine(cluster_type="local", gpu_type="cpu", gpus=0)


@pytest.mark.parametrize("who", ["request", "site"])
def test_who_asks_for_a_cpu_is_not_asked_about_gpus(programs: Programs, who: str) -> None:
    programs.has("nvidia-smi", "NVIDIA H100 80GB HBM3")
    programs.has("nsys")
    asked = {"GPU_TYPE": "cpu"} if who == "request" else {}
    seen = look(cluster_config(gpu_type="cpu" if who == "site" else None), **asked)
    assert seen == Machine(cluster_type="local", gpu_type="cpu", gpus=0, has_nsys=True)


def test_slurm_is_where_its_client_is_unless_somebody_says_otherwise(programs: Programs) -> None:
    programs.has("sbatch", "slurm 24.05.0")
    assert look().cluster_type == "slurm"
    assert look(CLUSTER_TYPE="local").cluster_type == "local"
    assert look(cluster_config(cluster_type="local")).cluster_type == "local"
    assert look(cluster_config(cluster_type="local"), CLUSTER_TYPE="slurm").cluster_type == "slurm"


def test_without_a_client_only_a_dry_run_can_mean_slurm(programs: Programs) -> None:
    large = {"GPU_TYPE": "h100", "JOB_TOTAL_GPUS": "8"}
    assert look(**large).cluster_type == "local"
    assert look(DRY_RUN="true", **large).cluster_type == "slurm"
    assert look(DRY_RUN="true").cluster_type == "local"
    assert look(DRY_RUN="true", GPU_TYPE="h100").cluster_type == "local"
    assert look(DRY_RUN="true", GPU_TYPE="cpu", JOB_TOTAL_GPUS="2").cluster_type == "local"
    for slurms in ({"SBATCH_ACCOUNT": "a"}, {"SBATCH_PARTITION": "p"}, {"ADDITIONAL_SLURM_PARAMS": "qos=a"}):
        assert look(DRY_RUN="true", **slurms).cluster_type == "slurm"
        assert look(**slurms).cluster_type == "local"
    assert look(CLUSTER_TYPE="slurm").release > (999, 0), "nobody to ask"


@pytest.mark.parametrize(("version", "release"), [("slurm 24.05.0", (24, 5)), ("22.05.8-bcm", (22, 5)), ("", (0, 0))])
def test_the_schedulers_program_says_its_release(programs: Programs, version: str, release: tuple[int, int]) -> None:
    programs.has("sbatch", version)
    assert look() == Machine(cluster_type="slurm", release=release)


def test_the_program_is_asked_once_and_again_when_it_was_replaced(programs: Programs, tmp_path: Path) -> None:
    sbatch, calls = tmp_path / "sbatch", tmp_path / "calls"
    for at, version in enumerate(["23.11.1", "24.05.0"]):
        sbatch.write_text(f"#!/bin/sh\necho x >>'{calls}'\necho 'slurm {version}'\n")
        sbatch.chmod(0o755)
        os.utime(sbatch, (at, at))
        for _ in range(3):
            machine = look()
            assert machine.release == tuple(map(int, version.split(".")[:2]))
        assert calls.read_text() == "x\n" * (at + 1)
