"""Tensors that Megatron creates on ``cuda``, or moves there, end up on the CPU (or on ``meta``)."""

from __future__ import annotations

from typing import Any

import torch

_TENSOR_TO = torch.Tensor.to
_TENSOR_TYPE = torch.Tensor.type
_IDENTITY = (torch.Tensor.cuda, torch.Tensor.pin_memory)


def _is_cuda(device: Any) -> bool:
    if isinstance(device, torch.device):
        return bool(device.type == "cuda")
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, int) and not isinstance(device, bool)  # a device index


class CudaRedirect(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
    """Rewrites the device of every torch call while it is active."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _IDENTITY:
            return args[0]
        if func is torch.Tensor.record_stream:
            return None
        if func is _TENSOR_TYPE and len(args) == 1 and not kwargs:
            # core groups gradients by type string and knows only the torch.cuda ones.
            name = func(*args)
            return name.replace("torch.", "torch.cuda.") if args[0].device.type == "cpu" else name
        if "device" in kwargs and _is_cuda(kwargs["device"]):
            kwargs["device"] = self.device
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if func is _TENSOR_TO and len(args) > 1 and _is_cuda(args[1]):
            args = (args[0], self.device, *args[2:])
        return func(*args, **kwargs)


def install(device: str) -> None:
    """Activate the mode for the rest of the process."""
    CudaRedirect(device).__enter__()
