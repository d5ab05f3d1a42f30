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
    """Hold ``nodes`` in a job, check their health, and put those that do not fail to work; return the results.

    ``executor`` holds the nodes, of which ``nodes`` are the names. The results are verdicts and the fabric, without a
    fabric where all nodes fail. ``needs`` is what jobs need of a node, with the image to work in. ``wait`` is in
    seconds, for the job to start. With ``sizes`` all nodes together also reduce buffers of several sizes. ``install``
    has the site's settings and baselines. The nodes are given back in any case; none is put on a list of excluded ones
    here.

    Raises:
        RequestError: the nodes work in an image and none is named, or there is no scheduler, or no partition has all of
            them
        ConfigError: the site's configuration cannot be read
        RecordError: the site's baselines cannot be read
        SchedulerError: the nodes are not given, or nothing can be started there
        EnvironmentLacks: a part of LLMB is missing
        OSError: a part of LLMB cannot be read
    """
    if needs.containers and needs.image is None:
        raise RequestError(
            "--fabric runs in the image of a workload, and none is named", remedy="add -w WORKLOAD, or a RUN"
        )
    known = executor.topology()

    def measured(held: Held, found: Health) -> Health:
        """Return the health of nodes, ``found``, with the fabric of ``held`` measured, as ``with_fabric`` does.

        For the enclosing function's needs, installation, topology and ``sizes``.

        Raises:
            ConfigError: the site's configuration cannot be read
            RecordError: the site's baselines cannot be read
            SchedulerError: nothing can be started on the nodes, or the program has ended on all of them
            EnvironmentLacks: a part of LLMB is missing
            OSError: a part of LLMB cannot be read
        """
        return with_fabric(held, needs, found, install, known, sizes=sizes)

    return check_nodes(executor, needs, nodes, wait=wait, minutes=MINUTES, continuation=measured)


def with_fabric(
    held: Held, needs: Needs, found: Health, install: Path, topology: Mapping[str, str], *, sizes: bool = False
) -> Health:
    """Return a copy of ``found``, the health of held nodes, with what those that did not fail give under load.

    ``install`` is the installation, with the site's settings and baselines. ``needs`` is what jobs need of a node,
    with the image to work in. Nodes whose status is ``ok`` or ``warn`` are put to work; the verdicts are judged anew
    with what is found. ``found`` itself where there are no such nodes. ``topology`` is the switch or block of each
    node by its name, as far as known. With ``sizes`` all nodes together also reduce buffers of several sizes.

    Raises:
        ConfigError: the site's configuration cannot be read
        RecordError: the site's baselines cannot be read
        SchedulerError: nothing can be started on the nodes, or the program has ended on all of them
        EnvironmentLacks: a part of LLMB is missing
        OSError: a part of LLMB cannot be read
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
        # The finding is about all nodes together, so each of them is warned.
        for node in nodes if finding.severity == "problem" else ():
            remarks_by_node[node].append(Remark(finding.kind, "warn", finding.text))
    fabric = Fabric(course.measurement, verdict, tuple(account.lines()))
    return replace(found, verdicts=with_remarks(found.verdicts, remarks_by_node), fabric=fabric)


class _FabricRun:
    """One measurement of a cluster's fabric, from single GPUs to all nodes together.

    Made from the workers that measure, what jobs need, the switch of each node by name (as far as known), and what the
    site expects. ``run`` measures, once, and returns None (``sizes``: whether all nodes together also reduce buffers
    of several sizes); then ``measurement`` has the results, and ``loads`` what was seen of GPUs under load, by node.
    ``run`` raises ``SchedulerError`` where the measuring program has ended on all nodes.
    """

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
        """Measure GPUs, nodes, groups of nodes and all together, in this order; the result is in ``measurement``.

        Slow groups are measured again by rail before all together, and halves of the nodes in the end, where all
        together are slow. No further groups are measured once time runs out. With ``sizes`` all nodes together also
        reduce buffers of several sizes. Nothing is measured where no node is left.

        Raises:
            SchedulerError: the measuring program has ended on all nodes
        """
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
        """Measure slow groups of nodes again, rail by rail, into ``measurement``, where nodes have more than one rank.

        A rail is the network path of the GPUs with the same index. Nothing is measured where ``rail_groups`` has no
        group to ask again.

        Raises:
            SchedulerError: the measuring program has ended on all nodes
        """
        if ranks_of(self._needs) == 1:
            return
        judged = judge(self.measurement, self._topology, self._expected)
        groups = rail_groups(self.measurement, judged)
        if groups:
            self._update_measurement(rails=tuple(self._workers.all_reduce_by_rail(groups, self._bytes, self._seconds)))

    def _measure_all_nodes(self, nodes: list[str], *, sizes: bool) -> None:
        """Measure an all-reduce of all ``nodes`` together, with ``sizes`` at several sizes, into ``measurement``.

        Raises:
            SchedulerError: the measuring program has ended on all nodes
        """
        sizes_to_measure = [self._bytes]
        if sizes:
            sizes_to_measure += SIZES[self._needs.device]
        (measured,) = self._workers.all_reduce([nodes], sizes_to_measure, WHOLE_SECONDS[self._needs.device])
        self._update_measurement(whole=measured[0], sizes=tuple(measured[1:]))

    def _all_reduce(self, groups: Sequence[Sequence[str]]) -> tuple[GroupMeasurement, ...]:
        """Measure an all-reduce in each group of nodes, all at the same time; return the results in that order.

        ``groups`` are names of nodes, disjoint; a group that gave no time has an error in its result.

        Raises:
            SchedulerError: the measuring program has ended on all nodes
        """
        measured = self._workers.all_reduce(groups, [self._bytes], self._seconds)
        return tuple(of_size[0] for of_size in measured)

    def _responding_nodes(self) -> list[str]:
        """Return the nodes that still answer and can work with all others, in their order.

        Left out are those that may hold up the others: nodes of a group that gave no time (where ranks hung, only their
        nodes), unless another group of theirs gave one in the rounds measured so far. Empty where none is left.
        """
        suspects: set[str] = set()
        cleared: set[str] = set()
        for group in chain.from_iterable(self.measurement.rounds):
            if group.seconds is not None:
                cleared.update(group.nodes)
            else:
                suspects.update(group.hung_nodes or group.nodes)
        return [node for node in self._workers.nodes if node in cleared or node not in suspects]

    def _update_measurement(self, **found: Any) -> None:
        """Set the given fields of ``measurement``, and note in it which nodes are lost by now.

        ``found`` are fields of ``FabricMeasurement`` by name; ``measurement`` is replaced by a changed copy.
        """
        missing = dict(self._workers.lost)
        self.measurement = msgspec.structs.replace(self.measurement, missing=missing, **found)


def _gpu_measurements(answers: Mapping[str, Mapping[str, Any]]) -> Iterator[NodeMeasurement]:
    """Yield what each GPU gave by itself, from the answers of nodes by name; with an error where it gave nothing.

    ``answers`` have passed ``readable``. In their order, and the GPUs' in each; what was not measured is None.
    """
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
    """Yield (node, remark) for what the fabric's measurement says against single nodes; nothing where it does not.

    ``verdict`` is the one on ``measured``. Nodes that could not be measured come first, and fail. Of the others only a
    node that is the cause of a finding fails by it, all that the finding names are warned: a path has two ends. Notes
    are left out.
    """
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
    """Return a copy of a node's facts with what was seen of its GPUs under load, and of its network in NCCL's log.

    ``looks`` are as its program sends them; if they cannot be read, there are none. They become ``samples``, and the
    first of them ``load``, an empty one without any. ``lines`` are those of NCCL's log; empty: ``nccl`` is None.
    """
    try:
        load = from_plain(list(looks), tuple[Snapshot, ...])
    except msgspec.ValidationError:
        load = ()
    nccl = parse_nccl_log(list(lines)) if lines else None
    return msgspec.structs.replace(facts, samples=load, load=load[0] if load else Snapshot(), nccl=nccl)
