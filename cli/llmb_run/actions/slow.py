"""``llmb-run why --slow``: whom the others waited for, and what a run has otherwise than the best of its kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from llmb_common.base.errors import RequestError
from llmb_common.base.outcome import Result
from llmb_common.measured.measure import measure
from llmb_common.planning.workspace import Workspace
from llmb_common.runs.index.runs import RunFilter, RunRow
from llmb_common.runs.stragglers import FILE, straggler_in
from llmb_run.comparing.gap import find_gap, lines_of
from llmb_run.selecting import load_rows, run_filter, select_rows
from llmb_run.terminal import with_label


def slow_runs(workspace: Workspace, names: Sequence[str], filters: dict[str, Any]) -> Result:
    """Return why runs are slow, as ``llmb-run why --slow`` shows it: a rank that others wait for, and what differs.

    Each run is compared with the site's best one of the same work. The runs are those that ``names`` name (words as
    ``select_rows`` takes them), or that match ``filters``, options of ``run_filter``; without either the newest with a
    step time. Runs whose record cannot be read are left out; filters that match nothing give an empty result. As JSON,
    under ``runs``, ``run`` (its id), ``straggler`` (None: none stands out) and ``gap`` (the fields of ``Gap``) of each,
    in that order. The exit status is 0. ``workspace``: whose installation has the runs.

    Raises:
        RequestError: a name is that of no run, a filter is wrong, none of the newest runs has a step time, or there is
            no installation
        LLMBError: no job can be planned here at all, or a file of the installation, a recipe or the site's
            configuration cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    found, text = [], ""
    if names or any(filters.values()):
        rows = select_rows(workspace, names, run_filter(workspace, **filters))
    else:
        rows = [_newest_timed(workspace)]
    for record in load_rows(rows)[0]:
        folder = record.paths.folder
        item = straggler_in(folder, record.plan)
        nobody = "its ranks recorded no waits"
        if (folder / FILE).exists():
            nobody = "no rank stands out; that does not rule out a slow one"
        text += with_label("run", [f"{record.paths.run_id}  {record.paths.name}"])
        text += with_label("slow", [item.text if item else nobody])
        gap = find_gap(record, workspace)
        text += "".join(with_label(name, lines) for name, lines in lines_of(gap))
        found.append(msgspec.to_builtins({"run": record.paths.run_id, "straggler": item, "gap": gap}))
    return Result({"runs": found}, text)


_MOST_LOOKED_AT = 20


def _newest_timed(workspace: Workspace) -> RunRow:
    """Return the newest run that has a step time, which a run that failed or still runs has not.

    Only the newest 20 of the installation are looked at, whoever owns them. ``workspace``: whose installation has
    the runs.

    Raises:
        RequestError: none of these has one, or there is no installation
        RecordError: the list of folders outside the installation, or the record of a run, cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the folder that the installation is in may not be looked at
    """
    for row in select_rows(workspace, [], RunFilter(limit=_MOST_LOOKED_AT)):
        if any(item.good for item in measure([row], workspace)):
            return row
    raise RequestError("none of the newest runs has a step time yet", remedy="llmb-run why says why runs failed")
