"""Small changes to a Python file that a good test suite should notice, one at a time.

A change is one expression or statement: a comparison at its boundary, ``and`` for ``or``, a number plus one, a call
left out. Prose (docstrings, strings with spaces) is left alone, as rewording a message is no defect; so is what no
test can or should see (``_SAME``, how long something sleeps or waits, a second more in a constant ``..._SECONDS``).
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}

_SAME = {"O_CLOEXEC"}
"""Attributes without effect: Python opens files close-on-exec in any case."""

_TIMES = {"timeout", "seconds", "patience", "flush", "encoding", "help", "frozen", "default_factory", "kw_only"}
_TIMES |= {"strict"}
"""Keyword arguments that are how long to wait or when a line appears, or that are there for readers and type checkers
(``zip``'s ``strict`` asserts what is always so)."""

_WAITING = {"sleep", "cast", "TypeVar", "wait", "ThreadPoolExecutor", "token_hex"}
"""Calls whose arguments are how long to wait, types, how many threads there are, or the length of a random name."""

_CLOCKS = {"time", "monotonic"}
"""What is compared with a reading of these is never equal to it: the comparison is turned around."""

_NOT_CHANGED = {"annotation", "returns", "decorator_list", "type_params"}


@dataclass(frozen=True)
class Mutant:
    """One change of ``file`` (relative to the root): ``before`` becomes ``after``, seen in ``function``.

    ``lines`` are those whose execution executes the change; where that is at import, ``names`` are what the code is
    called that it defines.
    """

    file: str
    line: int
    function: str
    before: str
    after: str
    text: str = field(repr=False, compare=False)
    lines: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    nth: int = 0
    """Which of several equal changes in the same function, so that each has a name that no other line changes."""
    copies: tuple[str, ...] = ()
    """Other files of the same text, which are changed with it."""

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file, *self.copies)

    @property
    def place(self) -> str:
        return f"{self.file} {self.function}".rstrip()

    @property
    def change(self) -> str:
        return f"{self.before} -> {self.after}"


@dataclass(frozen=True)
class _Spot:
    """A node worth changing, the statement that it belongs to, and the functions and classes around it."""

    node: ast.expr | ast.stmt
    statement: ast.stmt
    around: tuple[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, ...]


def mutants_of(root: Path, file: str) -> list[Mutant]:
    """All mutants of ``file``, in the order of its text."""
    text = (root / file).read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    seen: dict[tuple[str, str, str], int] = {}
    found = []
    module = ast.parse(text)
    for spot in _spots(module, None, ()):
        if isinstance(spot.node, ast.Constant) and any(name.endswith("SECONDS") for name in _defined(spot.statement)):
            continue
        for new in _changes(spot.node):
            changed = _replaced(text, lines, spot.node, new)
            if changed is None or changed == text:
                continue
            function = ".".join(node.name for node in spot.around)
            key = (function, _short(spot.node), _short(new))
            seen[key] = seen.get(key, 0) + 1
            run_lines, names = _execution(spot, module)
            found.append(Mutant(file, spot.node.lineno, *key, changed, run_lines, names, seen[key]))
    return found


def _execution(spot: _Spot, module: ast.Module) -> tuple[tuple[int, ...], tuple[str, ...]]:
    inner = spot.around[-1] if spot.around else None
    if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
        if spot.statement is inner:  # a default value
            return tuple(range(inner.body[0].lineno, (inner.end_lineno or inner.lineno) + 1)), ()
        return (spot.statement.lineno, spot.node.lineno), ()
    names = _defined(spot.statement)
    while more := {name for other in module.body if _mentions(other, names) for name in _defined(other)} - names:
        names |= more  # constants that are made of these
    return (), tuple(sorted(names))


def _defined(statement: ast.stmt) -> set[str]:
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        targets = [statement.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _mentions(statement: ast.stmt, names: set[str]) -> bool:
    return any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(statement))


def _spots(
    node: ast.AST, statement: ast.stmt | None, around: tuple[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, ...]
) -> Iterator[_Spot]:
    if isinstance(node, ast.stmt):
        statement = node
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        around = (*around, node)
    for name, value in ast.iter_fields(node):
        if name in _NOT_CHANGED or (isinstance(node, ast.Call) and name != "keywords" and _called(node) in _WAITING):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_left_alone(child):
                continue
            if isinstance(child, (ast.expr, ast.stmt)):
                inside = child if isinstance(child, ast.stmt) else statement
                assert inside is not None
                yield _Spot(child, inside, around)
            yield from _spots(child, statement, around)


def _is_left_alone(node: ast.AST) -> bool:
    """Imports, docstrings, what only type checkers read, waiting times, and f-strings, which are changed as one
    expression."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.keyword):
        return node.arg in _TIMES
    if isinstance(node, ast.AnnAssign) and isinstance(node.annotation, ast.Name):
        return node.annotation.id == "TypeAlias"
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id in ("__all__", "__slots__") for target in node.targets)
    return isinstance(node, (ast.Import, ast.ImportFrom, ast.FormattedValue))


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _changes(node: ast.expr | ast.stmt) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        clock = any(isinstance(part, ast.Call) and _called(part) in _CLOCKS for part in ast.walk(node))
        for place, operator in enumerate(node.ops):
            new = copy.deepcopy(node)
            new.ops[place] = (_OPPOSITES if clock else _COMPARISONS).get(type(operator), _COMPARISONS[type(operator)])()
            yield new
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.BinOp):
        yield from _binary(node)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Constant):
        yield from _constants(node)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, ast.JoinedStr):
        yield from _formatted(node)
    elif isinstance(node, (ast.If, ast.While)) and not isinstance(node.test, (ast.Compare, ast.UnaryOp, ast.Constant)):
        new_statement = copy.copy(node)
        new_statement.test = ast.UnaryOp(ast.Not(), node.test)
        yield new_statement
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _called(node.value) != "sleep":
        yield ast.Pass()


def _binary(node: ast.BinOp) -> Iterator[ast.AST]:
    if isinstance(node.op, ast.BitOr):  # a flag or an alternative less
        if not (isinstance(node.right, ast.Attribute) and node.right.attr in _SAME):
            yield node.left
    elif type(node.op) in _OPERATORS and not isinstance(node.left, (ast.List, ast.JoinedStr)):
        yield ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right)


def _constants(node: ast.Constant) -> Iterator[ast.AST]:
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, (int, float)):
        yield ast.Constant(value + 1)
    elif isinstance(value, str) and value and " " not in value:
        yield ast.Constant(value + "X")


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    """A plain function of one argument becomes its argument (``quote(x)`` -> ``x``); keyword arguments are left out."""
    plain = isinstance(node.func, ast.Name) and node.func.id.islower() and not node.func.id.startswith("_")
    alone = len(node.args) == 1 and not node.keywords
    if plain and alone and not isinstance(node.args[0], (ast.Starred, ast.GeneratorExp)):
        yield node.args[0]
    for keyword in node.keywords:
        if keyword.arg is not None and keyword.arg not in _TIMES and len(node.keywords) + len(node.args) > 1:
            yield ast.Call(node.func, node.args, [other for other in node.keywords if other is not keyword])


def _formatted(node: ast.JoinedStr) -> Iterator[ast.AST]:
    """What stands in the braces, changed: places inside f-strings are only known since Python 3.12."""
    for place, part in enumerate(node.values):
        if isinstance(part, ast.FormattedValue):
            for change in _changes(part.value):
                new = copy.deepcopy(node)
                inside = new.values[place]
                assert isinstance(inside, ast.FormattedValue)
                assert isinstance(change, ast.expr)
                inside.value = copy.deepcopy(change)
                yield new


def _replaced(text: str, lines: list[str], node: ast.expr | ast.stmt, new: ast.AST) -> str | None:
    """``text`` with ``new`` in the place of ``node``; None where that is no Python."""
    if isinstance(node, (ast.If, ast.While)):
        assert isinstance(new, (ast.If, ast.While))
        node, new = node.test, new.test
    start = _offset(lines, node.lineno, node.col_offset)
    end = _offset(lines, node.end_lineno or node.lineno, node.end_col_offset or 0)
    try:
        inserted = ast.unparse(ast.fix_missing_locations(new))
        changed = text[:start] + (f"({inserted})" if isinstance(new, ast.expr) else inserted) + text[end:]
        ast.parse(changed)
    except (SyntaxError, ValueError):  # ValueError: quotes that an f-string before 3.12 cannot hold
        return None
    return changed


def _offset(lines: list[str], line: int, column: int) -> int:
    """The place in the text of ``column`` (in UTF-8 bytes, as ast counts) of ``line``."""
    return sum(len(text) for text in lines[: line - 1]) + len(lines[line - 1].encode()[:column].decode())


def _short(node: ast.AST) -> str:
    if isinstance(node, (ast.If, ast.While)):
        return "if " + _short(node.test)
    try:
        text = " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).split())
    except ValueError:
        text = "f-string"
    return text if len(text) <= 100 else text[:97] + "..."
