"""What a way of running jobs implements.

A ``JobScript`` says what a batch script needs of its scheduler and what starts the ranks. An ``Executor`` is one, and
also checks that a job can be started, starts it, looks what became of it and ends it. Their folder names them in
``TRAITS`` (``llmb_common.base.cluster_types``), and nothing else asks for their names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

import msgspec

from llmb_common.base.cluster_types import ClusterType, import_named, traits_of
from llmb_common.base.errors import LLMBError, RequestError
from llmb_common.base.files import shell_part

if TYPE_CHECKING:
    from llmb_common.base.processes import Answer
    from llmb_common.base.talking import Conversation
    from llmb_common.planning.job_plan import JobPlan
    from llmb_common.planning.scheduler import SchedulerPart
    from llmb_common.runs.finding import Finding
    from llmb_common.runs.paths import RunPaths
    from llmb_common.runs.record import RunRecord


class Ranks(msgspec.Struct, frozen=True):
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
"""Ranks that torchrun starts, all on one machine."""


PORT_BASE, PORT_COUNT = 21000, 9000
"""Rendezvous ports, by job id: two jobs collide only if they share a node and their ids differ by a multiple of 9000.
Linux uses ports from 32768 up for outgoing connections, and one that holds the rendezvous port ends the job at its
start; 30000 to 32767 are Kubernetes' node ports, 20048 and 20049 those of NFS."""
MOST_GROUPS = 4096
"""Ports that may be in use at once."""


WAIT = shell_part(__file__, "wait.sh")
"""The Bash function ``await``, for whatever waits for a child while it handles signals."""


class NodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which nodes, and for how long. ``scheduler`` says how jobs are submitted here; None where there is none."""

    name: str
    """The name of the job."""
    scheduler: SchedulerPart | None = None
    nodes: Sequence[str] = ()
    """Empty: one, whichever."""
    gpus: int = 1
    """On each node, where they are asked for at all."""
    minutes: int = 3
    wait: int = 60
    """Seconds in the queue."""
    whole: bool = False
    """Nobody else runs there meanwhile."""


class Container(msgspec.Struct, frozen=True):
    """The image that a program runs in, and what it sees of the machine (``/source:/target``)."""

    image: str
    mounts: Sequence[str] = ()


class Held(Protocol):
    """Nodes that are held for this command, until they are given back."""

    @property
    def nodes(self) -> Sequence[str]:
        """The names of the nodes."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """The address by which other nodes reach each node, by its name."""

    @property
    def port(self) -> int:
        """The first of the TCP ports that this command may use on the nodes."""

    def run(
        self, argv: Sequence[str], seconds: float, *, inside: Container | None = None, nodes: Sequence[str] = ()
    ) -> Answer:
        """Run the program ``argv`` once on each of ``nodes`` (empty: on all that are held).

        Returns what all of them print. For at most ``seconds``, in the container ``inside`` or without one. Lines come
        in no order; what is wrong is in the answer.
        """

    def talk(
        self, argv: Sequence[str], *, inside: Container | None = None, nodes: Sequence[str] = ()
    ) -> AbstractContextManager[Conversation]:
        """Run a program that goes on, as ``run`` does; a context that gives the conversation with it.

        What it is told reaches it on all of these nodes, and what they print comes together, line by line.

        Raises:
            OSError: it cannot be started
        """

    def unreached(self, answer: Answer) -> Sequence[str]:
        """Return the nodes on which the program of ``answer`` was not started.

        Empty where there are none, or nobody says. Their failure may have ended it on the others.
        """


class JobScript(ABC):
    """A scheduler's part of batch scripts: all that a dry run needs. It has no state: each call makes one."""

    ranks: Ranks = TORCHRUN

    def head(self, plan: JobPlan, paths: RunPaths) -> list[str]:
        """Return the lines after ``#!/bin/bash`` that the scheduler reads; empty where it reads none.

        Raises:
            RequestError: a path or the image cannot be said to it.
        """
        return []

    @abstractmethod
    def job_script(self) -> str:
        """Return the Bash text that sets what ``submission/supervise.sh`` reads of the scheduler.

        With the functions ``step_status``, ``end_step``, ``ask_step`` and ``on_nodes``.
        """

    @abstractmethod
    def launch(self, plan: JobPlan) -> list[str]:
        """Return the Bash lines that start the ranks in the background.

        Each rank runs ``bash -c "$task"``, its output goes to ``$log``, and ``$!`` is the process to wait for.

        Raises:
            RequestError: a path cannot be said to what starts them.
        """


class Executor(JobScript):
    """A way of running jobs: checks, starts, observes and ends them. An executor keeps no state."""

    @abstractmethod
    def check(self, plan: JobPlan) -> None:
        """Look for what the job of ``plan`` needs on this machine, before anything is on disk; returns nothing.

        Raises:
            EnvironmentLacks: something is missing.
            ConfigError: a file that it needs may come from anybody.
        """

    def doubts(self, plan: JobPlan) -> list[str]:
        """Return sentences on what ``check`` does not refuse, and the user should know first; mostly none."""
        return []

    def options(self, plan: JobPlan, after: Sequence[str], excluded: Mapping[str, str]) -> tuple[str, ...]:
        """Return the scheduler's options that are given on submission, beyond the script.

        Empty where there are none. They say which jobs to start after, by id (only where the traits have
        ``dependencies``), and which nodes to avoid, each with the reason. The record keeps them.

        Raises:
            RequestError: it contradicts the plan.
        """
        return ()

    @abstractmethod
    def start(self, record: RunRecord, *, detach: bool = False) -> RunRecord:
        """Start the run, which is on record as SUBMITTING.

        Returns its record, saved, with the job's id where there is one. A job that no scheduler keeps is followed to
        its end, unless ``detach``; the record of one that failed is FAILED.

        Raises:
            AnswerLost: nobody knows whether there is a job; the run stays on record until that is settled.
            SchedulerError: the job was refused and does not exist; the caller removes the run.
            Interrupted: the user interrupted a run that was followed, and it was ended.
        """

    def series_conflict(self, plans: Sequence[JobPlan]) -> str:
        """Return why runs of these plans cannot take turns in one allocation, as a clause; empty where they can."""
        return "there are no allocations here"

    def start_series(self, records: Sequence[RunRecord]) -> list[RunRecord]:
        """Start the runs of one series as one job; return their records, saved, in order.

        Raises:
            AnswerLost: as ``start``, for all of them
            SchedulerError: as ``start``, for all of them
            NotImplementedError: there are no allocations here: ``series_conflict`` says so
        """
        raise NotImplementedError

    @abstractmethod
    def poll(self, records: Sequence[RunRecord]) -> dict[str, Finding]:
        """Return what became of runs, by run id; records are not changed.

        Nothing is raised for a scheduler: what it does not say is ``unknown`` in the finding.
        """

    def failed_nodes(self, nodes: str) -> list[str]:
        """Return those of ``nodes``, a host list, that the scheduler shows as unfit for jobs; empty where none is.

        Raises:
            RequestError: nobody watches nodes here
            SchedulerError: the scheduler does not say
        """
        raise RequestError(
            "there is no scheduler here to say which nodes failed", remedy="name the nodes with --without HOSTS"
        )

    def nodes_now(self, nodes: str | None, partition: str | None) -> dict[str, str]:
        """Return the nodes of a host list or of a partition, by name, and why each cannot be had now.

        Empty text: it can. With both None those of the scheduler's default partition.

        Raises:
            RequestError: there are no such nodes, or nobody knows of nodes here
            SchedulerError: the scheduler does not say
        """
        raise _no_scheduler_error()

    def topology(self) -> dict[str, str]:
        """Return the switch or block of the network that each node is in, by the node's name. Never raises.

        Empty where the scheduler does not know, or does not say.
        """
        return {}

    def hold(self, wanted: NodeRequest) -> AbstractContextManager[Held]:
        """Return a context that holds the ``wanted`` nodes, to ask them something, and gives them back at its end.

        Raises:
            RequestError: nobody knows of nodes here
            SchedulerError: they cannot be had
        """
        raise _no_scheduler_error()

    def own_nodes(self, job_id: str, nodes: Sequence[str], part: SchedulerPart | None) -> Held:
        """Return the nodes of the job ``job_id``, in which this process runs, as held ones.

        ``part`` is what the scheduler was asked for.

        Raises:
            RequestError: nobody knows of nodes here
        """
        raise _no_scheduler_error()

    @abstractmethod
    def cancel(self, records: Sequence[RunRecord]) -> dict[str, RunRecord | LLMBError]:
        """End runs that live; those that are queued have a job.

        Returns by run id the record of one whose end is certain, or why one was not ended. Runs that are missing in it
        were asked to end, and what becomes of them will be seen by looking.
        """


def _no_scheduler_error() -> LLMBError:
    """The error that there is no scheduler that could be asked about nodes."""
    return RequestError(
        "there is no scheduler here to ask about nodes", remedy="leave out what asks for them", code="no-nodes"
    )


def script_for(cluster_type: ClusterType) -> JobScript:
    """Return what writes the batch scripts of ``cluster_type``.

    The executor is not imported where that can be avoided.

    Raises:
        ValueError: there is no such way of running jobs
    """
    traits = traits_of(cluster_type)
    script: JobScript = import_named(traits.script or traits.executor)()
    return script


def executor_for(cluster_type: ClusterType) -> Executor:
    """Return the executor for a way of running jobs; its module is imported now.

    Raises:
        ValueError: there is no such way
    """
    executor: Executor = import_named(traits_of(cluster_type).executor)()
    return executor
