"""Hugging Face configurations served locally: no token, no network, no seven seconds of retries where there is none.

399 of Bridge 0.6's performance recipes read ``config.json`` of a model, which is not in the wheel. ``numbers`` has what
they read.
"""

from __future__ import annotations

import sys
from typing import Any

from llmb_train.errors import EngineError
from llmb_train.hugging_face.numbers import PUBLISHED, VOCABULARIES

LOADER = "safe_load_config_with_retry"
"""The function by which Bridge loads a configuration; modules import it by name."""

asked: list[str] = []
"""The models that were asked for since this list was last cleared."""


def load(path: Any, trust_remote_code: bool | None = False, **unused: Any) -> Any:
    """The configuration of the model ``path``, as transformers would make it of its ``config.json``.

    Raises:
        EngineError: its numbers are not shipped.
    """
    import transformers

    name = str(path)
    if name not in PUBLISHED:
        raise EngineError(
            f"the numbers of {name} are not known to LLMB",
            remedy="add them to llmb_train/hugging_face/numbers.py, with their source",
        )
    asked.append(name)
    model = PUBLISHED[name]
    config = getattr(transformers, model.kind)(**model.numbers, architectures=[model.architecture])
    if model.kind == "DeepseekV4Config":  # the class has no YaRN by default; the files of both models have this
        config.rope_parameters["compress"] |= {"factor": 16, "original_max_position_embeddings": 65536}
    for key, value in model.numbers.items():  # some classes rename or drop what Bridge reads by the file's name
        if not hasattr(config, key) and key not in ("rope_scaling", "rope_theta", "torch_dtype"):
            setattr(config, key, value)
    if model.model_type:
        config.model_type = model.model_type
    return config


def vocabulary(config: Any) -> int | None:
    """Entries of the vocabulary that a function's model has: its own number, or that of the tokenizer it names; None
    where neither is known. Bridge itself would download the tokenizer and count."""
    own = getattr(config.model, "vocab_size", None)
    return own or config.tokenizer.vocab_size or VOCABULARIES.get(str(config.tokenizer.tokenizer_model))


def serve() -> None:
    """Answer from here wherever Bridge imported its loader by name. Call it when the recipes have been imported."""
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron.bridge.") and LOADER in vars(module):
            setattr(module, LOADER, load)
