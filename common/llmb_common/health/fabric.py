"""The second stage: nodes at work, by themselves, in groups and all together, judged against each other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.errors import RequestError
from llmb_common.base.structs import from_plain
from llmb_common.executors.base import Executor, Held
from llmb_common.health.ask import Health, check_nodes
from llmb_common.health.verdicts import Fabric, with_remarks
from llmb_common.health.workers import GROUP_SECONDS, WHOLE_SECONDS, Workers, ranks_of, start_workers
from llmb_common.nodes.fabric.blame import next_round
from llmb_common.nodes.fabric.expectation import Expectation
from llmb_common.nodes.fabric.grouping import first_groups
from llmb_common.nodes.fabric.halving import next_halves
from llmb_common.nodes.fabric.judging import judge
from llmb_common.nodes.fabric.measurement import FabricMeasurement, GroupMeasurement, NodeMeasurement
from llmb_common.nodes.fabric.rails import rail_groups
from llmb_common.nodes.fabric.verdict import FabricVerdict
from llmb_common.nodes.facts import NodeFacts, Nodes, Snapshot
from llmb_common.nodes.findings import Remark, remarks
from llmb_common.nodes.nccl import parse_nccl_log
from llmb_common.nodes.needs import Needs
from llmb_common.nodes.rule import Fleet
from llmb_common.nodes.summarizing import summarize
from llmb_common.planning.site.cluster import HealthSettings, load_cluster_config
from llmb_common.results.references import baselines, unlike_site

MINUTES = 20
"""The time limit of the job; it takes 2 where nothing is slow."""
_ENOUGH_SECONDS = 480.0
"""After which nobody is asked again who is to blame."""
BYTES = {"cuda": 1 << 30, "cpu": 1 << 20}
"""Of the buffer that groups reduce: bus bandwidth no longer grows with it."""
SIZES = {
    "cuda": tuple(1 << at for at in range(20, 33, 2)),
    "cpu": tuple(1 << at for at in range(16, 25, 2)),
}
"""Those of ``--sizes``, for all nodes together: 1 MiB to 4 GiB on GPUs."""


def check_nodes_under_load(
    executor: Executor, needs: Needs, nodes: Sequence[str], install: Path, *, wait: int = 60, sizes: bool = False
) -> Health:
    """Hold the nodes in a job, look at them, and put those that do not fail to work: the verdicts and the fabric.

    ``sizes``: all nodes together reduce buffers of all sizes.

    Raises:
        RequestError: they work in an image, and none is named
        ConfigError: the site's configuration cannot be read
        RecordError: its baselines cannot
        SchedulerError: the nodes are not given, or nothing can be started there
    """
    if needs.containers and needs.image is None:
        raise RequestError(
            "--fabric runs in the image of a workload, and none is named", remedy="add -w WORKLOAD, or a RUN"
        )
    known = executor.topology()

    def measured(held: Held, found: Health) -> Health:
        """What the nodes were found to be, with their fabric measured."""
        return with_fabric(held, needs, found, install, known, sizes=sizes)

    return check_nodes(executor, needs, nodes, wait=wait, minutes=MINUTES, continuation=measured)


def with_fabric(
    held: Held, needs: Needs, found: Health, install: Path, topology: Mapping[str, str], *, sizes: bool = False
) -> Health:
    """``found``, with what the nodes that did not fail do under load; unchanged where all failed.

    ``topology``: the switch or block of each node, as far as that is known; ``sizes``: all nodes together reduce
    buffers of all sizes.

    Raises:
        ConfigError: the site's configuration cannot be read
        RecordError: its baselines cannot
        SchedulerError: nothing can be started on the nodes
    """
    nodes = [item.node for item in found.verdicts if item.status in ("ok", "warn")]
    if not nodes:
        return found
    expected = load_cluster_config(install).health
    known = {node: topology[node] for node in nodes if node in topology}
    with start_workers(held, needs, nodes) as workers:
        course = _FabricRun(workers, needs, known, expected)
        course.run(sizes=sizes)
    verdict = judge(course.measurement, known, expected)
    facts = [
        _facts_under_load(found.facts[node], course.loads.get(node, ()), workers.logs.get(node, ())) for node in nodes
    ]
    remarks_by_node: dict[str, list[Remark]] = {node: [] for node in nodes}
    for node, remark in fabric_remarks(course.measurement, verdict):
        remarks_by_node.setdefault(node, []).append(remark)
    for node, remark in remarks(Fleet(needs, tuple(facts), together=len(nodes)), at_work=True):
        remarks_by_node[node].append(remark)
    account = summarize(replace(needs, nodes=len(nodes)), Nodes(tuple(facts)))
    for finding in unlike_site(account, baselines(install)):
        for node in nodes if finding.severity == "problem" else ():
            remarks_by_node[node].append(Remark(finding.kind, "warn", finding.text))
    fabric = Fabric(course.measurement, verdict, tuple(account.lines()))
    return replace(found, verdicts=with_remarks(found.verdicts, remarks_by_node), fabric=fabric)


class _FabricRun:
    """The course of one measurement of a fabric, from GPUs by themselves to all nodes together."""

    def __init__(self, workers: Workers, needs: Needs, topology: Mapping[str, str], expected: HealthSettings) -> None:
        self._workers = workers
        self._needs = needs
        self._topology = topology
        self._expected = expected
        self._seconds = GROUP_SECONDS[needs.device]
        self._bytes = BYTES[needs.device]
        self.measurement = FabricMeasurement(device=needs.device)
        self.loads: dict[str, Sequence[Any]] = {}
        """What was seen of GPUs under load, by node."""

    def run(self, *, sizes: bool) -> None:
        """Measure everything in order, and stop asking again when time runs out; the result is in ``measurement``."""
        begun = time.monotonic()
        self._update_measurement()
        if not self._workers.nodes:
            return
        answers = self._workers.measure_gpus()
        self.loads = {node: answer.get("load") or () for node, answer in answers.items()}
        self._update_measurement(nodes=tuple(_gpu_measurements(answers)))
        if ranks_of(self._needs) > 1:
            self._update_measurement(within=self._all_reduce([[node] for node in self._workers.nodes]))
        groups = first_groups(self._workers.nodes, self._topology)
        while groups:
            self._update_measurement(rounds=(*self.measurement.rounds, self._all_reduce(groups)))
            if time.monotonic() - begun > _ENOUGH_SECONDS:
                break
            judged = judge(self.measurement, self._topology, self._expected)
            groups = next_round(self.measurement, judged)
        if time.monotonic() - begun <= _ENOUGH_SECONDS:
            self._measure_rails()
        together = self._responding_nodes()
        if len(together) > 1:
            self._measure_all_nodes(together, sizes=sizes)
        expected = Expectation(self._expected, self._needs.device)
        while time.monotonic() - begun <= _ENOUGH_SECONDS:
            groups = next_halves(self.measurement, self._topology, expected)
            if not groups:
                break
            self._update_measurement(halves=(*self.measurement.halves, self._all_reduce(groups)))

    def _measure_rails(self) -> None:
        """Measure slow groups again, rail by rail, where nodes have more than one; sets ``measurement``."""
        if ranks_of(self._needs) == 1:
            return
        judged = judge(self.measurement, self._topology, self._expected)
        groups = rail_groups(self.measurement, judged)
        if groups:
            self._update_measurement(rails=tuple(self._workers.all_reduce_by_rail(groups, self._bytes, self._seconds)))

    def _measure_all_nodes(self, nodes: list[str], *, sizes: bool) -> None:
        """Measure all nodes together, at one size or at several; the result goes into ``measurement``."""
        sizes_to_measure = [self._bytes]
        if sizes:
            sizes_to_measure += SIZES[self._needs.device]
        (measured,) = self._workers.all_reduce([nodes], sizes_to_measure, WHOLE_SECONDS[self._needs.device])
        self._update_measurement(whole=measured[0], sizes=tuple(measured[1:]))

    def _all_reduce(self, groups: Sequence[Sequence[str]]) -> tuple[GroupMeasurement, ...]:
        """What an all-reduce in each of the groups at once gave, in the order of the groups."""
        measured = self._workers.all_reduce(groups, [self._bytes], self._seconds)
        return tuple(of_size[0] for of_size in measured)

    def _responding_nodes(self) -> list[str]:
        """The nodes that still answer, but for those that may hold up all others: none of their groups gave a time."""
        suspects: set[str] = set()
        cleared: set[str] = set()
        for group in chain.from_iterable(self.measurement.rounds):
            if group.seconds is not None:
                cleared.update(group.nodes)
            else:
                suspects.update(group.hung_nodes or group.nodes)
        return [node for node in self._workers.nodes if node in cleared or node not in suspects]

    def _update_measurement(self, **found: Any) -> None:
        """Set fields of ``measurement`` to what was found, and note which nodes are lost by now."""
        missing = dict(self._workers.lost)
        self.measurement = msgspec.structs.replace(self.measurement, missing=missing, **found)


def _gpu_measurements(answers: Mapping[str, Mapping[str, Any]]) -> Iterator[NodeMeasurement]:
    """Yields what each GPU gave by itself, by the ``answers`` of nodes; with an error where it gave nothing."""
    for node, answer in answers.items():
        for index, result in answer.get("alone", {}).items():
            value = result.get("value") or {}
            yield NodeMeasurement(
                host=node,
                gpu=int(index),
                tflops=value.get("tflops"),
                copy_gbps=value.get("copy"),
                to_gpu_gbps=value.get("to_gpu"),
                from_gpu_gbps=value.get("from_gpu"),
                error=str(result.get("error") or result.get("hung") or ""),
            )


def fabric_remarks(measured: FabricMeasurement, verdict: FabricVerdict) -> Iterator[tuple[str, Remark]]:
    """Yields (node, remark) for what is said of single nodes. Only who is the cause fails: a path has two ends."""
    for node, why in measured.missing.items():
        yield node, Remark("answer", "fail", why)
    excludable = verdict.excludable
    for finding in verdict.findings:
        if finding.level == "note" or finding.kind == "missing":
            continue
        for node in finding.hosts:
            fails = finding.level == "fail" and node in excludable
            yield node, Remark(finding.kind, "fail" if fails else "warn", finding.said, finding.remedy)


def _facts_under_load(facts: NodeFacts, looks: Sequence[Any], lines: Sequence[str]) -> NodeFacts:
    """A node's facts, with the looks at its GPUs under load and what NCCL's log says of its network.

    Looks that cannot be read are left out.
    """
    try:
        load = from_plain(list(looks), tuple[Snapshot, ...])
    except msgspec.ValidationError:
        load = ()
    nccl = parse_nccl_log(list(lines)) if lines else None
    return msgspec.structs.replace(facts, samples=load, load=load[0] if load else Snapshot(), nccl=nccl)
