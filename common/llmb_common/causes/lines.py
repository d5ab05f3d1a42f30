"""A line of a log without what was put in front of it: who printed it, where and when.

Prefixes come in any order and number: ``srun --label``'s and mpirun's rank, torchrun's ``[default3]:`` (the rank on its
node) and PyTorch's ``[rank3]:``, a host (NCCL's with process and GPU, syslog's, pdsh's), times in four styles.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from llmb_common.runs.timing.records import ANSI


class LogLine(NamedTuple):
    """One line of a job's log, split into its text and what the prefixes before it say.

    ``parse_line`` makes it. A field is None where no prefix says it; ``location_of`` tells what the text itself names.
    """

    text: str
    """The line without its prefixes."""
    rank: int | None = None
    """The rank that printed it, among all of the job."""
    local: int | None = None
    """The rank's number on its node, from 0."""
    host: str | None = None
    """The name of the node that printed it."""
    gpu: int | None = None
    """The CUDA device that NCCL names."""
    time: str | None = None
    """The time of the line, as printed."""
    mild: bool = False
    """Whether a logger calls it a warning, information or debugging output; False where no prefix has a level."""
    labelled: bool = False
    """Whether ``rank`` is only the number that ``srun --label`` gives a task, which need not be a rank."""


_TIME = r"\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z| ?[+-]\d\d:?\d\d)?"
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        r"\s*(?P<task>\d{1,6}): ?(?!\d)",
        r"\[?[Rr]ank ?(?P<rank>\d{1,6})\]?: ?|\[[Rr]ank ?\d{1,6}\](?= ?\[)",
        r"\[rank: (?P<rank>\d{1,6})\] ?",
        r"\[(?P<role>(?:[a-z]\w{0,30}?)?)(?P<local>\d{1,4})\]: ?",
        r"\[(?:[\w.-]+@)?\d+,(?:mpirank:)?(?P<rank>\d{1,6})(?:,(?P<host>[\w.-]+))?\]<std(?:err|out)>: ?",
        r"\[(?P<level>[EWIF])(?:\d{3,4} (?P<time>\d\d:\d\d:\d\d(?:\.\d+)?))?\s*(?:\d+ )?[\w./-]+:\d+\] ?",
        r"(?P<level>[EWIF])\d{3,4} (?P<time>\d\d:\d\d:\d\d(?:\.\d+)?) +(?:\d+ )?[\w./-]+:\d+\] ?",
        rf"\[?(?P<time>{_TIME})\]?(?: *[-:|] *| *)(?P<level>(?:WARNING|INFO|DEBUG)\b)?[ :|-]*",
        r"\[ *(?P<time>\d{1,10}\.\d{6})\] ?|[a-z]+\d? *: *(?:emerg|alert|crit|err|warn|notice|info|debug) *: ",
        r"\[(?P<time>[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d \d{4})\] ?",
        r"(?P<time>[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d) (?P<host>[\w.-]+) (?:kernel|[\w./-]+\[\d+\]): ?",
        r"(?P<host>[\w.-]+) kernel: ?",
        r"(?P<host>[A-Za-z][\w.-]*):\d+:\d+ \[(?P<gpu>\d{1,3})\] ",
        r"\[(?P<host>[A-Za-z][\w.-]*):\d+(?::\d+){0,2}\] ",
        r"(?P<level>[A-Z]+) \d\d-\d\d (?P<time>\d\d:\d\d:\d\d) \[?[\w./-]+\.py:\d+\] ?",
        r"\| +(?=\S+(?:Error|Exception)\b)",
        r"\[\d{1,9}\] (?=\S+:\d+:\d+ \[)",
        r"(?:\[\d{1,9}\]|[a-z][\w.-]*/\d{1,5}) (?=\[|Traceback|(?:\w+\.)*\w*(?:Error|Exception)\b)",
        r"\(\w+ pid=\d+(?:, ip=(?P<host>[\d.]+))?\) ",
        r"(?P<host>[a-z][\w.-]*\d[\w.-]*)(?:: | \| | (?=\[(?:rank|default)\d))(?!line \d|error: |fatal error: )",
        r"(?P<host>\d{1,3}(?:\.\d{1,3}){3}): (?!\d)",
        r"(?P<level>WARNING|INFO|DEBUG)[: ][-: ]*",
    )
)
_NO_HOSTS = re.compile(
    r"(?:python|bash|sh|srun|enroot|nccl|cuda|lib|torch|triton|nvidia|epoch|step|iter\w*|layer|stage|expert|thread|phase)[-\d.]*\b|.*\.(?:py|so|cu|cc|cpp|h|sh)\b"
    r"|.*\.[A-Z]\w*(?:Error|Exception|Timeout)$"
)
_MOST_PREFIXES = 6


@functools.lru_cache(maxsize=4096)
def parse_line(line: str) -> LogLine:
    """Split a log line into what its prefixes say (time, host, rank, level) and its text, without blanks around it.

    ``line`` is text without colors, as ``plain_line`` returns it. Of two prefixes that say the same the first counts;
    but ``srun --label``'s number is the rank only where no other prefix has one: a task may be a launcher of ranks. A
    line without known prefixes is all text, with the fields None. The last 4096 results are kept.
    """
    known: dict[str, str] = {}
    rest = line.lstrip()
    for _ in range(_MOST_PREFIXES):
        match = _first_prefix(rest)
        if match is None:
            break
        known = {name: value for name, value in match.groupdict().items() if value} | known
        rest = rest[match.end() :].lstrip()
    labelled = "task" in known and "rank" not in known
    if labelled:
        known["rank"] = known["task"]
    number = {name: int(known[name]) for name in ("rank", "local", "gpu") if name in known}
    place = (number.get("rank"), number.get("local"), known.get("host"), number.get("gpu"))
    mild = known.get("level", "")[:1] in ("W", "I", "D")
    return LogLine(rest.strip(), *place, known.get("time"), mild, labelled)


def _first_prefix(text: str) -> re.Match[str] | None:
    """Return the match of the first pattern of ``_PREFIXES`` that fits the beginning of ``text``; None where none fits.

    ``text`` is a log line, or what is left of it behind other prefixes. What fits is what ``_prefix`` returns.
    """
    for pattern in _PREFIXES:
        found = _prefix(pattern, text)
        if found is not None:
            return found
    return None


def _prefix(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the match of ``pattern`` at the beginning of ``text``, a log line; None where it does not match.

    None, too, where it matches nothing but an empty text, or what would be its group ``host`` is a program's name.
    """
    found = pattern.match(text)
    if found is None or found.end() == 0:
        return None
    host = found.groupdict().get("host")
    return None if host and _NO_HOSTS.match(host) else found


_PRINTER = re.compile(r"(?:\s*\d{1,6}: ?|\[\w*:? ?\d+\]:? ?|\[[\w.@-]+,[\w:.,-]+\]<\w+>: ?)*")


def printer_of(line: str) -> tuple[str, str]:
    """Return (prefix, rest) of a log line: its beginning that says who printed it, and what follows.

    ``line`` is text without colors, as ``plain_line`` returns it. The prefix, such as ``[rank3]:``, has no blanks
    around it; it is empty where nothing says who printed the line. Ranks that print at the same time are told apart by
    it. The rest keeps its indentation.
    """
    match = _PRINTER.match(line)
    end = match.end() if match else 0
    return line[:end].strip(), line[end:]


def plain_line(raw: bytes) -> str:
    """Return the bytes of a log line as text, as a terminal would show it last.

    Without colors, without blanks and line break at its end, and then without all that stands before its last carriage
    return; bytes that are no UTF-8 are replaced. Blanks at its beginning stay.
    """
    text = ANSI.sub(b"", raw).decode(errors="replace").rstrip()
    return text.rpartition("\r")[2].rstrip()


_RANK = re.compile(r"(?<![\w-])(?:global[ _])?[Rr]anks?\"?[ :=#\[(]*(\d{1,6})\b(?! of\b)")
_NO_ONES_RANK = re.compile(r"\[PG ID \d+ PG GUID (?!0\b)\S* Rank \d+\]|\bbetween [Rr]ank ?\d+ and [Rr]ank")
"""Where a rank is counted within a process group, or is one of two that differ: either may be wrong."""
_TASKS = re.compile(r"^srun: (?:error: )?(?P<host>[\w.-]+): tasks? (?P<tasks>[\d,-]+): ")
_ON = re.compile(
    # Not where slurmstepd itself is that says that a job was cancelled.
    r"(?:\bON(?! \S+ CANCELLED)|\bon node|\bnode:|\bfailed on node|Node failure on|(?<!resolve )\bhost *:"
    r'|"(?:host|hostname|node)": ?")'
    r"\s*(?P<host>[A-Za-z][\w.-]*\w)"
)
_STEPD = re.compile(r"^slurmstepd-(?P<host>[\w.-]+): (?!.*CANCELLED)")
_PMIX = re.compile(r"^slurmstepd: error: +mpi/pmix\w*: \w+: (?P<host>[\w.-]+) \[\d+\]: ")
_RAY = re.compile(r"\bnode \((?:ID: \w+, )?IP: (?P<host>[\d.]*\d)")
_CONTRIBUTOR = re.compile(r"\bwait contrib: (?P<host>[A-Za-z][\w.-]*)")
"""The node that PMIx waits for, in a line of another."""
_BUS = re.compile(r"\b(?:PCI:)?((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)\b")
_DEVICE = re.compile(r"\b(?:GPU|[Dd]evice:?|cudaDev)[ #]*(\d{1,2})\b")
_LOCAL = re.compile(r"\blocal_rank: (\d{1,4})\b")
_PID = re.compile(r"(?:\b(?:pid:?|PID|[Pp]rocess)[ =]*|\w\[(?=\d+\]: segfault))(\d{1,10})\b")


class Location(NamedTuple):
    """The ranks, node, GPU and process that the text of a log line names; each is empty or None where it names none.

    ``location_of`` makes it. ``ranks`` are numbers among all ranks of the job, ``host`` is the node's name, ``local``
    the rank's number on its node, ``gpu`` the GPU's index there.
    """

    ranks: tuple[int, ...] = ()
    host: str | None = None
    bus: str | None = None
    """The PCIe address of the GPU as the line spells it, in lower case."""
    gpu: int | None = None
    local: int | None = None
    pid: int | None = None
    """The id of the process on its node."""


def location_of(text: str) -> Location:
    """Return the ranks, node, GPU and process that the text of a log line names; each empty or None where none is.

    ``text`` is the line without its prefixes. Several ranks only from lines of srun and of failed barriers, in the
    order of the text; of other lines the first one named, and none where the line counts ranks within a process group,
    or says that two differ.
    Of several GPUs or processes the first. A GPU's PCIe address only from lines of the driver (Xid, NVRM).
    """
    tasks, on = _TASKS.match(text), _ON.search(text)
    bus = _BUS.search(text) if "Xid" in text or "NVRM" in text else None
    numbers = [_first_number(pattern, text) for pattern in (_DEVICE, _LOCAL, _PID)]
    if tasks:
        ranks = tuple(_expand_tasks(tasks["tasks"]))
    elif (missing := re.search(r"[Rr]anks? ([\d, ]+?) failed to pass", text)) is not None:
        ranks = tuple(int(number) for number in re.findall(r"\d{1,6}", missing[1]))
    else:
        named = _first_number(_RANK, text)
        ranks = () if named is None or _NO_ONES_RANK.search(text) else (named,)
    where = tasks or _CONTRIBUTOR.search(text) or _STEPD.match(text) or _PMIX.match(text) or _RAY.search(text) or on
    host = where["host"] if where else None
    return Location(ranks, host, bus[1].lower() if bus else None, *numbers)


def _first_number(pattern: re.Pattern[str], text: str) -> int | None:
    """Return the number in the first group of the first match of ``pattern`` in ``text``; None without a match.

    The group must match decimal digits alone.
    """
    found = pattern.search(text)
    return int(found[1]) if found else None


def _expand_tasks(tasks: str) -> list[int]:
    """Return the task numbers in a list of srun's, in its order: 0, 1, 2 and 5 of ``0-2,5``.

    Duplicates stay. Parts that are no numbers are left out, and ranges longer than 65,536 are cut: no job has so many
    tasks. Empty where nothing is left.
    """
    numbers: list[int] = []
    for part in tasks.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            numbers += range(int(first), min(int(last or first), int(first) + 65_536) + 1)
    return numbers
