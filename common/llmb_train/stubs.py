"""Stand-ins for packages that Megatron imports without needing them.

Each is visible only to the importers that its package is listed for. A stand-in that every module saw would make
megatron-core believe that Transformer Engine is there, and build layers that cannot run.
"""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_LORA = (
    # Bridge imports its LoRA layers with the package, and they import Transformer Engine unconditionally.
    "megatron.bridge.peft.lora",
    "megatron.bridge.peft.lora_layers",
    "megatron.bridge.models.gpt_full_te_layer_autocast_spec",
)
_RESTART = (
    # In-process restart: Bridge imports it at the top of its training loop and calls it only where a job asks for it.
    "megatron.bridge.training.pretrain",
    "megatron.bridge.training.inprocess_restart",
)
_DISTILLATION = (
    # Bridge imports ModelOpt at the top of its training loop, for models that are distilled or quantized, and asks it
    # of every model how the shapes of its tensors change, and what a checkpoint has of it: in no way, and nothing.
    "megatron.bridge.models.distillation_provider",
    "megatron.bridge.training",
)
_ABSENT = ("megatron.energon", "qwen_vl_utils", "diffusers")
"""Packages of the vision and diffusion recipes, which Bridge imports with the text ones; found by everybody, unless the
real ones are there."""


class Stub(types.ModuleType):
    """A stand-in for a package that is not installed: a module in which every name can be found.

    It is made from the module's dotted name. A capitalized name in it is a class that does nothing, any other name
    another stand-in; each is kept. Names that begin with two underscores raise AttributeError, but ``__version__``
    is ``0.0.0``. Called, it acts as a decorator, with or without arguments, that changes nothing.
    """

    __version__ = "0.0.0"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # a package: its submodules may be imported

    def __getattr__(self, name: str) -> Any:
        """A class for a capitalized name, else a stub, kept for the next time.

        Raises:
            AttributeError: the name begins with two underscores
        """
        if name.startswith("__"):
            raise AttributeError(name)
        value: Any = _stub_class(name) if name[:1].isupper() else type(self)(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Act as ``@decorator`` or ``@decorator(...)`` that changes nothing."""
        return args[0] if len(args) == 1 and callable(args[0]) else (lambda function: function)


class SilentStub(Stub):
    """A stand-in like ``Stub`` whose functions are called: with any arguments, they return None."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return None, whatever the arguments."""
        return None


def _stub_class(name: str) -> type:
    """Return a class called ``name`` that can be subscripted, and created with any arguments, and does nothing."""

    def init(self: object, *args: Any, **kwargs: Any) -> None:
        """Do nothing: some modules create objects of the stand-in class when they are imported.

        What uses such an object fails on its missing attributes.
        """

    return type(name, (), {"__init__": init, "__class_getitem__": classmethod(lambda cls, item: cls)})


class _StandIn(NamedTuple):
    """Which modules see the stand-in for a package, by their dotted names with all below them; and what it is."""

    importers: tuple[str, ...]
    kind: type[Stub] = Stub


_STAND_INS = {
    "transformer_engine": _StandIn(_LORA),
    "modelopt": _StandIn(_DISTILLATION, SilentStub),
    # Of Hugging Face: for fine-tuning on its datasets, which brings pandas and pyarrow. A job's data are synthetic.
    "datasets": _StandIn(("megatron.bridge.data",)),
    # Kernels that training without them never calls: of inference, imported with attention; of the paged stash, an
    # option for GPUs; since core 0.20, of state spaces, imported with the names of all models.
    "triton": _StandIn(("megatron.core.inference", "megatron.core.transformer.moe.ops", "megatron.core.ssm.ops")),
    # Bridge 0.3 asks for 0.4.1, which has no build for Python 3.13, nor for a glibc before 2.31; core 0.19 for 0.6.0,
    # which has none for Python 3.11, and refuses an older one where it finds it.
    "nvidia_resiliency_ext": _StandIn(_RESTART),
}
"""The stand-ins by the package that each replaces."""


class _AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The import finder that provides stand-ins for the packages of other recipes where the real ones are absent.

    It is made without arguments, and is last on ``sys.meta_path``, so that the real packages come first. The
    packages are ``megatron.energon``, ``qwen_vl_utils`` and ``diffusers``. The import system calls its methods:
    ``find_spec`` returns a spec for a module of these packages (dotted name), else None; ``create_module`` returns a
    ``Stub`` for the spec's name, and ``exec_module`` does nothing.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Return how to load a stand-in for the module ``name``; None if no package that may be absent contains it.

        ``name`` is dotted; ``path`` and ``target`` are not used. Whether the package is absent is not looked at:
        this finder is asked last.
        """
        if any(name == package or name.startswith(package + ".") for package in _ABSENT):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return the stand-in, a ``Stub``, for the absent module that ``spec`` names."""
        return Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing, where the import system would run a module's code: a stand-in has none."""


def install() -> None:
    """Make the stand-ins for missing packages importable in this process, most only by the modules that need them.

    Replaces ``__import__``, appends to ``sys.meta_path``, and adds ``typing.override`` to an older Python. Modules of
    megatron-core and Megatron-Bridge that need ``transformer_engine``, ``modelopt``, ``datasets``, ``triton`` or
    ``nvidia_resiliency_ext`` get stand-ins for these; ``megatron.energon``, ``qwen_vl_utils`` and ``diffusers`` are
    there for all. Packages that are installed are not replaced, but for Transformer Engine. A second call does
    nothing.

    Raises:
        ImportError: a Python older than 3.12 lacks ``typing_extensions``; nothing has been changed
    """
    if any(isinstance(finder, _AbsentFinder) for finder in sys.meta_path):
        return
    if not hasattr(typing, "override"):  # Python 3.12's, which Bridge 0.6 uses
        import typing_extensions

        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    stubs = {
        package: stand_in.kind(package)
        for package, stand_in in _STAND_INS.items()
        if package == "transformer_engine" or importlib.machinery.PathFinder.find_spec(package) is None
    }
    real_import = builtins.__import__

    # Parameters as the language reference gives them for __import__: callers use the names.
    def guarded_import(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        """Import as ``__import__`` does, but give stand-ins for missing packages to the modules that need them.

        The parameters and the result are those of ``__import__``; the importer is known by ``__name__`` in
        ``globals``. Relative imports are as usual.

        Raises:
            ImportError: for any other importer, as usual
        """
        package, _, rest = name.partition(".")
        if level == 0 and package in stubs:
            importer = str((globals or {}).get("__name__", ""))
            seen_by = _STAND_INS[package].importers
            if any(importer == module or importer.startswith(module + ".") for module in seen_by):
                return _submodule(stubs[package], rest) if fromlist else stubs[package]
        return real_import(name, globals, locals, fromlist or (), level)

    builtins.__import__ = guarded_import
    sys.meta_path.append(_AbsentFinder())


def _submodule(stub: Stub, path: str) -> Any:
    """Return the part of the stand-in ``stub`` at the dotted ``path``, as ``from package.path import name`` needs.

    An empty ``path`` gives ``stub`` itself. Parts that are not there yet are made.

    Raises:
        AttributeError: a part begins with two underscores
    """
    for part in path.split(".") if path else ():
        stub = getattr(stub, part)
    return stub
