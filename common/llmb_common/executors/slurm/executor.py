"""Slurm's executor, and what it doubts: that the folder of runs is on a file system that compute nodes see.

That is asked before a job is submitted, because Slurm says little afterwards: such a job ends at once and leaves no
log, with the reason ``JobLaunchFailure`` (the queue) or the exit code ``0:53`` (accounting; both of Slurm 22.05).
"""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from llmb_common.base.errors import EnvironmentLacks, RequestError, SchedulerError
from llmb_common.base.files import require_trusted
from llmb_common.base.hostlist import compress, expand
from llmb_common.base.printable import counted
from llmb_common.base.programs import run_program
from llmb_common.base.words import clock_text, limit_seconds
from llmb_common.executors.base import Executor
from llmb_common.executors.engine import check_engine
from llmb_common.executors.slurm.cancel import end_jobs
from llmb_common.executors.slurm.hold import hold, own_nodes
from llmb_common.executors.slurm.look import poll_slurm
from llmb_common.executors.slurm.query import limits_of, nodes_now, nodes_of_jobs, unfit_nodes
from llmb_common.executors.slurm.script import SlurmScript
from llmb_common.executors.slurm.submit import series_conflict, start, start_series
from llmb_common.executors.slurm.topology import topology
from llmb_common.executors.slurm.words import slurm_of
from llmb_common.planning.job_plan import JobPlan


class SlurmExecutor(SlurmScript, Executor):
    """Runs jobs under Slurm: submits with ``sbatch --parsable``, and asks squeue and sacct what became of them.

    Made without arguments, by ``executor_for``. All that an ``Executor`` has works here. ``check`` raises
    ``EnvironmentLacks`` where sbatch, image or engine are missing, ``ConfigError`` for an image that may come from
    anybody, and OSError where a folder cannot be examined. ``doubts`` returns sentences on the folder of runs and the
    partition's limits, without full stops. ``options`` returns the words ``--dependency=...`` and ``--exclude=...``,
    each only where needed, and raises ``RequestError`` where they contradict the plan, or a list of nodes is wrong.
    """

    start = staticmethod(start)
    series_conflict = staticmethod(series_conflict)
    start_series = staticmethod(start_series)
    poll = staticmethod(poll_slurm)
    failed_nodes = staticmethod(unfit_nodes)
    nodes_now = staticmethod(nodes_now)
    topology = staticmethod(topology)
    hold = staticmethod(hold)
    own_nodes = staticmethod(own_nodes)
    cancel = staticmethod(end_jobs)

    def check(self, plan: JobPlan) -> None:
        """Raise unless this machine has sbatch, and the image of ``plan`` or, without one, its training engine.

        An image that is named by a registry's address is not looked for; nor is the scheduler asked.

        Raises:
            EnvironmentLacks: sbatch is missing; code ``no-image``: the image's file is; ``no-engine``: the engine is;
                ``wrong-engine``: that is of another release
            ConfigError: code ``not-trusted``: the image may come from anybody
            OSError: the installation, or the folder of images, cannot be examined
        """
        if shutil.which("sbatch") is None:
            raise EnvironmentLacks(
                "sbatch is not on PATH", remedy="run on a login node of the cluster, or set CLUSTER_TYPE=local"
            )
        if plan.image and plan.image.startswith(("/", "./", "../")) and not Path(plan.image).is_file():
            raise EnvironmentLacks(
                f"the container image {plan.image} is missing",
                remedy="run ./installer.py, or set RUN_CONF_IMAGE to an image that exists",
                code="no-image",
            )
        if plan.image is None:
            check_engine(plan)
        elif plan.image.startswith("/"):
            image, install = Path(plan.image), Path(plan.install)
            require_trusted(image, install, None if image.is_relative_to(install) else image.parent)

    def doubts(self, plan: JobPlan) -> list[str]:
        """Return sentences on a folder of runs that nodes may not see, and on limits of the partition; mostly none.

        They come in this order, without full stops: what ``folder_doubts`` and then ``limit_doubts`` return of
        ``plan``. What cannot be found out, as when Slurm does not answer, is left out.
        """
        return [*folder_doubts(plan), *limit_doubts(plan)]

    def options(self, plan: JobPlan, after: Sequence[str], excluded: Mapping[str, str]) -> tuple[str, ...]:
        """Return ``--dependency=...`` and ``--exclude=...`` for sbatch to submit ``plan``, each where it is needed.

        ``after`` are ids of jobs to wait for, however they end; ``excluded`` the names of nodes to leave out, each
        with the reason. Where one of them is empty, its option is left out; else the option includes what the plan's
        own options say, because it replaces that. The excluded nodes are one host list.

        Raises:
            RequestError: the job asks for nodes that are excluded, or (with ``after``) for any one of several
                dependencies; or a list of nodes is wrong, or in a file that cannot be read
        """
        slurm = slurm_of(plan)
        arguments = []
        if after:
            own = dict(slurm.additional).get("dependency") or ""
            if "?" in own:
                raise RequestError(
                    f"the job must wait for the runs before it, and dependency={own} for any one of several: Slurm "
                    "cannot combine the two",
                    remedy="leave out dependency=, or what makes the job follow others (--after, --chain)",
                )
            arguments.append(f"--dependency={','.join(filter(None, [own, 'afterany:' + ':'.join(after)]))}")
        if excluded:
            if both := set(excluded) & set(expand(slurm.nodelist or "")):
                reasons = ", ".join(f"{name} ({excluded[name]})" for name in sorted(both))
                raise RequestError(
                    f"the job requests excluded nodes: {reasons}",
                    remedy=f"llmb-run exclude remove {compress(both)}; or name other nodes",
                )
            arguments.append(f"--exclude={compress({*excluded, *expand(slurm.excluded or '')})}")
        return tuple(arguments)


_OWN_DISKS = frozenset(
    {"bcachefs", "btrfs", "devtmpfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "ntfs3", "overlay", "ramfs"}
    | {"reiserfs", "rootfs", "tmpfs", "vfat", "xfs", "zfs"}
)
"""Types of file systems that other machines do not see, unless this one exports them. An unknown type is shared."""


def folder_doubts(plan: JobPlan, root: Path = Path("/")) -> list[str]:
    """Return one sentence where the folder of runs is on a disk of this machine that the job's nodes may not see.

    It has no full stop. The plan must be for Slurm. Empty where they may well see it, or nothing tells, as when Slurm
    does not answer. ``root`` is the folder under which the lists of NFS exports (``etc/exports``) are looked for.
    """
    slurm = slurm_of(plan)
    try:
        folder = _nearest_existing(Path(plan.workload_folder))
        kind = file_system_of(folder)
        if kind not in _OWN_DISKS or _is_exported(folder, root):
            return []
        nodes = nodes_of_jobs(slurm.effective_partition, slurm.nodelist)
    except (OSError, SchedulerError, RequestError):
        return []  # whoever writes there, or reads a file with nodes, will say so
    others = (name for name, address in nodes if not _is_this_machine(name) and not _is_this_machine(address))
    other = next(others, "")
    if not other:
        return []
    return [
        f"jobs write to {plan.workload_folder}, and that is on a disk of this machine ({kind}): unless {other} and the "
        "other nodes see it under this path, jobs end at once (JobLaunchFailure); put LLMB_INSTALL or LLMB_WORKLOAD on "
        "a file system that all nodes mount (llmb-install doctor looks from a node)"
    ]


def limit_doubts(plan: JobPlan) -> list[str]:
    """Return a sentence for the time and one for the nodes, each where the job asks for more than its partition gives.

    They come in this order, without full stops. The ``plan`` must be for Slurm. Of several partitions the largest
    limit counts. Many sites queue such a job for ever. Empty where the limits are kept, not known, or the scheduler
    does not answer; a time limit among the options of sbatch is not compared.
    """
    slurm = slurm_of(plan)
    try:
        seconds, nodes = limits_of(slurm.effective_partition)
    except SchedulerError:
        return []
    sentences = []
    if seconds is not None and limit_seconds(plan.time_limit) > seconds and "time" not in dict(slurm.additional):
        sentences.append(f"{clock_text(seconds)}, and this one asks for {plan.time_limit}: lower TIME_LIMIT")
    if nodes is not None and plan.nodes > nodes:
        sentences.append(f"{counted(nodes, 'node')}, and this one asks for {plan.nodes}: ask for fewer GPUs")
    where = f"partition {slurm.effective_partition}" if slurm.effective_partition else "the default partition"
    return [
        f"{where} gives a job at most {text}, or choose another partition (sinfo -o '%P %l %s'); unless its QOS allows "
        "more, Slurm refuses the job or keeps it waiting for ever"
        for text in sentences
    ]


def file_system_of(folder: Path) -> str:
    """Return the type of the file system that ``folder`` is on, such as ``nfs4``, as findmnt names it.

    Empty where findmnt fails, is missing or does not answer within 10 s.
    """
    # A file server that is away keeps those who ask.
    output_words = run_program(
        ["findmnt", "--noheadings", "--output=FSTYPE", "--target", str(folder)], 10.0
    ).output.split()
    return output_words[-1] if output_words else ""


def _nearest_existing(folder: Path) -> Path:
    """Return ``folder`` itself, or the nearest folder above it that exists, with links resolved, as an absolute path.

    Raises:
        OSError: a folder on the way cannot be entered
    """
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.resolve()


def _is_exported(folder: Path, root: Path) -> bool:
    """Return whether this machine exports ``folder``, or one above it, by NFS.

    ``folder`` is an absolute path without links. On small clusters the login node often is the server. ``root`` is the
    folder under which the lists of exports are looked for; one that cannot be read counts as empty.
    """
    patterns = ("etc/exports", "etc/exports.d/*.exports", "var/lib/nfs/etab")
    for file in chain.from_iterable(root.glob(pattern) for pattern in patterns):
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        exported = (re.match(r'"?(/[^"\s]*)', line) for line in lines)
        if any(found and folder.is_relative_to(found[1]) for found in exported):
            return True
    return False


def _is_this_machine(name: str) -> bool:
    """Return whether a host name or an IP address is one of this machine; False where it cannot be resolved.

    Of names only the part before the first dot is compared; ``localhost`` is this machine.
    """
    own = socket.gethostname().partition(".")[0]
    if name.partition(".")[0] in (own, "localhost"):
        return True
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False  # a name that cannot be resolved is another machine's: this one knows its own
    for family, _, _, _, address in found:
        # Only an address of this machine can be bound to.
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)
            return True
    return False
