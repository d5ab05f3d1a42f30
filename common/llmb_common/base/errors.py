"""Every exception that LLMB raises, in one place.

::

    LLMBError                     the base class, never raised itself
      RequestError          2     the user asked for something impossible or unknown
      RecipeError           2     a recipe.yaml is wrong (the message has file and line)
      ConfigError           2     cluster_config.yaml, a task file or an answer file is wrong
      EnvironmentLacks      3     a program, an image, disk space or a Python is missing
      SchedulerError        3     the scheduler refused, or could not be reached
        AnswerLost          3     nobody knows what it answered: the job may exist all the same
      RecordError           3     a run folder or its record cannot be read or written
      CheckFailed           1     a run or a check ended badly
      NotYet                4     what was asked about still runs
      Interrupted         130     Ctrl-C or SIGTERM

Exit status 4 is also that of campaigns that ended, and whose answer is open, or that had nothing to judge speed by.

Each carries a stable ``code`` for programs, a message that says what is wrong, a ``remedy`` that says what to do about
it, and the ``exit_status`` with which the command layer, and nothing below it, ends the process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar, ParamSpec, TypeVar

from llmb_common.base import gpus

EXIT_STATUS = {
    0: "done",
    1: "a benchmark or a check failed",
    2: "the request is wrong",
    3: "something is missing, or the scheduler refused or did not answer",
    4: "`accept` or `ab` ended without an answer: open, more runs would decide; or there was no reference; `compare`:"
    " a side has not ended yet; `wait --timeout`: runs go on",
    130: "interrupted; jobs under Slurm keep running, a local run that was being followed has been ended",
}
"""What every command ends with."""


class LLMBError(Exception):
    """The base class of all errors that LLMB raises on purpose; never raised itself.

    Made from ``message``, what is wrong, and by keyword ``remedy``, what the user can do about it (empty: nothing
    to add), and ``code``, a stable word for programs (empty: the class's own). They are its attributes, texts.
    ``str()`` gives the message and, on a second line behind an arrow, the remedy; ``as_dict`` returns a dictionary
    for JSON with ``code``, ``message``, ``remedy`` (empty without one) and ``exit_status``, a number.
    """

    exit_status: ClassVar[int] = 1
    """With which the command layer ends the process when this error ends a command."""
    default_code: ClassVar[str] = "error"
    """The ``code`` of an error that is raised without one of its own: a stable word for programs."""

    def __init__(self, message: str, *, remedy: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code or self.default_code

    def __str__(self) -> str:
        """Return the message and, on a line of its own behind an arrow, the remedy, ready to print."""
        return f"{self.message}\n  -> {self.remedy}" if self.remedy else self.message

    def as_dict(self) -> dict[str, str | int]:
        """Return the error as the JSON envelope of ``--json`` shows it.

        The keys are ``code``, ``message``, ``remedy`` (empty text without one) and ``exit_status``, a number.
        """
        return {
            "code": self.code,
            "message": self.message,
            "remedy": self.remedy,
            "exit_status": self.exit_status,
        }


class RequestError(LLMBError):
    """The user asks for something impossible or unknown: ``llmb`` ends with exit status 2; code ``request``.

    Beside what every error has, two keywords make it, which are attributes, too. ``field`` is the variable of
    ``launch.sh`` that is wrong, whatever option the user wrote instead; empty: no single one is. ``complete`` maps
    variables to values with which the same request would be complete, so that a command can show the whole line to
    type; empty: nothing is known to be missing. ``as_dict`` returns ``code``, ``message``, ``remedy``,
    ``exit_status`` and ``field``, without ``complete``.
    """

    exit_status = 2
    default_code = "request"

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        code: str = "",
        field: str = "",
        complete: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy, code=code)
        self.field = field
        self.complete = complete or {}

    def as_dict(self) -> dict[str, str | int]:
        """Return the error as the JSON envelope of ``--json`` shows it, with the variable that is wrong.

        The keys are ``code``, ``message``, ``remedy``, ``exit_status`` and ``field``, the variable of ``launch.sh``
        that is wrong; empty where no single one is. ``complete`` is not among them.
        """
        return {**super().as_dict(), "field": self.field}


class RecipeError(LLMBError):
    """A recipe or its catalogue is wrong, or cannot be read: ``llmb`` ends with exit status 2; code ``recipe``."""

    exit_status = 2
    default_code = "recipe"


class ConfigError(LLMBError):
    """Settings, or a file of the installation, cannot be used: ``llmb`` ends with exit status 2; code ``config``."""

    exit_status = 2
    default_code = "config"


class EnvironmentLacks(LLMBError):
    """Something is missing on this machine or in the installation, such as a program, an image or disk space.

    ``llmb`` ends with exit status 3; code ``environment``.
    """

    exit_status = 3
    default_code = "environment"


class SchedulerError(LLMBError):
    """The scheduler refuses or does not answer: ``llmb`` ends with exit status 3; code ``scheduler``."""

    exit_status = 3
    default_code = "scheduler"


class AnswerLost(SchedulerError):
    """The scheduler's answer about a job is lost, so nobody knows now whether the job exists or what became of it.

    Asking again later settles it. After any other ``SchedulerError`` of a submission there is certainly no job; so
    whoever submits a job handles this error first and keeps the job's record. Exit status 3; code ``unknown``.
    """

    default_code = "unknown"


class RecordError(LLMBError):
    """A file that LLMB writes is missing, damaged or changed, or cannot be written.

    ``llmb`` ends with exit status 3; code ``record``.
    """

    exit_status = 3
    default_code = "record"


class CheckFailed(LLMBError):
    """A run or a check that the user asked about ended badly: ``llmb`` ends with exit status 1; code ``failed``."""

    exit_status = 1
    default_code = "failed"


class NotYet(LLMBError):
    """The run that was asked about is still going, so there is no answer yet; nothing is wrong.

    ``llmb`` ends with exit status 4; code ``not-yet``.
    """

    exit_status = 4
    default_code = "not-yet"


class Interrupted(LLMBError):
    """The command was ended by Ctrl-C, SIGTERM or SIGHUP: exit status 130; code ``interrupted``.

    It is an ``LLMBError``; what handles these for one of several items lets it pass (``result_or_error``,
    ``located``).
    """

    exit_status = 130
    default_code = "interrupted"


P = ParamSpec("P")
T = TypeVar("T")


def result_or_error(action: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | LLMBError:
    """Call ``action`` with the other arguments and return its result, or the LLMBError that it raises.

    For callers that report one item's error and go on with the next. All other exceptions pass.

    Raises:
        Interrupted: ``action`` raised it: the user has ended the command
    """
    try:
        return action(*arguments, **named)
    except Interrupted:
        raise
    except LLMBError as error:
        return error


@contextlib.contextmanager
def located(where: str) -> Iterator[None]:
    """Return a context that turns any LLMBError raised in it into a ConfigError with the message ``WHERE: message``.

    ``where`` names the option, or the file and line, at fault. The remedy and the code stay; the exit status becomes
    that of a ConfigError. Other exceptions pass unchanged, and so does Interrupted.

    Raises:
        ConfigError: an LLMBError was raised in the context
    """
    try:
        yield
    except Interrupted:
        raise
    except LLMBError as error:
        raise ConfigError(f"{where}: {error.message}", remedy=error.remedy, code=error.code) from error


_NO_SLIPS = gpus.OTHERS | {"fp4", "fp16", "mxfp8"}
"""GPUs and number formats that exist: whoever writes one of these means it, so no correction is suggested."""


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the hint `` (did you mean 'x'?)`` with the word in ``known`` that ``nearest`` finds for ``word``.

    It begins with a blank, to be appended to a message; empty where nothing is close enough. ``cutoff``, from 0 to 1,
    is how similar the two must be.
    """
    near = nearest(word, known, cutoff=cutoff)
    return f" (did you mean {near!r}?)" if near else ""


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the word in ``known`` that is most like the mistyped ``word``; empty where none is close enough.

    Where ``known`` has ``word`` in lower case only, it is that one. Otherwise empty where ``word`` is a GPU or a number
    format that exists, which nobody writes by mistake. ``cutoff``, from 0 to 1, is how similar the two must be; case
    counts. The dashes before an option do not count as letters: ``--output`` is not close to ``--group``.
    """
    known = list(known)
    # Wrong only in its case, which is a slip in a real GPU's name, too.
    if word.lower() in known and word not in known:
        return word.lower()
    if word.lower() in _NO_SLIPS or word.lower() in gpus.GPUS:
        return ""
    import difflib  # here: every command imports this module, and few need it

    by_letters = {name.lstrip("-"): name for name in known}
    near = difflib.get_close_matches(word.lstrip("-"), by_letters, n=1, cutoff=cutoff)
    return by_letters[near[0]] if near else ""
