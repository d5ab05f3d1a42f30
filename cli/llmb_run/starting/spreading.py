"""Repeats of one job on different nodes, which says how much of their scatter is the nodes'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from llmb_common.base.errors import RequestError
from llmb_common.base.hostlist import compress, expand
from llmb_common.base.notices import notice
from llmb_common.base.printable import counted
from llmb_common.executors.base import executor_for
from llmb_common.submission.bad_nodes import OUT_OF_SERVICE
from llmb_common.submission.excluded_nodes import exclusions
from llmb_common.submission.jobs import JobToSubmit


def on_different_nodes(jobs: Sequence[JobToSubmit]) -> list[JobToSubmit]:
    """Return ``jobs`` in the same order, where repeats of one job exclude nodes so that they run on different ones.

    Repeats have equal workloads and experiments. The answer has copies; what a job excludes already stays excluded.
    A job without repeats may use all nodes. Prints a notice where repeats have to share nodes. Starts nothing.

    Raises:
        RequestError: no scheduler chooses nodes here, or too many are excluded (code ``no-nodes``)
        RecordError: the list of excluded nodes cannot be read
        SchedulerError: the scheduler does not say which nodes there are
    """
    repeats: dict[tuple[str, str], list[int]] = {}
    for number, job in enumerate(jobs):
        repeats.setdefault((job.plan.workload, job.plan.experiment_name), []).append(number)
    found = list(jobs)
    for numbers in repeats.values():
        first = jobs[numbers[0]]
        shares = shares_of(_usable_nodes(first), len(numbers), first.plan.nodes)
        for number, avoided in zip(numbers, shares, strict=True):
            options = jobs[number].options
            listed = ",".join(filter(None, (options.exclude, compress(avoided))))
            found[number] = replace(jobs[number], options=replace(options, exclude=listed))
    return found


def shares_of(nodes: Sequence[str], repeats: int, needed: int) -> list[list[str]]:
    """Return for each of ``repeats`` jobs, at least one, the nodes that it avoids: all but its own share of ``nodes``.

    Shares are equal and follow each other; all avoid what is left over. ``needed``: the number of nodes of each job.
    Where a share has fewer, a job avoids only as many nodes as can be spared, and a notice says so. Empty lists: none
    can be spared.
    """
    share = len(nodes) // repeats
    own = [nodes[number * share : (number + 1) * share] for number in range(repeats)]
    if share >= needed:
        return [[node for node in nodes if node not in kept] for kept in own]
    # As many as leave enough nodes for the job, and others for each repeat.
    spare = min(max(share, 1), len(nodes) - needed)
    if spare < 1:
        notice(f"--spread-nodes: a job needs {needed} of {len(nodes)} usable nodes, so all repeats have the same")
        return [[]] * repeats
    notice(f"--spread-nodes: {repeats} repeats of {needed} nodes share some of {len(nodes)} usable nodes")
    shares = []
    for number in range(repeats):
        first = number * spare
        shares.append([nodes[(first + at) % len(nodes)] for at in range(spare)])
    return shares


def _usable_nodes(job: JobToSubmit) -> list[str]:
    """Return the names of the nodes that the scheduler may give the job, in the scheduler's order.

    Excluded nodes and those out of service are left out; busy ones are in the list. It may be shorter than the job
    needs: only excluded nodes count for the error.

    Raises:
        RequestError: no scheduler chooses nodes here, or too many are excluded (code ``no-nodes``)
        RecordError: the list of excluded nodes cannot be read
        SchedulerError: the scheduler does not say which nodes there are
    """
    scheduler = job.plan.scheduler
    if scheduler is None:
        raise RequestError("--spread-nodes: no scheduler chooses nodes here", remedy="leave it out")
    states = executor_for(job.plan.cluster_type).nodes_now(scheduler.nodelist, scheduler.queue)
    excluded = {item.node for item in exclusions(Path(job.plan.install))}
    excluded.update(expand(job.options.exclude))
    excluded.update(expand(scheduler.excluded or ""))
    excluded.update(node for node, _ in job.options.left_out)
    left = [name for name in states if name not in excluded]
    if len(left) < job.plan.nodes:
        count = counted(len(states), "node")
        raise RequestError(
            f"--spread-nodes: {count} can be chosen, {len(states) - len(left)} of them are excluded, and a job needs "
            f"{job.plan.nodes}",
            remedy="llmb-run exclude list shows those on the list and why; llmb-run exclude remove takes one off",
            code="no-nodes",
        )
    return [name for name in left if not states[name].startswith(OUT_OF_SERVICE)]
