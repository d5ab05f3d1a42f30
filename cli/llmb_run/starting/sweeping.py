"""``llmb-run sweep``: what will run and what will not, before anything starts; then all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llmb_common.command.envelope import Result
from llmb_common.command.printable import counted, first_few
from llmb_common.errors import RequestError
from llmb_common.planning.job_plan import JobPlan, plan_as_dict
from llmb_common.planning.outlook import Span, ranged
from llmb_run.place import Place
from llmb_run.starting.requests import Ask, Asked, Refused, plan_each
from llmb_run.starting.submitting import check_followed, start_planned
from llmb_run.starting.varying import Dimensions, dimensions_of, once_each
from llmb_run.terminal import say, table


def dimensions_said(
    vary: Sequence[str], zipped: Sequence[str], base: Ask, lists: Dimensions
) -> tuple[Dimensions, list[Dimensions]]:
    """What ``--vary`` and ``--zip`` say, beside ``lists`` that have options of their own.

    Raises:
        RequestError: nothing is varied, or something that another option sets
    """
    groups: list[Dimensions] = [dimensions_of(vary, "--vary")]
    groups += (dimensions_of(text.split(), "--zip") for text in zipped)
    for name in (name for group in groups for name in group):
        value = ",".join(lists.get(name, [])) or base.value(name)
        if value is not None:
            raise RequestError(f"{name} is varied, and set to {value}", remedy="leave one of them out")
    if not any(groups) and not any(len(values) > 1 for values in lists.values()):
        raise RequestError(
            "nothing is varied", remedy="--vary tp=1,2 --vary NCCL_ALGO=Ring,Tree, or --zip 'tp=1,2 pp=4,2'"
        )
    return {**lists, **groups[0]}, groups[1:]


def start_sweep(asks: Sequence[Ask], place: Place, *, dry_run: bool, **settings: Any) -> Result:
    """Plan all, show what will run and what will not, and start the former, the first repeats of all before the second.

    Raises:
        RequestError: nothing of it can be planned
    """
    planned, refused = once_each(plan_each([replace(ask, dry_run=dry_run) for ask in asks], place))
    if not planned:
        raise RequestError(
            f"none of {counted(len(refused), 'combination')} can be planned:\n{_reasons(refused)}".rstrip(),
            remedy=refused[0].error.remedy,
            code=refused[0].error.code,
        )
    found = {
        "planned": [{"combination": item.ask.varied, "plan": plan_as_dict(item.plan)} for item in _once(planned)],
        "refused": [{"combination": item.ask.varied, "error": item.error.as_dict()} for item in refused],
    }
    shown = _table(planned) + _reasons(refused)
    if dry_run or planned[0].request.dry_run:
        check_followed(planned, place, settings.get("after"))
        remark = f"{counted(len(planned), 'job')}, nothing started (dry run)"
        return Result({"dry_run": True, **found}, shown, remarks=[remark])
    say(shown)
    in_turn = sorted(planned, key=lambda item: item.ask.repeat)
    done = start_planned("sweep", in_turn, place, swept=asks, **settings)
    hint = f"{done.hint}\nwhen they are over: llmb-run results --rank".lstrip()
    return replace(done, data={**found, **done.data}, hint=hint)


def _once(planned: Sequence[Asked]) -> list[Asked]:
    return [item for item in planned if item.ask.repeat == 1]


def _table(planned: Sequence[Asked]) -> str:
    """A row for each combination: its values, its runs, and what they are predicted to take."""
    runs = Counter(id(item.plan) for item in planned)
    names = list(dict.fromkeys(name for item in planned for name in item.ask.varied))
    heads = [*names, "runs", "GPUs", "memory GiB", "step s", "known from"]
    rows = [
        [*(item.ask.varied.get(name, "") for name in names), str(runs[id(item.plan)]), *_predicted(item.plan)]
        for item in _once(planned)
    ]
    shown = [
        at
        for at, head in enumerate(heads)
        if any(row[at] for row in rows) and (head, "scale" in names) != ("GPUs", True)
    ]
    right = [heads[at] for at in shown if all(row[at][:1].isdigit() for row in rows)]
    return table([heads[at] for at in shown], [[row[at] for at in shown] for row in rows], right)


def _predicted(plan: JobPlan) -> list[str]:
    known, memory = plan.preflight, plan.preflight.memory
    room = "" if memory is None else f"{memory.peak + memory.reserve:.0f} of {memory.limit:.0f}"
    doubt = "" if memory is None or memory.fits else f", {memory.verdict}"
    step = "" if known.predicted_low is None else ranged(Span(known.predicted_low, known.predicted_high or 0.0))
    return [str(plan.gpus), room + doubt, step, known.knowledge or ""]


def _reasons(refused: Sequence[Refused]) -> str:
    """One line for each reason, with the combinations that it is of."""
    together: dict[str, dict[str, None]] = {}
    for item in refused:
        together.setdefault(item.error.message, {})[item.ask.combination] = None
    return "".join(f"not run: {first_few([*who], between='; ')}: {why}\n" for why, who in together.items())
