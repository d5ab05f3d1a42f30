"""From what is asked for to running jobs: plan all, show or submit, and say what became of each."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from llmb_common.base.errors import CheckFailed, LLMBError, RequestError, SchedulerError, located
from llmb_common.base.notices import notice
from llmb_common.base.outcome import Result
from llmb_common.base.run_states import is_live
from llmb_common.executors.base import Executor, executor_for
from llmb_common.health.ask import DAYS, Health, check_nodes, choose_nodes, exclude_failed_nodes
from llmb_common.nodes.needs import Needs, needs_of
from llmb_common.planning.job_plan import JobPlan, plan_as_dict
from llmb_common.planning.outlook_lines import short_lines
from llmb_common.planning.scheduler import SchedulerPart
from llmb_common.planning.workspace import Workspace
from llmb_common.results.configuration import distinguishing_settings
from llmb_common.runs.extras import extras_of
from llmb_common.runs.index.runs import name_of_round, row_of
from llmb_common.runs.index.search import find_runs
from llmb_common.runs.paths import dry_run_paths
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.submission.bad_nodes import as_notice, keep_off, nodes_to_leave_out, shown_bad
from llmb_common.submission.jobs import JobToSubmit, Options, dependency_ids, experiments_of
from llmb_common.submission.launch import without_gpus
from llmb_common.submission.many import submit_many
from llmb_common.submission.observe import refresh
from llmb_common.submission.preflight import check_disk, submission_doubts
from llmb_common.submission.rounds import digest_of, digest_of_file, digest_of_plan, open_round
from llmb_common.submission.script import render_script
from llmb_common.submission.single import UNSETTLED, check_chain, submit, submit_chain
from llmb_run.columns import run_as_json
from llmb_run.starting.requests import JobSpec, PlannedJob, RequestedJobs, say_warnings
from llmb_run.starting.spreading import on_different_nodes
from llmb_run.terminal import local_time_text, next_command, table


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """How jobs are started: the options that all commands which start jobs have in common.

    ``after``: runs or job ids to wait for. ``again``: start jobs anew that are on record. ``detach``: do not follow a
    run that starts at once. ``skip_unsupported``: leave out jobs that cannot be planned. ``dry_run``: start nothing.

    ``take_from(settings)`` makes one of a command's arguments by the fields' names, and removes these from
    ``settings``; a missing one has its default. Nothing is checked.
    """

    after: tuple[str, ...] = ()
    chain: int = 1
    """How many jobs in a row, each going on from the newest checkpoint of the one before."""
    health: bool = False
    """Whether nodes are checked first, and those that fail are excluded."""
    apart: bool = False
    """Whether repeats are to run on different nodes."""
    again: bool = False
    detach: bool = False
    skip_unsupported: bool = False
    dry_run: bool = False

    @classmethod
    def take_from(cls, settings: dict[str, Any]) -> StartOptions:
        """Return the start options among a command's arguments ``settings``, and remove them from there.

        Options that are missing there have their defaults.
        """
        given = [known.name for known in fields(cls) if known.name in settings]
        return cls(**{name: settings.pop(name) for name in given})


_TOLD = ("workload", "size", "dtype", "scale", "tp", "pp", "cp", "ep", "vp", "mbs", "gbs")
"""What every table of plans tells of a job."""


def show_plans(planned: Sequence[PlannedJob], chain: int = 1) -> Result:
    """Return what a dry run prints: the batch script of one job, a table of several, or plans as JSON.

    Prints notices on the plans; starts and writes nothing. The exit status is 0. ``planned`` is not empty;
    ``chain``: how many jobs in a row each of them stands for. JSON of the plan instead of the script of one job
    where the request has ``DRY_RUN=json``. The data of the result is a function, which tells it from the result of
    jobs that were started; it, and the text of a script, also a function, raise RequestError where a path of a plan
    cannot be expressed in a script.

    Raises:
        RequestError: the jobs cannot be chained
    """
    if chain > 1:
        for item in planned:
            check_chain(item.plan, chain)
    say_warnings(planned)

    def data() -> dict[str, Any]:
        """Return ``planned`` of ``show_plans`` with their batch scripts, as JSON values.

        The keys: ``dry_run`` (true), ``jobs`` (each with ``plan`` and ``script``), and ``chain``, the number of jobs
        in a row, only where it is above 1.

        Raises:
            RequestError: a path of a plan cannot be expressed in a script
        """
        jobs = [{"plan": plan_as_dict(item.plan), "script": _dry_run_script(item.plan)} for item in planned]
        chained = {"chain": chain} if chain > 1 else {}
        return {"dry_run": True, **chained, "jobs": jobs}

    if len(planned) > 1:
        chained = f" in {len(planned)} chains" if chain > 1 else ""
        remark = f"{len(planned) * chain} jobs{chained}, nothing started (dry run)"
        return Result(data, _plan_table(planned, chain), remarks=[remark])
    plan = planned[0].plan
    if chain > 1:
        notice(f"{chain} jobs in a chain: this is the first; each later one continues from the newest checkpoint")
    for line in short_lines(plan):
        notice(line)
    if planned[0].request.dry_run == "json":
        return Result(data, json.dumps(plan_as_dict(plan), indent=2) + "\n")
    return Result(data, lambda: _dry_run_script(plan), for_programs=True)


def _dry_run_script(plan: JobPlan) -> str:
    """Return the text of the batch script of a plan, with the paths that stand for a run's own in a dry run.

    Raises:
        RequestError: a path of the plan cannot be expressed in a script
    """
    return render_script(plan, dry_run_paths(plan.workload_folder, plan.experiment_name))


def _plan_table(planned: Sequence[PlannedJob], chain: int) -> str:
    """Return the plans as a table: a row for each different plan, with the dimensions that vary, in their order.

    It ends with a newline. Repeats are one row where they share one plan object, as ``plan_each`` makes them. A
    value that a job lacks is ``-``. ``chain``: jobs in a row of each run; above 1, the table counts jobs instead of
    runs. ``planned`` are the jobs, at least one.
    """
    right = ("jobs" if chain > 1 else "runs", "GPUs", "nodes", "TP", "PP", "CP", "EP", "VP", "MBS", "GBS", "steps")
    runs = Counter(id(item.plan) for item in planned)
    names = itertools.chain.from_iterable(item.spec.varied for item in planned)
    varied = dict.fromkeys(name for name in names if name not in _TOLD)
    rows = []
    for item in {id(item.plan): item for item in planned}.values():
        plan = item.plan
        layout = (plan.tp, plan.pp, plan.cp, plan.ep, plan.vp, plan.mbs, plan.gbs)
        numbers = (runs[id(plan)] * chain, plan.gpus, plan.nodes, *layout, plan.max_steps)
        values = (*map(item.spec.settings.get, varied), *numbers)
        cells = ["-" if value is None else str(value) for value in values]
        rows.append([plan.experiment_name, *cells, plan.time_limit])
    return table(["job", *varied, *right, "time limit"], rows, right)


def say_doubts(plans: Iterable[JobPlan]) -> None:
    """Print a notice for each thing that may go wrong with the jobs of ``plans``, which are about to be submitted.

    Prints nothing where nothing is in doubt. It stops no submission.

    Raises:
        RequestError: the user named a file with nodes to the scheduler, and it cannot be read
    """
    for doubt in submission_doubts(plans):
        notice(doubt)


def announce(record: RunRecord, differing: str = "") -> None:
    """Print on stderr run id and log of a run that starts at once; nothing of one that goes through a queue.

    It is one line, ``ID  DIFFERING  LOG``, whether the run is followed or not. ``differing``: the settings that
    tell the run from the others of the command; empty: none do, and it is left out.
    """
    if not record.plan.traits.queued:
        words = (record.paths.run_id, differing, str(record.paths.log))
        print("  ".join(word for word in words if word), file=sys.stderr)


def report_started(results: Sequence[tuple[str, RunRecord | LLMBError]], known: Collection[str] = ()) -> Result:
    """Return what a command prints of its submissions: started runs, refusals, the next step.

    The exit status is the greatest of the errors', 0 without one. The data has ``dry_run`` (false), ``jobs``, a
    dictionary for each of ``results`` (``_as_dict``), in order, and ``skipped``, an empty list for the caller to
    replace. The text has the started runs; the remarks are a line ``error: ...`` for each error, equal ones
    together, and of several jobs how many were started. The hint is the next command, ``watch`` for queued runs,
    else ``results``; empty where none was started.

    Args:
        results: the title of each job, with its record or the error that refused it
        known: keys of submissions that were settled before this command: their jobs were not started now
    """
    failed = [(title, item) for title, item in results if isinstance(item, LLMBError)]
    started = [item for _, item in results if isinstance(item, RunRecord)]
    old = sum(record.submission.key in known for record in started)
    remarks = []
    for (title, why), count in Counter((title, str(error)) for title, error in failed).items():
        runs_text = title if count == 1 else f"{count} runs of {title}"
        remarks.append(f"error: {runs_text}: {why}")
    if len(results) > 1:
        before = f", {old} already on record" if old else ""
        remarks.append(f"{len(started) - old} of {len(results)} jobs started{before}")
    hint = ""
    if started:
        names = [started[0].paths.run_id] if len(started) == 1 else []
        hint = next_command("watch" if started[0].job_id else "results", *names)
    return Result(
        {"dry_run": False, "jobs": [_as_dict(title, item) for title, item in results], "skipped": []},
        "".join(_started_lines(record, old=record.submission.key in known) for record in started),
        status=max((error.exit_status for _, error in failed), default=0),
        remarks=remarks,
        hint=hint,
    )


def _started_lines(record: RunRecord, *, old: bool) -> str:
    """Return the lines to print of a run that was started, or was on record already (``old``), with a final newline.

    Of a queued run it is ``ID  Submitted batch job 4711  NAME``, with ``old`` ``ID  Already batch job 4711  NAME``;
    of any other run, whatever ``old`` says, ``ID  STATE  NAME``, and lines on its checkpoints and profiles, if any,
    indented by two blanks.
    """
    if record.plan.traits.queued:
        did = "Already" if old else "Submitted"
        return f"{record.paths.run_id}  {did} batch job {record.job_id}  {record.paths.name}\n"
    lines = [f"{record.paths.run_id}  {record.state}  {record.paths.name}", *extras_of(record).lines()]
    return "\n  ".join(lines) + "\n"


def _as_dict(title: str, item: RunRecord | LLMBError) -> dict[str, Any]:
    """Return what became of the job ``title``, a record or an error, as JSON values.

    Of an error: ``job`` (the title) and ``error`` (a dictionary, ``LLMBError.as_dict``). A run has ``job``, the fields
    of ``run_as_json``, ``extras`` (a dictionary; None while it has not ended), and ``error``, which is None.
    """
    if isinstance(item, LLMBError):
        return {"job": title, "error": item.as_dict()}
    extras = None if is_live(item.state) else extras_of(item).as_dict()
    return {"job": title, **run_as_json(row_of(item)), "extras": extras, "error": None}


def start(
    command: str, requested: RequestedJobs, workspace: Workspace, options: StartOptions, *, task_file: str = ""
) -> Result:
    """Start all jobs that are asked for, or show what a dry run would start; return what the command prints.

    It is a dry run if the request of any job says so: then nothing is started, and the result is that of
    ``show_plans``. ``command`` is the command's name. ``task_file``: the path of the file that asks for the jobs;
    empty: a command line does. Jobs that are skipped are told in notices; of jobs that were started, the result's
    data has these lines in ``skipped``, beside what ``report_started`` says. ``workspace``: whose installation they
    run in.

    Raises:
        RequestError: jobs cannot be planned, and ``options`` do not say to skip them
        LLMBError: nothing could be started, or in a dry run, a real one would be refused; if only some jobs could
            not, the result says so
        OSError: a file of the training code or of a run cannot be read
    """
    skipped = skip_refused(requested, options)
    for problem in skipped:
        notice(f"skipped: {problem}")
    if any(item.request.dry_run for item in requested.planned):
        check_dry_run(requested.planned, workspace, options)
        return show_plans(requested.planned, options.chain)
    result = start_planned(command, requested.planned, workspace, options, task_file=task_file)
    return result._replace(data={**result.data, "skipped": skipped})


def skip_refused(requested: RequestedJobs, options: StartOptions) -> list[str]:
    """Return a line ``JOB: why`` on each job that cannot be planned and is left out, as ``--skip-unsupported`` asks.

    Equal lines are one. Empty: there is none. A single job is never skipped. Of ``options`` only ``skip_unsupported``
    counts.

    Raises:
        RequestError: there is one, and the option is not given or no job is left; the message lists all
        LLMBError: the command asks for one job, and that cannot be planned: the job's own error
    """
    if requested.refused and len(requested.specs) == 1:
        only = requested.refused[0]
        with located(only.spec.where) if only.spec.where else nullcontext():
            raise only.error
    problems = list(dict.fromkeys(f"{item.spec.title}: {item.error.message}" for item in requested.refused))
    if problems and not (options.skip_unsupported and requested.planned):
        raise RequestError(
            "nothing was started; these jobs cannot be planned:\n  " + "\n  ".join(problems),
            remedy="correct them, or leave them out with --skip-unsupported",
        )
    return problems


def check_dry_run(planned: Sequence[PlannedJob], workspace: Workspace, options: StartOptions) -> None:
    """Refuse in a dry run what a real run would refuse, as far as this machine can tell.

    Looked up is the run or job to wait for (``--after``), unless there is no installation here. Of jobs that are
    planned for this machine, the checkpoint to load and the space for checkpoints to save are checked. Of
    ``options`` only ``after`` counts; ``planned`` is not empty. ``workspace`` is the command's.

    Raises:
        LLMBError: a real run would be refused
    """
    if options.after and workspace.install.is_dir():
        dependency_ids(planned[0].plan, options.after)
    plans = {id(item.plan): item for item in planned}
    for item in plans.values():
        if item.plan.checkpoint.is_used and not without_gpus(workspace.cluster, item.request):
            check_disk(item.plan)


def start_planned(
    command: str,
    planned: Sequence[PlannedJob],
    workspace: Workspace,
    options: StartOptions,
    *,
    task_file: str = "",
    swept: Sequence[JobSpec] = (),
) -> Result:
    """Start jobs that are planned, and return what the command prints; before that, print what is doubtful of them.

    Checks the nodes first, where ``options`` ask for it, but not for jobs that check their own nodes when they have
    them (``check_fabric``). ``options.dry_run`` does not count.

    Args:
        command: the name of the command that is carried out
        planned: the jobs, at least one
        workspace: whose installation they run in
        options: how they are started
        task_file: the path of the file that asks for them, which is not read; empty: none does. Jobs of it that are
            on record are not started again, unless ``options.again``.
        swept: all that a sweep asks for, of which ``planned`` are those that can run; empty: it is no sweep

    Raises:
        LLMBError: nothing could be started, or nodes fail their check
        OSError: a file of the training code or of a run cannot be read
    """
    workspace.require_install()
    say_warnings(planned)
    say_doubts(item.plan for item in planned)
    # A job that checks its own nodes does so when it has them: others may be idle now.
    unchecked = [item.plan for item in planned if not item.plan.check_fabric]
    if options.health and unchecked:
        require_health(unchecked, workspace)
    each = Options(after=options.after, detach=options.detach)
    jobs = [JobToSubmit(item.plan, item.entry.folder, each) for item in planned]
    if task_file:
        again = time.time_ns() if options.again else None
        names = [item.spec.digest(task_file, again) for item in planned]
        return start_round(command, jobs, workspace, options, digest_of_file(task_file), names, Path(task_file).stem)
    if len(jobs) == 1 and options.chain == 1:
        return start_one(jobs[0])
    if swept:
        names = [digest_of_plan(job.plan) for job in jobs]
        return start_round(command, jobs, workspace, options, digest_of([], command, options.apart, *swept), names)
    return start_round(command, jobs, workspace, options)


def start_one(job: JobToSubmit) -> Result:
    """Start one job, and return what the command prints; where there is no queue, first follow the run to its end.

    With ``detach`` in its options, the run is not followed. The exit status of the result is 0: what goes wrong is
    raised.

    Raises:
        LLMBError: the job was refused, its run failed while it was followed, or nobody knows whether it exists
        OSError: a file of the training code or of a run cannot be read
    """
    record = submit(job.plan, job.recipe_folder, job.options, on_record=announce)
    return report_started([(record.plan.experiment_name, record)])


def start_round(
    command: str,
    jobs: Sequence[JobToSubmit],
    workspace: Workspace,
    options: StartOptions,
    digest: str = "",
    names: Sequence[str] = (),
    lasting: str = "",
) -> Result:
    """Start ``jobs`` together, as a round, and return what the command prints: what became of each.

    The same command goes on with a round that was interrupted: what is on record is not started again, unless
    ``options.again``. Waits while another process works on the same round. The state of the round is kept in a
    file. Its name is ``round`` in the data of the result, unless it is ``lasting``. Where only some jobs could be
    started, the result has the errors of the others and the greatest of their exit statuses, and its hint says to
    run the command again.

    Args:
        command: the name of the command
        jobs: at least one
        workspace: whose installation they run in
        options: how they are started
        digest: tells the command from others; made of the jobs where it is empty
        names: what tells the jobs of the round from each other, one for each, whichever of them can run; empty:
            their numbers do
        lasting: what their keys begin with, if they stay on record for ever, as those of a task file; empty: they
            do not

    Raises:
        LLMBError: nothing could be started
        OSError: a file of the training code or of a run cannot be read
    """
    digest = digest or digest_of(jobs, command, options.chain, options.apart)
    with open_round(jobs, digest, again=options.again, say=notice) as this:
        rows = find_runs(workspace.install, roots=experiments_of(jobs))
        known = {row.key for row in rows if row.state not in UNSETTLED} - {""}
        if this.begun is not None and not lasting:
            notice(f"continuing the interrupted submission that began at {local_time_text(this.begun)}")
        begin = lasting or f"{command}:{this.name}"
        keys = [f"{begin}:{name}" for name in _numbered_names(names or ["job"] * len(jobs))]
        keyed = zip(keys, jobs, strict=True)
        jobs = [replace(job, options=replace(job.options, key=key)) for key, job in keyed]
        jobs = _without_bad_nodes(jobs, [row.folder for row in rows if row.key in keys], workspace)
        if options.apart:  # only now: another state of the nodes is no other round
            jobs = on_different_nodes(jobs)
        results = _submit_all(jobs, options)
        # A job that ran and failed was submitted: the same command again is meant as new ones.
        this.over = all(isinstance(item, RunRecord | CheckFailed) for _, item in results)
    result = report_started(_as_they_are_now(results, known), known)
    if not lasting:
        result = result._replace(data={**result.data, "round": name_of_round(begin)})
    if not this.over:
        return result._replace(hint=f"{result.hint}\nrun the same command again to start the missing ones".lstrip())
    return result


def _without_bad_nodes(jobs: Sequence[JobToSubmit], earlier: Sequence[Path], workspace: Workspace) -> list[JobToSubmit]:
    """Return ``jobs`` of a round, in order, kept off the nodes that the round's runs so far have shown bad.

    They are copies, or the jobs themselves where no node is bad. Prints these nodes in notices. ``earlier`` are the
    folders of those runs, whose records are brought up to date, also on disk. ``workspace``: whose list of nodes
    put back into use counts.

    Raises:
        EnvironmentLacks: too few nodes are left
        RecordError: a run's record, or the list of excluded nodes, cannot be read
    """
    records = refresh([load_record(folder) for folder in earlier])
    shown = list(itertools.chain.from_iterable(shown_bad(record) for record in records))
    bad = nodes_to_leave_out(shown, workspace.install)
    for item in bad:
        notice(as_notice(item))
    return keep_off(jobs, bad)


def _numbered_names(names: Sequence[str]) -> list[str]:
    """Return each name, in order, with a dot and how often it has come so far behind it: ``a.1``, ``b.1``, ``a.2``.

    So all are different.
    """
    seen, found = Counter[str](), []
    for name in names:
        seen[name] += 1
        found.append(f"{name}.{seen[name]}")
    return found


def _as_they_are_now(
    results: Sequence[tuple[str, RunRecord | LLMBError]], known: Collection[str]
) -> list[tuple[str, RunRecord | LLMBError]]:
    """Return ``results``, in order, with the present state of runs from before that have no queue.

    ``results`` are titles with records or errors. Such a run may have ended together with the command that followed
    it; its record on disk is brought up to date, too. ``known``: keys of what was on record before.
    """
    records = [item for _, item in results if isinstance(item, RunRecord)]
    doubtful = [item for item in records if item.submission.key in known and not item.plan.traits.queued]
    now = {record.paths.run_id: record for record in refresh(doubtful)}
    present: list[tuple[str, RunRecord | LLMBError]] = []
    for title, item in results:
        if isinstance(item, RunRecord):
            item = now.get(item.paths.run_id, item)
        present.append((title, item))
    return present


def _submit_all(jobs: Sequence[JobToSubmit], options: StartOptions) -> list[tuple[str, RunRecord | LLMBError]]:
    """Submit all jobs, as chains where ``options`` ask for them; return (title, record or error) of each, in order.

    The title is the job's ``experiment_name``. A chain gives as many entries as it has links; links that were not
    submitted have the scheduler's error. Chains of a plan that the scheduler refused are not tried, and have the
    same error.

    Raises:
        LLMBError: nothing can be submitted at all; or a chain fails otherwise than by the scheduler, whatever was
            submitted before it
        OSError: a file of the training code or of a run cannot be read
    """
    if options.chain == 1:
        settings = distinguishing_settings(job.plan for job in jobs)
        what = {id(job): text for job, text in zip(jobs, settings, strict=True)}
        started = submit_many(jobs, lambda job, record: announce(record, what[id(job)]))
        return [(job.plan.experiment_name, result) for job, result in started]
    results: list[tuple[str, RunRecord | LLMBError]] = []
    refused: dict[str, SchedulerError] = {}  # other chains of the same plan would be, too: they are not tried
    for job in jobs:
        name, plan = job.plan.experiment_name, digest_of_plan(job.plan)
        links: list[RunRecord] = []
        if plan not in refused:
            try:
                submit_chain(job.plan, job.recipe_folder, options.chain, job.options, on_link=links.append)
            except SchedulerError as error:
                refused[plan] = error
        results += [(name, record) for record in links]
        if plan in refused:
            results += [(name, refused[plan])] * (options.chain - len(links))
    return results


def require_health(
    plans: Sequence[JobPlan],
    workspace: Workspace,
    under_load: Callable[[Executor, Needs, list[str]], Health] | None = None,
) -> list[Health]:
    """Check the nodes that jobs may get, before these are submitted, and exclude those that fail.

    Returns one result for each set of nodes that ``plans`` ask for (node list, queue and excluded nodes), in the
    order of their first plans; empty without plans. Nodes that fail are put on the installation's list of excluded
    ones for ``DAYS`` days, also where an error follows; notices say so. Too few healthy nodes are a notice: others
    may be busy. ``under_load`` is called with executor, needs and names of nodes in place of ``check_nodes``, and
    measures the nodes' network fabric, too. ``workspace`` is that of the jobs.

    Raises:
        CheckFailed: a node that a job asks for fails, or no node is left (code ``unhealthy-nodes``); the fabric as a
            whole fails (code ``unhealthy-fabric``); or all nodes fail of the same, and none is excluded
        LLMBError: no node can be checked
        OSError: a part of LLMB cannot be read, or the folder of the image or the workload not be looked at
    """
    groups: dict[tuple[str | None, str | None, str | None], list[JobPlan]] = {}
    for plan in plans:
        scheduler = plan.scheduler or SchedulerPart()
        nodes = (scheduler.nodelist, scheduler.queue, scheduler.excluded)
        groups.setdefault(nodes, []).append(plan)
    looked: list[Health] = []
    for (listed, partition, avoided), alike in groups.items():
        needs = max(map(needs_of, alike), key=lambda item: (bool(item.dispatcher), item.image_bytes, item.nodes))
        executor = executor_for(alike[0].cluster_type)
        chosen, left = choose_nodes(
            executor, workspace.require_install(), listed, None if listed else partition, avoided
        )
        found = (under_load or check_nodes)(executor, needs, chosen)
        looked.append(found)
        _say_health(found)
        exclude_failed_nodes(workspace.install, found, DAYS)
        for verdict in found.failed:
            notice(f"{verdict.node} is excluded for {DAYS:g} days: {verdict.reason}")
        _refuse_failed_health(found, by_name=bool(listed))
        healthy = len(chosen) - len(found.failed)
        most = max(plan.nodes for plan in alike)
        # Nodes that are busy now may be had later; these may not.
        if not healthy and all(why.startswith("excluded") for why in left.values()):
            raise CheckFailed(
                f"no node is left for the job: {len(chosen)} fail, {len(left)} were excluded before",
                remedy="see llmb-run health, and llmb-run exclude list",
                code="unhealthy-nodes",
            )
        if healthy < most:
            notice(f"{healthy} healthy nodes are idle; {most} are needed")
    return looked


def _say_health(found: Health) -> None:
    """Print notices on a health check: how many nodes have which verdict, and the fabric's where it was measured."""
    statuses = counted_by({item.node: item.status for item in found.verdicts})
    notice(f"health: {statuses}, {found.seconds:.0f} s")
    if found.fabric is not None:
        notice(f"fabric: {found.fabric.verdict.answer}")


def _refuse_failed_health(found: Health, *, by_name: bool) -> None:
    """Raise if a health check leaves no choice of other nodes; ``by_name``: the job asks for its nodes by name.

    Raises:
        CheckFailed: such a node fails (code ``unhealthy-nodes``), or the fabric as a whole (code ``unhealthy-fabric``)
    """
    # A job that asks for nodes by name cannot run without them.
    if by_name and found.failed:
        raise CheckFailed(
            f"requested nodes fail: {', '.join(item.node for item in found.failed)}",
            remedy="choose others, or see llmb-run health --nodes",
            code="unhealthy-nodes",
        )
    of_all = found.fabric.verdict.faults_of_all if found.fabric is not None else ()
    if of_all:
        raise CheckFailed(
            f"the fabric as a whole fails: {of_all[0].what}", remedy=of_all[0].remedy, code="unhealthy-fabric"
        )


def counted_by(states: Mapping[str, str]) -> str:
    """Return how many nodes are in each state, the commonest first: ``3 allocated, 1 drained``; empty without nodes.

    Of equally common states the first comes first. ``states``: by node; a reason in parentheses behind a state does not
    count.
    """
    words = Counter(state.partition(" (")[0] for state in states.values())
    return ", ".join(f"{count} {word}" for word, count in words.most_common())
