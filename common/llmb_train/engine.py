"""Which releases of Megatron-Bridge LLMB knows, which one this Python would import, and what it trains with.

The number decides one thing: whether the Megatron that is here is the one that a job was planned for. What a release
calls or does otherwise than another is found in its own source (``source_has_word``), so that a newer one, which is not
in the table, trains too. Imports neither torch nor Megatron: a wrong image is refused in milliseconds.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from llmb_train.errors import EngineError, WrongEngine

Device = Literal["cuda", "cpu"]

SWITCH = "LLMB_ENGINE_CHECK"
"""``off`` in a rank's environment: train with whatever Megatron is there."""


@dataclass(frozen=True)
class Release:
    """One minor release of Megatron-Bridge, with the megatron-core, image and CPU engine that LLMB uses with it.

    The known ones are in ``RELEASES``, oldest first; others come from ``release_of``. Of a release that is newer
    than LLMB knows, only ``bridge`` is set. The property ``is_newer`` tells whether it is such a one; the property
    ``configured`` is a dict, ``megatron-bridge`` and, if known, ``megatron-core``, each with its first two numbers.
    """

    bridge: str
    """Its first two numbers: ``0.6``."""
    core: str | None = None
    """The first two numbers of megatron-core; None: not known."""
    container: str | None = None
    """NVIDIA's image with it, as Enroot writes it: ``nvcr.io#nvidia/nemo:26.08``; None: not known."""
    environment: str | None = None
    """The CPU engine with it, by its folder's name in an installation's ``venvs``; None: there is none."""
    patched: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By name of distribution, the exact versions that the patches of ``cpu`` and ``no_te`` were tried with, ascending;
    empty for a release newer than LLMB knows.
    """
    functions: bool = True
    """Whether it has ``megatron.bridge.perf_recipes``, for jobs that name a function."""

    @property
    def configured(self) -> dict[str, str]:
        """The minor releases (``0.6``) that a job's settings are for, by name: megatron-bridge and megatron-core.

        megatron-core is missing where it is not known, for a release newer than LLMB knows.
        """
        core = {"megatron-core": self.core} if self.core is not None else {}
        return {"megatron-bridge": self.bridge, **core}

    @property
    def is_newer(self) -> bool:
        """Whether this Megatron-Bridge release came after all that LLMB knows, so that it has no settings for it."""
        return self not in RELEASES


DOCUMENTED = Release(
    bridge="0.3",
    core="0.16",
    container="nvcr.io#nvidia/nemo:26.02.01",
    environment="engine-cpu",
    patched={"megatron-bridge": ("0.3.0", "0.3.1"), "megatron-core": ("0.16.0", "0.16.1")},
    functions=False,
)
"""That of the documented recipes' references. It has no functions for performance recipes."""

FUNCTIONS = Release(
    bridge="0.6",
    core="0.19",
    container="nvcr.io#nvidia/nemo:26.08",
    environment="engine-cpu-0.6",
    patched={"megatron-bridge": ("0.6.2",), "megatron-core": ("0.19.2",)},
)
"""The first with functions for performance recipes; a recipe that describes its architecture may run on it too. The
image holds 0.6.0 and 0.19.0; the package index has 0.6.2 and 0.19.2.

What the releases between make of ``settings`` was read in their sources: 0.1 knows no ``save_tokenizer_assets``
(TypeError), 0.2 has no ``training.callbacks`` (ImportError), 0.4 dropped and renamed fields of the data loader and the
providers, 0.5 renamed those of CUDA graphs."""

RELEASES = (DOCUMENTED, FUNCTIONS)


def minor(version: str) -> str:
    """Return the first two parts of a version number: ``0.6`` of ``0.6.2``. A text with fewer is returned as it is.

    ``version`` is not checked to be numbers; "" gives "".
    """
    return ".".join(version.split(".")[:2])


def release_of(version: str | None) -> Release | None:
    """Return the release of Megatron-Bridge that ``version`` (``0.6``, ``0.6.2``) belongs to, by its first two numbers.

    None for a version that is older than LLMB knows, between known ones, unreadable or None. A version newer than
    all known ones gives a ``Release`` with that number alone (``is_newer``); unreadable is also one whose first two
    parts are not just digits, such as ``0.7rc1``.
    """
    wanted = minor(version or "")
    known = next((release for release in RELEASES if release.bridge == wanted), None)
    newer = re.fullmatch(r"[0-9]+\.[0-9]+", wanted) and _release_numbers(wanted) > _release_numbers(RELEASES[-1].bridge)
    return known or (Release(bridge=wanted) if newer else None)


def _release_numbers(release: str) -> tuple[int, ...]:
    """Return the numbers of a release such as ``0.6``, as a tuple to compare releases by.

    Raises:
        ValueError: a part of ``release`` is no number
    """
    return tuple(map(int, release.split(".")))


@dataclass(frozen=True)
class Engine:
    """The software and device that a job's ranks train on: CPU or GPU, with or without Transformer Engine.

    ``find_engine`` makes it. ``device`` is ``cpu`` or ``cuda``; on a CPU ``transformer_engine`` is False. The
    property ``lacking`` is text for messages, ``a CPU`` or ``a GPU without Transformer Engine``; do not use it
    where there is one.
    """

    device: Device
    transformer_engine: bool
    """False: megatron-core's local layers, which know bf16 only."""

    @property
    def lacking(self) -> str:
        """What the ranks run on, for messages: ``a CPU``, or ``a GPU without Transformer Engine``.

        Meaningful only where there is no Transformer Engine.
        """
        return "a CPU" if self.device == "cpu" else "a GPU without Transformer Engine"


def find_engine(device: Device, release: Release) -> Engine:
    """Return the engine that this Python has for training on ``device``, if it fits the release that the job needs.

    ``device`` is ``cpu`` or ``cuda``, ``release`` that of the job. Found out without importing Megatron or
    Transformer Engine; whether there is such a device is not looked at. On a CPU Transformer Engine does not count.
    No patches are installed here. Where there is Transformer Engine, ``LLMB_ENGINE_CHECK=off`` in the environment
    lets other releases pass.

    Raises:
        EngineError: Megatron-Bridge is missing, or LLMB's patches do not fit its version or that of megatron-core
        WrongEngine: Megatron-Bridge or megatron-core is another release than the job's settings are written for
    """
    if not importable("megatron.bridge"):
        raise EngineError(
            "Megatron-Bridge is not installed in this Python",
            remedy="run inside the recipe's container, or install the CPU engine with ./installer.py --quickstart",
        )
    # A GPU container can run a CPU job too: the emulation stands in for the device only.
    engine = Engine(device, transformer_engine=device == "cuda" and importable("transformer_engine"))
    if engine.transformer_engine:
        _require_configured_versions(release)
    else:
        _require_patched_versions(engine, release)
    return engine


def install_patches(engine: Engine) -> None:
    """Patch torch and Megatron, in the whole process, for what ``engine`` lacks: a GPU, or Transformer Engine.

    Does nothing where it has both. Call once, before anything else imports Megatron. Whether the patches fit is not
    checked here, but by ``find_engine``.

    Raises:
        ImportError: torch, megatron-core or, on a Python before 3.12, typing_extensions is not installed
        StopIteration: on a CPU: the patches do not know this megatron-core's queue for results
    """
    if engine.device == "cpu":
        # torch says so when it is imported, and there is no GPU to ask about.
        warnings.filterwarnings("ignore", message="The pynvml package is deprecated")
        from llmb_train import cpu

        cpu.install()
    elif not engine.transformer_engine:
        from llmb_train import no_te

        no_te.install()


def _require_configured_versions(release: Release) -> None:
    """Raise if this Python's Megatron packages are not those that the job's settings are written for.

    ``release`` is that of the job. ``LLMB_ENGINE_CHECK=off`` in the environment switches this check off, in upper or
    lower case, with or without blanks around it.

    Raises:
        WrongEngine: a package has another release, or an unknown version; the message names both
    """
    if os.environ.get(SWITCH, "").strip().lower() == "off":
        return
    found = {name: package_version(name) for name in release.configured}
    if all(is_configured(name, version, release) for name, version in found.items()):
        return
    installed = minor(found["megatron-bridge"] or "")
    named = ", ".join(f"{name} {version or '(of unknown version)'}" for name, version in found.items())
    wanted = ", ".join(f"{name} {known}.x" for name, known in release.configured.items())
    fitting = f"the container {release.container} (unset RUN_CONF_IMAGE)" if release.container else "an image with that"
    raise WrongEngine(
        f"LLMB's settings for this recipe are written for {wanted}; here is {named}"
        if not release.is_newer
        else f"the job is planned for Megatron-Bridge {release.bridge}; here is {named}",
        remedy=f"use {fitting}, or set {SWITCH}=off to try this one anyway{_plan_for(installed)}",
    )


def _require_patched_versions(engine: Engine, release: Release) -> None:
    """Raise if LLMB's patches for what ``engine`` lacks do not fit this Python's Megatron packages.

    ``release`` is the one that the job was planned for. For one that is newer than LLMB knows, only another known
    or newer release is refused.

    Raises:
        WrongEngine: Megatron-Bridge is another known or newer release than the job was planned for
        EngineError: a package is missing, or of another minor release than the patches are written for
    """
    bridge = package_version("megatron-bridge")
    # An older or unreadable version is left to the check of exact versions below.
    if release_of(bridge) not in (release, None):
        own = (
            f"use the engine venvs/{release.environment} of the installation (./installer.py makes it when a recipe "
            "that needs it is chosen)"
        )
        raise WrongEngine(
            f"this recipe needs Megatron-Bridge {release.bridge}.x; this Python has {bridge}",
            remedy=(own if release.environment else "use an engine with that release") + _plan_for(minor(bridge or "")),
        )
    for package, known in release.patched.items():
        found = package_version(package)
        if not is_configured(package, found, release):
            raise EngineError(
                f"{package} {found or '(not installed)'} cannot train on {engine.lacking}: "
                f"LLMB's patches for that are written for {' and '.join(known)}",
                remedy=f"install {package}=={known[-1]} (./installer.py --quickstart does), or use a GPU container",
            )


def _plan_for(installed: str) -> str:
    """Return a clause, to append to a remedy, on planning a job for ``installed``, if that is newer than LLMB knows.

    ``; LLMB_ENGINE=0.7 plans the job for this one``; empty where ``installed`` (the first two numbers of a
    Megatron-Bridge) is a release that LLMB knows, older or unreadable.
    """
    found = release_of(installed)
    return f"; LLMB_ENGINE={installed} plans the job for this one" if found is not None and found.is_newer else ""


def is_configured(name: str, version: str | None, release: Release) -> bool:
    """Return whether a job that was planned for ``release`` may run with this version of the distribution ``name``.

    ``name`` is such as ``megatron-core``, ``version`` that of its installed package; None: unknown or not
    installed. The first two numbers must agree, and a third must follow, with a local suffix (``0.6.2+abc``) at
    most; of a release that is newer than LLMB knows anything may follow, also that of a pre-release. Where the
    release does not say which version of ``name`` it needs, everything fits, None too; elsewhere None never does.
    """
    known = release.configured.get(name)
    if known is None or version is None:
        return known is None
    if release.is_newer:
        return minor(version) == known
    return re.fullmatch(rf"{re.escape(known)}\.\d+(\+.*)?", version) is not None


def importable(module: str) -> bool:
    """Return whether ``module`` can be found for import. It is not imported itself, but the packages above it are.

    False also where such a package is missing. Other errors in importing such a package pass.
    """
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor its parent
        return False


def own_release() -> str:
    """Return the version of this Python's Megatron-Bridge for messages, or ``of an unknown release``."""
    return package_version("megatron-bridge") or "of an unknown release"


def package_version(name: str) -> str | None:
    """Return the version of the installed distribution ``name``, such as ``torch``; None if it cannot be determined.

    None also where it is not installed. A container may hold Megatron (``megatron-core``, ``megatron-bridge``) as a
    source tree, without a distribution's metadata or with another one's: what the tree's ``package_info.py`` says
    comes first.
    """
    if name.startswith("megatron-") and (version := _source_version(name.replace("-", "."))):
        return version
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def source_has_word(module: str, name: str) -> bool:
    """Return whether the source text of ``module``, such as ``megatron.core.optimizer``, has the word ``name``.

    ``module`` is a file below a package with two names. A whole word, wherever it stands, in comments too. The
    module is not imported. False also where there is no such file: a package, whose source is in a folder, has
    none. Each answer is kept.

    Raises:
        OSError: the source cannot be read
        UnicodeDecodeError: the source is not UTF-8
    """
    package = ".".join(module.split(".")[:2])
    for folder in _folders(package):
        path = Path(folder, *module.split(".")[2:]).with_suffix(".py")
        if path.is_file() and re.search(rf"\b{name}\b", path.read_text(encoding="utf-8")):
            return True
    return False


def _source_version(package: str) -> str | None:
    """Return the version in the ``package_info.py`` of an installed package, which is read as text, not imported.

    ``package`` is such as ``megatron.core``. The version is ``0.6.2``, with what marks a pre-release directly
    behind it (``0.6.2rc1``). None where there is no such file, it cannot be read, or it has no major, minor and
    patch numbers.
    """
    for folder in _folders(package):
        try:
            text = (Path(folder) / "package_info.py").read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        values: dict[str, str] = dict(
            re.findall(r"""^(MAJOR|MINOR|PATCH|PRE_RELEASE) *= *["']?(\w*)""", text, re.MULTILINE)
        )
        numbers = [values.get(part, "") for part in ("MAJOR", "MINOR", "PATCH")]
        if all(number.isdecimal() for number in numbers):
            return ".".join(numbers) + values.get("PRE_RELEASE", "")
    return None


def _folders(package: str) -> list[str]:
    """Return the folders that ``package``, such as ``megatron.core``, consists of; empty where it is not installed.

    It is not imported, but the packages above it are: that of Megatron is a namespace.
    """
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return []
    return [*(spec.submodule_search_locations or ())] if spec else []
