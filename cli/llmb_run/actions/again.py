"""``llmb-run retry``: start runs again, with what is here today or exactly as they were."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from llmb_common.base.errors import CheckFailed, RequestError
from llmb_common.base.notices import notice
from llmb_common.base.outcome import Result
from llmb_common.base.printable import counted
from llmb_common.base.run_states import is_live
from llmb_common.base.strict_yaml import read_text
from llmb_common.executors.base import executor_for
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.workspace import Workspace
from llmb_common.runs.index.runs import RunFilter
from llmb_common.runs.index.search import find_runs
from llmb_common.runs.manifest import make_manifest, training_code
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.runs.timing.job_events import read_events
from llmb_common.submission.bad_nodes import BadNode, as_notice, keep_off, nodes_to_leave_out, shown_bad
from llmb_common.submission.jobs import JobToSubmit, Options
from llmb_common.submission.observe import refresh
from llmb_common.submission.preflight import check_resumable
from llmb_common.submission.rounds import digest_of
from llmb_common.submission.script import render_script
from llmb_common.submission.single import resuming_plan
from llmb_common.submission.supervisor import supervisor_sha256
from llmb_run.selecting import require_own, select_rows
from llmb_run.starting.planner import check_spread, spread_over
from llmb_run.starting.submitting import StartOptions, say_doubts, start_one, start_round
from llmb_run.terminal import table

_COMPARED = {
    "llmb": "version of LLMB",
    "git": "commit of the clone",
    "recipe_sha256": "recipe.yaml",
    "code_sha256": "training code",
    "supervisor_sha256": "supervisor.sh",
    "image": "container image",
}


@dataclass(frozen=True)
class Difference:
    """One thing that is not today what it was when a run was submitted, such as its batch script or the recipe.

    ``differences`` makes it. ``then`` and ``now`` are short texts for a table, such as a commit's first digits;
    ``none`` where there is none.
    """

    what: str
    """What differs, as a table calls it: ``batch script``, ``recipe.yaml``, ``container image``."""
    then: str
    now: str
    detail: str = ""
    """A unified diff of it, of several lines without a final line break; empty but for the batch script."""


def differences(record: RunRecord, recipe_folder: Path) -> list[Difference]:
    """Return what would not be the same if the run of ``record`` were started again today; empty: nothing.

    Compared are the batch script first, then what the run's manifest has, in this order: LLMB's version and commit,
    recipe, training code, supervisor and image; one that only the run's manifest or only today's has counts as
    different. ``recipe_folder`` has the recipe as it is today. Nothing is started
    or written.

    Raises:
        ConfigError: the run's batch script cannot be read
        RequestError: the plan on record names a path that cannot be rendered
        EnvironmentLacks: the recipe, the training code or the image's receipt is missing, or cannot be read
    """
    found = []
    then = read_text(record.paths.script)
    # With the supervisor's hash of then: whether the supervisor differs is told by itself.
    now = render_script(record.plan, record.paths, record.manifest.get("supervisor_sha256"))
    if then != now:
        lines = difflib.unified_diff(then.splitlines(), now.splitlines(), "then", "now", lineterm="", n=1)
        found.append(Difference("batch script", "as submitted", "as rendered today", "\n".join(lines)))
    today = make_manifest(record.plan, recipe_folder, training_code())
    today["supervisor_sha256"] = supervisor_sha256(record.plan.cluster_type)
    for key, what in _COMPARED.items():
        before, after = record.manifest.get(key), today.get(key)
        if before != after:
            found.append(Difference(what, _short_value(before), _short_value(after)))
    return found


def _short_value(value: Any) -> str:
    """Return a value of a run's manifest as a short text for a table; ``none`` for None.

    Of a commit (a dict with ``commit`` and ``dirty``) or a SHA-256, the first twelve digits (behind a commit ``with
    changes`` where there were any); of an image (a dict) ``path /images/nemo.sqsh, bytes 123``; else all of it.
    """
    if value is None:
        return "none"
    if isinstance(value, dict) and "commit" in value:
        return f"{value['commit'][:12]}{' with changes' if value['dirty'] else ''}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items() if key in ("path", "bytes"))
    text = str(value)
    return text[:12] if len(text) == 64 else text


@dataclass(frozen=True)
class Compared:
    """A recorded run, and what would differ if it were started again today. ``compare`` makes it.

    ``run_id`` is the run's id.
    """

    run_id: str
    differences: Sequence[Difference]
    """Empty: it would be the same."""


def compare(records: Sequence[RunRecord], workspace: Workspace) -> list[Compared]:
    """Return, for each recorded run in order, what would be different if it were started again today.

    ``records`` are the runs'. Compared with the recipes of ``workspace``, by the workload's name. Nothing is started.

    Raises:
        RequestError: the recipe of a run is not there any more
        LLMBError: as ``differences``
    """
    return [
        Compared(record.paths.run_id, differences(record, workspace.workload(record.plan.workload).folder))
        for record in records
    ]


def differences_texts(compared: Sequence[Compared]) -> list[str]:
    """Return texts for people on runs in which something differs: of each a table of the differences, then diffs.

    With several runs in ``compared``, each table is preceded by the run's id and a colon, a text of its own. A diff
    is between line breaks. Empty: nothing differs.
    """
    texts: list[str] = []
    for item in compared:
        if not item.differences:
            continue
        if len(compared) > 1:
            texts.append(f"{item.run_id}:")
        rows = [[found.what, found.then, found.now] for found in item.differences]
        texts.append(table(["differs", "then", "now"], rows).rstrip("\n"))
        texts += [f"\n{found.detail}\n" for found in item.differences if found.detail]
    return texts


def differences_result(compared: Sequence[Compared]) -> Result:
    """Return what ``retry --check`` shows: for each run whether it would be the same today, and what differs.

    As data, under ``runs``, ``run_id``, ``same`` and ``differences`` (dicts with ``what``, ``then``, ``now`` and
    ``detail``) of each, in order. The text has a line for each run that is the same; the tables of what differs are
    remarks. The exit status is 1 where something differs, else 0.
    """
    data: list[dict[str, Any]] = []
    lines: list[str] = []
    for item in compared:
        found = [vars(difference) for difference in item.differences]
        data.append({"run_id": item.run_id, "same": not found, "differences": found})
        if not found:
            named = f"{item.run_id}: " if len(compared) > 1 else ""
            lines.append(f"{named}the same: script, code, recipe, image and version\n")
    status = 0 if len(lines) == len(compared) else 1
    return Result({"runs": data}, "".join(lines), status=status, remarks=differences_texts(compared))


def differs_error(compared: Sequence[Compared]) -> CheckFailed:
    """Return, not raise, the error of ``retry --exact`` for runs of which at least one would differ today.

    Its code is ``differs``; the message names what differs. ``compared`` may have runs without differences, but not
    only such.
    """
    changed = [item for item in compared if item.differences]
    listed = [", ".join(found.what for found in item.differences) for item in changed]
    if len(compared) == 1:
        number = len(changed[0].differences)
        message = f"{counted(number, 'thing')} {'differs' if number == 1 else 'differ'} today: {listed[0]}"
    else:
        named = (f"{item.run_id} ({what})" for item, what in zip(changed, listed, strict=True))
        message = f"{len(changed)} of {len(compared)} runs would differ today: {', '.join(named)}"
    return CheckFailed(
        f"nothing was started: {message}",
        remedy="--anyway starts it regardless; without --exact, retry takes the same plan with today's code",
        code="differs",
    )


def retry(
    runs: tuple[str, ...],
    exclude: str | None,
    repeats: int,
    spread: int | None,
    without_failed: bool,
    resume: bool,
    exact: bool,
    anyway: bool,
    check: bool,
    **settings: Any,
) -> Result:
    """Start recorded runs again with their settings, as ``llmb-run retry`` does: as one job or a round of several.

    ``runs``: ids, names, job ids or folders, at least one (without any it would be all of the installation).
    ``check``: start nothing, only show what differs from then, with exit status 1 if anything does; ``exact``:
    start only where nothing differs (else an error in the result), ``anyway``: even so, only with ``exact``.
    ``resume``: continue from the checkpoint. ``without_failed``: avoid nodes that were bad; ``exclude``: a host list
    of more, or None. ``repeats`` (from 1), ``spread``: how many jobs for each run, and over how many days (None: all at
    once). ``check`` and ``exact`` refuse ``resume``, ``without_failed``, ``exclude``, ``spread`` and ``apart`` of
    ``settings``: these are the fields of ``StartOptions``; missing ones have their defaults. ``check`` also refuses
    ``anyway`` and more than one of ``repeats``. Runs must have ended, except for ``check`` and ``exact``. The result
    is that of ``start_one`` or, for several jobs, ``start_round``; with ``exact``, remarks name what differs. Bad
    nodes are printed as notices.

    Raises:
        RequestError: options exclude each other, there is no such run, a run has not ended, or a checkpoint cannot
            be continued or is used by several jobs
        RecordError: a run is another user's (not for ``check``), or its record cannot be read
        LLMBError: the jobs cannot be started
        OSError: the folder of checkpoints, or a file that a submission needs, cannot be read
    """
    options, workspace = StartOptions.take_from(settings), Workspace()
    check_spread(repeats, options.apart)
    changes = {
        "--exclude": exclude,
        "--spread": spread,
        "--spread-nodes": options.apart,
        "--without-failed": without_failed,
        "--resume": resume,
    }
    _refuse_together(changes, repeats, exact=exact, anyway=anyway, check=check)
    rows = select_rows(workspace, runs, RunFilter())
    if not check:
        require_own(row.folder for row in rows)
    records = [load_record(row.folder) for row in rows]
    compared = compare(records, workspace) if exact or check else []
    if check:
        return differences_result(compared)
    if exact and not anyway and any(item.differences for item in compared):
        return differences_result(compared)._replace(error=differs_error(compared))
    if not exact:
        records = refresh(records)
        _require_ended(records)
    shown_by_runs = [] if exact else list(chain.from_iterable(shown_bad(record) for record in records))
    bad = nodes_to_leave_out(shown_by_runs, workspace.install)
    left_out = _failed_nodes(records, bad) if without_failed else {}
    each = Options(exclude=exclude or "", detach=options.detach, left_out=tuple(left_out.items()))
    jobs: list[JobToSubmit] = []
    for record in records:
        plan = _plan_again(record, repeats, workspace, resume=resume)
        folder = workspace.workload(plan.workload).folder
        plans = spread_over(plan, repeats, spread, record) if spread else [plan] * repeats
        jobs += [JobToSubmit(begun, folder, each) for begun in plans]
    say_doubts(job.plan for job in jobs)
    if without_failed:
        jobs = keep_off(jobs, bad)
    for item in bad:
        notice(as_notice(item) if without_failed else f"{item.node} is bad ({item.why}); --without-failed avoids it")
    if len(jobs) > 1:
        # Which nodes that means changes from one moment to the next, and makes no other round.
        digest = digest_of(jobs, "retry --without-failed", options.apart) if without_failed else ""
        result = start_round("retry", jobs, workspace, options, digest)
    else:
        result = start_one(jobs[0])
    return result._replace(remarks=[*differences_texts(compared), *result.remarks])


def _refuse_together(changes: Mapping[str, object], repeats: int, *, exact: bool, anyway: bool, check: bool) -> None:
    """Raise if options of ``retry`` exclude each other.

    ``changes`` are the values of those that would change the runs, by the option's name; the rest is as there.

    Raises:
        RequestError: they do
    """
    if check:
        starts = {"--repeats": repeats > 1, "--anyway": anyway}
        _refuse_beside("--check", starts, "--check starts nothing, and {given} would say how to start")
    if exact or check:
        as_it_was = "--check" if check else "--exact"
        why = f"{as_it_was} needs the runs exactly as they were, and {{given}} would change them"
        _refuse_beside(as_it_was, changes, why)
    elif anyway:
        raise RequestError("--anyway overrides what --exact finds", remedy="add --exact, or leave it out")


def _plan_again(record: RunRecord, repeats: int, workspace: Workspace, *, resume: bool) -> JobPlan:
    """Return the plan of a run that is to be started again ``repeats`` times, each a job of its own.

    With ``resume`` it continues from the run's checkpoint, as it does if the run itself did.

    Raises:
        RequestError: the checkpoint cannot be continued, or several jobs would save to it
        OSError: the folder of checkpoints cannot be read
    """
    plan = resuming_plan(record.plan, record.paths) if resume else record.plan
    if plan.checkpoint.resume:
        if repeats > 1:
            raise RequestError(
                f"{record.paths.run_id} continues from a checkpoint that only one job can save to",
                remedy="leave out --repeats",
            )
        check_resumable(plan)
        _require_alone(plan, workspace)
    return plan


def _refuse_beside(option: str, others: Mapping[str, object], why: str) -> None:
    """Raise if one of the options ``others``, values by name, is given beside ``option``.

    Names are as users write them, ``--exact``. A value that is None, empty, 0 or False counts as not given. ``why``
    is the message, with ``{given}`` where the names of those that are given belong.

    Raises:
        RequestError: at least one of ``others`` is given
    """
    given = " and ".join(name for name, value in others.items() if value)
    if given:
        raise RequestError(why.format(given=given), remedy=f"leave out {option}, or {given}")


def _require_ended(records: Sequence[RunRecord]) -> None:
    """Raise if one of the runs still waits or runs, by the states in ``records``; no scheduler is asked.

    Raises:
        RequestError: a run has not ended
    """
    alive = [record for record in records if is_live(record.state)]
    if alive:
        raise RequestError(
            f"{', '.join(record.paths.run_id for record in alive)}: not finished yet ({alive[0].state})",
            remedy="wait, or llmb-run cancel",
        )


def _require_alone(plan: JobPlan, workspace: Workspace) -> None:
    """Raise if a run that has not ended saves its checkpoints in the same folder as ``plan``.

    Such a run is the next of a chain, or an earlier retry; only runs of the same workload and model size in the
    installation of ``workspace`` are looked at. The scheduler is asked for their state, and records are brought up
    to date.

    Raises:
        RequestError: there is such a run
        RecordError: a run's record cannot be read
    """
    rows = find_runs(
        workspace.install, RunFilter(workloads=(plan.workload,), model_sizes=(plan.model_size,), live=True)
    )
    live = [load_record(row.folder) for row in rows]
    others = [record for record in live if record.plan.checkpoint.save == plan.checkpoint.save]
    for other in refresh(others):
        if is_live(other.state):
            raise RequestError(
                f"{other.paths.run_id} already continues from {plan.checkpoint.save} ({other.state})",
                remedy="wait for it, or llmb-run cancel",
            )


def _failed_nodes(records: Sequence[RunRecord], bad: Sequence[BadNode]) -> dict[str, str]:
    """Return those nodes of the recorded runs that the scheduler shows as down or drained now, with that as the reason.

    The reason is ``down or drained`` for each; empty where no node is. ``records`` are the runs'. ``bad``: nodes that
    the runs' own logs have shown to be bad, which are not looked for here. A run of which one is known need not have
    others.

    Raises:
        RequestError: some run has neither kind of node, so that nothing would be avoided, or there is no scheduler to
            ask
        SchedulerError: the scheduler does not answer
    """
    found: dict[str, str] = {}
    for record in records:
        nodes = read_events(record.paths.events).nodes
        shown_bad = any(item.run_id == record.paths.run_id for item in bad)
        if not nodes and not shown_bad:
            raise RequestError(
                f"{record.paths.run_id}: the nodes it ran on are unknown", remedy="name the nodes with --exclude HOSTS"
            )
        out = executor_for(record.plan.cluster_type).failed_nodes(nodes) if nodes else []
        if not out and not shown_bad:
            raise RequestError(
                f"{record.paths.run_id}: its log names no bad node, and the scheduler shows none of its nodes ({nodes})"
                " as down or drained",
                remedy="name the nodes with --exclude HOSTS, or retry without the option",
            )
        found |= dict.fromkeys(out, "down or drained")
    return found
