"""Entries of a netrc file, found as curl finds them: words on any number of lines. Everything else keeps its place."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import takewhile

_WITH_VALUE = ("login", "password", "account")


@dataclass(frozen=True)
class Entry:
    """One ``machine``: its host (empty for ``default``), its login and password, and where its text begins and ends."""

    host: str
    login: str
    password: str
    start: int
    end: int


def entries(text: str) -> list[Entry]:
    """All entries, in their order. An entry ends where the next one, or a macro, begins."""
    words = _words(text)
    found: list[Entry] = []
    host: str | None = None
    start, login, password = 0, "", ""
    position = 0

    def close(end: int) -> None:
        if host is not None:
            found.append(Entry(host, login, password, start, end))

    while position < len(words):
        at, word = words[position]
        value = words[position + 1][1] if position + 1 < len(words) else ""
        if word in ("machine", "default"):
            close(at)
            host, start, login, password = (value if word == "machine" else ""), at, "", ""
            position += 2 if word == "machine" else 1
        elif word == "macdef":
            close(at)
            host = None
            # A macro ends with an empty line.
            end = text.find("\n\n", at)
            position = next((i for i, (place, _) in enumerate(words) if end >= 0 and place > end), len(words))
        else:
            if word == "password":
                password = value
            elif word == "login":
                login = value
            position += 2 if word in _WITH_VALUE else 1
    close(len(text))
    return found


def reached(text: str) -> list[Entry]:
    """The entries that curl finds: none after ``default``, which fits every host."""
    return list(takewhile(lambda entry: entry.host, entries(text)))


def added(text: str, lines: str) -> str:
    """The text of a netrc file with ``lines`` added before its ``default`` entry, or at its end."""
    place = next((entry.start for entry in entries(text) if not entry.host), len(text))
    before = text[:place]
    return f"{before}\n{lines}{text[place:]}" if before and before[-1] != "\n" else before + lines + text[place:]


def without(text: str, hosts: Collection[str]) -> str:
    """``text`` without the entries of ``hosts``; comments between them stay."""
    for entry in reversed(entries(text)):
        if entry.host in hosts:
            inside = text[entry.start : entry.end].splitlines(keepends=True)
            comments = "".join(line for line in inside if line.lstrip().startswith("#"))
            before = text[: entry.start]
            text = (
                (before if not before or before.endswith("\n") else before.rstrip() + "\n")
                + comments
                + text[entry.end :]
            )
    return text


def _words(text: str) -> list[tuple[int, str]]:
    """Position and text of every word outside comment lines."""
    found: list[tuple[int, str]] = []
    for line in re.finditer(r"[^\n]+", text):
        if not line[0].lstrip().startswith("#"):
            found += [(line.start() + word.start(), word[0]) for word in re.finditer(r"\S+", line[0])]
    return found
