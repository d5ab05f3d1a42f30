"""What a node's kernel reports in files (names, CPUs, memory, driver, network adapters), and where NCCL says which
network it chose. Starts on Python 3.6.
"""

import os
import platform
import re
import socket
from pathlib import Path
from typing import Any, Dict, List, Mapping, MutableMapping, Optional, Sequence, Tuple

DRIVER_FILE = Path("/proc/driver/nvidia/version")
_MOST_ADAPTERS = 256
"""A host of virtual machines lists their adapters, too."""
_MOST_BYTES = 1 << 20


def node_name(environ: Mapping[str, str]) -> str:
    """Return this node's name: as Slurm has it in ``environ`` (SLURMD_NODENAME), else the host's.

    ``environ`` are environment variables. An empty SLURMD_NODENAME counts as none.
    """
    return environ.get("SLURMD_NODENAME") or socket.gethostname()


def facts(environ: Mapping[str, str], root: Path = Path("/")) -> Dict[str, Any]:
    """Return what the kernel says of this node: names, CPU, its memory (GiB), NVIDIA driver, network adapters.

    By ``host``, ``kernel`` (its release), ``architecture``, ``cpu`` (its model), ``cpus`` (their number),
    ``memory_gib``, ``driver`` (its version) and ``adapters`` (as ``adapters`` and ``slingshot`` return them). A value
    is None where there is nothing to read. ``environ`` are environment variables, for the host's name. ``root`` is
    the folder that has ``proc`` and ``sys``.
    """
    memory = re.search(r"^MemTotal:\s*(\d+) kB", read_text(root / "proc/meminfo") or "", re.MULTILINE)
    return {
        "host": node_name(environ),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu": cpu_model(read_text(root / "proc/cpuinfo") or ""),
        "cpus": os.cpu_count(),
        "memory_gib": round(int(memory.group(1)) / (1 << 20), 1) if memory else None,
        "driver": driver_version(root / DRIVER_FILE.relative_to("/")),
        "adapters": adapters(root / "sys/class/infiniband") + slingshot(root / "sys/class/cxi"),
    }


def cpu_model(cpuinfo: str) -> Optional[str]:
    """Return the CPU's model name from the text of ``/proc/cpuinfo``; on Arm the core's part number (``0xd4f``).

    That of the first core, cut to 120 characters. None where the text has neither.
    """
    found = re.search(r"^(?:model name|CPU part)\s*: *(.+)$", cpuinfo, re.MULTILINE)
    return found.group(1).strip()[:120] if found else None


def driver_version(path: Path) -> Optional[str]:
    """Return the version of the loaded NVIDIA driver, by the driver's own file ``path``, which containers see too.

    None where there is no driver, or the file does not say.
    """
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", read_text(path) or "")
    return found.group(1) if found else None


def adapters(root: Path) -> List[Dict[str, Any]]:
    """Return the InfiniBand, RoCE and EFA adapters in ``root`` (``/sys/class/infiniband``), a dict for each port.

    Sorted by ``name``, which is as in ``ports``; empty: there is none. ``rate_gbps`` is the link's present rate in
    Gbit/s, ``state`` the logical one (``ACTIVE``, ``DOWN``); ``type``, ``firmware`` and ``layer`` are the kernel's
    texts. What cannot be read is None.
    """
    found = []
    for name, adapter, port in ports(root):
        rate = re.match(r"\d+(?:\.\d+)?", read_text(port / "rate") or "")
        found.append(
            {
                "name": name,
                "type": read_text(adapter / "hca_type"),
                "firmware": read_text(adapter / "fw_ver"),
                "layer": read_text(port / "link_layer"),
                "state": (read_text(port / "state") or "").rpartition(":")[2].strip() or None,  # of "4: ACTIVE"
                "rate_gbps": float(rate.group()) if rate else None,
            }
        )
    return found


def slingshot(root: Path) -> List[Dict[str, Any]]:
    """Return the Slingshot adapters in ``root`` (``/sys/class/cxi``) in the way of ``adapters``, sorted by ``name``.

    ``layer`` is ``Slingshot``; ``state`` (``ACTIVE``, ``DOWN``) and ``rate_gbps`` are those of the adapter's network
    interface, and None where it has none. ``type`` and ``firmware`` are None. Those that an adapter offers to virtual
    machines are left out. Empty: there is none.
    """
    found = []
    for name in sorted_names(root)[:_MOST_ADAPTERS]:
        device = root / name / "device"
        if _is_virtual(device):
            continue
        interface = device / "net" / next(iter(sorted_names(device / "net")), "none")
        state, speed = read_text(interface / "operstate"), read_text(interface / "speed")
        found.append(
            {
                "name": name,
                "type": None,
                "firmware": None,
                "layer": "Slingshot",
                "state": {"up": "ACTIVE", "down": "DOWN"}.get(state or ""),
                "rate_gbps": float(speed) / 1000 if speed and speed.isdigit() else None,
            }
        )
    return found


def _is_virtual(device: Path) -> bool:
    """Return whether ``device``, an adapter's PCI device, is one that an adapter offers to virtual machines."""
    return (device / "physfn").exists()


def ports(root: Path) -> List[Tuple[str, Path, Path]]:
    """Return (name, adapter's folder, port's folder) of each port of the network adapters in ``root``, sorted.

    ``root`` is a folder such as ``/sys/class/infiniband``. Sorted by adapter, then by port, as text. A name is
    ``mlx5_0``, or ``mlx5_0:1`` where the adapter has several ports. At most 256 adapters, and 4 ports of each; ports
    that a host keeps for virtual machines are left out while they are not active. Empty where there is no adapter.
    """
    found = []
    for name in sorted_names(root)[:_MOST_ADAPTERS]:
        numbers = sorted_names(root / name / "ports")
        is_virtual = _is_virtual(root / name / "device")
        for number in numbers[:4]:
            title = name if len(numbers) == 1 else f"{name}:{number}"
            port = root / name / "ports" / number
            if not is_virtual or "ACTIVE" in (read_text(port / "state") or ""):
                found.append((title, root / name, port))
    return found


def sorted_names(folder: Path) -> List[str]:
    """Return the names in ``folder``, of files and folders, sorted as text.

    Empty where it is missing or cannot be read.
    """
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def read_text(path: Path) -> Optional[str]:
    """Return the text of a file, its first MiB, without surrounding white space; None where empty or unreadable.

    What is not UTF-8 is replaced.
    """
    try:
        with path.open("rb") as stream:
            return stream.read(_MOST_BYTES).decode("utf-8", "replace").strip() or None
    except OSError:
        return None


SUBSYSTEMS = "INIT,ENV"
"""INIT has the version, the adapters and the transport of every channel ("via NET/IB/0/GDRDMA"); ENV what it read of
the environment. Both are printed while communicators are made and connected; a collective that runs prints in COLL
(NCCL 2.26 to 2.29: src/transport/net.cc, p2p.cc, shm.cc, nvls.cc, init.cc; the level is compared before anything is
formatted, src/include/debug.h: INFO)."""


_OF_THE_NETWORK = re.compile(
    r"NCCL version|Using network|NET/g?IB\w* : Using|Selected [Pp]rovider| via |MNNVL|NVLS comm|Connected NVLS"
)
"""Releases of aws-ofi-nccl differ in the P."""


def of_the_network(lines: Sequence[str]) -> List[str]:
    """Return those of NCCL's log ``lines`` that say which network it chose, in order; empty: none does."""
    return [line for line in lines if _OF_THE_NETWORK.search(line)]


def log_nccl(environ: MutableMapping[str, str], file: Path) -> Optional[str]:
    """Set variables in ``environ`` that make NCCL, when it is first used, write its log to ``file``; return None.

    Where the job sets one of them itself (``NCCL_DEBUG``, ``NCCL_DEBUG_FILE`` or ``NCCL_DEBUG_SUBSYS``), nothing is
    changed, and the result is a clause that says so. Processes that share ``environ`` share the file. The file is
    not made here; its folder must exist by then.
    """
    taken = [name for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS") if environ.get(name)]
    if taken:
        return f"{', '.join(taken)} set by the job: NCCL's messages go where that says"
    environ["NCCL_DEBUG"] = "INFO"
    environ["NCCL_DEBUG_SUBSYS"] = SUBSYSTEMS
    environ["NCCL_DEBUG_FILE"] = str(file).replace("%", "%%")  # %h and %p are filled in by NCCL
    return None
