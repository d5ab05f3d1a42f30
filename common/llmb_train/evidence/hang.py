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
    """Keeps this rank's file ``ranks/<rank>.txt``: which process it is, and its stacks when a signal asks for them.

    It is made from the run's folder, where that file is, this process's ``Rank``, and the environment variables that
    name node and job. ``start`` writes the file and, on the main thread, answers the signal (SIGURG) from then on,
    which the supervisor sends when the job seems to hang; with ``uses_nccl`` it also sets variables in ``environ``
    for PyTorch's flight recorder, and is to be called before torch forms groups of ranks. ``finish``, at the end of
    training, removes a file without stacks. Both return None and never raise: a rank that cannot write trains all
    the same.
    """

    def __init__(self, folder: Path, rank: Rank, environ: MutableMapping[str, str]) -> None:
        self._rank, self._folder = rank, folder
        self._file: IO[str] | None = None
        self._head = (
            f"rank {rank.rank} local {rank.local_rank} host {machine.node_name(environ)} pid {os.getpid()}"
            f" job {environ.get('SLURM_JOB_ID') or '-'} restart {environ.get('SLURM_RESTART_COUNT') or 0}\n"
        )

    def start(self, environ: MutableMapping[str, str], *, uses_nccl: bool) -> None:
        """Write which process this rank is to its file, and have ``SIGNAL`` append the stacks of its threads.

        Nothing is sent here: the supervisor sends the signal. An earlier file of the rank is replaced; the run's
        folder must exist. The signal also has a thread write details on collectives. ``environ``: the process's
        variables; with ``uses_nccl`` those are set in it that make PyTorch record its collectives. Never raises;
        outside the main thread, and where the file cannot be written, no stacks are written.
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
        """Remove this rank's file if no stacks were asked for, so that nobody takes it for a hang's. Never raises.

        Where it was the last one, its folder goes, too, and that of details if it is empty. A file with stacks stays.
        """
        with contextlib.suppress(OSError, ValueError):
            if self._file is not None and os.fstat(self._file.fileno()).st_size == len(self._head.encode()):
                Path(self._file.name).unlink()
                for name in (FOLDER, FLIGHT):
                    with contextlib.suppress(OSError):  # the others are still there
                        (self._folder / name).rmdir()

    def _wait_for_requests(self, read: int) -> None:
        """Write details beyond the stacks whenever ``SIGNAL`` has come, until the pipe is closed.

        ``read`` is the descriptor from which the numbers of signals are read. Runs in a thread; errors in writing
        are ignored.

        Raises:
            OSError: the pipe cannot be read
        """
        while numbers := os.read(read, 64):
            if SIGNAL in numbers:
                with contextlib.suppress(Exception):  # a traceback here would look like the cause of the hang
                    self._write_details()

    def _write_details(self) -> None:
        """Write PyTorch's flight recorder of this rank to a file, and on rank 0 what NCCL's RAS says of the job.

        They are ``rank_NUMBER`` and ``ras.txt`` in the subfolder ``flight`` of the run's folder, and replace
        earlier ones. There is no ``rank_NUMBER`` where nothing was recorded, and no ``ras.txt`` where the program
        ``ncclras`` is missing or takes longer than 15 s.

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
    """Stop answering ``SIGNAL`` in this process, which was forked from a rank and shares its file. Never raises.

    It ignores the signal from then on.
    """
    with contextlib.suppress(Exception):
        faulthandler.unregister(SIGNAL)
        signal.set_wakeup_fd(-1)


def _enable_flight_recorder(environ: MutableMapping[str, str], folder: Path) -> None:
    """Set variables in ``environ`` that make PyTorch record collectives, and dump them to ``folder`` on a timeout.

    What the user has set stays. ``folder`` is created unless it exists or the user has named another place; its
    parent must exist. The installed torch's version decides the names: since torch 2.9 the variables have other
    names, and the old ones warn (c10d/FlightRecorder.hpp, ProcessGroupNCCL.cpp); a torch that cannot be found counts
    as new.

    Raises:
        OSError: ``folder`` cannot be created; the variables that make PyTorch record are set then
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
