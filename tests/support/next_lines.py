"""A line ``next: ...`` holds a command that can be pasted: the parser of llmb-run takes it."""

from __future__ import annotations

import re
import shlex

from llmb_run.app import app

_MARK = "next: "
_NO_VALUE = re.compile(r"[|&;<>]+|.*[.][.][.].*|[A-Z][A-Z_]+")
"""A word of a shell, something left out, or the name of what is to be put in its place."""

_RUN_ID = re.compile(r"((sweep|submit|retry)-)?[0-9a-f]{8}")


def next_lines(text: str) -> list[str]:
    """The commands that ``text`` says are next."""
    return [line[len(_MARK) :] for line in text.splitlines() if line.startswith(_MARK)]


def assert_can_be_pasted(line: str, runs_are: re.Pattern[str] = _RUN_ID) -> None:
    """``line`` is what follows the mark; each run in it is as ``runs_are``."""
    program, *words = shlex.split(line, comments=True)
    assert program == "llmb-run", line
    assert not any(_NO_VALUE.fullmatch(word) for word in words), line
    context = app.make_context(program, words)
    name, command, arguments = app.resolve_command(context, words)
    assert command is not None, line
    parsed = command.make_context(name, arguments, parent=context)
    runs = parsed.params.get("runs") or ()
    assert all(runs_are.fullmatch(run) for run in runs), line
