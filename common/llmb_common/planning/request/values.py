"""Values of variables, read strictly: numbers, switches, paths, durations, settings of the framework."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from llmb_common.base.cluster_types import names
from llmb_common.base.errors import RequestError, did_you_mean
from llmb_common.base.files import user_path
from llmb_common.base.words import SLURM_NAME_REMEDY, assigned, clock_text, is_slurm_name, line_problem, span_seconds
from llmb_common.planning.request.variables import VARIABLES, FieldNames

_TIME_LIMIT = "for example 90m, 8h, 2d, 08:00:00 (hours:minutes:seconds), 2-00:00:00, or a plain number of minutes"


class Reader:
    """The reader of a request's variables, by a method for each type of value, which is called with the variable's
    name.

    It is made from the variables, values by name, and the front end's names for messages (``say``); it changes
    neither. A variable that is missing, empty or blank counts as not set: then methods return None, but ``count``
    0, ``switch`` its documented default, ``mounts`` () and ``settings`` {}. Text, always without blanks around it:
    ``text`` as written, ``lower`` in lower case, ``choice`` and ``way`` one of some lower-case words, ``name`` a
    name that Slurm takes, ``duration`` a time limit as Slurm writes it (``01:30:00``), ``image`` a file's absolute
    path or a registry's name. ``path`` gives an absolute Path; ``positive`` a number from 1, ``size_or_none`` one
    from 1 or None for ``NA``, ``count`` one from 0; ``switch`` True or False; ``dry_run`` ``script``, ``json`` or
    None (also for false); ``mounts`` a tuple of mounts as written, ``settings`` a dict from ``section.field`` to text.
    ``one_line`` returns the value that it is called with. A wrong value raises RequestError. Names are case-sensitive;
    ``name``, ``switch``, ``dry_run`` and, without words of the caller's, ``choice`` take only names of ``VARIABLES``.
    """

    def __init__(self, variables: Mapping[str, str], say: FieldNames) -> None:
        self._variables = variables
        self._say = say

    def _value_error(self, name: str, value: str, problem: str, *, remedy: str) -> RequestError:
        """Return a RequestError, for the caller to raise, that ``value`` is wrong for the variable ``name``.

        ``problem`` is the rest of the sentence behind ``NAME=value``, with its leading blank or colon; ``remedy``
        says what to do.
        """
        return RequestError(f"{self._say(name, value)}{problem}", remedy=remedy, field=name)

    def one_line(self, name: str, value: str) -> str:
        """Return ``value`` as it is, blanks included, if it is one line of valid text; the variable ``name`` is for
        the message.

        An empty value comes back, too.

        Raises:
            RequestError: it has several lines or a control character, such as a tab, or is not valid text
        """
        if problem := line_problem(value):
            raise RequestError(f"{self._say(name)} {problem}", field=name, remedy="write it on one line, in UTF-8")
        return value

    def text(self, name: str) -> str | None:
        """Return the text of the variable ``name`` without blanks around it; None where it is not set or empty.

        Raises:
            RequestError: it is not one line of valid text
        """
        value = self._variables.get(name, "").strip()
        return self.one_line(name, value) or None

    def lower(self, name: str) -> str | None:
        """Return the text of the variable ``name`` in lower case, without blanks around it.

        None where it is not set or empty.

        Raises:
            RequestError: it is not one line of valid text
        """
        value = self.text(name)
        return value.lower() if value else None

    def name(self, name: str) -> str | None:
        """Return what ``text`` reads for the variable ``name`` if Slurm takes it as a name; None: not set, or empty.

        Only characters are looked at; several names may be separated by commas. ``name`` is one of ``VARIABLES``.

        Raises:
            RequestError: Slurm does not take it as a name, or it is not one line of valid text
        """
        value = self.text(name)
        if value and not is_slurm_name(value):
            problem = f" is not a valid {VARIABLES[name].meaning}"
            raise self._value_error(name, repr(value), problem, remedy=SLURM_NAME_REMEDY)
        return value

    def path(self, name: str) -> Path | None:
        """Return the path in the variable ``name``, absolute and without ``..``; None where it is not set or empty.

        ``~`` is replaced, other variables in it are not; a relative path is taken from the current folder. Links stay
        as they are, and whether the path exists is not looked at.

        Raises:
            RequestError: it is not one line of valid text, or in a home that does not exist
            OSError: it is relative, and the current folder has been removed
        """
        value = self.text(name)
        if value is None:
            return None
        # Without "..", which would hide where a path leads; symbolic links stay as they are.
        return Path(os.path.abspath(user_path(value, self._say(name, value))))  # noqa: PTH100  resolve() would follow

    def image(self, name: str) -> str | None:
        """Return the container image in the variable ``name``: a file's absolute path, or a registry's name.

        A file ends with .sqsh, or begins with a slash, ``./``, ``../`` or ``~``; all else is a registry's name, as
        Pyxis and Enroot take it, and comes back as it is. None where the variable is not set or empty. Whether there is
        such a file or image is not looked at.

        Raises:
            RequestError: it is not one line of valid text, or in a home that does not exist
            OSError: it is a relative path, and the current folder has been removed
        """
        value = self.text(name)
        is_file = value is not None and (value.endswith(".sqsh") or value.startswith(("/", "./", "../", "~")))
        return str(self.path(name)) if is_file else value

    def positive(self, name: str, *, remedy: str = "a whole number, at least 1") -> int | None:
        """Return the whole number, from 1 to 999999999, in the variable ``name``; None where it is not set or empty.

        ``name`` need not be one of ``VARIABLES``; ``remedy`` is what the error advises where these have no advice
        for it.

        Raises:
            RequestError: it is no such number; a sign, a blank within or a point is none
        """
        known = VARIABLES.get(name)
        return self._number(name, 1, known.remedy if known and known.remedy else remedy)

    def size_or_none(self, name: str) -> int | None:
        """Return the whole number, from 1 to 999999999, in the variable ``name``; None where it is not set or
        empty, or says ``NA``.

        ``none`` and ``null`` mean the same as ``NA``, in any case of letters.

        Raises:
            RequestError: it is neither such a number nor one of these words
        """
        return None if self.lower(name) in ("na", "none", "null") else self.positive(name)

    def count(self, name: str) -> int:
        """Return the whole number, from 0 to 999999999, in the variable ``name``; 0 where it is not set or empty.

        Raises:
            RequestError: it is no such number
        """
        return self._number(name, 0, "0, or a larger whole number") or 0

    def _number(self, name: str, least: int, remedy: str) -> int | None:
        """Return the whole number, from ``least`` to 999999999, in the variable ``name``.

        None where it is not set or empty. ``remedy`` is what the error advises.

        Raises:
            RequestError: it is no such number; a sign, a blank or a point is none
        """
        value = self.text(name)
        if value is None:
            return None
        # Python refuses to convert very long numbers at all, with a message of its own.
        if re.fullmatch(r"[0-9]{10,}", value):
            raise self._value_error(name, value, " is larger than 999999999", remedy=remedy)
        if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < least:
            what = "a positive whole number" if least else "a whole number, at least 0"
            raise self._value_error(name, value, f" is not {what}", remedy=remedy)
        return int(value)

    def choice(self, name: str, choices: Sequence[str] = ()) -> str | None:
        """Return the text of the variable ``name`` in lower case, which must be one of ``choices``, lower-case words.

        Without ``choices`` it must be one of those documented for the variable, which must then be one of
        ``VARIABLES``. None where it is not set or empty.

        Raises:
            RequestError: it is none of them, or not one line of valid text
        """
        value, choices = self.lower(name), choices or VARIABLES[name].choices
        if value is not None and value not in choices:
            raise self._value_error(
                name, value, f" is unknown{did_you_mean(value, choices)}", remedy=f"one of {', '.join(choices)}"
            )
        return value

    def way(self, name: str) -> str | None:
        """Return the name of a way of running jobs, such as ``slurm``, in the variable ``name``, in lower case.

        None where it is not set or empty.

        Raises:
            RequestError: there is no such way, or it is not one line of valid text
        """
        return self.choice(name, names())

    def switch(self, name: str, other: str = "") -> bool:
        """Return True where the variable ``name`` says true, 1, yes or on, False where it says false, 0, no or off.

        The case of letters does not matter. Where it is not set or empty, it is the variable's documented default;
        ``name`` must be one of ``VARIABLES``. ``other`` is a further value that the caller has dealt with
        (``json``): it is only named in the message, and is no value here.

        Raises:
            RequestError: it is none of these
        """
        value = self.lower(name)
        if value is None:
            return VARIABLES[name].default == "`true`"
        if value in ("false", "0", "no", "off"):
            return False
        if value in ("true", "1", "yes", "on"):
            return True
        also = f", or {name}={other}" if other else ""
        raise self._value_error(name, value, " is neither true nor false", remedy=f"{name}=true or {name}=false{also}")

    def duration(self, name: str) -> str | None:
        """Return the time limit in the variable ``name`` as Slurm reads it, such as ``01:30:00``; None where it is not
        set or empty.

        ``90m``, ``8h`` or ``2d`` (also s and w) and a plain number, which is minutes, become hours, minutes and
        seconds, ``48:00:00``; hours, minutes and seconds with colons, perhaps with days (``2-00:00:00``), come back
        as written.

        Raises:
            RequestError: it is no time limit, as Slurm's shorter ``30:00`` is none here, or it is zero or unlimited
        """
        value = self.text(name)
        if value is None:
            return None
        if value.lower() in ("unlimited", "infinite", "-1"):
            raise self._value_error(
                name,
                value,
                ": a job without an end would keep its nodes when it hangs",
                remedy=_TIME_LIMIT,
            )
        minutes = re.fullmatch(r"[0-9]{1,5}", value)  # as Slurm reads a plain number
        seconds = span_seconds(f"{value}m" if minutes else value)
        if seconds is None:
            raise self._value_error(name, value, " is not a time limit", remedy=_TIME_LIMIT)
        if not seconds:
            raise self._value_error(name, value, ": a time limit of zero", remedy=_TIME_LIMIT)
        return value if ":" in value else clock_text(seconds)

    def dry_run(self, name: str) -> str | None:
        """Return what a dry run prints by the variable ``name``: ``script`` for true, ``json`` for ``json``.

        None: the variable is false or not set, so that the job is to run. The case of letters does not matter; ``name``
        must be one of ``VARIABLES``.

        Raises:
            RequestError: the variable is neither true, false nor ``json``
        """
        if self.lower(name) == "json":
            return "json"
        return "script" if self.switch(name, "json") else None

    def mounts(self, name: str) -> tuple[str, ...]:
        """Return the container mounts in the variable ``name``, which has commas between them, in its order.

        () where it is not set, or empty or blank. Each is ``/source[:/target[:flags]]``, as written, without blanks
        around it. Repeated ones stay.

        Raises:
            RequestError: one is not a mount, or is empty, as behind a comma at the end; or the variable is not one line
                of valid text
        """
        value = self.text(name)
        mounts = tuple(part.strip() for part in value.split(",")) if value is not None else ()
        for mount in mounts:
            if not is_mount(mount):
                raise RequestError(f"{name}: {mount!r} is not a mount", remedy=_MOUNTS)
        return mounts

    def settings(self, name: str) -> dict[str, str]:
        """Return the framework's settings in the variable ``name``, from ``section.field`` to its value as text.

        The variable has semicolons between them: ``model.attention_dropout=0;optimizer.lr=1e-4``. {} where it is not
        set, or empty or blank.

        Raises:
            RequestError: code ``megatron``: one is written otherwise, has no value, or is given twice; without a code:
                the variable is not one line of valid text
        """
        return settings_in(self.text(name), self._say(name))


def refuse_disagreement(one: tuple[str, int | None], other: tuple[str, int | None]) -> None:
    """Raise if two variables that mean the same, each given as (name, value), have different values; else return None.

    None as a value, not set, agrees with any.

    Raises:
        RequestError: they differ; the message names both
    """
    (name, value), (other_name, other_value) = one, other
    if value is not None and other_value is not None and value != other_value:
        raise RequestError(
            f"{name}={value} and {other_name}={other_value} contradict each other", remedy="unset one of them"
        )


def gres_count(value: str | None) -> int | None:
    """Return the number of GPUs in SBATCH_GPUS_PER_NODE's ``value``: ``8``, ``h100:8`` or ``gpu:h100:8``.

    It is from 1 to 9999. None for None.

    Raises:
        RequestError: it contains no such number, or several types
    """
    if value is None:
        return None
    count = value.rpartition(":")[2]
    if not re.fullmatch(r"(gpu:)?([A-Za-z0-9_][A-Za-z0-9_.-]*:)?[1-9][0-9]{0,3}", value):
        raise RequestError(f"SBATCH_GPUS_PER_NODE={value} does not contain a number of GPUs", remedy="for example 8")
    return int(count)


def gres_type(value: str | None) -> str | None:
    """Return the GPU type in Slurm's ``h100:8`` or ``gpu:h100:8``; None where ``value`` has only a number, is
    empty, or None.

    It comes back as it is written. A text of another form is not refused: what is before its last colon counts,
    less ``gpu:``.
    """
    kind = (value or "").rpartition(":")[0]
    return (kind.removeprefix("gpu:") if kind != "gpu" else "") or None


def is_mount(text: str) -> bool:
    """Return whether ``text`` is one container mount, ``/source[:/target[:flags]]``, with a plus between flags.

    Both paths must be absolute and without commas and colons; nothing is looked up, and flags need not be known.
    """
    return re.fullmatch(r"/[^:,]*(:/[^:,]*(:[A-Za-z0-9_=+-]+)?)?", text) is not None


_NAME = re.compile(r"[a-z][a-z0-9_]*\.[A-Za-z][A-Za-z0-9_]*")
_MOUNTS = "write each as /source:/target, or /source:/target:ro, with commas between them"
_EXAMPLE = "model.moe_token_dispatcher_type=flex"


def is_setting(name: str) -> bool:
    """Return whether ``name`` has the form of a setting of the framework, ``model.attention_dropout``: a section, a
    dot, a field.

    The section is in lower case, the field in any; both are ASCII letters, digits and underscores, and begin with a
    letter. Whether there is such a setting is not looked at.
    """
    return _NAME.fullmatch(name) is not None


def name_value_pairs(
    texts: Iterable[str],
    origin: str,
    example: str,
    *,
    form: str = "NAME=VALUE",
    fits: Callable[[str], object] = bool,
    empty: bool = False,
    code: str = "",
) -> Iterator[tuple[str, str]]:
    """Yield (name, value) for each of ``texts``, ``NAME=VALUE`` each, in order; repeated names are all yielded.

    The first ``=`` divides. ``origin`` is where the texts come from, and begins messages; ``form`` and ``example``
    are for messages, too. ``fits`` is called with a name and is true if that is right; by default it must not be
    empty. Blanks around a name are removed, and around a value unless ``empty``, which allows empty values.

    Raises:
        RequestError: with ``code``, once it is reached: a text has another form, a name that does not fit, or no
            value
    """
    for text in texts:
        found = assigned(text)
        if found is None or not fits(found[0]):
            raise RequestError(f"{origin} {text!r} is not {form}", remedy=f"for example {example}", code=code)
        name, value = found
        if not empty and not value.strip():
            raise RequestError(f"{origin}: {name} has no value", remedy=f"for example {example}", code=code)
        yield name, value if empty else value.strip()


def refuse_twice(name: str, value: str, found: Mapping[str, str], origin: str, code: str = "") -> None:
    """Raise if ``found`` already has ``name``, even with the same value; ``value``, the second, is for messages only.

    A line that says a thing twice was put together wrongly. ``found`` has the values read so far by name, and is not
    changed: the caller adds to it. ``origin`` begins the message.

    Raises:
        RequestError: with ``code``: ``found`` has the name already
    """
    if name in found:
        remedy = "give it once"
        if found[name] != value:
            remedy += f"; llmb-run sweep --vary {name}={found[name]},{value} tries both"
        raise RequestError(f"{origin}: {name} is given twice", remedy=remedy, code=code)


def settings_of(parts: Iterable[str], origin: str) -> dict[str, str]:
    """Return the framework's settings in ``parts``, ``section.field=value`` each, from ``section.field`` to text,
    in order.

    The first ``=`` divides; blanks around both sides are removed. ``origin`` is where the texts come from, and
    begins messages. Empty without any.

    Raises:
        RequestError: code ``megatron``: one is written otherwise, has no value, or is given twice
    """
    found: dict[str, str] = {}
    form, code = "SECTION.FIELD=VALUE", "megatron"
    for name, value in name_value_pairs(parts, origin, _EXAMPLE, form=form, fits=is_setting, code=code):
        refuse_twice(name, value, found, origin, code)
        found[name] = value
    return found


def settings_in(text: str | None, origin: str) -> dict[str, str]:
    """Return the framework's settings in one text with semicolons between them, from ``section.field`` to text.

    Values cannot have semicolons; empty parts are passed over. Empty for None and for an empty text. ``origin`` is
    where the text comes from, and begins messages.

    Raises:
        RequestError: code ``megatron``: one is written otherwise, has no value, or is given twice
    """
    return settings_of((part for part in (text or "").split(";") if part.strip()), origin)


def settings_text(settings: Mapping[str, str]) -> str:
    """Return the framework's settings as one text for ``settings_in``: ``section.field=value`` with semicolons.

    The order stays, and nothing is escaped: a value must not have a semicolon. Empty without settings.
    """
    return ";".join(f"{name}={value}" for name, value in settings.items())
