"""Plans of every documented configuration at its smallest and largest scale and in each of its dtypes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.plan import make_plan
from llmb_common.planning.request.read import read_request
from llmb_common.planning.site.cluster import cluster_config
from llmb_common.planning.site.machine import Machine
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.recipe import Recipe

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "tests" / "data" / "documents" / "tables.json"
HOLDS = {
    "llama3.1-mbridge.md": ("llama3.1", "mbridge"),
    "llama3.1-nemo2.md": ("llama3.1", "nemo2"),
    "llama4.md": ("llama4", "nemo2"),
    "grok1.md": ("grok1", "nemo2"),
    "nemotron4.md": ("nemotron4", "nemo2"),
}
"""Document: the recipe and the variant that hold its tables."""


@cache
def recipe(name: str) -> Recipe:
    return load_recipe(ROOT / name)


def documented_rows() -> Iterator[tuple[dict[str, Any], str, int]]:
    """(row of a document, dtype, GPUs) for each of the 55 rows, each dtype, smallest and largest scale."""
    for item in json.loads(TABLES.read_text()):
        if item["kind"] == "config":
            for dtype in item["dtypes"]:
                for gpus in sorted({item["gpus_min"], item["gpus_max"]}):
                    yield item, dtype.lower(), gpus


def plan_of(item: dict[str, Any], dtype: str, gpus: int) -> JobPlan:
    """The plan for a row of a document."""
    name, variant = HOLDS[item["source"]]
    variables = {"LLMB_INSTALL": "/x", "CONFIG_VARIANT": variant, "DTYPE": dtype, "JOB_TOTAL_GPUS": str(gpus)}
    request = read_request({**variables, "GPU_TYPE": item["gpu"], "MODEL_SIZE": item["size"]})
    return make_plan(recipe(name), cluster_config(), request, Machine(cluster_type="slurm"))


def label(case: tuple[dict[str, Any], str, int]) -> str:
    item, dtype, gpus = case
    return f"{item['source'].removesuffix('.md')}-{item['size']}-{item['gpu']}-{dtype}-{gpus}".lower()
