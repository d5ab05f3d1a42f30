"""Megatron on a machine without a GPU.

megatron-core and Megatron-Bridge address ``device="cuda"`` at about a hundred places and assert that CUDA is there.
This module answers for the device, so that their own code runs unchanged on one or more CPU ranks: ``torch.cuda``'s
functions are answered for the CPU, and tensors created on ``cuda`` or moved there end up on the CPU. ``gloo`` makes up
for NCCL, ``no_te`` for Transformer Engine; all are the same for all releases.

Imported only for jobs with ``device: cpu``. ``engine.RELEASES`` names the releases that it was tried with. What cannot
run (FP8, CUDA graphs, activation offload) is refused by ``refusals``, never skipped silently.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import time
import types
from typing import Any

import torch
import torch._dynamo.trace_rules

from llmb_train import gloo, no_te

_TENSOR_TO = torch.Tensor.to
_TENSOR_TYPE = torch.Tensor.type
_IDENTITY = (torch.Tensor.cuda, torch.Tensor.pin_memory)
_MEMORY_STATS = (
    "allocated_bytes.all.current",
    "allocated_bytes.all.peak",
    "active_bytes.all.current",
    "active_bytes.all.peak",
    "inactive_split_bytes.all.current",
    "inactive_split_bytes.all.peak",
    "reserved_bytes.all.current",
    "reserved_bytes.all.peak",
)
_MEMORY_COUNTS = ("allocation.all.current", "allocation.all.peak", "num_alloc_retries", "num_ooms")


@functools.cache
def install() -> None:
    """Emulate the device, then import megatron-core and patch it. A second call does nothing."""
    # core compiles small functions with torch.compile, which needs a C++ compiler and more time than a tiny run.
    torch._dynamo.config.disable = True
    _emulate()
    CudaRedirect("cpu").__enter__()  # for the rest of the process
    no_te.install()
    gloo.patch()


class DeviceName(str):
    """The answer of ``current_device()``: a device to torch, the index 0 in a message.

    A plain integer would do while ``CudaRedirect`` is active, but torch leaves that mode inside ``backward()``, and
    there the answer has to be a device that exists.
    """

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return "0"


class Stream:
    """A CPU runs everything in order: there is nothing to wait for."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event


class Event:
    """Times by the host's clock, in milliseconds like those of CUDA events."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.time = 0.0

    def record(self, stream: Any = None) -> None:
        self.time = time.perf_counter()

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        return (end.time - self.time) * 1e3


def _emulate() -> None:
    """Answer for ``torch.cuda``. Call before Megatron is imported."""
    # torch.compile builds its table of the original functions when it first needs it, and fails on replaced ones.
    torch._dynamo.trace_rules.get_torch_obj_rule_map()

    name = DeviceName("cpu")
    stream = Stream()
    properties = types.SimpleNamespace(
        name="cpu",
        gcnArchName="cpu",
        major=9,
        minor=0,
        total_memory=_host_memory(),
        multi_processor_count=os.cpu_count() or 1,
    )
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        "current_device": lambda: name,
        "get_device_name": lambda *args: "cpu",
        "get_device_properties": lambda *args: properties,
        "get_device_capability": lambda *args: (properties.major, properties.minor),
        "is_current_stream_capturing": lambda: False,
        "Stream": Stream,
        "Event": Event,
        "current_stream": lambda *args: stream,
        "default_stream": lambda *args: stream,
        "stream": lambda stream=None: contextlib.nullcontext(),
        "mem_get_info": lambda *args: (_host_memory() - _resident(), _host_memory()),
        "memory_stats": lambda *args: dict.fromkeys(_MEMORY_STATS, _resident()) | dict.fromkeys(_MEMORY_COUNTS, 0),
        "get_rng_state": lambda *args, **kwargs: torch.get_rng_state(),
        "set_rng_state": lambda state, *args, **kwargs: torch.set_rng_state(state),
        "manual_seed": lambda seed: torch.default_generator.manual_seed(int(seed)),
        "manual_seed_all": lambda seed: torch.default_generator.manual_seed(int(seed)),
        "default_generators": (torch.default_generator,),
        "check_error": lambda result: None,
        "cudart": lambda: types.SimpleNamespace(cudaProfilerStart=lambda: 0, cudaProfilerStop=lambda: 0),
    }
    for nothing in ("set_device", "set_stream", "synchronize", "empty_cache", "ipc_collect", "reset_peak_memory_stats"):
        answers[nothing] = lambda *args, **kwargs: None
    for memory in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        answers[memory] = lambda *args: _resident()
    for attribute, answer in answers.items():
        setattr(torch.cuda, attribute, answer)
    torch.cuda.random.get_rng_state = torch.cuda.get_rng_state
    torch.cuda.random.set_rng_state = torch.cuda.set_rng_state
    # As in torch's CPU build; its CUDA build believes the answers above and then asks the driver, in each Adam step.
    torch.accelerator.current_accelerator = lambda check_available=False: None
    torch.cuda.nvtx.range_push = lambda message: 0
    torch.cuda.nvtx.range_pop = lambda: 0
    torch.autograd.profiler.emit_nvtx = lambda *args, **kwargs: contextlib.nullcontext()


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _resident() -> int:
    """Peak resident bytes of this process (Linux counts in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


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
