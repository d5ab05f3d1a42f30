"""What runs came to that were followed to their end: one in a line, several as ``results`` has them, a sweep ranked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmb_common.base.outcome import Result
from llmb_common.base.run_states import is_live
from llmb_common.planning.workspace import Workspace
from llmb_common.runs.record import RunRecord, load_record
from llmb_run.terminal import next_command


def add_figures(started: Result, workspace: Workspace, *, ranked: bool = False) -> Result:
    """Return ``started``, what a command says of jobs it started, with its runs' measured figures below its text.

    ``started.data`` is a dictionary whose list ``jobs`` has ``error`` (None: started), ``state`` and ``folder`` of each
    job, or, of a dry run, a function; ``started.text`` is a string. ``workspace`` is the command's. Returned unchanged:
    a dry run, one without a started job, and one where a job's ``state`` says that it has not ended. Else a copy with a
    longer text and the same data. Its exit status is 1 instead of 0 where a figure of a run was not a number, though
    its scheduler calls it complete. Of a single run one line is added, and the hint is now to ``show`` it; of several a
    summary by configuration, or with ``ranked`` a ranking, even of one run. Runs that are all too short for the
    measured window are measured over the steps that they have (``over_common_steps``).

    Raises:
        RecordError: the record of one of the runs cannot be read
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecipeError: a recipe's files cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    if callable(started.data):  # a dry run
        return started
    jobs: list[Mapping[str, Any]] = [job for job in started.data["jobs"] if not job["error"]]
    if not jobs or any(is_live(job["state"]) for job in jobs):
        return started
    # What measures runs takes a third of the command to import, and most jobs are queued.
    from llmb_common.base.printable import columns_of_terminal
    from llmb_common.measured.measure import measure
    from llmb_run.results.groups import group_runs, rank_runs, ranking_text
    from llmb_run.results.one_line import result_line
    from llmb_run.results.short_runs import over_common_steps
    from llmb_run.results.summary import Summary

    folders = [Path(job["folder"]) for job in jobs]
    records: dict[Path | None, RunRecord] = {folder: load_record(folder) for folder in folders}
    found = [run for run in measure(folders, workspace, known=records) if run.record is not None]
    found = over_common_steps(found, workspace)
    met_nan = any(run.status.not_finite for run in found)
    ended = started._replace(status=started.status or int(met_nan))
    width = columns_of_terminal()
    if ranked:
        text = ranking_text(rank_runs(found, workspace), width)
    elif len(found) == 1:
        text = f"  {result_line(found[0])}\n"
        return ended._replace(text=f"{ended.text}{text}", hint=next_command("show", found[0].run_id))
    else:
        summary = Summary(found, group_runs(found), found, width)
        text = summary.text(everything=True, all_notes=False, below=())
    return ended._replace(text=f"{ended.text}\n{text}")
