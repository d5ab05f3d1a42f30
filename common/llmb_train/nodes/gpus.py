"""What ``nvidia-smi -q -x`` reports about a node's GPUs.

The XML, and not ``--query-gpu``: one field that a driver does not know fails that query as a whole, and names have
changed (535 renamed ``clocks_throttle_reasons`` to ``clocks_event_reasons``, 550 or so added the counters, 580 says
"Requested functionality has been deprecated" for application clocks). An element that is missing here is a null. Starts
on Python 3.6.
"""

import re
import time
from typing import Any, Dict, List, Optional, Sequence
from xml.etree import ElementTree

from llmb_train.nodes.ask import NoAnswer, run_program

COMMAND = ("nvidia-smi", "-q", "-x")
SECONDS = 10.0
"""An idle node answers within two; one whose driver is in trouble hangs."""

_MOST_GPUS = 64
_NOTHING = {"", "n/a", "none", "not supported", "requested functionality has been deprecated"}
_LOST = {"unknown error", "err!", "gpu is lost", "gpu requires reset"}
"""What stands in the place of values that a GPU no longer gives; the last two say why."""
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,6})?")

_TEXTS = {
    "product": "product_name",
    "uuid": "uuid",
    "serial": "serial",
    "bus": "pci/pci_bus_id",
    "vbios": "vbios_version",
    "gsp_firmware": "gsp_firmware_version",
    "performance_state": "performance_state",
    "persistence": "persistence_mode",
    "mig": "mig_mode/current_mig",
    "compute_mode": "compute_mode",
    "ecc": "ecc_mode/current_ecc",
    "pcie_width": "pci/pci_gpu_link_info/link_widths/current_link_width",
    "pcie_width_max": "pci/pci_gpu_link_info/link_widths/max_link_width",
    "fabric": "fabric/state",
    "fabric_health": "fabric/health/summary",
    "fabric_bandwidth": "fabric/health/bandwidth",
    "rows_pending": "remapped_rows/remapped_row_pending",
    "rows_failed": "remapped_rows/remapped_row_failure",
    "unrepairable": "ecc_errors/unrepairable_memory",
    "channel_repair": "ecc_errors/channel_repair_pending",
    "tpc_repair": "ecc_errors/tpc_repair_pending",
    "sram_threshold": "ecc_errors/aggregate/sram_threshold_exceeded",
}
_NUMBERS = {
    "memory_mib": ("fb_memory_usage/total",),
    "memory_used_mib": ("fb_memory_usage/used",),
    "sm_mhz": ("clocks/sm_clock",),
    "memory_mhz": ("clocks/mem_clock",),
    "max_sm_mhz": ("max_clocks/sm_clock",),
    "boost_mhz": ("max_customer_boost_clocks/graphics_clock",),
    "application_mhz": ("applications_clocks/graphics_clock",),
    "default_application_mhz": ("default_applications_clocks/graphics_clock",),
    "utilization": ("utilization/gpu_util",),
    "power_w": (
        "gpu_power_readings/instant_power_draw",
        "gpu_power_readings/power_draw",
        "power_readings/power_draw",
    ),
    "power_limit_w": (
        "gpu_power_readings/current_power_limit",
        "gpu_power_readings/power_limit",
        "power_readings/enforced_power_limit",
        "power_readings/power_limit",
    ),
    "default_power_limit_w": ("gpu_power_readings/default_power_limit", "power_readings/default_power_limit"),
    "temperature_c": ("temperature/gpu_temp",),
    "temperature_margin_c": ("temperature/gpu_temp_tlimit",),
    "temperature_limit_c": ("temperature/gpu_temp_max_gpu_threshold", "temperature/gpu_temp_slow_threshold"),
    "memory_temperature_c": ("temperature/memory_temp",),
    "memory_temperature_limit_c": ("temperature/gpu_temp_max_mem_threshold",),
    "pcie_generation": ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",),
    "pcie_generation_max": ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",),
    "uncorrected_rows": ("remapped_rows/remapped_row_unc",),
}
"""Numbers by the places they have had, newest first; the name says the unit."""

_CHANGING = (
    "index",
    "sm_mhz",
    "utilization",
    "power_w",
    "throttle",
    "pcie_width",
    "pcie_generation",
    "temperature_c",
    "temperature_margin_c",
    "memory_temperature_c",
)
"""What is kept of a GPU in each of many looks under load."""

_COUNTERS = {
    "sw_power_cap": "sw_power_cap",
    "sw_therm_slowdown": "sw_thermal_slowdown",
    "hw_therm_slowdown": "hw_thermal_slowdown",
    "hw_power_brake": "hw_power_brake_slowdown",
    "sync_boost": "sync_boost",
}
"""The counters' names in the XML, and those of the same reasons where they are flags."""


def snapshot(seconds: float = SECONDS) -> Dict[str, Any]:
    """Ask nvidia-smi for at most ``seconds``, and return the state of this node's GPUs now; never raise.

    Keys: ``time`` (Unix), ``driver`` and ``cuda`` (versions, as texts), ``gpus`` (a dict for each, as
    ``_gpu_facts`` has it, in nvidia-smi's order), and ``missing``: None, or why there is nothing; then the versions
    are None and ``gpus`` is empty.
    """
    now = round(time.time(), 3)
    try:
        return {"time": now, "missing": None, **parse(run_program(COMMAND, seconds))}
    except (NoAnswer, ValueError) as error:
        return {"time": now, "missing": str(error), "driver": None, "cuda": None, "gpus": []}


def changing(sample: Dict[str, Any]) -> Dict[str, Any]:
    """Return the ``time`` and ``gpus`` of a ``snapshot``, each GPU with only what changes, such as clocks.

    That is ``index``, ``sm_mhz``, ``utilization``, ``power_w``, ``throttle``, ``pcie_width``, ``pcie_generation``,
    ``temperature_c``, ``temperature_margin_c`` and ``memory_temperature_c``. ``sample``, the snapshot, is not
    changed.
    """
    return {"time": sample["time"], "gpus": [{name: gpu[name] for name in _CHANGING} for gpu in sample["gpus"]]}


def parse(answer: bytes) -> Dict[str, Any]:
    """Return the versions ``driver`` and ``cuda``, and the ``gpus`` (64 at most), of nvidia-smi's answer in XML.

    ``gpus`` is a list of what ``_gpu_facts`` returns, in nvidia-smi's order. A version that it does not name is
    None.

    Raises:
        ValueError: the answer is no XML, not nvidia-smi's, or defines entities
    """
    # A few nested entities expand to gigabytes.
    if b"<!ENTITY" in answer:
        raise ValueError("nvidia-smi's answer defines entities")
    try:
        root = ElementTree.fromstring(answer)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise ValueError(f"nvidia-smi's answer is not XML: {error}") from None
    if root.tag != "nvidia_smi_log":
        raise ValueError(f"nvidia-smi's answer is <{root.tag[:40]}>")
    gpus = [_gpu_facts(number, element) for number, element in enumerate(root.findall("gpu")[:_MOST_GPUS])]
    return {"driver": _xml_text(root, "driver_version"), "cuda": _xml_text(root, "cuda_version"), "gpus": gpus}


def _gpu_facts(number: int, element: ElementTree.Element) -> Dict[str, Any]:
    """Return what nvidia-smi says of the GPU ``number`` (from 0, in its order), by LLMB's names, which carry units.

    ``element`` is the GPU's in nvidia-smi's XML. The names are ``index`` (that number); the texts ``product``,
    ``uuid``, ``serial``, ``bus``, ``vbios``, ``gsp_firmware``, ``performance_state``, ``persistence``, ``mig``,
    ``compute_mode``, ``ecc``, ``pcie_width``, ``pcie_width_max``, ``fabric``, ``fabric_health``, ``fabric_bandwidth``,
    ``rows_pending``, ``rows_failed``, ``unrepairable``, ``channel_repair``, ``tpc_repair``, ``sram_threshold``,
    ``fabric_status`` (``Unknown Error``, too), ``recovery`` (as ``_recovery_action`` has it) and ``domain`` (as
    ``_nvlink_domain`` has it); the floats of ``_NUMBERS``, such as ``sm_mhz``,
    ``power_w``, ``memory_mib`` and ``temperature_c``, and without a unit ``utilization`` (percent),
    ``pcie_generation``, ``pcie_generation_max`` and ``uncorrected_rows``; ``processes`` (their number),
    ``uncorrected`` and ``uncorrected_sram`` (numbers of ECC errors), ``throttle`` (a list of reasons now) and
    ``throttled_us`` (a dict, by reason). Every GPU has all of them; the value is None where nvidia-smi does not say
    it, empty for a list or dict, and 0 for ``processes``.
    """
    texts = {name: _xml_text(element, path) for name, path in _TEXTS.items()}
    numbers = {name: _first_number(element, paths) for name, paths in _NUMBERS.items()}
    return {
        "index": number,
        **texts,
        **numbers,
        "fabric_status": _fabric_status(element),
        "recovery": _recovery_action(element),
        "domain": _nvlink_domain(element),
        "processes": len(element.findall("processes/process_info")),
        "uncorrected": _uncorrectable_errors(element),
        "uncorrected_sram": _uncorrectable_errors(element, "sram"),
        "throttle": _throttle_reasons(element),
        "throttled_us": _throttle_counters(element),
    }


def _recovery_action(element: ElementTree.Element) -> Optional[str]:
    """Return what a GPU needs before it works again: ``Reset``, ``Reboot``, ``Drain P2P`` or ``Drain and Reset``.

    ``element`` is the GPU's in nvidia-smi's XML. None: nothing, or nvidia-smi does not say. Drivers before 560 or so
    say only that a reset is required or recommended; of a GPU in trouble, ``GPU requires reset`` or ``GPU is lost`` may
    stand instead of any value.
    """
    said = {(value.text or "").strip().strip("[]").lower() for value in element.iter()}
    if "gpu is lost" in said:
        return "Reboot"
    if "gpu requires reset" in said or _xml_text(element, "gpu_reset_status/reset_required") == "Yes":
        return "Reset"
    if _xml_text(element, "gpu_reset_status/drain_and_reset_recommended") == "Yes":
        return "Drain and Reset"
    return _xml_text(element, "gpu_recovery_action")


def _fabric_status(element: ElementTree.Element) -> Optional[str]:
    """Return how a GPU fared when it joined its NVLink fabric: ``Success`` or an error, also ``Unknown Error``.

    ``element`` is the GPU's in nvidia-smi's XML. None: there is no fabric, or the GPU does not even tell its state.
    """
    if not _xml_text(element, "fabric/state"):
        return None
    text = (element.findtext("fabric/status") or "").strip().strip("[]")
    return None if text.lower() in _NOTHING else text[:120]


def _nvlink_domain(element: ElementTree.Element) -> Optional[str]:
    """Return a GPU's NVLink domain, ``<cluster UUID>.<clique id>``: GPUs with the same are joined, on any nodes.

    ``element`` is the GPU's in nvidia-smi's XML. None where NVLink stays inside one node (a UUID of zeros), or
    there is none.
    """
    ids = {child.tag.replace("_", "").lower(): (child.text or "").strip() for child in element.findall("fabric/*")}
    cluster, clique = ids.get("clusteruuid", ""), ids.get("cliqueid", "")
    return f"{cluster}.{clique}"[:120] if re.search("[1-9a-fA-F]", cluster.replace("N/A", "")) else None


def _uncorrectable_errors(element: ElementTree.Element, memory: str = "") -> Optional[float]:
    """Return a GPU's number of uncorrectable ECC errors since the driver was loaded; None where nothing is counted.

    ``element`` is the GPU's in nvidia-smi's XML. ``memory`` (``sram`` or ``dram``) limits them to that memory;
    empty: of all. Older drivers count one total, which is given whatever ``memory`` is.
    """
    volatile = element.find("ecc_errors/volatile")
    if volatile is None:
        return None
    elements = [child for child in volatile if "uncorrectable" in child.tag and child.tag.startswith(memory)]
    elements += volatile.findall("double_bit/total")
    counts = [count for count in (_as_number(child.text) for child in elements) if count is not None]
    return sum(counts) if counts else None


def _throttle_reasons(element: ElementTree.Element) -> List[str]:
    """Return what slows a GPU's clocks right now: ``sw_power_cap``, ``hw_thermal_slowdown``, ...; empty: nothing.

    ``element`` is the GPU's in nvidia-smi's XML. In its order; ``gpu_idle`` is left out.
    """
    found = []
    for word in ("event", "throttle"):
        for child in element.findall(f"clocks_{word}_reasons/*"):
            reason = child.tag.replace(f"clocks_{word}_reason_", "")
            if (child.text or "").strip() == "Active" and reason != "gpu_idle":
                found.append(reason[:60])
    return found


def _throttle_counters(element: ElementTree.Element) -> Dict[str, float]:
    """Return the microseconds that a GPU's clocks were slowed since the driver was loaded, by reason.

    ``element`` is the GPU's in nvidia-smi's XML. Reasons are named as by ``_throttle_reasons``. One that nvidia-smi
    does not count is missing; empty where it has no such counters.
    """
    found = {}
    for name, reason in _COUNTERS.items():
        value = _as_number(element.findtext(f"clocks_event_reasons_counters/clocks_event_reasons_counters_{name}"))
        if value is not None:
            found[reason] = value
    return found


def _xml_text(element: ElementTree.Element, path: str) -> Optional[str]:
    """Return the text at ``path`` below ``element`` of nvidia-smi's XML, stripped and cut to 120 characters.

    None where there is nothing, where it says so (``N/A``), or where the GPU is lost.
    """
    text = (element.findtext(path) or "").strip()
    return None if text.strip("[]").lower() in _NOTHING | _LOST else text[:120]


def _first_number(element: ElementTree.Element, paths: Sequence[str]) -> Optional[float]:
    """Return the number at the first of ``paths`` below ``element`` that has one; None where none has.

    The paths are of nvidia-smi's XML. A unit behind the number is dropped, not converted.
    """
    values = (_as_number(element.findtext(path)) for path in paths)
    return next((value for value in values if value is not None), None)


def _as_number(text: Optional[str]) -> Optional[float]:
    """Return the number that ``text``, such as ``85 W``, begins with; None where it begins with none."""
    found = _NUMBER.match((text or "").strip())
    return float(found.group()) if found else None
