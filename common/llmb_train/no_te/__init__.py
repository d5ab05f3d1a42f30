"""Megatron without Transformer Engine: import stubs, and the gaps of megatron-core's local layers.

Needed on a CPU, and on a GPU outside NVIDIA's containers. Written for Megatron-Bridge 0.3.0/0.3.1 and megatron-core
0.16.0/0.16.1; ``llmb_train.engine`` refuses other versions.
"""

from __future__ import annotations


def install() -> None:
    """Install the stubs, import megatron-core, and patch it. Call once, before Megatron-Bridge is imported."""
    from llmb_train.no_te import stubs

    stubs.install()
    from llmb_train.no_te import attention, moe, norm

    norm.patch()
    attention.patch()
    moe.patch()
