"""Modules of ``llmb_train`` that import torch and Megatron, in a Python that has neither."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import llmb_train
from llmb_train.stubs import Stub


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in ("torch", "megatron") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """A stand-in has every name already."""


@contextmanager
def without_engine(name: str) -> Iterator[Any]:
    """``llmb_train.NAME`` with stand-ins for torch and Megatron, which have every name; afterwards nobody has it."""
    finder, before = _Finder(), set(sys.modules)
    sys.meta_path.insert(0, finder)
    try:
        yield importlib.import_module(f"llmb_train.{name}")
    finally:
        sys.meta_path.remove(finder)
        for module in set(sys.modules) - before:
            root, _, rest = module.partition(".")
            if root in ("torch", "megatron", "llmb_train"):
                del sys.modules[module]
                if root == "llmb_train":
                    vars(llmb_train).pop(rest, None)
