"""Which configurations of a job there are to choose from: its settings, their values, and the legal combinations.

Values come from three places: the base, the recipe's other rows of the same model on such GPUs, and what is next to the
base's own (half and double). Combinations differ from the base in few settings, or are a row of the recipe.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations as chosen_of
from itertools import islice, product

import msgspec

from llmb_common.errors import RequestError
from llmb_common.planning.divisibility import divides_at_all
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.outlook import START_SECONDS
from llmb_common.recipes.rows import Row
from llmb_common.request.variables import COLUMNS
from llmb_common.results.search import Option
from llmb_common.results.surrogate import Point
from llmb_run.place import Place
from llmb_run.starting.command_line import as_said
from llmb_run.starting.requests import Asked, Refused, plan_each
from llmb_run.starting.sweeps import changed, once_each
from llmb_run.tuning.settings import each_apart, fixed_columns, found_settings, own_said, row_said

_SIZES = ("mbs", "tp", "pp", "vp", "cp", "ep")
_SAVERS = ("recompute_layers", "offload_layers", "cuda_graph", "fsdp")

_FURTHEST = 3
"""Settings in which a combination differs from the documented one; documented rows may differ in more."""

_PLANNED = 400
"""Combinations that are planned, the nearest first: planning one takes tens of milliseconds."""

_ARMS = 80
"""Configurations that are kept, the most promising."""

_WORDS = {
    "does-not-divide": "do not divide",
    "does-not-fit": "do not fit the memory",
    "same-job": "are the same job as another",
    "refused-by-megatron": "are refused by Megatron",
}

Values = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Space:
    """``arms``: the base first. ``refused``: what cannot be planned; ``impossible``: how many divide nothing;
    ``left_out``: legal ones beyond the most promising."""

    values: Values
    arms: tuple[Asked, ...]
    refused: tuple[Refused, ...] = ()
    impossible: int = 0
    left_out: int = 0
    unplanned: int = field(default=0)
    """Combinations further from the base that nobody looked at."""

    @property
    def base(self) -> Asked:
        return self.arms[0]

    @property
    def example(self) -> str:
        """The first that cannot be planned for a reason that has no word of its own; empty where none is."""
        odd = (item for item in self.refused if (item.error.code or "") not in _WORDS)
        return next((f"{item.ask.combination}: {item.error.message}" for item in odd), "")

    @property
    def reasons(self) -> dict[str, int]:
        """How many were refused, by why in a few words."""
        counts = Counter(_WORDS.get(item.error.code or "", "cannot be planned") for item in self.refused)
        if self.impossible:
            counts[_WORDS["does-not-divide"]] += self.impossible
        return dict(counts.most_common())


def find_space(base: Asked, place: Place, given: Values, *, only: bool = False) -> Space:
    """Of the job ``base``. ``given``: values in place of those that are found; ``only``: nothing else varies.

    Raises:
        RequestError: nothing is left to choose from
    """
    rows = [] if only else _rows(base)
    values = {**({} if only else _found(base, rows) | found_settings(base, rows)), **given}
    values = {name: tuple(dict.fromkeys(listed)) for name, listed in values.items()}
    own = {name: value for name in values if (value := _own(base, name)) is not None}
    documented = [{name: _column(row, name) for name in (*_SIZES, *_SAVERS)} | row_said(base, row) for row in rows]
    found, impossible = _changes(base.plan, own, values, documented, everything=only)
    asks = [changed(base.ask, each_apart(changes)) for changes in islice(found, _PLANNED)]
    planned, refused = once_each([base, *plan_each(asks, place)])
    others = sorted(planned[1:], key=lambda item: _order(base.plan, item))
    if not others:
        why = refused[0].error.message if refused else "none divides the GPUs and the batch"
        raise RequestError(
            f"nothing to choose from: none of {len(refused) + impossible[0]} combinations can be run: {why}",
            remedy="give other values, for example --vary mbs=1,2",
        )
    return Space(
        values,
        (base, *others[: _ARMS - 1]),
        tuple(refused),
        impossible[0],
        max(len(others) - _ARMS + 1, 0),
        sum(1 for _ in islice(found, 100_000)),
    )


def _rows(base: Asked) -> list[Row]:
    """Documented rows of the same model on such GPUs."""
    plan = base.plan
    return [
        row
        for row in base.entry.recipe.rows_for(plan.gpu_type, size=plan.model_size)
        if row.variant == plan.variant and plan.model_size != "smoke"
    ]


def _found(base: Asked, rows: Sequence[Row]) -> dict[str, list[str]]:
    """Columns with more than one value."""
    plan, fixed, found = base.plan, fixed_columns(base), dict[str, list[str]]()
    for name in _SIZES:
        if name == "ep" and not plan.has_experts:
            continue
        own = getattr(plan, name) or 1
        documented = {getattr(row, name) or 1 for row in rows}
        near = {own // 2, own * 2} - {0}
        numbers = sorted({own, *near, *documented})
        found[name] = [str(number) for number in numbers if number <= 64]
    for name in _SAVERS:
        listed = {getattr(plan, name), *(getattr(row, name) for row in rows)}
        if name == "cuda_graph":
            listed |= {True, False}
        found[name] = [as_said(value) for value in sorted(listed)]
    return {name: values for name, values in found.items() if len(values) > 1 and name not in fixed}


def _own(base: Asked, name: str) -> str | None:
    """The base's own value, as it would be asked for; None where nobody says it."""
    if name in COLUMNS.values():
        return _column(base.plan, name)
    if name == "image":
        return base.plan.image
    known = {"size": base.plan.model_size, "dtype": base.plan.dtype, "scale": str(base.plan.gpus)}
    known["engine"] = base.plan.engine
    return own_said(base).get(name) or known.get(name) or base.ask.value(name)


def _column(of: JobPlan | Row, name: str) -> str:
    value = getattr(of, name)
    return as_said(value or 1 if name in _SIZES else value)


def _changes(
    plan: JobPlan, own: Mapping[str, str], values: Values, rows: Sequence[Mapping[str, str]], *, everything: bool
) -> tuple[Iterator[dict[str, str]], list[int]]:
    """Combinations, as changes of the base, the nearest first; and a count of those that divide nothing."""
    impossible = [0]
    others = {name: [value for value in listed if value != own.get(name)] for name, listed in values.items()}

    def every() -> Iterator[dict[str, str]]:
        for row in rows:
            yield {name: value for name, value in row.items() if value in others.get(name, ())}
        furthest = len(others) if everything else min(_FURTHEST, len(others))
        for count in range(1, furthest + 1):
            for names in chosen_of(others, count):
                for picked in product(*(others[name] for name in names)):
                    yield dict(zip(names, picked, strict=True))

    def possible() -> Iterator[dict[str, str]]:
        seen: set[tuple[tuple[str, str], ...]] = set()
        for changes in every():
            key = tuple(sorted(changes.items()))
            if not changes or key in seen:
                continue
            seen.add(key)
            if _divides(plan, changes):
                yield changes
            else:
                impossible[0] += 1

    return possible(), impossible


def _divides(plan: JobPlan, changes: Mapping[str, str]) -> bool:
    """A quick look: whether any model can be divided so. What is no number is left to planning."""
    numbers = {name: int(value) for name, value in changes.items() if name in _SIZES and value.isdecimal()}
    return divides_at_all(msgspec.structs.replace(plan.layout, **numbers))


def _order(base: JobPlan, item: Asked) -> tuple[bool, float, int]:
    """What surely fits and is predicted to be fast first."""
    known = item.plan.preflight
    return known.fits is False, _predicted(item.plan, base), len(item.ask.varied)


def _predicted(plan: JobPlan, base: JobPlan) -> float:
    """Logarithm of the predicted step time over the base's; 0 where one is not known."""
    mine, its = plan.preflight.predicted_step_seconds, base.preflight.predicted_step_seconds
    return math.log(mine / its) if mine and its else 0.0


def options_of(space: Space, trial_steps: int) -> list[Option]:
    """What a search chooses from; costs in GPU-hours."""
    base = space.base.plan
    return [
        Option(
            Point(_places(space, item), _predicted(item.plan, base)),
            _memory(item.plan),
            _hours(item.plan, trial_steps),
            _hours(item.plan, item.plan.max_steps),
        )
        for item in space.arms
    ]


def _places(space: Space, item: Asked) -> tuple[float | str, ...]:
    found: list[float | str] = []
    for name, listed in space.values.items():
        value = own_said(item).get(name) or item.ask.varied.get(name) or _own(space.base, name) or ""
        numbers = sorted({int(other) for other in (*listed, value) if other.isdecimal()})
        found.append(float(numbers.index(int(value))) if value.isdecimal() else value)
    return tuple(found)


def _memory(plan: JobPlan) -> float | None:
    """Predicted, over what there is."""
    memory = plan.preflight.memory
    return (memory.peak * memory.factor + memory.reserve) / memory.limit if memory is not None else None


def _hours(plan: JobPlan, steps: int) -> float:
    """GPU-hours of a run; on a CPU those of its ranks, of steps of a second."""
    start = START_SECONDS if plan.device == "cuda" else 10
    seconds = start + steps * (plan.preflight.predicted_step_seconds or 1.0)
    return seconds * plan.nodes * plan.gpus_per_node / 3600
