"""Rank runs that are shorter than their document measures: over the steps that all of them have."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from llmb_common.measured.measure import measure
from llmb_common.measured.run import MeasuredRun
from llmb_common.planning.workspace import Workspace
from llmb_common.recipes.rows import Measurement
from llmb_common.runs.timing.window import Window
from llmb_run.results.groups import Group, group_runs, of_the_same_work


def over_common_steps(found: Sequence[MeasuredRun], workspace: Workspace) -> list[MeasuredRun]:
    """Return ``found`` in the same order, with runs that are too short measured anew, as new objects.

    That is done where no run of the same work (``of_the_same_work``) is longer, over the second half of the steps
    that all its short runs have. Short runs beside others that were measured stay as they are: they are tries, and
    would change what is ranked. All other runs, and logs, come back as they are, and ``found`` itself stays.
    ``workspace`` is that in which they are measured again.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    again: dict[str, MeasuredRun] = {}
    for together in of_the_same_work(group_runs(found)):
        short = _too_short(together)
        if short:
            half = Measurement.of_second_half(min(run.status.iteration or 1 for run in short))
            rows = [run.row for run in short if run.row is not None]
            again |= {run.run_id: run for run in measure(rows, workspace, Window(half.first, half.last))}
    return [again.get(run.run_id, run) if run.run_id else run for run in found]


def _too_short(groups: Sequence[Group]) -> list[MeasuredRun]:
    """Return the runs of ``groups`` that were too short to be measured, in the order of the groups and their runs.

    Those that failed, were cancelled or have not ended are left out. Empty where any run was long enough (its
    outcome is ``measured`` or ``not training``), or none is too short.
    """
    runs = list(chain.from_iterable(item.members for item in groups))
    if any(run.outcome in ("measured", "not training") for run in runs):
        return []
    return [run for run in runs if run.outcome == "too short"]
