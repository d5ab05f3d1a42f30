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
        b"log settings|unrecognized|wait contrib|.exc.|nsupported"
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
_DURING = "During handling of the above exception"
_SIGNALLED = re.compile(r"(?:[\w.]+\.)?(?:SignalException|KeyboardInterrupt|SystemExit)\b")
"""An exception of a rank that was told to end; what it raises because of that is no cause."""
_OF_RANK = re.compile(r"last\): \(RANK (\d{1,6})\)$")

Above: TypeAlias = Literal["none", "caught", "logged", "reported", "uncaught"]

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
_WARNS = re.compile(r"\bWARN|(?:^|\W)W\d")
_REPORTS = re.compile(r"(?:^|[\[|] ?|- )(?:ERROR|CRITICAL)\b")
"""A logger's level that goes with a traceback of an exception that it has caught; INFO and DEBUG are said of others."""


class Complaint(NamedTuple):
    """One log line that matches a failure signature, with the places that it names and where it stands.

    ``read_complaints`` makes it. ``survived``: exactly one iteration was printed after it. ``raised``: it ends a
    traceback that nobody caught, or that a logger printed. ``logged``: a logger printed that traceback as a warning, so
    that the line counts unless its rank raises another later; ``reported``: as an error, so that it counts unless its
    rank went on. ``begins``: the offset in bytes at which the error begins whose
    last line this is; None: at this line.
    """

    signature: FailureSignature
    """The kind of line that it is; a copy of the table's where the line counts for less, or an error number is known.
    """
    line: LogLine
    """The line without its prefixes, and what these say."""
    location: Location
    """The ranks, node, GPU and process that the line names itself."""
    raw: str
    """The line as a terminal shows it, with its prefixes, cut to ``LONGEST`` characters."""
    log: Path
    """The file that the line stands in."""
    offset: int
    """Where in the log the line begins, in bytes."""
    survived: bool = False
    raised: bool = False
    logged: bool = False
    reported: bool = False
    begins: int | None = None


@dataclass
class Reading:
    """What one log complains of since its last iterations: the lines that match failure signatures, in their order.

    ``read_complaints`` makes it. ``note`` adds a line to ``complaints`` (at most 64 of each signature) and to what is
    counted by signature, ``forget`` drops all so far, because training went on, but the last iteration and the last
    line; both return None and raise nothing.
    ``step`` and ``steps`` are None where the log has no iteration that tells. What is kept by signature
    has its id as the key; all is empty where no line matches.
    """

    log: Path
    """The path of the log."""
    complaints: list[Complaint] = field(default_factory=list)
    overtaken: list[Complaint] = field(default_factory=list)
    """Tracebacks with more than one iteration after them: the cause only of a rank that is known to have ended."""
    counts: Counter[str] = field(default_factory=Counter)
    """How many lines each signature matched, including those that are not kept."""
    ranks: dict[str, set[int]] = field(default_factory=dict)
    """The ranks whose lines match, by signature."""
    hosts: dict[str, set[str]] = field(default_factory=dict)
    """The names of the nodes whose lines match, by signature."""
    waits: TimedOutCollectives = field(default_factory=TimedOutCollectives)
    """The collectives that its ranks waited in."""
    step: int | None = None
    """The number of the last iteration."""
    steps: int | None = None
    """How many iterations there were to be, as the last one's line says."""
    last: str = ""
    """The log's last line that is not blank, without blanks around it, cut to ``LONGEST`` characters; empty without
    one.
    """

    def note(self, complaint: Complaint) -> None:
        """Count a log line that matches a signature, and keep its rank, host and what it says of collectives.

        The line itself is appended to ``complaints`` only where it is among the first 64 of its signature.
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
        """Drop all log lines noted so far, with their counts and places, because all ranks went on after them.

        The last iteration and the last line stay.
        """
        for known in (self.complaints, self.overtaken, self.counts, self.ranks, self.hosts):
            known.clear()
        self.waits.forget()


def read_complaints(log: Path, start: int = 0) -> Reading:
    """Return what ``log`` complains of: its lines that match failure signatures, after its last iteration but one.

    Where the log has fewer than two iterations, all of its lines. Only what begins at byte ``start`` or later counts.
    The last step, the planned steps and the last line are in it, too. Empty but for ``log`` where the log is missing or
    cannot be read; where reading fails later, it has what was found until then. Never raises.
    """
    reading = Reading(log)
    with contextlib.suppress(OSError), open_log(log) as file:
        last_two = deque(_iterations(file, start), maxlen=2) or deque(_iterations_of_rank_0(file, start), maxlen=2)
        if last_two:
            _, reading.step, reading.steps = last_two[-1]
        # What came before the last two iterations has been survived.
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
    """Return an iterator over the ``complaints`` of all readings, in the order of readings and lines.

    Those set aside as ``overtaken`` are left out. It can be used once.
    """
    return chain.from_iterable(reading.complaints for reading in readings)


def _restore_caught(reading: Reading) -> None:
    """Let tracebacks in ``reading`` count as causes again whose ranks ended by themselves; ``reading`` is changed.

    Those set aside as ``overtaken``, because others printed iterations after them, are noted, before all others; and
    uncaught tracebacks of these ranks are no longer ``survived``. Nothing changes where no line says that a rank ended.
    """
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


def _iterations_of_rank_0(file: FileIO, start: int) -> Iterator[tuple[int, int, None]]:
    """Yield (offset, number, None) for each iteration of a log that has rank 0's prints alone.

    The tuples have the form of those of ``_iterations``: these prints say no planned total. ``file`` is the log,
    open for reading bytes. All iterations from the byte ``start`` on, numbered from 1; the offset is in bytes.
    Nothing for a log without such prints; that it has no other lines of iterations is not checked.

    Raises:
        OSError: the log cannot be read
    """
    for number, (offset, _) in enumerate(find_markers(file, (STEP_TIME_BEGINS,), start), 1):
        yield offset, number, None


def _iterations(file: FileIO, start: int) -> Iterator[tuple[int, int, int | None]]:
    """Yield (offset, number, planned total) of up to the last four iterations of a log from byte ``start`` on.

    ``file`` is the log, open for reading bytes. They come in its order. The offset, in bytes, is within the
    iteration's line. Of the last four, lines of another form are left out.

    Raises:
        OSError: the log cannot be read
    """
    found = deque((offset for offset, _ in find_markers(file, list(MARKERS), start=start)), maxlen=4)
    for offset in found:
        # What marks an iteration stands late in its line: its number is before it.
        begin = max(0, offset - 300)
        before = os.pread(file.fileno(), offset - begin, begin)
        header = list(_HEADER.finditer(before))
        if header:
            yield offset, int(header[-1][1]), int(header[-1][2])


def _complaints_from(file: FileIO, begin: int, reading: Reading) -> Iterator[Complaint]:
    """Yield the lines of a log from the offset ``begin`` on that match failure signatures, in their order.

    ``file`` is the log, open for reading bytes. At most ``_MOST_LINES`` (200,000) lines with telltale words are looked
    at, the others left out. What is yielded is not added to ``reading``, that of this log; but a barrier that all ranks
    passed makes ``reading`` forget what came before. Nothing where no line matches.

    Raises:
        OSError: the log cannot be read
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
    """Yield (offset, word) for each word in a log, from byte ``begin`` on, that gives lines about failures away.

    ``file`` is the log, open for reading bytes. In the order of the log; the offset is the word's own, in bytes. In
    the middle of a long log only the commonest of these words are searched.

    Raises:
        OSError: the log cannot be read
    """
    size = os.fstat(file.fileno()).st_size
    everything = (*_CORE, *_MORE, _PASSED)
    middle, tail = min(begin + _HEAD, size), max(begin + _HEAD, size - _TAIL)
    yield from find_markers(file, everything, begin, middle)
    yield from find_markers(file, (*_CORE, _PASSED), middle, tail)
    yield from find_markers(file, everything, tail)


def _complaint_in_line(file: FileIO, reading: Reading, start: int, raw: bytes) -> Complaint | None:
    """Return the log line ``raw``, which begins at the offset ``start``, as a complaint, if it tells of a failure.

    ``file`` is the log, open for reading bytes, ``raw`` without its line break. None where it matches no signature, or
    one that means nothing, or is not believed, as mere warnings are not. ``reading``, that of the log, is not changed:
    it tells which lines of the signature were noted before, and whether there was an iteration.

    Raises:
        OSError: the log cannot be read
    """
    text = plain_line(raw)
    line = parse_line(text[:_REACH])
    found = signature_of(line.text)
    if found and found.id == "exception" and line.text.endswith(":"):
        text = f"{text} {_message_below(file, start + len(raw) + 1, text)}".rstrip()
        line = parse_line(text[:_REACH])
        found = signature_of(line.text)
    if found is None or found.role == "noise":
        return None
    # After the first iteration such a line follows something else.
    if "start" in found.traits and reading.step is not None:
        found = msgspec.structs.replace(found, role="cascade")
    # Only of lines that will be kept: to look above them costs another read of the log.
    looks = found.role == "root" and reading.counts[found.id] < _EACH and _PYTHON.match(line.text)
    above, of = _traceback_above(file, start, text) if looks else (None, None)
    if of is not None:
        line = LogLine(line.text, of, time=line.time)
    found = _credible_signature(found, line, above)
    begins = None
    if found and found.role == "root" and reading.counts[found.id] < _EACH:
        begins, rank = _nccl_reason(file, start, text)
        if rank is not None and (line.rank is None or line.labelled):
            line = line._replace(rank=rank, labelled=False)
    if found and found.role in ("ended", "killed") and _SUMMARY.match(line.text):
        line = _with_rank_and_host(file, start, line)
    if found is None:
        return None
    message = text[:LONGEST].strip()
    raised = above in ("uncaught", "logged", "reported")
    how = {"raised": raised, "logged": above == "logged", "reported": above == "reported"}
    return Complaint(found, line, location_of(line.text), message, reading.log, start, begins=begins, **how)


def _message_below(file: FileIO, begin: int, text: str) -> str:
    """Return the first line of the message of an exception whose own line ``text`` has none; empty where it has none.

    ``file`` is the log, open for reading bytes; the message is looked for in the 2048 bytes from ``begin``, where the
    next line begins, among lines with the same prefix.

    Raises:
        OSError: the log cannot be read
    """
    line_printer = printer_of(text)[0]
    for raw in os.pread(file.fileno(), _REACH, begin).split(b"\n"):
        printer, rest = printer_of(plain_line(raw))
        if printer == line_printer and rest.strip():
            return "" if rest.startswith(("srun: ", "slurmstepd", _TRACEBACK_BEGINS)) else rest.strip()
    return ""


def _nccl_reason(file: FileIO, start: int, text: str) -> tuple[int | None, int | None]:
    """Return (offset, rank) of the line with "NCCL error" whose reason stands in the line ``text`` at byte ``start``.

    ``file`` is the log, open for reading bytes, ``text`` as ``plain_line`` returns it. (None, None) for other lines;
    the rank is None where the error's line has none in its prefix but the number of a task. The reason stands below
    "Last error:", behind what the error means for the rank; in a watchdog's message only the first line names the rank.

    Raises:
        OSError: the log cannot be read
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
        if is_reason and "NCCL error" in rest and printer.startswith(line_printer):
            line = parse_line(plain_line(raw))
            return offset, None if line.labelled else line.rank
    return None, None


def _with_rank_and_host(file: FileIO, start: int, line: LogLine) -> LogLine:
    """Return ``line``, the last one of a rank in torchrun's summary, with the rank and host that stand above it.

    ``file`` is the log, open for reading bytes. ``start`` is the offset of the line in bytes; the 400 bytes before it
    are looked at. They replace what ``line`` has; what does not stand there stays as it is in ``line``.

    Raises:
        OSError: the log cannot be read
    """
    begin = max(0, start - 400)
    above = os.pread(file.fileno(), start - begin, begin)
    ranks = re.findall(rb"\brank +: (\d{1,6}) ", above)
    hosts = re.findall(rb"\bhost +: ([\w.-]+)", above)
    if ranks:
        line = line._replace(rank=int(ranks[-1]), labelled=False)
    return line._replace(host=hosts[-1].decode()) if hosts else line


def _credible_signature(found: FailureSignature, line: LogLine, above: Above | None) -> FailureSignature | None:
    """Return the signature of a log line as far as the line can be believed; None for mere warnings and retries.

    That is ``found`` itself, or a copy whose ``sure`` is ``possible``; neither ``found`` nor ``line`` is changed.
    ``above`` is the kind of traceback that stands above an exception, as ``_traceback_above`` returns it; None for
    lines that are no exceptions, or above which nobody looked.
    """
    if found.role != "root" or found.fault == "network" or "NVRM" in line.text or "SXid" in line.text:
        return found
    doubted = _RETRIES.search(line.text) or (found.sure != "certain" and _HEDGED.search(line.text))
    # A logger calls it a warning, or its code went on after it.
    if line.mild or above == "caught" or (doubted and above not in ("uncaught", "reported")):
        return None
    plain_words = "everyday" in found.traits and above is None and not _COMPLAINS.search(line.text)
    if plain_words or (found.sure == "likely" and above == "none"):
        return msgspec.structs.replace(found, sure="possible")
    return found


def line_at(file: FileIO, offset: int) -> tuple[int, bytes]:
    """Return (start, bytes) of the line around byte ``offset`` in a log, without its line break.

    The start is the offset in bytes at which the returned bytes begin. Of a longer line only the 2048 bytes before and
    after ``offset`` are returned. ``file`` is open for reading bytes, and stays at its position.

    Raises:
        OSError: the log cannot be read
    """
    begin = max(0, offset - _REACH)
    block = os.pread(file.fileno(), offset - begin + _REACH, begin)
    start = block.rfind(b"\n", 0, offset - begin) + 1
    end = block.find(b"\n", offset - begin)
    return begin + start, block[start : end if end >= 0 else len(block)]


def line_number_of(item: Complaint) -> int | None:
    """Return the number of the line ``item`` in its log, from 1; None where the log cannot be opened or read any more.

    The log is read again for it. One that has been shortened since is counted to its end.
    """
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
    """Return (kind, rank) of the traceback that stands above the exception's line ``text`` at the offset ``start``.

    ``file`` is the log, open for reading bytes, ``text`` as ``plain_line`` returns it. The kind is ``uncaught``,
    ``logged`` or ``reported`` (a logger printed it, as a warning or an error), ``caught`` (the program went on, or a
    signal was ending it) or ``none``: no traceback, or one that its logger says was handled. The rank is one that the
    traceback names, as those of checkpoints do, else None. Of several ranks that print at once, only lines with this
    one's prefix count.

    Raises:
        OSError: the log cannot be read
    """
    begin = max(0, start - _TRACEBACK)
    before = list(map(plain_line, os.pread(file.fileno(), start - begin, begin).split(b"\n")))[:-1]
    line_printer = printer_of(text)[0]
    own = [rest for printer, rest in map(printer_of, reversed(before)) if printer == line_printer]
    for number, line in enumerate(own[:_FRAMES]):
        if _OF_WORKER in line:
            return "uncaught", None
        if _TRACEBACK_BEGINS in line:
            begins_with = parse_line(line).text
            alone = begins_with.lstrip("ERO |:-\u2500\u256d").startswith(_TRACEBACK_BEGINS)  # or in a frame, by rich
            if not alone:
                return "reported" if _REPORTS.search(begins_with) else "caught", None
            said = [parse_line(rest).text for rest in own[number + 1 : number + 6] if rest.strip()]
            if len(said) > 1 and said[0].startswith(_DURING) and _SIGNALLED.match(said[1]):
                return "caught", None
            of = _OF_RANK.search(line)
            kind = _traceback_kind(own[number + 1]) if number + 1 < len(own) else "uncaught"
            return kind, int(of[1]) if of else None
    return "uncaught" if any('  File "' in line for line in own[:8]) else "none", None


def _traceback_kind(line: str) -> Above:
    """Return the kind of the traceback below ``line``, which its printer wrote right before it, by what ``line`` says.

    ``logged`` or ``reported`` where it may be a logger's that has printed the traceback, as a warning or as an error;
    ``none`` where it says that the error was handled, ``caught`` where Python ignored it; otherwise ``uncaught``.
    """
    parsed = parse_line(line)
    if parsed.text.startswith("Exception ignored "):
        return "caught"
    if _NATIVE.search(line):
        return "uncaught"
    if _REPORTS.search(parsed.text):
        return "reported"
    if not parsed.mild:
        return "uncaught"
    if _HANDLED.search(parsed.text):
        return "none"
    return "logged" if _WARNS.search(line) else "uncaught"


_LATE = 60.0
"""Seconds by which a line may arrive after later ones: by more than that, it is the clocks of two nodes that differ."""


def is_kernel_assertion_of(item: Complaint, other: Complaint) -> bool:
    """Return whether ``other`` is a GPU kernel's own assertion, and ``item`` may be what CUDA says because of it.

    The first holds for lines with the trait ``traps``, the second where nothing shows that the two are of different
    ranks: a kernel's print has no prefix, and not every one names its rank. What ``item`` says is not looked at.
    """
    if "traps" not in other.signature.traits:
        return False
    own = item.line.rank
    if other.line.rank is not None or other.line.local is not None:
        return (other.line.rank, other.line.local) == (own, item.line.local)
    return own is None or not other.location.ranks or own in other.location.ranks


def first_by_time(items: Sequence[Complaint]) -> Complaint:
    """Return the first of ``items``, log lines in their order, unless another is a little earlier by its printed time.

    That is by at most 60 seconds; of several the earliest. Only lines of the same log and with the same form of time
    are compared. At least one item is needed.
    """

    def style(item: Complaint) -> str:
        """Return the form of a log line's time: its first 19 characters with every digit as 0; empty without a time.

        Only times of the same form can be compared.
        """
        return re.sub(r"\d", "0", (item.line.time or "")[:19])

    def clock(item: Complaint) -> float:
        """Return the seconds since midnight of a log line's time; 0 where it has none like ``12:34:56``."""
        time = re.search(r"(\d\d):(\d\d):(\d\d(?:[.,]\d+)?)", item.line.time or "")
        return int(time[1]) * 3600 + int(time[2]) * 60 + float(time[3].replace(",", ".")) if time else 0.0

    first = found = items[0]
    most = 0.0
    for item in items:
        # Modulo a day: midnight may lie between the two, and lines may have no date.
        earlier = (clock(first) - clock(item)) % 86_400
        if item.log == first.log and style(item) == style(first) and most < earlier <= _LATE:
            found, most = item, earlier
    return found
