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
    """Return whether jobs are submitted to Slurm, by the answer ``cluster_type``.

    ``given`` are answers by field. False as long as that is unanswered, where it names no kind of cluster, and for
    every kind but Slurm.
    """
    name = given.get("cluster_type", "")
    return name in names() and traits_of(name).slurm_options


def uses_images(given: Given) -> bool:
    """Return whether jobs run in container images: on Slurm, unless the answer ``runtime`` is ``none``.

    An unanswered ``runtime`` counts as a container. False as long as ``cluster_type`` is unanswered. ``given`` are
    answers by field.
    """
    return on_slurm(given) and given.get("runtime") != "none"


def on_cpus(given: Given) -> bool:
    """Return whether jobs train on CPUs: ``gpu_type`` is ``cpu``; False as long as it is not answered.

    ``given`` are answers by field.
    """
    return given.get("gpu_type") == gpus.CPU


def brings_engine(given: Given) -> bool:
    """Return whether the user must name a Python with the training engine: for jobs on GPUs without a container.

    ``given`` are answers by field. CPU jobs get an engine installed. False as long as the cluster or the GPU type
    is not answered.
    """
    known = given.get("cluster_type") and given.get("gpu_type")
    return bool(known) and not on_cpus(given) and not uses_images(given)


def default_architecture(gpu_type: str) -> str:
    """Return the CPU architecture, ``x86_64`` or ``aarch64``, of machines with GPUs of ``gpu_type``, in any case.

    It is this machine's, as the kernel names it (perhaps another), where the type is ``cpu`` or unknown.
    """
    known = gpus.GPUS.get(gpu_type.lower())
    return known.host if known else platform.machine()


def answer_text(value: object) -> str:
    """Return an answer as people see it: ``default`` for None, ``yes`` or ``no`` for a bool, a list joined by ``, ``.

    A tuple is shown like a list. Any other value is its ``str``.
    """
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


_PREFIX = "pretrain_"


def as_words(value: object) -> list[str]:
    """Return the words in a list or tuple, or in text separated by commas, stripped, in their order.

    Items of a list are turned into text, and not split at commas. Empty ones are left out. A word that is given
    twice is there twice. An empty list for a value of any other kind.
    """
    words: Iterable[object] = ()
    if isinstance(value, str):
        words = value.split(",")
    elif isinstance(value, (list, tuple)):
        words = value
    stripped = [str(word).strip() for word in words]
    return [word for word in stripped if word]


def expand_workloads(chosen: object, known: Iterable[str], at: str = "") -> list[str]:
    """Return the full names, sorted and each once, of the workloads in ``chosen``, a list or a text with commas.

    ``grok1`` is short for ``pretrain_grok1``; case counts. ``known`` are the names that exist; the word ``all``,
    also among others, stands for them.

    Raises:
        RequestError: a name is unknown, or none is given; the message begins with ``at`` (``FILE:LINE: ``, or
            empty)
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
    """Return ``workload``, ``image`` and ``engine`` of each recipe in ``clone``, as far as it has them, by workload.

    ``clone`` is the repository's folder, in which ``*/recipe.yaml`` are the recipes. Each of the three is the first
    word behind its key, without quotes. Read without a YAML parser, for checks before anything is installed. A recipe
    that names no workload is left out; a key that it lacks is absent. The workloads are in no particular order.
    Empty where there are no recipes, or is no such folder.

    Raises:
        OSError: a recipe cannot be read
        ValueError: a recipe is not UTF-8
    """
    texts = (path.read_text("utf-8") for path in clone.glob("*/recipe.yaml"))
    found = (dict(re.findall(r'^(workload|image|engine): *"?([^"\s]+)', text, re.MULTILINE)) for text in texts)
    return {head["workload"]: head for head in found if "workload" in head}
