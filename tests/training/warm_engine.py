"""Runs programs in forks of one process that has imported Megatron once, in 7 s. For the engine's Python.

    ENGINE_PYTHON tests/training/warm_engine.py     (PYTHONPATH=common)

Each line of standard input is a request, in JSON; the next one is read when its programs have ended:

    {"argv": ["-m", "llmb_train", "job.json"], "ranks": 2, "port": 23456, "env": {…},
     "cwd": "…", "out": "…", "log": "…"}     (on one line)

``argv`` is what follows ``python``: ``-m MODULE`` or a script, and its arguments. It runs once for each rank with
torchrun's variables, or, where ``ranks`` is null, once without them; ``env`` is the rest of its environment. The files
``out`` and ``log`` take its output and its errors. Answers are lines: the id of the process group, and when all have
ended 0 or the first failure's exit status.

What a fork is not: a fresh interpreter. The smoke recipes, the cluster's tests and those of signals start theirs.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import runpy
import signal
import sys
import traceback
from typing import Any


def import_everything() -> None:
    """What ``llmb_train`` imports on its way to the first step, with the patches for a CPU."""
    from llmb_train import cpu

    # As llmb_train does. A fork that looked for garbage among these objects would copy their pages, too.
    gc.disable()
    cpu.install()
    wanted = ["megatron.bridge.training.gpt_step", "megatron.bridge.training.pretrain"]
    wanted += ["llmb_train.config", "llmb_train.__main__"]
    if importlib.util.find_spec("megatron.bridge.perf_recipes") is not None:
        wanted += ["megatron.bridge.recipes", "llmb_train.functions"]
    for module in wanted:
        importlib.import_module(module)
    gc.freeze()
    gc.enable()


def run_program(argv: list[str]) -> int:
    """Run it in this process as the interpreter would; returns its exit status."""
    first, *rest = argv
    try:
        if first == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = argv
            runpy.run_path(first, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001  # as the interpreter does
        traceback.print_exc()
        return 1
    return 0


def fork_rank(request: dict[str, Any], variables: dict[str, str]) -> int:
    """Start one rank; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update({**request["env"], **variables})
        for descriptor, name in ((1, "out"), (2, "log")):
            file = os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(file, descriptor)
            os.close(file)
        status = run_program(request["argv"])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def lead(request: dict[str, Any]) -> int:
    """Start all ranks and wait for them, as torchrun does: if one fails, the others are ended."""
    ranks = request["ranks"]
    if ranks is None:
        return wait_for({fork_rank(request, {})})
    common = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(request["port"])}
    return wait_for({fork_rank(request, {**common, "RANK": str(i), "LOCAL_RANK": str(i)}) for i in range(ranks)})


def wait_for(running: set[int]) -> int:
    failed = 0
    while running:
        pid, result = os.wait()
        running.discard(pid)
        status = os.waitstatus_to_exitcode(result)
        if status and not failed:
            failed = status
            for other in running:
                os.kill(other, signal.SIGTERM)
    return failed


def main() -> None:
    # Imports may print, too: the answers get a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import_everything()
    while line := sys.stdin.readline():
        leader = os.fork()
        if leader == 0:
            os.setsid()
            os._exit(min(abs(lead(json.loads(line))), 255))
        print(leader, file=answers)
        _, result = os.waitpid(leader, 0)
        print(os.waitstatus_to_exitcode(result), file=answers)


if __name__ == "__main__":
    main()
