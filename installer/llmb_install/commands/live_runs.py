"""Runs that have not ended: a removal would take the image or the engine that they train in or wait for."""

from __future__ import annotations

import sys
from pathlib import Path

from llmb_common.command.printable import first_few, printable_lines
from llmb_common.errors import EnvironmentLacks, RecordError
from llmb_common.index.runs import RunFilter
from llmb_common.index.search import find_runs
from llmb_common.observe import refresh
from llmb_common.run_states import is_live
from llmb_common.runs.record import RunRecord, load_record
from llmb_install.arguments import DESPITE_RUNS


def live_runs(install: Path, workloads: tuple[str, ...] = ()) -> list[RunRecord]:
    """Runs of ``workloads`` (empty: of the installation) that wait or train.

    A run is asked about where it is; one that nobody can tell of counts as live.

    Raises:
        RecordError: the installation is damaged.
    """
    rows = find_runs(install, RunFilter(workloads=workloads, live=True))
    return [record for record in refresh(load_record(row.folder) for row in rows) if is_live(record.state)]


def require_none(install: Path, doing: str, workloads: tuple[str, ...] = ()) -> None:
    """Refuse to go on while runs of these workloads (of all, if empty) are queued or running.

    Raises:
        EnvironmentLacks: there are such runs.
    """
    try:
        live = live_runs(install, workloads)
    except RecordError as error:  # a damaged installation can be removed too
        print(printable_lines(f"note: not known whether runs use it: {error.message}"), file=sys.stderr)
        return
    if not live:
        return
    names = [f"{record.paths.run_id} ({record.plan.workload}, {record.state})" for record in live]
    count = "a run has" if len(live) == 1 else f"{len(live)} runs have"
    raise EnvironmentLacks(
        f"{doing}: {count} not ended: {first_few(names, 5)}",
        remedy=f"wait for them or end them with llmb-run cancel, then try again; {DESPITE_RUNS} removes anyway",
        code="live-runs",
    )
