"""The second stage on one node: its GPUs at work, by themselves, together, and with another node's.

Imports torch once for all children, and touches no GPU: a child with a limit does, and is killed and named if it hangs.
Nodes wait for each other in pairs only, and for seconds only.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from llmb_train.nodes import gpus, machine
from llmb_train.nodes.ask import Call, call_all
from llmb_train.nodes.machine import node_name

ALONE_SECONDS = 60.0
TOGETHER_SECONDS = 60.0
"""For the products and copies of a GPU, and for a group's all-reduce with its rendezvous."""
_LOOKS = 3
"""At the GPUs under load: ``nodes.gpu_run`` judges a clock by as many."""
RENDEZVOUS = timedelta(seconds=30)
"""For the ranks of a group to find each other, and for one collective."""
_LINES = ("NCCL version", "Using network", "NET/IB : Using", "Selected provider", " via ", "MNNVL")
_SECONDS = {"cuda": 12.0, "cpu": 0.3}
"""Of matrix products: as long as GPUs take to get warm, and as the looks at them need."""
_SIDE = {"cuda": 8192, "cpu": 384}
_COPIED = {"cuda": 512 << 20, "cpu": 4 << 20}
_REDUCED = {"cuda": 256 << 20, "cpu": 1 << 20}
"""Side of the matrices, and bytes."""


def stress(spec: dict[str, Any]) -> dict[str, Any]:
    """``alone`` by GPU, ``load`` (looks under load), and of the ``groups`` that this node is in what its ranks gave.

    ``spec``: ``device``, ``gpus`` of a node, whether they work ``alone``, and ``groups`` of nodes in their order, each
    with its ``port``; ``addresses`` of nodes, and further variables (``env``).
    """
    os.environ.update(spec.get("env", {}))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # a step of one task may have been bound to one core
    node, count = node_name(os.environ), spec["gpus"]
    calls: dict[str, Call]
    found: dict[str, Any] = {"groups": []}
    if spec["alone"]:
        calls = {str(index): (partial(alone, spec["device"], index), ALONE_SECONDS) for index in range(count)}
        if spec["device"] == "cuda":
            calls["load"] = (_looks_under_load, ALONE_SECONDS)
        found["alone"] = call_all(calls)
        found["load"] = found["alone"].pop("load", {}).get("value", [])
    for group in spec["groups"]:
        if node in group["nodes"]:
            first = group["nodes"].index(node) * count
            calls = {
                str(index): (partial(together, spec, group, first + index, index), TOGETHER_SECONDS)
                for index in range(count)
            }
            found["groups"].append({"nodes": group["nodes"], "ranks": call_all(calls)})
    return found


def _looks_under_load() -> list[dict[str, Any]]:
    """As in a run's evidence, once the GPUs are warm."""
    time.sleep(ALONE_SECONDS / 6)
    return [gpus.changing(gpus.snapshot()) for _ in range(_LOOKS)]


def alone(device: str, index: int) -> dict[str, float]:
    """``tflops`` of a matrix product (bf16; on a CPU fp32), ``copy`` within the memory, reads and writes counted,
    ``to_gpu`` and ``from_gpu`` in GB/s. Raises ValueError for a product that is wrong."""
    _take(device, index)
    side, kind = _SIDE[device], torch.bfloat16 if device == "cuda" else torch.float32
    ones = torch.ones(side, side, device=device, dtype=kind)
    product = ones @ ones
    if not bool((product == side).all()):
        raise ValueError("a matrix product is wrong")
    factor = torch.randn(side, side, device=device, dtype=kind)
    times = _times(lambda: torch.mm(factor, factor, out=product), device, _SECONDS[device])
    source = torch.empty(_COPIED[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    size = float(_COPIED[device]) / 1e9
    found = {"tflops": 2e-12 * side**3 / times, "copy": 2 * size / _times(lambda: target.copy_(source), device)}
    if device == "cuda":
        host = torch.empty(_COPIED[device], dtype=torch.uint8, pin_memory=True)
        found["to_gpu"] = size / _times(lambda: target.copy_(host), device)
        found["from_gpu"] = size / _times(lambda: host.copy_(target), device)
    return found


def together(spec: dict[str, Any], group: dict[str, Any], rank: int, index: int) -> dict[str, Any]:
    """``gbps`` of an all-reduce among the group's ranks, as nccl-tests count it (bus bandwidth), and what NCCL says of
    the way (``log``, of a node's first rank). Raises for a rendezvous that fails, and for a wrong sum."""
    device, world = spec["device"], len(group["nodes"]) * spec["gpus"]
    _take(device, index)
    log = Path(tempfile.mkdtemp(prefix="llmb-health-")) / "nccl.log"
    if device == "cuda" and index == 0:
        machine.log_nccl(os.environ, log)
    address = spec["addresses"][group["nodes"][0]]
    store = dist.TCPStore(address, group["port"], world, rank == 0, timeout=RENDEZVOUS, wait_for_workers=False)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=RENDEZVOUS)
    count = _REDUCED[device] // 4
    data = torch.full((count,), float(rank + 1), device=device)
    dist.all_reduce(data)
    if not bool((data == world * (world + 1) / 2).all()):
        raise ValueError("an all-reduce gave a wrong sum")
    data.zero_()
    seconds = _times(lambda: dist.all_reduce(data), device, repeats=8)
    dist.barrier()  # whoever has the store must not go first
    said = log.read_text(errors="replace").splitlines() if log.is_file() else []
    log.unlink(missing_ok=True)
    log.parent.rmdir()
    lines = [line for line in said if any(word in line for word in _LINES)]
    return {"gbps": 2 * (world - 1) / world * count * 4 / 1e9 / seconds, "log": lines}


def _times(work: Any, device: str, seconds: float = 0.0, repeats: int = 5) -> float:
    """The median time of ``work``, repeated, and for at least so many seconds."""
    for _ in range(3):
        work()
    times: list[float] = []
    end = time.monotonic() + seconds
    while len(times) < repeats or time.monotonic() < end:
        _wait(device)
        begun = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def _take(device: str, index: int) -> None:
    if device == "cuda":
        torch.cuda.set_device(index)
    else:
        torch.set_num_threads(1)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
