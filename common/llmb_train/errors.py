"""The errors of the training entry point.

::

    TrainError             never raised as such
      JobError         2   job.json, or what it asks for, is wrong
      EngineError      3   the engine (Python packages, device, ranks) lacks something
        WrongEngine    3   the engine, which all ranks share, does not fit
      Contradiction    3   the framework resolved the job to something else
      NothingLeft      0   a resumed job finds all its steps trained

``llmb_train`` runs inside a container without ``llmb_common``, so it has a small tree of its own, with the same exit
statuses.
"""

from __future__ import annotations

from typing import ClassVar


class TrainError(Exception):
    """The root. ``str()`` gives the message and the remedy, ready for a job log."""

    exit_status: ClassVar[int]

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  -> {self.remedy}" if self.remedy else self.message


class JobError(TrainError):
    """The job itself is wrong."""

    exit_status = 2


class EngineError(TrainError):
    """This machine or its software lacks what the job needs."""

    exit_status = 3


class WrongEngine(EngineError):
    """Not the fault of one node: all of them run the same image."""


class Contradiction(TrainError):
    """The framework has resolved a setting otherwise than it was planned."""

    exit_status = 3


class NothingLeft(TrainError):
    """The loaded checkpoint has reached the last step already; this is no failure."""

    exit_status = 0
