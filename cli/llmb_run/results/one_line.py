"""The result of one run in a line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from llmb_common.command.outcome import Result
from llmb_common.command.printable import printable
from llmb_common.platform.run_states import is_live
from llmb_common.runs.record import load_record
from llmb_run.results.measured import MeasuredRun
from llmb_run.results.measuring import measure_run
from llmb_run.terminal import next_command
from llmb_run.workspace import Workspace


def result_line(measured: MeasuredRun) -> str:
    """Step time, tokens per second, MFU and verdict; of a run without figures its status and the reason."""
    values = measured.figures
    if values is None:
        return f"{measured.timing.status.state}: {printable(measured.timing.status.message)}"
    mfu = "" if values.mfu is None else f", MFU {values.mfu:.2%}"
    verdict = f": {measured.verdict.text}" if measured.verdict else ""
    return f"{values.step_seconds:.3f} s a step, {values.tokens_per_second:.0f} tokens/s{mfu}{verdict}"


def with_figures(started: Result, workspace: Workspace) -> Result:
    """``started`` with the line of its one run, where that was followed to its end; else unchanged."""
    if callable(started.data):  # a dry run
        return started
    jobs = started.data["jobs"]
    if len(jobs) != 1 or jobs[0]["error"] or is_live(jobs[0]["state"]):
        return started
    measured = measure_run(load_record(Path(jobs[0]["folder"])), workspace)
    text = f"{started.text}  {result_line(measured)}\n"
    return replace(started, text=text, hint=next_command("show", jobs[0]["run_id"]))
