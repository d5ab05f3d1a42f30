"""What the answers so far mean together. Standard library only: the first stage asks, too."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llmb_common.base import gpus
from llmb_common.base.cluster_types import names, traits_of
from llmb_common.base.errors import RequestError, did_you_mean

Given = dict[str, Any]
"""Answers so far, by field name, as plain data."""


def on_slurm(given: Given) -> bool:
    """Whether jobs are submitted to Slurm; False as long as ``cluster_type`` is not answered."""
    name = str(given.get("cluster_type")).lower()
    return name in names() and traits_of(name).slurm_options


def uses_images(given: Given) -> bool:
    """Whether jobs run in container images: on Slurm, unless ``runtime`` is none.

    False while the cluster is unanswered.
    """
    return on_slurm(given) and given.get("runtime") != "none"


def on_cpus(given: Given) -> bool:
    """Whether jobs train on CPUs; False as long as ``gpu_type`` is not answered."""
    return str(given.get("gpu_type")).lower() == gpus.CPU


def brings_engine(given: Given) -> bool:
    """Whether jobs need an engine that the user names: on GPUs without a container. CPU jobs get one installed.

    False as long as the cluster or the GPU type is not answered.
    """
    known = given.get("cluster_type") and given.get("gpu_type")
    return bool(known) and not on_cpus(given) and not uses_images(given)


def default_architecture(gpu_type: str) -> str:
    """The architecture of the machines that have these GPUs, ``x86_64`` or ``aarch64``; else that of this machine."""
    known = gpus.GPUS.get(gpu_type.lower())
    return known.host if known else platform.machine()


def answer_text(value: object) -> str:
    """An answer as shown to people: ``default`` for None, yes or no, a list with commas."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


_PREFIX = "pretrain_"


def as_words(value: object) -> list[str]:
    """The words in a list, or in text with commas, without blanks around them; empty for a value of another kind."""
    words: Iterable[object] = ()
    if isinstance(value, str):
        words = value.split(",")
    elif isinstance(value, (list, tuple)):
        words = value
    stripped = [str(word).strip() for word in words]
    return [word for word in stripped if word]


def expand_workloads(chosen: object, known: Iterable[str], at: str = "") -> list[str]:
    """The full workload names, sorted and each once, of ``all``, a text with commas, or a list.

    ``grok1`` is ``pretrain_grok1``. ``known`` are those that exist, which is what ``all`` means.

    Raises:
        RequestError: a name is unknown, or none is given; the message begins with ``at``.
    """
    wanted = as_words(chosen)
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
            short = {known.removeprefix(_PREFIX): known for known in all_of_them}
            near = did_you_mean(name.removeprefix(_PREFIX), short, cutoff=0.7)
            raise RequestError(f"{at}there is no workload {name!r}{near}", remedy=remedy)
    return sorted(found)


def recipe_heads(clone: Path) -> dict[str, dict[str, str]]:
    """``workload``, ``image`` and ``engine`` of the clone's recipes, by workload name, as far as a recipe has them.

    Without a YAML parser, for checks before anything is installed. A recipe that names no workload is left out.
    """
    texts = (path.read_text("utf-8") for path in clone.glob("*/recipe.yaml"))
    found = (dict(re.findall(r'^(workload|image|engine): *"?([^"\s]+)', text, re.MULTILINE)) for text in texts)
    return {head["workload"]: head for head in found if "workload" in head}
