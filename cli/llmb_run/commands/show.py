"""The commands that say what a run was, and why it failed or was slow: show, why."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from llmb_common.causes.answer import Diagnosis, Symptom, count
from llmb_common.causes.diagnosis import diagnose_logs
from llmb_common.causes.table import signatures
from llmb_common.command.outcome import Result
from llmb_common.command.printable import counted, printable
from llmb_common.decoding.strict_yaml import read_text
from llmb_common.errors import RecordError, RequestError
from llmb_common.index.runs import RunFilter, RunRow
from llmb_common.platform.run_states import is_live
from llmb_common.runs.account import as_plain
from llmb_common.runs.finding import attempts_of
from llmb_common.runs.manifest import image_line
from llmb_common.runs.record import load_record
from llmb_common.runs.stragglers import FILE, Straggler, straggler_in
from llmb_common.submission.observe import Observation, observe
from llmb_common.timing.log_files import is_log_name
from llmb_run import options
from llmb_run.app import Command
from llmb_run.columns import seconds_of
from llmb_run.comparing.gap import find_gap, lines_of
from llmb_run.results.measured import MeasuredRun, explain, reference_lines
from llmb_run.results.measuring import measure, measure_run
from llmb_run.results.one_line import result_line
from llmb_run.results.run_columns import as_dict
from llmb_run.selecting import load_rows, one_folder, run_filter, select_rows
from llmb_run.terminal import clock, labelled, next_command, notice, span, table
from llmb_run.workspace import Workspace


@click.command(cls=Command)
@options.optional_run
@options.flag("--script", help="Print the batch script as it was submitted.")
def show_command(run: str | None, script: bool) -> Result:
    """Show one run: state, place, plan, result, and what went wrong.

    \b
    llmb-run show a1b2c3d4

    Without RUN: the newest one.
    """
    workspace = Workspace()
    record = load_record(one_folder(workspace, run))
    word = record.paths.run_id
    if script:
        text = read_text(record.paths.script, RecordError)
        return Result({"run_id": word, "path": str(record.paths.script), "script": text}, text, for_programs=True)
    seen = observe([record])[0]
    if seen.finding.unknown:
        notice(f"the last known state is shown: {seen.finding.unknown}")
    measured = measure_run(seen.record, workspace)
    slow = straggler_in(record.paths.folder, record.plan)
    data = {
        "record": seen.record.as_dict(),
        "nodes": seen.finding.nodes,
        "reason": seen.finding.reason,
        "start": seen.finding.start,
        "evidence": as_plain(measured.account),
        "straggler": as_plain(slow) if slow else None,
        "result": as_dict(measured),
    }
    if is_live(seen.record.state):
        hint = next_command("watch", word)
    elif measured.timing.status.reason == "told_to_end":
        hint = next_command("retry", word, "--resume")
    else:
        hint = next_command("why" if measured.why else "results", word)
    return Result(data, lambda: _text(seen, measured, slow), hint=hint)


def _text(seen: Observation, measured: MeasuredRun, slow: Straggler | None) -> str:
    record, plan = seen.record, seen.record.plan
    names = ("tp", "pp", "cp", "vp", "ep", "etp", "dp", "mbs", "gbs", "ga")
    layout = [f"{name.upper()} {value}" for name in names if (value := getattr(plan, name)) is not None]
    function, made = plan.function, record.manifest
    git = made.get("git")
    commit = f", commit {git['commit'][:12]}{' with changes' if git['dirty'] else ''}" if git else ""
    parts = {
        "run": [f"{record.paths.run_id}  {record.paths.name}"],
        "state": [_state(seen)],
        "job": [_job(seen)],
        "plan": [
            f"{plan.workload} {plan.model_size} {plan.precision} on {plan.scale}, {counted(plan.nodes, 'node')}",
            f"{function.name} of Megatron-Bridge {function.release}" if function else "",
            ", ".join(layout),
            f"{plan.max_steps} steps, time limit {plan.time_limit}",
        ],
        "made by": [f"llmb {made.get('llmb', '?')}{commit}, on {made.get('host', '?')}"],
        "image": [image_line(made)],
        "ran on": measured.account.lines() or ["the nodes left no account of themselves"],
        "folder": [str(record.paths.folder)],
        "log": [str(record.paths.log)],
        "history": [f"{clock(item.time)}  {item.state}  {item.detail}".rstrip() for item in record.states],
        "earlier": [
            f"{clock(when)}  {attempt}" if (when := attempt.ended or attempt.started) is not None else str(attempt)
            for attempt in attempts_of(record)
        ],
        "result": [result_line(measured), _steady(measured), *reference_lines([measured])],
        "memory": [_memory(measured)],
        "besides": measured.extras.lines(),
        "remarks": [printable(text) for text in measured.remarks],
        "findings": [f"{item.severity}: {item.text}" for item in measured.findings],
        "slow": [slow.text if slow else ""],
        "why": cause_lines(measured.why) if measured.why else [],
    }
    return "".join(labelled(name, [line for line in lines if line]) for name, lines in parts.items())


def _state(seen: Observation) -> str:
    record = seen.record
    since = f"at {clock(record.state_time)}"
    if is_live(record.state):
        since = f"since {clock(record.state_time)} ({span(time.time() - record.state_time)})"
    return f"{record.state} {since}" + (f", {seen.finding.waits_for}" if seen.finding.reason else "")


def _job(seen: Observation) -> str:
    record = seen.record
    if not record.plan.traits.queued:
        return (
            "on this machine" if record.process is None else f"on {record.process.host}, process {record.process.pid}"
        )
    where = f" on {seen.finding.nodes}" if seen.finding.nodes else ""
    return f"{record.job_id or 'no job id yet'}{where}"


_STALLS_SHOWN = 0.001
"""Share of the step time: what less cost is not worth a word."""


def _steady(measured: MeasuredRun) -> str:
    """What stalls cost of a step time that is compared with a reference; empty where that is nothing."""
    time = measured.steps.time
    if measured.verdict is None or measured.verdict.reference is None or time is None:
        return ""
    stalls = time.mean / time.seconds - 1
    if abs(stalls) < _STALLS_SHOWN:
        return ""
    return f"of this, stalls are {stalls:.1%}: steady steps take {seconds_of(time.seconds)} s"


def _memory(measured: MeasuredRun) -> str:
    """What was predicted and what was measured, of whichever there is."""
    plan = measured.record.plan.preflight.memory if measured.record else None
    parts = []
    if measured.memory_gib is not None:
        reserved = f", {measured.memory_reserved_gib:.1f} reserved" if measured.memory_reserved_gib else ""
        where = "in a rank" if measured.record and measured.record.plan.device == "cpu" else "on a GPU"
        parts.append(f"{measured.memory_gib:.1f} GiB at most {where}{reserved}")
    if plan is not None:
        parts.append(f"predicted {plan.peak:.1f} of {plan.limit:.1f} GiB ({plan.kind}: {plan.knowledge})")
    return ", ".join(parts)


def cause_lines(found: Diagnosis) -> list[str]:
    """What began it, the line that says so, and what to do; of an unknown cause its witnesses."""
    cause = found.cause
    if cause is None:
        if found.suspect is None:
            return [found.summary]
        remedy = next((known.remedy for known in signatures() if known.id == found.suspect.signature), "")
        return [found.summary, _witness(found.suspect), *([f"-> {remedy}"] if remedy else [])]
    sure = "" if cause.sure == "certain" else f" ({cause.sure})"
    step = f"; the last iteration before it is {cause.step}" if cause.step is not None and not found.trained else ""
    lines = [f"{found.summary}{sure}{step}", cause.cause]
    lines += [f"{_where(cause.file, cause.number)}{cause.line}"] if cause.line else []
    return [*lines, f"-> {cause.remedy}"]


def all_lines(found: Diagnosis) -> list[tuple[str, list[str]]]:
    """The same with everything that was found, each with its name."""
    cause = found.cause
    lines = [("why", cause_lines(found))]
    if cause is not None and cause.keep_out and cause.node:
        reason = cause.what.replace("'", "")
        lines.append(("keep out", [f"llmb-run exclude add {cause.node} --days 7 --reason '{reason}'"]))
    if beside := [_witness(item) for item in found.witnesses if item != found.suspect]:
        lines.append(("besides", beside))
    return lines


def _witness(item: Symptom) -> str:
    ranks = f", rank {item.ranks[0]}" if item.ranks else ""
    if len(item.ranks) > 1:
        ranks = f", {counted(len(item.ranks), 'rank')}"
    count = f", {item.count} lines" if item.count > 1 else ""
    kind = f"[{item.role}{ranks}{count}] " if item.signature else ""
    return f"{kind}{_where(item.file, item.number)}{item.line}"


def _where(file: str, number: int | None) -> str:
    name = file.rpartition("/")[2]
    return f"{name}:{number}: " if name and number else f"{name}: " if name else ""


@click.command(cls=Command)
@options.runs
@options.filters
@options.flag(
    "--slow",
    help="Show instead which rank the others waited for, and how the run differs from the fastest of the same work.",
)
def why_command(runs: tuple[str, ...], slow: bool, **filters: Any) -> Result:
    """Say why runs failed: the first cause, its rank and node, and what to do.

    \b
    llmb-run why a1b2c3d4
    llmb-run why --slow a1b2c3d4

    RUNS may also be logs, or folders of logs, that LLMB did not write. Without RUNS, the newest run is explained; with
    an option such as --since 7d, all runs that match, counted by cause and node. If no cause is found, it is unknown,
    and the log lines that might help are shown.

    With --slow, the differences that are worth most by published results come first, each with the ab command that
    measures it here.
    """
    if slow:
        return _slow(Workspace(), runs, filters)
    paths = [Path(word) for word in runs]
    # Logs, and folders with logs and without a record.
    foreign = [path for path in paths if path.is_file() or (path.is_dir() and not (path / "run.json").exists())]
    names = [word for word in runs if Path(word) not in foreign]
    found = [_of_logs(path) for path in foreign]
    if names or not runs:
        found += _of_runs(Workspace(), names, filters)
    if not found:
        notice("no run matches")
    many = not runs and any(filters.values())
    return _summary(found) if many else _each(found)


class _Explained(msgspec.Struct):
    """``why``: None where the run has not failed."""

    run: str
    status: str
    why: Diagnosis | None


def _chosen(workspace: Workspace, names: Sequence[str], filters: dict[str, Any]) -> list[RunRow]:
    """Those that are named or match; without any wish the newest."""
    wanted = names or ([] if any(filters.values()) else [str(one_folder(workspace, None))])
    return select_rows(workspace, wanted, run_filter(workspace, **filters))


def _slow(workspace: Workspace, names: Sequence[str], filters: dict[str, Any]) -> Result:
    """Who kept the others waiting, and what each run has otherwise than the best of the same work here."""
    found, text = [], ""
    rows = _chosen(workspace, names, filters) if names or any(filters.values()) else [_newest_timed(workspace)]
    for record in load_rows(rows)[0]:
        folder = record.paths.folder
        item = straggler_in(folder, record.plan)
        nobody = (
            "no rank stands out, which is not to say that none is slow"
            if (folder / FILE).exists()
            else "its ranks recorded no waits"
        )
        text += labelled("run", [f"{record.paths.run_id}  {record.paths.name}"])
        text += labelled("slow", [item.text if item else nobody])
        gap = find_gap(record, workspace)
        text += "".join(labelled(name, lines) for name, lines in lines_of(gap))
        found.append(msgspec.to_builtins({"run": record.paths.run_id, "straggler": item, "gap": gap}))
    return Result({"runs": found}, text)


_MOST_LOOKED_AT = 20


def _newest_timed(workspace: Workspace) -> RunRow:
    """The newest run with a step time: what failed or still runs is not slow.

    Raises:
        RequestError: none of the newest has one
    """
    for row in select_rows(workspace, [], RunFilter(limit=_MOST_LOOKED_AT)):
        if any(item.good for item in measure([row], workspace)):
            return row
    raise RequestError("none of the newest runs has a step time yet", remedy="llmb-run why says why runs failed")


def _of_logs(path: Path) -> _Explained:
    logs = [path] if path.is_file() else sorted(path.glob("*.out*")) or sorted(path.glob("*.log*"))
    if not logs:
        raise RequestError(f"{path} holds no log", remedy="name a log, or a folder with NAME.out or NAME.log")
    return _Explained(str(path), "", diagnose_logs(sorted(logs, key=lambda log: not is_log_name(log.name))))


def _of_runs(workspace: Workspace, names: Sequence[str], filters: dict[str, Any]) -> list[_Explained]:
    measured = measure(_chosen(workspace, names, filters), workspace)
    explain(measured)
    return [
        _Explained(
            item.record.paths.run_id if item.record else item.timing.files.name,
            ": ".join(filter(None, (item.timing.status.state, item.timing.status.message))),
            item.why,
        )
        for item in measured
    ]


def _each(found: Sequence[_Explained]) -> Result:
    text = ""
    for item in found:
        said = [f"{printable(item.run)}  {printable(item.status)}".rstrip()]
        lines = all_lines(item.why) if item.why else [("why", ["it has not failed"])]
        text += "".join(labelled(name, part) for name, part in [("run", said), *lines])
    return Result({"runs": msgspec.to_builtins(found)}, text)


def _summary(found: Sequence[_Explained]) -> Result:
    """Many runs: what they failed of, and where."""
    badly = {item.run: item.why for item in found if item.why is not None}
    counted = count([*badly.values()])
    failed = [why for why in badly.values() if not why.trained]
    text = f"{len(failed)} of {len(found)} runs failed\n"
    kinds = [[str(item.count), item.kind, item.what, ", ".join(item.nodes)] for item in counted.kinds]
    text += table(["runs", "cause", "", "nodes"], kinds, ("runs",))
    text += table(["run", "why"], [[run, why.summary] for run, why in badly.items()])
    text += "".join(f"{line}\n" for line in counted.advice)
    return Result({"runs": msgspec.to_builtins(found), **counted.as_dict()}, text)
