"""Installing on a real Slurm cluster: detection, imports on a compute node, setup.sh as a batch job."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from install_world import CLONE, IMAGE_NAMES, World

from llmb_common.planning.site.cluster import load_cluster_config
from llmb_install.answers.detect import detect_site
from support.slurm_cluster import SlurmCluster


@pytest.fixture
def site(world: World, registry: Path, slurm: SlurmCluster) -> World:
    """The test cluster's login node."""
    world.env["SLURM_CONF"] = slurm.env["SLURM_CONF"]
    # slurmd's own PATH is not ours, but srun and sbatch carry the caller's.
    world.env["PATH"] = f"{world.env['PATH']}:{Path(sys.executable).parent}:/usr/sbin:/sbin"
    return world


def install(site: World, *more: str) -> None:
    flags = site.slurm_flags("--gpu-partition", "batch", *more)
    done = site.run(*flags, program=site.installer)
    assert done.returncode == 0, done.stderr


def test_all_workloads_through_srun(site: World, registry: Path, slurm: SlurmCluster) -> None:
    """From a registry that wants the key, which was given to LLMB: the node finds it in the installation."""
    (registry / "nvcr.io" / "credentials").write_text("$oauthtoken nvapi-x")
    install(site, "--install-method", "srun", "--ngc-api-key", "nvapi-x")
    receipt = json.loads(site.image.with_name(f"{site.image.name}.receipt.json").read_text())
    assert receipt["digest"].startswith("sha256:")
    assert len(load_cluster_config(site.install).workloads) == 5
    assert site.imports() == len(IMAGE_NAMES)
    log = next((site.install / ".llmb" / "logs").iterdir()).read_text()
    assert "srun --account bench --partition batch --nodes=1 --ntasks=1" in log
    done = site.run("list", "--json", "--install-path", str(site.install), program=["llmb-install"])
    assert [row["image_complete"] for row in json.loads(done.stdout)["data"]["workloads"]] == [True] * 5


def test_a_partition_that_does_not_exist_is_refused_at_once(site: World) -> None:
    flags = site.slurm_flags("--gpu-partition", "nowhere", "--install-method", "srun")
    done = site.run(*flags, program=site.installer)
    assert done.returncode == 2
    assert re.search(r"\bgpu_partition\b.*\bnowhere\b", done.stderr)
    assert "batch" in done.stderr, "what it could be"
    assert not site.install.exists()
    # Whoever insists hears it from srun.
    done = site.run(*flags, "--no-site-check", program=site.installer)
    assert done.returncode == 3
    assert "--cpu-partition" in done.stderr


def test_setup_sh_as_a_batch_job_makes_the_installation(site: World, slurm: SlurmCluster, tmp_path: Path) -> None:
    """From a folder that does not exist: its own environment, the image, the settings of this job."""
    env = site.env | {"LLMB_INSTALL": str(site.install), "GPU_TYPE": "h100"}
    options = ["-A", "bench", "-p", "batch", "-N", "1", f"--output={tmp_path}/out"]
    job = slurm.submit(*options, "./setup.sh", "--no-space-check", cwd=CLONE / "nemotron4", env=env)
    assert slurm.wait_for_state(job, timeout=400) == "COMPLETED", (tmp_path / "out").read_text()
    config = load_cluster_config(site.install)
    assert config.workloads == ("pretrain_nemotron4",)
    assert (config.cluster_type, config.slurm.account, config.slurm.gpu_partition) == ("slurm", "bench", "batch")
    assert site.image.exists()


def test_the_site_is_detected(site: World, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", site.env["SLURM_CONF"])
    found = detect_site()
    assert found.has_slurm
    assert found.slurm_version
    by_name = {partition.name: partition for partition in found.partitions}
    assert by_name["batch"].gpus_per_node == 8
    assert "batch" in [partition.name for partition in found.gpu_partitions]


def test_doctor_on_this_cluster(site: World, slurm: SlurmCluster) -> None:
    install(site, "--gres")
    site.env["LLMB_INSTALL"] = str(site.install)
    done = site.run("doctor", "--json", program=[sys.executable, "-m", "llmb_install"])
    checks = {check["name"]: check for check in json.loads(done.stdout)["data"]["checks"]}
    assert checks["Slurm controller"]["level"] == "ok"
    assert checks["PMIx"]["level"] == "ok"
    assert "srun --mpi=pmix" not in checks, "the installer leaves slurm.mpi to each job"
    assert checks["Pyxis"]["level"] == "ok"
    assert re.findall(r"[\d:]*\d|^\w+", checks["GPU partition"]["found"]) == ["batch", "4", "8", "8:00:00"]
    assert checks["GRES"]["level"] == "ok"
    assert checks["account"]["level"] == "doubt", "this cluster keeps no accounts"
    assert checks["a compute node"]["found"].startswith("gpu")
    assert checks["installation on the node"]["level"] == "ok"
    assert checks["clock of the node"]["level"] == "ok"
    # The nodes are make-believe: there is no GPU on them, and doctor says so.
    assert checks["GPUs of the node"]["level"] == "blocks"
    assert done.returncode == 1
