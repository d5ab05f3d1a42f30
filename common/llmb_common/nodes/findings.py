"""What the rules find: for a run's evidence, before a job, and for doctor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from llmb_common.base.printable import first_few, printable
from llmb_common.nodes.facts import NodeFacts, Nodes
from llmb_common.nodes.needs import Needs
from llmb_common.nodes.rule import Fleet, Found, Rule, Weight
from llmb_common.nodes.rules import ANYWHERE, RULES
from llmb_common.nodes.summary import NodeFinding, Severity

_MOST = 4
"""Things that one sentence names."""


class Remark(msgspec.Struct, frozen=True):
    """Something found on a node before a job; ``check`` is the rule's name."""

    check: str
    level: Weight
    text: str
    remedy: str = ""


def find(needs: Needs, found: Nodes) -> tuple[NodeFinding, ...]:
    """Everything that the records of a run's nodes say against its result, problems before notes; empty: nothing.

    Texts are printable.
    """
    findings = []
    for rule, severity, items in _of_run(needs, found):
        findings += [NodeFinding(rule.name, severity, text) for text in _finding_sentences(rule, items)]
    return tuple(sorted(findings, key=lambda finding: finding.severity == "note"))  # stable


def find_on_nodes(needs: Needs, found: Nodes) -> Iterator[tuple[str, NodeFinding]]:
    """Yields (host, finding) for what speaks against a run's result, of each node for itself.

    What names no node is said of all.
    """
    for rule, severity, items in _of_run(needs, found):
        for host, own in _by_host(items, found.nodes).items():
            for text in _finding_sentences(rule, own):
                yield host, NodeFinding(rule.name, severity, text)


def remarks(fleet: Fleet, *, at_work: bool = False) -> Iterator[tuple[str, Remark]]:
    """Yields (host, remark) for what is found on nodes before a job.

    ``at_work``: only by rules that are also asked of a run.
    """
    for rule in RULES if fleet.needs.device == "cuda" else ANYWHERE:
        if rule.level.health and (rule.level.evidence or not at_work):
            yield from _remarks(rule, rule.level.health, fleet)


def doctor_remarks(node: NodeFacts, needs: Needs) -> dict[str, Remark]:
    """What is found on one node of a site for jobs on several, by the rule's name, one each; empty: nothing."""
    fleet = Fleet(needs, (node,))
    found: dict[str, Remark] = {}
    for rule in RULES:
        if rule.level.doctor:
            found |= {remark.check: remark for _, remark in _remarks(rule, rule.level.doctor, fleet)}
    return found


def _of_run(needs: Needs, found: Nodes) -> Iterator[tuple[Rule, Severity, list[Found]]]:
    """Yields (rule, severity, what it finds) for each rule that finds something in a run; nothing without records."""
    if found == Nodes():
        return
    fleet = Fleet(needs, found.nodes, needs.nodes, found.unreadable)
    for rule in RULES if needs.device == "cuda" else ANYWHERE:
        if rule.level.evidence:
            items = list(rule.find(fleet))
            if items:
                yield rule, rule.level.evidence, items


def _remarks(rule: Rule, level: Weight, fleet: Fleet) -> Iterator[tuple[str, Remark]]:
    """Yields (host, remark) for what one rule finds, with the remedy for a node, or for one in Kubernetes."""
    pods = {node.host for node in fleet.nodes if node.system.pod}
    for host, items in _by_host(rule.find(fleet), fleet.nodes).items():
        remedy = rule.in_pods if rule.in_pods and host in pods else rule.remedy
        for text in _finding_sentences(rule, items):
            yield host, Remark(rule.name, level, text, remedy)


def _by_host(items: Iterable[Found], nodes: Sequence[NodeFacts]) -> dict[str, list[Found]]:
    """By node what is found on it; what names none of ``nodes`` is found on all of them."""
    hosts = dict.fromkeys(node.host for node in nodes)
    found: dict[str, list[Found]] = {}
    for item in items:
        for host in (item.host,) if item.host in hosts else hosts:
            found.setdefault(host, []).append(item)
    return found


def _finding_sentences(rule: Rule, items: Sequence[Found]) -> list[str]:
    """What a rule found, as printable sentences: one each, or one for all where the rule has a sentence for it."""
    if not rule.sentence:
        return [printable(item.text)[:500] for item in items]
    named = first_few([item.text[:120] for item in items], _MOST)
    return [printable(rule.sentence.format(named, items[0].usual))[:500]]
