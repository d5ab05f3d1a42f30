"""msgspec's errors about a YAML file as readable messages: the key, its value, what is expected, what to write."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Union

from llmb_common.base.errors import did_you_mean
from llmb_common.base.printable import counted
from llmb_common.base.words import is_secret_name

_HELD = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "empty",
    "object": "a group of keys",
    "str": "text",
}
"""msgspec's type names, in words for somebody who writes YAML."""

_WRITE = {
    "array": "write a list: {key}: [first, second]",
    "bool": "write {key}: true, or {key}: false",
    "float": "write a number, without a unit or quotes",
    "int": "write a whole number, without a unit or quotes",
    "object": "write its keys on separate lines below {key}:, indented by two spaces",
}
_WRITE_TEXT = {"null": "write a value, or remove the key", "array": "write one value", "object": "write one value"}
"""Where text is expected, by what is there; anything else only lacks its quotes."""
_WRONG_TYPE = re.compile(r"Expected '(?P<wanted>[^']+)', got '(?P<actual>[a-z]+)'")
_STEP = re.compile(r"\.([^.\[]+)|\[([0-9]+|\.\.\.)\]")


def explain(text: str, kind: type[Any], data: Any) -> tuple[str, str, str]:
    """Return (path, message, remedy): msgspec's message ``text`` about a wrong value in a file, as a user needs it.

    ``data`` is what the file holds and ``kind`` the type that it should have. The path is that of the wrong value,
    such as ``$.rows[3].gpu`` (``$``: the whole file), or of the unknown key; where a key is missing or itself
    malformed, that of the mapping. The message names the key (``rows[3].gpu``); it and the remedy are without a
    period, and the remedy is empty where there is no advice. The value itself is left out of the message if its key is
    the name of a secret.
    """
    problem, _, path = text.partition(" - at `")
    # Of a wrong key msgspec writes "at `key` in `$.path`", of a wrong value "at `$.path`".
    problem = problem.replace("`", "'")
    if path.startswith("key` in `"):
        path = path.removeprefix("key` in `").rstrip("`")
        return path, f"a key of {path.removeprefix('$.')}: {problem[:1].lower()}{problem[1:]}", "correct the key"
    wrong_type = _WRONG_TYPE.match(problem)
    path = _found_in(path.rstrip("`") or "$", data, wrong_type["actual"] if wrong_type else "")
    key = path.removeprefix("$").removeprefix(".")
    at = f" (at {key})" if key else ""
    if found := re.match(r"Object contains unknown field '(.*)'", problem):
        unknown = found[1]
        near = did_you_mean(unknown, _field_names(kind))
        return f"{path}.{unknown}", f"unknown key {unknown!r}{near}{at}", "remove the key or correct its name"
    if found := re.match(r"Object missing required field '(.*)'", problem):
        return path, f"the key {found[1]!r} is missing{at}", "add it"
    value = "" if is_secret_name(key.rpartition(".")[2]) else _short_value(_value_at(path, data))
    if wrong_type:
        message, remedy = _explain_type(key, value, wrong_type["wanted"], wrong_type["actual"])
    elif problem.startswith("Invalid enum value"):
        message, remedy = _explain_word(key, value, [str(choice) for choice in _choices_at(path, kind)])
    else:
        message, remedy = _explain_limit(f"{key}{value}", problem)
    return path, message, remedy


def _explain_type(key: str, value: str, wanted: str, actual: str) -> tuple[str, str]:
    """Return (message, remedy) for a value of the wrong type, as ``explain`` has them.

    ``key`` is its key, empty for the whole file, and ``value`` as ``_short_value`` writes it. ``actual`` is msgspec's
    name of the value's type, ``wanted`` those of the types that are possible, as in ``int | null``.
    """
    possible = [word for word in wanted.split(" | ") if word != "null"]
    should = " or ".join(_HELD.get(word, word) for word in possible)
    message = f"{key or 'the file'} is {_HELD.get(actual, actual)}{value}, but {should} is expected"
    return message, _value_remedy(possible[0], key, actual)


def _explain_word(key: str, value: str, choices: Sequence[str]) -> tuple[str, str]:
    """Return (message, remedy) for a word that is none of ``choices``, as ``explain`` has them.

    ``value`` is the word as ``_short_value`` writes it.
    """
    near = did_you_mean(value.strip(" ()'\""), choices)
    if not choices:
        remedy = "correct it"
    elif len(choices) == 1:
        remedy = f"write {key}: {choices[0]}"
    else:
        remedy = f"use one of {', '.join(choices)}"
    return f"{key}{value} is unknown{near}", remedy


def _explain_limit(what: str, problem: str) -> tuple[str, str]:
    """Return (message, remedy) for a value of the right type that breaks a limit, as ``explain`` has them.

    ``what`` is the key with the value, ``problem`` msgspec's message about it; one of another kind is passed on, with
    an empty remedy.
    """
    if found := re.match(r"Expected '(?:int|float)' ([<>]=?) (-?[0-9.e+-]+)", problem):
        bound = {">=": "at least", ">": "more than", "<=": "at most", "<": "less than"}[found[1]]
        return f"{what} is out of range", f"use {bound} {found[2].removesuffix('.0')}"
    if found := re.match(r"Expected 'str' matching regex '(.*)'$", problem):
        pattern = found[1].replace("\\\\", "\\").removeprefix(r"\A").removesuffix(r"\Z")
        return f"{what} has characters, or a length, that are not allowed", f"it must match {pattern}"
    if found := re.match(r"Expected '(str|array)' of length ([<>])= ([0-9]+)", problem):
        word, bound = ("short", "least") if found[2] == ">" else ("long", "most")
        many = counted(int(found[3]), "character") if found[1] == "str" else f"{found[3]} of them"
        return f"{what} is too {word}", f"write at {bound} {many}"
    return f"{what}: {problem}", ""


_TYPES = {"array": list, "bool": bool, "float": float, "int": int, "null": type(None), "object": dict, "str": str}


def _found_in(path: str, data: Any, actual: str) -> str:
    """Return ``path`` with the actual key in place of ``[...]``, which msgspec writes for any value of a mapping.

    It is the first key in ``data`` whose value has the wrong type ``actual``, a name of msgspec's such as ``str``;
    empty, as any unknown name, fits none. ``path`` unchanged where it has no ``[...]`` at its end, or no value fits.
    """
    before, dots, after = path.partition("[...]")
    values = _value_at(before, data)
    if not dots or after or not isinstance(values, dict):
        return path
    for key, value in values.items():
        if type(value) is _TYPES.get(actual):
            return f"{before}.{key}"
    return path


def _value_remedy(wanted: str, key: str, actual: str) -> str:
    """Return what a user should write for ``key``, whose value is of type ``actual`` instead of ``wanted``.

    Both are msgspec's names of types (``str``, ``int``). ``key`` may be a path, of which the last name counts; empty:
    the whole file is wrong. The answer is an imperative without a period; empty: no advice.
    """
    if not key:
        return "start each line with a key and a colon"
    if wanted == "str":
        return _WRITE_TEXT.get(actual, "put the value in quotes")
    last = re.sub(r"(\[[0-9.]+])+$", "", key).rpartition(".")[2]  # without the index of an item: set[...][0]
    return _WRITE.get(wanted, "").format(key=last)


def _short_value(value: Any) -> str:
    """Return a wrong value for a message, in parentheses after a blank: `` ('x')``, `` (true)``.

    Text is written as Python writes it. Empty for None, lists and mappings, and where it would have more than 60
    characters.
    """
    if value is None or isinstance(value, (list, dict)):
        return ""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return f" ({text})" if len(text) <= 60 else ""


def _path_steps(path: str) -> Iterator[str]:
    """Yield the keys and indices in a path as msgspec writes it: ``rows``, ``[3]`` and ``gpu`` of ``$.rows[3].gpu``.

    The ``$`` is left out, and ``[...]`` comes as it is. Nothing for the path ``$``.
    """
    for found in _STEP.finditer(path):
        yield found[1] or f"[{found[2]}]"


def _value_at(path: str, data: Any) -> Any:
    """Return the value in ``data`` at a path of msgspec's, such as ``$.rows[3].gpu``.

    None where it is null, or ``data`` has no such place: for a value of a mapping, msgspec writes ``[...]`` instead of
    its key.
    """
    for step in _path_steps(path):
        if isinstance(data, dict) and step in data:
            data = data[step]
        elif isinstance(data, list) and step.startswith("["):
            data = data[int(step[1:-1])]
        else:
            return None  # msgspec writes "[...]" for a value of a mapping
    return data


def _choices_at(path: str, kind: Any) -> tuple[Any, ...]:
    """Return the words of the ``Literal`` type that the field at a path of msgspec's has, in ``kind``, in their order.

    ``kind`` is the type of the whole file. Empty where the field takes no fixed words.
    """
    import msgspec

    for step in _path_steps(path):
        for option in _union_members(kind):
            if isinstance(option, type) and issubclass(option, msgspec.Struct):
                names = dict(zip(option.__struct_encode_fields__, option.__struct_fields__, strict=True))
                kind = typing.get_type_hints(option).get(names.get(step, step), Any)
            elif step.startswith("[") and typing.get_args(option):
                kind = next(a for a in reversed(typing.get_args(option)) if a is not Ellipsis)
            else:
                continue
            break
    words: list[Any] = []
    for option in _union_members(kind):
        if typing.get_origin(option) is Literal:
            words += option.__args__
    return tuple(words)


def _union_members(kind: Any) -> Iterator[Any]:
    """Yield the types that the union ``kind`` allows, also in unions within it, but not None; else ``kind`` itself.

    In their order; nothing where ``kind`` is None's own type. It must come from ``get_type_hints``, which takes off
    annotations.
    """
    if typing.get_origin(kind) in (Union, types.UnionType):
        for option in typing.get_args(kind):
            yield from _union_members(option)
    elif kind is not type(None):
        yield kind


def _field_names(kind: type[Any]) -> Iterator[str]:
    """Yield the names of all fields of the struct ``kind`` and of the structs in it at any depth, as files write them.

    They are what a misspelt key can have meant. In no particular order; a name can come more than once, but structs
    that contain themselves do no harm. ``kind`` may also be another type, such as a list of structs; nothing where
    there is no struct in it.
    """
    import msgspec

    seen: set[Any] = set()
    todo: list[Any] = [kind]
    while todo:
        current = todo.pop()
        if current in seen:
            continue
        seen.add(current)
        if isinstance(current, type) and issubclass(current, msgspec.Struct):
            yield from current.__struct_encode_fields__
            todo.extend(typing.get_type_hints(current).values())
        else:
            todo.extend(typing.get_args(current))
