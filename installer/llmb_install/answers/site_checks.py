"""Answers checked against Slurm and the recipes, before anything is built.

Standard library only: the first stage asks Slurm, too.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from llmb_common.errors import RequestError, did_you_mean
from llmb_common.platform import gpus
from llmb_install.answers.questions import Given, expand_workloads, on_slurm
from llmb_install.detect import accounts_of_user, all_partitions

if TYPE_CHECKING:
    from llmb_common.recipes.recipe import Recipe

FLAG = "--no-site-check"
_OVERRIDE = f"or give {FLAG} if this machine cannot query the cluster that it is for"


def has_rows(recipe: Recipe, gpu_type: str) -> bool:
    """Whether the recipe has a configuration for these GPUs; on CPUs each has its smoke size."""
    return gpu_type == "cpu" or any(
        known.gpu != "any" and known.gpu in gpus.row_types(gpu_type) for known in recipe.configurations
    )


def without_rows(workloads: Collection[str], recipes: Mapping[str, Recipe], gpu_type: str) -> list[str]:
    """Those of ``workloads`` that have no configuration for ``gpu_type``."""
    return [name for name in workloads if name in recipes and not has_rows(recipes[name], gpu_type)]


def row_problems(given: Given, recipes: Mapping[str, Recipe]) -> Iterator[RequestError]:
    """Workloads that could not run on the GPU type of the installation."""
    if not recipes or given["workloads"] in ("all", ["all"]):
        return  # all are those that can
    gpu_type = str(given["gpu_type"]).lower()
    for name in without_rows(expand_workloads(given["workloads"], recipes), recipes, gpu_type):
        known = sorted({known.gpu for known in recipes[name].configurations} - {"any"})
        yield RequestError(
            f"{name} has no configuration for {gpu_type}; it has some for {', '.join(known)}",
            remedy=f"leave it out, or correct gpu_type, {_OVERRIDE}",
        )


def slurm_problems(given: Given) -> Iterator[RequestError]:
    """A partition, an account or a GRES that Slurm does not have.

    If Slurm does not answer, as on a laptop where a play file is written, nothing is wrong.
    """
    if not on_slurm(given) or shutil.which("sinfo") is None:
        return
    partitions = {partition.name: partition for partition in all_partitions()}
    if not partitions:
        return
    for field in ("gpu_partition", "cpu_partition"):
        name = given.get(field)
        if name and name not in partitions:
            yield RequestError(
                f"{field}: Slurm has no partition {name!r}{did_you_mean(name, partitions)}",
                remedy=f"its partitions are {', '.join(partitions)}; {_OVERRIDE}",
            )
    partition = partitions.get(given["gpu_partition"])
    if given.get("gres") and partition and not partition.gpus_per_node:
        yield RequestError(
            f"gres: Slurm has no GPUs in partition {partition.name} and would reject every job",
            remedy=f"leave --gres out, or choose another partition, {_OVERRIDE}",
        )
    accounts = accounts_of_user()
    if accounts and given["account"] not in accounts:
        yield RequestError(
            f"account: {given['account']!r} is not one of your accounts",
            remedy=f"yours are {', '.join(accounts)}; {_OVERRIDE}",
        )
