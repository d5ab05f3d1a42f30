"""The executor of this machine, which is also the only node that there is."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from llmb_common.errors import EnvironmentLacks, RequestError
from llmb_common.executors import MOST_GROUPS, PORT_BASE, PORT_COUNT, Container, Executor, late
from llmb_common.executors.engine import check_engine, torchrun
from llmb_common.machine.files import shell_part
from llmb_common.machine.processes import Answer, ask, loopback_problem
from llmb_common.planning.job_plan import JobPlan

if TYPE_CHECKING:
    from llmb_common.executors import Held, NodeRequest


class LocalExecutor(Executor):
    """Runs the job as a child in a session of its own, which ends with the command that follows it."""

    def job_script(self) -> str:
        return shell_part(__file__, "job.sh")

    def launch(self, plan: JobPlan) -> list[str]:
        return torchrun(plan)

    def check(self, plan: JobPlan) -> None:
        if plan.device == "cuda":
            from llmb_common.site.machine import gpu_names

            present = len(gpu_names())
            if present < plan.gpus:
                raise EnvironmentLacks(
                    f"{plan.gpus} GPUs requested, but this machine has {present}",
                    remedy="lower JOB_TOTAL_GPUS, run where sbatch is available, or try GPU_TYPE=cpu with a smoke size",
                )
        check_engine(plan)
        if problem := loopback_problem():
            raise problem

    start = late("llmb_common.executors.local.processes:start_and_follow")
    poll = late("llmb_common.executors.local.processes:look_at_processes")
    cancel = late("llmb_common.executors.local.processes:end_each")

    def nodes_now(self, nodes: str | None, partition: str | None) -> dict[str, str]:
        return here(nodes, partition)

    def hold(self, wanted: NodeRequest) -> AbstractContextManager[Held]:
        return ThisMachine()


class ThisMachine(contextlib.AbstractContextManager["ThisMachine"]):
    """Held by nobody, and always there."""

    @property
    def nodes(self) -> Sequence[str]:
        return (_name(),)

    @property
    def addresses(self) -> dict[str, str]:
        return {_name(): "127.0.0.1"}

    @property
    def port(self) -> int:
        return PORT_BASE + os.getpid() % (PORT_COUNT - MOST_GROUPS)

    def run(
        self, argv: Sequence[str], seconds: float, *, inside: Container | None = None, nodes: Sequence[str] = ()
    ) -> Answer:
        return ask(argv, seconds, env=os.environ)

    def unreached(self, answer: Answer) -> Sequence[str]:
        return ()

    def __exit__(self, *exception: object) -> None:
        return None


def here(nodes: str | None, partition: str | None) -> dict[str, str]:
    """This machine, which can be had.

    Raises:
        RequestError: another one is named
    """
    name = _name()
    if partition is not None or nodes not in (None, name):
        raise RequestError(
            f"without Slurm there is no other node than this one, {name}", remedy="leave out --nodes and --partition"
        )
    return {name: ""}


def _name() -> str:
    """As the node's own program says it."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
