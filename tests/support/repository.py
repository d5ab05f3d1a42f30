"""The files of this repository, for the tests that read all of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def our_files() -> list[Path]:
    """Files tracked by git, so that scratch files do not matter; without git, everything except the ignored folders."""
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        found = [REPOSITORY / name for name in listed.stdout.split("\0") if name]
    else:
        ignored = (".venv", ".test", ".git", "__pycache__", "llmb_install", "dist", "build")
        found = [path for path in REPOSITORY.rglob("*") if not set(path.relative_to(REPOSITORY).parts) & set(ignored)]
    return sorted(path for path in found if path.is_file() and not path.is_symlink())


def shebang(path: Path) -> str:
    """The first line of ``path`` if it is one, else an empty string."""
    with path.open("rb") as file:
        first = file.readline(100)
    return first.decode("ascii", "replace").strip() if first.startswith(b"#!") else ""


def shell_files(files: list[Path]) -> list[Path]:
    """Those of ``files`` that are shell scripts, by suffix or first line."""
    return [path for path in files if path.suffix == ".sh" or re.search(r"\b(ba)?sh$", shebang(path))]
