"""ShellCheck on generated scripts, together with the supervisor that they read."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_PROGRAM = Path(sys.executable).with_name("shellcheck")
_ASSIGNMENT = r"(?<![\w$-])([A-Za-z_]\w*)\+?="


def check_scripts(folder: Path, scripts: Sequence[str], supervisor: str) -> None:
    """Check ``scripts``, written into the new folder ``folder``: the first with the supervisor that all of them read.

    The others are checked with its names alone: reading it takes ten times as long as reading a script.
    """
    _check(folder / "first", scripts[:1], supervisor)
    _check(folder / "others", scripts[1:], _names(supervisor, scripts[1:]))


def _check(folder: Path, scripts: Sequence[str], supervisor: str) -> None:
    if not scripts:
        return
    folder.mkdir(parents=True)
    (folder / "supervisor.sh").write_text(supervisor)
    for number, text in enumerate(scripts):
        (folder / f"{number}.sh").write_text(text)
    subprocess.run([_PROGRAM, "-x", *sorted(folder.glob("[0-9]*.sh"))], check=True)


def _names(supervisor: str, scripts: Sequence[str]) -> str:
    """A script that has what ``scripts`` can see of ``supervisor``: its functions, and variables that one of both sets.

    It reads what a script sets for it.
    """
    words = set(re.findall(r"\w+", "\n".join(scripts)))
    functions = words.intersection(re.findall(r"^(\w+)\(\)", supervisor, re.MULTILINE))
    assigned = words.intersection(re.findall(_ASSIGNMENT, supervisor))
    given = set(re.findall(_ASSIGNMENT, "\n".join(scripts))).intersection(re.findall(r"\w+", supervisor))
    lines = ["# shellcheck shell=bash"]
    lines += [f"{name}=" for name in sorted(assigned)]
    lines.append(": " + " ".join(f'"${{{name}-}}"' for name in sorted(given)))
    lines += [f"{name}() {{ :; }}" for name in sorted(functions)]
    return "\n".join(lines) + "\n"
