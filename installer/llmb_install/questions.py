"""Every question of the installer, once: its field in a play file, its flag, its words, when it matters.

``--help``, the prompts and the list of what is missing are made from it. Standard library only: the bootstrap answers
``--help`` and a lack of answers before anything is installed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmb_common.errors import RequestError, did_you_mean

Given = dict[str, Any]
"""Answers so far, by field name, as plain data."""


def _always(given: Given) -> bool:
    return True


def _slurm(given: Given) -> bool:
    return given.get("cluster_type") == "slurm"


def _images(given: Given) -> bool:
    return _slurm(given) and given.get("runtime") != "none"


def _own_engine(given: Given) -> bool:
    """GPU jobs outside a container bring their own engine; CPU jobs get the one that is installed."""
    known = given.get("cluster_type") and given.get("gpu_type")
    return bool(known) and str(given["gpu_type"]).lower() != "cpu" and not _images(given)


@dataclass(frozen=True)
class Question:
    """One field. ``text`` is the prompt, ``help`` what ``--help`` says; ``required``: it has no default."""

    field: str
    text: str
    help: str
    choices: tuple[str, ...] = ()
    required: bool = False
    matters: Callable[[Given], bool] = _always

    @property
    def flag(self) -> str:
        return "--" + self.field.replace("_", "-")

    @property
    def is_switch(self) -> bool:
        return self.choices == ("true", "false")


PATHS = ("install_path", "image_folder", "engine_python")
SLURM_NAMES = ("account", "gpu_partition", "cpu_partition")
_PREFIX = "pretrain_"
GPU_TYPES = ("gb300", "gb200", "b200", "h200", "h100", "cpu")

QUESTIONS = (
    Question("install_path", "Where to install", "top folder, on a shared file system for Slurm"),
    Question("cluster_type", "Where jobs run", "slurm, or local: this machine", ("slurm", "local"), required=True),
    Question("account", "Slurm account", "account that jobs are charged to", required=True, matters=_slurm),
    Question("gpu_partition", "Partition for GPU jobs", "partition with the GPUs", required=True, matters=_slurm),
    Question(
        "cpu_partition", "Partition for other jobs", "partition of installation jobs (default: as GPU)", matters=_slurm
    ),
    Question(
        "gres",
        "Do GPUs have to be asked for (GRES)",
        "ask for --gres=gpu:N (default: false)",
        ("true", "false"),
        matters=_slurm,
    ),
    Question("gpu_type", "GPU type", "what jobs run on", GPU_TYPES, required=True),
    Question(
        "arch",
        "Architecture of the compute nodes",
        "default: aarch64 for GB200 and GB300, else x86_64",
        ("x86_64", "aarch64"),
    ),
    Question(
        "runtime",
        "Container runtime",
        "how jobs enter their image (default: pyxis)",
        ("pyxis", "enroot", "none"),
        matters=_slurm,
    ),
    Question(
        "install_method",
        "Where images are imported",
        "on this machine, or on a compute node (default: local)",
        ("local", "srun"),
        matters=_images,
    ),
    Question(
        "image_folder",
        "Folder of container images",
        "default: images in the installation; may be read-only",
        matters=_images,
    ),
    Question(
        "engine_python",
        "Python with torch and Megatron-Bridge",
        "for GPU jobs outside a container: the Python of an environment with torch and Megatron-Bridge",
        required=True,
        matters=_own_engine,
    ),
    Question("env_type", "Who makes training environments", "default: venv", ("venv", "uv", "conda")),
    Question(
        "hugging_face",
        "Fetch tokenizer and configuration files from Hugging Face (no benchmark needs them)",
        "also fetch the models' tokenizers and configurations; no benchmark needs them (default: false)",
        ("true", "false"),
    ),
    Question("workloads", "Workloads", "names separated by commas, or all", required=True),
)


_FOLLOWS = {"arch": "gpu_type", "runtime": "cluster_type", "install_method": "cluster_type"}
"""Answers whose default comes from another one: with that one changed, the old answer says nothing."""


def missing(given: Given) -> list[Question]:
    """The questions that still need an answer before anything can be installed."""
    return [q for q in QUESTIONS if q.required and q.matters(given) and given.get(q.field) in (None, "", [])]


def merged(old: Given, new: Given) -> Given:
    """``old`` answers, changed by ``new`` ones; old ones that no longer fit are forgotten."""
    changed = {field for field, value in new.items() if field in old and old[field] != value}
    kept = {field: value for field, value in old.items() if _FOLLOWS.get(field) not in changed}
    if "gpu_partition" in changed and old.get("cpu_partition") == old["gpu_partition"]:
        del kept["cpu_partition"]
    both = {**kept, **new}
    idle = {q.field for q in QUESTIONS if not q.matters(both)}
    return {field: value for field, value in both.items() if field in new or field not in idle}


def check(given: Given, workloads: Iterable[str], where: str = "", lines: Mapping[str, int] | None = None) -> None:
    """Raise RequestError for what is missing in ``given``, contradicts itself or is unknown.

    ``workloads`` are those that exist; ``where`` is the play file's name, ``lines`` its lines by ``$.field``.
    """

    def at(field: str) -> str:
        line = (lines or {}).get(f"$.{field}")
        return f"{where}:{line}: " if line else f"{where}: " if where else ""

    for question in QUESTIONS:
        _check_value(question, given.get(question.field), at(question.field))
    if given.get("cluster_type") == "local" and given.get("runtime") not in (None, "none"):
        raise RequestError(
            f"{at('runtime')}the local executor uses no container, and runtime is {given['runtime']}",
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
    if _images(given) and str(given["gpu_type"]).lower() == "cpu":
        raise RequestError(
            f"{at('gpu_type')}the container images are for GPUs, and gpu_type is cpu",
            remedy="choose runtime none for CPU jobs under Slurm, or the GPU type of the cluster",
        )
    for field in PATHS:
        if problem := path_problem(field, str(given.get(field) or ""), given):
            raise RequestError(f"{at(field)}{field}: {problem}", remedy="choose another path")
    expand_workloads(given["workloads"], workloads, at("workloads"))


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
    elif field == "workloads":
        if not isinstance(value, str) and not (
            isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)
        ):
            raise RequestError(f"{at}workloads is {value!r}", remedy="all, or a list of names")
    elif not isinstance(value, str):
        raise RequestError(f"{at}{field} is {value!r}, which is no text", remedy="put the value in quotes")
    elif value and field in SLURM_NAMES and not is_slurm_name(value):
        raise RequestError(f"{at}{field} is {value!r}, which is no Slurm name", remedy=f"correct {field}")


def _not_enough(lacking: list[Question], where: str) -> RequestError:
    """The list of what is missing: flags, or the keys of a play file."""
    if where:
        lines = "\n".join(f"    {q.field:18}{q.help}{_choices(q)}" for q in lacking)
        message, remedy = (
            f"{where}: not enough answers to install; missing:\n{lines}",
            "add them, or give them as flags",
        )
    else:
        lines = "\n".join(f"    {q.flag:18}{q.help}{_choices(q)}" for q in lacking)
        message = f"not enough answers to install; missing:\n{lines}"
        remedy = "give these flags, give a file with --play FILE, or run it in a terminal to be asked"
    return RequestError(message, remedy=remedy, code="missing-answers")


def check_engine(given: Given) -> None:
    """Raise RequestError where ``engine_python`` is no program of this machine: before anything is built."""
    text = given.get("engine_python")
    if text and engine_problem(str(text)):
        raise RequestError(
            f"engine_python: {engine_problem(str(text))}",
            remedy="give the Python of an environment with torch and Megatron-Bridge",
        )


def engine_problem(text: str) -> str:
    path = Path(text).expanduser().absolute()
    return "" if path.is_file() and os.access(path, os.X_OK) else f"{path} is no program"


def is_slurm_name(text: str) -> bool:
    return bool(text) and text[0] != "-" and not any(c.isspace() or c in "\"';|&$" for c in text)


def path_problem(field: str, text: str, given: Given) -> str:
    """What is wrong with the words of a path, whatever is there on disk; empty when nothing is."""
    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        return "it holds a line break or a control character"
    if field == "install_path" and _images(given) and (":" in text or "," in text):
        return "it holds a comma or a colon, which container mounts cannot say"
    return ""


def expand_workloads(chosen: object, known: Iterable[str], at: str = "") -> list[str]:
    """Workload names from ``all``, a comma-separated text or a list; ``grok1`` is ``pretrain_grok1``.

    Raises RequestError, beginning with ``at``, for an unknown one.
    """
    names = chosen.split(",") if isinstance(chosen, str) else list(chosen) if isinstance(chosen, (list, tuple)) else []
    wanted = [str(name).strip() for name in names if str(name).strip()]
    all_of_them = sorted(known)
    remedy = f"the workloads are {', '.join(all_of_them)}, or all"
    if not wanted:
        raise RequestError(f"{at}no workload is named", remedy=remedy)
    found: set[str] = set()
    for name in wanted:
        if name == "all":
            found.update(all_of_them)
        elif name in all_of_them:
            found.add(name)
        elif f"{_PREFIX}{name}" in all_of_them:
            found.add(_PREFIX + name)
        else:
            near = did_you_mean(name, all_of_them) or did_you_mean(_PREFIX + name, all_of_them)
            raise RequestError(f"{at}there is no workload {name!r}{near}", remedy=remedy)
    return sorted(found)


def workloads_of(clone: Path) -> list[str]:
    """Names of the clone's workloads, without a YAML parser: for checks before anything is installed."""
    found = (re.search(r"^workload: *(\S+)", path.read_text("utf-8"), re.M) for path in clone.glob("*/recipe.yaml"))
    return [match[1] for match in found if match]


def _choices(question: Question) -> str:
    return f" [{', '.join(question.choices)}]" if question.choices else ""
