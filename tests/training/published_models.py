"""What functions make of the numbers that LLMB ships in place of ``config.json``.

    ENGINE_PYTHON tests/training/published_models.py NAME ...     (PYTHONPATH=common)

One JSON line for each function: ``fields``, the model provider's that are not the defaults of its class. The last one
has ``unknown``: what the numbers name and transformers' classes do not.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import logging
import sys
import warnings
from typing import Any

from llmb_train import cpu


def plain(value: Any) -> Any:
    """JSON's values, those of transformers' configurations by what differs from their classes."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "to_diff_dict"):
        return {key: plain(item) for key, item in value.to_diff_dict().items() if "version" not in key}
    return value if isinstance(value, (int, float, str, type(None))) else type(value).__name__


def fields(model: Any) -> dict[str, Any]:
    defaults = {field.name: field.default for field in dataclasses.fields(model)}
    found = {name: getattr(model, name, None) for name in defaults}
    return {name: plain(value) for name, value in found.items() if value is not None and value != defaults[name]}


def unknown() -> set[str]:
    import transformers

    from llmb_train.perf_recipes import PUBLISHED

    found: set[str] = set()
    for model in PUBLISHED.values():
        empty = getattr(transformers, model.kind)()
        parts = {name: value for name, value in model.numbers.items() if name in ("text_config", "vision_config")}
        for config, numbers in ((empty, model.numbers), *((getattr(empty, name), parts[name]) for name in parts)):
            found |= numbers.keys() - config.to_dict().keys() - config.attribute_map.keys()
    return found


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    cpu.install()
    from llmb_train import perf_recipes

    for name in names:
        print(json.dumps({"name": name, "fields": fields(perf_recipes.find(name)().model)}), flush=True)
    print(json.dumps({"unknown": sorted(unknown())}))


if __name__ == "__main__":
    main(sys.argv[1:])
