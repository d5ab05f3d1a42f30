"""The second stage on one node: its GPUs by themselves, and collectives within it and across nodes, order by order.

One program on each node, which imports torch once. It reads orders from its input, a JSON line each, and answers each
of them (``follow_orders``). Whoever gives them hears all nodes, so that the watchdog is there: a line that comes while
ranks work ends them, and the answer says of each how far it was. The end of the input ends the program.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from llmb_train.nodes import machine
from llmb_train.nodes.ask import Call, call_all
from llmb_train.nodes.machine import node_name
from llmb_train.nodes.stress import stress, take, usual, wait

ORDERS = 0
"""The descriptor that orders come from."""
_BEFORE = 2
"""Blocks that do not count: buffers are registered, and channels connected."""
_BLOCK = {"cuda": 5, "cpu": 1}
"""Collectives between two looks at the clock: a GPU is not made to wait for the CPU after each of them."""
_SECONDS = {"cuda": 2.0, "cpu": 0.4}
_FEWEST, _MOST = 5, 200
"""Blocks that are timed: for so long, but so many."""


def follow_orders(spec: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Report that this node is ready (``order`` 0), then carry out the orders from standard input until that ends.

    Each order is one JSON line with its number (``order``), what to do (``work``: ``alone`` or ``reduce``) and what
    that needs; other work is ignored without an answer. Input that comes while an order is carried out ends that
    early. ``say`` is called with each answer, a dict: the order's number with what ``stress`` returns, or with
    ``ranks``, what ``reduce`` returns. ``spec``: ``device`` (``cpu`` or ``cuda``), ``gpus`` per node, ``addresses``
    of nodes by name, and environment variables to set (``env``; may be missing). This process may then use all
    cores.

    Raises:
        ValueError: an order is not JSON, such as an empty line
        KeyError: an order lacks something
        OSError: no process can be made for an order
    """
    os.environ.update(spec.get("env", {}))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # a step of one task may have been bound to one core
    say({"order": 0})
    for line in _input_lines(ORDERS):
        order = json.loads(line)
        if order.get("work") == "alone":
            say({"order": order["order"], **stress(spec, ORDERS)})
        elif order.get("work") == "reduce":
            say({"order": order["order"], "ranks": reduce(spec, order)})


def _input_lines(descriptor: int) -> Iterator[bytes]:
    """Yield the lines read from the file descriptor ``descriptor``, without line ends, each as soon as it is whole.

    Ends with the input; a last line without an end is dropped, and empty lines are yielded.
    """
    rest = b""
    while block := os.read(descriptor, 1 << 16):
        *lines, rest = (rest + block).split(b"\n")
        yield from lines


def reduce(spec: dict[str, Any], order: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Time all-reduces in this node's group of nodes; return what each of its ranks gave, by local index as text.

    A rank's entry is as in ``call_all``, its value what ``time_all_reduces`` returns, with ``step``, how many steps
    it had begun in the end. Empty: the node is in no group. ``spec`` is as of ``follow_orders``. ``order``: disjoint
    ``groups``, lists of nodes' names; the sizes of a buffer in ``bytes``, a list; after how many ``seconds`` a rank
    is given up; and the first ``port``: each group has its own from there on, in their order. With ``rails`` (may be
    missing), ranks of the same index form a group of their own, with a port of its own: as many for each of
    ``groups`` as a node has GPUs. Input on standard input ends it early.

    Raises:
        OSError: no folder, pipe or process can be made
        KeyError: ``spec`` or ``order`` lacks something, such as the first node's address
    """
    node = node_name(os.environ)
    own = [(number, group) for number, group in enumerate(order["groups"]) if node in group]
    if not own:
        return {}
    number, group = own[0]
    first = group.index(node) * spec["gpus"]
    calls: dict[str, Call] = {}
    steps = []
    with _folder() as folder:  # here, because a rank that is ended leaves everything behind
        for index in range(spec["gpus"]):
            step = _Step()
            log = folder / f"{index}.log"
            if order.get("rails"):
                rank = group.index(node)
                port = order["port"] + number * spec["gpus"] + index
            else:
                rank = first + index
                port = order["port"] + number
            member = _Member(spec, order, group, port, rank, index, step, log)
            calls[str(index)] = (partial(time_all_reduces, member), float(order["seconds"]))
            steps.append(step)
        found = call_all(calls, ORDERS)
    for index, step in enumerate(steps):
        found[str(index)]["step"] = step.reached
    return found


_FOLDER = "llmb-health-"
_YOUNG_SECONDS = 60.0
"""A younger folder may be one that somebody makes just now."""


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield the path of a new folder among the node's temporary files, which is removed when the context ends.

    It is locked as long as any process of this measurement lives. Folders that killed measurements have left are
    removed first.

    Raises:
        OSError: the folder cannot be made
    """
    _remove_left_behind(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
    lock = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # where the file system has no locks, nobody removes anything there
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_left_behind(parent: Path) -> None:
    """Remove from ``parent`` this user's folders of measurements whose processes have all ended; nothing else.

    They are those that ``_folder`` made, known by the beginning of their names. Folders changed within the last
    minute stay, and so does what cannot be removed.
    """
    for left in parent.glob(f"{_FOLDER}*"):
        with suppress(OSError):  # it is no folder, or somebody works there
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY)
            try:
                status = os.fstat(lock)
                if status.st_uid == os.geteuid() and time.time() - status.st_mtime > _YOUNG_SECONDS:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)


class _Step:
    """A counter of steps, shared by a forked child and its parent, that shows how far even a hanging child came.

    To be made, without arguments, before the fork. The child calls ``next`` at the beginning of each step; the
    parent reads the property ``reached``, an int, 0 at first.
    """

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 8)

    @property
    def reached(self) -> int:
        """The number of steps that the child has begun; 0: none. Every collective that a rank enters is a step."""
        return int(struct.unpack("q", self._shared[:8])[0])

    def next(self) -> None:
        """Count one more step as begun, for the parent process to see; called before whatever may hang."""
        self._shared[:8] = struct.pack("q", self.reached + 1)


class _Member:
    """One rank in a group of nodes whose all-reduces are timed.

    It is made from, in this order: ``spec`` and ``order`` of ``reduce``; ``group``, the nodes' names; ``port``, where
    ranks meet on the first of these nodes; ``rank``, from 0, which counts within the group, or among the ranks of the
    same index where rails are timed; ``index``, from 0, within the node; ``step``, what the rank counts its steps
    with; ``log``, the file for NCCL's lines. The last five are attributes; so are ``device``, ``is_rail``, ``world``
    (the number of ranks), ``address`` (of the first node), ``bytes`` (the buffer sizes) and ``patience``, a
    timedelta: how long the ranks wait for each other.

    Raises:
        KeyError: ``spec`` or ``order`` lacks something, such as the first node's address
    """

    def __init__(
        self,
        spec: dict[str, Any],
        order: dict[str, Any],
        group: list[str],
        port: int,
        rank: int,
        index: int,
        step: _Step,
        log: Path,
    ) -> None:
        self.device = spec["device"]
        self.is_rail = bool(order.get("rails"))
        self.world = len(group) * (1 if self.is_rail else spec["gpus"])
        self.address = spec["addresses"][group[0]]
        self.port, self.rank, self.index, self.step = port, rank, index, step
        self.bytes = order["bytes"]
        self.log = log
        self.patience = timedelta(seconds=order["seconds"])


def time_all_reduces(member: _Member) -> dict[str, Any]:
    """Join the rank's group, time all-reduces in it; return ``seconds`` of one for each buffer size, and ``log``.

    ``seconds`` is a list in the order of the member's ``bytes``. ``log`` is a list of NCCL's lines on the network
    that it chose, from a node's first rank, or from every rank where rails are timed; else, and on CPUs, it is
    empty. This process belongs to the group from then on: to be called in a process of its own.

    Raises:
        ValueError: an all-reduce gave a wrong sum
        Exception: torch's own error where the ranks do not meet in time, or there is no such GPU
    """
    member.step.next()
    take(member.device, member.index)
    if member.device == "cuda" and (member.index == 0 or member.is_rail):
        machine.log_nccl(os.environ, member.log)
    member.step.next()
    store = dist.TCPStore(
        member.address,
        member.port,
        member.world,
        member.rank == 0,
        timeout=member.patience,
        wait_for_workers=False,
    )
    backend = "nccl" if member.device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=member.rank, world_size=member.world, timeout=member.patience)
    seconds = [_all_reduce_seconds(member, store, number, size) for number, size in enumerate(member.bytes)]
    member.step.next()
    dist.barrier()  # whoever has the store must not go first
    log_lines = member.log.read_text(errors="replace").splitlines() if member.log.is_file() else []
    return {"seconds": seconds, "log": machine.of_the_network(log_lines)}


def _all_reduce_seconds(member: _Member, store: Any, number: int, size: int) -> float:
    """Return the usual seconds of one all-reduce of a buffer of ``size`` bytes: the median, on a CPU the shortest.

    The group must have been joined; every rank calls this with the same ``number`` and ``size``. The first one is
    not timed, but its sum checked; two blocks after it are not counted either. ``number``: which of the member's
    sizes it is, from 0, because a size may come twice. All ranks time as many (5 to 200 blocks), as rank 0 says
    through ``store``. The buffer is in fp32: ``size`` is rounded down to a multiple of 4.

    Raises:
        ValueError: the sum is wrong
        Exception: torch's own error where a rank does not answer in time
    """
    device, world = member.device, member.world
    data = torch.full((size // 4,), float(member.rank + 1), device=device)
    member.step.next()
    dist.all_reduce(data)
    if not bool((data == world * (world + 1) / 2).all()):
        raise ValueError("an all-reduce gave a wrong sum")
    # Sums of sums would soon overflow; zeros stay zeros.
    data.zero_()
    for _ in range(_BEFORE):
        warm = _block_seconds(member, data)
    # All ranks must enter as many.
    name = f"blocks of {number}"
    if member.rank == 0:
        fitting = int(_SECONDS[device] / warm)
        store.set(name, str(min(_MOST, max(_FEWEST, fitting))))
    member.step.next()
    count = int(store.get(name))
    return usual([_block_seconds(member, data) for _ in range(count)], device) / _BLOCK[device]


def _block_seconds(member: _Member, data: Any) -> float:
    """Return the seconds that a block of all-reduces of ``data`` takes: five in a row on a GPU, one on a CPU.

    ``data`` is a tensor on the member's device, which becomes the sum. Each all-reduce counts as a step of
    ``member``. All ranks of the group must call it.

    Raises:
        Exception: torch's own error where a rank does not answer in time
    """
    wait(member.device)
    begun = time.perf_counter()
    for _ in range(_BLOCK[member.device]):
        member.step.next()
        dist.all_reduce(data)
    wait(member.device)
    return time.perf_counter() - begun
