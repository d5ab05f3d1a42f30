"""The signatures of failures, and the numbers of NVIDIA's drivers, as data."""

from __future__ import annotations

import functools
import re
from itertools import chain
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from llmb_common.base.strict_yaml import load_struct
from llmb_common.base.structs import from_json

Role: TypeAlias = Literal["root", "cascade", "witness", "killed", "ended", "teardown", "noise"]
Sure: TypeAlias = Literal["certain", "likely", "possible"]
Fault: TypeAlias = Literal["run", "node", "network", "storage", "site", "scheduler"]
Trait: TypeAlias = Literal["vague", "everyday", "hardware", "named", "traps", "start", "setting", "harmless"]


class FailureSignature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of log line that a failing run prints, and what it means, as an entry of ``signatures.yaml``.

    ``signatures`` reads all; ``signature_of`` returns one. ``role`` says what such a line is to the failure: its
    beginning (``root``), a consequence (``cascade``), of a rank that waits (``witness``) or ends (``killed``,
    ``ended``, ``teardown``), or no evidence (``noise``). ``sure`` says how surely it names the cause (``certain``,
    ``likely``, ``possible``), ``fault`` whose fault that is (``run``, ``node``, ``network``, ``storage``, ``site``,
    ``scheduler``), and ``remedy`` what to do, as a clause without a full stop, which may be empty. Patterns heed case
    unless they begin with ``(?i)``; of ``pattern`` and ``dmesg`` one must not be empty, which is not checked. Unknown
    fields and words are refused when it is decoded.
    """

    id: str
    """Its name in the table, such as ``off-the-bus``."""
    what: str
    """What happened, in a few words for a summary."""
    cause: str
    """What may have brought it about, in sentences."""
    remedy: str
    examples: tuple[str, ...]
    """Lines of logs that it matches."""
    pattern: tuple[str, ...] = ()
    """Regular expressions, any of which is found in such a line."""
    dmesg: tuple[str, ...] = ()
    """The same for lines of a node's kernel."""
    role: Role = "root"
    sure: Sure = "likely"
    fault: Fault = "run"
    without_slurm: str | None = None
    """The remedy of a run without Slurm; empty: there is none but to read its log; None: the same as with Slurm."""
    keep_out: bool = False
    """Whether the line is about its node's own hardware, daemon or files, so that later jobs should avoid the node."""
    traits: tuple[Trait, ...] = ()
    """Peculiarities that the search for the cause heeds, explained at the head of ``signatures.yaml``."""
    kernel: tuple[str, Literal["fail", "warn"]] | None = None
    """The check of ``llmb-run health`` that such a line of a kernel fails, and how badly; None: it fails none."""


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``signatures.yaml``: all failure signatures, in the order in which lines are compared.

    ``signatures`` reads it. Other fields are refused when it is decoded.
    """

    signatures: tuple[FailureSignature, ...]


class Xid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One error number (Xid) of NVIDIA's GPU driver and what it means for a job, as an entry of ``xid.json``.

    ``driver_tables`` reads all. ``role`` is what it is to a job's failure: ``root`` where it begins one and ``either``
    where it only may; ``context`` where it never fails a job by itself; ``cascade`` or ``teardown`` where it comes of
    another failure or of the end; and ``depends`` where the severity in the line, or the table of NVLink 5 events,
    decides. ``fault`` says whose fault it is, ``remedy`` what to do (empty: what NVIDIA says). Unknown fields are
    refused when it is decoded.
    """

    xid: int
    name: str
    """NVIDIA's name of the error."""
    meaning: str
    """What has happened, in a few words."""
    role: str
    fault: Fault
    remedy: str
    nvidia: str
    """NVIDIA's immediate resolution, in the catalogue's word."""


class _Numbers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``xid.json``: NVIDIA's error numbers of GPUs (Xids) and NVSwitches (SXids), and NVLink 5 events.

    ``source`` says in words where they come from. ``driver_tables`` reads it; unknown fields are refused when it is
    decoded.
    """

    source: str
    xids: tuple[Xid, ...]
    nvlink5: tuple[tuple[int, str, str, str, str, str, str], ...]
    """Xid, unit (``A/B``: either), the bits of the first word that name it (two forms, for ``_bits_match``), error
    status (hexadecimal), resolution, severity.
    """
    sxids: tuple[tuple[int, str, str], ...]
    """Number, name, severity of NVSwitch errors."""


@functools.cache
def signatures() -> tuple[FailureSignature, ...]:
    """Return all failure signatures of ``signatures.yaml``, in the order in which a log line is compared with them.

    Read once in a process; the file is a part of LLMB.
    """
    return load_struct(Path(__file__).with_name("signatures.yaml"), _Table).signatures


@functools.cache
def driver_tables() -> _Numbers:
    """Return NVIDIA's tables of GPU errors (Xids), NVLink 5 events and NVSwitch errors (SXids).

    Read once in a process from ``xid.json``, a part of LLMB.
    """
    table: _Numbers = from_json(Path(__file__).with_name("xid.json").read_bytes(), _Numbers)
    return table


def _scope_flags(pattern: str) -> str:
    """Return a regular expression that can be joined to others by ``|``: a leading ``(?i)`` is confined to itself.

    Other patterns are returned as they are.
    """
    return f"(?i:{pattern[4:]})" if pattern.startswith("(?i)") else pattern


@functools.cache
def _compiled_patterns() -> tuple[tuple[re.Pattern[str], FailureSignature], ...]:
    """Return (compiled regular expression, signature) of each failure signature, in the order of the table.

    The expression matches what any of the signature's ``pattern`` and ``dmesg`` matches. Compiled once in a process.
    """
    found = []
    for item in signatures():
        patterns = [_scope_flags(pattern) for pattern in (*item.pattern, *item.dmesg)]
        found.append((re.compile("|".join(patterns)), item))
    return tuple(found)


def kernel_patterns() -> tuple[str, ...]:
    """Return the regular expressions of what a node's kernel says of failures, in the order of the signatures.

    One for each line of their ``dmesg``. They are valid for Python and for ``grep -P``.
    """
    patterns = chain.from_iterable(item.dmesg for item in signatures())
    return tuple(_scope_flags(pattern) for pattern in patterns)


@functools.lru_cache(maxsize=8192)  # a thousand ranks say the same
def signature_of(text: str) -> FailureSignature | None:
    """Return the failure signature that a log line without its prefixes matches, the first in the table; None if none.

    Lines of a node's kernel are matched as well. For an Xid or SXid with a number it is a copy made for that number,
    with an id such as ``xid-79``. The last 8192 results are kept.
    """
    found = next((item for pattern, item in _compiled_patterns() if pattern.search(text)), None)
    return _signature_of_number(found, text) if found is not None and found.id in ("xid", "sxid") else found


_XID = re.compile(r"Xid \((?:PCI:)?[0-9a-fA-F:.]+\): (\d+)(?:, *(.*))?")
_DECODED = re.compile(r"(\w+) .*?\((0x[0-9a-fA-F]{8}) (0x[0-9a-fA-F]{8})")


_OF_NUMBERS: dict[str, Role] = {"context": "noise", "teardown": "teardown", "cascade": "cascade"}


def _signature_of_number(found: FailureSignature, text: str) -> FailureSignature:
    """Return a copy of ``found``, the signature of Xids or SXids, for the error number that ``text`` names.

    ``found`` itself where it names none. The ``id`` becomes ``xid-NUMBER`` or ``sxid-NUMBER``, and ``what`` has the
    number. A known Xid gets its meaning, cause, role, fault, certainty, ``keep_out`` and remedy; one that the table
    does not know is only possibly a cause, and otherwise as ``found``. An SXid gets role, meaning and remedy.
    """
    match = _XID.search(text)
    if match is None:
        return found
    number, rest = int(match[1]), match[2] or ""
    if found.id == "sxid":
        return _sxid_signature(found, number, rest)
    known = next((item for item in driver_tables().xids if item.xid == number), None)
    if known is None:
        return msgspec.structs.replace(found, id=f"xid-{number}", sure="possible", what=f"Xid {number}")
    role: Role = "root"
    sure: Sure = "certain" if known.fault == "node" else "likely"
    remedy = known.remedy or f"NVIDIA: {known.nvidia}"
    if known.role == "depends":
        fatal, resolution = _decode_nvlink5(number, rest)
        role = "root" if fatal else "noise"
        remedy = f"{remedy}; NVIDIA: {resolution}" if resolution else remedy
    elif known.role in _OF_NUMBERS:
        role = _OF_NUMBERS[known.role]
    elif known.role == "either":
        sure = "possible"
    return msgspec.structs.replace(
        found,
        id=f"xid-{number}",
        role=role,
        sure=sure,
        fault=known.fault,
        keep_out=known.fault == "node",
        what=f"Xid {number}: {known.meaning}",
        cause=known.name,
        remedy=remedy,
    )


def _decode_nvlink5(xid: int, rest: str) -> tuple[bool, str]:
    """Return (whether an NVLink 5 event is fatal, NVIDIA's resolution), from the rest of its log line after the number.

    ``xid`` is the error's number, ``rest`` what follows it. NVIDIA's table of events counts before the line's own
    word; without either the event is fatal. The resolution is empty where the table does not have the event.
    """
    word = re.search(r"\b(Non-?fatal|Fatal)\b", rest, re.IGNORECASE)
    fatal = word is None or word[1].lower() == "fatal"
    found = _DECODED.search(rest)
    if found is None:
        return fatal, ""
    bits, status = f"{int(found[2], 16):032b}", int(found[3], 16)
    for number, unit, first, second, wanted, resolution, severity in driver_tables().nvlink5:
        named = found[1] in unit.split("/")
        if (
            number == xid
            and named
            and int(wanted, 16) == status
            and any(_bits_match(bits, form) for form in (first, second))
        ):
            return "Fatal" in severity, resolution
    return fatal, ""


def _bits_match(bits: str, form: str) -> bool:
    """Return whether ``bits``, text of 32 digits 0 and 1, match ``form``, in which ``-`` is any bit.

    A shorter form is compared with the last bits. ``form`` has at most 32 characters.
    """
    return all(wanted in ("-", bit) for bit, wanted in zip(bits, form.rjust(32, "-"), strict=True))


def _sxid_signature(found: FailureSignature, number: int, rest: str) -> FailureSignature:
    """Return a copy of ``found``, the signature of SXids, for one error ``number`` of an NVSwitch.

    Its id becomes ``sxid-NUMBER``, and it gets meaning, role and remedy. ``rest`` is the log line after the number; it
    tells the severity of a number that NVIDIA's table does not have. What is not fatal gets the role ``noise``, all
    else ``root``.
    """
    known = next((item for item in driver_tables().sxids if item[0] == number), None)
    if known:
        _, name, severity = known
    else:
        name = "unknown to NVIDIA's table"
        severity = "fatal" if rest.startswith("Fatal") else "not fatal"
    role: Role = "noise" if severity == "not fatal" else "root"
    return msgspec.structs.replace(
        found,
        id=f"sxid-{number}",
        role=role,
        what=f"SXid {number}: {name} ({severity})",
        remedy="reset the fabric or the host, and keep the node out until then",
    )
