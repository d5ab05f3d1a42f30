"""Every question of the installer, once: its field in a play file, its flag, its words, when it matters.

``--help``, the prompts and the list of what is missing are made from it. Standard library only: the bootstrap answers
``--help`` and a lack of answers before anything is installed.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmb_common.base import gpus
from llmb_common.base.cluster_types import LOCAL, names, traits_of
from llmb_common.base.errors import RequestError, did_you_mean

Given = dict[str, Any]
"""Answers so far, by field name, as plain data."""


def on_slurm(given: Given) -> bool:
    """Whether jobs are submitted to Slurm; False as long as that is not answered."""
    name = str(given.get("cluster_type")).lower()
    return name in names() and traits_of(name).slurm_options


def uses_images(given: Given) -> bool:
    """Whether jobs run in container images."""
    return on_slurm(given) and given.get("runtime") != "none"


def _own_engine(given: Given) -> bool:
    """GPU jobs outside a container bring their own engine; CPU jobs get the one that is installed."""
    known = given.get("cluster_type") and given.get("gpu_type")
    return bool(known) and str(given["gpu_type"]).lower() != "cpu" and not uses_images(given)


@dataclass(frozen=True)
class Question:
    """One field. ``text`` is the prompt, ``help`` what ``--help`` says; ``required``: it has no default; ``asked``: the
    dialogue asks, where it matters at all, and otherwise takes the default."""

    field: str
    text: str
    help: str
    choices: tuple[str, ...] = ()
    required: bool = False
    matters: Callable[[Given], bool] = lambda given: True
    asked: Callable[[Given], bool] = lambda given: True

    @property
    def flag(self) -> str:
        return "--" + self.field.replace("_", "-")

    @property
    def is_switch(self) -> bool:
        return self.choices == ("true", "false")


PATHS = ("install_path", "image_folder", "engine_python")
SLURM_NAMES = ("account", "gpu_partition", "cpu_partition")
_PREFIX = "pretrain_"

_ON_ARM = ", ".join(name.upper() for name, gpu in gpus.GPUS.items() if gpu.host == "aarch64")

QUESTIONS = (
    Question("install_path", "Where to install", "top folder, on a shared file system for Slurm"),
    Question(
        "cluster_type",
        "Where jobs run",
        f"{', '.join(name for name in names() if not traits_of(name).this_machine)}, or {LOCAL}: this machine",
        tuple(names()),
        required=True,
    ),
    Question("account", "Slurm account", "account that jobs are charged to", required=True, matters=on_slurm),
    Question("gpu_partition", "Partition for GPU jobs", "partition with the GPUs", required=True, matters=on_slurm),
    Question(
        "gres",
        "Do jobs request their GPUs with --gres=gpu:N",
        "request GPUs with --gres=gpu:N (default: true if Slurm has some in the partition)",
        ("true", "false"),
        matters=on_slurm,
    ),
    Question("gpu_type", "GPU type", "GPUs that jobs run on", gpus.gpu_types(), required=True),
    Question(
        "arch",
        "Architecture of the compute nodes",
        f"default: aarch64 for {_ON_ARM}, else x86_64",
        ("x86_64", "aarch64"),
    ),
    Question(
        "runtime",
        "Container runtime",
        "how jobs start their container (default: pyxis)",
        ("pyxis", "enroot", "none"),
        matters=on_slurm,
    ),
    Question(
        "container_writable",
        "May jobs write inside their container",
        "let jobs write inside their container; changes are lost when the job ends (default: true)",
        ("true", "false"),
        matters=uses_images,
        asked=lambda given: False,
    ),
    Question(
        "install_method",
        "Where images are imported",
        "on this machine, or on a compute node (default: local)",
        ("local", "srun"),
        matters=uses_images,
    ),
    Question(
        "cpu_partition",
        "Partition for installation jobs",
        "partition for installation jobs (default: the GPU partition)",
        matters=on_slurm,
        asked=lambda given: given.get("install_method") == "srun",
    ),
    Question(
        "image_folder",
        "Folder of container images",
        "default: images in the installation; may be read-only",
        matters=uses_images,
    ),
    Question(
        "registry_mirror",
        "Mirror of the registry",
        "import images from HOST[:PORT][/FOLDER] in place of their own registry, nvcr.io",
        matters=uses_images,
        asked=lambda given: False,
    ),
    Question(
        "engine_python",
        "Python with torch and Megatron-Bridge",
        "for GPU jobs outside a container: the Python of an environment with torch and Megatron-Bridge",
        required=True,
        matters=_own_engine,
    ),
    Question(
        "env_type",
        "How to create the training environment",
        "default: venv",
        ("venv", "uv", "conda"),
        asked=lambda given: str(given.get("gpu_type")).lower() == "cpu",
    ),
    Question(
        "hugging_face",
        "Fetch tokenizers from Hugging Face (no benchmark needs them)",
        "also fetch the models' tokenizers and configurations; no benchmark needs them (default: false)",
        ("true", "false"),
    ),
    Question(
        "engines",
        "Further releases of Megatron-Bridge",
        "further releases of Megatron-Bridge for workloads that run on several, such as 0.6 (default: none)",
        asked=lambda given: False,
    ),
    Question("workloads", "Workloads", "names separated by commas, or all", required=True),
)


_FOLLOWS = {"arch": "gpu_type", "runtime": "cluster_type", "mpi": "cluster_type", "install_method": "cluster_type"}
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


def expand_workloads(chosen: object, known: Iterable[str], at: str = "") -> list[str]:
    """Workload names from ``all``, a comma-separated text or a list; ``grok1`` is ``pretrain_grok1``.

    Raises:
        RequestError: a name is unknown; the message begins with ``at``.
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
            near = did_you_mean(_PREFIX + name.removeprefix(_PREFIX), all_of_them, cutoff=0.85)
            raise RequestError(f"{at}there is no workload {name!r}{near}", remedy=remedy)
    return sorted(found)


def plain(value: object) -> str:
    """An answer as shown to people."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def default_architecture(gpu_type: str) -> str:
    """The architecture of the machines that have these GPUs."""
    known = gpus.GPUS.get(gpu_type)
    return known.host if known else platform.machine()


def recipe_heads(clone: Path) -> dict[str, dict[str, str]]:
    """``image`` and ``engine`` of the clone's workloads, as far as their recipes name them.

    Without a YAML parser: for checks before anything is installed.
    """
    texts = (path.read_text("utf-8") for path in clone.glob("*/recipe.yaml"))
    found = (dict(re.findall(r'^(workload|image|engine): *"?([^"\s]+)', text, re.MULTILINE)) for text in texts)
    return {head["workload"]: head for head in found if "workload" in head}
