"""What doctor's job (``doctor/probe.sh``) says on a node, with programs of the test's own; and limits as Slurm prints
them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llmb_install.doctor.facts import limit_minutes
from llmb_install.doctor.node import parse_node

ROOT = Path(__file__).resolve().parents[2]

PROBE = ROOT / "installer" / "llmb_install" / "doctor" / "probe.sh"


def probed(tmp_path: Path, tools: dict[str, str], *arguments: str, seconds: int = 1) -> dict[str, list[str]]:
    """What the probe says on a node with these programs of its own, by the text of their scripts."""
    for name, text in tools.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    where, *rest = arguments
    command = ["bash", str(PROBE), where, str(seconds), *rest]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    return parse_node(done.stdout)


def test_a_tool_that_hangs_is_named_and_the_others_answer(tmp_path: Path) -> None:
    (tmp_path / "probe").mkdir()
    where = ("node", str(tmp_path), str(tmp_path), str(tmp_path / "probe"), "pyxis")
    said = probed(tmp_path, {"nvidia-smi": "trap '' TERM; sleep 60 & wait; wait", "enroot": "echo 4.1.2"}, *where)
    assert said["hung"] == ["nvidia-smi", "nvidia-smi"]
    assert "gpu" not in said
    assert said["enroot"] == ["4.1.2"]
    assert said["workloads"] == ["seen", "written"]
    assert Path(said["data"][0]) == tmp_path, "Enroot's folder in the home folder does not exist yet"
    assert len(said["data_free"][0].split()) == 2
    assert "clock" in said


def test_a_folder_that_the_node_does_not_see(tmp_path: Path) -> None:
    said = probed(
        tmp_path, {}, "node", "/nowhere", "/nowhere", "/nowhere/else", "enroot", "/nowhere/python", sys.executable
    )
    assert {"install", "images", "workloads", "data", "hung"}.isdisjoint(said)
    assert said["python"] == [sys.executable]


SMI = """case $1 in
  --query*) echo 'NVIDIA H100, 575.51, 81559 MiB'; echo 'NVIDIA H100, 575.51, 81559 MiB' ;;
  -L) exit 1 ;;
  *) echo '| NVIDIA-SMI 575.51  Driver Version: 575.51  CUDA Version: 12.9 |' ;;
esac"""
NODE = {
    **{"hostname": "echo n7", "uname": "echo x86_64:$1", "date": "echo clock:$1", "stat": 'echo "$3 of $4"'},
    "nvidia-smi": SMI,
}


def test_a_healthy_node_says_what_it_is(tmp_path: Path) -> None:
    said = probed(tmp_path, NODE, "node", str(tmp_path), str(tmp_path), "", "pyxis", "false", "true")
    limit = said.pop("memlock")
    assert len(limit) == 1
    said.pop("infiniband", None)
    said.pop("peermem", None)
    assert said == {
        "host": ["n7"],
        "arch": ["x86_64:-m"],
        "install": ["yes"],
        "images": ["yes"],
        "data": [str(tmp_path)],
        "data_free": [f"%a %S of {tmp_path}"],
        "gpu": ["NVIDIA H100, 575.51, 81559 MiB"] * 2,
        "cuda": ["12.9"],
        "python": ["true"],
        "clock": ["clock:+%s.%N"],
    }


def test_a_tool_that_fails_has_not_hung(tmp_path: Path) -> None:
    where = ("node", str(tmp_path), str(tmp_path), "", "enroot")
    said = probed(tmp_path, {"nvidia-smi": "echo no driver; exit 9"}, *where)
    assert said["gpu"] == ["no driver"]
    assert "hung" not in said
    assert "data" not in said, "only Pyxis unpacks where Enroot's own settings say"
    for status in ("sleep 60", "exit 124", "exit 137"):
        assert probed(tmp_path, {"nvidia-smi": status}, *where)["hung"] == ["nvidia-smi"] * 2


def test_the_container_says_whether_it_sees_the_runs(tmp_path: Path) -> None:
    said = probed(tmp_path, {"stat": NODE["stat"], "nvidia-smi": "exit 124"}, "image", str(tmp_path))
    assert said == {"started": ["yes"], "root": ["%T of /"], "workloads": ["seen", "written"], "hung": ["nvidia-smi"]}
    assert (tmp_path / "image").read_bytes() == b""


def test_gpus_are_counted_in_the_container(tmp_path: Path) -> None:
    said = probed(tmp_path, {"nvidia-smi": "echo 'GPU 0: H100'; echo 'GPU 1: H100'"}, "image", "")
    assert said["gpu"] == ["0", "1"]
    assert said["started"] == ["yes"]
    assert "workloads" not in said


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("30:00", 30), ("29:59", 29), ("1:00:00", 60), ("2-03:04:05", 3064), ("UNLIMITED", None), ("5", None)],
)
def test_minutes_of_a_limit(text: str, minutes: int | None) -> None:
    assert limit_minutes(text) == minutes
