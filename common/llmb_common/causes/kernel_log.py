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
_DOWN = re.compile(r"\b(?:mlx5_core|bnxt_en|ice) \S+ (\w+): (?:Link down|Port: \d+ Link DOWN|NIC Link is Down)")
"""As the driver says it of interfaces, and newer kernels also of adapters; the first is that of the start."""
_RECOVERED = re.compile(r"\bXid\b.*: 154, .* to 0x0 \(None\)")
"""What the driver says when a GPU that had to be reset was reset."""
_BUS = re.compile(r"PCI:([0-9A-Fa-f:.]+)")
_CABLE = "have the link checked: cable, transceiver, switch port"
_LOOK = "look at the lines around it in the node's kernel log"
_MOST = 12
"""Kinds of trouble that are told of a node."""


class _Trouble(NamedTuple):
    """What one line of a node's kernel log is evidence of: the health check it fails, how badly, and its kind.

    ``_trouble_in_line`` makes it; lines with equal ones are reported once.
    """

    check: str
    """The check of ``llmb-run health`` that the line fails, such as ``xid``."""
    level: Weight
    """``fail`` or ``warn``."""
    kind: str
    """What makes two lines the same trouble: a signature's id, or ``BUS NUMBER``, a GPU's PCIe address (may be empty)
    with its error number.
    """


def kernel_remarks(log: KernelLog) -> Iterator[Remark]:
    """Yield what a node's kernel log of the last day says against the node; nothing where it has no trouble.

    One remark for each kind of trouble and level, in the order in which they first came and at most 12, with its latest
    line, how often it came and what to do; then one of the check ``link-flaps`` for each network device that lost its
    link, the most frequent first: ``fail`` from ``FLAPS`` (5) times on, else ``warn``. That the log could not be read
    (``log.missing``) is no remark.
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
    """Return what to do about a line of a node's kernel log: its signature's remedy, else to look at the log.

    A clause without a full stop, never empty.
    """
    known = signature_of(line)
    return (known.remedy if known else "") or _LOOK


def _lost_links(log: KernelLog) -> Counter[str]:
    """Return how often each network device lost its link by a node's kernel log, by the device's name; empty: none did.

    The first plain ``Link down`` of each device does not count, as it comes with every start; lines that say that a
    link was lost all do. Devices that lost none are left out.
    """
    lost = _count_by_device(_LOST, log)
    down = _count_by_device(_DOWN, log)
    # A port goes down once when it is brought up: that is no loss.
    return lost + (down - Counter(set(down)))


def _count_by_device(pattern: re.Pattern[str], log: KernelLog) -> Counter[str]:
    """Return how many lines of a node's kernel ``log`` match ``pattern``, by the device that its first group names.

    That group must take part in each match. Each line counts once. Devices without a line are left out; empty where no
    line matches.
    """
    found = (pattern.search(text) for _, text in log.lines)
    return Counter(match[1] for match in found if match)


def _trouble_in_line(age: float, text: str) -> _Trouble | None:
    """Return what a line of a node's kernel log, ``age`` seconds old, says against the node; None where nothing.

    ``text`` is the line, as ``KernelLog.lines`` has it. An error of a GPU (check ``xid``) or NVSwitch (``sxid``) that
    is over two hours old is only a warning, or nothing where its error number is a mere warning.
    """
    known = signature_of(text)
    if known is None or _RECOVERED.search(text):
        return None
    if known.id.startswith(("xid-", "sxid-")):
        return _driver_trouble(known, age, text)
    if known.kernel is None:
        return None
    check, level = known.kernel
    # By then the GPU was reset, or would have failed again.
    is_over = check == "xid" and age > RECENT
    return _Trouble(check, "warn" if is_over else level, known.id)


def _driver_trouble(known: FailureSignature, age: float, text: str) -> _Trouble | None:
    """Return what an Xid or SXid line ``text`` says against its node; None where nothing, or no longer anything.

    ``known`` is the signature of its number, with an id such as ``xid-79``. After two hours (``age`` is in seconds) a
    failure becomes a warning, and a warning nothing.
    """
    check, _, number = known.id.partition("-")
    level = _level_of_sxid(known) if check == "sxid" else _level_of_xid(known, int(number))
    if level is None or (level == "warn" and age > RECENT):
        return None
    bus = _BUS.search(text)
    return _Trouble(check, level if age <= RECENT else "warn", f"{bus[1] if bus else ''} {number}")


def _level_of_sxid(known: FailureSignature) -> Weight | None:
    """Return how much an NVSwitch's error counts against its node: ``fail``, ``warn`` or None for not at all.

    ``known`` is the signature of its number: ``fail`` where that is always fatal, ``warn`` where it may be.
    """
    if "(always fatal)" in known.what:
        return "fail"
    return "warn" if known.role == "root" else None


def _level_of_xid(known: FailureSignature, number: int) -> Weight | None:
    """Return how much the Xid ``number`` of a GPU counts against its node: ``fail``, ``warn``, or None for nothing.

    ``known`` is the signature of that number. If it names a certain fault of the node as the root: ``fail``, or
    ``warn`` where what NVIDIA advises leaves the GPU as it was, or its table lacks the number. Otherwise ``warn`` for
    63, 92, 121 and 154, which are not to be overlooked, and None for all others, such as an application's own fault.
    """
    action = next((item.nvidia for item in driver_tables().xids if item.xid == number), "IGNORE")
    if known.role == "root" and known.fault == "node" and known.sure == "certain":
        return "warn" if action in _HARMLESS else "fail"
    return "warn" if number in _NOTEWORTHY else None
