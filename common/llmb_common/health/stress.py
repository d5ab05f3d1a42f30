"""The second stage: nodes at work, against each other, and again with another partner before one is blamed."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from llmb_common.decoding.structs import from_plain
from llmb_common.executors import Container, Held
from llmb_common.health.ask import PYTHONS, Health, command, said_by
from llmb_common.health.verdicts import with_remarks
from llmb_common.nodes.facts import NodeFacts, Nodes, Snapshot
from llmb_common.nodes.findings import Remark, remarks
from llmb_common.nodes.nccl import parse_nccl_log
from llmb_common.nodes.needs import Needs
from llmb_common.nodes.rule import Fleet, Weight
from llmb_common.nodes.summary import summarize
from llmb_common.results.references import baselines, unlike_site
from llmb_common.site.cluster import HealthSettings, load_cluster_config

MINUTES = 10
FIRST_SECONDS, AGAIN_SECONDS = 300.0, 150.0
"""With the start of a container, which unpacks its image first."""
_FEWEST = 3
"""Values that make a median which one of them cannot move much."""
_ROUNDS = 3
"""Second passes at most: suspects find partners among the healthy."""


class _Measure(NamedTuple):
    """Below ``fails`` and ``warns`` of the median of all, or ``fails`` of what the site expects in ``expected`` of its
    ``health``, a GPU, a node or a pair fails, or is worth a look."""

    word: str
    form: str
    fails: float
    expected: str
    warns: float = 0.0


_MEASURES = {
    "tflops": _Measure("matrix product", "{:.4g} TFLOPS", 0.85, "matrix_tflops", 0.95),
    "copy": _Measure("copy in memory", "{:.4g} GB/s", 0.9, "copy_gb_per_s", 0.97),
    "to_gpu": _Measure("copy to the GPU", "{:.3g} GB/s", 0.8, "to_gpu_gb_per_s"),
    "from_gpu": _Measure("copy from the GPU", "{:.3g} GB/s", 0.8, "from_gpu_gb_per_s"),
    "node": _Measure("all-reduce in a node", "{:.3g} GB/s", 0.9, "node_all_reduce_gb_per_s"),
    "pair": _Measure("all-reduce between two nodes", "{:.3g} GB/s", 0.85, "all_reduce_gb_per_s"),
}
_OF_GPU = ("tflops", "copy", "to_gpu", "from_gpu")
_ON_CPUS = (0.25, 0.0)
"""There for all: others may work beside us."""


@dataclass(frozen=True)
class NodeGroup:
    """Nodes whose ranks reduced together; ``gbps`` None: ``why`` not."""

    nodes: tuple[str, ...]
    gbps: float | None
    why: str = ""

    @property
    def kind(self) -> str:
        return "pair" if len(self.nodes) > 1 else "node"


class _UsualSpeeds:
    """What all gave in the first pass, by measurement, and what the site expects."""

    def __init__(self, needs: Needs, expected: HealthSettings, values: Mapping[str, Sequence[float]]) -> None:
        self._on_cpus = needs.device == "cpu"
        self._expected = expected
        self._values = values
        self.medians = {name: statistics.median(known) for name, known in values.items() if known}

    def level(self, name: str, value: float) -> Weight | None:
        fails, warns = self._shares(name)
        wanted, median = fails * self._wanted(name), self.medians.get(name, value)
        if value < wanted <= median:  # where the median is below, that is nobody's own fault
            return "fail"
        if len(self._values[name]) < _FEWEST:
            return None
        return "fail" if value < fails * median else "warn" if value < warns * median else None

    def remark(self, name: str, level: Weight, value: float, where: str = "") -> Remark:
        told = [f"{where}{_told(name, value)}"]
        told += [f"usual here: {_told(name, self.medians[name], alone=True)}"] if name in self.medians else []
        told += [f"expected: {_told(name, self._wanted(name), alone=True)}"] if self._wanted(name) else []
        return Remark(f"{name.replace('_', '-')}-speed", level, "; ".join(told))

    def short(self) -> Iterator[Remark]:
        """Of what all give less than the site expects."""
        for name, median in self.medians.items():
            if median < self._shares(name)[0] * self._wanted(name):
                yield self.remark(name, "fail", median, "all nodes: ")

    def _shares(self, name: str) -> tuple[float, float]:
        return _ON_CPUS if self._on_cpus else (_MEASURES[name].fails, _MEASURES[name].warns)

    def _wanted(self, name: str) -> float:
        """0: nobody has said."""
        return getattr(self._expected, _MEASURES[name].expected) or 0.0


def _told(name: str, value: float, *, alone: bool = False) -> str:
    measure = _MEASURES[name]
    return ("" if alone else f"{measure.word} ") + measure.form.format(value)


def stressed(held: Held, needs: Needs, found: Health, install: Path) -> Health:
    """``found``, with what the nodes that did not fail do under load.

    Raises:
        ConfigError: the site's configuration cannot be read
        RecordError: its baselines cannot
    """
    nodes = [item.node for item in found.verdicts if item.status in ("ok", "warn")]
    if not nodes:
        return found
    pairs = zip(nodes[::2], nodes[1::2], strict=False)
    said = _ask(held, needs, nodes, [*(((node,) for node in nodes) if _ranks(needs) > 1 else ()), *pairs], alone=True)
    groups = _groups(nodes, said)
    usual = _UsualSpeeds(needs, load_cluster_config(install).health, _values(said, groups))
    told = {node: [*_alone(node, said.get(node)), *_slow(usual, node, said, groups)] for node in nodes}
    good = [group for group in groups if group.kind == "pair" and not _is_slow(usual, group)]
    healthy = [node for group in good for node in group.nodes if not _fails(told[node])]
    suspects = [node for node in nodes if node not in healthy and not _fails(told[node]) and len(nodes) > 1]
    for node, remark in _blamed(held, needs, suspects, healthy, groups, usual):
        told[node].append(remark)
    at_work = tuple(_at_work(found, node, said) for node in nodes)
    for node, remark in remarks(Fleet(needs, at_work, together=len(nodes)), at_work=True):
        told[node].append(remark)
    account = summarize(replace(needs, nodes=len(nodes)), Nodes(at_work))
    for finding in unlike_site(account, baselines(install)):
        for node in nodes if finding.severity == "problem" else ():
            told[node].append(Remark(finding.kind, "warn", finding.text))
    answered = [item.node for item in found.verdicts if item.status != "silent"]
    everyone = {node: [*told.get(node, ()), *usual.short()] for node in answered}
    measured = {
        "medians": usual.medians,
        "pairs": {"+".join(group.nodes): group.gbps for group in groups if group.kind == "pair"},
        "account": list(account.lines()),
    }
    return replace(found, verdicts=with_remarks(found.verdicts, everyone), measured=measured)


def _ask(
    held: Held, needs: Needs, nodes: Sequence[str], groups: Sequence[tuple[str, ...]], *, alone: bool
) -> dict[str, Any]:
    port, addresses = held.port, held.addresses
    spec = {
        "stage": "stress",
        "device": needs.device,
        "gpus": _ranks(needs),
        "alone": alone,
        "groups": [{"nodes": group, "port": port + number} for number, group in enumerate(groups)],
        "addresses": {node: addresses.get(node, node) for node in nodes},
        "env": dict(needs.env),
    }
    inside = Container(needs.image, needs.mounts) if needs.containers and needs.image else None
    seconds = FIRST_SECONDS if alone else AGAIN_SECONDS
    _, said = said_by(
        held, command(spec, ("python3",) if inside else (*needs.pythons, *PYTHONS)), seconds, inside, nodes
    )
    return {node: value["looks"] for node, value in said.items() if value and isinstance(value.get("looks"), dict)}


def _ranks(needs: Needs) -> int:
    """Of a node."""
    return (needs.gpus_per_node or 1) if needs.device == "cuda" else 1


def _alone(node: str, said: Mapping[str, Any] | None) -> Iterator[Remark]:
    """What went wrong on a node by itself."""
    if said is None:
        yield Remark("answer", "fail", "no answer under load in time, or nothing starts in the image")
    elif "error" in said:
        yield Remark("answer", "fail", f"nothing could be measured: {said['error']}")
    for index, result in _by_gpu(said):
        if problem := result.get("error") or result.get("hung"):
            yield Remark("gpu-work", "fail", f"GPU {index} under load: {problem}")


def _by_gpu(said: Mapping[str, Any] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    alone = (said or {}).get("alone")
    return ((i, r) for i, r in (alone.items() if isinstance(alone, dict) else ()) if isinstance(r, dict))


def _of_gpus(said: Mapping[str, Any], name: str) -> Iterator[tuple[str, str, float]]:
    """Node, GPU and value of a measurement, of all."""
    for node, looks in said.items():
        for index, result in _by_gpu(looks):
            value = result.get("value")
            number = value.get(name) if isinstance(value, dict) else None
            if isinstance(number, float | int) and number > 0:
                yield node, index, float(number)


def _values(said: Mapping[str, Any], groups: Sequence[NodeGroup]) -> dict[str, list[float]]:
    found = {name: [value for _, _, value in _of_gpus(said, name)] for name in _OF_GPU}
    return found | {
        kind: [group.gbps for group in groups if group.kind == kind and group.gbps] for kind in ("node", "pair")
    }


def _slow(usual: _UsualSpeeds, node: str, said: Mapping[str, Any], groups: Sequence[NodeGroup]) -> Iterator[Remark]:
    for name in _OF_GPU:
        for at, index, value in _of_gpus(said, name):
            if at == node and (level := usual.level(name, value)):
                yield usual.remark(name, level, value, f"GPU {index}: ")
    for group in groups:
        if group.nodes == (node,):
            if group.gbps is None:
                yield Remark("node-reduce", "fail", f"all-reduce in the node: {group.why}")
            elif level := usual.level("node", group.gbps):
                yield usual.remark("node", level, group.gbps)


def _groups(nodes: Sequence[str], said: Mapping[str, Any]) -> list[NodeGroup]:
    """What came of each group: the slowest of its ranks, or why one failed."""
    found: dict[tuple[str, ...], list[tuple[str, Any]]] = {}
    for node in nodes:
        for group in (said.get(node) or {}).get("groups", ()):
            ranks = group["ranks"].items()
            found.setdefault(tuple(group["nodes"]), []).extend((f"{node} rank {index}", it) for index, it in ranks)
    groups = []
    for members, results in found.items():
        problems = [f"{where}: {it.get('error') or it.get('hung')}" for where, it in results if "value" not in it]
        spoken = {where.rpartition(" rank ")[0] for where, _ in results}
        problems += [f"{node} said nothing" for node in members if node not in spoken]
        slowest = None if problems else min(float(it["value"]["gbps"]) for _, it in results)
        groups.append(NodeGroup(members, slowest, problems[0][:200] if problems else ""))
    return groups


def _is_slow(usual: _UsualSpeeds, group: NodeGroup) -> bool:
    return group.gbps is None or usual.level("pair", group.gbps) == "fail"


def _fails(remarks: Sequence[Remark]) -> bool:
    return any(remark.level == "fail" for remark in remarks)


def _blamed(
    held: Held,
    needs: Needs,
    suspects: Sequence[str],
    healthy: Sequence[str],
    groups: Sequence[NodeGroup],
    usual: _UsualSpeeds,
) -> Iterator[tuple[str, Remark]]:
    """The suspects that also a healthy partner gets nothing out of. Without one, both of a pair that fails."""
    first = {node: group for group in groups if group.kind == "pair" for node in group.nodes}
    if not healthy:
        for node in suspects:
            if (group := first.get(node)) and group.gbps is None:
                text = (
                    f"{' and '.join(group.nodes)} do not reach each other, and nobody else says who it is: {group.why}"
                )
                yield node, Remark("pair", "fail", text)
        return
    waiting, cleared = iter(suspects), set()
    for _ in range(_ROUNDS):
        tried = list(islice(waiting, len(healthy)))
        pairs = [(node, healthy[at]) for at, node in enumerate(tried)]
        if not pairs:
            break
        again = _groups([*tried, *healthy], _ask(held, needs, [n for pair in pairs for n in pair], pairs, alone=False))
        second = {group.nodes[0]: group for group in again}
        for node, partner in pairs:
            group = second.get(node, NodeGroup((node, partner), None, "no answer"))
            if _is_slow(usual, group):
                how = group.why if group.gbps is None else usual.remark("pair", "fail", group.gbps).text
                others = [other for other in (first[node].nodes if node in first else ()) if other != node]
                yield node, Remark("pair", "fail", f"with {' and with '.join([*others, partner])}: {how}")
            else:
                cleared.add(node)
    for group in {first[node] for node in cleared if node in first}:
        if cleared.issuperset(group.nodes):
            for node in group.nodes:
                text = f"{' and '.join(group.nodes)} are slow with each other only: look at the path between them"
                yield node, Remark("pair", "warn", text)


def _at_work(found: Health, node: str, said: Mapping[str, Any]) -> NodeFacts:
    """The node's facts, with what was seen of it under load."""
    looks = said.get(node, {})
    try:
        load = from_plain(looks.get("load", []), tuple[Snapshot, ...])
    except msgspec.ValidationError:
        load = ()
    lines = [line for group in looks.get("groups", ()) for it in group["ranks"].values() for line in _log_of(it)]
    nccl = parse_nccl_log(lines) if lines else None
    return msgspec.structs.replace(found.facts[node], samples=load, load=load[0] if load else Snapshot(), nccl=nccl)


def _log_of(result: Mapping[str, Any]) -> list[str]:
    value = result.get("value")
    log = value.get("log", []) if isinstance(value, dict) else []
    return [line for line in log if isinstance(line, str)] if isinstance(log, list) else []


def measured_lines(measured: Mapping[str, Any]) -> list[str]:
    """The medians of all nodes under load, as lines of text; none where nothing was measured."""
    medians = measured.get("medians", {})
    said = [_told(name, value) for name, value in medians.items()]
    return [f"medians: {', '.join(said)}", *measured.get("account", ())] if said else []
