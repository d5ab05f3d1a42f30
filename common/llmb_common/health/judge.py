"""From facts to a verdict on each node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import msgspec

from llmb_common.command.printable import printable
from llmb_common.health.checks import CHECKS
from llmb_common.health.facts import Facts, Level, Remark
from llmb_common.health.fleet import unlike
from llmb_common.health.kernel import kernel_trouble
from llmb_common.health.needs import Needs
from llmb_common.platform.gpus import GPUS, type_of
from llmb_common.runs.evidence.findings import NodeFinding, find_on_nodes
from llmb_common.runs.evidence.nodes import Node, Nodes

Status = Literal["ok", "warn", "fail", "silent", "not asked"]

_EVIDENCE: dict[str, Level] = {
    "no-gpu-facts": "fail",
    "other-gpu": "fail",
    "fewer-gpus": "fail",
    "different-gpu": "fail",
    "fabric": "fail",
    "throttled": "fail",
    "slow-clock": "fail",
    "pcie": "fail",
    "socket": "fail",
    "no-gpudirect": "warn",
    "locked-clock": "warn",
    "power-limit": "warn",
}
"""What of a run's evidence counts here; its notes do not. Memory errors, adapters and versions are checked otherwise
before a job, and which nodes NVLink joins is a matter of where it will run."""

_HUNG: dict[str, Level] = {"kernel": "warn", "services": "warn", "software": "warn", "imex": "warn"}
"""A look that hangs otherwise fails its node: where a driver or a file system hangs, a job will."""


class Verdict(msgspec.Struct, frozen=True):
    """What the checks say of one node: the worst level, and the remarks."""

    node: str
    status: Status
    remarks: tuple[Remark, ...] = ()

    @property
    def reason(self) -> str:
        """Why it is not to be used, on one line."""
        worst = [remark for remark in self.remarks if remark.level == "fail"] or list(self.remarks)
        return "; ".join(remark.text for remark in worst[:3])[:300]


def judge(asked: Sequence[str], said: Mapping[str, Facts | None], needs: Needs) -> list[Verdict]:
    """A verdict on each node that was ``asked``; ``said`` has None for one on which nothing could run."""
    fleet = [facts for node in asked if (facts := said.get(node))]
    needs = _completed(needs, fleet)
    remarks: dict[str, list[Remark]] = {node: [] for node in asked}
    for facts in fleet:
        remarks[facts.node] += _own(facts, needs)
    for node, remark in unlike(fleet, needs):
        remarks[node].append(remark)
    for node, remark in evidence_remarks([facts.evidence for facts in fleet], needs):
        remarks[node].append(remark)
    return [_verdict(node, said, remarks[node]) for node in asked]


def evidence_remarks(nodes: Sequence[Node], needs: Needs) -> Iterator[tuple[str, Remark]]:
    """What a run on these nodes would find in their accounts, by node."""
    if needs.device == "cuda":
        for node, finding in find_on_nodes(replace(needs, nodes=len(nodes)), Nodes(tuple(nodes))):
            yield from ((node, remark) for remark in _taken(finding))


def with_remarks(verdicts: Sequence[Verdict], more: Mapping[str, Sequence[Remark]]) -> list[Verdict]:
    """The verdicts, with what was found later; each thing once."""
    return [
        _judged(item.node, dict.fromkeys([*item.remarks, *more[item.node]])) if item.node in more else item
        for item in verdicts
    ]


def _verdict(node: str, said: Mapping[str, Facts | None], remarks: Sequence[Remark]) -> Verdict:
    if node not in said:
        return Verdict(node, "silent", (Remark("answer", "fail", "no answer in time"),))
    if said[node] is None:
        return Verdict(node, "silent", (Remark("answer", "fail", "no Python 3.6 or newer on the node"),))
    return _judged(node, remarks)


def _judged(node: str, remarks: Iterable[Remark]) -> Verdict:
    order = ("fail", "warn", "unknown", "drift")
    shown = [msgspec.structs.replace(remark, text=printable(remark.text)[:300]) for remark in remarks]
    shown.sort(key=lambda remark: order.index(remark.level))
    levels = {remark.level for remark in shown}
    return Verdict(node, "fail" if "fail" in levels else "warn" if "warn" in levels else "ok", tuple(shown))


def _own(facts: Facts, needs: Needs) -> Iterator[Remark]:
    """What a node says of itself, without a look at the others."""
    for check in CHECKS:
        if needs.device == "cuda" or check.name in _WITHOUT_GPUS:
            yield from (Remark(check.name, level, text) for level, text in check.look(facts, needs))
    yield from (Remark(check, level, text) for check, level, text in kernel_trouble(facts.kernel))
    if facts.kernel.missing:
        yield Remark("kernel-log", "unknown", f"the kernel's log cannot be read: {facts.kernel.missing}")
    for look, how in facts.hung.items():
        yield Remark("answer", _HUNG.get(look, "fail"), f"the look at {look} hung ({how})")
    for look, error in facts.errors.items():
        yield Remark("answer", "unknown", f"the look at {look} failed: {error}")


_WITHOUT_GPUS = frozenset({"folders", "stuck", "runtime", "time", "ports"})
"""The checks that a job on CPUs cares about, too."""


def _taken(finding: NodeFinding) -> Iterator[Remark]:
    level = _EVIDENCE.get(finding.kind)
    if level is not None and (finding.severity == "problem" or finding.kind == "no-gpu-facts"):
        yield Remark(finding.kind, level, finding.text)


def _completed(needs: Needs, fleet: Sequence[Facts]) -> Needs:
    """With the type and the number of GPUs that most nodes have, where nobody has said."""
    types = Counter(kind for f in fleet for gpu in f.gpus.gpus if (kind := type_of(gpu.product or "")) in GPUS)
    counts = Counter(len(facts.gpus.gpus) for facts in fleet if facts.gpus.gpus)
    if not needs.gpu_type and not counts:
        needs = replace(needs, device="cpu")
    return replace(
        needs,
        gpu_type=needs.gpu_type or (types.most_common(1)[0][0] if types else ""),
        gpus_per_node=needs.gpus_per_node or (counts.most_common(1)[0][0] if counts else 0),
    )
