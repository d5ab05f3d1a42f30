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
    """Whether jobs are submitted to Slurm; False as long as that is not answered."""
    name = str(given.get("cluster_type")).lower()
    return name in names() and traits_of(name).slurm_options


def uses_images(given: Given) -> bool:
    """Whether jobs run in container images."""
    return on_slurm(given) and given.get("runtime") != "none"


def on_cpus(given: Given) -> bool:
    """Whether jobs train on CPUs; False as long as that is not answered."""
    return str(given.get("gpu_type")).lower() == gpus.CPU


def brings_engine(given: Given) -> bool:
    """GPU jobs outside a container bring their own engine; CPU jobs get the one that is installed."""
    known = given.get("cluster_type") and given.get("gpu_type")
    return bool(known) and not on_cpus(given) and not uses_images(given)


def default_architecture(gpu_type: str) -> str:
    """The architecture of the machines that have these GPUs."""
    known = gpus.GPUS.get(gpu_type.lower())
    return known.host if known else platform.machine()


def plain(value: object) -> str:
    """An answer as shown to people."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


_PREFIX = "pretrain_"


def listed(value: object) -> list[str]:
    """The words in a list, or in text with commas, without blanks around them; empty for a value of another kind."""
    words: Iterable[object] = ()
    if isinstance(value, str):
        words = value.split(",")
    elif isinstance(value, (list, tuple)):
        words = value
    stripped = [str(word).strip() for word in words]
    return [word for word in stripped if word]


def expand_workloads(chosen: object, known: Iterable[str], at: str = "") -> list[str]:
    """Workload names from ``all``, a comma-separated text or a list; ``grok1`` is ``pretrain_grok1``.

    Raises:
        RequestError: a name is unknown; the message begins with ``at``.
    """
    wanted = listed(chosen)
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


def recipe_heads(clone: Path) -> dict[str, dict[str, str]]:
    """``image`` and ``engine`` of the clone's workloads, as far as their recipes name them.

    Without a YAML parser: for checks before anything is installed.
    """
    texts = (path.read_text("utf-8") for path in clone.glob("*/recipe.yaml"))
    found = (dict(re.findall(r'^(workload|image|engine): *"?([^"\s]+)', text, re.MULTILINE)) for text in texts)
    return {head["workload"]: head for head in found if "workload" in head}
