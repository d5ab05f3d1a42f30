"""PyTorch's flight recorder: which collective each rank was in, and who never came to it.

A dump is a pickle that anybody may have written to the run's folder, so it is not unpickled: a reader of our own
knows the few instructions that PyTorch's pickler writes (torch/csrc/jit/serialization/pickler.cpp, 2.5 to 2.13), builds
dicts, lists, tuples, numbers and text, and refuses everything else.
"""

from __future__ import annotations

import io
import json
import pickletools
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from llmb_common.causes.waits import Missing
from llmb_common.machine.files import open_plain

FLIGHT = "flight"
"""The folder of a run for them."""

_MOST_BYTES = 32 << 20
_MOST_VALUES = 4_000_000
_MOST_DUMPS = 4096


class NotADumpError(ValueError):
    """It is not a flight recorder's dump, or holds more than one."""


class _Reader:
    """A stack machine for the part of pickle that plain values need."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def since_mark(self) -> list[Any]:
        at = self.marks.pop()
        items, self.stack[at:] = self.stack[at:], []
        return items

    def set_items(self, items: list[Any]) -> None:
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def tuple_of(self, count: int) -> None:
        self.stack[-count:] = [tuple(self.stack[-count:])]


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINSTRING"}
_VALUES |= {"SHORT_BINSTRING", "BINUNICODE8", "LONG4"}
_STEPS: dict[str, Callable[[_Reader, Any], None]] = {
    "MARK": lambda reader, _: reader.marks.append(len(reader.stack)),
    "EMPTY_DICT": lambda reader, _: reader.stack.append({}),
    "EMPTY_LIST": lambda reader, _: reader.stack.append([]),
    "EMPTY_TUPLE": lambda reader, _: reader.stack.append(()),
    "APPEND": lambda reader, _: reader.stack[-2].append(reader.stack.pop()),
    "APPENDS": lambda reader, _: (items := reader.since_mark(), reader.stack[-1].extend(items))[1],
    "SETITEM": lambda reader, _: reader.set_items([reader.stack.pop(-2), reader.stack.pop()]),
    "SETITEMS": lambda reader, _: reader.set_items(reader.since_mark()),
    "TUPLE": lambda reader, _: reader.stack.append(tuple(reader.since_mark())),
    "TUPLE1": lambda reader, _: reader.tuple_of(1),
    "TUPLE2": lambda reader, _: reader.tuple_of(2),
    "TUPLE3": lambda reader, _: reader.tuple_of(3),
    "BINPUT": lambda reader, at: reader.memo.__setitem__(at, reader.stack[-1]),
    "LONG_BINPUT": lambda reader, at: reader.memo.__setitem__(at, reader.stack[-1]),
    "MEMOIZE": lambda reader, _: reader.memo.__setitem__(len(reader.memo), reader.stack[-1]),
    "BINGET": lambda reader, at: reader.stack.append(reader.memo[at]),
    "LONG_BINGET": lambda reader, at: reader.stack.append(reader.memo[at]),
    "PROTO": lambda reader, _: None,
    "FRAME": lambda reader, _: None,
}


def read_plain_pickle(content: bytes) -> Any:
    """The value of a pickle that holds nothing but containers, numbers and text.

    Raises:
        NotADumpError: it is damaged, or has anything else in it
    """
    reader = _Reader()
    try:
        for number, (step, argument, _) in enumerate(pickletools.genops(io.BytesIO(content))):
            name = step.name
            if number > _MOST_VALUES:
                raise NotADumpError("it holds too much")
            if name == "STOP":
                return reader.stack.pop()
            if name in _VALUES:
                reader.stack.append(argument)
            elif name in _CONSTANTS:
                reader.stack.append(_CONSTANTS[name])
            elif name in _STEPS:
                _STEPS[name](reader, argument)
            else:
                raise NotADumpError(f"it holds the instruction {name}")
    except NotADumpError:
        raise
    except Exception as error:  # noqa: BLE001  whatever a damaged or hostile file does to a stack
        raise NotADumpError(f"{type(error).__name__}: {error}"[:200]) from None
    raise NotADumpError("it has no end")


def dump_as_json(file: Path) -> bytes:
    """A dump as text, in which secrets can be masked; empty where it is none."""
    try:
        with open_plain(file, follow=False) as stream:
            return json.dumps(read_plain_pickle(stream.read(_MOST_BYTES))).encode()
    except (OSError, ValueError, TypeError, RecursionError):
        return b""


class Entry(NamedTuple):
    """A collective that a rank has begun. ``group`` is the process group's name, ``sequence`` its number in it."""

    group: str
    sequence: int
    operation: str
    done: bool
    where: str
    """The caller's line, where the dump has stacks."""


class Dump(NamedTuple):
    """What one rank's recorder says. ``members`` are the ranks of groups that it knows."""

    entries: tuple[Entry, ...]
    members: Mapping[str, tuple[int, ...]]
    names: Mapping[str, str]


def read_dumps(folder: Path) -> dict[int, Dump]:
    """The dumps in ``folder`` by rank, which their names end with; those that cannot be read are left out."""
    found: dict[int, Dump] = {}
    try:
        files = sorted(file for file in folder.iterdir() if re.search(r"\d{1,6}$", file.stem))
    except OSError:
        return {}
    for file in files[:_MOST_DUMPS]:
        rank = re.search(r"(\d{1,6})$", file.stem)
        try:
            with open_plain(file, follow=False) as stream:
                content = stream.read(_MOST_BYTES + 1)
            if rank and len(content) <= _MOST_BYTES:
                found[int(rank[1])] = _dump(read_plain_pickle(content))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
    return found


def _dump(value: Any) -> Dump:
    members, names = {}, {}
    for name, group in list(value["pg_config"].items())[:10_000]:
        members[str(name)] = _numbers(group.get("ranks", ""))
    for item in value["entries"]:
        names[str(item["process_group"][0])] = str(item["process_group"][1])[:80]
    return Dump(tuple(_entry(item) for item in value["entries"]), members, names)


def _numbers(text: Any) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\b\d{1,6}\b", str(text)[:1_000_000]))


def _entry(item: dict[str, Any]) -> Entry:
    kind = str(item["profiling_name"])[:80]
    point = bool(item.get("is_p2p"))
    # gloo's entries are never marked as completed; they are retired when they are.
    done = item["state"] == "completed" or (bool(item.get("retired")) and not kind.startswith("nccl"))
    sequence = int(item["p2p_seq_id" if point else "collective_seq_id"])
    group = str(item["process_group"][0])
    return Entry(f"{group} p2p" if point else group, sequence, kind.rpartition(":")[2], done, _caller(item))


def _caller(item: dict[str, Any]) -> str:
    for frame in item.get("frames") or ():
        file = str(frame.get("filename", ""))
        if "torch/distributed" not in file and "torch/autograd" not in file:
            return f"{frame.get('name')} ({file}:{frame.get('line')})"[:300]
    return ""


def never_came(dumps: Mapping[int, Dump]) -> Missing | None:
    """The ranks that others wait for and that wait for nobody themselves; None where the dumps do not show any."""
    blamed: dict[int, list[tuple[str, int, str]]] = {}
    waiting: set[int] = set()
    for group in dict.fromkeys(entry.group for dump in dumps.values() for entry in dump.entries):
        for rank, place in _missing_in(group, dumps, waiting):
            blamed.setdefault(rank, []).append(place)
    roots = [rank for rank in blamed if rank not in waiting]
    if not roots or 2 * len(roots) > len(dumps):
        return None
    group, sequence, operation = Counter(place for rank in roots for place in blamed[rank]).most_common(1)[0][0]
    of = next((dump.names[group] for dump in dumps.values() if dump.names.get(group)), group)
    return Missing(tuple(sorted(roots)), f"{operation} (sequence {sequence} of {of})", "the flight recorders' dumps")


def _missing_in(group: str, dumps: Mapping[int, Dump], waiting: set[int]) -> list[tuple[int, tuple[str, int, str]]]:
    """Members that have not begun what others of ``group`` wait in; adds those others to ``waiting``."""
    last: dict[int, int] = {}
    open_at: dict[int, Entry] = {}
    for rank, dump in dumps.items():
        own = [entry for entry in dump.entries if entry.group == group]
        if own:
            last[rank] = max(entry.sequence for entry in own)
        first = min((entry for entry in own if not entry.done), key=lambda entry: entry.sequence, default=None)
        if first is not None:
            open_at[rank] = first
    if group.endswith(" p2p") or not open_at:
        return []
    members = next((dump.members[group] for dump in dumps.values() if dump.members.get(group)), tuple(dumps))
    stuck = min(open_at.values(), key=lambda entry: entry.sequence)
    missing = [rank for rank in members if last.get(rank, 0) < stuck.sequence]
    if missing and len(missing) < len(members):
        waiting.update(rank for rank, entry in open_at.items() if entry.sequence == stuck.sequence)
        return [(rank, (group, stuck.sequence, stuck.operation)) for rank in missing]
    return []
