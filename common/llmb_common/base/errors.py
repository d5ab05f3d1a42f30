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
    """The base class. ``str()`` is the message and the remedy, ready to print."""

    exit_status: ClassVar[int] = 1
    default_code: ClassVar[str] = "error"

    def __init__(self, message: str, *, remedy: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code or self.default_code

    def __str__(self) -> str:
        """Return the message and, on a line of its own behind an arrow, the remedy, ready to print."""
        return f"{self.message}\n  -> {self.remedy}" if self.remedy else self.message

    def as_dict(self) -> dict[str, str | int]:
        """The error as the JSON envelope of ``--json`` shows it."""
        return {
            "code": self.code,
            "message": self.message,
            "remedy": self.remedy,
            "exit_status": self.exit_status,
        }


class RequestError(LLMBError):
    """``field``: the variable of ``launch.sh`` that is wrong, whatever the front end calls it; empty: not one alone.

    ``complete``: variables with values of which the same request would be whole; a front end can show the whole line.
    Empty: nothing is known to be lacking.
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
        """Return the error as the JSON envelope of ``--json`` shows it, with the ``field`` that is wrong."""
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
    """This machine or installation lacks something: ``llmb`` ends with exit status 3; code ``environment``."""

    exit_status = 3
    default_code = "environment"


class SchedulerError(LLMBError):
    """The scheduler refuses or does not answer: ``llmb`` ends with exit status 3; code ``scheduler``."""

    exit_status = 3
    default_code = "scheduler"


class AnswerLost(SchedulerError):
    """Nobody knows, now, whether a job exists or what became of it; asking later settles that.

    After any other SchedulerError of a submission there is certainly no job. So whoever submits catches this one first:
    what it leaves on record must stay there.
    """

    default_code = "unknown"


class RecordError(LLMBError):
    """A file that LLMB wrote is missing, damaged or changed: ``llmb`` ends with exit status 3; code ``record``."""

    exit_status = 3
    default_code = "record"


class CheckFailed(LLMBError):
    """What was asked to be checked is not right: ``llmb`` ends with exit status 1; code ``failed``."""

    exit_status = 1
    default_code = "failed"


class NotYet(LLMBError):
    """No answer yet, and nothing is wrong: what was asked about still runs.

    A command that ends by it has exit status 4; its code is ``not-yet`` by default.
    """

    exit_status = 4
    default_code = "not-yet"


class Interrupted(LLMBError):
    exit_status = 130
    default_code = "interrupted"


P = ParamSpec("P")
T = TypeVar("T")


def result_or_error(action: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | LLMBError:
    """Return what ``action`` returns, or the LLMBError that it raises, for whoever goes on with others.

    Raises:
        Interrupted: the user ended the command; other exceptions pass, too
    """
    try:
        return action(*arguments, **named)
    except Interrupted:
        raise
    except LLMBError as error:
        return error


@contextlib.contextmanager
def located(where: str) -> Iterator[None]:
    """Turn any LLMBError raised in the context into a ConfigError that says where: ``where``, file and line.

    Raises:
        ConfigError: such an error was raised; remedy and code stay
    """
    try:
        yield
    except LLMBError as error:
        raise ConfigError(f"{where}: {error.message}", remedy=error.remedy, code=error.code) from error


_NO_SLIPS = gpus.OTHERS | {"fp4", "fp16", "mxfp8"}
"""GPUs and number formats that exist: whoever writes one of these means it, so no correction is suggested."""


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the hint `` (did you mean 'x'?)`` with the closest match in ``known``; empty where none is close.

    It begins with a blank, to be appended to a message.
    """
    near = nearest(word, known, cutoff=cutoff)
    return f" (did you mean {near!r}?)" if near else ""


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the word in ``known`` that is closest to ``word``; empty where none is close.

    Also where ``word`` is a GPU or a number format that exists. ``cutoff``, from 0 to 1, is how alike they must be. The
    dashes of options are no letters: ``--output`` is not close to ``--group``.
    """
    known = list(known)
    if word.lower() in known and word not in known:
        return word.lower()
    if word.lower() in _NO_SLIPS or word.lower() in gpus.GPUS:
        return ""
    import difflib  # here: every command imports this module, and few need it

    by_letters = {name.lstrip("-"): name for name in known}
    near = difflib.get_close_matches(word.lstrip("-"), by_letters, n=1, cutoff=cutoff)
    return by_letters[near[0]] if near else ""
