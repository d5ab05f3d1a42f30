"""``docs/llmb.schema.json``: JSON Schema of what ``--json`` prints, from ``docs/reference.md`` and structs of the code.

The page has a table of ``data`` for each command: each key, its type and what it is. ``name[]`` is a list of objects,
whose own keys are ``name[].key``; ``name?`` is not always there. Types are JSON's; ``[string]`` is a list of them.
Objects in a list of ``run``, ``result`` or ``group`` also have the keys of a run, of a run in ``results``, or of
repeats. ``plan`` and ``diagnosis`` are structs of the code.

The tests hold every JSON that a command prints against it (``support.json_answers``).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.cluster_types import all_traits
from llmb_common.base.outcome import SCHEMA
from llmb_common.causes.answer import Diagnosis
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.index.runs import RunRow
from llmb_run.columns import RUN_KEYS, Column, Form
from llmb_run.results.groups import GROUP
from llmb_run.results.run_columns import RUN

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference.md"
_STRUCTS = {"plan": JobPlan, "diagnosis": Diagnosis, "run": RunRow}


def data() -> dict[str, dict[str, str]]:
    """By command, for each key ``type: what it is``: the tables of the page's part about JSON."""
    found: dict[str, dict[str, str]] = {}
    part = PAGE.read_text(encoding="utf-8").partition("\n## JSON\n")[2]
    for section in part.split("\n### ")[1:]:
        heading, *lines = section.splitlines()
        rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("| `")]
        keys = {key.strip(" `"): f"{kind.strip()}: {means.strip()}".replace("\\|", "|") for key, kind, means in rows}
        found |= dict.fromkeys(re.findall("`([^`]+)`", heading), keys)
    return found


def document() -> dict[str, Any]:
    """The envelope, whose ``command`` decides what ``data`` is; a command's data is ``#/definitions/results``."""
    commands = {name: _data(keys) for name, keys in data().items()}
    answers: dict[str, list[dict[str, Any]]] = {}
    for name in commands:  # both programs have a list
        answers.setdefault(name.removeprefix("llmb-install "), []).append(_reference(_key(name)))
    any_of = [
        {"properties": {"command": {"const": command}, "data": {"anyOf": [*found, {"type": "null"}]}}}
        for command, found in answers.items()
    ]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": f"What llmb-run and llmb-install print with --json, schema {SCHEMA}",
        "type": "object",
        "properties": {
            "schema": {"const": SCHEMA},
            "command": {"type": "string"},
            "ok": {"type": "boolean"},
            "error": {"type": ["object", "null"], "required": ["code", "message", "remedy", "exit_status"]},
            "notices": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["schema", "command", "ok", "data", "error", "notices"],
        "anyOf": any_of,
        "definitions": {**_structs(), **{_key(name): schema for name, schema in commands.items()}},
    }


def _key(command: str) -> str:
    return command.replace(" ", "-")


def _structs() -> dict[str, Any]:
    parts = [way.settings_type.part for way in all_traits().values()]
    parts = [part for part in parts if part.__struct_fields__]
    _, definitions = msgspec.json.schema_components(
        [*_STRUCTS.values(), *parts], schema_hook=lambda _: {"type": "string"}, ref_template="#/definitions/{name}"
    )
    of_schedulers = [*(_reference(part.__name__) for part in parts), {"type": "null"}]
    definitions["JobPlan"]["properties"]["slurm"] = {"anyOf": of_schedulers}
    for definition in definitions.values():
        if "description" in definition:  # the docstring, whose indentation only Python 3.13 takes away
            definition["description"] = inspect.cleandoc(definition["description"])
    found: dict[str, Any] = _draft_7(definitions)
    return found


def _draft_7(schema: Any) -> Any:
    """``schema`` with its tuples as Draft-07 has them: msgspec writes those of a later draft."""
    if isinstance(schema, list):
        return [_draft_7(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _draft_7(value) for key, value in schema.items()}
    if "prefixItems" in found:
        found["items"] = found.pop("prefixItems")
        found["additionalItems"] = False
    return found


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/definitions/{name}"}


def _data(keys: dict[str, str]) -> dict[str, Any]:
    return _items("object", "[].", keys) if "[]" in keys else _object(keys)


def _object(keys: dict[str, str], more: dict[str, Any] | None = None) -> dict[str, Any]:
    properties, required = {}, []
    for key, field_schema in keys.items():
        name = key.removesuffix("?")
        if "[]." in name:
            continue
        kind, _, means = field_schema.partition(": ")
        listed = name.endswith("[]")
        name = name.removesuffix("[]")
        schema = _items(kind, f"{name}[].", keys) if listed else _type(kind)
        properties[name] = {**schema, "description": means}
        if not key.endswith("?"):
            required.append(name)
    return {
        "type": "object",
        "properties": {**(more or {}), **properties},
        "required": required,
        "additionalProperties": False,
    }


def _items(kind: str, prefix: str, keys: dict[str, str]) -> dict[str, Any]:
    """A list of objects with the keys below ``prefix``, and those that its ``kind`` has anyway."""
    own = {key.removeprefix(prefix): schema for key, schema in keys.items() if key.startswith(prefix)}
    more = {"object": {}, "run": _run(), "result": {**_schema_of(RUN), **_run()}, "group": _schema_of(GROUP)}[
        kind.removesuffix("?")
    ]
    return {"type": "array", "items": _object(own, more)}


def _run() -> dict[str, Any]:
    properties = _structs()["RunRow"]["properties"]
    return {key: {**properties[key], "description": means} for key, means in RUN_KEYS.items()}


def _schema_of(columns: Iterable[Column[Any]]) -> dict[str, Any]:
    """A column that people see as a number is one; of others the meaning says it."""
    kinds = {"": {}, "d": {"type": ["integer", "null"]}}
    number = {"type": ["number", "null"]}
    return {
        column.key: {**kinds.get(column.spec, number), "description": column.means}
        for column in columns
        if Form.JSON in column.forms
    }


def _type(text: str) -> dict[str, Any]:
    """``[string]|null`` as a schema."""
    found = [_single(word) for word in text.split("|")]
    return found[0] if len(found) == 1 and "$ref" not in found[0] else {"anyOf": found}


def _single(word: str) -> dict[str, Any]:
    if word.startswith("["):
        return {"type": "array", "items": _single(word[1:-1])}
    return _reference(_STRUCTS[word].__name__) if word in _STRUCTS else {"type": word}
