"""What the lines of a node's kernel log say of the node before a job runs there: by the table of signatures, the errors
of GPUs and NVSwitches by NVIDIA's own words, and links by how often they were lost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from llmb_common.causes.table import FailureSignature, driver_tables, signature_of
from llmb_common.nodes.facts import KernelLog
from llmb_common.nodes.findings import Remark
from llmb_common.nodes.rule import Weight

RECENT = 2 * 3600
"""Seconds for which an error of a GPU counts against its node, as in Azure's health checks: later it was reset, or
fails again."""

_HARMLESS = ("RESTART_APP", "IGNORE", "RESTART_VM")
"""What NVIDIA asks for first after errors that leave a GPU as good as it was."""

_NOTEWORTHY = frozenset({63, 92, 121, 154})
"""Rows to remap, corrected errors, and what is to be done: no failure, and not to be overlooked."""

FLAPS = 5
"""So often a link of one device was lost within a day: the threshold of Azure's health checks."""

_LOST = re.compile(r"\b((?:ib|mlx5_(?!core)|ens|enp|eth)\w*)[:,]? .*lost carrier", re.I)
_DOWN = re.compile(r"mlx5_core \S+ (\w+): Link down")
"""As the driver says it, of which the first is that of the start."""
_BUS = re.compile(r"PCI:([0-9A-Fa-f:.]+)")
_CABLE = "have the link checked: cable, transceiver, switch port"
_LOOK = "look at the lines around it in the node's kernel log"
_MOST = 12
"""Kinds of trouble that are told of a node."""


class _Trouble(NamedTuple):
    """What a kernel's line is evidence of: the check it fails, how badly, and its kind; each kind is reported once."""

    check: str
    level: Weight
    kind: str


def kernel_remarks(log: KernelLog) -> Iterator[Remark]:
    """Yields what a node's kernel log says against it: each kind of trouble once, with its latest line and how often
    it came.

    The devices that lost their link follow. Nothing for a log without trouble.
    """
    lines: dict[_Trouble, list[str]] = {}
    for age, text in log.lines:
        trouble = _trouble_in_line(age, text)
        if trouble is not None:
            lines.setdefault(trouble, []).append(text)
    for trouble, texts in list(lines.items())[:_MOST]:
        times = f" ({len(texts)} times)" if len(texts) > 1 else ""
        yield Remark(trouble.check, trouble.level, f"{texts[-1]}{times}", _line_remedy(texts[-1]))
    for device, count in _lost_links(log).most_common():
        level: Weight = "fail" if count >= FLAPS else "warn"
        yield Remark("link-flaps", level, f"{device} lost its link {count} times in a day", _CABLE)


def _line_remedy(line: str) -> str:
    """What to do about a kernel's line: its signature's remedy, else to look at the log."""
    known = signature_of(line)
    return (known.remedy if known else "") or _LOOK


def _lost_links(log: KernelLog) -> Counter[str]:
    """How often each device lost its link, without the first ``Link down`` of each."""
    lost = _count_by_device(_LOST, log)
    down = _count_by_device(_DOWN, log)
    return lost + (down - Counter(set(down)))


def _count_by_device(pattern: re.Pattern[str], log: KernelLog) -> Counter[str]:
    """How many lines match ``pattern``, by the device that they name."""
    found = (pattern.search(text) for _, text in log.lines)
    return Counter(match[1] for match in found if match)


def _trouble_in_line(age: float, text: str) -> _Trouble | None:
    """What a line of the kernel, ``age`` seconds old, is evidence of against its node; None where it says nothing."""
    known = signature_of(text)
    if known is None:
        return None
    if known.id.startswith(("xid-", "sxid-")):
        return _driver_trouble(known, age, text)
    if known.kernel is None:
        return None
    check, level = known.kernel
    is_over = check == "xid" and age > RECENT
    return _Trouble(check, "warn" if is_over else level, known.id)


def _driver_trouble(known: FailureSignature, age: float, text: str) -> _Trouble | None:
    """The trouble that an Xid or SXid stands for; None where it says nothing against the node, or no longer does."""
    check, _, number = known.id.partition("-")
    level = _level_of_sxid(known) if check == "sxid" else _level_of_xid(known, int(number))
    if level is None or (level == "warn" and age > RECENT):
        return None
    bus = _BUS.search(text)
    return _Trouble(check, level if age <= RECENT else "warn", f"{bus[1] if bus else ''} {number}")


def _level_of_sxid(known: FailureSignature) -> Weight | None:
    """How much an NVSwitch's error counts against its node: ``fail`` or ``warn``; None: nothing."""
    if "(always fatal)" in known.what:
        return "fail"
    return "warn" if known.role == "root" else None


def _level_of_xid(known: FailureSignature, number: int) -> Weight | None:
    """How much a GPU's error ``number`` counts against its node: ``fail`` or ``warn``.

    None: nothing, as for an application's own fault.
    """
    action = next((item.nvidia for item in driver_tables().xids if item.xid == number), "IGNORE")
    if known.role == "root" and known.fault == "node" and known.sure == "certain":
        return "warn" if action in _HARMLESS else "fail"
    return "warn" if number in _NOTEWORTHY else None
