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
    """One thing that a rule found on one node before a job; ``remarks`` and ``doctor_remarks`` make it.

    ``level`` is ``fail`` (a job would stop there, or its result be wrong), ``warn`` (worth a look) or ``unknown``
    (it could not be found out).
    """

    check: str
    """The rule's name."""
    level: Weight
    text: str
    """One printable line of at most 500 characters, without a period."""
    remedy: str = ""
    """What to do about it; empty: nothing is known."""


def find(needs: Needs, found: Nodes) -> tuple[NodeFinding, ...]:
    """Return everything that the records of a run's nodes say against the run's result, problems before notes.

    Among equals they come in the order of the rules. Each has a printable text. ``needs`` is what the run needed of
    its nodes; where its ``device`` is ``cpu``, only rules that need no GPU are asked. Empty: nothing speaks against
    it, or there are no records.
    """
    findings = []
    for rule, severity, items in _of_run(needs, found):
        findings += [NodeFinding(rule.name, severity, text) for text in _finding_sentences(rule, items)]
    return tuple(sorted(findings, key=lambda finding: finding.severity == "note"))  # stable


def find_on_nodes(needs: Needs, found: Nodes) -> Iterator[tuple[str, NodeFinding]]:
    """Yield (host, finding) for everything that the records of a run's nodes say against the run's result.

    It goes rule by rule, and has one finding for each host where the rule words all that it finds in one sentence.
    What a rule finds without naming one of the nodes is yielded for each of them, so not at all if no node left a
    readable record. ``needs`` is what the run needed of its nodes; where its ``device`` is ``cpu``, only rules that
    need no GPU are asked.
    """
    for rule, severity, items in _of_run(needs, found):
        for host, own in _by_host(items, found.nodes).items():
            for text in _finding_sentences(rule, own):
                yield host, NodeFinding(rule.name, severity, text)


def remarks(fleet: Fleet, *, at_work: bool = False) -> Iterator[tuple[str, Remark]]:
    """Yield (host, remark) for everything that the rules of ``health`` find on nodes before a job, rule by rule.

    ``fleet`` has these nodes and what is needed of them; where its ``needs.device`` is ``cpu``, only rules that
    need no GPU are asked. ``at_work``: only rules that also judge runs, for nodes that worked while they were
    looked at. What names no node is yielded for each of them.
    """
    # On CPUs only rules that need no GPU are asked.
    for rule in RULES if fleet.needs.device == "cuda" else ANYWHERE:
        if rule.level.health and (rule.level.evidence or not at_work):
            yield from _remarks(rule, rule.level.health, fleet)


def doctor_remarks(node: NodeFacts, needs: Needs) -> dict[str, Remark]:
    """Return what the rules of ``doctor`` find on one node of a site, by the rule's name.

    There is one remark for each name: the last that a rule of this name finds. ``needs`` is what the site's jobs
    need. All rules of ``doctor`` are asked, also on CPUs. Empty: nothing is wrong.
    """
    fleet = Fleet(needs, (node,))
    found: dict[str, Remark] = {}
    for rule in RULES:
        if rule.level.doctor:
            found |= {remark.check: remark for _, remark in _remarks(rule, rule.level.doctor, fleet)}
    return found


def _of_run(needs: Needs, found: Nodes) -> Iterator[tuple[Rule, Severity, list[Found]]]:
    """Yield (rule, severity, things found) for each rule that finds something in the records of a run's nodes.

    Rules are in their own order; where ``needs.device`` is ``cpu``, only those that need no GPU are asked. Nothing
    where there are no records at all.
    """
    if found == Nodes():
        return
    fleet = Fleet(needs, found.nodes, needs.nodes, found.unreadable)
    for rule in RULES if needs.device == "cuda" else ANYWHERE:
        if rule.level.evidence:
            items = list(rule.find(fleet))
            if items:
                yield rule, rule.level.evidence, items


def _remarks(rule: Rule, level: Weight, fleet: Fleet) -> Iterator[tuple[str, Remark]]:
    """Yield (host, remark) for everything that ``rule`` finds on the nodes of ``fleet``, each remark of level
    ``level``.

    It goes host by host. What names no node is yielded for each. Nodes that are pods of Kubernetes get the rule's
    remedy for pods, if it has one.
    """
    pods = {node.host for node in fleet.nodes if node.system.pod}
    for host, items in _by_host(rule.find(fleet), fleet.nodes).items():
        remedy = rule.in_pods if rule.in_pods and host in pods else rule.remedy
        for text in _finding_sentences(rule, items):
            yield host, Remark(rule.name, level, text, remedy)


def _by_host(items: Iterable[Found], nodes: Sequence[NodeFacts]) -> dict[str, list[Found]]:
    """Return what was found on each node, by host; nodes on which nothing was found are left out.

    Hosts and what was found are in the order of ``items``. What names none of ``nodes`` is listed for every one of
    them.
    """
    hosts = dict.fromkeys(node.host for node in nodes)
    found: dict[str, list[Found]] = {}
    for item in items:
        for host in (item.host,) if item.host in hosts else hosts:
            found.setdefault(host, []).append(item)
    return found


def _finding_sentences(rule: Rule, items: Sequence[Found]) -> list[str]:
    """Return what ``rule`` found as printable texts of up to 500 characters: one for each of ``items``, or one for all.

    One for all where the rule has a ``sentence``: it names the first four, each cut to 120 characters, counts the
    others, and says the ``usual`` of the first. ``items`` must not be empty then. No text has a period.
    """
    if not rule.sentence:
        return [printable(item.text)[:500] for item in items]
    named = first_few([item.text[:120] for item in items], _MOST)
    return [printable(rule.sentence.format(named, items[0].usual))[:500]]
