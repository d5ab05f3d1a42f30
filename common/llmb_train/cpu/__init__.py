"""Megatron on a machine without a GPU.

megatron-core and Megatron-Bridge address ``device="cuda"`` at about a hundred places and assert that CUDA is there.
This package answers for the device, so that their own code runs unchanged on one or more CPU ranks over gloo:

``device``       ``torch.cuda``'s functions, answered for the CPU
``redirect``     tensors made or moved to ``cuda`` land on the CPU
``collectives``  gloo's differences from NCCL, the pipeline's sends among them
``megatron``     megatron-core functions that reach past ``torch.cuda``

It builds on ``llmb_train.no_te``, which stands in for Transformer Engine.

Imported only for jobs with ``device: cpu``. Written for Megatron-Bridge 0.3.0/0.3.1 with megatron-core
0.16.0/0.16.1; ``llmb_train.engine`` refuses other versions. What cannot run (FP8, CUDA graphs, activation offload)
is refused by ``llmb_train.settings``, never skipped in silence.
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
