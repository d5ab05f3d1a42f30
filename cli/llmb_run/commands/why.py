"""``llmb-run why``: diagnoses, and what slowed a run down."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from llmb_common.causes.answer import Diagnosis, Symptom, count
from llmb_common.causes.diagnosis import diagnose_logs
from llmb_common.causes.table import signatures
from llmb_common.command.outcome import Result
from llmb_common.command.printable import counted, printable
from llmb_common.errors import RequestError
from llmb_common.index.runs import RunRow
from llmb_common.runs.evidence.stragglers import FILE, straggler_in
from llmb_common.runs.record import load_record
from llmb_common.timing.log_files import is_log_name
from llmb_run import options
from llmb_run.app import Command
from llmb_run.comparing.attribution import as_table, attribute, status_of_all
from llmb_run.comparing.gap import find_gap, lines_of
from llmb_run.comparing.strategy import Rule, rule_of
from llmb_run.results.measuring import MeasuredRun, measure
from llmb_run.selecting import load_rows, one_folder, run_filter, select_rows
from llmb_run.terminal import labelled, notice, table
from llmb_run.workspace import Workspace


def cause_lines(found: Diagnosis) -> list[str]:
    """What began it, the line that says so, and what to do; of an unknown cause its witnesses."""
    cause = found.cause
    if cause is None:
        return [found.summary, *_suspect(found.suspect)]
    sure = "" if cause.sure == "certain" else f" ({cause.sure})"
    step = f"; the last iteration before it is {cause.step}" if cause.step is not None else ""
    lines = [f"{found.summary}{sure}{step}", cause.cause]
    lines += [f"{_place(cause.file, cause.number)}{cause.line}"] if cause.line else []
    return [*lines, f"next: {cause.remedy}"]


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


def _suspect(item: Symptom | None) -> list[str]:
    if item is None:
        return []
    remedy = next((known.remedy for known in signatures() if known.id == item.signature), "")
    return [_witness(item), *([f"next: {remedy}"] if remedy else [])]


def _witness(item: Symptom) -> str:
    ranks = f", rank {item.ranks[0]}" if item.ranks else ""
    if len(item.ranks) > 1:
        ranks = f", {counted(len(item.ranks), 'rank')}"
    count = f", {item.count} lines" if item.count > 1 else ""
    kind = f"[{item.role}{ranks}{count}] " if item.signature else ""
    return f"{kind}{_place(item.file, item.number)}{item.line}"


def _place(file: str, number: int | None) -> str:
    name = file.rpartition("/")[2]
    return f"{name}:{number}: " if name and number else f"{name}: " if name else ""


@click.command(cls=Command)
@options.runs
@options.filters
@options.flag(
    "--slow",
    help="Show instead which rank the others waited for, and how the run differs from the fastest of the same work.",
)
@options.flag("--test", help="With --slow and one RUN: measure the effect of each difference, as ab does.")
@options.until_clear
@options.flag("--again", help="Start a new test, even if one could be resumed or is over.")
@options.kept_in("campaigns")
def why_command(
    runs: tuple[str, ...],
    slow: bool,
    test: bool,
    resolution: str,
    pairs: int,
    budget: float | None,
    again: bool,
    folder: Path | None,
    **filters: Any,
) -> Result:
    """Say why runs failed: the first cause, its rank and node, and what to do.

    RUNS may also be logs, or folders of logs, that LLMB did not write. Without RUNS, the newest run is explained; with
    an option such as --since 7d, all runs that match, counted by cause and node. If no cause is found, it is unknown,
    and the log lines that might help are shown.

    With --slow, the differences that are worth most by published results come first. --test measures each to
    --resolution, within --budget. After any interruption, run the same command again to continue.

    Exit status with --test 0: all are measured; 1: one failed, or its work differs; 4: one is not that precise.
    """
    if test:
        if not slow or len(runs) != 1 or any(filters.values()):
            raise RequestError("--test is for one run", remedy="llmb-run why --slow --test RUN")
        return _tested(runs[0], rule_of(resolution, pairs, budget), again=again, folder=folder)
    for name in ("resolution", "pairs", "budget", "again", "folder"):
        if click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise RequestError(f"--{name} is about --test", remedy="llmb-run why --slow --test RUN")
    if slow:
        return _slow(Workspace(), runs, filters)
    foreign = [Path(word) for word in runs if _is_foreign(Path(word))]
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
    for record in load_rows(_chosen(workspace, names, filters))[0]:
        folder = record.paths.folder
        item = straggler_in(folder, record.plan)
        nobody = "no rank kept the others waiting" if (folder / FILE).exists() else "its ranks recorded no waits"
        text += labelled("run", [f"{record.paths.run_id}  {record.paths.name}"])
        text += labelled("slow", [item.text if item else nobody])
        gap = find_gap(record, workspace).gap
        text += "".join(labelled(name, lines) for name, lines in lines_of(gap))
        found.append(msgspec.to_builtins({"run": record.paths.run_id, "straggler": item, "gap": gap}))
    return Result({"runs": found}, text)


def _tested(run: str, rule: Rule, *, again: bool, folder: Path | None) -> Result:
    workspace = Workspace()
    record = load_record(one_folder(workspace, run))
    found = attribute(record, rule, workspace, again=again, folder=folder)
    text = table(["what would change", "its step time then"], [*as_table(found)])
    text += f"95 % intervals, all together; {found['gpu_hours']:.3g} GPU-hours\n"
    status = status_of_all(found)
    if status == 4:
        text += f"a larger --budget or more --pairs go on: llmb-run why --slow --test {run}\n"
    return Result({"runs": [{"run": record.paths.run_id, "contributions": found}]}, text, status=status)


def _is_foreign(path: Path) -> bool:
    """Whether it is a log, or a folder with logs and without a record."""
    return path.is_file() or (path.is_dir() and not (path / "run.json").exists())


def _of_logs(path: Path) -> _Explained:
    logs = [path] if path.is_file() else sorted(path.glob("*.out*")) or sorted(path.glob("*.log*"))
    if not logs:
        raise RequestError(f"{path} holds no log", remedy="name a log, or a folder with NAME.out or NAME.log")
    return _Explained(str(path), "", diagnose_logs(sorted(logs, key=lambda log: not is_log_name(log.name))))


def _of_runs(workspace: Workspace, names: Sequence[str], filters: dict[str, Any]) -> list[_Explained]:
    measured = measure([row.folder for row in _chosen(workspace, names, filters)], workspace)
    return [
        _Explained(item.record.paths.run_id if item.record else item.timing.files.name, _status(item), item.why)
        for item in measured
    ]


def _status(item: MeasuredRun) -> str:
    status = item.timing.status
    return f"{status.state}: {status.message}" if status.message else status.state


def _each(found: Sequence[_Explained]) -> Result:
    text = ""
    for item in found:
        said = [f"{printable(item.run)}  {printable(item.status)}".rstrip()]
        lines = all_lines(item.why) if item.why else [("why", ["it has not failed"])]
        text += "".join(labelled(name, part) for name, part in [("run", said), *lines])
    return Result({"runs": msgspec.to_builtins(found)}, text)


def _summary(found: Sequence[_Explained]) -> Result:
    """Many runs: what they failed of, and where."""
    failed = {item.run: item.why for item in found if item.why is not None}
    counted = count([*failed.values()])
    text = f"{len(failed)} of {len(found)} runs failed\n"
    kinds = [[str(item.count), item.kind, item.what, ", ".join(item.nodes)] for item in counted.kinds]
    text += table(["runs", "cause", "", "nodes"], kinds, ("runs",))
    text += table(["run", "why"], [[run, why.summary] for run, why in failed.items()])
    text += "".join(f"{line}\n" for line in counted.advice)
    return Result({"runs": msgspec.to_builtins(found), **counted.as_dict()}, text)
