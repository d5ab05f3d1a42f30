"""What lines of the kernel's log mean for a node that is to run a job: data, and the one function that reads it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from llmb_common.causes.table import Signature, numbers, signature_of
from llmb_common.health.facts import KernelLog, Level

RECENT = 2 * 3600
"""Seconds for which an error of a GPU counts against its node, as in Azure's health checks: later it was reset, or
fails again."""

_HARMLESS = ("RESTART_APP", "IGNORE", "RESTART_VM")
"""What NVIDIA asks for first after errors that leave a GPU as good as it was."""

_NOTEWORTHY = frozenset({63, 92, 121, 154})
"""Rows to remap, corrected errors, and what is to be done: no failure, and not to be overlooked."""

FLAPS = 5
"""So often a link of one device was lost within a day: the threshold of Azure's health checks."""


class _Line(NamedTuple):
    check: str
    pattern: re.Pattern[str]
    level: Level
    seconds: float = RECENT * 12


_LINES = (
    _Line("xid", re.compile(r"fallen off the bus"), "fail", RECENT),
    _Line("adapter-log", re.compile(r"mlx5.*insufficient power", re.I), "fail"),
    _Line("adapter-log", re.compile(r"mlx5.*(?:High Temperature|ACCESS_REG.*failed)", re.I), "warn"),
    _Line("kernel-log", re.compile(r"[Rr]emounting filesystem read-only|[Rr]emounted .*read-only"), "fail"),
    _Line("kernel-log", re.compile(r"\bmce:.*[Uu]ncorrected|Hardware Error.*(?:[Uu]ncorrected|[Ff]atal)"), "fail"),
    _Line("kernel-log", re.compile(r"soft lockup|hard LOCKUP|blocked for more than \d+ seconds"), "warn"),
    _Line(
        "kernel-log",
        re.compile(r"Hardware Error|\bmce: .*above threshold|EDAC .*\b(?:CE|UE)\b|nvme.*I/O.*timeout"),
        "warn",
    ),
    _Line("kernel-log", re.compile(r"segfault.*libnccl"), "warn"),
)

_LOST = re.compile(r"\b((?:ib|mlx5_(?!core)|ens|enp|eth)\w*)[:,]? .*lost carrier", re.I)
_DOWN = re.compile(r"mlx5_core \S+ (\w+): Link down")
"""As the driver says it, of which the first is that of the start."""
_MOST = 12
"""Kinds of trouble that are told of a node."""


def kernel_trouble(log: KernelLog) -> Iterator[tuple[str, Level, str]]:
    """Check, level and text; each kind of trouble once, with its latest line and how often it came."""
    worst: dict[tuple[str, Level, str], list[str]] = {}
    for age, text in log.lines:
        for check, level, kind in _meaning(age, text):
            worst.setdefault((check, level, kind), []).append(text)
    for (check, level, _), lines in list(worst.items())[:_MOST]:
        yield check, level, lines[-1] + (f" ({len(lines)} times)" if len(lines) > 1 else "")
    lost, down = (Counter(it[1] for _, text in log.lines if (it := line.search(text))) for line in (_LOST, _DOWN))
    lost += down - Counter(set(down))
    for device, times in lost.most_common():
        yield "link-flaps", "fail" if times >= FLAPS else "warn", f"{device} lost its link {times} times in a day"


def _meaning(age: float, text: str) -> Iterator[tuple[str, Level, str]]:
    known = signature_of(text)
    if known is not None and known.id.startswith(("xid-", "sxid-")):
        check, _, number = known.id.partition("-")
        level = _of_driver(known, int(number), text)
        if level is not None and (age <= RECENT or level == "fail"):
            yield check, level if age <= RECENT else "warn", f"{_bus(text)} {number}"
        return
    for line in _LINES:
        if line.pattern.search(text):
            yield line.check, line.level if age <= line.seconds else "warn", line.pattern.pattern
            return


def _of_driver(known: Signature, number: int, text: str) -> Level | None:
    """What an error of a GPU or an NVSwitch means for its node; None: nothing, an application's fault for instance."""
    if known.id.startswith("sxid-"):
        return "fail" if "(always fatal)" in known.what else "warn" if known.role == "root" else None
    action = next((item.nvidia for item in numbers().xids if item.xid == number), "IGNORE")
    if known.role == "root" and known.fault == "node" and known.sure == "certain":
        return "warn" if action in _HARMLESS else "fail"
    return "warn" if number in _NOTEWORTHY else None


def _bus(text: str) -> str:
    found = re.search(r"PCI:([0-9A-Fa-f:.]+)", text)
    return found[1] if found else ""
