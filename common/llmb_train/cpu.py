"""Megatron on a machine without a GPU.

megatron-core and Megatron-Bridge address ``device="cuda"`` at about a hundred places and assert that CUDA is there.
This module answers for the device, so that their own code runs unchanged on one or more CPU ranks: ``torch.cuda``'s
functions are answered for the CPU, and tensors created on ``cuda`` or moved there end up on the CPU. Patches make up
for where gloo differs from NCCL, for functions of megatron-core that bypass ``torch.cuda``, and for CPUs that cannot
multiply in bf16; ``no_te`` makes up for Transformer Engine. All are the same for all releases.

Imported only for jobs with ``device: cpu``. ``engine.RELEASES`` names the releases that it was tried with. What cannot
run (FP8, CUDA graphs, activation offload) is refused by ``refusals``, never skipped silently.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import multiprocessing
import os
import resource
import time
import types
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.managers import SyncManager
from typing import Any

import torch
import torch._dynamo.trace_rules
import torch.distributed as dist

from llmb_train import no_te

_TENSOR_TO = torch.Tensor.to
_TENSOR_TYPE = torch.Tensor.type
_IDENTITY = (torch.Tensor.cuda, torch.Tensor.pin_memory)
_MEMORY_KINDS = ("allocated", "active", "inactive_split", "reserved")
_MEMORY_STATS = [f"{kind}_bytes.all.{when}" for kind, when in itertools.product(_MEMORY_KINDS, ("current", "peak"))]
_MEMORY_COUNTS = ("allocation.all.current", "allocation.all.peak", "num_alloc_retries", "num_ooms")

_KERNELS = torch.library.Library("aten", "IMPL")
"""Kernels that replace torch's own, as long as this object is there."""

_DOWN, _UP = 11, 12
"""Tags of a pipeline's two directions: activations to the next stage, gradients to the previous one."""


@functools.cache
def install() -> None:
    """Make this process train on the CPU: let ``torch.cuda`` answer for it, and import and patch megatron-core.

    For the rest of the process; a second call does nothing. Call before anything else imports Megatron. Also
    installs the patches of ``no_te``, and switches off ``torch.compile``.

    Raises:
        ImportError: megatron-core is not installed, or, on a Python before 3.12, typing_extensions
        StopIteration: this megatron-core has no queue for results under the names that are known
    """
    # core compiles small functions with torch.compile, which needs a C++ compiler and more time than a tiny run.
    torch._dynamo.config.disable = True
    _emulate()
    CudaRedirect("cpu").__enter__()  # for the rest of the process
    _patch_matrix_products()
    no_te.install()
    _patch_collectives()
    _patch_pipeline()
    _patch_random_state()
    _patch_results_queue()


class DeviceName(str):
    """The name of the CPU as a device that stands in for the current GPU: ``cpu`` to torch, index 0 in a message.

    It is made from the text ``cpu``, and is what ``torch.cuda.current_device`` returns after ``install``.
    Formatted, as in an f-string, it gives ``0``, whatever the format; ``str()`` gives the name. A plain integer
    would do while ``CudaRedirect`` is active, but torch leaves that mode inside ``backward()``, and there the
    answer has to be a device that exists.
    """

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        """``0``, the index of the device, whatever ``spec`` asks for."""
        return "0"


class Stream:
    """Stands in for ``torch.cuda.Stream`` on a CPU, which runs everything in order.

    ``wait_stream``, ``wait_event`` and ``synchronize`` do nothing. ``query`` returns True. ``record_event`` keeps
    the present time in the given ``Event`` (None: a new one) and returns it. ``cuda_stream`` is the number 0. A stream
    can be created with any arguments, which are ignored, and entered as a context, which changes nothing and gives
    the stream itself.
    """

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None: ...

    def wait_stream(self, stream: Any) -> None:
        """Do nothing, where a stream of CUDA waits for another one: work on a CPU is done when it was called."""
        ...

    def wait_event(self, event: Any) -> None:
        """Do nothing, where a stream of CUDA waits for an event: work on a CPU is done when it was called."""
        ...

    def synchronize(self) -> None:
        """Do nothing, where CUDA waits for the work before: work on a CPU is done when it was called."""
        ...

    def query(self) -> bool:
        """Return whether the stream's work is done: always True on a CPU, where this stands in for CUDA streams."""
        return True

    def record_event(self, event: Event | None = None) -> Event:
        """Record the present time in ``event``, or in a new event where it is None, and return that event."""
        event = event or Event()
        event.record()
        return event


class Event:
    """Stands in for ``torch.cuda.Event`` on a CPU: ``record`` keeps the host's clock in ``time``, in seconds.

    ``time`` is 0.0 before the first recording; a later one replaces it. ``elapsed_time`` returns the milliseconds
    from this event's recording to that of ``end``, negative if that was earlier; both must have been recorded, which
    is not checked. ``wait`` and ``synchronize`` do nothing, as work on a CPU is done when it was called, and ``query``
    returns True. An event can be created with any arguments, which are ignored, as is the stream that methods take.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.time = 0.0

    def record(self, stream: Any = None) -> None:
        """Keep the present time of the host's clock as this event's ``time``; ``stream`` is not used."""
        self.time = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Do nothing, where a stream of CUDA waits for this event: work on a CPU is done when it was called."""
        ...

    def synchronize(self) -> None:
        """Do nothing, where CUDA waits for the work before: work on a CPU is done when it was called."""
        ...

    def query(self) -> bool:
        """Return whether the work before this event is done: always True on a CPU, for which this class stands in."""
        return True

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds from the recording of this event to that of ``end``; both must have been recorded.

        Negative where ``end`` was recorded earlier. An event that was not recorded raises nothing, but the number is
        wrong.
        """
        return (end.time - self.time) * 1e3


def _emulate() -> None:
    """Replace functions of ``torch.cuda`` in the whole process by ones that answer for the CPU.

    ``torch.cuda.is_available`` then returns True, ``current_device`` a ``DeviceName``. The machine seems to have
    one GPU of compute capability 9.0 for each local rank (by ``LOCAL_WORLD_SIZE``, else one), with the host's
    memory, and never to capture a graph; memory in use is the most that this process has had. Call before Megatron
    is imported.
    """
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
        "mem_get_info": lambda *args: (_host_memory() - _peak_resident_bytes(), _host_memory()),
        "memory_stats": lambda *args: (
            dict.fromkeys(_MEMORY_STATS, _peak_resident_bytes()) | dict.fromkeys(_MEMORY_COUNTS, 0)
        ),
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
        answers[memory] = lambda *args: _peak_resident_bytes()
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
    """Return the size of this machine's physical memory, in bytes, whatever limit this process has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _peak_resident_bytes() -> int:
    """Return the most memory that this process has had resident since it began, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _is_cuda(device: Any) -> bool:
    """Return whether ``device`` names a CUDA device: a torch device, a text such as ``cuda:0``, or any int as index.

    False for anything else, such as another device, None or a bool.
    """
    if isinstance(device, torch.device):
        return bool(device.type == "cuda")
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, int) and not isinstance(device, bool)  # a device index


class CudaRedirect(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
    """A torch function mode that rewrites the device of torch calls while it is active: CUDA becomes ``device``.

    It is made from ``device``, such as ``cpu``, and active within its context. Rewritten are the keyword argument
    ``device`` and the first one of ``to``, where they name a CUDA device. Moves to a GPU (``.cuda()``) return the
    tensor itself, ``record_stream`` does nothing, memory is not pinned, and a tensor of the CPU gives its type
    (``.type()``) as one of CUDA.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func`` of torch with ``device`` in place of CUDA; what moves or pins memory for a GPU does nothing."""
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


def _patch_matrix_products() -> None:
    """Have torch multiply bf16 matrices in float32, and round the result, where the CPU cannot multiply in bf16 itself.

    In this process, in ``backward()`` too. On such a CPU torch multiplies them element by element, which takes 4 to 50
    times as long. The sums are those of float32 in either case, but for their order. Does nothing on a CPU that
    torch's oneDNN uses for bf16 (AVX-512, AMX, Arm with BF16), and in a torch without oneDNN or before 2.9.
    """
    can_multiply = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    get_kernel = getattr(torch.library, "get_kernel", None)
    if can_multiply is None or can_multiply() or get_kernel is None:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that its kernels are replaced
        for name in ("mm", "addmm", "bmm", "baddbmm"):
            _KERNELS.impl(name, _in_float32(get_kernel(f"aten::{name}", "CPU")), "CPU", with_keyset=True)


def _in_float32(kernel: Any) -> Callable[..., torch.Tensor]:
    """Return a kernel for a product of matrices that calls torch's own ``kernel``, for bf16 with copies in float32."""

    def multiply(keys: Any, *matrices: torch.Tensor, **factors: float) -> torch.Tensor:
        """Return the product of ``matrices``, in their type; the arguments are those of torch's own kernel."""
        if matrices[0].dtype is not torch.bfloat16:
            return kernel.call_boxed(keys, *matrices, **factors)
        return kernel.call_boxed(keys, *(matrix.float() for matrix in matrices), **factors).bfloat16()

    return multiply


def _patch_collectives() -> None:
    """Patch ``barrier``, ``all_to_all_single`` and Megatron-FSDP's scaling in this process so that gloo can do them.

    gloo knows no device ids, wants split sizes as numbers, and has no reduction that scales. Imports megatron-core,
    which must be installed. Call it once: a second call wraps the patched functions again.
    """
    from megatron.core.distributed.fsdp.src.megatron_fsdp import param_and_grad_buffer

    barrier, all_to_all_single = dist.barrier, dist.all_to_all_single

    def numbers(sizes: torch.Tensor | Sequence[int] | None) -> list[int] | None:
        """Return the split sizes of a collective, ints or a one-dimensional tensor, as a list of ints; None if None."""
        return None if sizes is None else [int(size) for size in sizes]

    def with_numbers(
        output: Any, input: Any, output_split_sizes: Any = None, input_split_sizes: Any = None, **kwargs: Any
    ) -> Any:
        """Call torch's ``all_to_all_single`` with its split sizes as ints, and return what it returns.

        The arguments are that function's. gloo needs ints, and the MoE dispatcher makes them only of CUDA tensors.
        """
        return all_to_all_single(output, input, numbers(output_split_sizes), numbers(input_split_sizes), **kwargs)

    def scale_then_sum(grad_data: torch.Tensor, scaling_factor: float | None, ddp_config: Any) -> Any:
        """Multiply the gradients by ``scaling_factor`` in place (None: not at all), and return the reduction SUM.

        Megatron-FSDP scales inside the reduction (``PREMUL_SUM``), which only NCCL has, not gloo. ``ddp_config`` is not
        used.
        """
        if scaling_factor is not None and scaling_factor != 1.0:
            grad_data.mul_(scaling_factor)
        return dist.ReduceOp.SUM

    dist.barrier = lambda group=None, async_op=False, device_ids=None: barrier(group=group, async_op=async_op)
    dist.all_to_all_single = with_numbers
    param_and_grad_buffer.gradient_reduce_preprocessing = scale_then_sum


def _patch_pipeline() -> None:
    """Replace megatron-core's messages between pipeline stages, in this process, by ones with a tag for each direction.

    gloo matches messages by peer, tag and order. With two stages the next and the previous rank are the same peer,
    and the interleaved schedule has both directions under way at once: without tags gloo takes gradients for
    activations and trains on, silently wrong. What is sent is copied, because the schedule frees or reuses the
    tensor before gloo has read it. Imports megatron-core, which must be installed.
    """
    from megatron.core.pipeline_parallel import p2p_communication

    def tagged(
        *,
        tensor_send_prev: Any,
        tensor_recv_prev: Any,
        tensor_send_next: Any,
        tensor_recv_next: Any,
        group: Any,
        prev_pipeline_rank: int,
        next_pipeline_rank: int,
    ) -> dict[str, Any]:
        """Begin to exchange tensors with the neighboring pipeline stages, with a tag for each direction.

        Returns the requests to wait for, by name: ``recv_prev``, ``recv_next``, ``send_next``, ``send_prev``. The
        four tensors are those to send to the previous and the next stage, and those to receive from them into; one
        that is None is neither sent nor received, and has no request. What is sent is copied first; what is received
        gets into the given tensor. The ranks are global numbers of members of ``group``.
        """
        requests = {}
        if tensor_recv_prev is not None:
            requests["recv_prev"] = dist.irecv(tensor_recv_prev, src=prev_pipeline_rank, group=group, tag=_DOWN)
        if tensor_recv_next is not None:
            requests["recv_next"] = dist.irecv(tensor_recv_next, src=next_pipeline_rank, group=group, tag=_UP)
        if tensor_send_next is not None:
            copy = tensor_send_next.clone()
            requests["send_next"] = dist.isend(copy, dst=next_pipeline_rank, group=group, tag=_DOWN)
        if tensor_send_prev is not None:
            copy = tensor_send_prev.clone()
            requests["send_prev"] = dist.isend(copy, dst=prev_pipeline_rank, group=group, tag=_UP)
        return requests

    p2p_communication._p2p_ops = tagged
    p2p_communication._batched_p2p_ops = lambda **tensors: list(tagged(**tensors).values())


def _patch_random_state() -> None:
    """Make megatron-core save and restore the CPU's random state in place of CUDA's, in this process.

    Core's logger of random states then prints errors only. Imports megatron-core, which must be installed.
    """
    from megatron.core.tensor_parallel import random as core_random

    # Both reach into torch._C for the CUDA generator.
    core_random._set_cuda_rng_state = lambda new_state, device=-1, graph_safe=False: torch.set_rng_state(new_state)
    core_random._get_cuda_rng_state = lambda device="cuda", clone=False, graph_safe=False: torch.get_rng_state()
    # It warns at every fork that this is not the state of a CUDA generator.
    logging.getLogger(core_random.__name__).setLevel(logging.ERROR)


def _patch_results_queue() -> None:
    """Have megatron-core fork the manager process that collects the results of saving a checkpoint, not spawn it.

    For this process. A spawned one takes 3 s to import torch, on every rank that saves. Core spawns it for the sake
    of CUDA, which does not survive a fork.

    Raises:
        StopIteration: this megatron-core has no such function under the names that are known
    """
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    names = ("get_write_results_queue", "_get_write_results_queue")  # core 0.19, 0.16
    name = next(name for name in names if hasattr(filesystem_async, name))

    @functools.cache
    def results_queue() -> Any:
        """Return the queue for results of a save; the same one at every call.

        The first call forks the manager process that serves it.
        """
        manager = SyncManager(ctx=multiprocessing.get_context("fork"))
        manager.start()
        return manager.Queue()

    setattr(filesystem_async, name, lambda *_: results_queue())  # callers may ask for the way to start it
