"""One node, and what is wrong with its system, folders and software by itself: each a small function that says what, or
nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

from llmb_common.base import gpus
from llmb_common.base.printable import size
from llmb_common.nodes.facts import GIB, Folder, NodeFacts
from llmb_common.nodes.needs import Needs

SHM = 8 * GIB
"""Less shared memory, and NCCL or data loaders fail (also AMD Primus's threshold)."""
FULL = 64 << 20
"""Less room, and a process does not even start its communication: NCCL takes 10 to 33 MB of /dev/shm for a rank."""
MEMLOCK = 32 * GIB
"""Less locked memory, and adapters cannot register buffers (the same)."""
FILES = 65_536
"""Open files of one process: a rank opens several sockets for each of many others."""
RENDEZVOUS_END = 30_000
"""The ports of jobs end below it; where outgoing connections begin below, one may hold that of a job."""
ROOM = 500_000_000
"""Bytes: a folder with less is nearly full, and so is one with less than ``_ROOM_SHARE`` of its file system."""
_ROOM_SHARE = 0.02
UNPACKED = 3
"""An unpacked image takes so many times its size, at most."""
CUDA_NEEDED = 13
"""What the NeMo 26.02 image brings; an older driver needs the forward-compatibility package inside it."""


# What it is


def other_architecture(node: NodeFacts, needs: Needs) -> str:
    """Return a phrase if the architecture of the node's CPUs is not exactly ``needs.architecture``.

    ``aarch64, and jobs are for x86_64``. Empty: it is, none is needed, or the node does not tell its own.
    """
    found = node.machine.architecture
    return f"{found}, and jobs are for {needs.architecture}" if found and needs.architecture not in ("", found) else ""


def no_gpus(node: NodeFacts, needs: Needs) -> str:
    """Return the host with the reason, ``n3 (no answer)``, if the node shows no GPU; empty: it shows some.

    ``needs`` is not looked at.
    """
    return "" if node.gpus else f"{node.host} ({node.before.missing or 'no answer'})"


def fewer_gpus(node: NodeFacts, needs: Needs) -> str:
    """Return a clause if the node shows fewer GPUs than jobs need (``needs.gpus_per_node``), ``n3 has 7 of 8``.

    Empty: enough, none at all (that is the matter of ``no_gpus``), or no number is needed.
    """
    found = len(node.gpus)
    return f"{node.host} has {found} of {needs.gpus_per_node}" if 0 < found < needs.gpus_per_node else ""


def other_gpu_than_the_sites(node: NodeFacts, needs: Needs) -> str:
    """Return a phrase if the node's first GPU is not of the type that jobs need (``needs.gpu_type``); empty: it is.

    ``NVIDIA A100, and jobs are for h100``. A product of no known type counts as another one, unless jobs are for
    ``cpu``. Empty, too, where the look before training shows no GPU, or no type is needed.
    """
    if not node.before.gpus or not needs.gpu_type:
        return ""
    product = node.before.gpus[0].product or "?"
    is_known_as = gpus.type_of(product) or gpus.CPU
    return f"{product}, and jobs are for {needs.gpu_type}" if is_known_as != needs.gpu_type else ""


def old_driver(node: NodeFacts, needs: Needs) -> str:
    """Return a clause if the newest CUDA that the node's driver supports is older than 13:
    ``the driver's CUDA is 12.8``.

    Empty: it is not, or it is not known. Empty, too, where the first look shows no GPU. ``needs`` is not looked at.
    """
    cuda = re.match(r"\d+", node.before.cuda or "")
    is_old = cuda is not None and int(cuda[0]) < CUDA_NEEDED
    return f"the driver's CUDA is {node.before.cuda}" if is_old and node.before.gpus else ""


# Limits and settings


def little_locked_memory(node: NodeFacts, needs: Needs) -> str:
    """Return a clause if a process may lock less than 32 GiB of memory on a node with network adapters, which need as
    much: ``a process may lock only 8 MB of memory``.

    Empty: it may lock as much, the limit is not known or there is none, or the node has no adapters. ``needs`` is
    not looked at.
    """
    limit = node.system.memlock
    is_little = limit is not None and limit < MEMLOCK and bool(node.machine.adapters)
    return f"a process may lock only {size(limit or 0)} of memory" if is_little else ""


def small_shared_memory(node: NodeFacts, needs: Needs) -> str:
    """Return a clause if the node's /dev/shm has less than 8 GiB in all, ``/dev/shm has 4.0 GB``, or else less than 64
    MiB free, ``/dev/shm has 20 MB free: something was left behind there``.

    Empty: neither, or one of the two sizes is not known. ``needs`` is not looked at.
    """
    total, free = node.system.shm_size, node.system.shm_free
    if total is None or free is None:
        return ""
    if total < SHM:
        return f"/dev/shm has {size(total)}"
    return _left_in_shared_memory(free) if free < FULL else ""


def used_shared_memory(node: NodeFacts, needs: Needs) -> str:
    """Return a clause if less than 8 GiB of the node's /dev/shm is free,
    ``/dev/shm has 4.0 GB free: something was left behind there``.

    Empty: enough is free, it is not known, or ``small_shared_memory`` reports it already. ``needs`` is not looked
    at.
    """
    total, free = node.system.shm_size, node.system.shm_free
    if total is None or free is None or small_shared_memory(node, needs):
        return ""
    return _left_in_shared_memory(free) if free < SHM else ""


def _left_in_shared_memory(free: int) -> str:
    """Return the clause that /dev/shm has only ``free`` bytes left,
    ``/dev/shm has 20 MB free: something was left behind there``.
    """
    return f"/dev/shm has {size(free)} free: something was left behind there"


def few_open_files(node: NodeFacts, needs: Needs) -> str:
    """Return a clause if a process may open fewer than 65,536 files on the node,
    ``a process may open only 1024 files``.

    Empty: enough, no limit, or not known. ``needs`` is not looked at.
    """
    limit = node.system.nofile
    return f"a process may open only {limit} files" if limit is not None and limit < FILES else ""


def low_outgoing_ports(node: NodeFacts, needs: Needs) -> str:
    """Return a clause if the node's outgoing connections take ports below 30,000, where jobs have their rendezvous:
    ``outgoing connections take ports from 1024 up, perhaps also a job's rendezvous port``.

    Empty: they do not, or it is not known. ``needs`` is not looked at.
    """
    first = node.system.first_outgoing_port
    if first is None or first >= RENDEZVOUS_END:
        return ""
    return f"outgoing connections take ports from {first} up, perhaps also a job's rendezvous port"


def slow_cpus(node: NodeFacts, needs: Needs) -> Iterator[str]:
    """Yield a phrase for each setting of the node that keeps its CPUs from full speed.

    These are frequency governors other than ``performance`` (``CPU frequency governor powersave``, one phrase for
    all), idle states that are switched off or of which there are only one or two
    (``2 of 4 idle states of the CPU are off: ...``, ``all but 1 idle states ...``), and NUMA balancing
    (``kernel.numa_balancing is on``). What is not known is no evidence. ``needs`` is not looked at.
    """
    system = node.system
    governors = [name for name in system.governors if name != "performance"]
    if governors:
        yield f"CPU frequency governor {', '.join(governors)}"
    if system.idle_disabled:
        yield f"{system.idle_disabled} of {system.idle_states} {_IDLE_OFF}"
    # The kernel's options can take idle states away; then none counts as switched off.
    elif system.idle_states in (1, 2):
        yield f"all but {system.idle_states} {_IDLE_OFF}"
    if system.numa_balancing == "1":
        yield "kernel.numa_balancing is on"


_IDLE_OFF = "idle states of the CPU are off: busy cores cannot reach boost clock"


# Services and processes


def clock_not_kept(node: NodeFacts, needs: Needs) -> str:
    """Return ``its clock is not synchronized`` if timedatectl says so of the node; empty: it is, or it is not known.

    ``needs`` is not looked at.
    """
    return "its clock is not synchronized" if node.services.get("time", {}).get("NTPSynchronized") == "no" else ""


def no_fabric_manager(node: NodeFacts, needs: Needs) -> str:
    """Return a clause if nvidia-fabricmanager, installed on the node, does not run:
    ``nvidia-fabricmanager is inactive``.

    Empty: it does, is not installed, is not known, or is not needed: it is not where the GPU type in ``needs`` is
    of NVL72 racks, in which it runs on the switches.
    """
    unit = node.services.get("fabric_manager", {})
    if needs.domain_nodes > 1 or unit.get("LoadState") != "loaded" or unit.get("ActiveState") == "active":
        return ""
    return f"nvidia-fabricmanager is {unit.get('ActiveState', 'not active')}"


def no_imex_channel(node: NodeFacts, needs: Needs) -> str:
    """Return a clause if NVLink cannot reach other nodes because the node has no IMEX channel,
    ``no channel in /dev/nvidia-caps-imex-channels: NVLink reaches no other node``; empty: it has one.

    A node whose channels are not known counts as having none. Empty, too, where ``needs.domain_nodes`` is 1: NVLink
    joins no nodes then.
    """
    if needs.domain_nodes == 1 or node.imex.channels:
        return ""
    return "no channel in /dev/nvidia-caps-imex-channels: NVLink reaches no other node"


def imex_down(node: NodeFacts, needs: Needs) -> str:
    """Return a clause with the state of the node's IMEX domain, ``the IMEX domain is DOWN``, if it is neither UP nor
    DEGRADED.

    Empty: it is one of these, it is not known, or NVLink joins no nodes (``needs.domain_nodes`` is 1).
    """
    return _imex_domain(node) if _imex_state(node, needs) not in ("", "UP", "DEGRADED") else ""


def imex_degraded(node: NodeFacts, needs: Needs) -> str:
    """Return the clause ``the IMEX domain is DEGRADED`` if it is so on the node.

    Empty: it is not, it is not known, or NVLink joins no nodes (``needs.domain_nodes`` is 1).
    """
    return _imex_domain(node) if _imex_state(node, needs) == "DEGRADED" else ""


def imex_unknown(node: NodeFacts, needs: Needs) -> str:
    """Return why the state of the node's IMEX domain is not known, ``IMEX domain: `` and the reason; empty: it is
    known.

    Empty, too, where NVLink joins no nodes (``needs.domain_nodes`` is 1). Where a daemon is started with each job,
    none answers at rest.
    """
    if needs.domain_nodes == 1 or node.imex.domain is not None:
        return ""
    return f"IMEX domain: {node.imex.missing or 'nvidia-imex-ctl says nothing'}"


def _imex_state(node: NodeFacts, needs: Needs) -> str:
    """Return the state of the node's IMEX domain in capitals, such as ``UP``.

    Empty: not known, or NVLink joins no nodes (``needs.domain_nodes`` is 1).
    """
    return (node.imex.domain or "").upper() if needs.domain_nodes > 1 else ""


def _imex_domain(node: NodeFacts) -> str:
    """Return the clause that names the state of the node's IMEX domain, ``the IMEX domain is DOWN``; it must be
    known.
    """
    return f"the IMEX domain is {node.imex.domain}"


def hanging_driver(node: NodeFacts, needs: Needs) -> Iterator[str]:
    """Yield a clause for each process of NVIDIA's driver that hangs in the node's kernel.

    Its name begins with ``nvidia``: ``nvidia-modprobe (4711) hangs in the kernel (state D)``. ``needs`` is not
    looked at.
    """
    yield from _hanging(node, of_driver=True)


def hanging_processes(node: NodeFacts, needs: Needs) -> Iterator[str]:
    """Yield a clause for each process that hangs in the node's kernel, ``dd (4711) hangs in the kernel (state D)``.

    Those of NVIDIA's driver are left to ``hanging_driver``. ``needs`` is not looked at.
    """
    yield from _hanging(node, of_driver=False)


def _hanging(node: NodeFacts, *, of_driver: bool) -> Iterator[str]:
    """Yield a clause for each process that hangs in the node's kernel, with its name and number.

    ``of_driver``: only those whose names begin with ``nvidia``; else all others only.
    """
    for process in node.stuck:
        if process.name.startswith("nvidia") == of_driver:
            yield f"{process.name} ({process.pid}) hangs in the kernel (state D)"


# Folders and software


def missing_folders(node: NodeFacts, needs: Needs) -> Iterator[str]:
    """Yield a clause for each folder that was looked at on the node and that jobs cannot use.

    It does not exist (``the folder workload, /work, does not exist``; /tmp may be missing) or is not writable
    (``the folder workload, /work, is not writable: ...``); of /tmp also if less than 64 MiB is free there
    (``/tmp has 20 MB free``). ``node.folders``, as chosen at the look, are asked; ``needs`` is not looked at.
    """
    for what, folder in node.folders.items():
        if not folder.there and what != "/tmp":
            yield f"the folder {what}, {folder.path}, does not exist"
        elif folder.problem:
            yield f"the folder {what}, {folder.path}, is not writable: {folder.problem}"
        elif what == "/tmp" and _is_nearly_full(folder) and (folder.free or 0) < FULL:
            yield _free_space_text(folder)


def full_folders(node: NodeFacts, needs: Needs) -> Iterator[str]:
    """Yield a clause for each folder on the node with less than 500 MB or 2 % of its file system free.

    ``/work has 300 MB free``. Left out are folders that are missing, whose room is not known, or that
    ``missing_folders`` reports already. ``needs`` is not looked at.
    """
    for what, folder in node.folders.items():
        is_seen = folder.there or what == "/tmp"
        is_failing = what == "/tmp" and (folder.free or 0) < FULL
        if is_seen and not folder.problem and _is_nearly_full(folder) and not is_failing:
            yield _free_space_text(folder)


def _is_nearly_full(folder: Folder) -> bool:
    """Return whether less than 500 MB (10^6 bytes each), or less than 2 %, of a folder's file system is free.

    False where that is not known.
    """
    if not folder.size or folder.free is None:
        return False
    return folder.free < ROOM or folder.free < _ROOM_SHARE * folder.size


def _free_space_text(folder: Folder) -> str:
    """Return the clause that tells how much room a folder's file system has, ``/tmp has 20 MB free``.

    Unknown room counts as none.
    """
    return f"{folder.path} has {size(folder.free or 0)} free"


def no_room_for_image(node: NodeFacts, needs: Needs) -> str:
    """Return a clause if less is free for the unpacked container image on the node than the packed one takes:
    ``/raid has 12.0 GB free for an image of 20.0 GB``.

    The room is that of the folder in which Enroot unpacks images. Empty: it is enough, the room or the image's size
    (``needs.image_bytes``) is not known, or jobs need no containers.
    """
    return _room_for_image(node, needs, least=0, most=needs.image_bytes)


def little_room_for_image(node: NodeFacts, needs: Needs) -> str:
    """Return a clause if the unpacked container image may not fit, as less than three times its packed size is free:
    ``/raid has 40.0 GB free for an image of 20.0 GB``.

    The room is that of the folder in which Enroot unpacks images. Empty: it is enough, the room or the image's size
    (``needs.image_bytes``) is not known, jobs need no containers, or ``no_room_for_image`` reports it.
    """
    return _room_for_image(node, needs, least=needs.image_bytes, most=UNPACKED * needs.image_bytes)


def _room_for_image(node: NodeFacts, needs: Needs, *, least: int, most: int) -> str:
    """Return a clause with the node's room for unpacking images, if it is from ``least`` to below ``most`` bytes.

    ``/raid has 12.0 GB free for an image of 20.0 GB`` (``needs.image_bytes``); the folder is the one in which
    Enroot unpacks them. Empty: it is not, it is not known, or jobs need no containers (``needs.containers``).
    """
    room = node.software.unpacked
    if not needs.containers or room is None or room.free is None:
        return ""
    if not least <= room.free < most:
        return ""
    return f"{_free_space_text(room)} for an image of {size(needs.image_bytes)}"


def no_enroot(node: NodeFacts, needs: Needs) -> str:
    """Return ``enroot is not installed, but containers need it`` for a node whose jobs need containers.

    Empty: it is installed, or jobs need no containers (``needs.containers``), or the look at the node's software
    hung. A look that failed or was not made counts as no Enroot.
    """
    software = node.software
    # A look that hung says nothing of what is installed.
    is_known = software.enroot is not None or software.enroot_missing is not None or "software" in node.hung
    return "enroot is not installed, but containers need it" if needs.containers and not is_known else ""


def failing_enroot(node: NodeFacts, needs: Needs) -> str:
    """Return a clause with the reason if Enroot is installed on the node but does not start,
    ``no container can start: ...``.

    Empty: it starts, is not installed, or jobs need no containers (``needs.containers``). Enroot makes its folders
    first, and ends where it cannot.
    """
    if not needs.containers or node.software.enroot_missing is None:
        return ""
    return f"no container can start: {node.software.enroot_missing}"


def unwritable_roots(node: NodeFacts, needs: Needs) -> str:
    """Return a clause if Enroot cannot write its containers on the node,
    ``no container can be made in ENROOT_DATA_PATH, /raid/data: ...``, with the reason; empty: it can.

    Empty, too, where the folder is not known, writing was not tried, or jobs need no containers
    (``needs.containers``).
    """
    roots = node.software.roots
    if not needs.containers or roots is None or not roots.problem:
        return ""
    return f"no container can be made in ENROOT_DATA_PATH, {roots.path}: {roots.problem}"


# Answers

LESSER_LOOKS = ("kernel", "services", "software", "imex")
"""Looks that may hang on a node that jobs run on: elsewhere, where a driver or a file system hangs, a job will."""


def hung_probes(node: NodeFacts, needs: Needs) -> Iterator[str]:
    """Yield a sentence for each look at the node that did not end in time: jobs may hang there, too.

    It has no period: ``the check of gpus hung (...)``, with what was waited for. Looks of ``LESSER_LOOKS``, such as
    at the kernel's log, are left out. ``needs`` is not looked at.
    """
    yield from (_hung_clause(probe, how) for probe, how in node.hung.items() if probe not in LESSER_LOOKS)


def hung_lesser_probes(node: NodeFacts, needs: Needs) -> Iterator[str]:
    """Yield a sentence for each look at the node that did not end in time where jobs run all the same.

    It has no period. They are the looks of ``LESSER_LOOKS``, such as at the kernel's log, whatever ``needs`` says.
    """
    yield from (_hung_clause(probe, how) for probe, how in node.hung.items() if probe in LESSER_LOOKS)


def _hung_clause(probe: str, how: str) -> str:
    """Return ``the check of kernel hung (...)`` for the look ``probe`` at a node; ``how`` says what was waited for."""
    return f"the check of {probe} hung ({how})"


def failed_probes(node: NodeFacts, needs: Needs) -> Iterator[str]:
    """Yield a sentence for each look at the node that failed, with its error: ``the check of gpus failed: ...``.

    It has no period of its own. ``needs`` is not looked at.
    """
    yield from (f"the check of {probe} failed: {error}" for probe, error in node.errors.items())


def unread_kernel_log(node: NodeFacts, needs: Needs) -> str:
    """Return ``the kernel's log cannot be read: `` and the reason, without a period, if it could not be read on the
    node.

    Empty: it could, or the node has no tool for it. ``needs`` is not looked at.
    """
    return f"the kernel's log cannot be read: {node.kernel.missing}" if node.kernel.missing else ""
