"""Secrets: a string type that does not print itself, and rules for which variables hold one."""

from __future__ import annotations

import re

SECRET_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "NGC_API_KEY", "NGC_CLI_API_KEY", "WANDB_API_KEY")

_SURE = {"SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE", "PASSCODE", "APIKEY", "APIKEYS", "JWT"}
_SURE |= {"CREDENTIAL", "CREDENTIALS", "CRED", "CREDS", "BEARER", "COOKIE", "DSN", "WEBHOOK", "PGPASS", "SSHPASS"}
_ENDINGS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "APIKEY", "CREDENTIAL", "CREDENTIALS")
"""Endings of words written without a separator: GITHUBTOKEN, PGPASSWORD."""

# Words that indicate a secret unless another word in the name says otherwise.
_COUNTED = {"MAX", "MIN", "NUM", "N", "TOTAL", "PER", "COUNT", "LIMIT", "LEN", "LENGTH", "SIZE"}
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
        "SIZE",
        "LENGTH",
        "COUNT",
        "QUERY",
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

SECRET_SHAPES = re.compile(
    rb"\b(?:hf_[A-Za-z0-9]{16,}|nvapi-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    rb"|glpat-[A-Za-z0-9_-]{16,}|sk-[A-Za-z0-9_-]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16})"
    rb"|(?<=://)[^\s/:@]+:[^\s/@]+(?=@)"
)
"""Tokens of Hugging Face, NGC, GitHub, GitLab, Slack, AWS and others by their prefixes; user and password in a URL."""


class Secret:
    """A string that only ``reveal()`` exposes: ``str()``, ``repr()``, formatting, JSON, pickling, comparison do not."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
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
    """Whether a variable of this name must be kept out of scripts, records and output.

    Decided word by word: NGC_KEY and DB_PASS are secrets; KEYBOARD, PASSTHROUGH, NCCL_IB_PKEY and
    TOKENIZERS_PARALLELISM are not.
    """
    words = re.split(r"[^A-Z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper())
    words = [word for word in words if word]
    others = set(words)
    for word in words:
        if word in _UNLESS:
            if not _UNLESS[word] & others:
                return True
        elif word in _SURE or (word.endswith(_ENDINGS) and not _COUNTED & others):
            return True
    last = words[-1] if words else ""
    return len(words) > 1 and last in _LAST and not _LAST[last] & others
