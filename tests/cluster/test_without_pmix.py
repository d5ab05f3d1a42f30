"""A Slurm built without PMIx: jobs train anyway, and installer and doctor notice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from test_launch_on_slurm import Site, iterations, standin_engine

from llmb_common.causes.diagnosis import diagnose_logs
from support.slurm_cluster import SlurmCluster, what_is_missing
from support.slurm_config import SMALL

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cluster(slurm_session: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Two nodes whose Slurm has all plug-ins except PMIx."""
    shown = slurm_session.run(["scontrol", "show", "config"]).stdout
    installed = next(Path(line.split("=")[1].strip()) for line in shown.splitlines() if line.startswith("PluginDir"))
    plugins = tmp_path_factory.mktemp("plugins")
    for plugin in installed.glob("*.so"):
        if not plugin.name.startswith("mpi_pmix"):
            (plugins / plugin.name).symlink_to(plugin)
    spec = replace(SMALL, containers=False, extra={"PluginDir": str(plugins)})
    assert not what_is_missing(spec)
    with SlurmCluster(spec) as started:
        yield started


def test_a_job_with_pmix_ends_at_once(cluster: SlurmCluster, tmp_path: Path) -> None:
    done = cluster.run(["srun", "--mpi=pmix", "true"], check=False)
    assert done.returncode != 0
    assert "Invalid MPI type 'pmix'" in done.stderr
    log = tmp_path / "log-x.out"
    log.write_text(done.stderr)
    assert diagnose_logs([log]).kind == "pmix"


def test_a_job_runs_on_two_nodes_with_no_key_set(cluster: SlurmCluster, tmp_path: Path) -> None:
    """What srun starts is a stand-in: the ranks meet by their variables, as on every other cluster."""
    site = Site(cluster, tmp_path / "install", standin_engine(tmp_path))
    assert "mpi" not in (site.install / "cluster_config.yaml").read_text()
    folder = site.run(JOB_TOTAL_GPUS="2", GPUS_PER_NODE="1", MAX_STEPS="3", STANDIN_STEPS="job")
    assert iterations(folder) == [1, 2, 3]


def test_a_plan_that_overlaps_tps_exchange_gets_pmix_only_where_slurm_has_it(
    cluster: SlurmCluster, slurm_session: SlurmCluster, tmp_path: Path
) -> None:
    (tmp_path / "cluster_config.yaml").write_text("cluster_type: slurm\nslurm: {account: a, gpu_partition: batch}\n")
    job = {"LLMB_INSTALL": str(tmp_path), "GPU_TYPE": "gb200", "JOB_TOTAL_GPUS": "128", "DRY_RUN": "true"}
    for slurm, mpi in ((slurm_session, "pmix"), (cluster, "none")):
        done = subprocess.run(
            [ROOT / "llama3.1" / "launch.sh"],
            env={**os.environ, **slurm.env, "LLMB_PYTHON": sys.executable, **job},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert f"\n  --mpi={mpi} \\\n" in done.stdout
        assert ("PMIx" in done.stderr) is (mpi == "none")


def test_the_installer_writes_nothing_and_doctor_doubts(cluster: SlurmCluster, tmp_path: Path) -> None:
    def llmb_install(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "llmb_install", *arguments]
        return subprocess.run(
            command,
            env={**os.environ, **cluster.env},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    answers, install = tmp_path / "answers.yaml", tmp_path / "install"
    flags = ["--cluster-type", "slurm", "--account", "a", "--gpu-partition", "batch", "--gpu-type", "h100"]
    done = llmb_install(*flags, "--install-path", str(install), "--workloads", "grok1", "--record", str(answers))
    assert done.returncode == 0, done.stderr
    assert "mpi" not in answers.read_text()

    install.mkdir()
    for written, name, level in (
        ("", "PMIx", "doubt"),
        ("mpi: pmix, ", "srun --mpi=pmix", "blocks"),
        ("mpi: none, ", "srun --mpi=none", "ok"),
    ):
        (install / "cluster_config.yaml").write_text(f"cluster_type: slurm\nslurm: {{{written}account: a}}\n")
        shown = llmb_install("doctor", "--install-path", str(install), "--no-compute-node", "--json")
        checks = {check["name"]: check for check in json.loads(shown.stdout)["data"]["checks"]}
        assert checks[name]["level"] == level
