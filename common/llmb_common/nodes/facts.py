"""What is known of a node, whoever asked it: one struct for a run's record of it and for a look before a job.

Numbers are in the unit that a name says; None where the node does not say. The program on the node
(``llmb_train.nodes``) has a look for each struct, which gives its fields by these names: a new fact is a line here and
a line there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from llmb_common.nodes.nccl import NcclLog

GIB = 1 << 30


class Adapter(msgspec.Struct, frozen=True):
    """A port of an InfiniBand, RoCE or EFA adapter."""

    name: str = ""
    type: str | None = None
    firmware: str | None = None
    layer: str | None = None
    state: str | None = None
    rate_gbps: float | None = None


class HostFacts(msgspec.Struct, frozen=True):
    """The machine itself, as its kernel describes it."""

    kernel: str | None = None
    architecture: str | None = None
    cpu: str | None = None
    cpus: int | None = None
    memory_gib: float | None = None
    driver: str | None = None
    adapters: tuple[Adapter, ...] = ()


class GpuState(msgspec.Struct, frozen=True):
    """One GPU at one moment, as nvidia-smi describes it."""

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


class Links(msgspec.Struct, frozen=True):
    """NVLinks of one GPU: how many run, which do not, and at which rates."""

    up: int = 0
    down: tuple[int, ...] = ()
    rates: tuple[str, ...] = ()


class Nvlink(msgspec.Struct, frozen=True):
    """NVLinks by GPU, and bit error rates that are not zero."""

    missing: str | None = None
    gpus: tuple[Links, ...] = ()
    errors: tuple[str, ...] = ()


class Imex(msgspec.Struct, frozen=True):
    """What joins the memory of GPUs on several nodes: the state of its domain, and how many channels there are."""

    missing: str | None = None
    domain: str | None = None
    channels: int = 0


class Port(msgspec.Struct, frozen=True):
    """What more is known of an adapter's port before a job. ``errors``: by how much its counters grew in seconds."""

    name: str = ""
    phys: str | None = None
    board: str | None = None
    gids: tuple[str, ...] = ()
    errors: dict[str, int | None] = {}  # msgspec copies it


class KernelLog(msgspec.Struct, frozen=True):
    """A node's kernel log. ``lines``: age in seconds, and text. ``missing``: why there are none."""

    missing: str | None = None
    lines: tuple[tuple[float, str], ...] = ()


class System(msgspec.Struct, frozen=True):
    """Limits and settings of the kernel. Sizes in bytes; a limit of None: there is none."""

    memlock: int | None = None
    nofile: int | None = None
    shm_size: int | None = None
    shm_free: int | None = None
    governors: tuple[str, ...] = ()
    idle_states: int | None = None
    idle_disabled: int = 0
    numa_balancing: str | None = None
    numa_nodes: int | None = None
    cmdline: str | None = None
    page_size: int | None = None
    pod: bool | None = None
    """Whether it is one of Kubernetes."""
    virtual: bool | None = None
    first_outgoing_port: int | None = None
    peermem: bool | None = None
    open_driver: bool | None = None
    peer_mapping: bool | None = None
    gdrcopy: bool | None = None
    clock: float | None = None


class Folder(msgspec.Struct, frozen=True):
    """A folder as a node sees it. ``free``, ``size``: bytes. ``problem``: why nothing can be written there. ``kind``:
    of its file system, in the word of ``stat``, where that is asked."""

    path: str = ""
    there: bool = False
    free: int | None = None
    size: int | None = None
    problem: str | None = None
    kind: str | None = None

    @property
    def state(self) -> str:
        """``not visible``, ``read-only`` or ``writable``, in one word for people."""
        if not self.there:
            return "not visible"
        return "read-only" if self.problem else "writable"


class Software(msgspec.Struct, frozen=True):
    """A node's operating system, network drivers and Enroot.

    ``enroot_missing``: why Enroot, which is installed, does not even say its version. ``unpacked``: where it unpacks
    images for Pyxis. ``roots``: where it does for a job of this user. ``starts``: the programs that were to start, and
    did.
    """

    os: str | None = None
    ofed: str | None = None
    enroot: str | None = None
    enroot_missing: str | None = None
    enroot_settings: dict[str, str] = {}
    unpacked: Folder | None = None
    roots: Folder | None = None
    starts: tuple[str, ...] = ()


class Process(msgspec.Struct, frozen=True):
    """A process on a node, by its number and its name."""

    pid: int
    name: str


class Peak(msgspec.Struct, frozen=True):
    """Most memory of one rank's GPU, in bytes. ``job`` and ``restart`` are the start's of which it is."""

    rank: int
    allocated: int
    reserved: int
    device: int
    job: str | None = None
    restart: int = 0


class NodeFacts(msgspec.Struct, frozen=True):
    """One node. What was not asked, or gave nothing, is as by default.

    A run's ranks record ``machine``, the GPUs at three moments, and what NCCL says; a look before a job has the GPUs
    ``before`` it, and all that follows. ``gpus`` are those of the first of ``before``, ``load`` and ``after`` that has
    any, none where none of them has; ``driver`` is that of ``before``, else of ``machine``, None where neither has it.
    """

    host: str
    machine: HostFacts = HostFacts()
    before: Snapshot = Snapshot(missing="no answer")
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
    nvlink: Nvlink = Nvlink(missing="no answer")
    imex: Imex = Imex()
    services: dict[str, dict[str, str]] = {}
    ports: tuple[Port, ...] = ()
    kernel: KernelLog = KernelLog(missing="no answer")
    system: System = System()
    software: Software = Software()
    stuck: tuple[Process, ...] = ()
    folders: dict[str, Folder] = {}
    begun: float = 0.0
    hung: dict[str, str] = {}
    """Looks that did not end in time, and what was waited for."""
    errors: dict[str, str] = {}
    """Looks that failed, and why."""
    seconds: dict[str, float] = {}
    """How long each look took."""

    @property
    def driver(self) -> str | None:
        """The version of NVIDIA's driver on the node; None: not known."""
        return self.before.driver or self.machine.driver

    @property
    def gpus(self) -> tuple[GpuState, ...]:
        """The GPUs as they were at the start, or later where nothing was found out then; empty: never."""
        return self.before.gpus or self.load.gpus or self.after.gpus


LOOKS = ("machine", "gpus", "nvlink", "imex", "services", "ports", "kernel", "system", "software", "stuck")
"""What a look before a job has, in the words of its program, which calls ``before`` ``gpus``."""


def field_of(probe: str) -> str:
    """The name of the field of ``NodeFacts`` that the ``probe``, one of ``LOOKS``, fills."""
    return "before" if probe == "gpus" else probe


def facts_as_json(facts: NodeFacts | None) -> dict[str, Any] | None:
    """What a look at a node before a job found, as JSON values by look; None for None: the node did not answer."""
    if facts is None:
        return None
    values = msgspec.to_builtins(facts)
    looks = {look: values[field_of(look)] for look in LOOKS}
    rest = {name: values[name] for name in ("folders", "hung", "errors", "seconds")}
    return {"node": facts.host, "begun": facts.begun, **looks, **rest}


class Nodes(msgspec.Struct, frozen=True):
    """The nodes of a run. ``unreadable``: names of files that are not what they should be."""

    nodes: tuple[NodeFacts, ...] = ()
    unreadable: tuple[str, ...] = ()


def domains_of(nodes: Iterable[NodeFacts]) -> Counter[str]:
    """How many of the nodes have GPUs in each NVLink domain, by the domain's name; empty where nodes say none."""
    counts: Counter[str] = Counter()
    for node in nodes:
        counts.update({gpu.domain for gpu in node.gpus if gpu.domain})
    return counts


def used_adapters(node: NodeFacts) -> dict[str, Adapter | None]:
    """The adapters that NCCL uses on the node, by name, with what the system says of them (None: nothing).

    All of them for EFA, of which NCCL names none; empty where NCCL left no log.
    """
    if node.nccl is None:
        return {}
    ports = {port.name: port for port in node.machine.adapters}
    names = ports if node.nccl.network == "EFA" else node.nccl.adapters
    # NCCL names an adapter without its port, the system with it where there are several.
    bare = {port.name.partition(":")[0]: port for port in reversed(node.machine.adapters)}
    return {name: bare.get(name.partition(":")[0]) for name in names}
