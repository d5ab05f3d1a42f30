"""The ways of running jobs, one folder each. ``docs/extending.md`` says how to add one.

An ``Executor`` says what a batch script needs of its scheduler and what starts the ranks, checks that a job can be
started, starts it, looks what became of it and ends it. Its folder names it in ``TRAITS``
(``llmb_common.platform.cluster_types``), and nothing else asks for its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmb_common.platform.cluster_types import ClusterType, named, traits_of

if TYPE_CHECKING:  # whoever asks for traits, help texts among them, imports this package
    from llmb_common.errors import LLMBError
    from llmb_common.executors.holding import Held, Wanted
    from llmb_common.planning.job_plan import JobPlan
    from llmb_common.runs.finding import Finding
    from llmb_common.runs.paths import RunPaths
    from llmb_common.runs.record import RunRecord


@dataclass(frozen=True)
class Ranks:
    """How a rank learns its place: names of variables in its environment, and Bash words.

    ``per_node`` holds the number of ranks on a node; None where ranks are not bound to the NUMA node of their GPU.
    ``job`` and ``node`` stand for the job's id and the number of the node in the names of profiles.
    """

    rank: str
    local_rank: str
    per_node: str | None
    job: str
    node: str


TORCHRUN = Ranks("RANK", "LOCAL_RANK", None, job="local", node="0")
"""Ranks that ``engine.torchrun`` starts, all on one machine."""


class Executor(ABC):
    """A way of running jobs. It has no state: each call makes one."""

    ranks: Ranks = TORCHRUN

    def head(self, plan: JobPlan, paths: RunPaths) -> list[str]:
        """The lines after ``#!/bin/bash`` that the scheduler reads.

        Raises:
            RequestError: a path or the image cannot be said to it.
        """
        return []

    @abstractmethod
    def job_script(self) -> str:
        """Bash that sets what ``rendering/supervise.sh`` reads of the scheduler, with the functions ``step_status``,
        ``end_step``, ``ask_step`` and ``on_nodes``."""

    @abstractmethod
    def launch(self, plan: JobPlan) -> list[str]:
        """Bash lines that start the ranks in the background: each runs ``bash -c "$task"``, its output goes to
        ``$log``, and ``$!`` is the process to wait for.

        Raises:
            RequestError: a path cannot be said to what starts them.
        """

    @abstractmethod
    def check(self, plan: JobPlan) -> None:
        """Look for what the job needs here, before anything is on disk.

        Raises:
            EnvironmentLacks: something is missing.
        """

    def doubts(self, plan: JobPlan) -> list[str]:
        """What ``check`` does not refuse, and the user should know before the job is submitted."""
        return []

    def options(self, plan: JobPlan, after: Sequence[str], excluded: Mapping[str, str]) -> tuple[str, ...]:
        """What is said on submission beyond the script: ids of jobs to start after (only where the traits have
        ``dependencies``), and nodes to avoid, each with the reason. The record keeps it.

        Raises:
            RequestError: it contradicts the plan.
        """
        return ()

    @abstractmethod
    def start(self, record: RunRecord, *, detach: bool = False) -> RunRecord:
        """Start the run, which is on record as SUBMITTING; its record, saved, with the job's id where there is one.

        A job that no scheduler keeps is followed to its end, unless ``detach``.

        Raises:
            AnswerLost: nobody knows whether there is a job; the run stays on record until that is settled.
            SchedulerError: the job was refused and does not exist; the caller removes the run.
            CheckFailed: a run that was followed failed.
        """

    def most_together(self) -> int:
        """How many runs of the same job it takes as one array; below 2 each is submitted alone."""
        return 1

    def apart(self, plans: Sequence[JobPlan]) -> str:
        """Why runs of these plans cannot take turns in one allocation; empty where they can."""
        return "there are no allocations here"

    def start_together(self, records: Sequence[RunRecord]) -> list[RunRecord]:
        """As ``start``, for the tasks 0, 1, ... of one array, or the turns of one series."""
        raise NotImplementedError

    @abstractmethod
    def look(self, records: Sequence[RunRecord]) -> dict[str, Finding]:
        """What became of runs, by run id. Nothing is raised for a scheduler: what it does not say is ``unknown``."""

    def failed_nodes(self, nodes: str) -> list[str]:
        """Those of ``nodes``, a host list, that the scheduler shows as unfit for jobs.

        Raises:
            RequestError: nobody watches nodes here
            SchedulerError: the scheduler does not say
        """
        from llmb_common.errors import RequestError

        raise RequestError(
            "no scheduler says here which nodes have failed", remedy="name the nodes with --without HOSTS"
        )

    def nodes_now(self, nodes: str | None, partition: str | None) -> dict[str, str]:
        """The nodes of a host list or of a partition, by name, and why each cannot be had now; empty: it can.

        Raises:
            RequestError: there are no such nodes, or nobody knows of nodes here
            SchedulerError: the scheduler does not say
        """
        raise _no_nodes()

    def hold(self, wanted: Wanted) -> AbstractContextManager[Held]:
        """Nodes to ask something, until the context ends.

        Raises:
            RequestError: nobody knows of nodes here
            SchedulerError: they cannot be had
        """
        raise _no_nodes()

    @abstractmethod
    def end(self, records: Sequence[RunRecord]) -> dict[str, RunRecord | LLMBError]:
        """End runs that live; those that are queued have a job.

        By run id the record of one whose end is certain, or why one was not ended. The others were asked to end, and
        what becomes of them will be seen by looking.
        """


def _no_nodes() -> LLMBError:
    from llmb_common.errors import RequestError

    return RequestError("no scheduler knows of nodes here", remedy="leave out what asks for them", code="no-nodes")


def executor_for(cluster_type: ClusterType) -> Executor:
    """The executor of ``cluster_type``."""
    executor: Executor = named(traits_of(cluster_type).executor)()
    return executor
