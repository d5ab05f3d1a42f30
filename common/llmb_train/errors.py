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
    """The base class of the errors of ``llmb_train``; the rank ends with ``exit_status``. Never raised itself.

    It is made from the ``message`` and, by name, the ``remedy`` (what to do; "": nothing is known), which are its
    attributes. ``str()`` gives both, the remedy on a line of its own behind ``  -> ``, ready for a job's log.
    """

    exit_status: ClassVar[int]

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  -> {self.remedy}" if self.remedy else self.message


class JobError(TrainError):
    """The job.json, or what it asks for, is wrong or missing: the rank ends with exit status 2.

    Made like any ``TrainError``.
    """

    exit_status = 2


class EngineError(TrainError):
    """This machine or its software (Python packages, GPUs, ranks) lacks what the job needs: exit status 3.

    Made like any ``TrainError``. Each node's ranks print it themselves: others may lack nothing.
    """

    exit_status = 3


class WrongEngine(EngineError):
    """The engine's software does not fit the job, on all nodes alike, since they share one image: exit status 3.

    Made like any ``TrainError``. Only the job's first rank prints it.
    """


class Contradiction(TrainError):
    """The framework has resolved a setting otherwise than planned, so that nothing is trained: exit status 3.

    Made like any ``TrainError``.
    """

    exit_status = 3


class NothingLeft(TrainError):
    """The checkpoint to resume from is of the job's last step, so that nothing is left to train: exit status 0.

    Made like any ``TrainError``. It is printed as a notice, by the first rank.
    """

    exit_status = 0
