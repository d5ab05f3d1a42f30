"""Each fact of a node has its place: in nvidia-smi's XML, in the kernel's files, in the account that a rank writes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from llmb_train.nodes import gpus, machine
from llmb_train.nodes.ask import NoAnswer
from llmb_train.nodes.record import LAST_LOAD_STEP, LOAD_STEP, Node
from llmb_train.ranks import Rank
from support.texts import Texts

FIRST = Rank(rank=8, local_rank=0, world_size=16, master_addr="n1", master_port=21000)

# nvidia-smi


def parsed(*texts: tuple[str, str]) -> dict[str, Any]:
    """What is made of a GPU that has these texts, each at its path, and nothing else."""
    body = ""
    for path, text in texts:
        *above, name = path.split("/")
        opened = "".join(f"<{tag}>" for tag in above)
        closed = "".join(f"</{tag}>" for tag in reversed(above))
        body += f"{opened}<{name}>{text}</{name}>{closed}"
    found: dict[str, Any] = gpus.parse(f"<nvidia_smi_log><gpu>{body}</gpu></nvidia_smi_log>".encode())
    (gpu,) = found["gpus"]
    return dict(gpu)


PLACES = {
    "memory_mib": ["fb_memory_usage/total"],
    "sm_mhz": ["clocks/sm_clock"],
    "memory_mhz": ["clocks/mem_clock"],
    "max_sm_mhz": ["max_clocks/sm_clock"],
    "application_mhz": ["applications_clocks/graphics_clock"],
    "power_w": ["gpu_power_readings/instant_power_draw", "gpu_power_readings/power_draw", "power_readings/power_draw"],
    "power_limit_w": [
        "gpu_power_readings/current_power_limit",
        "gpu_power_readings/power_limit",
        "power_readings/enforced_power_limit",
        "power_readings/power_limit",
    ],
    "boost_mhz": ["max_customer_boost_clocks/graphics_clock"],
    "default_application_mhz": ["default_applications_clocks/graphics_clock"],
    "utilization": ["utilization/gpu_util"],
    "default_power_limit_w": ["gpu_power_readings/default_power_limit", "power_readings/default_power_limit"],
    "temperature_c": ["temperature/gpu_temp"],
    "temperature_margin_c": ["temperature/gpu_temp_tlimit"],
    "temperature_limit_c": ["temperature/gpu_temp_max_gpu_threshold", "temperature/gpu_temp_slow_threshold"],
    "memory_temperature_c": ["temperature/memory_temp"],
    "memory_temperature_limit_c": ["temperature/gpu_temp_max_mem_threshold"],
    "pcie_generation": ["pci/pci_gpu_link_info/pcie_gen/current_link_gen"],
    "pcie_generation_max": ["pci/pci_gpu_link_info/pcie_gen/max_link_gen"],
    "uncorrected_rows": ["remapped_rows/remapped_row_unc"],
}


@pytest.mark.parametrize(("name", "path"), [(name, path) for name, paths in PLACES.items() for path in paths])
def test_a_number_is_read_wherever_a_driver_has_had_it(name: str, path: str) -> None:
    assert parsed((path, "12.5 W"))[name] == 12.5


@pytest.mark.parametrize("name", ["power_w", "power_limit_w"])
def test_of_several_places_the_newest_counts(name: str) -> None:
    newest, *older = PLACES[name]
    assert parsed(*((path, "1 W") for path in older), (newest, "2 W"))[name] == 2
    assert parsed((newest, "N/A"), (older[-1], "1 W"))[name] == 1


@pytest.mark.parametrize(
    ("text", "number"),
    [("-5 C", -5), ("1.25 W", 1.25), ("W 5", None), (" 7 ", 7), (".5", None), ("123456789012345", 123456789012345)],
)
def test_a_number_stands_before_its_unit(text: str, number: float | None) -> None:
    assert parsed(("temperature/gpu_temp", text))["temperature_c"] == number


def test_uncorrectable_errors_are_summed_over_memories_and_drivers() -> None:
    new = "ecc_errors/volatile/{}_uncorrectable"
    gpu = parsed((new.format("dram"), "2"), (new.format("sram"), "N/A"))
    assert gpu["uncorrected"] == 2
    text = "<dram_uncorrectable>2</dram_uncorrectable><sram_uncorrectable_parity>3</sram_uncorrectable_parity>"
    assert parsed(("ecc_errors/volatile", text + "<dram_correctable>9</dram_correctable>"))["uncorrected"] == 5
    assert parsed(("ecc_errors/volatile/double_bit/total", "4"))["uncorrected"] == 4
    assert parsed(("ecc_errors/aggregate/dram_uncorrectable", "4"))["uncorrected"] is None


REASONS = {
    "sw_power_cap": "sw_power_cap",
    "sw_therm_slowdown": "sw_thermal_slowdown",
    "hw_therm_slowdown": "hw_thermal_slowdown",
    "hw_power_brake": "hw_power_brake_slowdown",
    "sync_boost": "sync_boost",
}


@pytest.mark.parametrize("counter", REASONS)
def test_what_slowed_the_clocks_is_counted_under_the_name_of_the_reason(counter: str) -> None:
    path = f"clocks_event_reasons_counters/clocks_event_reasons_counters_{counter}"
    assert parsed((path, "17 us"))["throttled_us"] == {REASONS[counter]: 17}


def test_reasons_are_those_that_are_active_now() -> None:
    path = "clocks_event_reasons/clocks_event_reason_{}"
    found = parsed(
        (path.format("sw_power_cap"), " Active "),
        (path.format("sync_boost"), "Not Active"),
        (path.format("gpu_idle"), "Active"),
        (path.format("x" * 70), "Active"),
    )
    assert found["throttle"] == ["sw_power_cap", "x" * 60]


def test_texts_are_cut_and_nothing_is_null() -> None:
    assert parsed(("product_name", f" {'x' * 130} "))["product"] == "x" * 120
    for nothing in ("None", "[N/A]", "Requested functionality has been deprecated"):
        assert parsed(("serial", nothing))["serial"] is None


def test_without_an_answer_everything_is_null_and_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, float]] = []

    def ask(command: object, seconds: float) -> bytes:
        asked.append((command, seconds))
        raise NoAnswer("nvidia-smi is not installed")

    monkeypatch.setattr(gpus, "run_program", ask)
    found = gpus.snapshot(3.0)
    assert found.pop("time") == pytest.approx(time.time(), abs=600)
    assert found == {"missing": "nvidia-smi is not installed", "driver": None, "cuda": None, "gpus": []}
    assert asked == [(("nvidia-smi", "-q", "-x"), 3.0)]


def test_an_answer_has_its_time_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = b"<nvidia_smi_log><driver_version>580.1</driver_version><cuda_version>13.0</cuda_version></nvidia_smi_log>"
    monkeypatch.setattr(gpus, "run_program", lambda command, seconds: answer)
    found = gpus.snapshot()
    assert list(found) == ["time", "missing", "driver", "cuda", "gpus"]
    assert [found[name] for name in ("missing", "driver", "cuda", "gpus")] == [None, "580.1", "13.0", []]


# The kernel

FILES = {
    "/proc/meminfo": "MemFree: 1 kB\nMemTotal:        3300000 kB",
    "/proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC 9654  \n",
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
    "GCC version:  gcc version 12.3.0",
}


def facts(monkeypatch: pytest.MonkeyPatch, files: dict[str, str], **environ: str) -> dict[str, Any]:
    monkeypatch.setattr(machine, "read_text", lambda path: files.get(str(path)))
    return machine.facts(environ)


def test_what_the_kernel_says_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (("platform", "release", "6.8.0"), ("platform", "machine", "aarch64")):
        monkeypatch.setattr(f"{module}.{name}", lambda value=value: value)
    monkeypatch.setattr("os.cpu_count", lambda: 72)
    monkeypatch.setattr(machine, "adapters", lambda root: [str(root)])
    assert facts(monkeypatch, FILES, SLURMD_NODENAME="n2") == {
        "host": "n2",
        "kernel": "6.8.0",
        "architecture": "aarch64",
        "cpu": "AMD EPYC 9654",
        "cpus": 72,
        "memory_gib": 3.1,
        "driver": "580.95.05",
        "adapters": ["/sys/class/infiniband"],
    }


def test_where_there_is_nothing_to_read_there_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    found = facts(monkeypatch, {})
    assert [found[name] for name in ("host", "cpu", "memory_gib", "driver")] == ["here", None, None, None]


def test_the_cpus_name_is_cut_and_on_arm_a_number() -> None:
    assert machine.cpu_model(f"model name : {'x' * 130}") == "x" * 120
    assert machine.cpu_model("processor\t: 0\nCPU part\t: 0xd4f\n") == "0xd4f"


def test_the_drivers_version_is_that_of_its_kernel_module(tmp_path: Path) -> None:
    """A container sees its file, too. What an open module writes there is in ``FILES``."""
    file = tmp_path / "version"
    assert machine.driver_version(file) is None
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 02:03:46 2026\n")
    assert machine.driver_version(file) == "570.124.06"


def adapter(root: Path, name: str, *ports: str) -> None:
    for port in ports:
        folder = root / name / "ports" / port
        folder.mkdir(parents=True)
        (folder / "rate").write_text("200 Gb/sec\n")


def test_no_machine_has_more_adapters_than_are_read(tmp_path: Path) -> None:
    for number in range(257):
        adapter(tmp_path, f"mlx5_{number:03}", "1")
    assert [port["name"] for port in machine.adapters(tmp_path)] == [f"mlx5_{number:03}" for number in range(256)]


def test_four_ports_of_an_adapter_are_read(tmp_path: Path) -> None:
    adapter(tmp_path, "a", *"12345")
    (tmp_path / "b").mkdir()
    assert [port["name"] for port in machine.adapters(tmp_path)] == ["a:1", "a:2", "a:3", "a:4"]


def test_idle_adapters_of_virtual_machines_are_no_adapters_of_the_host(tmp_path: Path) -> None:
    for name in "abc":
        adapter(tmp_path, name, "1")
    for name, state in (("b", "4: ACTIVE"), ("c", "1: DOWN")):
        (tmp_path / name / "device/physfn").mkdir(parents=True)
        (tmp_path / name / "ports/1/state").write_text(state)
    assert [port["name"] for port in machine.adapters(tmp_path)] == ["a", "b"]


def test_slingshot_adapters_are_no_infiniband(tmp_path: Path) -> None:
    for name, state, speed in (("cxi0", "up", "200000"), ("cxi1", "down", "-1")):
        interface = tmp_path / "sys/class/cxi" / name / "device/net" / f"hsn{name[-1]}"
        interface.mkdir(parents=True)
        (interface / "operstate").write_text(state)
        (interface / "speed").write_text(speed)
    (tmp_path / "sys/class/cxi/cxi2/device/physfn").mkdir(parents=True)
    found = machine.facts({}, tmp_path)["adapters"]
    assert [(port["name"], port["layer"], port["state"], port["rate_gbps"]) for port in found] == [
        ("cxi0", "Slingshot", "ACTIVE", 200.0),
        ("cxi1", "Slingshot", "DOWN", None),
    ]
    (tmp_path / "sys/class/cxi/cxi0/device/net/hsn0/operstate").unlink()
    assert machine.slingshot(tmp_path / "sys/class/cxi")[0]["state"] is None


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    adapter(tmp_path, "a", "1")
    (tmp_path / "a" / "fw_ver").write_bytes(b"28\xff\n")
    assert [port["firmware"] for port in machine.adapters(tmp_path)] == ["28\ufffd"]


# What a rank writes


GPU = {**gpus.changing({"time": 1.0, "gpus": [parsed(("clocks/sm_clock", "1755 MHz"))]})["gpus"][0], "uuid": "GPU-1"}
CHANGING = {name: value for name, value in GPU.items() if name != "uuid"}


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """Looks take no time; the seconds that each one had."""
    had: list[float | None] = []

    def snapshot(seconds: float | None = None) -> dict[str, Any]:
        had.append(seconds)
        return {"look": len(had), "time": 1.0, "gpus": [GPU]}

    monkeypatch.setattr(gpus, "snapshot", snapshot)
    monkeypatch.setattr("llmb_train.nodes.record._LOOK_GAP", 0.0)
    monkeypatch.setattr(machine, "facts", lambda environ: {"host": environ.get("SLURMD_NODENAME")})
    return had


def started(folder: Path, environ: dict[str, str] | None = None) -> Node:
    """The account of a node's first rank, with the looks at its start."""
    node = Node(folder, FIRST, {} if environ is None else environ)
    node.start(uses_nccl=False)
    node.wait()
    return node


def written(folder: Path) -> dict[str, Any]:
    (file,) = (folder / "nodes").glob("*.json")
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def test_an_account_says_whose_it_is_and_has_every_look(looks: list[float | None], tmp_path: Path) -> None:
    environ = {"SLURMD_NODENAME": "n2", "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"}
    (tmp_path / "nodes").mkdir()
    earlier = tmp_path / "nodes" / "n2.nccl.log"
    earlier.write_text("of the start before")
    node = Node(tmp_path, FIRST, environ)
    node.start(uses_nccl=True)
    node.wait()
    assert not earlier.exists()
    node.after_step(LOAD_STEP)
    node.wait()
    node.finish()
    found = written(tmp_path)
    assert found.pop("started") == pytest.approx(time.time(), abs=600)
    assert found == {
        "schema": 1,
        "job": "7",
        "restart": 2,
        "rank": 8,
        "host": "n2",
        "nccl_missing": None,
        "machine": {"host": "n2"},
        "before": {"look": 1, "time": 1.0, "gpus": [GPU]},
        "load": {"look": 2, "time": 1.0, "gpus": [GPU]},
        "samples": [{"time": 1.0, "gpus": [CHANGING]}] * 8,
        "after": {"look": 10, "time": 1.0, "gpus": [GPU]},
    }
    assert looks == [None] * 9 + [4.0], "a job that was told to end has no ten seconds"


@pytest.mark.parametrize("number", [4, 6, 9, 10])
def test_other_steps_begin_no_look(looks: list[float | None], tmp_path: Path, number: int) -> None:
    node = Node(tmp_path, FIRST, {})
    node.after_step(number)
    node.wait()
    assert looks == []


def test_looks_under_load_end_before_iterations_are_measured(looks: list[float | None], tmp_path: Path) -> None:
    node = started(tmp_path)
    node.after_step(LAST_LOAD_STEP)
    node.after_step(LOAD_STEP)
    node.wait()
    assert len(written(tmp_path)["samples"]) == 1


def test_a_tool_that_does_not_answer_is_not_asked_again(looks, tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "snapshot", lambda: {"time": 1.0, "missing": "it hangs", "gpus": []})
    node = started(tmp_path)
    node.after_step(LOAD_STEP)
    node.wait()
    assert len(written(tmp_path)["samples"]) == 1


def test_of_a_look_under_load_what_changes_is_kept() -> None:
    gpu = parsed(("clocks/sm_clock", "1755 MHz"), ("utilization/gpu_util", "98 %"), ("uuid", "GPU-1"))
    (kept,) = gpus.changing({"time": 5.0, "gpus": [gpu]})["gpus"]
    assert (kept["sm_mhz"], kept["utilization"], "uuid" in kept) == (1755.0, 98.0, False)


CLUSTER = "5cd30dc8-0000-0000-0000-000000000388"


@pytest.mark.parametrize(
    ("cluster", "clique", "domain"),
    [
        (CLUSTER, "388", f"{CLUSTER}.388"),
        ("00000000-0000-0000-0000-000000000000", "0", None),
        ("N/A", "N/A", None),
        ("", "", None),
    ],
)
@pytest.mark.parametrize(
    "names", [("clusterUuid", "cliqueId"), ("cluster_uuid", "clique_id"), ("ClusterUUID", "CliqueId")]
)
def test_the_domain_of_nvlink_over_nodes(names: tuple[str, str], cluster: str, clique: str, domain: str | None) -> None:
    texts = "".join(f"<{name}>{text}</{name}>" for name, text in zip(names, (cluster, clique), strict=True))
    assert parsed(("fabric", texts))["domain"] == domain


@pytest.mark.parametrize(("count", "restart"), [("3", 3), ("", 0), ("x", 0), ("\u00b2", 0), ("-1", 0)])
def test_outside_of_slurm_there_is_no_job_and_no_restart(looks, tmp_path, count, restart, texts: Texts):
    started(tmp_path, {"SLURM_RESTART_COUNT": count})
    found = written(tmp_path)
    assert (found["job"], found["restart"]) == (None, restart)
    texts(found["nccl_missing"])


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("n-1.x_2", "n-1.x_2"),
        ("a/b c", "a_b_c"),
        ("..n", "n"),
        ("../../n3", "_.._n3"),
        ("...", "node"),
        ("n" * 101, "n" * 100),
    ],
)
def test_a_file_is_named_after_its_node(looks: list[float | None], tmp_path: Path, name: str, file: str) -> None:
    started(tmp_path, {"SLURMD_NODENAME": name})
    assert [path.name for path in (tmp_path / "nodes").iterdir()] == [f"{file}.json"]
    assert written(tmp_path)["host"] == name


def test_a_number_that_json_does_not_have_leaves_the_account_as_it_was(looks, tmp_path, monkeypatch):
    node = started(tmp_path)
    monkeypatch.setattr(gpus, "snapshot", lambda: {"power_w": float("nan"), "time": 1.0, "gpus": []})
    node.after_step(LOAD_STEP)
    node.wait()
    assert "load" not in written(tmp_path)
