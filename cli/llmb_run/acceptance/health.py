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
    """What is read of the health check's file; earlier releases wrote no ``fabric`` into it."""

    fabric: tuple[Fabric, ...] = ()


def fabric_of(folder: Path) -> tuple[Fabric, ...]:
    """What was measured between the nodes of the campaign in ``folder``, with its verdict; empty: nothing was.

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
    """What was measured between a campaign's nodes before it began, with what its own runs then say of slow ones."""
    runs = node_runs(timed(_measured(standings)))
    return [msgspec.structs.replace(item, verdict=after_training(item.verdict, runs)) for item in fabrics]


def slow_nodes(fabrics: Sequence[Fabric], standings: Sequence[WorkloadProgress]) -> dict[str, str]:
    """The nodes of a campaign's runs that the fabric and training both show to be slow, each with what was found.

    Empty where the campaign says that of none.
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
    """Yields the runs of a campaign that have ended."""
    for item in standings:
        for run in item.runs:
            if run.measured is not None:
                yield run.measured
