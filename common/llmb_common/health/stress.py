"""The second stage: nodes at work, against each other, and again with another partner before one is blamed."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.executors.holding import Container, Held
from llmb_common.health.ask import Health, said_by
from llmb_common.health.judge import evidence_remarks, with_remarks
from llmb_common.health.needs import Needs
from llmb_common.health.program import PYTHONS, command
from llmb_common.health.remarks import Level, Remark
from llmb_common.results.baselines import baselines, unlike_site
from llmb_common.runs.evidence.account import summarize
from llmb_common.runs.evidence.nccl_log import parse_nccl_log
from llmb_common.runs.evidence.nodes import Node, Nodes, Snapshot
from llmb_common.structs import from_plain

MINUTES = 10
FIRST_SECONDS, AGAIN_SECONDS = 300.0, 150.0
"""With the start of a container, which unpacks its image first."""
_FEWEST = 3
"""Values that make a median which one of them cannot move much."""
_ROUNDS = 3
"""Second passes at most: suspects find partners among the healthy."""

_SHARES: dict[str, tuple[float, float]] = {
    "tflops": (0.85, 0.95),
    "copy": (0.9, 0.97),
    "to_gpu": (0.8, 0.0),
    "from_gpu": (0.8, 0.0),
    "node": (0.9, 0.0),
    "pair": (0.85, 0.0),
}
"""Below these shares of the median of all, a GPU, a node or a pair fails, or is worth a look."""
_ON_CPUS = (0.25, 0.0)
"""There for all: others may work beside us."""
_WORDS = {
    "tflops": ("matrix product", "{:.3g} TFLOPS"),
    "copy": ("copy in memory", "{:.4g} GB/s"),
    "to_gpu": ("copy to the GPU", "{:.3g} GB/s"),
    "from_gpu": ("copy from the GPU", "{:.3g} GB/s"),
    "node": ("all-reduce in a node", "{:.3g} GB/s"),
    "pair": ("all-reduce between two nodes", "{:.3g} GB/s"),
}


@dataclass(frozen=True)
class Group:
    """Nodes whose ranks reduced together; ``gbps`` None: ``why`` not."""

    nodes: tuple[str, ...]
    gbps: float | None
    why: str = ""

    @property
    def kind(self) -> str:
        return "pair" if len(self.nodes) > 1 else "node"


def stressed(held: Held, needs: Needs, found: Health, install: Path) -> Health:
    """``found``, with what the nodes that did not fail do under load.

    Raises:
        RecordError: the site's baselines cannot be read
    """
    nodes = [item.node for item in found.verdicts if item.status in ("ok", "warn")]
    if not nodes:
        return found
    pairs = list(zip(nodes[::2], nodes[1::2], strict=False))
    said = _ask(held, needs, nodes, [*(((node,) for node in nodes) if _ranks(needs) > 1 else ()), *pairs], alone=True)
    remarks = {node: list(_alone(node, said.get(node))) for node in nodes}
    remarks = {node: [*own, *_slow(needs, node, said)] for node, own in remarks.items()}
    groups = _groups(nodes, said)
    rates = [group.gbps for group in groups if group.kind == "pair" and group.gbps]
    good = [group for group in groups if group.kind == "pair" and not _is_slow(needs, group, rates)]
    healthy = [node for group in good for node in group.nodes if not _fails(remarks[node])]
    suspects = [node for node in nodes if node not in healthy and not _fails(remarks[node]) and len(nodes) > 1]
    for node, remark in _blamed(held, needs, suspects, healthy, groups, rates):
        remarks[node].append(remark)
    evidence = [_evidence(found, node, said) for node in nodes]
    for node, remark in evidence_remarks(evidence, needs):
        remarks[node].append(remark)
    account = summarize(replace(needs, nodes=len(nodes)), Nodes(tuple(evidence)))
    for finding in unlike_site(account, baselines(install)):
        for node in nodes if finding.severity == "problem" else ():
            remarks[node].append(Remark(finding.kind, "warn", finding.text))
    return replace(
        found, verdicts=with_remarks(found.verdicts, remarks), measured=_measured(said, groups, account.lines())
    )


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


def _values(said: Mapping[str, Any], name: str) -> list[tuple[str, str, float]]:
    """Node, GPU and value of a measurement, of all."""
    found = []
    for node, looks in said.items():
        for index, result in _by_gpu(looks):
            value = result.get("value")
            number = value.get(name) if isinstance(value, dict) else None
            if isinstance(number, float | int) and number > 0:
                found.append((node, index, float(number)))
    return found


def _slow(needs: Needs, node: str, said: Mapping[str, Any]) -> Iterator[Remark]:
    for name in ("tflops", "copy", "to_gpu", "from_gpu"):
        values = _values(said, name)
        for at, index, value in values:
            if at == node and (level := _level(needs, name, value, [other for _, _, other in values])):
                yield _remark(name, level, value, [other for _, _, other in values], f"GPU {index}: ")
    groups = [group for group in _groups(list(said), said) if group.kind == "node"]
    rates = [group.gbps for group in groups if group.gbps]
    for group in groups:
        if group.nodes == (node,):
            if group.gbps is None:
                yield Remark("node-reduce", "fail", f"all-reduce in the node: {group.why}")
            elif level := _level(needs, "node", group.gbps, rates):
                yield _remark("node", level, group.gbps, rates)


def _remark(name: str, level: Level, value: float, others: Sequence[float], where: str = "") -> Remark:
    word, form = _WORDS[name]
    text = f"{where}{word} {form.format(value)}; usual here: {form.format(statistics.median(others))}"
    return Remark(f"{name.replace('_', '-')}-speed", level, text)


def _level(needs: Needs, name: str, value: float, others: Sequence[float]) -> Level | None:
    if len(others) < _FEWEST:
        return None
    fails, warns = _SHARES[name] if needs.device == "cuda" else _ON_CPUS
    share = value / statistics.median(others)
    return "fail" if share < fails else "warn" if share < warns else None


def _groups(nodes: Sequence[str], said: Mapping[str, Any]) -> list[Group]:
    """What came of each group: the slowest of its ranks, or why one failed."""
    found: dict[tuple[str, ...], list[tuple[str, Any]]] = {}
    for node in nodes:
        for group in (said.get(node) or {}).get("groups", ()):
            ranks = group["ranks"].items()
            found.setdefault(tuple(group["nodes"]), []).extend((f"{node} rank {index}", it) for index, it in ranks)
    return [_group(members, results, nodes) for members, results in found.items()]


def _group(members: tuple[str, ...], results: Sequence[tuple[str, Any]], nodes: Sequence[str]) -> Group:
    problems = [f"{where}: {it.get('error') or it.get('hung')}" for where, it in results if "value" not in it]
    silent = [node for node in members if not any(where.startswith(f"{node} ") for where, _ in results)]
    if problems or silent:
        return Group(members, None, (problems or [f"{silent[0]} said nothing"])[0][:200])
    return Group(members, min(float(it["value"]["gbps"]) for _, it in results))


def _is_slow(needs: Needs, group: Group, rates: Sequence[float]) -> bool:
    return group.gbps is None or _level(needs, "pair", group.gbps, rates) == "fail"


def _fails(remarks: Sequence[Remark]) -> bool:
    return any(remark.level == "fail" for remark in remarks)


def _blamed(
    held: Held,
    needs: Needs,
    suspects: Sequence[str],
    healthy: Sequence[str],
    groups: Sequence[Group],
    rates: Sequence[float],
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
            group = second.get(node, Group((node, partner), None, "no answer"))
            if _is_slow(needs, group, rates):
                how = group.why if group.gbps is None else _remark("pair", "fail", group.gbps, rates).text
                others = [other for other in (first[node].nodes if node in first else ()) if other != node]
                yield node, Remark("pair", "fail", f"with {' and with '.join([*others, partner])}: {how}")
            else:
                cleared.add(node)
    for group in {first[node] for node in cleared if node in first}:
        if cleared.issuperset(group.nodes):
            for node in group.nodes:
                text = f"{' and '.join(group.nodes)} are slow with each other only: look at the path between them"
                yield node, Remark("pair", "warn", text)


def _evidence(found: Health, node: str, said: Mapping[str, Any]) -> Node:
    """The node as a run's account would have it."""
    looks = said.get(node, {})
    try:
        load = from_plain(looks.get("load", []), tuple[Snapshot, ...])
    except msgspec.ValidationError:
        load = ()
    lines = [line for group in looks.get("groups", ()) for it in group["ranks"].values() for line in _log_of(it)]
    nccl = parse_nccl_log(lines) if lines else None
    return replace(found.facts[node].evidence, samples=load, load=load[0] if load else Snapshot(), nccl=nccl)


def _log_of(result: Mapping[str, Any]) -> list[str]:
    value = result.get("value")
    log = value.get("log", []) if isinstance(value, dict) else []
    return [line for line in log if isinstance(line, str)] if isinstance(log, list) else []


def _measured(said: Mapping[str, Any], groups: Sequence[Group], lines: Sequence[str]) -> dict[str, Any]:
    """Medians by the name of the measurement, each pair's rate, and what carries it."""
    values = {name: [value for _, _, value in _values(said, name)] for name in ("tflops", "copy", "to_gpu", "from_gpu")}
    for kind in ("node", "pair"):
        values[kind] = [group.gbps for group in groups if group.kind == kind and group.gbps]
    return {
        "medians": {name: statistics.median(known) for name, known in values.items() if known},
        "pairs": {"+".join(group.nodes): group.gbps for group in groups if group.kind == "pair"},
        "account": list(lines),
    }


def measured_lines(measured: Mapping[str, Any]) -> list[str]:
    """For people."""
    medians = measured.get("medians", {})
    said = [f"{_WORDS[name][0]} {_WORDS[name][1].format(value)}" for name, value in medians.items()]
    return [f"medians: {', '.join(said)}", *measured.get("account", ())] if said else []
