"""Megatron without Transformer Engine: import stand-ins, and patches for what megatron-core then lacks.

``stubs``      packages that Megatron imports without needing them
``norm``       sequence parallelism, persistent norms and zero-centered gamma
``attention``  context parallelism, latent attention
``moe``        a name that core 0.16's router lacks
``experts``    biases of experts, since core 0.19
``optimizer``  saving and resuming torch's AdamW, which takes the place of Transformer Engine's or Apex's
``datasets``   helpers that the wheel has compiled already

Needed on a CPU, and on a GPU outside NVIDIA's containers. ``llmb_train.releases`` names the releases that the patches
were written against; ``llmb_train.engine`` refuses others.
"""

from __future__ import annotations

import importlib
import warnings

from llmb_train.releases import RELEASES, release_of
from llmb_train.versions import package_version

_PATCHES = {
    "0.3": ("norm", "attention", "moe", "optimizer", "datasets"),
    "0.6": ("norm", "attention", "experts", "optimizer", "datasets"),
}
"""Release of Megatron-Bridge -> the modules of this package that patch its megatron-core."""


def install() -> None:
    """Install the stand-ins, import megatron-core, and patch it. Call once, before Megatron-Bridge is imported."""
    from llmb_train.no_te import stubs

    # Two dozen lines on every rank that repeat one line of the log's header.
    warnings.filterwarnings("ignore", message=".*(Apex is|Transformer Engine and Apex are) not installed")
    warnings.filterwarnings("ignore", message="The legacy GroupedMLP will be deprecated")
    stubs.install()
    release = release_of(package_version("megatron-bridge")) or RELEASES[-1]
    for name in _PATCHES[release.bridge]:
        importlib.import_module(f"llmb_train.no_te.{name}").patch()
