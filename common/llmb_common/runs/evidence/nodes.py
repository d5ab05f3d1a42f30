"""The files in ``nodes/``, which the ranks wrote. Anybody may have: sizes are bounded, and nothing in them is believed
to be of the right kind.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from llmb_common.decoding.structs import from_json, from_plain
from llmb_common.machine.files import read_plain
from llmb_common.runs.evidence.nccl_log import NcclLog, read_nccl_log

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
    found = (peak for peak in _parsed(lines) if (peak.job, peak.restart) == (job, restart))
    return tuple(sorted(found, key=lambda peak: peak.rank))


def _parsed(lines: list[bytes]) -> Iterator[Peak]:
    for line in lines:
        try:
            peak: Peak = from_json(line, Peak)
        except msgspec.MsgspecError:
            continue
        if 0 < peak.allocated <= peak.reserved:
            yield peak


FOLDER = "nodes"
_MOST_NODES = 8192
_MOST_BYTES = 1 << 20
_MOST_SAMPLES = 100


class Adapter(msgspec.Struct, frozen=True):
    """A port of an InfiniBand, RoCE or EFA adapter."""

    name: str = ""
    type: str | None = None
    firmware: str | None = None
    layer: str | None = None
    state: str | None = None
    rate_gbps: float | None = None


class Machine(msgspec.Struct, frozen=True):
    kernel: str | None = None
    architecture: str | None = None
    cpu: str | None = None
    cpus: int | None = None
    memory_gib: float | None = None
    driver: str | None = None
    adapters: tuple[Adapter, ...] = ()


class Gpu(msgspec.Struct, frozen=True):
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
    gpus: tuple[Gpu, ...] = ()


class Node(msgspec.Struct, frozen=True):
    """What one node recorded about itself at the run's last start. ``nccl`` and ``peaks`` have files of their own."""

    host: str
    machine: Machine = Machine()
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
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs as they were at the start, or later where nothing was found out then."""
        return self.before.gpus or self.load.gpus or self.after.gpus


@dataclass(frozen=True)
class Nodes:
    """``unreadable``: names of files that are not what they should be."""

    nodes: tuple[Node, ...] = ()
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


def _read(file: Path) -> Node | None:
    try:
        content = read_plain(file, _MOST_BYTES)  # a larger one is cut, and no JSON
        found: Node = from_plain(json.loads(content, parse_constant=_refuse), Node)
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
