"""Scripted answers checked against Slurm and the recipes: the dialogue would not have offered wrong ones."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

from llmb_common.errors import RequestError, did_you_mean
from llmb_common.recipes.recipe import Recipe
from llmb_install.answers.answers import Answers, has_rows
from llmb_install.detect import Partition, accounts_of_user, all_partitions

FLAG = "--no-site-check"
_OVERRIDE = f"or give {FLAG} if this machine cannot query the cluster that it is for"


def without_rows(workloads: Sequence[str], recipes: Mapping[str, Recipe], gpu_type: str) -> list[str]:
    """Those of ``workloads`` that have no configuration for ``gpu_type``."""
    return [name for name in workloads if name in recipes and not has_rows(recipes[name], gpu_type)]


def require_rows(answers: Answers, recipes: Mapping[str, Recipe]) -> None:
    """Raise RequestError for workloads that could not run on the GPU type of the installation."""
    for name in without_rows(answers.workloads, recipes, answers.gpu_type):
        known = sorted({known.gpu for known in recipes[name].configurations} - {"any"})
        raise RequestError(
            f"{name} has no configuration for {answers.gpu_type}; it has some for {', '.join(known)}",
            remedy=f"leave it out, or correct gpu_type, {_OVERRIDE}",
        )


def require_known_to_slurm(answers: Answers) -> None:
    """Raise RequestError for a partition, an account or a GRES that Slurm does not have.

    If Slurm does not answer, as on a laptop where a play file is written, nothing is refused.
    """
    if not answers.on_slurm or shutil.which("sinfo") is None:
        return
    partitions = {partition.name: partition for partition in all_partitions()}
    if not partitions:
        return
    for field in ("gpu_partition", "cpu_partition"):
        name = getattr(answers, field)
        if name not in partitions:
            near = did_you_mean(name, partitions)
            raise RequestError(
                f"{field}: Slurm has no partition {name!r}{near}",
                remedy=f"its partitions are {', '.join(partitions)}; {_OVERRIDE}",
            )
    _require_gres(answers, partitions[str(answers.gpu_partition)])
    accounts = accounts_of_user()
    if accounts and answers.account not in accounts:
        raise RequestError(
            f"account: {answers.account!r} is not one of your accounts",
            remedy=f"yours are {', '.join(accounts)}; {_OVERRIDE}",
        )


def _require_gres(answers: Answers, partition: Partition) -> None:
    if answers.gres and not partition.gpus_per_node:
        raise RequestError(
            f"gres: Slurm has no GPUs in partition {partition.name} and would reject every job",
            remedy=f"leave --gres out, or choose another partition, {_OVERRIDE}",
        )
