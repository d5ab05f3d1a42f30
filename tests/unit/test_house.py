"""House rules that no linter checks. Each test names the files that break one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from support.repository import REPOSITORY, our_files, shebang, shell_files

RECIPES = ("llama3.1", "llama4", "grok1", "nemotron4")


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


FILES = our_files()
SHELL_FILES = shell_files(FILES)


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(REPOSITORY)) for path in paths]


def shell_code(path: Path) -> str:
    """The script without whole-line comments."""
    return "\n".join(line for line in text_of(path).splitlines() if not line.lstrip().startswith("#"))


def test_the_lists_are_not_empty() -> None:
    assert {REPOSITORY / "tests" / "run", REPOSITORY / "llama3.1" / "launch.sh"} <= set(SHELL_FILES)
    assert Path(__file__) in FILES


def test_shell_scripts_stop_at_errors() -> None:
    # A file without a shebang is sourced: its caller has set the options.
    scripts = [path for path in SHELL_FILES if shebang(path)]
    assert names([path for path in scripts if "set -euo pipefail" not in shell_code(path)]) == []


def test_shell_scripts_neither_trace_nor_evaluate() -> None:
    """Tracing prints secrets into logs; an evaluated string runs what a user wrote into a variable."""
    wrong = re.compile(r"^\s*(set -\w*x|set -o xtrace|eval\b)|\bbash -x\b", re.MULTILINE)
    assert names([path for path in SHELL_FILES if wrong.search(shell_code(path))]) == []


def test_programs_are_executable_and_nothing_else_is() -> None:
    # Batch scripts have a shebang for Slurm, which runs a copy of them.
    programs = {path for path in FILES if shebang(path) and path.suffix != ".sbatch"}
    assert names([path for path in FILES if (path in programs) != os.access(path, os.X_OK)]) == []


def test_users_start_the_installer_at_the_root() -> None:
    link = REPOSITORY / "installer.py"
    assert link.is_symlink()
    assert link.resolve() == REPOSITORY / "installer" / "installer.py"


def test_no_file_knows_where_it_was_written() -> None:
    """Paths from one machine break on every other one."""
    wrong = re.compile(re.escape(str(REPOSITORY)) + r"(?![\w.-])|/(home|Users)/[a-z][\w-]*/(src|git|projects)/")
    assert names([path for path in FILES if path != Path(__file__) and wrong.search(text_of(path))]) == []


def test_no_file_holds_a_token() -> None:
    token = re.compile(r"\bhf_[A-Za-z0-9]{30,}|\bnvapi-[\w-]{40,}|-----BEGIN [A-Z ]*PRIVATE KEY")
    assert names([path for path in FILES if token.search(text_of(path))]) == []


def test_the_wheel_carries_all_packages_and_recipes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=300)
    (wheel,) = tmp_path.glob("llmb-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = archive.namelist()
        entry_points = next(name for name in inside if name.endswith("entry_points.txt"))
        commands = archive.read(entry_points).decode()
    for package in ("llmb_common", "llmb_train", "llmb_run", "llmb_install"):
        assert f"{package}/__init__.py" in inside
    for recipe in RECIPES:
        for file in ("recipe.yaml", "launch.sh"):
            assert f"llmb_common/_recipes/{recipe}/{file}" in inside
    assert "llmb-run = " in commands
    assert "llmb-install = " in commands
    assert [name for name in inside if name.startswith(("tests/", "support/"))] == []


def test_no_two_test_files_share_a_name() -> None:
    """Test folders are not packages: pytest would mistake the second file for the first and stop."""
    seen = [path.name for path in FILES if path.name.startswith("test_") and path.suffix == ".py"]
    assert sorted(name for name in set(seen) if seen.count(name) > 1) == []
