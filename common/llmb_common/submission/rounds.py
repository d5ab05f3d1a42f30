"""A round: the jobs that one command submits, by one process at a time.

When a round was killed, or not every job could be submitted, the same command continues it: it gets the same name, from
which the jobs' keys are made, and a key that is on record is not submitted again. Once every job of a round is on
record the round is over, and the same command begins another.

The state is a file beside the experiments, where whoever may submit may write. It is locked while jobs are submitted,
and removed when the round is over.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmb_common.base.clocks import CLOCKS_SECONDS
from llmb_common.base.files import try_lock, unwritable
from llmb_common.planning.job_plan import JobPlan, plan_as_dict
from llmb_common.runs.paths import experiments_folder
from llmb_common.submission.jobs import LEFTOVER_SECONDS, JobToSubmit

_FOLDER = ".submitting"


@dataclass
class Invocation:
    """One round: the jobs that one command submits, which the same command continues if it was interrupted.

    ``open_round`` makes it; the caller makes the jobs' keys from ``name`` and sets ``over`` to True in the end.
    """

    name: str
    """Eight random hexadecimal digits, from which the jobs' keys are made."""
    begun: float | None = None
    """Unix time at which an interrupted round first began; None: it is a new round."""
    over: bool = False
    """Set by the caller once every job is on record: the same command then begins another round."""


def digest_of(jobs: Sequence[JobToSubmit], *more: object) -> str:
    """Return 16 hexadecimal digits that identify a request: its jobs in order, the user and ``more``.

    Of each job the plan (without its ``preflight``), the recipe's folder and the options (without ``left_out``)
    count. ``more`` is whatever else tells requests apart; its ``repr`` must be the same in every process.
    """
    plans: dict[int, str] = {}
    for job in jobs:
        if id(job.plan) not in plans:
            plans[id(job.plan)] = digest_of_plan(job.plan)
    digest = hashlib.sha256(repr((os.getuid(), more)).encode())
    for job in jobs:
        digest.update(f"\0{plans[id(job.plan)]}\0{job.recipe_folder}\0{job.options}".encode())
    return digest.hexdigest()[:16]


def digest_of_plan(plan: JobPlan) -> str:
    """Return 16 hexadecimal digits that are equal for equal plans, whatever their ``preflight`` is.

    That has predictions, which change with each run that has ended.
    """
    text = json.dumps(plan_as_dict(plan) | {"preflight": None}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def digest_of_file(task_file: str) -> str:
    """Return 16 hexadecimal digits that identify the user and the path ``task_file``, whatever the file contains.

    The text of the path counts as it is given; the file is not looked at.
    """
    return hashlib.sha256(repr((os.getuid(), task_file)).encode()).hexdigest()[:16]


@contextlib.contextmanager
def open_round(
    jobs: Sequence[JobToSubmit], digest: str, *, again: bool, say: Callable[[str], None]
) -> Iterator[Invocation]:
    """Yield the round of the command that ``digest`` identifies: the interrupted one, else a new one.

    ``digest`` is a text such as ``digest_of`` returns, usable as a file name. With ``again``, or where the
    interrupted one began more than a day ago, it is a new one. The round's file, in the folder of experiments of
    the first of ``jobs`` (at least one), is locked until the context ends; where another process holds it, ``say``
    is called with a clause, and this one waits without limit. If the caller has set ``over``, the file is removed
    at the end; otherwise, and where the context ends with an error, the same command continues the round later.
    Missing folders are made, and removed again where nothing is in them at the end.

    Raises:
        RecordError: the round's file cannot be read, written or locked
    """
    folder = experiments_folder(jobs[0].plan.workload_folder) / _FOLDER
    file = folder / digest
    descriptor = None
    try:
        try:
            descriptor = _open_locked(file, say)
            now = _read_round(descriptor, again=again)
        except OSError as error:
            raise unwritable(file, error) from error
        yield now
        if now.over:
            with contextlib.suppress(OSError):
                file.unlink()
    finally:
        if descriptor is not None:
            os.close(descriptor)
            with contextlib.suppress(OSError):  # others are submitting, or there are runs
                folder.rmdir()
                folder.parent.rmdir()


def _open_locked(file: Path, say: Callable[[str], None]) -> int:
    """Return a descriptor of the round's file ``file``, locked by this process until the caller closes it.

    File and folder are created where they are missing; a link is refused. If another process holds the lock, calls
    ``say`` with a clause, once, and waits without limit. On a file system without locks nothing is locked.

    Raises:
        OSError: the file cannot be created or locked
    """
    waits = False
    while True:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except FileNotFoundError:
            continue  # the previous process has just removed the folder
        try:
            if not try_lock(descriptor):
                if not waits:
                    say("another process is submitting these jobs: waiting for it (Ctrl-C only stops waiting)")
                waits = True
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the previous process has finished and removed the file


def _read_round(descriptor: int, *, again: bool) -> Invocation:
    """Return the round in the locked file behind ``descriptor``, or else a new one, which is written to the file.

    The one in the file counts if it began within the last day, and ``again`` is False. It does not with ``again``,
    where it is older or began in the future, by more than clocks differ, nor where the file is empty or damaged.

    Raises:
        OSError: the file cannot be read or written
    """
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        name, begun = str(found["round"]), float(found["begun"])
        age = time.time() - begun
        # One that began in the future, by more than clocks differ, is from before this clock was set back.
        if not again and -CLOCKS_SECONDS <= age < LEFTOVER_SECONDS:
            return Invocation(name, begun)
    except (ValueError, KeyError, TypeError):
        pass  # new, or killed while writing it: nothing had been submitted
    new = Invocation(secrets.token_hex(4))
    text = json.dumps({"round": new.name, "begun": time.time()}).encode()
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text, 0)
    os.fsync(descriptor)
    return new
