"""Small changes to a shell file, as ``mutants`` makes them to Python: a comparison at its boundary, ``||`` for ``&&``,
a number plus one, a line left out. Quoted text, comments and declarations are left alone; what bash cannot parse is
none.

Nothing records which lines of a shell file a test executes: its tests are those in the files that name it, by its
folder and name (``submission/numa.sh``), or a copy of it (each recipe's ``launch.sh``). Those that only compare the text
of scripts do not.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from mutation.mutants import Mutant

_ANYWHERE = {" && ": " || ", " || ": " && ", " == ": " != ", " != ": " == ", " ! ": " ", " || true": ""}
_ANYWHERE |= {"[[ -n ": "[[ -z ", "[[ -z ": "[[ -n "}
_ARITHMETIC = {
    " < ": " <= ",
    " <= ": " < ",
    " > ": " >= ",
    " >= ": " > ",
    " + ": " - ",
    " - ": " + ",
    " * ": " / ",
    " / ": " * ",
    " % ": " / ",
}
_NUMBER = re.compile(
    r"(?<![\w.$&<>\\{,^*!\[-])(?<!sleep )(?<!-k )(?<!timeout )[0-9]+(?![\w.>,}\]-])|(?<=[-+*/] )[0-9]+(?=\])"
)
_TOKEN = re.compile(f"(?=({'|'.join(map(re.escape, sorted({**_ANYWHERE, **_ARITHMETIC}, key=len, reverse=True)))}))")
"""Looked ahead for, because two may share a blank."""
_LEFT_OUT = re.compile(r"\s*(?!readonly \w+\s*$)(?!(local|done|fi|esac|then|else|elif|do|set|exec)\b|#|\}|\)|;;|')\S")
_FUNCTION = re.compile(r"(\w+)\(\) \{")


def is_shell(file: str) -> bool:
    """Whether ``file``, of this project, is one: all but the suite's own have the suffix."""
    return file.endswith(".sh") or file == "tests/run"


def _copies(root: Path, file: str) -> Iterator[str]:
    """Scripts of other recipes with the same name and text."""
    for path in sorted(root.glob(f"*/{Path(file).name}")):
        if path != root / file and path.read_bytes() == (root / file).read_bytes():
            yield str(path.relative_to(root))


def shell_mutants_of(root: Path, file: str) -> list[Mutant]:
    """All mutants of ``file``, in the order of its text."""
    text = (root / file).read_text(encoding="utf-8")
    code = _blanked(text)
    lines = text.splitlines(keepends=True)
    seen: dict[tuple[str, str, str], int] = {}
    found = []
    copies = tuple(_copies(root, file))
    function, start = "", 0
    for number, line in enumerate(lines, 1):
        if named := _FUNCTION.match(line):
            function = named[1]
        for offset, before, after in _changes(line, code[start : start + len(line)]):
            changed = text[: start + offset] + after + text[start + offset + len(before) :]
            shown = line[: len(code[start : start + len(line)].rstrip())]  # without a comment
            new = (shown[:offset] + after + shown[offset + len(before) :]).strip()
            key = (function, shown.strip(), new if new != ":" else "(left out)")
            seen[key] = seen.get(key, 0) + 1
            if _parses(changed):
                found.append(Mutant(file, number, *key, changed, nth=seen[key], copies=copies))
        if line.startswith("}"):
            function = ""
        start += len(line)
    return found


def _changes(line: str, code: str) -> Iterator[tuple[int, str, str]]:
    """Where in ``line``, what, and what instead; ``code`` is the same with blanks for what is no code."""
    for match in _TOKEN.finditer(code):
        token = match[1]
        if token in _ANYWHERE or (_in_arithmetic(code, match.start()) and code[match.end(1)] != '"'):
            yield match.start(), token, {**_ANYWHERE, **_ARITHMETIC}[token]
    for match in _NUMBER.finditer(code):
        yield match.start(), match[0], str(int(match[0]) + 1)
    if _LEFT_OUT.match(code) and not _FUNCTION.match(code):
        body = code.strip()
        yield code.index(body), line[code.index(body) :][: len(body)], ":"


def _in_arithmetic(code: str, place: int) -> bool:
    before = code[:place]
    return before.count("((") > before.count("))") or bool(re.search(r"\[[^]]*$", before))


def _blanked(text: str) -> str:
    """``text`` with blanks for comments and for what is between quotes; ``$((...))`` between double quotes stays."""
    parts = r"(?P<comment>(?:^|(?<=\s))#[^\n]*)|(?P<single>'[^']*')|(?P<double>\"(?:[^\"\\]|\\.)*\")"

    def blank(match: re.Match[str]) -> str:
        if match["double"] and "$((" in match[0]:
            return match[0]
        return re.sub(r"[^\n]", " " if match["comment"] else match[0][0], match[0])

    return re.sub(parts, blank, text, flags=re.MULTILINE)


def _parses(text: str) -> bool:
    return subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False).returncode == 0
