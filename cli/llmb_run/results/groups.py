"""Repeats of one configuration (``results --group``), and the configurations of a model by speed (``--rank``)."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from llmb_common.base.errors import RequestError
from llmb_common.base.printable import counted, percent, wrapped
from llmb_common.measured.run import MeasuredRun, Outcome, explain, mean_step_seconds
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.workspace import Workspace
from llmb_common.results.comparison import Change, Contender, compare_times, ranked
from llmb_common.results.configuration import aspects, configuration_key, differing_settings, kind_of_job, title_of
from llmb_common.results.decision import runs_at_last_look
from llmb_common.results.level import CONFIDENCE, level
from llmb_common.results.scatter import Scatter
from llmb_common.results.steps import StepTime
from llmb_common.results.verdict import Verdict, judge_runs, with_training
from llmb_common.runs.record import RunRecord
from llmb_common.runs.timing.window import Window
from llmb_run.columns import (
    ALL,
    DATA,
    TEXT,
    Column,
    Form,
    View,
    as_dict,
    attribute_at,
    fitting,
    half_interval,
    minus_one,
    seconds_of,
)
from llmb_run.results.run_columns import REFERENCE, TOLERANCE, VERDICT
from llmb_run.results.words import word_of


class LaterRuns(NamedTuple):
    """How runs that wait for the next look compare with those that were judged, where the two certainly differ."""

    runs: int
    """How many of them, the newest, were compared."""
    change: Change


_MOST_LATER = 20
"""Waiting runs that are compared: what is slower now, not over all of its history."""
_LEAST_LATER = 3


@dataclass(frozen=True)
class Group:
    """The runs of one configuration and image, judged together as repeats. ``group_runs`` makes it.

    ``key`` (12 hexadecimal digits) and ``title`` (``title_of``) name the configuration, ``software`` is its
    container and engine as text. ``runs`` are those on which every figure and the verdict rest: successful, oldest
    first, up to the last look (``runs_at_last_look``); without a reference all successful ones; maybe none.
    ``seconds`` are their steady step times, in seconds and in that order. ``verdict`` is None where no run was
    measured, or the recipe is gone.

    Properties: ``outcomes`` counts what became of ``members``, by outcome (``failed``); ``word`` is how the
    configuration stands, one of ``WORST_FIRST`` (``no reference``). ``mean`` is that of ``seconds``, None without
    any; ``spread`` their standard deviation as a share of the mean, None below two. ``shown_seconds`` is the mean
    in seconds with stalls that the verdict compared, without a comparison that of ``runs``; None where no run has a
    step time. None of them fails.
    """

    key: str
    title: str
    software: str
    runs: tuple[MeasuredRun, ...]
    seconds: tuple[float, ...]
    others: int
    """How many runs have ended without a step time."""
    live: int
    """How many runs are queued or running."""
    waiting: int
    """How many successful runs are beyond the last look: they count at the next."""
    in_reference: int
    """How many successful runs the reference itself is made of: nothing is compared with itself."""
    verdict: Verdict | None
    interval: float | None = None
    """Half the confidence interval of the mean step time, as a share of that mean (0.02: 2 %); None without a time."""
    members: tuple[MeasuredRun, ...] = ()
    """All runs of the configuration, whatever became of them."""
    later: LaterRuns | None = None
    """How the newest of the waiting runs compare with the judged ones; None: no certain difference, or too few wait."""

    @cached_property
    def outcomes(self) -> Counter[Outcome]:
        """How many of all the configuration's runs came to each outcome, such as ``failed``; 0 for any other."""
        return Counter(run.outcome for run in self.members)

    @property
    def word(self) -> str:
        """How the configuration stands, as one of ``WORST_FIRST``, such as ``no reference``."""
        return word_of(self.verdict, self.outcomes, len(self.runs), self.in_reference)

    @cached_property
    def shown_seconds(self) -> float | None:
        """The configuration's mean step time in seconds, stalls included, that the verdict compared with the reference.

        Without a comparison, the mean of the judged runs, stalls included. None where no run has a step time.
        """
        if self.runs and self.verdict and self.verdict.reference and self.verdict.decision:
            return self.verdict.reference.seconds * self.verdict.decision.ratio
        return mean_step_seconds(self.runs)

    @property
    def mean(self) -> float | None:
        """The mean of the judged runs' step times in seconds, without stalls; None where no run has one."""
        return statistics.fmean(self.seconds) if self.seconds else None

    @property
    def spread(self) -> float | None:
        """The standard deviation of the judged runs' step times, as a share of their mean.

        Stalls do not count. None below two runs.
        """
        return statistics.stdev(self.seconds) / statistics.fmean(self.seconds) if len(self.seconds) > 1 else None


def group_runs(found: Sequence[MeasuredRun]) -> list[Group]:
    """Return the runs in groups of one configuration and image, each judged together.

    Groups are in the order of their first runs, and keep the order of their runs in ``members``. Logs without a record
    are left out; empty: there are only such. Of most runs no record is read, but of each group the first run's.

    Raises:
        RecordError: the record of a group's first run, or another that is needed, is gone or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    together: dict[str, list[MeasuredRun]] = {}
    for item in found:
        if item.row is not None:
            together.setdefault(item.repeat_key, []).append(item)
    return [_as_group(items) for items in together.values()]


def _as_group(members: Sequence[MeasuredRun]) -> Group:
    """Return the runs ``members``, at least one and all of one configuration and image, as a group with its verdict.

    The first run's record is read; others only where a run has a reference of its own, as one that is part of a
    baseline.

    Raises:
        RecordError: such a record is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    first = members[0]
    plan = record_of(first).plan
    good = sorted((item for item in members if item.good is not None), key=lambda item: item.created)
    # Where none trained, one that succeeded all the same speaks for them.
    succeeded = (item for item in members if item.status.measured)
    spoken = min(good, key=_reference_rank) if good else next(succeeded, None)
    reference = spoken.reference if spoken else None
    verdict = spoken.verdict if spoken else None
    # Runs that the baseline is made of have another reference, and are not judged by it.
    able = [item for item in good if reference is None or item.reference == reference]
    judged = able[: runs_at_last_look(len(able))] if reference else able  # what is not judged is not looked at
    times = _step_times(judged)
    scatter = first.past.scatter(first.configuration)
    earlier = first.earlier([item.run_id for item in judged])
    later = None
    if times and reference:
        waiting = _step_times(able[len(judged) :])
        verdict = judge_runs(plan, times, reference, scatter=scatter, earlier=earlier, waiting=waiting)
        later = _later_runs(times, waiting, scatter)
    live = sum(item.status.state == "Running" for item in members)
    odd = [item.not_training for item in members if item.not_training]
    if verdict and odd and len(odd) < len(members):  # no run may have ended without having trained, or met NaN
        reasons = "; ".join(odd[0])
        verdict = with_training(verdict, (f"{len(odd)} of {counted(len(members), 'run')}: {reasons}",))
    return Group(
        key=configuration_key(plan),
        title=title_of(plan),
        software=first.software,
        runs=tuple(judged),
        seconds=tuple(time.seconds for time in times),
        others=len(members) - len(good) - live,
        live=live,
        waiting=len(able) - len(judged),
        in_reference=len(good) - len(able),
        verdict=verdict,
        interval=math.expm1(level(times, scatter, earlier).half) if times else None,
        members=tuple(members),
        later=later,
    )


def _later_runs(judged: Sequence[StepTime], waiting: Sequence[StepTime], scatter: Scatter) -> LaterRuns | None:
    """Return how the newest ``waiting`` runs compare with the ``judged`` ones, both in order of date.

    ``scatter`` is how much repeats differ. None where the two do not certainly differ, or fewer than three runs wait. A
    verdict rests on the runs of its last look alone, so that it is wrong as seldom as it says; what has changed since
    then would be seen at the next.
    """
    newest = waiting[-_MOST_LATER:]
    if len(newest) < _LEAST_LATER:
        return None
    change = compare_times(judged, newest, scatter, alike=True)
    return LaterRuns(len(newest), change) if change.is_real else None


def _step_times(runs: Iterable[MeasuredRun]) -> list[StepTime]:
    """Return the step times of the runs that have one that counts (``good``), in their order; other runs are left out.

    Raises:
        RecordError: the record of a run cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    return [run.good for run in runs if run.good is not None]


def record_of(run: MeasuredRun) -> RunRecord:
    """Return the record of ``run``, which the caller knows to have one, read if need be.

    Raises:
        ValueError: it has none, as a log that LLMB did not write
        RecordError: the record is gone, or cannot be read
    """
    if run.record is None:
        raise ValueError(f"{run.files.name} has no record")
    return run.record


def _reference_rank(run: MeasuredRun) -> int:
    """Return a sort key for choosing the reference of a group of runs: 0 a baseline, 1 a published result, 2 none.

    Raises:
        RecordError: the record of a run cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    if run.reference is None:
        return 2
    return 0 if run.reference.kind == "baseline" else 1


def _runs_cell(item: Group) -> str:
    """Return the number of judged runs of a group, and in parentheses what became of its others: ``3 (1 failed)``.

    The others are counted by their outcome, in the order in which the group has these, then as ``not counted yet``
    or ``in the baseline``, joined by a comma and a blank. The parentheses are left out where there are none.
    """
    others = [
        *((count, outcome) for outcome, count in item.outcomes.items() if outcome != "measured"),
        (item.waiting, "not counted yet"),
        (item.in_reference, "in the baseline"),
    ]
    others_text = ", ".join(f"{count} {what}" for count, what in others if count)
    return f"{len(item.runs)}" + (f" ({others_text})" if others_text else "")


GROUP: tuple[Column[Group], ...] = (
    Column("title", attribute_at("title"), ALL & ~Form.PAGE, "the configuration", "configuration"),
    Column("key", attribute_at("key"), DATA, "the same for the same work at the same place"),
    Column("software", attribute_at("software"), ALL & ~Form.PAGE, "container and engine", "software"),
    Column("runs", lambda group: len(group.runs), ALL & ~Form.PAGE, "judged", "runs", spec="d", text=_runs_cell),
    Column("run_ids", lambda group: [run.run_id for run in group.runs], Form.JSON, "judged"),
    Column("unsuccessful", attribute_at("others"), DATA, "runs that ended without a step time"),
    Column("outcomes", attribute_at("outcomes", dict), Form.JSON, "how many of all its runs came to what"),
    Column("word", attribute_at("word"), Form.JSON, "how it stands, in the word that `results` prints in capitals"),
    Column("live", attribute_at("live"), DATA, "runs that wait or run"),
    Column("waiting", attribute_at("waiting"), DATA, "successful runs that count at the next look"),
    Column(
        "later_difference",
        lambda group: group.later.change.ratio - 1 if group.later else None,
        DATA,
        "how much slower the newest waiting runs are than those judged, where it is certain",
    ),
    Column("in_reference", attribute_at("in_reference"), DATA, "runs that the reference is made of"),
    Column(
        "step_seconds",
        attribute_at("mean"),
        ALL & ~Form.TABLE,
        "mean of the steady step times",
        head="steady step",
        unit="s",
        spec=".3f",
    ),
    Column(
        "shown_seconds",
        attribute_at("shown_seconds"),
        Form.TABLE,
        "as compared",
        head="step",
        unit="s",
        spec=".3f",
    ),
    Column(
        "interval",
        attribute_at("interval"),
        ALL,
        f"half the {percent(CONFIDENCE)} interval of `step_seconds`, as a share of it",
        head="±",
        unit=f"% ({percent(CONFIDENCE)})",
        spec=".1%",
        text=lambda group: half_interval(group.interval),
    ),
    Column(
        "spread",
        attribute_at("spread"),
        ALL,
        "standard deviation between the runs, as a share",
        head="spread",
        unit="%",
        spec=".1%",
    ),
    replace(REFERENCE, forms=ALL),
    *(
        replace(column, forms=column.forms | Form.PAGE if column is TOLERANCE else column.forms & ~Form.TABLE)
        for column in VERDICT
    ),
    Column(
        "verdict_text",
        lambda group: group.verdict.text if group.verdict else ", ".join(group.outcomes),
        Form.JSON | TEXT,
        "the verdict in words",
        "verdict",
    ),
)


def group_view(groups: Sequence[Group]) -> View[Group]:
    """Return the table of ``results --group``: a row for each configuration, in the order of ``groups``.

    Its ``name`` is ``groups``, its columns are ``GROUP``, its JSON values dictionaries by the keys of these
    columns; without groups its table is an empty line.
    """
    return View("groups", [as_dict(GROUP, item) for item in groups], GROUP, groups)


RULE = (
    "ranked by time per token and GPU; a configuration shares a place unless its runs show it to be slower than the "
    f"first one there ({percent(CONFIDENCE)} interval of the ratio)"
)


@dataclass(frozen=True)
class RankedConfiguration:
    """One configuration in a ranking by speed; ``rank_groups`` makes it.

    ``group`` is the configuration; with a place, its ``seconds`` and ``interval`` are over all runs with a step time,
    not only the judged ones. ``values`` are its settings named in ``Board.names``, as text in that order, ``-`` for
    one that it lacks. ``place`` counts from 1; None: no run has a step time, and ``outcome`` says why (else empty).
    ``shared``: others have the same place, as these runs do not tell them apart. ``behind``: its time for a token over
    that of the first in the list (a ``ratio`` above 1 is slower); None for that first one, and without a place.

    ``seconds``, a property, is the mean step time in seconds of its successful runs, stalls included; None: there is
    none.
    """

    group: Group
    values: tuple[str, ...]
    place: int | None = None
    shared: bool = False
    behind: Change | None = None
    tokens: float | None = None
    """Tokens that one GPU trains on per second; None without a step time."""
    outcome: str = ""

    @property
    def seconds(self) -> float | None:
        """The mean step time of the configuration's successful runs in seconds, stalls included.

        None where there is none.
        """
        return mean_step_seconds(run for run in self.group.members if run.good)


@dataclass(frozen=True)
class Board:
    """A ranking of configurations that do the same work, whatever their batch size; ``rank_groups`` makes it.

    ``title`` names the work: ``mbridge llama3_70b sft fp8 (cs)``, or recipe and size alone where variants or
    precisions differ. ``names`` are the settings in which the configurations differ; empty for a single one.
    ``configurations`` are the fastest for a token first; those without a step time stand last.

    Properties: ``live`` is whether a run of any of them has not ended; ``columns`` is the list of columns of the
    ranking's table, whose rows are ``configurations``. Neither fails, but the cells of memory and outcome raise
    RecordError, RecipeError or ConfigError where a run's record, its recipe or the site's configuration cannot be
    read.
    """

    title: str
    names: tuple[str, ...]
    configurations: tuple[RankedConfiguration, ...]
    command: str
    """The command line that starts the fastest configuration; empty where none has a time, or its workload is gone."""
    window: Window | None = None
    """The iterations that were measured, where these are not the documented ones, of several the earliest; else None.
    """

    @property
    def live(self) -> bool:
        """Whether a run of any configuration in the ranking has not ended."""
        return any(item.group.live for item in self.configurations)

    @property
    def columns(self) -> list[Column[RankedConfiguration]]:
        """The columns of this ranking, in order: place, the settings in which configurations differ, and figures.

        JSON has no columns for the settings: ``ranking_as_dict`` adds them. Columns of memory and outcome may raise
        RecordError for a row whose record cannot be read, that of outcome also RecipeError and ConfigError.
        """
        figures: list[Column[Any]] = [it for it in GROUP if it.key in ("step_seconds", "interval", "spread")]
        return [
            Column("place", attribute_at("place"), ALL, "1 is the fastest", "place", text=_place_cell),
            *(
                Column(name, attribute_at("values", itemgetter(number)), ALL & ~Form.JSON, "", name)
                for number, name in enumerate(self.names)
            ),
            Column("runs", _timed_runs, ALL, "", "runs", spec="d"),
            Column(
                "seconds",
                attribute_at("seconds"),
                Form.TABLE,
                "",
                "step",
                "s",
                "s",
                text=lambda it: seconds_of(it.seconds),
            ),
            *(_ranking_column(figure) for figure in figures),
            Column("tokens_per_second_per_gpu", attribute_at("tokens"), ALL, "", "tokens/s/GPU", spec=".0f"),
            Column("behind", attribute_at("behind.ratio", minus_one), ALL, "", "behind", "%", ".1%"),
            Column("behind_low", attribute_at("behind.low", minus_one), DATA),
            Column("behind_high", attribute_at("behind.high", minus_one), DATA),
            Column("memory_gib", _peak_memory_gib, ALL, "", "memory", "GiB", ".1f", optional=True),
            Column("outcome", _failures_cell, ALL, "", "outcome", optional=True),
            Column("run_ids", lambda entry: [it.run_id for it in entry.group.members], DATA),
        ]


def rank_runs(found: Sequence[MeasuredRun], workspace: Workspace) -> list[Board]:
    """Return a ranking for each kind of work among the runs (``of_the_same_work``): a model and its sequence length.

    Rankings are in the order of their first runs; runs without a record are left out. Empty: no run has one. Why
    failed runs failed is found out first, and kept in the runs (``why``). ``workspace`` knows the recipes, for the
    command lines.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecordError: the record of a run is gone, or cannot be read
        RecipeError: a recipe's catalogue cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    explain(found)
    return rank_groups(group_runs(found), workspace)


def rank_groups(groups: Iterable[Group], workspace: Workspace) -> list[Board]:
    """Return a ranking for each kind of work among the configurations in ``groups`` (``of_the_same_work``).

    They are in the order of the first configuration of each; a ranking may be of a single one. Empty without groups.
    Why failed runs failed is found out where it is not known yet. ``workspace`` knows the recipes, for the command
    lines.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecordError: the record of a run is gone, or cannot be read
        RecipeError: a recipe's catalogue cannot be read
    """
    return [_rank_groups(items, workspace) for items in of_the_same_work(groups)]


def of_the_same_work(groups: Iterable[Group]) -> list[list[Group]]:
    """Return lists of the groups whose runs may be ranked together, in the order of their first ones.

    Those of one list have the same workload, model, layers, sequence length and routing of experts, whatever the
    batch size; jobs that call a function of Megatron-Bridge's (``JobPlan.function``) have the same variant, too.
    Each list has at least one group, in the order given. ``groups`` are not changed, and none is left out.

    Raises:
        RecordError: the record of a group's first run is gone, or cannot be read
    """
    together: dict[str, list[Group]] = {}
    for item in groups:
        plan = _first_record(item).plan
        # The batch is a setting to try: ranks are by the time for a token.
        work = aspects(plan, "work") | {"gbs": None, "kind": plan.variant if plan.function else None}
        together.setdefault(json.dumps(work, sort_keys=True, default=str), []).append(item)
    return [*together.values()]


def _rank_groups(items: Sequence[Group], workspace: Workspace) -> Board:
    """Return the ranking of groups that do the same work, at least one, the fastest first.

    Groups without a step time stand last, in their order; why they have none is found out where it is not known
    yet. Groups whose measured runs had different software get a setting ``software``, unless ``image`` or
    ``engine`` differs already. ``workspace`` knows the recipes, for the command line.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecordError: the record of a run is gone, or cannot be read
        RecipeError: a recipe's catalogue cannot be read
    """
    plans = [_first_record(item).plan for item in items]
    differing = differing_settings(plans)
    software = {item.software for item in items if any(run.good for run in item.members)}
    # Or else rows of several releases would look alike.
    if len(software) > 1 and not {"image", "engine"} & differing.keys():
        differing["software"] = [item.software for item in items]
    contenders, without = [], []
    for number, item in enumerate(items):
        values = tuple(of_each[number] for of_each in differing.values())
        contender = _as_contender(item, values)
        if contender is None:
            without.append(RankedConfiguration(item, values, outcome=_failure_text(item.members)))
        else:
            contenders.append(contender)
    placed = ranked(contenders)
    place_counts = Counter(place for _, place, _ in placed)
    lines = [
        replace(item.of, place=place, shared=place_counts[place] > 1, behind=behind, tokens=1 / item.seconds)
        for item, place, behind in placed
    ]
    fastest = _first_record(lines[0].group).plan if lines else None
    members = chain.from_iterable(item.members for item in items)
    windows = {run.summary.window for run in members if run.good and not run.summary.documented}
    same = len({kind_of_job(plan) for plan in plans}) == 1
    return Board(
        title=kind_of_job(plans[0]) if same else f"{plans[0].recipe} {plans[0].model_size}",
        names=tuple(differing),
        configurations=(*lines, *without),
        command=_command_of(fastest, workspace) if fastest else "",
        window=min(windows, key=lambda window: window.first, default=None),
    )


def _command_of(plan: JobPlan, workspace: Workspace) -> str:
    """Return the command line, as ``command_for`` writes it, that starts a job of ``plan``'s configuration.

    Empty where ``workspace`` does not know the plan's workload any more.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecipeError: a recipe's catalogue cannot be read
    """
    from llmb_run.starting.command_line import command_for  # of no other table

    try:
        recipe = workspace.workload(plan.workload).recipe
    except RequestError:
        return ""
    return command_for(plan, recipe)


def _as_contender(item: Group, values: tuple[str, ...]) -> Contender | None:
    """Return a group as a contender of a ranking, with the step times of all its runs that have one that counts.

    Its ``of`` is a ``RankedConfiguration`` without a place, with ``values``, and with a copy of the group whose
    figures are over these runs: other than for a verdict, which looks after fixed numbers of runs, all of them
    count. None where no run has such a step time. ``item`` stays.

    Raises:
        RecordError: the record of the first run is gone, or cannot be read
    """
    good = {run.run_id: run.good for run in item.members if run.good}
    if not good:
        return None
    first, times = item.members[0], [*good.values()]
    scatter = first.past.scatter(first.configuration)
    interval = math.expm1(level(times, scatter, first.earlier([*good])).half)
    configuration = replace(item, seconds=tuple(time.seconds for time in times), interval=interval)
    return Contender(
        RankedConfiguration(configuration, values), times, _first_record(item).plan.tokens_per_gpu, scatter
    )


def _first_record(item: Group) -> RunRecord:
    """Return the record of the first run of a group, read if need be.

    Raises:
        RecordError: it is gone, or cannot be read
    """
    return record_of(item.members[0])


def _failure_text(members: Iterable[MeasuredRun]) -> str:
    """Return why none of the runs has a step time: ``out of memory; not ended``; each reason once, in the runs' order.

    ``members`` have none that counts. Empty without runs. The causes of failures are found out now where need be.

    Raises:
        RecordError: the record of a run cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    return "; ".join(dict.fromkeys(map(_no_time_reason, members)))


def _no_time_reason(run: MeasuredRun) -> str:
    """Return why a run, which has no step time that counts, has none, in a few words without a full stop.

    Of a run that is queued or running it is ``not ended``. For a failed run it is the cause of the failure, found
    out now unless that was done before; if it is not known, and of any other run, why it is unfit
    (``MeasuredRun.unfit``).

    Raises:
        RecordError: the run's record cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    if run.status.state == "Running":
        return "not ended"
    cause = run.why.short if run.why else ""
    return cause or run.unfit


def _ranking_column(figure: Column[Group]) -> Column[RankedConfiguration]:
    """Return a column of groups as a column of ranked configurations, with the same key and values.

    ``figure`` is one of ``GROUP``. Tables write the interval as text (``half_interval``), and do not show
    ``step_seconds``: they have a step time of their own; all other forms have it.
    """
    forms = ALL & ~Form.TABLE if figure.key == "step_seconds" else ALL
    text = (lambda entry: half_interval(entry.group.interval)) if figure.key == "interval" else None
    return replace(figure, value=attribute_at("group", figure.value), forms=forms, text=text)  # type: ignore[return-value]


def _place_cell(entry: RankedConfiguration) -> str:
    """Return a configuration's place in the ranking as text: ``2=`` where it is shared, ``-`` where there is none."""
    return "-" if entry.place is None else f"{entry.place}{'=' if entry.shared else ''}"


def _timed_runs(entry: RankedConfiguration) -> int:
    """Return how many runs of a ranked configuration have a step time that counts."""
    return sum(run.good is not None for run in entry.group.members)


def _peak_memory_gib(entry: RankedConfiguration) -> float | None:
    """Return the largest peak of GPU memory among a ranked configuration's runs, in GiB; None where none is known.

    Raises:
        RecordError: the record of a run cannot be read
    """
    return max((run.memory_gib for run in entry.group.members if run.memory_gib), default=None)


def _failures_cell(entry: RankedConfiguration) -> str | None:
    """Return why a ranked configuration, or some of its runs, has no step time; None where all its runs have one.

    A configuration with a place also says of how many runs: ``1 of 3 runs: out of memory``. Reasons are joined by
    ``; ``, each once, without a full stop; they are found out now where need be.

    Raises:
        RecordError: the record of a run cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    others = [run for run in entry.group.members if run.good is None]
    if entry.place is None or not others:
        return entry.outcome or None
    return f"{len(others)} of {counted(len(entry.group.members), 'run')}: {_failure_text(others)}"


def ranking_text(found: Sequence[Board], width: int) -> str:
    """Return the rankings as text: of each a sentence with its fastest configuration, a table, and the command for it.

    Rankings are separated by an empty line. Tables are at most ``width`` characters wide: columns that matter least
    are left out, then lines are cut. Sentences are wrapped at ``width``; the command,
    ``its command: llmb-run ...``, stays one line, and is left out where no configuration has a time, or its
    workload is gone. The rule of ranking comes last. Without any ranking, a sentence that says so. The text ends
    with a newline.

    Raises:
        RecordError: the record of a run cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    parts = []
    for board in found:
        lines = wrapped(f"{board.title}: {_ranking_sentence(board)}", width)
        sentence = "".join(f"{line}\n" for line in lines)
        table = fitting(board.columns, board.configurations, _DISPENSABLE, width, least=_LEAST_OUTCOME)
        command = f"its command: {board.command}\n" if board.command else ""
        parts.append(sentence + table + command)
    rule = "".join(f"{line}\n" for line in wrapped(RULE, width))
    return "\n".join([*parts, rule]) if parts else "none of these runs has a known configuration\n"


_DISPENSABLE = ("memory_gib", "spread", "interval", "tokens_per_second_per_gpu", "runs")
"""Columns that a narrow terminal has no room for, the least important first."""
_LEAST_OUTCOME = 12


def _ranking_sentence(board: Board) -> str:
    """Return a ranking as a sentence without a full stop: how many configurations, the fastest, its step time, ties.

    Such as ``3 configurations, fastest: tp=2, 9.876 s a step; 2 tie for first place``, or ``..., none has a time``;
    a fastest one without settings to name is ``as documented``. The ranking's title is not in it. Where the
    measured iterations are not the documented ones, they come last:
    ``; over iterations 11-20, which all runs have``.
    """
    many = counted(len(board.configurations), "configuration")
    placed = [item for item in board.configurations if item.place is not None]
    if not placed:
        return f"{many}, none has a time"
    first = placed[0]
    settings = zip(board.names, first.values, strict=True)
    values = " ".join(f"{name}={value}" for name, value in settings if value != "-")
    sentence = f"{many}, fastest: {values or 'as documented'}, {seconds_of(first.seconds)} s a step"
    ties = sum(item.place == 1 for item in placed)
    if ties > 1:
        sentence += f"; {ties} tie for first place"
    if board.window is not None:
        sentence += f"; over iterations {board.window}, which all runs have"
    return sentence


def ranking_as_dict(found: Sequence[Board]) -> list[dict[str, Any]]:
    """Return the rankings as JSON values, in their order: times in seconds, differences and spreads as shares.

    Each has ``title``, ``window`` (with ``first`` and ``last``; None: the documented one), ``differing`` (names of
    settings), ``lines`` (its configurations, the fastest first, those without a time last) and ``command`` (None:
    there is none). A line has ``values``, a dictionary by the names in ``differing`` (``-``: it lacks that
    setting), and the figures ``place``, ``runs`` (with a step time), ``step_seconds``, ``interval``, ``spread``,
    ``tokens_per_second_per_gpu``, ``behind``, ``behind_low``, ``behind_high``, ``memory_gib``, ``outcome`` and
    ``run_ids``; one that it lacks is None.

    Raises:
        RecordError: the record of a run cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    return [
        {
            "title": board.title,
            "window": {"first": board.window.first, "last": board.window.last} if board.window else None,
            "differing": list(board.names),
            "lines": [
                {"values": dict(zip(board.names, item.values, strict=True)), **as_dict(board.columns, item)}
                for item in board.configurations
            ],
            "command": board.command or None,
        }
        for board in found
    ]
