"""Which configurations of a job there are to choose from: its settings, their values, and the legal combinations.

Values come from three places: the base, the recipe's other rows of the same model on such GPUs, and what is next to the
base's own (half and double). Combinations differ from the base in few settings, or are a row of the recipe.

Some settings have no column: how experts exchange tokens, what is recomputed, what overlaps. Those that go together are
one value, ``flex;model.moe_flex_dispatcher_backend=deepep``: further ones after a semicolon.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, product
from itertools import combinations as chosen_of
from typing import Any

import msgspec

from llmb_common.errors import RequestError
from llmb_common.planning.divisibility import divides_at_all
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.outlook import START_SECONDS
from llmb_common.planning.settings import own_settings
from llmb_common.recipes.catalogue import Function
from llmb_common.recipes.rows import Row
from llmb_common.request.columns import Columns
from llmb_common.request.values import is_setting, settings_in
from llmb_common.request.variables import COLUMNS
from llmb_common.results.search import Option
from llmb_common.results.surrogate import Point
from llmb_run.starting.command_line import as_said, setting_said
from llmb_run.starting.requests import PlannedJob, Refused, plan_each
from llmb_run.starting.sweeps import changed, once_each
from llmb_run.workspace import Workspace

DISPATCHER, _BACKEND = "model.moe_token_dispatcher_type", "model.moe_flex_dispatcher_backend"
RECOMPUTED, _MODULES = "model.recompute_granularity", "model.recompute_modules"
EXPERTS, _DELAYED = "comm_overlap.overlap_moe_expert_parallel_comm", "comm_overlap.delay_wgrad_compute"
TENSORS = "comm_overlap.tp_comm_overlap"


def found_settings(base: PlannedJob, rows: Sequence[Row]) -> dict[str, list[str]]:
    """Values of each: the function's own, those of the documented rows, and what else the model may have.

    Empty where no catalogue knows them, and on a CPU. Which values go together is for planning to say.
    """
    mine = _function(base)
    if mine is None or base.plan.device == "cpu":
        return {}
    experts = mine.architecture.moe is not None
    module = "mla_up_proj" if mine.layers and mine.layers.latent else "moe_act" if experts else "mlp"
    found = {TENSORS: ["true", "false"]}
    if not base.plan.recompute_layers:
        found[RECOMPUTED] = ["none", f"selective;{_MODULES}=[{module}]"]
    if experts:
        found[DISPATCHER] = ["alltoall", *(f"flex;{_BACKEND}={backend}" for backend in ("deepep", "hybridep"))]
        found[EXPERTS] = ["true", f"false;{_DELAYED}=false"]
    said = [own_said(base), *(row_said(base, row) for row in rows)]
    return {
        name: list(dict.fromkeys([*values, *(each[name] for each in said if name in each)]))
        for name, values in found.items()
    }


def own_said(base: PlannedJob) -> dict[str, str]:
    """The base's own values; empty where nobody knows them."""
    function = _function(base)
    return _said(function, base.plan, base.plan.megatron) if function else {}


def row_said(base: PlannedJob, row: Row) -> dict[str, str]:
    """Those of a documented row."""
    function = _function(base, row)
    return _said(function, function.columns, {}) if function else {}


def fixed_columns(base: PlannedJob) -> tuple[str, ...]:
    """Those that the base's function leaves no choice in: it places its layers itself, or has no CUDA graphs."""
    if (function := _function(base)) is None or base.plan.device == "cpu":
        return ()
    return (*(("pp", "vp") if function.stages else ()), *(() if function.columns.cuda_graph else ("cuda_graph",)))


def _function(base: PlannedJob, row: Row | None = None) -> Function | None:
    """That of the base, or of a row."""
    catalogue, own = base.entry.recipe.catalogue, base.plan.function
    name = row.function if row is not None else own.name if own is not None else None
    return catalogue.function(name) if catalogue is not None and name is not None else None


def _said(function: Function, columns: Columns[int], settings: Mapping[str, Any]) -> dict[str, str]:
    known = own_settings(function, columns) | dict(settings)
    backend, modules = (setting_said(known.get(name)) for name in (_BACKEND, _MODULES))
    found = {
        TENSORS: "true" if known[TENSORS] else "false",
        RECOMPUTED: f"selective;{_MODULES}={modules}" if known.get(RECOMPUTED) == "selective" else "none",
    }
    if function.architecture.moe is not None:
        flex = known[DISPATCHER] == "flex"
        found[DISPATCHER] = f"flex;{_BACKEND}={backend}" if flex else setting_said(known[DISPATCHER])
        found[EXPERTS] = "true" if known[EXPERTS] else f"false;{_DELAYED}=false"
    return found


def each_apart(changes: Mapping[str, str]) -> dict[str, str]:
    """Changes with one setting each."""
    return {
        key: value
        for name, said in changes.items()
        for key, value in (settings_in(f"{name}={said}", name) if is_setting(name) else {name: said}).items()
    }


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
    arms: tuple[PlannedJob, ...]
    refused: tuple[Refused, ...] = ()
    impossible: int = 0
    left_out: int = 0
    unplanned: int = 0
    """Combinations further from the base that nobody looked at."""

    @property
    def base(self) -> PlannedJob:
        return self.arms[0]

    @property
    def example(self) -> str:
        """The first that cannot be planned for a reason that has no word of its own; empty where none is."""
        odd = (item for item in self.refused if (item.error.code or "") not in _WORDS)
        return next((f"{item.spec.combination}: {item.error.message}" for item in odd), "")

    @property
    def reasons(self) -> dict[str, int]:
        """How many were refused, by why in a few words."""
        counts = Counter(_WORDS.get(item.error.code or "", "cannot be planned") for item in self.refused)
        if self.impossible:
            counts[_WORDS["does-not-divide"]] += self.impossible
        return dict(counts.most_common())


def find_space(base: PlannedJob, workspace: Workspace, given: Values, *, only: bool = False) -> Space:
    """Of the job ``base``. ``given``: values in place of those that are found; ``only``: nothing else varies.

    Raises:
        RequestError: nothing is left to choose from
    """
    rows = [] if only else _rows(base)
    values = {**({} if only else _found(base, rows) | found_settings(base, rows)), **given}
    values = {name: tuple(dict.fromkeys(listed)) for name, listed in values.items()}
    own = {name: value for name in values if (value := _own(base, name)) is not None}
    documented = [{name: _column(row, name) for name in (*_SIZES, *_SAVERS)} | row_said(base, row) for row in rows]
    impossible: list[dict[str, str]] = []
    found = _changes(base.plan, own, values, documented, impossible, everything=only)
    specs = [changed(base.spec, each_apart(changes)) for changes in islice(found, _PLANNED)]
    planned, refused = once_each([base, *plan_each(specs, workspace)])
    others = sorted(planned[1:], key=lambda item: _order(base.plan, item))
    if not others:
        why = refused[0].error.message if refused else "none divides the GPUs and the batch"
        raise RequestError(
            f"nothing to choose from: none of {len(refused) + len(impossible)} combinations can be run: {why}",
            remedy="give other values, for example --vary mbs=1,2",
        )
    return Space(
        values,
        (base, *others[: _ARMS - 1]),
        tuple(refused),
        len(impossible),
        max(len(others) - _ARMS + 1, 0),
        sum(1 for _ in islice(found, 100_000)),
    )


def _rows(base: PlannedJob) -> list[Row]:
    """Documented rows of the same model on such GPUs; of the smoke size none."""
    plan = base.plan
    if plan.model_size == "smoke":
        return []
    known = base.entry.recipe.rows_for(plan.gpu_type, size=plan.model_size)
    return [row for row in known if row.variant == plan.variant]


def _found(base: PlannedJob, rows: Sequence[Row]) -> dict[str, list[str]]:
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


def _own(base: PlannedJob, name: str) -> str | None:
    """The base's own value, as it would be asked for; None where nobody says it."""
    if name in COLUMNS.values():
        return _column(base.plan, name)
    if name == "image":
        return base.plan.image
    known = {"size": base.plan.model_size, "dtype": base.plan.dtype, "scale": str(base.plan.gpus)}
    known["engine"] = base.plan.engine
    return own_said(base).get(name) or known.get(name) or base.spec.settings.get(name)


def _column(of: JobPlan | Row, name: str) -> str:
    value = getattr(of, name)
    return as_said(value or 1 if name in _SIZES else value)


def _changes(
    plan: JobPlan,
    own: Mapping[str, str],
    values: Values,
    rows: Sequence[Mapping[str, str]],
    impossible: list[dict[str, str]],
    *,
    everything: bool,
) -> Iterator[dict[str, str]]:
    """Combinations, as changes of the base, the nearest first; those that divide nothing go to ``impossible``."""
    others = {name: [value for value in listed if value != own.get(name)] for name, listed in values.items()}
    documented = ({name: value for name, value in row.items() if value in others.get(name, ())} for row in rows)
    furthest = len(others) if everything else min(_FURTHEST, len(others))
    combined = (
        dict(zip(names, picked, strict=True))
        for count in range(1, furthest + 1)
        for names in chosen_of(others, count)
        for picked in product(*(others[name] for name in names))
    )
    seen: set[frozenset[tuple[str, str]]] = set()
    for changes in chain(documented, combined):
        key = frozenset(changes.items())
        if not changes or key in seen:
            continue
        seen.add(key)
        # A quick look: whether any model can be divided so. What is no number is left to planning.
        numbers = {name: int(value) for name, value in changes.items() if name in _SIZES and value.isdecimal()}
        if divides_at_all(msgspec.structs.replace(plan.layout, **numbers)):
            yield changes
        else:
            impossible.append(changes)


def _order(base: JobPlan, item: PlannedJob) -> tuple[bool, float, int]:
    """What surely fits and is predicted to be fast first."""
    return item.plan.preflight.fits is False, _predicted(item.plan, base), len(item.spec.varied)


def _predicted(plan: JobPlan, base: JobPlan) -> float:
    """Logarithm of the predicted step time over the base's; 0 where one is not known."""
    mine, its = plan.preflight.predicted_step_seconds, base.preflight.predicted_step_seconds
    return math.log(mine / its) if mine and its else 0.0


def options_of(space: Space, trial_steps: int) -> list[Option]:
    """What a search chooses from; costs in GPU-hours."""
    found = []
    for item in space.arms:
        plan, memory = item.plan, item.plan.preflight.memory
        share = (memory.peak * memory.factor + memory.reserve) / memory.limit if memory is not None else None
        point = Point(_coordinates(space, item), _predicted(plan, space.base.plan))
        found.append(Option(point, share, _hours(plan, trial_steps), _hours(plan, plan.max_steps)))
    return found


def _coordinates(space: Space, item: PlannedJob) -> tuple[float | str, ...]:
    found: list[float | str] = []
    for name, listed in space.values.items():
        value = own_said(item).get(name) or item.spec.varied.get(name) or _own(space.base, name) or ""
        numbers = sorted({int(other) for other in (*listed, value) if other.isdecimal()})
        found.append(float(numbers.index(int(value))) if value.isdecimal() else value)
    return tuple(found)


def _hours(plan: JobPlan, steps: int) -> float:
    """GPU-hours of a run; on a CPU those of its ranks, of steps of a second."""
    start = START_SECONDS if plan.device == "cuda" else 10
    seconds = start + steps * (plan.preflight.predicted_step_seconds or 1.0)
    return seconds * plan.nodes * plan.gpus_per_node / 3600
