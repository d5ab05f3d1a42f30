"""``llmb-run plan``: where a job's values come from, its memory, time and GPU-hours, and where its ranks are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from llmb_common.base.errors import RequestError
from llmb_common.base.outcome import Result
from llmb_common.base.printable import counted, width_of, wrapped
from llmb_common.planning.job_plan import MemoryEstimate, StageMemory, plan_as_dict
from llmb_common.planning.outlook import gpu_hours, job_seconds, known_from, most_gpu_hours
from llmb_common.planning.outlook_lines import answer_line, memory_line, time_lines
from llmb_common.planning.ranks import ORDER, coordinates, groups
from llmb_common.planning.request.variables import COLUMNS
from llmb_common.planning.sources import sources
from llmb_common.planning.workspace import Workspace
from llmb_run.starting.requests import PlannedJob, one_job, plan_job, say_warnings
from llmb_run.terminal import with_label

_BAR = 52
"""Columns of a bar."""

_NODES = 3
"""Nodes that are shown before the last."""


class Outlook:
    """What a planned job is expected to take: memory, time and GPU-hours, and where its settings come from.

    Its two arguments are the planned job and the workspace whose site configuration counts, in this order; RecipeError
    where the recipe's catalogue cannot be read then. ``plan`` is the job's plan, ``sources`` a list of (name, value,
    source), one for each of its settings. ``as_dict`` returns it all as JSON values, with the keys ``plan``,
    ``sources``, ``time_from``, ``job_seconds``, ``gpu_hours``, ``most_gpu_hours``, ``rank_order``, ``groups`` and
    ``ranks``; those of time and GPU-hours are None where that is not known. ``text`` returns it as text for people,
    wrapped at the terminal's width, with a final line break; its flags add the parts of each pipeline stage
    (``memory``), where each value comes from (``origin``), and which ranks are on which node (``ranks``).
    """

    def __init__(self, planned: PlannedJob, workspace: Workspace) -> None:
        self.plan = planned.plan
        self.sources = sources(self.plan, planned.recipe, workspace.cluster, planned.request)

    def as_dict(self) -> dict[str, Any]:
        """Return what the job is expected to take as JSON values, for ``plan --json``.

        The keys are ``plan`` (as ``plan_as_dict``), ``sources``, ``time_from``, ``job_seconds``, ``gpu_hours``,
        ``most_gpu_hours``, ``rank_order``, ``groups`` and ``ranks``. ``job_seconds`` and ``gpu_hours`` are pairs,
        lowest and highest; None where they are not known, and so is ``time_from``, a text on what they are known
        from. ``most_gpu_hours`` is what the time limit allows; None where nothing ends the job then. On CPUs no
        GPU-hours are known. ``sources`` is a list with a dict for each setting, with the texts ``name``, ``value``
        and ``source``. ``rank_order`` is a text (``tp-cp-ep-dp-pp``), ``groups`` a list with a dict for each kind of
        group of ranks (``name``, ``size``, ``stride`` and ``nodes``, as in ``RankGroup``), empty for one rank, and
        ``ranks`` a list of dicts as ``coordinates`` returns them, each rank's place in the groups, from rank 0 on.
        """
        return {
            "plan": plan_as_dict(self.plan),
            "sources": [source._asdict() for source in self.sources],
            "time_from": known_from(self.plan) or None,
            "job_seconds": job_seconds(self.plan),
            "gpu_hours": gpu_hours(self.plan),
            "most_gpu_hours": most_gpu_hours(self.plan),
            "rank_order": ORDER,
            "groups": [group._asdict() for group in groups(self.plan)],
            "ranks": [coordinates(self.plan, rank) for rank in range(self.plan.gpus)],
        }

    def text(self, *, memory: bool = False, origin: bool = False, ranks: bool = False) -> str:
        """Return what the job is expected to take as text: whether it fits, how long it takes, what that costs.

        Then, below headings, what that is known from, and what the job is. ``memory`` adds the parts of each
        pipeline stage, ``origin`` where each value comes from, ``ranks`` which ranks are on which node; without
        them a last line names the options. Wrapped at the terminal's width, with a final line break.
        """
        parts = {"memory": self._memory_lines, "time": self._time_lines, "job": self._job_lines}
        if memory:
            parts["stages"] = self._stage_lines
        if origin:
            parts["from"] = self._source_lines
        if ranks:
            parts["ranks"] = self._rank_lines
        answer = wrapped(answer_line(self.plan), width_of(sys.stdout))
        text = "".join(f"{line}\n" for line in answer)
        for name, lines in parts.items():
            text += with_label(name, list(lines()))
        if memory or origin or ranks:
            return text
        return f"{text}more: --memory --sources --ranks --json\n"

    def _memory_lines(self) -> Iterator[str]:
        """Yield one line: how much GPU memory the fullest rank needs, and how well that is known; or ``not estimated``.

        ``60.1 GiB and 6 in reserve on the fullest rank, of 179 (dense, bf16: validated)``, without a period.
        """
        memory = self.plan.preflight.memory
        yield "not estimated" if memory is None else memory_line(memory)

    def _job_lines(self) -> Iterator[str]:
        """Yield two lines on what the job is: workload, model, precision and scale; then its layout and steps.

        ``pretrain_llama3.1 405b fp8 on 128 GB200 GPUs, 32 nodes of 4``, then ``TP 4, PP 8, ...; 50 steps``.
        """
        plan = self.plan
        nodes = f"{counted(plan.nodes, 'node')} of {plan.gpus_per_node}"
        yield f"{plan.workload} {plan.model_size} {plan.precision} on {plan.scale}, {nodes}"
        layout = [f"{name} {value}" for name, value, _ in self.sources if name in COLUMNS]
        yield f"{', '.join(layout)}; {counted(plan.trained_steps, 'step')}"

    def _source_lines(self) -> Iterator[str]:
        """Yield a line for each source of the job's settings: ``SOURCE: NAME VALUE, NAME VALUE``.

        Sources, each once, and settings are in the order of ``sources``.
        """
        together: dict[str, list[str]] = {}
        for name, value, source in self.sources:
            together.setdefault(source, []).append(f"{name} {value}")
        yield from (f"{source}: {', '.join(values)}" for source, values in together.items())

    def _stage_lines(self) -> Iterator[str]:
        """Yield lines on the memory of one rank: the GPU's, a bar for each pipeline stage, and the fullest's parts.

        In GiB. Parts of 0.0 are left out; the last is the reserve, behind a dot. ``not estimated`` alone where the
        memory is not known.
        """
        memory = self.plan.preflight.memory
        if memory is None:
            yield "not estimated"
            return
        yield f"GiB of one rank, of {memory.limit:.0f}"
        for stage in memory.stages:
            yield _memory_bar(stage, memory)
        parts = []
        for name, gib in memory.fullest.parts.items():
            number = f"{gib:.1f}"
            if number != "0.0":
                parts.append(f"{name[0].upper()} {name.replace('_', ' ')} {number}")
        parts.append(f". reserve {memory.reserve:.0f}")
        yield ", ".join(parts)

    def _time_lines(self) -> Iterator[str]:
        """Yield lines, at least one, on how long a step and the whole job take, and on what that is known from.

        As ``time_lines`` has them: ``50 steps and the start take about 9 to 11 minutes``, without a period.
        """
        yield from time_lines(self.plan)

    def _rank_lines(self) -> Iterator[str]:
        """Yield lines on the groups of ranks (TP, PP ...), and on which ranks each node has.

        First the groups' sizes in their order, maybe a line on cores, then ``node 0: ranks 0-7, TP 0-7, PP 0`` for each
        node. Of more than three nodes only the first three and the last are shown, and between them a line of dots if
        there are others.
        """
        plan = self.plan
        known = groups(plan)
        spans = [f"{group.name} {group.size} on {counted(group.nodes, 'node')}" for group in known]
        yield f"in the order {ORDER}: {', '.join(spans) or 'one rank'}"
        if plan.fast_cores is not None:
            stride, count = plan.fast_cores
            last = plan.gpus_per_node - 1
            first_of_last = stride * last
            yield (
                f"of a node, rank 0 on cores 0-{count - 1}, ..., rank {last} on {first_of_last}-"
                f"{first_of_last + count - 1}, where they are fast and in the rank's NUMA node, else on all of that"
            )
        shown = list(range(min(_NODES, plan.nodes)))
        if plan.nodes > _NODES:
            shown.append(plan.nodes - 1)
        for node in shown:
            if node == plan.nodes - 1 > _NODES:
                yield "..."
            first = node * plan.gpus_per_node
            of_ranks = [coordinates(plan, rank) for rank in range(first, first + plan.gpus_per_node)]
            ranks = _range_text([rank["rank"] for rank in of_ranks])
            noun = "rank" if ranks.isdecimal() else "ranks"
            parts = [f"node {node}: {noun} {ranks}"]
            for group in known:
                key = group.name.lower()
                if key in of_ranks[0]:
                    parts.append(f"{group.name} {_range_text([rank[key] for rank in of_ranks])}")
            yield ", ".join(parts)


def _memory_bar(stage: StageMemory, memory: MemoryEstimate) -> str:
    """Return the memory of a pipeline stage's rank as a line: ``PP 0-6     54.3 WWWGGGGGGOOAAAAAAAAA..     |``.

    The number is in GiB. Each letter is the first of one part's name, as wide as its share; dots are the reserve,
    and the bar is where the GPU's memory ends. What does not fit stands behind the bar. No line break.
    """
    scale = _BAR / max(memory.limit, memory.peak + memory.reserve)
    drawn, end = "", 0.0
    parts = [(name[0].upper(), gib) for name, gib in stage.parts.items()]
    for letter, gib in [*parts, (".", memory.reserve)]:
        end += gib * scale
        drawn += letter * (round(end) - len(drawn))
    limit = round(memory.limit * scale)
    filled = drawn.ljust(limit)
    name = f"PP {_range_text([stage.first, stage.last])}"
    return f"{name:<9}{stage.total:6.1f} {filled[:limit]}|{filled[limit:]}"


def _range_text(values: list[int]) -> str:
    """Return the smallest and largest of ``values``, ``0-7``; one number where they are the same.

    ``values`` must not be empty; that they are consecutive is not checked.
    """
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"


def plan(memory: bool, origin: bool, ranks: bool, **settings: Any) -> Result:
    """Show what a job will take, as ``llmb-run plan`` does. Starts nothing.

    ``settings`` are the job's options, as ``one_job`` takes them, without ``dry_run``. ``memory``, ``origin``,
    ``ranks``: add these parts to the text. The data is that of ``Outlook.as_dict``. A job that does not fit into
    memory is shown, too, with that error (code ``does-not-fit``) in the result, which decides the exit status; of
    any other, warnings are printed on stderr, and checkpoint and space are checked as in a dry run.

    Raises:
        RequestError: the job cannot be planned for another reason, or an option is wrong
        LLMBError: the checkpoint to load, or the space for checkpoints, is lacking; recipe or site configuration is
            wrong
    """
    spec = one_job(dry_run=True, **settings)
    workspace, refused = Workspace(), None
    try:
        planned = plan_job(spec, workspace)
    except RequestError as error:
        if error.code != "does-not-fit":
            raise
        refused = error
        # Planned again, with the refusal as a warning, to show what it would take.
        planned = plan_job(spec.with_settings({"preflight": "warn"}), workspace)
    if refused is None:
        say_warnings([planned])
        if planned.plan.checkpoint.is_used:
            from llmb_run.starting.submitting import StartOptions, check_dry_run  # all of submission comes with it

            check_dry_run([planned], workspace, StartOptions())
    outlook = Outlook(planned, workspace)
    return Result(outlook.as_dict, partial(outlook.text, memory=memory, origin=origin, ranks=ranks), error=refused)
