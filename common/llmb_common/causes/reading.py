"""The complaints in a log, found in one pass and little memory, as the parser finds iterations.

What matters stands after the last two iterations: a complaint after which training went on is no cause. So most of a
long log is passed over at the parser's speed, and the rest is searched for a few words that every signature's lines
have. Only those lines are taken apart.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from llmb_common.causes.collectives import TimedOutCollectives
from llmb_common.causes.lines import Location, LogLine, location_of, parse_line, plain_line, printer_of
from llmb_common.causes.table import FailureSignature, signature_of
from llmb_common.runs.timing.log_files import find_markers, open_log
from llmb_common.runs.timing.records import MARKERS, STEP_TIME_BEGINS

LONGEST = 500
"""Characters of a line that are reported."""

_REACH = 2048
"""Bytes of a line before and after the word that gives it away."""

_CORE = (
    b"rror",
    b"ERROR",
    b"xception",
    b"NCCL WARN",
    b"emory",
    b"Killed",
    b"llmb_train: ",
    b"CANCELLED",
    b"Xid",
    b"NVRM",
    b"kernel: ",
    b"pass monitored",
)
_MORE = tuple(
    (
        b"ailed|ailure|atal|fault|ignal|SIG|oom|No s|imed out|imeout|xited|exitcode|not found|nan|aN|denied|"
        b": line |in use|refused|symbol|bort|dumped|off the bus|xceeded|atchdog|terminate|importing|UNAVAIL|"
        b"an't |nable to|onnection|enqueued|closed by|Assertion|lost|ibgda|free()|does not|annot |not supp|"
        b"neither AF|reempt|ompletion|orrupted|mlx5_core|lockup|panic|emount|not resp|stall|lost carrier|"
        b"temporarily|Too many|No devices|Stale|endpoint|uplicate GPU|double free|alloc(): |what():|"
        b"log settings|unrecognized|wait contrib"
    ).split(b"|")
)
_PASSED = b"] datetime: "
"""Megatron prints it after a barrier of all ranks: none of them is dead."""

_HEAD, _TAIL = 4 << 20, 16 << 20
"""So much is searched for every word at either end of what matters; the middle of a huge log for the commonest."""

_EACH = 64
"""Complaints of one signature that are kept; the others are counted."""

_MOST_LINES = 200_000

_BUFFERED = 16 << 10
"""Bytes of iterations that a rank printed before another raised and that arrive after it: twice a buffer of stdio."""

_TRACEBACK, _FRAMES = 32 << 10, 200
"""Bytes and lines above the last line of a traceback in which it begins."""

_TRACEBACK_BEGINS = "Traceback (most recent call last)"
_OF_WORKER = "Original Traceback (most recent call last)"
"""What PyTorch prints of the process whose exception it raises again."""
_OF_RANK = re.compile(r"last\): \(RANK (\d{1,6})\)$")

Above: TypeAlias = Literal["none", "caught", "logged", "uncaught"]

_HEADER = re.compile(rb"iteration +(\d{1,9})/ *(\d{1,9})")
_RETRIES = re.compile(
    r"(?i)\bretry|\bre-try|\bwill (?:try|fall)|\btrying again\b|\bfall(?:ing)? ?back\b|\bignor(?:ed|ing)\b"
    r"|\bstart(?:ing)? from (?:scratch|random)|\bdisabling\b|\bwill (?:be|use|not)\b|\bcontinu(?:e|ing)\b"
    r"|\busing default"
    r"|\bskipp(?:ed|ing)\b|\boptional\b|\bdeprecat|\bnon-?fatal\b|\bnot (?:critical|fatal)\b"
    r"|(?<!error: )warning\b|\bharmless\b"
)
_HEDGED = re.compile(
    r"(?i)\b(?:may|might|could|can) (?:be|have|cause|lead)\b|\bpossibly\b|\bif (?:you|this)\b"
    r"|\bplease\b(?! report a bug)"
)
_COMPLAINS = re.compile(r"(?i)error|fatal|fail|assert|exception|\||\bnan\b")
"""What a line of everyday words has when something is wrong."""
_SUMMARY = re.compile(r"exitcode +: ")
_PYTHON = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*(?:[A-Za-z_]\w*)?(?:Error|Exception|Fault|Failure)\b|^(?:[a-z_]\w*\.)+[A-Z]\w+: "
)
_NATIVE = re.compile(r"\.(?:cpp|cc|cu|h):\d+\]")
_HANDLED = re.compile(r"(?i)fail|error|exception|could not|cannot|unable|missing|not (?:found|available|installed)")
"""What a logger says of an exception that it has caught. PyTorch's C++ code catches none of Python's."""


class Complaint(NamedTuple):
    """A log line that matches a signature, with the places it names and where it stands.

    ``survived``: an iteration was printed after it, but only one. ``raised``: it ends a traceback that nobody caught.
    ``logged``: the same of one that a logger printed; it counts unless its rank raises another later. ``begins``: the
    offset at which the error begins whose last line it is, where that is another line.
    """

    signature: FailureSignature
    line: LogLine
    location: Location
    raw: str
    log: Path
    offset: int
    survived: bool = False
    raised: bool = False
    logged: bool = False
    begins: int | None = None


@dataclass
class Reading:
    """What a log complains of since its last iterations, in the order of its lines."""

    log: Path
    complaints: list[Complaint] = field(default_factory=list)
    overtaken: list[Complaint] = field(default_factory=list)
    """Tracebacks with more than one iteration after them: the cause only of a rank that is known to have ended."""
    counts: Counter[str] = field(default_factory=Counter)
    """How many lines each signature matched, including those that are not kept."""
    ranks: dict[str, set[int]] = field(default_factory=dict)
    """The ranks whose lines match, by signature."""
    hosts: dict[str, set[str]] = field(default_factory=dict)
    """The nodes whose lines match, by signature."""
    waits: TimedOutCollectives = field(default_factory=TimedOutCollectives)
    step: int | None = None
    """The last iteration."""
    steps: int | None = None
    """How many there were to be, as that line says."""
    step_time: str | None = None
    """The time of the last iteration before it, as printed."""
    last: str = ""
    """The last line that is not empty."""

    def note(self, complaint: Complaint) -> None:
        """Add a complaint: count it, keep its rank and host, and the complaint itself while they are few of its
        kind.
        """
        kind = complaint.signature.id
        self.counts[kind] += 1
        if complaint.line.rank is not None:
            self.ranks.setdefault(kind, set()).add(complaint.line.rank)
        if host := complaint.line.host or complaint.location.host:
            self.hosts.setdefault(kind, set()).add(host)
        if complaint.signature.role == "witness":
            self.waits.note(complaint.line)
        if self.counts[kind] <= _EACH:
            self.complaints.append(complaint)

    def forget(self) -> None:
        """Drop all complaints so far: all ranks went on after them."""
        for known in (self.complaints, self.overtaken, self.counts, self.ranks, self.hosts):
            known.clear()
        self.waits.forget()


def read_complaints(log: Path, start: int = 0) -> Reading:
    """What ``log`` complains of from the byte ``start`` on; an empty reading where it cannot be read."""
    reading = Reading(log)
    with contextlib.suppress(OSError), open_log(log) as file:
        last_two = deque(_iterations(file, start), maxlen=2) or deque(_iterations_of_rank_0(file, start), maxlen=2)
        if last_two:
            _, reading.step, reading.steps, reading.step_time = last_two[-1]
        begin = last_two[0][0] if len(last_two) == 2 else start
        for complaint in _complaints_from(file, max(start, begin - _BUFFERED), reading):
            if complaint.offset >= begin:
                survived = bool(last_two) and complaint.offset < last_two[-1][0]
                reading.note(complaint._replace(survived=survived))
            elif complaint.raised and not complaint.logged:
                reading.overtaken.append(complaint)
        _restore_caught(reading)
        size = os.fstat(file.fileno()).st_size
        tail = os.pread(file.fileno(), 2 * _REACH, max(0, size - 2 * _REACH))
        reading.last = next((line for line in map(plain_line, reversed(tail.split(b"\n"))) if line.strip()), "")
        reading.last = reading.last.strip()[:LONGEST]
    return reading


def complaints_in(readings: Sequence[Reading]) -> Iterator[Complaint]:
    """Every complaint of all readings, in their order."""
    return chain.from_iterable(reading.complaints for reading in readings)


def _restore_caught(reading: Reading) -> None:
    """Take back as causes the tracebacks of ranks that then ended by themselves, whatever others printed in between."""
    ends = [item for item in reading.complaints if item.signature.role == "ended"]
    own = [item for item in ends if "Terminated" not in item.line.text]
    ended: set[int | None] = set()
    for item in own:
        ended.update([item.line.rank, *item.location.ranks])
    ended.discard(None)
    later, reading.complaints = reading.complaints, []
    for item in reading.overtaken:
        if item.line.rank in ended:
            reading.note(item)
    for item in later:
        dead = item.raised and not item.logged and item.line.rank in ended
        reading.complaints.append(item._replace(survived=item.survived and not dead))


def _iterations_of_rank_0(file: FileIO, start: int) -> Iterator[tuple[int, int, int | None, str | None]]:
    """Yields (offset, number, None, None) for each iteration from ``start`` on, of a log with rank 0's prints alone.

    The tuples are like those of ``_iterations``, but of all iterations. They are numbered from 1 at ``start``, as these
    prints say neither number, planned total nor time.
    """
    for number, (offset, _) in enumerate(find_markers(file, (STEP_TIME_BEGINS,), start), 1):
        yield offset, number, None, None


def _iterations(file: FileIO, start: int) -> Iterator[tuple[int, int, int | None, str | None]]:
    """Yields up to four last iterations of a log from ``start`` on, as (offset, number, planned total, time).

    The time is as printed, None where the line has none.
    """
    found = deque((offset for offset, _ in find_markers(file, list(MARKERS), start=start)), maxlen=4)
    for offset in found:
        begin = max(0, offset - 300)
        before = os.pread(file.fileno(), offset - begin, begin)
        header = list(_HEADER.finditer(before))
        if header:
            time = re.findall(rb"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", before)
            yield offset, int(header[-1][1]), int(header[-1][2]), time[-1].decode() if time else None


def _complaints_from(file: FileIO, begin: int, reading: Reading) -> Iterator[Complaint]:
    """Yields the complaints of a log from the offset ``begin`` on, at most those of ``_MOST_LINES`` lines.

    A barrier that all ranks passed makes ``reading`` forget what came before.
    """
    last_offset, lines = -1, 0
    for offset, marker in _telltale_words(file, begin):
        start, raw = line_at(file, offset)
        if start <= last_offset:
            continue
        last_offset, lines = start, lines + 1
        if lines > _MOST_LINES:
            return
        if marker == _PASSED:
            reading.forget()
        elif complaint := _complaint_in_line(file, reading, start, raw):
            yield complaint


def _telltale_words(file: FileIO, begin: int) -> Iterator[tuple[int, bytes]]:
    """Yields (offset, word) for each word that gives complaints away, in the order of the log.

    In the middle of a long log only the commonest words are searched.
    """
    size = os.fstat(file.fileno()).st_size
    everything = (*_CORE, *_MORE, _PASSED)
    middle, tail = min(begin + _HEAD, size), max(begin + _HEAD, size - _TAIL)
    yield from find_markers(file, everything, begin, middle)
    yield from find_markers(file, (*_CORE, _PASSED), middle, tail)
    yield from find_markers(file, everything, tail)


def _complaint_in_line(file: FileIO, reading: Reading, start: int, raw: bytes) -> Complaint | None:
    """The complaint in the line ``raw`` that begins at ``start``; None where it matches no signature or is not
    believed.
    """
    text = plain_line(raw)
    line = parse_line(text[:_REACH])
    found = signature_of(line.text)
    if found is None or found.role == "noise":
        return None
    if "start" in found.traits and reading.step is not None:
        found = msgspec.structs.replace(found, role="cascade")
    looks = found.role == "root" and reading.counts[found.id] < _EACH and _PYTHON.match(line.text)
    above, of = _traceback_above(file, start, text) if looks else (None, None)
    if of is not None:
        line = LogLine(line.text, of, time=line.time)
    found = _credible_signature(found, line, above)
    begins = None
    if found and found.role == "root" and reading.counts[found.id] < _EACH:
        begins, rank = _nccl_reason(file, start, text)
        line = line._replace(rank=rank) if line.rank is None else line
    if found and found.role in ("ended", "killed") and _SUMMARY.match(line.text):
        line = _with_rank_and_host(file, start, line)
    if found is None:
        return None
    message = text[:LONGEST].strip()
    how = {"raised": above in ("uncaught", "logged"), "logged": above == "logged"}
    return Complaint(found, line, location_of(line.text), message, reading.log, start, begins=begins, **how)


def _nccl_reason(file: FileIO, start: int, text: str) -> tuple[int | None, int | None]:
    """Offset and rank of the NCCL error whose reason stands in the line at ``start``; None and None for other lines.

    The reason stands below "Last error:", behind what the error means for the rank; in a watchdog's message only the
    first line names the rank.
    """
    begin = max(0, start - _REACH)
    block = os.pread(file.fileno(), start - begin, begin)
    if b"Last error:" not in block:
        return None, None
    line_printer = printer_of(text)[0]
    offset, is_reason = start, False
    for raw in reversed(block.split(b"\n")[:-1]):
        offset -= len(raw) + 1
        printer, rest = printer_of(plain_line(raw))
        own = printer == line_printer
        if own and not is_reason and rest.strip() != "Last error:":
            return None, None
        is_reason = is_reason or own
        if is_reason and "NCCL error" in rest and (own or not line_printer):
            return offset, parse_line(plain_line(raw)).rank
    return None, None


def _with_rank_and_host(file: FileIO, start: int, line: LogLine) -> LogLine:
    """``line``, one of torchrun's summary, with the rank and the host that stand above it, as far as they do."""
    begin = max(0, start - 400)
    above = os.pread(file.fileno(), start - begin, begin)
    ranks = re.findall(rb"\brank +: (\d{1,6}) ", above)
    hosts = re.findall(rb"\bhost +: ([\w.-]+)", above)
    return line._replace(rank=int(ranks[-1]) if ranks else line.rank, host=hosts[-1].decode() if hosts else line.host)


def _credible_signature(found: FailureSignature, line: LogLine, above: Above | None) -> FailureSignature | None:
    """The signature as far as its line can be believed: itself, a less sure one, or None for mere warnings and
    retries.

    ``above`` is what stands above an exception; None for other lines.
    """
    if found.role != "root" or found.fault == "network" or "NVRM" in line.text or "SXid" in line.text:
        return found
    doubted = _RETRIES.search(line.text) or (found.sure != "certain" and _HEDGED.search(line.text))
    if line.mild or above == "caught" or (doubted and above != "uncaught"):
        return None
    plain_words = "everyday" in found.traits and above is None and not _COMPLAINS.search(line.text)
    if plain_words or (found.sure == "likely" and above == "none"):
        return msgspec.structs.replace(found, sure="possible")
    return found


def line_at(file: FileIO, offset: int) -> tuple[int, bytes]:
    """The line around ``offset`` as (where it begins, its bytes), cut ``_REACH`` bytes on either side."""
    begin = max(0, offset - _REACH)
    block = os.pread(file.fileno(), offset - begin + _REACH, begin)
    start = block.rfind(b"\n", 0, offset - begin) + 1
    end = block.find(b"\n", offset - begin)
    return begin + start, block[start : end if end >= 0 else len(block)]


def line_number_of(item: Complaint) -> int | None:
    """The number of the complaint's line in its file, from 1; None where the file cannot be read any more."""
    number, left = 1, item.offset
    try:
        with open_log(item.log) as file:
            while left > 0 and (block := file.read(min(left, 1 << 20))):
                number += block.count(b"\n")
                left -= len(block)
    except OSError:
        return None
    return number


def _traceback_above(file: FileIO, start: int, text: str) -> tuple[Above, int | None]:
    """(what kind of traceback stands above an exception's line, the rank that it names, as for checkpoints).

    Of several printers only the line's own counts. Bridge logs each import that it can do without: a message, and the
    traceback behind it or below. The rank is None where the traceback names none.
    """
    begin = max(0, start - _TRACEBACK)
    before = list(map(plain_line, os.pread(file.fileno(), start - begin, begin).split(b"\n")))[:-1]
    line_printer = printer_of(text)[0]
    own = [rest for printer, rest in map(printer_of, reversed(before)) if printer == line_printer]
    for number, line in enumerate(own[:_FRAMES]):
        if _OF_WORKER in line:
            return "uncaught", None
        if _TRACEBACK_BEGINS in line:
            alone = (
                parse_line(line).text.lstrip("ERO |:-\u2500\u256d").startswith(_TRACEBACK_BEGINS)
            )  # or in a frame, by rich
            if not alone:
                return "caught", None
            of = _OF_RANK.search(line)
            kind = _traceback_kind(own[number + 1]) if number + 1 < len(own) else "uncaught"
            return kind, int(of[1]) if of else None
    return "uncaught" if any('  File "' in line for line in own[:8]) else "none", None


def _traceback_kind(line: str) -> Above:
    """Whether the traceback below ``line`` was caught, logged or neither, by what its printer said before it."""
    parsed = parse_line(line)
    if parsed.text.startswith("Exception ignored "):
        return "caught"
    if not parsed.mild or _NATIVE.search(line):
        return "uncaught"
    return "none" if _HANDLED.search(parsed.text) else "logged"


_LATE = 60.0
"""Seconds by which a line may arrive after later ones: by more than that, it is the clocks of two nodes that differ."""


def is_kernel_assertion_of(item: Complaint, other: Complaint) -> bool:
    """Whether ``other`` is a kernel's own assertion, and ``item`` may be what CUDA says because of it.

    A kernel's print has no prefix, and not every one names its rank.
    """
    if "traps" not in other.signature.traits:
        return False
    own = item.line.rank
    if other.line.rank is not None or other.line.local is not None:
        return (other.line.rank, other.line.local) == (own, item.line.local)
    return own is None or not other.location.ranks or own in other.location.ranks


def first_by_time(items: Sequence[Complaint]) -> Complaint:
    """The first complaint in its file, unless another with the same style of time is a little earlier by the clock."""

    def style(item: Complaint) -> str:
        """The form of a complaint's time: its first 19 characters with every digit as 0, empty without a time. Only
        times of one form can be compared.
        """
        return re.sub(r"\d", "0", (item.line.time or "")[:19])

    def clock(item: Complaint) -> float:
        """Seconds since midnight of a line's time; 0 where it has none."""
        time = re.search(r"(\d\d):(\d\d):(\d\d(?:[.,]\d+)?)", item.line.time or "")
        return int(time[1]) * 3600 + int(time[2]) * 60 + float(time[3].replace(",", ".")) if time else 0.0

    first = found = items[0]
    most = 0.0
    for item in items:
        earlier = (clock(first) - clock(item)) % 86_400
        if item.log == first.log and style(item) == style(first) and most < earlier <= _LATE:
            found, most = item, earlier
    return found
