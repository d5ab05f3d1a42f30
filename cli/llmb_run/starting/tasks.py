"""A task file as asks, whichever form it has."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from pathlib import Path

from llmb_common.decoding.strict_yaml import read_text
from llmb_common.errors import ConfigError
from llmb_run.place import Place
from llmb_run.starting.requests import Ask
from llmb_run.starting.tasks_text import is_text_form, parse_text
from llmb_run.starting.tasks_yaml import parse_yaml

_LATER = ("image", "megatron")
"""Fields of an ``Ask`` that older versions lack: where they say nothing, jobs keep the names that those gave them."""


def read_tasks(path: Path, place: Place) -> list[Ask]:
    """Every job of the file, in its order.

    Raises:
        ConfigError: something in it is wrong; with file and line
        RequestError: there is no installation
    """
    text = read_text(path)
    asks = parse_text(text, str(path), place) if is_text_form(text) else parse_yaml(text, str(path), place)
    if not asks:
        raise ConfigError(f"{path}:1: no task", remedy="cli/README.md shows both forms of a task file")
    return asks


def keys_of(path: Path, asks: list[Ask], round_name: str = "") -> list[str]:
    """A name for each job that stays the same when the file is run again, also with more tasks in it.

    Equal jobs (a task written twice) are numbered. ``round_name`` makes new names, to run the same file once more.
    """
    seen: dict[str, int] = {}
    keys = []
    for ask in asks:
        said = {field.name: getattr(ask, field.name) for field in fields(ask) if field.compare}
        content = "\n".join(f"{name}={_text(value)}" for name, value in said.items() if value or name not in _LATER)
        where = str(path.resolve())
        digest = hashlib.sha256(f"{where}\n{round_name}\n{content}".encode()).hexdigest()[:16]
        seen[digest] = seen.get(digest, 0) + 1
        keys.append(f"{path.stem}:{digest}:{seen[digest]}")
    return keys


def _text(value: object) -> str:
    return repr(sorted(value.items())) if isinstance(value, dict) else repr(value)
