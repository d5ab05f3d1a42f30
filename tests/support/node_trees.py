"""Made-up nodes for ``llmb-run health``: what their tools print, and the files of the kernel, in a folder for each.

``NodeTrees(folder).node("gpu1", "h100")`` makes a healthy one. Its programs are in ``folder/bin``, to be first on PATH;
``variables`` say where the files are. ``write``, ``smi`` and ``tool`` make it ill; ``hang`` lets a tool never answer.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from support.gpu_nodes import smi_answer

KINDS: dict[str, dict[str, Any]] = {
    "h100": {"gpus": 8, "product": "NVIDIA H100 80GB HBM3", "links": 18, "rate": "26.562 GB/s", "adapters": 8},
    "b200": {"gpus": 8, "product": "NVIDIA B200", "links": 18, "rate": "50 GB/s", "adapters": 8},
    "gb200": {"gpus": 4, "product": "NVIDIA GB200", "links": 18, "rate": "50 GB/s", "adapters": 4},
}

_TOOL = """#!/bin/bash
here=$LLMB_TEST_TREES/${SLURMD_NODENAME:-$(hostname)}
name=${0##*/}
if [[ -e $here/hang/$name ]]; then trap '' TERM; sleep 600 & wait; wait; fi
answer=$here/tools/$name$(printf ' %s' "$@" | tr -d /)
if [[ -e $answer ]]; then exec cat "$answer"; fi
if [[ -e $here/tools/$name ]]; then exec cat "$here/tools/$name"; fi
echo "no answer to $name $*" >&2
exit 1
"""
_OWN = "initrd=x ip=x BOOTIF=x resume=x hostname=x rd.luks.uuid=x rd.lvm.lv=x ds=x"
TOOLS = ("nvidia-smi", "nvidia-imex-ctl", "systemctl", "timedatectl", "journalctl", "dmesg", "enroot")


class NodeTrees:
    """Nodes below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        for name in TOOLS:
            (folder / "bin" / name).write_text(_TOOL)
            (folder / "bin" / name).chmod(0o755)

    @property
    def variables(self) -> dict[str, str]:
        """For whoever asks the nodes."""
        root = str(self.folder / "{node}" / "root")
        return {
            "LLMB_TEST_TREES": str(self.folder),
            "LLMB_HEALTH_ROOT": root,
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }

    def node(self, name: str, kind: str = "h100") -> None:
        """A healthy node."""
        known = KINDS[kind]
        self.smi(name, kind, {})
        links = "".join(f"\t Link {link}: {known['rate']}\n" for link in range(known["links"]))
        text = "".join(f"GPU {n}: {known['product']} (UUID: GPU-{n})\n{links}" for n in range(known["gpus"]))
        self.tool(name, "nvidia-smi nvlink -s", text)
        self.tool(name, "nvidia-smi nvlink -e", "GPU 0: x\n\t Link 0: Effective BER: 15e-255\n")
        self.tool(name, "nvidia-imex-ctl -N", "Domain State: UP\n")
        self.tool(
            name, "systemctl", "LoadState=loaded\nActiveState=active\n" if kind != "gb200" else "LoadState=not-found\n"
        )
        self.tool(name, "timedatectl", "NTPSynchronized=yes\n")
        self.tool(name, "journalctl", "-- No entries --\n")
        self.tool(name, "dmesg", "[    1.000000] Linux version 5.15\n")
        self.tool(name, "enroot", "4.1.2\n")
        for number in range(known["adapters"]):
            self.adapter(name, f"mlx5_{number}")
        self.adapter(name, "mlx5_30", type="MT41692", state="1: DOWN", layer="Ethernet")
        self.write(name, "proc/meminfo", "MemTotal:       2113563000 kB\n")
        self.write(name, "proc/cpuinfo", "model name : Intel(R) Xeon(R) Platinum 8480C\nflags : fpu vme\n")
        self.write(name, "proc/uptime", "100000.00 1.00\n")
        self.write(name, "proc/cmdline", f"BOOT_IMAGE=/v root=UUID={name} {_OWN} ro iommu=pt\n")
        self.write(
            name,
            "proc/self/limits",
            "Max open files  1048576  1048576  files\nMax locked memory  unlimited unlimited\n",
        )
        self.write(name, "proc/sys/kernel/numa_balancing", "0\n")
        self.write(name, "proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n")
        self.write(
            name,
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  R\n",
        )
        self.write(name, "proc/driver/nvidia/params", 'RegistryDwords: "PeerMappingOverride=1;"\n')
        self.write(name, "sys/module/nvidia_peermem/refcnt", "0\n")
        self.write(name, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n")
        for state in range(4):
            self.write(name, f"sys/devices/system/cpu/cpu0/cpuidle/state{state}/disable", "0\n")
        for number in range(2):
            self.write(name, f"sys/devices/system/node/node{number}/cpulist", f"{number}\n")
        self.write(name, "etc/os-release", 'PRETTY_NAME="Ubuntu 24.04.3 LTS"\n')
        self.write(name, "etc/enroot/enroot.conf", "ENROOT_REMAP_ROOT yes\n")
        self.write(name, "dev/nvidia-caps-imex-channels/channel0", "")
        shm = self.folder / name / "root" / "dev" / "shm"
        shm.mkdir(parents=True, exist_ok=True)

    def adapter(self, node: str, name: str, **changes: str) -> None:
        """An adapter with one port."""
        known = {"type": "MT4129", "firmware": "28.39.3560", "layer": "InfiniBand", "state": "4: ACTIVE"}
        known |= {"phys": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", **changes}
        folder = f"sys/class/infiniband/{name}"
        self.write(node, f"{folder}/hca_type", known["type"])
        self.write(node, f"{folder}/fw_ver", known["firmware"])
        self.write(node, f"{folder}/board_id", "MT_0000000838")
        for file, value in (("link_layer", "layer"), ("state", "state"), ("phys_state", "phys"), ("rate", "rate")):
            self.write(node, f"{folder}/ports/1/{file}", known[value])
        self.write(node, f"{folder}/ports/1/gid_attrs/types/0", "IB/RoCE v1")
        self.write(node, f"{folder}/ports/1/gid_attrs/types/1", "RoCE v2")
        for counter in ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors"):
            self.write(node, f"{folder}/ports/1/counters/{counter}", "0")

    def smi(self, node: str, kind: str = "h100", changes: dict[int, dict[str, str]] | None = None, **more: Any) -> None:
        """What ``nvidia-smi -q -x`` answers: ``changes`` by GPU, as ``smi_answer`` takes them."""
        known = KINDS[kind]
        usual = {"product": known["product"], "utilization": "0 %", "sm": "345 MHz"}
        if kind == "gb200":
            usual |= {"cluster": "6d1f6e5a-0000-4000-8000-000000000001", "clique": "1"}
        every = {number: {**usual, **(changes or {}).get(number, {})} for number in range(known["gpus"])}
        self.tool(node, "nvidia-smi -q -x", smi_answer(more.pop("count", known["gpus"]), changes=every, **more))

    def tool(self, node: str, command: str, says: str) -> None:
        """What a command prints there."""
        file = self.folder / node / "tools" / command.replace("/", "")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(says)

    def write(self, node: str, path: str, text: str) -> None:
        """A file of the node's."""
        file = self.folder / node / "root" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def hang(self, node: str, tool: str) -> None:
        """From now on the tool never answers there."""
        file = self.folder / node / "hang" / tool
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
