"""Functions on sequences of another length: Megatron-Bridge counts the FLOPs that the plan says."""

from __future__ import annotations

import pytest
from training_jobs import REPOSITORY, Engine, document

from llmb_common.planning.job_plan import JobPlan
from llmb_common.recipes.loading import load_recipe
from support.plans import plan

MBRIDGE = load_recipe(REPOSITORY / "mbridge")
IMAGES = ("qwen3_vl", "qwen35_vl", "wan")
LENGTHS = (0.5, 3, 8)
"""Of the function's own. GLM's and DeepSeek-V4's formula begins at a number of tokens that half the length may miss."""


def function_plans() -> dict[str, JobPlan]:
    """One function of each model that trains on text, at other lengths than its own."""
    found: dict[str, JobPlan] = {}
    catalogue = MBRIDGE.catalogue
    assert catalogue is not None
    for entry in catalogue.index:
        name = entry.model
        if name.startswith(IMAGES) or entry.task == "peft" or any(key.startswith(f"{name} ") for key in found):
            continue
        if MBRIDGE.refusal(entry.name) is not None:
            continue
        own = catalogue.function(entry.name).sequence_length
        for share in LENGTHS:
            asked = {"MODEL_SIZE": name, "GPU_TYPE": entry.gpu, "DTYPE": entry.dtype, "PREFLIGHT": "off"}
            asked |= {"CONFIG_VARIANT": entry.variant("pretrain"), "JOB_TOTAL_GPUS": str(entry.gpus)}
            if entry.fp8_recipe:
                asked["FP8_RECIPE"] = entry.fp8_recipe
            found[f"{name} {share}"] = plan(
                "mbridge eight-h100", LLMB_ENGINE="0.6.2", SEQ_LENGTH=str(int(own * share)), **asked
            )
    return found


def test_flops_of_functions_follow_the_length_as_in_megatron_bridges_log(functions_engine: Engine) -> None:
    plans = function_plans()
    assert len(plans) >= 16 * len(LENGTHS)
    asked = {name: document(made) for name, made in plans.items()}
    unknown = []
    for name, (of_bridge, own) in functions_engine.ask("flops", asked).items():
        function = plans[name].function
        assert function is not None
        if function.flops_per_token is None:
            unknown.append(name)
            continue
        assert function.flops_per_token == pytest.approx(of_bridge, rel=1e-6), name
        assert function.own_flops_per_token == pytest.approx(own, rel=1e-6), name
    assert all(name.startswith("deepseek_v4") for name in unknown)
