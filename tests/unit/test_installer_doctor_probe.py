"""What doctor's job says of a node, from what health looks at, and of the container on it (``health/probe.sh``), with
programs of the test's own; and limits as Slurm prints them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from llmb_common.health.one_node import parse_values
from llmb_common.planning.site.cluster import cluster_config
from llmb_install.commands.doctor_facts import workloads_here
from llmb_train.nodes.looks import _unpack_folder

ROOT = Path(__file__).resolve().parents[2]

PROBE = ROOT / "common" / "llmb_common" / "health" / "probe.sh"


def probed(tmp_path: Path, tools: dict[str, str], folder: str, seconds: int = 1) -> dict[str, list[str]]:
    """What the probe says in a container with these programs of its own, by the text of their scripts."""
    for name, text in tools.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    command = ["bash", str(PROBE), str(seconds), folder]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    return parse_values(done.stdout.splitlines())


@pytest.mark.parametrize(
    ("setting", "folder"),
    [
        ("{tmp}/images", "{tmp}"),
        ("$HOME/x", "{tmp}"),
        ('"{tmp}/${{UID}}/x"', "{tmp}"),
        ("/nowhere/x", "/"),
        (None, "{tmp}"),
    ],
)
def test_where_enroot_unpacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str | None, folder: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = {} if setting is None else {"ENROOT_DATA_PATH": setting.format(tmp=tmp_path)}
    assert _unpack_folder(settings).rstrip("/") == folder.format(tmp=tmp_path).rstrip("/")


def test_the_container_says_whether_it_sees_the_runs(tmp_path: Path) -> None:
    said = probed(tmp_path, {"stat": 'echo "$3 of $4"', "nvidia-smi": "exit 124"}, str(tmp_path))
    assert said == {"started": ["yes"], "root": ["%T of /"], "workloads": ["seen", "written"], "hung": ["nvidia-smi"]}
    assert (tmp_path / "image").read_bytes() == b""


def test_gpus_are_counted_in_the_container(tmp_path: Path) -> None:
    said = probed(tmp_path, {"nvidia-smi": "echo 'GPU 0: H100'; echo 'GPU 1: H100'"}, "")
    assert said["gpu"] == ["0", "1"]
    assert said["started"] == ["yes"]
    assert "workloads" not in said


def test_a_tool_that_hangs_is_named_and_one_that_fails_is_not(tmp_path: Path) -> None:
    assert probed(tmp_path, {"nvidia-smi": "trap '' TERM; sleep 60 & wait; wait"}, "")["hung"] == ["nvidia-smi"]
    assert "hung" not in probed(tmp_path, {"nvidia-smi": "echo no driver; exit 9"}, "/nowhere")


def test_what_the_recipes_ask_for() -> None:
    found = {w.name: w for w in workloads_here(ROOT, cluster_config(gpu_type="h100"))}
    assert (found["pretrain_grok1"].shortest, found["pretrain_grok1"].longest) == (30, 45)
    assert found["pretrain_llama3.1"].saving > found["pretrain_nemotron4"].saving > 120
    assert found["pretrain_grok1"].images[0].startswith("nvidia+nemo+26.02")
    one = cluster_config(gpu_type="h100", workloads=("pretrain_grok1",))
    assert [workload.name for workload in workloads_here(ROOT, one)] == ["pretrain_grok1"]
    slow = cluster_config(gpu_type="h100", workloads=("pretrain_grok1",), checkpoint_gb_per_second=1)
    assert workloads_here(ROOT, slow)[0].saving > found["pretrain_grok1"].saving


def test_what_a_node_says_line_by_line() -> None:
    assert parse_values(["gpu=a", "nothing", "empty=", "gpu= b = c "]) == {"gpu": ["a", "b = c"]}
    assert parse_values([]) == {}
