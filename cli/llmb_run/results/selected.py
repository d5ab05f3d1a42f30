"""The measured runs that a command is about."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmb_common.base.errors import RequestError
from llmb_common.measured.measure import measure
from llmb_common.measured.run import MeasuredRun
from llmb_common.planning.workspace import Workspace
from llmb_common.runs.index.runs import RunRow
from llmb_common.runs.timing.runs import no_garbage
from llmb_common.runs.timing.window import Window
from llmb_run.selecting import none_matches, run_filter, select_rows


def selected_runs(
    workspace: Workspace, runs: Sequence[str], filters: dict[str, Any], window: Window | None = None
) -> list[MeasuredRun]:
    """Return the runs that ``runs`` name, measured, or without any all that match ``filters``; at least one.

    Words that are paths come first, then the others, each in order; without words, the newest run first. Each run
    comes once. A path without a run or log is passed over where there are other runs. Of live runs the scheduler is
    asked, and their records are brought up to date, also on disk; a record that cannot be read is told in a notice,
    and its run left out. What is read of their logs is kept in the index of runs.

    Args:
        workspace: whose installation has the runs
        runs: paths of folders (for all runs in them) or logs, run ids or their beginnings, names, job ids, or the
            name of a sweep, for all its runs; a word that exists as a path is one
        filters: arguments of ``selecting.run_filter`` by name; they do not apply to runs that are named, but are
            checked where a word is no path
        window: the iterations to measure; None: those of each run's document

    Raises:
        RequestError: there is no run, a word names none or is the beginning of several run ids, or a filter has an
            impossible value; or no installation is named, and it is needed, as it is for all but paths
        RecordError: the list of folders outside the installation cannot be read
        ConfigError: a filter names a workload, and ``cluster_config.yaml`` is wrong or not trusted
        RecipeError: no recipe has that workload, and a recipe's catalogue cannot be read to suggest one
        OSError: a word's path may not be looked at
    """
    paths = [word for word in runs if os.path.exists(word)]
    wanted: list[Path | RunRow] = [Path(word) for word in paths]
    names = [word for word in runs if word not in paths]
    with no_garbage():
        if names or not runs:
            wanted += select_rows(workspace, names, run_filter(workspace, **filters))
        found = measure(wanted, workspace, window)
    if not found:
        run_names = ", ".join(str(run.folder if isinstance(run, RunRow) else run) for run in wanted)
        raise RequestError(
            f"{run_names}: no run and no log-*.out" if wanted else none_matches(filters),
            remedy=(
                "name the log itself if it is called otherwise; llmb-run jobs lists the recorded runs"
                if wanted
                else "llmb-run jobs lists the recorded runs; llmb-run single starts one"
            ),
            code="no-run" if wanted else "",
        )
    return found
