"""What the kernel reports about a node: names, CPUs, memory, driver, network adapters. Reads files only."""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DRIVER_FILE = Path("/proc/driver/nvidia/version")
_ADAPTERS = Path("/sys/class/infiniband")
_MOST_ADAPTERS = 64
_MOST_BYTES = 1 << 20


def node_name(environ: Mapping[str, str]) -> str:
    """The node's name as Slurm calls it, else the host's."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname()


def facts(environ: Mapping[str, str]) -> dict[str, Any]:
    """Everything of this module, null where there is nothing to read."""
    memory = re.search(r"^MemTotal:\s*(\d+) kB", _read(Path("/proc/meminfo")) or "", re.MULTILINE)
    return {
        "host": node_name(environ),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu": cpu_model(_read(Path("/proc/cpuinfo")) or ""),
        "cpus": os.cpu_count(),
        "memory_gib": round(int(memory[1]) / (1 << 20), 1) if memory else None,
        "driver": driver_version(DRIVER_FILE),
        "adapters": adapters(_ADAPTERS),
    }


def cpu_model(cpuinfo: str) -> str | None:
    """The model in ``/proc/cpuinfo``; Arm gives numbers, of which the part names the core."""
    found = re.search(r"^(?:model name|CPU part)\s*: *(.+)$", cpuinfo, re.MULTILINE)
    return found[1].strip()[:120] if found else None


def driver_version(path: Path) -> str | None:
    """Version of the loaded NVIDIA driver, which a container sees through ``/proc``."""
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", _read(path) or "")
    return found.group(1) if found else None


def adapters(root: Path) -> list[dict[str, Any]]:
    """The InfiniBand, RoCE and EFA adapters of ``/sys/class/infiniband``, one entry for each port.

    ``rate_gbps`` is that of the link as it is, ``state`` the logical one (``ACTIVE``, ``DOWN``).
    """
    try:
        names = sorted(path.name for path in root.iterdir())
    except OSError:
        return []
    found = []
    for name in names[:_MOST_ADAPTERS]:
        try:
            ports = sorted(path.name for path in (root / name / "ports").iterdir())
        except OSError:
            ports = []
        for port in ports[:4]:
            folder = root / name / "ports" / port
            rate = re.match(r"\d+(?:\.\d+)?", _read(folder / "rate") or "")
            found.append(
                {
                    "name": name if len(ports) == 1 else f"{name}:{port}",
                    "type": _read(root / name / "hca_type"),
                    "firmware": _read(root / name / "fw_ver"),
                    "layer": _read(folder / "link_layer"),
                    "state": _word(_read(folder / "state")),
                    "rate_gbps": float(rate.group()) if rate else None,
                }
            )
    return found


def _word(text: str | None) -> str | None:
    """``ACTIVE`` of ``4: ACTIVE``."""
    return text.rpartition(":")[2].strip() if text else None


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as stream:
            return stream.read(_MOST_BYTES).decode("utf-8", "replace").strip() or None
    except OSError:
        return None
