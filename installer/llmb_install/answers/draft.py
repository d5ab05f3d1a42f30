"""The answers of a dialogue that was interrupted, in the user's state folder. No secret is among them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from llmb_common.errors import RecordError
from llmb_common.files import read_json, write_atomic
from llmb_install.answers.questions import QUESTIONS, Given


def keep(given: Given) -> None:
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(given, indent=2), mode=0o600)


def forget() -> None:
    _path().unlink(missing_ok=True)


def read() -> Given:
    """The saved answers; empty if there is no draft or it cannot be read."""
    known = {question.field for question in QUESTIONS}
    try:
        draft = read_json(_path())
    except RecordError:
        return {}
    return {key: value for key, value in draft.items() if key in known} if isinstance(draft, dict) else {}


def _path() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "llmb" / "installer-draft.json"
