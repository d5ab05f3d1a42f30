"""Nodes that runs have shown bad: the next runs of the same campaign, round or retry are kept off them.

A node is bad where the line that began a failure is about that node's own hardware, daemon or files
(``Diagnosis.bad_node``), where the scheduler says that it failed under the job, or where its GPUs counted uncorrectable
memory errors during a run that failed. A slow node is not bad: without it the results would be better than the system.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llmb_common.base.errors import EnvironmentLacks, LLMBError
from llmb_common.base.hostlist import compress, expand_known
from llmb_common.base.printable import counted
from llmb_common.base.run_states import is_live
from llmb_common.causes.answer import Diagnosis
from llmb_common.causes.blame import proves_node_bad
from llmb_common.causes.diagnosis import diagnose
from llmb_common.executors.base import executor_for
from llmb_common.nodes.findings import find_on_nodes
from llmb_common.nodes.needs import needs_of_run
from llmb_common.nodes.reading import read_nodes
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.finding import attempts_of
from llmb_common.runs.record import COMPLETED, UNFIT, RunRecord
from llmb_common.runs.timing.job_events import read_events
from llmb_common.submission.excluded_nodes import REMEMBERED_DAYS, exclusions, used_again
from llmb_common.submission.jobs import JobToSubmit


@dataclass(frozen=True)
class BadNode:
    """A node that the end of a run speaks against, as ``shown_bad`` finds it.

    ``node`` is its name as the scheduler has it, ``run_id`` that run's. ``kind`` is the signature of the cause
    (``node-failed``, ``unfit``, ``ecc`` or that of a diagnosis), and ``reason`` says it for people, as a clause.
    ``certain``: no setting of the job or the site can cause that. ``time`` is since when the run is in its present
    state, usually when it ended, as Unix time. The property ``why`` is text: run ID and reason, as
    ``run 3f2a9c1e: the node failed``.
    """

    node: str
    run_id: str
    kind: str
    reason: str
    certain: bool
    time: float

    @property
    def why(self) -> str:
        """The run and the reason against the node, as text for people: ``run 3f2a9c1e: the node failed``."""
        return f"run {self.run_id}: {self.reason}"


_UNFIT = "the node failed the check before training"


def shown_bad(record: RunRecord) -> list[BadNode]:
    """Return the nodes that the end of a run speaks against, with the reasons; a node may be there several times.

    They are those of ``shown_by_end``, with the cause of a failed run as its log has it, then those whose GPUs counted
    memory errors (``ecc``) by the records that nodes left in its folder; what cannot be read tells nothing. Empty where
    no scheduler chooses nodes. The scheduler is not asked: the state on record counts. Nothing is written.
    """
    if record.plan.traits.this_machine:
        return []
    if is_live(record.state) or record.state == COMPLETED:
        return shown_by_end(record, None)
    found = shown_by_end(record, diagnose(record))
    events = read_events(record.paths.events)
    if events.unfit is not None:  # without training, no node counted errors of it
        return found
    for host, finding in find_on_nodes(needs_of_run(record.plan), read_nodes(record.paths.folder)):
        node = _as_scheduled(host, expand_known(events.nodes))
        if node is not None and finding.kind == "ecc" and finding.severity == "problem":
            found.append(_bad_node(record, node, "ecc", finding.text, certain=True))
    return found


def shown_by_end(record: RunRecord, why: Diagnosis | None) -> list[BadNode]:
    """Return the nodes that the end of a run speaks against by its job, its events and its cause; maybe none.

    ``why`` is the cause, None for a run that did not fail. Nodes that failed, or were unfit, under earlier starts of
    its job come first, as its record has them. For a run that is alive or succeeded there are no others; of one that
    did not train because nodes were unfit, only these follow. A cause that is not certain counts only where the run had
    several nodes. Empty where no scheduler chooses nodes. Only the run's events are read.
    """
    if record.plan.traits.this_machine:
        return []
    found = []
    for attempt in attempts_of(record):
        failed = expand_known(attempt.failed)
        if attempt.state == "NODE_FAIL":
            reason = "the node failed under an earlier start of the job"
            found += [_bad_node(record, node, "node-failed", reason, certain=True) for node in failed]
        if attempt.state == UNFIT:
            found += [_bad_node(record, node, "unfit", _UNFIT, certain=True) for node in failed]
    if is_live(record.state) or record.state == COMPLETED:
        return found
    events = read_events(record.paths.events)
    if events.unfit is not None:  # it did not train: nothing else speaks against a node
        unfit = expand_known(events.unfit)
        return [*found, *(_bad_node(record, node, "unfit", _UNFIT, certain=True) for node in unfit)]
    node = _as_scheduled(why.bad_node, expand_known(events.nodes)) if why else None
    if why is not None and why.cause is not None and node is not None:
        certain = proves_node_bad(why.cause)
        if certain or record.plan.nodes > 1:  # of a single node nobody knows whether others would say the same
            found.append(_bad_node(record, node, why.cause.kind, why.cause.what, certain=certain))
    return found


def _bad_node(record: RunRecord, node: str, kind: str, reason: str, *, certain: bool) -> BadNode:
    """Return ``node`` as one that the run of ``record`` speaks against, at the time of its state.

    ``kind``, ``reason`` and ``certain`` are as in ``BadNode``.
    """
    return BadNode(node, record.paths.run_id, kind, reason, certain, record.state_time)


def _as_scheduled(host: str | None, nodes: Sequence[str]) -> str | None:
    """Return the one of the job's ``nodes`` that logs call ``host``: ``gpu7`` for ``gpu7.example.com``, or the reverse.

    It is ``host`` itself where ``nodes`` has that name or is empty. None where ``host`` is None, and where no node or
    more than one has the same name up to the first period: the scheduler refuses jobs that are to avoid a node that
    it does not know.
    """
    if host is None or not nodes or host in nodes:
        return host
    short = host.partition(".")[0]
    alike = [node for node in nodes if node.partition(".")[0] == short]
    return alike[0] if len(alike) == 1 else None


def nodes_to_leave_out(shown: Sequence[BadNode], install: Path) -> list[BadNode]:
    """Return which of the nodes in ``shown`` (see ``shown_bad``, of earlier runs) the next runs are to avoid.

    Each is there once, with its latest cause, sorted by name as text. A cause that is not certain, and of which
    ``shown`` has several nodes, is the job's or the site's, and counts against none. What was shown seven days ago
    or earlier, or before the node was put back (``llmb-run exclude remove``) in the installation in folder
    ``install``, does not count. Empty: no node is left out. Nothing is written.

    Raises:
        RecordError: the list of excluded nodes cannot be read
    """
    if not shown:
        return []
    nodes_of: dict[str, set[str]] = {}
    for item in shown:
        nodes_of.setdefault(item.kind, set()).add(item.node)
    put_back, oldest = used_again(install), time.time() - REMEMBERED_DAYS * 86400
    last: dict[str, BadNode] = {}
    for item in sorted(shown, key=lambda item: item.time):
        is_the_nodes = item.certain or len(nodes_of[item.kind]) == 1
        if is_the_nodes and item.time > max(oldest, put_back.get(item.node, oldest)):
            last[item.node] = item
    return [last[node] for node in sorted(last)]


def keep_off(jobs: Sequence[JobToSubmit], bad: Sequence[BadNode]) -> list[JobToSubmit]:
    """Return copies of ``jobs``, in order, that also avoid the ``bad`` nodes; the same jobs where there are none.

    ``jobs`` themselves stay as they are. The nodes are added to the options' ``left_out``; one that is there
    already gets the new reason. Whether enough nodes are left is asked of the scheduler once for each plan, as by
    ``require_enough``.

    Raises:
        EnvironmentLacks: code ``too-few-nodes``: too few nodes are left for one of the jobs
        RecordError: the list of excluded nodes cannot be read
    """
    if not bad:
        return [*jobs]
    looked_at: list[JobPlan] = []
    found: list[JobToSubmit] = []
    for job in jobs:
        if job.plan not in looked_at:  # repeats have one plan, and need one look at the nodes
            require_enough(job.plan, bad)
            looked_at.append(job.plan)
        left_out = dict(job.options.left_out) | {item.node: item.why for item in bad}
        found.append(replace(job, options=replace(job.options, left_out=tuple(left_out.items()))))
    return found


OUT_OF_SERVICE = ("down", "drain", "fail", "maint", "unknown")
"""What the state of a node begins with that no job can get, however long it waits."""


def require_enough(plan: JobPlan, bad: Sequence[BadNode]) -> None:
    """Raise where the ``bad`` nodes leave a job fewer nodes in service than it needs.

    Asks the scheduler, of all nodes of the plan's queue. Nodes that are excluded already, by the installation's list
    or the plan's scheduler options, do not count as left. Nothing is raised where the plan has no scheduler or the
    scheduler does not say which nodes there are, the job names its nodes itself, or none of the ``bad`` ones is in
    service and not excluded.

    Raises:
        EnvironmentLacks: code ``too-few-nodes``; the message has the nodes and why each is bad
        RecordError: the list of excluded nodes cannot be read
    """
    scheduler = plan.scheduler
    if scheduler is None or scheduler.nodelist:
        return  # the executor refuses a list that names one of them
    try:
        states = executor_for(plan.cluster_type).nodes_now(None, scheduler.queue)
    except LLMBError:
        return  # whoever submits the job will say
    by_site = {item.node for item in exclusions(Path(plan.install))}
    avoided = by_site | set(expand_known(scheduler.excluded or ""))
    in_service = [name for name, state in states.items() if not state.startswith(OUT_OF_SERVICE)]
    serving = [name for name in in_service if name not in avoided]
    out = [item for item in bad if item.node in serving]
    left = len(serving) - len(out)
    if not out or left >= plan.nodes:
        return
    reasons = "; ".join(f"{item.node} ({item.why})" for item in out)
    kept_off = len(in_service) - len(serving)
    excluded = f"; {kept_off} excluded (llmb-run exclude list, or --exclude)" if kept_off else ""
    raise EnvironmentLacks(
        f"too few nodes are left: the job needs {plan.nodes}, and {left} of {counted(len(in_service), 'node')} in "
        f"service can be used{excluded}; {len(out)} bad in earlier runs: {reasons}",
        remedy=f"once they are repaired, llmb-run exclude remove {compress(item.node for item in out)} "
        "puts them back in use; or ask for fewer GPUs",
        code="too-few-nodes",
    )


def as_notice(item: BadNode) -> str:
    """Return a line, without a period or newline, that says which node is left out, why, and how to use it again.

    As ``gpu7 is left out (run 3f2a9c1e: the node failed); to use it again: llmb-run exclude remove gpu7``.
    """
    return f"{item.node} is left out ({item.why}); to use it again: llmb-run exclude remove {item.node}"
