"""What ruff has no rule for: lines that hold several ideas."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("cli", "common", "installer", "tools")

COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def unpacked_displays(nodes: list[ast.AST]) -> Iterator[int]:
    """Lines with ``[*("a", "b"), *("c",)]``: such a list holds its elements, one after the other."""
    for node in nodes:
        if not isinstance(node, ast.Tuple | ast.List | ast.Set):
            continue
        for element in node.elts:
            if isinstance(element, ast.Starred) and isinstance(element.value, ast.Tuple | ast.List | ast.Set):
                yield element.lineno


def chains_that_return_text(nodes: list[ast.AST]) -> Iterator[int]:
    """Lines with ``return a and b and f"..."``: such a condition is an ``if``."""
    for node in nodes:
        value = node.value if isinstance(node, ast.Return) else node.body if isinstance(node, ast.Lambda) else None
        if not isinstance(value, ast.BoolOp) or not isinstance(value.op, ast.And):
            continue
        last = value.values[-1]
        is_text = isinstance(last, ast.Constant) and isinstance(last.value, str)
        if is_text or isinstance(last, ast.JoinedStr):
            yield value.lineno


def comprehensions_with_several_loops(nodes: list[ast.AST]) -> Iterator[int]:
    """Lines with ``[part for whole in wholes for part in whole]``: that is a loop, or ``chain.from_iterable``."""
    for node in nodes:
        if isinstance(node, COMPREHENSIONS) and len(node.generators) > 1:
            yield node.lineno


def conditions_in_conditions(nodes: list[ast.AST]) -> Iterator[int]:
    """Lines with ``a if b else c if d else e``: such a choice is an ``if`` with an ``elif``."""
    for node in nodes:
        if isinstance(node, ast.IfExp) and (isinstance(node.body, ast.IfExp) or isinstance(node.orelse, ast.IfExp)):
            yield node.lineno


def percentages_without_the_formatter(nodes: list[ast.AST]) -> Iterator[int]:
    """Lines with ``f"{share:.1%}"`` or ``f"{number}%"``: ``percent`` and ``signed_percent`` make all texts alike."""
    for node in nodes:
        if isinstance(node, ast.FormattedValue) and node.format_spec and ast.unparse(node.format_spec).endswith("%'"):
            yield node.lineno
        if isinstance(node, ast.JoinedStr):
            for before, part in itertools.pairwise(node.values):
                is_number = isinstance(before, ast.FormattedValue)
                if is_number and isinstance(part, ast.Constant) and str(part.value).startswith("%"):
                    yield part.lineno


CHECKS: dict[str, tuple[Callable[[list[ast.AST]], Iterator[int]], str]] = {
    "unpacked displays": (unpacked_displays, "names = [*('a', 'b'), *('c',)]"),
    "chains that return text": (chains_that_return_text, "look = lambda at: at.gpu and at.busy and f'{at.gpu}'"),
    "several loops in a comprehension": (
        comprehensions_with_several_loops,
        "gpus = {gpu for node in nodes for gpu in node.gpus}",
    ),
    "percentages without the formatter": (percentages_without_the_formatter, "said = f'{share:+.1%} slower'"),
    "a condition in a condition": (conditions_in_conditions, "level = 'a' if x else 'b' if y else 'c'"),
}


@functools.cache
def findings() -> dict[str, list[str]]:
    """By check, ``file:line`` of what it finds; each file's tree is gone before the next is read."""
    found: dict[str, list[str]] = {name: [] for name in CHECKS}
    for path in sorted(chain.from_iterable((ROOT / folder).rglob("*.py") for folder in FOLDERS)):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        for name, (check, _) in CHECKS.items():
            found[name] += [f"{path.relative_to(ROOT)}:{line}" for line in check(nodes)]
    return found


@pytest.mark.parametrize("name", CHECKS)
def test_it_finds_nothing(name: str) -> None:
    assert findings()[name] == []


@pytest.mark.parametrize("name", CHECKS)
def test_it_sees_what_it_is_for(name: str) -> None:
    check, packed = CHECKS[name]
    assert list(check(list(ast.walk(ast.parse(packed)))))
