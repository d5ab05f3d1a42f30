"""Secrets: a type that does not print itself, and the list of variables that hold one."""

from __future__ import annotations

import re

SECRET_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "NGC_API_KEY", "NGC_CLI_API_KEY", "WANDB_API_KEY")

_SECRET_NAME = re.compile(r"(TOKEN(?!IZ)|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|CREDENTIAL)", re.IGNORECASE)


class Secret:
    """A string that only ``reveal()`` shows: not ``str()``, ``repr()``, formatting, JSON, pickling or comparison."""

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
    """Whether a variable of this name must be kept out of scripts, records and output."""
    return name in SECRET_VARIABLES or _SECRET_NAME.search(name) is not None
