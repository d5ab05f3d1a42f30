"""Repeats of one configuration (``results --group``), and the configurations of a model by speed (``--rank``)."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmb_common.command.printable import counted
from llmb_common.platform.run_states import is_live
from llmb_common.results.comparison import Change, Contender, ranked
from llmb_common.results.configuration import aspects, configuration_key, kind_of_job, title_of, told_apart
from llmb_common.results.decision import CONFIDENCE, level, look
from llmb_common.results.steps import StepTime
from llmb_common.results.verdict import Verdict, judge_runs, with_training
from llmb_common.runs.record import RunRecord
from llmb_run.columns import ALL, DATA, TEXT, Column, Form, View, as_dict, at, csv_of, table
from llmb_run.results.measuring import MeasuredRun
from llmb_run.results.run_columns import REFERENCE, TOLERANCE, VERDICT
from llmb_run.workspace import Workspace


@dataclass(frozen=True)
class Group:
    """``runs`` are those that every figure and the verdict are of: successful, by date, up to the last look."""

    key: str
    title: str
    software: str
    runs: tuple[RunRecord, ...]
    seconds: tuple[float, ...]
    others: int
    """Runs without a step time."""
    waiting: int
    """Successful runs beyond the last look: they count at the next."""
    in_reference: int
    """Successful runs that the reference itself is made of: nothing is compared with itself."""
    verdict: Verdict | None
    interval: float | None = None
    """Half the interval of the mean, as a share of it."""
    members: tuple[MeasuredRun, ...] = ()
    """All runs, whatever became of them."""

    @property
    def mean(self) -> float | None:
        """Mean step time in seconds."""
        return statistics.fmean(self.seconds) if self.seconds else None

    @property
    def spread(self) -> float | None:
        """Standard deviation between the runs as a share of their mean; None below two runs."""
        return statistics.stdev(self.seconds) / statistics.fmean(self.seconds) if len(self.seconds) > 1 else None


def group(found: Sequence[MeasuredRun]) -> list[Group]:
    """Groups in the order of their first runs; logs without a record are in none."""
    together: dict[str, list[tuple[MeasuredRun, RunRecord]]] = {}
    for item in found:
        if item.record is not None:
            together.setdefault(item.configuration + item.image, []).append((item, item.record))
    return [_group(items) for items in together.values()]


def _group(items: Sequence[tuple[MeasuredRun, RunRecord]]) -> Group:
    record = items[0][1]
    good = sorted(
        ((item, record, item.good) for item, record in items if item.good is not None), key=lambda run: run[1].created
    )
    first = _first_verdict(good)
    reference = first.reference if first else None
    able = [run for run in good if reference is None or (run[0].verdict and run[0].verdict.reference == reference)]
    judged = able[: look(len(able))] if reference else able  # what is not judged is not looked at
    times = [time for *_, time in judged]
    configuration = items[0][0].configuration
    scatter = items[0][0].past.scatter(configuration)
    earlier = items[0][0].earlier([record.paths.run_id for _, record, _ in judged])
    verdict = first if good else _why_none(items)
    if times and reference:
        verdict = judge_runs(
            record.plan,
            times,
            reference,
            scatter=scatter,
            earlier=earlier,
            waiting=[time for *_, time in able[len(judged) :]],
        )
    return Group(
        key=configuration_key(record.plan),
        title=title_of(record.plan),
        software=items[0][0].software,
        runs=tuple(record for _, record, _ in judged),
        seconds=tuple(time.seconds for time in times),
        others=len(items) - len(good),
        waiting=len(able) - len(judged),
        in_reference=len(good) - len(able),
        verdict=_with_training(verdict, [item for item, _ in items]),
        interval=math.expm1(level(times, scatter, earlier).half) if times else None,
        members=tuple(item for item, _ in items),
    )


def _with_training(verdict: Verdict | None, items: Sequence[MeasuredRun]) -> Verdict | None:
    """A configuration passes only if no run of it ended without having trained, or met NaN."""
    odd = [item.not_training for item in items if item.not_training]
    if verdict is None or not odd or len(odd) == len(items):
        return verdict
    return with_training(verdict, (f"{len(odd)} of {counted(len(items), 'run')}: {'; '.join(odd[0])}",))


def _why_none(items: Sequence[tuple[MeasuredRun, RunRecord]]) -> Verdict | None:
    """Of runs that succeeded, and that nothing can be said of together: none of them trained."""
    return next((item.verdict for item, _ in items if item.timing.status.state == "Success"), None)


def _first_verdict(good: Sequence[tuple[MeasuredRun, RunRecord, StepTime]]) -> Verdict | None:
    """Whose reference is the group's: a baseline's before a published one's, before a reason why there is none."""
    verdicts = [item.verdict for item, *_ in good if item.verdict is not None]
    baselines = [verdict for verdict in verdicts if verdict.reference and verdict.reference.kind == "baseline"]
    return next(iter([*baselines, *(verdict for verdict in verdicts if verdict.reference), *verdicts]), None)


GROUP: tuple[Column[Group], ...] = (
    Column("title", at("title"), ALL & ~Form.PAGE, "the configuration", "configuration"),
    Column("key", at("key"), DATA, "the same for the same work at the same place"),
    Column("software", at("software"), ALL & ~Form.PAGE, "container and engine", "software"),
    Column(
        "runs", lambda group: len(group.runs), ALL & ~Form.PAGE, "judged", "runs", spec="d", text=lambda it: _runs(it)
    ),
    Column("run_ids", lambda group: [record.paths.run_id for record in group.runs], Form.JSON, "judged"),
    Column("unsuccessful", at("others"), DATA, "runs without a step time"),
    Column("waiting", at("waiting"), DATA, "successful runs that count at the next look"),
    Column("in_reference", at("in_reference"), DATA, "runs that the reference is made of"),
    Column("step_seconds", at("mean"), ALL, "mean of the steady step times", *("steady step", "s", ".3f")),
    Column(
        "interval",
        at("interval"),
        ALL,
        f"half the {CONFIDENCE:.1%} interval of `step_seconds`, as a share of it",
        *("±", f"% ({CONFIDENCE:.1%})", ".1%"),
    ),
    Column("spread", at("spread"), ALL, "standard deviation between the runs, as a share", *("spread", "%", ".1%")),
    replace(REFERENCE, forms=ALL),
    *(
        replace(column, forms=column.forms | Form.PAGE if column is TOLERANCE else column.forms & ~Form.TABLE)
        for column in VERDICT
    ),
    Column(
        "verdict_text",
        lambda group: group.verdict.text if group.verdict else "no successful run",
        Form.JSON | TEXT,
        "the verdict in words",
        "verdict",
    ),
)


def group_view(groups: Sequence[Group]) -> View[Group]:
    """The table of ``--group``: a row for each configuration."""
    return View("groups", [as_dict(GROUP, item) for item in groups], GROUP, groups)


def group_remarks(items: Sequence[Group]) -> list[str]:
    """What a reader must know of runs that were judged together."""
    return [
        f"{item.title}: {text}"
        for item in items
        if item.verdict and item.verdict.decision
        for text in item.verdict.remarks
    ]


def _runs(item: Group) -> str:
    """How many, and what the others are."""
    others = [(item.others, "failed"), (item.waiting, "for the next look"), (item.in_reference, "in the baseline")]
    told = ", ".join(f"{count} {what}" for count, what in others if count)
    return f"{len(item.runs)}" + (f" ({told})" if told else "")


RULE = (
    "ordered by time per token and GPU; configurations share a place if the runs do not show them to be slower than "
    f"its first ({CONFIDENCE:.1%} interval of the ratio)"
)


@dataclass(frozen=True)
class Line:
    """One configuration. ``place`` None: no run has a time, ``outcome`` says why; ``shared``: others have it, too.

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


@dataclass(frozen=True)
class Board:
    """The configurations of the same work, but for the batch. ``names``: what they differ in."""

    title: str
    names: tuple[str, ...]
    lines: tuple[Line, ...]
    command: str
    """Of the fastest; empty where none has a time."""

    @property
    def columns(self) -> list[Column[Line]]:
        return _columns(self.names)


def boards(found: Sequence[MeasuredRun], place: Workspace) -> list[Board]:
    """One for each model with its sequence length, in the order of the first runs."""
    together: dict[str, list[Group]] = {}
    for item in map(_whole, group(found)):
        plan = _record(item).plan
        work = aspects(plan, "work") | {"gbs": None, "kind": plan.variant if plan.function else None}
        together.setdefault(json.dumps(work, sort_keys=True, default=str), []).append(item)
    return [_board(items, place) for items in together.values()]


def _whole(item: Group) -> Group:
    """With figures of all its runs: a verdict looks after fixed numbers of them, an order is of all."""
    good = {run.record.paths.run_id: run.good for run in item.members if run.record and run.good}
    if not good:
        return item
    first, times = item.members[0], [*good.values()]
    known = level(times, first.past.scatter(first.configuration), first.earlier([*good]))
    return replace(item, seconds=tuple(time.seconds for time in times), interval=math.expm1(known.half))


def _board(items: Sequence[Group], place: Workspace) -> Board:
    from llmb_run.starting.command_line import command_for  # of no other table

    records = [_record(item) for item in items]
    differing = told_apart([record.plan for record in records])
    if len({item.software for item in items if item.seconds}) > 1 and not {"image", "engine"} & differing.keys():
        differing["software"] = [item.software for item in items]
    lines = [Line(item, tuple(values[at] for values in differing.values())) for at, item in enumerate(items)]
    placed = ranked([contender for line in lines if (contender := _contender(line)) is not None])
    often = [place for _, place, _ in placed]
    without = [replace(line, outcome=_outcome(line.group.members)) for line in lines if not _times(line.group)]
    lines = [
        replace(item.of, place=place, shared=often.count(place) > 1, behind=behind, tokens=1 / item.seconds)
        for item, place, behind in placed
    ]
    first = _record(lines[0].group) if lines else None
    plan = records[0].plan
    same = len({kind_of_job(record.plan) for record in records}) == 1
    return Board(
        title=kind_of_job(plan) if same else f"{plan.recipe} {plan.model_size}",
        names=tuple(differing),
        lines=(*lines, *without),
        command=command_for(first.plan, place.workload(first.plan.workload).recipe) if first else "",
    )


def _record(item: Group) -> RunRecord:
    return next(run.record for run in item.members if run.record is not None)


def _times(item: Group) -> list[StepTime]:
    return [run.good for run in item.members if run.good is not None]


def _contender(line: Line) -> Contender | None:
    first, times = line.group.members[0], _times(line.group)
    scatter = first.past.scatter(first.configuration)
    return Contender(line, times, _record(line.group).plan.tokens_per_gpu, scatter) if times else None


def _outcome(members: Iterable[MeasuredRun]) -> str:
    """Why none of the runs has a time: ``out of memory``; each reason once."""
    found = dict.fromkeys(
        "not ended" if run.record and is_live(run.record.state) else (run.why.short if run.why else "") or run.unfit
        for run in members
    )
    return "; ".join(found)


def _columns(names: Sequence[str]) -> list[Column[Line]]:
    """``place``, the values that differ, and the figures."""
    figures = [column for column in GROUP if column.key in ("step_seconds", "interval", "spread")]
    return [
        Column("place", at("place"), ALL, "1 is the fastest", "place", text=_place),
        *(Column(name, _value(number), ALL & ~Form.JSON, "", name) for number, name in enumerate(names)),
        Column("runs", lambda line: sum(run.good is not None for run in line.group.members), ALL, "", "runs", spec="d"),
        *(_of_group(column) for column in figures),
        Column("tokens_per_second_per_gpu", at("tokens"), ALL, "", "tokens/s/GPU", spec=".0f"),
        Column("behind", lambda line: line.behind.ratio - 1 if line.behind else None, ALL, "", "behind", "%", ".1%"),
        Column("behind_low", lambda line: line.behind.low - 1 if line.behind else None, DATA),
        Column("behind_high", lambda line: line.behind.high - 1 if line.behind else None, DATA),
        Column("memory_gib", _memory, ALL, "", "memory", "GiB", ".1f", optional=True),
        Column("outcome", _failed, ALL, "", "outcome", optional=True),
        Column("run_ids", lambda line: [run.record.paths.run_id for run in line.group.members if run.record], DATA),
    ]


def _of_group(column: Column[Group]) -> Column[Line]:
    return Column(
        column.key, lambda line: column.value(line.group), ALL, column.means, column.head, column.unit, column.spec
    )


def _value(number: int) -> Any:
    return lambda line: line.values[number]


def _place(line: Line) -> str:
    return "-" if line.place is None else f"{line.place}{'=' if line.shared else ''}"


def _memory(line: Line) -> float | None:
    return max((run.memory_gib for run in line.group.members if run.memory_gib), default=None)


def _failed(line: Line) -> str | None:
    """Of those without a time why; of others what became of runs that have none."""
    others = [run for run in line.group.members if run.good is None]
    if line.place is None or not others:
        return line.outcome or None
    return f"{len(others)} of {counted(len(line.group.members), 'run')}: {_outcome(others)}"


def ranking_text(found: Sequence[Board]) -> str:
    """The tables of ``--rank``, one for each model."""
    if not found:
        return "no run is of a configuration\n"
    return "\n".join([*(_text(board) for board in found), f"{RULE}\n"])


def _text(board: Board) -> str:
    ties = sum(line.shared and line.place == 1 for line in board.lines)
    tie = f" ({counted(ties, 'configuration')} share the first place)" if ties else ""
    fastest = f"fastest{tie}: {board.command}\n" if board.command else "none has a time\n"
    return f"{board.title}: {counted(len(board.lines), 'configuration')}\n{table(board.columns, board.lines)}{fastest}"


def ranking_as_dict(found: Sequence[Board]) -> list[dict[str, Any]]:
    """The rankings as JSON values, in seconds and shares."""
    return [
        {
            "title": board.title,
            "differing": list(board.names),
            "lines": [
                {"values": dict(zip(board.names, line.values, strict=True)), **as_dict(board.columns, line)}
                for line in board.lines
            ],
            "command": board.command or None,
        }
        for board in found
    ]


def ranking_csv(found: Sequence[Board]) -> str:
    """For programs: the boards one after the other, each with a header."""
    return "\n".join(csv_of(board.columns, board.lines) for board in found)
