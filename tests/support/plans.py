"""Plans for tests: a request and what becomes of it, without an installation and without looking at this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb_common.errors import RequestError
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.plan import make_plan
from llmb_common.recipes.loading import load_recipe
from llmb_common.request.read import read_request
from llmb_common.site.cluster import ClusterConfig, cluster_config
from llmb_common.site.machine import Machine

ROOT = Path(__file__).resolve().parents[2]
SLURM = Machine(cluster_type="slurm")
LAPTOP = Machine(cluster_type="local", gpu_type="cpu")


def plan(*given: str | Machine | ClusterConfig | None, recipe: str = "llama3.1", **variables: str) -> JobPlan:
    """The plan of a request: ``given`` are the recipe's name, the machine and the site's file, where they matter."""
    machine, cluster = SLURM, cluster_config()
    for item in given:
        if isinstance(item, str):
            recipe = item
        elif isinstance(item, Machine):
            machine = item
        elif item is not None:
            cluster = item
    return make_plan(
        load_recipe(ROOT / recipe), cluster, read_request({"LLMB_INSTALL": "/install", **variables}), machine
    )


def refusal(*given: str | Machine | ClusterConfig | None, **variables: str) -> str:
    """What is said instead of ``plan``."""
    with pytest.raises(RequestError) as caught:
        plan(*given, **variables)
    assert caught.value.exit_status == 2
    return str(caught.value)
