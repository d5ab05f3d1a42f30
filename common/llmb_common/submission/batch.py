"""What the jobs of one command have in common."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.index.rows import RunFilter, RunRow
from llmb_common.index.search import find_runs
from llmb_common.machine.process import is_alive
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.code import pack_code, training_code
from llmb_common.runs.manifest import origin_of
from llmb_common.runs.ownership import is_ours
from llmb_common.runs.record import NOT_SUBMITTED, SUBMITTING, RunRecord, Submission, load_record
from llmb_common.submission.jobs import Job, experiments_of
from llmb_common.submission.preflight import check

LEFTOVER_SECONDS = 24 * 3600
"""For this long the same request continues an interrupted submission; after that it makes a new run."""


@dataclass
class _Needs:
    """What a plan needs of the site; whoever asks while somebody looks waits for the answer."""

    plan: JobPlan
    met: bool = False
    looking: threading.Lock = field(default_factory=threading.Lock)


class Batch:
    """What the jobs of one command share, looked up once: interrupted submissions, origins of recipes, code."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._lock = threading.Lock()
        self._origins: dict[Path, dict[str, Any]] = {}
        self._needs: list[_Needs] = []
        self._by_key: dict[str, RunRow] = {}
        self._interrupted: list[RunRecord] = []
        self.arrays = True
        """False once the cluster has refused a job array."""
        self.folder = training_code()
        self.code = pack_code(self.folder)
        for install in {Path(job.plan.install) for job in jobs}:
            self._look(install, {job.options.key for job in jobs if job.options.key}, experiments_of(jobs))

    def _look(self, install: Path, keys: set[str], roots: Collection[Path]) -> None:
        if keys:
            rows = find_runs(install, RunFilter(key=next(iter(keys))) if len(keys) == 1 else None, roots=roots)
            # Another user's run occupies nobody's key, and is never continued.
            self._by_key |= {row.key: row for row in rows if row.key in keys and is_ours(row.folder)}
        wanted = RunFilter(states=(SUBMITTING, NOT_SUBMITTED), since=time.time() - LEFTOVER_SECONDS)
        for row in reversed([row for row in find_runs(install, wanted, roots=roots) if is_ours(row.folder)]):
            record = load_record(row.folder)
            alive = record.submitter is None or is_alive(record.submitter) is not False
            if record.state == NOT_SUBMITTED or not alive:
                self._interrupted.append(record)

    def known(self, plan: JobPlan, submission: Submission) -> RunRecord | None:
        """The run to continue: the one under the key, or an interrupted submission of the very same job."""
        if submission.key:
            row = self._by_key.get(submission.key)
            return load_record(row.folder) if row else None
        with self._lock:
            for record in self._interrupted:
                if record.plan == plan and record.submission.alone() == submission:
                    self._interrupted.remove(record)
                    return record
        return None

    def check(self, plan: JobPlan) -> None:
        """``preflight.check``, once for plans with the same needs."""
        same = msgspec.structs.replace(plan, experiment_name="", max_steps=0)
        with self._lock:
            needs = next((needs for needs in self._needs if needs.plan == same), None)
            if needs is None:
                needs = _Needs(same)
                self._needs.append(needs)
        with needs.looking:
            if not needs.met:
                check(plan)
                needs.met = True

    def origin(self, recipe_folder: Path) -> dict[str, Any]:
        with self._lock:
            if recipe_folder not in self._origins:
                self._origins[recipe_folder] = origin_of(recipe_folder, self.folder)
            return self._origins[recipe_folder]
