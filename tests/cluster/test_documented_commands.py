"""Every job in NVIDIA's READMEs, by its printed command: the script, and the response of a large cluster."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.slurm_cluster import SlurmCluster

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [
    item
    for item in json.loads((ROOT / "tests" / "data" / "documents" / "commands.json").read_text())
    if "launch.sh" in item["command"] or "llmb-run single" in item["command"]
]
# Names used in NVIDIA's examples, and what the test cluster has instead.
SITE_NAMES = {"node001,node002": "grace[1-16],grace[17-32]", "gpu&memory": "gb200"}


@pytest.fixture(scope="module")
def large_site(slurm_simulated: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation on the large cluster; its GPUs are GB200 unless a command says otherwise."""
    install = tmp_path_factory.mktemp("install")
    (install / "cluster_config.yaml").write_text("schema: 1\ncluster_type: slurm\ngpu_type: gb200\n")
    reservation = ["reservation", "ReservationName=my_reservation", "StartTime=now", "Duration=60", "Users=root"]
    slurm_simulated.run(["scontrol", "create", *reservation, "Nodes=gpu[1-64]"])
    return install


LARGE_DISK = """\
import shutil, sys, types
shutil.disk_usage = lambda path: types.SimpleNamespace(free=1 << 60)
code = sys.argv.index("-c") + 1
sys.argv, program = ["-c", *sys.argv[code + 1:]], sys.argv[code]
exec(program)
"""
"""A Python on whose machine every checkpoint has room; ``launch.sh`` calls it with ``-c``."""


def python_with_a_large_disk(folder: Path) -> Path:
    """Return a program that runs what ``python -c`` would run, where checkpoints of hundreds of GB have room."""
    program = folder / "python"
    program.write_text(f"#!{sys.executable}\n{LARGE_DISK}")
    program.chmod(0o755)
    return program


def script_of(cluster: SlurmCluster, install: Path, recipe: str, command: str) -> str:
    for name, ours in SITE_NAMES.items():
        command = command.replace(name, ours)
    environment = {"LLMB_INSTALL": str(install), "LLMB_PYTHON": str(python_with_a_large_disk(install))}
    if "llmb-run" in command:
        command = command.replace("llmb-run", f"{Path(sys.executable).with_name('llmb-run')}") + " --dry-run"
    else:
        environment["DRY_RUN"] = "true"
        if "GPU_TYPE" not in command and recipe in ("llama3.1", "nemotron4"):
            environment["GPU_TYPE"] = "h100"  # the READMEs that name no GPU are for H100
    done = cluster.run(["bash", "-c", command], cwd=ROOT / recipe, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("item", COMMANDS, ids=lambda item: f"{item['source']}: {item['command']}")
def test_the_documented_command_gives_a_job_that_slurm_takes(item, slurm_simulated, large_site, tmp_path):
    text = script_of(slurm_simulated, large_site, item["recipe"], item["command"])
    script = tmp_path / "job.sbatch"
    script.write_text(text)
    subprocess.run(["bash", "-n", str(script)], check=True)
    partition = "gb200" if "GB200 GPUs" in text else "batch"
    answer = slurm_simulated.run(["sbatch", "--test-only", f"--partition={partition}", script]).stderr
    nodes = re.search(r"#SBATCH --nodes=(\d+)", text)
    assert nodes
    assert re.search(r"using \d+ processors on nodes \S+ in partition", answer), answer


def test_all_of_them_are_here() -> None:
    assert len(COMMANDS) >= 32
