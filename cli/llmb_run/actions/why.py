"""``llmb-run why``: what a failure began with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.errors import RequestError
from llmb_common.base.notices import notice
from llmb_common.base.outcome import Result
from llmb_common.base.printable import counted, printable
from llmb_common.causes.answer import Diagnosis, Symptom, count_causes
from llmb_common.causes.diagnosis import diagnose_logs
from llmb_common.causes.table import signatures
from llmb_common.measured.measure import measure
from llmb_common.measured.run import WITHOUT_RESULT, explain
from llmb_common.planning.workspace import Workspace
from llmb_common.runs.index.runs import RunRow
from llmb_common.runs.timing.log_files import is_log_name
from llmb_run.selecting import one_folder, run_filter, select_rows
from llmb_run.terminal import table, with_label


def cause_lines(found: Diagnosis) -> list[str]:
    """Return lines on what a failure began with: the summary, its cause, the log line that shows it, and a remedy.

    The log line is as ``log-x.out:12: TEXT`` and may be missing; the remedy is behind ``-> ``. Of an unknown cause
    only the summary and, where one is suspected, the log line and what is known to help against its like. The
    summary says how sure the cause is, unless it is certain.
    """
    cause = found.cause
    if cause is None:
        if found.suspect is None:
            return [found.summary]
        remedy = next((known.remedy for known in signatures() if known.id == found.suspect.signature), "")
        lines = [found.summary, _witness_line(found.suspect)]
        if remedy:
            lines.append(f"-> {remedy}")
        return lines
    sure = "" if cause.sure == "certain" else f" ({cause.sure})"
    step = f"; the last iteration before it is {cause.step}" if cause.step is not None and not found.trained else ""
    lines = [f"{found.summary}{sure}{step}", cause.cause]
    lines += [f"{_location_prefix(cause.file, cause.number)}{cause.line}"] if cause.line else []
    return [*lines, f"-> {cause.remedy}"]


def all_lines(found: Diagnosis) -> list[tuple[str, list[str]]]:
    """Return everything found on a failure, as (heading, lines) of ``why``, ``keep out`` and ``besides``.

    In this order. ``why`` is always there, the others where they have lines: the command that excludes a bad node, and
    other complaints in the logs.
    """
    cause = found.cause
    lines = [("why", cause_lines(found))]
    if cause is not None and cause.keep_out and cause.node:
        # It goes between single quotes of a shell command.
        reason = cause.what.replace("'", "")
        lines.append(("keep out", [f"llmb-run exclude add {cause.node} --days 7 --reason '{reason}'"]))
    if beside := [_witness_line(item) for item in found.witnesses if item != found.suspect]:
        lines.append(("besides", beside))
    return lines


def _witness_line(item: Symptom) -> str:
    """Return one line on a complaint in a run's logs: its role, how many ranks and lines, where it is, and its text.

    ``[ROLE, rank 3, 12 lines] log-x.out:12: TEXT``, with ``4 ranks`` of several; no ranks that are unknown, no number
    where it is one line, and no brackets where it is of no known kind.
    """
    ranks = f", rank {item.ranks[0]}" if item.ranks else ""
    if len(item.ranks) > 1:
        ranks = f", {counted(len(item.ranks), 'rank')}"
    count = f", {item.count} lines" if item.count > 1 else ""
    kind = f"[{item.role}{ranks}{count}] " if item.signature else ""
    return f"{kind}{_location_prefix(item.file, item.number)}{item.line}"


def _location_prefix(file: str, number: int | None) -> str:
    """Return where a log line is, ``log-x.out:12: ``, to be put before it; empty where ``file`` is.

    Of a path only the name is given. Without the line number where ``number`` is None.
    """
    name = file.rpartition("/")[2]
    if not name:
        return ""
    return f"{name}:{number}: " if number else f"{name}: "


def why(runs: tuple[str, ...], slow: bool, **filters: Any) -> Result:
    """Explain why runs failed, as ``llmb-run why`` does; with ``slow``, why they are slow instead.

    ``runs``: words that name runs, logs or folders of logs; a file, or a folder without ``run.json``, is taken for
    logs even where a run has that name. Logs come first in the result. Without words, the runs that match
    ``filters``, options of ``run_filter``, as a summary (``_summary_result``), of no runs and with a notice where none
    matches; without either the newest run. That one, and named ones, to which filters do not apply, are shown in detail
    (``_detailed_result``). With ``slow``, words name runs only, and the result is that of ``slow_runs``. A run that has
    not failed is no error, and the exit status is 0.

    Raises:
        RequestError: a word names no run, a filter is wrong, no run is recorded yet, or a folder holds no log
        RecordError: the record of a failed run cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the folder that the installation is in may not be looked at
        LLMBError, OSError: with ``slow``, as ``slow_runs``
    """
    if slow:
        from llmb_run.actions.slow import slow_runs

        return slow_runs(Workspace(), runs, filters)
    paths = [Path(word) for word in runs]
    # Logs, and folders with logs and without a record.
    foreign = [
        path for path in paths if os.path.isfile(path) or (os.path.isdir(path) and not (path / "run.json").exists())
    ]
    names = [word for word in runs if Path(word) not in foreign]
    found = [_explain_logs(path) for path in foreign]
    if names or not runs:
        found += _explain_runs(Workspace(), names, filters)
    if not found:
        notice("no run matches")
    many = not runs and any(filters.values())
    return _summary_result(found) if many else _detailed_result(found)


class _Explained(msgspec.Struct):
    """A run, or logs of one, with the diagnosis of its failure; ``_explain_runs`` and ``_explain_logs`` make it."""

    run: str
    """Its id, or the path of its log or folder."""
    status: str
    """State and message of its results, ``Failed: ...``; empty of logs that LLMB did not write."""
    why: Diagnosis | None
    """None: it has not failed."""
    outcome: str = ""
    """As ``MeasuredRun.outcome``, such as ``failed`` or ``measured``; empty of logs that LLMB did not write."""


def _explain_logs(path: Path) -> _Explained:
    """Return the diagnosis of a run that LLMB did not start, by its log ``path``, or by the logs in that folder.

    A folder's logs are its ``*.out*``, or if there are none its ``*.log*``, not those of folders in it. There is a
    diagnosis even where nothing failed; a log that cannot be read counts as empty. ``run`` is ``path`` as given,
    ``status`` and ``outcome`` are empty.

    Raises:
        RequestError: the folder holds no log, or there is no such path
    """
    logs = [path]
    if not path.is_file():
        logs = sorted(path.glob("*.out*")) or sorted(path.glob("*.log*"))
    if not logs:
        raise RequestError(f"{path} holds no log", remedy="name a log, or a folder with NAME.out or NAME.log")
    logs.sort(key=lambda log: not is_log_name(log.name))
    return _Explained(str(path), "", diagnose_logs(logs))


def _chosen_rows(workspace: Workspace, names: Sequence[str], filters: dict[str, Any]) -> list[RunRow]:
    """Return the runs that ``names`` name, else those that match ``filters``; without either the newest run.

    ``filters`` are the options of ``run_filter``. Named runs are in the order of ``names``, each once, and filters
    do not apply to them; others newest first. Empty where no run matches the filters. ``workspace``: whose
    installation has the runs.

    Raises:
        RequestError: a name is that of no run, a filter is wrong, no run is recorded yet, or there is no installation
        RecordError: the list of folders outside the installation cannot be read
        RecipeError, ConfigError: a filter names a workload, and a recipe or the site's configuration cannot be read
        OSError: the folder that the installation is in may not be looked at
    """
    wanted = names or ([] if any(filters.values()) else [str(one_folder(workspace, None))])
    return select_rows(workspace, wanted, run_filter(workspace, **filters))


def _explain_runs(workspace: Workspace, names: Sequence[str], filters: dict[str, Any]) -> list[_Explained]:
    """Return the runs that ``names`` name or that match ``filters``, each with why it failed (None: it did not).

    Where there are names, filters do not apply; without either it is the newest run. In the order of
    ``_chosen_rows``: that of ``names``, else newest first. ``workspace``: whose installation has the runs.

    Raises:
        RequestError: a name is that of no run, a filter is wrong, or no run is recorded yet
        RecordError: the record of a failed run cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the folder that the installation is in may not be looked at
    """
    measured = measure(_chosen_rows(workspace, names, filters), workspace)
    explain(measured)
    explained = []
    for item in measured:
        name = item.record.paths.run_id if item.record else item.timing.files.name
        status = item.timing.status
        text = ": ".join(filter(None, (status.state, status.message)))
        explained.append(_Explained(name, text, item.why, item.outcome))
    return explained


_SOUND = {"not training": "it did not fail: llmb-run show says how its work differs from the plan"}
"""Of a run without a diagnosis, by its outcome."""


def _detailed_result(found: Sequence[_Explained]) -> Result:
    """Return what ``llmb-run why`` shows of a few runs: each with everything that was found on its failure.

    A run that has not failed says so. As JSON, ``runs`` is a list with the fields of each, in order: ``run``,
    ``status``, ``why`` (None: it has not failed) and ``outcome``. The exit status is 0.
    """
    text = ""
    for item in found:
        state, _, message = item.status.partition(": ")
        word = state if item.outcome == "measured" else item.outcome.upper() or state
        status = ": ".join(part for part in (word, message) if part)
        first = f"{printable(item.run)}  {printable(status)}".rstrip()
        lines = all_lines(item.why) if item.why else [("why", [_SOUND.get(item.outcome, "it has not failed")])]
        text += with_label("run", [first])
        text += "".join(with_label(name, part) for name, part in lines)
    return Result({"runs": msgspec.to_builtins(found)}, text)


def _summary_result(found: Sequence[_Explained]) -> Result:
    """Return what ``llmb-run why`` shows of many runs: how many failed, of which causes, where, and what to do.

    Cancelled and preempted ones have not failed, and are counted for themselves, as in ``results``. A run that had
    trained every step before its job failed is listed, but not counted as failed. As JSON: ``runs`` as of
    ``_detailed_result``, and ``causes``, ``nodes`` and ``keep_out``, as ``Counts.as_dict`` returns them. The exit
    status is 0.
    """
    badly = {item.run: item.why for item in found if item.why is not None}
    counted = count_causes([*badly.values()])
    without = [item.outcome for item in found if item.why is not None and not item.why.trained]
    others = {word: without.count(word) for word in WITHOUT_RESULT if word != "failed" and word in without}
    text = f"{len(without) - sum(others.values())} of {len(found)} runs failed"
    text += "".join(f", {number} {word}" for word, number in others.items()) + "\n"
    kinds = [[str(item.count), item.kind, item.what, ", ".join(item.nodes)] for item in counted.kinds]
    text += table(["runs", "cause", "", "nodes"], kinds, ("runs",))
    text += table(["run", "why"], [[run, why.summary] for run, why in badly.items()])
    text += "".join(f"{line}\n" for line in counted.advice)
    return Result({"runs": msgspec.to_builtins(found), **counted.as_dict()}, text)
