"""``llmb-run plan``: where a job's values come from, its memory, time and cost, and where its ranks are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from llmb_common.command.outcome import Result
from llmb_common.command.printable import counted
from llmb_common.errors import RequestError
from llmb_common.planning.job_plan import MemoryEstimate, StageMemory, plan_as_dict
from llmb_common.planning.outlook import (
    ORDER,
    alike,
    coordinates,
    energy_kwh,
    gpu_hours,
    groups,
    job_seconds,
    limit_seconds,
    ranged,
    sources,
    step_seconds,
)
from llmb_common.planning.step_time import CLASSES
from llmb_common.site.cluster import FILE_NAME
from llmb_common.submission.launch import measured_here
from llmb_run import options
from llmb_run.app import Command
from llmb_run.starting.requests import PlannedJob, one_job, plan_job
from llmb_run.starting.submitting import say_warnings
from llmb_run.terminal import labelled
from llmb_run.workspace import Workspace

_BAR = 52
"""Columns of a bar."""

_NODES = 3
"""Nodes that are shown before the last."""


class Outlook:
    """What a planned job will take. ``watts`` of a GPU; None where nobody says them, like ``energy`` and ``money``."""

    def __init__(self, asked: PlannedJob, workspace: Workspace) -> None:
        self.plan, cluster = asked.plan, workspace.cluster
        measured = measured_here(workspace.install_or_none)(self.plan).watts
        self.sources = sources(self.plan, asked.entry.recipe, cluster, asked.request)
        self.watts = measured or cluster.watts_per_gpu
        self.watts_from = "measured here" if measured else FILE_NAME
        self.price, self.currency = cluster.price_per_gpu_hour, cluster.currency
        self.hours = gpu_hours(self.plan)
        self.energy = energy_kwh(self.plan, self.watts) if self.watts is not None else None
        self.money = self.hours.times(self.price) if self.hours is not None and self.price is not None else None

    def as_dict(self) -> dict[str, Any]:
        """Spans are pairs; seconds, GPU-hours, kWh and units of ``currency``."""
        return {
            "plan": plan_as_dict(self.plan),
            "sources": [source._asdict() for source in self.sources],
            "job_seconds": job_seconds(self.plan),
            "gpu_hours": self.hours,
            "watts_per_gpu": self.watts,
            "energy_kwh": self.energy,
            "cost": self.money,
            "currency": self.currency if self.money is not None else None,
            "rank_order": ORDER,
            "groups": [group._asdict() for group in groups(self.plan)],
            "ranks": [coordinates(self.plan, rank) for rank in range(self.plan.gpus)],
        }

    def text(self) -> str:
        parts = {"job": self._job, "from": self._sources, "memory": self._memory}
        parts |= {"time": self._time, "cost": self._cost, "ranks": self._ranks}
        return "".join(labelled(name, [*lines()]) for name, lines in parts.items())

    def _job(self) -> Iterator[str]:
        plan = self.plan
        nodes = f"{counted(plan.nodes, 'node')} of {plan.gpus_per_node}"
        yield f"{plan.workload} {plan.model_size} {plan.precision} on {plan.scale}, {nodes}"

    def _sources(self) -> Iterator[str]:
        together: dict[str, list[str]] = {}
        for name, value, source in self.sources:
            together.setdefault(source, []).append(f"{name} {value}")
        yield from (f"{source}: {', '.join(values)}" for source, values in together.items())

    def _memory(self) -> Iterator[str]:
        memory = self.plan.preflight.memory
        if memory is None:
            yield "not estimated"
            return
        yield f"GiB of one rank, of {memory.limit:.0f} ({memory.kind}: {memory.knowledge})"
        for stage in memory.stages:
            yield _bar(stage, memory)
        parts = [f"{name[0].upper()} {name.replace('_', ' ')} {gib:.1f}" for name, gib in memory.fullest.parts.items()]
        yield ", ".join([*(part for part in parts if not part.endswith(" 0.0")), f". reserve {memory.reserve:.0f}"])

    def _time(self) -> Iterator[str]:
        known = self.plan.preflight
        step, whole = step_seconds(self.plan), job_seconds(self.plan)
        if step is None or known.predicted_step_seconds is None:
            yield "no published result and no run of this site says how long a step takes"
        else:
            low, high, likely = alike(*step, known.predicted_step_seconds)
            yield f"{low} to {high} s a step in 9 of 10 cases, most likely {likely}"
            yield f"from {CLASSES[known.knowledge or '']}"
        if known.reference_step_seconds is not None:
            yield f"published: {known.reference_step_seconds:g} s ({known.reference_software})"
        if whole is not None:
            steps = counted(self.plan.trained_steps, "step")
            short_of = ", which may be too short" if whole.high > limit_seconds(self.plan.time_limit) else ""
            minutes = ranged(whole.times(1 / 60))
            yield f"{steps} and the start: {minutes} minutes, time limit {self.plan.time_limit}{short_of}"

    def _cost(self) -> Iterator[str]:
        if self.hours is None:
            return
        yield f"{ranged(self.hours)} GPU-hours"
        if self.energy is not None and self.watts is not None:
            yield f"{ranged(self.energy)} kWh at {self.watts:.0f} W a GPU ({self.watts_from})"
        if self.money is not None and self.price is not None:
            yield f"{ranged(self.money)} {self.currency} at {self.price:g} a GPU-hour ({FILE_NAME})"

    def _ranks(self) -> Iterator[str]:
        plan = self.plan
        known = groups(plan)
        spans = [f"{group.name} {group.size} on {counted(group.nodes, 'node')}" for group in known]
        yield f"in the order {ORDER}: {', '.join(spans) or 'one rank'}"
        shown = [*range(min(_NODES, plan.nodes)), *([plan.nodes - 1] if plan.nodes > _NODES else [])]
        for node in shown:
            if node == plan.nodes - 1 > _NODES:
                yield "..."
            here = [
                coordinates(plan, rank) for rank in range(node * plan.gpus_per_node, (node + 1) * plan.gpus_per_node)
            ]
            names = [group.name for group in known if group.name.lower() in here[0]]
            spans = [f"{name} {_range([rank[name.lower()] for rank in here])}" for name in names]
            ranks = _range([rank["rank"] for rank in here])
            yield ", ".join([f"node {node}: {'rank' if ranks.isdecimal() else 'ranks'} {ranks}", *spans])


def _bar(stage: StageMemory, memory: MemoryEstimate) -> str:
    """``PP 0-6     54 WWWGGGGGGOOAAAAAAAAA..     |``: a letter for each part, and where the device ends."""
    scale = _BAR / max(memory.limit, memory.peak + memory.reserve)
    drawn, end = "", 0.0
    for letter, gib in [*((name[0].upper(), gib) for name, gib in stage.parts.items()), (".", memory.reserve)]:
        end += gib * scale
        drawn += letter * (round(end) - len(drawn))
    limit = round(memory.limit * scale)
    filled = drawn.ljust(limit)
    name = f"PP {_range([stage.first, stage.last])}"
    return f"{name:<9}{stage.total:6.1f} {filled[:limit]}|{filled[limit:]}"


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"


@click.command(cls=Command)
@options.one_job
@options.job_settings
def plan_command(**settings: Any) -> Result:
    """Show what a job will take: memory, time, GPU-hours, energy, and where its ranks run.

    Starts nothing. Shows a job that does not fit, too, and then refuses it as `single` would.
    """
    spec = one_job(dry_run=True, **settings)
    workspace, refused = Workspace(), None
    try:
        asked = plan_job(spec, workspace)
    except RequestError as error:
        if error.code != "does-not-fit":
            raise
        refused = error
        asked = plan_job(spec.having({"preflight": "warn"}), workspace)
    if refused is None:
        say_warnings([asked])
    outlook = Outlook(asked, workspace)
    return Result(outlook.as_dict, outlook.text, error=refused)
