"""Answers of nvidia-smi, and the accounts that nodes with GPUs leave in a run's folder."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

from llmb_train.nodes import gpus

SMI = """#!/bin/bash
{action}
"""


def put_nvidia_smi(folder: Path, action: str) -> Path:
    """An ``nvidia-smi`` in ``folder`` that does ``action``, in bash."""
    folder.mkdir(exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(SMI.format(action=action))
    program.chmod(0o755)
    return folder


def smi_answer(count: int = 8, *, driver: str = "580.95.05", changes: dict[int, dict[str, str]] | None = None) -> str:
    """What a node of ``count`` H100 answers; ``changes`` are element values by the GPU's index."""
    every = [_gpu(number, (changes or {}).get(number, {})) for number in range(count)]
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n'
        f"<driver_version>{driver}</driver_version><cuda_version>13.0</cuda_version>\n{''.join(every)}</nvidia_smi_log>\n"
    )


def _gpu(number: int, changes: dict[str, str]) -> str:
    values = {
        "product": "NVIDIA H100 80GB HBM3",
        "sm": "1755 MHz",
        "limit": "700.00 W",
        "power": "641.20 W",
        "thermal": "Not Active",
        "hw_therm_us": "0 us",
        "cap_us": "0 us",
        "uncorrectable": "0",
        "vbios": "96.00.89.00.01",
        "width": "16x",
        "fabric": "Completed",
        "clique": "",
        "cluster": "00000000-0000-0000-0000-000000000000",
        "utilization": "99 %",
        "used": "4 MiB",
        "mig": "Disabled",
        "compute": "Default",
        "persistence": "Enabled",
        "pending": "No",
        "failure": "No",
        "sram": "0",
        "temperature": "58 C",
        **changes,
    }
    return f"""<gpu id="00000000:{number:02x}:00.0"><product_name>{values["product"]}</product_name>
<persistence_mode>{values["persistence"]}</persistence_mode><compute_mode>{values["compute"]}</compute_mode>
<mig_mode><current_mig>{values["mig"]}</current_mig></mig_mode><uuid>GPU-{number}</uuid><vbios_version>{values["vbios"]}</vbios_version>
<pci><pci_gpu_link_info><pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>5</current_link_gen></pcie_gen>
<link_widths><max_link_width>16x</max_link_width><current_link_width>{values["width"]}</current_link_width></link_widths>
</pci_gpu_link_info></pci><utilization><gpu_util>{values["utilization"]}</gpu_util></utilization>
<fabric><state>{values["fabric"]}</state><status>Success</status>
<cliqueId>{values["clique"]}</cliqueId><clusterUuid>{values["cluster"]}</clusterUuid></fabric>
<clocks_event_reasons><clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
<clocks_event_reason_hw_thermal_slowdown>{values["thermal"]}</clocks_event_reason_hw_thermal_slowdown>
</clocks_event_reasons>
<clocks_event_reasons_counters>
<clocks_event_reasons_counters_sw_power_cap>{values["cap_us"]}</clocks_event_reasons_counters_sw_power_cap>
<clocks_event_reasons_counters_hw_therm_slowdown>{values["hw_therm_us"]}</clocks_event_reasons_counters_hw_therm_slowdown>
</clocks_event_reasons_counters>
<fb_memory_usage><total>81559 MiB</total><used>{values["used"]}</used></fb_memory_usage>
<remapped_rows><remapped_row_pending>{values["pending"]}</remapped_row_pending>
<remapped_row_failure>{values["failure"]}</remapped_row_failure></remapped_rows>
<ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode>
<ecc_errors><volatile><sram_uncorrectable_secded>{values["sram"]}</sram_uncorrectable_secded>
<dram_uncorrectable>{values["uncorrectable"]}</dram_uncorrectable></volatile></ecc_errors>
<temperature><gpu_temp>{values["temperature"]}</gpu_temp></temperature>
<gpu_power_readings><instant_power_draw>{values["power"]}</instant_power_draw>
<current_power_limit>{values["limit"]}</current_power_limit>
<default_power_limit>700.00 W</default_power_limit></gpu_power_readings>
<clocks><sm_clock>{values["sm"]}</sm_clock></clocks><max_clocks><sm_clock>1980 MHz</sm_clock></max_clocks></gpu>
"""


def snapshot(at: float, answer: str) -> dict[str, Any]:
    """As the ranks write it."""
    return {"time": at, "missing": None, **json.loads(_parsed(answer))}


@functools.cache
def _parsed(answer: str) -> str:
    """In JSON: a site has hundreds of healthy nodes, which all answer the same."""
    return json.dumps(gpus.parse(answer.encode()))


def adapter(name: str, **changes: Any) -> dict[str, Any]:
    """A port of an adapter as the ranks write it."""
    usual = {"type": "MT4129", "firmware": "28.39.3560", "layer": "InfiniBand", "state": "ACTIVE", "rate_gbps": 400.0}
    return {"name": name, **usual, **changes}


def write_node(run: Path, node: str, *, log: str | None = None, **changes: Any) -> Path:
    """``nodes/<node>.json`` of a healthy node of 8 H100 that trained for 1000 s, and its NCCL log."""
    folder = run / "nodes"
    folder.mkdir(exist_ok=True)
    machine = {"kernel": "5.15.0-1063", "cpu": "Intel(R) Xeon(R) Platinum 8480C", "cpus": 224}
    load = changes.get("load") or snapshot(1100.0, smi_answer())
    content = {
        "schema": 1,
        "host": node,
        "started": 1000.0,
        "job": "77",
        "restart": 0,
        "rank": 0,
        "machine": {**machine, "adapters": [adapter("mlx5_0"), adapter("mlx5_1")]},
        "before": snapshot(1000.0, smi_answer()),
        "load": load,
        "samples": [gpus.changing(load)] * 5 if "utilization" in str(load) else [],
        "after": snapshot(2000.0, smi_answer()),
        **changes,
    }
    file = folder / f"{node}.json"
    file.write_text(json.dumps(content))
    if log is not None:
        (folder / f"{node}.nccl.log").write_text(log)
    return file


def on_path(folder: Path) -> str:
    """PATH with ``folder`` first."""
    return f"{folder}{os.pathsep}{os.environ['PATH']}"
