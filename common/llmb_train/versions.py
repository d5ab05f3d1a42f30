"""Which Megatron this Python would import, and whether LLMB's settings fit it. Imports neither torch nor Megatron."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path

from llmb_train.errors import WrongEngine
from llmb_train.releases import CONTAINERS, Release, minor, release_of

SWITCH = "LLMB_ENGINE_CHECK"
"""``off`` in a rank's environment: train with whatever Megatron is there."""

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


def require_configured_versions(environment: Mapping[str, str], release: Release) -> None:
    """Refuse a Megatron that the job's settings are not written for, unless ``environment`` switches the check off.

    Raises:
        WrongEngine: names what was found, the container it comes from, and the one that fits.
    """
    if environment.get(SWITCH, "").strip().lower() == "off":
        return
    found = {name: package_version(name) for name in release.configured}
    if all(is_configured(name, version, release) for name, version in found.items()):
        return
    held = minor(found["megatron-bridge"] or "")
    container = CONTAINERS.get(held)
    named = ", ".join(f"{name} {version or '(of unknown version)'}" for name, version in found.items())
    wanted = ", ".join(f"{name} {known}.x" for name, known in release.configured.items())
    whose = f", as in NVIDIA's container nemo:{container}" if container else ""
    fitting = f"the container {release.container} (unset RUN_CONF_IMAGE)" if release.container else "an image with that"
    raise WrongEngine(
        f"LLMB's settings for this recipe are written for {wanted}; here is {named}{whose}"
        if not release.is_newer
        else f"the job is planned for Megatron-Bridge {release.bridge}; here is {named}{whose}",
        remedy=f"use {fitting}, or set {SWITCH}=off to try this one anyway{plan_for(held)}",
    )


def plan_for(held: str) -> str:
    """How to plan a job for the release ``held``, where that is newer than LLMB; else empty."""
    found = release_of(held)
    return f"; LLMB_ENGINE={held} plans the job for this one" if found is not None and found.is_newer else ""


def is_configured(name: str, version: str | None, release: Release) -> bool:
    """Whether a job for ``release`` may meet this version. A pre-release is another one, but of a newer release."""
    known = release.configured.get(name)
    if known is None or version is None:
        return known is None
    if release.is_newer:
        return minor(version) == known
    return re.fullmatch(rf"{re.escape(known)}\.\d+(\+.*)?", version) is not None


@functools.cache
def says(module: str, name: str) -> bool:
    """Whether the source of ``module``, below one of Megatron's packages, has the word ``name``. Imports neither."""
    package = ".".join(module.split(".")[:2])
    for folder in _folders(package):
        path = Path(folder, *module.split(".")[2:]).with_suffix(".py")
        if path.is_file() and re.search(rf"\b{name}\b", path.read_text(encoding="utf-8")):
            return True
    return False


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
    for folder in _folders(module):
        try:
            text = (Path(folder) / "package_info.py").read_text(encoding="utf-8")
            values = _constants(text)
        except (OSError, ValueError, SyntaxError):
            continue
        numbers = [values.get(part) for part in ("MAJOR", "MINOR", "PATCH")]
        if all(isinstance(number, int) for number in numbers):
            return ".".join(map(str, numbers)) + str(values.get("PRE_RELEASE") or "")
    return None


def _folders(package: str) -> list[str]:
    """Where ``package`` is; its parent is imported, which of Megatron is a namespace."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return []
    return [*(spec.submodule_search_locations or ())] if spec else []


def _constants(source: str) -> dict[str, object]:
    """Constants that a module assigns at its top level."""
    return {
        target.id: node.value.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
