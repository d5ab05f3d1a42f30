"""JSON values -> frozen dataclasses, without guessing: there may be no validation library in the container."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class StrictError(ValueError):
    """A value does not have the declared type; the message starts with the dotted key."""


def from_mapping(cls: type[T], content: Mapping[str, Any], where: str = "") -> T:
    """Build the dataclass ``cls`` from ``content``, key by key.

    Raises:
        StrictError: an unknown key, a missing key, or a value of another type than declared.
    """
    hints = get_type_hints(cls)
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    unknown = sorted(set(content) - set(names))
    if unknown:
        raise StrictError(f"unknown key {_dotted(where, unknown[0])}; known are {', '.join(names)}")
    missing = [name for name in names if name not in content]
    if missing:
        raise StrictError(f"missing key {_dotted(where, missing[0])}")
    return cls(**{name: _value(hints[name], content[name], _dotted(where, name)) for name in names})


def _dotted(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _value(kind: Any, value: Any, where: str) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _optional(kind, value, where)
    if origin is Literal:
        # bool is an int to Python: True would pass for 1.
        if isinstance(value, bool) or value not in get_args(kind):
            raise StrictError(f"{where} is {value!r}, expected one of {', '.join(map(repr, get_args(kind)))}")
        return value
    if origin is list:
        if not isinstance(value, list):
            raise StrictError(f"{where} is {value!r}, expected a list")
        (item,) = get_args(kind)
        return [_value(item, entry, f"{where}[{i}]") for i, entry in enumerate(value)]
    if origin is dict:
        if not isinstance(value, Mapping):
            raise StrictError(f"{where} is {value!r}, expected an object")
        return dict(value)
    if is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise StrictError(f"{where} is {value!r}, expected an object")
        return from_mapping(kind, value, where)  # type: ignore[arg-type]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, bool) and kind is not bool:
        raise StrictError(f"{where} is {value!r}, expected {kind.__name__}")
    if not isinstance(value, kind):
        raise StrictError(f"{where} is {value!r}, expected {kind.__name__}")
    return value


def _optional(kind: Any, value: Any, where: str) -> Any:
    choices = [choice for choice in get_args(kind) if choice is not type(None)]
    if value is None and len(choices) < len(get_args(kind)):
        return None
    (choice,) = choices
    return _value(choice, value, where)
