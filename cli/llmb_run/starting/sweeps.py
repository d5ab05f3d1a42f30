"""What is varied of a job: dimensions, every combination of their values, and which of these are the same job.

A dimension is a column (``tp``), a variable of the job (``NCCL_ALGO``), a setting of the framework
(``model.moe_token_dispatcher_type``), or what a job is asked for by (``size``, ``dtype``, ``scale``, ``engine``,
``image``, ...). Dimensions that are zipped change together: ``tp=1,2 pp=4,2`` is two combinations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product

import msgspec

from llmb_common.base.errors import RequestError, did_you_mean
from llmb_common.planning.request.values import is_setting, name_value_pairs
from llmb_common.planning.request.variables import COLUMNS, NAMED, VARIABLES, column_of
from llmb_common.submission.rounds import digest_of_plan
from llmb_run.starting.command_line import FIELDS, check_job_variable, columns_of
from llmb_run.starting.requests import JobSpec, PlannedJob, Refused

MOST = 1000
"""Combinations of one command or task: planning them takes a few seconds, and nobody looks at more."""

Dimensions = Mapping[str, Sequence[str]]
"""Name of each dimension, and its values."""


def without_equal_plans(outcomes: Iterable[PlannedJob | Refused]) -> tuple[list[PlannedJob], list[Refused]]:
    """Return (planned, refused): the jobs that could be planned and those that could not, each in order.

    A combination that is the same job as an earlier one is refused, too (code ``same-job``, with the earlier
    combination in the message); repeats of one combination, whose ``spec.varied`` are equal, are not. That a
    setting was asked for which the recipe has anyway makes no other job. ``outcomes``: what ``plan_each`` yields.
    """
    planned, refused = list[PlannedJob](), list[Refused]()
    known: dict[str, PlannedJob] = {}
    for outcome in outcomes:
        if isinstance(outcome, Refused):
            refused.append(outcome)
            continue
        # Asking for what the recipe has anyway makes no other job.
        comparable = msgspec.structs.replace(outcome.plan, overridden=())
        first = known.setdefault(digest_of_plan(comparable), outcome)
        if first.spec.varied == outcome.spec.varied:
            planned.append(outcome)
        else:
            error = RequestError(f"the same job as {first.spec.combination}", remedy="leave it out", code="same-job")
            refused.append(Refused(outcome.spec, error))
    return planned, refused


def combinations(dimensions: Dimensions, zipped: Sequence[Dimensions] = ()) -> list[dict[str, str]]:
    """Return every combination of the dimensions' values, each as a dictionary from dimension to value.

    The last dimension changes first; ``zipped`` groups stand behind the others. The values of a group go side by side.
    Without any dimension there is one combination, which is empty.

    Raises:
        RequestError: a dimension has no value or one twice or is named twice, zipped dimensions have not equally many
            values or are fewer than two, or there are more than ``MOST`` combinations
    """
    groups: list[list[dict[str, str]]] = []
    for name, values in dimensions.items():
        groups.append([{name: value} for value in _checked_values(name, values)])
    groups += map(_zipped_combinations, zipped)
    names = list(chain.from_iterable(group[0] for group in groups))
    if twice := {name for name in names if names.count(name) > 1}:
        raise RequestError(f"{', '.join(sorted(twice))}: varied twice", remedy="give all its values at once")
    if (count := math.prod(map(len, groups))) > MOST:
        sizes = " x ".join(f"{len(group)} {' and '.join(group[0])}" for group in groups)
        raise RequestError(
            f"{count} combinations ({sizes}) are more than {MOST}", remedy="give fewer values, or zip dimensions"
        )
    found = []
    for parts in product(*groups):
        combination: dict[str, str] = {}
        for part in parts:
            combination |= part
        found.append(combination)
    return found


def _checked_values(name: str, values: Sequence[str]) -> Sequence[str]:
    """Return the ``values`` of the dimension ``name`` as they are, after checking them.

    Raises:
        RequestError: there are none, or two are equal
    """
    if not values:
        raise RequestError(f"{name} has no value", remedy=f"for example {name}=1,2")
    if len(set(values)) < len(values):
        again = next(value for value in values if values.count(value) > 1)
        raise RequestError(f"{name}: {again} is given twice", remedy="give each value once")
    return values


def _zipped_combinations(group: Dimensions) -> list[dict[str, str]]:
    """Return the combinations of dimensions whose values change together.

    The first value of each is one, the second of each the next.

    Raises:
        RequestError: the dimensions are fewer than two, have not equally many values, or two combinations are equal
    """
    counts = {name: len(values) for name, values in group.items()}
    if len(counts) < 2 or len(set(counts.values())) != 1 or 0 in counts.values():
        counts_text = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise RequestError(
            f"dimensions that change together need equally many values, and at least two dimensions: "
            f"{counts_text or 'none is given'}",
            remedy="for example tp=1,2 pp=4,2",
        )
    rows = [dict(zip(group, values, strict=True)) for values in zip(*group.values(), strict=True)]
    _checked_values(" and ".join(group), [" ".join(row.values()) for row in rows])
    return rows


def changed_spec(spec: JobSpec, changes: Mapping[str, str | None]) -> JobSpec:
    """Return a copy of the job request ``spec`` with another value in each dimension of ``changes``.

    Dimensions are called as ``dimension`` calls them. None: the recipe has the choice. All of ``changes`` count as
    varied: they are in ``varied`` of the answer, beside those of ``spec``, None as ``-``. Values of columns and
    variables are checked, those of options' fields (``size``) and of the framework's settings are not.

    Raises:
        RequestError: a dimension cannot have that value
    """
    given = {name: value for name, value in changes.items() if value is not None}
    for name, value in given.items():
        if name in COLUMNS.values():
            columns_of([f"{name}={value}"])
        elif name not in NAMED and not is_setting(name):
            check_job_variable(name, value, name)
    return replace(spec.with_settings(changes), varied={**spec.varied, **dict.fromkeys(changes, "-"), **given})


_CALLED = FIELDS | {"GPUS": "scale"}
"""What a dimension is called by the name of its variable, or by the head of its column in tables of runs."""


def dimension(text: str, refused: str = "cannot be varied") -> str:
    """Return the dimension of a job that ``text`` names: ``tp`` of ``TP``, ``scale`` of ``JOB_TOTAL_GPUS``.

    A dimension is a column, an option's field (``scale`` also as ``gpus``), a setting of the framework (a name with
    dots), or a variable: any other word in capitals. Columns and fields may be in any case, and come back in lower
    case; the others come back as they are. ``-`` counts as ``_``, and blanks around ``text`` do not count.
    ``refused``: what the error says of a text that names none.

    Raises:
        RequestError: code ``unknown-dimension``: it names none
    """
    name = text.strip().replace("-", "_")
    if is_setting(name):
        return name
    if (column := column_of(name)) is not None:
        return column
    lower = _CALLED.get(name.upper(), name.lower())
    if lower in NAMED:
        return lower
    if name.isupper() and lower not in FIELDS.values():
        return name
    columns = [variable.lower() for variable in COLUMNS]
    known = [*columns, *NAMED, *(set(VARIABLES) - {*COLUMNS, *FIELDS})]
    near = did_you_mean(name.upper(), known) if name.upper() in known else did_you_mean(lower, known)
    raise RequestError(
        f"{text!r} {refused}{near}",
        remedy=f"a column ({', '.join(columns)}), {', '.join(NAMED)}, a variable of the job (NCCL_ALGO), "
        "or a setting of Megatron-Bridge (model.moe_token_dispatcher_type)",
        code="unknown-dimension",
    )


def dimensions_of(words: Iterable[str], option: str) -> dict[str, list[str]]:
    """Return the dimensions of a job in words such as ``tp=1,2``, each with its values, in the order of ``words``.

    ``option`` is where they come from, for messages. A value in quotes or brackets may hold commas. Equal values are
    not refused here.

    Raises:
        RequestError: a word is not NAME=VALUE,VALUE, names no dimension, names one twice, or has an empty value
    """
    found: dict[str, list[str]] = {}
    one = option == "--change"  # of one job; the others name several
    example = f"{option} tp={2 if one else '1,2'}"
    refused = "is nothing that runs are known by" if option == "--where" else "cannot be varied"
    for word, values in name_value_pairs(words, option, example, form="NAME=VALUE" if one else "NAME=VALUE,VALUE"):
        name = dimension(word, refused)
        if name in found:
            raise RequestError(f"{option}: {name} is given twice", remedy="give all its values at once")
        found[name] = values_of(values, f"{option} {name}")
    return found


def values_of(text: str, where: str) -> list[str]:
    """Return the values in ``1,2``, ``"COLL,NET",ALL`` or ``[core_attn,mlp],[mlp]``; ``""`` is an empty one.

    There is at least one, in order; blanks around them are dropped, quotes, too, but brackets stay. ``where`` is what
    messages call the place of ``text``.

    Raises:
        RequestError: one is empty, and not written as ``""``; an empty ``text``, too
    """
    parts = _split_at_commas(text)
    if not all(parts):
        raise RequestError(f"{where}: a value of {text!r} is empty", remedy="give every value, or leave it out")
    return [_without_quotes(part) for part in parts]


def one_value(value: str) -> str:
    """Return the text that ``values_of`` reads as this single value: the value, maybe in double quotes.

    Raises:
        RequestError: there is no such text, because of the value's commas and quotes
    """
    for text in (value, f'"{value}"'):
        if text and [_without_quotes(part) for part in _split_at_commas(text)] == [value]:
            return text
    raise RequestError(f"{value!r} cannot be written as one value, because of its commas and quotes")


def _split_at_commas(text: str) -> list[str]:
    """Return the parts of ``text`` between its commas, except commas in double quotes or brackets.

    Parts have no blanks around them, and may be empty; there is at least one.
    """
    parts = [""]
    depth = 0
    quoted = False
    for letter in text:
        quoted ^= letter == '"'
        depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and not quoted and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _without_quotes(part: str) -> str:
    """Return ``part`` without the double quotes around it; unchanged where it has none on both sides."""
    is_quoted = len(part) > 1 and part[0] == '"' and part[-1] == '"'
    return part[1:-1] if is_quoted else part
