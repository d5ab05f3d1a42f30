"""Whether a failure speaks against the node where it was seen: what came before it, whose word it is, and what a link
connects."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import msgspec

from llmb_common.causes.answer import Cause
from llmb_common.causes.reading import Complaint, Reading, complaints_in, line_number_of
from llmb_common.causes.table import FailureSignature, signatures

INTERRUPTIONS = frozenset({"time-limit", "preempted", "cancelled-by"})
"""Signatures of a job that its scheduler, or somebody, has ended."""

BY_SCHEDULER = INTERRUPTIONS | {"node-failed", "not-booted", "node-down"}
"""Signatures of what the scheduler did or saw: a task that ended first does not tell where that was."""


def is_interrupted(cause: Cause, readings: Sequence[Reading], state: str) -> bool:
    """Return whether somebody or the scheduler had ended the job before the log line of ``cause``, or may have.

    That is by the time limit, a preemption or a cancellation. "May have" where the line that says so stands in another
    log, for lines of two files have no order. Where no log says it, ``state`` alone decides: the id of the signature
    that the job's own state stands for, such as ``time-limit``, or empty. ``readings`` are all logs of the run.
    """
    ends = [item for item in complaints_in(readings) if item.signature.id in INTERRUPTIONS]
    if not ends:
        return state in INTERRUPTIONS
    return any(str(end.log) != cause.file or (line_number_of(end) or 0) <= (cause.number or 0) for end in ends)


def is_certain_of_node(kind: str) -> bool:
    """Return whether causes of ``kind``, a signature's id, are the kernel's or scheduler's word that a node failed.

    Such as ``node-failed``, any Xid or SXid, and what a node's kernel log is checked for. No signal to a job brings
    that about, though a signal may come of it.
    """
    return (
        kind == "node-failed"
        or kind.startswith(("xid-", "sxid-"))
        or any(item.id == kind and item.kernel for item in signatures())
    )


def went_on_after(item: Complaint, reading: Reading) -> bool:
    """Return whether the job went on after the log line ``item`` of a kind that may be harmless.

    Later lines of the same log, of which ``reading`` is, say so: ranks still waited for each other, or lost each other,
    then. False for lines of all other kinds.
    """
    return "harmless" in item.signature.traits and any(
        other.offset > item.offset and other.signature.role in ("witness", "cascade") for other in reading.complaints
    )


_TOLD_TO_END = re.compile(r"Terminated|exit code 143\b")
"""What srun says of tasks that a SIGTERM ended: the signal itself, or the status of a shell that passes it on."""


def nodes_that_ended(readings: Sequence[Reading]) -> set[str | None]:
    """Return the names of the nodes whose tasks, by srun's word in the logs, ended without being told to.

    Those with killed tasks are among them, and None never is. Empty where srun has said nothing. It is for a log line
    that names no node: the line may be of any of them. ``readings`` are all logs of the run.
    """
    ends = [item for item in complaints_in(readings) if item.signature.role in ("ended", "killed")]
    alone = [item for item in ends if not _TOLD_TO_END.search(item.line.text)]
    return {item.location.host for item in alone if item.location.host}


def is_of_one_node(found: FailureSignature, hosts: Collection[str | None], *, several: bool) -> bool:
    """Return whether a failure of kind ``found`` speaks against the one node where its line was seen.

    False where several nodes have such a line, or the kind is only possibly a cause; and where it may come of a setting
    of all nodes (by its fault or traits), unless the job had other nodes, which did without.

    Args:
        found: the signature of the line
        hosts: the nodes that have such a line, None for one without a name; empty counts as one node
        several: whether the job is known to have had other nodes
    """
    # Such a fault would hit all nodes alike.
    may_be_all = found.fault in ("site", "storage") or "setting" in found.traits
    return len(hosts) <= 1 and found.sure != "possible" and (several or not may_be_all)


def in_words_of_progress(limit: Cause, *, trained: bool) -> Cause:
    """Return ``limit``, the cause of a job that reached its time limit, with words that fit how far it came.

    Before the first step (``limit.step`` is None) and after the last one (``trained``), a copy with other texts and
    another remedy: a longer limit would not help. Between them it is returned as it is.
    """
    if limit.step is None:
        return msgspec.structs.replace(
            limit,
            what="the job reached its time limit before its first step",
            remedy="see in the ranks' last lines what they waited for: the import of the image, an address that "
            "cannot be reached, a folder that hangs",
        )
    if trained:
        return msgspec.structs.replace(
            limit,
            what="the job did not end before its time limit",
            cause="Ranks that wait for each other at the end of a job, or a checkpoint that is still being written.",
            remedy="llmb-run results has the figures; repeat the run only if its checkpoint is needed",
        )
    return limit


def proves_node_bad(cause: Cause) -> bool:
    """Return whether the cause of a failure is a broken part or daemon of its node, for certain.

    It is if ``is_certain_of_node`` says so of its kind, or it is a node's fault and certain. False for kinds that a
    setting of a job or a site can bring about. Which node that is is not asked.
    """
    if any(item.id == cause.kind and "setting" in item.traits for item in signatures()):
        return False
    return is_certain_of_node(cause.kind) or (cause.fault == "node" and cause.sure == "certain")


_PEER = re.compile(
    r"\b(?:(?:from|to|with) peer|[Cc]onnect to(?: any network address of)?) [\[(]?([\w.:-]+?)(?:<\d+>)?(?:[ ,\]]|$)"
)


def peer_of(item: Complaint) -> str | None:
    """Return the other end of a failed link, from the log line that names it, such as ``10.0.0.7``; else None.

    It is a host name or an address, as the line has it behind ``connect to`` or ``peer``, with a port behind a colon,
    but without one in angle brackets. The signature of ``item`` is not looked at.
    """
    found = _PEER.search(item.line.text)
    return found[1] if found else None
