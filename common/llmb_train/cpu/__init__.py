"""Megatron on a machine without a GPU.

megatron-core and Megatron-Bridge address ``device="cuda"`` at about a hundred places and assert that CUDA is there.
This package answers for the device, so that their own code runs unchanged on one or more CPU ranks over gloo:

``device``       ``torch.cuda``'s functions, answered for the CPU
``redirect``     tensors created on ``cuda`` or moved there end up on the CPU
``collectives``  where gloo differs from NCCL, the pipeline's messages included
``megatron``     megatron-core functions that bypass ``torch.cuda``

It builds on ``llmb_train.no_te``, which makes up for Transformer Engine, and is the same for all releases.

Imported only for jobs with ``device: cpu``. ``llmb_train.releases`` names the releases that it was tried with. What
cannot run (FP8, CUDA graphs, activation offload) is refused by ``llmb_train.settings``, never skipped silently.
"""

from __future__ import annotations

import warnings

_installed: list[str] = []


def install(device: str = "cpu") -> None:
    """Emulate the device, then import megatron-core and patch it. A second call does nothing.

    ``device``: where ``cuda`` tensors go; ``meta`` builds models without memory, to count them.
    """
    if _installed:
        if _installed != [device]:
            raise RuntimeError(f"this process emulates {_installed[0]} already, and cannot change to {device}")
        return
    _installed.append(device)
    warnings.filterwarnings("ignore", message="The pynvml package is deprecated")  # there is no GPU to ask about
    import torch._dynamo

    from llmb_train.cpu import device as cuda_functions
    from llmb_train.cpu import redirect

    # core compiles small functions with torch.compile, which needs a C++ compiler and more time than a tiny run.
    torch._dynamo.config.disable = True
    cuda_functions.emulate(device)
    redirect.install(device)

    from llmb_train import no_te

    no_te.install()
    from llmb_train.cpu import collectives, megatron

    collectives.patch()
    megatron.patch()
