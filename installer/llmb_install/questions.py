"""Every question of the installer, once: its field in a play file, its flag, its words, when it matters.

``--help``, the prompts and the list of what is missing are made from it. Standard library only: the bootstrap answers
``--help`` and a lack of answers before anything is installed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
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


def missing(given: Given) -> list[Question]:
    """The questions that still need an answer before anything can be installed."""
    return [q for q in QUESTIONS if q.required and q.matters(given) and given.get(q.field) in (None, "", [])]


def check(given: Given, workloads: Iterable[str], where: str = "") -> None:
    """Raise RequestError for what is missing in ``given``, contradicts itself or is unknown.

    ``workloads`` are those that exist; ``where`` is the play file's name. Types are not checked here.
    """
    at = f"{where}: " if where else ""
    lacking = missing(given)
    if lacking:
        lines = "\n".join(f"    {q.flag:18}{q.help}{_choices(q)}" for q in lacking)
        raise RequestError(
            f"{at}not enough answers to install; missing:\n{lines}",
            remedy="give these flags, give a file with --play FILE, or run it in a terminal to be asked",
            code="missing-answers",
        )
    for question in QUESTIONS:
        value = given.get(question.field)
        if not question.matters(given) and value not in (None, "", False, "none", "local"):
            # An answer to a question that does not arise is a mistake, not something to ignore in silence.
            raise RequestError(
                f"{at}{question.field} does not matter here: cluster_type is {given.get('cluster_type')}, "
                f"runtime {given.get('runtime') or 'the default'}",
                remedy=f"leave {question.field} out, or correct the other answer",
            )
    if given.get("cluster_type") == "local" and given.get("runtime") not in (None, "none"):
        raise RequestError(
            f"{at}the local executor uses no container, and runtime is {given['runtime']}",
            remedy="choose --runtime none, or --cluster-type slurm",
        )
    if _images(given) and str(given["gpu_type"]).lower() == "cpu":
        raise RequestError(
            f"{at}the container images are for GPUs, and gpu_type is cpu",
            remedy="choose --runtime none for CPU jobs under Slurm, or the GPU type of the cluster",
        )
    for field in ("account", "gpu_partition", "cpu_partition"):
        value = given.get(field)
        if isinstance(value, str) and not is_slurm_name(value):
            raise RequestError(f"{at}{field} is {value!r}, which is no Slurm name", remedy=f"correct {field}")
    expand_workloads(given["workloads"], workloads)


def is_slurm_name(text: str) -> bool:
    return bool(text) and not any(c.isspace() or c in "\"';|&$" for c in text)


def expand_workloads(chosen: object, known: Iterable[str]) -> list[str]:
    """Workload names from ``all``, a comma-separated text or a list. Raises RequestError for an unknown one."""
    names = chosen.split(",") if isinstance(chosen, str) else list(chosen) if isinstance(chosen, (list, tuple)) else []
    wanted = [str(name).strip() for name in names if str(name).strip()]
    all_of_them = sorted(known)
    if wanted == ["all"]:
        return all_of_them
    for name in wanted:
        if name not in all_of_them:
            raise RequestError(
                f"there is no workload {name!r}{did_you_mean(name, all_of_them)}",
                remedy=f"the workloads are {', '.join(all_of_them)}, or all",
            )
    if not wanted:
        raise RequestError("no workload is named", remedy=f"the workloads are {', '.join(all_of_them)}, or all")
    return sorted(set(wanted))


def workloads_of(clone: Path) -> list[str]:
    """Names of the clone's workloads, without a YAML parser: for checks before anything is installed."""
    found = (re.search(r"^workload: *(\S+)", path.read_text("utf-8"), re.M) for path in clone.glob("*/recipe.yaml"))
    return [match[1] for match in found if match]


def _choices(question: Question) -> str:
    return f" [{', '.join(question.choices)}]" if question.choices else ""
