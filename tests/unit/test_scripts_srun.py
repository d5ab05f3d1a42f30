"""What the job script tells srun, Pyxis, Enroot and nsys: its executable parts are run here with stub commands.

Among them ``slurm/enroot.sh``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from llmb_common.executors.slurm.script import PORT_BASE, PORT_COUNT
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.plan import make_plan
from llmb_common.recipes.loading import load_recipe
from llmb_common.rendering.script import render_script
from llmb_common.request.read import read_request
from llmb_common.runs.paths import dry_run_paths
from llmb_common.site.cluster import ClusterConfig, SlurmSettings
from llmb_common.site.machine import Machine
from llmb_train.ranks import find_rank

ROOT = Path(__file__).resolve().parents[2]
H100 = {"GPU_TYPE": "h100", "JOB_TOTAL_GPUS": "8", "MODEL_SIZE": "8b"}


def plan(
    machine: Machine | None = None, mounts: tuple[str, ...] = (), *, variables: dict[str, str], **slurm: object
) -> JobPlan:
    site = ClusterConfig(slurm=SlurmSettings(**slurm), mounts=mounts)  # type: ignore[arg-type]
    request = read_request({"LLMB_INSTALL": "/lustre/llmb", **H100, **variables})
    return make_plan(load_recipe(ROOT / "llama3.1"), site, request, machine or Machine(cluster_type="slurm"))


def script(p: JobPlan) -> str:
    return render_script(p, dry_run_paths(p.workload_folder, p.experiment_name))


def step(p: JobPlan) -> list[str]:
    """The options of the srun that starts the ranks."""
    (command,) = re.findall(r"^srun \\\n((?:  .*\n)+)", script(p), re.MULTILINE)
    return [line.strip(" \\&") for line in command.splitlines()]


def test_images_can_be_written_to_unless_the_site_forbids_it() -> None:
    assert "--container-writable" in step(plan(variables={}))
    forbidden = step(plan(variables={}, container_writable=False))
    assert not any("writ" in option or "readonly" in option for option in forbidden)
    assert "exec enroot start --rw \\" in script(plan(variables={}, runtime="enroot"))
    assert "exec enroot start \\" in script(plan(variables={}, runtime="enroot", container_writable=False))


def test_a_site_without_pmix_starts_its_ranks_without() -> None:
    assert step(plan(variables={}))[0] == "--mpi=pmix"
    assert step(plan(variables={}, mpi="none"))[0] == "--mpi=none"


@pytest.mark.parametrize("job", [1, 8999, 9000, 67_043_327, 4_294_967_295])
def test_the_rendezvous_port_is_below_those_of_outgoing_connections(job: int) -> None:
    (line,) = re.findall(r"^export MASTER_PORT=.*$", script(plan(variables={})), re.MULTILINE)

    def port(**given: str) -> int:
        done = subprocess.run(
            ["bash", "-c", f'{line}; echo "$MASTER_PORT"'], env=given, capture_output=True, check=True
        )
        return int(done.stdout)

    assert 21_000 <= port(SLURM_JOB_ID=str(job)) < 30_000
    assert port(SLURM_JOB_ID=str(job)) != port(SLURM_JOB_ID=str(job + 1))
    assert port(SLURM_JOB_ID=str(job), MASTER_PORT="31000") == 31_000
    # A rank without MASTER_PORT computes the same one.
    rank = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": str(job)}
    assert find_rank(rank).master_port == PORT_BASE + job % PORT_COUNT == port(SLURM_JOB_ID=str(job))


@pytest.mark.parametrize(
    ("machine", "rank"),
    [
        (Machine(cluster_type="slurm"), {"SLURM_LOCALID": "5", "SLURM_PROCID": "13"}),
        (Machine(cluster_type="local", gpu_type="h100", gpus=8, has_nsys=True), {"LOCAL_RANK": "5", "RANK": "5"}),
    ],
)
def test_nsys_of_each_rank_reads_the_counters_of_its_own_gpu(machine: Machine, rank: dict[str, str]) -> None:
    """With ``all``, every rank on a node asks for every GPU, and only one of them can have it."""
    profiled = {"ENABLE_PROFILE": "true", "ENABLE_GPU_METRICS": "true"}
    (prefix,) = re.findall(r"^prefix\+=\(nsys .*\)$", script(plan(machine, variables=profiled)), re.MULTILINE)
    given = {"LLMB_RUN_DIR": "/r", "LLMB_EXPERIMENT": "e", "SLURM_JOB_ID": "7", "SLURM_NODEID": "1", **rank}
    command = ["bash", "-uc", f'prefix=(); {prefix}; printf "%s\\n" "${{prefix[@]}}"']
    words = subprocess.run(command, env=given, capture_output=True, text=True, check=True).stdout.split("\n")
    assert "--gpu-metrics-devices=5" in words
    assert "gpu-metrics" not in script(plan(machine, variables={"ENABLE_PROFILE": "true"}))


STUB = f"""#!{sys.executable}
import json, os, signal, sys
ignored = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
print(json.dumps({{"arguments": sys.argv[1:], "ignored": ignored}}))
"""


class Entered:
    """The arguments that ``enroot`` gets from the text that each task of ``p`` runs on its node."""

    def __init__(self, folder: Path, p: JobPlan, **given: str) -> None:
        (folder / "enroot").write_text(STUB)
        (folder / "enroot").chmod(0o755)
        (enter,) = re.findall(r"<< 'ENTER' \|\| true\n(.*?)\nENTER\n", script(p), re.DOTALL)
        env = {"PATH": f"{folder}:/usr/bin:/bin", **given}
        command = ["bash", "-c", enter, "bash", "the task's\ntext"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        self.arguments: list[str] = found["arguments"]
        self.ignores_sigterm: bool = found["ignored"]

    def values(self, option: str) -> list[str]:
        return [value for name, value in zip(self.arguments, self.arguments[1:], strict=False) if name == option]


def test_enroot_gets_by_name_what_is_set_on_the_node_and_nothing_else(tmp_path: Path) -> None:
    given = {
        "SLURM_PROCID": "3",
        "SLURM_NODEID": "1",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "OMP_NUM_THREADS": "4",
        "MASTER_ADDR": "n1",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_SET_BY_A_PROLOG": "a b",
        "LLMB_RUN_DIR": "/r",
        "HF_TOKEN": "canary",
        "EMPTY": "",
    }
    entered = Entered(tmp_path, plan(variables={}, runtime="enroot"), LD_LIBRARY_PATH="/x", **given)
    assert set(entered.values("--env")) == given.keys() - {"EMPTY"}
    assert "canary" not in " ".join(entered.arguments)
    assert entered.arguments[:2] == ["start", "--rw"]
    assert entered.arguments[-4:] == [
        *("/lustre/llmb/images/nvidia+nemo+26.02.01.sqsh", "bash", "-c"),
        "the task's\ntext",
    ]


def test_mounts_are_written_the_way_enroot_reads_them(tmp_path: Path) -> None:
    site = ("/data:/data:ro", "/opt/b:/b", "/scratch", "/m:/n:ro+noexec")
    entered = Entered(tmp_path, plan(mounts=site, variables={}, runtime="enroot"))
    assert entered.values("--mount") == [
        "/lustre/llmb:/lustre/llmb",
        "/data:/data:x-create=auto,rbind,ro",
        "/opt/b:/b",
        "/scratch",
        "/m:/n:x-create=auto,rbind,ro,noexec",
    ]


@pytest.mark.parametrize("saves", [True, False])
def test_what_serves_the_images_files_outlives_the_signal_to_save(tmp_path: Path, saves: bool) -> None:
    p = plan(variables={"ENABLE_CHECKPOINT": str(saves)}, runtime="enroot")
    assert Entered(tmp_path, p).ignores_sigterm is saves
