"""setup.sh, the manual way into an installation."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = {
    "llama3.1": "pretrain_llama3.1",
    "llama4": "pretrain_llama4_maverick",
    "grok1": "pretrain_grok1",
    "nemotron4": "pretrain_nemotron4",
}


def tool(folder: Path) -> Path:
    """An ``llmb-install`` that says how it was called."""
    folder.mkdir(parents=True)
    path = folder / "llmb-install"
    path.write_text('#!/bin/sh\necho "$0 $* in $LLMB_INSTALL"\n')
    path.chmod(0o755)
    return path


def run(script: Path, *arguments: str, path: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{path}:/usr/bin:/bin" if path else "/usr/bin:/bin", "HOME": "/nonexistent", **variables}
    return subprocess.run(
        [str(script), *arguments], env=environment, capture_output=True, text=True, check=False, cwd=script.parent
    )


@pytest.mark.parametrize("recipe", WORKLOADS)
def test_it_adds_the_workload_of_its_recipe(tmp_path: Path, recipe: str):
    install = tmp_path / "with space"
    program = tool(install / "venvs" / "llmb" / "bin")
    done = run(ROOT / recipe / "setup.sh", "--yes", LLMB_INSTALL=str(install))
    assert done.stdout == f"{program} add {WORKLOADS[recipe]} --yes in {install}\n", done.stderr


def test_the_active_environment_serves_where_the_installation_has_no_tool(tmp_path: Path):
    program = tool(tmp_path / "venv" / "bin")
    done = run(ROOT / "grok1" / "setup.sh", path=str(program.parent), LLMB_INSTALL=str(tmp_path))
    assert done.stdout.startswith(f"{program} add pretrain_grok1")


def test_a_spool_copy_finds_the_recipe_where_sbatch_was_called(tmp_path: Path):
    tool(tmp_path / "venvs" / "llmb" / "bin")
    spool = tmp_path / "spool"
    spool.mkdir()
    script = Path(shutil.copy(ROOT / "llama4" / "setup.sh", spool / "slurm_script"))
    variables = {"LLMB_INSTALL": str(tmp_path), "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(ROOT / "nemotron4")}
    assert "add pretrain_nemotron4 " in run(script, **variables).stdout
    elsewhere = run(script, **{**variables, "SLURM_SUBMIT_DIR": str(tmp_path)})
    assert elsewhere.returncode == 2
    assert f"no recipe.yaml in {tmp_path}" in elsewhere.stderr


@pytest.mark.parametrize(
    ("variables", "status", "message"),
    [
        ({}, 2, "LLMB_INSTALL is not set"),
        ({"STAGE_PATH": "/lustre/x"}, 2, 'export LLMB_INSTALL="$STAGE_PATH"'),
        ({"LLMB_INSTALL": "/nonexistent"}, 3, "run ./installer.py --install-path"),
    ],
)
def test_what_is_missing_is_said(variables: dict[str, str], status: int, message: str):
    done = run(ROOT / "llama3.1" / "setup.sh", **variables)
    assert (done.returncode, done.stdout) == (status, "")
    assert message in done.stderr


def test_it_is_executable_and_clean_shell():
    script = ROOT / "llama3.1" / "setup.sh"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)
