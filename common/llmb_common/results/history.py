"""One configuration over time: each run by date, what of software, image or machines changed before it, and since when
steps take more or less time.

A change of level is the largest two-sample t over all splits of the series of day means (Bonferroni over the splits).
Days, not runs: runs of one day share more than a configuration, and would count for more than they are. The scatter is
that of the two sides, pooled with a prior and never below their own; days that follow each other more than chance would
have it widen it (first-order autoregressive). A side of a few days counts only if each of them lies beyond half of the
change: one bad day is none.

A level that rose and fell again has no single split. So the last two thirds of the series are searched too, two thirds
of these, and so on; half of the error rate is the whole series', half theirs. Both sides of a change are searched
again. ``docs/benchmarks.md`` has the simulation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple, TypeAlias

from llmb_common.base.statistics import summed_degrees, t_quantile, t_tail
from llmb_common.results.comparison import EVIDENCE, facts
from llmb_common.results.configuration import RunImage, configuration_of, image_marks, image_of, title_of
from llmb_common.results.level import ERROR_RATE, SETTLED
from llmb_common.results.scatter import STATED, Scatter
from llmb_common.results.steps import StepTime
from llmb_common.runs.record import RunRecord

REPORT_RATE = 0.01
"""How often a history without a change is said to have one, at most."""

ALARM_RATE = 0.002
"""The error rate of an alarm, which looks again after each day."""

LEAST_DAYS = 4
"""Days before which nothing is looked for: two on each side."""

_LEAST = LEAST_DAYS // 2
_FEW = 4  # days of a side, up to which each must agree
_SHORTEST = 8  # days of a part of the series; and below which autocorrelation cannot be told
_SHARE = 2 / 3  # of a part that the next one has
_STRONGEST_CORRELATION = 0.8
_DOUBT = 0.5  # standard errors of the correlation that are added: halves the false alarms of correlated days
_AS_GOOD = 6.0  # in variances: splits whose squares are that close may as well be the true one

_STATED_DEGREES = 2.0
"""A history shows how its days scatter: what is only stated of them counts for no more."""


class Prior(NamedTuple):
    """What is known beforehand of how the means of days scatter; ``day_prior`` makes it.

    ``deviation`` is their standard deviation, as a share of the step time (0.02: 2 %), and ``degrees`` the degrees of
    freedom that this counts for, about as many days.
    """

    deviation: float
    degrees: float


_NOTHING_KNOWN = Prior(0.0, 0.0)
"""Days by themselves."""


def day_prior(scatter: Scatter, runs: Sequence[int]) -> Prior:
    """Return what ``scatter`` says of how the means of days scatter.

    ``runs`` has the number of runs of each day, at least 1 each, for at least one day. What is only stated counts for
    two days at most.
    """
    day = scatter.day**2
    run = scatter.run**2 * fmean(1 / count for count in runs)
    degrees = summed_degrees(day, scatter.day_degrees, run, scatter.run_degrees)
    return Prior(math.sqrt(day + run), degrees if scatter.learned else min(degrees, _STATED_DEGREES))


@dataclass(frozen=True)
class LevelChange:
    """One lasting change in a series of days: from day ``at`` on (a position from 0), values are larger by ``shift``.

    Values are natural logarithms of step times, so a positive ``shift`` is slower, and ``shift`` and ``reach`` are
    logarithms of ratios. The change may as well lie at any position from ``earliest`` to ``latest``, both included.
    ``level_changes`` makes it.
    """

    at: int
    shift: float
    reach: float
    """Half the interval, which leaves out the truth in as many cases as a verdict's."""
    earliest: int
    """The first position of a day from which on the new level may hold; never after ``at``."""
    latest: int
    """The last position of a day from which on the new level may hold; never before ``at``."""


class _Split(NamedTuple):
    """A series of days cut in two before position ``at``: ``shift`` is the second part's mean less the first one's.

    ``at`` counts from 0, and either part has at least two days. The days' values, and so ``shift``, are natural
    logarithms of step times. ``_splits`` makes it.
    """

    at: int
    shift: float
    squares: float
    """Sum of the squared deviations of the days from the mean of their side."""


def level_changes(days: Sequence[float], prior: Prior, rate: float = REPORT_RATE) -> tuple[LevelChange, ...]:
    """Return every lasting change of level in a series of days, in order; empty where none is certain.

    Each side of a change has at least two days, so fewer than four days have none.

    Args:
        days: for each day the mean natural logarithm of its step times, in order
        prior: what is known beforehand of how days scatter
        rate: how often a series in which nothing changed may be said to have a change
    """
    edges = [0, *_change_positions(days, prior, rate), len(days)]
    return tuple(
        _level_change(days[before:after], at - before, before, prior)
        for before, at, after in zip(edges, edges[1:], edges[2:], strict=False)
    )


def standing(days: Sequence[float], changes: Sequence[LevelChange]) -> LevelChange | None:
    """Return the last of ``changes`` that made steps slower and of which at most half has been undone since.

    None where there is none. ``days`` are the means of the days' logarithms, in order, and ``changes`` their
    ``level_changes``.
    """
    edges = [0, *(change.at for change in changes)]
    now = fmean(days[edges[-1] :]) if days else 0.0
    for before, change in reversed(list(zip(edges, changes, strict=False))):
        if change.shift <= 0:
            continue
        earlier = fmean(days[before : change.at])
        if now - earlier >= change.shift / 2:
            return change
    return None


def _change_positions(days: Sequence[float], prior: Prior, rate: float) -> list[int]:
    """Return the positions of all changes of level in ``days``, in order; both sides of a change are searched again.

    A position is that of the new level's first day, from 0. Empty: no change is certain. ``days`` are the days'
    mean natural logarithms in order, may be none, and are not changed; ``prior`` and ``rate`` are those of
    ``level_changes``.
    """
    at = _likeliest_change(days, prior, rate)
    if at is None:
        return []
    return [
        *_change_positions(days[:at], prior, rate),
        at,
        *(at + edge for edge in _change_positions(days[at:], prior, rate)),
    ]


def _likeliest_change(days: Sequence[float], prior: Prior, rate: float) -> int | None:
    """Return the position in ``days`` of the likeliest change of level; None where none is certain.

    It is that of the new level's first day, from 0. ``days`` are the days' mean natural logarithms in order;
    ``prior`` and ``rate`` are those of ``level_changes``. The change is sought in the whole series and in its last
    parts. Not certain: the chance to be mere scatter is above ``rate``. None also for fewer than four days.
    """
    found = []
    for size, share in _searched_lengths(len(days)):
        part = days[len(days) - size :]
        if split := _strongest(part, prior):
            widening = _autocorrelation_factor(part, split.at)
            splits = size - 2 * _LEAST + 1
            # Of such a split, or a stronger one anywhere, where nothing changed.
            t = abs(split.shift) / (_shift_error(split, size, prior) * widening)
            chance = 2 * splits * t_tail(t, prior.degrees + size - 2)
            if _needs_no_prior(split.at, size):
                # Two tests of the same days: this one has half of the other's rate beside it.
                t = abs(split.shift) / (_shift_error(split, size, _NOTHING_KNOWN) * widening)
                chance = min(chance, 2 * 2 * splits * t_tail(t, size - 2.0))
            found.append((chance / share, len(days) - size + split.at))
    chance, at = min(found, default=(1.0, 0))
    return at if chance <= rate else None


def _searched_lengths(count: int) -> list[tuple[int, float]]:
    """Return the (length, share of the error rate) of each part of a series of ``count`` days that is searched.

    All parts end with the last day; the first is the whole series, and the others are ever shorter, down to eight days.
    The shares add up to 1. Empty for fewer than four days.
    """
    if count < LEAST_DAYS:
        return []
    sizes = [count]
    while (shorter := int(sizes[-1] * _SHARE)) >= _SHORTEST:
        sizes.append(shorter)
    shorter_sizes = sizes[1:]
    if not shorter_sizes:
        return [(count, 1.0)]
    share = 0.5 / len(shorter_sizes)
    return [(count, 0.5), *((size, share) for size in shorter_sizes)]


def _splits(values: Sequence[float]) -> Iterator[_Split]:
    """Yield every way to cut the series in two with at least two days a side; nothing for fewer than four days.

    ``values`` are the days' mean logarithms, in order, at least one. The cuts come in the order of ``at``.
    """
    first = values[0]
    sums = list(itertools.accumulate(value - first for value in values))
    squares = math.fsum((value - first) ** 2 for value in values)
    total = sums[-1]
    count = len(values)
    for at in range(_LEAST, count - _LEAST + 1):
        before, after = sums[at - 1], total - sums[at - 1]
        rest = squares - before * before / at - after * after / (count - at)
        yield _Split(at, after / (count - at) - before / at, max(rest, 0.0))


def _strongest(values: Sequence[float], prior: Prior) -> _Split | None:
    """Return the split with the largest Student's t of those whose shorter side agrees (``_side_agrees``).

    ``values`` has at least one day; ``prior`` says beforehand how days scatter. None where no split agrees, or there
    are fewer than four days.
    """
    best, largest = None, 0.0
    for split in _splits(values):
        t = abs(split.shift) / _shift_error(split, len(values), prior)
        if t > largest and _side_agrees(values, split):
            best, largest = split, t
    return best


def _shift_error(split: _Split, count: int, prior: Prior) -> float:
    """Return the standard error of a split's shift in a series of ``count`` days, taken as independent.

    It is a natural logarithm, as the shift is. ``prior`` is what is known beforehand of how days scatter: it is
    pooled with the squares of ``split`` (``_day_variance``).
    """
    variance = _day_variance(split, count, prior)
    return math.sqrt(variance * (1 / split.at + 1 / (count - split.at)))


def _day_variance(split: _Split, count: int, prior: Prior) -> float:
    """Return the variance of a day around the mean of its side of a split, in a series of ``count`` days.

    ``split`` is one of that series. The variance is of natural logarithms; ``count`` is four or more. It is pooled
    with ``prior``, what is known beforehand of that scatter, and in a series of more than six days it is never
    below what these days show.
    """
    degrees, own = prior.degrees + count - 2, split.squares / (count - 2)
    pooled = (prior.degrees * prior.deviation**2 + split.squares) / degrees
    return max(pooled, own if count > 6 else 0.0, 1e-24)


def _side_agrees(values: Sequence[float], split: _Split) -> bool:
    """Return whether each day of a split's shorter side is off the other side's mean as the shift says.

    ``values`` are the days' mean logarithms, in order, and ``split`` is one of these. Each must be off by half of
    the shift or more. True without a look where the shorter side has more than four days.
    """
    early = 2 * split.at < len(values)
    before, after = values[: split.at], values[split.at :]
    short, other = (before, after) if early else (after, before)
    if len(short) > _FEW:
        return True
    level = fmean(other)
    # The days after a rise lie above the others, those before it below.
    way = -1 if early else 1
    side = way if split.shift > 0 else -way
    nearest = min((value - level) * side for value in short)
    return nearest >= abs(split.shift) / 2


def _needs_no_prior(at: int, count: int) -> bool:
    """Return whether a series of ``count`` days has at least five (``SETTLED``) on either side of position ``at``.

    So many show how days scatter, without a prior.
    """
    return min(at, count - at) >= SETTLED


def _autocorrelation_factor(values: Sequence[float], at: int) -> float:
    """Return the factor, at least 1, by which autocorrelation of the days widens the error of a shift at ``at``.

    ``values`` are the days' mean logarithms, in order, and ``at`` is the position of the first day after the shift:
    from 1 to the last. It is 1 for a series of fewer than eight days.
    """
    count = len(values)
    if count < _SHORTEST:
        return 1.0
    levels = fmean(values[:at]), fmean(values[at:])
    rest = [value - levels[day >= at] for day, value in enumerate(values)]
    products = math.fsum(a * b for a, b in itertools.pairwise(rest))
    squares = math.fsum(x * x for x in rest)
    raw = products / max(squares, 1e-24)
    # Kendall: around estimated means, raw falls short of the truth by (1 + 4 rho) / n. Its own error is 1 / sqrt(n).
    likely = raw + (1 + 4 * raw) / count + _DOUBT / math.sqrt(count)
    correlation = min(max(likely, 0.0), _STRONGEST_CORRELATION)
    return math.sqrt((1 + correlation) / (1 - correlation))


def _level_change(values: Sequence[float], at: int, offset: int, prior: Prior) -> LevelChange:
    """Return the change of level at position ``at`` of ``values``, which are the days of the two levels around it.

    ``at`` leaves two days on either side. ``offset`` is the position of the first of these days in the whole
    series, and the result's positions are of that series. ``prior`` is what is known beforehand of how days
    scatter.
    """
    splits = {split.at: split for split in _splits(values)}
    split, count = splits[at], len(values)
    widening = _autocorrelation_factor(values, at)
    error = _shift_error(split, count, prior)
    reach = t_quantile(ERROR_RATE, prior.degrees + count - 2) * error * widening
    if reach >= abs(split.shift) and _needs_no_prior(at, count):
        error = _shift_error(split, count, _NOTHING_KNOWN)
        reach = t_quantile(ERROR_RATE, count - 2.0) * error * widening
    limit = split.squares + _AS_GOOD * _day_variance(split, count, prior)
    # Other splits that fit about as well, and go the same way.
    same_way = [other for other in splits.values() if other.shift * split.shift > 0]
    near = [other.at for other in same_way if other.squares <= limit]
    return LevelChange(offset + at, split.shift, reach, offset + min(near), offset + max(near))


@dataclass(frozen=True)
class Changed:
    """A fact of a run (``driver``) that differs from an earlier run's; ``-``: the value is not known.

    ``name`` is that of ``history_facts``, ``before`` and ``after`` are its values as text in the earlier and in this
    run. ``histories`` finds it.
    """

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class DatedRun:
    """One successful run in the history of a configuration.

    ``started`` is a Unix time, ``day`` its day (YYYY-MM-DD, by ``RunRecord.day``); ``seconds`` is the steady step
    time and ``error`` its standard error, both in seconds. ``software`` is that of ``software_of``, with a mark behind
    it where several images have that name: ``nemo:26.02 (sha256:1a2b3c4d5e6f)``. ``changes`` are the facts that differ
    from the run before; empty: none does, or it is the first run. ``histories`` makes it.
    """

    run_id: str
    started: float
    day: str
    software: str
    seconds: float
    error: float
    changes: tuple[Changed, ...] = ()


@dataclass(frozen=True)
class Shift:
    """A lasting change in a configuration's history: from run ``run_id`` on, steps take ``ratio`` times as long.

    Above 1 they are slower. ``low`` and ``high`` bound the ratio at a verdict's confidence (97.7 %). ``since`` is when
    that run, the first of its day, began; the change may as well lie anywhere from the day of ``earliest`` to that of
    ``latest``, which are the starts of these days' first runs. All three are Unix times. ``histories`` finds it.
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
    """What changed with that run and stayed, else what did in the days in which the change may lie.

    Empty: nothing that is known.
    """


@dataclass(frozen=True)
class History:
    """One configuration over time: its runs by date, at least one, and the lasting changes of step time among them.

    ``key`` is the ``configuration_key`` and ``title`` the line that names it (``title_of``). ``moments`` are the runs
    and ``shifts`` the changes, both the oldest first. The property ``days`` is the number of days with runs.
    ``histories`` makes it.
    """

    key: str
    title: str
    moments: tuple[DatedRun, ...]
    shifts: tuple[Shift, ...] = ()

    @property
    def days(self) -> int:
        """The number of days on which the configuration was run."""
        return len(_day_starts(self.moments))


class Observed(NamedTuple):
    """What a history keeps of one run; little, as there may be thousands.

    ``configuration`` is that of ``configuration_of``, ``title`` that of ``title_of``, ``started`` a Unix time,
    ``day`` its day (YYYY-MM-DD), ``image`` that of ``image_of``, ``time`` the step time. ``facts`` are those of
    ``history_facts``; runs with the same ones may share one mapping. ``observed`` makes it.
    """

    run_id: str
    configuration: str
    title: str
    started: float
    day: str
    image: RunImage
    time: StepTime
    facts: Mapping[str, str]


def observed(record: RunRecord, measured: StepTime) -> Observed:
    """Return what a history keeps of the run of ``record``, whose step time is ``measured``.

    It may read the run's folder and log; what cannot be read is left out of the facts.
    """
    return Observed(
        run_id=record.paths.run_id,
        configuration=configuration_of(record),
        title=title_of(record.plan),
        started=record.started,
        day=record.day,
        image=image_of(record),
        time=measured,
        facts=history_facts(record),
    )


def history_facts(record: RunRecord) -> dict[str, str]:
    """Return the ``facts`` of a run without host names: which nodes a job gets is no change of the system."""
    return {name: value for name, value in facts(record).items() if name != "hosts"}


def histories(
    runs: Iterable[Observed],
    rate: float = REPORT_RATE,
    scatter_of: Callable[[str], Scatter] = lambda _: STATED,
) -> list[History]:
    """Return a history for each configuration among ``runs``, in the order in which ``runs`` has them first.

    Runs of one configuration with different software share a history, whose title is that of its first run by date.
    A run that is given twice counts twice. Empty: no runs.

    Args:
        runs: in any order
        rate: how often a history without a change may be said to have one, as a probability
        scatter_of: tells how much repeats differ, by the text of ``configuration_of``; it is asked once for each
            history, with the text of its newest run
    """
    together: dict[str, list[Observed]] = {}
    for run in runs:
        # Without the software: another release is a change within the history.
        together.setdefault(run.configuration.partition(" ")[0], []).append(run)
    found = []
    for key, items in together.items():
        items.sort(key=lambda item: item.started)
        moments, seen = zip(*_dated_runs(items), strict=True)
        shifts = _level_shifts(moments, seen, rate, scatter_of(items[-1].configuration))
        found.append(History(key, items[0].title, moments, shifts))
    return found


def _dated_runs(items: Sequence[Observed]) -> Iterable[tuple[DatedRun, tuple[Changed, ...]]]:
    """Yield (run, facts that changed since they were last known) for each of ``items``, which are in order of date.

    The run's own ``changes`` are against the run before it; a fact that the nodes of one of the two did not tell is
    in neither. The second item is against the last run that told each fact, so that it also has what changed while
    nodes did not tell it. The first run has no changes of either kind.
    """
    before: Mapping[str, str] | None = None
    known: Mapping[str, str] = {}
    marks = image_marks([item.image for item in items])
    for item, mark in zip(items, marks, strict=True):
        now = item.facts
        changes: tuple[Changed, ...] = ()
        seen: tuple[Changed, ...] = ()
        if before is not None:
            changes = _changed_facts(before, now)
            seen = _changed_facts(known, now)
        software = item.configuration.partition(" ")[2] + mark
        time = item.time
        run = DatedRun(item.run_id, item.started, item.day, software, time.seconds, time.error, changes)
        yield run, seen
        if before is not now:
            # What nodes tell is remembered across runs whose nodes did not tell it.
            evidence = {name: value for name, value in known.items() if name in EVIDENCE}
            known = evidence | dict(now)
        before = now


def _changed_facts(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[Changed, ...]:
    """Return the facts that differ between two runs; what nodes tell counts only where both runs have it.

    That is the facts in ``EVIDENCE``; any other fact that one run lacks is ``-`` there. Those of ``before`` come first;
    empty: none differs.
    """
    if before is now:
        return ()
    return tuple(
        Changed(name, before.get(name, "-"), now.get(name, "-"))
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name) and not (name in EVIDENCE and (name not in before or name not in now))
    )


def _day_starts(moments: Sequence[DatedRun]) -> list[int]:
    """Return the positions in ``moments``, runs in order of date, at which a new day begins; the first is 0.

    Empty where there are no runs.
    """
    days = [moment.day for moment in moments]
    return [at for at, day in enumerate(days) if at == 0 or day != days[at - 1]]


_Seen: TypeAlias = Sequence[tuple[Changed, ...]]
"""What changed with each run."""


def _level_shifts(moments: Sequence[DatedRun], seen: _Seen, rate: float, scatter: Scatter) -> tuple[Shift, ...]:
    """Return the lasting changes of step time among the runs, in order, with the facts that changed as well.

    ``moments`` are at least one run, in order of date; ``seen`` has, for each, the facts that changed with it. Facts
    count only if they stayed as long as the new level. ``rate`` is how often a history without a change may be said to
    have one, ``scatter`` how much repeats differ.
    """
    starts = _day_starts(moments)
    edges = [*starts, len(moments)]
    days = [moments[begin:end] for begin, end in itertools.pairwise(edges)]
    means = [_mean_log(day) for day in days]
    changes = level_changes(means, day_prior(scatter, [len(day) for day in days]), rate)
    last = standing(means, changes)
    found = []
    for number, change in enumerate(changes):
        # What the change before or after this one undid was another value for as long as this level lasted.
        start = changes[number - 1].latest if number else 0
        end = changes[number + 1].earliest if number + 1 < len(changes) else len(starts)
        level = range(edges[start] + 1, edges[end])
        first = moments[edges[change.at]]
        shift = Shift(
            run_id=first.run_id,
            since=first.started,
            ratio=math.exp(change.shift),
            low=math.exp(change.shift - change.reach),
            high=math.exp(change.shift + change.reach),
            earliest=moments[edges[change.earliest]].started,
            latest=moments[edges[change.latest]].started,
            stands=change is last,
            changed=_coinciding_changes(seen, edges, change, level),
        )
        found.append(shift)
    return tuple(found)


def _mean_log(moments: Sequence[DatedRun]) -> float:
    """Return the mean natural logarithm of the runs' steady step times in seconds; there is at least one run."""
    return fmean(math.log(moment.seconds) for moment in moments)


def _coinciding_changes(seen: _Seen, edges: Sequence[int], change: LevelChange, level: range) -> tuple[Changed, ...]:
    """Return the facts that changed with the first run after ``change`` and stayed so on both sides.

    Where there are none, those that changed in the days in which the change may lie; empty: none did. ``seen`` has, for
    each run in order of date, the facts that changed with it. ``edges`` are the positions of runs at which days begin,
    and the number of runs; ``level`` the positions of the runs of both levels.
    """
    around = range(edges[change.earliest - 1] + 1, edges[change.latest + 1])
    for runs in ([edges[change.at]], around):
        found = []
        for at in runs:
            found += [item for item in seen[at] if _separates_levels(seen, level, at, item)]
        if found:
            return tuple(found)
    return ()


def _separates_levels(seen: _Seen, level: range, at: int, change: Changed) -> bool:
    """Return whether ``change`` separates two levels: earlier runs lack its new value, later ones the old.

    ``seen`` has, for each run in order of date, the facts that changed with it. ``level`` are the positions of the runs
    looked at, ``at`` the one with the change. False for a fact that changed with the runs before and after, too: it is
    another in every run, and explains nothing.
    """
    named: set[int] = set()
    before: set[str] = set()
    after: set[str] = set()
    for run in level:
        for item in seen[run]:
            if item.name != change.name:
                continue
            named.add(run)
            if run < at:
                before.update([item.before, item.after])
            elif run > at:
                after.update([item.before, item.after])
    restless = {at - 1, at + 1} <= named
    return not restless and change.after not in before and change.before not in after
