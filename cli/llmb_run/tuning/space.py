"""Which configurations of a job there are to choose from: its settings, their values, and the legal combinations.

Values come from three places: the base, the recipe's other rows of the same model on such GPUs, and what is next to the
base's own (half and double). Combinations differ from the base in few of these, or are a row of the recipe; values that
are given are combined in full. Whatever can be planned may be tried, as in a sweep; of many it is an even sample.

Some settings have no column: how experts exchange tokens, what is recomputed, what overlaps. Those that go together are
one value, ``flex;model.moe_flex_dispatcher_backend=deepep``: further ones after a semicolon.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from itertools import combinations as chosen_of
from typing import Any

import msgspec

from llmb_common.command.printable import counted
from llmb_common.errors import RequestError
from llmb_common.planning.divisibility import divides_at_all
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.settings import own_settings
from llmb_common.recipes.catalogue import Function
from llmb_common.recipes.rows import Row
from llmb_common.request.columns import Columns
from llmb_common.request.values import is_setting, settings_in
from llmb_common.request.variables import COLUMNS
from llmb_run.starting.command_line import as_said, setting_said
from llmb_run.starting.requests import PlannedJob, Refused, plan_each
from llmb_run.starting.sweeps import changed, combinations, once_each
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
"""Found settings in which a combination differs from the base; documented rows may differ in more."""

MOST = 60
"""Candidates: halving takes about twice as many trials."""

_PLANNED = 400
"""Combinations that are planned: planning one takes tens of milliseconds."""

_WORDS = {
    "does-not-divide": "do not divide",
    "does-not-fit": "do not fit the memory",
    "same-job": "are the same job as another",
    "refused-by-megatron": "are refused by Megatron",
}

Values = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Space:
    """What a tuning tries.

    Args:
        values: the values of each setting
        arms: the base first, then the candidates
        refused: what cannot be planned
        impossible: how many divide nothing, and were not even planned
        combinations: how many there are, beside the base
        drawn: how many of these were looked at, in an order drawn by chance where there are many
    """

    values: Values
    arms: tuple[PlannedJob, ...]
    refused: tuple[Refused, ...] = ()
    impossible: int = 0
    combinations: int = 0
    drawn: int = 0

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
        RequestError: nothing is left to choose from, or too many values are given
    """
    rows = [] if only else _rows(base)
    found = {} if only else _found(base, rows) | found_settings(base, rows)
    values = {**found, **given}
    values = {name: tuple(dict.fromkeys(listed)) for name, listed in values.items()}
    own = {name: value for name in values if (value := _own(base, name)) is not None}
    documented = [{name: _column(row, name) for name in (*_SIZES, *_SAVERS)} | row_said(base, row) for row in rows]
    always = [changes for row in documented if (changes := _changes_of_row(row, values, own))]
    near = _near({name: values[name] for name in found if name not in given}, own)
    exact = combinations({name: values[name] for name in given})
    count = len(near) * len(exact)
    numbers: Sequence[int] = range(count)
    if count > MOST:
        numbers = random.Random(repr(sorted(values.items()))).sample(numbers, count)
    drawn = (near[number // len(exact)] | exact[number % len(exact)] for number in numbers)
    return _planned(base, workspace, values, own, always, drawn, count)


def _changes_of_row(row: Mapping[str, str], values: Values, own: Mapping[str, str]) -> dict[str, str]:
    """A documented row as changes of the base; empty where it is the base, or is not in the space."""
    changes: dict[str, str] = {}
    for name, listed in values.items():
        value = row.get(name, own.get(name))
        if len(listed) == 1:  # it is fixed
            value = listed[0]
        if value is None or value not in listed:
            return {}
        if value != own.get(name):
            changes[name] = value
    return changes


def _near(values: Values, own: Mapping[str, str]) -> list[dict[str, str]]:
    """Changes of few settings, the nearest to the base first: that without any, too."""
    others = {name: [value for value in listed if value != own.get(name)] for name, listed in values.items()}
    found: list[dict[str, str]] = []
    for count in range(min(_FURTHEST, len(others)) + 1):
        for names in chosen_of(others, count):
            each = product(*(others[name] for name in names))
            found += [dict(zip(names, picked, strict=True)) for picked in each]
    return found


def _planned(
    base: PlannedJob,
    workspace: Workspace,
    values: Values,
    own: Mapping[str, str],
    always: Sequence[Mapping[str, str]],
    drawn: Iterator[Mapping[str, str]],
    count: int,
) -> Space:
    """Of the combinations ``always`` and then ``drawn``, of ``count``, the first that can run, as many as are tried."""
    outcomes: list[PlannedJob | Refused] = [base]
    seen: set[frozenset[tuple[str, str]]] = set()
    runnable = impossible = 0
    for changes in chain(always, drawn):
        differing = {name: value for name, value in changes.items() if value != own.get(name)}
        key = frozenset(differing.items())
        if not differing or key in seen:
            continue
        if runnable == MOST or len(outcomes) > _PLANNED:
            break
        seen.add(key)
        if not _divides(base.plan, differing):
            impossible += 1
            continue
        outcome = next(plan_each([changed(base.spec, each_apart(differing))], workspace))
        outcomes.append(outcome)
        runnable += isinstance(outcome, PlannedJob)
    arms, refused = once_each(outcomes)
    if len(arms) == 1:
        why = refused[0].error.message if refused else "none divides the GPUs and the batch"
        if not seen:
            why = "no value differs from the base's own"
        raise RequestError(
            f"nothing to choose from: none of {counted(len(seen), 'combination')} can be run beside the base: {why}",
            remedy="give values that differ from the base's, for example --vary mbs=1,2; --dry-run shows what there is",
            code="nothing-to-tune",
        )
    return Space(values, tuple(arms), tuple(refused), impossible, count, len(seen))


def _divides(plan: JobPlan, changes: Mapping[str, str]) -> bool:
    """A quick look: whether any model can be divided so. What is no number is left to planning."""
    numbers = {name: int(value) for name, value in changes.items() if name in _SIZES and value.isdecimal()}
    return divides_at_all(msgspec.structs.replace(plan.layout, **numbers))


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
