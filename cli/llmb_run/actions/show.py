"""``llmb-run show``."""

from __future__ import annotations

import time
from collections.abc import Sequence

from llmb_common.base.errors import RecordError
from llmb_common.base.hostlist import compress
from llmb_common.base.notices import notice
from llmb_common.base.outcome import Result
from llmb_common.base.printable import counted, percent, printable
from llmb_common.base.run_states import is_live
from llmb_common.base.strict_yaml import read_text
from llmb_common.measured.measure import measure_run
from llmb_common.measured.run import MeasuredRun, reference_lines
from llmb_common.planning.workspace import Workspace
from llmb_common.runs.account import as_json_values
from llmb_common.runs.finding import Attempt, attempts_of
from llmb_common.runs.manifest import image_line
from llmb_common.runs.record import load_record
from llmb_common.runs.stragglers import Straggler, straggler_in
from llmb_common.submission.observe import Observation, observe
from llmb_run.columns import seconds_of
from llmb_run.results.one_line import result_line
from llmb_run.results.run_columns import as_dict
from llmb_run.selecting import one_folder
from llmb_run.terminal import duration_text, local_time_text, next_command, with_label


def show(run: str | None, script: bool) -> Result:
    """Show one run, as ``llmb-run show`` does (``run`` None: the newest); with ``script``, its batch script instead.

    ``run`` is a word that names one. The scheduler is asked for the run's state, and record and index are brought
    up to date; where it does not answer, a notice says so, and the last known state is shown. With ``script`` it is
    not asked. The exit status is 0, whatever the run's state. As JSON: ``record``, ``nodes``, ``reason`` (of
    waiting), ``start`` (Unix time, or None), ``evidence``, ``straggler`` (None: none stands out) and ``result``; of
    the script ``run_id``, ``path`` and ``script``.

    Raises:
        RequestError: there is no such run, or no installation
        RecordError: the run's record or script cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: a log that is read again for its steps cannot be read
    """
    workspace = Workspace()
    record = load_record(one_folder(workspace, run))
    word = record.paths.run_id
    if script:
        text = read_text(record.paths.script, RecordError)
        return Result({"run_id": word, "path": str(record.paths.script), "script": text}, text, for_programs=True)
    seen = observe([record])[0]
    if seen.finding.unknown:
        notice(f"showing the last known state: {seen.finding.unknown}")
    measured = measure_run(seen.record, workspace)
    slow = straggler_in(record.paths.folder, record.plan)
    data = {
        "record": seen.record.as_dict(),
        "nodes": seen.finding.nodes,
        "reason": seen.finding.reason,
        "start": seen.finding.start,
        "evidence": as_json_values(measured.account),
        "straggler": as_json_values(slow) if slow else None,
        "result": as_dict(measured),
    }
    if is_live(seen.record.state):
        hint = next_command("watch", word)
    elif measured.timing.status.reason == "told_to_end":
        hint = next_command("retry", word, "--resume")
    else:
        hint = next_command("why" if measured.why else "results", word)
    return Result(data, lambda: _run_text(seen, measured, slow), hint=hint)


def _run_text(seen: Observation, measured: MeasuredRun, slow: Straggler | None) -> str:
    """Return everything known of a run as text for people, with a final newline: headings, each with its lines.

    ``seen`` is the run as observed, ``measured`` its figures. Headings without lines are left out. ``slow``: the
    rank for which the others waited; None: none stands out.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    record, plan = seen.record, seen.record.plan
    names = ("tp", "pp", "cp", "vp", "ep", "etp", "dp", "mbs", "gbs", "ga")
    values = {name.upper(): getattr(plan, name) for name in names}
    layout = [f"{name} {value}" for name, value in values.items() if value is not None]
    function, made = plan.function, record.manifest
    git = made.get("git")
    commit = f", commit {git['commit'][:12]}{' with changes' if git['dirty'] else ''}" if git else ""
    parts = {
        "run": [f"{record.paths.run_id}  {record.paths.name}"],
        "state": [_state_line(seen)],
        "job": [_job_line(seen, measured.account.hosts)],
        "plan": [
            f"{plan.workload} {plan.model_size} {plan.precision} on {plan.scale}, {counted(plan.nodes, 'node')}",
            f"{function.name} of Megatron-Bridge {function.release}" if function else "",
            ", ".join(layout),
            f"{plan.max_steps} steps, time limit {plan.time_limit}",
        ],
        "made by": [f"llmb {made.get('llmb', '?')}{commit}, on {made.get('host', '?')}"],
        "image": [image_line(made)],
        "ran on": measured.account.lines() or ["unknown: no node left a record that can be read"],
        "folder": [str(record.paths.folder)],
        "log": [str(record.paths.log)],
        "history": [f"{local_time_text(item.time)}  {item.state}  {item.detail}".rstrip() for item in record.states],
        "earlier": [_attempt_line(attempt) for attempt in attempts_of(record)],
        "result": [result_line(measured), _stall_text(measured), *reference_lines([measured])],
        "memory": [_memory_text(measured)],
        "besides": measured.extras.lines(),
        "remarks": [printable(text) for text in measured.remarks],
        "findings": [f"{item.severity}: {item.text}" for item in measured.findings],
        "slow": [slow.text if slow else ""],
        **_why_parts(measured),
    }
    return "".join(with_label(name, [line for line in lines if line]) for name, lines in parts.items())


def _attempt_line(attempt: Attempt) -> str:
    """Return an earlier start of the run's job as one line: when it ended, else began, two blanks, and what it was.

    The local time; without it where neither is known.
    """
    when = attempt.ended or attempt.started
    return f"{local_time_text(when)}  {attempt}" if when is not None else str(attempt)


def _why_parts(measured: MeasuredRun) -> dict[str, list[str]]:
    """Return why the run failed and the command that excludes a bad node, as ``all_lines`` does, by their headings.

    ``why`` and ``keep out``, without what else the logs complain about; empty where it has not failed.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
    """
    if not measured.why:
        return {}
    from llmb_run.actions.why import all_lines  # here: most runs have not failed, and these patterns take a while

    return {heading: lines for heading, lines in all_lines(measured.why) if heading != "besides"}


def _state_line(seen: Observation) -> str:
    """Return the run's state and since when it has it, as one line; of a waiting run also what it waits for.

    ``RUNNING since TIME (12 min)`` of a live run, ``COMPLETED at TIME`` of one that has ended; times are local.
    """
    record = seen.record
    since = f"at {local_time_text(record.state_time)}"
    if is_live(record.state):
        since = f"since {local_time_text(record.state_time)} ({duration_text(time.time() - record.state_time)})"
    return f"{record.state} {since}" + (f", {seen.finding.waits_for}" if seen.finding.reason else "")


def _job_line(seen: Observation, hosts: Sequence[str]) -> str:
    """Return where the run is or was, as one line: its job id and nodes, or, without a scheduler, its host and process.

    ``4711 on n[1-4]``; ``no job id yet`` where it has none. The nodes are those that the scheduler names, else
    ``hosts``, which left records (empty: none did). Without a scheduler ``on HOST, process 4711``, or ``on
    this machine`` where the process is not known.
    """
    record = seen.record
    if not record.plan.traits.queued:
        return (
            "on this machine" if record.process is None else f"on {record.process.host}, process {record.process.pid}"
        )
    nodes = seen.finding.nodes or compress(hosts)
    where = f" on {printable(nodes)}" if nodes else ""
    return f"{record.job_id or 'no job id yet'}{where}"


_STALLS_SHOWN = 0.001
"""Share of the step time: what less cost is not worth a word."""


def _stall_text(measured: MeasuredRun) -> str:
    """Return what share of the step time stalls are, as a clause; only for a time that is compared with a reference.

    ``stalls are 2.1 % of it: a steady step takes 1.234 s``, without a period. Empty otherwise, and where stalls are
    below 0.1 % of it.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    time = measured.steps.time
    if measured.verdict is None or measured.verdict.reference is None or time is None:
        return ""
    stalls = time.mean / time.seconds - 1
    if abs(stalls) < _STALLS_SHOWN:
        return ""
    return f"stalls are {percent(stalls)} of it: a steady step takes {seconds_of(time.seconds)} s"


def _memory_text(measured: MeasuredRun) -> str:
    """Return the run's measured and predicted peak of GPU memory, in GiB, whichever are known; empty without both.

    ``61.2 GiB at most on a GPU, 70.1 reserved, predicted 58.0 of 79.1 GiB (...)``. On a CPU it is the memory of a
    rank.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
    """
    plan = measured.record.plan.preflight.memory if measured.record else None
    parts = []
    if measured.memory_gib is not None:
        reserved = f", {measured.memory_reserved_gib:.1f} reserved" if measured.memory_reserved_gib else ""
        where = "in a rank" if measured.record and measured.record.plan.device == "cpu" else "on a GPU"
        parts.append(f"{measured.memory_gib:.1f} GiB at most {where}{reserved}")
    if plan is not None:
        parts.append(f"predicted {plan.peak:.1f} of {plan.limit:.1f} GiB ({plan.kind}: {plan.knowledge})")
    return ", ".join(parts)
