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
    from llmb_common.base.programs import Answer
    from llmb_common.base.talking import Conversation
    from llmb_common.planning.job_plan import JobPlan
    from llmb_common.planning.scheduler import SchedulerPart
    from llmb_common.runs.finding import Finding
    from llmb_common.runs.paths import RunPaths
    from llmb_common.runs.record import RunRecord


class Ranks(msgspec.Struct, frozen=True):
    """How a training process learns its place in the job: names of environment variables, and Bash words.

    Each way of starting ranks has one, as ``JobScript.ranks``. A Bash word is a text such as ``${SLURM_JOB_ID}`` that
    Bash expands when the rank starts. Nothing is checked when it is made.
    """

    rank: str
    """The variable with the rank's number among all ranks."""
    local_rank: str
    """The variable with the rank's number on its node."""
    per_node: str | None
    """The variable with the number of ranks on a node; None: ranks are not bound to the NUMA node of their GPU."""
    job: str
    """A Bash word for the job's id, in the names of profiles."""
    node: str
    """A Bash word for the number of the node, in the names of profiles."""


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
APPEND = shell_part(__file__, "append.sh")
"""The Bash function ``append_line``, for whatever records an event of a run."""


class NodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which nodes to hold for a command that asks them something, and for how long.

    ``Executor.hold`` takes it; it is made with keywords, and nothing is checked then. ``scheduler`` says how jobs are
    submitted here; None where there is no scheduler.
    """

    name: str
    """What the name of the job that holds the nodes is made of, by the site's rules."""
    scheduler: SchedulerPart | None = None
    nodes: Sequence[str] = ()
    """The names of the nodes; empty: any one node."""
    gpus: int = 1
    """GPUs to ask for on each node, where the site's scheduler is asked for GPUs at all."""
    minutes: int = 3
    """For how many minutes the nodes are held at most."""
    wait: int = 60
    """Seconds to wait in the queue for the nodes."""
    whole: bool = False
    """Whether nobody else's jobs may run there meanwhile."""


class Container(msgspec.Struct, frozen=True):
    """The container image that a program runs in, and the folders of the machine that it sees.

    Nothing is checked when it is made.
    """

    image: str
    """The path or the address of the image."""
    mounts: Sequence[str] = ()
    """The folders of the machine that it sees, each ``/source:/target`` or ``/source:/target:flags``; empty: none."""


class Held(Protocol):
    """Nodes that are held for this command, on which it can run programs until they are given back.

    ``Executor.hold`` yields them and gives them back; ``Executor.own_nodes`` returns those of the job that this
    process is part of. The property ``nodes`` has their names, each once; ``addresses``, a property, maps each name
    to the address by which other nodes reach it (a node that the scheduler no longer knows is missing), and may raise
    ``SchedulerError``; the property ``first_port`` is the first of 4096 TCP ports for programs on them that talk to
    each other. ``run`` runs the program ``argv``, the words of its command line, once on each of ``nodes`` (names of
    held ones; empty: on all), for at most ``seconds``, and returns one ``Answer`` for all of them, with status 0 only
    where all succeed, never raising. ``talk`` returns a context with a ``Conversation`` with the program on these
    nodes, which takes orders; it raises OSError, on entering, where that cannot be started. ``inside`` is the
    container, None: without one. ``unreached`` returns the names of the nodes on which the program of an ``Answer``
    was not started, in no particular order, empty where nothing tells.
    """

    @property
    def nodes(self) -> Sequence[str]:
        """The names of the nodes that are held, each once."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """The address, a host name or an IP address, by which other nodes reach each node that is held, by its name.

        A node that the scheduler no longer knows is missing.

        Raises:
            SchedulerError: a scheduler that is asked for them does not answer
        """

    @property
    def first_port(self) -> int:
        """The first of the 4096 TCP ports in a row that this command may use on each of the nodes that it holds."""

    def run(
        self, argv: Sequence[str], seconds: float, *, inside: Container | None = None, nodes: Sequence[str] = ()
    ) -> Answer:
        """Run the program ``argv`` once on each of ``nodes`` (empty: on all held ones) and return what they print.

        ``argv`` is its command line, word by word. One answer for all, whose status is 0 only where all succeed; the
        lines of several nodes come in any order. ``nodes`` are names of held ones. In the container ``inside``, or
        without one (None); after ``seconds`` all are ended, and the answer has no status (problem ``no-answer``). What
        goes wrong is in the answer, never raised.
        """

    def talk(
        self, argv: Sequence[str], *, inside: Container | None = None, nodes: Sequence[str] = ()
    ) -> AbstractContextManager[Conversation]:
        """Return a context in which ``argv`` runs on ``nodes`` (empty: on all that are held) and can be talked to.

        What is sent reaches the program on all of these nodes, and what they print comes together, line by line, in
        any order of nodes. In the container ``inside``, or without one (None). The programs are ended with the
        context.

        Raises:
            OSError: the program cannot be started (on entering the context)
        """

    def unreached(self, answer: Answer) -> Sequence[str]:
        """Return the names of the nodes on which the program that gave ``answer`` was not started.

        In no particular order. Empty where there are none, or nothing tells. Their failure may have ended the program
        on the other nodes.
        """


class JobScript(ABC):
    """What one scheduler contributes to batch scripts, which is all that a dry run needs of it.

    ``head`` returns the lines that the scheduler reads (none by default), ``job_script`` Bash text for the supervisor,
    ``launch`` the lines that start ranks; ``head`` and ``launch`` raise ``RequestError`` for a path that cannot be
    expressed. An instance has no state: ``script_for`` makes a new one each time.
    """

    ranks: Ranks = TORCHRUN
    """How a rank that the script starts learns its place."""

    def head(self, plan: JobPlan, paths: RunPaths) -> list[str]:
        """Return the lines of the batch script of ``plan`` that the scheduler reads, such as ``#SBATCH`` lines.

        They stand right after ``#!/bin/bash``, and have no line breaks; ``paths`` are those of the run's files. Empty
        where the scheduler reads none, as by default.

        Raises:
            RequestError: a path or the image has characters that such a line cannot express
        """
        return []

    @abstractmethod
    def job_script(self) -> str:
        """Return the Bash text that sets the variables which ``submission/supervise.sh`` needs from a scheduler.

        It also defines the functions ``step_status`` (how the ranks ended), ``end_step`` (tell them to end),
        ``ask_step`` (ask them for their stacks) and ``on_nodes`` (run a command on each node). No line break at its
        end.
        """

    @abstractmethod
    def launch(self, plan: JobPlan) -> list[str]:
        """Return the lines of a batch script that start the ranks of ``plan`` in the background.

        They have no line break at their end; an item may be a text of several lines. Each rank runs the Bash text
        ``$task``, its output goes to ``$log``, and ``$!`` is the process to wait for.

        Raises:
            RequestError: a path has characters that the program which starts the ranks cannot take
        """


class Executor(JobScript):
    """One way of running jobs (Slurm, or this machine alone): checks, starts, observes and ends them.

    ``executor_for`` makes it. It keeps no state; records on disk do. For a plan, ``check`` raises where this machine
    lacks what the job needs (``EnvironmentLacks``, ``ConfigError``), ``doubts`` returns sentences on what may go
    wrong, ``options`` the scheduler's further options, as words. ``start`` and ``start_series`` submit runs on record
    as SUBMITTING and return their records, saved (``SchedulerError``: there is no job, ``AnswerLost``: nobody knows);
    without a scheduler ``start`` runs the job to its end, unless ``detach``;
    ``series_conflict`` returns why runs cannot share one job (empty: they can). ``poll`` returns by run id what has
    become of runs, ``cancel`` by run id the record of each run that surely ended, or the error why it was not ended;
    runs that may still end are missing there. ``failed_nodes`` returns the names of unfit nodes of a host list (empty:
    of all), ``nodes_now`` by node why a job cannot have it (empty: it can), ``topology`` by node its switch. ``hold``
    returns a context with nodes to run programs on, ``own_nodes`` those of this process's job. All errors are of
    ``LLMBError``, or OSError where files cannot be read or programs not started; ``poll``, ``doubts`` and ``topology``
    raise none. The default methods are for a way without a scheduler: those that need one raise ``RequestError``,
    ``start_series`` ``NotImplementedError``.
    """

    @abstractmethod
    def check(self, plan: JobPlan) -> None:
        """Raise unless this machine has what the job of ``plan`` needs; called before anything is written to disk.

        Nothing is changed.

        Raises:
            EnvironmentLacks: a program, an image, a GPU or the training engine is missing
            ConfigError: a file that the job needs may come from anybody
            OSError: a folder that must be examined cannot be
        """

    def doubts(self, plan: JobPlan) -> list[str]:
        """Return sentences on what may go wrong with the job of ``plan`` though ``check`` lets it pass; mostly none.

        Each is without a full stop. Never raises for what cannot be found out: it is left out.
        """
        return []

    def options(self, plan: JobPlan, after: Sequence[str], excluded: Mapping[str, str]) -> tuple[str, ...]:
        """Return the scheduler's options for submitting the job of ``plan``, beyond those in its script; empty: none.

        Each is one word of a command line, such as ``--exclude=n1``. ``after`` are the ids of jobs to start after (only
        where the traits have ``dependencies``), ``excluded`` the names of nodes to avoid, each with the reason. The
        run's record keeps the options.

        Raises:
            RequestError: an option contradicts the plan
        """
        return ()

    @abstractmethod
    def start(self, record: RunRecord, *, detach: bool = False) -> RunRecord:
        """Start the run, which is on record as SUBMITTING; return its record, saved, with the job's id if any.

        With a scheduler it is then SUBMITTED, and ``detach`` has no effect. Without one the job is followed to its
        end, with its progress on standard error, and the run is COMPLETED, or FAILED where the job failed, which
        raises nothing; with ``detach`` it is not followed, and is RUNNING.

        Raises:
            AnswerLost: nobody knows whether there is a job; the run stays on record until that is settled
            SchedulerError: the job was refused and does not exist; the caller removes the run
            Interrupted: the user interrupted a run that was followed, and it was ended
            RecordError: the run's record cannot be written
            OSError: the job's script cannot be started on this machine, or the run's record cannot be read
        """

    def series_conflict(self, plans: Sequence[JobPlan]) -> str:
        """Return why runs of ``plans``, at least one, cannot take turns in one allocation of nodes, as a clause.

        It has no full stop, such as "they differ in nodes". Empty: they can. Without a scheduler they never can.
        """
        return "there are no allocations here"

    def start_series(self, records: Sequence[RunRecord]) -> list[RunRecord]:
        """Start the runs of one series as one job, in which they take turns in the order of ``records``.

        They are on record as SUBMITTING, and ``series_conflict`` has nothing against them. Return their records, saved
        as SUBMITTED with the job's id, in the same order.

        Raises:
            AnswerLost: nobody knows whether there is a job; the runs stay on record until that is settled
            SchedulerError: the job was refused and does not exist; the caller removes the runs
            RecordError: a file of the series, or a run's record, cannot be written
            RequestError: a path or a value cannot be expressed for the scheduler
            OSError: reading a run's record fails
            NotImplementedError: there are no allocations here, as ``series_conflict`` has said
        """
        raise NotImplementedError

    @abstractmethod
    def poll(self, records: Sequence[RunRecord]) -> dict[str, Finding]:
        """Return what has become of the runs of ``records``, a finding for each by run id; the records are not changed.

        The finding has no ``state`` where there is nothing new. Nothing is raised where the scheduler does not answer:
        the finding's ``unknown`` then says why.
        """

    def failed_nodes(self, nodes: str) -> list[str]:
        """Return those of ``nodes``, a host list, that the scheduler now shows as unfit for jobs; empty where none is.

        Names, each once, in the scheduler's order; nodes that it does not know are left out. An empty text stands for
        all nodes.

        Raises:
            RequestError: there is no scheduler here that watches nodes
            SchedulerError: the scheduler does not answer
        """
        raise RequestError(
            "there is no scheduler here to say which nodes failed", remedy="name the nodes with --without HOSTS"
        )

    def nodes_now(self, nodes: str | None, partition: str | None) -> dict[str, str]:
        """Return, by node, why a job cannot have it now, such as ``drained (bad GPU)``; an empty text where it can.

        The nodes are those of the host list ``nodes``, or of ``partition``; with both None those of the scheduler's
        default partition. With both given they are those of the list, of which the ones outside of the partition count
        as unknown; an unknown node is in the result, with that as the reason.

        Raises:
            RequestError: there are no such nodes, or no scheduler here that knows of nodes; or ``nodes`` is no host
                list
            SchedulerError: the scheduler does not answer
        """
        raise _no_scheduler_error()

    def topology(self) -> dict[str, str]:
        """Return the switch or block of the network that each node is in, by the node's name; never raises.

        Empty where the scheduler does not know, or does not answer.
        """
        return {}

    def hold(self, wanted: NodeRequest) -> AbstractContextManager[Held]:
        """Return a context that holds the ``wanted`` nodes, to run programs on them, and gives them back at its end.

        Entering it waits for the nodes, up to ``wanted.wait`` seconds.

        Raises:
            RequestError: there is no scheduler here that knows of nodes (from the call itself), or no such nodes (on
                entering)
            SchedulerError: the nodes cannot be had (on entering)
        """
        raise _no_scheduler_error()

    def own_nodes(self, job_id: str, nodes: Sequence[str], part: SchedulerPart | None) -> Held:
        """Return the nodes of the job ``job_id``, in which this process runs, so that it can run programs on them.

        ``nodes`` are their names, which are not checked. Nothing is allocated or given back. ``part`` is the plan's
        part for the scheduler, which says how containers are started; None only where the scheduler has none.

        Raises:
            RequestError: there is no scheduler here that knows of nodes
        """
        raise _no_scheduler_error()

    @abstractmethod
    def cancel(self, records: Sequence[RunRecord]) -> dict[str, RunRecord | LLMBError]:
        """End the jobs of runs that have not ended, ``records``; with a scheduler each must have a job's id.

        Return by run id the record, saved, of a run whose end is certain, or the error why it was not ended. Runs that
        are missing in the answer were asked to end, or have ended already; ``poll`` tells later what became of them.
        Errors of single runs are returned, not raised.

        Raises:
            OSError: reading a run's record fails
        """


def _no_scheduler_error() -> LLMBError:
    """Return, without raising it, a ``RequestError``: no scheduler is here to ask about nodes; code ``no-nodes``."""
    return RequestError(
        "there is no scheduler here to ask about nodes", remedy="leave out what asks for them", code="no-nodes"
    )


def script_for(cluster_type: ClusterType) -> JobScript:
    """Return a new writer of batch scripts for the way of running jobs that is called exactly ``cluster_type``.

    The names are those of ``all_traits``, such as ``slurm``. The module that writes them is imported now; the executor
    itself is not started or asked, so that its programs need not be on this machine.

    Raises:
        ValueError: there is no such way of running jobs
    """
    traits = traits_of(cluster_type)
    script: JobScript = import_named(traits.script or traits.executor)()
    return script


def executor_for(cluster_type: ClusterType) -> Executor:
    """Return a new executor for the way of running jobs that is called exactly ``cluster_type``, such as ``slurm``.

    Its module is imported now.

    Raises:
        ValueError: there is no such way of running jobs
    """
    executor: Executor = import_named(traits_of(cluster_type).executor)()
    return executor
