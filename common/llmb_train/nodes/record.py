"""What the ranks of a node record while they train: the node's file, and the peak memory of every rank's GPU.

``nodes/<host>.json`` is written when the ranks start, under load, and after training; each rank adds a line to
``nodes/<host>.memory.jsonl``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

from llmb_train.nodes import gpus, machine
from llmb_train.ranks import Rank

SCHEMA = 1
FOLDER = "nodes"
LOAD_STEP = 5
"""The step after which the GPUs are queried under load: they are warm, and measured iterations begin at the eleventh or
later."""
LAST_LOAD_STEP = 10
"""The step after which no further look under load begins."""

_LOOKS = 8
"""At most, under load: one look may meet a GPU while it waits for others."""
_LOOK_GAP = 0.5

_SECONDS_AFTER = 4.0
"""A job that was told to end has saved by then, and may be killed soon."""


class Node:
    """Writes what a node reports about itself during a run to ``nodes/<host>.json``, from the node's first rank.

    It is made from the run's folder, this process's ``Rank``, and the process's environment variables; call
    ``start`` first and ``finish`` last. ``start`` begins a look at the node, which ``wait`` waits for;
    ``after_step``, called with the number of steps that have ended in this process, has the GPUs looked at under
    load; ``finish`` looks once more. The file is one JSON object, replaced at each look, with, among others, the
    keys ``machine`` and ``before``, ``load`` and ``samples``, and ``after``. Other ranks only add their GPU's peak
    memory to ``nodes/<host>.memory.jsonl`` at the end, as the first one does. All return None; none raises or waits
    for longer than 12 seconds: what cannot be found out is recorded as missing, or not at all. Questions are asked
    in threads of their own, because reading a broken adapter's file can hang too.
    """

    def __init__(self, folder: Path, rank: Rank, environ: MutableMapping[str, str]) -> None:
        self._writes = rank.local_rank == 0
        self._on_gpu = False
        self._environ = environ
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._looked_enough = threading.Event()
        restart = environ.get("SLURM_RESTART_COUNT", "")
        name = re.sub(r"[^\w.-]", "_", machine.node_name(environ))[:100].lstrip(".") or "node"
        self._folder = folder / FOLDER
        self._file = self._folder / f"{name}.json"
        self._memory = self._folder / f"{name}.memory.jsonl"
        self._content: dict[str, Any] = {
            "schema": SCHEMA,
            "started": round(time.time(), 3),
            "job": environ.get("SLURM_JOB_ID"),
            "restart": int(restart) if restart.isdecimal() else 0,
            "rank": rank.rank,
            "host": machine.node_name(environ),
        }

    def start(self, *, uses_nccl: bool) -> None:
        """Begin to record this node's hardware and GPUs in a thread; only on the node's first rank.

        Called before torch is imported, which takes longer. ``uses_nccl`` (the job is on GPUs): variables are set in
        the ``environ`` that the object was made from, which make NCCL log to ``nodes/<host>.nccl.log``, unless the
        job sets such variables itself. An earlier start's log and file of peak memory are removed. The run's folder
        must exist, or nothing is written. Never raises.
        """
        self._on_gpu = uses_nccl
        if not self._writes:
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            self._memory.unlink(missing_ok=True)
            log = self._folder / f"{self._file.stem}.nccl.log"
            log.unlink(missing_ok=True)  # an earlier start of this job
            missing = machine.log_nccl(self._environ, log) if uses_nccl else "NCCL is for GPUs"
            self._content["nccl_missing"] = missing
        self._in_thread(self._record_at_start)

    def wait(self) -> None:
        """Wait, 12 seconds at most, for the look at this node that ``start`` began.

        One that hangs goes on in its thread. Returns at once on other ranks than the node's first.
        """
        self._join(gpus.SECONDS + 2)

    def after_step(self, number: int) -> None:
        """Begin to record the GPUs under load when step 5 has ended, and stop when step 10 has; else do nothing.

        ``number``: training steps that have ended in this process, to be told once for each. Other ranks than the
        node's first record nothing.
        """
        if number == LOAD_STEP:
            self._in_thread(self._record_under_load)
        if number == LAST_LOAD_STEP:
            self._looked_enough.set()

    def finish(self) -> None:
        """Record the node's GPUs after training, from its first rank, and on a GPU this rank's peak memory in bytes.

        Waits 5 s at most. Never raises. To be called once, when training has ended.
        """
        self._looked_enough.set()
        if self._on_gpu:
            self._record_peak_memory()
        self._in_thread(lambda: self._set_entry("after", gpus.snapshot(_SECONDS_AFTER)))
        self._join(_SECONDS_AFTER + 1)

    def _record_peak_memory(self) -> None:
        """Append this rank's line to the node's file of peak GPU memory, in bytes.

        It is a JSON object with ``job``, ``restart``, ``rank``, ``allocated``, ``reserved`` and, for the GPU's
        size, ``device``. Does nothing where that fails. A line is one write of one process of one machine: ranks do
        not wait for each other.
        """
        line = {name: self._content[name] for name in ("job", "restart", "rank")}
        with contextlib.suppress(Exception):
            from torch import cuda

            # Since the process began: Megatron-Bridge never resets these peaks (0.3.1, 0.6.0).
            line |= {"allocated": cuda.max_memory_allocated(), "reserved": cuda.max_memory_reserved()}
            line["device"] = cuda.mem_get_info()[1]
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
            with os.fdopen(os.open(self._memory, flags, 0o644), "wb", buffering=0) as stream:
                stream.write(f"{json.dumps(line)}\n".encode())

    def _join(self, seconds: float) -> None:
        """Wait, at most ``seconds`` in all, for the looks at this node that are under way; those that hang go on."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _record_under_load(self) -> None:
        """Record the GPUs up to eight times while they train, as ``load`` (the first) and ``samples`` (all of them).

        ``load`` is what ``gpus.snapshot`` returns, ``samples`` a list of what ``gpus.changing`` keeps of each. Half
        a second passes between two. Ends early when the GPUs do not answer, or enough steps have ended.
        """
        samples: list[dict[str, Any]] = []
        while True:
            look = gpus.snapshot()
            if not samples:
                self._set_entry("load", look)
            samples.append(gpus.changing(look))
            self._set_entry("samples", samples)
            if not look["gpus"] or len(samples) == _LOOKS or self._looked_enough.wait(_LOOK_GAP):
                return  # what does not answer once is not asked again

    def _record_at_start(self) -> None:
        """Write the node's facts (``machine``) and its GPUs' state before training (``before``) to its record.

        As ``machine.facts`` and ``gpus.snapshot`` return them.
        """
        self._set_entry("machine", machine.facts(self._environ))
        self._set_entry("before", gpus.snapshot())

    def _in_thread(self, query: Callable[[], None]) -> None:
        """Start ``query``, called without arguments, in a thread that drops its errors, and return at once.

        Does nothing on a rank that does not record its node, and where no thread can be started.
        """
        if not self._writes:
            return

        def quietly() -> None:
            """Call the enclosing function's ``query``, a look at this node, and drop its errors."""
            # A thread's traceback in the log would look like the cause of whatever comes later.
            with contextlib.suppress(Exception):
                query()

        with contextlib.suppress(RuntimeError):  # no more threads
            thread = threading.Thread(target=quietly, name="llmb-evidence", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _set_entry(self, name: str, value: object) -> None:
        """Set the entry ``name`` of the node's record to ``value``, a JSON value, and write the whole file anew.

        Safe to call from several threads. A file that cannot be written is tolerated.

        Raises:
            ValueError: ``value`` has NaN or infinity in it
        """
        with self._lock:
            self._content[name] = value
            text = json.dumps(self._content, allow_nan=False)
            # Replaced as a whole: whoever reads it sees the old content or the new one.
            temporary = self._file.with_name(f".{self._file.name}.{os.getpid()}.{secrets.token_hex(4)}")
            try:
                temporary.write_text(text + "\n", encoding="utf-8")
                temporary.replace(self._file)
            except OSError:
                temporary.unlink(missing_ok=True)
