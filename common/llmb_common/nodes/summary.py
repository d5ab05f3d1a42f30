"""The nodes of a run in short, as its record keeps them and commands show them; and where they are unlike an accepted
run's: a fault that all nodes share. ``summarizing`` makes it, of what the nodes recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from llmb_common.base.printable import counted, printable

Severity = Literal["problem", "note"]
"""Of a run. ``problem``: the result is not what these machines can do. ``note``: worth knowing."""

_MOST_DOMAINS = 4


class NodeFinding(msgspec.Struct, frozen=True):
    """One thing that a rule about nodes found to speak against a run's result; ``find`` and ``setup_findings`` make it.

    ``severity`` is ``problem`` (the result is not what these machines can do) or ``note`` (worth knowing).
    """

    kind: str
    """The rule's name, or ``expectation`` for a difference from accepted runs."""
    severity: Severity
    text: str
    """Printable, up to 500 characters, without a period."""


class NodeSummary(msgspec.Struct, frozen=True):
    """What a run ran on, as its nodes recorded it: hardware, versions, network, clocks, power and memory.

    ``summarize`` makes it. A text is the value that all nodes have; where they differ, the four commonest have
    their counts, ``a (3) / b (1)``. Empty or None: not known. ``driver``, ``cuda``, ``kernel`` and ``nccl`` are
    versions, ``cpu`` a model, ``network`` a name as in ``NcclLog``. A figure's name ends with its unit: MHz, W
    (watts) or GiB. ``lines`` returns all but the findings as a list of up to six lines for people; empty where
    ``nodes`` is 0.
    """

    nodes: int = 0
    """Number of nodes that left a record."""
    hosts: tuple[str, ...] = ()
    """Names of these nodes, sorted by the names of their records' files."""
    gpus: str = ""
    """Such as ``8 x NVIDIA B200``, of each node."""
    driver: str = ""
    cuda: str = ""
    kernel: str = ""
    cpu: str = ""
    nccl: str = ""
    network: str = ""
    transports: dict[str, int] = {}  # msgspec copies it
    """Channels of NCCL by kind, such as ``NET/IB/GDRDMA``, summed over nodes."""
    channels: str = ""
    """The kinds in ``transports``, sorted and joined by commas."""
    adapters: str = ""
    """How many NCCL uses on a node, and how fast: ``8 at 400 Gbit/s``."""
    gpudirect: str = ""
    """``yes`` or ``no``: whether adapters reach GPU memory by themselves."""
    nvlink: str = ""
    """How many GPUs NCCL joins by NVLink, on whichever nodes: ``72 GPUs``."""
    domains: dict[str, int] = {}
    """Number of nodes by NVLink domain, ``<cluster>.<clique>``."""
    fabric: str = ""
    """Whether GPUs have joined their NVLink fabric, in nvidia-smi's words."""
    pcie: str = ""
    """Width and generation of the GPUs' links under load: ``16x generation 5``."""
    power_limit: str = ""
    """``700 W``, or ``600 of 700 W`` where it is not the default."""
    clocks: str = ""
    """The highest clock, and the one at which somebody holds it down: ``up to 1980 MHz``."""
    clock_mhz: float | None = None
    """Median over the GPUs of their SM clock under load."""
    power_w: float | None = None
    """Mean over the GPUs of their power at the first look under load."""
    memory_gib: float | None = None
    """Peak of GPU memory that tensors took, on the GPU that had most."""
    memory_reserved_gib: float | None = None
    """Peak of GPU memory that PyTorch's allocator held, on the GPU where that was most."""
    findings: tuple[NodeFinding, ...] = ()
    """What speaks against the run's result, problems before notes."""

    def lines(self) -> list[str]:
        """Return up to six lines for people on the nodes of the run, printable; empty list where no node left a record.

        In this order: number of nodes with GPUs, power and CPU; versions and network; power limit, clocks and PCIe;
        adapters; NVLink, fabric and channels; the first four NVLink domains. What is not known is left out, and a
        line without anything. Findings are not among them.
        """
        if not self.nodes:
            return []
        versions = [("driver", self.driver), ("CUDA", self.cuda), ("NCCL", self.nccl), ("kernel", self.kernel)]
        hosts = counted(self.nodes, "node")
        power = f", {self.power_w:.0f} W each under load" if self.power_w else ""
        network = [f"network {self.network}"] if self.network else []
        joined = [("NVLink", self.nvlink), ("fabric", self.fabric), ("channels", self.channels)]
        first_domains = list(self.domains.items())[:_MOST_DOMAINS]
        domains = ", ".join(f"{name} ({count})" for name, count in first_domains)
        clock = f", {self.clock_mhz:.0f} MHz under load" if self.clock_mhz else ""
        clocks = self.clocks + clock if self.clocks else ""
        board = [("power limit", self.power_limit), ("clock", clocks), ("PCIe", self.pcie)]
        between = [("adapters", self.adapters), ("GPUDirect RDMA", self.gpudirect)]
        lines = [
            ", ".join(part for part in (hosts, self.gpus + power if self.gpus else "", self.cpu) if part),
            ", ".join([*_known_parts(versions), *network]),
            *(", ".join(_known_parts(part)) for part in (board, between, joined, [("NVLink domains", domains)])),
        ]
        return [printable(line) for line in lines if line]


def _known_parts(parts: Iterable[tuple[str, str]]) -> list[str]:
    """Return ``name value`` for each of ``parts``, pairs of (name, value), whose value is not empty, in their order."""
    return [f"{name} {value}" for name, value in parts if value]


EXPECTATION = "expectation"
CLOCK = "clock_mhz"
SLOWER = 0.9
"""The median clock under load below this share of the accepted run's: between runs of a job it differs by less."""

_FACTS: dict[str, tuple[Severity, str]] = {
    "driver": ("note", "driver"),
    "adapters": ("problem", "network adapters in use"),
    "gpudirect": ("problem", "GPUDirect RDMA"),
    "nvlink": ("problem", "NVLink joins"),
    "fabric": ("problem", "NVLink fabric"),
    "pcie": ("problem", "PCIe"),
    "power_limit": ("problem", "power limit"),
    "clocks": ("problem", "clocks"),
}
_OF_THE_JOB = ("gpudirect", "nvlink")
"""What also depends on the job, as clocks under load do: only runs of the same configuration are held against it."""


def setup_of(accounts: Sequence[NodeSummary]) -> dict[str, str | float]:
    """Return the hardware and versions that the nodes of accepted runs agree on, by field of ``NodeSummary``.

    The fields are ``gpus``, ``driver``, ``adapters``, ``gpudirect``, ``nvlink``, ``fabric``, ``pcie``,
    ``power_limit`` and ``clocks``, texts. What differs between runs, or is empty in one, is left out;
    ``clock_mhz``, the clock under load, is the mean of those known, a float, and left out without any. Empty: they
    agree on nothing, or left no record. At least one summary must be given, else there is an IndexError.
    """
    setups = [{name: getattr(account, name) for name in ("gpus", *_FACTS)} for account in accounts]
    first = setups[0]
    equal = [name for name in first if all(setup[name] == first[name] for setup in setups)]
    kept = {name: first[name] for name in equal if first[name]}
    # Clocks never agree to the MHz.
    clocks = [account.clock_mhz for account in accounts if account.clock_mhz]
    if clocks:
        kept[CLOCK] = sum(clocks) / len(clocks)
    return kept


def setup_findings(
    account: NodeSummary, setup: Mapping[str, str | float], what: str, *, same_job: bool
) -> list[NodeFinding]:
    """Return a finding for each way in which a run's nodes differ from those of accepted runs; empty: they are alike.

    ``account`` is of the run, ``setup`` comes from ``setup_of``, and ``what`` names the accepted runs in the texts,
    ``driver 580.1, and 570.2 in WHAT``. What either does not know is not compared, nor is ``gpus``. Another driver
    is a note, all else a problem; the ``kind`` of all is ``expectation``. They come in the order of the fields of
    ``setup_of``, clocks under load last. ``same_job``: both ran the same configuration, so that GPUDirect RDMA,
    NVLink and clocks under load are compared, too; of the latter only one below 90 % of the accepted counts.
    """
    found: list[tuple[Severity, str]] = []
    for name, (severity, word) in _FACTS.items():
        is_compared = same_job or name not in _OF_THE_JOB
        was, now = setup.get(name), getattr(account, name)
        if is_compared and was and now and was != now:
            found.append((severity, f"{word} {now}, and {was} in {what}"))
    clock = setup.get(CLOCK)
    if same_job and isinstance(clock, float) and account.clock_mhz and account.clock_mhz < SLOWER * clock:
        found.append(("problem", f"clocks under load {account.clock_mhz:.0f} MHz, and {clock:.0f} in {what}"))
    return [NodeFinding(EXPECTATION, severity, printable(text)[:500]) for severity, text in found]
