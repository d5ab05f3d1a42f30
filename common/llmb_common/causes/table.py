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
    """One kind of line that a failing run prints, as ``signatures.yaml`` has it; its head explains the fields."""

    id: str
    what: str
    cause: str
    remedy: str
    examples: tuple[str, ...]
    pattern: tuple[str, ...] = ()
    dmesg: tuple[str, ...] = ()
    role: Role = "root"
    sure: Sure = "likely"
    fault: Fault = "run"
    keep_out: bool = False
    traits: tuple[Trait, ...] = ()
    kernel: tuple[str, Literal["fail", "warn"]] | None = None


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``signatures.yaml``."""

    signatures: tuple[FailureSignature, ...]


class Xid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An error number of NVIDIA's GPU driver and what it means.

    ``role`` ``context``: it never fails a job by itself; ``depends``: the severity in the line, or the decode table,
    says.
    """

    xid: int
    name: str
    meaning: str
    role: str
    fault: Fault
    remedy: str
    nvidia: str
    """NVIDIA's immediate resolution, in the catalogue's word."""


class _Numbers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``xid.json``."""

    source: str
    xids: tuple[Xid, ...]
    nvlink5: tuple[tuple[int, str, str, str, str, str, str], ...]
    """Xid, unit, the bits of the first word that name it (two forms), error status, resolution, severity."""
    sxids: tuple[tuple[int, str, str], ...]


@functools.cache
def signatures() -> tuple[FailureSignature, ...]:
    """All signatures, in the order in which a line is compared with them."""
    return load_struct(Path(__file__).with_name("signatures.yaml"), _Table).signatures


@functools.cache
def driver_tables() -> _Numbers:
    """NVIDIA's tables of Xids, NVLink 5 events and SXids."""
    table: _Numbers = from_json(Path(__file__).with_name("xid.json").read_bytes(), _Numbers)
    return table


def _scope_flags(pattern: str) -> str:
    """``pattern`` in a form in which its ``(?i)`` holds for it alone among several."""
    return f"(?i:{pattern[4:]})" if pattern.startswith("(?i)") else pattern


@functools.cache
def _compiled_patterns() -> tuple[tuple[re.Pattern[str], FailureSignature], ...]:
    """One compiled expression for each signature, in the order of the table."""
    found = []
    for item in signatures():
        patterns = [_scope_flags(pattern) for pattern in (*item.pattern, *item.dmesg)]
        found.append((re.compile("|".join(patterns)), item))
    return tuple(found)


def kernel_patterns() -> tuple[str, ...]:
    """The patterns of what a node's kernel says of failures, in the order of the table.

    They are valid for Python and for ``grep -P``.
    """
    patterns = chain.from_iterable(item.dmesg for item in signatures())
    return tuple(_scope_flags(pattern) for pattern in patterns)


@functools.lru_cache(maxsize=8192)  # a thousand ranks say the same
def signature_of(text: str) -> FailureSignature | None:
    """The signature that a line without its prefixes matches; None where none does.

    That of an Xid or SXid is the one of its number.
    """
    found = next((item for pattern, item in _compiled_patterns() if pattern.search(text)), None)
    return _signature_of_number(found, text) if found is not None and found.id in ("xid", "sxid") else found


_XID = re.compile(r"Xid \((?:PCI:)?[0-9a-fA-F:.]+\): (\d+)(?:, *(.*))?")
_DECODED = re.compile(r"(\w+) .*?\((0x[0-9a-fA-F]{8}) (0x[0-9a-fA-F]{8})")


_OF_NUMBERS: dict[str, Role] = {"context": "noise", "teardown": "teardown", "cascade": "cascade"}


def _signature_of_number(found: FailureSignature, text: str) -> FailureSignature:
    """A copy of ``found``, the signature of Xids or SXids, for the number that ``text`` names.

    ``found`` itself where it names none. A number of Xid that the table knows gives its meaning, role, certainty and
    remedy; one that it does not know only a possible cause; both have id ``xid-NUMBER``. For SXids see
    ``_sxid_signature``.
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
    """(whether an NVLink 5 event is fatal, NVIDIA's resolution for it); the latter empty where the table has none.

    NVIDIA's table comes before the line's own word.
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
    """Whether 32 ``bits`` match a form of the same length, in which ``-`` is any bit."""
    return all(wanted in ("-", bit) for bit, wanted in zip(bits, form.rjust(32, "-"), strict=True))


def _sxid_signature(found: FailureSignature, number: int, rest: str) -> FailureSignature:
    """The signature of SXids, ``found``, made that of one number; ``rest`` is the line after the number."""
    known = next((item for item in driver_tables().sxids if item[0] == number), None)
    if known:
        _, name, severity = known
    else:
        name = ""
        severity = "fatal" if rest.startswith("Fatal") else "not fatal"
    role: Role = "noise" if severity == "not fatal" else "root"
    return msgspec.structs.replace(
        found,
        id=f"sxid-{number}",
        role=role,
        what=f"SXid {number}: {name} ({severity})",
        remedy="reset the fabric or the host, and keep the node out until then",
    )
