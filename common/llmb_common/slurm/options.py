"""Slurm options as users write them and as ``#SBATCH`` lines carry them."""

from __future__ import annotations

import re

from llmb_common.errors import RequestError
from llmb_common.words import is_slurm_name, line_problem

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
    "wait": "nothing: llmb-run watch follows a job",
    "test-only": "DRY_RUN=true",
    "help": "nothing",
    "usage": "nothing",
    "version": "nothing",
}
# Without a value these are a slip of the pen, which sbatch would answer by taking the next line for it.
_WITH_VALUE = {
    *("account", "acctg-freq", "bb", "bbf", "begin", "chdir", "cluster-constraint", "clusters", "comment"),
    *("constraint", "container", "core-spec", "cores-per-socket", "cpu-freq", "cpus-per-gpu", "cpus-per-task"),
    *("deadline", "delay-boot", "dependency", "distribution", "exclude", "export", "export-file", "extra"),
    *("extra-node-info", "gid", "gpu-bind", "gpu-freq", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"),
    *("gres", "gres-flags", "hint", "input", "licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind"),
    *("mem-per-cpu", "mem-per-gpu", "mincpus", "network", "nodefile", "nodelist", "ntasks-per-core", "ntasks-per-gpu"),
    *("ntasks-per-socket", "open-mode", "partition", "power", "prefer", "priority", "profile", "qos", "reservation"),
    *("segment", "signal", "sockets-per-node", "switches", "thread-spec", "threads-per-core", "time", "time-min"),
    *("tmp", "tres-bind", "tres-per-task", "uid", "wckey"),
    *("container-env", "container-image", "container-mounts", "container-name", "container-save", "container-workdir"),
}
_SHORT = {
    **{"A": "account", "B": "extra-node-info", "C": "constraint", "D": "chdir", "F": "nodefile", "G": "gpus"},
    **{"H": "hold", "J": "job-name", "L": "licenses", "M": "clusters", "N": "nodes", "O": "overcommit", "Q": "quiet"},
    **{"S": "core-spec", "V": "version", "W": "wait", "a": "array", "b": "begin", "c": "cpus-per-task"},
    **{"d": "dependency", "e": "error", "h": "help", "i": "input", "k": "no-kill", "m": "distribution", "n": "ntasks"},
    **{"o": "output", "p": "partition", "q": "qos", "s": "oversubscribe", "t": "time", "v": "verbose"},
    **{"w": "nodelist", "x": "exclude"},
}

# Values that may hold "name=value" after a comma.
_WITH_COMMAS = {"acctg-freq", "comment", "container-env", "export", "extra", "tres-bind", "tres-per-task"}
_SECOND_OPTION = re.compile(
    rf",\s*(-{{0,2}}(?:{'|'.join(sorted(_WITH_VALUE | set(_OURS), key=len, reverse=True))})\s*=|--?[a-z][a-z-]*\b"
    r"|(?:exclusive|oversubscribe|overcommit|contiguous|requeue|no-requeue|hold)\s*$)"
)
"""An option where only a further word of the value can stand, as in ``nodelist=n1,n2,constraint=gpu``."""

Options = tuple[tuple[str, str | None], ...]


def parse_additional(text: str, where: str) -> Options:
    """``nodelist=n1,n2;constraint=gpu&memory;exclusive`` as (option, value or None), dashes at the front allowed.

    Raises RequestError for an empty name, an option that the job script owns, or a control character.
    """
    if problem := line_problem(text):
        raise RequestError(f"{where} {problem}", remedy="write it on one line")
    options: dict[str, str | None] = {}
    for part in _parts(text):
        key = _name(part)
        _, equals, value = part.partition("=")
        if not re.fullmatch(r"[a-z][a-z0-9-]*", key):
            raise RequestError(
                f"{where}: {part!r} is not a Slurm option",
                remedy='for example "nodelist=n1,n2;constraint=gpu;exclusive": semicolons separate options',
            )
        # sbatch takes an option's beginning for the option.
        if owned := next((name for name in _OURS if name.startswith(key)), None):
            also = "" if owned == key else f", for which sbatch takes --{key}"
            raise RequestError(f"{where}: --{owned} is set by the job script{also}", remedy=f"use {_OURS[owned]}")
        if equals and not value.strip():
            raise RequestError(f"{where}: {part!r} has no value", remedy="write key=value, or the flag alone")
        if key in _WITH_VALUE and not equals:
            raise RequestError(f"{where}: --{key} needs a value", remedy=f"write {key}=value")
        if key not in _WITH_COMMAS and (second := _SECOND_OPTION.search(value)):
            raise RequestError(
                f"{where}: {part!r} holds a second option, {second[1]!r}",
                remedy=f"separate options with semicolons: {key}={value[: second.start()]};{value[second.start(1) :]}",
            )
        if key in ("account", "partition") and not is_slurm_name(value.strip()):
            raise RequestError(f"{where}: {part!r} is not a name that Slurm can have", remedy="correct it")
        said = value.strip() if equals else None
        if key in options and options[key] != said:
            raise RequestError(
                f"{where}: --{key} is given twice, and sbatch would take the last one",
                remedy=f"say it once; lists have commas: {key}={options[key]},{said}"
                if key in ("nodelist", "exclude") and options[key]
                else "say it once",
            )
        options[key] = said
    return tuple(options.items())


def override_additional(given: str, *parts: str) -> str:
    """``given`` with ``parts`` in place of what it says of the same options: they were said on the command line."""
    said = {_name(part) for part in parts}
    return ";".join([*(part for part in _parts(given) if _name(part) not in said), *parts])


def _parts(text: str) -> list[str]:
    return [part for part in (part.strip() for part in text.split(";")) if part]


def _name(part: str) -> str:
    """The option in ``key=value``, its letter written out."""
    key = part.partition("=")[0].strip().lstrip("-")
    return _SHORT.get(key, key)


def sbatch_line(option: str, value: str | int | None = None) -> str:
    """One ``#SBATCH`` line. Slurm's own quoting rules: double quotes, backslash before quote and backslash.

    Raises RequestError for a line break or control character.
    """
    if value is None:
        return f"#SBATCH --{option}"
    text = str(value)
    if problem := line_problem(text):
        raise RequestError(f"--{option}={text!r} {problem}", remedy="write it on one line")
    if not re.fullmatch(r"[A-Za-z0-9_./:,=@%+&|!*()\[\]-]+", text):
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"#SBATCH --{option}={text}"


def output_pattern(path: str) -> str:
    """A path for ``--output``: Slurm expands ``%`` in it, so it is doubled. Raises RequestError for a backslash."""
    if "\\" in path:
        raise RequestError(f"the path {path} holds a backslash, which Slurm reads as a switch", remedy="rename it")
    return path.replace("%", "%%")
