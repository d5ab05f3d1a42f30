"""The executor of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from llmb_common.errors import EnvironmentLacks
from llmb_common.executors import Executor
from llmb_common.executors.engine import check_engine, torchrun
from llmb_common.machine.loopback import loopback_problem
from llmb_common.machine.shell_text import shell_part
from llmb_common.planning.job_plan import JobPlan

if TYPE_CHECKING:
    from llmb_common.errors import LLMBError
    from llmb_common.executors.holding import Held, Wanted
    from llmb_common.runs.finding import Finding
    from llmb_common.runs.record import RunRecord


class LocalExecutor(Executor):
    """Runs the job as a child in a session of its own, which ends with the command that follows it."""

    def job_script(self) -> str:
        return shell_part(__file__, "job.sh")

    def launch(self, plan: JobPlan) -> list[str]:
        return torchrun(plan)

    def check(self, plan: JobPlan) -> None:
        if plan.device == "cuda":
            from llmb_common.site.machine import count_gpus

            present = count_gpus()
            if present < plan.gpus:
                raise EnvironmentLacks(
                    f"{plan.gpus} GPUs requested, but this machine has {present}",
                    remedy="lower JOB_TOTAL_GPUS, run where sbatch is available, or try GPU_TYPE=cpu with a smoke size",
                )
        check_engine(plan)
        if problem := loopback_problem():
            raise problem

    def start(self, record: RunRecord, *, detach: bool = False) -> RunRecord:
        from llmb_common.executors.local.follow import start_and_follow

        return start_and_follow(record, detach=detach)

    def look(self, records: Sequence[RunRecord]) -> dict[str, Finding]:
        from llmb_common.executors.local.look import look_at_processes

        return look_at_processes(records)

    def nodes_now(self, nodes: str | None, partition: str | None) -> dict[str, str]:
        from llmb_common.executors.local.hold import here

        return here(nodes, partition)

    def hold(self, wanted: Wanted) -> AbstractContextManager[Held]:
        from llmb_common.executors.local.hold import ThisMachine

        return ThisMachine()

    def end(self, records: Sequence[RunRecord]) -> dict[str, RunRecord | LLMBError]:
        from llmb_common.executors.local.follow import end_processes_of

        return {record.paths.run_id: end_processes_of(record) for record in records}
