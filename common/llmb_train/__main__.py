"""``python -m llmb_train job.json``: one rank's run, from the file to the last step (started by torchrun or srun)."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import platform
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llmb_train import engine as engines
from llmb_train import mpi, named_settings, refusals
from llmb_train.engine import Engine, package_version
from llmb_train.errors import EngineError, JobError, TrainError, WrongEngine
from llmb_train.evidence.hang import HangReporter
from llmb_train.job import AnyJob, FunctionJob, Job, load_job
from llmb_train.nodes.machine import DRIVER_FILE, driver_version
from llmb_train.nodes.record import Node
from llmb_train.ranks import find_rank, first_rank, notice


def main(arguments: list[str]) -> int:
    """Train, as this rank, the job whose job.json is the only word of ``arguments``, and return the exit status.

    ``arguments`` are without the program's name. 0: trained, nothing was left to train, or only ``-h`` or
    ``--help`` was given; 2: the job or the call is wrong (also a word that begins with a hyphen); 3: the engine
    lacks something, or would train something else than was planned. Errors of these kinds are printed on stderr; an
    error of the training itself is raised as it comes.

    Raises:
        SystemExit: as ``run`` does, and with the status of an error on SIGTERM
        Exception: whatever the training itself raises
    """
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m llmb_train job.json", file=sys.stderr)
        return 0 if arguments in (["-h"], ["--help"]) else 2
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # Bridge prints paths, and PYTHONIOENCODING may be ascii
            stream.reconfigure(errors="backslashreplace")
    try:
        job_file = Path(arguments[0]).absolute()
        # A wrong job is reported in milliseconds, not after seconds of importing torch.
        run(load_job(job_file), job_file.parent)
    except TrainError as error:
        _print_error(error)
        return error.exit_status
    return 0


def _print_error(error: TrainError) -> None:
    """Print ``error`` on stderr, as ``llmb_train: error: MESSAGE``, unless the job's first rank prints the same one.

    An error that all ranks have is left to the first rank: another rank waits up to a minute for the launcher to
    end it, and prints the error only then. That nothing was left to train is printed by the first rank only, as a
    notice, and no rank waits. What one node lacks is printed at once by its ranks.

    Raises:
        SystemExit: with the error's status, when SIGTERM comes while it waits
    """
    # A wrong job is wrong on all ranks, and a thousand copies hide the message; a node that lacks something must say
    # so itself.
    lacking = isinstance(error, EngineError) and not isinstance(error, WrongEngine)
    if not (first_rank(os.environ) or lacking):
        if error.exit_status == 0:
            return
        _wait_to_be_ended(error.exit_status)
    kind = "error" if error.exit_status else "notice"
    print(f"llmb_train: {kind}: {error}", file=sys.stderr, flush=True)


def _wait_to_be_ended(status: int) -> None:
    """Wait up to 60 seconds for the launcher's SIGTERM, on which this process exits with ``status``; then return.

    Launchers end all ranks as soon as one fails: had this rank been faster than the first one, the first could not
    print the error. The handler for SIGTERM stays installed. Call it on the main thread.

    Raises:
        SystemExit: with ``status``, when SIGTERM comes
    """

    def end(number: int, frame: object) -> None:
        """Handle SIGTERM: end this process with the outer function's ``status``; the arguments are not used.

        Raises:
            SystemExit: always
        """
        raise SystemExit(status)

    signal.signal(signal.SIGTERM, end)
    time.sleep(60)  # the first rank has this long to say what is wrong with all of them


def run(job: Job | FunctionJob, folder: Path) -> None:
    """Train ``job`` as the rank that the environment names, until its last step.

    ``folder`` is the run's folder, with its job.json, into which the rank writes its evidence and ``config.yaml``.
    Changes environment variables of the process, its signal handlers and its garbage collection, and patches torch
    and Megatron; to be called once in a process.

    Raises:
        TrainError: the job is wrong, nothing is left to train, or this machine lacks something; nothing was trained
        SystemExit: with 0, at the end of a run that saves checkpoints: that is how Megatron-Bridge leaves its loop
        Exception: whatever the training itself raises
    """
    rank = find_rank(os.environ)
    if rank.world_size != job.world_size:
        raise JobError(
            f"job.json is for {job.world_size} ranks, but {rank.world_size} were started",
            remedy="start as many tasks as the plan says, or plan the job again",
        )
    rank.export(os.environ)
    engine = engines.find_engine(job.device, job.release)
    refusals.check(job, engine)  # before torch and Megatron take seconds to import
    # Importing Megatron makes a million objects that stay: looking for garbage among them takes 40 % of the time.
    gc.disable()
    on_gpu = engine.device == "cuda"
    node = Node(folder, rank, os.environ)
    reporter = HangReporter(folder, rank, os.environ)
    reporter.start(os.environ, uses_nccl=on_gpu)
    node.start(uses_nccl=on_gpu)
    pretrain = _import_pretrain(job, engine, says=rank.rank == 0)

    config, forward_step = _configuration(job, engine)
    named_settings.apply(job, config)
    if engine.transformer_engine:
        mpi.require_starter(job, config, os.environ)
    config.logger.save_config_filepath = str(folder / "config.yaml")  # rank 0 writes it, fully resolved

    from llmb_train.callbacks import callbacks
    from llmb_train.helpers import shield_managers

    if job.checkpoint.save is not None:
        shield_managers()
    if not on_gpu:
        gc.freeze()  # so do the collections to come; on a GPU they stay as NVIDIA's launchers have them
    gc.enable()
    node.wait()
    try:
        pretrain(config, forward_step, callbacks=callbacks(job, node, folder))
    except SystemExit as end:
        if not end.code:
            _record_end(job, node, reporter)
        raise
    _record_end(job, node, reporter)


def _import_pretrain(job: Job | FunctionJob, engine: Engine, *, says: bool) -> Callable[..., None]:
    """Return Megatron-Bridge's ``pretrain``, imported after installing the patches that ``engine`` needs.

    ``says``: this rank also prints the header of the log of ``job``. The working folder is ``/`` meanwhile: all nodes
    share the run's, and in NVIDIA's images modelopt, which Megatron-Bridge imports, looks for its own files there
    first, 700 times by each rank.

    Raises:
        Exception: whatever importing torch and Megatron-Bridge raises
    """
    with _outside_working_folder():
        engines.install_patches(engine)
        if says:
            print_header(job, engine)
        from megatron.bridge.training.pretrain import pretrain
    function: Callable[..., None] = pretrain
    return function


@contextlib.contextmanager
def _outside_working_folder() -> Iterator[None]:
    """Change the process's working folder to ``/`` until the context ends, then back, also after an error.

    Leaves it as it is where the present working folder cannot be opened, since there would be no way back. Yields
    None.
    """
    try:
        working = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield
        return
    try:
        os.chdir("/")
        yield
    finally:
        os.fchdir(working)  # not by its name: the folder may have been removed
        os.close(working)


def _record_end(job: Job | FunctionJob, node: Node, reporter: HangReporter) -> None:
    """Record in the run's folder that this rank has trained to its end; never raises.

    ``node`` and ``reporter`` must have been started. Where the job saves checkpoints, SIGTERM is ignored from then
    on: all is saved.
    """
    if job.checkpoint.save is not None:
        # All is saved. Python gives signals their defaults back when it exits, and this one is sent until it has.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    node.finish()
    reporter.finish()


def _configuration(job: Job | FunctionJob, engine: Engine) -> tuple[Any, Callable[..., Any]]:
    """Return (Megatron-Bridge's configuration for ``job``, its function for one forward step). Imports Megatron.

    The configuration is a ``ConfigContainer``, and the function what ``pretrain`` takes as its forward step. The
    patches that ``engine`` needs must be installed.

    Raises:
        TrainError: the job asks for what this engine or its Megatron-Bridge does not have, or nothing is left to
            train
        OSError: the index of the checkpoint to load cannot be read
        ImportError: this Megatron-Bridge has no module of a part that is needed
        KeyError: there is no such combination of dtype and FP8 recipe
    """
    if isinstance(job, FunctionJob):
        from llmb_train import functions, perf_recipes

        perf_recipes.prefer_files()
        return functions.build_config(job, engine), functions.forward_step(job.function.name)
    from megatron.bridge.training.gpt_step import forward_step

    from llmb_train.config import build_config

    return build_config(job, engine), forward_step


def print_header(job: Job | FunctionJob, engine: Engine) -> None:
    """Print the head of the job's log to standard output: ``LLMB manifest: {json}``, then ``LLMB notice: ...`` lines.

    Call it on the job's first rank only: every caller prints the manifest, though no other rank prints notices. The
    run's record takes the manifest from there. Imports torch; the engine's patches must be installed.
    """
    print("LLMB manifest: " + json.dumps(_manifest(job, engine), sort_keys=True), flush=True)
    for text in refusals.notices(job, engine):
        notice(text)


def _manifest(job: AnyJob, engine: Engine) -> dict[str, str | int | None]:
    """Return what this rank sees: host, GPU, world size, and versions of Python, torch, Megatron and others.

    The keys are ``run_id``, ``hostname``, ``device``, ``gpu`` (its name), ``world_size``, ``layers``, ``python``,
    ``torch``, ``megatron_bridge``, ``megatron_core``, ``transformer_engine``, ``cuda``, ``nccl`` and ``driver``.
    The GPU is the node's first; ``layers`` is ``transformer_engine`` or ``local``, by whose modules the layers are.
    None as a value: there is none (no GPU, no Transformer Engine), or it cannot be determined. Imports torch, which
    must have a GPU where ``engine`` is one for GPUs.
    """
    import torch

    gpu = engine.device == "cuda"
    return {
        "run_id": job.run_id,
        "hostname": socket.gethostname(),
        "device": engine.device,
        "gpu": torch.cuda.get_device_name(0) if gpu else None,
        "world_size": job.world_size,
        "layers": "transformer_engine" if engine.transformer_engine else "local",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "megatron_bridge": package_version("megatron-bridge"),
        "megatron_core": package_version("megatron-core"),
        "transformer_engine": package_version("transformer-engine") if engine.transformer_engine else None,
        "cuda": torch.version.cuda if gpu else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if gpu else None,
        "driver": driver_version(DRIVER_FILE) if gpu else None,
    }


def _keep_warnings_warnings() -> None:
    """Undo ``PYTHONWARNINGS=error`` and ``-W error`` for this process and those that it starts; else do nothing.

    Importing torch warns, which would end the rank; the variable was exported for some other program. It is removed
    from the environment, and all warnings are then shown as by default.
    """
    if any(option.startswith("error") for option in sys.warnoptions):
        os.environ.pop("PYTHONWARNINGS", None)  # of the processes that it starts
        warnings.simplefilter("default")


# Saving a checkpoint starts a process that imports this module again.
if __name__ == "__main__":
    _keep_warnings_warnings()
    raise SystemExit(main(sys.argv[1:]))
