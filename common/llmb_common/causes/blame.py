"""Whether a failure speaks against the node where it was seen: what came before it, whose word it is, and what a link
connects."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llmb_common.causes.answer import Cause
from llmb_common.causes.reading import Complaint, Reading, number_of
from llmb_common.causes.table import signatures

_INTERRUPTIONS = frozenset({"time-limit", "preempted", "cancelled-by"})
"""Signatures of a job that its scheduler, or somebody, has ended."""


def is_interrupted(cause: Cause, readings: Sequence[Reading], state: str) -> bool:
    """Whether the scheduler had ended the job before the line of ``cause``, or may have: two files have no order.

    ``state`` is the signature that the job's own state stands for, or empty.
    """
    complaints = [item for reading in readings for item in reading.complaints]
    ends = [item for item in complaints if item.signature.id in _INTERRUPTIONS]
    if not ends:
        return state in _INTERRUPTIONS
    return any(str(end.log) != cause.file or (number_of(end) or 0) <= (cause.number or 0) for end in ends)


def is_certain_of_node(kind: str) -> bool:
    """Whether a cause of this kind is the word of the kernel or of the scheduler about a node that failed: no signal to
    a job brings that about, though one may come of it."""
    return (
        kind == "node-failed"
        or kind.startswith(("xid-", "sxid-"))
        or any(item.id == kind and item.kernel for item in signatures())
    )


_BY_SETTINGS = frozenset({"no-gpu", "gpu-hook"})
"""Kinds about a node that a job's own variables or its image bring about as well."""


def proves_node_bad(cause: Cause) -> bool:
    """Whether the cause is a broken part or daemon of its node, which no setting of a job or a site brings about."""
    if cause.kind in _BY_SETTINGS:
        return False
    return is_certain_of_node(cause.kind) or (cause.fault == "node" and cause.sure == "certain")


_PEER = re.compile(r"\b(?:(?:from|to|with) peer|connect to) ([\w.:-]+?)(?:<\d+>)?(?:[ ,]|$)")


def peer_of(item: Complaint) -> str | None:
    """The address of the other end, where a line about a link names it."""
    found = _PEER.search(item.line.text)
    return found[1] if found else None
