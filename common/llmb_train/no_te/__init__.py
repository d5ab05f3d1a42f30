"""Megatron without Transformer Engine: import stubs, and the gaps that megatron-core has then.

``stubs``      packages that Megatron imports without need
``norm``       sequence parallelism and zero-centred gamma
``attention``  context parallelism
``moe``        a name that the router lacks
``optimizer``  saving and resuming torch's AdamW, which stands in for Transformer Engine's or Apex's
``datasets``   helpers that the wheel has compiled already

Needed on a CPU, and on a GPU outside NVIDIA's containers. Written for Megatron-Bridge 0.3.0/0.3.1 and megatron-core
0.16.0/0.16.1; ``llmb_train.engine`` refuses other versions.
"""

from __future__ import annotations

import warnings


def install() -> None:
    """Install the stubs, import megatron-core, and patch it. Call once, before Megatron-Bridge is imported."""
    from llmb_train.no_te import stubs

    # Two dozen lines on every rank about what the log's header says in one.
    warnings.filterwarnings("ignore", message=".*(Apex is|Transformer Engine and Apex are) not installed")
    warnings.filterwarnings("ignore", message="The legacy GroupedMLP will be deprecated")
    stubs.install()
    from llmb_train.no_te import attention, datasets, moe, norm, optimizer

    for module in (norm, attention, moe, optimizer, datasets):
        module.patch()
