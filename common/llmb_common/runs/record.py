"""The record of a run, ``run.json``: the truth about what was asked, submitted and seen.

It is on disk, synced, before anything is submitted, and holds the run id, which is also in the Slurm job name:
after a crash the scheduler can be asked for it. A run folder appears under its name only when it is complete;
what a killed process leaves is a hidden ``.making-...`` folder, which is not a run.

``RunRecord`` is read and written whole. Several processes may follow the same run, so a change after the
creation goes through ``update_record``, which reads, changes and writes under a lock.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec

from llmb_common.base.errors import RecordError
from llmb_common.base.files import json_text, read_plain, unreadable, write_atomic
from llmb_common.base.processes import ProcessId
from llmb_common.base.structs import from_json, misfit_text
from llmb_common.base.words import is_experiment_name
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.folders import locked, own_run
from llmb_common.runs.paths import RunPaths, SharedPaths, experiments_folder

SCHEMA = 1

_DAY = 86400
_MORNING = 6 * 3600

# States of a run that are ours; once a scheduler knows the job, its own words are kept (PENDING, TIMEOUT, ...).
SUBMITTING = "SUBMITTING"
SUBMITTED = "SUBMITTED"
NOT_SUBMITTED = "NOT_SUBMITTED"
LOST = "LOST"
RUNNING = "RUNNING"
COMPLETED = "COMPLETED"
FAILED = "FAILED"
CANCELLED = "CANCELLED"
PREEMPTED = "PREEMPTED"
REVOKED = "REVOKED"
TIMEOUT = "TIMEOUT"
UNFIT = "UNFIT"


RunId = Annotated[str, msgspec.Meta(pattern=r"\A[0-9A-Za-z]{1,32}\Z")]
UnixTime = Annotated[float, msgspec.Meta(ge=0, lt=1e11)]  # before the year 5138


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A state that a run was observed in: since when (Unix time), and what explains it (empty: nothing does).

    ``state`` is LLMB's word or the scheduler's, in capitals: ``SUBMITTING``, ``PENDING``. An unknown key, or a time
    before 1970 or after the year 5138, is refused when it is decoded. ``RunRecord.with_state`` makes it.
    """

    state: str
    time: UnixTime
    detail: str


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run's place in a series of runs that share one allocation and its nodes, one after the other.

    It is number ``index``, from 0, of ``turns`` runs. ``series_id`` (``array_id`` in JSON) is LLMB's own ID of the
    series, which its job's name contains. With 0 ``turns`` it is task ``index`` of a job array, as releases before
    0.3 submitted them. An unknown key is refused when it is decoded. Whoever submits the series makes it.
    """

    series_id: str = msgspec.field(name="array_id")
    index: int
    turns: int = 0


class Submission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a run was submitted, beyond its plan.

    ``key`` is the caller's own name for it (empty: none), ``options`` are further options of ``sbatch``, one word
    each, with their dashes. ``chain`` is the run ID of the first run of its chain, ``link`` its place in that, from
    1; empty and 0 outside a chain. ``turn`` (``task`` in JSON) is its place in a series or job array; None: it has a
    job of its own. The property ``in_series`` is True for a place in a series, else False; ``array_index`` is the
    number of its task in a job array, else None; ``alone`` returns a copy without ``turn``. An unknown key is refused
    when it is decoded. Whoever submits the run makes it.
    """

    key: str = ""
    options: tuple[str, ...] = ()
    chain: str = ""
    link: int = 0
    turn: Turn | None = msgspec.field(name="task", default=None)

    @property
    def array_index(self) -> int | None:
        """The number of the run's task in a job array, as releases before 0.3 submitted them; None for any other run.

        See ``executors.slurm.old_arrays``.
        """
        return self.turn.index if self.turn is not None and not self.turn.turns else None

    @property
    def in_series(self) -> bool:
        """Whether the run's job is a series, which also runs others before it or after it."""
        return self.turn is not None and self.turn.turns > 0

    def alone(self) -> Submission:
        """Return a copy of the submission without its place in a series or job array: its job runs nothing else."""
        return msgspec.structs.replace(self, turn=None)


@dataclass(frozen=True)
class RunRecord:
    """What run.json keeps of one run: all fields but ``paths``, and some names derived from these.

    A record never changes: ``with_state`` returns a copy in another state since a Unix time (None: now), or
    itself where the state is the same and ``detail`` empty or the same, ``save``
    writes this one (RecordError where it cannot), and ``update_record`` does both under the run's lock. ``job_id``
    None: no job is known yet. ``states`` are those that were observed, the oldest first. Properties: ``state``
    (SUBMITTING without any), ``state_time`` (Unix time) and ``detail`` (empty: nothing explains it) are of the last;
    ``created`` and ``started`` are the Unix times of the first and of the first RUNNING (else the former), 0 without
    any state, and ``day`` is the day of the latter, YYYY-MM-DD (``day_of``: of any Unix time), which begins at six in
    the morning where the run was submitted. ``job_name``, ``submitted_script`` (a path) and ``shared`` (its paths;
    None: the run has its own job) are of the Slurm job, which several runs may share. ``manifest`` says what the run
    was made of (``make_manifest``), and under ``job`` what its job told. ``results`` None: the record keeps none
    (this release writes none). ``as_dict`` returns run.json as JSON values: the fields but ``paths`` by name,
    ``schema``, ``run_id``, ``name``, ``experiment_name``, ``workload``, ``executor`` and ``state``. ``load_record``
    reads one.
    """

    paths: RunPaths
    plan: JobPlan
    job_id: str | None = None
    states: tuple[State, ...] = ()
    manifest: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] | None = None
    submission: Submission = field(default_factory=Submission)
    submitter: ProcessId | None = None
    """The process that is submitting, or did; None: not known."""
    process: ProcessId | None = None
    """A local run's own process; None: it has none yet, or is a scheduler's job."""
    missing_since: UnixTime | None = None
    """Since when the scheduler, asked with success, shows no such job; None: it shows it, or was not asked."""

    @property
    def state(self) -> str:
        """The last state that the run was observed in, such as ``RUNNING``; SUBMITTING where there is none yet."""
        return self.states[-1].state if self.states else SUBMITTING

    @property
    def state_time(self) -> float:
        """Since when the run is in its state, as Unix time; 0 where none was observed yet."""
        return self.states[-1].time if self.states else 0.0

    @property
    def detail(self) -> str:
        """What explains the run's state, such as an exit code; empty where nothing does."""
        return self.states[-1].detail if self.states else ""

    @property
    def created(self) -> float:
        """When the run was recorded first, as Unix time; 0 for a record without any state."""
        return self.states[0].time if self.states else 0.0

    @property
    def started(self) -> float:
        """When the run first began to run, as Unix time; where nobody observed that, when it was recorded first.

        Later starts of a job that was queued again do not change it.
        """
        return next((item.time for item in self.states if item.state == RUNNING), self.created)

    @property
    def day(self) -> str:
        """The day of the run's start, YYYY-MM-DD, in the time zone where it was submitted.

        Runs of one day share its conditions. Days begin at six in the morning: an evening goes on past midnight.
        """
        return self.day_of(self.started)

    def day_of(self, when: float) -> str:
        """Return the day, YYYY-MM-DD, that the Unix time ``when`` belongs to where the run was submitted.

        Days begin at six in the morning, so what is earlier belongs to the day before. Where the record does not say
        the time zone, this machine's is taken.
        """
        offset = self.manifest.get("utc_offset")
        if not isinstance(offset, int) or abs(offset) > _DAY:
            offset = time.localtime(when).tm_gmtoff
        return time.strftime("%Y-%m-%d", time.gmtime(when + offset - _MORNING))

    @property
    def job_name(self) -> str:
        """The name of the Slurm job that runs this run, and in a series others too, as Slurm shows it."""
        usual = self.paths.job_name if self.shared is None else self.shared.job_name
        return usual if self.plan.scheduler is None else self.plan.scheduler.job_name(usual)

    @property
    def submitted_script(self) -> Path:
        """The path of the script that ``sbatch`` was given: the run's own, or that of a job of several runs.

        It is the path at the time of submission, which may be a symbolic link's now: Slurm knows no other.
        """
        script = self.paths.script if self.shared is None else self.shared.script
        return experiments_folder(self.plan.workload_folder) / script.relative_to(self.paths.experiments)

    @property
    def shared(self) -> SharedPaths | None:
        """The paths of the job (a series or an old job array) that the run shares with others; None: its own job."""
        turn = self.submission.turn
        if turn is None:
            return None
        return self.paths.series(turn.series_id) if turn.turns else self.paths.old_array(turn.series_id)

    def with_state(self, state: str, detail: str = "", since: float | None = None) -> RunRecord:
        """Return a copy that is in ``state`` since the Unix time ``since`` (None: now); nothing is written.

        It is the record itself where that is in the state already and ``detail`` is empty or the same. A time before
        that of the last state becomes the latter: clocks differ, and the history stays in order. Any word is taken as a
        state.
        """
        if self.states and self.state == state and detail in ("", self.detail):
            return self
        when = max(self.state_time, time.time() if since is None else since)  # clocks differ: history stays in order
        return replace(self, states=(*self.states, State(state, round(when, 3), detail)))

    def save(self) -> None:
        """Write the record to its run.json, in place of the former one, whatever that says: no lock is taken.

        The run's folder must exist. The former one stays where that fails. Changes of a run that others may follow
        go through ``update_record``.

        Raises:
            RecordError: it cannot be written
        """
        # A power cut may bring the former record back: what became of the job is then found out once more.
        write_atomic(self.paths.record, json_text(self.as_dict()), sync_folder=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the content of the run's run.json as JSON values.

        The keys are ``schema``, ``run_id``, ``name``, ``experiment_name``, ``workload``, ``executor`` and
        ``state``, then the fields but ``paths`` by name: ``plan``, ``job_id``, ``states`` and so on, None where
        they are.
        """
        return {
            "schema": SCHEMA,
            "run_id": self.paths.run_id,
            "name": self.paths.name,
            "experiment_name": self.paths.experiment_name,
            "workload": self.plan.workload,
            "executor": self.plan.cluster_type,
            "state": self.state,
            **{name: msgspec.to_builtins(getattr(self, name)) for name in _KEPT},
        }


_KEPT = tuple(field.name for field in fields(RunRecord) if field.name != "paths")


class _Version(msgspec.Struct):
    """The one field that a run.json of any schema has: the schema's number."""

    schema: int


@functools.cache
def _file_type(plan: Any = JobPlan) -> Any:
    """Return the struct type that run.json must fit, with ``plan`` as the type of its plan.

    It has the kept fields of ``RunRecord``, ``schema``, ``run_id`` and ``experiment_name``: other names that are
    derived are not read from the file.
    """
    hints = get_type_hints(RunRecord, include_extras=True) | {"plan": plan}
    own = [("schema", int), ("run_id", RunId), ("experiment_name", str)]
    return msgspec.defstruct("RunFile", [*own, *((name, hints[name]) for name in _KEPT)], frozen=True)


def _read(content: bytes) -> Any:
    """Return the decoded ``content`` of a run.json, an object of ``_file_type``.

    Its ``schema`` is not checked. The plan, which is most of it, is decoded once for all repeats that share it, and
    is one object then.

    Raises:
        ValueError: it is no record (``msgspec.DecodeError``, which is one: not even JSON)
    """
    found = from_json(content, _file_type(msgspec.Raw))
    try:
        return msgspec.structs.replace(found, plan=_plan(bytes(found.plan)))
    except ValueError:
        return from_json(content, _file_type())  # says where in the file


@functools.lru_cache(maxsize=1024)
def _plan(content: bytes) -> JobPlan:
    """Return the plan decoded from the JSON ``content``; the last 1024 are kept.

    Raises:
        msgspec.MsgspecError: it is no plan
    """
    plan: JobPlan = from_json(content, JobPlan)
    return plan


def load_record(folder: Path, content: bytes | None = None) -> RunRecord:
    """Return the record of the run in ``folder``, from its run.json, or from ``content``, which was read from there.

    ``content`` None: the file is read, whoever owns it, and no lock is taken. Whoever can write into an installation
    can write one, so it is not trusted: one that names another run's files, or holds what no command expects, is
    refused. ``paths`` of the result are made of ``folder``, by its name and the experiments folder two levels above;
    where the folder between is not called like the experiment, ``paths.folder`` is another path than ``folder``,
    which is for the caller to compare.

    Raises:
        RecordError: there is none, it cannot be read, is damaged, or of another schema
    """
    file = folder / "run.json"
    try:
        content = read_plain(file) if content is None else content
        try:
            found = _read(content)
        except (msgspec.DecodeError, ValueError):
            _check_version(file, from_json(content, _Version).schema)  # says more than what else is wrong
            raise
        _check_version(file, found.schema)
        experiment = found.experiment_name
        plan = found.plan
        job_id = found.job_id
        if not is_experiment_name(experiment) or experiment != plan.experiment_name:
            raise ValueError(f"experiment_name {experiment[:100]!r}")
        if not re.fullmatch(rf"{re.escape(experiment)}_[0-9A-Za-z]+(-[0-9]+)?", folder.name):
            raise ValueError(f"it is the record of a run of {experiment}, and lies in {folder.name}")
        # Ids become arguments and file names.
        if job_id is not None and not re.fullmatch(plan.traits.job_id, job_id):
            raise ValueError(f"job_id {job_id[:100]!r}")
    except OSError as error:
        raise unreadable(file, error) from error
    except (msgspec.DecodeError, ValueError) as error:
        bad = "valid JSON" if type(error) is msgspec.DecodeError else "a run record"
        why = misfit_text(error, _file_type(), content)
        raise RecordError(
            f"{file} is not {bad}: {why}", remedy="restore the file from a backup, or remove the run's folder"
        ) from error
    paths = RunPaths(folder.parent.parent, experiment, folder.name.removeprefix(f"{experiment}_"), found.run_id)
    return RunRecord(paths, **{name: getattr(found, name) for name in _KEPT})


def _check_version(file: Path, version: int) -> None:
    """Raise where a record's schema ``version`` is not the one that this release reads; ``file`` is for the message.

    Raises:
        RecordError: it is another one
    """
    if version != SCHEMA:
        raise RecordError(
            f"{file} was written by another version of LLMB: it has schema {version}, this one reads {SCHEMA}",
            remedy="use that version for this run",
        )


def update_record(folder: Path, change: Callable[[RunRecord], RunRecord]) -> RunRecord:
    """Apply ``change`` to the record in ``folder``, write the result if it differs, and return it, written or not.

    All this happens under the run's lock, so ``change`` gets what any other process wrote before. What it raises
    passes, and nothing is written then.

    Raises:
        RecordError: it cannot be read or written, the folder above is not the experiment's, or another process holds
            the lock for a minute; code ``not-yours`` if it is another user's
    """
    with own_run(folder) as run, locked(run):
        record = load_record(folder, run.read("run.json"))
        if record.paths.folder != folder:
            raise RecordError(f"{folder} was moved: its record names {record.paths.folder}", remedy="move it back")
        changed = change(record)
        if changed != record:
            changed.save()
        return changed
