"""``llmb-run why --slow``: what a run has otherwise than this site's best run of the same work, or than what was
published: what that may be worth, and how to find out."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Literal, TypeAlias

import msgspec

from llmb_common.base.engines import bridge_release, container_release, minor, same_release
from llmb_common.base.errors import LLMBError, RequestError
from llmb_common.base.printable import counted, percent, signed_percent
from llmb_common.measured.measure import measure
from llmb_common.measured.run import MeasuredRun
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.request.values import is_setting
from llmb_common.planning.request.variables import COLUMNS
from llmb_common.planning.workspace import Workspace
from llmb_common.recipes.columns import fields_of
from llmb_common.recipes.recipe import Recipe
from llmb_common.results.comparison import EVIDENCE, Change, compare_times, facts, facts_of_plan, unequal_work
from llmb_common.results.level import level
from llmb_common.results.odd_runs import SlowNode
from llmb_common.results.references import (
    Reference,
    Worth,
    by_preference,
    published_references,
    release_spread,
    worth_of,
)
from llmb_common.runs.index.runs import RunFilter
from llmb_common.runs.record import RunRecord
from llmb_run.comparing.ab import spec_of_run
from llmb_run.results.lines import exclude_command, one_of_text, slow_node_of
from llmb_run.selecting import load_rows, select_rows
from llmb_run.starting.command_line import FIELDS, VARIABLE_OF, option_text, setting_text
from llmb_run.starting.requests import JobSpec, PlannedJob, Refused, plan_each, plan_job
from llmb_run.starting.sweeps import dimension, one_value

MOST = 200
"""Newest runs among which the best is looked for."""

NAMED = ("dtype", "variant", "engine", "image")
"""Settings of a job that have options, and are facts of its runs."""


@dataclass(frozen=True)
class Other:
    """The other side of a slow run's comparison: this site's fastest run of the same work, or a published result.

    ``_best_run`` and ``_published_job`` make it. ``spec`` is the request for its job, ``facts`` what is on record of
    it, of a published result what its plan tells, by name (such as ``env NCCL_ALGO``), as text. ``change``: its step
    time over the slow run's, below 1 where it is the faster one. ``run_id``: None for a published result. ``software``:
    where LLMB cannot plan a job in the software of a published result, (that software, what it is worth or None); else
    None.
    """

    spec: JobSpec
    facts: Mapping[str, str]
    change: Change
    run_id: str | None = None
    software: tuple[str, Worth | None] | None = None


def _own_and_others(record: RunRecord, workspace: Workspace) -> tuple[MeasuredRun | None, list[MeasuredRun]]:
    """Return (own, others): the run of ``record`` as measured, and this site's other runs of the same work.

    The same work is on as many GPUs of the same type. Only the ``MOST`` newest runs of that workload, size and number
    of GPUs are searched; those of other users are among them. Others are there only with a step time that counts, the
    newest first. ``own`` is None where the run has left nothing to measure. ``workspace``: whose installation is
    searched.

    Raises:
        RequestError: there is no installation
        RecordError: the list of folders outside the installation, or the record of a run, cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the folder that the installation is in may not be looked at
    """
    plan = record.plan
    wanted = RunFilter(workloads=(plan.workload,), model_sizes=(plan.model_size,), gpus=(plan.gpus,), limit=MOST)
    records, _ = load_rows(select_rows(workspace, [], wanted))
    on_type = [item for item in records if item.plan.gpu_type == plan.gpu_type]
    alike = [item for item in on_type if not unequal_work(plan, item.plan)]
    # The run itself may be older than those that were searched.
    folders = dict.fromkeys(item.paths.folder for item in (record, *alike))
    found = {item.record.paths.run_id: item for item in measure(folders, workspace) if item.record}
    own = found.pop(record.paths.run_id, None)
    return own, [run for run in found.values() if run.good]


def _fastest(own: MeasuredRun, others: Sequence[MeasuredRun]) -> MeasuredRun | None:
    """Return the fastest of ``others`` by the steady step time, without stalls; None where ``own`` is as fast.

    Both have a step time that counts; None, too, where there are no others.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    timed = [(run.good.seconds, run) for run in (own, *others) if run.good]
    _, best = min(timed, key=itemgetter(0))
    return best if best is not own else None


def _slow_node(own: MeasuredRun, others: Sequence[MeasuredRun]) -> SlowNode | None:
    """Return the node of the run ``own`` with which its repeats among ``others`` are slower than without.

    It is the one that ``results`` names. None: no node is known to be slow, or the run did not have it.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    repeats = [run for run in (own, *others) if run.repeat_key == own.repeat_key]
    found = slow_node_of(repeats)
    had = own.good.nodes.split(",") if own.good else []
    return found if found is not None and set(found.nodes) <= set(had) else None


def _best_run(best: MeasuredRun, own: MeasuredRun, today: PlannedJob | None) -> Other | None:
    """Return this site's ``best`` run as the other side of a comparison with the run ``own``.

    Stalled steps do not count. ``today``: the job of ``own``, planned as it would be now; None: it cannot be
    planned, and the request of the answer has the workload alone. Returns None where one of the two runs has no
    step time that counts, or ``best`` no record.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    if best.record is None or best.good is None or own.good is None:
        return None
    # What stalls take is the day's, and is told elsewhere.
    own_steady = msgspec.structs.replace(own.good, stalls=(), steps=0, mean=0.0)
    best_steady = msgspec.structs.replace(best.good, stalls=(), steps=0, mean=0.0)
    change = compare_times([own_steady], [best_steady], own.past.scatter(own.configuration))
    run_id = best.record.paths.run_id
    spec = (
        spec_of_run(best.record, today.entry.recipe)
        if today
        else JobSpec(settings={"workload": best.record.plan.workload})
    )
    return Other(spec, facts(best.record), change, run_id)


def _published_job(here: PlannedJob, own: MeasuredRun, workspace: Workspace) -> Other | None:
    """Return the job behind the published result for this run's size, GPUs and dtype, to compare with.

    It is planned in the software of that result if LLMB can plan it there, else in the run's own. ``here`` is the
    run's job as planned today, ``own`` the run as measured. None: nothing was published for such a job, it cannot
    be planned, or the run has no step time that counts. ``workspace``: to plan in.

    Raises:
        LLMBError: no job can be planned here at all, or what it needs of a recipe cannot be read
    """
    recipe = here.entry.recipe
    kept = {name: value for name, value in here.spec.environment.items() if name.startswith("SBATCH_")}
    if recipe.measured_as(here.plan.variant).vboost:
        kept["ENABLE_VBOOST"] = "true"
    fields = {"workload", *FIELDS.values()}
    kept |= {name: value for name, value in here.spec.settings.items() if name in fields}
    planned = _planned_or_none(replace(here.spec, settings=kept), workspace)
    known = by_preference(published_references(planned.plan, recipe)) if planned else []
    if planned is None or not known or own.good is None:
        return None
    reference, worth = known[0], None
    moved: PlannedJob | None = planned
    if not reference.same_software:
        image = _image_of(reference, recipe)
        release = bridge_release(image)
        wanted = planned.spec.with_settings({"image": image, "engine": minor(release) if release else None})
        moved = _planned_or_none(wanted, workspace) if image else None
        worth = worth_of(planned.plan, msgspec.structs.replace(planned.plan, image=image), recipe) if image else None
    there = moved or planned
    found = level([own.good], own.past.scatter(own.configuration))
    seconds = reference.seconds * here.plan.tokens_per_gpu / there.plan.tokens_per_gpu
    return Other(
        there.spec,
        facts_of_plan(there.plan),
        Change(*(seconds / math.exp(log) for log in (found.mean, found.high, found.low))),
        software=None if moved else (reference.software, worth),
    )


def _image_of(reference: Reference, recipe: Recipe) -> str | None:
    """Return the name of the container image in which the published result of ``reference`` was measured.

    It is the recipe's image of that release, else NVIDIA's public one (``nvcr.io#nvidia/nemo:25.09``). None: the
    result was not measured with Megatron-Bridge, or nobody says in which container. ``reference`` must be of a
    published result, not of a baseline (an assertion).
    """
    assert reference.result is not None
    document = recipe.document(reference.result)
    release = reference.result.container or document.container
    if release is None:
        return None
    known = (image for image in recipe.engines.values() if same_release(container_release(image), release))
    return next(known, f"nvcr.io#nvidia/nemo:{release}") if document.framework == "Megatron-Bridge" else None


def _planned_or_none(spec: JobSpec, workspace: Workspace) -> PlannedJob | None:
    """Return the job of ``spec``, planned as it would be today; None where its request is refused.

    Notices say what planning chose. ``workspace``: to plan in.

    Raises:
        LLMBError: no job can be planned here, or planning failed otherwise than by the request
    """
    found = next(iter(plan_each([spec], workspace)))
    return found if isinstance(found, PlannedJob) else None


def _fact_of(name: str) -> str:
    """Return the name that ``comparison.facts`` uses for the job setting ``name``: of ``NCCL_ALGO`` ``env NCCL_ALGO``.

    A column keeps its name, as do ``dtype``, ``variant``, ``engine`` and ``image``; a setting of Megatron-Bridge gets
    ``megatron.`` before it, any other name ``env `` unless ``VARIABLE_OF`` has a fact for it. Empty for a setting that
    is never compared: the workload, and other options, by their fields, such as the size.
    """
    if name in COLUMNS.values() or name in NAMED:
        return name
    if name == "workload" or name in FIELDS.values():
        return ""
    facts = {variable: fact for fact, variable in VARIABLE_OF.items()}
    return facts.get(name, f"megatron.{name}" if is_setting(name) else f"env {name}")


def _spec_with_settings_of(spec: JobSpec, other: JobSpec, names: Iterable[str]) -> JobSpec:
    """Return a copy of ``spec`` with the settings that decide the facts ``names`` taken from ``other``.

    ``names`` are facts as ``_fact_of`` names them, and are gone through several times, so no iterator. Such
    settings that ``other`` does not set are dropped.
    """
    kept = {name: value for name, value in spec.settings.items() if _fact_of(name) not in names}
    taken = {name: value for name, value in other.settings.items() if _fact_of(name) in names}
    return replace(spec, settings=kept).with_settings(taken)


DifferenceKind: TypeAlias = Literal["software", "setting", "launch", "nodes"]
_ORDER: tuple[DifferenceKind, ...] = ("software", "setting", "launch", "nodes")

_SOFTWARE = ("image", "engine", "software", "image digest", "driver", "cuda", "nccl", "kernel", "llmb")
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


NOBODY = "no setting of a job changes it"


class GapDifference(msgspec.Struct, frozen=True):
    """One difference between a slow run and the run or published job that it is compared with.

    ``find_gap`` makes it. ``kind`` is "software", "nodes", "setting" or "launch". ``name`` is the fact that
    differs, or several that only change together, joined with commas; ``here`` its value in the slow run, ``there``
    in the other (``-``: none). Of something that the run's own nodes show, ``name`` is the kind of finding,
    ``here`` its text, and ``there`` empty. ``worth``: how published step times changed with it, None where they do
    not say. ``test``: the ``llmb-run ab`` command that measures it; empty where there is none, and then ``why``
    says why, as a clause. ``str`` of it is a line for people, without ``worth`` and ``test``.
    """

    kind: DifferenceKind
    name: str
    here: str
    there: str = ""
    test: str = ""
    worth: Worth | None = None
    why: str = NOBODY

    def __str__(self) -> str:
        if not self.there:
            return f"{self.kind}: {self.here}"
        word = f" ({WORDS[self.name]})" if self.name in WORDS else ""
        return f"{self.kind}: {self.name}{word}: {_short_value(self.here)} here, {_short_value(self.there)} there"


def _short_value(value: str) -> str:
    """Return ``value`` shortened for a line: of a path above 20 characters its last part, else the first 40 characters.

    A path is any text with a slash. There are no dots where something is left out.
    """
    return value.rpartition("/")[2] if value.count("/") and len(value) > 20 else value[:40]


class Gap(msgspec.Struct, frozen=True):
    """How much slower a run is than this site's best, and what differs between the two. ``find_gap`` makes it.

    ``published``: how its step time compares with its reference, as text, ``+4.0 % against ...`` (above 0: longer);
    empty without a verdict or a reference. ``best``: run id of the fastest other run of the same work. None: this one
    is the fastest, or has no step time that counts; then ``differences`` are from the published job, or only what its
    own nodes have shown.

    ``slower``: how much longer this run's steps take, as a share; negative where they take less time than the published
    job's. ``change``: the other's step time over this run's. Both are None where nothing was compared. ``unfit``: why
    this run has no step time to compare; empty: it has one. ``differences`` are those worth most time first, as
    ``find_gap`` sorts them.
    """

    published: str
    best: str | None = None
    slower: float | None = None
    differences: tuple[GapDifference, ...] = ()
    change: Change | None = None
    unfit: str = ""
    slow_node: SlowNode | None = None
    """The node of the run with which its repeats are slower than without; None: none is known to be."""


def find_gap(record: RunRecord, workspace: Workspace) -> Gap:
    """Return how the run of ``record`` differs from this site's fastest run of the same work.

    Each difference comes with what it is worth. If it is the fastest itself, it is compared with the published job.
    Of a run without a step time that counts only ``unfit`` and what its nodes have shown are set. Differences are
    sorted by what they are worth in time, what saves the most first; an unknown worth counts as none. Starts no
    job. ``workspace``: to plan in, and whose installation is searched.

    Raises:
        RecordError: the list of folders outside the installation cannot be read
        LLMBError: there is no installation, or no job can be planned here at all
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    own, others = _own_and_others(record, workspace)
    if own is None:
        return Gap("", unfit="it left no log")
    seen = [GapDifference("nodes", item.kind, item.text) for item in own.findings]  # by its own nodes
    if own.unfit:
        return Gap("", differences=tuple(seen), unfit=own.unfit)
    slow_node, best = _slow_node(own, others), _fastest(own, others)
    try:
        here = plan_job(spec_of_run(record, workspace.workload(record.plan.workload).recipe), workspace)
    # Its recipe may be gone, or refuse by now what it allowed then.
    except LLMBError:
        here = None
    other = None
    if best is not None:
        other = _best_run(best, own, here)
    elif here is not None:
        other = _published_job(here, own, workspace)
    if other is None:
        return Gap(_published_text(own), differences=tuple(seen), slow_node=slow_node)
    listed = _Sides(record, here, other, workspace).differences()
    if other.software:
        why = "LLMB cannot plan a job for that software"
        software, worth = other.software
        listed.append(GapDifference("software", "software", own.software, software, worth=worth, why=why))
    ordered = sorted(
        (*listed, *seen),
        key=lambda item: (item.worth.median if item.worth else 0.0, _ORDER.index(item.kind), not item.test),
    )
    slower = 1 / other.change.ratio - 1
    return Gap(_published_text(own), other.run_id, slower, tuple(ordered), other.change, slow_node=slow_node)


def _published_text(own: MeasuredRun) -> str:
    """Return how a run's step time compares with its reference, as text: ``+4.0 % against ...``, above 0 longer.

    Empty without a verdict or a reference. Where the reference is of other software, the text also says how far
    releases are apart in published results. Without a period.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    verdict = own.verdict
    if verdict is None or verdict.reference is None or verdict.difference is None or own.record is None:
        return ""
    text = f"{signed_percent(verdict.difference)} against {verdict.reference}"
    if verdict.reference.same_software:
        return text
    spread = release_spread(own.record.plan)
    bounds = f"{signed_percent(spread.fastest, 0)} to {signed_percent(spread.slowest, 0)}"
    return f"{text}; a change of release alone makes {bounds} in published rows"


class _Sides:
    """The two sides of a slow run's comparison: the run, and the run or published job it is held against.

    Its arguments, in this order: the run's ``record``, its job as planned today (``here``, None where it cannot be
    planned), the ``other`` side and the ``workspace`` to plan in. ``differences``, to be called once, returns a list of
    what differs between them, empty if nothing on record does, with the command that measures each difference; it plans
    jobs and starts none, and raises ``LLMBError`` where none can be planned at all, or a recipe's results cannot be
    read.
    """

    def __init__(self, record: RunRecord, here: PlannedJob | None, other: Other, workspace: Workspace) -> None:
        self._record = record
        self._here = here
        self._other = other
        self._workspace = workspace
        self._own = facts(record) if other.run_id else facts_of_plan(record.plan)
        self._there = other.spec

    def differences(self) -> list[GapDifference]:
        """Return what differs between the slow run and the other side, each difference once.

        Facts that only change together are one; such groups and what can be asked for come first. Empty: nothing on
        record does. Differences that merely follow from another are left out. To be called once: it completes the other
        side's request by what is on record of it.

        Raises:
            LLMBError: no job can be planned here at all, or a recipe's results cannot be read
        """
        differing = dict(_differing_facts(self._own, self._other.facts))
        groups: list[tuple[str, ...]] = []
        if self._here is not None:
            chosen = [name for name in differing if self._requests_differ(name)]
            together = self._plan_with(chosen)
            if isinstance(together, PlannedJob):  # what follows from the rest is no difference of its own
                follows = {name: value for name, value in facts_of_plan(together.plan).items() if name not in chosen}
                differing = {
                    name: it for name, it in differing.items() if name in chosen or follows.get(name, "-") != it[1]
                }
                # These come with the image, and are no differences of their own.
                if "image" in chosen:
                    brought = ("software", "image digest", "nccl")
                    differing = {name: pair for name, pair in differing.items() if name not in brought}
            variables = {name: there for name, (_, there) in differing.items() if name.startswith("env ")}
            given = {name: there for name, there in variables.items() if there != "-"}
            settings = {name.removeprefix("env "): value for name, value in given.items()}
            self._there = self._there.with_settings(settings)
            groups = self._inseparable_groups([name for name in differing if name in chosen or name in given])
        grouped = set(chain.from_iterable(groups))
        left = [(name,) for name in differing if name not in grouped]
        found = []
        for names in (*groups, *left):
            changed = {name: differing[name] for name in names}
            found.append(self._difference(changed))
        return found

    def _requests_differ(self, fact: str) -> bool:
        """Return whether the requests for the two compared jobs give ``fact`` different values.

        ``fact`` is a name as ``_fact_of`` returns it. A request that does not set it differs from one that does.
        The run's own job must be one that can be planned (an assertion).
        """
        assert self._here is not None
        own_settings = {_fact_of(name): value for name, value in self._here.spec.settings.items()}
        other_settings = {_fact_of(name): value for name, value in self._there.settings.items()}
        return own_settings.get(fact) != other_settings.get(fact)

    def _plan_with(self, names: Sequence[str]) -> PlannedJob | Refused:
        """Return the slow run's job, planned with the other side's values of the facts ``names``.

        Where the plan is refused, the answer holds the error. The run's own job must be one that can be planned (an
        assertion).

        Raises:
            LLMBError: no job can be planned here at all
        """
        assert self._here is not None
        (found,) = plan_each([_spec_with_settings_of(self._here.spec, self._there, names)], self._workspace)
        return found

    def _inseparable_groups(self, names: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the facts ``names`` in groups of those that can only be changed together; most are alone.

        An image goes with its engine, and columns that are not legal one by one go together (with all other columns,
        if even together they are not legal); these two groups come first. Every name is in one group; an empty list
        for none.

        Raises:
            LLMBError: no job can be planned here at all
        """
        software = tuple(name for name in names if name in ("image", "engine"))
        every = tuple(name for name in names if name in COLUMNS.values())
        columns = tuple(name for name in every if isinstance(self._plan_with([name]), Refused))
        if columns and isinstance(self._plan_with(columns), Refused):
            columns = every
        alone = [(name,) for name in names if name not in (*software, *columns)]
        return [group for group in (software, columns, *alone) if group]

    def _difference(self, facts: Mapping[str, tuple[str, str]]) -> GapDifference:
        """Return ``facts``, each with (the slow run's value, the other side's), as one difference.

        At least one, by name; several are joined with commas, and the first decides the kind. With the ``llmb-run
        ab`` command that measures it and what it is worth in published results, as far as known. Where there is no
        such command, the difference says why.

        Raises:
            LLMBError: no job can be planned here at all, or a recipe's results cannot be read
        """
        before = ", ".join(pair[0] for pair in facts.values())
        after = ", ".join(pair[1] for pair in facts.values())
        found = GapDifference(_difference_kind(next(iter(facts))), ", ".join(facts), before, after)
        # What no request sets, no command of ab can change.
        if self._here is None or not all(self._requests_differ(name) for name in facts):
            return found
        planned = self._plan_with(tuple(facts))
        if isinstance(planned, Refused):
            return msgspec.structs.replace(found, why=planned.error.message)
        worth = worth_of(self._here.plan, planned.plan, self._here.entry.recipe)
        try:
            return msgspec.structs.replace(found, test=self._ab_command(facts), worth=worth, why="")
        except RequestError as error:
            return msgspec.structs.replace(found, worth=worth, why=error.message)

    def _ab_command(self, facts: Mapping[str, tuple[str, str]]) -> str:
        """Return the command ``llmb-run ab ...`` that measures what ``facts`` are worth, quoted for a shell.

        Side A is the slow run's job. ``facts`` holds (the slow run's value, the other side's) by name; ``-`` is no
        value, and is unset on side B.

        Raises:
            RequestError: ``ab`` cannot be told a name or a value
        """
        words = f"llmb-run ab --base {self._record.paths.run_id}"
        for fact, (_, value) in facts.items():
            name = dimension(VARIABLE_OF.get(fact, fact).removeprefix("env ").removeprefix("megatron."))
            # A column and a setting have a word for None; nothing else can be set to it.
            if value == "null" and fact in COLUMNS.values():
                value = option_text(None)
            elif value == "null" and is_setting(name):
                value = setting_text(None)
            if value in ("-", "null"):
                words += f" --unset {name}"
            else:
                words += f" --change {shlex.quote(f'{name}={one_value(value)}')}"
        return words


def _differing_facts(one: Mapping[str, str], other: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield (name, (value in ``one``, value in ``other``)) for each fact in which two runs differ.

    They are in the order of ``one``, then what only ``other`` has. ``-`` is no value. A fact that the nodes of either
    run did not tell is unknown, and is left out, as are facts that are another in each run anyway, such as the hosts.
    """
    for name in dict.fromkeys([*one, *other]):
        value, other_value = one.get(name, "-"), other.get(name, "-")
        # What a node did not tell is unknown.
        unknown = name in EVIDENCE and "-" in (value, other_value)
        if value != other_value and not unknown and name.partition(".")[0] not in _UNTOLD:
            yield name, (value, other_value)


def _difference_kind(name: str) -> DifferenceKind:
    """Return what the fact ``name`` of a run is about: ``software``, ``nodes``, ``setting`` or ``launch``.

    ``nodes`` is what only the nodes tell; a setting is one of the job's; launch is how the job was started, and
    anything else.
    """
    if name in _SOFTWARE:
        return "software"
    if name in EVIDENCE:
        return "nodes"
    chosen = name in COLUMNS.values() or name.startswith(("env ", "megatron.")) or name in NAMED
    return "setting" if chosen and name not in WORDS else "launch"


def lines_of(gap: Gap) -> list[tuple[str, list[str]]]:
    """Return a gap as (heading, lines) for people: ``published``, ``best``, ``node`` and ``differs``, in this order.

    ``best`` is always there, with one line such as ``RUN_ID: this run takes 4.1 % longer``; the others are left out
    where there is nothing to say. ``node`` is the slow one, with the command that excludes it where it is only one.
    """
    found = [("published", [gap.published])] if gap.published else []
    if gap.unfit:
        found.append(("best", [f"not compared: this run has no step time that counts ({gap.unfit})"]))
    elif gap.best is not None:
        found.append(("best", [f"{gap.best}: this run takes {percent(gap.slower or 0.0)} longer"]))
    else:
        best = "no faster run of the same work is recorded here"
        found.append(("best", [best if gap.change is None else f"{best}: what differs from the published job"]))
    if gap.slow_node is not None:
        found.append(("node", _slow_node_lines(gap.slow_node)))
    if gap.differences:
        found.append(("differs", list(chain.from_iterable(_difference_lines(item) for item in gap.differences))))
    elif gap.change is not None and gap.slow_node is None:
        found.append(("differs", ["nothing on record differs: suspect the nodes, their neighbors or the day"]))
    return found


def _slow_node_lines(found: SlowNode) -> list[str]:
    """Return how much slower runs with the slow node are, as a line, and the command that excludes it if it is one."""
    slower = f"{percent(found.share)} slower than the {found.others} without"
    text = f"{one_of_text(found.nodes)}: the {counted(found.slow, 'run')} with it are {slower}"
    if len(found.nodes) > 1:
        return [text]
    command = shlex.join(exclude_command(found.nodes, f"runs with it are {percent(found.share)} slower"))
    return [text, f"-> llmb-run {command}"]


def _difference_lines(item: GapDifference) -> Iterator[str]:
    """Yield two lines on one difference: what differs, and the command that measures it or why there is none.

    Such as ``setting: tp: 8 here, 4 there; time -3.1 % in 2 pairs of ...`` and ``  llmb-run ab ...``, or
    ``  ab cannot measure it: REASON``. The second begins with two blanks; neither has a line break.
    """
    yield f"{item}{f'; time {item.worth}' if item.worth else ''}"
    yield f"  {item.test}" if item.test else f"  ab cannot measure it: {item.why}"
