"""Emitted scripts: golden for every row of every recipe, and clean under bash -n and shellcheck.

One golden file is a whole script. The others hold what is their own: the head, and how the rest differs from that one.
"""

from __future__ import annotations

import difflib
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from llmb_common.executors.slurm.script import PORT_BASE, PORT_COUNT
from llmb_common.executors.slurm.words import SlurmSettings
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.site.cluster import ClusterConfig, Engine, cluster_config
from llmb_common.planning.site.machine import Machine
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.recipe import Recipe
from llmb_common.recipes.rows import Row
from llmb_common.submission.supervisor import render_supervisor
from llmb_train.ranks import find_rank
from support import plans
from support.golden import GOLDEN, check_golden
from support.plans import script_of, shape_of
from support.shellcheck import check_scripts

ROOT = Path(__file__).resolve().parents[2]
RECIPES = {name: load_recipe(ROOT / name) for name in ("llama3.1", "llama4", "grok1", "nemotron4")}
REFERENCE = "reference.sbatch"
ROWS = [
    pytest.param(recipe, row, dtype, id=f"{recipe.name}-{row.variant}-{row.size}-{row.gpu}-{dtype}-{row.gpus_min}")
    for recipe in RECIPES.values()
    for row in recipe.rows
    for dtype in row.dtypes
]


PLACE = {"LLMB_INSTALL": "/lustre/llmb", "SBATCH_ACCOUNT": "acct", "SBATCH_PARTITION": "batch"}
GB200 = "GPU_TYPE=gb200 JOB_TOTAL_GPUS=128"


def plan_of(*given: str | Machine | ClusterConfig, **variables: str) -> JobPlan:
    return plans.plan(*given, **{**PLACE, **variables})


def script_name(row: Row, dtype: str) -> str:
    return f"{row.variant}-{row.size}-{row.gpu}-{dtype}-{row.gpus_min}"


def variables_of(row: Row, dtype: str) -> dict[str, str]:
    gpu = "cpu" if row.gpu == "any" else row.gpu
    return {
        "MODEL_SIZE": row.size,
        "GPU_TYPE": gpu,
        "DTYPE": dtype,
        "JOB_TOTAL_GPUS": str(row.gpus_min),
        "CONFIG_VARIANT": row.variant,
    }


@cache
def reference() -> str:
    return without_hash(script_of(plan_of(GB200)))


def without_hash(script: str) -> str:
    """``script`` without the hash of its supervisor, which changes in all of them at once."""
    return re.sub(r"^sha256=[0-9a-f]{64}$", "sha256=SHA256", script, flags=re.MULTILINE)


def own_part(script: str) -> str:
    """The head of ``script``, and how the rest differs from the reference script."""
    head, body = split(without_hash(script))
    lines = difflib.unified_diff(split(reference())[1].splitlines(), body.splitlines(), lineterm="", n=2)
    # Without line numbers, so that a line added to all scripts is one line in one golden file.
    different = ["@@" if line.startswith("@@") else line for line in lines][2:]
    last = f"# From here on as in {REFERENCE}{', except:' if different else ''}"
    return "\n".join(["The head of a script:", "", head + last, *different, ""])


def split(script: str) -> tuple[str, str]:
    head, mark, body = script.partition("# What watches over the ranks")
    assert mark, "the line that begins what scripts have in common"
    return head, mark + body


def test_one_script_in_full() -> None:
    check_golden(f"scripts/{REFERENCE}", reference())


@pytest.mark.parametrize(("recipe", "row", "dtype"), ROWS)
def test_script_of_every_row(recipe: Recipe, row: Row, dtype: str) -> None:
    script = script_of(plan_of(recipe.name, **variables_of(row, dtype)))
    check_golden(f"scripts/{recipe.name}/{script_name(row, dtype)}.txt", own_part(script))


def test_the_stored_differences_cover_everything_but_the_head() -> None:
    changed = reference().replace("--kill-on-bad-exit=1", "--kill-on-bad-exit=0")
    assert "\n-  --kill-on-bad-exit=1 \\\n+  --kill-on-bad-exit=0 \\\n" in own_part(changed)
    assert own_part(reference()).endswith(f"# From here on as in {REFERENCE}\n")


NONE = cluster_config(engine=Engine(python="/opt/my engine/bin/python"), slurm=SlurmSettings(runtime="none"))
ENROOT = cluster_config(slurm=SlurmSettings(runtime="enroot"))
SITE = cluster_config(slurm=SlurmSettings(gres=True, additional_params="qos=low"), environment={"NCCL_IB_HCA": "mlx5"})
LAPTOP = Machine(cluster_type="local", gpu_type="cpu")
WORKSTATION = Machine(cluster_type="local", gpu_type="h100", gpus=8, has_nsys=True)

SWITCHES: dict[str, tuple[str | Machine | ClusterConfig, ...]] = {
    "profile-all-ranks": ("GPU_TYPE=gb200 JOB_TOTAL_GPUS=128 ENABLE_PROFILE=true ENABLE_GPU_METRICS=true",),
    "profile-some-ranks": ("nemotron4 JOB_TOTAL_GPUS=16 MODEL_SIZE=15b ENABLE_PROFILE=true",),
    "profile-grok1": ("grok1 JOB_TOTAL_GPUS=128 DTYPE=fp8 ENABLE_PROFILE=true",),
    "nccl-trace": ("llama4 JOB_TOTAL_GPUS=256 GPU_TYPE=gb200 ENABLE_NCCLTRACE=true",),
    "check-fabric": ("GPU_TYPE=gb200 JOB_TOTAL_GPUS=128 CHECK_FABRIC=true",),
    "checkpoint": ("nemotron4 JOB_TOTAL_GPUS=64 MODEL_SIZE=15b ENABLE_CHECKPOINT=true CHECKPOINT_DIR=/scratch/ckpt",),
    "slurm-options": (
        "GPU_TYPE=h100 JOB_TOTAL_GPUS=1024 ENABLE_VBOOST=true CPU_PER_TASK_PINNING=14 RUN_CONF_MOUNTS=/data:/data:ro",
        "ADDITIONAL_SLURM_PARAMS='nodelist=n1,n2;constraint=gpu&memory;exclusive;comment=two words'",
        SITE,
    ),
    "runtime-none": ("GPU_TYPE=cpu JOB_TOTAL_GPUS=4 GPUS_PER_NODE=2", NONE),
    "runtime-enroot": ("GPU_TYPE=b200 JOB_TOTAL_GPUS=64 MODEL_SIZE=70b", ENROOT),
    "local": (NONE, LAPTOP),
    "local-nsys": ("MODEL_SIZE=8b ENABLE_PROFILE=true", NONE, WORKSTATION),
}
"""One golden script for each switch: the words of its request, the site, the machine."""


@pytest.mark.parametrize("name", SWITCHES)
def test_script_of_every_switch(name: str) -> None:
    check_golden(f"scripts/switches/{name}.txt", own_part(script_of(plan_of(*SWITCHES[name]))))


@pytest.mark.slow
def test_all_scripts_and_their_tasks_pass_bash_and_shellcheck(tmp_path: Path) -> None:
    made = [plan_of(recipe.name, **variables_of(row, dtype)) for recipe, row, dtype in (row.values for row in ROWS)]
    made += [plan_of(*words) for words in SWITCHES.values()]
    scripts = [(plan, script_of(plan)) for plan in made]
    # ShellCheck reads every head, and a whole script of each shape with the supervisor beside it.
    texts = {
        "slurm": {"#!/bin/bash\n" + "\n".join(split(text)[0] for _, text in scripts) + 'echo "$log"\n'},
        "local": set(),
    }
    shapes = {shape_of(text, plan): (plan.cluster_type, text) for plan, text in scripts}
    assert 1 < len(shapes) < len(scripts) / 2
    for cluster_type, text in shapes.values():
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        inner = re.findall(r"<< '([A-Z]+)' \|\| true\n(.*?)\n\1\n", text, flags=re.DOTALL)
        assert [kind for kind, _ in inner][:1] == ["TASK"]
        texts[cluster_type] |= {text, *(f"#!/bin/bash\n{lines}\n" for _, lines in inner)}
    for cluster_type, parts in texts.items():
        supervisor = render_supervisor(cluster_type).decode()
        (kernel,) = re.findall(r"<< 'KERNEL' \|\| true\n(.*?)\nKERNEL\n", supervisor, flags=re.DOTALL)
        parts.add(f"#!/bin/bash\n{kernel}\n")
        longest_first = sorted(parts, key=lambda text: ("supervisor.sh" in text, len(text)), reverse=True)
        check_scripts(tmp_path / cluster_type, longest_first, supervisor)


def test_no_script_is_left_over() -> None:
    """A golden file that no test writes any more would be checked forever and mean nothing."""
    expected = {f"{recipe.name}/{script_name(row, dtype)}.txt" for recipe, row, dtype in (p.values for p in ROWS)}
    expected |= {f"switches/{name}.txt" for name in SWITCHES} | {REFERENCE}
    folder = GOLDEN / "scripts"
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == expected


@pytest.mark.parametrize(
    ("site", "handed"),
    [(cluster_config(), r"--container-env=\S*\bLLMB_ENGINE_CHECK\b"), (ENROOT, r"names=\(.*\bLLMB_ENGINE_CHECK\b")],
    ids=["pyxis", "enroot"],
)
def test_the_engine_check_of_the_caller_reaches_the_ranks_in_their_container(site: ClusterConfig, handed: str) -> None:
    text = script_of(plan_of(GB200, site, LLMB_ENGINE_CHECK="off"))
    assert "export LLMB_ENGINE_CHECK=off\n" in text
    assert re.search(handed, text)
    assert "LLMB_ENGINE_CHECK" not in script_of(plan_of(GB200, site))


@pytest.mark.parametrize(
    ("load", "mounted"),
    [
        ("/scratch/ckpt", ["/scratch/ckpt:/scratch/ckpt"]),
        ("/scratch/ckpt/iter_0000050", ["/scratch/ckpt:/scratch/ckpt"]),
        ("/lustre/llmb/c", []),
        ("/scratch/w/c", []),
    ],
)
@pytest.mark.parametrize("runtime", ["pyxis", "enroot"])
def test_a_checkpoint_is_mounted_wherever_it_lies(load, mounted, runtime):
    cluster = cluster_config(slurm=SlurmSettings(runtime=runtime))
    script = script_of(plan_of(GB200, cluster, LLMB_WORKLOAD="/scratch/w", LOAD_CHECKPOINT_PATH=load))
    always = ["/lustre/llmb:/lustre/llmb", "/scratch/w:/scratch/w"]
    if runtime == "pyxis":
        assert f"--container-mounts={','.join([*always, *mounted])} " in script
    else:
        assert re.findall("^  --mount (.*)$", script, re.MULTILINE) == [*always, *mounted]


# What the job script tells srun, Pyxis, Enroot and nsys: its executable parts are run here with stub commands.
# Among them ``slurm/enroot.sh``.


def plan(*given: str | Machine, mounts: tuple[str, ...] = (), **slurm: object) -> JobPlan:
    site = cluster_config(slurm=SlurmSettings(**slurm), mounts=mounts)  # type: ignore[arg-type]
    return plan_of(site, "GPU_TYPE=h100 JOB_TOTAL_GPUS=8 MODEL_SIZE=8b", *given)


def step(p: JobPlan) -> list[str]:
    """The options of the srun that starts the ranks."""
    (command,) = re.findall(r"^srun \\\n((?:  .*\n)+)", script_of(p), re.MULTILINE)
    return [line.strip(" \\&") for line in command.splitlines()]


def test_images_can_be_written_to_unless_the_site_forbids_it() -> None:
    assert "--container-writable" in step(plan())
    forbidden = step(plan(container_writable=False))
    assert not any("writ" in option or "readonly" in option for option in forbidden)
    assert "start=(enroot start --rw\n" in script_of(plan(runtime="enroot"))
    assert "start=(enroot start\n" in script_of(plan(runtime="enroot", container_writable=False))


def test_ranks_are_started_as_the_plan_says() -> None:
    assert step(plan())[0] == "--mpi=none"
    assert step(plan(mpi="pmi2"))[0] == "--mpi=pmi2"


@pytest.mark.parametrize("job", [1, 8999, 9000, 67_043_327, 4_294_967_295])
def test_the_rendezvous_port_is_below_those_of_outgoing_connections(job: int) -> None:
    (line,) = re.findall(r"^export MASTER_PORT=.*$", script_of(plan()), re.MULTILINE)

    def port(**given: str) -> int:
        done = subprocess.run(
            ["bash", "-c", f'{line}; echo "$MASTER_PORT"'], env=given, capture_output=True, check=True
        )
        return int(done.stdout)

    assert 21_000 <= port(SLURM_JOB_ID=str(job)) < 30_000
    assert port(SLURM_JOB_ID=str(job)) != port(SLURM_JOB_ID=str(job + 1))
    assert port(SLURM_JOB_ID=str(job), MASTER_PORT="31000") == port(SLURM_JOB_ID=str(job)), "the submitting shell's"
    assert re.findall(r"^export MASTER_PORT=.*$", script_of(plan("MASTER_PORT=31000")), re.MULTILINE) == [
        "export MASTER_PORT=31000"
    ]
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
    profiled = script_of(plan(machine, "ENABLE_PROFILE=true ENABLE_GPU_METRICS=true"))
    (prefix,) = re.findall(r"^prefix\+=\(nsys .*\)$", profiled, re.MULTILINE)
    given = {"LLMB_RUN_DIR": "/r", "LLMB_EXPERIMENT": "e", "SLURM_JOB_ID": "7", "SLURM_NODEID": "1", **rank}
    command = ["bash", "-uc", f'prefix=(); {prefix}; printf "%s\\n" "${{prefix[@]}}"']
    words = subprocess.run(command, env=given, capture_output=True, text=True, check=True).stdout.split("\n")
    assert "--gpu-metrics-devices=5" in words
    assert "gpu-metrics" not in script_of(plan(machine, "ENABLE_PROFILE=true"))


STUB = f"""#!{sys.executable}
import json, os, signal, sys
if sys.argv[1:] == ["info"]:
    sys.exit(1)
ignored = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
print(json.dumps({{"arguments": sys.argv[1:], "ignored": ignored}}))
"""


class Entered:
    """The arguments that ``enroot`` gets from the text that each task of ``p`` runs on its node, where there is no
    root; ``test_enroot_ranks.py`` has those that share one."""

    def __init__(self, folder: Path, p: JobPlan, **given: str) -> None:
        (folder / "enroot").write_text(STUB)
        (folder / "enroot").chmod(0o755)
        (enter,) = re.findall(r"<< 'ENTER' \|\| true\n(.*?)\nENTER\n", script_of(p), re.DOTALL)
        env = {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_ID": "7", **given}
        command = ["bash", "-c", enter, "bash", "the task's\ntext"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        self.arguments: list[str] = found["arguments"]
        self.ignores_sigterm: bool = found["ignored"]

    def values(self, option: str) -> list[str]:
        return [value for name, value in zip(self.arguments, self.arguments[1:], strict=False) if name == option]


def test_enroot_gets_by_name_what_is_set_on_the_node_and_nothing_else(tmp_path: Path) -> None:
    given = {
        "SLURM_JOB_ID": "7",
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
    entered = Entered(tmp_path, plan(runtime="enroot"), LD_LIBRARY_PATH="/x", **given)
    assert set(entered.values("--env")) == given.keys() - {"EMPTY"}
    assert "canary" not in " ".join(entered.arguments)
    assert entered.arguments[:2] == ["start", "--rw"]
    assert entered.arguments[-4:] == [
        *("/lustre/llmb/images/nvidia+nemo+26.02.01.sqsh", "bash", "-c"),
        "the task's\ntext",
    ]


def test_mounts_are_written_the_way_enroot_reads_them(tmp_path: Path) -> None:
    site = ("/data:/data:ro", "/opt/b:/b", "/scratch", "/m:/n:ro+noexec")
    entered = Entered(tmp_path, plan(mounts=site, runtime="enroot"))
    assert entered.values("--mount") == [
        "/lustre/llmb:/lustre/llmb",
        "/data:/data:x-create=auto,rbind,ro",
        "/opt/b:/b",
        "/scratch",
        "/m:/n:x-create=auto,rbind,ro,noexec",
    ]


@pytest.mark.parametrize("saves", [True, False])
def test_what_serves_the_images_files_outlives_the_signal_to_save(tmp_path: Path, saves: bool) -> None:
    p = plan(f"ENABLE_CHECKPOINT={saves}", runtime="enroot")
    assert Entered(tmp_path, p).ignores_sigterm is saves
