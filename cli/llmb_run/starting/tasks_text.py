"""The short form of a task file: a workload header, then ``(dtype, [scales], repeats[, profile])`` lines.

::

    # comments and empty lines are allowed
    pretrain_llama3.1_405b:
    (fp8, [128, 256], 3)
    ([fp8, bf16], 512, 1, true)

    pretrain_grok1 314b:
    (bf16, all, 1)

The header is a workload, alone or with a size after ``_`` or a space. Quotes around words are allowed.
"""

from __future__ import annotations

import re
from dataclasses import replace

from llmb_common.errors import ConfigError, located
from llmb_run.place import Place
from llmb_run.starting.requests import Ask
from llmb_run.starting.sweeps import sweep

_HEADER = re.compile(r"(?P<name>[A-Za-z][\w.+-]*)(?:[ \t]+(?P<size>[\w.+-]+))?[ \t]*:\Z")
_TOKEN = re.compile(r"\s*(?:(?P<mark>[()\[\],])|'(?P<single>[^']*)'|\"(?P<double>[^\"]*)\"|(?P<word>[\w.+-]+))")

MAX_REPEATS = 10000


def is_text_form(text: str) -> bool:
    """Whether the first line with content is a header or a task of this form, rather than YAML's ``key: value``."""
    lines = [line for line in (_strip(line) for line in text.splitlines()) if line]
    starts_task = any(line.startswith("(") for line in lines[:2])
    return bool(lines) and starts_task


def parse_text(text: str, where: str, place: Place) -> list[Ask]:
    """The asks of a file in this form.

    Raises:
        ConfigError: something in it is wrong; with ``where`` and the line
    """
    asks: list[Ask] = []
    base: Ask | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = _strip(raw)
        if not line:
            continue
        at = f"{where}:{number}"
        if header := _HEADER.match(line):
            base = _header(header["name"], header["size"], at, place)
            continue
        if not line.startswith("("):
            raise ConfigError(
                f"{at}: {line!r} is neither a header nor a task",
                remedy="pretrain_llama3.1_405b:  or  (fp8, [128, 256], 3)",
            )
        if base is None:
            raise ConfigError(f"{at}: a task before the first header", remedy="write  pretrain_llama3.1_405b:  above")
        asks += [replace(ask, where=at) for ask in _task(line, at, base, place)]
    return asks


def _strip(line: str) -> str:
    return line.split("#", 1)[0].strip()


def _header(name: str, size: str | None, at: str, place: Place) -> Ask:
    """``pretrain_llama3.1_405b`` is the workload pretrain_llama3.1 and its size 405b; a size may hold ``_`` itself."""
    with located(at):
        if size is None:
            workloads = [entry.summary.workload for entry in place.catalog]
            begins = [workload for workload in workloads if name.lower().startswith(f"{workload}_")]
            if begins and name.lower() not in workloads:
                workload = max(begins, key=len)
                name, size = workload, name[len(workload) + 1 :]
        recipe = place.workload(name).recipe
        return Ask(workload=recipe.workload, size=recipe.model(size).size if size else None)


def _task(line: str, at: str, base: Ask, place: Place) -> list[Ask]:
    values = _values(line, at)
    if not all(word.strip() for words in values for word in words):
        raise ConfigError(f"{at}: a part of {line!r} is empty", remedy="give it a value")
    if not 3 <= len(values) <= 4:
        raise ConfigError(
            f"{at}: a task has 3 or 4 parts, this one {len(values)}",
            remedy="(dtype, [scales], repeats) or (dtype, [scales], repeats, profile)",
        )
    dtypes, scales, repeats, *profile = values
    if len(repeats) != 1 or not re.fullmatch(r"[1-9][0-9]*", repeats[0]) or int(repeats[0]) > MAX_REPEATS:
        raise ConfigError(f"{at}: repeats is {', '.join(repeats)}", remedy=f"a whole number from 1 to {MAX_REPEATS}")
    words = {"true": True, "false": False}
    if profile and (len(profile[0]) != 1 or profile[0][0].lower() not in words):
        raise ConfigError(f"{at}: profile is {', '.join(profile[0])}", remedy="true or false")
    wanted = bool(profile) and words[profile[0][0].lower()]
    with located(at):
        return sweep(
            replace(base, profile=wanted),
            place,
            {"dtype": dtypes, "scale": scales},
            repeats=int(repeats[0]),
        )


def _values(line: str, at: str) -> list[list[str]]:
    """The parts of ``(a, [b, c], d)`` as lists of words. Nothing is evaluated."""
    tokens: list[tuple[bool, str]] = []
    position = 0
    while position < len(line):
        found = _TOKEN.match(line, position)
        if not found:
            raise ConfigError(f"{at}: cannot read {line[position:]!r}", remedy="(dtype, [scales], repeats[, profile])")
        position = found.end()
        mark = found["mark"]
        word = next((w for w in (found["single"], found["double"], found["word"]) if w is not None), "")
        tokens.append((mark is not None, mark or word))
    shape = "".join(text if is_mark else "w" for is_mark, text in tokens)
    if not re.fullmatch(r"\((?:w|\[w(?:,w)*,?\])(?:,(?:w|\[w(?:,w)*,?\]))*,?\)", shape):
        raise ConfigError(f"{at}: {line!r} is not a task", remedy="for example (fp8, [128, 256], 3)")
    values: list[list[str]] = []
    inside = False
    for is_mark, text in tokens:
        if not is_mark:
            if inside:
                values[-1].append(text)
            else:
                values.append([text])
        elif text == "[":
            values.append([])
            inside = True
        elif text == "]":
            inside = False
    return values
