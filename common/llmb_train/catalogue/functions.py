"""Megatron-Bridge's performance recipes: plain functions, each selected by its name alone.

There is no registry: a function is found by its definition in the sources of ``megatron.bridge.perf_recipes``, so that
only the module that defines it is imported.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llmb_train.errors import EngineError, WrongEngine
from llmb_train.hugging_face import serve
from llmb_train.versions import package_version

PACKAGE = "megatron.bridge.perf_recipes"

NAME = re.compile(
    r"(?P<model>.+?)_(?P<task>pretrain|sft|peft)_(?P<gpus>[0-9]+)gpu_(?P<gpu>[a-z]+[0-9]+)"
    r"_(?P<precision>bf16|fp8cs|fp8ds|fp8mx|fp8sc|nvfp4)(?:_(?P<variant>.+))?_config\Z"
)
_RECIPE = re.compile(r".+_(?:pretrain|sft|peft)_[0-9]+gpu_.+_config\Z")
"""What is meant as one, whether ``NAME`` can read it or not."""

_DEFINITION = re.compile(r"^(?:def )?(\w+_config)(?:\(| = \w+_config$)", re.MULTILINE)
"""A function, or an alias of one: for some GPUs the recipe is that of a related GPU."""

Function = Callable[[], Any]


@functools.cache
def names() -> dict[str, str]:
    """Every recipe by name, with the module that defines it; nothing is imported.

    Raises:
        WrongEngine: this Megatron-Bridge has none.
    """
    return {name: module for name, module in _defined().items() if NAME.match(name)}


def unread() -> dict[str, str]:
    """The recipes whose names say what LLMB does not know, with the reason."""
    why = "its name is not MODEL_TASK_GPUS_GPU_PRECISION with a precision that LLMB knows"
    return {name: why for name in _defined() if not NAME.match(name)}


@functools.cache
def _defined() -> dict[str, str]:
    found = {}
    for module, path in _modules():
        for name in _DEFINITION.findall(path.read_text(encoding="utf-8")):
            if _RECIPE.match(name):
                found[name] = module
    return dict(sorted(found.items()))


def find(name: str) -> Function:
    """The function ``name``, imported and ready to be called without a network.

    Raises:
        WrongEngine: this Megatron-Bridge has no recipe of that name.
    """
    known = names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" (the nearest is {near[0]})" if near else ""
        raise WrongEngine(
            f"this Megatron-Bridge ({package_version('megatron-bridge')}) has no performance recipe {name}{hint}",
            remedy="use an image with the release that was planned for, or plan with a catalogue of this engine",
        )
    module = importlib.import_module(known[name])
    serve()
    tolerate_missing_files()
    function: Function = getattr(module, name)
    return function


def tolerate_missing_files() -> None:
    """Let recipes do without a quantization table that their wheel leaves out.

    Megatron-Bridge 0.6.2 on the package index has no ``perf_recipes/nemotronh/te_quant.cfg``, which five functions for
    NVFP4 read; the container's source tree has it. No column depends on it; training without it is refused there, as
    the functions would be in a container without the file.
    """
    from megatron.core.quantization.quant_config import RecipeConfig

    if getattr(RecipeConfig.from_yaml_file, "tolerant", False):
        return
    read = RecipeConfig.from_yaml_file

    def from_yaml_file(path: str) -> Any:
        return read(path) if Path(path).exists() else RecipeConfig([], {})

    from_yaml_file.tolerant = True  # type: ignore[attr-defined]
    RecipeConfig.from_yaml_file = staticmethod(from_yaml_file)


def _modules() -> Iterator[tuple[str, Path]]:
    bridge, _, folder = PACKAGE.rpartition(".")
    try:
        spec = importlib.util.find_spec(bridge)  # not of the package itself: that would import Megatron-Bridge
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        raise EngineError(
            "Megatron-Bridge is not installed in this Python", remedy="run inside a container or an engine that has it"
        )
    roots = [root for place in spec.submodule_search_locations or () if (root := Path(place) / folder).is_dir()]
    if not roots:
        raise WrongEngine(
            f"this Megatron-Bridge has no {PACKAGE}", remedy="release 0.6 and later have it: container nemo:26.08"
        )
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            yield ".".join((PACKAGE, *(part for part in parts if part != "__init__"))), path
