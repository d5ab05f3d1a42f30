"""The catalogue of an engine as JSON: the same text for the same engine, one line per function."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llmb_train import hugging_face
from llmb_train.catalogue import columns, functions
from llmb_train.hugging_face.numbers import PUBLISHED
from llmb_train.versions import package_version

SCHEMA = 1


def rows() -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Every performance recipe of this engine: by name, the row of those that can be called, and why others cannot."""
    found, missing = {}, functions.unread()
    for name in functions.names():
        hugging_face.asked.clear()
        try:
            row = columns.row(functions.find(name)())
        except Exception as error:  # noqa: BLE001  # NVIDIA's code, of any release: the others go on
            missing[name] = " ".join(f"{type(error).__name__}: {error}".split())
            continue
        row["hugging_face"] = next(iter(dict.fromkeys(hugging_face.asked)), None)
        found[name] = row
    return found, dict(sorted(missing.items()))


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


def text(found: dict[str, dict[str, Any]], missing: dict[str, str], date: str, base: Path | None = None) -> str:
    """The catalogue of ``date`` (2026-11-22) as JSON.

    ``sha256`` is that of the lines of all functions: it tells what jobs were planned with. ``missing``: what could not
    be called, and why. ``base``: a catalogue beside it; lines that it has are left out.
    """
    lines = {name: f"{json.dumps(name)}:{_line(row)}" for name, row in found.items()}
    selected_by = ",\n".join(map(_line, index(found)))
    head: dict[str, Any] = {
        "schema": SCHEMA,
        "release": package_version("megatron-bridge"),
        "core": package_version("megatron-core"),
        "date": date,
        "sha256": hashlib.sha256(",\n".join(lines.values()).encode()).hexdigest(),
        "assumed": {
            name: PUBLISHED[name].assumed
            for name in sorted({row["hugging_face"] for row in found.values()} & PUBLISHED.keys())
            if PUBLISHED[name].assumed
        },
    }
    if missing:
        head["missing"] = missing
    if base is not None:
        head["base"] = base.name
        known = json.loads(base.read_text(encoding="utf-8"))["functions"]
        lines = {name: line for name, line in lines.items() if found[name] != known.get(name)}
    start = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items())
    body = ",\n".join(lines.values())
    return f'{{{start},\n"index": [\n{selected_by}\n],\n"functions": {{\n{body}\n}}}}\n'


def _line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
