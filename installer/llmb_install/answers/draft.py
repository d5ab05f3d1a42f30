"""The answers of a dialogue that was interrupted, and of the last that ended, in the user's state folder. No secret is
among them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from llmb_common.errors import LLMBError, RecordError
from llmb_common.machine.files import read_json, write_atomic
from llmb_install.answers.checks import value_problem
from llmb_install.answers.questions import QUESTIONS, Given
from llmb_install.working.readiness import raise_all

_DRAFT, _LAST = "installer-draft.json", "installer-answers.json"


def keep(given: Given, name: str = _DRAFT) -> None:
    path = _path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(given, indent=2), mode=0o600)


def refuse(found: Iterable[LLMBError], given: Given) -> None:
    """Raise what was found. The answers ``given`` on the command line are kept for a dialogue."""
    problems = list(found)
    more = ""
    if problems and given:
        with contextlib.suppress(RecordError, OSError):
            keep(given)
            more = "; the answers are kept: ./installer.py without any continues with them in a terminal"
    raise_all(problems, more)


def finish(given: Given) -> None:
    """The dialogue has ended: its answers are what the next one offers."""
    with contextlib.suppress(RecordError, OSError):
        keep(given, _LAST)
    _path(_DRAFT).unlink(missing_ok=True)


def last() -> Given:
    """The answers of this user's last dialogue that ended; empty if there was none."""
    return read(_LAST)


def read(name: str = _DRAFT) -> Given:
    """The saved answers that are possible; empty if there are none or they cannot be read."""
    try:
        draft = read_json(_path(name))
    except RecordError:
        return {}
    known = {question.field: question for question in QUESTIONS}
    found = draft.items() if isinstance(draft, dict) else ()
    return {field: value for field, value in found if field in known and not value_problem(known[field], value)}


def _path(name: str) -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "llmb" / name
