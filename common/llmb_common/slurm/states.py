"""All states of a Slurm job, in one table: is the job alive, and if it ended, was it well.

Names are those of ``squeue -o %T`` and ``sacct``; the list follows slurm.h up to 25.11.
"""

from __future__ import annotations

from typing import Literal

Kind = Literal["waiting", "running", "ended"]

STATES: dict[str, Kind] = {
    # waiting: it has no nodes now
    "PENDING": "waiting",
    "REQUEUED": "waiting",
    "REQUEUE_FED": "waiting",
    "REQUEUE_HOLD": "waiting",
    "SPECIAL_EXIT": "waiting",  # requeued and held because of its exit code
    "RESV_DEL_HOLD": "waiting",
    "SUSPENDED": "waiting",
    "EXPEDITING": "waiting",
    # running: it has nodes
    "CONFIGURING": "running",
    "POWER_UP_NODE": "running",
    "RUNNING": "running",
    "RESIZING": "running",
    "SIGNALING": "running",
    "STAGE_OUT": "running",
    "STOPPED": "running",
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

OWN_STATES: dict[str, Kind] = {
    "SUBMITTING": "waiting",
    "SUBMITTED": "waiting",
    # The submission was interrupted and no job came of it; `recover` submits the same run.
    "NOT_SUBMITTED": "ended",
    # The scheduler has forgotten the job and the job left no end record.
    "LOST": "ended",
}
"""States of a run that no scheduler knows."""

_ALL = STATES | OWN_STATES


def base_state(text: str) -> str | None:
    """The state in Slurm's word for it: ``CANCELLED by 0`` and ``CANCELLED+`` are CANCELLED; None: no state at all."""
    word = text.strip().split(" ", 1)[0].rstrip("+").upper()
    return word if word in STATES else None


def is_live(state: str) -> bool:
    """Whether a run in ``state`` may still change. A word from a newer Slurm counts as live: it is asked again."""
    return _ALL.get(state, "running") != "ended"


def is_waiting(state: str) -> bool:
    """Whether a run in ``state`` has no nodes yet."""
    return _ALL.get(state) == "waiting"


LIVE_STATES = frozenset(name for name in _ALL if is_live(name))
ENDED_STATES = frozenset(name for name in _ALL if not is_live(name))
