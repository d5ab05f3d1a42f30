"""``python -m llmb_train job.json``, on every rank (started by torchrun or srun)."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from llmb_train.errors import EngineError, TrainError, WrongEngine
from llmb_train.ranks import first_rank

_FIRST_SECONDS = 60
"""How long other ranks leave it to the first to say what is wrong with all of them."""


def main(arguments: list[str]) -> int:
    """Train the job. Exit status: 0 trained, 1 training failed, 2 the job is wrong, 3 the engine lacks something."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m llmb_train job.json", file=sys.stderr)
        return 0 if arguments in (["-h"], ["--help"]) else 2
    try:
        # The job first: a wrong one is reported in milliseconds, not after seconds of importing torch.
        from llmb_train.job import load_job

        job_file = Path(arguments[0]).absolute()
        job = load_job(job_file)
        from llmb_train.train import run

        run(job, job_file.parent)
    except TrainError as error:
        _report(error)
        return error.exit_status
    return 0


def _report(error: TrainError) -> None:
    # A wrong job is wrong on all ranks, and a thousand copies hide the message; a node that lacks something must say
    # so itself.
    lacking = isinstance(error, EngineError) and not isinstance(error, WrongEngine)
    if not (first_rank(os.environ) or lacking):
        if error.exit_status == 0:
            return
        _wait_to_be_ended(error.exit_status)
    kind = "error" if error.exit_status else "notice"
    print(f"llmb_train: {kind}: {error}", file=sys.stderr, flush=True)


def _wait_to_be_ended(status: int) -> None:
    """Wait for the launcher to end this rank, which then exits with ``status``.

    Launchers end all ranks as soon as one fails: had this one been faster than the first, nothing would be said.
    """

    def end(number: int, frame: object) -> None:
        raise SystemExit(status)

    signal.signal(signal.SIGTERM, end)
    time.sleep(_FIRST_SECONDS)


# Saving a checkpoint starts a process that imports this module again.
if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
