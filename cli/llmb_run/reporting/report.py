"""``Report``: everything that a report says, as plain data. HTML, Markdown and JUnit are functions of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from llmb_common import __version__
from llmb_common.results.configuration import configuration_key, software_of
from llmb_common.results.history import History, histories
from llmb_common.results.scaling import ScaledRun, ScalingLine, scaling
from llmb_run.place import Place
from llmb_run.reporting.differing import Differing, differing
from llmb_run.reporting.hosts import HostLine, host_lines
from llmb_run.reporting.steps import Steps, steps_of
from llmb_run.results.groups import group, group_as_dict
from llmb_run.results.measuring import Measured, as_dict, reference_lines

MOST_POINTS = 30_000
"""Steps that a report holds, over all runs: a page of 500 runs stays a few megabytes."""


class ReportRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run. ``result`` is what ``results --json`` says of it; ``key`` its configuration's, ``software`` in words."""

    result: dict[str, Any]
    key: str | None
    software: str | None
    hosts: tuple[str, ...]
    steps: Steps

    @property
    def name(self) -> str:
        """Its run id, or the log's name where it has none."""
        return str(self.result["run_id"] or self.result["name"])


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """``groups`` are what ``results --group`` says; ``references`` are lines on what the verdicts were held against."""

    title: str
    made: float
    """Unix time."""
    version: str
    groups: tuple[dict[str, Any], ...]
    runs: tuple[ReportRun, ...]
    scaling: tuple[ScalingLine, ...]
    histories: tuple[History, ...]
    differing: tuple[Differing, ...]
    hosts: tuple[HostLine, ...]
    references: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every run succeeded."""
        return all(run.result["status"] == "Success" for run in self.runs)


def build(found: Sequence[Measured], place: Place, title: str = "LLMB report") -> Report:
    """The report on measured runs, in their order."""
    most = max(30, MOST_POINTS // max(1, len(found)))
    return Report(
        title=title,
        made=round(time.time()),
        version=__version__,
        groups=tuple(group_as_dict(item) for item in group(found)),
        runs=tuple(_run(item, most) for item in found),
        scaling=tuple(scaling(scaled_runs(found, place))),
        histories=tuple(histories((item.record, item.good) for item in found if item.record and item.good)),
        differing=differing(found),
        hosts=host_lines(found),
        references=tuple(reference_lines(found)),
    )


def scaled_runs(found: Sequence[Measured], place: Place) -> list[ScaledRun]:
    """The successful runs with figures, as ``scaling`` wants them."""
    scaled = []
    for item in found:
        if item.record and item.good and item.figures:
            plan = item.record.plan
            recipe = place.workload(plan.workload).recipe
            scaled.append(ScaledRun(plan, recipe, software_of(item.record), item.good.seconds))
    return scaled


def _run(item: Measured, most: int) -> ReportRun:
    return ReportRun(
        result=as_dict(item),
        key=configuration_key(item.record.plan) if item.record else None,
        software=software_of(item.record) if item.record else None,
        hosts=item.account.hosts,
        steps=steps_of(item.timing, most),
    )
