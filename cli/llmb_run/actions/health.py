"""``llmb-run health``: which nodes are meant, and what is said of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from llmb_common.base.cluster_types import traits_of
from llmb_common.base.errors import RequestError
from llmb_common.base.hostlist import compress, expand
from llmb_common.base.notices import notice
from llmb_common.base.outcome import Result
from llmb_common.base.printable import counted
from llmb_common.executors.base import Executor, executor_for
from llmb_common.health.ask import DAYS, Health, check_nodes, choose_nodes, exclude_failed_nodes
from llmb_common.health.verdicts import NodeVerdict
from llmb_common.nodes.facts import facts_as_json
from llmb_common.nodes.needs import Needs, needs_of, needs_of_site
from llmb_common.planning.scheduler import SchedulerPart
from llmb_common.planning.site.machine import detect_cluster_type
from llmb_common.planning.workspace import Workspace
from llmb_common.runs.index.search import find_run
from llmb_common.runs.record import load_record
from llmb_common.runs.timing.job_events import read_events
from llmb_run.fabric_text import fabric_text
from llmb_run.selecting import seconds_of
from llmb_run.starting.requests import job_spec, plan_job
from llmb_run.starting.submitting import counted_by
from llmb_run.terminal import next_command, table
from llmb_run.under_load import look_at_fabric

_MOST_LINES = 40


def health(
    runs: tuple[str, ...],
    fabric: bool,
    sizes: bool,
    exclude_failed: bool,
    days: float,
    timeout: str,
    **settings: Any,
) -> Result:
    """Check nodes, and say which fail and why, as ``llmb-run health`` does; ``fabric``: also measure under load.

    The nodes are those that ``runs`` (words that name one run each) ran on, or what ``settings`` name: ``nodes`` (a
    host list), ``partition``, or ``workload`` and the options of its job; each None if not given. Without any: this
    machine or the site's default. Left out, with a notice, are those that a job cannot have now and, unless named,
    excluded ones. ``exclude_failed``: exclude those that fail from later jobs for ``days`` days. ``timeout``: a
    time span such as ``5m``, how long to wait for the nodes. ``sizes``: also measure other message sizes (refused
    without ``fabric``). The exit status is 1 where a node or the fabric fails, or a named node was not checked.

    Raises:
        RequestError: options exclude each other or are wrong, there is no installation, or no node can be checked
        SchedulerError: the scheduler does not give the nodes
        CheckFailed: with ``exclude_failed``: all nodes fail of the same, which is the site's fault; none is
            excluded
        LLMBError: the nodes cannot be measured, recipe or configuration are wrong, or a run's record or the exclusion
            list cannot be read or written
        OSError: a part of LLMB cannot be read, or a folder of the job, the site or the installation not be looked at
    """
    if sizes and not fabric:
        raise RequestError("--sizes needs --fabric", remedy="add --fabric")
    workspace, patience = Workspace(), round(seconds_of(timeout, "--timeout"))
    install = workspace.require_install()
    executor, needs, nodes, partition = _nodes_meant(workspace, runs, **settings)
    avoided = needs.scheduler.excluded if needs.scheduler else None
    chosen, left = choose_nodes(executor, install, nodes, partition, avoided)
    if left:
        notice(f"not asked: {counted_by(left)}")
    if fabric:
        found = look_at_fabric(executor, needs, chosen, workspace=workspace, wait=patience, sizes=sizes)
    else:
        found = check_nodes(executor, needs, chosen, wait=patience)
    if exclude_failed:
        exclude_failed_nodes(install, found, days)
    return _health_result(found, left, excluded=exclude_failed, named=nodes is not None)


def _nodes_meant(
    workspace: Workspace,
    runs: Sequence[str],
    *,
    nodes: str | None,
    partition: str | None,
    workload: str | None,
    **job: Any,
) -> tuple[Executor, Needs, str | None, str | None]:
    """Return which nodes to check: the executor to ask, what nodes must fulfil, a host list, and a partition.

    Host list and partition are None where they are not given and no default of the site applies; both None: this
    machine, or all nodes of the scheduler's default. ``runs`` are words that name one run each. ``job``: the
    options of the job of ``workload`` as ``job_spec`` takes them, whose nodes are meant, without ``nodelist``,
    ``megatron``, ``force`` and ``preflight``, which are set here; without a workload all of them must be empty or None.
    ``workspace``: whose runs, recipes and site configuration count.

    Raises:
        RequestError: nodes are named in several ways, there are options of a job without a workload, the job cannot
            be planned, or there is no such run
        RecordError: a run's record cannot be read
        LLMBError: recipe or configuration are wrong
        OSError: a folder that the job or the site names may not be looked at
    """
    if sum(map(bool, (runs, nodes, partition))) > 1 or (runs and workload):
        raise RequestError("runs, --nodes and --partition cannot be combined", remedy="name the nodes in one way")
    if workload:
        # Whether the job itself would be sensible is not asked: nothing of it is started.
        spec = job_spec(workload=workload, **job, nodelist=None, megatron=(), force=True, preflight="off")
        plan = plan_job(spec, workspace).plan
        scheduler = plan.scheduler or SchedulerPart()
        return (
            executor_for(plan.cluster_type),
            needs_of(plan),
            nodes or scheduler.nodelist,
            partition or scheduler.queue,
        )
    if any(job.values()):
        raise RequestError("these options describe a job, and no workload is named", remedy="add -w WORKLOAD")
    if runs:
        return _nodes_of_runs(workspace, runs)
    kind = workspace.cluster.cluster_type or detect_cluster_type()
    needs = needs_of_site(workspace.cluster, workspace.install, traits_of(kind), partition)
    if nodes is None and partition is None and not traits_of(kind).this_machine:
        partition = workspace.cluster.scheduler(kind).queue
    return executor_for(kind), needs, nodes, partition


def _nodes_of_runs(workspace: Workspace, runs: Sequence[str]) -> tuple[Executor, Needs, str | None, str | None]:
    """Return the executor, the needs, a host list (None: this machine) and None, for checking the nodes of ``runs``.

    ``runs`` are words that name one run each, at least one. Executor and needs are those of the last; the host list
    has all nodes. The last None stands for the partition. ``workspace``: whose installation has the runs.

    Raises:
        RequestError: there is no such run, or the runs did not record their nodes
        RecordError: a run's record cannot be read
        OSError: a folder that a run's job names may not be looked at
    """
    records = [load_record(find_run(workspace.install, word).folder) for word in runs]
    ran_on = [read_events(record.paths.events).nodes for record in records]
    hosts = list(chain.from_iterable(map(expand, ran_on)))
    plan = records[-1].plan
    if plan.scheduler and not hosts:
        raise RequestError("these runs did not record where they ran", remedy="name the nodes with --nodes")
    return executor_for(plan.cluster_type), needs_of(plan), compress(hosts) if plan.scheduler else None, None


def _health_result(found: Health, left: Mapping[str, str], *, excluded: bool, named: bool) -> Result:
    """Return what ``llmb-run health`` shows of the checked nodes, with the command that excludes failed ones.

    ``found``: what the check gave. The command is left out where they are ``excluded`` already. ``left``: nodes that
    were not checked, with why; where the user ``named`` the nodes, any of these make the exit status 1, as does a node
    or fabric that fails. As JSON: ``nodes`` (as ``_as_dict``), ``not_asked`` (``left``), ``drift`` (what nodes differ
    in: by its name, lists of nodes by value), ``fabric`` (None if not measured), ``seconds`` and ``excluded`` (names;
    empty unless ``excluded``).
    """
    failed, statuses = found.failed, counted_by({item.node: item.status for item in found.verdicts})
    fabric_fails = found.fabric is not None and found.fabric.verdict.level == "fail"
    remarks = [f"{counted(len(found.verdicts), 'node')} in {found.seconds:.0f} s: {statuses}"]
    if found.complaint:
        remarks.append(f"the scheduler says: {found.complaint.splitlines()[0]}")
    hint = ""
    if failed and not excluded:
        names = compress(item.node for item in failed)
        hint = next_command("exclude", "add", names, "--days", f"{DAYS:g}", "--reason", "failed llmb-run health")
    return Result(
        {
            "nodes": [_as_dict(found, item) for item in found.verdicts],
            "not_asked": left,
            "drift": found.drift,
            "fabric": msgspec.to_builtins(found.fabric),
            "seconds": round(found.seconds, 1),
            "excluded": [item.node for item in failed] if excluded else [],
        },
        _health_text(found),
        status=int(bool(failed) or fabric_fails or (named and bool(left))),
        remarks=remarks,
        hint=hint,
    )


def _as_dict(found: Health, verdict: NodeVerdict) -> dict[str, Any]:
    """Return a checked node's verdict, its remarks and its facts as JSON values.

    ``found``: the whole check, which has the node's facts. The keys are ``node``, ``status``, ``remarks`` (a list of
    dicts with ``check``, ``level``, ``text`` and ``remedy``) and ``facts``, as ``facts_as_json`` returns them, which is
    None where the node did not answer.
    """
    remarks = msgspec.to_builtins(verdict.remarks)
    facts = facts_as_json(found.facts.get(verdict.node))
    return {"node": verdict.node, "status": verdict.status, "remarks": remarks, "facts": facts}


def _health_text(found: Health) -> str:
    """Return what was found on the checked nodes, as text for people with a final newline; empty: nothing to say.

    In this order, with blank lines between: the fabric, a table of remarks on single nodes (at most 40, then a line
    ``and 3 more: --json has all``), one of remarks that all nodes share, and one of what nodes differ in.
    """
    remarks = chain.from_iterable(item.remarks for item in found.verdicts)
    everywhere = Counter((it.check, it.level, it.text) for it in remarks)
    common = {key for key, count in everywhere.items() if count == len(found.verdicts) > 1}
    rows: list[list[str]] = []
    for item in found.verdicts:
        own = [it for it in item.remarks if (it.check, it.level, it.text) not in common]
        rows += [[item.node, it.level, it.check, it.text] for it in own]
    more = f"and {len(rows) - _MOST_LINES} more: --json has all\n" if len(rows) > _MOST_LINES else ""
    shared = [["all nodes", level, check, text] for check, level, text in sorted(common)]
    drifting: list[list[str]] = []
    for name, nodes_by_value in found.drift.items():
        for value, nodes in nodes_by_value.items():
            row = [name, str(len(nodes)), value, compress(nodes)]
            drifting.append(row)
    parts = [
        fabric_text(found.fabric) if found.fabric else "",
        table(["node", "", "check", "what"], rows[:_MOST_LINES]) + more,
        table(["", "", "check", "what"], shared),
        table(["differs", "nodes", "value", "where"], drifting, ["nodes"]),
    ]
    return "\n".join(filter(None, parts))
