"""What the looks of ``llmb-run health`` ask of a node's tools and the files of its kernel, and make of the answers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmb_train.health import looks


class Tools:
    """What tools of a node say, by the first of their words: a text, or a pair with why they do not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path, **said: str | tuple[None, str]) -> None:
        self.said, self.asked = said, list[str]()
        monkeypatch.setattr(looks, "_tool", self)
        monkeypatch.setattr(looks, "ROOT", root)
        monkeypatch.setattr(looks.time, "time", lambda: 1_800_000_000.0)

    def __call__(self, *command: str, seconds: float = 0) -> tuple[str | None, str | None]:
        self.asked.append(" ".join(command))
        said = self.said.get(command[0].replace("-", "_"), (None, None))
        return said if isinstance(said, tuple) else (said, None)


def test_lines_of_the_kernels_log_count_for_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/uptime").write_text("100000.00 1.00")
    journal = "1799913600.0 n1 kernel: NVRM: old\n1799913600.6 n1 kernel: NVRM: new\n1799999990.0 n1 kernel: usb 1\n"
    tools = Tools(monkeypatch, tmp_path, journalctl=journal)
    assert looks.kernel_log() == {"missing": None, "lines": [[86399, "NVRM: new"]]}
    tools.said = {
        "journalctl": "-- No entries --",
        "dmesg": "[13600.000000] Xid old\n[13600.600000] Xid new\n[ 9.0] x\n",
    }
    assert looks.kernel_log() == {"missing": None, "lines": [[86399, "Xid new"]]}
    tools.said = {"dmesg": (None, "dmesg ended with 1")}
    assert looks.kernel_log() == {"missing": "dmesg ended with 1", "lines": []}
    tools.said = {"dmesg": "".join(f"[99999.0] Xid {number} {'x' * 400}\n" for number in range(401))}
    lines = looks.kernel_log()["lines"]
    assert (len(lines), lines[0][1][:6], len(lines[0][1])) == (400, "Xid 1 ", 300)


def test_what_is_asked_of_a_node_without_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = Tools(monkeypatch, tmp_path)
    folders = {"folders": {"workload": str(tmp_path), "images": "/i"}, "written": ["workload"]}
    monkeypatch.setattr(looks, "folder", lambda path, written=False: (path, written))
    calls = looks.calls(folders)
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
        **{"idle_disabled": 0, "numa_balancing": None, "numa_nodes": None, "cmdline": "", "virtual": True},
        **{"page_size": os.sysconf("SC_PAGE_SIZE"), "first_outgoing_port": None, "peermem": False},
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
    assert found == {
        **{"os": "Rocky 9", "ofed": "24.10", "enroot": "4.1.2", "starts": ["good"]},
        "enroot_settings": {
            "ENROOT_DATA_PATH": f"{tmp_path}/x/y",
            "NCCL_IB_HCA": "mlx5",
            "MELLANOX_VISIBLE_DEVICES": "none",
        },
    }
