"""Golden tables of texts: what a user reads, beside the tests that see it; a test itself holds codes and fields.

For each test of ``tests/<folder>/test_<module>.py`` that takes the fixture ``texts``,
``tests/golden/texts/<folder>/<module>.txt`` has the texts that it saw, in their order; parametrizations that see the
same text share it. So a message is improved in one place: change it, run its tests with ``LLMB_TEST_UPDATE_GOLDEN=1``,
and read the diff.

What differs between two runs of a test is masked before the comparison: its temporary folders, the clone, moments,
run ids, hashes, the seconds in folders' names, and the Python that runs.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import functools
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from llmb_common.base.errors import LLMBError
from support.golden import GOLDEN, UPDATING
from support.repository import REPOSITORY

FOLDER = GOLDEN / "texts"
HEAD = "# Texts that tests see. LLMB_TEST_UPDATE_GOLDEN=1 rewrites them (tests/support/texts.py); read the diff.\n"
INDENT = "  "

MASKS = (
    (re.compile(r"\b20\d{6}T\d{6}-\d+\b"), "<moment and process>"),
    (re.compile(r"[^\s'\":(]*/experiments/([\w.+-]+)/\1_1\d{9}(-\d{4})?\b"), "<run>"),
    (re.compile(r"(?<=_)1\d{9}(-\d{4})?\b"), "<moment>"),
    (re.compile(r"\(\d+ s\)"), "(<elapsed>)"),
    (re.compile(r"\bprocess \d+(?! of)"), "process <pid>"),
    (re.compile(r"(127\.0\.0\.1|localhost):\d{4,5}\b"), r"\1:<port>"),
    (re.compile(r"\b20\d\d-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?"), "<moment>"),
    (re.compile(r"\b20\d\d-\d\d-\d\d\b"), "<date>"),
    # A clock of history, of a state or a beginning; elsewhere it is a time limit.
    (re.compile(r"(?m)^(history +| +|.* at |.*begun )[0-2]\d:[0-5]\d:[0-5]\d\b"), r"\1<moment>"),
    # Not what a model has of parameters.
    (re.compile(r"(?<!is )(?<!has )\b[0-9a-f]{12}\b"), "<hash>"),
    (re.compile(r"\b[0-9a-f]{8}\b"), "<id>"),
    (re.compile(r"<id>-[0-9a-f]{6}\b"), "<id>"),
)

E = TypeVar("E", bound=BaseException)


class Texts:
    """The texts that one test has seen so far, each compared with its entry in the table of the test's module."""

    def __init__(self, table: Path, test: str, paths: dict[str, str]) -> None:
        self.table = table
        self.test = test
        self.seen: dict[str, str] = {}
        self._paths = paths

    def __call__(self, text: str | BaseException, *, about: str = "", mask: str = "") -> None:
        """Compare ``text``, or an error with its code and remedy, with the next entry of this test.

        ``about`` keeps only the lines that have that word; ``mask`` is a pattern whose matches differ between runs.

        Raises:
            AssertionError: there is no such entry, or it differs.
        """
        if isinstance(text, BaseException):
            text = _of_error(text)
        text = self._masked(text, mask)
        if about:
            text = "\n".join(line for line in text.splitlines() if about in line)
        key = self.test if not self.seen else f"{self.test} ({len(self.seen) + 1})"
        self.seen[key] = _trimmed(text)
        assert text.strip(), f"{key}: there is no text"
        if not UPDATING:
            kept = _entries(self.table).get(key, "")
            assert self.seen[key] == kept, f"{key} differs from {self.table}:\n{_difference(kept, self.seen[key])}"

    @contextlib.contextmanager
    def raises(self, kind: type[E], *, mask: str = "") -> Iterator[pytest.ExceptionInfo[E]]:
        """As ``pytest.raises``, and the error's code, message and remedy are the next entry of this test."""
        with pytest.raises(kind) as raised:
            yield raised
        self(raised.value, mask=mask)

    def finish(self) -> None:
        """Refuse entries that this test no longer sees; where golden files are updated, write those that it saw."""
        if UPDATING:
            _write(self.table, self.test, self.seen)
            return
        unseen = [key for key in _entries(self.table) if _test_of(key) == self.test and key not in self.seen]
        assert not unseen, f"{self.table} has entries that the test no longer sees: {unseen}"

    def _masked(self, text: str, mask: str) -> str:
        """Return ``text`` without what differs between runs; if that is in it, columns are one space apart."""
        masked = re.sub(mask, "<...>", text) if mask else text
        for path, name in self._paths.items():
            masked = re.sub(path, name, masked)
        for pattern, name in MASKS:
            masked = pattern.sub(name, masked)
        if masked != text:
            masked = re.sub(r"(?<=\S) {2,}", " ", masked)
        return masked


def texts_of(request: pytest.FixtureRequest, temporary: Path) -> Texts:
    """Return the texts of the test that asks for them; ``temporary`` holds the temporary folders of all tests."""
    node = request.node
    table = FOLDER / node.path.parent.name / f"{node.path.stem.removeprefix('test_')}.txt"
    test = node.nodeid.partition("::")[2]
    # The longer path first: a temporary folder may be within another place.
    paths = {
        rf"{re.escape(str(temporary))}(/[\w-]+)?": "<tmp>",
        re.escape(sys.executable): "<python>",
        re.escape(str(REPOSITORY)): "<clone>",
    }
    return Texts(table, test, paths)


def _of_error(error: BaseException) -> str:
    """Return an error as a table has it: its class, our own one's code, then its words."""
    kind = type(error).__name__
    if isinstance(error, LLMBError):
        kind = f"{kind}, code {error.code}"
    return f"{kind}: {error}"


def _difference(kept: str, seen: str) -> str:
    """Return the lines of a unified diff from a table's text to the one that was seen."""
    return "\n".join(difflib.unified_diff(kept.splitlines(), seen.splitlines(), "kept", "seen", lineterm=""))


def _trimmed(text: str) -> str:
    """Return ``text`` without blank lines around it, and without spaces at the ends of lines."""
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()).rstrip()


def _test_of(key: str) -> str:
    """Return the test whose entry ``key`` names: ``test_x[a]`` of ``test_x[a] (2)``."""
    return re.sub(r" \(\d+\)$", "", key)


def _parsed(table: Path) -> dict[str, str]:
    """Return the entries of a table by key, in the table's order; none of one that does not exist."""
    entries: dict[str, list[str]] = {}
    lines: list[str] = []
    if table.is_file():
        for line in table.read_text(encoding="utf-8").splitlines():
            if line.startswith("== "):
                if lines:
                    lines = []  # otherwise the key above has the same text
                entries[line.removeprefix("== ")] = lines
            elif not line.startswith("# "):
                lines.append(line.removeprefix(INDENT))
    return {key: _trimmed("\n".join(of)) for key, of in entries.items()}


_entries = functools.cache(_parsed)


def _write(table: Path, test: str, seen: dict[str, str]) -> None:
    """Put the entries of one test into the table, in place of those that it had; tests run in parallel."""
    table.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(table.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        kept = {key: text for key, text in _parsed(table).items() if _test_of(key) != test}
        entries = sorted((kept | seen).items(), key=lambda item: _order(item[0]))
        if not entries:
            table.unlink(missing_ok=True)
            return
        keys_of: dict[tuple[str, str], list[str]] = {}
        for key, text in entries:
            function = _test_of(key).partition("[")[0]
            keys_of.setdefault((function, text), []).append(key)
        parts = [HEAD]
        for (_, text), keys in keys_of.items():
            heads = "\n".join(f"== {key}" for key in keys)
            indented = "\n".join(f"{INDENT}{line}".rstrip() for line in text.splitlines())
            parts.append(f"{heads}\n{indented}\n")
        table.write_text("\n".join(parts), encoding="utf-8")
    finally:
        os.close(folder)


def _order(key: str) -> tuple[list[str | int], int]:
    """Return where an entry stands in its table: by test (2 before 10), then as the test saw its texts."""
    test = _test_of(key)
    number = key.removeprefix(test).strip(" ()")
    parts = re.split(r"(\d+)", test)  # every second one is a number
    return [int(part) if at % 2 else part for at, part in enumerate(parts)], int(number or 1)
