"""``torch.cuda`` on a machine without CUDA: the functions that Megatron calls answer for the CPU."""

from __future__ import annotations

import contextlib
import os
import resource
import time
import types
from typing import Any

import torch

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


class DeviceName(str):
    """The answer of ``current_device()``: a device to torch, the index 0 in a message.

    A plain integer would do while ``redirect`` is active, but torch leaves that mode inside ``backward()``, and there
    the answer has to be a device that exists.
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


def emulate(device: str = "cpu") -> None:
    """Answer for ``torch.cuda``. Call before Megatron is imported."""
    # torch.compile builds its table of the original functions when it first needs it, and fails on replaced ones.
    import torch._dynamo.trace_rules as trace_rules

    trace_rules.get_torch_obj_rule_map()

    name = DeviceName(device)
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
