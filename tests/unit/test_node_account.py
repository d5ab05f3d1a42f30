"""What a node writes about itself: once, by its first rank, whatever the machine lacks; and never an error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmb_common.nodes.reading import read_nodes, read_peaks
from llmb_common.runs.timing.iterations import memory_prints, read_log
from llmb_common.runs.timing.log_files import open_log
from llmb_train.nodes import gpus, machine
from llmb_train.nodes.record import LOAD_STEP, Node
from llmb_train.ranks import Rank
from support.gpu_nodes import on_path, put_nvidia_smi
from support.iteration_logs import mbridge_line, memory_print
from support.processes import has_ended, wait_until

FIRST = Rank(rank=8, local_rank=0, world_size=16, master_addr="n1", master_port=21000)
SECOND = Rank(rank=9, local_rank=1, world_size=16, master_addr="n1", master_port=21000)


def job(**more: str) -> dict[str, str]:
    return {"SLURMD_NODENAME": "n2", "SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1", **more}


def account(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "nodes" / "n2.json").read_text())
    return content


def train(run: Path, environ: dict[str, str], rank: Rank = FIRST) -> None:
    """The looks of a training run, without the training."""
    node = Node(run, rank, environ)
    node.start(uses_nccl=True)
    node.wait()
    node.after_step(LOAD_STEP)
    node.finish()


class Cuda:
    """``torch.cuda`` of a rank, and what it was asked."""

    def __init__(self, allocated: int, reserved: int) -> None:
        self.max_memory_allocated = lambda: allocated
        self.max_memory_reserved = lambda: reserved

    def mem_get_info(self) -> tuple[int, int]:
        return 1 << 30, 85 << 30


def test_every_rank_says_what_memory_its_gpu_had_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = []
    for rank, peak in ((FIRST, 60), (SECOND, 70)):
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=Cuda(peak << 30, 75 << 30)))
        node = Node(tmp_path, rank, job())
        node.start(uses_nccl=True)
        nodes.append((node, sys.modules["torch"]))
    for node, torch in nodes:
        monkeypatch.setitem(sys.modules, "torch", torch)
        node.finish()
    (found,) = read_nodes(tmp_path).nodes
    assert [(peak.rank, peak.allocated >> 30, peak.reserved >> 30, peak.device >> 30) for peak in found.peaks] == [
        (8, 60, 75, 85),
        (9, 70, 75, 85),
    ]
    again = Node(tmp_path, FIRST, job(SLURM_RESTART_COUNT="2"))
    again.start(uses_nccl=True)  # a requeued job begins anew
    again.wait()
    assert read_nodes(tmp_path).nodes[0].peaks == ()


def test_a_device_that_does_not_answer_leaves_no_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    train(tmp_path, job())
    assert [path.name for path in (tmp_path / "nodes").iterdir()] == ["n2.json"]


def test_peaks_that_anybody_wrote_are_not_believed(tmp_path: Path) -> None:
    whole = {"rank": 1, "allocated": 5, "reserved": 6, "device": 8, "job": "7", "restart": 0}
    lines = [whole, {**whole, "rank": "x"}, {**whole, "allocated": 7}, {**whole, "job": "8"}, {**whole, "restart": 1}]
    file = tmp_path / "n1.memory.jsonl"
    file.write_text("\n".join(["{", *map(json.dumps, lines)]))
    assert [peak.rank for peak in read_peaks(file, "7", 0)] == [1]
    assert read_peaks(tmp_path / "none", "7", 0) == ()


def test_the_other_ranks_write_nothing(tmp_path: Path) -> None:
    environ = job()
    train(tmp_path, environ, SECOND)
    assert list(tmp_path.iterdir()) == []
    assert environ == job()


def test_a_hanging_tool_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus.snapshot, "__defaults__", (0.2,))
    monkeypatch.setattr("llmb_train.nodes.record._SECONDS_AFTER", 0.2)
    monkeypatch.setenv("PATH", on_path(put_nvidia_smi(tmp_path / "bin", "sleep 600")))
    train(tmp_path, job())
    assert "machine" in account(tmp_path)
    assert "in time" in account(tmp_path)["after"]["missing"]


def test_a_folder_that_takes_nothing_is_no_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nodes").write_text("a file")
    environ = job()
    train(tmp_path, environ)
    train(tmp_path / "missing", environ)
    assert "NCCL_DEBUG" not in environ
    assert capfd.readouterr() == ("", "")


def test_a_look_that_fails_is_no_error(tmp_path, monkeypatch, capfd):
    def broken(*_: object) -> None:
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr(machine, "facts", broken)
    monkeypatch.setattr("llmb_train.nodes.gpus.snapshot", broken)
    train(tmp_path, job())
    assert capfd.readouterr() == ("", "")


def test_nccl_writes_its_own_log(tmp_path: Path) -> None:
    environ = job()
    Node(tmp_path, FIRST, environ).start(uses_nccl=True)
    assert environ["NCCL_DEBUG"] == "INFO"
    assert set(environ["NCCL_DEBUG_SUBSYS"].split(",")) == {"INIT", "ENV"}, "nothing that each collective prints"
    assert environ["NCCL_DEBUG_FILE"] == f"{tmp_path}/nodes/n2.nccl.log"


def test_nccl_does_not_expand_the_path() -> None:
    environ: dict[str, str] = {}
    assert machine.log_nccl(environ, Path("/runs/100%h/x")) is None
    assert environ["NCCL_DEBUG_FILE"] == "/runs/100%%h/x"


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"])
def test_who_traces_nccl_keeps_the_trace(name: str, tmp_path: Path) -> None:
    environ = job(**{name: "WARN"})
    node = Node(tmp_path, FIRST, environ)
    node.start(uses_nccl=True)
    node.wait()
    assert environ == job(**{name: "WARN"})
    assert name in account(tmp_path)["nccl_missing"]


def test_adapters(tmp_path: Path) -> None:
    files = {
        "mlx5_0/fw_ver": "28.39.3560",
        "mlx5_0/hca_type": "MT4129",
        "mlx5_0/ports/1/state": "4: ACTIVE",
        "mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
        "mlx5_0/ports/1/link_layer": "InfiniBand",
        "mlx5_1/ports/1/state": "1: DOWN",
        "mlx5_1/ports/1/rate": "2.5 Gb/sec (1X SDR)",
        "mlx5_1/ports/2/link_layer": "Ethernet",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    first, second, third = machine.adapters(tmp_path)
    assert first == {
        "name": "mlx5_0",
        "type": "MT4129",
        "firmware": "28.39.3560",
        "layer": "InfiniBand",
        "state": "ACTIVE",
        "rate_gbps": 400.0,
    }
    assert (second["name"], second["state"], second["rate_gbps"]) == ("mlx5_1:1", "DOWN", 2.5)
    assert (third["name"], third["layer"], third["state"]) == ("mlx5_1:2", "Ethernet", None)
    assert machine.adapters(tmp_path / "missing") == []


@pytest.mark.parametrize("late", [0.0, 0.3])
def test_a_hanging_tool_ends_with_the_training(tmp_path: Path, late: float) -> None:
    """Whoever asks is a daemon thread: the interpreter does not wait for it. ``late``: seconds between the start of the
    tool and its thread's knowing of it, which a busy machine makes long."""
    tool = put_nvidia_smi(tmp_path / "bin", f"echo $$ > {tmp_path}/pid; exec sleep 600")
    program = (
        "import subprocess, threading, time; from pathlib import Path; from llmb_train.nodes.ask import run_program\n"
        "class Late(subprocess.Popen):\n"
        "    def __init__(self, *words, **options):\n"
        f"        super().__init__(*words, **options); time.sleep({late})\n"
        "subprocess.Popen = Late\n"
        f"threading.Thread(target=run_program, args=(['{tool / 'nvidia-smi'}'], 60), daemon=True).start()\n"
        f"while not Path('{tmp_path}/pid').exists() or not Path('{tmp_path}/pid').read_text(): time.sleep(0.01)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)
    process = int((tmp_path / "pid").read_text())
    wait_until(lambda: has_ended(process), "the end of the tool", timeout=30)


def test_the_memory_of_the_fullest_rank_is_what_megatron_printed_last(tmp_path: Path) -> None:
    """0.6 prints after two iterations: the optimizer's state comes with the first step."""
    first = "".join(memory_print(rank, 1, 40.0 + rank, 50.0) for rank in (0, 8))
    second = memory_print(0, 2, 58.8, 62.5) + memory_print(8, 2, 53.2, 60.0)
    log = mbridge_line(1) + first + mbridge_line(2) + second + mbridge_line(3)
    (tmp_path / "log.out").write_text(log)
    with open_log(tmp_path / "log.out") as file:
        found = read_log(file).memory
    assert found == pytest.approx((58.8e9 / 2**30, 62.5e9 / 2**30, 0, 2))


def test_megatrons_own_loop_prints_mebibytes() -> None:
    line = (
        b"[Rank 0] (after 2 iterations) memory (MB) | allocated: 35293.00 | max allocated: 68149.20 | reserved: "
        b"69000.00 | max reserved: 70730.00"
    )
    found = memory_prints(line)
    assert found == pytest.approx((68149.2 / 1024, 70730 / 1024, 0, 1))
    assert memory_prints(line[:80]) is None, "half a line"
    assert memory_prints(b"Theoretical memory footprints: weight and optimizer=1234.00 MB") is None
