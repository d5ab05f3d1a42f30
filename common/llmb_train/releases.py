"""The releases of Megatron-Bridge that LLMB was written with, and those that came after them. Standard library only.

The number decides one thing: whether the Megatron that is here is the one that a job was planned for. What a release
calls or does otherwise than another is found in its own source (``settings.capabilities``, ``no_te``), so that a
newer one, which is not in the table, trains too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Release:
    """A minor release, with the megatron-core that belongs to it. Of one that is newer only ``bridge`` is known."""

    bridge: str
    core: str | None = None
    container: str | None = None
    """NVIDIA's image with it."""
    environment: str | None = None
    """The CPU engine with it, in an installation's ``venvs``."""
    patched: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The exact releases that the patches of ``cpu`` and ``no_te`` were tried with."""
    functions: bool = True
    """Whether it has ``megatron.bridge.perf_recipes``, for jobs that name a function."""

    @property
    def configured(self) -> dict[str, str]:
        """Distribution -> the minor release for which the settings are written."""
        core = {"megatron-core": self.core} if self.core is not None else {}
        return {"megatron-bridge": self.bridge, **core}

    @property
    def is_newer(self) -> bool:
        """Whether LLMB knows nothing of it."""
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

CONTAINERS = {
    "0.1": "25.09",
    "0.2": "25.11",
    "0.3": "26.02",
    "0.4": "26.04",
    "0.5": "26.06",
    "0.6": "26.08",
}
"""NeMo containers by the minor release of Megatron-Bridge in them."""


def minor(version: str) -> str:
    """``0.6`` of ``0.6.2``."""
    return ".".join(version.split(".")[:2])


def release_of(version: str | None) -> Release | None:
    """The release that a version of Megatron-Bridge belongs to; None for those that LLMB has no settings for."""
    wanted = minor(version or "")
    known = next((release for release in RELEASES if release.bridge == wanted), None)
    newer = re.fullmatch(r"[0-9]+\.[0-9]+", wanted) and _numbers(wanted) > _numbers(RELEASES[-1].bridge)
    return known or (Release(bridge=wanted) if newer else None)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))
