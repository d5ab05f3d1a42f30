"""What is said of one failure and of many together: plain values, for people and as JSON. Texts are printable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from llmb_common.base.hostlist import compress
from llmb_common.base.printable import counted
from llmb_common.causes.table import Fault, Role, Sure, signatures

UNKNOWN = "unknown"


class Symptom(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a failed run left, with where it stands and who printed it.

    ``file`` is empty where the scheduler or the record says it. ``number`` is that of the line, from 1; None: not
    counted.
    """

    signature: str
    role: Role
    line: str
    file: str = ""
    number: int | None = None
    ranks: tuple[int, ...] = ()
    node: str | None = None
    gpu: str | None = None
    """The GPU's address on PCIe, or its index on the node."""
    time: str | None = None
    """The time of the line, as printed."""
    count: int = 1
    """How many such lines there are."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """What began a failure: its kind, whose fault it is, how sure that is, and what to do.

    ``line`` is empty where a rank is silent: the witnesses have the lines then.
    """

    kind: str
    """The signature's id; ``hang`` for a rank that was found by what the others, the stacks or the flight recorders
    say."""
    what: str
    fault: Fault
    sure: Sure
    cause: str
    remedy: str
    role: Literal["root"] = "root"
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    """All of them where it is of several; 64 at most."""
    node: str | None = None
    gpu: str | None = None
    step: int | None = None
    """The last iteration before it that the log has."""
    time: str | None = None
    line: str = ""
    file: str = ""
    number: int | None = None
    peer: str | None = None
    """The other end of a link that failed, as the line names it."""
    keep_out: bool = False
    """Whether the line speaks for keeping jobs off ``node``: it is about that node's own hardware, daemon or files."""
    interrupted: bool = False
    """Whether a signal, preemption or the time limit came first: what fails then is no node's fault."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Why one run failed. ``cause`` None: what is known does not say. ``witnesses`` are other lines, the earliest
    first.
    """

    cause: Cause | None
    summary: str
    """One line for a table."""
    witnesses: tuple[Symptom, ...] = ()
    suspect: Symptom | None = None
    """Where there is no cause: what ended first, such as a rank that was killed by somebody."""
    trained: bool = False
    """Whether every step was trained, so that only what came after them failed: the figures count."""

    @property
    def kind(self) -> str:
        """The cause's kind; ``unknown`` where there is none."""
        return self.cause.kind if self.cause else UNKNOWN

    @property
    def short(self) -> str:
        """The summary for a table; empty where all that is known is how the log ends."""
        known = self.cause or self.trained or (self.suspect and self.suspect.role != "noise")
        return self.summary if known else ""

    @property
    def summary_with_line(self) -> str:
        """The summary, followed by the log line that it rests on where the summary does not have it."""
        line = ""
        if self.cause:
            line = self.cause.line
        elif self.suspect and (self.trained or self.summary.startswith("unknown:")):
            line = self.suspect.line
        return self.summary if not line or line in self.summary else f"{self.summary}: {line}"

    @property
    def of_machine(self) -> bool:
        """Whether a node, the network, the storage or the scheduler is at fault, rather than the run or a setting."""
        return self.cause is not None and self.cause.fault in ("node", "network", "storage", "scheduler")

    @property
    def bad_node(self) -> str | None:
        """The node whose own hardware, daemon or files the cause is about; None where it speaks against no node.

        A rank that never came names none: its program may be why.
        """
        if self.cause is None or not self.cause.keep_out or self.cause.fault == "run":
            return None
        return self.cause.node


FEW = 2
"""Failures with their root on the same node that are more than chance."""


class CauseCount(msgspec.Struct, frozen=True):
    """How many of several failures had one kind of cause; ``nodes`` are where it was, the most frequent first."""

    kind: str
    what: str
    count: int
    nodes: tuple[str, ...]


class Counts(msgspec.Struct, frozen=True):
    """What several failures have in common: how often each kind, how often each node, and what to do about it.

    ``keep_out`` is a host list of nodes to keep jobs off; empty where nothing speaks for one.
    """

    kinds: tuple[CauseCount, ...]
    nodes: dict[str, int]
    keep_out: str
    advice: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The counts as plain values for JSON, without the advice."""
        return {"causes": msgspec.to_builtins(self.kinds), "nodes": self.nodes, "keep_out": self.keep_out}


def count_causes(found: Sequence[Diagnosis]) -> Counts:
    """What the diagnoses of failed runs have in common.

    A node is proposed where a line says that it is bad, or where it was the root's in ``FEW`` failures that its
    hardware may cause and in more than half of those. What is only possibly the cause, or came after a signal, does not
    count against a node, nor does a link, which has two ends.
    """
    causes = [item.cause for item in found if item.cause is not None]
    nodes = Counter(cause.node for cause in causes if cause.node)
    kinds = []
    for kind, number in Counter(item.kind for item in found).most_common():
        of_kind = [cause for cause in causes if cause.kind == kind]
        what = of_kind[0].what if of_kind else "the logs do not say why"
        where = Counter(cause.node for cause in of_kind if cause.node)
        kinds.append(CauseCount(kind, what, number, tuple(node for node, _ in where.most_common(8))))
    bad = {cause.node for cause in causes if cause.keep_out and cause.node}
    # No node is kept out for a setting that its rank, often the first, was the first to refuse.
    hardware = {"hang", *(item.id for item in signatures() if "hardware" in item.traits)}
    believed = [cause for cause in causes if cause.sure != "possible" and not cause.interrupted]
    suspects = [cause for cause in believed if cause.fault == "node" or cause.kind in hardware]
    times = Counter(cause.node for cause in suspects if cause.node)
    frequent = {node for node, number in times.items() if number >= FEW and 2 * number > len(suspects)}
    advice = [
        f"{node} was the root in {number} of {counted(len(found), 'failure')}" for node, number in nodes.most_common()
    ]
    keep_out = compress(sorted(bad | frequent))
    if keep_out:
        advice.append(f"llmb-run exclude add {keep_out} --days 7 --reason 'root of failed runs'")
    return Counts(tuple(kinds), dict(nodes.most_common()), keep_out, tuple(advice))
