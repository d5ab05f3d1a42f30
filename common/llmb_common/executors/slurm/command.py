"""Run one Slurm command with a timeout and a clean environment; the only exception is SchedulerError."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmb_common.errors import SchedulerError
from llmb_common.machine.programs import Answer, ask, clean_environment

_REMEDIES = {"no-program": "run this on a login node of the cluster"}


def run_slurm(command: Sequence[str], timeout: float, env: Mapping[str, str] | None = None) -> Answer:
    """Run ``command``, with ``env`` added to the clean environment.

    Raises:
        SchedulerError: with the code ``no-answer`` after ``timeout`` seconds, ``no-program`` if it cannot be started,
            ``too-long`` if it does not stop printing.
    """
    answer = ask(command, timeout, env=clean_environment() | dict(env or {}))
    if answer.problem:
        remedy = _REMEDIES.get(answer.problem, "try again later")
        raise SchedulerError(answer.why, remedy=remedy, code=answer.problem)
    return answer
