"""Run one Slurm command with a timeout and a clean environment; the only exception is SchedulerError."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmb_common.errors import SchedulerError

_KEPT = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS"}


@dataclass(frozen=True)
class Answer:
    """The result of a command that has ended."""

    status: int
    output: str
    errors: str

    @property
    def complaint(self) -> str:
        """The first line of its error output."""
        text = (self.errors or self.output).strip()
        return text.splitlines()[0][:300] if text else f"exit status {self.status}"


def run_slurm(command: Sequence[str], timeout: float, env: Mapping[str, str] | None = None) -> Answer:
    """Run ``command``, with ``env`` added to the clean environment.

    Raises:
        SchedulerError: with the code ``no-answer`` after ``timeout`` seconds, or ``no-program`` if it cannot be
        started.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            env=clean_environment() | dict(env or {}),
        )
    except subprocess.TimeoutExpired as error:
        raise SchedulerError(
            f"{command[0]} did not answer within {timeout:g} s", remedy="try again later", code="no-answer"
        ) from error
    except OSError as error:
        raise SchedulerError(
            f"cannot run {command[0]}: {error.strerror or error}",
            remedy="run this on a login node of the cluster",
            code="no-program",
        ) from error
    return Answer(done.returncode, done.stdout, done.stderr)


def clean_environment() -> dict[str, str]:
    """The environment for Slurm's commands, without variables left by an enclosing job (``SLURM_*``) and options that
    would override the script (``SBATCH_*``). Variables that tell Slurm where its configuration is are kept."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or not name.startswith(("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SACCT_", "SCANCEL_"))
    }
