"""Slurm options: as users write them, and as ``#SBATCH`` lines."""

from __future__ import annotations

import re
from pathlib import Path

from llmb_common.base.errors import RequestError
from llmb_common.base.words import SLURM_NAME_REMEDY, assigned, is_slurm_name, line_problem

# Options that belong to the job script, and what to use instead.
_OURS = {
    "nodes": "JOB_TOTAL_GPUS (llmb-run: --scale)",
    "ntasks": "JOB_TOTAL_GPUS (llmb-run: --scale)",
    "ntasks-per-node": "GPUS_PER_NODE",
    "output": "nothing: the paths of logs are fixed",
    "error": "nothing: the paths of logs are fixed",
    "wrap": "nothing",
    "array": "llmb-run submit --repeats",
    "wait": "nothing: llmb-run watch follows a job",
    "clusters": "nothing: jobs are submitted to the cluster of this login node, and looked for there",
    "test-only": "DRY_RUN=true",
    "help": "nothing",
    "usage": "nothing",
    "version": "nothing",
}
# Options that need a value. Without one it is a mistake, and sbatch would take the next word as the value.
_WITH_VALUE = set(
    """
    account acctg-freq bb bbf begin chdir cluster-constraint comment constraint container container-env
    container-image container-mounts container-name container-save container-workdir core-spec cores-per-socket
    cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution exclude export export-file
    extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags
    hint input job-name licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus
    network nodefile nodelist ntasks-per-core ntasks-per-gpu ntasks-per-socket open-mode partition power prefer
    priority profile qos reservation segment signal sockets-per-node switches thread-spec threads-per-core time
    time-min tmp tres-bind tres-per-task uid wckey
    """.split()
)
_SHORT = {
    **{"A": "account", "B": "extra-node-info", "C": "constraint", "D": "chdir", "F": "nodefile", "G": "gpus"},
    **{"H": "hold", "J": "job-name", "L": "licenses", "M": "clusters", "N": "nodes", "O": "overcommit", "Q": "quiet"},
    **{"S": "core-spec", "V": "version", "W": "wait", "a": "array", "b": "begin", "c": "cpus-per-task"},
    **{"d": "dependency", "e": "error", "h": "help", "i": "input", "k": "no-kill", "m": "distribution", "n": "ntasks"},
    **{"o": "output", "p": "partition", "q": "qos", "s": "oversubscribe", "t": "time", "v": "verbose"},
    **{"w": "nodelist", "x": "exclude"},
}

# Options whose value may contain "name=value" after a comma.
_WITH_COMMAS = {"acctg-freq", "comment", "container-env", "export", "extra", "tres-bind", "tres-per-task"}
_SECOND_OPTION = (
    rf",\s*(-{{0,2}}(?:{'|'.join(sorted(_WITH_VALUE | set(_OURS), key=len, reverse=True))})\s*=|--?[a-z][a-z-]*\b"
    r"|(?:exclusive|oversubscribe|overcommit|contiguous|requeue|no-requeue|hold)\s*$)"
)
"""A second option inside a value, as in ``nodelist=n1,n2,constraint=gpu``; compiled where there are options."""


def parse_additional(text: str, where: str) -> tuple[tuple[str, str | None], ...]:
    """Return the options of sbatch in ``text``, in its order, as pairs of long name and value, None for a flag.

    ``text`` is like ``nodelist=n1,n2;constraint=gpu&memory;exclusive``, of which the first pair is ("nodelist",
    "n1,n2"); leading dashes, short names (``p=gpu``) and blanks around options are allowed, long names must be in lower
    case, and an empty text has none. Whether sbatch knows a name is not checked, and of values only the form. ``where``
    names the source in messages: a variable, a key of the configuration, or an option such as ``--exclude``. The same
    option with the same value counts once.

    Raises:
        RequestError: a part is no option, an abbreviation, set by the job script, or given twice with different values;
            its value is missing, contains another option, or is no name of an account or partition; or the text is not
            one line
    """
    if problem := line_problem(text):
        raise RequestError(f"{where} {problem}", remedy="write it on one line")
    options: dict[str, str | None] = {}
    for part in _split_options(text):
        key, value = _checked_option(part, where)
        if key in options and options[key] != value:
            remedy = "give it once"
            if key in ("nodelist", "exclude") and options[key]:
                remedy = f"give it once; separate list items with commas: {key}={options[key]},{value}"
            raise RequestError(f"{where}: --{key} is given twice, and sbatch would use the last one", remedy=remedy)
        options[key] = value
    return tuple(options.items())


def _checked_option(part: str, where: str) -> tuple[str, str | None]:
    """Return (long name, value) of one option of sbatch, as ``parse_additional`` does; the value of a flag is None.

    ``part`` is such as ``constraint=gpu``, and ``where`` names the source in messages.

    Raises:
        RequestError: it is no option, an abbreviation, or set by the job script; or its value is missing, contains
            another option, or is no name of an account or partition
    """
    key = option_name(part)
    given = assigned(part)
    value = given[1].strip() if given else ""
    if not re.fullmatch(r"[a-z][a-z0-9-]*", key):
        raise RequestError(
            f"{where}: {part!r} is not a Slurm option",
            remedy=f"for example {_separate_options(where, 'nodelist=n1,n2', 'constraint=gpu', 'exclusive')}",
        )
    # sbatch accepts abbreviated options.
    if owned := next((name for name in _OURS if name.startswith(key)), None):
        also = "" if owned == key else f", and sbatch reads --{key} as an abbreviation of it"
        raise RequestError(f"{where}: --{owned} is set by the job script{also}", remedy=f"use {_OURS[owned]}")
    if written_out := _abbreviated_options(key):
        raise RequestError(f"{where}: --{key} is an abbreviation", remedy=f"write {' or '.join(written_out)}")
    if given and not value:
        raise RequestError(f"{where}: {part!r} has no value", remedy="write key=value, or just the flag")
    if key in _WITH_VALUE and not given:
        raise RequestError(f"{where}: --{key} needs a value", remedy=f"write {key}=value")
    if key not in _WITH_COMMAS and (second := re.search(_SECOND_OPTION, value)):
        shown = value if where == f"--{key}" else part
        apart = _separate_options(where, f"{key}={value[: second.start()]}", value[second.start(1) :])
        raise RequestError(
            f"{where}: {shown!r} contains a second option, {second[1]!r}", remedy=f"separate them: {apart}"
        )
    if key in ("account", "partition") and not is_slurm_name(value):
        raise RequestError(f"{where}: {part!r} is not a valid Slurm name", remedy=SLURM_NAME_REMEDY)
    return key, value if given else None


def _abbreviated_options(key: str) -> list[str]:
    """Return the options of sbatch that take a value and that ``key`` may be an abbreviation of, sorted.

    ``key`` and they are long names without dashes. Empty where ``key`` is written out, has fewer than three letters,
    or is no such abbreviation.
    """
    if key in _WITH_VALUE or len(key) < 3:
        return []
    return sorted(option for option in _WITH_VALUE if option.startswith(key))


def _separate_options(where: str, *options: str) -> str:
    """Return several options of sbatch as a user writes them for ``where``, for a remedy.

    ``options`` are like ``nodelist=n1`` or ``exclusive``. Where ``where`` is an option of llmb-run, each gets
    ``--slurm-arg``, or ``where`` itself if it stands for it (``--exclude n1``), with blanks between; else they are one
    text with semicolons between.
    """
    if not where.startswith("-"):
        return ";".join(options)
    own = f"{where.lstrip('-')}="
    given = []
    for text in options:
        if text.startswith(own):
            given.append(f"{where} {text.removeprefix(own)}")
        else:
            given.append(f"--slurm-arg {text}")
    return " ".join(given)


def listed_nodes(value: str) -> str:
    """Return the host list that the value of sbatch's ``nodelist=`` or ``exclude=`` stands for, unchecked.

    A value without a slash is that list. With one, it is the path of a file, relative to the current folder, that has
    the list, on one or several lines, with comments after ``#``; empty where the file has none. Names in a file may
    end in ``*4``, a number of ranks, which is dropped.

    Raises:
        RequestError: the file cannot be read, or is not UTF-8
    """
    if "/" not in value:
        return value
    try:
        text = Path(value).read_text()
    except (OSError, ValueError) as error:
        raise RequestError(
            f"cannot read the list of nodes in {value}: {getattr(error, 'strerror', None) or error}",
            remedy="Slurm takes a value with a slash for the path of a file; name the nodes, or correct the path",
        ) from error
    lines = [line.partition("#")[0] for line in text.splitlines()]
    words = [word.strip(",") for word in " ".join(lines).split()]
    return ",".join(re.sub(r"\*[0-9]+$", "", word) for word in words)  # n1*4: four ranks of an arbitrary distribution


def override_additional(given: str, *parts: str) -> str:
    """Return the options of sbatch in ``given`` and then ``parts``, with ``;`` between; those in ``parts`` win.

    Options of the same name are dropped from ``given``, a text with semicolons (empty: none); flags and short names
    are, too. Each of ``parts`` is one option from the command line, such as ``qos=high`` or ``exclusive``; they are
    neither checked nor compared with each other. Empty where there is no option at all.
    """
    replaced = set(map(option_name, parts))
    kept = [part for part in _split_options(given) if option_name(part) not in replaced]
    return ";".join([*kept, *parts])


def _split_options(text: str) -> list[str]:
    """Return the options in a text with semicolons between them, in its order, without blanks around them.

    Empty ones are left out.
    """
    parts = [part.strip() for part in text.split(";")]
    return [part for part in parts if part]


def option_name(part: str) -> str:
    """Return the long name of sbatch's option in ``key=value``, without dashes: ``partition`` of ``-p=gpu``.

    Without ``=`` the whole text is the name. Nothing is checked: an unknown name is returned as it is, without blanks
    and leading dashes.
    """
    name, _ = assigned(part) or (part, "")
    key = name.strip().lstrip("-")
    return _SHORT.get(key, key)


def is_option(key: str) -> bool:
    """Return whether sbatch has an option ``key`` that takes a value and that a user may set.

    The key is a long name without dashes, in lower case. False of flags, abbreviations and what the job script sets.
    """
    return key in _WITH_VALUE


def limit_in_seconds(text: str) -> int | None:
    """Return the seconds of a time limit as ``sbatch --time`` takes it, so ``90`` is 90 minutes.

    None where ``text`` is no such limit, or one without an end (0, UNLIMITED). The forms are minutes, minutes:seconds,
    hours:minutes:seconds, days-hours, days-hours:minutes and days-hours:minutes:seconds (sbatch's manual).
    """
    found = re.fullmatch(r"(?:([0-9]{1,4})-)?([0-9]{1,6}(?::[0-9]{1,6}){0,2})", text.strip())
    if found is None:
        return None
    days = found[1]
    parts = [int(part) for part in found[2].split(":")]
    if days is not None or len(parts) == 3:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    else:
        hours = 0
        minutes, seconds = [*parts, 0][:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds or None


def sbatch_line(option: str, value: str | int | None = None) -> str:
    """Return the line ``#SBATCH --OPTION=VALUE`` of a batch script, or ``#SBATCH --OPTION`` where ``value`` is None.

    It has no line break. ``option`` has no dashes. A value with special characters is put in double quotes, and quotes
    in it are escaped.

    Raises:
        RequestError: the value contains a line break or a control character, or is not UTF-8
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
    """Return a path for sbatch's ``--output``, with ``%`` doubled because Slurm expands it.

    Raises:
        RequestError: the path contains a backslash, which would switch off that expansion
    """
    if "\\" in path:
        raise RequestError(f"the path {path} contains a backslash, which Slurm treats specially", remedy="rename it")
    return path.replace("%", "%%")
