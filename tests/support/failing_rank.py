"""A training that fails for real: the "engine" of a site, standard library only, one function for each way to fail.

``FAILING`` names the way, ``FAILING_RANK`` the rank; the others wait for it at a barrier, as at a collective. It fails
after the steps that rank 0 prints, and not before, however late that one starts.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import json
import logging
import mmap
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

RANK, WORLD = int(os.environ.get("SLURM_PROCID", 0)), int(os.environ.get("SLURM_NTASKS", 1))


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def segfault() -> None:
    ctypes.string_at(0)


def fatal_python_error() -> None:
    faulthandler.enable()
    ctypes.string_at(0)


def bus_error() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(4096)
        memory = mmap.mmap(file.fileno(), 4096)
        file.truncate(0)
        print(memory[0])


def illegal_instruction() -> None:
    os.kill(os.getpid(), signal.SIGILL)


def aborted() -> None:
    os.abort()


def silent_exit() -> None:
    sys.exit(7)


def host_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    bytearray(4 << 30)


def too_many_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
    _ = [open("/dev/null") for _ in range(64)]  # noqa: PTH123, SIM115


def no_more_threads() -> None:
    os.setuid(65534)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    threading.Thread(target=time.sleep, args=(9,)).start()


def missing_module() -> None:
    __import__("megatron_of_another_image")


def exception() -> None:
    def forward(table: dict[str, int]) -> int:
        return table["qkv"]

    forward({})


def caught_before() -> None:
    """A traceback that a program has logged itself, then the one that counts."""
    logging.basicConfig()
    try:
        __import__("optional_package")
    except ImportError:
        logging.getLogger().warning("going on without it", exc_info=True)
    raise ValueError("GBS 7 does not fit")


def disk_full() -> None:
    with open("/dev/full", "wb") as file:  # noqa: PTH123
        file.write(b"x" * (1 << 20))


def file_too_large() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * (1 << 20))


def port_taken() -> None:
    first = socket.create_server(("127.0.0.1", 0))
    socket.create_server(first.getsockname())


def peer_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    socket.create_connection(("127.0.0.1", port))


def unknown_host() -> None:
    socket.getaddrinfo("no-such-host.invalid", 29500)


def missing_data() -> None:
    Path("/data/that/is/not/mounted/tokens.idx").read_bytes()


def forbidden() -> None:
    os.setuid(65534)
    Path("/root/.secret/index").read_bytes()


def damaged_checkpoint() -> None:
    pickle.loads(pickle.dumps({"step": 5})[:-3])


def empty_checkpoint() -> None:
    pickle.loads(b"")


def short_data() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * 100)
        file.flush()
        mmap.mmap(file.fileno(), 1 << 20)


def bad_data() -> None:
    json.loads('{"tokens": [1, 2')


def unknown_argument() -> None:
    argparse.ArgumentParser("pretrain_gpt.py").parse_args(["--tp-comm-overlapp"])


def wrong_layout() -> None:
    heads, ranks = 7, 4
    assert heads % ranks == 0, (
        f"num_attention_heads ({heads}) must be divisible by tensor_model_parallel_size ({ranks})"
    )


def missing_library() -> None:
    ctypes.CDLL("libcudart_of_another_image.so.13")


def missing_program() -> None:
    sys.exit(subprocess.run(["bash", "-c", "nvidia-smii --list-gpus"], check=False).returncode)


def recursion() -> None:
    recursion()


def stuck_in_python() -> None:
    def read_next_batch() -> None:
        while True:
            time.sleep(0.2)

    read_next_batch()


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def waits() -> None:
    """For somebody else to end it."""
    time.sleep(600)


def barrier() -> None:
    """As a collective: it waits for all, and says so when they are gone."""
    while True:
        time.sleep(0.1)


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from llmb_train.evidence.hang import HangReporter
    from llmb_train.ranks import find_rank
    from support.iteration_logs import mbridge_line

    way, printed = os.environ["FAILING"], Path(os.environ["LLMB_RUN_DIR"]) / "printed"
    HangReporter(Path(os.environ["LLMB_RUN_DIR"]), find_rank(os.environ), os.environ).start(os.environ, uses_nccl=False)
    if RANK == 0:
        print('LLMB manifest: {"torch": "none"}')
        for index in range(1, 1 + int(os.environ.get("FAILING_STEPS", "3"))):
            print(mbridge_line(index, milliseconds=100.0), end="", flush=True)
        printed.touch()
    if int(os.environ.get("FAILING_RANK", "2")) == RANK:
        deadline = time.monotonic() + 60
        while not printed.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)  # srun passes lines on
        globals()[way]()
    barrier()


if __name__ == "__main__":
    main()
