"""Which single-line values, Slurm names and job variables are valid, and which are secrets: the only place for that.

``cluster_config.yaml``, the documented variables, task files and the installer's answers are all checked here. Standard
library only, because the installer's bootstrap uses it too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from llmb_common.base.errors import RequestError

SECRET_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "NGC_API_KEY", "NGC_CLI_API_KEY", "WANDB_API_KEY")

_SURE = {"SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE", "PASSCODE", "APIKEY", "APIKEYS", "JWT"}
_SURE |= {"CREDENTIAL", "CREDENTIALS", "CRED", "CREDS", "BEARER", "COOKIE", "DSN", "WEBHOOK", "PGPASS", "SSHPASS"}
_ENDINGS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "APIKEY", "CREDENTIAL", "CREDENTIALS")
"""Endings of words written without a separator: GITHUBTOKEN, PGPASSWORD."""

# Words that indicate a secret unless another word in the name says otherwise.
_SIZES = {"COUNT", "LENGTH", "SIZE"}
_COUNTED = _SIZES | {"MAX", "MIN", "NUM", "N", "TOTAL", "PER", "LIMIT", "LEN"}
_UNLESS = {
    "TOKEN": _COUNTED | {"DISPATCHER", "DROP", "PAD", "EOS", "BOS", "MASK", "UNK", "TYPE", "ID"},
    "TOKENS": _COUNTED | {"DROP"},
    "KEY": {
        "PUBLIC",
        "PRIMARY",
        "FOREIGN",
        "SORT",
        "CACHE",
        "PARTITION",
        "ROUTING",
        "QUERY",
        *_SIZES,
    },
    "KEYS": {"PUBLIC", "SORT", "CACHE", "QUERY"} | _COUNTED,
    "AUTH": {"SOCK", "TYPE", "METHOD"},
}
_LAST = {
    "PASS": _COUNTED | {"FIRST", "SECOND", "ONE", "TWO", "SINGLE", "MULTI", "FORWARD", "BACKWARD"},
    "PWD": {"OLD"},
    "PAT": {"FILE", "NAME", "GLOB"},
}
"""The same, but only as the last of several words: DB_PASS, MYSQL_PWD, GITHUB_PAT, but not PASS_THROUGH or PWD."""


class Secret:
    """A string that only ``reveal()`` exposes (S6 of SECURITY.md); made from it.

    ``str()``, ``repr()`` and formatting show asterisks, pickling and copying raise TypeError, and two secrets never
    compare equal. ``bool()`` tells whether the string is not empty.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the secret string itself."""
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __str__(self) -> str:
        return "****"

    def __repr__(self) -> str:
        return "Secret(****)"

    def __format__(self, spec: str) -> str:
        return "****"

    def __reduce__(self) -> str:
        raise TypeError("a secret cannot be pickled or copied to disk")


def is_secret_name(name: str) -> bool:
    """Return whether the variable ``name`` may hold a secret, so that its value must stay out of scripts and output.

    Decided word by word, upper and lower case alike; words are separated by other characters, or as in apiKey. NGC_KEY,
    HF_TOKEN and DB_PASS are secrets; KEYBOARD, PASSTHROUGH, MAX_TOKENS, NCCL_IB_PKEY and TOKENIZERS_PARALLELISM are
    not.
    """
    # apiKey is two words, as API_KEY is.
    words = re.split(r"[^A-Z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper())
    words = [word for word in words if word]
    others = set(words)
    for word in words:
        if word in _UNLESS:
            if not _UNLESS[word] & others:
                return True
        elif word in _SURE or (word.endswith(_ENDINGS) and not _COUNTED & others):
            return True
    # Some words mean a secret only at the end of a longer name: DB_PASS, but not PASS or PASS_TYPE.
    last = words[-1] if words else ""
    return len(words) > 1 and last in _LAST and not _LAST[last] & others


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_CLOCK = re.compile(r"(?:([0-9]{1,7})-(?=[0-9]{1,2}:))?([0-9]{1,3}):([0-5][0-9]):([0-5][0-9])")

_LONGEST_ARGUMENT = 20_000
"""Room for the names of a thousand nodes, written out. SQLite takes no pattern longer than 50000."""

_BASH = {"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID", "IFS", "SECONDS", "GROUPS", "DIRSTACK"}
_BASH |= {"BASHPID", "BASH_ENV", "BASH_REMATCH", "FUNCNAME", "LINENO", "OPTIND", "PIPESTATUS", "RANDOM", "_"}
_SCRIPT = {"LLMB_EXPERIMENT", "LLMB_RESUME", "LLMB_RUN_DIR", "MASTER_ADDR"}


def line_problem(text: str) -> str:
    """Return why ``text`` is not a single line of UTF-8 text, as a verb phrase to put behind its name.

    Such as ``contains a line break or a control character``; of these only ASCII's count, a tab included. Empty where
    nothing is wrong, as with an empty text.
    """
    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        return "contains a line break or a control character"
    if any("\ud800" <= c <= "\udfff" for c in text):
        return "is not UTF-8 text"
    return ""


def check_argument(name: str, text: str) -> None:
    """Raise where ``text`` cannot be the value of any argument or option of a command.

    ``name`` is what messages call that option (``--name``). An empty value comes from a shell variable that is not
    set (S8 of SECURITY.md). A value that begins with a dash passes.

    Raises:
        RequestError: ``text`` is empty, only blanks and commas, longer than 20,000 characters, or not one line of
            UTF-8
    """
    if len(text) > _LONGEST_ARGUMENT:
        raise RequestError(
            f"{name} has {len(text)} characters: {text[:40]!r}...", remedy=f"give at most {_LONGEST_ARGUMENT}"
        )
    if not text.strip(" ,"):
        raise RequestError(f"{name} is empty", remedy="give it a value, or leave it out")
    if problem := line_problem(text):
        raise RequestError(f"{name} {text!r} {problem}", remedy="write it on one line, in UTF-8")


def span_seconds(text: str) -> int | None:
    """Return a span of time in seconds: ``90m``, ``2h``, ``7d``, ``HH:MM:SS`` or ``D-HH:MM:SS``.

    Units are s, m, h, d and w, in capital letters too, after a whole number of at most six digits. Hours may have one
    to three digits; blanks around it are allowed, and 0 is a span. None where ``text`` has none of these forms, as
    ``90`` and ``1:30``.
    """
    if found := re.fullmatch(r"([0-9]{1,6})([smhdw])", text.strip().lower()):
        return int(found[1]) * _UNITS[found[2]]
    if found := _CLOCK.fullmatch(text.strip()):
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return None


def limit_seconds(time_limit: str) -> int:
    """Return the time limit of a plan or of a recipe's row in seconds.

    ``time_limit`` is a form of ``span_seconds``, checked before. Any other text is a mistake in the program
    (AssertionError).
    """
    seconds = span_seconds(time_limit)
    assert seconds is not None, "both are valid"
    return seconds


def clock_text(seconds: int) -> str:
    """Return seconds, not negative, as ``HH:MM:SS``, or from a thousand hours on as ``D-HH:MM:SS``.

    ``span_seconds`` reads both.
    """
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24) if hours > 999 else (0, hours)
    return (f"{days}-" if days else "") + f"{hour:02d}:{minute:02d}:{second:02d}"


SLURM_NAME_REMEDY = "use letters, digits and _ . : @ + / = - only, without blanks, as the scheduler lists it"
"""What to do about a text that ``is_slurm_name`` refuses."""


def is_slurm_name(text: str) -> bool:
    """Return whether ``text`` can be the name of a Slurm account or partition, or of several separated by commas.

    Only its characters are looked at: letters (of any alphabet), digits and ``_``, after the first one also
    ``.,:@+/=-``, so no blank and none that a shell interprets. Whether Slurm knows the name is not asked; False of an
    empty text.
    """
    # Several partitions are separated by commas. Anything a shell would interpret is not allowed.
    return re.fullmatch(r"\w[\w.,:@+/=-]*", text) is not None


def is_node_name(text: str) -> bool:
    """Return whether ``text`` can be the name of one node: 1 to 253 letters, digits, ``.``, ``_`` and ``-``.

    They are of ASCII, and the first is a letter or a digit.
    """
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", text) is not None


def is_variable_name(name: str) -> bool:
    """Return whether ``name`` can be the name of an environment variable: letters, digits and ``_``, no digit first."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None


def assigned(text: str) -> tuple[str, str] | None:
    """Return the (name, value) of ``NAME=VALUE``: the name without blanks around it, the value as it is.

    The first ``=`` counts, and either may be empty. None where ``text`` has no ``=``.
    """
    name, equals, value = text.partition("=")
    return (name.strip(), value) if equals else None


def assignments(texts: Iterable[str]) -> dict[str, str]:
    """Return the values that texts of the form ``NAME=VALUE`` assign, by name, without blanks around either.

    The last value of a name counts; either may be empty, and names are not checked. Texts without a ``=`` are left out.
    """
    found = filter(None, map(assigned, texts))
    return {name: value.strip() for name, value in found}


def job_variable_problem(name: str, value: str) -> str:
    """Return why ``name=value`` may not be set in a job's environment, as a clause that begins with the name.

    Such as ``LLMB_RUN_DIR is set by the job script``; empty where it may, also with an empty value. Refused are what
    is no variable's name, Bash's own variables and values of more than one line; secrets, for they would be written
    into scripts; variables that the job script sets; and all lower-case names, which it uses for itself (except
    ``http_proxy`` and others that end so).
    """
    if not is_variable_name(name):
        return f"{name!r} is not a variable name"
    if is_secret_name(name):
        return f"{name} is a secret, and values given here are written into every job script"
    if name in _BASH:
        return f"{name} is reserved by bash, which runs the job script"
    if name in _SCRIPT or (name.islower() and not name.endswith("_proxy")):
        return f"{name} is set by the job script"
    if problem := line_problem(value):
        return f"{name} {problem}"
    return ""


def mount_problem(path: str, runtime: str) -> str:
    """Return why ``pyxis`` or ``enroot`` (``runtime``) cannot mount ``path`` into a container; empty if it can.

    A verb phrase to put behind the path: ``contains white space, which Enroot does not accept in mounts``. Commas,
    colons, line breaks and what a shell interprets in double quotes are refused for both, blanks for ``enroot`` only;
    nothing need exist there. Any other ``runtime`` counts as ``pyxis``. Both write an fstab. Pyxis (0.24,
    pyxis_slurmstepd.c) does so with ``echo "SOURCE TARGET FLAGS"`` in a script that Enroot sources, so bash interprets
    the path. Enroot (4.1.2, runtime.sh) refuses white space, and its static build does not decode escapes for it.
    """
    if "," in path or ":" in path:
        return "contains a comma or a colon, which container mounts cannot express"
    if set(path) & set('$`"\\'):
        return 'contains one of $ ` " \\, which Pyxis would pass to a shell'
    if runtime == "enroot" and any(c.isspace() for c in path):
        return "contains white space, which Enroot does not accept in mounts"
    return line_problem(path)


def is_experiment_name(name: object) -> bool:
    """Return whether ``name`` is a valid experiment name: a plain word, safe in paths, in job names and on a terminal.

    At most 200 letters, digits, ``_``, ``.``, ``+`` and ``-``, the first a letter or a digit; False of anything but a
    string.
    """
    return isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,199}", name) is not None
