"""The commands that start jobs: single, submit, sweep, bulk."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from llmb_common.base.errors import RequestError
from llmb_common.base.outcome import Result
from llmb_common.base.printable import counted, first_few
from llmb_common.planning.job_plan import JobPlan, plan_as_dict
from llmb_common.planning.outlook import known_from, step_seconds
from llmb_common.planning.outlook_lines import range_text
from llmb_common.planning.workspace import Workspace
from llmb_run.results.followed import add_figures
from llmb_run.starting.planner import plan_options
from llmb_run.starting.requests import PlannedJob, Refused, RequestedJobs, one_job, plan_specs, say_warnings
from llmb_run.starting.submitting import StartOptions, check_dry_run, start, start_planned
from llmb_run.starting.task_files import read_tasks
from llmb_run.terminal import next_command, say, table


def single(**settings: Any) -> Result:
    """Start one job with the options ``settings``, as ``llmb-run single`` does.

    ``settings`` are those of ``one_job`` and the fields of ``StartOptions``. Without ``detach``, a run that starts at
    once is followed to its end, and its step time is shown, too. A dry run only shows the plan. An equal submission
    that was interrupted within the last day is continued. The result is that of ``start``; its exit status is 1 where
    a figure of the run was not a number, else 0, as whatever else goes wrong is raised.

    Raises:
        RequestError: an option is wrong, or the job cannot be planned
        LLMBError: it cannot be started, or its run failed while it was followed
        OSError: a file of the training code, or another that a submission needs, cannot be read
    """
    options, workspace = StartOptions.take_from(settings), Workspace()
    requested = plan_specs([one_job(**settings)], workspace, dry_run=options.dry_run)
    return add_figures(start("single", requested, workspace, options), workspace)


def submit(**settings: Any) -> Result:
    """Start every job that the options ``settings`` ask for, as ``llmb-run submit`` does; show what became of each.

    ``settings`` are those of ``plan_options`` and the fields of ``StartOptions``. The result is that of ``start``, with
    the figures of runs that were followed to their end. A dry run only shows the plans, with exit status 0. Otherwise
    the exit status is the greatest of the errors' where some jobs could not be started; without one it is 1 where a
    figure of a run that was followed was not a number, else 0. The same command goes on with what was interrupted.

    Raises:
        LLMBError: a job cannot be planned (unless those are skipped), or none could be started
        OSError: a file of the training code, or another that a submission needs, cannot be read
    """
    options, workspace = StartOptions.take_from(settings), Workspace()
    return add_figures(start("submit", plan_options(workspace, options, **settings), workspace, options), workspace)


def start_sweep(requested: RequestedJobs, workspace: Workspace, how: StartOptions) -> Result:
    """Show which jobs of a sweep can run and which cannot, and start the former; in a dry run nothing is started.

    ``requested`` has the planned jobs and the refused ones, at least one in all; ``how`` the options for starting them;
    it is a dry run if the first planned job says so, whatever ``how`` does. The first repeats of all combinations start
    before the second ones. What is shown is printed before anything starts. The result is that of ``start_planned``, in
    a dry run ``dry_run`` (True), with exit status 0; its data has also ``planned`` (dicts with ``combination``, its
    values by dimension, and ``plan``, as ``plan_as_dict`` makes it, one for all repeats) and ``refused`` (dicts with
    ``combination`` and ``error``, as its ``as_dict`` returns it). ``workspace`` is the command's.

    Raises:
        RequestError: no combination can be planned (if a single one was asked for, its own error)
        LLMBError: no job could be started; in a dry run, something that a job needs is lacking
        OSError: a file of the training code, or another that a submission needs, cannot be read
    """
    planned, refused = requested.planned, requested.refused
    if not planned:
        raise _nothing_planned_error(refused)
    found = {
        "planned": [
            {"combination": item.spec.varied, "plan": plan_as_dict(item.plan)} for item in _without_repeats(planned)
        ],
        "refused": [{"combination": item.spec.varied, "error": item.error.as_dict()} for item in refused],
    }
    shown = _sweep_table(planned) + _refusal_lines(refused)
    if planned[0].request.dry_run:
        check_dry_run(planned, workspace, how)
        say_warnings(planned)
        remark = f"{counted(len(planned), 'job')}, nothing started (dry run)"
        return Result({"dry_run": True, **found}, shown, remarks=[remark])
    say(shown)
    in_turn = sorted(planned, key=lambda item: item.spec.repeat)
    done = start_planned("sweep", in_turn, workspace, how, swept=requested.specs)
    started = [job["run_id"] for job in done.data["jobs"] if not job["error"]]
    names = [done.data["round"]] if "round" in done.data else started
    rank = ("results", "--rank", *names)
    ended = add_figures(done, workspace, ranked=True)
    if ended is not done:
        return ended._replace(data={**found, **done.data}, hint=next_command(*rank))
    hint = f"{done.hint}\nwhen they are over: llmb-run {shlex.join(rank)}".lstrip()
    return done._replace(data={**found, **done.data}, hint=hint)


def _nothing_planned_error(refused: Sequence[Refused]) -> RequestError:
    """Return an error, for the caller to raise, that says why all combinations are refused.

    A single one's own, else one with the remedy of the first. There must be at least one.
    """
    first = refused[0].error
    if len(refused) == 1:
        return first
    none = f"none of {counted(len(refused), 'combination')} can be planned"
    reasons = {item.error.message for item in refused}
    message = f"{none}: {first.message}"
    if len(reasons) > 1:
        message = f"{none}:\n{_refusal_lines(refused)}".rstrip()
    return RequestError(message, remedy=first.remedy, code=first.code, field=first.field, complete=first.complete)


def _without_repeats(planned: Sequence[PlannedJob]) -> list[PlannedJob]:
    """Return those of the planned jobs that are first repeats, in order, so that no combination is there twice.

    A combination whose first repeat is not among ``planned`` is not in the answer.
    """
    return [item for item in planned if item.spec.repeat == 1]


def _sweep_table(planned: Sequence[PlannedJob]) -> str:
    """Return the combinations of a sweep as a table with a final newline: values, number of runs, memory, step time.

    A column for each varied dimension, then ``runs``, ``GPUs``, ``memory GiB``, ``step s`` and ``known from``, the
    last ones expected. A row for each combination, in the order of its first repeat in ``planned``. Columns without
    any value are left out; GPUs also where the scale is varied.
    """
    runs = Counter(item.spec.combination for item in planned)
    names = list(dict.fromkeys(chain.from_iterable(item.spec.varied for item in planned)))
    heads = [*names, "runs", "GPUs", "memory GiB", "step s", "known from"]
    rows = [
        [
            *(item.spec.varied.get(name, "") for name in names),
            str(runs[item.spec.combination]),
            *_outlook_cells(item.plan),
        ]
        for item in _without_repeats(planned)
    ]
    # The column of the varied scale has the same numbers.
    hidden = {"GPUs"} if "scale" in names else set()
    filled = [at for at in range(len(heads)) if any(row[at] for row in rows)]
    shown = [at for at in filled if heads[at] not in hidden]
    right = [heads[at] for at in shown if all(row[at][:1].isdigit() for row in rows)]
    shown_rows = [[row[at] for at in shown] for row in rows]
    return table([heads[at] for at in shown], shown_rows, right)


def _outlook_cells(plan: JobPlan) -> list[str]:
    """Return four cells on a planned job: GPUs, memory in GiB, step time in seconds, and what that is known from.

    Memory is ``61 of 79``: what a rank is likely to need, reserve included, of what its GPU has, with ``, `` and
    the verdict unless it fits. The step time may be a range. A cell is empty where nothing is known.
    """
    memory, step = plan.preflight.memory, step_seconds(plan)
    room = "" if memory is None else f"{memory.likely + memory.reserve:.0f} of {memory.limit:.0f}"
    doubt = "" if memory is None or memory.verdict == "fits" else f", {memory.verdict}"
    return [str(plan.gpus), room + doubt, "" if step is None else range_text(step), known_from(plan)]


def _refusal_lines(refused: Sequence[Refused]) -> str:
    """Return one line, with its line break, for each reason why combinations are refused, with the first of these.

    ``not run: tp=8, pp=3; tp=8, pp=5: REASON``; the reason is the error's message. Up to three combinations are named,
    then ``and 4 more``, each once; one without varied settings is not, and without any the line is ``not run: REASON``.
    Reasons are in the order in which ``refused`` first has them; empty where none is refused.
    """
    together: dict[str, dict[str, None]] = {}
    for item in refused:
        together.setdefault(item.error.message, {})[item.spec.combination] = None
    lines = []
    for why, who in together.items():
        named = [name for name in who if name]
        lines.append(": ".join(filter(None, ("not run", first_few(named, between="; "), why))))
    return "".join(f"{line}\n" for line in lines)


def sweep(**settings: Any) -> Result:
    """Start every combination of settings that can run, as ``llmb-run sweep`` does.

    ``settings`` are those of ``plan_options``, among which ``vary`` and ``zipped`` must be, and the fields of
    ``StartOptions``. Combinations that cannot be planned are shown, with why. The result is that of ``start_sweep``.

    Raises:
        RequestError: nothing is varied, or no combination can be planned
        LLMBError: no job could be started
        OSError: a file of the training code, or another that a submission needs, cannot be read
    """
    options, workspace = StartOptions.take_from(settings), Workspace()
    requested = plan_options(workspace, options, **settings)
    if not (settings["vary"] or settings["zipped"] or any(spec.varied for spec in requested.specs)):
        raise RequestError(
            "nothing is varied", remedy="--vary tp=1,2 --vary NCCL_ALGO=Ring,Tree, or --zip 'tp=1,2 pp=4,2'"
        )
    return start_sweep(requested, workspace, options)


def bulk(file: Path, **settings: Any) -> Result:
    """Start the jobs of the task file ``file``, as ``llmb-run bulk`` does; those on record are not started again.

    On record is a job that an earlier ``bulk`` of this file has submitted, however its run ended; the file is known
    by its resolved path, whatever it contains. ``settings``: the fields of ``StartOptions``; ``again`` among them
    starts all anew. The result, its exit status too, is as of ``submit``.

    Raises:
        ConfigError: something in the file is wrong, or it cannot be read
        LLMBError: a job cannot be planned (unless those are skipped), or none could be started
        OSError: a file of the training code, or another that a submission needs, cannot be read
    """
    options, workspace = StartOptions.take_from(settings), Workspace()
    requested = plan_specs(read_tasks(file, workspace), workspace, dry_run=options.dry_run)
    return add_figures(start("bulk", requested, workspace, options, task_file=str(file.resolve())), workspace)
