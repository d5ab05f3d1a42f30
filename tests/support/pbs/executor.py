"""The executor of PBS."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmb_common.executors.pbs.words import PbsPlan

from llmb_common.base.errors import AnswerLost, EnvironmentLacks, LLMBError, RequestError, SchedulerError
from llmb_common.base.files import shell_part
from llmb_common.base.hostlist import compress
from llmb_common.base.processes import identify, is_alive
from llmb_common.base.programs import run_program
from llmb_common.executors.base import PORT_BASE, PORT_COUNT, Executor, Ranks
from llmb_common.executors.engine import check_engine
from llmb_common.runs.finding import Finding
from llmb_common.runs.record import NOT_SUBMITTED, SUBMITTED, RunRecord, update_record

if TYPE_CHECKING:
    from llmb_common.planning.job_plan import JobPlan
    from llmb_common.runs.paths import RunPaths

SECONDS = 30.0
_WAITING = {"Q": "PENDING", "H": "PENDING", "W": "PENDING", "T": "PENDING"}
_KILLED = 256
"""Exit statuses from here on: the signal that ended the job."""


class PbsExecutor(Executor):
    """Submits with ``qsub``; a job is found by its name, in what ``qstat`` says of all."""

    ranks = Ranks("RANK", "LOCAL_RANK", None, job="${PBS_JOBID}", node="${PBS_NODENUM:-0}")

    def head(self, plan: JobPlan, paths: RunPaths) -> list[str]:
        told = _told(plan)
        select = f"select={plan.nodes}:mpiprocs={plan.gpus_per_node}"
        options = {
            "-N": paths.job_name,
            "-A": told.account,
            "-q": told.queue,
            "-a": told.begin,
            "-l": f"{select}:ngpus={plan.gpus_per_node}" if plan.device == "cuda" else select,
            "-l place=scatter:excl -l": f"walltime={plan.time_limit}",
            "-j oe -o": str(paths.batch_log),
        }
        return [f"#PBS {option} {value}" for option, value in options.items() if value]

    def job_script(self) -> str:
        return shell_part(__file__, "job.sh")

    def launch(self, plan: JobPlan) -> list[str]:
        names = {"RANK": "RANK", "LOCAL_RANK": "LOCAL_RANK", "WORLD_SIZE": "SIZE"}
        said = " ".join(f"{name}=$OMPI_COMM_WORLD_{other}" for name, other in names.items())
        return [
            'MASTER_ADDR=$(head -n 1 "$PBS_NODEFILE")',
            f"export MASTER_ADDR MASTER_PORT=${{MASTER_PORT:-$(({PORT_BASE} + ${{PBS_JOBID%%.*}} % {PORT_COUNT}))}}",
            f'mpirun -np {plan.gpus} --hostfile "$PBS_NODEFILE" -x MASTER_ADDR -x MASTER_PORT \\',
            f"""  bash -c 'export {said}; exec bash -c "$1"' rank "$task" >> "$log" 2>&1 &""",
        ]

    def check(self, plan: JobPlan) -> None:
        if shutil.which("qsub") is None:
            raise EnvironmentLacks("qsub is not on PATH", remedy="run on a login node of the cluster")
        check_engine(plan)

    def options(self, plan: JobPlan, after: Sequence[str], excluded: Mapping[str, str]) -> tuple[str, ...]:
        return ("-W", f"depend=afterany:{':'.join(after)}") if after else ()

    def start(self, record: RunRecord, *, detach: bool = False) -> RunRecord:
        answer = run_program(["qsub", *record.submission.options, str(record.paths.script)], SECONDS)
        if answer.problem:
            raise AnswerLost(answer.why, remedy="ask again later")
        if not answer.ok:
            raise SchedulerError(f"PBS refuses the job: {answer.complaint}", remedy="correct it", code="refused")
        job_id = answer.output.strip()
        return update_record(record.paths.folder, lambda found: replace(found, job_id=job_id).with_state(SUBMITTED))

    def poll(self, records: Sequence[RunRecord]) -> dict[str, Finding]:
        answer = run_program(["qstat", "-x", "-f", "-F", "json"], SECONDS)
        if not answer.ok:
            why = Finding(unknown=answer.why or answer.complaint)
            return {record.paths.run_id: why for record in records}
        jobs = {job["Job_Name"]: {**job, "id": key} for key, job in json.loads(answer.output)["Jobs"].items()}
        return {record.paths.run_id: _found(record, jobs.get(record.job_name)) for record in records}

    def cancel(self, records: Sequence[RunRecord]) -> dict[str, RunRecord | LLMBError]:
        answer = run_program(["qdel", *(str(record.job_id) for record in records)], SECONDS)
        if answer.ok:
            return {}
        error = SchedulerError(f"qdel: {answer.why or answer.complaint}", remedy="try again later")
        return {record.paths.run_id: error for record in records}


def _told(plan: JobPlan) -> PbsPlan:
    if not isinstance(plan.scheduler, PbsPlan):
        raise RequestError("this plan was not made for PBS", remedy="plan the job with CLUSTER_TYPE=pbs")
    return plan.scheduler


def _found(record: RunRecord, job: dict[str, Any] | None) -> Finding:
    if job is None:
        other = record.submitter if record.submitter not in (None, identify()) else None
        submitting = other is not None and is_alive(other) is not False
        return Finding() if submitting else Finding(NOT_SUBMITTED, "no job came of it")
    status = job.get("Exit_status")
    if job["job_state"] != "F":
        state = _WAITING.get(job["job_state"], "RUNNING")
    else:
        state = "COMPLETED" if status == 0 else "CANCELLED" if (status or 0) >= _KILLED else "FAILED"
    hosts = {place.partition("/")[0] for place in job.get("exec_host", "").split("+") if place}
    return Finding(state, job_id=job["id"], nodes=compress(hosts))
