"""Every question of the installer, once: its field in a play file, its flag, its words, when it matters.

``--help``, the prompts and the list of what is missing are made from it. Standard library only: the bootstrap answers
``--help`` and a lack of answers before anything is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llmb_common.errors import RequestError

Given = dict[str, Any]
"""Answers so far, by field name, as plain data."""


def _always(given: Given) -> bool:
    return True


def _slurm(given: Given) -> bool:
    return given.get("cluster_type") == "slurm"


def _images(given: Given) -> bool:
    return _slurm(given) and given.get("runtime") != "none"


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
    Question("env_type", "Who makes training environments", "default: venv", ("venv", "uv", "conda")),
    Question("workloads", "Workloads", "names separated by commas, or all", required=True),
)


def missing(given: Given) -> list[Question]:
    """The questions that still need an answer before anything can be installed."""
    return [q for q in QUESTIONS if q.required and q.matters(given) and given.get(q.field) in (None, "", [])]


def require(given: Given, where: str = "") -> None:
    """Raise RequestError that lists what is missing in ``given``; ``where`` is the play file's name."""
    lacking = missing(given)
    if lacking:
        lines = "\n".join(f"    {q.flag:18}{q.help}{_choices(q)}" for q in lacking)
        raise RequestError(
            f"{where + ': ' if where else ''}not enough answers to install; missing:\n{lines}",
            remedy="give these flags, give a file with --play FILE, or run it in a terminal to be asked",
            code="missing-answers",
        )


def _choices(question: Question) -> str:
    return f" [{', '.join(question.choices)}]" if question.choices else ""
