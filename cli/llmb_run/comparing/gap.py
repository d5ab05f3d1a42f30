"""What a run has otherwise than this site's best run of the same work, or than what was published: what that may be
worth, and how to find out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import Literal, TypeAlias

import msgspec

from llmb_common.engines import minor
from llmb_common.errors import LLMBError
from llmb_common.index.rows import RunFilter
from llmb_common.planning.job_plan import JobPlan
from llmb_common.recipes.recipe import Recipe
from llmb_common.recipes.releases import bridge_release, container_release, same_release
from llmb_common.request.variables import COLUMNS
from llmb_common.results.comparison import EVIDENCE, Change, compare_times, facts, facts_of_plan, unequal_work
from llmb_common.results.decision import level
from llmb_common.results.references import Reference, by_preference, published_references, release_spread
from llmb_common.results.worth import Worth, worth_of
from llmb_common.roles import fields_of
from llmb_common.runs.record import RunRecord
from llmb_run.comparing.run import ask_of_run
from llmb_run.place import Place
from llmb_run.results.measuring import Measured, measure
from llmb_run.selecting import load_rows, select_rows
from llmb_run.starting.command_line import SWITCHES, command_for
from llmb_run.starting.requests import Ask, Asked, plan_ask, plan_each

MOST = 200
"""Newest runs among which the best is looked for."""

Kind: TypeAlias = Literal["software", "setting", "launch", "nodes"]
_ORDER: tuple[Kind, ...] = ("software", "setting", "launch", "nodes")

_SOFTWARE = ("image", "engine", "software", "image digest", "driver", "cuda", "nccl", "kernel", "llmb")
_OF_IMAGE = ("software", "image digest", "nccl")
"""What another image brings."""
_NAMED = ("dtype", "variant", "engine", "image")
_MAPS = {"environment": "env ", "columns": "", "megatron": "megatron."}
"""Fields of an ``Ask``, and how what they hold is called among the facts of a run."""
_VARIABLES = {**SWITCHES, "fp8_recipe": "FP8_RECIPE", "moe_routing": "MOE_ROUTING"}
"""Facts that a variable of ``launch.sh`` decides."""
_UNTOLD = ("engine_python", "hosts", "recipe_sha256", "code_sha256", *fields_of(JobPlan, "derived", "extent"))
"""What follows from the rest, or is another each time."""

WORDS = {
    "env NCCL_GRAPH_REGISTER": "graph registration",
    "megatron.ddp.nccl_ub": "registered user buffers",
    "megatron.ddp.fsdp_manual_registration": "registered user buffers",
    "vboost": "clock boost",
    "cpu_pinning": "pinning",
    "fast_cores": "pinning",
    "memory_clock": "memory clock",
}
"""How a job is launched, in the words of those who speak of it."""


class Difference(msgspec.Struct, frozen=True):
    """``test``: the command that shows what it is worth; empty where there is none, and ``why``.

    ``worth``: by the published rows, None where they do not say. ``takes``: what a job takes from the other side.
    """

    kind: Kind
    name: str
    here: str
    there: str = ""
    test: str = ""
    worth: Worth | None = None
    takes: tuple[str, ...] = ()
    why: str = "nobody can choose it for a job"

    def __str__(self) -> str:
        if not self.there:
            return f"{self.kind}: {self.here}"
        word = f" ({WORDS[self.name]})" if self.name in WORDS else ""
        return f"{self.kind}: {self.name}{word}: {_short(self.here)} here, {_short(self.there)} there"


def _short(value: str) -> str:
    """Of a path or an image its name."""
    return value.rpartition("/")[2] if value.count("/") and len(value) > 20 else value[:40]


class Gap(msgspec.Struct, frozen=True):
    """``published``: in words, against what the run is judged; empty where that is nothing of its software.

    ``best``: run id of the fastest run of the same work, None where this is it; then ``differences`` are from what
    was published. ``slower``: by what share it is slower than that; ``change``: the step time of that over its own.
    """

    published: str
    best: str | None = None
    slower: float | None = None
    differences: tuple[Difference, ...] = ()
    change: Change | None = None


@dataclass(frozen=True)
class Other:
    """What a run is held against. ``base``: how ``ab`` is asked for it."""

    ask: Ask
    facts: Mapping[str, str]
    base: str
    change: Change
    run_id: str | None = None
    more: tuple[Difference, ...] = ()


@dataclass(frozen=True)
class Found:
    """A gap, the run's own job as it would be planned today, and the other side's; None where nobody can plan it."""

    gap: Gap
    here: Asked | None = None
    there: Ask | None = None

    def ask(self, names: Iterable[str]) -> Ask:
        """The run's job, which takes ``names`` from the other side."""
        assert self.here is not None
        assert self.there is not None
        return _taken(self.here.ask, self.there, names)


def find_gap(record: RunRecord, place: Place) -> Found:
    """What the run of ``record`` has otherwise than this site's best; where it is that, than what was published."""
    own = next((item for item in measure([record.paths.folder], place) if item.record is not None), None)
    if own is None:
        return Found(Gap(""))
    here = _as_today(record, place)
    other = _best(record, own, here, place) or (_documented(here, own, place) if here else None)
    seen = tuple(Difference("nodes", item.kind, item.text) for item in own.findings)  # by its own nodes
    if other is None:
        return Found(Gap(_published(own), differences=seen), here)
    own_facts = facts(record) if other.run_id else facts_of_plan(record.plan)
    there, listed = _listed(record, own_facts, here, other, place)
    ordered = sorted((*listed, *other.more, *seen), key=_importance)
    slower = 1 / other.change.ratio - 1
    return Found(Gap(_published(own), other.run_id, slower, tuple(ordered), other.change), here, there)


def _importance(item: Difference) -> tuple[float, int, bool]:
    return (item.worth.median if item.worth else 0.0, _ORDER.index(item.kind), not item.test)


def _as_today(record: RunRecord, place: Place) -> Asked | None:
    try:
        return plan_ask(ask_of_run(record, place.workload(record.plan.workload).recipe), place)
    except LLMBError:
        return None


def _published(own: Measured) -> str:
    verdict = own.verdict
    if verdict is None or verdict.reference is None or verdict.difference is None or own.record is None:
        return ""
    said = f"{verdict.difference:+.1%} against {verdict.reference}"
    if verdict.reference.same_software:
        return said
    spread = release_spread(own.record.plan)
    return f"{said}; another release alone makes {spread.fastest:+.0%} to {spread.slowest:+.0%} by the published rows"


# The other side


def _best(record: RunRecord, own: Measured, today: Asked | None, place: Place) -> Other | None:
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


def _documented(here: Asked, own: Measured, place: Place) -> Other | None:
    """The job that was published for the run's size, GPUs, scale and dtype, in the software of that result if LLMB can
    plan it there."""
    recipe, ask = here.entry.recipe, here.ask
    kept = {name: value for name, value in ask.environment.items() if name.startswith("SBATCH_")}
    if recipe.measured_as(here.plan.variant).vboost:
        kept["ENABLE_VBOOST"] = "true"
    ask = replace(ask, columns={}, megatron={}, environment=kept)
    planned = _planned(ask, place)
    known = by_preference(published_references(planned.plan, recipe)) if planned else []
    if planned is None or not known or own.good is None:
        return None
    reference, more = known[0], list[Difference]()
    if not reference.same_software:
        image = _image_of(reference, recipe)
        held = bridge_release(image)
        moved = _planned(replace(ask, image=image, engine=minor(held) if held else None), place) if image else None
        if moved is None:
            then = msgspec.structs.replace(planned.plan, image=image)
            worth = worth_of(planned.plan, then, recipe) if image else None
            why = "LLMB cannot plan a job in that software"
            more.append(Difference("software", "software", own.software, reference.software, worth=worth, why=why))
        planned = moved or planned
    found = level([own.good], own.past.scatter(own.configuration))
    seconds = reference.seconds * here.plan.tokens_per_gpu / planned.plan.tokens_per_gpu  # for as many tokens
    bounds = (seconds / math.exp(log) for log in (found.steady + found.stalls, found.high, found.low))
    base = command_for(planned.plan, recipe).removeprefix("llmb-run single ")
    return Other(planned.ask, facts_of_plan(planned.plan), base, Change(*bounds), more=tuple(more))


def _image_of(reference: Reference, recipe: Recipe) -> str | None:
    """The image that ``reference`` was measured in; None where that was no Megatron-Bridge."""
    assert reference.result is not None
    document = recipe.document(reference.result)
    release = reference.result.container or document.container
    known = (image for image in recipe.engines.values() if same_release(container_release(image), release))
    return next(known, f"nvcr.io#nvidia/nemo:{release}") if document.framework == "Megatron-Bridge" else None


def _planned(ask: Ask, place: Place) -> Asked | None:
    found = next(iter(plan_each([ask], place)))
    return found if isinstance(found, Asked) else None


# What differs


def _listed(
    record: RunRecord, own: Mapping[str, str], here: Asked | None, other: Other, place: Place
) -> tuple[Ask, list[Difference]]:
    """What the other side has otherwise, and its ask, which says all that a job can take from it."""
    apart = {name: pair for name, pair in _apart(own, other.facts) if _tells(name)}
    there, groups = other.ask, list[tuple[str, ...]]()
    if here is not None:
        chosen = [name for name in apart if _said(here.ask).get(name) != _said(there).get(name)]
        together = _planned(_taken(here.ask, there, chosen), place)
        if together is not None:  # what follows from the rest is no difference of its own
            follows = {name: value for name, value in facts_of_plan(together.plan).items() if name not in chosen}
            apart = {name: pair for name, pair in apart.items() if name in chosen or follows.get(name, "-") != pair[1]}
            if "image" in chosen:
                apart = {name: pair for name, pair in apart.items() if name not in _OF_IMAGE}
        given = {name: pair[1] for name, pair in apart.items() if name.startswith("env ") and pair[1] != "-"}
        variables = {name.removeprefix("env "): value for name, value in given.items()}
        there = replace(there, environment={**there.environment, **variables})
        groups = _groups([name for name in apart if name in chosen or name in given], here.ask, there, place)
    left = [(name,) for name in apart if not any(name in group for group in groups)]
    return there, [
        _difference(record, apart, group, here, replace(other, ask=there), place) for group in (*groups, *left)
    ]


def _apart(one: Mapping[str, str], other: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, str]]]:
    for name in dict.fromkeys([*one, *other]):
        here, there = one.get(name, "-"), other.get(name, "-")
        # What a node did not tell is unknown.
        if here != there and not (name in EVIDENCE and "-" in (here, there)):
            yield name, (here, there)


def _tells(name: str) -> bool:
    return name.partition(".")[0] not in _UNTOLD


def _groups(names: Sequence[str], here: Ask, there: Ask, place: Place) -> list[tuple[str, ...]]:
    """What changes together: an image with its engine, and columns that are not legal one by one."""
    software = tuple(name for name in names if name in ("image", "engine"))
    columns = tuple(
        name for name in names if name in COLUMNS.values() and _planned(_taken(here, there, [name]), place) is None
    )
    alone = [(name,) for name in names if name not in (*software, *columns)]
    return [group for group in (software, columns, *alone) if group]


def _difference(
    record: RunRecord,
    apart: Mapping[str, tuple[str, str]],
    names: tuple[str, ...],
    here: Asked | None,
    other: Other,
    place: Place,
) -> Difference:
    kind: Kind = "launch"
    name = names[0]
    if name in _SOFTWARE:
        kind = "software"
    elif name in EVIDENCE:
        kind = "nodes"
    elif name not in WORDS and (name in COLUMNS.values() or name.startswith(("env ", "megatron.")) or name in _NAMED):
        kind = "setting"
    before, after = (", ".join(apart[name][side] for name in names) for side in (0, 1))
    found = Difference(kind, ", ".join(names), before, after)
    if here is None or not _can_take(names, here.ask, other.ask):
        return found
    (planned,) = plan_each([_taken(here.ask, other.ask, names)], place)
    if not isinstance(planned, Asked):
        return msgspec.structs.replace(found, why=planned.error.message)
    return msgspec.structs.replace(
        found,
        test=_test(record, {name: apart[name] for name in names}, other),
        worth=worth_of(here.plan, planned.plan, here.entry.recipe),
        takes=names,
        why="",
    )


def _can_take(names: Sequence[str], here: Ask, there: Ask) -> bool:
    return all(_said(here).get(name) != _said(there).get(name) for name in names)


def _said(ask: Ask) -> dict[str, str]:
    """What is said of the job, by the names of facts."""
    facts_by_variable = {f"env {variable}": name for name, variable in _VARIABLES.items()}
    said = {name: value for name in _NAMED if (value := getattr(ask, name)) is not None}
    for field, prefix in _MAPS.items():
        said |= {f"{prefix}{name}": value for name, value in getattr(ask, field).items()}
    return {facts_by_variable.get(name, name): value for name, value in said.items()}


def _taken(ask: Ask, other: Ask, names: Iterable[str]) -> Ask:
    """``ask``, which says of ``names`` what ``other`` says, or nothing where that does."""
    wanted = {f"env {_VARIABLES[name]}" if name in _VARIABLES else name for name in names}
    found = {name: getattr(other, name) for name in _NAMED if name in wanted}
    for field, prefix in _MAPS.items():
        own, theirs = getattr(ask, field), getattr(other, field)
        kept = {name: value for name, value in own.items() if f"{prefix}{name}" not in wanted}
        found[field] = kept | {name: value for name, value in theirs.items() if f"{prefix}{name}" in wanted}
    return replace(ask, **found)


def _test(record: RunRecord, apart: Mapping[str, tuple[str, str]], other: Other) -> str:
    """The command of ``ab`` for it."""
    # What only this run sets cannot be unset: the other side with it shows the same.
    for base, side in ((f"--base {record.paths.run_id}", 1), (other.base, 0)):
        changes = {name: values[side] for name, values in apart.items()}
        if not any(value in ("-", "null") for value in changes.values()):
            words = " ".join(f"--change {quote(f'{_dimension(name)}={value}')}" for name, value in changes.items())
            return f"llmb-run ab {base} {words}"
    return ""


def _dimension(name: str) -> str:
    return _VARIABLES.get(name, name).removeprefix("env ").removeprefix("megatron.")


def lines_of(gap: Gap) -> list[tuple[str, list[str]]]:
    """For people: a name and the lines under it."""
    found = [("published", [gap.published])] if gap.published else []
    if gap.best is not None:
        found.append(("best", [f"{gap.best}: this run takes {gap.slower or 0.0:.1%} more time"]))
    else:
        said = "no faster run of the same work is on record here"
        found.append(("best", [said if gap.change is None else f"{said}: what differs from the published job"]))
    if gap.differences:
        found.append(("differs", [line for item in gap.differences for line in _told(item)]))
    elif gap.change is not None:
        found.append(("differs", ["nothing on record: nodes, neighbours or the day"]))
    return found


def _told(item: Difference) -> Iterator[str]:
    yield f"{item}{f'; time {item.worth}' if item.worth else ''}"
    if item.test:
        yield f"  {item.test}"
