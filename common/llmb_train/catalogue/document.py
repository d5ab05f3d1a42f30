"""The catalogue of an engine as JSON: the same text for the same engine, one line per function."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from llmb_train import hugging_face
from llmb_train.catalogue import columns, functions
from llmb_train.versions import package_version

SCHEMA = 1


def rows() -> dict[str, dict[str, Any]]:
    """Every performance recipe of this engine, constructed: its row by its name."""
    found = {}
    for name in functions.names():
        function = functions.find(name)
        hugging_face.asked.clear()
        row = columns.row(function())
        row["hugging_face"] = next(iter(dict.fromkeys(hugging_face.asked)), None)
        found[name] = row
    return found


def index(names: Iterable[str]) -> list[list[Any]]:
    """What the names say: name, model, task, GPUs, GPU type, precision, variant or null."""
    rows = []
    for name in names:
        part = functions.NAME.match(name)
        assert part is not None  # functions.names has no other
        word = part.group
        rows.append(
            [name, word("model"), word("task"), int(word("gpus")), word("gpu"), word("precision"), word("variant")]
        )
    return rows


def text(found: dict[str, dict[str, Any]], date: str) -> str:
    """The catalogue of ``date`` (2026-11-22) as JSON.

    ``sha256`` is that of the lines of the functions: it tells what jobs were planned with.
    """
    body = ",\n".join(f"{json.dumps(name)}:{_line(row)}" for name, row in found.items())
    selected_by = ",\n".join(map(_line, index(found)))
    head = {
        "schema": SCHEMA,
        "release": package_version("megatron-bridge"),
        "core": package_version("megatron-core"),
        "date": date,
        "sha256": hashlib.sha256(body.encode()).hexdigest(),
    }
    start = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items())
    return f'{{{start},\n"index": [\n{selected_by}\n],\n"functions": {{\n{body}\n}}}}\n'


def _line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
