"""Nodes that are forks of one process, which has imported torch once, in 2 s. For the engine's Python.

ENGINE_PYTHON tests/training/warm_nodes.py FAULTS NODE... -- CODE SPEC

Each node runs ``CODE``, packed as ``health/node.sh`` unpacks it, with ``SPEC``; all of standard input goes to every
node, as srun hands it on, and what they print comes out together. ``FAULTS`` is JSON: by the name of a node, Python
that each of its ranks runs at the start of each all-reduce. ``entered`` is then a list that grows by one each time.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import time
import traceback
import zlib
from contextlib import suppress
from typing import Any

import torch.distributed as dist

ours = sys.argv.index("--")
faults = json.loads(sys.argv[1])
nodes = sys.argv[2:ours]
code, spec = sys.argv[ours + 1 :]

reduce = dist.all_reduce
entered: list[str] = []


def all_reduce(*words: Any, **more: Any) -> Any:
    node = os.environ["SLURMD_NODENAME"]
    entered.append(node)
    known = {"os": os, "signal": signal, "sys": sys, "time": time, "entered": entered}
    exec(faults.get(node, "pass"), known)
    return reduce(*words, **more)


def run_node(node: str, orders: int) -> None:
    """Be the node in this process, which ends."""
    status = 1
    try:
        os.dup2(orders, 0)
        os.closerange(3, 64)
        os.environ["SLURMD_NODENAME"] = node
        sys.argv = ["-c", code, spec]
        exec(zlib.decompress(base64.b64decode(code)).decode(), {"__name__": "__main__"})
        status = 0
    except BaseException:  # noqa: BLE001  # as the interpreter does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    dist.all_reduce = all_reduce
    inputs = []
    for node in nodes:
        orders, writing = os.pipe()
        if os.fork() == 0:
            run_node(node, orders)
        os.close(orders)
        inputs.append(writing)
    while block := os.read(0, 1 << 16):
        for writing in inputs:
            with suppress(BrokenPipeError):  # a node may be gone
                os.write(writing, block)
    for writing in inputs:
        os.close(writing)
    for _ in nodes:
        os.wait()


main()
