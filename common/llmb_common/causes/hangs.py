"""Which rank the others waited for: by PyTorch's flight recorders (which collective each rank was in), by the stacks in
the ranks' own files, and by what ranks print when a collective times out.

A recorder's dump is a pickle that anybody may have written to the run's folder, so it is unpickled only where all its
instructions are among the few that PyTorch's pickler writes (torch/csrc/jit/serialization/pickler.cpp, 2.5 to 2.13):
they build dicts, lists, tuples, numbers and text, and import nothing.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import pickletools
import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from llmb_common.base.files import read_plain
from llmb_common.base.printable import counted, first_few
from llmb_common.causes.answer import Cause
from llmb_common.causes.collectives import PAIR, Begun, BegunCollective, Missing, missing_ranks
from llmb_common.causes.places import Places
from llmb_common.causes.reading import Reading
from llmb_common.causes.table import Sure

FLIGHT = "flight"
"""The folder of a run for them."""

_MOST_BYTES = 32 << 20
_MOST_VALUES = 4_000_000
_MOST_TEXT = 256 << 20
"""Of a dump as text: values that others refer to, on and on, make a terabyte of some hundred bytes."""
_MOST_DUMPS = 4096


_PLAIN = set(
    (
        "PROTO FRAME STOP NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT BINUNICODE "
        "SHORT_BINUNICODE BINUNICODE8 BINSTRING SHORT_BINSTRING EMPTY_DICT EMPTY_LIST EMPTY_TUPLE MARK "
        "APPEND APPENDS SETITEM SETITEMS TUPLE TUPLE1 TUPLE2 TUPLE3 BINPUT LONG_BINPUT MEMOIZE BINGET "
        "LONG_BINGET"
    ).split()
)
"""Instructions that import and call nothing."""


class NotADumpError(ValueError):
    """A file's content is no dump of PyTorch's flight recorder, or holds more than a dump may.

    ``read_plain_pickle`` raises it; its message says why, in at most 200 characters.
    """


def read_plain_pickle(content: bytes) -> Any:
    """Return the value of a pickle that holds only dicts, lists, tuples, numbers, booleans, None and text.

    ``content`` is the pickle's bytes. Nothing in it is ever run.

    Raises:
        NotADumpError: the pickle is damaged, has anything else in it, or is too large: over four million instructions,
            or 256 MiB as text
    """
    try:
        for number, (step, argument, _) in enumerate(pickletools.genops(content)):
            # A value that is kept at a number far beyond all others would make a table of that size.
            far = step.name in ("BINPUT", "LONG_BINPUT") and int(argument or 0) > number
            if step.name not in _PLAIN or far or number > _MOST_VALUES:
                raise NotADumpError(f"it holds the instruction {step.name} {argument}"[:200])
        value = _NoImportUnpickler(io.BytesIO(content), encoding="latin-1").load()
        if _text_size(value, {}) > _MOST_TEXT:
            raise NotADumpError("it refers to itself again and again")
        return value
    except NotADumpError:
        raise
    except Exception as error:  # noqa: BLE001  whatever a damaged or hostile file leads to
        raise NotADumpError(f"{type(error).__name__}: {error}"[:200]) from None


class _NoImportUnpickler(pickle.Unpickler):
    """An unpickler that imports nothing, as a second guard after the check of a dump's instructions.

    Made and used as ``pickle.Unpickler`` is, from a binary file. ``find_class``, which pickle calls for each import,
    always raises ``NotADumpError``.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Refuse to import ``name`` of ``module`` while a flight recorder's dump is read.

        Raises:
            NotADumpError: always: a dump imports nothing
        """
        raise NotADumpError(f"it imports {module}.{name}")


def _text_size(value: Any, sizes: dict[int, int]) -> int:
    """Return about how many characters ``value`` would have as text.

    ``sizes`` is {} for the outermost call. It is filled with the results of containers by their ``id``, so that one
    that is met again, even within itself, is not walked twice.

    Raises:
        RecursionError: containers are nested too deep
    """
    if isinstance(value, str):
        return len(value) + 1
    if not isinstance(value, dict | list | tuple):
        return 1
    if id(value) not in sizes:
        sizes[id(value)] = 0  # within itself it is an ellipsis, as text
        inner = [*value, *value.values()] if isinstance(value, dict) else value
        sizes[id(value)] = 1 + sum(_text_size(item, sizes) for item in inner)
    return sizes[id(value)]


def dump_as_json(file: Path) -> bytes:
    """Return a dump of PyTorch's flight recorder, a pickle, as UTF-8 JSON: a text in which the caller can mask secrets.

    None are masked here, and nothing is written. Tuples become lists, and numbers as keys become text. Empty (``b""``)
    where the file is missing, a link, larger than 32 MiB, cannot be read, is no such dump, or has keys that JSON cannot
    have.
    """
    try:
        return json.dumps(read_plain_pickle(read_plain(file, _MOST_BYTES))).encode()
    except (OSError, ValueError, TypeError, RecursionError):
        return b""


def read_dumps(folder: Path) -> Begun:
    """Return the collectives that the ranks had begun, by the dumps of PyTorch's flight recorder in ``folder``.

    The rank is the number of at most six digits at the end of a file's name, before its suffix (of a longer one the
    last six); files without one are left out, and of two of a rank the last by name counts. Links, files over 32 MiB,
    and those that cannot be read or are no dumps are left out, and so are all after the first 4096 by name. Nothing is
    begun by anybody (``entries`` is empty) where there are no dumps or no folder. ``all_members`` is True in any case.
    """
    found = Begun(all_members=True)
    try:
        files = sorted(folder.iterdir())
    except OSError:
        return found
    for file in files[:_MOST_DUMPS]:
        with contextlib.suppress(OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError):
            if rank := re.search(r"\d{1,6}$", file.stem):
                _add_dump(found, int(rank[0]), read_plain_pickle(read_plain(file, _MOST_BYTES)))
    return found


def _add_dump(found: Begun, rank: int, dump: Any) -> None:
    """Add the collectives in ``dump``, that of ``rank``, to ``found``; where it raises, ``found`` is not changed.

    ``dump`` is the value that ``read_plain_pickle`` returned. The collectives replace what ``found`` had for the rank;
    ranks and names of process groups that it already has stay.

    Raises:
        LookupError, ValueError, TypeError, AttributeError, OverflowError: the dump is not as PyTorch writes it
    """
    groups = list(dump["pg_config"].items())[:10_000]
    members = {str(name): _numbers_in(group.get("ranks", "")) for name, group in groups}
    names = {str(item["process_group"][0]): str(item["process_group"][1])[:80] for item in dump["entries"]}
    found.entries[rank] = [_begun_collective(item) for item in dump["entries"]]
    found.members = {name: ranks for name, ranks in members.items() if ranks} | found.members
    found.names = names | found.names


def _numbers_in(text: Any) -> tuple[int, ...]:
    """Return the numbers of at most six digits in a text, such as the ranks of a process group, in its order.

    Duplicates stay; longer numbers are left out. What is no text is read as ``str`` shows it, such as ``[0, 1]``. Only
    the first million characters count. Empty without any number.
    """
    return tuple(int(number) for number in re.findall(r"\b\d{1,6}\b", str(text)[:1_000_000]))


def _begun_collective(item: dict[str, Any]) -> BegunCollective:
    """Return one entry of a flight recorder's dump as a ``BegunCollective``.

    ``item`` is one of the list ``entries`` in the dump. Of what is sent from rank to rank, the group's name ends in
    ``PAIR``.

    Raises:
        LookupError, ValueError, TypeError, OverflowError: the entry is not as PyTorch writes it
    """
    kind = str(item["profiling_name"])[:80]
    point = bool(item.get("is_p2p"))
    # gloo's entries are never marked as completed; they are retired when they are.
    done = item["state"] == "completed" or (bool(item.get("retired")) and not kind.startswith("nccl"))
    sequence = int(item["p2p_seq_id" if point else "collective_seq_id"])
    group = str(item["process_group"][0])
    return BegunCollective(group + PAIR if point else group, sequence, kind.rpartition(":")[2], done)


FOLDER = "ranks"
_MOST_FILES = 65_536
_MOST_OF_A_RANK = 256 << 10
_HEADER = re.compile(
    r"rank (\d{1,6}) local (\d{1,4}) host ([\w.-]{1,253}) pid (\d{1,10}) job (\S{1,64}) restart (\d{1,6})"
)
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+")
_FRAME = re.compile(r'^  File "(.{1,4096}?)", line (\d{1,9}) in (.{1,200})$')
_WAITS = re.compile(
    r"torch/distributed/distributed_c10d\.py|/cuda/streams\.py|/cuda/__init__\.py.*\bsynchronize|/autograd/graph\.py"
    r"|megatron/core/.*(?:timers|p2p_communication)\.py"
)
"""Where a rank waits for others, or for its GPU, which may wait for others."""


@dataclass(frozen=True)
class RankFile:
    """What one rank wrote about itself in its rank file, with the stack of its main thread when it was asked.

    ``read_ranks`` makes it. ``frames`` are (file, line, function), all as text, the innermost first; empty: it was not
    asked, or did not answer. The property ``waits`` is True where one of the eight innermost frames is where a rank
    waits for others or for its GPU, False without a stack. The property ``where`` is a place in the code as text,
    ``function (file:line)``: that of the innermost frame, and behind ``, in `` that of the innermost one outside of
    libraries, if there is another; empty without a stack. Neither raises.
    """

    rank: int
    """Its number among all ranks of the job."""
    local: int
    """Its number among the ranks of its node, from 0."""
    host: str
    """The name of its node."""
    pid: int
    """Its process id there."""
    frames: tuple[tuple[str, str, str], ...] = ()

    @property
    def waits(self) -> bool:
        """Whether the rank's stack stands where a rank waits for others, or for its GPU, which may wait for others.

        Told from its eight innermost frames. False without a stack.
        """
        return any(_WAITS.search(f"{file} {function}") for file, _, function in self.frames[:8])

    @property
    def where(self) -> str:
        """The innermost function of the rank's stack with file and line, and the innermost that is not a library's.

        As text, ``function (file:line)``, the two joined by ``, in ``; just the innermost where both are the same or
        all are a library's. Empty without a stack.
        """
        if not self.frames:
            return ""
        own = [frame for frame in self.frames if not re.search("/(?:site|dist)-packages/|/lib/python3", frame[0])]
        named = [self.frames[0]]
        if own and own[0] != named[0]:
            named.append(own[0])
        return ", in ".join(f"{function} ({file}:{line})" for file, line, function in named)


def read_ranks(run_folder: Path) -> list[RankFile]:
    """Return what the ranks of the run's last start wrote about themselves, sorted by rank.

    Read from the files ``ranks/NUMBER.txt`` in ``run_folder``, the run's, of the first 65,536 by name. The last start
    is that of the greatest (job id, restart). Ranks that have written nothing since then are missing, whatever they
    wrote in earlier starts; links and damaged or unreadable rank files are left out. Empty where there are none, or no
    folder.
    """
    try:
        files = sorted((run_folder / FOLDER).glob("[0-9]*.txt"))[:_MOST_FILES]
    except OSError:
        return []
    read = [found for found in map(_read_rank_file, files) if found is not None]
    last = max((start for start, _ in read), key=_in_order_of_starts, default=())
    return sorted((item for start, item in read if start == last), key=lambda item: item.rank)


def _in_order_of_starts(start: tuple[str, int]) -> tuple[int, int]:
    """Return what starts of a run, each a (job id, restart), are sorted by, the earliest first: both as numbers.

    A job id that is no number counts as 0, and so comes first.
    """
    job, restart = start
    return int(job) if job.isdecimal() else 0, restart


def _read_rank_file(file: Path) -> tuple[tuple[str, int], RankFile] | None:
    """Return ((job id, restart), content) of a rank file; of a stack only what is in the file's first 256 KiB.

    None where the file is missing, a link or cannot be read, or does not begin as a rank file should.
    """
    try:
        lines = read_plain(file, _MOST_OF_A_RANK).decode(errors="replace").splitlines()
    except OSError:
        return None
    header = _HEADER.match(lines[0]) if lines else None
    if header is None:
        return None
    rank, local, host, pid, job, restart = header.groups()
    return (job, int(restart)), RankFile(int(rank), int(local), host, int(pid), _main_thread(lines))


def _main_thread(lines: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
    """Return the frames (file, line, function) of the main thread in the last stack that a rank file's ``lines`` have.

    The innermost comes first; empty: no frames. The main thread is the one whose outermost function is that of a
    module; without one, the last thread counts.
    """
    threads: list[list[tuple[str, str, str]]] = []
    for line in lines:
        if _THREAD.match(line):
            threads.append([])
        elif threads and (frame := _FRAME.match(line)):
            threads[-1].append((frame[1], frame[2], frame[3]))
    main = [frames for frames in threads if frames and frames[-1][2] in ("<module>", "_run_module_as_main")]
    return tuple((main or [frames for frames in threads[-1:] if frames] or [[]])[-1])


def outlier_ranks(ranks: Sequence[RankFile], waiting: Container[int] = ()) -> tuple[Missing, str] | None:
    """Return the few ranks whose stacks differ from most, with where the first of them stands, as (missing, text).

    Few are less than half of ``ranks``, and come in their order. Those that do not wait while others do come first,
    then those that did not answer, then those whose six innermost frames are not the commonest: the first of these
    groups that is few. ``waiting`` are ranks that wait wherever their stacks stand, such as for a collective that they
    have begun asynchronously. ``missing.where`` is where another rank waits (where none waits, stands),
    ``missing.how`` is "its stack", or for those that did not answer "it did not answer when all were asked". The text
    is ``RankFile.where`` of the first; empty where it did not answer. None where there are no such ranks, and where
    half of the ranks or more gave no stack, unless they are one of two while the other waits.
    """
    answered = [item for item in ranks if item.frames]
    silent = [item for item in ranks if not item.frames and item.rank not in waiting]
    busy = [item for item in answered if not item.waits and item.rank not in waiting]
    one_of_two = len(answered) == len(silent) == 1 and not busy
    if 2 * len(answered) <= len(ranks) and not one_of_two:
        return None
    usual = Counter(item.frames[:6] for item in answered).most_common(1)[0][0]
    elsewhere = [item for item in answered if item.frames[:6] != usual]
    other = next((item for item in answered if item.waits), answered[0])
    for few, how in ((busy, "its stack"), (silent, "it did not answer when all were asked"), (elsewhere, "its stack")):
        if few and (2 * len(few) < len(ranks) or one_of_two):
            return Missing(tuple(item.rank for item in few), other.where, how), few[0].where
    return None


class Hang(NamedTuple):
    """Why a job hung, and the line that says so in its summary. ``find_stuck`` makes it."""

    cause: Cause
    summary: str
    """The cause's ``what``, which names the ranks, with their one node behind them where it is known."""


def find_stuck(
    run_folder: Path | None, ranks: Sequence[RankFile], readings: Iterable[Reading], places: Places
) -> Hang | None:
    """Return why a job hung, the ranks that never came to where the others wait; None where nothing tells which.

    ``places`` tells the number of ranks, and on which node each ran. The stacks of ``ranks`` (as ``read_ranks``
    returns them) tell where they stood; the flight recorders' dumps in the folder ``flight`` of ``run_folder`` (None:
    there are none) and the timeouts printed in the logs ``readings`` tell which collective they missed. The cause is
    certain where dumps and stacks name a common rank that wrote either, and its ranks are then those of the dumps;
    else it is likely, by stacks that show where the ranks stood, dumps, timeouts or silence, the first that tells.
    """
    begun = read_dumps(run_folder / FLIGHT) if run_folder else Begun()
    recorded = missing_ranks(begun, "the flight recorders' dumps")
    stacks = outlier_ranks(ranks, begun.waiting)
    # Who wrote nothing lacks both for one reason, so that they do not confirm each other.
    silent = set(stacks[0].ranks) - begun.entries.keys() if stacks and not stacks[1] else set()
    missing = (reading.waits.missing(places.world) for reading in readings)
    printed = next((found for found in missing if found is not None), None)
    if recorded and stacks and (set(stacks[0].ranks) - silent) & set(recorded.ranks):
        return _hang_of(recorded, stacks[1], "certain", places)
    if stacks and stacks[1] and stacks[0].how == "its stack":
        return _hang_of(stacks[0], stacks[1], "likely", places)
    for found in (recorded, printed, stacks[0] if stacks else None):
        if found:
            return _hang_of(found, "", "likely", places, wrote_nothing=silent.issuperset(found.ranks))
    return None


def _hang_of(found: Missing, stood: str, sure: Sure, places: Places, *, wrote_nothing: bool = False) -> Hang:
    """Return why a job hung whose ranks ``found``, at least one, never came.

    ``stood`` is where the first of them stood, by its stack; empty: not known. ``wrote_nothing``: none of them left a
    stack or a dump, though others did. The cause is the run's fault. Its ``rank`` is the first, its ``ranks`` the first
    64 of them, its texts cut to 500 characters. It names a node where all these ranks are known to be on one, and
    speaks against that node (``keep_out``) only where there are several ranks and ``sure`` is not ``possible``.
    ``places`` tells on which nodes the ranks ran.
    """
    first = found.ranks[0]
    hosts = {places.host_of(rank) for rank in found.ranks}
    node = hosts.pop() if len(hosts) == 1 else None
    several = f"{counted(len(found.ranks), 'rank')} ({first_few(found.ranks, 6)})"
    ranks_text = f"rank {first}" if len(found.ranks) == 1 else several
    stands = f"; it stood in {stood}" if stood else ""
    did = f" never came to {found.where}{stands}"
    cause = f"The others waited for it: {found.how}."
    look = f"its stack in {FOLDER}/{first}.txt"
    if wrote_nothing:
        did = " wrote no stack and no collectives"
        cause = f"It was stopped or swapped out, or its node is gone. The others waited in {found.where}."
        look = f"its process (the pid is in {FOLDER}/{first}.txt)"
    did = did[: 500 - len(ranks_text)]
    on_node = f" on {node}" if node else ""
    hang = Cause(
        kind="hang",
        what=ranks_text + did,
        fault="run",
        sure=sure,
        cause=cause[:500],
        remedy=f"look at that rank's last lines, {look}, and its node",
        rank=first,
        ranks=found.ranks[:64],
        node=node,
        keep_out=node is not None and len(found.ranks) > 1 and sure != "possible",
    )
    return Hang(hang, ranks_text + on_node + did)
