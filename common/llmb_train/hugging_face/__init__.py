"""Hugging Face configurations served locally: no token, no network, no seven seconds of retries where there is none.

399 of Bridge 0.6's performance recipes read ``config.json`` of a model, which is not in the wheel. ``numbers`` has what
they read. Of any other model the file itself is read, from this machine's cache or the network; jobs read it wherever
the cache has it (``prefer_files``).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from llmb_train.errors import EngineError
from llmb_train.hugging_face.numbers import PUBLISHED, VOCABULARIES

LOADER = "safe_load_config_with_retry"
"""The function by which Bridge loads a configuration; modules import it by name."""

asked: list[str] = []
"""The models that were asked for since this list was last cleared."""


from_files: list[str] = []
"""The models whose own files were read in place of shipped numbers."""

_preferred = [False]
_failed: dict[str, str] = {}


def prefer_files(prefer: bool = True) -> None:
    """Whether a file in this machine's cache comes before the shipped numbers of its model."""
    _preferred[0] = prefer


def load(path: Any, trust_remote_code: bool | None = False, **unused: Any) -> Any:
    """The configuration of the model ``path``, as transformers would make it of its ``config.json``.

    Raises:
        EngineError: its numbers are not shipped, and its file cannot be read either.
    """
    name = str(path)
    asked.append(name)
    if name not in PUBLISHED:
        return _from_hub(name, bool(trust_remote_code))
    folder = _cached(name) if _preferred[0] else None
    if folder is None:
        return _shipped(name)
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=bool(trust_remote_code))
    from_files.append(name)
    return config


def _cached(name: str) -> Path | None:
    """The folder of this machine's cache that has the file of ``name``."""
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(name, "config.json")
    return Path(file).parent if isinstance(file, str) else None


def _from_hub(name: str, trust_remote_code: bool) -> Any:
    import transformers

    if name not in _failed:  # several functions ask for one model, and a network that is not there takes its time
        try:
            return transformers.AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
        except (OSError, ValueError) as error:
            _failed[name] = str(error).strip().partition("\n")[0]
    raise EngineError(
        f"the numbers of {name} are not known to LLMB, and its config.json cannot be read: {_failed[name]}",
        remedy="put the file into the Hugging Face cache (hf download MODEL config.json), or give this machine a "
        "network and, where the model asks for one, a token (HF_TOKEN)",
    )


def _shipped(name: str) -> Any:
    import transformers

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
