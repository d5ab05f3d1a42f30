"""Many failures together: which causes, on which nodes, and what to keep out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from llmb_common.causes.answer import Diagnosis
from llmb_common.causes.table import signatures
from llmb_common.command.printable import counted
from llmb_common.runs.hostlist import compress

FEW = 2
"""Failures with their root on the same node that are more than chance."""


class Kind(msgspec.Struct, frozen=True):
    """``nodes``: where the root was, the most frequent first."""

    kind: str
    what: str
    count: int
    nodes: tuple[str, ...]


class Counts(msgspec.Struct, frozen=True):
    """``nodes``: how often each was the root's. ``keep_out``: a host list, empty where nothing speaks for one."""

    kinds: tuple[Kind, ...]
    nodes: dict[str, int]
    keep_out: str
    advice: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return {"causes": msgspec.to_builtins(self.kinds), "nodes": self.nodes, "keep_out": self.keep_out}


def count(found: Sequence[Diagnosis]) -> Counts:
    """What the diagnoses of failed runs have in common.

    A node is proposed where a line says that it is bad, or where it was the root's in ``FEW`` failures that hardware
    may cause and in more than half of those.
    """
    causes = [item.cause for item in found if item.cause is not None]
    nodes = Counter(cause.node for cause in causes if cause.node)
    kinds = []
    for kind, number in Counter(item.kind for item in found).most_common():
        of_kind = [cause for cause in causes if cause.kind == kind]
        what = of_kind[0].what if of_kind else "what is known does not say"
        where = Counter(cause.node for cause in of_kind if cause.node)
        kinds.append(Kind(kind, what, number, tuple(node for node, _ in where.most_common(8))))
    bad = {cause.node for cause in causes if cause.keep_out and cause.node}
    # No node is kept out for a setting that its rank, often the first, was the first to refuse.
    hardware = {"hang", *(item.id for item in signatures() if "hardware" in item.traits)}
    suspects = [cause for cause in causes if cause.fault in ("node", "network", "storage") or cause.kind in hardware]
    times = Counter(cause.node for cause in suspects if cause.node)
    often = {node for node, number in times.items() if number >= FEW and 2 * number > len(suspects)}
    advice = [
        f"{node} was the root in {number} of {counted(len(found), 'failure')}" for node, number in nodes.most_common()
    ]
    keep_out = compress(sorted(bad | often))
    if keep_out:
        advice.append(f"llmb-run exclude add {keep_out} --days 7 --reason 'root of failed runs'")
    return Counts(tuple(kinds), dict(nodes.most_common()), keep_out, tuple(advice))
