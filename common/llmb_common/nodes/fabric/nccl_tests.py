"""What nccl-tests print (``all_reduce_perf`` and the others), of any release, read as figures.

By their source from 2017 (times in ms, ``bytes N ... res``) to 2.20 (``#wrong``, per-iteration columns, a timestamp):
the columns are those that a test's own header names. Newer ones also write a file of JSON (``-J``), which has the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, product
from typing import NamedTuple

import msgspec

from llmb_common.base.printable import counted
from llmb_common.base.structs import from_json
from llmb_common.nodes.fabric.measurement import GroupMeasurement, bus_factor


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one message size in an output of nccl-tests, either out of place or in place.

    ``parse_nccl_tests`` makes it. The bandwidths, ``algbw_gbps`` (bytes by time) and ``busbw_gbps`` (on the bus),
    are in 10^9 bytes/s as the program prints them; ``seconds``, above 0, is the time of one operation.
    """

    seconds: float
    algbw_gbps: float
    busbw_gbps: float
    wrong: float | None = None
    """Values that are wrong; None: it was not checked, or this release does not count them."""


class SizeResult(msgspec.Struct, frozen=True, kw_only=True):
    """One row of an output of nccl-tests: the figures of one message size, out of place, in place or both.

    ``parse_nccl_tests`` makes it. ``out_of_place`` or ``in_place`` is None where the program did not run it. The
    property ``columns`` is a list of those that are there, out of place first; the property ``best`` is the one with
    the larger bus bandwidth, None where there is neither.
    """

    bytes: int
    """The message size, as nccl-tests count it."""
    type: str = ""
    """Of the values, such as ``float``; empty: the output has no such column."""
    redop: str = ""
    """The reduction, such as ``sum``; ``none`` for collectives without one, empty where the output has no such column.
    """
    out_of_place: Column | None = None
    in_place: Column | None = None

    @property
    def best(self) -> Column | None:
        """The figures of this message size with the larger bus bandwidth, out of place or in place.

        Of equal ones it is out of place. None: it has neither.
        """
        return max(self.columns, key=lambda column: column.busbw_gbps, default=None)

    @property
    def columns(self) -> list[Column]:
        """The figures of this message size that the output has: out of place, then in place; empty: neither."""
        return [column for column in (self.out_of_place, self.in_place) if column is not None]


class NcclTest(msgspec.Struct, frozen=True, kw_only=True):
    """What the output of one run of a program of nccl-tests, such as all_reduce_perf, says.

    ``parse_nccl_tests`` makes it. ``sizes`` has one entry for each row of the table that can be read, also two of the
    same message size. All but ``measurements`` are properties: ``ranks`` and ``gpus_per_node`` are numbers, 0 where
    they are not known (the latter, too, where nodes differ); ``nodes`` is a tuple of the hosts, each once. ``largest``
    is the row of the largest message (None: no row has figures), ``wrong`` a list of the rows with wrong values, and
    ``checked`` says whether values were compared at all. ``good`` says whether the test ended with figures and without
    problems or wrong values. ``measurements`` returns its rows as a list of measurements of one group, with an error
    where values were wrong; empty where hosts or collective are not known, or nodes differ in the number of their GPUs.
    """

    collective: str = ""
    """As it says; where an old release does not, as its bandwidths say; empty: unknown."""
    version: str = ""
    """Release of nccl-tests; empty: an older one, which does not print it."""
    library: str = ""
    """Release of NCCL; empty: not printed."""
    gpu: str = ""
    """The commonest GPU product; empty: not printed."""
    hosts: tuple[str, ...] = ()
    """The host of each rank, in the order of ranks; empty: not known."""
    sizes: tuple[SizeResult, ...] = ()
    average_busbw_gbps: float | None = None
    """Over all sizes in 10^9 bytes/s, as the program prints it at its end; None: not printed, or no number."""
    out_of_bounds: int | None = None
    """Number of wrong values in all, as the program prints it at its end; None: not printed."""
    ended: bool = False
    """Whether its last lines are there."""
    problems: tuple[str, ...] = ()
    """What went wrong, each a line of the program or a clause of our own; empty: nothing."""

    @property
    def ranks(self) -> int:
        """The number of ranks (GPUs) in this test; 0: not known."""
        return len(self.hosts)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The hosts of this test, each once, in the order of ranks; empty: not known."""
        return tuple(dict.fromkeys(self.hosts))

    @property
    def gpus_per_node(self) -> int:
        """The number of GPUs that took part on each node; 0: not known, or not the same on all nodes."""
        counts = set(Counter(self.hosts).values())
        return counts.pop() if len(counts) == 1 else 0

    @property
    def largest(self) -> SizeResult | None:
        """The row of the largest message size that has figures, of equal sizes the first; None: no row has any."""
        return max((size for size in self.sizes if size.best), key=lambda size: size.bytes, default=None)

    @property
    def wrong(self) -> list[SizeResult]:
        """The rows of message sizes at which received values were wrong, out of place or in place.

        They are in the output's order. Empty: none were, or nothing was checked.
        """
        return [size for size in self.sizes if any(column.wrong for column in size.columns)]

    @property
    def checked(self) -> bool:
        """Whether the test compared received values at any message size, so that wrong ones would show.

        False with ``-c 0``, and for releases of nccl-tests before 2.13, which do not count them.
        """
        columns = chain.from_iterable(size.columns for size in self.sizes)
        return any(column.wrong is not None for column in columns)

    @property
    def good(self) -> bool:
        """Whether the test ended with figures and without any problem, wrong value or value out of bounds.

        One that checked no values can be good, too.
        """
        return self.ended and not self.wrong and not self.problems and not self.out_of_bounds and bool(self.sizes)

    def measurements(self) -> list[GroupMeasurement]:
        """Return each message size with figures as the measurement of one group of all nodes of the test.

        They are in the output's order. Each has the time of the column with the larger bus bandwidth; where values of
        either column were wrong, the error ``wrong values`` makes it worth nothing. Empty where hosts or collective are
        not known, or nodes have different numbers of ranks.
        """
        if not self.gpus_per_node or not self.collective:
            return []
        return [
            GroupMeasurement(
                nodes=self.nodes,
                gpus_per_node=self.gpus_per_node,
                collective=self.collective,
                bytes=size.bytes,
                seconds=size.best.seconds,
                error="wrong values" if size in self.wrong else "",
            )
            for size in self.sizes
            if size.best is not None
        ]


# What programs that started these ones put before each line: kubectl logs --timestamps and --prefix, mpirun
# --timestamp-output and --tag-output (of Open MPI 4 and 5), srun --label. Documents indent.
_PREFIX = re.compile(
    r"^\s*(?:\d{4}-\d\d-\d\dT\S+\s)?"
    r"(?:[A-Z][a-z]{2}\s[A-Z][a-z]{2}\s[\s\d]\d\s[\d:]{8}\s\d{4})?"
    r"(?:\[[^\]\s]+\])*(?:<std(?:out|err)>:)?(?:\d+:\s)?\s*"
)
_DEVICE = re.compile(
    r"(?:#\s+)?Rank\s+(?P<rank>\d{1,9})\s+(?:Group\s+(?P<group>\d+)\s+)?(?:Pid\s+\d+\s+)?on\s+(?P<host>\S+)\s+device\s+\d+"
    r"\s+\[[0-9a-fx:.]+\]\s*(?P<gpu>.*)",
    re.IGNORECASE,
)
_ROW = re.compile(r"\s*\d+\s+\d+\s+[a-z]\w*\s")
_VERSION = re.compile(r"# nccl-tests version (?P<version>\S+).*nccl-library=(?P<library>\d{1,9})")
_LIBRARY = re.compile(r"NCCL version (?P<library>\d[\w.+]*)")
_STARTING = re.compile(r"# Collective test starting:\s*(?P<program>\S+)")
_BOUNDS = re.compile(r"#?\s*Out of bounds values\s*:\s*(?P<count>\d{1,18})\s*(?P<word>\w*)")
_CONCLUDED = re.compile(r"# Collective test concluded")
_AVERAGE = re.compile(r"#?\s*Avg bus bandwidth\s*:\s*(?P<value>[-+.\deE]+|-?(?:nan|inf))\s*(?P<word>\w*)")
_FAILURE = re.compile(r"Test (?:NCCL |CUDA )?failure|Test timeout|# error: ")
_BEGINS = re.compile(r"#? ?nThread \d+ nGpus \d+ minBytes")
_MARK = re.compile(
    r"^.{0,80}(?:# nccl-tests version|# Collective test starting|#? ?nThread \d+ nGpus \d+ minBytes|# Avg bus bandwidth"
    r"|#\s+size\s+count\s+type\s+redop)",
    re.MULTILINE,
)


_JSON = re.compile(r'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"start_time"\s*:')
"""How the file begins that ``-J`` writes."""


def is_nccl_tests(text: str) -> bool:
    """Return whether ``text`` is, or contains, an output of nccl-tests, by the lines that only its programs print.

    The beginning of the file that they write with ``-J`` is one, too.
    """
    return bool(_MARK.search(text) or _JSON.match(text))


def parse_nccl_tests(text: str) -> list[NcclTest]:
    """Return the tests of nccl-tests whose output ``text`` has, in order; empty where it has none.

    Labels of ``mpirun`` and ``srun`` before lines, and lines of other programs, are tolerated. Damaged or cut output is
    no error: it is told in the test's ``problems`` or by its ``ended``. A file of ``-J`` has one test.
    """
    if _JSON.match(text):
        return [_test_of_json(text)]
    found: list[_Reader] = []
    reader = _Reader()
    for raw in text.splitlines():
        line = _PREFIX.sub("", raw)
        if reader.is_over(line):
            found.append(reader)
            reader = _Reader()
        reader.take(line)
    found.append(reader)
    return [reader.result() for reader in found if reader.is_test]


_RANKS_UNKNOWN = "not all ranks are listed, so their number is unknown"


class _Reader:
    """The reader of one test's output of nccl-tests: ``take`` each line, then ask for the ``result``.

    It is made without arguments; lines come without line breaks and without labels of ``mpirun`` or ``srun``. Ask
    ``is_over`` before each, which takes nothing in: it returns True for the first line of another test, which a new
    reader must take, and False as long as this one has neither figures nor the test's end. ``take`` returns None.
    ``result`` returns the test (``NcclTest``) of all lines so far, with ``problems`` for what is unclear, and
    changes nothing. The attribute ``is_test`` is False as long as no line of a test was seen; the ``result`` is
    then of no test. Nothing is raised, whatever the lines are.
    """

    def __init__(self) -> None:
        self.is_test = False
        self._begun = 0
        self._columns: list[str] = []
        self._in_ms = False
        self._program = ""
        self._version = ""
        self._library = ""
        self._devices: dict[int, str] = {}
        self._gpus: Counter[str] = Counter()
        self._sizes: list[SizeResult] = []
        self._average: float | None = None
        self._ended = False
        self._bounds: int | None = None
        self._unreadable = 0
        self._problems: list[str] = []

    def is_over(self, line: str) -> bool:
        """Return whether ``line`` begins another test's output, so that another reader must take it.

        False as long as this reader has taken neither figures nor the end of a test. Takes nothing in.
        """
        # Each release begins with another of these lines, and newer ones print all three: figures must lie between.
        is_first = _VERSION.match(line) or _STARTING.match(line) or _BEGINS.match(line)
        return bool(is_first) and (self._ended or bool(self._sizes))

    def take(self, line: str) -> None:
        """Take in one line of a test's output, without a label; lines that say nothing of the test change nothing."""
        if _BEGINS.match(line):
            self.is_test = True
            self._begun += 1
        elif match := _VERSION.match(line):
            self._version, self._library = match["version"], _nccl_release(int(match["library"]))
        elif match := _STARTING.match(line):
            self._program = match["program"]
        elif match := _DEVICE.match(line):
            self._take_device(match)
        elif _is_header(line):
            self.is_test = True
            self._columns = line.lstrip("# ").split()
            # The oldest tables, with ``bytes`` as their first heading, have milliseconds.
            self._in_ms = self._columns[0] == "bytes"
        elif _ROW.match(line):
            self._take_row(line)
        elif match := _BOUNDS.match(line):
            self._bounds = int(match["count"])
        elif match := _AVERAGE.match(line):
            self.is_test = True
            self._ended = True
            self._average = _finite_number(match["value"])
            if self._average is None:
                self._problems.append(f"the average bandwidth is {match['value']}")
            if match["word"] == "FAILED":
                self._problems.append("the average is below 90 % of the minimum asked for (-c, NCCL_TESTS_MIN_BW)")
        elif _CONCLUDED.match(line):
            self._ended = True
        elif _FAILURE.search(line):
            self._problems.append(line.strip()[:200])
        elif match := _LIBRARY.search(line):
            self._library = self._library or match["library"]

    def _take_device(self, match: re.Match[str]) -> None:
        """Keep the host and the GPU's product of one rank, from the match of a line about its device.

        ``match`` is one of ``_DEVICE``. Ranks of other groups than the first are ignored. A rank that was listed
        before has the later host.
        """
        if match["group"] not in (None, "0"):
            return  # NCCL_TESTS_SPLIT: the figures are those of the first group
        self._devices[int(match["rank"])] = match["host"]
        self._gpus[match["gpu"].strip()] += 1

    def _take_row(self, line: str) -> None:
        """Keep the figures of one row of the test's table; rows that do not fit its header are only counted."""
        size = _size_result(line.split(), self._columns, 1e-3 if self._in_ms else 1e-6)
        if size is None:
            self._unreadable += 1
        else:
            self._sizes.append(size)

    def result(self) -> NcclTest:
        """Return the test that all lines taken in so far make; what went wrong or is unclear is in its ``problems``.

        Hosts are left out where not all ranks were listed. This reader stays as it is.
        """
        problems = list(dict.fromkeys(self._problems))
        if self._begun > 1:
            problems.append(
                f"{self._begun} programs wrote at once, each a test of its own: nccl-tests was built without MPI=1"
            )
        if self._unreadable:
            problems.append(f"{self._unreadable} lines of figures cannot be read: another program wrote over them")
        hosts = tuple(self._devices[rank] for rank in sorted(self._devices))
        # Lines get lost where ranks write at once, and a wrong number of ranks makes wrong bandwidths.
        if self._devices and max(self._devices) + 1 != len(self._devices):
            problems.append(_RANKS_UNKNOWN)
            hosts = ()
        return NcclTest(
            collective=_collective_of_program(self._program) or _collective_by_bandwidth(self._sizes, len(hosts)),
            version=self._version,
            library=self._library,
            gpu=self._gpus.most_common(1)[0][0] if self._gpus else "",
            hosts=hosts,
            sizes=tuple(self._sizes),
            average_busbw_gbps=self._average,
            out_of_bounds=self._bounds,
            ended=self._ended,
            problems=tuple(problems),
        )


def _nccl_release(code: int) -> str:
    """Return NCCL's release from its number, ``2.30.7`` for 23007, as NCCL counts from 2.9 on.

    Older releases count in another way, but nccl-tests prints no such number with them.
    """
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


def _is_header(line: str) -> bool:
    """Return whether ``line`` has the column headings of a table of nccl-tests, of any release."""
    words = line.lstrip("# ").split()
    # Where it was copied from a page, # is gone.
    return words[:2] in (["size", "count"], ["bytes", "N"]) and (line.startswith("#") or "busbw" in words)


_DIGITS = 18
"""Of a size: more is none."""


class _RowShape(NamedTuple):
    """How the words of one row of a table of nccl-tests are to be read; ``_row_shape`` makes it."""

    lead: int
    """Number of words before the figures."""
    halves: int
    """Number of groups of figures that are there: of out of place and in place both, or one."""


def _row_shape(words: int, lead: int, halves: int, width: int, tail: int, *, has_redop: bool) -> _RowShape | None:
    """Return how to read a row that has so many ``words``; None: the headings allow no such number.

    By the headings, ``lead`` words come before the figures, then ``halves`` groups of ``width`` words each, and
    ``tail`` words behind them. ``has_redop``: the reduction is among the first.
    """
    # Releases before 2.13 leave the reduction out, but not its heading, in collectives without one.
    leads = [lead, lead - 1] if has_redop else [lead]
    # A test that works in place only leaves the first columns empty.
    for shape in product(leads, (halves, 1)):
        if shape[0] + shape[1] * width + tail == words:
            return _RowShape(*shape)
    return None


def _size_result(words: Sequence[str], columns: Sequence[str], unit: float) -> SizeResult | None:
    """Return the figures of one row of a table of nccl-tests; None: its words do not fit ``columns``, the headings.

    None, too, where one of them is no number, or a time is not above 0. The first word must be digits. ``unit`` is the
    unit of the table's times in seconds, 1e-6 for microseconds.
    """
    times = [at for at, name in enumerate(columns) if name in ("time", "cputime")]
    if not times or len(words[0]) > _DIGITS:
        return None
    first = times[0]
    # What is behind both halves is no figure of theirs: a time of day, which is two words, or RCCL's algorithm.
    width = times[1] - first if len(times) > 1 else len(columns) - first
    behind = columns[first + len(times) * width :]
    tail = len(behind) + behind.count("timestamp")
    shape = _row_shape(len(words), first, len(times), width, tail, has_redop="redop" in columns)
    if shape is None:
        return None
    names = columns[first : first + width]
    halves: list[Column] = []
    for half in range(shape.halves):
        start = shape.lead + half * width
        column = _result_column(words[start : start + width], unit, names)
        if column is None:
            return None
        halves.append(column)
    kind = {"type": words[2]}
    if shape.lead == first:
        kind = dict(zip(columns[:first], words[:first], strict=False))
    return SizeResult(
        bytes=int(words[0]),
        type=kind.get("type", ""),
        redop=kind.get("redop", kind.get("op", "")),
        out_of_place=halves[0] if len(halves) == len(times) else None,
        in_place=halves[-1] if len(times) > 1 else None,
    )


def _result_column(values: Sequence[str], unit: float, names: Sequence[str]) -> Column | None:
    """Return the figures in one half (out of place or in place) of a row; None where a word is missing or no number.

    None, too, for a time of 0. ``values`` are its words: time in ``unit`` (so many seconds), algorithm and bus
    bandwidth, errors. ``names`` are the headings of both halves. Older releases print the largest error, not a count
    of wrong values: ``wrong`` is then None.
    """
    if len(values) < 4 or len(names) < 4:
        return None
    time, algbw, busbw = [_finite_number(value) for value in values[:3]]
    if time is None or algbw is None or busbw is None or time <= 0:
        return None
    # Older releases print the largest error instead, of which a little is rounding.
    counts = names[3] == "#wrong"
    return Column(
        seconds=time * unit,
        algbw_gbps=algbw,
        busbw_gbps=busbw,
        wrong=_finite_number(values[3]) if counts else None,
    )


def _finite_number(text: str) -> float | None:
    """Return the number that ``text`` is; None where it is none, or is infinite or NaN."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None  # neither NaN nor infinite


def _collective_of_program(program: str) -> str:
    """Return the collective that a program of nccl-tests measures, ``all_reduce`` for ``all_reduce_perf_mpi``.

    ``program`` may have a path before its name; whatever follows ``_perf`` is ignored. Empty: it is no such program.
    """
    match = re.match(r"([a-z_]+?)_perf", program.rpartition("/")[2])
    return match[1] if match else ""


_TOLD_APART = 0.02


def _collective_by_bandwidth(sizes: Iterable[SizeResult], ranks: int) -> str:
    """Return ``all_reduce`` if all bus bandwidths have its proportion to the algorithm bandwidths.

    Else an empty text, also for fewer than three ranks, where other collectives have the same proportion. Rows without
    a reduction, and rows of at most 10^9 bytes/s, which have too few digits to tell, are left out; without any other
    the text is empty. ``sizes`` are the rows of a test of ``ranks`` ranks.
    """
    best = [size.best for size in sizes if size.redop not in ("none", "")]
    large = [column for column in best if column is not None and column.algbw_gbps > 1]
    if ranks < 3 or not large:
        return ""
    expected = bus_factor("all_reduce", ranks)
    factors = [column.busbw_gbps / column.algbw_gbps for column in large]
    fits = all(abs(factor / expected - 1) < _TOLD_APART for factor in factors)
    return "all_reduce" if fits else ""


class _JsonFigures(msgspec.Struct):
    """One half (out of place or in place) of a row in a file of ``-J``; text stands there for NaN. Times are in us."""

    alg_bw: float | str
    bus_bw: float | str
    time: float | str | None = None
    cpu_time: float | str | None = None
    nwrong: float | str | None = None


class _JsonRow(msgspec.Struct):
    """One message size in a file of ``-J``, with its size in bytes."""

    size: int
    type: str = ""
    redop: str = ""
    out_of_place: _JsonFigures | None = None
    in_place: _JsonFigures | None = None


class _JsonDevice(msgspec.Struct):
    """One rank in a file of ``-J``, of each process the first."""

    rank: int
    hostname: str
    group: int = 0
    device_info: str = ""


class _JsonConfig(msgspec.Struct):
    """The settings of a test in a file of ``-J``: a process has ``nthreads`` times ``ngpus`` ranks."""

    nthreads: int = 1
    ngpus: int = 1
    devices: list[_JsonDevice] = []


class _JsonBounds(msgspec.Struct):
    """The number of wrong values in all, in a file of ``-J``."""

    count: int


class _JsonAverage(msgspec.Struct):
    """The average bus bandwidth in a file of ``-J``, in 10^9 bytes/s."""

    bandwidth: float | str


class _JsonFile(msgspec.Struct):
    """What is read of a file of ``-J``; the environment that it has, too, is not."""

    args: list[str] = []
    nccl_version: int | None = None
    config: _JsonConfig = msgspec.field(default_factory=_JsonConfig)
    results: list[_JsonRow] = []
    out_of_bounds: _JsonBounds | None = None
    average_bus_bandwidth: _JsonAverage | None = None
    errors: list[str] = []
    end_time: str | None = None


def _test_of_json(text: str) -> NcclTest:
    """Return the test that ``text``, a file of ``-J``, is of; a damaged one has no figures, and says so."""
    try:
        read = from_json(text.encode(errors="replace"), _JsonFile)
    except msgspec.MsgspecError as error:
        return NcclTest(problems=(f"its JSON is cut or damaged: {error}",))
    problems = [error.strip() for error in read.errors if error.strip()]
    hosts = _hosts_of_json(read.config)
    if read.config.devices and not hosts:
        problems.append(_RANKS_UNKNOWN)
    sizes = [_size_of_json(row) for row in read.results]
    readable = [size for size in sizes if size is not None]
    if len(readable) < len(sizes):
        problems.append(f"{counted(len(sizes) - len(readable), 'row')} without figures")
    program = read.args[0] if read.args else ""
    gpus = Counter(device.device_info for device in read.config.devices)
    average = read.average_bus_bandwidth
    return NcclTest(
        collective=_collective_of_program(program) or _collective_by_bandwidth(readable, len(hosts)),
        library=_nccl_release(read.nccl_version) if read.nccl_version is not None else "",
        gpu=gpus.most_common(1)[0][0] if gpus else "",
        hosts=hosts,
        sizes=tuple(readable),
        average_busbw_gbps=_finite_number(str(average.bandwidth)) if average else None,
        out_of_bounds=read.out_of_bounds.count if read.out_of_bounds else None,
        ended=read.end_time is not None and average is not None,
        problems=tuple(problems),
    )


def _hosts_of_json(config: _JsonConfig) -> tuple[str, ...]:
    """Return the host of each rank of the first group, in the order of ranks; empty: not all are known.

    Of a process with several ranks the file lists the first alone.
    """
    devices = sorted((device for device in config.devices if device.group == 0), key=lambda device: device.rank)
    ranks = [device.rank for device in devices]
    of_process = config.nthreads * config.ngpus
    if ranks == list(range(0, len(ranks) * of_process, of_process)):
        return tuple(chain.from_iterable([device.hostname] * of_process for device in devices))
    if ranks == list(range(len(ranks))):
        return tuple(device.hostname for device in devices)
    return ()


def _size_of_json(row: _JsonRow) -> SizeResult | None:
    """Return the figures of one message size; None where it has none, or one of them is no number."""
    halves = {"out_of_place": row.out_of_place, "in_place": row.in_place}
    columns = {name: _column_of_json(half) for name, half in halves.items() if half is not None}
    if not columns or None in columns.values():
        return None
    return SizeResult(bytes=row.size, type=row.type, redop=row.redop, **columns)


def _column_of_json(half: _JsonFigures) -> Column | None:
    """Return the figures of one half of a row; None where one is no number, or the time is not above 0."""
    time = half.time if half.time is not None else half.cpu_time
    names = ("#wrong" if half.nwrong is not None else "",)
    values = [str(value) for value in (time, half.alg_bw, half.bus_bw, half.nwrong)]
    return _result_column(values, 1e-6, ("time", "algbw", "busbw", *names))
