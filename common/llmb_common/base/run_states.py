"""All states of a run in one table: waiting, running or ended.

They are called as Slurm calls those of a job (``squeue -o %T``, ``sacct``; slurm.h up to 25.11); an executor of another
scheduler translates. A run has a few more.
"""

from __future__ import annotations

from typing import Literal

Kind = Literal["waiting", "running", "ended"]

STATES: dict[str, Kind] = {
    # waiting: no nodes at the moment
    "PENDING": "waiting",
    "REQUEUED": "waiting",
    "REQUEUE_FED": "waiting",
    "REQUEUE_HOLD": "waiting",
    "SPECIAL_EXIT": "waiting",  # requeued and held because of its exit code
    "RESV_DEL_HOLD": "waiting",
    "EXPEDITING": "waiting",
    # running: has nodes
    "CONFIGURING": "running",
    "POWER_UP_NODE": "running",
    "RUNNING": "running",
    "RESIZING": "running",
    "SIGNALING": "running",
    "STAGE_OUT": "running",
    "STOPPED": "running",
    "SUSPENDED": "running",  # it goes on where it is
    "COMPLETING": "running",
    "UPDATE_DB": "running",
    "LAUNCH_FAILED": "running",
    "RECONFIG_FAIL": "running",
    # ended
    "COMPLETED": "ended",
    "FAILED": "ended",
    "BOOT_FAIL": "ended",
    "CANCELLED": "ended",
    "DEADLINE": "ended",
    "NODE_FAIL": "ended",
    "OUT_OF_MEMORY": "ended",
    "PREEMPTED": "ended",  # a preempted job that is requeued shows as PENDING
    "REVOKED": "ended",
    "TIMEOUT": "ended",
}

OWN_STATES: dict[str, tuple[Kind, str]] = {
    "SUBMITTING": ("waiting", "it is being submitted"),
    "SUBMITTED": ("waiting", "the scheduler has it, and has not yet said more"),
    "NOT_SUBMITTED": ("ended", "its submission was interrupted before there was a job; the same command submits it"),
    "UNFIT": ("ended", "its nodes failed the check before training (`--fabric`), and it did not train"),
    "LOST": ("ended", "the scheduler has forgotten the job, and the job left no record of its end"),
}
"""States of a run that no job has, and what they mean, for docs/reference.md."""

_ALL = STATES | {name: kind for name, (kind, _) in OWN_STATES.items()}


def is_live(state: str) -> bool:
    """Return whether a run whose record or scheduler says ``state``, such as ``RUNNING``, may still change.

    ``state`` is the bare word in capitals. False of what has ended, such as ``COMPLETED``, ``PREEMPTED`` or
    ``NOT_SUBMITTED``. True also of an unknown state, as of a newer Slurm: the run is asked about again.
    """
    return _ALL.get(state, "running") != "ended"


def is_waiting(state: str) -> bool:
    """Return whether a run in ``state`` still waits for nodes: ``PENDING``, ``SUBMITTING`` and the like.

    ``state`` is the bare word in capitals. False of an unknown state.
    """
    return _ALL.get(state) == "waiting"


LIVE_STATES = frozenset(name for name in _ALL if is_live(name))
ENDED_STATES = frozenset(name for name in _ALL if not is_live(name))
