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
from llmb_common.base.errors import RecordError
from llmb_common.base.files import remedy_for, try_lock
from llmb_common.planning.job_plan import JobPlan, plan_as_dict
from llmb_common.runs.paths import experiments_folder
from llmb_common.submission.jobs import JobToSubmit

LEFTOVER_SECONDS = 24 * 3600
"""For this long an interrupted round is continued; after that the same command begins another."""

_FOLDER = ".submitting"


@dataclass
class Invocation:
    """``begun`` is None for a new round, else when it first began (Unix time). Set ``over`` when all are on record."""

    name: str
    begun: float | None = None
    over: bool = False


def digest_of(jobs: Sequence[JobToSubmit], *more: object) -> str:
    """Return 16 hexadecimal digits that identify the jobs in their order, with their options, the user and ``more``."""
    plans: dict[int, str] = {}
    for job in jobs:
        if id(job.plan) not in plans:
            plans[id(job.plan)] = digest_of_plan(job.plan)
    digest = hashlib.sha256(repr((os.getuid(), more)).encode())
    for job in jobs:
        digest.update(f"\0{plans[id(job.plan)]}\0{job.recipe_folder}\0{job.options}".encode())
    return digest.hexdigest()[:16]


def digest_of_plan(plan: JobPlan) -> str:
    """Return 16 hexadecimal digits that are the same for plans of the same job.

    Predictions are left out: they change with each run that has ended.
    """
    text = json.dumps(plan_as_dict(plan) | {"preflight": None}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def digest_of_file(task_file: str) -> str:
    """Return 16 hexadecimal digits that identify the file's name, whatever is in it, and the user."""
    return hashlib.sha256(repr((os.getuid(), task_file)).encode()).hexdigest()[:16]


@contextlib.contextmanager
def open_round(
    jobs: Sequence[JobToSubmit], digest: str, *, again: bool, say: Callable[[str], None]
) -> Iterator[Invocation]:
    """Yield the round of the command that ``digest`` identifies, new or one that was interrupted.

    With ``again`` always a new one. No other process works on it until the context ends; waits for one that does, and
    ``say``s so first. Its file is removed at the end where the caller has set ``over``; else the same command continues
    the round later.

    Raises:
        RecordError: its file cannot be written.
    """
    folder = experiments_folder(jobs[0].plan.workload_folder) / _FOLDER
    file = folder / digest
    descriptor = None
    try:
        try:
            descriptor = _open_locked(file, say)
            now = _read_round(descriptor, again=again)
        except OSError as error:
            raise RecordError(
                f"cannot write {file}: {error.strerror or error}",
                remedy=f"{remedy_for(error)}; then run the same command again",
            ) from error
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
    """Return a descriptor of ``file``, which is created if absent and stays locked until the descriptor is closed.

    Waits for another process that holds the lock, and ``say``s so first.

    Raises:
        OSError: it cannot be created or locked
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
    """Return the round in the locked file, if it began within a day.

    Else, or with ``again``, a new one, which is written.

    Raises:
        OSError: it cannot be read or written
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
