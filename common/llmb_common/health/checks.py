"""The checks of one node by itself: one table, each from facts and needs to remarks. Those against the other nodes are
in ``fleet``; what a run's evidence already finds in ``judge`` is taken from there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from llmb_common.command.printable import size
from llmb_common.health.facts import Level, Links, Needs, NodeFacts
from llmb_common.platform.gpus import GPUS
from llmb_common.runs.evidence.nodes import GpuState
from llmb_common.runs.hostlist import compress

GIB = 1 << 30
Said = Iterator[tuple[Level, str]]

LINKS = 18
"""NVLinks of a GPU of Hopper or Blackwell with NVLink; 72 on a node of an NVL72 rack."""
SHM = 8 * GIB
"""Less shared memory, and NCCL or data loaders fail (also AMD Primus's threshold)."""
FULL = 64 << 20
"""Less room, and a process does not even start its communication: NCCL takes 10 to 33 MB of /dev/shm for a rank."""
MEMLOCK = 32 * GIB
"""Less locked memory, and adapters cannot register buffers (the same)."""
FILES = 65_536
"""Open files of one process: a rank opens several sockets for each of many others."""
FOREIGN_MIB = 2048
"""So much memory of an idle GPU is somebody else's (AMD Primus)."""
BUSY = 20.0
"""Per cent: an idle GPU that works so much works for somebody else (the same)."""
RENDEZVOUS_END = 30_000
"""The ports of jobs end below it; where outgoing connections begin below, one may hold that of a job."""
DMABUF = (5, 12)
"""The kernel from which adapters reach the memory of GPUs without nvidia_peermem, with the open driver."""


class Check(NamedTuple):
    """``what`` it looks at, for the documentation; ``remedy``: what to do where it fails."""

    name: str
    what: str
    look: Callable[[NodeFacts, Needs], Said]
    remedy: str


class _At(NamedTuple):
    """One GPU of a node, and its NVLinks, of which it should have ``wanted``."""

    gpu: GpuState
    links: Links
    wanted: int
    needs: Needs

    @property
    def mode(self) -> str:
        return (self.gpu.compute_mode or "").replace("_", " ").lower()

    def foreign(self, *, level: Level) -> str:
        """A Grace CPU may use its GPUs' memory as its own; elsewhere nobody does without a process."""
        used, seen = self.gpu.memory_used_mib, self.gpu.processes
        harmless = self.needs.domain_nodes > 1 and not seen
        if not used or used < FOREIGN_MIB or level != ("warn" if harmless else "fail"):
            return ""
        return f"{used:.0f} MiB in use, {seen or 'no visible'} processes"


_YES = ("Yes", "1")
_Rule = tuple[str, Level, Callable[[_At], object]]
_DIVIDED: _Rule = ("gpu-modes", "fail", lambda at: at.gpu.mig == "Enabled" and "divided (MIG)")
_OF_GPU: tuple[_Rule, ...] = (
    ("memory-errors", "fail", lambda at: (n := at.gpu.uncorrected_sram) and f"{n:.0f} uncorrectable errors of SRAM"),
    (
        "memory-errors",
        "warn",
        lambda at: (n := at.gpu.uncorrected) and f"{n:.0f} uncorrectable errors since the driver loaded",
    ),
    ("memory-rows", "fail", lambda at: at.gpu.rows_failed in _YES and "rows of memory could not be remapped"),
    ("memory-rows", "warn", lambda at: at.gpu.rows_pending in _YES and "rows to remap at its next reset"),
    _DIVIDED,
    ("gpu-modes", "fail", lambda at: at.mode == "prohibited" and "its compute mode prohibits all work"),
    ("gpu-modes", "warn", lambda at: at.mode.startswith("exclusive") and "its compute mode admits one process"),
    ("gpu-in-use", "fail", lambda at: at.foreign(level="fail")),
    ("gpu-in-use", "warn", lambda at: at.foreign(level="warn")),
    ("gpu-in-use", "warn", lambda at: (n := at.gpu.utilization) and n > BUSY and f"{n:.0f} % busy, with no job on it"),
    ("persistence", "warn", lambda at: at.gpu.persistence == "Disabled" and "persistence mode is off"),
    ("nvlink", "fail", lambda at: (n := at.links.down) and f"NVLinks {_ranges(n)} are inactive"),
    ("nvlink", "fail", lambda at: (n := at.links.up) < at.wanted and f"{n} of {at.wanted} NVLinks are up"),
    ("nvlink", "fail", lambda at: len(n := at.links.rates) > 1 and f"NVLinks of different rates, {' and '.join(n)}"),
)
"""What is said of a GPU: of each check the first that is true; of one that is divided nothing of ``_OF_WHOLE``."""
_OF_WHOLE = ("gpu-in-use", "nvlink")


def _gpus(check: str) -> Callable[[NodeFacts, Needs], Said]:
    """A check of each GPU, said once of all of which the same is true."""
    rules = [(level, says) for name, level, says in _OF_GPU if name == check]

    def look(facts: NodeFacts, needs: Needs) -> Said:
        found: dict[tuple[Level, object], list[int]] = {}
        for at in _each(facts, needs):
            if check in _OF_WHOLE and _DIVIDED[2](at):
                continue
            if said := next(((level, text) for level, says in rules if (text := says(at))), None):
                found.setdefault(said, []).append(at.gpu.index)
        yield from ((level, f"GPU {_ranges(numbers)}: {text}") for (level, text), numbers in found.items())

    return look


def _ranges(numbers: Iterable[int]) -> str:
    return compress(map(str, numbers)).strip("[]")


def _each(facts: NodeFacts, needs: Needs) -> Iterator[_At]:
    links, known = facts.nvlink.gpus, GPUS.get(needs.gpu_type)
    most = max(link.up for link in (*links, Links()))
    wanted = LINKS if known and known.generation in ("hopper", "blackwell") else most
    for gpu in facts.gpus.gpus or [GpuState(index=number) for number in range(len(links))]:
        yield _At(gpu, links[gpu.index] if gpu.index < len(links) else Links(up=wanted), wanted, needs)


def _silent(facts: NodeFacts, needs: Needs) -> Said:
    """nvidia-smi lists a lost GPU, with ``Unknown Error`` for whatever it is asked."""
    if silent := [gpu.index for gpu in facts.gpus.gpus if not gpu.product and not gpu.uuid]:
        yield "fail", f"GPU {_ranges(silent)}: it does not even say what it is"


def _nvlink(facts: NodeFacts, needs: Needs) -> Said:
    if facts.nvlink.missing or not facts.nvlink.gpus:
        yield "unknown", f"NVLinks: {facts.nvlink.missing or 'nvidia-smi nvlink -s shows none'}"
    else:
        yield from _gpus("nvlink")(facts, needs)


def _link_errors(facts: NodeFacts, needs: Needs) -> Said:
    if facts.nvlink.errors:
        yield "warn", f"bit errors on NVLinks: {', '.join(facts.nvlink.errors)}"


def _fabric_manager(facts: NodeFacts, needs: Needs) -> Said:
    state = facts.services.get("fabric_manager", {})
    if state.get("LoadState") == "loaded" and state.get("ActiveState") != "active" and needs.domain_nodes == 1:
        yield "fail", f"nvidia-fabricmanager is {state.get('ActiveState', 'not active')}"


def _imex(facts: NodeFacts, needs: Needs) -> Said:
    if needs.domain_nodes == 1:
        return
    if not facts.imex.channels:
        yield "fail", "no channel in /dev/nvidia-caps-imex-channels: NVLink reaches no other node"
    domain = facts.imex.domain
    if domain is None:  # where a daemon is started with each job, there is none at rest
        yield "unknown", f"IMEX domain: {facts.imex.missing or 'nvidia-imex-ctl says nothing'}"
    elif domain.upper() != "UP":
        yield "warn" if domain.upper() == "DEGRADED" else "fail", f"the IMEX domain is {domain}"


def _port_errors(facts: NodeFacts, needs: Needs) -> Said:
    for port in facts.ports:
        grown = {name: count for name, count in port.errors.items() if count}
        if grown.get("link_downed"):
            yield "fail", f"{port.name} lost its link while it was looked at"
        elif grown:
            yield "warn", f"{port.name}: {', '.join(f'{count} {name}' for name, count in grown.items())}"


def _direct(facts: NodeFacts, needs: Needs) -> Said:
    system, version = facts.system, re.match(r"(\d+)\.(\d+)", facts.machine.kernel or "")
    dmabuf = system.open_driver and version and (int(version[1]), int(version[2])) >= DMABUF
    verbs = any(port.layer in ("InfiniBand", "Ethernet") for port in facts.machine.adapters)  # EFA is neither
    if system.peermem is False and not dmabuf and verbs and needs.nodes > 1:
        yield "warn", "neither nvidia_peermem nor the open driver: no GPUDirect RDMA"


def _gpu_initiated(facts: NodeFacts, needs: Needs) -> Said:
    if needs.dispatcher and facts.system.peer_mapping is False and not facts.system.gdrcopy:
        yield "fail", f"{needs.dispatcher} needs PeerMappingOverride=1 of the driver, or GDRCopy, and there is neither"


def _memlock(facts: NodeFacts, needs: Needs) -> Said:
    limit = facts.system.memlock
    if limit is not None and limit < MEMLOCK and facts.machine.adapters:
        yield "fail", f"a process may lock {size(limit)}"


def _shm(facts: NodeFacts, needs: Needs) -> Said:
    system = facts.system
    if system.shm_size is None or system.shm_free is None:
        return
    if system.shm_size < SHM:
        yield "fail", f"/dev/shm has {size(system.shm_size)}"
    elif system.shm_free < SHM:
        level: Level = "fail" if system.shm_free < FULL else "warn"
        yield level, f"/dev/shm has {size(system.shm_free)} free: something was left there"


def _files(facts: NodeFacts, needs: Needs) -> Said:
    if facts.system.nofile is not None and facts.system.nofile < FILES:
        yield "warn", f"a process may open {facts.system.nofile} files"


def _outgoing(facts: NodeFacts, needs: Needs) -> Said:
    first = facts.system.first_outgoing_port
    if first is not None and first < RENDEZVOUS_END:
        yield "warn", f"outgoing connections take ports from {first} on, and so perhaps that of a job's rendezvous"


def _frequency(facts: NodeFacts, needs: Needs) -> Said:
    system = facts.system
    if other := [name for name in system.governors if name != "performance"]:
        yield "warn", f"CPU frequency governor {', '.join(other)}"
    if system.idle_disabled or system.idle_states in (1, 2):
        off = (
            f"{system.idle_disabled} of {system.idle_states}"
            if system.idle_disabled
            else f"all but {system.idle_states}"
        )
        yield "warn", f"{off} idle states of the CPU are off: busy cores reach no boost clock"
    if system.numa_balancing == "1":
        yield "warn", "kernel.numa_balancing is on"


def _time(facts: NodeFacts, needs: Needs) -> Said:
    if facts.services.get("time", {}).get("NTPSynchronized") == "no":
        yield "warn", "nothing keeps its clock"


def _folders(facts: NodeFacts, needs: Needs) -> Said:
    for what, folder in facts.folders.items():
        if not folder.there and what != "/tmp":
            yield "fail", f"the folder {what}, {folder.path}, is not there"
        elif folder.problem:
            yield "fail", f"nothing can be written to the folder {what}, {folder.path}: {folder.problem}"
        elif folder.size and (free := folder.free) is not None and (free < 5e8 or free < 0.02 * folder.size):
            yield ("fail" if what == "/tmp" and free < FULL else "warn"), f"{folder.path} has {size(free)} free"
    room = facts.software.unpacked if needs.containers else None
    if room and room.free is not None and needs.image_bytes and room.free < 3 * needs.image_bytes:
        level: Level = "fail" if room.free < needs.image_bytes else "warn"
        yield level, f"{room.path} has {size(room.free)} free for an image of {size(needs.image_bytes)}"


def _stuck(facts: NodeFacts, needs: Needs) -> Said:
    for process in facts.stuck:
        level: Level = "fail" if process.name.startswith("nvidia") else "warn"
        yield level, f"{process.name} ({process.pid}) hangs in the kernel (state D)"


def _runtime(facts: NodeFacts, needs: Needs) -> Said:
    if needs.containers and facts.software.enroot is None and "software" not in facts.hung:
        yield "fail", "enroot is not installed, and containers need it"


_DRIVER = "look at the node's kernel log, reset the GPU or reboot the node; if it comes back, have it repaired"
_RESET = "have the GPU reset, or the node rebooted"
_CABLE = "have the link looked at: cable, transceiver, switch port; NVLinks: fabric manager, then the tray"

CHECKS = (
    Check("gpu-answers", "GPUs that say what they are", _silent, _DRIVER),
    Check("memory-errors", "uncorrectable ECC errors since the driver was loaded", _gpus("memory-errors"), _RESET),
    Check("memory-rows", "rows of memory that wait to be remapped, or could not be", _gpus("memory-rows"), _RESET),
    Check("gpu-modes", "MIG off, compute mode default", _gpus("gpu-modes"), "nvidia-smi -mig 0, nvidia-smi -c DEFAULT"),
    Check("gpu-in-use", "GPUs idle and empty", _gpus("gpu-in-use"), "find and end the process: nvidia-smi on the node"),
    Check("persistence", "persistence mode", _gpus("persistence"), "enable nvidia-persistenced"),
    Check("nvlink", "NVLinks up, 18 a GPU, at one rate", _nvlink, _CABLE),
    Check("nvlink-errors", "bit error rates of NVLinks", _link_errors, _CABLE),
    Check("fabric-manager", "the fabric manager of HGX nodes", _fabric_manager, "systemctl start nvidia-fabricmanager"),
    Check("imex", "IMEX channels and domain of NVL72 nodes", _imex, "systemctl status nvidia-imex; its nodes_config"),
    Check("port-errors", "error counters of adapters that grow", _port_errors, _CABLE),
    Check("gpudirect", "GPUDirect RDMA", _direct, "load nvidia_peermem, or use the open driver with DMA-BUF"),
    Check(
        "ibgda",
        "GPU-initiated network, where experts are reached by DeepEP or HybridEP beyond NVLink",
        _gpu_initiated,
        'load the driver with NVreg_RegistryDwords="PeerMappingOverride=1;", or install GDRCopy',
    ),
    Check("memlock", "locked memory, where there are adapters", _memlock, "PropagateResourceLimitsExcept=MEMLOCK"),
    Check("shared-memory", "/dev/shm", _shm, "enlarge or empty /dev/shm"),
    Check("open-files", "open files of a process", _files, "raise LimitNOFILE of slurmd, and ulimit -n"),
    Check("ports", "ports of outgoing connections", _outgoing, "net.ipv4.ip_local_port_range = 32768 60999"),
    Check(
        "cpu-speed",
        "frequency governor, idle states, NUMA balancing",
        _frequency,
        "cpupower frequency-set -g performance",
    ),
    Check("time", "synchronized clock", _time, "start chronyd"),
    Check(
        "folders", "workload folder writable, installation and images there, room to unpack an image", _folders, "mount"
    ),
    Check("stuck", "processes in state D", _stuck, _DRIVER),
    Check("runtime", "Enroot, where jobs run in containers", _runtime, "install Enroot on the node"),
)
