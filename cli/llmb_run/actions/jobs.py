"""The commands about runs that go on: jobs, wait, cancel."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmb_common.base.errors import CheckFailed, LLMBError, NotYet, RecordError, RequestError
from llmb_common.base.notices import notice
from llmb_common.base.outcome import Result
from llmb_common.base.printable import printable
from llmb_common.base.run_states import is_live
from llmb_common.measured.kept import diagnoses, step_times
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.workspace import Workspace
from llmb_common.results.configuration import distinguishing_settings
from llmb_common.runs.index.runs import UNREADABLE, RunFilter, RunRow, row_of
from llmb_common.runs.record import COMPLETED, RunRecord, load_record
from llmb_common.runs.timing.progress import Progress
from llmb_common.submission.observe import Observation, end_runs, wait
from llmb_run import options
from llmb_run.columns import Column, Form, item, run_as_json, table, work_of
from llmb_run.following import Changes, LiveRun, observed_runs
from llmb_run.selecting import (
    filters_text,
    load_rows,
    readable_records,
    run_filter,
    seconds_of,
    select_rows,
    states_of,
)
from llmb_run.terminal import local_time_text, next_command

if TYPE_CHECKING:
    from llmb_common.causes.answer import Diagnosis

MOST_LOGS = 100
"""Runs that have ended and whose logs are looked into for the time of their last step: each costs a file's end."""


JOBS: tuple[Column[dict[str, Any]], ...] = (
    Column("run_id", item("run_id"), Form.TABLE, head="run"),
    Column("state", item("state"), Form.TABLE, head="state"),
    Column("since", lambda run: local_time_text(run["state_time"]), Form.TABLE, head="since"),
    Column("gpus", lambda run: run["gpus"] or None, Form.TABLE, head="GPUs", spec="d"),
    Column("shown_seconds", item("shown_seconds"), Form.TABLE, head="s/step", spec=".3f"),
    Column("job_id", lambda run: run["job_id"] or "-", Form.TABLE, head="job"),
    Column("what", lambda run: work_of(run, run["differing"]), Form.TABLE, head="what"),
    Column("detail", lambda run: printable("; ".join(filter(None, (run["detail"], run["cause"])))), Form.TABLE),
)
"""The columns of ``jobs``, of a run as JSON with its ``live``. Step times are those of ``results``, and while a run
lives that of its last step."""


def jobs(
    runs: tuple[str, ...], state: tuple[str, ...], limit: int | None, live: bool, everything: bool, **filters: Any
) -> Result:
    """List runs and their states, as ``llmb-run jobs`` does; the scheduler is asked about those that are live.

    ``runs``: words that name some, listed in their order. Without words, those that match the other options, newest
    first. Listed are the first ``limit`` of either; None or 0: ``JOBS_LISTED`` (20), or with words, ``live`` or
    ``everything`` all. ``state``: names of states, of which any will do; it and ``live`` apply to named runs, too.
    ``filters`` are the other options of ``run_filter``. Records and index are brought up to date; a notice says if
    nothing matches. As JSON: ``runs``, as ``_job_json`` makes them, with ``differing``, ``step`` and
    ``step_seconds``. The exit status is 0.

    Raises:
        RequestError: a word names no run, an option has a wrong value, or there is no installation
        RecordError: the record of a live run cannot be read
        RecipeError, ConfigError: a filter names a workload, and a recipe or the site's configuration cannot be read
        OSError: the installation's folder may not be looked at
    """
    workspace = Workspace()
    is_for_all = bool(everything or live or runs)
    count = limit or (None if is_for_all else options.JOBS_LISTED)
    # States of live runs are known only after the question: they are filtered below. One more tells of others.
    most = count + 1 if count and not state else None
    wanted = run_filter(workspace, **filters, live=True if live else None, limit=most)
    rows = select_rows(workspace, runs, wanted)
    lines = _current_rows(rows)
    if live:
        lines = [line for line in lines if line["live"]]  # the index knew them alive; some have ended since
    if state:
        names = states_of(state)
        lines = [line for line in lines if line["state"] in names]
    hint = f"the {count} newest; --all shows the others" if count and len(lines) > count else ""
    lines = lines[:count]
    if not lines:
        if any((runs, state, live, *filters.values())):
            notice(f"no run matches{filters_text({'state': state, **filters})}")
        else:
            notice("no run yet")
        hint = next_command("list")
    _note_differences(lines)
    return Result(lambda: _as_json(lines, rows), lambda: _as_table(lines, rows, workspace), hint=hint)


def _as_json(lines: list[dict[str, Any]], rows: list[RunRow]) -> dict[str, Any]:
    """Return ``{"runs": lines}`` for ``jobs --json``, each run with its last step and that step's seconds.

    Changes ``lines``, the listed runs as ``_job_json`` makes them: adds ``step`` and ``step_seconds`` where they are
    lacking, None beyond the first ``MOST_LOGS`` lines, and where the log has none. ``rows``, from the index, name the
    logs: they are matched by folder, in any order, and there must be one for each line; more are ignored.
    """
    logs = {str(row.folder): row.log for row in rows}
    for at, line in enumerate(lines):
        if "step" not in line:
            line.update(_last_step(logs[line["folder"]]) if at < MOST_LOGS else {"step": None, "step_seconds": None})
    return {"runs": lines}


def _last_step(log: Path) -> dict[str, Any]:
    """Return the number of the last training step in a log as ``step``, and its ``step_seconds``; None: not there.

    A missing log counts as one without steps.
    """
    progress = Progress(log, 0)
    progress.look()
    return {"step": progress.step or None, "step_seconds": progress.step_seconds}


def _as_table(lines: list[dict[str, Any]], rows: list[RunRow], workspace: Workspace) -> str:
    """Return the listed runs as a table with a final newline; empty without runs.

    Its step time is a live run's last one, and an ended run's mean over the documented window, where it has one.
    ``lines`` are as ``_job_json`` makes them, with ``differing``. Only the first ``MOST_LOGS`` logs of ended runs are
    read. ``rows`` are those of the same runs in the index, matched by folder, and maybe of more; an ended run without
    one has no step time. ``workspace``: in whose index the figures of logs are kept.
    """
    not_live = [line for line in lines[:MOST_LOGS] if not line["live"]]
    asked = {line["folder"] for line in not_live if line["state"] != UNREADABLE}
    ended = [row for row in rows if str(row.folder) in asked]
    known = step_times(ended, workspace.install_or_none)
    shown = []
    for line in lines:
        seconds = line["step_seconds"] if line["live"] else known.get(Path(line["folder"]))
        shown.append({**line, "shown_seconds": seconds})
    return table(JOBS, shown)


def _note_differences(lines: list[dict[str, Any]]) -> None:
    """Add to each of ``lines``, listed runs, the settings in which it differs from others, as ``differing``.

    Each line must have ``folder``, the run's folder. Text such as ``tp=2, NCCL_ALGO=Ring``, for runs of the same kind
    of job. None where it differs in nothing, its record cannot be read, or beyond the first ``MOST_LOGS`` runs: each
    costs a look into its folder.
    """
    plans: list[JobPlan | None] = [None] * min(len(lines), MOST_LOGS)
    for at, line in enumerate(lines[:MOST_LOGS]):
        with contextlib.suppress(RecordError):
            plans[at] = load_record(Path(line["folder"])).plan
    for line, differing in zip(lines, [*distinguishing_settings(plans), *[""] * len(lines)], strict=False):
        line["differing"] = differing or None


def _current_rows(rows: list[RunRow]) -> list[dict[str, Any]]:
    """Return the runs ``rows`` as they are now, as JSON values, in order; the scheduler is asked about live ones.

    Each is as ``_job_json`` makes it. Ended runs are as the index has them; for those among the first ``MOST_LOGS``
    (100) that did not complete, the cause is looked up. A run that ended meanwhile is in the result, too. A live one
    whose record cannot be read, as a notice says then, is as the index has it. Nothing is raised.
    """
    alive = readable_records([row for row in rows if _is_alive(row)])
    asked = {run.record.paths.folder: run for run in observed_runs(alive)} if alive else {}
    ended = [row for row in rows[:MOST_LOGS] if row.folder not in asked]
    badly = [row for row in ended if row.state != COMPLETED and row.run_id]
    why = diagnoses(Workspace().install_or_none, load_rows(badly)[0])
    return [_job_json(row, asked.get(row.folder), why) for row in rows]


def _is_alive(row: RunRow) -> bool:
    """Return whether the run in ``row`` has not ended, as far as the index knows; False for an unreadable record."""
    return is_live(row.state) and row.state != UNREADABLE


def _job_json(row: RunRow, run: LiveRun | None, why: Mapping[str, Diagnosis]) -> dict[str, Any]:
    """Return one listed run as JSON values: as observed in ``run``, with its last step; or as the index has it.

    The latter, ``row``, where ``run`` is None. The keys are those of ``run_as_json``, ``cause`` and ``live``; where it
    was observed, ``detail`` is the remark of ``run`` (text, maybe empty). A live run also has ``step`` and
    ``step_seconds``, None where the log has none or the run was not observed. ``cause`` is why it failed, from ``why``
    (by run id); None where that has none, or the run was observed.
    """
    if run is None:
        cause = why[row.run_id].short if row.run_id in why else None
        line = {**run_as_json(row), "cause": cause, "live": _is_alive(row)}
        return line | ({"step": None, "step_seconds": None} if line["live"] else {})
    line = {**run_as_json(row_of(run.record)), "detail": run.remark(), "cause": None, "live": run.live}
    return line | _last_step(row.log)


def wait_for(runs: tuple[str, ...], timeout: str | None) -> Result:
    """Wait until runs have ended, as ``llmb-run wait`` does, and print each change of state on stderr.

    ``runs``: words that name some; without any, all live ones of the user's own (a notice says if there is none).
    ``timeout``: a time span such as ``2h``; None: without limit. The exit status is 1 where one failed or was
    cancelled, unless every step was trained. Where some have not ended in time, the result has an error of code
    ``timeout`` (exit status 4, or 1 if another one failed), and these runs keep running. As JSON: ``runs``, as
    ``LiveRun.as_dict`` returns them.

    Raises:
        RequestError: a word names no run, ``timeout`` is no time span, or there is no installation
        RecordError: a run's record cannot be read
        SchedulerError: none of the runs that have not ended will ever start
        AnswerLost: the scheduler did not answer for a long time
    """
    seconds = None if timeout is None else seconds_of(timeout, "--timeout")
    rows = select_rows(Workspace(), runs, RunFilter(live=True), others="not waited for")
    if not rows:
        notice("no run to wait for")
    records = [load_record(row.folder) for row in rows]
    changes = Changes(partial(print, file=sys.stderr))
    ended = wait(records, timeout=seconds, seen=changes.tell) if rows else []
    runs_now = [LiveRun(Observation(record)) for record in ended]
    still = [run for run in runs_now if run.live]
    failed = [run for run in runs_now if not (run.live or run.well)]
    error: LLMBError | None = None
    if still:
        kind = CheckFailed if failed else NotYet
        who = f"{len(still)} of {len(ended)} runs" if len(ended) > 1 else "the run"
        error = kind(
            f"{who} did not end within {timeout}",
            remedy=f"{'it keeps' if len(still) == 1 else 'they keep'} running: llmb-run jobs shows how far",
            code="timeout",
        )
    return Result(
        {"runs": [run.as_dict() for run in runs_now]},
        "".join(f"{_ended_line(run)}\n" for run in runs_now),
        status=1 if failed else 0,
        error=error,
    )


def _ended_line(run: LiveRun) -> str:
    """Return one line on a run that was waited for: its id, state and name, and whether every step was trained.

    ``3f2a9c1e  FAILED  every step was trained  NAME``, the third part only where the run has ended without
    completing and did train every step; without a line break.
    """
    record = run.record
    trained = "  every step was trained" if record.state != COMPLETED and run.trained else ""
    return f"{record.paths.run_id}  {record.state}{trained}  {record.paths.name}"


def cancel(runs: tuple[str, ...], everything: bool) -> Result:
    """Cancel ``runs``, or with ``everything`` all live ones of the user's own, as ``llmb-run cancel`` does.

    ``runs`` are words that name some. Waits up to 10 s for them to end. As JSON: ``runs``, as ``LiveRun.as_dict``
    returns them, and ``refused``, a list of dicts with ``run`` and ``error``, for those that could not be cancelled,
    such as another user's; the highest exit status of these errors is the result's. Named runs that had ended are no
    error, and a notice says if there is none to cancel.

    Raises:
        RequestError: neither or both are asked for, a word names no run, or there is no installation
        RecordError: the list of folders outside the installation cannot be read
    """
    if bool(runs) == everything:
        raise RequestError("name the runs to cancel, or give --all", remedy="llmb-run jobs --live shows them")
    before, problems = load_rows(select_rows(Workspace(), runs, RunFilter(live=True), others="not cancelled"))
    results = list(zip(before, end_runs(before), strict=True))
    problems += [(record.paths.run_id, result) for record, result in results if isinstance(result, LLMBError)]
    ended = [(old, new) for old, new in results if isinstance(new, RunRecord)]
    if not results and not problems:
        notice("no run to cancel")
    lines = []
    for old, new in ended:
        note = _cancel_note(old, new)
        lines.append(f"{new.paths.run_id}  {new.state}  {new.paths.name}{note}\n")
    return Result(
        data={
            "runs": [LiveRun(Observation(record)).as_dict() for _, record in ended],
            "refused": [{"run": name, "error": error.as_dict()} for name, error in problems],
        },
        text="".join(lines),
        remarks=[f"error: {name}: {error}" for name, error in problems],
        status=max((error.exit_status for _, error in problems), default=0),
    )


def _cancel_note(before: RunRecord, after: RunRecord) -> str:
    """Return what the state alone does not say of a run that was to be cancelled; empty: nothing.

    ``  was told to end`` where it still lives (``after``), ``  had already ended`` where its state was the same
    ``before``; each begins with two blanks.
    """
    if is_live(after.state):
        return "  was told to end"
    return "  had already ended" if before.state == after.state else ""
