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
    """One port of an InfiniBand, RoCE, EFA or Slingshot adapter, as the kernel describes it; None: it does not say."""

    name: str = ""
    """Such as ``mlx5_0``; of an adapter with several ports ``mlx5_0:1``."""
    type: str | None = None
    """Its model, as the kernel calls it: MT4129 or the like."""
    firmware: str | None = None
    """The version."""
    layer: str | None = None
    """``InfiniBand``, ``Ethernet`` or ``Slingshot``; EFA has ``Unknown``."""
    state: str | None = None
    """The logical one of the link, such as ``ACTIVE``."""
    rate_gbps: float | None = None
    """Of the link as it runs, in Gbit/s."""


class HostFacts(msgspec.Struct, frozen=True):
    """What the kernel says of a node's CPUs, memory, driver and network adapters; None: it does not say.

    ``memory_gib`` is the node's memory in GiB. ``adapters`` has one item for each port of an adapter, sorted by
    name; empty: there are none.
    """

    kernel: str | None = None
    """Its release."""
    architecture: str | None = None
    """Such as ``x86_64``."""
    cpu: str | None = None
    """The model; of Arm CPUs the number of the part."""
    cpus: int | None = None
    """Number of logical CPUs."""
    memory_gib: float | None = None
    driver: str | None = None
    """The version of NVIDIA's."""
    adapters: tuple[Adapter, ...] = ()


class GpuState(msgspec.Struct, frozen=True):
    """One GPU at one moment, as nvidia-smi describes it, in its own words; None: it does not say.

    ``index`` is its number on the node, from 0. A figure's name ends with its unit: MiB, MHz, W, degrees Celsius
    ("c") or microseconds ("us"). ``product`` is the name of the GPU's model, ``vbios`` a version, ``memory_mib``
    all memory that it has, ``memory_used_mib`` what is in use, ``compute_mode`` such as ``Default`` or
    ``Exclusive_Process``, ``sm_mhz`` a clock of its processors. ``power_w`` is drawn at this moment,
    ``power_limit_w`` the limit that is set; names with ``default`` are the product's own values,
    ``memory_temperature_c`` and its limit those of the GPU's memory. ``pcie_generation`` (5.0) and ``pcie_width``
    are those of the link as it runs, ``pcie_generation_max`` and ``pcie_width_max`` the best that it can.
    """

    index: int = 0
    bus: str | None = None
    """Its address on PCIe."""
    product: str | None = None
    uuid: str | None = None
    vbios: str | None = None
    mig: str | None = None
    """``Enabled`` where MIG divides the GPU."""
    ecc: str | None = None
    """Whether memory errors are corrected: ``Enabled`` or ``Disabled``."""
    memory_mib: float | None = None
    memory_used_mib: float | None = None
    compute_mode: str | None = None
    processes: int = 0
    """Number of processes that nvidia-smi sees on it."""
    persistence: str | None = None
    """``Disabled`` where persistence mode is off."""
    sm_mhz: float | None = None
    """The clock at this moment."""
    max_sm_mhz: float | None = None
    """The highest clock of the product."""
    boost_mhz: float | None = None
    """The highest clock that a user may set."""
    application_mhz: float | None = None
    """The clock that was set for applications."""
    default_application_mhz: float | None = None
    utilization: float | None = None
    """Percent."""
    power_w: float | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    temperature_c: float | None = None
    temperature_margin_c: float | None = None
    """Degrees left to the temperature at which it is slowed down."""
    temperature_limit_c: float | None = None
    """The temperature at which it is slowed down."""
    memory_temperature_c: float | None = None
    memory_temperature_limit_c: float | None = None
    pcie_width: str | None = None
    """Lanes of the link as it runs, such as ``16x``."""
    pcie_width_max: str | None = None
    pcie_generation: float | None = None
    pcie_generation_max: float | None = None
    fabric: str | None = None
    """How far it has joined its NVLink fabric: ``Completed``, or where it stopped."""
    fabric_status: str | None = None
    """How joining went: ``Success``, or an error."""
    fabric_health: str | None = None
    """How its NVLink fabric is, such as ``Limited Capacity`` or ``Unhealthy``; drivers before 580 do not say."""
    fabric_bandwidth: str | None = None
    """Whether it has all bandwidth of the fabric; ``Degraded``: not."""
    recovery: str | None = None
    """What its driver asks for: ``Reset``, ``Reboot``, ``Drain P2P`` or ``Drain and Reset``; None: nothing."""
    domain: str | None = None
    """The NVLink domain across nodes: GPUs with the same value are connected."""
    uncorrected: float | None = None
    """Uncorrectable memory errors since the driver was loaded."""
    uncorrected_sram: float | None = None
    """The same, of its SRAM only."""
    rows_pending: str | None = None
    """``Yes`` where memory rows wait for a reset to be remapped."""
    rows_failed: str | None = None
    """``Yes`` where memory rows could not be remapped."""
    unrepairable: str | None = None
    """``Yes`` where memory cannot be repaired."""
    channel_repair: str | None = None
    """``Yes`` where a channel of its memory waits for a reset to be repaired."""
    tpc_repair: str | None = None
    """``Yes`` where a group of its processors waits for a reset to be repaired."""
    sram_threshold: str | None = None
    """``Yes`` where its SRAM has had so many uncorrectable errors that NVIDIA wants it replaced."""
    throttle: tuple[str, ...] = ()
    """What holds its clocks down at this moment, such as ``sw_power_cap``; empty: nothing."""
    throttled_us: dict[str, float] = {}  # msgspec copies it
    """Microseconds since the driver was loaded for which each reason held its clocks down; empty: not counted."""


class Snapshot(msgspec.Struct, frozen=True):
    """All GPUs of a node at one moment, as nvidia-smi lists them; ``driver`` is the version of NVIDIA's driver.

    ``driver`` and ``cuda`` are None where nvidia-smi does not say.
    """

    time: float = 0.0
    """Unix time in seconds; 0: there was no look."""
    missing: str | None = None
    """Why there are no GPUs; None: nvidia-smi answered, or was not asked."""
    driver: str | None = None
    cuda: str | None = None
    """The newest CUDA that the driver supports, ``12.8``."""
    gpus: tuple[GpuState, ...] = ()
    """In nvidia-smi's order; empty: it lists none, or did not answer."""


class Links(msgspec.Struct, frozen=True):
    """The NVLinks of one GPU: how many are up, which are not, and at which rates they run."""

    up: int = 0
    """Number of links that are up."""
    down: tuple[int, ...] = ()
    """Numbers of the inactive links; empty: none, or none is listed."""
    rates: tuple[str, ...] = ()
    """The different rates of links that are up, sorted as text, as nvidia-smi prints them: ``26.562 GB/s``; empty:
    none is up, or listed.
    """


class Nvlink(msgspec.Struct, frozen=True):
    """The NVLinks of a node's GPUs and their bit error rates, as nvidia-smi lists them.

    ``gpus`` is empty where it lists none.
    """

    missing: str | None = None
    """Why nvidia-smi could not be asked; None: it could, or is not installed."""
    gpus: tuple[Links, ...] = ()
    """One for each GPU, in nvidia-smi's order."""
    errors: tuple[str, ...] = ()
    """Bit error rates of the node's links that are not zero, as nvidia-smi prints them; empty: all are, or nobody
    could tell.
    """


class Imex(msgspec.Struct, frozen=True):
    """The state of IMEX on a node, which lets GPUs of several nodes share memory over NVLink."""

    missing: str | None = None
    """Why nvidia-imex-ctl could not be asked; None: it could, or is not installed."""
    domain: str | None = None
    """The state of the IMEX domain, such as ``UP``; None: not known."""
    channels: int = 0
    """Number of channels in ``/dev/nvidia-caps-imex-channels``; 0: none, or not known."""


class Port(msgspec.Struct, frozen=True):
    """What a look at a node before a job adds to one port of a network adapter: its cable, addresses and errors.

    ``name`` is that of the port's ``Adapter``. None, also as a value in ``errors``, stands for what is not known.
    """

    name: str = ""
    phys: str | None = None
    """The physical state, such as LinkUp or Polling."""
    board: str | None = None
    """The adapter's model."""
    gids: tuple[str, ...] = ()
    """Kinds of its addresses, such as ``RoCE v2``; empty: not known."""
    errors: dict[str, int | None] = {}  # msgspec copies it
    """By the kernel's name of the counter, such as ``link_downed``: by how much it grew within four seconds. None: not
    known. Empty: nothing is known of any.
    """


class KernelLog(msgspec.Struct, frozen=True):
    """Those lines of a node's kernel log of the last 24 hours that may matter, by a fixed list of patterns."""

    missing: str | None = None
    """Why the log could not be read; None: it could, or there is no tool for it."""
    lines: tuple[tuple[float, str], ...] = ()
    """(age in whole seconds, text), oldest first; the last 400 at most, of up to 300 characters each. Empty: there are
    none, or the log could not be read.
    """


class System(msgspec.Struct, frozen=True):
    """Limits of a process on a node, and settings of its kernel; None: not known.

    Sizes are in bytes. A limit (``memlock``, ``nofile``) is None, too, where there is none.
    """

    memlock: int | None = None
    """Bytes of memory that a process may lock."""
    nofile: int | None = None
    """Number of files that a process may have open."""
    shm_size: int | None = None
    """Of ``/dev/shm``."""
    shm_free: int | None = None
    """Of that, what is free."""
    governors: tuple[str, ...] = ()
    """Frequency governors of the CPUs, each once, sorted; empty: none is known."""
    idle_states: int | None = None
    """Number of idle states that a CPU has."""
    idle_disabled: int = 0
    """Number of idle states that are switched off."""
    numa_balancing: str | None = None
    """``0``: off, ``1``: on."""
    numa_nodes: int | None = None
    """Number of NUMA nodes with CPUs."""
    cmdline: str | None = None
    """The kernel's command line, without what differs from node to node."""
    page_size: int | None = None
    """Of a page of memory."""
    pod: bool | None = None
    """Whether the node is a pod of Kubernetes."""
    virtual: bool | None = None
    """Whether the node is a virtual machine."""
    first_outgoing_port: int | None = None
    """The lowest port that outgoing connections take."""
    peermem: bool | None = None
    """Whether the module nvidia_peermem is loaded."""
    open_driver: bool | None = None
    """Whether NVIDIA's driver is the open one."""
    peer_mapping: bool | None = None
    """Whether the driver has ``PeerMappingOverride=1``, which IBGDA can use."""
    gdrcopy: bool | None = None
    """Whether the driver of GDRCopy is there."""
    clock: float | None = None
    """The node's Unix time at the look."""


class Folder(msgspec.Struct, frozen=True):
    """A folder as a node sees it, with the room on its file system.

    ``path`` is as it was asked for; ``there`` says whether it exists. The property ``state`` is a text:
    ``not visible`` (it is not there), ``read-only`` (writing failed, for any reason) or ``writable`` (also where
    writing was not tried).
    """

    path: str = ""
    there: bool = False
    free: int | None = None
    """Bytes on its file system; None: not known."""
    size: int | None = None
    """Bytes of its file system; None: not known."""
    problem: str | None = None
    """Why nothing can be written there; None: it can, or it was not tried."""
    kind: str | None = None
    """The type of its file system, in the word of ``stat``; None: not asked."""

    @property
    def state(self) -> str:
        """Whether the node can use this folder, for people: ``not visible``, ``read-only`` or ``writable``.

        ``not visible`` is one that is not there, ``read-only`` any in which a file could not be written. ``writable``
        is also said where writing was not tried.
        """
        if not self.there:
            return "not visible"
        return "read-only" if self.problem else "writable"


class Software(msgspec.Struct, frozen=True):
    """A node's operating system, network drivers and Enroot (which unpacks and starts containers); None: not there."""

    os: str | None = None
    """Its name with the release."""
    ofed: str | None = None
    """The version of the mlx5 driver."""
    enroot: str | None = None
    """Its version."""
    enroot_missing: str | None = None
    """Why Enroot, which is installed, does not even tell its version; None: it does, or is not installed."""
    enroot_settings: dict[str, str] = {}
    """Settings in ``/etc/enroot``, value by name; empty: none is known."""
    unpacked: Folder | None = None
    """Where Enroot unpacks images for Pyxis; None: not known, as without Enroot."""
    roots: Folder | None = None
    """Where Enroot keeps the containers of this user; None: it does not say."""
    starts: tuple[str, ...] = ()
    """Those of the Python interpreters asked about, as paths, that start on this node; empty: none does, or was asked
    about.
    """


class Process(msgspec.Struct, frozen=True):
    """A process on a node: its number and the name of its program."""

    pid: int
    name: str


class Peak(msgspec.Struct, frozen=True):
    """The most memory of its GPU that one rank of a run had in use at a time, in bytes."""

    rank: int
    allocated: int
    """By tensors of PyTorch."""
    reserved: int
    """By PyTorch's allocator, which includes ``allocated``."""
    device: int
    """All memory that the GPU has."""
    job: str | None = None
    """The Slurm job in which the rank ran; None: not known."""
    restart: int = 0
    """How many times the job had been restarted."""


class NodeFacts(msgspec.Struct, frozen=True):
    """All that is known of one node, either from a run that trained on it or from a look at it before a job.

    ``read_nodes`` makes it of a run's records, ``read_facts`` of the answer to a look; both ignore unknown keys.
    ``host`` is the node's name. A run's ranks record ``machine``, the GPUs ``before``, under ``load`` and ``after``
    training, and what NCCL says; a look before a job gives the GPUs as ``before``, and everything from ``nvlink``
    on. The property ``gpus`` is the tuple of GPUs of the first of ``before``, ``load`` and ``after`` that showed
    any, empty if none did; the property ``driver`` is the version of NVIDIA's driver by nvidia-smi, else by the
    kernel, or None. What was not asked, or gave nothing, is as by default. ``hung``, ``errors`` and ``seconds`` are
    by the name of the look, one of ``LOOKS`` or ``folder`` with a blank and the name of a folder behind it.
    """

    host: str
    machine: HostFacts = HostFacts()
    before: Snapshot = Snapshot(missing="no answer")
    """The GPUs before training, or at a look before a job."""
    load: Snapshot = Snapshot()
    after: Snapshot = Snapshot()
    nccl: NcclLog | None = None
    """What NCCL's log says; None: there is none."""
    nccl_missing: str | None = None
    """Why NCCL was not told to write a log; None: it was, or nothing is known of it."""
    rank: int = 0
    """The rank that wrote the record, the node's first."""
    samples: tuple[Snapshot, ...] = ()
    """Looks under load in order of time, 100 at most, each with only what changes; of the first one, ``load`` has
    everything.
    """
    peaks: tuple[Peak, ...] = ()
    """Peak memory of its ranks' GPUs, sorted by rank; a rank that wrote twice is there twice."""
    started: float = 0.0
    """Unix time at which this rank began; 0: not known."""
    job: str | None = None
    """The Slurm job of the record; None: not known."""
    restart: int = 0
    """How many times that job had been restarted."""
    nvlink: Nvlink = Nvlink(missing="no answer")
    imex: Imex = Imex()
    services: dict[str, dict[str, str]] = {}
    """What systemd (``fabric_manager``) and timedatectl (``time``) say, each property by its own name:
    ``{"time": {"NTPSynchronized": "yes"}}``. Empty: nobody asked.
    """
    ports: tuple[Port, ...] = ()
    """Of its network adapters, sorted by name; empty: there are none, or nobody looked."""
    kernel: KernelLog = KernelLog(missing="no answer")
    system: System = System()
    software: Software = Software()
    stuck: tuple[Process, ...] = ()
    """Processes in uninterruptible sleep, which hang in the kernel; empty: none, or nobody looked."""
    folders: dict[str, Folder] = {}
    """By what they are for, as the look was told: ``installation``, ``workload``, ``images`` or ``/tmp``."""
    begun: float = 0.0
    """Unix time at which the look before a job began; 0: not known, or there was no look."""
    hung: dict[str, str] = {}
    """Looks that did not end in time, and what was waited for; empty: none."""
    errors: dict[str, str] = {}
    """Looks that failed, and why; empty: none."""
    seconds: dict[str, float] = {}
    """How many seconds each look took."""

    @property
    def driver(self) -> str | None:
        """The version of NVIDIA's driver on this node, by nvidia-smi or else by the kernel; None: not known."""
        return self.before.driver or self.machine.driver

    @property
    def gpus(self) -> tuple[GpuState, ...]:
        """The GPUs of this node as they were before training, else under load, else after it.

        Empty: no look showed any.
        """
        return self.before.gpus or self.load.gpus or self.after.gpus


LOOKS = ("machine", "gpus", "nvlink", "imex", "services", "ports", "kernel", "system", "software", "stuck")
"""What a look before a job has, in the words of its program, which calls ``before`` ``gpus``."""


def field_of(probe: str) -> str:
    """Return the name of the field of ``NodeFacts`` that a look fills; ``probe`` is one of ``LOOKS``.

    It is the look's own name, such as ``nvlink``, but ``before`` for ``gpus``; an unknown name comes back as it is.
    """
    return "before" if probe == "gpus" else probe


def facts_as_json(facts: NodeFacts | None) -> dict[str, Any] | None:
    """Return what a look at a node before a job found, as JSON values by look; None for None: it did not answer.

    The keys are ``node`` (the host), ``begun``, those of ``LOOKS`` (``machine``, ``gpus``, ``nvlink``, ``imex``,
    ``services``, ``ports``, ``kernel``, ``system``, ``software``, ``stuck``), ``folders``, ``hung``, ``errors`` and
    ``seconds``. Each is always there; what is not known is null or as by default.
    """
    if facts is None:
        return None
    values = msgspec.to_builtins(facts)
    looks = {look: values[field_of(look)] for look in LOOKS}
    rest = {name: values[name] for name in ("folders", "hung", "errors", "seconds")}
    return {"node": facts.host, "begun": facts.begun, **looks, **rest}


class Nodes(msgspec.Struct, frozen=True):
    """The records that the nodes of a run left, of its last start; nodes without one are missing.

    ``nodes`` has one item for each node that left a readable record; empty: none did.
    """

    nodes: tuple[NodeFacts, ...] = ()
    unreadable: tuple[str, ...] = ()
    """Names of the files that are damaged or no record, without their folder, sorted; empty: none is."""


def domains_of(nodes: Iterable[NodeFacts]) -> Counter[str]:
    """Return how many of ``nodes`` have a GPU in each NVLink domain, by the domain's name, ``<cluster>.<clique>``.

    Domains are in the order of first occurrence, those that one node brings in any order. Empty where no node names
    one. A node with GPUs in several domains counts once in each.
    """
    counts: Counter[str] = Counter()
    for node in nodes:
        counts.update({gpu.domain for gpu in node.gpus if gpu.domain})
    return counts


def used_adapters(node: NodeFacts) -> dict[str, Adapter | None]:
    """Return the network adapters that NCCL used on the node, by name, with what the kernel says of each.

    None for an adapter: the kernel says nothing of it. NCCL's names are without a port and come in the order of its
    log, and of an adapter with several ports the first one is described. With EFA they are all ports that the
    kernel lists, by their own names, as NCCL names none. Empty where NCCL left no log, or it names none.
    """
    if node.nccl is None:
        return {}
    ports = {port.name: port for port in node.machine.adapters}
    names = ports if node.nccl.network == "EFA" else node.nccl.adapters
    # NCCL names an adapter without its port, the system with it where there are several.
    bare = {port.name.partition(":")[0]: port for port in reversed(node.machine.adapters)}
    return {name: bare.get(name.partition(":")[0]) for name in names}
