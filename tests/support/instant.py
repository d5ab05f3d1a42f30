"""A way of running jobs whose jobs are over at once: each leaves the log that a test wants of it.

``INSTANT`` names a folder. ``jobs/`` in it holds a file for each job that was accepted, in the order of acceptance: the
scheduler's own memory, which no crash of llmb-run touches. ``<key of the run>`` in it directs one run, one word a line:
``106.5`` (milliseconds a step), ``spiky``, ``diverging``, ``unlike``, ``nan`` (in its loss), ``brief`` (no step after
the last measured one), ``trained`` (all its steps, however it ends), ``NODE_FAIL`` or another state, ``out of memory``
and the like: the log's last line. ``die before`` and ``die after`` in it: whoever submits is killed before or after the
job is accepted. Otherwise a step takes the milliseconds that the job's variable ``STEP_MS`` says.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from llmb_common.base import cluster_types
from llmb_common.base.cluster_types import ClusterType, Traits
from llmb_common.base.errors import EnvironmentLacks, SchedulerError
from llmb_common.base.processes import is_alive
from llmb_common.executors.base import Executor
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.finding import Finding
from llmb_common.runs.record import NOT_SUBMITTED, SUBMITTED, RunRecord, update_record
from support.iteration_logs import mbridge_line

_DIRECTION = re.compile(r"[0-9.]+|[A-Z_]+|spiky|diverging|unlike|nan|brief|trained")


class InstantExecutor(Executor):
    def job_script(self) -> str:
        functions = 'step_status() { echo "$1"; }\nend_step() { :; }\npreempted() { false; }'
        return f"job=${{JOB_ID:-0}} nodes=$HOSTNAME restarts=0 late_signals=0 tell_seconds=0\n{functions}"

    def launch(self, plan: JobPlan) -> list[str]:
        return ["true"]

    def options(self, plan: JobPlan, after: Sequence[str], excluded: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(f"not on {node}: {why}" for node, why in excluded.items())

    def check(self, plan: JobPlan) -> None:
        if (folder() / "no image").exists():
            raise EnvironmentLacks("the image is missing", remedy="llmb-install update")

    def start(self, record: RunRecord, *, detach: bool = False) -> RunRecord:
        if (folder() / "full").exists():
            raise SchedulerError("the queue is full", remedy="try again later", code="refused")
        if (folder() / "die before").exists():
            os._exit(9)
        record.paths.log.write_text(log_of(record))  # the job's own doing, and so never missing once there is a job
        with ACCEPTING:
            job_id = f"{len(accepted()) + 1}"
            accepted_job = folder() / f"accepting-{job_id}"
            accepted_job.write_text(f"{record.paths.run_id} {record.submission.key}\n")
            accepted_job.rename(folder() / "jobs" / f"{job_id:0>4}")  # at once: whoever is killed before has no job
            if (folder() / "die after").exists():  # nobody else is writing then
                os._exit(9)
        return update_record(record.paths.folder, lambda found: replace(found, job_id=job_id).with_state(SUBMITTED))

    def poll(self, records: list[RunRecord]) -> dict[str, Finding]:  # type: ignore[override]
        return {record.paths.run_id: _found(record) for record in records}

    def cancel(self, records: list[RunRecord]) -> dict[str, RunRecord]:  # type: ignore[override]
        return {}


INSTANT = Traits(
    name=ClusterType("instant"),
    executor=f"{__name__}:InstantExecutor",
    this_machine=True,
    queued=True,
    dependencies=True,
    unheeded=(),
    job_id="[0-9]+",
)


ACCEPTING = threading.Lock()


def folder() -> Path:
    return Path(os.environ["INSTANT"])


def accepted() -> list[tuple[str, str]]:
    """Run id and key of every job, in the order of acceptance."""
    jobs = sorted((folder() / "jobs").iterdir())
    return [tuple(job.read_text().rstrip("\n").split(" ", 1)) for job in jobs]  # type: ignore[misc]


def direct(number: str, *words: str) -> None:
    """How the run ``number`` (``2.1``: first run of the second workload) is to end."""
    (folder() / number).write_text("\n".join(words))


def _directions(record: RunRecord) -> list[str]:
    file = folder() / record.submission.key.rpartition(":")[2]
    return file.read_text().split("\n") if file.is_file() else []


def log_of(record: RunRecord) -> str:
    """Steady steps with a little noise that the run's number decides; an early end where the run is to fail."""
    words = _directions(record)
    plan, steps = record.plan, record.plan.max_steps
    times = [float(word) for word in words if re.fullmatch(r"[0-9.]+", word)]
    milliseconds = times[0] if times else milliseconds_of(plan)
    text = [word for word in words if not _DIRECTION.fullmatch(word)]
    badly = text or [word for word in words if word.isupper()]
    last = 5 if badly and "trained" not in words else 44 if "brief" in words else steps
    number = int(re.search("[0-9]*$", record.submission.key)[0] or 0)  # type: ignore[index]
    level = milliseconds * (1 + 0.002 * ((number * 7) % 5 - 2))
    lines = []
    for index in range(1, last + 1):
        spike = 4 if "spiky" in words and index % 3 == 0 else 1
        loss = f"{5 + index}" if "diverging" in words else f"{6.96 * 0.98**index}" if "unlike" in words else "falling"
        loss = "nan" if "nan" in words and index > 20 else loss
        time = spike * level * (1 + 0.001 * (index % 3 - 1))
        lines.append(mbridge_line(index, steps, tflops=None, milliseconds=time, loss=loss))
    return "".join(lines) + "".join(f"{line}\n" for line in text)


def milliseconds_of(plan: JobPlan) -> float:
    """How long a step of the plan takes where nothing directs its run; tests put others in its place."""
    return float(plan.env["STEP_MS"].value) if "STEP_MS" in plan.env else 100.0


def _found(record: RunRecord) -> Finding:
    job = next((number for number, (run, _) in enumerate(accepted(), 1) if run == record.paths.run_id), None)
    if job is None:
        busy = record.submitter is not None and is_alive(record.submitter) is not False
        return Finding() if busy else Finding(NOT_SUBMITTED, "no job came of it")
    words = _directions(record)
    states = [word for word in words if re.fullmatch(r"[A-Z_]{3,}", word)]
    text = [word for word in words if not _DIRECTION.fullmatch(word)]
    if not record.paths.log.exists():  # killed between the acceptance and the log: the job itself writes it
        record.paths.log.write_text(log_of(record))
    state = states[0] if states else "FAILED" if text else "COMPLETED"
    return Finding(state, " ".join(text), job_id=str(job))


def install_executor(patch: object, home: Path, traits: Traits = INSTANT) -> None:
    """Make it one of the ways of running jobs; its folder is ``home``."""
    patch.setitem(cluster_types.all_traits(), traits.name, traits)  # type: ignore[attr-defined]
    (home / "jobs").mkdir(parents=True)
    patch.setenv("INSTANT", str(home))  # type: ignore[attr-defined]
