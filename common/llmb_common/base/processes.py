"""Other programs and processes: asking one something, bounded in time and output; identifying and ending one.

Programs that work for us, with output that somebody follows, are not asked here: the installer's ``working.command``
and the local executor start those.

A pid gets reused, and means nothing after a reboot or on another machine. Nothing is ever signalled by its pid alone:
``send_signal`` reaches exactly the process that was identified, or none.

Standard library only: the installer's first stage asks, and takes its lock, before anything is installed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import IO, Literal

from llmb_common.base.errors import EnvironmentLacks
from llmb_common.base.sessions import KILL_SECONDS, end_session, noted_signals

MOST_BYTES = 256 << 20
"""More than any program that is asked has to say: the listing of a container image has 40 MB."""

_PATIENCE = 1.0
"""Seconds between SIGTERM and SIGKILL: srun uses them to cancel its job."""
_SLURM_VARIABLES = ("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SACCT_", "SCANCEL_", "SINFO_", "SCONTROL_")
_SLURM_KEPT = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS"}


@dataclass(frozen=True)
class Answer:
    """What one program that was run has printed, and how it ended.

    ``status`` is its exit status (negative: the signal that ended it), or None where there is no answer. ``problem``
    then is ``no-program`` (it could not be started), ``no-answer`` (it was ended after its time) or ``too-long`` (it
    was ended because it printed too much); else ``problem`` and ``why`` are empty. What was printed before it was ended
    is kept.
    """

    status: int | None
    stdout: bytes = b""
    """What it wrote to standard output."""
    stderr: bytes = b""
    """What it wrote to standard error."""
    problem: Literal["", "no-program", "no-answer", "too-long"] = ""
    why: str = ""
    """The problem as a clause: ``sinfo did not answer in 20 s``."""

    @property
    def ok(self) -> bool:
        """Whether the program ended with exit status 0; False where there is no answer."""
        return self.status == 0

    @property
    def output(self) -> str:
        """What the program wrote to standard output, as text; bytes that are not UTF-8 are replaced."""
        return self.stdout.decode(errors="replace")

    @property
    def errors(self) -> str:
        """What the program wrote to standard error, as text; bytes that are not UTF-8 are replaced."""
        return self.stderr.decode(errors="replace")

    @property
    def complaint(self) -> str:
        """What went wrong with the program, on one line of at most 300 characters; meant for a program that failed.

        Why there is no answer (``sinfo did not answer in 20 s``), else the first line of its standard error that is not
        empty, or of its standard output where standard error is empty. ``exit status N`` where it printed nothing, N
        negative for a signal.
        """
        text = self.why or (self.errors.strip() or self.output.strip())
        return text.splitlines()[0][:300] if text else f"exit status {self.status}"


def run_program(
    argv: Sequence[str], seconds: float, *, env: Mapping[str, str] | None = None, most: int = MOST_BYTES
) -> Answer:
    """Run the program ``argv`` without input, wait for its end and return its output and exit status.

    Never raises for what goes wrong with the program: the ``Answer`` says it. The program runs in a session of its own
    and is ended, with everything in that session, after ``seconds``, after more than ``most`` bytes on one of its two
    streams, and when the caller is interrupted, whose exception then passes. ``env`` is its whole environment, in whose
    PATH the program is looked for; None: ``clean_environment()``.
    """
    environment = clean_environment() if env is None else dict(env)
    # A signal that arrives before the program's end is provided for would leave it running, with nobody who knows it. A
    # blocked mask would be inherited; handlers are not.
    with contextlib.ExitStack() as starting:
        arrived = starting.enter_context(noted_signals())

        def restore_signals() -> None:
            """Put the former signal handlers back, and send this process the signals that have arrived meanwhile."""
            starting.close()
            for number in arrived:
                signal.raise_signal(number)

        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            restore_signals()
            why = f"cannot run {argv[0]}: {_start_failure(error, argv[0], environment)}"
            return Answer(None, problem="no-program", why=why)
        return _collect_output(process, restore_signals, argv[0], seconds, most)


def _collect_output(
    process: subprocess.Popen[bytes], begin: Callable[[], None], name: str, seconds: float, most: int
) -> Answer:
    """Return what the started program ``name`` prints and how it ends.

    After ``seconds``, after more than ``most`` bytes on a stream, and when the caller is interrupted, its whole session
    is ended, so that nothing of it is left; what it had printed is kept, and ``why`` quotes the first line of its
    standard error where it was late. ``begin`` is called first: it gives signals their usual effect again, now that one
    ends the program, too.
    """
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        collected = {process.stdout: bytearray(), process.stderr: bytearray()}
        try:
            begin()
            problem = _read_pipes(process, collected, time.monotonic() + seconds, most)
        # Whatever ends the caller, Ctrl-C included, must end the program, too.
        except BaseException:
            end_session(process.pid, _PATIENCE, process.poll)
            raise
        output = bytes(collected[process.stdout])
        errors = bytes(collected[process.stderr])
        if not problem:
            return Answer(process.wait(), output, errors)
        end_session(process.pid, _PATIENCE, process.poll)
        late = problem == "no-answer"
        why = f"did not answer in {seconds:g} s" if late else f"printed more than {most} bytes"
        answer = Answer(None, output, errors, problem, f"{name} {why}")
        # What it waits for, in its own words: "cannot stat file /etc/slurm/slurm.conf, retrying".
        words = answer.errors.strip().splitlines()
        return replace(answer, why=f"{answer.why}; it said: {words[0][:300]}") if late and words else answer


def _start_failure(error: OSError | ValueError, program: str, env: Mapping[str, str]) -> object:
    """Return why ``program`` could not be started, to be printed: a phrase such as ``No such file or directory``.

    It corrects one answer of the system: where PATH has a folder that we may not enter, the system says "Permission
    denied" of every program that is in no other folder. ``env`` is the environment that has that PATH.
    """
    if not isinstance(error, PermissionError) or os.sep in program:
        return (isinstance(error, OSError) and error.strerror) or error
    is_there = any(os.path.lexists(f"{folder or '.'}/{program}") for folder in os.get_exec_path(env))
    return os.strerror(errno.EACCES if is_there else errno.ENOENT)


def clean_environment() -> dict[str, str]:
    """Return a copy of the caller's environment for other programs: with LC_ALL=C and without variables of Slurm's.

    Left out are those that another job has left behind (``SLURM_*``) and options for Slurm's commands (``SBATCH_*`` and
    the like). The ones that say where Slurm finds its configuration and its cluster, such as ``SLURM_CONF``, stay.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _SLURM_KEPT or not name.startswith(_SLURM_VARIABLES)
    }
    return kept | {"LC_ALL": "C"}


def _read_pipes(
    process: subprocess.Popen[bytes], output: Mapping[IO[bytes], bytearray], deadline: float, most: int
) -> Literal["", "no-answer", "too-long"]:
    """Read both streams of ``process`` into ``output`` and wait for its end; return which limit it broke.

    Empty: none, and it has ended. ``no-answer``: it goes on at ``deadline``, a time of ``time.monotonic``.
    ``too-long``: a stream has more than ``most`` bytes, and is cut there. The program is not ended here.
    """
    with selectors.DefaultSelector() as selector:
        for stream in output:
            selector.register(stream, selectors.EVENT_READ, output[stream])
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return "no-answer"
            for key, _ in selector.select(left):
                block = os.read(key.fd, 1 << 16)
                key.data.extend(block)
                if not block:
                    selector.unregister(key.fileobj)
                if len(key.data) > most:
                    del key.data[most:]
                    return "too-long"
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return "no-answer"
    return ""


_STARTTIME = 22 - 3  # field 22 of /proc/PID/stat, counted after "pid (name)"


@dataclass(frozen=True)
class ProcessId:
    """The identity of one process, of any machine, that holds even after its number has been given to another one."""

    host: str
    """The name of the machine that it runs on, as ``os.uname`` gives it."""
    pid: int
    """Its process id there, which the system may give to another process after its end."""
    start: str
    """When it started, in clock ticks since boot, as ``/proc`` shows it."""
    boot: str
    """The id of the boot of the machine that ``start`` counts from; empty where the system hides it."""


def identify(pid: int | None = None) -> ProcessId | None:
    """Return the identity of process ``pid`` of this machine, by default of this process itself.

    None where there is no such process, or it has ended and waits to be reaped.
    """
    pid = os.getpid() if pid is None else pid
    start = _start_time(pid)
    return None if start is None else ProcessId(os.uname().nodename, pid, start, _boot_id())


def is_alive(process: ProcessId) -> bool | None:
    """Return whether exactly ``process``, not another with the same number, still runs on this machine.

    False also for one that only waits to be reaped, and for one of an earlier boot. None where it belongs to another
    machine, which cannot be seen from here.
    """
    if process.host != os.uname().nodename:
        return None
    return process.boot == _boot_id() and _start_time(process.pid) == process.start


def is_ours_to_end(pid: int) -> bool:
    """Return whether ``pid`` is a process that this user may have started, and that can be ended without ending us.

    So it belongs to our effective user and is neither init, nor this process, nor the leader of our own process group.
    False also of a process that is gone, and of 0 and negative numbers, which mean whole process groups to ``kill``.
    """
    if pid <= 1 or pid == os.getpid() or os.getpgid(0) == pid:
        return False
    try:
        return Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
    except OSError:
        return False


def _each_process(file: str) -> Iterator[tuple[Path, bytes]]:
    """Yield, for every process of this machine, its folder in ``/proc`` and the bytes of ``file`` in it.

    Processes that end meanwhile or that we may not read are left out. The bytes are empty where the file is.
    """
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            content = (entry / file).read_bytes() or _read_when_loaded(entry, file)
        except OSError:
            continue
        yield entry, content


def _read_when_loaded(entry: Path, file: str) -> bytes:
    """Return the bytes of ``file`` in a process's folder ``entry`` of ``/proc``, waiting at least 20 ms for them.

    Empty where none come. While a program is being loaded into a process, what it was started with is not there yet:
    for microseconds, or until a busy machine has a core for it.

    Raises:
        OSError: the process is one of the kernel's own, has ended, or may not be read
    """
    for _ in range(20):
        (entry / "exe").readlink()  # the kernel's own processes have none: OSError
        time.sleep(0.001)
        if content := (entry / file).read_bytes():
            return content
    return b""


def is_running_with(argument: str) -> bool:
    """Return whether any other process on this machine has exactly ``argument`` as one word of its command line.

    Other users' processes count, too; those whose command line we may not read count as not having it.
    """
    wanted, own = os.fsencode(argument), str(os.getpid())
    return any(wanted in content.split(b"\0") for entry, content in _each_process("cmdline") if entry.name != own)


def is_in_use(folder: Path) -> bool:
    """Return whether any process on this machine, this one included, uses something in ``folder``.

    Its command line names a path in there (the folder's path without links), or it has loaded code from there, by
    whatever link. An open file or the current folder does not count. Processes that we may not read count as not using
    it.
    """
    # With the slash: /opt/ab is not in /opt/a.
    wanted = os.fsencode(f"{os.path.realpath(folder)}/")
    return any(wanted in content for _, content in chain(_each_process("cmdline"), _each_process("maps")))


def with_variable(name: str, value: str) -> list[ProcessId]:
    """Return the caller's own processes here that were started with exactly ``name=value`` in their environment.

    This process is among them if it was; in no particular order, empty where there are none. Other users' processes are
    left out even for root, who could read them: their environment says whatever they like.
    """
    wanted = os.fsencode(f"{name}={value}")
    found = []
    for entry, content in _each_process("environ"):
        with contextlib.suppress(OSError):
            if wanted in content.split(b"\0") and entry.stat().st_uid == os.geteuid():
                found.append(identify(int(entry.name)))
    return [process for process in found if process is not None]


def send_signal(process: ProcessId, number: signal.Signals) -> bool:
    """Send the signal ``number`` to exactly ``process``, not to another that has got its number (S5 of SECURITY.md).

    Return True if it was sent; False where the process has ended, if only to be reaped, or runs on another machine.

    Raises:
        PermissionError: the process belongs to somebody else
    """
    descriptor = None
    # None where there is no such process, and before Linux 5.3: there the pid could be reused between two looks.
    with contextlib.suppress(AttributeError, OSError):
        descriptor = os.pidfd_open(process.pid)
    try:
        # Asked only now: what the descriptor refers to can no longer become another process.
        if not is_alive(process):
            return False
        if descriptor is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return True


def end_processes(
    leader: ProcessId,
    members: Callable[[], Sequence[ProcessId]],
    patience: float,
    hurry: Callable[[], bool] = lambda: False,
) -> None:
    """End the process ``leader``, then whatever ``members`` returns; wait until all have ended.

    The leader gets SIGTERM first, and alone: it passes the signal on and records the outcome. Once it has ended the
    others get SIGTERM; ``members`` is asked again and again for those that still run. All that are left ``patience``
    seconds after the beginning, or as soon as ``hurry`` returns true, get SIGKILL; what does not end even then, within
    5 s, is given up without an error.

    Raises:
        PermissionError: a process belongs to somebody else
    """
    deadline = time.monotonic() + patience
    signalled = {leader}
    send_signal(leader, signal.SIGTERM)
    while not (hurry() or time.monotonic() > deadline):
        if not is_alive(leader):
            left = members()
            if not left:
                return
            for process in set(left) - signalled:
                send_signal(process, signal.SIGTERM)
            signalled.update(left)
        time.sleep(0.05)
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        killed = [send_signal(process, signal.SIGKILL) for process in (leader, *members())]
        if not any(killed):
            return
        time.sleep(0.05)


def _start_time(pid: int) -> str | None:
    """Return when process ``pid`` started, in the kernel's clock ticks since boot, as text.

    None where there is no such process, or it has ended and waits to be reaped.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # Behind the program's name, which may itself contain blanks and brackets.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[_STARTTIME]


def _boot_id() -> str:
    """Return the kernel's id of this boot of the machine; empty where it is hidden, as in some containers."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""  # hidden, as in some containers


def loopback_problem() -> EnvironmentLacks | None:
    """Return the error to raise where processes of this machine cannot reach each other at 127.0.0.1, else None.

    They cannot in a network namespace whose ``lo`` nobody has brought up; a training job would try for minutes there.
    Tested by a real connection, for at most five seconds.
    """
    import socket  # all others who ask a program do without

    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        return EnvironmentLacks(
            f"training processes cannot reach each other: 127.0.0.1: {error.strerror or error}",
            remedy="bring the loopback interface up: ip link set lo up (as root of this network namespace)",
        )
    return None
