"""The record of a run, ``run.json``: the truth about what was asked, submitted and seen.

It is on disk, synced, before anything is submitted, and holds the run id that also stands in the Slurm job name:
after a crash the scheduler can be asked for it. ``RunRecord`` is read and written whole; writers hold no
lock because each run has one writer at a time (the submitting command, later the observing one).
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llmb_common.errors import RecordError
from llmb_common.files import fsync_folder, read_json, write_json
from llmb_common.planning.job_plan import JobPlan, plan_as_dict, plan_from_dict
from llmb_common.rendering.job import job_document
from llmb_common.rendering.script import render_script
from llmb_common.run_paths import RunPaths, experiments_folder

SCHEMA = 1

# States of a run that are ours; once a scheduler knows the job, its own words are kept (RUNNING, TIMEOUT, ...).
SUBMITTING = "SUBMITTING"
SUBMITTED = "SUBMITTED"
RUNNING = "RUNNING"
COMPLETED = "COMPLETED"
FAILED = "FAILED"
CANCELLED = "CANCELLED"


@dataclass(frozen=True)
class RunRecord:
    """One ``run.json``. ``states`` is the history, oldest first: (state, Unix time, detail)."""

    paths: RunPaths
    plan: JobPlan
    job_id: str | None = None
    states: tuple[tuple[str, float, str], ...] = ()
    manifest: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] | None = None

    @property
    def state(self) -> str:
        return self.states[-1][0] if self.states else SUBMITTING

    def with_state(self, state: str, detail: str = "") -> RunRecord:
        """A copy that is now in ``state``; the same state twice adds nothing."""
        if self.state == state and self.states:
            return self
        return replace(self, states=(*self.states, (state, round(time.time(), 3), detail)))

    def save(self) -> None:
        """Write the record. Raises RecordError."""
        write_json(self.paths.record, self._as_dict())

    def _as_dict(self) -> dict[str, Any]:
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
        }


def load_record(folder: Path) -> RunRecord:
    """The record in a run folder. Raises RecordError when there is none or it cannot be read."""
    import msgspec

    value = read_json(folder / "run.json")
    try:
        if value["schema"] != SCHEMA:
            raise RecordError(f"{folder}/run.json has schema {value['schema']}, this version reads {SCHEMA}")
        experiment = value["experiment_name"]
        paths = RunPaths(folder.parent.parent, experiment, folder.name.removeprefix(f"{experiment}_"), value["run_id"])
        return RunRecord(
            paths=paths,
            plan=plan_from_dict(value["plan"]),
            job_id=value["job_id"],
            states=tuple((s["state"], s["time"], s["detail"]) for s in value["states"]),
            manifest=value["manifest"],
            results=value["results"],
        )
    except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
        raise RecordError(
            f"{folder}/run.json is not a run record: {error}", remedy="restore the file or remove the run's folder"
        ) from error


def create_run(plan: JobPlan, code: Path, manifest: dict[str, Any]) -> RunRecord:
    """Make the run folder with script, job.json, code and record, all synced: the intent, before submission.

    ``code`` is the folder of the ``llmb_train`` package to run. Raises RecordError, or RequestError from rendering
    (before anything is written).
    """
    run_id = secrets.token_hex(4)
    experiments = experiments_folder(plan.workload_folder)
    probe = RunPaths(experiments, plan.experiment_name, str(int(time.time())), run_id)
    render_script(plan, probe)  # a path that cannot be rendered must leave nothing behind
    paths = _make_folder(probe)
    try:
        for folder in (paths.output, paths.profiles) if plan.profile else (paths.output,):
            folder.mkdir()
        shutil.copytree(code, paths.code / code.name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        write_json(paths.job, job_document(plan, paths))
        _write_script(paths.script, render_script(plan, paths))
    except OSError as error:
        raise RecordError(
            f"cannot write the run folder {paths.folder}: {error.strerror or error}",
            remedy="check free space, quota and permissions of that folder, then run the same command again",
        ) from error
    record = RunRecord(paths, plan, manifest=manifest).with_state(SUBMITTING)
    record.save()
    fsync_folder(paths.folder.parent)
    return record


def _make_folder(probe: RunPaths) -> RunPaths:
    """Create the run's folder exclusively; a second run in the same second takes the next one."""
    stamp = int(probe.stamp)
    for candidate in range(stamp, stamp + 1000):
        paths = replace(probe, stamp=str(candidate))
        try:
            paths.folder.parent.mkdir(parents=True, exist_ok=True)
            paths.folder.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise RecordError(
                f"cannot create {paths.folder}: {error.strerror or error}",
                remedy="check that LLMB_INSTALL exists and that you may write there",
            ) from error
        return paths
    raise RecordError(f"no free name for a run in {probe.folder.parent}", remedy="try again in a moment")


def _write_script(path: Path, text: str) -> None:
    from llmb_common.files import write_atomic

    write_atomic(path, text, mode=0o755)


def remove_run(record: RunRecord) -> None:
    """Take back a run that was refused before it existed anywhere; empty parents go too."""
    shutil.rmtree(record.paths.folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # another run is there: the parents stay
        record.paths.folder.parent.rmdir()
        record.paths.experiments.rmdir()
