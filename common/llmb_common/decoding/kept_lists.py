"""Lists that an installation keeps in ``.llmb``, one JSON file each: read as structs, written in one step."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from llmb_common.decoding.structs import from_plain
from llmb_common.errors import RecordError
from llmb_common.machine.files import read_json, write_json

SCHEMA = 1

T = TypeVar("T")


def read_list(file: Path, name: str, kind: type[T], what: str) -> list[T]:
    """The items under ``name`` in ``file``; none where there is no file. ``what`` names such a file in messages.

    Raises:
        RecordError: it cannot be read, is damaged or of another version
    """
    if not file.exists():
        return []
    value = read_json(file)
    try:
        if value["schema"] != SCHEMA:
            raise RecordError(f"{file} has schema {value['schema']}, this version reads {SCHEMA}")
        found: list[T] = from_plain(value[name], list[kind])  # type: ignore[valid-type]
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise RecordError(f"{file} is not {what}: {error}", remedy="correct or remove the file") from error
    return found


def write_list(file: Path, name: str, items: Iterable[Any]) -> None:
    """Write ``items`` to ``file`` in place of the list that is there."""
    file.parent.mkdir(exist_ok=True)
    write_json(file, {"schema": SCHEMA, name: [msgspec.to_builtins(item) for item in items]})
