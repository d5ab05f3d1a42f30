"""What a campaign's nodes were found to be before it began (``health.json``), and what its runs then say of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from llmb_common.base.errors import RecordError
from llmb_common.base.files import read_json
from llmb_common.base.structs import from_plain, misfit_text
from llmb_common.health.training import after_training
from llmb_common.health.verdicts import Fabric
from llmb_common.measured.run import MeasuredRun, timed
from llmb_common.results.slow_nodes import node_runs
from llmb_run.acceptance.workloads import WorkloadProgress

HEALTH = "health.json"
"""Of a campaign's folder, if its suite asks for that."""


class _Found(msgspec.Struct, frozen=True):
    """The part of a campaign's health file that is read; other keys of the file are ignored.

    ``fabric_of`` decodes it; a value of another form is refused (``msgspec.ValidationError``). ``fabric`` is what was
    measured between the nodes, one item for each set of nodes; empty where nothing was measured, or the file is of an
    earlier release.
    """

    fabric: tuple[Fabric, ...] = ()


def fabric_of(folder: Path) -> tuple[Fabric, ...]:
    """Return what was measured between the nodes of the campaign in ``folder`` before its runs, with verdicts.

    One for each set of nodes that its jobs ask for, as recorded then. Empty where nothing was measured, or there is
    no health file.

    Raises:
        RecordError: the file cannot be read, is not JSON, or holds something else
    """
    file = folder / HEALTH
    if not file.exists():
        return ()
    value = read_json(file)
    try:
        found: _Found = from_plain(value, _Found)
    except msgspec.ValidationError as error:
        raise RecordError(
            f"{file} is damaged: {misfit_text(error, _Found, value)}",
            remedy="restore the file, or start the campaign anew",
        ) from error
    return found.fabric


def after_runs(fabrics: Sequence[Fabric], standings: Sequence[WorkloadProgress]) -> list[Fabric]:
    """Return copies of ``fabrics``, in order, whose verdicts take the campaign's own runs into account.

    ``fabrics`` were measured between its nodes before it began. A node that one only warns of fails in the copy if
    timed runs in ``standings`` show it to be slow, too, and level and answer of the verdict follow; its finding gets
    what the runs say as ``training`` in any case. Other findings stay. Runs that have not ended are ignored.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    runs = node_runs(timed(_measured(standings)))
    return [msgspec.structs.replace(item, verdict=after_training(item.verdict, runs)) for item in fabrics]


def slow_nodes(fabrics: Sequence[Fabric], standings: Sequence[WorkloadProgress]) -> dict[str, str]:
    """Return the nodes that both fabric and runs of the campaign show to be slow: the finding's text by node name.

    Those are the nodes of findings of level ``fail`` that training has confirmed; ``fabrics`` must have been
    through ``after_runs``. Only nodes that timed runs of the campaign were on, in no particular order; empty where
    there are none. Of a node with several findings, the last text counts. ``standings``: where the campaign's
    workloads stand.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    ran_on: set[str] = set()
    for _, hosts, _ in timed(_measured(standings)):
        ran_on.update(hosts)
    found: dict[str, str] = {}
    for finding in chain.from_iterable(item.verdict.findings for item in fabrics):
        if finding.level == "fail" and finding.training:
            found |= dict.fromkeys(ran_on.intersection(finding.hosts), finding.said)
    return found


def _measured(standings: Sequence[WorkloadProgress]) -> Iterator[MeasuredRun]:
    """Yield the measured figures of each run of a campaign that has ended, workload by workload, in order of number.

    ``standings``: where the campaign's workloads stand. A run that has not ended is left out.
    """
    for item in standings:
        for run in item.runs:
            if run.measured is not None:
                yield run.measured
