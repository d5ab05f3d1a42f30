"""``llmb-run why``: what a failure began with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.errors import RequestError
from llmb_common.base.notices import notice
from llmb_common.base.outcome import Result
from llmb_common.base.printable import counted, printable
from llmb_common.causes.answer import Diagnosis, Symptom, count
from llmb_common.causes.diagnosis import diagnose_logs
from llmb_common.causes.table import signatures
from llmb_common.measured.measure import measure
from llmb_common.measured.run import explain
from llmb_common.planning.workspace import Workspace
from llmb_common.runs.index.runs import RunRow
from llmb_common.runs.timing.log_files import is_log_name
from llmb_run.selecting import one_folder, run_filter, select_rows
from llmb_run.terminal import labelled, table


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


def why(runs: tuple[str, ...], slow: bool, **filters: Any) -> Result:
    """``llmb-run why``."""
    if slow:
        from llmb_run.actions.slow import slow_runs

        return slow_runs(Workspace(), runs, filters)
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


def _of_logs(path: Path) -> _Explained:
    logs = [path] if path.is_file() else sorted(path.glob("*.out*")) or sorted(path.glob("*.log*"))
    if not logs:
        raise RequestError(f"{path} holds no log", remedy="name a log, or a folder with NAME.out or NAME.log")
    return _Explained(str(path), "", diagnose_logs(sorted(logs, key=lambda log: not is_log_name(log.name))))


def _chosen(workspace: Workspace, names: Sequence[str], filters: dict[str, Any]) -> list[RunRow]:
    """Those that are named or match; without any wish the newest."""
    wanted = names or ([] if any(filters.values()) else [str(one_folder(workspace, None))])
    return select_rows(workspace, wanted, run_filter(workspace, **filters))


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
