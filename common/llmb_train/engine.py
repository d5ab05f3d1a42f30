"""What this process trains with: the device, with or without Transformer Engine, and which versions."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

from llmb_train.errors import EngineError, WrongEngine
from llmb_train.job import Device
from llmb_train.releases import Release, minor, release_of
from llmb_train.versions import (
    importable,
    is_configured,
    package_version,
    plan_for,
    require_configured_versions,
)


@dataclass(frozen=True)
class Engine:
    device: Device
    transformer_engine: bool
    """False: megatron-core's local layers, which know bf16 only."""


def find(device: Device, release: Release) -> Engine:
    """Find out what there is to train with, without importing it; ``release``: what the job needs.

    Raises:
        EngineError: Megatron-Bridge is missing, or the job's settings or the patches do not fit its version.
    """
    if not importable("megatron.bridge"):
        raise EngineError(
            "Megatron-Bridge is not installed in this Python",
            remedy="run inside the recipe's container, or install the CPU engine with ./installer.py --quickstart",
        )
    # A GPU container can run a CPU job too: the emulation stands in for the device only.
    have_te = device == "cuda" and importlib.util.find_spec("transformer_engine") is not None
    if have_te:
        require_configured_versions(os.environ, release)
    else:
        require_patched_versions(device, release)
    return Engine(device=device, transformer_engine=have_te)


def install_patches(engine: Engine) -> None:
    """Install what this engine needs to run Megatron. Call once, before anything imports Megatron."""
    if engine.device == "cpu":
        from llmb_train import cpu

        cpu.install()
    elif not engine.transformer_engine:
        from llmb_train import no_te

        no_te.install()


def require_patched_versions(device: Device, release: Release) -> None:
    """Refuse another Megatron than the job was planned for, or one whose two packages do not belong together.

    Raises:
        WrongEngine: it is a supported release, but not the one that the job needs.
        EngineError: names the version found and the versions known.
    """
    bridge = package_version("megatron-bridge")
    other = release_of(bridge)
    if other not in (release, None):
        own = (
            f"use the engine venvs/{release.environment} of the installation (./installer.py makes it when a recipe "
            "that needs it is chosen)"
        )
        raise WrongEngine(
            f"this recipe needs Megatron-Bridge {release.bridge}.x; this Python has {bridge}",
            remedy=(own if release.environment else "use an engine with that release") + plan_for(minor(bridge or "")),
        )
    for package, known in release.patched.items():
        found = package_version(package)
        if not is_configured(package, found, release):
            why = "a CPU" if device == "cpu" else "a GPU without Transformer Engine"
            raise EngineError(
                f"{package} {found or '(not installed)'} cannot train on {why}: "
                f"LLMB's patches for that are written for {' and '.join(known)}",
                remedy=f"install {package}=={known[-1]} (./installer.py --quickstart does), or use a GPU container",
            )
