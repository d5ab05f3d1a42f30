"""What ruff has no rule for: lines that hold several ideas."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("cli", "common", "installer", "tools")


def unpacked_displays(tree: ast.AST) -> Iterator[int]:
    """Lines with ``[*("a", "b"), *("c",)]``: such a list holds its elements, one after the other."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Tuple | ast.List | ast.Set):
            continue
        for element in node.elts:
            if isinstance(element, ast.Starred) and isinstance(element.value, ast.Tuple | ast.List | ast.Set):
                yield element.lineno


def chains_that_return_text(tree: ast.AST) -> Iterator[int]:
    """Lines with ``return a and b and f"..."``: such a condition is an ``if``."""
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Return) else node.body if isinstance(node, ast.Lambda) else None
        if not isinstance(value, ast.BoolOp) or not isinstance(value.op, ast.And):
            continue
        last = value.values[-1]
        is_text = isinstance(last, ast.Constant) and isinstance(last.value, str)
        if is_text or isinstance(last, ast.JoinedStr):
            yield value.lineno


CHECKS: dict[str, tuple[Callable[[ast.AST], Iterator[int]], str]] = {
    "unpacked displays": (unpacked_displays, "names = [*('a', 'b'), *('c',)]"),
    "chains that return text": (chains_that_return_text, "look = lambda at: at.gpu and at.busy and f'{at.gpu}'"),
}


@pytest.mark.parametrize("name", CHECKS)
def test_it_finds_nothing(name: str) -> None:
    check, _ = CHECKS[name]
    found = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            lines = check(ast.parse(path.read_text(encoding="utf-8")))
            found += [f"{path.relative_to(ROOT)}:{line}" for line in lines]
    assert found == []


@pytest.mark.parametrize("name", CHECKS)
def test_it_sees_what_it_is_for(name: str) -> None:
    check, packed = CHECKS[name]
    assert list(check(ast.parse(packed)))
