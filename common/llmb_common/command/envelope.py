"""What a command returns, and how it is printed: as text for people, or with ``--json`` as one object, the envelope.

::

    {"schema": 1, "command": "results", "ok": true,  "data": ..., "error": null, "notices": ["..."]}
    {"schema": 1, "command": "results", "ok": false, "data": null,
     "error": {"code": "request", "message": "...", "remedy": "...", "exit_status": 2}, "notices": []}

``ok`` is true when the exit status is 0. A command whose answer is bad news (a benchmark failed, doctor found a
blocker) has both: ``ok`` false and its ``data``. ``schema`` grows when the shape of the envelope or of a command's
data changes in a way that old readers cannot take.

Standard library only: the installer's first stage uses it too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llmb_common.command.printable import exact, printable_json, printable_lines
from llmb_common.errors import LLMBError

SCHEMA = 1


@dataclass(frozen=True)
class Result:
    """What one command has to say. The command layer prints it and ends the process with ``exit_status``.

    ``data`` and ``text`` may be functions where only the one that is printed should be made.
    """

    data: Any = None
    """What ``--json`` prints: plain values, no NaN or infinity."""
    text: str | Callable[[], str] = ""
    """What is printed otherwise, complete with its line breaks."""
    status: int = 0
    """The exit status, unless there is an ``error``."""
    error: LLMBError | None = None
    """Why the command failed, where there is ``data`` nevertheless; a command without any raises it instead."""
    remarks: Sequence[str] = ()
    """Lines for people after the text, on standard error, with ``--json`` too."""
    hint: str = ""
    """The next step, for a person at a terminal; a pipe does not need it."""
    for_programs: bool = False
    """``text`` is a script or the like, which must reach a file or a program unchanged."""

    @property
    def exit_status(self) -> int:
        return self.status if self.error is None else self.error.exit_status


def print_result(command: str, result: Result, *, as_json: bool, notices: Sequence[str] = ()) -> int:
    """Print ``result`` of ``command``: data on stdout, remarks and the error on stderr; the exit status.

    ``notices`` are what the command has said on stderr meanwhile; they are repeated in the envelope.
    """
    if as_json:
        print(envelope(command, result, notices))
    else:
        text = result.text() if callable(result.text) else result.text
        if result.for_programs:
            exact(sys.stdout).write(text)
        else:
            sys.stdout.write(printable_lines(text))
    sys.stdout.flush()
    for remark in result.remarks:
        print(printable_lines(remark), file=sys.stderr)
    if result.error is not None:
        print(printable_lines(f"error: {result.error}"), file=sys.stderr)
    if result.hint and not as_json and sys.stderr.isatty():
        print(printable_lines(result.hint), file=sys.stderr)
    return result.exit_status


def envelope(command: str, result: Result, notices: Sequence[str] = ()) -> str:
    """``result`` as JSON text.

    Raises:
        ValueError: it holds NaN or an infinity, which JSON does not have
    """
    content = {
        "schema": SCHEMA,
        "command": command,
        "ok": result.exit_status == 0,
        "data": result.data() if callable(result.data) else result.data,
        "error": None if result.error is None else result.error.as_dict(),
        "notices": notices,
    }
    return printable_json(json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False))
