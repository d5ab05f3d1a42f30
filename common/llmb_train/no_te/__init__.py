"""Megatron without Transformer Engine: import stand-ins, and patches for what megatron-core then lacks.

``stubs``      packages that Megatron imports without needing them
``norm``       sequence parallelism, persistent norms and zero-centered gamma
``attention``  context parallelism, latent attention
``experts``    a name that core 0.16's router lacks; biases of experts, since core 0.19
``optimizer``  saving and resuming torch's AdamW, which takes the place of Transformer Engine's or Apex's
``datasets``   helpers that the wheel has compiled already

Needed on a CPU, and on a GPU outside NVIDIA's containers. ``llmb_train.releases`` names the releases that the patches
were tried with; with another the log says so.
"""

from __future__ import annotations

import importlib
import warnings

_PATCHES = ("norm", "attention", "experts", "optimizer", "datasets")
"""The modules of this package that patch megatron-core; each looks for what it makes up for."""


def install() -> None:
    """Install the stand-ins, import megatron-core, and patch it. Call once, before Megatron-Bridge is imported."""
    from llmb_train.no_te import stubs

    # Two dozen lines on every rank that repeat one line of the log's header.
    warnings.filterwarnings("ignore", message=".*(Apex is|Transformer Engine and Apex are) not installed")
    warnings.filterwarnings("ignore", message="The legacy GroupedMLP will be deprecated")
    stubs.install()
    for name in _PATCHES:
        importlib.import_module(f"llmb_train.no_te.{name}").patch()
