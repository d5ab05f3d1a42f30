"""Enroot's own files: what the administrator has set in ``enroot.conf``, and credentials in the form of netrc.

Settings as Enroot 4.1.2 reads them (``config::init`` in ``enroot.in``): ``/etc/enroot/enroot.conf``, then the files of
``enroot.conf.d``, ``NAME VALUE`` or ``NAME=VALUE`` a line; a variable that is set already wins. Enroot lets a shell
evaluate the values; here variables are put in, and a value that runs a program is left out. Entries of a netrc file are
found as curl finds them: words on any number of lines; everything else keeps its place.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

CONFIG = Path("/etc/enroot/enroot.conf")

_LINE = re.compile(r"(ENROOT_[A-Z_]+)[ \t=]+(.*\S)")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^{}]*))?\}|([A-Za-z_]\w*))")


def setting(name: str, env: Mapping[str, str]) -> str:
    """The value of an ``ENROOT_`` variable for a caller with ``env``; empty where nobody sets it."""
    if env.get(name):
        return env[name]
    files = [CONFIG, *sorted(CONFIG.with_name(f"{CONFIG.name}.d").glob("*.conf"))]
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for line in text.splitlines():
            found = _LINE.match(line)
            if found and found[1] == name and (value := expanded(found[2], env)):
                return value
    return ""


def temporary_folder(env: Mapping[str, str]) -> Path:
    """Where layers are unpacked."""
    return Path(setting("ENROOT_TEMP_PATH", env) or env.get("TMPDIR") or "/tmp")


def cache_folder(env: Mapping[str, str]) -> Path:
    """Where downloaded layers are kept."""
    base = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME") or "/") / ".cache")
    return Path(setting("ENROOT_CACHE_PATH", env) or Path(base) / "enroot")


def config_folder(env: Mapping[str, str]) -> Path:
    """The user's own settings: credentials."""
    base = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME") or Path.home()) / ".config")
    return Path(setting("ENROOT_CONFIG_PATH", env) or Path(base) / "enroot")


def expanded(value: str, env: Mapping[str, str]) -> str:
    """A value with its variables put in; empty where it would run a program."""
    if "$(" in value or "`" in value:
        return ""
    text = value.strip("\"'")
    return _VARIABLE.sub(lambda found: env.get(found[1] or found[3]) or found[2] or "", text)


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
