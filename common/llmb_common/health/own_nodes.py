"""``python -m llmb_common.health.own_nodes RUN JOB RESTART NODES``: a job checks the nodes that it has been given.

``check_nodes`` of ``submission/supervise.sh`` starts this before training, in the job's allocation. Standard output is
the host list of the nodes that fail, standard error goes to the training log, ``fabric-<restart>.json`` in the run's
folder has everything. The exit status says what the job is to do: ``TRAIN``, ``WITHOUT`` these nodes once more, or
``END``. Any other status, such as that of an exception, means that nothing was judged, and the job trains.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.errors import LLMBError, RecordError, SchedulerError
from llmb_common.base.files import write_json
from llmb_common.base.hostlist import compress, expand, expand_known
from llmb_common.executors.base import executor_for
from llmb_common.health.ask import Health, check_held_nodes, exclude_unfit
from llmb_common.health.fabric import with_fabric
from llmb_common.nodes.needs import needs_of
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.runs.timing.job_events import read_events
from llmb_common.submission.bad_nodes import BadNode, require_enough

TRAIN, WITHOUT, END = 0, 10, 11
MOST_RESTARTS = 2
"""How often a job queues itself again because of its nodes."""


@dataclass(frozen=True)
class Decision:
    """What a job is to do after it has checked the health of its own nodes, and why.

    ``decide`` makes it. ``unfit`` is empty where it trains, and where it ends because all nodes or the fabric as a
    whole fail.
    """

    status: int
    """The exit status that tells the job what to do: ``TRAIN`` (0), ``WITHOUT`` (10) or ``END`` (11)."""
    unfit: dict[str, str]
    """Why each node that fails does, by its name."""
    why: str
    """Why this was decided, as a clause for the log."""


def decide(record: RunRecord, found: Health, left_out: Sequence[str]) -> Decision:
    """Return what a job is to do after the check of its nodes: train, queue itself again without the unfit, or end.

    ``record`` is that of the job's run, ``found`` the result of the check; ``left_out`` has the nodes without which the
    job has queued itself again, a host list for each time. Unfit are nodes that failed or were silent. The job ends
    where all nodes fail alike, where none is unfit but the fabric as a whole fails, and where it cannot run without the
    unfit ones or has been queued again ``MOST_RESTARTS`` (2) times. Nodes on which nothing could be measured are not
    unfit where that holds for all of them: training will say why. Nothing is done about it here.

    Raises:
        RequestError: the user's list of nodes is wrong, or in a file that cannot be read
    """
    failed = {verdict.node: verdict.reason for verdict in found.failed}
    answer, of_all = "the fabric was not measured", []
    if found.fabric is not None:
        answer = found.fabric.verdict.answer
        of_all = [finding.what for finding in found.fabric.verdict.faults_of_all]
        measured = found.fabric.measurement
        # Where nothing ran anywhere, the image or the site is at fault, and no node.
        if not measured.hosts:
            failed = {node: why for node, why in failed.items() if node not in measured.missing}
            answer = f"not judged: nothing could be measured on any node: {next(iter(measured.missing.values()), '')}"
    if len(failed) > 1 and found.shared_fault:
        return Decision(END, {}, f"all nodes fail alike, and none is at fault: {found.shared_fault}")
    if not failed and of_all:
        return Decision(END, {}, f"the fabric as a whole fails: {of_all[0]}")
    if not failed:
        return Decision(TRAIN, {}, answer)
    kept = _why_not_without(record, failed, left_out)
    if kept:
        return Decision(END, failed, f"the job is not queued again: {kept}")
    return Decision(WITHOUT, failed, "the job queues itself again without them")


def _why_not_without(record: RunRecord, failed: dict[str, str], left_out: Sequence[str]) -> str:
    """Return why a job cannot be queued again without the nodes that failed, as a clause; empty where it can.

    The job cannot where it asks for one by name, was queued again ``MOST_RESTARTS`` (2) times before, too few nodes are
    left, or the list of excluded nodes cannot be read. ``record`` is that of the job's run, ``failed`` has the reason
    by node, and ``left_out`` the host lists of those left out before.

    Raises:
        RequestError: the user's list of nodes is wrong, or in a file that cannot be read
    """
    plan, run_id = record.plan, record.paths.run_id
    requested = plan.scheduler.nodelist if plan.scheduler is not None else None
    named = sorted(set(failed) & set(expand(requested or "")))
    if named:
        return f"it asks for {compress(named)} by name"
    if len(left_out) >= MOST_RESTARTS:
        return f"it was queued again {MOST_RESTARTS} times before"
    already = chain.from_iterable(map(expand_known, left_out))
    without = dict.fromkeys(already, "it is left out already") | failed
    bad = [BadNode(node, run_id, "unfit", why, certain=True, time=0.0) for node, why in without.items()]
    try:
        require_enough(plan, bad)
    except LLMBError as error:
        return error.message
    return ""


def check(record: RunRecord, job_id: str, nodes: Sequence[str]) -> Health:
    """Return the health of the nodes of a job that this process runs in, by themselves and under load.

    ``record`` is that of the job's run. ``job_id`` is the job's, and ``nodes`` are the names of its nodes. What they do
    under load is left out, and said on standard error (the job's log), where nothing can be started in the image.
    ``seconds`` is the time for both.

    Raises:
        LLMBError: nothing can be started on the nodes at all, the site's configuration or baselines cannot be read, or
            there is no scheduler
        OSError: a part of LLMB cannot be read, or the folder of the image or of runs may not be looked at
    """
    plan, begun = record.plan, time.monotonic()
    executor, needs = executor_for(plan.cluster_type), needs_of(plan)
    held = executor.own_nodes(job_id, nodes, plan.scheduler)
    found = check_held_nodes(held, needs)
    try:
        found = with_fabric(held, needs, found, Path(plan.install), executor.topology())
    except SchedulerError as error:  # what the look has found is true all the same
        _print_line(f"check before training: {error.message}")
    return replace(found, seconds=time.monotonic() - begun)


def main(words: Sequence[str]) -> int:
    """Check a job's own nodes before it trains; return what the job is to do, as an exit status.

    0: train; 10 (``WITHOUT``): queue itself again without the nodes that fail; 11 (``END``): end; 1: train, as nothing
    could be judged. Prints the host list of the nodes that fail on standard output (an empty line: none do; with status
    1 nothing), writes ``fabric-<restart>.json`` to the run's folder, in place of a former one, and keeps later jobs off
    these nodes for a day; what cannot be written is only logged, on standard error. ``words`` are exactly four: the
    run's folder, the job's id, the number of the restart, and the host list of the nodes. SIGTERM ends the process with
    status 143, also afterwards.
    """
    folder, job_id, restart, nodes = words
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # whatever was started ends, too
    try:
        record = load_record(Path(folder))
        found = check(record, job_id, expand(nodes))
        decision = decide(record, found, read_events(record.paths.events).left_out)
    except (LLMBError, OSError) as error:
        _print_line(f"check before training: {error.message if isinstance(error, LLMBError) else error}")
        return 1
    try:
        write_json(record.paths.folder / f"fabric-{restart}.json", _as_json_values(found, decision))
    except RecordError as error:
        _print_line(f"check before training: {error.message}")
    for node, why in decision.unfit.items():
        _print_line(f"error: check before training: on node {node}: {why}")
    try:
        exclude_unfit(Path(record.plan.install), decision.unfit)
    except (LLMBError, OSError) as error:
        _print_line(f"check before training: they could not be excluded: {error}")
    level = "error: " if decision.status == END else ""
    _print_line(f"{level}check before training: {decision.why} ({found.seconds:.0f} s)")
    print(compress(decision.unfit))
    return decision.status


def _as_json_values(found: Health, decision: Decision) -> dict[str, Any]:
    """Return what a job has found of its nodes, and decided, as the values of ``fabric-<restart>.json``.

    A dict of ``schema`` (1), ``nodes`` (the verdicts), ``fabric`` (None: not measured), ``seconds`` (with one decimal),
    ``unfit`` (why, by node) and ``why``.
    """
    return {
        "schema": 1,
        "nodes": msgspec.to_builtins(found.verdicts),
        "fabric": msgspec.to_builtins(found.fabric),
        "seconds": round(found.seconds, 1),
        "unfit": decision.unfit,
        "why": decision.why,
    }


def _print_line(text: str) -> None:
    """Print ``text`` and a line break on standard error, which goes to the job's log."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
