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
from typing import Any

from llmb_common.base.errors import RequestError
from llmb_common.base.printable import counted, percent, wrapped
from llmb_common.measured.run import MeasuredRun, Outcome, explain, mean_step_seconds
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.workspace import Workspace
from llmb_common.results.comparison import Change, Contender, ranked
from llmb_common.results.configuration import aspects, configuration_key, differing_settings, kind_of_job, title_of
from llmb_common.results.decision import runs_at_last_look
from llmb_common.results.level import CONFIDENCE, level
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


@dataclass(frozen=True)
class Group:
    """``runs`` are those that every figure and the verdict are of: successful, by date, up to the last look."""

    key: str
    title: str
    software: str
    runs: tuple[MeasuredRun, ...]
    seconds: tuple[float, ...]
    others: int
    """Runs that have ended without a step time."""
    live: int
    """Runs that wait or run."""
    waiting: int
    """Successful runs beyond the last look: they count at the next."""
    in_reference: int
    """Successful runs that the reference itself is made of: nothing is compared with itself."""
    verdict: Verdict | None
    interval: float | None = None
    """Half the interval of the mean, as a share of it."""
    members: tuple[MeasuredRun, ...] = ()
    """All runs, whatever became of them."""

    @cached_property
    def outcomes(self) -> Counter[Outcome]:
        """How many of the group's runs came to each outcome."""
        return Counter(run.outcome for run in self.members)

    @property
    def word(self) -> str:
        """How the configuration stands, in one of the words of ``WORST_FIRST``."""
        return word_of(self.verdict, self.outcomes, len(self.runs), self.in_reference)

    @property
    def shown_seconds(self) -> float | None:
        """The configuration's mean step time in seconds, stalls included: the one that is compared.

        None where no run has one. Without a comparison, the mean of what its judged runs show.
        """
        if self.runs and self.verdict and self.verdict.reference and self.verdict.decision:
            return self.verdict.reference.seconds * self.verdict.decision.ratio
        return mean_step_seconds(self.runs)

    @property
    def mean(self) -> float | None:
        """The mean of the judged runs' steady step times in seconds; None where no run has one."""
        return statistics.fmean(self.seconds) if self.seconds else None

    @property
    def spread(self) -> float | None:
        """Standard deviation between the judged runs' step times as a share of their mean; None below two runs."""
        return statistics.stdev(self.seconds) / statistics.fmean(self.seconds) if len(self.seconds) > 1 else None


def group_runs(found: Sequence[MeasuredRun]) -> list[Group]:
    """The runs in groups of one configuration and image, each judged together, in the order of their first runs.

    Logs without a record are in none.
    """
    together: dict[str, list[MeasuredRun]] = {}
    for item in found:
        if item.row is not None:
            together.setdefault(item.configuration + item.image, []).append(item)
    return [_as_group(items) for items in together.values()]


def _as_group(members: Sequence[MeasuredRun]) -> Group:
    """The runs ``members``, at least one and all of one configuration, as a group with its verdict.

    Of all but the first run, what the index has of them is enough.
    """
    first = members[0]
    plan = record_of(first).plan
    good = sorted((item for item in members if item.good is not None), key=lambda item: item.created)
    # Else of those that succeeded and did not train.
    speaking = sorted(good, key=_reference_rank) or [item for item in members if item.status.measured]
    spoken = speaking[0] if speaking else None
    reference = spoken.reference if spoken else None
    verdict = spoken.verdict if spoken else None
    able = [item for item in good if reference is None or item.reference == reference]
    judged = able[: runs_at_last_look(len(able))] if reference else able  # what is not judged is not looked at
    times = _step_times(judged)
    scatter = first.past.scatter(first.configuration)
    earlier = first.earlier([item.run_id for item in judged])
    if times and reference:
        waiting = _step_times(able[len(judged) :])
        verdict = judge_runs(plan, times, reference, scatter=scatter, earlier=earlier, waiting=waiting)
    live = sum(item.status.state == "Running" for item in members)
    odd = [item.not_training for item in members if item.not_training]
    if verdict and odd and len(odd) < len(members):  # no run may have ended without having trained, or met NaN
        verdict = with_training(verdict, (f"{len(odd)} of {counted(len(members), 'run')}: {'; '.join(odd[0])}",))
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
    )


def _step_times(runs: Iterable[MeasuredRun]) -> list[StepTime]:
    """The step times of the runs that have one that counts, in their order; the others are left out."""
    return [run.good for run in runs if run.good is not None]


def record_of(run: MeasuredRun) -> RunRecord:
    """The record of a run that has one.

    Raises:
        ValueError: it is a log that LLMB did not make
    """
    if run.record is None:
        raise ValueError(f"{run.files.name} has no record")
    return run.record


def _reference_rank(run: MeasuredRun) -> int:
    """The sort key by which a run's reference becomes its group's: a baseline before what was published, none last."""
    if run.reference is None:
        return 2
    return 0 if run.reference.kind == "baseline" else 1


def _runs_cell(item: Group) -> str:
    """The number of judged runs, and in brackets what the others are: ``3 (1 failed)``."""
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
    Column("in_reference", attribute_at("in_reference"), DATA, "runs that the reference is made of"),
    Column(
        "step_seconds",
        attribute_at("mean"),
        ALL & ~Form.TABLE,
        "mean of the steady step times",
        *("steady step", "s", ".3f"),
    ),
    Column("shown_seconds", attribute_at("shown_seconds"), Form.TABLE, "as compared", *("step", "s", ".3f")),
    Column(
        "interval",
        attribute_at("interval"),
        ALL,
        f"half the {percent(CONFIDENCE)} interval of `step_seconds`, as a share of it",
        *("±", f"% ({percent(CONFIDENCE)})", ".1%"),
        text=lambda group: half_interval(group.interval),
    ),
    Column(
        "spread",
        attribute_at("spread"),
        ALL,
        "standard deviation between the runs, as a share",
        *("spread", "%", ".1%"),
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
    """The table of ``results --group``: a row for each configuration, in the order of ``groups``."""
    return View("groups", [as_dict(GROUP, item) for item in groups], GROUP, groups)


RULE = (
    "ranked by time per token and GPU; a configuration shares a place unless its runs show it to be slower than the "
    f"first one there ({percent(CONFIDENCE)} interval of the ratio)"
)


@dataclass(frozen=True)
class RankedConfiguration:
    """``place`` None: no run has a time, ``outcome`` says why; ``shared``: others have the same place.

    ``values`` are those in which the board's configurations differ.
    """

    group: Group
    values: tuple[str, ...]
    place: int | None = None
    shared: bool = False
    behind: Change | None = None
    tokens: float | None = None
    """A second, of one GPU."""
    outcome: str = ""

    @property
    def seconds(self) -> float | None:
        """Mean step time of its successful runs in seconds, as people are shown it; None where there is none."""
        return mean_step_seconds(run for run in self.group.members if run.good)


@dataclass(frozen=True)
class Board:
    """The configurations of the same work, but for the batch. ``names``: what they differ in."""

    title: str
    names: tuple[str, ...]
    configurations: tuple[RankedConfiguration, ...]
    command: str
    """Of the fastest; empty where none has a time."""
    window: Window | None = None
    """The iterations that were measured, where these are not the documented ones."""

    @property
    def live(self) -> bool:
        """Whether a run of the ranking has not ended."""
        return any(item.group.live for item in self.configurations)

    @property
    def columns(self) -> list[Column[RankedConfiguration]]:
        """The columns of the ranking: place, the values in which configurations differ, and figures."""
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
    """A ranking for each model with its sequence length, in the order of the first runs; empty: no run has a record.

    Finds out first why those of the runs that failed did.
    """
    explain(found)
    return rank_groups(group_runs(found), workspace)


def rank_groups(groups: Iterable[Group], workspace: Workspace) -> list[Board]:
    """A ranking for each kind of work among the groups, in the order of the first group of each."""
    return [_rank_groups(items, workspace) for items in of_the_same_work(groups)]


def of_the_same_work(groups: Iterable[Group]) -> list[list[Group]]:
    """The groups whose runs may be ranked together: of a model with its sequence length, whatever the batch."""
    together: dict[str, list[Group]] = {}
    for item in groups:
        plan = _first_record(item).plan
        work = aspects(plan, "work") | {"gbs": None, "kind": plan.variant if plan.function else None}
        together.setdefault(json.dumps(work, sort_keys=True, default=str), []).append(item)
    return [*together.values()]


def _rank_groups(items: Sequence[Group], workspace: Workspace) -> Board:
    """The ranking of groups that do the same work, at least one, the fastest first.

    Those without a step time stand last.
    """
    plans = [_first_record(item).plan for item in items]
    differing = differing_settings(plans)
    software = {item.software for item in items if any(run.good for run in item.members)}
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
    """The command that starts a job of ``plan``'s configuration; empty where its recipe is no longer there."""
    from llmb_run.starting.command_line import command_for  # of no other table

    try:
        recipe = workspace.workload(plan.workload).recipe
    except RequestError:
        return ""
    return command_for(plan, recipe)


def _as_contender(item: Group, values: tuple[str, ...]) -> Contender | None:
    """A group as a contender of a ranking, with figures of all its timed runs.

    None where none has a step time that counts. A verdict looks after fixed numbers of runs, but an order is of all.
    ``values``: in what it differs from the others.
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
    """The record of the group's first run."""
    return record_of(item.members[0])


def _failure_text(members: Iterable[MeasuredRun]) -> str:
    """Why none of the runs has a step time: ``out of memory; not ended``; each reason once."""
    return "; ".join(dict.fromkeys(map(_no_time_reason, members)))


def _no_time_reason(run: MeasuredRun) -> str:
    """Why a run has no time."""
    if run.status.state == "Running":
        return "not ended"
    cause = run.why.short if run.why else ""
    return cause or run.unfit


def _ranking_column(figure: Column[Group]) -> Column[RankedConfiguration]:
    """A column of groups as one of ranked configurations.

    Tables have the interval in words, and no ``step_seconds``: they have a step time of their own.
    """
    forms = ALL & ~Form.TABLE if figure.key == "step_seconds" else ALL
    text = (lambda entry: half_interval(entry.group.interval)) if figure.key == "interval" else None
    return replace(figure, value=attribute_at("group", figure.value), forms=forms, text=text)  # type: ignore[return-value]


def _place_cell(entry: RankedConfiguration) -> str:
    """The place as text: ``2=`` where it is shared, ``-`` where there is none."""
    return "-" if entry.place is None else f"{entry.place}{'=' if entry.shared else ''}"


def _timed_runs(entry: RankedConfiguration) -> int:
    """How many runs of the entry have a step time that counts."""
    return sum(run.good is not None for run in entry.group.members)


def _peak_memory_gib(entry: RankedConfiguration) -> float | None:
    """The largest peak of memory among the entry's runs in GiB; None where none has one."""
    return max((run.memory_gib for run in entry.group.members if run.memory_gib), default=None)


def _failures_cell(entry: RankedConfiguration) -> str | None:
    """Why a ranked configuration, or some of its runs, has no step time; None where all its runs have one."""
    others = [run for run in entry.group.members if run.good is None]
    if entry.place is None or not others:
        return entry.outcome or None
    return f"{len(others)} of {counted(len(entry.group.members), 'run')}: {_failure_text(others)}"


def ranking_text(found: Sequence[Board], width: int) -> str:
    """The rankings as text, each with its fastest configuration, a table for ``width`` characters, and a command.

    The rule of ranking comes last. Without any ranking, a sentence that says so. The text ends with a newline.
    """
    parts = []
    for board in found:
        lines = wrapped(f"{board.title}: {_ranking_sentence(board)}", width)
        table = fitting(board.columns, board.configurations, _DISPENSABLE, width, least=_LEAST_OUTCOME)
        command = [f"its command: {board.command}"] if board.command else []
        parts.append("".join(f"{line}\n" for line in lines) + table + "".join(f"{line}\n" for line in command))
    rule = "".join(f"{line}\n" for line in wrapped(RULE, width))
    return "\n".join([*parts, rule]) if parts else "none of these runs has a known configuration\n"


_DISPENSABLE = ("memory_gib", "spread", "interval", "tokens_per_second_per_gpu", "runs")
"""Columns that a narrow terminal has no room for, the least important first."""
_LEAST_OUTCOME = 12


def _ranking_sentence(board: Board) -> str:
    """A ranking in a sentence: how many configurations there are, the fastest one, its step time, and ties.

    With the iterations that were measured where these are not the documented ones.
    """
    many = counted(len(board.configurations), "configuration")
    placed = [item for item in board.configurations if item.place is not None]
    if not placed:
        return f"{many}, none has a time"
    first = placed[0]
    values = " ".join(f"{name}={value}" for name, value in zip(board.names, first.values, strict=True) if value != "-")
    sentence = f"{many}, fastest: {values or 'as documented'}, {seconds_of(first.seconds)} s a step"
    ties = sum(item.place == 1 for item in placed)
    if ties > 1:
        sentence += f"; {ties} tie for first place"
    if board.window is not None:
        sentence += f"; over iterations {board.window}, which all runs have"
    return sentence


def ranking_as_dict(found: Sequence[Board]) -> list[dict[str, Any]]:
    """The rankings as JSON values, in their order: times in seconds, differences and spreads as shares."""
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
