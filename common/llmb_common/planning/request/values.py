"""Values of variables, read strictly: numbers, switches, paths, durations, settings of the framework."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from llmb_common.base.cluster_types import names
from llmb_common.base.errors import RequestError, did_you_mean
from llmb_common.base.files import user_path
from llmb_common.base.words import clock, is_slurm_name, line_problem, span_seconds
from llmb_common.planning.request.variables import VARIABLES, FieldNames

_TIME_LIMIT = "for example 90m, 8h, 2d, 08:00:00 (hours:minutes:seconds), 2-00:00:00, or a plain number of minutes"


class Reader:
    """Typed access to variables; an empty value counts as not set."""

    def __init__(self, variables: Mapping[str, str], say: FieldNames) -> None:
        self._variables = variables
        self._say = say

    def _wrong(self, name: str, value: str, problem: str, *, remedy: str) -> RequestError:
        return RequestError(f"{self._say(name, value)}{problem}", remedy=remedy, field=name)

    def one_line(self, name: str, value: str) -> str:
        if problem := line_problem(value):
            raise RequestError(f"{self._say(name)} {problem}", field=name, remedy="write it on one line, in UTF-8")
        return value

    def text(self, name: str) -> str | None:
        value = self._variables.get(name, "").strip()
        return self.one_line(name, value) or None

    def lower(self, name: str) -> str | None:
        value = self.text(name)
        return value.lower() if value else None

    def name(self, name: str) -> str | None:
        value = self.text(name)
        if value and not is_slurm_name(value):
            raise self._wrong(name, repr(value), f" is not a valid {VARIABLES[name].meaning}", remedy="correct it")
        return value

    def path(self, name: str) -> Path | None:
        value = self.text(name)
        if value is None:
            return None
        # Without "..", which would hide where a path leads; symbolic links stay as they are.
        return Path(os.path.abspath(user_path(value, self._say(name, value))))  # noqa: PTH100  resolve() would follow

    def image(self, name: str) -> str | None:
        """A container image: the absolute path of a file, or the name of one in a registry, unchanged.

        Pyxis and Enroot take a path without a slash in front for the latter.
        """
        value = self.text(name)
        is_file = value is not None and (value.endswith(".sqsh") or value.startswith(("/", "./", "../", "~")))
        return str(self.path(name)) if is_file else value

    def positive(self, name: str, *, remedy: str = "a whole number, at least 1") -> int | None:
        known = VARIABLES.get(name)
        return self._number(name, 1, known.remedy if known and known.remedy else remedy)

    def size_or_none(self, name: str) -> int | None:
        """None also where somebody says so."""
        return None if self.lower(name) in ("na", "none", "null") else self.positive(name)

    def count(self, name: str) -> int:
        return self._number(name, 0, "0, or a larger whole number") or 0

    def _number(self, name: str, least: int, remedy: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if re.fullmatch(r"[0-9]{10,}", value):
            raise self._wrong(name, value, " is larger than 999999999", remedy=remedy)
        if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < least:
            what = "a positive whole number" if least else "a whole number, at least 0"
            raise self._wrong(name, value, f" is not {what}", remedy=remedy)
        return int(value)

    def choice(self, name: str, choices: Sequence[str] = ()) -> str | None:
        """One of ``choices``, or of those that the variable always has."""
        value, choices = self.lower(name), choices or VARIABLES[name].choices
        if value is not None and value not in choices:
            raise self._wrong(
                name, value, f" is unknown{did_you_mean(value, choices)}", remedy=f"one of {', '.join(choices)}"
            )
        return value

    def way(self, name: str) -> str | None:
        """A way of running jobs."""
        return self.choice(name, names())

    def switch(self, name: str, other: str = "") -> bool:
        """True or False. ``other``: a further value that the caller takes, for the message."""
        value = self.lower(name)
        if value is None:
            return VARIABLES[name].default == "`true`"
        if value in ("false", "0", "no", "off"):
            return False
        if value in ("true", "1", "yes", "on"):
            return True
        also = f", or {name}={other}" if other else ""
        raise self._wrong(name, value, " is neither true nor false", remedy=f"{name}=true or {name}=false{also}")

    def duration(self, name: str) -> str | None:
        value = self.text(name)
        if value is None:
            return None
        if value.lower() in ("unlimited", "infinite", "-1"):
            raise self._wrong(
                name,
                value,
                ": a job without an end would keep its nodes when it hangs",
                remedy=_TIME_LIMIT,
            )
        minutes = re.fullmatch(r"[0-9]{1,5}", value)  # as Slurm reads a plain number
        seconds = span_seconds(f"{value}m" if minutes else value)
        if seconds is None:
            raise self._wrong(name, value, " is not a time limit", remedy=_TIME_LIMIT)
        if not seconds:
            raise self._wrong(name, value, ": a time limit of zero", remedy=_TIME_LIMIT)
        return value if ":" in value else clock(seconds)

    def dry_run(self, name: str) -> str | None:
        if self.lower(name) == "json":
            return "json"
        return "script" if self.switch(name, "json") else None

    def mounts(self, name: str) -> tuple[str, ...]:
        value = self.text(name)
        mounts = tuple(part.strip() for part in value.split(",")) if value is not None else ()
        for mount in mounts:
            if not is_mount(mount):
                raise RequestError(f"{name}: {mount!r} is not a mount", remedy="/source:/target[:ro], comma-separated")
        return mounts

    def settings(self, name: str) -> dict[str, str]:
        return settings_in(self.text(name), self._say(name))


def same(one: tuple[str, int | None], other: tuple[str, int | None]) -> None:
    """Check two variables that mean the same.

    Raises:
        RequestError: they differ.
    """
    (name, value), (other_name, other_value) = one, other
    if value is not None and other_value is not None and value != other_value:
        raise RequestError(
            f"{name}={value} and {other_name}={other_value} contradict each other", remedy="unset one of them"
        )


def gres_count(value: str | None) -> int | None:
    """The number in ``8``, ``h100:8`` or ``gpu:8``."""
    if value is None:
        return None
    count = value.rpartition(":")[2]
    if not re.fullmatch(r"(gpu:)?([A-Za-z0-9_][A-Za-z0-9_.-]*:)?[1-9][0-9]{0,3}", value):
        raise RequestError(f"SBATCH_GPUS_PER_NODE={value} does not contain a number of GPUs", remedy="for example 8")
    return int(count)


def gres_type(value: str | None) -> str | None:
    """The type in ``h100:8`` or ``gpu:h100:8``; None where only a number is given."""
    kind = (value or "").rpartition(":")[0]
    return (kind.removeprefix("gpu:") if kind != "gpu" else "") or None


def is_mount(text: str) -> bool:
    """Whether ``text`` is one mount, ``/source[:/target[:flags]]``, with a plus between flags."""
    return re.fullmatch(r"/[^:,]*(:/[^:,]*(:[A-Za-z0-9_=+-]+)?)?", text) is not None


_NAME = re.compile(r"[a-z][a-z0-9_]*\.[A-Za-z][A-Za-z0-9_]*")
_EXAMPLE = "model.moe_token_dispatcher_type=flex"


def is_setting(name: str) -> bool:
    """Whether ``name`` is written as one: ``model.attention_dropout``."""
    return _NAME.fullmatch(name) is not None


def pairs(
    texts: Iterable[str],
    said: str,
    example: str,
    *,
    form: str = "NAME=VALUE",
    fits: Callable[[str], object] = bool,
    empty: bool = False,
    code: str = "",
) -> Iterator[tuple[str, str]]:
    """Name and value of each ``NAME=VALUE``; ``said`` is where they come from. ``empty``: a value may be.

    Raises:
        RequestError: one is of another ``form``, its name does not fit, or it has no value
    """
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not fits(name.strip()):
            raise RequestError(f"{said} {text!r} is not {form}", remedy=f"for example {example}", code=code)
        if not empty and not value.strip():
            raise RequestError(f"{said}: {name.strip()} has no value", remedy=f"for example {example}", code=code)
        yield name.strip(), value if empty else value.strip()


def refuse_twice(name: str, value: str, found: Mapping[str, str], said: str, code: str = "") -> None:
    """Also where both say the same: a line that says a thing twice was put together wrongly.

    Raises:
        RequestError: ``found`` has the name already
    """
    if name in found:
        several = f"llmb-run sweep --vary {name}={found[name]},{value} tries both"
        raise RequestError(f"{said}: {name} is given twice", remedy=f"give it once; {several}", code=code)


def settings_of(parts: Iterable[str], said: str) -> dict[str, str]:
    """``section.field=value`` each; ``said`` is where they come from.

    Raises:
        RequestError: one is written otherwise, has no value, or is given twice
    """
    found: dict[str, str] = {}
    form, code = "SECTION.FIELD=VALUE", "megatron"
    for name, value in pairs(parts, said, _EXAMPLE, form=form, fits=is_setting, code=code):
        refuse_twice(name, value, found, said, code)
        found[name] = value
    return found


def settings_in(text: str | None, said: str) -> dict[str, str]:
    """Those of a variable: with semicolons between them."""
    return settings_of((part for part in (text or "").split(";") if part.strip()), said)


def settings_text(settings: Mapping[str, str]) -> str:
    """As ``settings_in`` reads them."""
    return ";".join(f"{name}={value}" for name, value in settings.items())
