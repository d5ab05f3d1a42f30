"""What lines of the kernel's log mean for a node that is to run a job: data, and the one function that reads it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from llmb_common.health.facts import KernelLog
from llmb_common.health.remarks import Level

RECENT = 2 * 3600
"""Seconds for which an error of a GPU counts against its node, as in Azure's health checks: later it was reset, or
fails again."""

XID_FAILS = frozenset({46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 155, 158, 167, 168, 169})
"""The driver's errors after which NVIDIA wants a GPU or a node reset, repaired or replaced, apart from those that an
application causes as well (NVIDIA's catalogue of Xid errors, 2025-10-29)."""

XID_WARNS = frozenset({63, 80, 92, 94, 121, 144, 145, 146, 147, 148, 149, 150, 154})
"""Worth knowing, and no reason to leave a node out: rows to remap, corrected errors, contained ones; of NVLink 5's only
the registers say which kind it was."""

SXID_FAILS = frozenset({10003, 12020, 22003, 22011, *range(23001, 23018)})
"""Errors of an NVSwitch that are always fatal (Fabric Manager User Guide, appendix D)."""

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
    _Line("kernel-log", re.compile(r"Hardware Error|\bmce: |EDAC .*\b(?:CE|UE)\b|nvme.*I/O.*timeout"), "warn"),
    _Line("kernel-log", re.compile(r"segfault.*libnccl"), "warn"),
)

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): (\d+)\b")
_SXID = re.compile(r"SXid \(PCI:([0-9A-Fa-f:.]+)\): (\d+)\b")
_LOST = re.compile(r"(\S*\b(?:ib|mlx5_|ens|enp|eth)\w*)[:,]? .*lost carrier", re.I)
_MOST = 3


def kernel_trouble(log: KernelLog) -> Iterator[tuple[str, Level, str]]:
    """Check, level and text; each kind of trouble once, with its latest line and how often it came."""
    worst: dict[tuple[str, Level, str], list[str]] = {}
    for age, text in log.lines:
        for check, level, kind in _meaning(age, text):
            worst.setdefault((check, level, kind), []).append(text)
    for (check, level, _), lines in list(worst.items())[: 4 * _MOST]:
        yield check, level, lines[-1] + (f" ({len(lines)} times)" if len(lines) > 1 else "")
    lost = Counter(found[1] for _, text in log.lines if (found := _LOST.search(text)))
    for device, times in lost.most_common(_MOST):
        yield "link-flaps", "fail" if times >= FLAPS else "warn", f"{device} lost its link {times} times in a day"


def _meaning(age: float, text: str) -> Iterator[tuple[str, Level, str]]:
    if found := _XID.search(text):
        number = int(found[2])
        if number in XID_FAILS:
            yield "xid", "fail" if age <= RECENT else "warn", f"{found[1]} {number}"
        elif number in XID_WARNS and age <= RECENT:
            yield "xid", "warn", f"{found[1]} {number}"
        return
    if found := _SXID.search(text):
        fatal = int(found[2]) in SXID_FAILS
        if fatal or re.search(r"(?<!Non-)\bFatal\b", text):
            yield "sxid", "fail" if fatal and age <= RECENT else "warn", f"{found[1]} {found[2]}"
        return
    for line in _LINES:
        if line.pattern.search(text):
            yield line.check, line.level if age <= line.seconds else "warn", line.pattern.pattern
            return
