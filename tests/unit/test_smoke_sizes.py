"""What a machine without GPUs answers to each model of the catalogue."""

from __future__ import annotations

import pytest

from llmb_common.errors import RequestError
from support.functions import CATALOGUE, LAPTOP, RECIPE, plan


@pytest.mark.parametrize("model", CATALOGUE.sizes)
def test_without_gpus_a_model_is_answered_with_its_own_small_copy_or_what_is_possible(model: str) -> None:
    own = RECIPE.smoke_of(model)
    assert own in (f"{model}-smoke", "smoke" if model == "llama3_8b" else None, None)
    wrong = [model] if own == f"{model}-smoke" else [model, f"{model}-smoke"]
    for size in wrong:
        with pytest.raises(RequestError) as caught:
            plan(LAPTOP, MODEL_SIZE=size)
        text = str(caught.value)
        assert (own in text) if own else f"no copy of {model} runs without GPUs, but a dry run plans it" in text
        assert not [other for other in CATALOGUE.sizes if other in text.replace(model, "")]
