"""The executor of this machine, which is also its only node: runs are processes, which it starts and follows with
progress, looks at and ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from llmb_common.base.errors import (
    AnswerLost,
    EnvironmentLacks,
    Interrupted,
    LLMBError,
    RecordError,
    RequestError,
    result_or_error,
)
from llmb_common.base.printable import print_message, unfiltered
from llmb_common.base.processes import (
    ProcessId,
    end_processes,
    identify,
    is_alive,
    is_ours_to_end,
    loopback_problem,
    with_variable,
)
from llmb_common.base.programs import Answer, run_program
from llmb_common.base.sessions import noted_signals
from llmb_common.base.talking import Conversation, talk
from llmb_common.executors.base import MOST_GROUPS, PORT_BASE, PORT_COUNT, Container, Executor, Held, NodeRequest
from llmb_common.executors.engine import check_engine
from llmb_common.executors.local.script import TorchrunScript
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.site.machine import gpu_names
from llmb_common.recipes.nearest import train_here
from llmb_common.runs.finding import Finding, end_of, give_up, with_job_facts
from llmb_common.runs.record import CANCELLED, COMPLETED, FAILED, LOST, NOT_SUBMITTED, RUNNING, RunRecord, update_record
from llmb_common.runs.timing.job_events import read_events
from llmb_common.runs.timing.progress import Progress

RUN_VARIABLE = "LLMB_RUN_DIR"
"""In the environment of every process of a run: the run's folder."""

START_SECONDS = 10
"""A script that has not written its start event after so many seconds was never started."""


def processes_of(record: RunRecord) -> list[ProcessId]:
    """Return the live processes of a run on this machine, in no particular order: its script, torchrun and the ranks.

    Also those whose parent has ended, and only this user's. Empty where there are none.
    """
    return with_variable(RUN_VARIABLE, str(record.paths.folder))


def _finding_of(record: RunRecord) -> Finding:
    """Return what has become of a run on this machine, by its events and processes.

    Where there is an end record, it is what ``end_of`` makes of that, such as COMPLETED, FAILED or CANCELLED. Its
    ``unknown`` says so where the run is on another machine; the finding has no ``state`` while the start is under way.
    RUNNING while a process of it lives; one whose processes are gone without an end record is FAILED. Nothing is
    written, and nothing raised.
    """
    events = read_events(record.paths.events)
    if events.exit_code is not None:
        return end_of(events, cancelled=events.signalled)  # torchrun's exit code is then 1
    process, submitter = record.process, record.submitter
    if process is None and submitter is not None and events.pid is not None:
        # By its own account. The submitter started it, so it is on the same machine.
        found = identify(events.pid)
        same_boot = found is not None and (found.boot, found.host) == (submitter.boot, submitter.host)
        process = found if same_boot else None
    if process is None and events.started is None:
        return _not_started(record)
    alive = False if process is None else is_alive(process)
    if alive is None:
        return Finding(unknown=f"it runs on {process.host if process else '?'}, which cannot be seen from here")
    if alive:
        return Finding(RUNNING, since=events.started, process=process, nodes=events.nodes, start=events.started)
    events = read_events(record.paths.events)  # it may have ended since
    if events.exit_code is not None:
        return end_of(events, cancelled=events.signalled)
    if processes_of(record):
        return Finding(RUNNING, since=events.started, nodes=events.nodes, start=events.started)  # only the script died
    detail = "its process is gone without an end record: it was killed, or the machine restarted"
    return Finding(state=FAILED, detail=detail, nodes=events.nodes)


def _not_started(record: RunRecord) -> Finding:
    """Return what has become of a run on this machine whose script has not begun.

    An empty finding while it may still begin, and of a run on record as NOT_SUBMITTED or LOST; NOT_SUBMITTED where
    whoever started it is gone or not on record, and its state is more than 10 s old. Its ``unknown`` says so where it
    was started on another machine.
    """
    if record.state in (NOT_SUBMITTED, LOST):
        return Finding()
    submitter = record.submitter
    alive = is_alive(submitter) if submitter is not None else False
    if alive is None:
        return Finding(unknown=f"it was started on {submitter.host if submitter else '?'}")
    if alive or time.time() - record.state_time < START_SECONDS:
        return Finding()
    return Finding(state=NOT_SUBMITTED, detail="it was interrupted before the job started")


POLL_SECONDS = 0.25
END_SECONDS = 30.0
"""How long a job may take to save and exit after SIGTERM."""


# prctl(PR_SET_PDEATHSIG, SIGTERM), then exec of the program.
_LAUNCHER = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15);"
    "os.getppid() == int(sys.argv[1]) and os.execvp(sys.argv[2], sys.argv[2:])"
)


def start_and_follow(record: RunRecord, *, detach: bool = False) -> RunRecord:
    """Start a run on this machine and, unless ``detach``, show its progress until it ends; return its record, saved.

    The run is on record as SUBMITTING, and its script written. Progress goes to standard error. The record of a run
    that failed is FAILED, with the exit code as its detail, else COMPLETED; with ``detach`` it is RUNNING. A first
    Ctrl-C, SIGTERM or SIGHUP ends the run gently, within 30 s, a second one at once. After other errors the record
    stays as it was last written, SUBMITTING or RUNNING, and a script that was started goes on, without ``detach`` as
    long as this process lives.

    Raises:
        Interrupted: the user interrupted the run; it was ended, and is on record as CANCELLED
        RecordError: its record cannot be read or written, or is another user's
        OSError: the script cannot be started, its log cannot be opened, or reading its record fails
    """
    paths = record.paths
    with noted_signals() as signals:
        child = _start_script(record, detach=detach)
        process = identify(child.pid)  # None: it has already ended, and recorded that
        record = update_record(paths.folder, lambda found: replace(found, process=process).with_state(RUNNING))
        if detach:
            child.returncode = 0  # nobody waits for this child: what became of it is on record
            return record
        status = _follow(child, paths.run_id, Progress(paths.log, record.plan.trained_steps), signals)
        if status is None:
            print_message(f"ending the run, which may take {END_SECONDS:.0f} s; press Ctrl-C again to kill it")
            before = len(signals)
            if process is not None:
                end_processes(process, lambda: processes_of(record), END_SECONDS, lambda: len(signals) > before)
            child.wait()
            update_record(paths.folder, lambda found: with_job_facts(found.with_state(CANCELLED, "interrupted")))
            raise Interrupted("interrupted; the run is on record as CANCELLED", remedy=f"its log: {paths.log}")
    if status == 0:
        return update_record(paths.folder, lambda found: with_job_facts(found.with_state(COMPLETED)))
    detail = "; ".join(filter(None, (f"exit code {status}", read_events(paths.events).problem)))
    return update_record(paths.folder, lambda found: with_job_facts(found.with_state(FAILED, detail)))


def _start_script(record: RunRecord, *, detach: bool) -> subprocess.Popen[bytes]:
    """Start the run's script in a session of its own and return the process; its output goes to the batch log.

    ``record`` is the run's. Output is appended. The script has no input, and this process's environment with
    ``LLMB_RUN_DIR``. Unless ``detach``, the script is ended with this process, even where that is killed.

    Raises:
        OSError: the batch log cannot be opened, or Bash cannot be started
    """
    paths = record.paths
    # A followed run ends with its follower, even when that is killed: the kernel then sends SIGTERM.
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
    with paths.batch_log.open("ab") as output:
        # No stdin: a job must not consume the caller's input. Own session: Ctrl-C is ours to pass on, once.
        return subprocess.Popen(
            [*([] if detach else launcher), "bash", str(paths.script)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, RUN_VARIABLE: str(paths.folder)},
        )


def _follow(child: subprocess.Popen[bytes], run_id: str, progress: Progress, signals: Sequence[int]) -> int | None:
    """Show a run's progress until its script ``child`` ends; return its exit status, or None once a signal is noted.

    ``progress`` reads the steps from the run's log, and is asked again and again. ``signals`` is the list of
    ``noted_signals``, which grows meanwhile. The script is not ended here. Progress is printed on standard error, on a
    terminal as one line that is updated, else for the first and for every tenth step; each line begins with ``run_id``.
    """
    terminal = sys.stderr.isatty()
    shown = 0
    started = time.monotonic()
    while True:
        status = child.poll()
        progress.look()
        if progress.step != shown:
            shown = progress.step
            line = f"{run_id}  step {shown} of {progress.steps}, {time.monotonic() - started:.0f} s"
            if terminal:
                print(f"\r{line}", end="", file=unfiltered(sys.stderr), flush=True)
            elif shown % 10 == 0 or shown == 1:
                print(line, file=sys.stderr)
        if status is not None:
            if terminal and shown:
                print(file=sys.stderr)
            return status
        if signals:
            return None
        time.sleep(POLL_SECONDS)


def end_processes_of(record: RunRecord) -> RunRecord | LLMBError:
    """End a run on this machine and return its record, saved, or the error why it was not ended.

    Its script is told to end first, which ends the ranks and records that, then whatever is left. Waits up to
    ``END_SECONDS`` (30) for them to save, then kills them. The record is CANCELLED; that of a run that had ended by
    itself keeps its outcome. Not ended is a run that is being started (``AnswerLost``), is on another machine
    (``EnvironmentLacks``), or belongs to another user (``RecordError``). The error of one that was ended, but whose
    record cannot be written, is a ``RecordError``, too.

    Raises:
        OSError: reading the run's record fails
    """
    name, process = record.paths.name, record.process
    if process is None:
        return AnswerLost(f"{name} is being started", remedy="cancel it again in a few seconds")
    alive = is_alive(process)
    if alive is None:
        return EnvironmentLacks(f"{name} runs on {process.host}, and this is another machine", remedy="cancel it there")
    if alive and not is_ours_to_end(process.pid):
        return RecordError(
            f"{name} was not ended: process {process.pid}, which its record names, belongs to another user",
            remedy="ps -fp, with that number, shows whose it is: ask its owner to end it",
            code="not-yours",
        )
    end_processes(process, lambda: processes_of(record), END_SECONDS)
    return result_or_error(give_up, record)


class ThisMachine(contextlib.AbstractContextManager["ThisMachine"]):
    """This machine in the role of a held node: it is always there, and need not be given back.

    Made without arguments; as a context it yields itself. ``run`` and ``talk`` start programs on it, with this
    process's environment and without a container (``inside`` and ``nodes`` are ignored): ``run`` returns an ``Answer``
    and never raises, ``talk`` returns a context with a ``Conversation`` and raises OSError, on entering, where the
    program cannot be started. The properties: ``nodes`` has this machine's name alone (inside a job of Slurm its name
    there, else the host name), ``addresses`` is 127.0.0.1 by that name, ``port`` the first of 4096 TCP ports in a row.
    ``unreached`` is always empty.
    """

    @property
    def nodes(self) -> Sequence[str]:
        """The name of this machine, as the only node."""
        return (_node_name(),)

    @property
    def addresses(self) -> dict[str, str]:
        """The loopback address, 127.0.0.1, by this machine's name."""
        return {_node_name(): "127.0.0.1"}

    @property
    def first_port(self) -> int:
        """The first of the 4096 TCP ports in a row that this process may use on this machine.

        It comes from the process id, so that processes seldom clash.
        """
        return PORT_BASE + os.getpid() % (PORT_COUNT - MOST_GROUPS)

    def run(
        self, argv: Sequence[str], seconds: float, *, inside: Container | None = None, nodes: Sequence[str] = ()
    ) -> Answer:
        """Run ``argv`` on this machine for at most ``seconds``, with this process's environment; return its answer.

        Always without a container: ``inside`` and ``nodes`` are ignored. What goes wrong is in the answer, never
        raised.
        """
        return run_program(argv, seconds, env=os.environ)

    def talk(
        self, argv: Sequence[str], *, inside: Container | None = None, nodes: Sequence[str] = ()
    ) -> AbstractContextManager[Conversation]:
        """Return a context in which ``argv`` runs on this machine and can be talked to.

        It gets this process's environment. Always without a container: ``inside`` and ``nodes`` are ignored.
        The program is ended when the context is left.

        Raises:
            OSError: the program cannot be started (on entering the context)
        """
        return talk(argv, env=os.environ)

    def unreached(self, answer: Answer) -> Sequence[str]:
        """Return no nodes, an empty sequence, whatever ``answer`` says: this machine is always reached."""
        return ()

    def __exit__(self, *exception: object) -> None:
        return None


def _node_name() -> str:
    """Return the name of this machine as a node: Slurm's name for it inside a job of Slurm, else its host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


class LocalExecutor(TorchrunScript, Executor):
    """Runs jobs on this machine without a scheduler, each in a session of its own.

    Made without arguments. ``start`` follows a job, which then ends with the command that follows it, unless it is
    detached. ``check`` raises ``EnvironmentLacks`` where GPUs, engine or loopback are missing. ``poll`` and ``cancel``
    return something for each run, by its id; ``cancel`` raises OSError where a run's record cannot be read. ``hold``
    reserves nothing and yields this machine; ``nodes_now`` has this machine alone, and raises ``RequestError`` for
    another node or a partition. ``doubts``, ``options`` and ``topology`` are empty. What only a scheduler can do
    (series, ``failed_nodes``, ``own_nodes``) it refuses as ``Executor`` does.
    """

    start = staticmethod(start_and_follow)

    def check(self, plan: JobPlan) -> None:
        """Raise unless this machine has the GPUs and the training engine that ``plan`` needs, and a loopback interface.

        GPUs are only counted: at least as many as the plan has, none on CPUs.

        Raises:
            EnvironmentLacks: one of them is missing, or the engine is of another release (codes as in
                ``check_engine``)
        """
        if plan.device == "cuda" and (present := len(gpu_names())) < plan.gpus:
            raise EnvironmentLacks(
                f"{plan.gpus} GPUs requested, but this machine has {present}",
                remedy=f"{train_here(plan.workload)}; with DRY_RUN=true (llmb-run: --dry-run) you see what a cluster "
                "would get",
            )
        check_engine(plan)
        if problem := loopback_problem():
            raise problem

    def poll(self, records: Sequence[RunRecord]) -> dict[str, Finding]:
        """Return what has become of runs on this machine, a finding for each by run id; records are not changed.

        It goes by their events and processes. The finding's ``unknown`` says so of a run on another machine; it has no
        ``state`` where there is nothing new.
        """
        return {record.paths.run_id: _finding_of(record) for record in records}

    def nodes_now(self, nodes: str | None, partition: str | None) -> dict[str, str]:
        """Return this machine's name with an empty text, which means that a job can have it now.

        ``nodes`` is None or exactly that name (inside a job of Slurm its name there, else the host name), and
        ``partition`` None.

        Raises:
            RequestError: another node, or a partition, is asked for
        """
        name = _node_name()
        if partition is not None or nodes not in (None, name):
            raise RequestError(
                f"without Slurm this machine, {name}, is the only node",
                remedy="leave out --nodes and --partition",
            )
        return {name: ""}

    def hold(self, wanted: NodeRequest) -> AbstractContextManager[Held]:
        """Return a context that yields this machine as a held node, whatever ``wanted`` asks for.

        Also where it names other nodes. Nothing is reserved, waited for or raised: other jobs may run here meanwhile.
        """
        return ThisMachine()

    def cancel(self, records: Sequence[RunRecord]) -> dict[str, RunRecord | LLMBError]:
        """End runs on this machine, one after the other; return by run id its record, saved, or why it was not ended.

        Every run is in the answer. Waits for each to save, for up to ``END_SECONDS`` (30), and kills it then.

        Raises:
            OSError: reading a run's record fails
        """
        return {record.paths.run_id: end_processes_of(record) for record in records}
