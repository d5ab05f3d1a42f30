"""What is wrong with answers, wherever they come from: values, contradictions, what is missing.

Standard library only: the bootstrap reports it before anything is installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from llmb_common.cluster_types import names, traits_of
from llmb_common.errors import RequestError, did_you_mean
from llmb_common.words import is_slurm_name, line_problem, mount_problem
from llmb_install.answers.questions import (
    PATHS,
    QUESTIONS,
    SLURM_NAMES,
    Given,
    Question,
    expand_workloads,
    missing,
    uses_images,
)


def check(given: Given, workloads: Iterable[str], where: str = "", lines: Mapping[str, int] | None = None) -> None:
    """Raise RequestError for what is missing in ``given``, contradicts itself or is unknown.

    ``workloads`` are those that exist; ``where`` is the play file's name, ``lines`` its lines by ``$.field``.
    """

    def at(field: str) -> str:
        line = (lines or {}).get(f"$.{field}")
        return f"{where}:{line}: " if line else f"{where}: " if where else ""

    for question in QUESTIONS:
        _check_value(question, given.get(question.field), at(question.field))
    name = str(given.get("cluster_type")).lower()
    if name in names() and not traits_of(name).containers and given.get("runtime") not in (None, "none"):
        raise RequestError(
            f"{at('runtime')}the {name} executor uses no container, and runtime is {given['runtime']}",
            remedy="choose runtime none, or cluster_type slurm",
        )
    if lacking := missing(given):
        raise _not_enough(lacking, where)
    for question in QUESTIONS:
        value = given.get(question.field)
        if not question.matters(given) and value not in (None, "", False, "none", "local"):
            # An answer to a question that does not arise is a mistake, not something to ignore in silence.
            raise RequestError(
                f"{at(question.field)}{question.field} does not matter here: cluster_type is "
                f"{given.get('cluster_type')}, runtime {given.get('runtime') or 'the default'}",
                remedy=f"leave {question.field} out, or correct the other answer",
            )
    if uses_images(given) and given["gpu_type"].lower() == "cpu":
        raise RequestError(
            f"{at('gpu_type')}the container images are for GPUs, and gpu_type is cpu",
            remedy="choose runtime none for CPU jobs under Slurm, or the GPU type of the cluster",
        )
    for field in PATHS:
        if problem := path_problem(field, str(given.get(field) or ""), given):
            raise RequestError(f"{at(field)}{field}: {problem}", remedy="choose another path")
    expand_workloads(given["workloads"], workloads, at("workloads"))


_LISTS = {"workloads": "all, or a list of names", "engines": 'a list of releases in quotes, such as ["0.6"]'}
"""Answers that are lists, or text with commas; and what to write."""


def listed_engines(value: object) -> list[str]:
    """The releases of Megatron-Bridge in a list, or in text with commas."""
    names = value.split(",") if isinstance(value, str) else list(value) if isinstance(value, (list, tuple)) else []
    return sorted({str(name).strip() for name in names if str(name).strip()})


def _check_value(question: Question, value: object, at: str) -> None:
    """Type and choice of one answer."""
    field = question.field
    if value is None:
        return
    if question.is_switch:
        if not isinstance(value, bool):
            raise RequestError(f"{at}{field} is {value!r}", remedy="true or false, without quotes")
    elif question.choices:
        if str(value).lower() not in question.choices:
            near = did_you_mean(str(value).lower(), question.choices)
            raise RequestError(
                f"{at}{field} {value!r} is unknown{near}", remedy=f"one of {', '.join(question.choices)}"
            )
    elif field in _LISTS:
        if not isinstance(value, str) and not (
            isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)
        ):
            raise RequestError(f"{at}{field} is {value!r}", remedy=_LISTS[field])
    elif not isinstance(value, str):
        raise RequestError(f"{at}{field} is {value!r}, which is not text", remedy="put the value in quotes")
    elif value and field in SLURM_NAMES and not is_slurm_name(value):
        raise RequestError(f"{at}{field} is {value!r}, which is not a valid name in Slurm", remedy=f"correct {field}")


def _not_enough(lacking: list[Question], where: str) -> RequestError:
    """The list of what is missing: flags, or the keys of a play file."""
    if where:
        lines = "\n".join(f"    {q.field:18}{q.help}{_choices(q)}" for q in lacking)
        message, remedy = (
            f"{where}: more answers are needed to install; missing:\n{lines}",
            "add them, or give them as flags",
        )
    else:
        lines = "\n".join(f"    {q.flag:18}{q.help}{_choices(q)}" for q in lacking)
        message = f"more answers are needed to install; missing:\n{lines}"
        remedy = "give these flags, give a file with --play FILE, or run it in a terminal to be asked"
    return RequestError(message, remedy=remedy, code="missing-answers")


def check_paths(given: Given) -> None:
    """Raise RequestError if a path is unusable on this machine, before anything is built."""
    engine = given.get("engine_python")
    if engine and (problem := engine_problem(engine)):
        raise RequestError(
            f"engine_python: {problem}", remedy="give the Python of an environment with torch and Megatron-Bridge"
        )
    for field in ("install_path", "image_folder"):
        if given.get(field) and (problem := folder_problem(str(given[field]))):
            raise RequestError(f"{field}: {problem}", remedy="choose another folder")


def folder_problem(text: str) -> str:
    """Why a folder cannot be created here, or an empty string."""
    path = Path(text).expanduser().absolute()
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    return "" if existing.is_dir() else f"{existing} is not a directory"


def engine_problem(text: str) -> str:
    path = Path(text).expanduser().absolute()
    return "" if path.is_file() and os.access(path, os.X_OK) else f"{path} is not a program"


def path_problem(field: str, text: str, given: Given) -> str:
    """What is wrong with a path as text, regardless of what is on disk; empty if nothing is."""
    if problem := line_problem(text):
        return f"it {problem}"
    if field == "install_path" and ":" in text:
        return "it contains a colon, which separates entries of PYTHONPATH"
    if (
        field == "install_path"
        and uses_images(given)
        and (problem := mount_problem(text, str(given.get("runtime") or "pyxis")))
    ):
        return f"it {problem}"
    return ""


def _choices(question: Question) -> str:
    return f" [{', '.join(question.choices)}]" if question.choices else ""
