"""What NCCL says of the network that it found, in its own log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import msgspec

from llmb_common.base.files import read_plain

MOST_BYTES = 16 << 20
"""Of one log of NCCL's; communicators are made at the start, and further ones look alike."""

_MOST_NAMES = 64
_LINE = 4096
_VERSION = re.compile(r"NCCL version (\d+(?:\.\d+){1,3})(?:\+cuda([\d.]+))?")
_NETWORK = re.compile(r"NCCL INFO Using network (NCCL RDMA Plugin v\d+|[\w.+-]+(?: Libfabric)?)")
_USING = re.compile(r"NET/g?IB\w* : Using")
_DEVICE = re.compile(r"\[\d{1,3}\](?:=\{[^}]{0,400}\}|[\w.-]{1,44}:[\d:]{1,12}/\w+)")
"""One network device: ``[0]mlx5_0:1/IB``; NCCL 2.20 to 2.23 has ``[0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB}`` where it
joins two ports, and NCCL 2.30 the port's rail and plane behind the port, ``[0]mlx5_0:1:3:0/IB``."""
_ADAPTER = re.compile(r"\] ?([\w.-]{1,40}?)(?:_dma)?:\d[\d:]{0,11}/(IB|RoCE|uRoCE)\b")
"""Data Direct adds ``_dma`` to the kernel's name of the adapter."""
_CHANNEL = re.compile(r" via NET/(?:g?IB[\w-]*|UCX|NCCL RDMA Plugin v\d+)/(\d{1,3})\b")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w;.-]+)")
_TRANSPORT = re.compile(r"NCCL INFO (?:Channel|Ring|CollNet) \S+ : .{0,80}? via ([\w. ]+(?:/[\w. ()-]+)*)")
_CLIQUE = re.compile(r"NCCL INFO MNNVL 1 cliqueId [0-9a-f]+ cliqueSize (\d{1,6})\b")
_NVLS = re.compile(r"NCCL INFO (?:NVLS comm |Connected NVLS tree)")
_RDMA = frozenset(("IB", "RoCE", "EFA", "Slingshot", "gIB", "UCX"))
"""Networks, by their common names, whose adapters can reach GPU memory themselves."""
_PROVIDERS = {"efa": "EFA", "cxi": "Slingshot", "tcp": "Socket", "sockets": "Socket"}
"""Common names of networks by how libfabric's providers begin."""


class NcclLog(msgspec.Struct, frozen=True):
    """What the log that NCCL wrote on one node says of its version, the network and the channels between GPUs.

    ``transports`` has every channel, within the node and to others; ``networks`` what NCCL chose between nodes.
    None or empty: the log does not say. ``read_nccl_log`` and ``parse_nccl_log`` make it. Three properties sum it
    up. ``direct`` says whether adapters reach GPU memory by themselves: True if at least one channel does so, else
    False; None: no channel is known to go over an adapter for RDMA. ``network`` is a text that names the network
    between nodes, ``IB``, ``RoCE``, ``EFA``, ``Slingshot``, ``Socket`` or a plug-in's name; several are sorted and
    joined by " and "; empty: not known. ``sockets`` is True if data between nodes goes through TCP, and False if
    not, or if that is not known.
    """

    version: str | None = None
    """NCCL's own release, ``2.21.5``."""
    cuda: str | None = None
    """The release of CUDA that NCCL was built with, ``12.4``."""
    networks: tuple[str, ...] = ()
    """As NCCL calls them: ``IB``, ``IBext_v8``, ``Socket``, ``AWS Libfabric``."""
    adapters: dict[str, str] = {}  # msgspec copies it
    """``IB``, ``RoCE`` or ``uRoCE`` by the adapter's name, without its port."""
    provider: str | None = None
    """Libfabric's, below the OFI plug-in: ``efa``, or ``tcp;ofi_rxm`` where there is none."""
    transports: dict[str, int] = {}
    """Number of channels by kind, such as ``NET/IB/GDRDMA`` or ``SHM``."""
    clique: int | None = None
    """How many GPUs NVLink joins, on whichever nodes, in the largest communicator of this rank."""

    @property
    def direct(self) -> bool | None:
        """Whether NCCL's adapters on this node read and write GPU memory themselves (GPUDirect RDMA).

        True where at least one channel does, else False. None where no channel is known to go over an adapter
        for RDMA: InfiniBand, RoCE, EFA or Slingshot.
        """
        if any(name.startswith("NET/") and name.endswith("/GDRDMA") for name in self.transports):
            return True
        return False if {self._common_name(name) for name in self._channels} & _RDMA else None

    @property
    def network(self) -> str:
        """The network between nodes that NCCL chose: ``IB``, ``RoCE``, ``EFA``, ``Slingshot``, ``Socket`` or a
        plug-in's name.

        ``IB`` becomes ``RoCE`` where all adapters that the log names are RoCE. Where the log names no choice, the
        channels tell. Several are sorted and joined by " and "; empty: the log names none.
        """
        return " and ".join(sorted({self._common_name(name) for name in self.networks or self._channels}))

    @property
    def sockets(self) -> bool:
        """Whether NCCL's data between nodes goes through TCP, by its own choice or below a plug-in; False: no, or
        not known.

        The channels decide. Where there are none to other nodes, the network that was chosen does, and the answer
        is False if NVLink reaches other nodes.
        """
        if not self._channels and "P2P/MNNVL" in self.transports:
            return False
        return "Socket" in {self._common_name(name) for name in self._channels or self.networks}

    @property
    def _channels(self) -> tuple[str, ...]:
        """The networks of the channels to other nodes, by NCCL's names, such as ``IBext_v8``, in the order of the
        log.

        There is one for each kind of channel, so that a name may come twice, with GPUDirect RDMA and without. Empty: no
        such channels.
        """
        return tuple(name.split("/")[1] for name in self.transports if name.startswith("NET/"))

    def _common_name(self, name: str) -> str:
        """Return the common name, such as ``IB``, ``RoCE``, ``EFA`` or ``Socket``, for NCCL's ``name`` of a network.

        A name that is none of these comes back as it is.
        """
        if name.startswith(("IB", "NCCL RDMA Plugin")) or (name in ("gIB", "UCX") and self.adapters):
            # NCCL calls RoCE ``IB`` as well; the adapters tell which it is.
            return "RoCE" if self.adapters and set(self.adapters.values()) <= {"RoCE", "uRoCE"} else "IB"
        if "Libfabric" in name or name.startswith("OFI"):
            of_providers = (known for start, known in _PROVIDERS.items() if (self.provider or "").startswith(start))
            return next(of_providers, name)
        return "Socket" if name == "FastSocket" else name  # Google's plug-in for TCP


def read_nccl_log(file: Path) -> NcclLog | None:
    """Return what the log of NCCL in ``file`` says, of its first 16 MiB; bytes that are not UTF-8 do no harm.

    None where the file is missing or cannot be read, or no line of it says anything that is kept.
    """
    try:
        text = read_plain(file, MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    found = parse_nccl_log(text.splitlines())
    return None if found == NcclLog() else found


def parse_nccl_log(lines: Iterable[str]) -> NcclLog:
    """Return what the lines of a log of NCCL say; fields where they say nothing are None or empty.

    Lines that are not NCCL's, cut or garbled are passed over. Of several versions the first counts, of several
    providers the last, of cliques the largest; names beyond a limit are left out. The words are the same from NCCL
    2.19 to 2.30, but for lists of adapters; a line may have a time stamp, a launcher's prefix or another line in it::

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
        if _USING.search(line) and len(adapters) < _MOST_NAMES:
            adapters |= dict(_ADAPTER.findall(line)[:_MOST_NAMES])
        if found := _PROVIDER.search(line):
            provider = found[1][:40]
        if found := _TRANSPORT.search(line):
            name = _transport(found[1])
            # The log is any program's output: it must not fill the memory with names.
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
    """Return the names of the InfiniBand or RoCE adapters that channels go through, by lines of NCCL's log.

    They have no port, ``mlx5_0``, and come in the order of first use, each once; of a channel through two joined
    ports both are named. Empty where the log does not tell.
    """
    devices: list[str] = []
    numbers: dict[int, None] = {}
    for raw_line in lines:
        line = raw_line[:_LINE]
        if _USING.search(line):
            devices = _DEVICE.findall(line)[:_MOST_NAMES]
        if (found := _CHANNEL.search(line)) and len(numbers) < _MOST_NAMES:
            numbers[int(found[1])] = None
    # A channel has the device's place in the list; a number in the list may be that of a port.
    used = (_ADAPTER.findall(devices[number]) for number in numbers if number < len(devices))
    return tuple(dict.fromkeys(name for name, _ in chain.from_iterable(used)))


def _transport(path: str) -> str:
    """Return the kind of a channel without its numbers, from ``path``, which NCCL logs behind "via".

    ``NET/IB/GDRDMA`` for ``NET/IB/0/GDRDMA``, ``SHM`` for ``SHM/direct/direct``, ``P2P/CUMEM`` for
    ``P2P/CUMEM/read``. Of any other path it is what is before the second slash. It has at most 60 characters.
    """
    parts = path.partition(" comm ")[0].strip().split("/")
    if parts[0] == "NET":
        direct = "/GDRDMA" if any(part.startswith("GDRDMA") for part in parts[2:]) else ""  # also "GDRDMA(PCI)"
        return f"NET/{parts[1] if len(parts) > 1 else '?'}{direct}"[:60]
    return (parts[0] if parts[0] == "SHM" else "/".join(parts[:2]))[:60]
