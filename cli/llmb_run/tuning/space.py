"""Which configurations of a job there are to choose from: its settings, their values, and the legal combinations.

Values come from three places: the base, the recipe's other rows of the same model on such GPUs, and what is next to the
base's own (half and double). Combinations differ from the base in few of these, or are a row of the recipe; values that
are given are combined in full. Whatever can be planned may be tried, as in a sweep; of many it is an even sample.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from itertools import combinations as chosen_of

import msgspec

from llmb_common.base.errors import RequestError
from llmb_common.planning.divisibility import divides_at_all
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.request.variables import COLUMNS
from llmb_common.planning.workspace import Workspace
from llmb_common.recipes.rows import Row
from llmb_run.starting.command_line import option_text
from llmb_run.starting.requests import PlannedJob, Refused, plan_each
from llmb_run.starting.sweeps import changed_spec, without_equal_plans
from llmb_run.tuning.settings import base_values, fixed_columns, found_settings, one_by_one, row_values

_SIZES = ("mbs", "tp", "pp", "vp", "cp", "ep")
_SAVERS = ("recompute_layers", "offload_layers", "cuda_graph", "fsdp")

_FURTHEST = 3
"""Found settings in which a combination differs from the base; documented rows may differ in more."""

MOST = 60
"""Candidates: halving takes about twice as many trials."""

_DRAWN = 20_000
"""Combinations that are looked at: most that divide nothing are known at a glance."""

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
    """The configurations that a tuning tries: the base, and the candidates that may be faster.

    Made by ``find_space``. Properties: ``base`` is the job from which the tuning starts; ``reasons`` a dictionary
    that counts the combinations that were refused, by reason (``do not divide``), the commonest first, where
    ``cannot be planned`` stands for any reason without a name; ``example`` a text on one of these
    (``tp=8: MESSAGE``), empty if none was.

    Args:
        values: the values of each setting, texts by name
        arms: the base first, then the candidates
        refused: what cannot be planned, or is the same job as an earlier one
        impossible: how many combinations divide GPUs, sequence or batch into no whole parts, and were not even planned
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
        """The job from which the tuning starts, and with which all candidates are compared."""
        return self.arms[0]

    @property
    def example(self) -> str:
        """The first combination refused for a reason that ``reasons`` has no words for, as ``tp=8: MESSAGE``.

        Empty: none was.
        """
        odd = (item for item in self.refused if (item.error.code or "") not in _WORDS)
        return next((f"{item.spec.combination}: {item.error.message}" for item in odd), "")

    @property
    def reasons(self) -> dict[str, int]:
        """How many combinations of this space were refused, by the reason in a few words (``do not divide``).

        Reasons without words of their own are together under ``cannot be planned``. The commonest reason comes
        first. Those that were not even planned are counted, too. Empty: none was refused.
        """
        counts = Counter(_WORDS.get(item.error.code or "", "cannot be planned") for item in self.refused)
        if self.impossible:
            counts[_WORDS["does-not-divide"]] += self.impossible
        return dict(counts.most_common())


def find_space(base: PlannedJob, workspace: Workspace, given: Values, *, only: bool = False) -> Space:
    """Return what a tuning of the job ``base`` may try: which settings vary, and the combinations that can run.

    ``given``: values of settings, texts and at least one each, in place of those that are found, by names as
    ``dimension`` has them; ``only``: nothing else varies. Of found settings at most ``_FURTHEST`` change at once,
    but for documented rows, which come first. Of more than ``MOST`` combinations it is a sample, the same for the
    same values. Plans jobs with ``workspace``, and starts none.

    Raises:
        RequestError: code ``nothing-to-tune``: nothing can be run beside the base
        LLMBError: planning failed otherwise than by a candidate's request, or a catalogue cannot be read
    """
    rows = [] if only else _documented_rows(base)
    found = {} if only else _columns_to_search(base, rows) | found_settings(base, rows)
    values = {**found, **given}
    values = {name: tuple(dict.fromkeys(listed)) for name, listed in values.items()}
    of_base = {name: _base_value(base, name) for name in values}
    own = {name: value for name, value in of_base.items() if value is not None}
    of_rows = [_changes_of_row(_documented_values(base, row), values, own) for row in rows]
    always = [changes for changes in of_rows if changes]
    near = _near_combinations({name: values[name] for name in found if name not in given}, own)
    fixed = {name: values[name] for name in given}
    each = math.prod(map(len, fixed.values()))
    count = len(near) * each
    numbers: Sequence[int] = range(count)
    if count > MOST:
        # Seeded by the values, so that the same command draws the same sample.
        seed = repr(sorted(values.items()))
        numbers = random.Random(seed).sample(numbers, min(count, _DRAWN))
    drawn = (near[number // each] | _combination(fixed, number % each) for number in numbers)
    searched = found.keys() - given.keys()
    # Documented rows may be further from the base than all near combinations.
    far = sum(len(changes.keys() & searched) > _FURTHEST for changes in always)
    return _plan_space(base, workspace, values, own, always, drawn, count + far)


def _documented_values(base: PlannedJob, row: Row) -> dict[str, str]:
    """Return what a documented row says of the columns and settings that a tuning may search, as text by name.

    Every column is there, also where the row says nothing of it; a setting only where the row has it. ``base`` is
    the tuning's, whose recipe has the row.

    Raises:
        RecipeError: the recipe's catalogue cannot be read, or lacks the row's function
    """
    columns = {name: _column_text(row, name) for name in (*_SIZES, *_SAVERS)}
    return columns | row_values(base, row)


def _changes_of_row(row: Mapping[str, str], values: Values, own: Mapping[str, str]) -> dict[str, str]:
    """Return the changes by setting that make the base into a documented row, as far as settings are searched.

    Empty: the row is the base, or cannot be tried as it has a value that is not searched. ``row``: its values;
    ``values``: those that are searched, at least one each; ``own``: the base's. Settings that are not in ``values``
    are ignored, whatever the row says of them. A setting with one value gets that. A setting on which the row is
    silent keeps the base's value, or gets the first that is searched where the base's is not among these.
    """
    changes: dict[str, str] = {}
    for name, listed in values.items():
        value = row.get(name, own.get(name, listed[0]))
        if len(listed) == 1 or (name not in row and value not in listed):
            value = listed[0]
        if value not in listed:
            return {}
        if value != own.get(name):
            changes[name] = value
    return changes


def _combination(values: Values, number: int) -> dict[str, str]:
    """Return the combination of ``values`` with the number ``number``, as the value of each setting.

    ``values`` has the values of each setting by its name, at least one each. ``number`` is at least 0 and below the
    number of combinations. The last setting changes with each number, the first one least often. Empty without
    settings.
    """
    found: dict[str, str] = {}
    for name in reversed([*values]):
        number, at = divmod(number, len(values[name]))
        found[name] = values[name][at]
    return found


def _near_combinations(values: Values, own: Mapping[str, str]) -> list[dict[str, str]]:
    """Return every change of at most ``_FURTHEST`` settings from the base's ``own`` values, fewest first.

    ``values`` and ``own`` have values, and the base's value, by setting. A change has new values by setting, among
    those in ``values`` that are not the base's own. Changes of fewer settings come first; the very first one
    changes nothing, and is always there. A setting whose own value is not known (``own`` lacks it) changes with
    each of its values.
    """
    others = {}
    for name, listed in values.items():
        own_value = own.get(name)
        others[name] = [value for value in listed if value != own_value]
    found: list[dict[str, str]] = []
    for count in range(min(_FURTHEST, len(others)) + 1):
        for names in chosen_of(others, count):
            each = product(*(others[name] for name in names))
            found += [dict(zip(names, picked, strict=True)) for picked in each]
    return found


def _plan_space(
    base: PlannedJob,
    workspace: Workspace,
    values: Values,
    own: Mapping[str, str],
    always: Sequence[Mapping[str, str]],
    drawn: Iterator[Mapping[str, str]],
    count: int,
) -> Space:
    """Plan the combinations that a tuning may try, and return the base and the first that can run, at most ``MOST``.

    No more than ``_PLANNED`` are planned. A combination that is the base, or was there before, does not count.
    Starts nothing.

    Args:
        base: the job itself
        workspace: to plan jobs with
        values: the settings and values that are searched, kept in the answer
        own: the base's own values by setting; a setting may be missing
        always: combinations that come first, as changes by setting
        drawn: the others, in the order in which to look at them
        count: how many combinations there are, for people

    Raises:
        RequestError: code ``nothing-to-tune``: nothing can be run beside the base
        LLMBError: planning failed otherwise than by a candidate's request
    """
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
        if not _may_divide(base.plan, differing):
            impossible += 1
            continue
        outcome = next(plan_each([changed_spec(base.spec, one_by_one(differing))], workspace))
        outcomes.append(outcome)
        runnable += isinstance(outcome, PlannedJob)
    arms, refused = without_equal_plans(outcomes)
    if len(arms) == 1:
        why = refused[0].error.message if refused else "none divides the GPUs and the batch"
        none = f"none of {len(seen)} combinations" if len(seen) > 1 else "the only combination"
        cannot = "cannot" if len(seen) == 1 else "can"
        problem = f"{none} {cannot} be run beside the base: {why}" if seen else "no value differs from the base's own"
        raise RequestError(
            f"nothing to choose from: {problem}",
            remedy="give values that differ from the base's, for example --vary mbs=1,2; --dry-run shows what there is",
            code="nothing-to-tune",
        )
    return Space(values, tuple(arms), tuple(refused), impossible, count, len(seen))


def _may_divide(plan: JobPlan, changes: Mapping[str, str]) -> bool:
    """Return whether GPUs, sequence and batch could be divided as ``changes`` of ``plan`` say, for any model at all.

    A quick look before planning; sizes that are no number are ignored.
    """
    sizes = {name: value for name, value in changes.items() if name in _SIZES}
    numbers = {name: int(value) for name, value in sizes.items() if value.isdecimal()}
    return divides_at_all(msgspec.structs.replace(plan.layout, **numbers))


def _documented_rows(base: PlannedJob) -> list[Row]:
    """Return the recipe's documented rows of the same model, variant and GPU type as the base, in the recipe's order.

    Their GPUs and dtype do not matter. Empty for the smoke size, and where there are none.

    Raises:
        RecipeError: a recipe's catalogue cannot be read
    """
    plan = base.plan
    if plan.model_size == "smoke":
        return []
    known = base.recipe.rows_for(plan.gpu_type, size=plan.model_size)
    return [row for row in known if row.variant == plan.variant]


def _columns_to_search(base: PlannedJob, rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the columns worth searching, each with its values as text: the base's, those of ``rows`` and near ones.

    Near sizes are half and twice the base's; no size above 64 is searched, not even the base's. Sizes and switches
    rise; CUDA graphs, where not left out, have both values. Left out are columns with fewer than two values, those that
    ``fixed_columns`` names for the base, and EP of a model without experts.

    Raises:
        RecipeError: the recipe's catalogue cannot be read, or lacks the function
    """
    plan = base.plan
    fixed = fixed_columns(base)
    found: dict[str, list[str]] = {}
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
        found[name] = [option_text(value) for value in sorted(listed)]
    return {name: values for name, values in found.items() if len(values) > 1 and name not in fixed}


def _base_value(base: PlannedJob, name: str) -> str | None:
    """Return the base's own value of the setting ``name``, as an option would ask for it.

    ``name`` is as ``dimension`` has it: a column, an option's field, a framework's setting or a variable. None
    where nothing says it, such as for a variable that the base does not set, or the image of a job without one.

    Raises:
        RecipeError: the recipe's catalogue cannot be read, or lacks the function
    """
    if name in COLUMNS.values():
        return _column_text(base.plan, name)
    if name == "image":
        return base.plan.image
    known = {"size": base.plan.model_size, "dtype": base.plan.dtype, "scale": str(base.plan.gpus)}
    known["engine"] = base.plan.engine
    return base_values(base).get(name) or known.get(name) or base.spec.settings.get(name)


def _column_text(of: JobPlan | Row, name: str) -> str:
    """Return the value that a plan or a documented row has for the column ``name``, as ``option_text`` writes it.

    ``name`` is any column in lower case, such as ``tp`` or ``cuda_graph``. ``1`` for one of ``_SIZES`` that is None
    or 0; another column that is None is ``NA``.
    """
    value = getattr(of, name)
    return option_text(value or 1 if name in _SIZES else value)
