"""The text of a netrc file, whose entries are found as curl finds them: words on any number of lines. What is not
changed keeps its place, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import takewhile

_WITH_VALUE = ("login", "password", "account")


@dataclass(frozen=True)
class NetrcEntry:
    """One entry of a netrc file, by ``parse_entries``: credentials for one host, and where its text lies.

    The text goes on to the beginning of the next entry, and has the comments and blank lines before that. The
    user's name is not kept.
    """

    host: str
    """Empty for ``default``."""
    password: str
    """Empty where the entry has none."""
    start: int
    """Index in the file's text of the entry's first character."""
    end: int
    """Index in the file's text behind the entry's last character."""


def parse_entries(text: str) -> list[NetrcEntry]:
    """Return all entries in the text of a netrc file, in their order, ``default`` among them; empty: there is none.

    Nothing is refused. An entry ends where the next one, or a macro, begins. Unknown words, comment lines and
    macros are skipped, quotes are part of a word, and of a password that is given twice the last one holds. A host
    may have several entries, and keeps its spelling; keywords count in lower case only.
    """
    found: list[NetrcEntry] = []
    words = iter(_words(text))
    while following := next(words, None):
        at, word = following
        is_open = bool(found) and found[-1].end == len(text)
        if is_open and word in ("machine", "default", "macdef"):
            found[-1] = replace(found[-1], end=at)
        if word in ("machine", "default"):
            host = next(words, (0, ""))[1] if word == "machine" else ""
            found.append(NetrcEntry(host, "", at, len(text)))
        elif word == "macdef":
            end = text.find("\n\n", at)  # a macro ends with an empty line
            words = iter([later for later in words if 0 <= end < later[0]])
        elif word in _WITH_VALUE:
            value = next(words, (0, ""))[1]
            if is_open and word == "password":
                found[-1] = replace(found[-1], password=value)
    return found


def effective_entries(text: str) -> list[NetrcEntry]:
    """Return the entries of a netrc file that curl finds: those before ``default``, which fits every host.

    They are in the file's order; empty: there is none. ``text`` is what the file says.
    """
    return list(takewhile(lambda entry: entry.host, parse_entries(text)))


def with_lines(text: str, lines: str) -> str:
    """Return the text of a netrc file with ``lines`` added before its first ``default`` entry, or at its end.

    ``lines``, whole entries, must end in a line break. One is put before them where the text has none there.
    """
    position = next((entry.start for entry in parse_entries(text) if not entry.host), len(text))
    before, after = text[:position], text[position:]
    line_break = "\n" if before and not before.endswith("\n") else ""
    return before + line_break + lines + after


def without_hosts(text: str, hosts: Collection[str]) -> str:
    """Return the text of a netrc file without any entry of ``hosts``; comment lines inside those stay.

    The names must be spelled as there; ``default`` stays. The text is returned unchanged where it has none of them.
    """
    # From the end, so that the positions of earlier entries stay right.
    for entry in reversed(parse_entries(text)):
        if entry.host in hosts:
            inside = text[entry.start : entry.end].splitlines(keepends=True)
            comments = "".join(line for line in inside if line.lstrip().startswith("#"))
            before = text[: entry.start]
            if before and not before.endswith("\n"):
                before = before.rstrip() + "\n"
            text = before + comments + text[entry.end :]
    return text


def _words(text: str) -> list[tuple[int, str]]:
    """Return every word of a netrc text outside comment lines, as (position in the text, word), in order.

    The position is that of its first character. Words are separated by white space; quotes are part of them. A comment
    line begins with ``#``, blanks aside.
    """
    found: list[tuple[int, str]] = []
    for line in re.finditer(r"[^\n]+", text):
        if line[0].lstrip().startswith("#"):
            continue
        for word in re.finditer(r"\S+", line[0]):
            position = line.start() + word.start()
            found.append((position, word[0]))
    return found
