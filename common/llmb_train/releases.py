"""The releases of Megatron-Bridge that LLMB trains with, and what each of them needs. Standard library only.

Every choice that depends on the release starts from this table: which engine a job is refused on, how it is installed,
which fields ``settings.of_release`` fills, which patches ``no_te`` applies.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """A minor release, with the megatron-core that belongs to it."""

    bridge: str
    core: str
    container: str
    """NVIDIA's image with it."""
    environment: str
    """The CPU engine with it, in an installation's ``venvs``."""
    patched: dict[str, tuple[str, ...]]
    """The exact releases whose source the patches of ``cpu`` and ``no_te`` were written against and tried with."""
    functions: bool = False
    """Whether it has ``megatron.bridge.perf_recipes``, for jobs that name a function."""

    @property
    def configured(self) -> dict[str, str]:
        """Distribution -> the minor release for which the settings are written."""
        return {"megatron-bridge": self.bridge, "megatron-core": self.core}


DOCUMENTED = Release(
    bridge="0.3",
    core="0.16",
    container="nvcr.io#nvidia/nemo:26.02.01",
    environment="engine-cpu",
    patched={"megatron-bridge": ("0.3.0", "0.3.1"), "megatron-core": ("0.16.0", "0.16.1")},
)
"""That of the documented recipes' references. It has no functions for performance recipes."""

FUNCTIONS = Release(
    bridge="0.6",
    core="0.19",
    container="nvcr.io#nvidia/nemo:26.08",
    environment="engine-cpu-0.6",
    patched={"megatron-bridge": ("0.6.2",), "megatron-core": ("0.19.2",)},
    functions=True,
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
    """The supported release that a version of Megatron-Bridge belongs to."""
    return next((release for release in RELEASES if version is not None and release.bridge == minor(version)), None)
