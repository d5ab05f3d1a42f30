"""What NCCL says of the network that it found, in its own log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from llmb_common.base.files import read_plain

MOST_BYTES = 16 << 20
"""Of one log of NCCL's; communicators are made at the start, and further ones look alike."""

_MOST_NAMES = 64
_LINE = 4096
_VERSION = re.compile(r"NCCL version (\d+(?:\.\d+){1,3})(?:\+cuda([\d.]+))?")
_NETWORK = re.compile(r"NCCL INFO Using network ([\w.+-]+(?: Libfabric)?)")
_ADAPTER = re.compile(r"\[\d+\]([\w.-]+):\d+/(IB|RoCE|uRoCE)\b")
_NUMBERED = re.compile(r"\[(\d{1,3})\]([\w.-]{1,40}):\d+/(?:IB|RoCE|uRoCE)\b")
_CHANNEL = re.compile(r" via NET/IB\w*/(\d{1,3})\b")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w;.-]+)")
_TRANSPORT = re.compile(r"NCCL INFO (?:Channel|Ring|CollNet) \S+ : .{0,80}? via ([\w. ]+(?:/[\w. ()-]+)*)")
_CLIQUE = re.compile(r"NCCL INFO MNNVL 1 cliqueId [0-9a-f]+ cliqueSize (\d{1,6})\b")
_NVLS = re.compile(r"NCCL INFO (?:NVLS comm |Connected NVLS tree)")


class NcclLog(msgspec.Struct, frozen=True):
    """What NCCL's log on a node says of its version and network; ``transports`` counts channels: ``NET/IB/GDRDMA``,
    ``SHM``.
    """

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
        """Whether adapters read and write GPU memory (GPUDirect RDMA); None where no channel goes over an adapter."""
        channels = [name for name in self.transports if name.startswith("NET/")]
        if not channels or not {self._common_name(name) for name in self._channels} & {"IB", "RoCE", "EFA"}:
            return None
        return any(name.endswith("/GDRDMA") for name in channels)

    @property
    def network(self) -> str:
        """The network that NCCL chose, in a word: ``IB``, ``RoCE``, ``EFA``, ``Socket``, or the plug-in's own.

        Several are joined by ``and``; empty: the log names none.
        """
        return " and ".join(sorted({self._common_name(name) for name in self.networks or self._channels}))

    @property
    def sockets(self) -> bool:
        """Whether data between nodes goes through TCP: as NCCL's own choice, or below a plug-in.

        Channels say it; where this rank has none to another node, the network that was chosen, unless NVLink reaches
        the other nodes.
        """
        if not self._channels and "P2P/MNNVL" in self.transports:
            return False
        return "Socket" in {self._common_name(name) for name in self._channels or self.networks}

    @property
    def _channels(self) -> tuple[str, ...]:
        """The networks of the channels to other nodes, as NCCL calls them; empty: there are no such channels."""
        return tuple(name.split("/")[1] for name in self.transports if name.startswith("NET/"))

    def _common_name(self, name: str) -> str:
        """A network by the name that people use: ``IB``, ``RoCE``, ``EFA``, ``Socket``."""
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
    """What the lines of NCCL's log say. Lines that are not NCCL's, cut or garbled say nothing.

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
    for raw_line in lines:
        line = raw_line[:_LINE]
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


def used_adapters_of(lines: Iterable[str]) -> tuple[str, ...]:
    """The names of the adapters that channels go through, from lines of NCCL's log; empty where it does not say."""
    names: dict[str, str] = {}
    numbers: dict[str, None] = {}
    for raw_line in lines:
        line = raw_line[:_LINE]
        if "NET/IB : Using" in line:
            names |= dict(_NUMBERED.findall(line)[:_MOST_NAMES])
        if (found := _CHANNEL.search(line)) and len(numbers) < _MOST_NAMES:
            numbers[found[1]] = None
    return tuple(dict.fromkeys(names[number] for number in numbers if number in names))


def _transport(path: str) -> str:
    """A channel's kind without numbers: ``NET/IB/GDRDMA`` of ``NET/IB/0/GDRDMA``, ``SHM`` of ``SHM/direct/direct``."""
    parts = path.strip().split("/")
    if parts[0] == "NET":
        direct = "/GDRDMA" if any(part.startswith("GDRDMA") for part in parts[2:]) else ""  # also "GDRDMA(PCI)"
        return f"NET/{parts[1] if len(parts) > 1 else '?'}{direct}"[:60]
    return (parts[0] if parts[0] == "SHM" else "/".join(parts[:2]))[:60]
