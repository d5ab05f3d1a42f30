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
    """One line of a failed run's logs that tells of the failure, and who printed it.

    Made with a ``Diagnosis``, for the first line of each kind in a log. ``line`` is its text, safe to print, and
    ``file`` the path of the log it stands in. ``number`` is that of the line, from 1; None: not counted. ``ranks``
    (sorted, 64 at most; empty: not known) printed lines of this kind, the first of them on ``node``. ``node``, ``gpu``
    and ``time`` are None where not known.
    """

    signature: str
    """The id of the kind of line, as in ``signatures.yaml``; empty for a log's last line that is of no kind."""
    role: Role
    """What the line is to the failure: its beginning (``root``), a consequence (``cascade``), of a rank that waits
    (``witness``) or ends (``killed``, ``ended``, ``teardown``), or no evidence (``noise``)."""
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
    """How many lines of this kind the log has."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """What began the failure of one run: its kind, whose fault it is, how sure that is, and what to do about it.

    Made with a ``Diagnosis``. ``what`` names it in a few words and ``cause`` explains it in sentences. ``line``,
    with the path of its ``file``, its ``number`` from 1 and the ``time`` that it prints, is the log line that says
    so. Where only the job's state says so, ``line`` is that state, and where a rank is silent it is empty (the
    diagnosis has the witnesses then); in both, ``file`` is empty, and ``number`` and ``time`` are None. ``rank``,
    ``node`` and ``gpu`` (its address on PCIe, or its index on the node) are where it happened; None: not known.
    """

    kind: str
    """The signature's id; ``hang`` for a rank that was found by what the others, the stacks or the flight recorders
    say."""
    what: str
    fault: Fault
    """Whose fault it is: the ``run`` (its configuration, code or data), a ``node``, the ``network``, the ``storage``,
    the ``site`` (a setting) or the ``scheduler``."""
    sure: Sure
    """How surely this is the cause: ``certain``, ``likely``, ``possible``."""
    cause: str
    remedy: str
    """What to do about it, as an imperative without a period."""
    role: Literal["root"] = "root"
    """Always ``root``, as ``Symptom.role`` calls what began a failure."""
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    """All ranks that it is of, as far as known, sorted; 64 at most."""
    node: str | None = None
    gpu: str | None = None
    step: int | None = None
    """The last iteration before it that the log has; None: it has none."""
    time: str | None = None
    line: str = ""
    file: str = ""
    number: int | None = None
    peer: str | None = None
    """The other end of a link that failed, as the line names it.

    None: it names none, or the fault is not the network's.
    """
    keep_out: bool = False
    """Whether it speaks for keeping jobs off ``node``: the line is about that node's own hardware, daemon or files.

    So does a hang of several ranks, all on that node.
    """
    interrupted: bool = False
    """Whether a signal, preemption or the time limit came first: what fails then is no node's fault."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Why one run failed: its cause, the evidence and a summary. ``diagnose`` and ``diagnose_logs`` make it.

    ``cause`` is None where the logs and the scheduler do not tell. ``witnesses`` are other lines of the same
    failure, at most eight, in the order of the logs; maybe none.

    Properties: ``kind`` is the cause's, ``unknown`` without one. ``short`` is the summary, empty where nothing is
    known but how the log ends; ``summary_with_line`` is the summary, a colon and the log line that it rests on, or
    the summary alone where there is none. ``of_machine``: whether the fault is a node's, the network's, the
    storage's or the scheduler's; False without a cause. ``bad_node`` is the name of the node that jobs should be
    kept off, or None. None of them raises anything.
    """

    cause: Cause | None
    summary: str
    """One line for a table, without a period: what began the failure, with rank and node, ``WHAT (rank 3 on n12)``."""
    witnesses: tuple[Symptom, ...] = ()
    suspect: Symptom | None = None
    """Where there is no cause: what ended first, such as a rank that was killed by somebody.

    None: there is a cause, or no line to suspect.
    """
    trained: bool = False
    """Whether every step was trained, so that only what came after them failed: the figures count."""

    @property
    def kind(self) -> str:
        """The kind of the failure's cause, as ``Cause.kind`` has it; ``unknown`` where no cause was found."""
        return self.cause.kind if self.cause else UNKNOWN

    @property
    def short(self) -> str:
        """The summary of why the run failed, for a table; empty where nothing is known but how the log ends.

        So it is where there is neither a cause nor a suspect but the log's last line, unless every step was trained.
        """
        known = self.cause or self.trained or (self.suspect and self.suspect.role != "noise")
        return self.summary if known else ""

    @property
    def summary_with_line(self) -> str:
        """The summary of why the run failed, followed by a colon and the log line that it rests on.

        That is the cause's line or, where the summary is not the job's own account of its end, the suspect's. Without
        the line where there is none, or the summary holds it already.
        """
        line = ""
        if self.cause:
            line = self.cause.line
        elif self.suspect and (self.trained or self.summary.startswith("unknown:")):
            line = self.suspect.line
        return self.summary if not line or line in self.summary else f"{self.summary}: {line}"

    @property
    def of_machine(self) -> bool:
        """Whether the failure is a node's, the network's, the storage's or the scheduler's fault.

        False where it is the run's or the site's (a setting), and where no cause was found.
        """
        return self.cause is not None and self.cause.fault in ("node", "network", "storage", "scheduler")

    @property
    def bad_node(self) -> str | None:
        """The node that jobs should be kept off, as the cause is about its own hardware, daemon or files; else None.

        None where there is no cause, or it speaks against no node, as when a rank never came: its program may be why.
        """
        if self.cause is None or not self.cause.keep_out or self.cause.fault == "run":
            return None
        return self.cause.node


FEW = 2
"""Failures with their root on the same node that are more than chance."""


class CauseCount(msgspec.Struct, frozen=True):
    """How many of several failures had one kind of cause; part of ``Counts``.

    ``kind`` is a signature's id, ``hang``, or ``unknown`` for failures without a cause; ``what`` names it in words.
    ``count`` is the number of failures. ``nodes`` are the at most 8 nodes where it was most often, the most
    frequent first; empty where none is known.
    """

    kind: str
    what: str
    count: int
    nodes: tuple[str, ...]


class Counts(msgspec.Struct, frozen=True):
    """What several failed runs have in common: how often each cause and each node came, and what to do about it.

    ``count_causes`` makes it. ``keep_out`` is a host list (``n[01-03]``) of nodes to keep jobs off; empty where
    nothing speaks for one. All others are empty without failures. ``as_dict`` returns a dictionary for JSON with
    ``causes`` (from ``kinds``, each a dictionary of ``kind``, ``what``, ``count`` and ``nodes``), ``nodes`` and
    ``keep_out``, without ``advice``.
    """

    kinds: tuple[CauseCount, ...]
    """One entry for each kind of cause, the most frequent first."""
    nodes: dict[str, int]
    """In how many of the failures each node was where the cause lay, the most frequent first."""
    keep_out: str
    advice: tuple[str, ...]
    """Lines for people: how often a node was the root, if it is bad or often was, and what keeps nodes out."""

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as plain values for JSON: ``causes`` (from ``kinds``), ``nodes`` and ``keep_out``.

        Each cause is a dictionary of ``kind``, ``what``, ``count`` and ``nodes``. All three keys are always there; the
        advice is left out.
        """
        return {"causes": msgspec.to_builtins(self.kinds), "nodes": self.nodes, "keep_out": self.keep_out}


def count_causes(found: Sequence[Diagnosis]) -> Counts:
    """Return what the diagnoses of failed runs have in common: how often each cause came, and nodes to avoid.

    Failures without a cause are counted as the kind ``unknown``; of equally frequent kinds or nodes the first found
    comes first. A node is to be avoided (``keep_out``, a sorted host list) where a line says that it is bad, or where
    it was the root's in at least ``FEW`` (2) failures that its hardware may cause and in more than half of those. What
    is only possibly the cause, or came after a signal, does not count against a node, nor does a link, which has two
    ends. All is empty where ``found`` is.
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
    # Once is no more than the run's own line says, and sounds like a bad node where the job did not fit.
    told = {node: number for node, number in nodes.most_common() if number >= FEW or node in bad}
    advice = [f"{node} was the root in {number} of {counted(len(found), 'failure')}" for node, number in told.items()]
    keep_out = compress(sorted(bad | frequent))
    if keep_out:
        advice.append(f"llmb-run exclude add {keep_out} --days 7 --reason 'root of failed runs'")
    return Counts(tuple(kinds), dict(nodes.most_common()), keep_out, tuple(advice))
