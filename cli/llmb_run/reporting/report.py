"""``Report``: everything that a report says, as plain data. HTML, Markdown and JUnit are functions of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from llmb_common import __version__
from llmb_common.results.configuration import title_of
from llmb_common.results.history import History
from llmb_common.results.scaling import ScalingLine
from llmb_run import columns
from llmb_run.place import Place
from llmb_run.reporting.differing import Differing, differing
from llmb_run.reporting.head import Conclusion, conclude, facts
from llmb_run.reporting.hosts import HostLine, host_lines
from llmb_run.reporting.steps import Steps, steps_of
from llmb_run.results.groups import GROUP, group
from llmb_run.results.measuring import Measured, reference_lines
from llmb_run.results.ranking import boards, ranking_as_dict
from llmb_run.results.run_columns import RUN, as_dict
from llmb_run.results.series import SCALING, history_lines, scales_of, scaling_lines

MOST_POINTS = 30_000
"""Steps that a report holds, over all runs: a page of 500 runs stays a few megabytes."""


_PAGE = {name: columns.described(listed) for name, listed in (("runs", RUN), ("groups", GROUP), ("scaling", SCALING))}


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
    sweeps: tuple[dict[str, Any], ...]
    """What ``results --rank`` says of configurations that differ in more than their scale and precision."""
    scaling: tuple[ScalingLine, ...]
    scales: tuple[list[dict[str, Any]], ...]
    """The rows of each of ``scaling``."""
    histories: tuple[History, ...]
    differing: tuple[Differing, ...]
    hosts: tuple[HostLine, ...]
    references: tuple[str, ...]
    columns: dict[str, list[dict[str, str]]] = msgspec.field(default_factory=lambda: dict(_PAGE))
    """The page's columns of figures: key, heading, unit and how a value is written, for each of its tables."""
    campaign: dict[str, Any] | None = None
    """The verdicts of the acceptance campaign that the runs are of, where they are one's: ``outcome.for_report``."""
    tuning: dict[str, Any] | None = None
    """Conclusion, trials and winner of the tuning that the runs are of."""

    @property
    def ok(self) -> bool:
        """Whether every run succeeded."""
        return all(run.result["status"] == "Success" for run in self.runs)


def build(found: Sequence[Measured], place: Place, title: str = "LLMB report") -> Report:
    """The report on measured runs, in their order."""
    most = max(30, MOST_POINTS // max(1, len(found)))
    groups = tuple(columns.as_dict(GROUP, item) for item in group(found))
    runs = tuple(_run(item, most) for item in found)
    hosts, lines = host_lines(found), scaling_lines(found, place)
    return Report(
        title=title,
        made=round(time.time()),
        version=__version__,
        facts=facts(found, place),
        conclusion=conclude(groups, [run.result for run in runs], hosts),
        groups=groups,
        runs=runs,
        sweeps=_sweeps(found, place),
        scaling=tuple(lines),
        scales=tuple([columns.as_dict(SCALING, row) for row in scales_of(line)] for line in lines),
        histories=tuple(history_lines(found)),
        differing=differing(found),
        hosts=hosts,
        references=tuple(reference_lines(found)),
    )


_DOCUMENTED = {"gpus", "gbs", "dtype", "fp8_recipe", "software"}
"""What configurations differ in that nobody varied."""


def _sweeps(found: Sequence[Measured], place: Place) -> tuple[dict[str, Any], ...]:
    made = ranking_as_dict(boards(found, place))
    return tuple(board for board in made if board["command"] and not {*board["differing"]} <= _DOCUMENTED)


def _run(item: Measured, most: int) -> ReportRun:
    result = as_dict(item)
    return ReportRun(
        result=result,
        name=result["run_id"] or result["name"],
        title=title_of(item.record.plan) if item.record else None,
        software=item.software or None,
        hosts=item.account.hosts,
        steps=steps_of(item.timing, most),
    )
