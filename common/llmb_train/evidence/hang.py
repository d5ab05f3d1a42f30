"""What a rank says when its job hangs and asks it: its stack, PyTorch's flight recorder, and what NCCL knows.

The supervisor asks with a signal that does nothing to a process without a handler, because schedulers signal every
process of a step. Python's own faulthandler answers from within the signal handler, also where the interpreter is
stuck; everything else is left to a thread, which may get stuck as well.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import MutableMapping
from importlib import metadata
from pathlib import Path
from typing import IO

from llmb_train.nodes import machine
from llmb_train.ranks import Rank

FOLDER, FLIGHT = "ranks", "flight"
SIGNAL = signal.SIGURG


class HangReporter:
    """``ranks/<rank>.txt``: which process this rank is and where, and its stacks whenever it is asked.

    No method raises: a rank that cannot write trains all the same.
    """

    def __init__(self, folder: Path, rank: Rank, environ: MutableMapping[str, str]) -> None:
        self._rank, self._folder = rank, folder
        self._file: IO[str] | None = None
        self._head = (
            f"rank {rank.rank} local {rank.local_rank} host {machine.node_name(environ)} pid {os.getpid()}"
            f" job {environ.get('SLURM_JOB_ID') or '-'} restart {environ.get('SLURM_RESTART_COUNT') or 0}\n"
        )

    def start(self, environ: MutableMapping[str, str], *, uses_nccl: bool) -> None:
        """Write to the rank's file which rank this is, and from now on the stacks of its threads when ``SIGNAL``
        comes.

        ``uses_nccl``: PyTorch is told, by variables in ``environ``, to record its collectives. Never raises.
        """
        with contextlib.suppress(OSError, ValueError):
            if uses_nccl:
                _enable_flight_recorder(environ, self._folder / FLIGHT)
            (self._folder / FOLDER).mkdir(exist_ok=True)
            self._file = (self._folder / FOLDER / f"{self._rank.rank}.txt").open("w", encoding="utf-8")
            self._file.write(self._head)
            self._file.flush()
            read, write = os.pipe()
            os.set_blocking(write, False)
            # With a handler of Python's, the signal also reaches ``write``, which wakes the thread. Outside the main
            # thread, this raises ValueError.
            signal.signal(SIGNAL, lambda number, frame: None)
            signal.set_wakeup_fd(write, warn_on_full_buffer=False)
            faulthandler.register(SIGNAL, self._file, all_threads=True, chain=True)
            os.register_at_fork(
                after_in_child=_stop_answering
            )  # workers of a data loader would write into the same file
            threading.Thread(target=self._wait_for_requests, args=(read,), name="llmb-asked", daemon=True).start()

    def finish(self) -> None:
        """Remove the rank's file where nobody has asked for its stacks, so that it says nothing. Never raises."""
        with contextlib.suppress(OSError, ValueError):
            if self._file is not None and os.fstat(self._file.fileno()).st_size == len(self._head.encode()):
                Path(self._file.name).unlink()
                for name in (FOLDER, FLIGHT):
                    with contextlib.suppress(OSError):  # the others are still there
                        (self._folder / name).rmdir()

    def _wait_for_requests(self, read: int) -> None:
        """Write more than the stacks whenever the rank is asked, until the pipe ``read`` is closed; runs in a
        thread.
        """
        while numbers := os.read(read, 64):
            if SIGNAL in numbers:
                with contextlib.suppress(Exception):  # a traceback here would look like the cause of the hang
                    self._write_details()

    def _write_details(self) -> None:
        """Write the flight recorder's dump of this rank, if it has recorded something, and on rank 0 what NCCL's RAS
        says.

        They are ``rank_NUMBER`` and ``ras.txt`` in the subfolder ``FLIGHT``; no ``ras.txt`` where ``ncclras`` is
        missing or runs too long.

        Raises:
            OSError: the subfolder cannot be made, or the dump cannot be written
        """
        folder = self._folder / FLIGHT
        folder.mkdir(exist_ok=True)
        if self._rank.rank == 0 and (program := shutil.which("ncclras")):
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                done = subprocess.run([program, "-v"], capture_output=True, timeout=15.0, check=False)
                (folder / "ras.txt").write_bytes(done.stdout[: 1 << 20])
        torch = sys.modules.get("torch")
        library = getattr(getattr(torch, "_C", None), "_distributed_c10d", None)
        for name in ("_dump_nccl_trace", "_dump_fr_trace"):
            dump = getattr(library, name, None)
            content = dump() if dump else b""
            if b"profiling_name" in content:  # it has recorded something
                temporary = folder / f".rank_{self._rank.rank}"
                temporary.write_bytes(content)
                temporary.replace(folder / f"rank_{self._rank.rank}")
                return


def _stop_answering() -> None:
    """Stop answering the signal, in a process that was forked from a rank. Never raises."""
    with contextlib.suppress(Exception):
        faulthandler.unregister(SIGNAL)
        signal.set_wakeup_fd(-1)


def _enable_flight_recorder(environ: MutableMapping[str, str], folder: Path) -> None:
    """Set in ``environ`` that PyTorch records collectives and writes them to ``folder`` when one times out.

    What the user has set stays. Since 2.9 the variables have other names, and the old ones warn
    (c10d/FlightRecorder.hpp, ProcessGroupNCCL.cpp).
    """
    old = False
    with contextlib.suppress(metadata.PackageNotFoundError, ValueError):
        major, minor = metadata.version("torch").split(".")[:2]
        old = (int(major), int(minor)) < (2, 9)
    size = "TORCH_NCCL_TRACE_BUFFER_SIZE" if old else "TORCH_FR_BUFFER_SIZE"
    file = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" if old else "TORCH_FR_DUMP_TEMP_FILE"
    taken = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT")
    if not any(environ.get(name) for name in taken):
        environ[size] = "2000"  # collectives: PyTorch's own number since 2.9, a few MB
        environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "1"
    if not any(environ.get(name) for name in ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")):
        folder.mkdir(exist_ok=True)
        environ[file] = f"{folder}/rank_"
