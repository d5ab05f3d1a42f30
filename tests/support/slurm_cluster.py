"""A real Slurm cluster on this machine: real slurmctld, slurmd, munge, optionally slurmdbd with MariaDB.

Only the nodes are simulated: several slurmd share the machine, each with its own host name and mount
namespace, and GPUs are links to /dev/null. See CONTRIBUTING.md for how tests use it.
"""

from __future__ import annotations

import atexit
import getpass
import os
import re
import shutil
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from support import slurm_config
from support.accounting import Accounting
from support.processes import (
    PATIENCE,
    Daemons,
    free_ports,
    new_cluster_folder,
    remove_cluster_folder,
    remove_leftovers,
    wait_until,
)
from support.slurm_config import ClusterSpec, Layout

NEEDED = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "munged")
NEEDED_FOR_ACCOUNTING = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db", "mariadb-admin", "mariadb")
NEEDED_FOR_CONTAINERS = ("gcc", "mksquashfs", "unshare", "mount")
ENDED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"}
    | {"PREEMPTED", "REVOKED", "TIMEOUT"}
)
_ATTEMPTS = 3
"""To start a cluster, each on other ports."""

_PLUGIN_SOURCE = Path(__file__).with_name("container_standin.c")


def what_is_missing(spec: ClusterSpec) -> str:
    """Why ``spec`` cannot be started here, or an empty string."""
    needed = list(NEEDED)
    if spec.accounting:
        needed += NEEDED_FOR_ACCOUNTING
    if spec.containers:
        needed += NEEDED_FOR_CONTAINERS
    lost = [name for name in needed if shutil.which(name, path=_search_path()) is None]
    if lost:
        return f"not installed: {', '.join(lost)} (tests/run as root on Debian or Ubuntu installs them)"
    if spec.containers and os.geteuid() != 0:
        return "containers are mounted, which needs root"
    if spec.containers and not Path("/usr/include/slurm/spank.h").exists():
        return "not installed: /usr/include/slurm/spank.h (package libslurm-dev)"
    return ""


def _search_path() -> str:
    """PATH with the folders of system daemons, which an ordinary user's PATH lacks."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


class SlurmCluster:
    """A running cluster; a context manager.

    ``env`` is the environment for clients: this process's own without ``SLURM_*``/``SBATCH_*``, plus
    ``SLURM_CONF``. Every client command has a time limit. Raises ``RuntimeError`` with the daemons' last log lines
    when the cluster does not come up.
    """

    def __init__(self, spec: ClusterSpec = slurm_config.SMALL) -> None:
        missing = what_is_missing(spec)
        if missing:
            raise RuntimeError(missing)
        remove_leftovers()
        self.spec = spec
        # Mounts and host names of their own need root; without it all nodes share this machine's name.
        self.own_hostnames = os.geteuid() == 0
        self._lay_out()

    def _lay_out(self) -> None:
        """A folder and ports for a cluster that has not started yet."""
        spec = self.spec
        self.root = new_cluster_folder()
        self.root.chmod(0o755)
        ports = free_ports(len(spec.real_nodes) + 4)
        self.layout = Layout(
            root=self.root,
            user=getpass.getuser(),
            controller_port=ports[0],
            accounting_port=ports[1],
            database_port=ports[2],
            node_ports=dict(zip(spec.real_nodes, ports[4:], strict=True)),
        )
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SRUN"))}
        self.env |= {"SLURM_CONF": str(self.layout.conf), "PATH": _search_path()}
        (self.root / "log").mkdir()
        self._daemons = Daemons(self.root / "log")
        self._accounting = Accounting(self.layout, self._daemons, self.env) if spec.accounting else None

    # Life

    def __enter__(self) -> SlurmCluster:
        attempts = 1
        while not self._has_started(is_last=attempts == _ATTEMPTS):
            attempts += 1
            self._lay_out()
        return self

    def _has_started(self, *, is_last: bool) -> bool:
        """Start; False where a port was taken, all is stopped again, and this was not the last attempt."""
        atexit.register(self.stop)
        try:
            self._start()
            return True
        except BaseException as error:
            logs = self.log_tail()
            self.stop()
            if not isinstance(error, Exception):
                raise
            # Somebody else, who reserves nothing, may take a port before our daemon does.
            if is_last or "Address already in use" not in logs:
                raise RuntimeError(f"the test cluster did not start: {error}\n{logs}") from error
            return False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _start(self) -> None:
        for name in ("etc", "run", "state", "spool", "dev", "tmp", "lib"):
            (self.root / name).mkdir()
        etc = self.root / "etc"
        for i in range(slurm_config.GPUS_PER_BOARD):
            (self.root / "dev" / f"nvidia{i}").symlink_to("/dev/null")
        self.layout.conf.write_text(slurm_config.slurm_conf(self.spec, self.layout))
        (etc / "gres.conf").write_text(slurm_config.gres_conf(self.spec, self.layout))
        (etc / "hosts").write_text(slurm_config.hosts(self.spec, Path("/etc/hosts").read_text()))
        plugstack = ""
        if self.spec.containers:
            compile_plugin(self.layout.plugin)
            plugstack = f"required {self.layout.plugin}\n"
        (etc / "plugstack.conf").write_text(plugstack)
        self._start_munge()
        if self._accounting:
            self._accounting.start()
        self.start_controller()
        if self._accounting:
            self._accounting.register(slurm_config.CLUSTER_NAME)
        for node in self.spec.real_nodes:
            self.start_node(node)
        self._daemons.wait_until(self._all_are_idle, "all nodes idle", timeout=60)

    def stop(self) -> None:
        """Stop all daemons and delete the cluster's folder. Safe to call twice."""
        atexit.unregister(self.stop)
        self._daemons.stop_all()
        if self.root.exists():
            # Also kills job steps: a slurmd that goes away leaves them behind.
            remove_cluster_folder(self.root)

    def _start_munge(self) -> None:
        key = self.root / "etc" / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        run, log = self.root / "run", self.root / "log"
        argv = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.layout.munge_socket}"]
        argv += [f"--pid-file={run}/munged.pid", f"--log-file={log}/munged.log", f"--seed-file={run}/munged.seed"]
        self._daemons.start("munged", argv, self.env)
        wait_until(self.layout.munge_socket.exists, "munged's socket", timeout=20)

    def start_controller(self) -> None:
        """Start slurmctld (again) and wait until it answers."""
        argv = ["slurmctld", "-D", "-f", str(self.layout.conf)]
        self._daemons.start("slurmctld", argv, self.env)
        self._daemons.wait_until(self._controller_answers, "slurmctld", timeout=60)

    def stop_controller(self) -> None:
        """Stop slurmctld; it keeps its state, running jobs go on."""
        self._daemons.stop("slurmctld")

    def crash_controller(self, state: Path | None) -> None:
        """Kill slurmctld, and put the folder ``state`` in the place of all that it has saved; None: nothing."""
        self._daemons.kill("slurmctld")
        shutil.rmtree(self.root / "state")
        if state is None:
            (self.root / "state").mkdir()
        else:
            shutil.copytree(state, self.root / "state")

    def start_accounting(self) -> None:
        """Start slurmdbd again after ``stop_accounting``."""
        if self._accounting is None:
            raise RuntimeError("this cluster was built without accounting")
        self._accounting.start_daemon()

    def stop_accounting(self) -> None:
        """Stop slurmdbd; the database stays up."""
        self._daemons.stop("slurmdbd")

    def start_node(self, node: str) -> None:
        """Start the slurmd of ``node``."""
        for folder in ("spool", "tmp"):
            (self.root / folder / node).mkdir(exist_ok=True)
        argv = ["slurmd", "-D", "-f", str(self.layout.conf), "-N", node]
        if self.own_hostnames:
            script = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'
            unshare = ["unshare", "--mount", "--uts", "--propagation", "private", "sh", "-c", script, "sh"]
            argv = [*unshare, node, f"{self.root}/etc/hosts", *argv]
        self._daemons.start(f"slurmd-{node}", argv, self.env)

    def hide(self, folder: Path, node: str) -> None:
        """Let ``node`` see an empty folder in place of ``folder``, as one that does not mount its file system."""
        enter = ["nsenter", f"--target={self._daemons.pid(f'slurmd-{node}')}", "--mount"]
        self.run([*enter, "mount", "-t", "tmpfs", "none", folder])

    def stop_node(self, node: str) -> None:
        """Stop the slurmd of ``node``, as a crash of the node would."""
        self._daemons.stop(f"slurmd-{node}")

    def _controller_answers(self) -> bool:
        # "UP" also shows that the answer is not that of a controller which is still starting.
        return "is UP" in self.run(["scontrol", "ping"], check=False, timeout=10).stdout

    def wait_for_idle_nodes(self, timeout: float = 30) -> None:
        """Wait until every real node is idle."""
        wait_until(self._all_are_idle, f"all of {', '.join(sorted(self.spec.real_nodes))} idle", timeout)

    def _all_are_idle(self) -> bool:
        states = self.node_states()
        return all(states.get(name) == "IDLE" for name in self.spec.real_nodes)

    # Commands

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        check: bool = True,
        timeout: float = 60,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a client command. ``env`` is added to the cluster's; ``check`` raises AssertionError with the output."""
        command = [str(part) for part in argv]
        environment = {**self.env, **(env or {})}
        done = subprocess.run(
            command,
            env=environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout * PATIENCE,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def submit(self, *options: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> int:
        """``sbatch --parsable options...``; the job's id. The last option is the script, or use ``--wrap``."""
        done = self.run(["sbatch", "--parsable", *options], cwd=cwd, env=env)
        return int(done.stdout.strip().split(";")[0])

    def cancel_everything(self) -> None:
        """Cancel all jobs, bring all nodes back, wait for idle: a fresh start for the next test."""
        self.run(["scancel", "--user", self.layout.user], check=False)
        self._resume_bad_nodes()
        try:
            wait_until(self._queue_is_empty, "an empty queue", timeout=20)
        except TimeoutError:
            # A job that is cancelled just as it starts sometimes stays for ever; taking its nodes down ends it.
            self.run(["scancel", "--user", self.layout.user], check=False)
            for node in self.spec.real_nodes:
                self.set_node_down(node, "a job that does not end")
            self._resume_bad_nodes()
            wait_until(self._queue_is_empty, "an empty queue", timeout=60)
        self.wait_for_idle_nodes()

    def _queue_is_empty(self) -> bool:
        return not self.run(["squeue", "-h"]).stdout.strip()

    def _resume_bad_nodes(self) -> None:
        bad = [n for n, state in self.node_states().items() if re.match(r"DOWN|DRAIN", state)]
        for node in set(bad) & set(self.spec.real_nodes):
            self.resume_node(node)

    # Jobs

    def job(self, job_id: int) -> dict[str, str]:
        """The job's record in ``scontrol show job``; empty when the controller has forgotten it."""
        done = self.run(["scontrol", "--oneliner", "show", "job", str(job_id)], check=False)
        return dict(re.findall(r"(\S+?)=(.*?)(?= [A-Z][\w:/]*=|$)", done.stdout.strip()))

    def state(self, job_id: int) -> str:
        """The job's state, ``UNKNOWN`` when the controller has forgotten it."""
        return self.job(job_id).get("JobState", "UNKNOWN")

    def wait_for_state(self, job_id: int, states: str | Collection[str] = ENDED, timeout: float = 60) -> str:
        """Wait until the job is in one of ``states`` (default: any final one); the state.

        AssertionError with the job's record when it ends otherwise or PATIENCE times ``timeout`` seconds pass.
        """
        wanted = {states} if isinstance(states, str) else set(states)
        deadline = time.monotonic() + timeout * PATIENCE
        while True:
            record = self.job(job_id)
            state = record.get("JobState", "UNKNOWN")
            if state in wanted:
                return state
            if state in ENDED or time.monotonic() > deadline:
                raise AssertionError(f"job {job_id} is {state}, wanted {' or '.join(sorted(wanted))}: {record}")
            time.sleep(0.1)

    def end_job_in(self, job_id: int, seconds: int) -> None:
        """Move the job's time limit so that Slurm ends it with TIMEOUT ``seconds`` from now (and up to 30 s later)."""
        end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + seconds))
        self.run(["scontrol", "update", f"JobId={job_id}", f"EndTime={end}"])

    def forget_finished_jobs(self, timeout: float = 90) -> None:
        """Make the controller forget finished jobs, as it does after MinJobAge (here 10 minutes).

        It is started again for it: ``scontrol reconfigure`` sets the tree width to 0 for a moment, and a thread of
        Slurm 22.05 that sends a message just then counts in a circle for ever, on a core of its own.
        """
        original = self.layout.conf.read_text()
        try:
            self._restart_controller(re.sub(r"^MinJobAge=.*$", "MinJobAge=2", original, flags=re.MULTILINE))
            show = ["squeue", "-h", "--states=all"]
            wait_until(lambda: not self.run(show).stdout.strip(), "finished jobs purged", timeout, interval=0.5)
        finally:
            self._restart_controller(original)

    def _restart_controller(self, configuration: str) -> None:
        self.stop_controller()
        self.layout.conf.write_text(configuration)
        self.start_controller()

    # Nodes

    def node_states(self) -> dict[str, str]:
        """Node name to state in capitals, without flags such as ``*``."""
        done = self.run(["sinfo", "-h", "-N", "-o", "%N %T"], check=False)
        pairs = (line.split() for line in done.stdout.splitlines())
        return {name: state.upper().rstrip("*~#!%$@^-+") for name, state in pairs}

    def set_node_down(self, node: str, reason: str = "test") -> None:
        """Declare ``node`` broken: its jobs become NODE_FAIL (or are requeued)."""
        self.run(["scontrol", "update", f"NodeName={node}", "State=DOWN", f"Reason={reason}"])

    def resume_node(self, node: str) -> None:
        """Put ``node`` back into service."""
        self.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)

    # Diagnosis

    def log_tail(self, lines: int = 8) -> str:
        """The last lines of every daemon's log."""
        parts = []
        for log in sorted((self.root / "log").glob("*.out")):
            tail = log.read_text(errors="replace").splitlines()[-lines:]
            if tail:
                parts.append(f"--- {log.name}\n" + "\n".join(tail))
        return "\n".join(parts)


def compile_plugin(target: Path) -> None:
    """Compile the container stand-in against this machine's Slurm headers."""
    command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared"]
    subprocess.run([*command, "-o", str(target), str(_PLUGIN_SOURCE)], check=True, timeout=600)
