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
    """Return an empty text, whatever ``text`` is: the check of answers that need none."""
    return ""


def folder_problem(text: str) -> str:
    """Return ``PATH is not a directory`` where ``text`` cannot be a folder here; empty: it is one, or can be made.

    PATH is absolute: the path itself or, where it does not exist, the nearest one above it that does. Permissions
    play no part. ``~`` is replaced, and a relative path lies in the current folder, which an empty text is.

    Raises:
        RequestError: the path begins with the home of an unknown user
        OSError: a folder above is closed to this user
    """
    parent = existing(user_path(text, text))
    return "" if parent.is_dir() else f"{parent} is not a directory"


def engine_problem(text: str) -> str:
    """Return ``PATH is not a program`` where ``text`` is no existing file that can be executed; else empty.

    PATH is absolute, with ``~`` replaced. The program is not started.

    Raises:
        RequestError: the path begins with the home of an unknown user
        OSError: a folder above is closed to this user
    """
    path = user_path(text, text)
    return "" if path.is_file() and os.access(path, os.X_OK) else f"{path} is not a program"


def not_writable(text: str) -> str:
    """Return ``PATH is not writable`` where this user cannot write to the folder ``text``, or make it; else empty.

    PATH is the folder or, where it does not exist, the nearest path above it that does; whether that is a folder plays
    no part. Nothing is written.

    Raises:
        RequestError: the path begins with the home of an unknown user
        OSError: a folder above is closed to this user
    """
    parent = existing(user_path(text, text))
    return "" if os.access(parent, os.W_OK) else f"{parent} is not writable"


def _not_a_slurm_name(text: str) -> str:
    """Return ``is not a valid name in Slurm`` where ``text`` is no name of an account or partition; else empty.

    That is a clause to put behind "which". Names may be several, with commas; they have no blank, and nothing that a
    shell interprets. An empty text is no name. Slurm is not asked.
    """
    return "" if is_slurm_name(text) else "is not a valid name in Slurm"


def _not_a_mirror(text: str) -> str:
    """Return ``is not the address of a registry`` where ``text`` is not ``HOST[:PORT][/FOLDER]``; else empty.

    That is a clause to put behind "which". The folder must be in lower case. An address with a scheme, such as
    ``https``, is none. Nobody is asked.
    """
    return "" if _MIRROR.fullmatch(text) else "is not the address of a registry"


@dataclass(frozen=True)
class Kind:
    """A kind of typed answer, such as a path or a Slurm name, with the checks that every answer of it must pass.

    The default is text of any form. Those that there are: ``SLURM_NAME``, ``MIRROR``, ``FOLDER``, ``PROGRAM``,
    ``WORKLOADS`` and ``RELEASES``.
    """

    wrong: Callable[[str], str] = nothing_wrong
    """What no text of this kind may be, as a clause to put behind "which", such as
    ``is not a valid name in Slurm``; empty: nothing is wrong. Does not look at the disk.
    """
    here: Callable[[str], str] = nothing_wrong
    """Why the text is impossible on this machine, such as ``/a/b is not a directory``; empty: it is possible.
    Looks at the disk; may raise RequestError for an unknown home directory, and OSError.
    """
    remedy: str = ""
    """What to do about a wrong answer; empty: nothing in particular."""
    is_path: bool = False
    """Whether the answer is a path; ``complete_answers`` makes it absolute."""
    is_list: bool = False
    """Whether the answer is a list of texts, or one text in which they are separated by commas."""


SLURM_NAME = Kind(wrong=_not_a_slurm_name, remedy=SLURM_NAME_REMEDY)
MIRROR = Kind(wrong=_not_a_mirror, remedy="write HOST[:PORT][/FOLDER], such as registry.site:5000/nvcr")
FOLDER = Kind(here=folder_problem, remedy="choose another folder", is_path=True)
PROGRAM = Kind(
    here=engine_problem, remedy="give the Python of an environment with torch and Megatron-Bridge", is_path=True
)
WORKLOADS = Kind(remedy="write all, or a list of names such as [grok1, llama3.1]", is_list=True)
RELEASES = Kind(remedy='write a list of releases in quotes, such as ["0.6"]', is_list=True)


def unusable_path(text: str) -> str:
    """Return what is wrong with the path ``text``, whatever is on disk; empty: nothing.

    The result is a clause about the path, such as ``it contains a line break or a control character``, or, for a ``~``
    of an unknown user, the path and ``: there is no such home directory``. A relative path is right, as is an empty
    text.
    """
    if problem := line_problem(text):
        return f"it {problem}"
    try:
        user_path(text, text)
    except RequestError as error:
        return error.message
    return ""


def unusable_for_installation(text: str, given: Given) -> str:
    """Return why ``text`` is no path for an installation whose jobs run as ``given`` says; empty: it is one.

    The result is a clause that begins with "it", such as ``it contains {, which ...``. A colon is never allowed;
    braces and ``$NAME`` are not for a build on CPUs, nor what a container cannot mount where jobs run in images. An
    unanswered ``runtime`` counts as ``pyxis``, ``gpu_type`` as no CPU, and ``cluster_type`` as one without images.
    ``text`` is taken as it is, and the disk is not looked at.
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
    """Return a blank and, in parentheses, how much disk space is free at the folder ``suggestion``, for a prompt.

    For example `` (1.5 TB free at /scratch)``. For an empty ``suggestion`` it is `` (free space will be checked)``. A
    folder that does not exist counts as the nearest one above it; ``~`` is not replaced.

    Raises:
        OSError: the file system does not answer, or a folder above is closed to this user
    """
    if not suggestion:
        return " (free space will be checked)"
    return f" ({size(free_bytes(Path(suggestion)))} free at {suggestion})"
