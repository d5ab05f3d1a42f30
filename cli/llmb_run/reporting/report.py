"""``Report``: everything that a report says, as plain data. HTML, Markdown and JUnit are functions of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from llmb_common import __version__
from llmb_common.results.baselines import title_of
from llmb_common.results.configuration import software_of
from llmb_common.results.history import History
from llmb_common.results.scaling import ScalingLine
from llmb_run.place import Place
from llmb_run.reporting.differing import Differing, differing
from llmb_run.reporting.head import Conclusion, conclude, facts
from llmb_run.reporting.hosts import HostLine, host_lines
from llmb_run.reporting.steps import Steps, steps_of
from llmb_run.results.groups import group, group_as_dict
from llmb_run.results.measuring import Measured, as_dict, reference_lines
from llmb_run.results.series import history_lines, scaling_lines

MOST_POINTS = 30_000
"""Steps that a report holds, over all runs: a page of 500 runs stays a few megabytes."""


class ReportRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run. ``result`` is what ``results --json`` says of it. ``name`` is its run id, or the log's name where it has
    none; ``title`` and ``software`` are None there too."""

    result: dict[str, Any]
    name: str
    title: str | None
    software: str | None
    hosts: tuple[str, ...]
    steps: Steps


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """``groups`` are what ``results --group`` says; ``references`` say what the verdicts were compared with."""

    title: str
    made: float
    """Unix time."""
    version: str
    facts: tuple[tuple[str, str], ...]
    """Cluster, GPUs, software and so on, each with its name."""
    conclusion: Conclusion
    groups: tuple[dict[str, Any], ...]
    runs: tuple[ReportRun, ...]
    scaling: tuple[ScalingLine, ...]
    histories: tuple[History, ...]
    differing: tuple[Differing, ...]
    hosts: tuple[HostLine, ...]
    references: tuple[str, ...]
    campaign: dict[str, Any] | None = None
    """The verdicts of the acceptance campaign that the runs are of, where they are one's: ``outcome.for_report``."""

    @property
    def ok(self) -> bool:
        """Whether every run succeeded."""
        return all(run.result["status"] == "Success" for run in self.runs)


def build(found: Sequence[Measured], place: Place, title: str = "LLMB report") -> Report:
    """The report on measured runs, in their order."""
    most = max(30, MOST_POINTS // max(1, len(found)))
    groups = tuple(group_as_dict(item) for item in group(found))
    runs = tuple(_run(item, most) for item in found)
    hosts = host_lines(found)
    return Report(
        title=title,
        made=round(time.time()),
        version=__version__,
        facts=facts(found, place),
        conclusion=conclude(groups, [run.result for run in runs], hosts),
        groups=groups,
        runs=runs,
        scaling=tuple(scaling_lines(found, place)),
        histories=tuple(history_lines(found)),
        differing=differing(found),
        hosts=hosts,
        references=tuple(reference_lines(found)),
    )


def _run(item: Measured, most: int) -> ReportRun:
    result = as_dict(item)
    return ReportRun(
        result=result,
        name=result["run_id"] or result["name"],
        title=title_of(item.record) if item.record else None,
        software=software_of(item.record) if item.record else None,
        hosts=item.account.hosts,
        steps=steps_of(item.timing, most),
    )
