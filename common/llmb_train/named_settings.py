"""Settings of the framework by section and field: those that the user asked for, set last and checked against the
classes that are there; and all that there are, which ``llmb_common.planning.settings`` looks at before a job queues.

A kind is its alternatives with ``|`` between them: ``bool``, ``int``, ``float``, ``str``, ``dtype``, ``list``,
``dict``, ``none``, or a value in quotes. ``any``: something that no text gives.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import json
import types
import typing
from collections.abc import Iterator
from typing import Any

from llmb_train.engine import package_version
from llmb_train.errors import JobError
from llmb_train.job import FunctionJob, Job
from llmb_train.ranks import notice

_PLAIN = {bool: "bool", int: "int", float: "float", str: "str", list: "list", tuple: "list", dict: "dict"}


def apply(job: Job | FunctionJob, config: Any) -> None:
    """Set in ``config`` the framework's settings that the user named in the job (``--megatron``).

    ``config`` is Megatron-Bridge's. In the job's order; those before an error stay set. The first rank prints a
    notice to the log for each whose value ``config`` has already.

    Raises:
        JobError: ``config`` has no such section or field, or the field takes no such value
    """
    for name, value in job.megatron.items():
        section, field = _section_and_field(config, name)
        before = value_in(config, name)
        setattr(section, field, _converted(section, field, value, name))
        if value_in(config, name) == before:
            notice(f"{name}={before} is what this job has anyway")


def value_in(config: Any, name: str) -> Any:
    """Return the value of the setting ``name``, such as ``model.num_layers``, in ``config``, as a JSON value.

    None where it is None, and where there is no such section or field.
    """
    section, _, field = name.partition(".")
    return as_json_value(getattr(getattr(config, section, None), field, None))


def title(config: Any, name: str) -> str:
    """Return the setting ``name`` for messages; where another section sets the same field later, with that behind it.

    Such as ``model.fp8 (set mixed_precision.fp8)``: the user is to set the later one instead. Later are
    ``mixed_precision`` and ``comm_overlap``; ``name`` alone where neither of them, in ``config``, has the field, or
    only the one that ``name`` itself is of.
    """
    section, _, field = name.partition(".")
    later = [other for other in ("mixed_precision", "comm_overlap") if hasattr(getattr(config, other, None), field)]
    return name + "".join(f" (set {other}.{field})" for other in later if other != section)


def _section_and_field(config: Any, name: str) -> tuple[Any, str]:
    """Return (the section object of ``config``, the name of the field) that the setting ``name`` means.

    ``name`` is the section, a dot and the field (``model.num_layers``). If ``config`` has the section only as the
    name of a mixed precision, it is replaced in ``config`` by the section.

    Raises:
        JobError: there is no such section or field, or no dot
    """
    title, _, field = name.partition(".")
    if isinstance(getattr(config, title, None), str):  # the name of a mixed precision
        from megatron.bridge.training.mixed_precision import get_mixed_precision_config

        setattr(config, title, get_mixed_precision_config(getattr(config, title)))
    section = getattr(config, title, None)
    if section is None:
        sections = ", ".join(sorted(key for key, value in vars(config).items() if hasattr(value, "__dict__")))
        raise JobError(f"{name}: this job has no section {title}", remedy=f"it has {sections}")
    if not hasattr(section, field):
        near = difflib.get_close_matches(field, list(vars(section)), 1)
        raise JobError(
            f"{name}: {type(section).__name__} has no field {field}" + (f" (did you mean {near[0]}?)" if near else ""),
            remedy="correct --megatron (MEGATRON_SETTINGS), or leave it out",
        )
    return section, field


def _converted(section: Any, field: str, value: Any, name: str) -> Any:
    """Return the JSON ``value`` as the section's field wants it: a torch dtype, an enumeration's member, a float.

    ``section`` is an object of the configuration, ``field`` a field's name. Of a list, each item that names a
    member becomes that; an int becomes a float where the field takes no int; other values are returned as they are.
    ``name`` is the setting's, for messages. A dtype's name may have ``torch.`` in front; whether it is a dtype is
    not checked.

    Raises:
        JobError: the field takes no such value, or torch has nothing of that name
    """
    hint = _field_types(type(section)).get(field, Any)
    kinds = kind_of(hint).split("|")
    wrong = JobError(
        f"{name} is {value!r}, and {type(section).__name__} takes {', '.join(kinds)}",
        remedy="correct --megatron (MEGATRON_SETTINGS), or leave it out",
    )
    if not takes(kinds, value):
        raise wrong
    if isinstance(value, list):
        return [_enum_member(hint, item) for item in value]
    if "dtype" in kinds and isinstance(value, str):
        import torch

        dtype = getattr(torch, value.removeprefix("torch."), None)
        if dtype is None:
            raise wrong
        return dtype
    if isinstance(value, int) and not isinstance(value, bool) and "int" not in kinds and "float" in kinds:
        return float(value)
    return _enum_member(hint, value)


def _field_types(kind: type) -> dict[str, Any]:
    """Return the types of the fields of the class ``kind``, by name, inherited ones too.

    Empty where one of its annotations cannot be resolved.
    """
    try:
        return typing.get_type_hints(kind)
    except (NameError, TypeError):  # a name that is imported for type checkers only
        return {}


def _enum_member(hint: Any, value: Any) -> Any:
    """Return the member named ``value`` of an enumeration in the type ``hint``; ``value`` itself if there is none.

    Only a text can name one; case matters. Where several enumerations have it, the last one's.
    """
    if not isinstance(value, str):
        return value
    members: dict[str, enum.Enum] = {}
    for kind in _enumerations(hint):
        members.update(kind.__members__)
    return members.get(value, value)


def _enumerations(hint: Any) -> Iterator[type[enum.Enum]]:
    """Yield the enumeration classes in the type ``hint``, also those inside unions and lists; perhaps none.

    In the order in which ``hint`` names them; one may come twice.
    """
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        yield hint
    for part in typing.get_args(hint):
        yield from _enumerations(part)


def as_json_value(value: Any) -> Any:
    """Return ``value`` as a JSON value: an enumeration's member by name, a dtype or other object by ``str``.

    Lists, tuples (as lists) and dicts (sorted by key, with texts as keys) are converted item by item; bools,
    numbers, texts and None are returned as they are. A dtype has no ``torch.`` in front.

    Raises:
        TypeError: a dict has keys that cannot be sorted
    """
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (list, tuple)):
        return [as_json_value(item) for item in value]
    if isinstance(value, dict):
        return {str(key): as_json_value(item) for key, item in sorted(value.items())}
    return value if isinstance(value, (int, float, str, type(None))) else str(value).removeprefix("torch.")


def fields_text() -> str:
    """Return the JSON text of all fields of Megatron-Bridge's configuration: what each takes, by section and field.

    The object has ``megatron_bridge``, its version (null: unknown), and ``sections``, an object for each section
    with, by field, a text as ``kind_of`` returns. Keys are sorted; the text ends with a line break. Fields that no
    text can set, the section ``env_vars`` and private sections are left out. Imports Megatron-Bridge.

    Raises:
        ImportError: Megatron-Bridge is missing
    """
    import megatron.bridge.models  # noqa: F401  the classes of all models
    from megatron.bridge.training.config import ConfigContainer

    sections = {
        field.name: _section(hint)
        for field, hint in _fields(ConfigContainer)
        if field.name != "env_vars" and not field.name.startswith("_")
    }
    document = {"megatron_bridge": package_version("megatron-bridge"), "sections": sections}
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def kind_of(hint: Any) -> str:
    """Return what a field of the type ``hint`` takes, as sorted words with bars between them: ``int|none``.

    The words are ``bool``, ``int``, ``float``, ``str``, ``list`` (of whatever, tuples too), ``dict``, ``dtype``,
    ``none`` and, for any other type, ``any``; values of literals and enumerations' names are in double quotes.
    """
    return "|".join(sorted(set(_alternatives(hint)))) or "any"


def _alternatives(hint: Any) -> Iterator[str]:
    """Yield a word for each alternative of the type ``hint``: ``int``, ``none``, ``"value"``, ``dtype`` or ``any``.

    They are the words of ``kind_of``. A union gives those of its parts, ``list[int]`` gives ``list``. In the order
    of ``hint``; a word may come twice.
    """
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
    """Return what each field of a section of the type ``hint`` takes, by name, over all classes that it can be of.

    As texts like those of ``kind_of``: ``int|none``. Private fields, those that the constructor does not take, and
    those of which no alternative but None is known are left out; elsewhere unknown alternatives are not named.
    """
    found: dict[str, set[str]] = {}
    for kind in _classes(hint):
        for field, own in _fields(kind):
            if field.init and not field.name.startswith("_"):
                found.setdefault(field.name, set()).update(kind_of(own).split("|"))
    for kinds in found.values():
        if any(kind.startswith('"') for kind in kinds):  # a class below may say str where the one above has the values
            kinds.discard("str")
    return {
        name: "|".join(sorted(kinds - {"any"}))
        for name, kinds in found.items()
        if kinds not in ({"any"}, {"any", "none"})
    }


def _classes(hint: Any) -> Iterator[type]:
    """Yield the dataclasses that a section of the type ``hint`` can be of; one may come twice.

    These are the type itself, a union's parts, and Megatron-Bridge's model providers derived from them, no other
    subclasses.
    """
    for part in typing.get_args(hint) or [hint]:
        if isinstance(part, type) and dataclasses.is_dataclass(part):
            yield part
            for below in part.__subclasses__():
                a_model = below.__module__.startswith("megatron.bridge.models.") and hasattr(below, "num_layers")
                yield from _classes(below) if a_model else ()


def _fields(kind: type) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    """Yield (field, its resolved type) for each dataclass field of the class ``kind``, in the order of the class.

    A type that cannot be resolved is as it was written, perhaps a text.
    """
    hints = _field_types(kind)
    for field in dataclasses.fields(kind):
        yield field, hints.get(field.name, field.type)


def takes(kinds: list[str], value: Any) -> bool:
    """Return whether a field that takes ``kinds``, words of ``kind_of``, takes the JSON value ``value``.

    ``any`` takes everything, a word in quotes the value whose ``str`` it quotes. A text passes for ``dtype``,
    whatever it names, and an int for ``float``; a bool passes for ``bool`` only. Items of lists and dicts are not
    looked at.
    """
    if "any" in kinds or f'"{value}"' in kinds:
        return True
    names = {type(None): ["none"], bool: ["bool"], int: ["int", "float"], float: ["float"], str: ["str", "dtype"]}
    other = ["list" if isinstance(value, list) else "dict"]
    own = names.get(type(value), other)
    return not set(own).isdisjoint(kinds)
