"""The record of a run, ``run.json``: the truth about what was asked, submitted and seen.

It is on disk, synced, before anything is submitted, and holds the run id that also stands in the Slurm job name:
after a crash the scheduler can be asked for it. A run folder appears under its name only when it is complete;
what a killed process leaves is a hidden ``.making-...`` folder, which is no run.

``RunRecord`` is read and written whole. Several processes may follow the same run, so a change after the
creation goes through ``update_record``, which reads, changes and writes under a lock.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import secrets
import shutil
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.errors import RecordError
from llmb_common.files import fsync_folder, read_json, read_plain, write_atomic
from llmb_common.planning.job_plan import JobPlan, plan_as_dict, plan_from_dict
from llmb_common.process import ProcessId, identify
from llmb_common.rendering.job import job_document
from llmb_common.rendering.script import render_script
from llmb_common.runs.fields import check_fields
from llmb_common.runs.lock import locked
from llmb_common.runs.ownership import close_to_others, me, own_run
from llmb_common.runs.paths import ARRAY_PREFIX, RunPaths, experiments_folder, numbered
from llmb_common.structs import from_plain

SCHEMA = 1

# States of a run that are ours; once a scheduler knows the job, its own words are kept (PENDING, TIMEOUT, ...).
SUBMITTING = "SUBMITTING"
SUBMITTED = "SUBMITTED"
NOT_SUBMITTED = "NOT_SUBMITTED"
LOST = "LOST"
RUNNING = "RUNNING"
COMPLETED = "COMPLETED"
FAILED = "FAILED"
CANCELLED = "CANCELLED"

_newest_stamp: dict[Path, tuple[int, int]] = {}
"""The last second, and number in it, that this process took in an experiment's folder: a sweep makes many at once."""

_MOST_IN_A_SECOND = 10_000

_MAKING = ".making-"
_LEFTOVER_SECONDS = 24 * 3600


class ArrayTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The run's place in a Slurm job array: our own id of it, which its job name holds, and the task's number."""

    array_id: str
    index: int


class Submission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the run was submitted, beyond its plan.

    ``key`` is the caller's own name for it, ``options`` are ``sbatch``'s, ``chain`` is the run id of a chain's first
    run and ``link`` this one's place in it, from 1. ``task`` is None for a job of its own.
    """

    key: str = ""
    options: tuple[str, ...] = ()
    chain: str = ""
    link: int = 0
    task: ArrayTask | None = None

    def alone(self) -> Submission:
        """The same as a job of its own."""
        return msgspec.structs.replace(self, task=None)


@dataclass(frozen=True)
class RunRecord:
    """One ``run.json``. ``states`` is the history, oldest first: (state, Unix time, detail)."""

    paths: RunPaths
    plan: JobPlan
    job_id: str | None = None
    states: tuple[tuple[str, float, str], ...] = ()
    manifest: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] | None = None
    submission: Submission = field(default_factory=Submission)
    submitter: ProcessId | None = None
    """The process that is submitting, or did."""
    process: ProcessId | None = None
    """A local run's own process."""
    missing_since: float | None = None
    """Since when the scheduler, asked with success, shows no such job."""

    @property
    def state(self) -> str:
        return self.states[-1][0] if self.states else SUBMITTING

    @property
    def state_time(self) -> float:
        """Since when the run is in its state, as Unix time; 0 before there is one."""
        return self.states[-1][1] if self.states else 0.0

    @property
    def detail(self) -> str:
        return self.states[-1][2] if self.states else ""

    @property
    def created(self) -> float:
        return self.states[0][1] if self.states else 0.0

    @property
    def job_name(self) -> str:
        """The name of the run's job in Slurm; all tasks of an array have the array's."""
        task = self.submission.task
        return self.paths.job_name if task is None else self.paths.array(task.array_id).job_name

    @property
    def submitted_script(self) -> Path:
        """What ``sbatch`` is given: the run's script, or its array's, which starts that one."""
        task = self.submission.task
        return self.paths.script if task is None else self.paths.array(task.array_id).script

    def with_state(self, state: str, detail: str = "", since: float | None = None) -> RunRecord:
        """A copy that is in ``state`` since Unix time ``since`` (default: now); the same twice adds nothing."""
        if self.states and self.state == state and detail in ("", self.detail):
            return self
        when = max(self.state_time, time.time() if since is None else since)  # clocks differ: history stays in order
        return replace(self, states=(*self.states, (state, round(when, 3), detail)))

    def save(self) -> None:
        """Write the record. Raises RecordError."""
        # A power cut may bring the former record back: what became of the job is then found out once more.
        write_atomic(self.paths.record, _json(self.as_dict()), sync_folder=False)

    def as_dict(self) -> dict[str, Any]:
        """The content of run.json."""
        return {
            "schema": SCHEMA,
            "run_id": self.paths.run_id,
            "name": self.paths.name,
            "experiment_name": self.paths.experiment_name,
            "workload": self.plan.workload,
            "executor": self.plan.cluster_type,
            "job_id": self.job_id,
            "state": self.state,
            "states": [{"state": state, "time": when, "detail": detail} for state, when, detail in self.states],
            "plan": plan_as_dict(self.plan),
            "manifest": self.manifest,
            "results": self.results,
            "submission": msgspec.to_builtins(self.submission),
            "submitter": msgspec.to_builtins(self.submitter),
            "process": msgspec.to_builtins(self.process),
            "missing_since": self.missing_since,
        }


def load_record(folder: Path, content: bytes | None = None) -> RunRecord:
    """The record in a run folder, or in ``content``, which was read from there.

    Raises RecordError when there is none or it cannot be read.
    """
    file = folder / "run.json"
    try:
        value = read_json(file, read_plain(file) if content is None else content)
    except OSError as error:
        raise RecordError(f"cannot read {file}: {error.strerror or error}") from error
    try:
        if value["schema"] != SCHEMA:
            raise RecordError(f"{folder}/run.json has schema {value['schema']}, this version reads {SCHEMA}")
        experiment = value["experiment_name"]
        plan = plan_from_dict(value["plan"])
        check_fields(value, plan.experiment_name, folder.name)
        return RunRecord(
            paths=RunPaths(
                folder.parent.parent, experiment, folder.name.removeprefix(f"{experiment}_"), value["run_id"]
            ),
            plan=plan,
            job_id=value["job_id"],
            states=tuple((s["state"], s["time"], s["detail"]) for s in value["states"]),
            manifest=value["manifest"],
            results=value["results"],
            submission=from_plain(value["submission"], Submission),
            submitter=from_plain(value["submitter"], ProcessId | None),
            process=from_plain(value["process"], ProcessId | None),
            missing_since=value["missing_since"],
        )
    except (KeyError, TypeError, ValueError, AttributeError, msgspec.ValidationError) as error:
        raise RecordError(
            f"{folder}/run.json is not a run record: {error}", remedy="restore the file or remove the run's folder"
        ) from error


def update_record(folder: Path, change: Callable[[RunRecord], RunRecord]) -> RunRecord:
    """Read the record in ``folder``, apply ``change`` and write the result if it differs, under the run's lock.

    Raises RecordError, with code ``not-yours`` for a run of someone else.
    """
    with own_run(folder) as run, locked(run):
        record = load_record(folder, run.read("run.json"))
        if record.paths.folder != folder:
            raise RecordError(f"{folder} was moved: its record is of {record.paths.folder}", remedy="move it back")
        changed = change(record)
        if changed != record:
            changed.save()
        return changed


def pack_code(code: Path) -> bytes:
    """The package in folder ``code`` as a zip archive to import from: the same bytes for the same files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(code.rglob("*.py")):
            name = f"{code.name}/{path.relative_to(code).as_posix()}"
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes())  # ZipInfo: a fixed date
    return buffer.getvalue()


def hash_of_packed(code: bytes) -> str:
    """``sha256_of_tree(code, "**/*.py")`` of the package in the zip archive ``code``. Raises RecordError."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(io.BytesIO(code)) as archive:
            for name in archive.namelist():
                content = hashlib.sha256(archive.read(name)).hexdigest()
                digest.update(f"{name.partition('/')[2]}\0{content}\n".encode())
    except (OSError, zipfile.BadZipFile) as error:
        raise RecordError(f"the packed training code cannot be read: {error}") from error
    return digest.hexdigest()


def create_run(
    plan: JobPlan, code: Path | bytes, manifest: dict[str, Any], submission: Submission | None = None
) -> RunRecord:
    """Make the run folder with script, job.json, code and record, synced: the intent, before submission.

    ``code`` is the folder of the ``llmb_train`` package to run, or what ``pack_code`` made of it. Raises RecordError,
    or RequestError from rendering (before anything is written).
    """
    probe = RunPaths(
        experiments_folder(plan.workload_folder), plan.experiment_name, str(int(time.time())), secrets.token_hex(4)
    )
    render_script(plan, probe)  # a path that cannot be rendered must leave nothing behind
    try:
        paths, making = _begin(probe)
        record = RunRecord(paths, plan, manifest=manifest, submission=submission or Submission(), submitter=identify())
        record = record.with_state(SUBMITTING)
        _fill(making, record, code if isinstance(code, bytes) else pack_code(code))
        making.rename(paths.folder)
        fsync_folder(paths.folder.parent)
    except OSError as error:
        raise RecordError(
            f"cannot write the run folder in {probe.folder.parent}: {error.strerror or error}",
            remedy=_where_to_write(error),
        ) from error
    return record


def _where_to_write(error: OSError) -> str:
    """What to do where a run folder cannot be made."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "in an installation of somebody else, keep your runs elsewhere: export LLMB_WORKLOAD=/a/folder/of/yours"
    return "check that LLMB_INSTALL exists, free space and quota; then run the same command again"


def _begin(probe: RunPaths) -> tuple[RunPaths, Path]:
    """Reserve a name by its hidden folder; further runs in the same second get a number."""
    parent = probe.folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    if parent not in _newest_stamp:
        close_to_others(parent.parent)
        close_to_others(parent)
        _remove_leftovers(parent)
    second = int(probe.stamp)
    last, used = _newest_stamp.get(parent, (0, 0))
    first = used + 1 if last == second else 1
    for number in range(first, _MOST_IN_A_SECOND):
        paths = replace(probe, stamp=numbered(second, number))
        making = parent / f"{_MAKING}{paths.name}"
        if paths.folder.exists():
            continue
        try:
            making.mkdir(mode=0o755, parents=True)  # whatever the umask: only its owner changes a run
        except FileExistsError:
            continue
        if not paths.folder.exists():  # the other process may have finished in between
            _newest_stamp[parent] = second, number
            return paths, making
        making.rmdir()
    raise RecordError(f"no free name for a run in {parent}", remedy="try again in a moment")


def _remove_leftovers(parent: Path) -> None:
    """Remove what processes that were killed while making a run left here a day ago or earlier, and arrays of which no
    run is left."""
    for folder in parent.glob(f"{_MAKING}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if status.st_uid == me() and time.time() - status.st_mtime > _LEFTOVER_SECONDS:
                shutil.rmtree(folder)
    for folder in parent.glob(f"{ARRAY_PREFIX}*"):
        with contextlib.suppress(OSError):
            runs = (link for link in folder.iterdir() if link.is_symlink())
            status = folder.lstat()
            old = status.st_uid == me() and time.time() - status.st_mtime > _LEFTOVER_SECONDS
            if old and not any(run.exists() for run in runs):
                shutil.rmtree(folder)


def _fill(making: Path, record: RunRecord, code: bytes) -> None:
    """Write everything of ``record`` into the folder that is not yet the run's; all relative to its final place."""
    paths, plan = record.paths, record.plan

    def here(path: Path) -> Path:
        return making / path.relative_to(paths.folder)

    for folder in (paths.output, paths.profiles) if plan.profile else (paths.output,):
        here(folder).mkdir(mode=0o755)
    _write_new(here(paths.code), code)
    _write_new(here(paths.job), job_text(plan, paths))
    _write_new(here(paths.script), render_script(plan, paths).encode(), mode=0o755)
    # The intent must survive a power cut. Were the other files lost in one, the job would fail and say why.
    _write_new(here(paths.record), _json(record.as_dict()), sync=True)


def job_text(plan: JobPlan, paths: RunPaths) -> bytes:
    """The content of job.json."""
    return _json(job_document(plan, paths))


def _json(value: Any) -> bytes:
    """As ``files.write_json`` writes it, several times faster: json's C encoder does not indent."""
    return msgspec.json.format(json.dumps(value, allow_nan=False, ensure_ascii=False).encode(), indent=2) + b"\n"


def _write_new(path: Path, content: bytes, *, mode: int = 0o644, sync: bool = False) -> None:
    """Write a file that nobody can see yet."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(descriptor, mode)
        stream.write(content)
        if sync:
            stream.flush()
            os.fsync(descriptor)


def remove_run(record: RunRecord) -> None:
    """Take back a run that was refused before it existed anywhere; empty parents go too."""
    # Under a hidden name first: a kill in the middle must not leave half a run under the run's name.
    hidden = record.paths.folder.with_name(f"{_MAKING}{record.paths.name}")
    with contextlib.suppress(OSError):
        record.paths.folder.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)
    with contextlib.suppress(OSError):  # another run is there: the parents stay
        record.paths.folder.parent.rmdir()
        record.paths.experiments.rmdir()
