"""A run's job and what it is compared with, as asks: this site's best run of the same work, or the published job."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from llmb_common.errors import LLMBError
from llmb_common.index.runs import RunFilter
from llmb_common.platform.engines import bridge_release, container_release, minor, same_release
from llmb_common.recipes.recipe import Recipe
from llmb_common.results.comparison import Change, compare_times, facts, facts_of_plan, unequal_work
from llmb_common.results.decision import level
from llmb_common.results.references import Reference, Worth, by_preference, published_references, worth_of
from llmb_common.results.steps import StepTime
from llmb_common.runs.record import RunRecord
from llmb_run.comparing.run import ask_of_run
from llmb_run.place import Place
from llmb_run.results.measuring import Measured, measure
from llmb_run.selecting import load_rows, select_rows
from llmb_run.starting.command_line import VARIABLE_OF, command_for
from llmb_run.starting.requests import Ask, Asked, plan_ask, plan_each

MOST = 200
"""Newest runs among which the best is looked for."""

NAMED = ("dtype", "variant", "engine", "image")
_MAPS = {"environment": "env ", "columns": "", "megatron": "megatron."}
"""Fields of an ``Ask``, and how what they hold is called among the facts of a run."""


@dataclass(frozen=True)
class Other:
    """What a run is compared with. ``base``: how ``ab`` is asked for it. ``change``: its step time over the run's.

    ``software``: of a published result that LLMB cannot plan a job in, with what that is worth.
    """

    ask: Ask
    facts: Mapping[str, str]
    base: str
    change: Change
    run_id: str | None = None
    software: tuple[str, Worth | None] | None = None


def as_today(record: RunRecord, place: Place) -> Asked | None:
    """The run's job as it would be planned today; None where it cannot be."""
    try:
        return plan_ask(ask_of_run(record, place.workload(record.plan.workload).recipe), place)
    except LLMBError:
        return None


def best_run(record: RunRecord, own: Measured, today: Asked | None, place: Place) -> Other | None:
    """The fastest run of the same work on as many GPUs of the kind; None where that is the run itself."""
    plan = record.plan
    wanted = RunFilter(workloads=(plan.workload,), model_sizes=(plan.model_size,), gpus=(plan.gpus,), limit=MOST)
    records, _ = load_rows(select_rows(place, [], wanted))
    alike = [item for item in records if item.plan.gpu_type == plan.gpu_type and not unequal_work(plan, item.plan)]
    timed = [item for item in measure([item.paths.folder for item in alike], place) if item.good is not None]
    best = min(timed, key=lambda item: item.good.seconds if item.good else 0.0, default=None)
    if best is None or best.record is None or best.good is None or own.good is None:
        return None
    if best.record.paths.run_id == record.paths.run_id:
        return None
    # What stalls take is the day's, and is told elsewhere.
    here, there = (replace(time, stalls=(), steps=0, mean=0.0) for time in (own.good, best.good))
    change = compare_times([here], [there], own.past.scatter(own.configuration))
    run_id = best.record.paths.run_id
    ask = ask_of_run(best.record, today.entry.recipe) if today else Ask(workload=plan.workload)
    return Other(ask, facts(best.record), f"--base {run_id}", change, run_id)


def published_job(here: Asked, own: Measured, place: Place) -> Other | None:
    """The job that was published for the run's size, GPUs, scale and dtype, in the software of that result if LLMB can
    plan it there."""
    recipe = here.entry.recipe
    kept = {name: value for name, value in here.ask.environment.items() if name.startswith("SBATCH_")}
    if recipe.measured_as(here.plan.variant).vboost:
        kept["ENABLE_VBOOST"] = "true"
    asked = planned_or_none(replace(here.ask, columns={}, megatron={}, environment=kept), place)
    known = by_preference(published_references(asked.plan, recipe)) if asked else []
    if asked is None or not known or own.good is None:
        return None
    moved = asked if known[0].same_software else _in_its_software(asked, known[0], place)
    there = moved or asked
    return Other(
        there.ask,
        facts_of_plan(there.plan),
        command_for(there.plan, recipe).removeprefix("llmb-run single "),
        _change(own, own.good, known[0].seconds * here.plan.tokens_per_gpu / there.plan.tokens_per_gpu),
        software=None if moved else (known[0].software, _worth_of_software(asked, known[0])),
    )


def _change(own: Measured, time: StepTime, seconds: float) -> Change:
    """From what the run takes to ``seconds``."""
    found = level([time], own.past.scatter(own.configuration))
    return Change(*(seconds / math.exp(log) for log in (found.steady + found.stalls, found.high, found.low)))


def _in_its_software(asked: Asked, reference: Reference, place: Place) -> Asked | None:
    image = _image_of(reference, asked.entry.recipe)
    held = bridge_release(image)
    wanted = replace(asked.ask, image=image, engine=minor(held) if held else None)
    return planned_or_none(wanted, place) if image else None


def _worth_of_software(asked: Asked, reference: Reference) -> Worth | None:
    image = _image_of(reference, asked.entry.recipe)
    then = msgspec.structs.replace(asked.plan, image=image)
    return worth_of(asked.plan, then, asked.entry.recipe) if image else None


def _image_of(reference: Reference, recipe: Recipe) -> str | None:
    """The image that ``reference`` was measured in; None where that was no Megatron-Bridge."""
    assert reference.result is not None
    document = recipe.document(reference.result)
    release = reference.result.container or document.container
    known = (image for image in recipe.engines.values() if same_release(container_release(image), release))
    return next(known, f"nvcr.io#nvidia/nemo:{release}") if document.framework == "Megatron-Bridge" else None


def planned_or_none(ask: Ask, place: Place) -> Asked | None:
    found = next(iter(plan_each([ask], place)))
    return found if isinstance(found, Asked) else None


# What asks say


def can_take(names: Sequence[str], here: Ask, there: Ask) -> bool:
    """Whether the two say otherwise of each."""
    return all(said_of(here).get(name) != said_of(there).get(name) for name in names)


def said_of(ask: Ask) -> dict[str, str]:
    """What is said of the job, by the names of facts."""
    facts_by_variable = {f"env {variable}": name for name, variable in VARIABLE_OF.items()}
    said = {name: value for name in NAMED if (value := getattr(ask, name)) is not None}
    for field, prefix in _MAPS.items():
        said |= {f"{prefix}{name}": value for name, value in getattr(ask, field).items()}
    return {facts_by_variable.get(name, name): value for name, value in said.items()}


def taken(ask: Ask, other: Ask, names: Iterable[str]) -> Ask:
    """``ask``, which says of ``names`` what ``other`` says, or nothing where that does."""
    wanted = {f"env {VARIABLE_OF[name]}" if name in VARIABLE_OF else name for name in names}
    found = {name: getattr(other, name) for name in NAMED if name in wanted}
    for field, prefix in _MAPS.items():
        own, theirs = getattr(ask, field), getattr(other, field)
        kept = {name: value for name, value in own.items() if f"{prefix}{name}" not in wanted}
        found[field] = kept | {name: value for name, value in theirs.items() if f"{prefix}{name}" in wanted}
    return replace(ask, **found)


def dimension_of(name: str) -> str:
    """What ``ab --change`` calls it."""
    return VARIABLE_OF.get(name, name).removeprefix("env ").removeprefix("megatron.")
