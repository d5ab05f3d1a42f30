"""Which nodes jobs get: only healthy ones, and repeats of one job different ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from llmb_common.errors import CheckFailed, RequestError
from llmb_common.executors import executor_for
from llmb_common.health.ask import DAYS, choose, keep_out, look
from llmb_common.health.facts import needs_of
from llmb_common.health.judge import NodeVerdict
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.scheduler import SchedulerPart
from llmb_common.runs.hostlist import compress
from llmb_common.submission.jobs import Job
from llmb_run.terminal import notice
from llmb_run.workspace import Workspace

_UNUSABLE = ("down", "drain", "fail", "maint", "unknown")


def on_different_nodes(jobs: Sequence[Job]) -> list[Job]:
    """``jobs``, each of several repeats kept from the nodes of the others; where there are too few, from some.

    Raises:
        RequestError: no scheduler chooses nodes here
        SchedulerError: the scheduler does not say which there are
    """
    repeats: dict[tuple[str, str], list[int]] = {}
    for number, job in enumerate(jobs):
        repeats.setdefault((job.plan.workload, job.plan.experiment_name), []).append(number)
    found = list(jobs)
    for numbers in repeats.values():
        shares = shares_of(_usable(jobs[numbers[0]].plan), len(numbers), jobs[numbers[0]].plan.nodes)
        for number, avoided in zip(numbers, shares, strict=True):
            listed = ",".join(filter(None, (jobs[number].options.exclude, compress(avoided))))
            found[number] = replace(jobs[number], options=replace(jobs[number].options, exclude=listed))
    return found


def shares_of(nodes: Sequence[str], repeats: int, needed: int) -> list[list[str]]:
    """For each repeat the nodes that it avoids: all but its own share of ``nodes``, or as many as can be spared."""
    share = len(nodes) // repeats
    own = [nodes[number * share : (number + 1) * share] for number in range(repeats)]
    if share >= needed:
        return [[node for node in nodes if node not in kept] for kept in own]
    spare = min(max(share, 1), len(nodes) - needed)
    if spare < 1:
        notice(f"--spread-nodes: a job needs {needed} of {len(nodes)} usable nodes, so all repeats have the same")
        return [[]] * repeats
    notice(f"--spread-nodes: {repeats} repeats of {needed} nodes share some of {len(nodes)} usable nodes")
    return [[nodes[(number * spare + at) % len(nodes)] for at in range(spare)] for number in range(repeats)]


def _usable(plan: JobPlan) -> list[str]:
    told = plan.scheduler
    if told is None:
        raise RequestError("--spread-nodes: no scheduler chooses nodes here", remedy="leave it out")
    states = executor_for(plan.cluster_type).nodes_now(told.nodelist, told.queue)
    return [name for name, state in states.items() if not state.startswith(_UNUSABLE)]


def require_health(plans: Sequence[JobPlan], place: Workspace) -> list[NodeVerdict]:
    """Before jobs are submitted: look at the nodes that they may get, and keep them away from those that fail.

    Raises:
        CheckFailed: a node that a job asks for fails, or none is left
        LLMBError: none can be asked
    """
    groups: dict[tuple[str | None, str | None], list[JobPlan]] = {}
    for plan in plans:
        told = plan.scheduler or SchedulerPart()
        groups.setdefault((told.nodelist, told.queue), []).append(plan)
    verdicts: list[NodeVerdict] = []
    for (listed, partition), alike in groups.items():
        needs = max(map(needs_of, alike), key=lambda item: (bool(item.dispatcher), item.image_bytes, item.nodes))
        executor = executor_for(alike[0].cluster_type)
        asked, left = choose(executor, place.require_install(), listed, None if listed else partition)
        found = look(executor, needs, asked)
        verdicts += found.verdicts
        notice(f"health: {counted_by({item.node: item.status for item in found.verdicts})}, {found.seconds:.0f} s")
        keep_out(place.install, found, DAYS)
        for verdict in found.failed:
            notice(f"{verdict.node} is excluded for {DAYS:g} days: {verdict.reason}")
        if listed and found.failed:
            raise CheckFailed(
                f"requested nodes fail: {', '.join(item.node for item in found.failed)}",
                remedy="choose others, or see llmb-run health --nodes",
                code="unhealthy-nodes",
            )
        healthy, most = len(asked) - len(found.failed), max(plan.nodes for plan in alike)
        if not healthy and all(why.startswith("excluded") for why in left.values()):
            raise CheckFailed(
                f"no node is left for the job: {len(asked)} fail, {len(left)} were excluded before",
                remedy="see llmb-run health, and llmb-run exclude list",
                code="unhealthy-nodes",
            )
        if healthy < most:
            notice(f"{healthy} healthy nodes are idle, and {most} are needed")
    return verdicts


def counted_by(states: Mapping[str, str]) -> str:
    """``3 allocated, 1 drained``, without reasons."""
    words = Counter(state.partition(" (")[0] for state in states.values())
    return ", ".join(f"{count} {word}" for word, count in words.most_common())
