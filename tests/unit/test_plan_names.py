"""The experiment's name becomes folders, file names and a job's name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from llmb_common.errors import RecipeError
from llmb_common.planning.plan import make_plan
from llmb_common.recipes.loading import load_recipe
from llmb_common.request.read import read_request
from llmb_common.site.cluster import ClusterConfig
from llmb_common.site.machine import look_at_machine

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["../../../tmp/{model_size}", "a/b", ".hidden", "", "a b", "a\x1bb", "-o", "$(id)"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    recipe = load_recipe(ROOT / "llama3.1")
    variants = tuple(msgspec.structs.replace(variant, experiment_name=name) for variant in recipe.variants)
    bad = msgspec.structs.replace(recipe, variants=variants)
    variables = {"LLMB_INSTALL": str(tmp_path), "JOB_TOTAL_GPUS": "128", "GPU_TYPE": "gb200", "CLUSTER_TYPE": "slurm"}
    request = read_request(variables)
    with pytest.raises(RecipeError, match="would not stay in the folder of experiments"):
        make_plan(bad, ClusterConfig(), request, look_at_machine(ClusterConfig(), request))
