"""Slurm options as users write them and as ``#SBATCH`` lines carry them."""

from __future__ import annotations

import re

from llmb_common.errors import RequestError

# Options that would change what the script is built on, and what to use instead.
_OURS = {
    "nodes": "JOB_TOTAL_GPUS",
    "ntasks": "JOB_TOTAL_GPUS",
    "ntasks-per-node": "GPUS_PER_NODE",
    "job-name": "nothing: it holds the run's id",
    "output": "nothing: logs have documented places",
    "error": "nothing: logs have documented places",
    "wrap": "nothing",
    "array": "llmb-run submit --repeats",
}
# Without a value these are a slip of the pen, which sbatch would answer by taking the next line for it.
_WITH_VALUE = {
    *("account", "begin", "comment", "constraint", "cpus-per-task", "deadline", "dependency", "exclude", "gres"),
    *("licenses", "mem", "nodelist", "partition", "prefer", "priority", "qos", "reservation", "segment", "signal"),
    *("switches", "time", "wckey"),
}
_SHORT = {"A": "account", "p": "partition", "t": "time", "w": "nodelist", "x": "exclude", "C": "constraint", "q": "qos"}

Options = tuple[tuple[str, str | None], ...]


def parse_additional(text: str, where: str) -> Options:
    """``nodelist=n1,n2;constraint=gpu&memory;exclusive`` as (option, value or None), dashes at the front allowed.

    Raises RequestError for an empty name, an option that the job script owns, or a control character.
    """
    options: dict[str, str | None] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        key, equals, value = part.partition("=")
        key = key.strip().lstrip("-")
        key = _SHORT.get(key, key)
        if not re.fullmatch(r"[a-z][a-z0-9-]*", key):
            raise RequestError(
                f"{where}: {part!r} is no Slurm option", remedy='for example "nodelist=n1,n2;constraint=gpu;exclusive"'
            )
        if key in _OURS:
            raise RequestError(f"{where}: --{key} is set by the job script", remedy=f"use {_OURS[key]}")
        if equals and not value.strip():
            raise RequestError(f"{where}: {part!r} has no value", remedy="write key=value, or the flag alone")
        if key in _WITH_VALUE and not equals:
            raise RequestError(f"{where}: --{key} needs a value", remedy=f"write {key}=value")
        if any(ord(c) < 32 for c in value):
            raise RequestError(f"{where}: {part!r} holds a control character", remedy="remove it")
        options[key] = value.strip() if equals else None
    return tuple(options.items())


def sbatch_line(option: str, value: str | int | None = None) -> str:
    """One ``#SBATCH`` line. Slurm's own quoting rules: double quotes, backslash before quote and backslash."""
    if value is None:
        return f"#SBATCH --{option}"
    text = str(value)
    if not re.fullmatch(r"[A-Za-z0-9_./:,=@%+&|!*()\[\]-]+", text):
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"#SBATCH --{option}={text}"


def output_pattern(path: str) -> str:
    """A path for ``--output``: Slurm expands ``%`` in it, so it is doubled. Raises RequestError for a backslash."""
    if "\\" in path:
        raise RequestError(f"the path {path} holds a backslash, which Slurm reads as a switch", remedy="rename it")
    return path.replace("%", "%%")
