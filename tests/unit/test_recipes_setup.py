"""A recipe's ``llama3.1/setup.sh``, with ``common/setup.sh``, installs without asking questions: the installer command
that it becomes."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from support.texts import Texts

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = {
    "llama3.1": "pretrain_llama3.1",
    "llama4": "pretrain_llama4_maverick",
    "grok1": "pretrain_grok1",
    "nemotron4": "pretrain_nemotron4",
}


@pytest.fixture
def install(tmp_path: Path) -> Path:
    """An unfinished installation, and a ``python3`` that prints how it was called."""
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || printf "%s\\n" "$@"\n')
    python.chmod(0o755)
    return tmp_path / "with space"


def run(script: Path, install: Path | None, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **variables}
    if install is not None:
        environment |= {"LLMB_INSTALL": str(install), "PATH": f"{install.parent / 'bin'}:/usr/bin:/bin"}
    return subprocess.run(
        [str(script), *arguments], env=environment, capture_output=True, text=True, check=False, cwd=script.parent
    )


@pytest.mark.parametrize("recipe", WORKLOADS)
def test_an_empty_folder_becomes_an_installation_for_the_recipe(install: Path, recipe: str):
    variables = {"SBATCH_ACCOUNT": "bench", "SBATCH_PARTITION": "gpu", "GPU_TYPE": "h100", "CLUSTER_TYPE": "slurm"}
    done = run(ROOT / recipe / "setup.sh", install, "--gres", **variables)
    expected = [str(ROOT / "installer.py"), "--install-path", str(install), "--workloads", WORKLOADS[recipe]]
    expected += ["--cluster-type", "slurm", "--account", "bench", "--gpu-partition", "gpu", "--gpu-type", "h100"]
    assert done.stdout.splitlines() == [*expected, "--gres"], done.stderr
    assert shlex.split(done.stderr)[1:] == [*expected, "--gres"], "what it does is shown, ready to be copied"
    assert done.stderr.endswith("\n")


def test_a_job_gives_the_account_and_the_partition_that_it_runs_in(install: Path):
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_ACCOUNT": "bench", "SLURM_JOB_PARTITION": "batch"}
    variables["SLURM_SUBMIT_DIR"] = "/"  # a step of the job runs the script where it is
    words = run(ROOT / "grok1" / "setup.sh", install, "--gpu-type", "h100", **variables).stdout.splitlines()
    assert words[5:] == [
        *("--cluster-type", "slurm", "--account", "bench", "--gpu-partition", "batch", "--gpu-type", "h100")
    ]


def test_without_slurm_it_is_this_machine(install: Path):
    words = run(ROOT / "grok1" / "setup.sh", install, CLUSTER_TYPE="local").stdout.splitlines()
    assert words[5:] == ["--cluster-type", "local", "--gpu-type", "cpu"]


@pytest.mark.parametrize(
    ("program", "variables", "kind"), [("", {}, "local"), ("sbatch", {}, "slurm"), ("", {"SLURM_JOB_ID": "7"}, "slurm")]
)
def test_whether_there_is_slurm_is_found_out(install: Path, program: str, variables: dict[str, str], kind: str):
    tools = install.parent / "bin"
    for name in ("bash", "dirname", "readlink", "sed", "env"):
        (tools / name).symlink_to(shutil.which(name) or "")
    if program:
        (tools / program).symlink_to("/bin/true")
    given = {"PATH": str(tools), "LLMB_INSTALL": str(install), **variables}
    words = run(ROOT / "grok1" / "setup.sh", None, **given).stdout.splitlines()
    assert words[5:7] == ["--cluster-type", kind]


def test_an_existing_installation_gets_the_recipe(install: Path):
    (install / ".llmb").mkdir(parents=True)
    (install / ".llmb" / "answers.yaml").touch()
    words = run(ROOT / "llama4" / "setup.sh", install, "--no-space-check", GPU_TYPE="h100").stdout.splitlines()
    assert words[1:] == ["add", "pretrain_llama4_maverick", "--install-path", str(install), "--no-space-check"]


def test_a_spool_copy_finds_the_recipe_where_sbatch_was_called(install: Path, tmp_path: Path, texts: Texts):
    spool = tmp_path / "spool"
    spool.mkdir()
    script = Path(shutil.copy(ROOT / "llama4" / "setup.sh", spool / "slurm_script"))
    variables = {"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(ROOT / "nemotron4")}
    assert "pretrain_nemotron4" in run(script, install, **variables).stdout.splitlines()
    elsewhere = run(script, install, **{**variables, "SLURM_SUBMIT_DIR": str(tmp_path)})
    assert elsewhere.returncode == 2
    texts(elsewhere.stderr)
    (spool / "recipe.yaml").write_text("workload: pretrain_llama4_maverick\n")
    alone = run(script, install)
    assert (alone.returncode, alone.stdout) == (2, "")
    texts(alone.stderr)


def test_an_old_python_is_good_enough_to_start(install: Path):
    """A python3 that does not start, such as a version manager's shim, is skipped."""
    broken = install.parent / "bin" / "python3"
    broken.rename(broken.with_name("python3.11"))
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    assert "add" not in run(ROOT / "grok1" / "setup.sh", install).stdout
    assert run(ROOT / "grok1" / "setup.sh", install).returncode == 0


@pytest.mark.parametrize(
    ("variables", "status"),
    [
        ({}, 2),
        ({"STAGE_PATH": "/lustre/x"}, 2),
        ({"LLMB_INSTALL": "/x", "PATH": "{tools}"}, 3),
    ],
)
def test_anything_missing_is_reported(tmp_path: Path, variables: dict[str, str], status: int, texts: Texts):
    for name in ("bash", "dirname", "readlink", "sed", "env"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    done = run(ROOT / "llama3.1" / "setup.sh", None, **{k: v.format(tools=tmp_path) for k, v in variables.items()})
    assert (done.returncode, done.stdout) == (status, "")
    texts(done.stderr)


def test_the_recipes_own_part_is_the_same_everywhere_and_executable():
    scripts = [ROOT / recipe / "setup.sh" for recipe in WORKLOADS]
    assert len({script.read_text() for script in scripts}) == 1
    assert all(os.access(script, os.X_OK) for script in scripts)


def test_a_python_that_was_asked_for_and_is_not_there_is_not_replaced(install: Path, texts: Texts):
    done = run(ROOT / "grok1" / "setup.sh", install, LLMB_PYTHON="/nowhere/python")
    assert (done.returncode, done.stdout) == (3, "")
    texts(done.stderr)


@pytest.mark.parametrize("word", ["--version", "-h", "--help"])
def test_what_it_is_needs_no_installation(install: Path, word: str):
    done = run(ROOT / "llama4" / "setup.sh", None, word, PATH=f"{install.parent / 'bin'}:/usr/bin:/bin")
    assert done.stdout.splitlines() == [str(ROOT / "installer.py"), word], done.stderr
