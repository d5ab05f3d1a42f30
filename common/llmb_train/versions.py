"""Which Megatron this Python would import, and whether LLMB's settings fit it. Imports neither torch nor Megatron."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path

from llmb_train.errors import WrongEngine

SWITCH = "LLMB_ENGINE_CHECK"
"""``off`` in a rank's environment: train with whatever Megatron is there."""

CONTAINER = "nvcr.io#nvidia/nemo:26.02.01"
"""The recipes' image; holds Megatron-Bridge 0.3.1 and megatron-core 0.16.1."""

_CONTAINERS = {
    "0.1": "25.09",
    "0.2": "25.11",
    "0.3": "26.02",
    "0.4": "26.04",
    "0.5": "26.06",
    "0.6": "26.08",
}
"""NeMo containers by the minor release of Megatron-Bridge in them."""

_CONFIGURED = {"megatron-bridge": "0.3", "megatron-core": "0.16"}
"""Minor releases whose fields ``settings`` and ``models`` fill in. What others make of them was read in their sources:
0.1 knows no ``save_tokenizer_assets`` (TypeError), 0.2 has no ``training.callbacks`` (ImportError),
0.4 dropped and renamed fields of the data loader and the providers, 0.5 renamed those of CUDA graphs."""

_MODULES = {
    "megatron-bridge": "megatron.bridge",
    "megatron-core": "megatron.core",
}


def package_version(name: str) -> str | None:
    """The version that ``import`` would find of the distribution ``name``, or None where it cannot be determined.

    A container may hold a package as a source tree, without a distribution's metadata or with another one's: what the
    tree says of itself comes first.
    """
    return _source_version(name) or _installed_version(name)


def importable(module: str) -> bool:
    """Whether ``module`` can be imported, without doing so (its parent packages are)."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor its parent
        return False


def require_configured_versions(environment: Mapping[str, str]) -> None:
    """Refuse a Megatron that LLMB's settings are not written for, unless ``environment`` switches the check off.

    Raises:
        WrongEngine: names what was found, the container it comes from, and the one that fits.
    """
    if environment.get(SWITCH, "").strip().lower() == "off":
        return
    found = {name: package_version(name) for name in _CONFIGURED}
    if all(is_configured(name, version) for name, version in found.items()):
        return
    bridge = found["megatron-bridge"] or ""
    container = _CONTAINERS.get(_minor(bridge))
    named = ", ".join(f"{name} {version or '(of unknown version)'}" for name, version in found.items())
    wanted = ", ".join(f"{name} {minor}.x" for name, minor in _CONFIGURED.items())
    whose = f", as in NVIDIA's container nemo:{container}" if container else ""
    raise WrongEngine(
        f"LLMB's settings are written for {wanted}; here is {named}{whose}",
        remedy=f"use the container {CONTAINER} (unset RUN_CONF_IMAGE), or set {SWITCH}=off to try this one anyway",
    )


def is_configured(name: str, version: str | None) -> bool:
    """Whether LLMB's settings are written for this release; a pre-release is not one."""
    return version is not None and re.fullmatch(rf"{re.escape(_CONFIGURED[name])}\.\d+(\+.*)?", version) is not None


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _source_version(name: str) -> str | None:
    """From the package's ``package_info.py``: ``MAJOR``, ``MINOR``, ``PATCH`` and ``PRE_RELEASE``."""
    module = _MODULES.get(name)
    if module is None:
        return None
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        try:
            text = (Path(folder) / "package_info.py").read_text(encoding="utf-8")
            values = _constants(text)
        except (OSError, ValueError, SyntaxError):
            continue
        numbers = [values.get(part) for part in ("MAJOR", "MINOR", "PATCH")]
        if all(isinstance(number, int) for number in numbers):
            return ".".join(map(str, numbers)) + str(values.get("PRE_RELEASE") or "")
    return None


def _constants(source: str) -> dict[str, object]:
    """Constants that a module assigns at its top level."""
    return {
        target.id: node.value.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
