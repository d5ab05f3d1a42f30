"""Holding nodes of Slurm: an allocation that ends with this process, however that ends, and steps in it."""

from __future__ import annotations

import contextlib
import re
import selectors
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import msgspec

from llmb_common.base.errors import SchedulerError
from llmb_common.base.hostlist import compress, expand
from llmb_common.base.programs import Answer, clean_environment, run_program
from llmb_common.base.sessions import end_session
from llmb_common.base.talking import Conversation, talk
from llmb_common.executors.base import MOST_GROUPS, PORT_BASE, PORT_COUNT, Container, Held, NodeRequest
from llmb_common.executors.slurm.query import nodes_of_jobs, partition_of
from llmb_common.executors.slurm.script import for_enroot, pyxis_options
from llmb_common.executors.slurm.words import SlurmPlan
from llmb_common.planning.scheduler import SchedulerPart

_SAY = 'echo "$SLURM_JOB_ID $SLURM_JOB_NODELIST"; exec cat'
"""What ``salloc`` runs: it says what was granted, and ends with our end of its input."""
_SECONDS_MORE = 15
"""What ``salloc`` takes beside its time in the queue."""


@dataclass(frozen=True)
class HeldNodes:
    """Nodes of one Slurm job on which this command can run programs, by srun.

    ``hold`` makes one of an allocation of its own, ``own_nodes`` of the job that this process is in; the methods
    neither allocate nor give back. ``run`` waits for a program's end, at most ``seconds``, and returns one ``Answer``
    for all nodes, with srun's status (0 only where all succeed), never raising; ``talk`` returns a context with a
    ``Conversation``, for a program that takes orders, and raises OSError, on entering, where srun cannot be started.
    ``nodes`` are names of the job's nodes, each once; without them both mean all nodes, without ``inside`` no
    container. ``unreached`` returns the names of the nodes on which srun could not start the program; mostly none. The
    property ``addresses`` maps each node's name to its address, without nodes that Slurm no longer knows; it asks the
    scheduler each time, and raises ``SchedulerError`` where that does not answer. The property ``port`` is the first
    of 4096 TCP ports.
    """

    job_id: str
    """The id of the job that holds the nodes, a number as text."""
    nodes: tuple[str, ...]
    """Their names, as given by Slurm or the caller."""
    slurm: SlurmPlan
    """How the job was asked for: it says how containers are started."""

    @property
    def addresses(self) -> dict[str, str]:
        """The address, a host name or an IP address, by which Slurm reaches each of the nodes, by the node's name.

        The scheduler is asked each time. A node that Slurm no longer knows is missing.

        Raises:
            SchedulerError: the scheduler does not answer
        """
        return dict(nodes_of_jobs(None, compress(self.nodes)))

    @property
    def first_port(self) -> int:
        """The first of the 4096 TCP ports in a row that this command may use on each of the nodes.

        It comes from the job's id, so that jobs on the same nodes do not clash.
        """
        return PORT_BASE + int(self.job_id) % (PORT_COUNT - MOST_GROUPS)

    def run(
        self, argv: Sequence[str], seconds: float, *, inside: Container | None = None, nodes: Sequence[str] = ()
    ) -> Answer:
        """Run ``argv`` once on each of ``nodes`` (empty: on all of the job's) and return what all of them print.

        In the container ``inside``, or without one (None); it is ended after ``seconds``, and the answer then has no
        status. One answer for all, its status srun's (0 only where all succeed), the lines of several nodes in any
        order. It is a step of the job beside others, so that one that hangs does not keep the next from starting. What
        goes wrong is in the answer, never raised.
        """
        return run_program(self._srun_command(argv, inside, nodes), seconds)

    def talk(
        self, argv: Sequence[str], *, inside: Container | None = None, nodes: Sequence[str] = ()
    ) -> AbstractContextManager[Conversation]:
        """Return a context in which ``argv`` runs on ``nodes`` (empty: on all of the job's) and can be talked to.

        srun passes what is sent on to all of them, and mixes the lines that they print. In the container ``inside``,
        or without one (None). The programs are ended with the context.

        Raises:
            OSError: srun cannot be started (on entering the context)
        """
        return talk(self._srun_command(argv, inside, nodes))

    def _srun_command(self, argv: Sequence[str], inside: Container | None, nodes: Sequence[str]) -> list[str]:
        """Return the srun command line that runs ``argv`` once on each of ``nodes`` (empty: on all of the job's).

        In the container ``inside``; None: without one. Words, not quoted.
        """
        count = len(nodes or self.nodes)
        step = ["srun", f"--jobid={self.job_id}", "--overlap", "--quiet", "--mpi=none", "--wait=0", "--no-kill"]
        step += [f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--kill-on-bad-exit=0"]
        if nodes:
            step.append(f"--nodelist={compress(nodes)}")
        step += _in_container(self.slurm, inside, argv) if inside else argv
        return step

    def unreached(self, answer: Answer) -> Sequence[str]:
        """Return the nodes on which srun, by what it wrote in ``answer``, could not start the program; mostly none.

        In the order of its messages. srun (22.05) gives up a whole step when it cannot start one of its tasks.
        """
        return re.findall(r"Task launch for \S+ failed on node ([\w.-]+):", answer.errors)


def _in_container(slurm: SlurmPlan, inside: Container, argv: Sequence[str]) -> list[str]:
    """Return the part of a srun command line that runs ``argv`` in the container ``inside``.

    Before ``argv`` stand options of srun for Pyxis, or a start of Enroot (``enroot start ...``), as the site's runtime
    (``slurm.runtime``) wants it; any other runtime than ``enroot`` is taken for Pyxis. Words, not quoted.
    """
    if slurm.runtime == "enroot":
        options = ["--rw"] if slurm.container_writable else []
        for mount in inside.mounts:
            options += ["--mount", for_enroot(mount)]
        return ["enroot", "start", *options, inside.image, *argv]
    return [*pyxis_options(slurm, inside.image, inside.mounts), *argv]


@contextlib.contextmanager
def hold(wanted: NodeRequest) -> Iterator[Held]:
    """Return a context that holds the ``wanted`` nodes as one Slurm job; they are given back at its end.

    Also where this process ends. Entering it waits for the nodes, about ``wanted.wait`` seconds. Named nodes are held
    in a partition that has all of them, the site's if it does. ``wanted.scheduler`` must be Slurm's. All errors come
    on entering.

    Raises:
        RequestError: code ``no-nodes``: no partition has all of the nodes, or there are no such nodes
        SchedulerError: code ``no-program``: salloc or sinfo cannot be run; ``no-nodes``: the nodes are not granted in
            time, or at all; or sinfo fails or does not answer
    """
    slurm = wanted.scheduler
    assert isinstance(slurm, SlurmPlan)
    if wanted.nodes:
        slurm = msgspec.structs.replace(slurm, partition=partition_of(wanted.nodes, slurm.partition))
    argv = [*salloc_command(wanted, slurm), "sh", "-c", _SAY]
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=clean_environment(),
            start_new_session=True,
        )
    except OSError as error:
        raise SchedulerError(
            f"cannot run salloc: {error.strerror or error}", remedy="run this on a login node", code="no-program"
        ) from error
    with process:
        try:
            job_id, _, nodes = _wait_for_allocation(process, wanted.wait + _SECONDS_MORE).partition(" ")
            yield HeldNodes(job_id, tuple(expand(nodes)), slurm)
        finally:
            assert process.stdin is not None
            # The program that salloc runs waits for this end, and gives the nodes back.
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_MORE)
            end_session(process.pid, 1.0, process.poll)


def own_nodes(job_id: str, nodes: Sequence[str], part: SchedulerPart | None) -> Held:
    """Return the nodes of the Slurm job ``job_id``, in which this process runs, so that it can run programs on them.

    ``job_id`` is a number as text. Nothing is allocated, given back or asked: ``nodes``, their names, are taken as
    they are. ``part`` is the plan's part for Slurm, and must not be None.
    """
    assert isinstance(part, SlurmPlan)
    return HeldNodes(job_id, tuple(nodes), part)


def salloc_command(wanted: NodeRequest, slurm: SlurmPlan) -> list[str]:
    """Return the salloc command line for the ``wanted`` nodes, as words, without the program that it is to run.

    Nothing is run here. It asks for as many nodes as ``wanted`` names, each once, and for any one node where it names
    none. Account, partition and GRES are those of the site's jobs, ``slurm``, which counts instead of
    ``wanted.scheduler``; of its additional options only ``qos``, ``reservation`` and ``constraint``.
    """
    count = len(wanted.nodes) or 1
    argv = ["salloc", f"--nodes={count}", f"--ntasks={count}", f"--time={wanted.minutes}"]
    argv += [f"--job-name={slurm.job_name(wanted.name)}", "--quiet", "--no-kill", f"--immediate={wanted.wait}"]
    argv += ["--exclusive", "--mem=0"] if wanted.whole else []
    argv += [f"--nodelist={compress(wanted.nodes)}"] if wanted.nodes else []
    argv += [f"--account={slurm.account}"] if slurm.account else []
    argv += [f"--partition={slurm.partition}"] if slurm.partition else []
    if slurm.gres:
        argv += [f"--gres={slurm.gpus(wanted.gpus)}"]
    further = dict(slurm.additional)
    kept = [key for key in ("qos", "reservation", "constraint") if further.get(key)]
    return argv + [f"--{key}={further[key]}" for key in kept]


def _wait_for_allocation(process: subprocess.Popen[bytes], seconds: float) -> str:
    """Wait up to ``seconds`` for salloc to be granted its nodes; return ``<job id> <nodes>``, the latter a host list.

    ``process`` is salloc with pipes for output and errors, the leader of its session; the text is the first line that
    it prints, without a line break.

    Raises:
        SchedulerError: code ``no-nodes``: the nodes were not granted, in Slurm's words; salloc has been ended
    """
    assert process.stdout is not None
    assert process.stderr is not None
    deadline, output = time.monotonic() + seconds, b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while b"\n" not in output and selector.select(max(0.0, deadline - time.monotonic())):
            block = process.stdout.read1(1 << 16)  # type: ignore[attr-defined]
            output += block
            if not block:
                break
    if b"\n" in output:
        return output.decode().partition("\n")[0]
    end_session(process.pid, 1.0, process.poll)
    lines = process.stderr.read().decode(errors="replace").splitlines()
    words = [line.removeprefix("salloc: ").removeprefix("error: ").strip() for line in lines]
    raise SchedulerError(
        f"Slurm gives no nodes: {'; '.join([*filter(None, words)][:3]) or f'no answer in {seconds:g} s'}",
        remedy="look at squeue and sinfo, or wait longer",
        code="no-nodes",
    )
