"""One configuration over time: each run by date, what of software, image or machines changed before it, and since when
steps take more or less time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

from llmb_common.results.change_point import REPORT_RATE, LevelChange, day_prior, level_changes, standing
from llmb_common.results.comparison import EVIDENCE, facts
from llmb_common.results.configuration import configuration_key, image_marks, software_of, title_of
from llmb_common.results.estimate import StepTime
from llmb_common.results.scatter import STATED, Scatter
from llmb_common.runs.record import RunRecord

_EVERY_RUN_DIFFERS = {"hosts"}
"""Which nodes a scheduler chooses is not a change of the system."""


@dataclass(frozen=True)
class Changed:
    """A fact that is not what it was in the run before; ``-`` where one of the two does not know it."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class Moment:
    """One successful run, begun at ``started`` (Unix time); ``seconds`` a step, with its standard error."""

    run_id: str
    started: float
    day: str
    software: str
    seconds: float
    error: float
    changes: tuple[Changed, ...] = ()


@dataclass(frozen=True)
class Shift:
    """From the run ``run_id`` on, begun at ``since``, steps take ``ratio`` times as long; bounds as of a verdict.

    The change may as well lie between the days of ``earliest`` and ``latest`` (Unix time).
    """

    run_id: str
    since: float
    ratio: float
    low: float
    high: float
    earliest: float
    latest: float
    stands: bool
    """Whether it is the last change to the worse of which no more than half has been undone since."""
    changed: tuple[Changed, ...]
    """What changed then, or in the days in which it may lie, and stayed."""


@dataclass(frozen=True)
class History:
    """``moments`` by date, at least one; ``shifts`` are the changes of level, in order."""

    key: str
    title: str
    moments: tuple[Moment, ...]
    shifts: tuple[Shift, ...] = ()

    @property
    def days(self) -> int:
        """The number of days on which the configuration was run."""
        return len(_days(self.moments))


def histories(
    runs: Iterable[tuple[RunRecord, StepTime]],
    rate: float = REPORT_RATE,
    scatter_of: Callable[[RunRecord], Scatter] = lambda _: STATED,
) -> list[History]:
    """One for each configuration, in the order of the first runs.

    ``rate`` is how often there may be a shift where nothing changed; ``scatter_of`` says how repeats of a run differ.
    """
    together: dict[str, list[tuple[RunRecord, StepTime]]] = {}
    for record, measured in runs:
        together.setdefault(configuration_key(record.plan), []).append((record, measured))
    found = []
    for key, items in together.items():
        items.sort(key=lambda item: item[0].started)
        moments, seen = zip(*_moments(items), strict=True)
        found.append(
            History(key, title_of(items[0][0].plan), moments, _shifts(moments, seen, rate, scatter_of(items[-1][0])))
        )
    return found


def _moments(items: Iterable[tuple[RunRecord, StepTime]]) -> Iterable[tuple[Moment, tuple[Changed, ...]]]:
    """Each with what changed since whichever run knew: what a run's nodes do not tell is as the last one knew it."""
    before: dict[str, str] | None = None
    known: dict[str, str] = {}
    items = list(items)
    marks = image_marks([record for record, _ in items])
    for (record, measured), mark in zip(items, marks, strict=True):
        now = facts(record)
        changes, seen = ((), ()) if before is None else (_changes(before, now), _changes(known, now))
        when, times = (record.started, record.day), (measured.seconds, measured.error)
        yield Moment(record.paths.run_id, *when, software_of(record) + mark, *times, changes), seen
        before = now
        known = {name: value for name, value in known.items() if name in EVIDENCE} | now


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[Changed, ...]:
    return tuple(
        Changed(name, before.get(name, "-"), now.get(name, "-"))
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name)
        and name not in _EVERY_RUN_DIFFERS
        and not (name in EVIDENCE and (name not in before or name not in now))
    )


def _days(moments: Sequence[Moment]) -> list[int]:
    """Where in ``moments`` each day with runs begins."""
    days = [moment.day for moment in moments]
    return [at for at, day in enumerate(days) if at == 0 or day != days[at - 1]]


_Seen: TypeAlias = Sequence[tuple[Changed, ...]]
"""What changed with each moment."""


def _shifts(moments: Sequence[Moment], seen: _Seen, rate: float, scatter: Scatter) -> tuple[Shift, ...]:
    starts = _days(moments)
    edges = [*starts, len(moments)]
    means = [fmean(math.log(moment.seconds) for moment in moments[a:b]) for a, b in itertools.pairwise(edges)]
    changes = level_changes(means, day_prior(scatter, [b - a for a, b in itertools.pairwise(edges)]), rate)
    last = standing(means, changes)
    found = []
    for place, change in enumerate(changes):
        # What the change before or after this one undid was another value for as long as this level lasted.
        start = min(changes[place - 1].latest, change.at - 1) if place else 0
        end = max(changes[place + 1].earliest, change.at + 1) if place + 1 < len(changes) else len(starts)
        level = range(edges[start] + 1, edges[end])
        found.append(_shift(moments, edges, change, _coinciding(seen, edges, change, level), stands=change is last))
    return tuple(found)


def _shift(
    moments: Sequence[Moment], edges: Sequence[int], change: LevelChange, changed: tuple[Changed, ...], *, stands: bool
) -> Shift:
    """``edges`` are where the days begin, and the end."""
    first = moments[edges[change.at]]
    return Shift(
        run_id=first.run_id,
        since=first.started,
        ratio=math.exp(change.shift),
        low=math.exp(change.shift - change.reach),
        high=math.exp(change.shift + change.reach),
        earliest=moments[edges[change.earliest]].started,
        latest=moments[edges[change.latest]].started,
        stands=stands,
        changed=changed,
    )


def _coinciding(seen: _Seen, edges: Sequence[int], change: LevelChange, level: range) -> tuple[Changed, ...]:
    """What changed with the first run after the change, else in the days in which it may lie, and stayed so."""
    around = range(edges[change.earliest - 1] + 1, edges[change.latest + 1])
    for places in (range(edges[change.at], edges[change.at] + 1), around):
        found = [item for at in places for item in seen[at] if _stayed(seen, level, at, item)]
        if found:
            return tuple(found)
    return ()


def _stayed(seen: _Seen, level: range, at: int, change: Changed) -> bool:
    """Whether all runs of ``level`` before ``at`` lack the new value, all later ones the old one.

    What changed with the runs before and after too is another in every run, and explains nothing.
    """
    named = [(place, item) for place in level for item in seen[place] if item.name == change.name]
    before = {value for place, item in named if place < at for value in (item.before, item.after)}
    after = {value for place, item in named if place > at for value in (item.before, item.after)}
    restless = {at - 1, at + 1} <= {place for place, _ in named}
    return not restless and change.after not in before and change.before not in after
