"""A node's GPUs at work, each by itself: matrix products and copies, and what the GPUs say of themselves meanwhile.

Imports torch once for all children, and touches no GPU: a child with a limit does, and is killed and named if it hangs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from llmb_train.nodes import gpus
from llmb_train.nodes.ask import Call, call_all

ALONE_SECONDS = 60.0
"""For the products and copies of a GPU."""
_LOOKS = 3
"""At the GPUs under load: ``nodes.gpu_run`` judges a clock by as many."""
_SECONDS = {"cuda": 12.0, "cpu": 0.3}
"""Of matrix products: as long as GPUs take to get warm, and as the looks at them need."""
_SIDE = {"cuda": 8192, "cpu": 384}
_COPIED = {"cuda": 512 << 20, "cpu": 4 << 20}
"""Side of the matrices, and bytes."""


def stress(spec: dict[str, Any], until: int | None = None) -> dict[str, Any]:
    """Put all GPUs of the node to work at once; return what each achieves (``alone``) and looks like (``load``).

    ``alone`` has each GPU's results by its index as text, as ``call_all`` has them, with what ``measure_gpu``
    returns as ``value``. ``load`` is a list of what ``gpus.changing`` returns; empty on CPUs, or where none could
    be taken. ``spec``: ``device`` (``cpu`` or ``cuda``), and how many ``gpus`` the node has (on a CPU, processes).
    After a minute a GPU is given up. ``until``: a descriptor; input on it, or its end, ends the work early; None:
    none.

    Raises:
        OSError: no pipe or process can be made
    """
    calls: dict[str, Call] = {}
    for index in range(spec["gpus"]):
        calls[str(index)] = (partial(measure_gpu, spec["device"], index), ALONE_SECONDS)
    if spec["device"] == "cuda":
        calls["load"] = (_samples_under_load, ALONE_SECONDS)
    found = call_all(calls, until)
    load = found.pop("load", {}).get("value", [])
    return {"alone": found, "load": load}


def _samples_under_load() -> list[dict[str, Any]]:
    """Return three snapshots of the GPUs, as ``gpus.changing`` has them, after ten seconds, when they are warm.

    The caller keeps the GPUs busy meanwhile: nothing is put to work here. The list is never empty; where nvidia-smi
    does not answer, their ``gpus`` are.
    """
    time.sleep(ALONE_SECONDS / 6)
    return [gpus.changing(gpus.snapshot()) for _ in range(_LOOKS)]


def measure_gpu(device: str, index: int) -> dict[str, float]:
    """Put the GPU ``index`` to work; return ``tflops`` of a matrix product and the bandwidth of ``copy``.

    ``device`` is ``cuda`` or ``cpu``, for which ``index`` plays no part. The product is in bf16, on a CPU in fp32;
    the copy stays within its memory. On a GPU there are also ``to_gpu`` and ``from_gpu``, copies from and to the
    host's memory. Bandwidths are in GB/s (1e9 bytes); ``copy`` counts reads and writes. This process works on that
    GPU from then on.

    Raises:
        ValueError: a matrix product is wrong
        Exception: torch's own error, as where there is no such GPU
    """
    take(device, index)
    side, kind = _SIDE[device], torch.bfloat16 if device == "cuda" else torch.float32
    ones = torch.ones(side, side, device=device, dtype=kind)
    product = ones @ ones
    if not bool((product == side).all()):
        raise ValueError("a matrix product is wrong")
    factor = torch.randn(side, side, device=device, dtype=kind)
    times = _seconds_of_calls(lambda: torch.mm(factor, factor, out=product), device, _SECONDS[device])
    source = torch.empty(_COPIED[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    size = float(_COPIED[device]) / 1e9
    found = {
        "tflops": 2e-12 * side**3 / times,
        "copy": 2 * size / _seconds_of_calls(lambda: target.copy_(source), device),
    }
    if device == "cuda":
        host = torch.empty(_COPIED[device], dtype=torch.uint8, pin_memory=True)
        found["to_gpu"] = size / _seconds_of_calls(lambda: target.copy_(host), device)
        found["from_gpu"] = size / _seconds_of_calls(lambda: host.copy_(target), device)
    return found


def _seconds_of_calls(work: Any, device: str, seconds: float = 0.0, repeats: int = 5) -> float:
    """Return the usual seconds of a call of ``work``, called ``repeats`` times or more, for ``seconds`` or longer.

    ``work`` is called without arguments. Usual is the median, on a CPU (``device`` is not ``cuda``) the shortest;
    the GPU's work is waited for. Three calls before that are not timed.
    """
    for _ in range(3):
        work()
    times: list[float] = []
    end = time.monotonic() + seconds
    while len(times) < repeats or time.monotonic() < end:
        wait(device)
        begun = time.perf_counter()
        work()
        wait(device)
        times.append(time.perf_counter() - begun)
    return usual(times, device)


def usual(times: Sequence[float], device: str) -> float:
    """Return the median of ``times`` where ``device`` is ``cuda``, else the shortest: on a CPU other processes disturb.

    There must be at least one.
    """
    return statistics.median(times) if device == "cuda" else min(times)


def take(device: str, index: int) -> None:
    """Make this process work on the GPU ``index`` from now on if ``device`` is ``cuda``; else give torch one thread.

    ``index`` counts from 0, and plays no part on a CPU.

    Raises:
        Exception: torch's own error, where there is no such GPU
    """
    if device == "cuda":
        torch.cuda.set_device(index)
    else:
        torch.set_num_threads(1)


def wait(device: str) -> None:
    """Wait until the current GPU has done all work that it was given; unless ``device`` is ``cuda`` do nothing."""
    if device == "cuda":
        torch.cuda.synchronize()
