"""The files in ``nodes/``, which the ranks and NCCL wrote. Anybody may have: sizes are bounded, and nothing in them is
believed to be of the right kind.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from llmb_common.decoding.structs import from_json, from_plain
from llmb_common.machine.files import read_plain

MOST_BYTES = 16 << 20
"""Of one log of NCCL's; communicators are made at the start, and further ones look alike."""

_MOST_NAMES = 64
_LINE = 4096
_VERSION = re.compile(r"NCCL version (\d+(?:\.\d+){1,3})(?:\+cuda([\d.]+))?")
_NETWORK = re.compile(r"NCCL INFO Using network ([\w.+-]+(?: Libfabric)?)")
_ADAPTER = re.compile(r"\[\d+\]([\w.-]+):\d+/(IB|RoCE|uRoCE)\b")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w;.-]+)")
_TRANSPORT = re.compile(r"NCCL INFO (?:Channel|Ring|CollNet) \S+ : .{0,80}? via ([\w. ]+(?:/[\w. ()-]+)*)")
_CLIQUE = re.compile(r"NCCL INFO MNNVL 1 cliqueId [0-9a-f]+ cliqueSize (\d{1,6})\b")
_NVLS = re.compile(r"NCCL INFO (?:NVLS comm |Connected NVLS tree)")


class NcclLog(msgspec.Struct, frozen=True):
    """``transports`` counts channels: ``NET/IB/GDRDMA``, ``NET/Socket``, ``P2P/CUMEM``, ``SHM``, ``NVLS``."""

    version: str | None = None
    cuda: str | None = None
    networks: tuple[str, ...] = ()
    """As NCCL calls them: ``IB``, ``IBext_v8``, ``Socket``, ``AWS Libfabric``."""
    adapters: dict[str, str] = {}  # msgspec copies it
    """``IB`` or ``RoCE`` by the adapter's name."""
    provider: str | None = None
    """Libfabric's, below the OFI plug-in: ``efa``, or ``tcp;ofi_rxm`` where there is none."""
    transports: dict[str, int] = {}
    clique: int | None = None
    """How many GPUs NVLink joins, on whichever nodes, in the largest communicator of this rank."""

    @property
    def direct(self) -> bool | None:
        """Whether adapters read and write the GPUs' memory (GPUDirect RDMA); None without a channel over such a one."""
        channels = [name for name in self.transports if name.startswith("NET/")]
        if not channels or not {self._plain(name) for name in self._channels} & {"IB", "RoCE", "EFA"}:
            return None
        return any(name.endswith("/GDRDMA") for name in channels)

    @property
    def network(self) -> str:
        """One word for all of it: ``IB``, ``RoCE``, ``EFA``, ``Socket``, the plug-in's own name, or nothing."""
        return " and ".join(sorted({self._plain(name) for name in self.networks or self._channels}))

    @property
    def sockets(self) -> bool:
        """Whether data between nodes goes through TCP: as NCCL's own choice, or below a plug-in.

        Channels say it; where this rank has none to another node, the network that was chosen, unless NVLink reaches
        the other nodes.
        """
        if not self._channels and "P2P/MNNVL" in self.transports:
            return False
        return "Socket" in {self._plain(name) for name in self._channels or self.networks}

    @property
    def _channels(self) -> tuple[str, ...]:
        """The networks of the channels to other nodes."""
        return tuple(name.split("/")[1] for name in self.transports if name.startswith("NET/"))

    def _plain(self, name: str) -> str:
        if name.startswith("IB"):
            return "RoCE" if self.adapters and set(self.adapters.values()) <= {"RoCE", "uRoCE"} else "IB"
        if "Libfabric" in name or name.startswith("OFI"):
            if self.provider and self.provider.startswith("efa"):
                return "EFA"
            return "Socket" if self.provider and re.match(r"tcp|sockets", self.provider) else name
        return name


def read_nccl_log(file: Path) -> NcclLog | None:
    """What ``file`` says; None where there is no such file, or nothing of NCCL in it."""
    try:
        text = read_plain(file, MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    found = parse_nccl_log(text.splitlines())
    return None if found == NcclLog() else found


def parse_nccl_log(lines: Iterable[str]) -> NcclLog:
    """What the lines say. Lines that are not NCCL's, cut or garbled say nothing.

    The words are the same from NCCL 2.19 to 2.29; a line may have a time stamp, a launcher's prefix or another line in
    it::

        NCCL version 2.21.5+cuda12.4
        node1:737:842 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.4<0>
        node1:737:842 [0] NCCL INFO Using network IBext_v8
        node1:737:842 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [send] via NET/IBext_v8/1/GDRDMA
        node1:737:842 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
        node1:737:842 [0] NCCL INFO MNNVL 1 cliqueId 184 cliqueSize 8 cliqueRank 0
    """
    version: re.Match[str] | None = None
    networks: dict[str, None] = {}
    adapters: dict[str, str] = {}
    provider = None
    transports: Counter[str] = Counter()
    clique: int | None = None
    for whole in lines:
        line = whole[:_LINE]
        if "NCCL" not in line:
            continue
        version = version or _VERSION.search(line)
        if (found := _NETWORK.search(line)) and len(networks) < _MOST_NAMES:
            networks[found[1]] = None
        if "NET/IB : Using" in line and len(adapters) < _MOST_NAMES:
            adapters |= dict(_ADAPTER.findall(line)[:_MOST_NAMES])
        if found := _PROVIDER.search(line):
            provider = found[1][:40]
        if found := _TRANSPORT.search(line):
            name = _transport(found[1])
            if name in transports or len(transports) < _MOST_NAMES:
                transports[name] += 1
        if found := _CLIQUE.search(line):
            clique = max(clique or 0, int(found[1]))
        if _NVLS.search(line):
            transports["NVLS"] += 1
    return NcclLog(
        version[1] if version else None,
        version[2] if version else None,
        tuple(networks),
        adapters,
        provider,
        dict(transports),
        clique,
    )


def _transport(path: str) -> str:
    """``NET/IB/GDRDMA`` of ``NET/IB/0/GDRDMA``; ``SHM`` of ``SHM/direct/direct``."""
    parts = path.strip().split("/")
    if parts[0] == "NET":
        direct = "/GDRDMA" if any(part.startswith("GDRDMA") for part in parts[2:]) else ""  # also "GDRDMA(PCI)"
        return f"NET/{parts[1] if len(parts) > 1 else '?'}{direct}"[:60]
    return (parts[0] if parts[0] == "SHM" else "/".join(parts[:2]))[:60]


GIB = 2**30
_MOST_OF_PEAKS = 1 << 16


class Peak(msgspec.Struct, frozen=True):
    """Of one rank, in bytes. ``job`` and ``restart`` are the start's of which it is."""

    rank: int
    allocated: int
    reserved: int
    device: int
    job: str | None = None
    restart: int = 0


def read_peaks(file: Path, job: str | None, restart: int) -> tuple[Peak, ...]:
    """The peaks of one start, by rank. Never raises because of the file's content."""
    try:
        lines = read_plain(file, _MOST_OF_PEAKS).splitlines()
    except OSError:
        return ()
    found: list[Peak] = []
    for line in lines:
        with contextlib.suppress(msgspec.MsgspecError):
            found.append(from_json(line, Peak))
    kept = (
        peak for peak in found if (peak.job, peak.restart) == (job, restart) and 0 < peak.allocated <= peak.reserved
    )
    return tuple(sorted(kept, key=lambda peak: peak.rank))


FOLDER = "nodes"
_MOST_NODES = 8192
_MOST_OF_A_NODE = 1 << 20
_MOST_SAMPLES = 100


class Adapter(msgspec.Struct, frozen=True):
    """A port of an InfiniBand, RoCE or EFA adapter."""

    name: str = ""
    type: str | None = None
    firmware: str | None = None
    layer: str | None = None
    state: str | None = None
    rate_gbps: float | None = None


class HostFacts(msgspec.Struct, frozen=True):
    kernel: str | None = None
    architecture: str | None = None
    cpu: str | None = None
    cpus: int | None = None
    memory_gib: float | None = None
    driver: str | None = None
    adapters: tuple[Adapter, ...] = ()


class GpuState(msgspec.Struct, frozen=True):
    """Numbers in the unit that the name says; null where the driver says nothing."""

    index: int = 0
    bus: str | None = None
    """Its address on PCIe."""
    product: str | None = None
    uuid: str | None = None
    vbios: str | None = None
    mig: str | None = None
    ecc: str | None = None
    memory_mib: float | None = None
    memory_used_mib: float | None = None
    compute_mode: str | None = None
    processes: int = 0
    persistence: str | None = None
    sm_mhz: float | None = None
    max_sm_mhz: float | None = None
    boost_mhz: float | None = None
    application_mhz: float | None = None
    default_application_mhz: float | None = None
    utilization: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    temperature_c: float | None = None
    temperature_margin_c: float | None = None
    temperature_limit_c: float | None = None
    memory_temperature_c: float | None = None
    memory_temperature_limit_c: float | None = None
    pcie_width: str | None = None
    pcie_width_max: str | None = None
    pcie_generation: float | None = None
    pcie_generation_max: float | None = None
    fabric: str | None = None
    fabric_status: str | None = None
    domain: str | None = None
    """The NVLink domain across nodes: GPUs with the same value are connected."""
    uncorrected: float | None = None
    uncorrected_sram: float | None = None
    rows_pending: str | None = None
    rows_failed: str | None = None
    throttle: tuple[str, ...] = ()
    throttled_us: dict[str, float] = {}  # msgspec copies it


class Snapshot(msgspec.Struct, frozen=True):
    """All GPUs at Unix ``time``; ``missing`` says why there are none."""

    time: float = 0.0
    missing: str | None = None
    driver: str | None = None
    cuda: str | None = None
    gpus: tuple[GpuState, ...] = ()


class NodeRecord(msgspec.Struct, frozen=True):
    """What one node recorded about itself at the run's last start. ``nccl`` and ``peaks`` have files of their own."""

    host: str
    machine: HostFacts = HostFacts()
    before: Snapshot = Snapshot()
    load: Snapshot = Snapshot()
    after: Snapshot = Snapshot()
    nccl: NcclLog | None = None
    nccl_missing: str | None = None
    """Why NCCL was not told to write a log."""
    rank: int = 0
    """The rank that wrote it, the node's first."""
    samples: tuple[Snapshot, ...] = ()
    """Looks under load, of which ``load`` is the first."""
    peaks: tuple[Peak, ...] = ()
    """Peak memory of its ranks' GPUs."""
    started: float = 0.0
    job: str | None = None
    restart: int = 0

    @property
    def driver(self) -> str | None:
        return self.before.driver or self.machine.driver

    @property
    def gpus(self) -> tuple[GpuState, ...]:
        """The GPUs as they were at the start, or later where nothing was found out then."""
        return self.before.gpus or self.load.gpus or self.after.gpus


@dataclass(frozen=True)
class Nodes:
    """``unreadable``: names of files that are not what they should be."""

    nodes: tuple[NodeRecord, ...] = ()
    unreadable: tuple[str, ...] = ()


def read_nodes(run_folder: Path) -> Nodes:
    """The nodes of the run's last start, by name. Never raises for what is in the folder."""
    folder = run_folder / FOLDER
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(".json") and entry.name[0] != ".")
    except OSError:
        return Nodes()
    read = {name: _read(folder / name) for name in names[:_MOST_NODES]}
    nodes = [node for node in read.values() if node]
    # Not those that only an earlier start of the job had: a requeued job runs on others.
    last = max(nodes, key=lambda node: node.started, default=None)
    kept = (node for node in nodes if last and (node.job, node.restart) == (last.job, last.restart))
    return Nodes(tuple(kept), tuple(name for name, node in read.items() if node is None))


def _read(file: Path) -> NodeRecord | None:
    try:
        content = read_plain(file, _MOST_OF_A_NODE)  # a larger one is cut, and no JSON
        found: NodeRecord = from_plain(json.loads(content, parse_constant=_refuse), NodeRecord)
    except (OSError, ValueError, RecursionError, msgspec.ValidationError):
        return None
    stem = file.with_suffix("")  # not by what the file says: that may lead elsewhere
    return msgspec.structs.replace(
        found,
        nccl=read_nccl_log(stem.with_name(f"{stem.name}.nccl.log")),
        samples=found.samples[:_MOST_SAMPLES],
        peaks=read_peaks(stem.with_name(f"{stem.name}.memory.jsonl"), found.job, found.restart),
    )


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")
