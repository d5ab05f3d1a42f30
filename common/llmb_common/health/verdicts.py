"""From facts to a verdict on each node before a job: by the rules, and by what its kernel logged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal

import msgspec

from llmb_common.base.gpus import GPUS, type_of
from llmb_common.base.printable import printable
from llmb_common.causes.kernel_log import kernel_remarks
from llmb_common.nodes.fabric.measurement import FabricMeasurement
from llmb_common.nodes.fabric.verdict import FabricVerdict
from llmb_common.nodes.facts import NodeFacts
from llmb_common.nodes.findings import Remark, remarks
from llmb_common.nodes.needs import Needs
from llmb_common.nodes.rule import Fleet

Status = Literal["ok", "warn", "fail", "silent", "not asked"]
_ORDER = ("fail", "warn", "unknown")


class NodeVerdict(msgspec.Struct, frozen=True):
    """The verdict of a health check on one node: its status, and the remarks that led to it, the worst first.

    ``judge`` makes it, and ``with_remarks`` and ``without_remarks`` make new ones of it. ``node`` is the node's name;
    ``remarks``, empty for none, are printable, at most 300 characters each. The property ``reason`` is why the node is
    not to be used: the first three of its failures, else of all remarks, joined by ``; `` and cut to 300 characters;
    empty where there are none.
    """

    node: str
    status: Status
    """``ok``, ``warn`` or ``fail`` by the worst remark; ``silent``: no answer; ``not asked``: it was left out."""
    remarks: tuple[Remark, ...] = ()

    @property
    def reason(self) -> str:
        """Why the node is not to be used: its failures, else all remarks, joined by ``; ``; empty where there are none.

        At most the first three of them, the worst, and 300 characters.
        """
        worst: Sequence[Remark] = [remark for remark in self.remarks if remark.level == "fail"] or self.remarks
        return "; ".join(remark.text for remark in worst[:3])[:300]


class Fabric(msgspec.Struct, frozen=True):
    """What was measured of the fabric between nodes under load, and the verdict on it.

    ``with_fabric`` makes it. ``measurement`` has the figures of GPUs, nodes and groups of nodes, and ``verdict`` the
    judgement on them; ``with_training`` makes a copy whose verdict has what training runs say.
    """

    measurement: FabricMeasurement
    verdict: FabricVerdict
    account: tuple[str, ...] = ()
    """Lines of text that describe the nodes under load; empty: there is nothing to tell."""


def judge(hosts: Sequence[str], node_answers: Mapping[str, NodeFacts | None], needs: Needs) -> list[NodeVerdict]:
    """Return a health verdict on each node that was asked, ``hosts``, in their order, by what nodes recorded.

    ``node_answers`` has the facts by node, None for a node on which nothing could run, and lacks those that did not
    answer: both are ``silent``. Other nodes in it are ignored. No node is asked here. Nodes are held against ``needs``,
    what jobs need of them, and compared with each other, and each node's kernel log counts.
    """
    answers = [node_answers.get(node) for node in hosts]
    nodes = tuple(facts for facts in answers if facts is not None)
    found: dict[str, list[Remark]] = {node: [] for node in hosts}
    for node, remark in remarks(_as_fleet(nodes, needs)):
        found[node].append(remark)
    for facts in nodes:
        found[facts.host] += kernel_remarks(facts.kernel)
    return [_verdict(node, node_answers, found[node]) for node in hosts]


def _as_fleet(nodes: Sequence[NodeFacts], needs: Needs) -> Fleet:
    """Return the nodes, with what jobs need of them, in the form that health rules look at.

    What ``needs`` does not say is filled in, each by itself: the type of most GPUs, of those in ``GPUS`` (empty: there
    is none), and the number that most nodes with GPUs have (0: none has any). Where it names no type and no node has
    GPUs, all are taken for nodes without GPUs. ``needs`` is not changed.
    """
    gpus = chain.from_iterable(node.before.gpus for node in nodes)
    types = Counter(type_of(gpu.product or "") for gpu in gpus)
    known = [kind for kind, _ in types.most_common() if kind is not None and kind in GPUS]
    counts = Counter(len(node.before.gpus) for node in nodes if node.before.gpus)
    # Nobody asked for GPUs, and no node has any: rules about GPUs do not apply.
    if not needs.gpu_type and not counts:
        needs = replace(needs, device="cpu")
    needs = replace(
        needs,
        gpu_type=needs.gpu_type or (known[0] if known else ""),
        gpus_per_node=needs.gpus_per_node or (counts.most_common(1)[0][0] if counts else 0),
    )
    return Fleet(needs, tuple(nodes), together=len(nodes))


def with_remarks(verdicts: Sequence[NodeVerdict], more: Mapping[str, Sequence[Remark]]) -> list[NodeVerdict]:
    """Return the health verdicts in their order, those of nodes in ``more`` judged anew with the remarks given there.

    That is by the worst of the former remarks and those. A remark that a node has already is not added again; nodes in
    ``more`` without a verdict are ignored, and verdicts of other nodes are returned as they are. A silent node that is
    judged anew fails.
    """
    judged = []
    for item in verdicts:
        if item.node in more:
            remarks = dict.fromkeys([*item.remarks, *map(_shown, more[item.node])])
            judged.append(_worst_verdict(item.node, remarks))
        else:
            judged.append(item)
    return judged


def without_remarks(verdicts: Sequence[NodeVerdict], taken: Mapping[str, Sequence[Remark]]) -> list[NodeVerdict]:
    """Return the health ``verdicts`` in their order, those of nodes in ``taken`` judged anew without the remarks there.

    Remarks are compared as a whole, in the form in which they are shown; those that a node does not have are ignored.
    A node that is left without any is ``ok``; a silent one that is judged anew is no longer silent. Verdicts of other
    nodes, and of those with no remarks in ``taken``, are returned as they are.
    """
    kept = []
    for item in verdicts:
        # Verdicts hold remarks as they are shown, so they are compared in that form.
        gone = [_shown(remark) for remark in taken.get(item.node, ())]
        kept.append(
            _worst_verdict(item.node, [remark for remark in item.remarks if remark not in gone]) if gone else item
        )
    return kept


def _verdict(node: str, node_answers: Mapping[str, NodeFacts | None], found: Sequence[Remark]) -> NodeVerdict:
    """Return the health verdict on a node: ``silent`` where it gave no answer or had no Python, else by ``found``.

    ``node_answers`` lacks a node that gave no answer, and has None for one without a Python.
    """
    if node not in node_answers:
        return NodeVerdict(node, "silent", (Remark("answer", "fail", "no answer in time"),))
    if node_answers[node] is None:
        return NodeVerdict(node, "silent", (Remark("answer", "fail", "no Python 3.6 or newer on the node"),))
    return _worst_verdict(node, found)


def _worst_verdict(node: str, found: Iterable[Remark]) -> NodeVerdict:
    """Return the health verdict on ``node`` by the worst of the remarks ``found``; ``ok`` where none fails or warns.

    The remarks in it are made printable and sorted, the worst first; those of level ``unknown`` stay, too, as the
    last.
    """
    shown = [_shown(remark) for remark in found]
    shown.sort(key=lambda remark: _ORDER.index(remark.level))
    levels = {remark.level for remark in shown}
    status: Status = "ok"
    if "fail" in levels:
        status = "fail"
    elif "warn" in levels:
        status = "warn"
    return NodeVerdict(node, status, tuple(shown))


def _shown(remark: Remark) -> Remark:
    """Return a remark as people read it: its text printable, and at most 300 characters of it."""
    return msgspec.structs.replace(remark, text=printable(remark.text)[:300])
