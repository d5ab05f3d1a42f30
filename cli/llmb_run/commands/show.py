"""``llmb-run show``."""

from __future__ import annotations

import time
from typing import Any

import click

from llmb_common.command.outcome import Result
from llmb_common.command.printable import counted, printable
from llmb_common.platform.run_states import is_live
from llmb_common.runs.evidence.account import as_plain
from llmb_common.runs.evidence.stragglers import Straggler, straggler_in
from llmb_common.runs.finding import Attempt, attempts_of
from llmb_common.runs.manifest import image_line
from llmb_common.runs.record import load_record
from llmb_common.submission.observe import Observation, observe
from llmb_run import options
from llmb_run.app import Command
from llmb_run.commands.why import cause_lines
from llmb_run.results.measuring import MeasuredRun, measure_run, reference_lines
from llmb_run.results.run_columns import as_dict
from llmb_run.selecting import one_folder
from llmb_run.terminal import clock, labelled, notice, span
from llmb_run.workspace import Workspace


@click.command(cls=Command)
@options.optional_run
@options.flag("--script", help="Print the batch script as it was submitted.")
def show_command(run: str | None, script: bool) -> Result:
    """Show one run: state, place, plan, result, and what went wrong.

    Without RUN: the newest one.
    """
    workspace = Workspace()
    record = load_record(one_folder(workspace, run))
    word = record.paths.run_id
    if script:
        text = record.paths.script.read_text(encoding="utf-8")
        return Result({"run_id": word, "path": str(record.paths.script), "script": text}, text, for_programs=True)
    seen = observe([record])[0]
    if seen.finding.unknown:
        notice(f"the last known state is shown: {seen.finding.unknown}")
    measured = measure_run(seen.record, workspace)
    data = {
        "record": seen.record.as_dict(),
        "nodes": seen.finding.nodes,
        "reason": seen.finding.reason,
        "start": seen.finding.start,
    }
    data["evidence"] = as_plain(measured.account)
    slow = straggler_in(record.paths.folder, record.plan)
    data["straggler"] = as_plain(slow) if slow else None
    if is_live(seen.record.state):
        hint = f"next: llmb-run watch {word} | llmb-run logs {word} -f | llmb-run cancel {word}"
    else:
        again = "retry --resume" if measured.timing.status.reason == "told_to_end" else "retry"
        hint = f"next: llmb-run logs {word} | llmb-run results {word} | llmb-run {again} {word}"
    return Result({**data, "result": as_dict(measured)}, lambda: _text(seen, measured, slow), hint=hint)


def _text(seen: Observation, measured: MeasuredRun, slow: Straggler | None) -> str:
    record, plan = seen.record, seen.record.plan
    names = ("tp", "pp", "cp", "vp", "ep", "etp", "dp", "mbs", "gbs", "ga")
    layout = [f"{name.upper()} {value}" for name in names if (value := getattr(plan, name)) is not None]
    function = plan.function
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
        "made by": [_made_by(record.manifest)],
        "image": [image_line(record.manifest)],
        "ran on": measured.account.lines() or ["the nodes left no account of themselves"],
        "folder": [str(record.paths.folder)],
        "log": [str(record.paths.log)],
        "history": [f"{clock(item.time)}  {item.state}  {item.detail}".rstrip() for item in record.states],
        "earlier": [_attempt(item) for item in attempts_of(record)],
        "result": [_result(measured), _steady(measured), *reference_lines([measured])],
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
    return f"{record.state} {since}" + (f", {seen.finding.reason}" if seen.finding.reason else "")


def _job(seen: Observation) -> str:
    record = seen.record
    if not record.plan.traits.queued:
        return (
            "on this machine" if record.process is None else f"on {record.process.host}, process {record.process.pid}"
        )
    where = f" on {seen.finding.nodes}" if seen.finding.nodes else ""
    return f"{record.job_id or 'no job id yet'}{where}"


def _attempt(attempt: Attempt) -> str:
    when = attempt.ended or attempt.started
    return f"{clock(when)}  {attempt}" if when is not None else str(attempt)


def _made_by(manifest: dict[str, Any]) -> str:
    git = manifest.get("git")
    commit = f", commit {git['commit'][:12]}{' with changes' if git['dirty'] else ''}" if git else ""
    return f"llmb {manifest.get('llmb', '?')}{commit}, on {manifest.get('host', '?')}"


def _result(measured: MeasuredRun) -> str:
    values = measured.figures
    if values is None:
        return f"{measured.timing.status.state}: {printable(measured.timing.status.message)}"
    mfu = "" if values.mfu is None else f", MFU {values.mfu:.2%}"
    verdict = f": {measured.verdict.text}" if measured.verdict else ""
    return f"{values.step_seconds:.3f} s a step, {values.tokens_per_second:.0f} tokens/s{mfu}{verdict}"


def _steady(measured: MeasuredRun) -> str:
    """What the verdict compares with the reference, where there is one."""
    if measured.verdict is None or measured.verdict.reference is None or measured.step_time is None:
        return ""
    return f"steady step {measured.step_time.seconds:.3f} s"


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
