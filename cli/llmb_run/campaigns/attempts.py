"""How a run of a campaign ended: with a step time, by a fault that is not the system's speed, or by its own failure."""

from __future__ import annotations

from llmb_common.causes.diagnosis import diagnose
from llmb_common.results.sequential import Attempt
from llmb_common.runs.record import CANCELLED, COMPLETED, LOST, RunRecord
from llmb_common.timing.job_events import read_events
from llmb_run.results.measuring import Measured

_STATES = {
    "NODE_FAIL": "a node failed",
    "BOOT_FAIL": "a node did not boot",
    "PREEMPTED": "it was preempted",
    "REVOKED": "it was revoked",
    CANCELLED: "it was cancelled",
    LOST: "the scheduler has lost it",
}
"""States of a job that say nothing about the benchmark."""

_NODE_KINDS = frozenset({"ecc", "fewer-gpus", "adapter", "adapter-count", "fabric"})
"""Problems that explain why a run failed."""


def attempt_of(item: Measured, record: RunRecord, *, timed: bool, strict: bool) -> Attempt:
    """How a run that has ended did.

    Args:
        item: its figures
        record: as it is now
        timed: its step time counts; else it is enough that it succeeded
        strict: what its nodes have found is a failure
    """
    status = item.timing.status
    if status.state == "Success" and item.not_training:
        return Attempt(failure=item.unfit)
    problems = [finding.text for finding in item.findings if finding.severity == "problem"]
    if timed and status.state == "Success" and item.step_time is not None:
        return Attempt(item.step_time)
    short = status.state == "Success" or status.reason == "window_not_reached"
    if not timed and record.state == COMPLETED and short:
        return Attempt(failure=f"its nodes: {'; '.join(problems)}") if strict and problems else Attempt()
    if (word := record.state.split()[0]) in _STATES:
        return Attempt(fault=f"{_STATES[word]} ({record.state}{f', {record.detail}' if record.detail else ''})")
    if _cut_short(record):
        return Attempt(fault=f"its allocation ended before its own time limit ({record.state})")
    hardware = [
        finding.text for finding in item.findings if finding.kind in _NODE_KINDS and finding.severity == "problem"
    ]
    why = diagnose(record)
    if why.of_machine:
        hardware.append(why.said)
    if hardware:
        return Attempt(fault=f"a node's fault: {hardware[0]}")
    if status.state == "Incomplete":
        return Attempt(fault=status.message)
    said = status.message or record.detail or record.state
    return Attempt(failure=f"{said}: {why.said}" if record.state != COMPLETED else said)


def _cut_short(record: RunRecord) -> bool:
    """Whether it had not had its time when the job that it shares with others ended."""
    ended = record.submission.in_series and record.state.split()[0] in ("TIMEOUT", "DEADLINE")
    return ended and not read_events(record.paths.events).timed_out
