"""What a typed answer may look like: text, a name in Slurm, a path, a list. Standard library only.

Each function says what is wrong, to be put behind the name of the answer, or nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llmb_common.base.errors import RequestError
from llmb_common.base.files import user_path
from llmb_common.base.printable import size
from llmb_common.base.words import SLURM_NAME_REMEDY, is_slurm_name, line_problem, mount_problem
from llmb_install.answers.given import Given, on_cpus, uses_images
from llmb_install.working.artefact import existing, free_bytes

_MIRROR = re.compile(r"[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9][a-z0-9._-]*)*")


def nothing_wrong(text: str) -> str:
    """An empty text, whatever ``text`` is: for answers that need no check."""
    return ""


def folder_problem(text: str) -> str:
    """Why the folder ``text`` cannot be there: where it, or the nearest path above that exists, is no folder.

    Empty where nothing is wrong.
    """
    parent = existing(user_path(text, text))
    return "" if parent.is_dir() else f"{parent} is not a directory"


def engine_problem(text: str) -> str:
    """``PATH is not a program`` where ``text`` is not a file that can be executed; else empty."""
    path = user_path(text, text)
    return "" if path.is_file() and os.access(path, os.X_OK) else f"{path} is not a program"


def not_writable(text: str) -> str:
    """``PATH is not writable`` where this user cannot write to ``text`` or where it would be made; else empty."""
    parent = existing(user_path(text, text))
    return "" if os.access(parent, os.W_OK) else f"{parent} is not writable"


def _not_a_slurm_name(text: str) -> str:
    """A clause on what is wrong with ``text`` as the name of an account or partition; empty where nothing is."""
    return "" if is_slurm_name(text) else "is not a valid name in Slurm"


def _not_a_mirror(text: str) -> str:
    """A clause on what is wrong with ``text`` as ``HOST[:PORT][/FOLDER]`` of a registry; empty where nothing is."""
    return "" if _MIRROR.fullmatch(text) else "is not the address of a registry"


@dataclass(frozen=True)
class Kind:
    """What is typed. ``wrong`` says what no text of this kind may be, ``here`` what is not possible on this machine."""

    wrong: Callable[[str], str] = nothing_wrong
    here: Callable[[str], str] = nothing_wrong
    remedy: str = ""
    is_path: bool = False
    is_list: bool = False


SLURM_NAME = Kind(wrong=_not_a_slurm_name, remedy=SLURM_NAME_REMEDY)
MIRROR = Kind(wrong=_not_a_mirror, remedy="write HOST[:PORT][/FOLDER], such as registry.site:5000/nvcr")
FOLDER = Kind(here=folder_problem, remedy="choose another folder", is_path=True)
PROGRAM = Kind(
    here=engine_problem, remedy="give the Python of an environment with torch and Megatron-Bridge", is_path=True
)
WORKLOADS = Kind(remedy="write all, or a list of names such as [grok1, llama3.1]", is_list=True)
RELEASES = Kind(remedy='write a list of releases in quotes, such as ["0.6"]', is_list=True)


def unusable_path(text: str) -> str:
    """What is wrong with a path as text, regardless of what is on disk, in words; empty: nothing."""
    if problem := line_problem(text):
        return f"it {problem}"
    try:
        user_path(text, text)
    except RequestError as error:
        return error.message
    return ""


def unusable_for_installation(text: str, given: Given) -> str:
    """What is wrong with ``text`` as the path of the installation, where jobs run as ``given`` says; empty: nothing.

    Some characters break PYTHONPATH, a build on CPUs, or the mounts of a container. The disk is not looked at.
    """
    if ":" in text:
        return "it contains a colon, which separates entries of PYTHONPATH"
    if on_cpus(given) and (found := re.search(r"\$(?=[A-Za-z_])|[{}]", text)):
        return (
            f"it contains {found[0]}, which setuptools takes for a variable when it builds one of the engine's packages"
        )
    problem = mount_problem(text, str(given.get("runtime") or "pyxis")) if uses_images(given) else ""
    return f"it {problem}" if problem else ""


def free_space_hint(suggestion: str) -> str:
    """A hint to put behind the prompt, in parentheses after a space: how much is free at the suggested folder.

    Without a suggestion it says that free space will be checked.
    """
    if not suggestion:
        return " (free space will be checked)"
    return f" ({size(free_bytes(Path(suggestion)))} free at {suggestion})"
