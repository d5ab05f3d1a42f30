"""The linters, each a test, so that they run beside the others and a failure is listed with theirs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.repository import REPOSITORY, our_files, shell_files

SHELL = [path for path in shell_files(our_files()) if path.suffix != ".sbatch"]
"""A batch script is checked with the supervisor that it reads: tests/unit/test_scripts.py."""

LINTERS = {
    "ruff check": ["ruff", "check", "."],
    "ruff format": ["ruff", "format", "--check", "."],
    "mypy": ["mypy"],
    "import-linter": ["lint-imports"],
    "shellcheck": ["shellcheck", *map(str, SHELL)],
}


@pytest.mark.parametrize("name", LINTERS)
def test_it_finds_nothing(name: str) -> None:
    program, *arguments = LINTERS[name]
    command = [str(Path(sys.executable).parent / program), *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
