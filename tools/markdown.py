"""Markdown that is generated: between marks on pages, and the tables that simulations print.

``<!-- table: NAME -->`` and ``<!-- figure: NAME -->`` begin what is made anew each time, ``<!-- end -->`` ends it. A
table stands in lines of its own, a figure in the middle of a text. A name may have arguments: ``results mbridge h100``.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import signature
from typing import TypeAlias

from llmb_common.base.errors import RecipeError

Makers: TypeAlias = Mapping[str, Callable[..., Iterable[str]]]
"""By name, from arguments to lines; a figure is one line, a block in a text begins and ends with empty ones."""

_MARKED = re.compile(
    r"(?P<begin><!-- (?P<kind>table|figure): (?P<name>[^\n]*?) -->)(?P<body>.*?)(?P<end><!-- end -->)", re.DOTALL
)
_OPEN = re.compile(r"<!-- (table|figure): ")


def fill(text: str, where: str, tables: Makers, figures: Makers) -> str:
    """``text`` with everything that is marked made anew.

    Raises:
        RecipeError: a mark is wrong or not closed; it names ``where`` the text is from.
    """
    found = list(_MARKED.finditer(text))
    if len(_OPEN.findall(text)) != len(found) or any("<!--" in match["body"] for match in found):
        raise RecipeError(f"{where}: a table or figure has no <!-- end -->", remedy="close every mark")

    def made(match: re.Match[str]) -> str:
        lines = _made(match["kind"], match["name"], where, tables if match["kind"] == "table" else figures)
        return (
            match["begin"] + "\n".join(["", "", *lines, "", ""] if match["kind"] == "table" else lines) + match["end"]
        )

    return _MARKED.sub(made, text)


def _made(kind: str, called: str, where: str, makers: Makers) -> Iterable[str]:
    name, *arguments = called.split()
    try:
        signature(makers[name]).bind(*arguments)
    except (KeyError, TypeError):
        known = (" ".join([name, *map(str.upper, signature(maker).parameters)]) for name, maker in makers.items())
        raise RecipeError(f"{where}: no {kind} {called!r}", remedy=f"one of {', '.join(known)}") from None
    return makers[name](*arguments)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table with padded columns."""
    body = [list(row) for row in rows]
    columns = zip(header, *body, strict=True)
    widths = [max(map(len, column)) for column in columns]
    found = []
    for line in [list(header), ["-" * width for width in widths], *body]:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        found.append("| " + " | ".join(cells) + " |")
    return found


class Footnotes:
    """Numbered footnotes of a table; equal texts share a number."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def mark(self, text: str) -> str:
        if text not in self._texts:
            self._texts.append(text)
        return f"[{self._texts.index(text) + 1}]"

    def lines(self) -> list[str]:
        if not self._texts:
            return []
        return ["", *(f"- [{n}] {text[0].upper()}{text[1:]}." for n, text in enumerate(self._texts, 1))]


Table: TypeAlias = Callable[[int, int], Iterable[str]]
"""From the number of trials and the seed to lines of Markdown."""


def lines(head: Sequence[str], rows: Iterable[Sequence[object]], words: int = 1) -> Iterator[str]:
    """A table of figures, each row as soon as it is known; the first ``words`` columns are text."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * words + "---:|" * (len(head) - words)
    yield from (f"| {' | '.join(map(str, row))} |" for row in rows)


def print_tables(about: str, parts: Mapping[str, Table], counted: str = "trials", usual: int = 1000) -> None:
    """Print the parts that the command line names, or all of them; one alone has no name there.

    Args:
        about: what the module says of itself, its first line for people
        parts: by name
        counted: what is counted: the option for how many
        usual: how many without it
    """
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    if len(parts) > 1:
        parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    parser.add_argument(f"--{counted}", type=int, default=usual, dest="count", metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    named = vars(asked).get("parts") or list(parts)
    if unknown := [name for name in named if name not in parts]:
        parser.error(f"unknown part {unknown[0]!r}: {', '.join(parts)}")
    for name in named:
        for line in parts[name](asked.count, asked.seed):
            print(line, flush=True)
        if len(parts) > 1:
            print(flush=True)
