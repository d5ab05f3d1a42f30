"""Emitted scripts: golden for every row of every recipe, and clean under bash -n and shellcheck.

One golden file is a whole script. The others hold what is their own: the head, and how the rest differs from that one.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from llmb_common.errors import RequestError
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.plan import make_plan
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.recipe import Recipe
from llmb_common.recipes.rows import Row
from llmb_common.rendering.script import render_script
from llmb_common.request.read import read_request
from llmb_common.runs.paths import dry_run_paths
from llmb_common.site.cluster import ClusterConfig, Engine, SlurmSettings
from llmb_common.site.machine import Machine
from support.golden import GOLDEN, check_golden

ROOT = Path(__file__).resolve().parents[2]
RECIPES = {name: load_recipe(ROOT / name) for name in ("llama3.1", "llama4", "grok1", "nemotron4")}
REFERENCE = "reference.sbatch"
SHELLCHECK = Path(sys.executable).with_name("shellcheck")
ROWS = [
    pytest.param(recipe, row, dtype, id=f"{recipe.name}-{row.variant}-{row.size}-{row.gpu}-{dtype}-{row.gpus_min}")
    for recipe in RECIPES.values()
    for row in recipe.rows
    for dtype in row.dtypes
]


def plan_of(
    recipe: Recipe, cluster: ClusterConfig | None = None, machine: Machine | None = None, **variables: str
) -> JobPlan:
    request = read_request(
        {"LLMB_INSTALL": "/lustre/llmb", "SBATCH_ACCOUNT": "acct", "SBATCH_PARTITION": "batch", **variables}
    )
    return make_plan(recipe, cluster or ClusterConfig(), request, machine or Machine(cluster_type="slurm"))


def script_of(plan: JobPlan) -> str:
    return render_script(plan, dry_run_paths(plan.workload_folder, plan.experiment_name))


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
    return script_of(plan_of(RECIPES["llama3.1"], GPU_TYPE="gb200", JOB_TOTAL_GPUS="128"))


def own_part(script: str) -> str:
    """The head of ``script``, and how the rest differs from the reference script."""
    head, body = split(script)
    lines = difflib.unified_diff(split(reference())[1].splitlines(), body.splitlines(), lineterm="", n=2)
    # Without line numbers, so that a line added to all scripts is one line in one golden file.
    different = ["@@" if line.startswith("@@") else line for line in lines][2:]
    last = f"# From here on as in {REFERENCE}{', except:' if different else ''}"
    return "\n".join(["The head of a script:", "", head + last, *different, ""])


def split(script: str) -> tuple[str, str]:
    head, mark, body = script.partition("# The job, as its scheduler knows it")
    assert mark, "the line that begins what scripts have in common"
    return head, mark + body


def test_one_script_in_full() -> None:
    check_golden(f"scripts/{REFERENCE}", reference())


@pytest.mark.parametrize(("recipe", "row", "dtype"), ROWS)
def test_script_of_every_row(recipe: Recipe, row: Row, dtype: str) -> None:
    script = script_of(plan_of(recipe, **variables_of(row, dtype)))
    check_golden(f"scripts/{recipe.name}/{script_name(row, dtype)}.txt", own_part(script))


def test_the_stored_differences_cover_everything_but_the_head() -> None:
    changed = reference().replace("--kill-on-bad-exit=1", "--kill-on-bad-exit=0")
    assert "\n-  --kill-on-bad-exit=1 \\\n+  --kill-on-bad-exit=0 \\\n" in own_part(changed)
    assert own_part(reference()).endswith(f"# From here on as in {REFERENCE}\n")


NONE = ClusterConfig(engine=Engine(python="/opt/my engine/bin/python"), slurm=SlurmSettings(runtime="none"))
ENROOT = ClusterConfig(slurm=SlurmSettings(runtime="enroot"))
SITE = ClusterConfig(slurm=SlurmSettings(gres=True, additional_params="qos=low"), environment={"NCCL_IB_HCA": "mlx5"})
LAPTOP = Machine(cluster_type="local", gpu_type="cpu")
WORKSTATION = Machine(cluster_type="local", gpu_type="h100", gpus=8, has_nsys=True)
OPTIONS = "nodelist=n1,n2;constraint=gpu&memory;exclusive;comment=two words"

SWITCHES = {
    "profile-all-ranks": (
        "llama3.1",
        {"GPU_TYPE": "gb200", "JOB_TOTAL_GPUS": "128", "ENABLE_PROFILE": "true", "ENABLE_GPU_METRICS": "true"},
    ),
    "profile-some-ranks": ("nemotron4", {"JOB_TOTAL_GPUS": "16", "MODEL_SIZE": "15b", "ENABLE_PROFILE": "true"}),
    "profile-grok1": ("grok1", {"JOB_TOTAL_GPUS": "128", "DTYPE": "fp8", "ENABLE_PROFILE": "true"}),
    "nccl-trace": ("llama4", {"JOB_TOTAL_GPUS": "256", "GPU_TYPE": "gb200", "ENABLE_NCCLTRACE": "true"}),
    "checkpoint": (
        "nemotron4",
        {"JOB_TOTAL_GPUS": "64", "MODEL_SIZE": "15b", "ENABLE_CHECKPOINT": "true", "CHECKPOINT_DIR": "/scratch/ckpt"},
    ),
    "slurm-options": (
        "llama3.1",
        {
            "GPU_TYPE": "h100",
            "JOB_TOTAL_GPUS": "1024",
            "ENABLE_VBOOST": "true",
            "CPU_PER_TASK_PINNING": "14",
            "RUN_CONF_MOUNTS": "/data:/data:ro",
            "ADDITIONAL_SLURM_PARAMS": OPTIONS,
        },
        SITE,
    ),
    "runtime-none": ("llama3.1", {"GPU_TYPE": "cpu", "JOB_TOTAL_GPUS": "4", "GPUS_PER_NODE": "2"}, NONE),
    "runtime-enroot": ("llama3.1", {"GPU_TYPE": "b200", "JOB_TOTAL_GPUS": "64", "MODEL_SIZE": "70b"}, ENROOT),
    "local": ("llama3.1", {}, NONE, LAPTOP),
    "local-nsys": ("llama3.1", {"MODEL_SIZE": "8b", "ENABLE_PROFILE": "true"}, NONE, WORKSTATION),
}
"""One golden script for each switch: (recipe, variables[, site[, machine]])."""


@pytest.mark.parametrize("name", SWITCHES)
def test_script_of_every_switch(name: str) -> None:
    recipe, variables, *rest = SWITCHES[name]
    check_golden(f"scripts/switches/{name}.txt", own_part(script_of(plan_of(RECIPES[recipe], *rest, **variables))))


def test_all_scripts_and_their_tasks_pass_bash_and_shellcheck(tmp_path: Path) -> None:
    scripts = [
        script_of(plan_of(recipe, **variables_of(row, dtype))) for recipe, row, dtype in (p.values for p in ROWS)
    ]
    scripts += [script_of(plan_of(RECIPES[name], *rest, **given)) for name, given, *rest in SWITCHES.values()]
    # ShellCheck reads every head, and a whole script once for each that differs in more than its head's values.
    texts = {"#!/bin/bash\n" + "\n".join(split(text)[0] for text in scripts)}
    shapes: dict[tuple[str, str], str] = {}
    for text in scripts:
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        head, body = split(text)
        shapes.setdefault((re.sub(r"^(export \w+=|#).*", r"\1", head, flags=re.MULTILINE), body), text)
    assert 1 < len(shapes) < len(scripts) / 2
    for text in shapes.values():
        inner = re.findall(r"<< '([A-Z]+)' \|\| true\n(.*?)\n\1\n", text, flags=re.DOTALL)
        assert [kind for kind, _ in inner][:1] == ["TASK"]
        texts |= {text, *(f"#!/bin/bash\n{lines}\n" for _, lines in inner)}
    files = [tmp_path / f"{number}.sh" for number in range(len(texts))]
    for file, text in zip(files, sorted(texts), strict=True):
        file.write_text(text)
    subprocess.run([SHELLCHECK, *files], check=True)


def test_no_script_is_left_over() -> None:
    """A golden file that no test writes any more would be checked forever and mean nothing."""
    expected = {f"{recipe.name}/{script_name(row, dtype)}.txt" for recipe, row, dtype in (p.values for p in ROWS)}
    expected |= {f"switches/{name}.txt" for name in SWITCHES} | {REFERENCE}
    folder = GOLDEN / "scripts"
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == expected


@pytest.mark.parametrize("folder", ["/lustre/a,b", "/lustre/a:b", "/lustre/a\\b"])
def test_a_folder_that_slurm_or_pyxis_cannot_express_is_refused(folder: str) -> None:
    plan = plan_of(RECIPES["llama3.1"], LLMB_INSTALL=folder, GPU_TYPE="gb200", JOB_TOTAL_GPUS="128")
    with pytest.raises(RequestError):
        script_of(plan)


def test_a_hostile_folder_reaches_the_script_quoted(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s $(touch evil) `touch evil` "x"; %j'
    site = ClusterConfig(engine=Engine(python=str(folder / "python")))
    plan = plan_of(RECIPES["llama3.1"], site, LAPTOP, LLMB_INSTALL=str(folder))
    text = script_of(plan)
    head = text[: text.index("# The job, as its scheduler knows it")]
    paths = dry_run_paths(plan.workload_folder, plan.experiment_name)
    paths.output.mkdir(parents=True)
    command = ["bash", "-c", head + 'printf %s "$log"']
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == str(paths.log)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("site", "handed"),
    [(ClusterConfig(), r"--container-env=\S*\bLLMB_ENGINE_CHECK\b"), (ENROOT, r"names=\(.*\bLLMB_ENGINE_CHECK\b")],
    ids=["pyxis", "enroot"],
)
def test_the_engine_check_of_the_caller_reaches_the_ranks_in_their_container(site: ClusterConfig, handed: str) -> None:
    variables = {"GPU_TYPE": "gb200", "JOB_TOTAL_GPUS": "128"}
    text = script_of(plan_of(RECIPES["llama3.1"], site, **variables, LLMB_ENGINE_CHECK="off"))
    assert "export LLMB_ENGINE_CHECK=off\n" in text
    assert re.search(handed, text)
    assert "LLMB_ENGINE_CHECK" not in script_of(plan_of(RECIPES["llama3.1"], site, **variables))


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
    given = {"GPU_TYPE": "gb200", "JOB_TOTAL_GPUS": "128", "LLMB_WORKLOAD": "/scratch/w", "LOAD_CHECKPOINT_PATH": load}
    cluster = ClusterConfig(slurm=SlurmSettings(runtime=runtime))
    script = script_of(plan_of(RECIPES["llama3.1"], cluster, **given))
    always = ["/lustre/llmb:/lustre/llmb", "/scratch/w:/scratch/w"]
    if runtime == "pyxis":
        assert f"--container-mounts={','.join([*always, *mounted])} " in script
    else:
        assert re.findall("--mount (.*) ", script) == [*always, *mounted]
