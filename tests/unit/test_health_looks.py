"""The looks of ``llmb-run health``: what they ask of a node's tools and kernel files; and the whole program on made-up
nodes of three kinds, from tools to verdicts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from llmb_common.health.ask import PYTHONS, node_command, parse_frames
from llmb_common.health.verdicts import judge
from llmb_common.nodes.facts import Imex, KernelLog, Links, NodeFacts, Nvlink
from llmb_common.nodes.reading import read_facts
from llmb_train.nodes import looks, machine
from support.health_fleets import needs
from support.node_trees import NodeTrees


class Tools:
    """What tools of a node say, by the first of their words: a text, or a pair with why they do not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path, **said: str | tuple[None, str]) -> None:
        self.said, self.asked = said, list[str]()
        monkeypatch.setattr(looks, "_tool_output", self)
        monkeypatch.setattr(looks, "ROOT", root)
        monkeypatch.setattr(looks.time, "time", lambda: 1_800_000_000.0)

    def __call__(self, *command: str, seconds: float = 0) -> tuple[str | None, str | None]:
        self.asked.append(" ".join(command))
        said = self.said.get(command[0].replace("-", "_"), (None, None))
        return said if isinstance(said, tuple) else (said, None)


def test_lines_of_the_kernels_log_count_for_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/uptime").write_text("100000.00 1.00")
    old, new = "NVRM: Xid (PCI:0000:02:00): 48", "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:7]"
    journal = f"1799913600.0 n1 kernel: {old}\n1799913600.6 n1 kernel: {new}\n1799999990.0 n1 kernel: usb 1\n"
    tools = Tools(monkeypatch, tmp_path, journalctl=journal)
    assert looks.kernel_log() == {"missing": None, "lines": [[86399, new]]}
    tools.said = {
        "journalctl": "-- No entries --",
        "dmesg": f"[13600.000000] {old}\n[13600.600000] {new}\n[ 9.0] x\n",
    }
    assert looks.kernel_log() == {"missing": None, "lines": [[86399, new]]}
    tools.said = {"dmesg": (None, "dmesg ended with 1")}
    assert looks.kernel_log() == {"missing": "dmesg ended with 1", "lines": []}
    tools.said = {"dmesg": "".join(f"[99999.0] {number} oom-kill {'x' * 400}\n" for number in range(401))}
    lines = looks.kernel_log()["lines"]
    assert (len(lines), lines[0][1][:6], len(lines[0][1])) == (400, "1 oom-", 300)


def test_a_message_of_several_lines_has_the_time_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "ROOT", tmp_path)
    monkeypatch.setattr(looks.time, "time", lambda: 1.8e9)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/uptime").write_text("100000.00 1.00")
    rest = "                NVRM: (PCI ID: 10de:2330) installed in this system has\n    NVRM: fallen off the bus\n"
    tools = Tools(
        monkeypatch, tmp_path, journalctl=f"1799999990.0 n1 kernel: NVRM: The NVIDIA GPU 0000:b3:00.0\n{rest}"
    )
    assert looks.kernel_log()["lines"] == [[10, "NVRM: fallen off the bus"]]
    tools.said = {"dmesg": f"[99990.000000] NVRM: The NVIDIA GPU 0000:b3:00.0\n{rest}"}
    assert looks.kernel_log()["lines"] == [[10, "NVRM: fallen off the bus"]]
    tools.said = {"dmesg": f"[    9.000000] NVRM: The NVIDIA GPU 0000:b3:00.0\n{rest}"}
    assert looks.kernel_log()["lines"] == []


def test_what_is_asked_of_a_node_without_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = Tools(monkeypatch, tmp_path)
    folders = {"folders": {"workload": str(tmp_path), "images": "/i"}, "written": ["workload"]}
    monkeypatch.setattr(looks, "folder", lambda path, written=False: (path, written))
    calls = looks.probes_for(folders)
    assert [calls.pop(f"folder {what}")[0]() for what in ("images", "workload")] == [
        ("/i", False),
        (str(tmp_path), True),
    ]
    for name in ("machine", "gpus", "ports", "stuck", "system"):
        calls.pop(name)
    said = {name: function() for name, (function, _) in calls.items()}
    assert tools.asked == [
        "nvidia-smi nvlink -s",
        "nvidia-smi nvlink -e",
        "nvidia-imex-ctl -N",
        "systemctl show -p LoadState,ActiveState nvidia-fabricmanager",
        "timedatectl show -p NTPSynchronized",
        "journalctl -k --since=-24h -o short-unix --no-pager",
        "dmesg",
        "enroot version",
        "enroot info",
    ]
    assert said["imex"] == {"missing": None, "domain": None, "channels": 0}
    assert said["services"] == {"fabric_manager": {}, "time": {}}


def test_how_the_kernel_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "sys/module/nvidia/parameters/NVreg_RegistryDwords": "PeerMappingOverride = 1;",
        "sys/module/gdrdrv/refcnt": "0",
        "proc/cpuinfo": "flags\t\t: fpu hypervisor vme",
        "proc/self/limits": "Max locked memory         65536     65536     bytes",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    Tools(monkeypatch, tmp_path)
    assert looks.system() == {
        **{"memlock": 65536, "nofile": None, "shm_size": None, "shm_free": None, "governors": [], "idle_states": None},
        **{
            "idle_disabled": 0,
            "numa_balancing": None,
            "numa_nodes": None,
            "cmdline": "",
            "pod": False,
            "virtual": True,
        },
        **{"pod": False, "page_size": os.sysconf("SC_PAGE_SIZE"), "first_outgoing_port": None, "peermem": False},
        **{"open_driver": False, "peer_mapping": True, "gdrcopy": True, "clock": 1_800_000_000.0},
    }


def test_nvlinks_by_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links = "\t Link 9: 50 GB/s\nGPU 0: x\n\t Link 0: 50 GB/s\n\t Link 1: 50 GB/s\n"
    links += "\t Link 2: <inactive>\n\t Link 3: 25 GB/s\n"
    Tools(monkeypatch, tmp_path, nvidia_smi=links + "GPU 1: x\n\t Effective BER: 1e-9\n\t Symbol BER: 15e-255\n")
    assert looks.nvlink() == {
        "missing": None,
        "gpus": [{"up": 3, "down": [2], "rates": ["25 GB/s", "50 GB/s"]}, {"up": 0, "down": [], "rates": []}],
        "errors": ["1e-9"],
    }
    Tools(monkeypatch, tmp_path, nvidia_smi=(None, "it failed"))
    assert looks.nvlink() == {"missing": "it failed", "gpus": [], "errors": []}


def test_the_software_of_a_node_and_how_enroot_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "etc/os-release": "NAME=x\nPRETTY_NAME=Rocky 9\n",
        "sys/module/mlx5_core/version": "24.10",
        "etc/enroot/enroot.conf": f"ENROOT_DATA_PATH {tmp_path}/x/y\n#ENROOT_A no\n",
        "etc/enroot/environ.d/10.env": "NCCL_IB_HCA=mlx5\nMELLANOX_VISIBLE_DEVICES=none\nOTHER=x\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    Tools(monkeypatch, tmp_path, enroot=" 4.1.2\n", good="", bad=(None, "it failed"))
    found = looks.software(["good", "bad", "missing"])
    unpacked = found.pop("unpacked")
    assert (unpacked["path"], unpacked["there"]) == (str(tmp_path), True)
    assert found.pop("roots") is None, "this Enroot has not answered to that"
    assert found == {
        **{"os": "Rocky 9", "ofed": "24.10", "enroot": "4.1.2", "enroot_missing": None, "starts": ["good"]},
        "enroot_settings": {
            "ENROOT_DATA_PATH": f"{tmp_path}/x/y",
            "NCCL_IB_HCA": "mlx5",
            "MELLANOX_VISIBLE_DEVICES": "none",
        },
    }


def test_where_enroot_keeps_roots_is_asked_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = f"Enroot version: 4.1.2\n\nEnvironment variables:\n  ENROOT_CACHE_PATH=/c\n  ENROOT_DATA_PATH={tmp_path}\n"
    Tools(monkeypatch, tmp_path, enroot=said, stat="nfs\n")
    roots = looks.software()["roots"]
    assert (roots["path"], roots["there"], roots["kind"], roots["free"] > 0) == (str(tmp_path), True, "nfs", True)
    assert roots["problem"] is None
    said = said.replace(str(tmp_path), "/proc")  # root, too, cannot write there
    Tools(monkeypatch, tmp_path, enroot=said, stat="proc\n")
    assert looks.software()["roots"]["problem"]


def test_an_enroot_that_cannot_make_its_folders_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enroot = tmp_path / "enroot"
    enroot.write_text("#!/bin/sh\nmkdir -p /proc/enroot && echo 4.1.2\n")
    enroot.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = looks.software()
    assert found["enroot"] is None
    assert "mkdir" in found["enroot_missing"]
    enroot.unlink()
    assert looks.software()["enroot_missing"] is None


def test_a_pod_of_kubernetes_is_known_by_its_hosts_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Tools(monkeypatch, tmp_path)
    (tmp_path / "etc").mkdir()
    hosts = tmp_path / "etc/hosts"
    for first, pod in (
        ("# Kubernetes-managed hosts file.\n", True),
        ("# Kubernetes-managed hosts file (host network).\n", True),
        ("127.0.0.1 localhost\n", False),
    ):
        hosts.write_text(f"{first}::1 localhost\n")
        assert looks.system()["pod"] is pod


NOW = 99_990
"""Seconds since these nodes started, a little before they are asked."""


def ill_h100(trees: NodeTrees) -> None:
    ill = {
        "sram": "1",
        "failure": "Yes",
        "mig": "Enabled",
        "thermal": "Active",
        "limit": "500.00 W",
    }
    trees.smi(
        "h2",
        "h100",
        {
            3: ill,
            4: {"fabric": "In Progress", "temperature": "85 C", "persistence": "Disabled"},
            5: {"used": "9000 MiB"},
        },
    )
    trees.tool("h2", "nvidia-smi nvlink -s", "".join(f"GPU {n}: x\n\t Link 0: <inactive>\n" for n in range(8)))
    trees.tool("h2", "nvidia-smi nvlink -e", "GPU 0: x\n\t Link 0: Effective BER: 1e-9\n")
    trees.tool("h2", "systemctl", "LoadState=loaded\nActiveState=failed\n")
    trees.tool("h2", "timedatectl", "NTPSynchronized=no\n")
    trees.adapter("h2", "mlx5_1", state="1: DOWN", phys="3: Disabled")
    trees.adapter("h2", "mlx5_2", rate="200 Gb/sec (4X HDR)")
    lines = [
        "NVRM: Xid (PCI:0000:02:00): 79, pid='<unknown>', GPU has fallen off the bus.",
        "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 23003, Fatal, Link 48 ingress",
        *["mlx5_core 0000:5e:00.0 ib3: lost carrier"] * 5,
        "mlx5_core 0000:5e:00.0: poll_health:955:(pid 0): device's health compromised - reached miss count",
        "EXT4-fs (nvme0n1p2): Remounting filesystem read-only",
    ]
    trees.tool("h2", "dmesg", "".join(f"[{NOW}.000000] {line}\n" for line in lines))
    limits = "Max open files  1024  4096  files\nMax locked memory  65536  65536  bytes\n"
    trees.write("h2", "proc/self/limits", limits)
    trees.write("h2", "proc/driver/nvidia/params", "RegistryDwords: \n")
    trees.write("h2", "proc/sys/kernel/numa_balancing", "1\n")
    trees.write("h2", "proc/sys/net/ipv4/ip_local_port_range", "1024 65535\n")
    trees.write("h2", "proc/meminfo", "MemTotal:       1056781500 kB\n")
    trees.write(
        "h2",
        "proc/77/status",
        "Name:\tnvidia-smi\nState:\tD (disk sleep)\nVmSize:\t 1 kB\nvoluntary_ctxt_switches:\t7\n",
    )
    trees.write("h2", "sys/devices/system/node/node1/cpulist", "\n")
    (trees.folder / "h2" / "tools" / "enroot").unlink()


def ill_b200(trees: NodeTrees) -> None:
    trees.smi("b2", "b200", {0: {"product": "NVIDIA B300 SXM6 AC"}}, count=7)
    for number in (6, 7):
        for name in ("state", "phys_state"):
            trees.write("b2", f"sys/class/infiniband/mlx5_{number}/ports/1/{name}", "1: DOWN")
    trees.tool("b2", "dmesg", f"[{NOW}.000000][    T7] mce: [Hardware Error]: Uncorrected error, CPU 3\n")


def ill_gb200(trees: NodeTrees) -> None:
    trees.tool("g2", "nvidia-imex-ctl -N", "Domain State: DOWN\n")
    (trees.folder / "g2" / "root" / "dev" / "nvidia-caps-imex-channels" / "channel0").unlink()
    links = "".join(f"\t Link {link}: 50 GB/s\n" for link in range(17))
    trees.tool("g2", "nvidia-smi nvlink -s", "".join(f"GPU {n}: x\n{links}" for n in range(4)))
    trees.smi("g2", "gb200", {1: {"pending": "Yes", "compute": "Prohibited"}})


def looked_at(trees: NodeTrees, folder: Path) -> dict[str, NodeFacts]:
    """The program's own answers, of all nodes at once: each takes four seconds, in which counters may grow."""
    spec = {"stage": "look", "folders": {"workload": str(folder)}, "written": ["workload"]}
    names = sorted(path.name for path in trees.folder.iterdir() if (path / "root").is_dir())
    started = [
        subprocess.Popen(
            node_command(spec, (sys.executable, *PYTHONS)),  # whose lines tests/mutate.py sees
            env={**os.environ, **trees.variables, "SLURMD_NODENAME": name},
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    said = parse_frames("".join(process.communicate(timeout=600)[0] for process in started))
    return {name: read_facts(name, said[name]) for name in names}


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, NodeFacts]:
    """Three nodes of each kind, the second of which is ill; divided ones, ``m1`` and ``m2``; a healthy one, ``g9``."""
    trees = NodeTrees(tmp_path_factory.mktemp("trees"))
    for kind, letter, ill, _ in CASES:
        for number in (1, 2, 3):
            trees.node(f"{letter}{number}", kind)
        ill(trees)
    for name, used in DIVIDED.items():
        trees.node(name)
        trees.smi(name, changes={n: {"mig": "Enabled", "utilization": "N/A", "used": used} for n in range(8)})
        answer = trees.folder / name / "tools" / "nvidia-smi -q -x"
        answer.write_text(answer.read_text().replace("</mig_mode>", PARTS))
        dark = "".join(f"\t Link {link}: <inactive>\n" for link in range(18))
        trees.tool(name, "nvidia-smi nvlink -s", "".join(f"GPU {n}: x\n{dark}" for n in range(8)))
    trees.node("g9", "gb200")
    trees.write("g9", "sys/devices/system/cpu/cpu0/cpuidle/state2/disable", "1\n")
    trees.write("g9", "dev/gdrdrv", "")
    return looked_at(trees, tmp_path_factory.mktemp("workload"))


CASES: list[tuple[str, str, Callable[[NodeTrees], None], set[str]]] = [
    (
        "h100",
        "h",
        ill_h100,
        {"memory-errors", "memory-rows", "gpu-modes", "gpu-in-use", "throttled", "different-gpu", "fabric", "nvlink"}
        | {"fabric-manager", "ports-up", "port-rate", "xid", "sxid", "link-flaps", "adapter-log", "kernel-log"}
        | {"memlock", "ibgda", "memory", "numa", "stuck", "runtime"},
    ),
    ("b200", "b", ill_b200, {"fewer-gpus", "different-gpu", "ports-up", "kernel-log"}),
    ("gb200", "g", ill_gb200, {"imex", "nvlink", "gpu-modes"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "letter", "_", "expected"), CASES, ids=[case[0] for case in CASES])
def test_each_fault_of_a_node_of_its_kind_is_found(facts, kind, letter, _, expected):
    names = [f"{letter}{number}" for number in (1, 2, 3)]
    wanted = needs(kind, dispatcher="deepep") if kind != "gb200" else needs(kind)
    found = {item.node: item for item in judge(names, {name: facts[name] for name in names}, wanted)}
    assert {name: item.status for name, item in found.items()} == {names[0]: "ok", names[1]: "fail", names[2]: "ok"}
    assert {it.check for it in found[names[1]].remarks if it.level == "fail"} == expected
    if kind == "h100":
        warned = {it.check for it in found["h2"].remarks if it.level == "warn"}
        assert {"persistence", "nvlink-errors", "power-limit", "time", "open-files", "ports", "cpu-speed"} <= warned


PARTS = """<pending_mig>Enabled</pending_mig></mig_mode><mig_devices><mig_device><index>0</index>
<gpu_instance_id>1</gpu_instance_id><compute_instance_id>0</compute_instance_id>
<fb_memory_usage><total>40448 MiB</total><used>20298 MiB</used></fb_memory_usage></mig_device></mig_devices>"""

DIVIDED = {"m1": "20400 MiB", "m2": "N/A"}
"""What their drivers give as the memory used: that of the whole, or nothing."""


@pytest.mark.parametrize("name", DIVIDED)
def test_gpus_that_are_divided_say_that_and_nothing_that_follows_from_it(
    facts: dict[str, NodeFacts], name: str
) -> None:
    """Whether it works is not known, and NVLinks are down."""
    (found,) = judge([name], {name: facts[name]}, needs())
    assert [(it.level, it.check, it.text) for it in found.remarks] == [("fail", "gpu-modes", "GPU 0-7: divided (MIG)")]


def test_both_looks_at_adapters_call_a_port_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees = NodeTrees(tmp_path / "trees")
    trees.node("n1")
    trees.write("n1", "sys/class/infiniband/mlx5_0/ports/2/phys_state", "2: Polling")
    root = trees.folder / "n1" / "root"
    monkeypatch.setattr(looks, "ROOT", root)
    names = [port["name"] for port in looks._adapter_ports()]
    assert {"mlx5_0:1", "mlx5_0:2", "mlx5_1"} <= set(names)
    assert names == [adapter["name"] for adapter in machine.adapters(root / "sys/class/infiniband")]


def test_what_a_healthy_node_says_to_the_letter(facts: dict[str, NodeFacts]) -> None:
    healthy = facts["g9"]
    assert healthy.nvlink == Nvlink(gpus=(Links(up=18, rates=("50 GB/s",)),) * 4)
    assert healthy.imex == Imex(domain="UP", channels=1)
    assert healthy.services == {"fabric_manager": {"LoadState": "not-found"}, "time": {"NTPSynchronized": "yes"}}
    system = msgspec.to_builtins(healthy.system)
    assert 0 < system.pop("shm_free") <= system.pop("shm_size")
    assert abs(system.pop("clock") - healthy.begun) < 600
    assert system == {
        **{"memlock": None, "nofile": 1048576, "governors": ("performance",), "idle_states": 4, "idle_disabled": 1},
        **{"numa_balancing": "0", "numa_nodes": 2, "cmdline": "ro iommu=pt", "pod": False, "virtual": False},
        **{"first_outgoing_port": 32768, "peermem": True, "open_driver": True, "peer_mapping": True, "gdrcopy": True},
        "page_size": os.sysconf("SC_PAGE_SIZE"),
    }
    assert (healthy.software.os, healthy.software.enroot) == ("Ubuntu 24.04.3 LTS", "4.1.2")
    assert healthy.software.enroot_settings == {"ENROOT_REMAP_ROOT": "yes"}
    assert [(port.name, port.phys, port.gids) for port in healthy.ports][:2] == [
        ("mlx5_0", "LinkUp", ("IB/RoCE v1", "RoCE v2")),
        ("mlx5_1", "LinkUp", ("IB/RoCE v1", "RoCE v2")),
    ]
    assert (healthy.kernel, healthy.stuck, healthy.errors, healthy.hung) == (KernelLog(), (), {}, {})
