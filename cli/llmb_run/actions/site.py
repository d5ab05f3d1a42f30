"""The commands about what an installation keeps: baselines, excluded nodes, the index of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmb_common.base.errors import RequestError
from llmb_common.base.notices import notice
from llmb_common.base.outcome import Result
from llmb_common.base.printable import counted
from llmb_common.measured.kept import past_runs
from llmb_common.measured.measure import measure
from llmb_common.planning.workspace import Workspace
from llmb_common.results.references import Baseline, baselines, remove_baselines, set_baselines
from llmb_common.results.scatter import PastRuns
from llmb_common.runs.index.search import rebuild
from llmb_common.submission.excluded_nodes import Exclusion, exclude_nodes, exclusions, include_nodes
from llmb_run.results.run_columns import say_remarks
from llmb_run.selecting import none_matches, run_filter, select_rows
from llmb_run.terminal import local_time_text, table


def list_baselines() -> Result:
    """Return what ``llmb-run baseline list`` shows: the installation's baselines, in the order of its list.

    Table and data are as ``_baselines_result`` makes them. A notice says if there is none.

    Raises:
        RequestError: there is no installation
        RecordError: the list of baselines cannot be read
        OSError: the folder that the installation is in may not be looked at
    """
    install = Workspace().require_install()
    found = baselines(install)
    if not found:
        notice("no baseline is set: llmb-run baseline set RUN...")
    return _baselines_result(found, install)


def set_baseline(runs: tuple[str, ...], **filters: Any) -> Result:
    """Make runs this site's baselines, as ``llmb-run baseline set`` does: those named, or that match ``filters``.

    ``filters`` are the options of ``run_filter``, which do not apply to named runs. Several runs of one
    configuration and software make one baseline, which replaces an earlier one of these. Writes the installation's
    list, and prints remarks on the runs as notices. Shows the new baselines alone, as ``_baselines_result`` makes them.

    Raises:
        RequestError: no run is named or matches, a run has no step time that counts, or repeats had several images
            of one name, or there is no installation; nothing is written
        RecordError: the list cannot be read or written, or the record of a run not be read
        OSError: the list cannot be locked, or the log of a run not be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    workspace = Workspace()
    install = workspace.require_install()
    if not runs and not any(filters.values()):
        raise RequestError("no run is named", remedy="llmb-run baseline set RUN..., or filters such as -w and -s")
    rows = select_rows(workspace, list(runs), run_filter(workspace, **filters))
    if not rows:
        raise RequestError(none_matches(filters), remedy="llmb-run results lists successful runs")
    chosen = []
    measured = measure(rows, workspace)
    for item in measured:
        if item.record is None or item.good is None:
            raise RequestError(
                f"{item.timing.files.name} cannot be a baseline: {item.unfit or 'not a run of LLMB'}",
                remedy="name successful runs; llmb-run results shows which are",
            )
        chosen.append((item.record, item.good))
    say_remarks(measured)  # a throttled run is a reference that everything passes
    return _baselines_result(set_baselines(install, chosen), install)


def remove_baseline(keys: tuple[str, ...]) -> Result:
    """Remove the baselines with ``keys`` from the installation's list, as ``llmb-run baseline remove`` does.

    Keys are given in full, as ``baseline list`` shows them. With a key go the baselines of all software. The result
    names those removed, sorted by title; as JSON their keys, under ``removed``, one for each baseline.

    Raises:
        RequestError: a key is that of no baseline, and nothing is removed; or there is no installation
        RecordError: the list cannot be read or written
        OSError: the list cannot be locked
    """
    gone = remove_baselines(Workspace().require_install(), keys)
    lines = [f"removed: {item.title}\n" for item in gone]
    return Result({"removed": [item.key for item in gone]}, "".join(lines))


def _baselines_result(found: list[Baseline], install: Path) -> Result:
    """Return the baselines ``found`` as data and as a table, each with the relative error of its step time.

    In their order. The error is estimated by the past runs of ``install``; it is in percent in the table, a share in
    the data. That has, under ``baselines``, ``key``, ``title``, ``software``, ``added`` (Unix time), ``seconds`` (mean
    step time, stalls included), ``relative_error``, ``setup`` (a dict on its nodes, empty if not known) and ``runs``
    (``run_id``, ``seconds`` of a steady step, ``error``, its standard error in seconds) of each.
    """
    past = PastRuns(past_runs(install))
    errors = [item.relative_error(past) for item in found]
    heads = ["key", "configuration", "software", "runs", "step s", "± %", "set"]
    rows = [
        [
            item.key,
            item.title,
            item.software,
            str(len(item.runs)),
            f"{item.seconds:.3f}",
            f"{100 * error:.1f}",
            local_time_text(item.added),
        ]
        for item, error in zip(found, errors, strict=True)
    ]
    data = [
        {
            **{name: getattr(item, name) for name in ("key", "title", "software", "added", "seconds")},
            "relative_error": error,
            "setup": item.setup,
            "runs": [{"run_id": run.run_id, "seconds": run.seconds, "error": run.error} for run in item.runs],
        }
        for item, error in zip(found, errors, strict=True)
    ]
    return Result({"baselines": data}, table(heads, rows, ("runs", "step s", "± %")))


def list_nodes() -> Result:
    """Return what ``llmb-run exclude list`` shows: the nodes that jobs of the installation avoid now, by name.

    Table and data are as ``_exclusions_result`` makes them. A notice says if there is none.

    Raises:
        RequestError: there is no installation
        RecordError: the exclusion list cannot be read
        OSError: the folder that the installation is in may not be looked at
    """
    return _exclusions_result(exclusions(Workspace().require_install()))


def add_nodes(hosts: str, reason: str, days: float | None) -> Result:
    """Exclude the nodes of the host list ``hosts`` from jobs, as ``llmb-run exclude add`` does.

    All nodes that are excluded then are shown, as ``_exclusions_result`` makes them. ``days``: for how long, above 0
    and at most 3650; None: until they are removed. A node that is excluded already gets the new reason and end.
    Whether there are such nodes is not checked.

    Raises:
        RequestError: the host list cannot be read, ``reason`` is blank or not one line, there is no installation,
            or ``days`` is no such period; nothing is written
        RecordError: the exclusion list cannot be read or written
        OSError: the list cannot be locked
    """
    return _exclusions_result(exclude_nodes(Workspace().require_install(), hosts, reason, days=days))


def remove_nodes(hosts: str) -> Result:
    """Put the nodes of the host list ``hosts`` back into use, as ``llmb-run exclude remove`` does.

    What runs have shown of them no longer counts. Nodes that were not excluded are no error; a notice says if none
    was. As JSON, ``removed`` lists those that were excluded.

    Raises:
        RequestError: the host list cannot be read, or there is no installation
        RecordError: the exclusion list cannot be read or written
        OSError: the list cannot be locked
    """
    removed = include_nodes(Workspace().require_install(), hosts)
    if not removed:
        notice(f"{hosts}: not excluded; what earlier runs found of these nodes no longer counts against them")
    return Result({"removed": removed}, f"used again: {', '.join(removed)}\n" if removed else "")


def _exclusions_result(found: list[Exclusion]) -> Result:
    """Return what ``llmb-run exclude`` shows of the excluded nodes ``found``: table and data, in their order.

    As JSON, under ``nodes``, ``node``, ``reason``, ``added`` and ``expires`` of each: Unix times, None: until it is
    removed. A notice says if there is none.
    """
    if not found:
        notice("no node is excluded")
    rows = [
        [
            item.node,
            local_time_text(item.added),
            local_time_text(item.expires) if item.expires else "removed",
            item.reason,
        ]
        for item in found
    ]
    names = ("node", "reason", "added", "expires")
    return Result(
        {"nodes": [{name: getattr(item, name) for name in names} for item in found]},
        table(["node", "since", "until", "reason"], rows),
    )


def rebuild_index() -> Result:
    """Build the index of runs again from the run folders, as ``llmb-run rebuild`` does; show how many runs it has.

    It replaces the present index. As JSON the number is under ``runs``.

    Raises:
        RequestError: there is no installation
        RecordError: the index cannot be written, or the list of folders outside the installation cannot be read
        OSError: the folder that the installation is in may not be looked at
    """
    count = rebuild(Workspace().require_install())
    return Result({"runs": count}, f"{counted(count, 'run')}\n")
