"""Stand-ins for packages that Megatron imports without need.

Each stand-in is visible to the named importers only. A stub that everyone saw would make megatron-core believe that
Transformer Engine is there, and it would build layers that cannot run.
"""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

_TE_IMPORTERS = (
    # Bridge imports its LoRA layers with the package, and they import Transformer Engine unconditionally.
    "megatron.bridge.peft.lora",
    "megatron.bridge.peft.lora_layers",
    "megatron.bridge.models.gpt_full_te_layer_autocast_spec",
)
_TRITON_IMPORTERS = ("megatron.core.inference",)
"""Inference kernels that core imports with its attention module and that training never calls."""

_VLM_PACKAGES = ("megatron.energon", "qwen_vl_utils")
"""``megatron.bridge.recipes`` imports its vision recipes eagerly; they are not needed for text."""


class _Stub(types.ModuleType):
    """A module that has every name: classes for capitalized names, else stubs, which are decorators when called."""

    __version__ = "0.0.0"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # a package: its submodules may be imported

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value: Any = _stub_class(name) if name[:1].isupper() else _Stub(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Act as ``@decorator`` or ``@decorator(...)`` that changes nothing."""
        return args[0] if len(args) == 1 and callable(args[0]) else (lambda function: function)


def _stub_class(name: str) -> type:
    def init(self: object, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError(f"{name} is a stand-in: the package that has it is not installed")

    return type(name, (), {"__init__": init, "__class_getitem__": classmethod(lambda cls, item: cls)})


class _VlmFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the vision packages where the real ones are absent (it is last on the path)."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if any(name == package or name.startswith(package + ".") for package in _VLM_PACKAGES):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def install() -> None:
    """Make the stand-ins importable, for their importers only."""
    real_import = builtins.__import__
    te, triton = _Stub("transformer_engine"), _Stub("triton")

    # Parameters as the language reference gives them for __import__: callers use the names.
    def guarded_import(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        importer = str((globals or {}).get("__name__", ""))
        package = name.partition(".")[0]
        if level == 0 and package == "transformer_engine" and importer in _TE_IMPORTERS:
            return te.pytorch if fromlist and name != "transformer_engine" else te
        if level == 0 and package == "triton" and importer.startswith(_TRITON_IMPORTERS) and not _installed("triton"):
            return triton
        return real_import(name, globals, locals, fromlist or (), level)

    builtins.__import__ = guarded_import
    sys.meta_path.append(_VlmFinder())


def _installed(package: str) -> bool:
    return importlib.machinery.PathFinder.find_spec(package) is not None
