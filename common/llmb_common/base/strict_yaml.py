"""YAML without surprises, and with line numbers.

Uses PyYAML's parser at node level with the scalars of YAML 1.2's core schema: ``no`` and ``2:00:00`` are strings,
``1e-5`` is a number. Duplicate keys, merge keys, tags and recursive aliases are errors. ``load_struct`` turns the
result into a msgspec struct and reports the first mistake with file, line and, for a misspelt key, the closest valid
one.
"""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from llmb_common.base.errors import ConfigError, LLMBError
from llmb_common.base.files import read_some, unreadable
from llmb_common.base.structs import from_plain

if TYPE_CHECKING:
    import yaml

T = TypeVar("T")

_INTEGER = re.compile(r"[-+]?[0-9]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_NULL = {"", "~", "null", "Null", "NULL"}
_BOOLEAN = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}

_LONGEST = 18
"""The most digits a whole number may have; no setting needs more."""
_DEEPEST = 50
_MOST_OPEN = 1000
"""Brackets, or list marks of one line, that may be open at once. The parser recurses in C: far more would kill us."""
_LIST_MARKS = re.compile(rf"^ *([-?] +){{{_MOST_OPEN}}}", re.MULTILINE)
_MOST_BYTES = 16 << 20
"""Of a file: a catalogue of functions has less than one MiB, and /dev/zero has no end."""
_MOST_VALUES = 200_000
"""Of a file: a few hundred bytes of nested aliases can expand to a billion."""

_FLATTER = f"at most {_DEEPEST} values inside each other"

_UNTAGGED = "tag:yaml.org,2002:str"
_QUOTED = ("'", '"', "|", ">")
# Tags that may be written out: they change nothing.
_IDLE_TAGS = {"null", "bool", "int", "float", "str", "timestamp", "merge", "value", "seq", "map"}

Lines = dict[str, int]
"""The line, from 1, of each value in a file by its path as msgspec writes it: ``$.rows[3].gpu``."""


def load_text(text: str, where: str, error: type[LLMBError] = ConfigError) -> tuple[Any, Lines]:
    """Parse the YAML ``text``, one document; return (data, lines): plain data, and each value's line by its path.

    The data may be of any type; keys are always text. Values without quotes are null, booleans, numbers or text by
    this module's own, narrower rules (``_scalar_value``). A path is as msgspec writes it, ``$.rows[3].gpu``, that of
    the whole ``$``; lines count from 1, and that of a value is the line of its key. Aliases are resolved; tags of
    YAML's own such as ``!!str`` are allowed and change nothing. ``where`` names the text in messages.

    Raises:
        LLMBError: the class ``error``, mostly with ``where:line``: the text is empty (or comments only) or not YAML,
            or has duplicate keys, keys that are no plain word, other tags, merge keys, a number that is too large,
            over 200,000 values or too deep nesting
    """
    import yaml

    known: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(known):  # type: ignore[misc]
        """A YAML loader that leaves open what type an untagged value has; ``_scalar_value`` decides it later.

        PyYAML makes it from the text. ``resolve`` returns the same tag for all of them, whatever it is called with.
        """

        def resolve(self, kind: type[yaml.Node], value: str, implicit: tuple[bool, bool]) -> str:
            """Return the same tag, ``_UNTAGGED``, for every value without a tag, so that PyYAML guesses no types.

            PyYAML calls it with the class of the node, its text and how it is quoted, none of which counts.
            """
            return _UNTAGGED

    brackets = (1 if bracket in "[{" else -1 for bracket in re.findall(r"[][{}]", text))  # also in quotes and comments
    if _LIST_MARKS.search(text) or max(itertools.accumulate(brackets), default=0) > _MOST_OPEN:
        raise error(f"{where}: nested too deeply", remedy=_FLATTER)
    try:
        node = yaml.compose(text, Loader=Loader)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark
        location = f"{where}:{mark.line + 1}" if mark else where
        raise error(f"{location}: not valid YAML: {problem.problem}", remedy="correct that line") from problem
    except yaml.YAMLError as problem:
        raise error(f"{where}: not valid YAML: {problem}") from problem
    except RecursionError as problem:
        raise error(f"{where}: nested too deeply", remedy=_FLATTER) from problem
    if node is None:
        raise error(f"{where}: the file is empty", remedy="restore its content, or name another file")
    lines: Lines = {}
    return _PlainReader(where, lines, error).value(node, "$", frozenset()), lines


class NotFlatError(Exception):
    """The YAML text may be valid, but has more than the simple form that is read without a YAML parser.

    It never reaches users, and its own text says nothing: whoever called ``load_flat`` then calls ``load_text``.
    """


_FLAT_LINE = re.compile(
    r"""(?P<quote>["']?)(?P<key>[A-Za-z_]\w*|(?<=["'])[\w.-]+)(?P=quote):(?: +(?P<value>.*))?\Z|- +(?P<item>.*)\Z"""
)
_NO_COLON = re.compile(r"[A-Za-z_][^:]*\Z")
_FLAT_LIST = re.compile(r"\[([^#]*)\](?: +#.*)?\Z")
_FLAT_MAPPING = re.compile(r"\{([^#]*)\}(?: +#.*)?\Z")
_FLAT_VALUE = re.compile(
    r"""'(?P<single>[^'\\]*)'|"(?P<double>[^"\\]*)"|(?P<plain>(?:[\w/.~](?:(?!: |:\Z| +#)[^\[\]{}])*)?)"""
)
_COMMENT = re.compile(r"(?: +#.*)?\Z")
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
"""Tabs, other line breaks, and what YAML does not allow."""


class _FlatReader:
    """Reads simple YAML without a YAML parser, of one text, whose lines are given to ``read`` in order.

    Made with ``where``, the text's name for messages, and ``error``, the class that ``read`` raises. ``read`` takes
    lines that are neither empty nor comments, without blanks at the end, with their numbers from 1. It raises
    ``error`` where a line's key is there already or certainly lacks its colon, and NotFlatError for all else that
    is not simple YAML; no further line may be read then. ``result`` (the values) and ``lines`` (the line number of
    each value by its path, ``$.key[0]``) are what ``load_text`` returns. ``open`` are the mappings that the next
    line may belong to, each with its indentation and path, the innermost last. ``key`` is the last key, if its
    value may still follow, else None. ``listed`` is the list that the next line may be an item of, with the
    indentation of its items; None: none.
    """

    def __init__(self, where: str, error: type[LLMBError]) -> None:
        self.result: dict[str, Any] = {}
        self.lines: Lines = {}
        self.open: list[tuple[int, dict[str, Any], str]] = [(0, self.result, "$")]
        self.key: str | None = None
        """The last key, where nothing stands after its colon: its value may follow."""
        self.listed: tuple[int, list[Any]] | None = None
        self.where = where
        self.error = error

    def read(self, line: str, number: int) -> None:
        """Read one line of simple YAML into the result: a key with a plain value, or an item of a list.

        ``line`` is not empty, no comment, and without blanks at its end; ``number`` counts from 1.

        Raises:
            LLMBError: the class ``error``: the key is there twice, or has no colon
            NotFlatError: the line is anything else, right or wrong
        """
        content = line.lstrip(" ")
        indentation = len(line) - len(content)
        found = _FLAT_LINE.match(content)
        if found is None:
            if self.result and self.key is None and self.listed is None and not indentation and _NO_COLON.match(line):
                location = f"{self.where}:{number}"
                raise self.error(f"{location}: not valid YAML: no ':' after the key", remedy="correct that line")
            raise NotFlatError(self.where)
        if found["key"] is None:
            self._item(found["item"], indentation, number)
        else:
            self._pair(found["key"], (found["value"] or "").lstrip(" "), indentation, number)

    def _item(self, text: str, indentation: int, number: int) -> None:
        """Add an item, which ``text`` writes, to the list under the last key of the YAML text.

        ``text`` is what follows the dash and its blank, ``indentation`` that of the dash, ``number`` that of its line.

        Raises:
            NotFlatError: no list can stand there, the indentation is not the list's, or the item is no plain value
        """
        outside, mapping, path = self.open[-1]
        if self.key is not None and indentation >= outside:
            self.listed = (indentation, [])
            mapping[self.key] = self.listed[1]
            self.key = None
        if self.listed is None or self.listed[0] != indentation:
            raise NotFlatError(self.where)
        items = self.listed[1]
        # The list's key is the last one of its mapping: a further key would have closed the list.
        name = next(reversed(mapping))
        self.lines[f"{path}.{name}[{len(items)}]"] = number
        items.append(_flat_value(text))

    def _pair(self, key: str, text: str, indentation: int, number: int) -> None:
        """Add the YAML line ``key: text`` to the mapping that its indentation belongs to, which may begin with it.

        ``number`` is that of the line; ``text`` may be empty.

        Raises:
            LLMBError: the class ``error``: the mapping has the key already
            NotFlatError: the indentation fits no mapping, the nesting is too deep, or ``text`` is no plain value
        """
        outside, mapping, path = self.open[-1]
        if indentation > outside:
            if self.key is None:
                raise NotFlatError(self.where)
            inner: dict[str, Any] = {}
            mapping[self.key] = inner
            self.open.append((indentation, inner, f"{path}.{self.key}"))
        while self.open[-1][0] > indentation:
            self.open.pop()
        own, mapping, path = self.open[-1]
        if own != indentation or len(self.open) > _DEEPEST:
            raise NotFlatError(self.where)
        if key in mapping:
            raise _duplicate_key_error(key, self.lines[f"{path}.{key}"], f"{self.where}:{number}", self.error)
        text = "" if text.startswith("#") else text
        self.lines[f"{path}.{key}"] = number
        mapping[key] = self._value(text, f"{path}.{key}", number)
        self.key = None if text else key
        self.listed = None

    def _value(self, text: str, path: str, number: int) -> Any:
        """Return the value that ``text`` writes: a plain one, or a list or a mapping of plain values in one line.

        The line ``number`` of each value in it is noted under its path, which begins with ``path``.

        Raises:
            NotFlatError: ``text`` writes anything else
        """
        if inside := _FLAT_LIST.match(text):
            values = [_flat_value(item) for item in self._parts(inside[1])]
            self.lines.update({f"{path}[{position}]": number for position in range(len(values))})
            return values
        if inside := _FLAT_MAPPING.match(text):
            found: dict[str, Any] = {}
            for item in self._parts(inside[1]):
                pair = _FLAT_LINE.match(item)
                if pair is None or pair["value"] is None or pair["key"] in found:
                    raise NotFlatError(self.where)
                found[pair["key"]] = _flat_value(pair["value"].lstrip(" "))
                self.lines[f"{path}.{pair['key']}"] = number
            return found
        return _flat_value(text)

    def _parts(self, inside: str) -> list[str]:
        """Return the texts between the commas inside the brackets of a list or mapping; an empty list of blanks only.

        Raises:
            NotFlatError: nothing stands before or behind a comma
        """
        parts = [part.strip(" ") for part in inside.split(",")]
        if parts == [""]:
            return []
        if "" in parts:
            raise NotFlatError(self.where)
        return parts


def load_flat(text: str, where: str, error: type[LLMBError] = ConfigError) -> tuple[dict[str, Any], Lines]:
    """Parse simple YAML, keys with plain values or with mappings and lists of such, without importing a YAML parser.

    That import takes as long as a bare Python does to start. Mappings may lie in each other; comments, empty lines and
    quotes are allowed. Returns (data, lines) as ``load_text`` does; ``where`` names the text in messages.

    Raises:
        LLMBError: the class ``error``: a key is there twice, or has no colon
        NotFlatError: the text is empty or holds anything else, perhaps a mistake, which ``load_text`` then explains
    """
    text = text.replace("\r\n", "\n")
    if _CONTROL.search(text):
        raise NotFlatError(where)
    reader = _FlatReader(where, error)
    for number, line in enumerate(text.split("\n"), start=1):
        content = line.strip(" ")
        if content and not content.startswith("#"):
            reader.read(line.rstrip(" "), number)
    if not reader.result:
        raise NotFlatError(where)
    return reader.result, reader.lines


def value_on_line(text: str, key: str) -> Any:
    """Return the plain value of the top-level ``key`` in the YAML ``text``, where a line ``key: value`` has it.

    The first such line counts; ``key`` is a plain word, the value may be quoted, and a comment may follow it. None
    where no line does, or the value is null, a list or a mapping. Nothing else in the text is checked; never raises.
    """
    found = re.search(rf"^{key}: +(.*)$", text, re.MULTILINE)
    try:
        return _flat_value(found[1].rstrip()) if found else None
    except NotFlatError:
        return None


def _duplicate_key_error(key: str, first: int, location: str, error: type[LLMBError]) -> LLMBError:
    """Return, without raising it, the ``error`` that ``key`` stands at ``location`` and already on line ``first``.

    ``location`` is a text such as ``FILE:12``; ``first`` counts from 1, and is of the same file.
    """
    return error(f"{location}: duplicate key {key!r} (first on line {first})", remedy="keep one of the two")


def _flat_value(text: str) -> Any:
    """Return the plain value that the rest of a YAML line ``key: value`` writes; a comment behind it is allowed.

    None where nothing or null stands there.

    Raises:
        NotFlatError: the text is more than a plain value
    """
    found = _FLAT_VALUE.match(text)
    if found is None or not _COMMENT.match(text, found.end()):
        raise NotFlatError(text)
    quoted = found["double"] if found["single"] is None else found["single"]
    return _scalar_value(found["plain"]) if quoted is None else quoted


class _PlainReader(NamedTuple):
    """The reader of a YAML document's nodes as plain values (dicts, lists, scalars).

    ``value`` returns that of one node and puts the line of each value in it into ``lines``, by its path; what is not
    plain is raised as an ``error`` with ``where:line``.
    """

    where: str
    """The file, for messages."""
    lines: Lines
    error: type[LLMBError]

    def value(self, node: Any, path: str, parents: frozenset[int]) -> Any:
        """Return a node as plain values; ``path`` is its own, ``parents`` are the ids of the nodes around it.

        Raises:
            LLMBError: the class ``error``: a duplicate key, a key that is no word, a tag that is not YAML's own, a
                merge key, an endless alias or number, too deep nesting, or too many values
        """
        line = node.start_mark.line + 1
        self.lines[path] = line
        self._refuse_odd_node(node, line, parents)
        if node.id == "scalar":
            return self._scalar(node, line)
        inside = parents | {id(node)}
        if node.id == "sequence":
            return [self.value(item, f"{path}[{i}]", inside) for i, item in enumerate(node.value)]
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key_line = key_node.start_mark.line + 1
            key = self._key(key_node, key_line)
            key_path = f"{path}.{key}"
            if key in result:
                raise _duplicate_key_error(key, self.lines[key_path], f"{self.where}:{key_line}", self.error)
            result[key] = self.value(value_node, key_path, inside)
            # A value may begin on a later line; messages show its key.
            self.lines[key_path] = key_line
        return result

    def _refuse_odd_node(self, node: Any, line: int, parents: frozenset[int]) -> None:
        """Raise if a node is one too many, lies in itself or too deep, or has a tag that is not YAML's own.

        Raises:
            LLMBError: the class ``error``: it is so
        """
        where, error = self.where, self.error
        if len(self.lines) > _MOST_VALUES:
            raise error(f"{where}: more than {_MOST_VALUES} values, with those of aliases", remedy="use fewer aliases")
        if id(node) in parents:
            raise error(f"{where}:{line}: an alias that contains itself", remedy="write the value out")
        if len(parents) >= _DEEPEST:
            raise error(f"{where}:{line}: nested too deeply", remedy=_FLATTER)
        if node.tag != _UNTAGGED and node.tag.removeprefix("tag:yaml.org,2002:") not in _IDLE_TAGS:
            raise error(f"{where}:{line}: the tag {node.tag!r} is not supported", remedy="write the plain value")

    def _scalar(self, node: Any, line: int) -> Any:
        """Return the value of a scalar node: its text where that is quoted, else what it means.

        Raises:
            LLMBError: the class ``error``: a number is too large
        """
        if node.style in _QUOTED:
            return node.value
        value = _scalar_value(node.value)
        if isinstance(value, float) and not math.isfinite(value):
            raise self.error(f"{self.where}:{line}: the number {node.value[:40]} is too large")
        return value

    def _key(self, node: Any, line: int) -> str:
        """Return the key that a node of a mapping is.

        Raises:
            LLMBError: the class ``error``: it is no word, or YAML's mark of a merge
        """
        if node.id != "scalar":
            raise self.error(f"{self.where}:{line}: a key must be a plain word")
        key: str = node.value
        if key == "<<" and node.style not in _QUOTED:
            raise self.error(f"{self.where}:{line}: merge keys (<<) are not supported", remedy="write the keys out")
        return key


def _scalar_value(text: str) -> Any:
    """Return what a YAML value without quotes means: None, a boolean, an int or a float, else the text itself.

    Null is empty, ``~``, ``null``, ``Null`` or ``NULL``, and a boolean ``true`` or ``false`` in the same three forms:
    ``yes``, ``on``, dates, ``0x10``, ``1_000`` and ``.inf`` are text. ``010`` is 10. An integer with too many digits
    becomes a float, which no field for integers accepts.
    """
    if text in _NULL:
        return None
    if text in _BOOLEAN:
        return _BOOLEAN[text]
    if _INTEGER.match(text) and len(text) <= _LONGEST:
        return int(text)
    if _FLOAT.match(text):
        return float(text)  # integers that are too long end up here too, and no field accepts them
    return text


def read_text(path: Path, error: type[LLMBError] = ConfigError) -> str:
    """Return the UTF-8 text of the file ``path``, which may also be a FIFO or a device, of at most 16 MiB.

    Links are followed. Line breaks and a byte order mark stay as they are.

    Raises:
        LLMBError: the class ``error``: the file is missing, cannot be read, is larger, or is not UTF-8 (with the line)
    """
    try:
        content = read_some(path, _MOST_BYTES + 1)
    except OSError as problem:
        raise unreadable(path, problem, error) from problem
    if len(content) > _MOST_BYTES:
        raise error(f"{path} is larger than {_MOST_BYTES >> 20} MiB", remedy="name another file")
    try:
        return content.decode()
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        raise error(
            f"{path}:{line}: not UTF-8 text: {problem.reason} at byte {problem.start}", remedy="save the file as UTF-8"
        ) from problem


def load_struct(path: Path, kind: type[T], error: type[LLMBError] = ConfigError) -> T:
    """Read the YAML file ``path`` and return its content as an instance of ``kind``, a frozen msgspec struct.

    Types must match exactly, and ``kind`` decides whether unknown keys are refused or ignored.

    Raises:
        LLMBError: the class ``error``, with file, line and remedy: the file cannot be read, is not the YAML that
            ``load_text`` allows, or does not fit ``kind``
    """
    data, lines = load_text(read_text(path, error), str(path), error)
    return convert(data, lines, kind, str(path), error)


def convert(data: Any, lines: Lines, kind: type[T], where: str, error: type[LLMBError] = ConfigError) -> T:
    """Return ``data``, which ``load_text`` has returned with its ``lines``, as an instance of the struct ``kind``.

    ``where`` names the file in messages.

    Raises:
        LLMBError: the class ``error``: ``data`` does not fit ``kind``; the message has the line of the first mistake
    """
    import msgspec

    try:
        result: T = from_plain(data, kind)
    except msgspec.ValidationError as problem:
        from llmb_common.base.schema_errors import explain

        path, message, remedy = explain(str(problem), kind, data)
        # msgspec writes "[...]" for the values of a mapping: use the line of the nearest enclosing value that has one.
        while path and path not in lines:
            path = re.sub(r"(\.[^.\[]+|\[[^\]]*\])\Z", "", path) if path != "$" else ""
        line = f":{lines[path]}" if path else ""
        raise error(f"{where}{line}: {message}", remedy=remedy) from problem
    return result
