"""Every field of the framework's configuration, by name, with the values that it takes: what ``--megatron`` is held
against before a job queues (``llmb_common.planning.settings``).

A kind is its alternatives with ``|`` between them: ``bool``, ``int``, ``float``, ``str``, ``dtype``, ``list``,
``dict``, ``none``, or a value in quotes. ``any``: something that no text gives.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Iterator
from typing import Any

from llmb_train.versions import package_version

_PLAIN = {bool: "bool", int: "int", float: "float", str: "str", list: "list", tuple: "list", dict: "dict"}


def fields_text() -> str:
    """The fields of this engine's Megatron-Bridge as JSON: section, field and kind."""
    import megatron.bridge.models  # noqa: F401  the classes of all models
    from megatron.bridge.training.config import ConfigContainer

    sections = {
        field.name: _section(hint)
        for field, hint in _fields(ConfigContainer)
        if field.name not in ("env_vars", "_checkpoint_load_required")
    }
    document = {"megatron_bridge": package_version("megatron-bridge"), "sections": sections}
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def kind_of(hint: Any) -> str:
    """What a field of the type ``hint`` takes."""
    return "|".join(sorted(set(_alternatives(hint)))) or "any"


def _alternatives(hint: Any) -> Iterator[str]:
    origin = typing.get_origin(hint)
    if hint is None or hint is type(None):
        yield "none"
    elif origin in (typing.Union, types.UnionType):
        for part in typing.get_args(hint):
            yield from _alternatives(part)
    elif origin is typing.Literal:
        yield from (f'"{value}"' for value in typing.get_args(hint))
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        yield from (f'"{member.name}"' for member in hint)
    elif hint in _PLAIN or origin in _PLAIN:
        yield _PLAIN[hint if hint in _PLAIN else origin]
    else:
        yield "dtype" if getattr(hint, "__qualname__", "") == "dtype" else "any"


def _section(hint: Any) -> dict[str, str]:
    """The fields of every class that the section can be of."""
    found: dict[str, set[str]] = {}
    for kind in _classes(hint):
        for field, own in _fields(kind):
            if field.init and not field.name.startswith("_"):
                found.setdefault(field.name, set()).update(kind_of(own).split("|"))
    return {name: _joined(kinds) for name, kinds in found.items() if kinds != {"any"} and kinds != {"any", "none"}}


def _joined(kinds: set[str]) -> str:
    """Without what says nothing: a class below may call a text what the one above gives the values of."""
    values = any(kind.startswith('"') for kind in kinds)
    return "|".join(sorted(kinds - {"any"} - ({"str"} if values else set())))


def _classes(hint: Any) -> Iterator[type]:
    """``hint`` itself, what a union is of, and the models made of these; not whatever else has been imported."""
    for part in typing.get_args(hint) or [hint]:
        if isinstance(part, type) and dataclasses.is_dataclass(part):
            yield part
            for below in part.__subclasses__():
                a_model = below.__module__.startswith("megatron.bridge.models.") and hasattr(below, "num_layers")
                yield from _classes(below) if a_model else ()


def _fields(kind: type) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    try:
        hints = typing.get_type_hints(kind)
    except (NameError, TypeError):  # a name that is imported for type checkers only
        hints = {}
    for field in dataclasses.fields(kind):
        yield field, hints.get(field.name, field.type)


def takes(kinds: list[str], value: Any) -> bool:
    """Whether a field of ``kinds`` takes ``value``, which JSON had."""
    if "any" in kinds or f'"{value}"' in kinds:
        return True
    names = {type(None): ["none"], bool: ["bool"], int: ["int", "float"], float: ["float"], str: ["str", "dtype"]}
    return bool({*names.get(type(value), ["list" if isinstance(value, list) else "dict"])} & {*kinds})
