"""Is the folder of runs on a file system of this machine alone, and are there compute nodes that are not this machine?

Asked before a job is submitted, because Slurm says little afterwards: such a job ends at once and leaves no log, with
the reason ``JobLaunchFailure`` (the queue) or the exit code ``0:53`` (accounting; both of Slurm 22.05).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

from llmb_common.errors import SchedulerError
from llmb_common.executors.slurm.query import nodes_of_jobs
from llmb_common.executors.slurm.words import slurm_of
from llmb_common.planning.job_plan import JobPlan

_OWN_DISKS = frozenset(
    {"bcachefs", "btrfs", "devtmpfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "ntfs3", "overlay", "ramfs"}
    | {"reiserfs", "rootfs", "tmpfs", "vfat", "xfs", "zfs"}
)
"""Types of file systems that other machines do not see, unless this one exports them. An unknown type is shared."""

_EXPORTS = ("/var/lib/nfs/etab", "/etc/exports", "/etc/exports.d/*.exports")


def folder_doubts(plan: JobPlan, root: Path = Path("/")) -> list[str]:
    """What to say before a job of ``plan`` is submitted; nothing where its nodes may well see the folder.

    ``root`` is where ``proc`` and the list of NFS exports are looked for.
    """
    try:
        folder = _existing(Path(plan.workload_folder))
        kind = file_system_of(folder, root)
        own = kind in _OWN_DISKS and not _is_exported(folder, root)
    except OSError:
        return []  # whoever writes there will say so
    other = _another_node(plan) if own else ""
    if not other:
        return []
    return [
        f"jobs write to {plan.workload_folder}, and that is on a disk of this machine ({kind}): unless {other} and the "
        "other nodes see it under this path, jobs end at once (JobLaunchFailure); put LLMB_INSTALL or LLMB_WORKLOAD on "
        "a file system that all nodes mount (llmb-install doctor looks from a node)"
    ]


def file_system_of(folder: Path, root: Path = Path("/")) -> str:
    """The type of the file system that ``folder`` is on, such as ``nfs4``; empty where Linux does not say."""
    best, kind = Path(), ""
    for point, found in _mounts(root):
        # Of mounts at the same place the last hides the others.
        if folder.is_relative_to(point) and len(point.parts) >= len(best.parts):
            best, kind = point, found
    return kind


def _mounts(root: Path) -> Iterator[tuple[Path, str]]:
    """Mount points and types of ``/proc/self/mountinfo`` (proc(5)), in which spaces are octal."""
    try:
        text = (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        words, kind = fields.split(" "), rest.split(" ")[0]
        if len(words) > 4:
            yield Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), words[4])), kind


def _existing(folder: Path) -> Path:
    """Where ``folder`` is or will be, without links."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.resolve()


def _is_exported(folder: Path, root: Path) -> bool:
    """Whether this machine is the NFS server of ``folder``: on small clusters the login node often is."""
    for pattern in _EXPORTS:
        for file in root.glob(pattern.lstrip("/")):
            try:
                lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                continue
            exported = (re.match(r'"?(/[^"\s]*)', line) for line in lines)
            if any(found and folder.is_relative_to(found[1]) for found in exported):
                return True
    return False


def _another_node(plan: JobPlan) -> str:
    """A node that may run the job and is not this machine; empty where there is none, or Slurm does not say."""
    slurm = slurm_of(plan)
    try:
        nodes = nodes_of_jobs(slurm.partition, slurm.nodelist)
    except SchedulerError:
        return ""
    return next((name for name, address in nodes if not _is_here(name) and not _is_here(address)), "")


def _is_here(name: str) -> bool:
    """Whether a host name or an address is this machine's."""
    own = socket.gethostname().partition(".")[0]
    if name.partition(".")[0] in (own, "localhost"):
        return True
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False  # this machine knows its own name
    return any(_is_own(family, address) for family, _, _, _, address in found)


def _is_own(family: int, address: tuple[object, ...]) -> bool:
    """Only an address of this machine can be bound to."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
    return True
