"""The step times on record at this site, by configuration: what they say of how runs differ."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable
from functools import cached_property
from typing import NamedTuple

from llmb_common.results.estimate import StepTime
from llmb_common.results.scatter import Scatter, Squares, batches, learn

_MANY = 50
"""Configurations of which one more or less changes nothing."""

_NEWEST = 40
"""Runs of a configuration that say how it scatters: systems change."""


class PastRun(NamedTuple):
    """A successful run, measured as documented; ``configuration`` with its software, as ``configuration_of`` has it."""

    configuration: str
    run_id: str
    time: StepTime


class PastRuns:
    """Every run once, whoever has it; the newest of a configuration come first."""

    def __init__(self, runs: Iterable[PastRun] = ()) -> None:
        self._by_configuration: dict[str, dict[str, StepTime]] = {}
        for run in runs:
            self._by_configuration.setdefault(run.configuration, {})[run.run_id] = run.time
        self._scatter: dict[str, Scatter] = {}
        self._sums: dict[str, _Sums] = {}

    def scatter(self, configuration: str) -> Scatter:
        """What the other configurations say, without this one's own runs: those speak for themselves."""
        if len(self._by_configuration) > _MANY:
            return self._of_all
        if configuration not in self._scatter:
            others = [runs for key, runs in self._by_configuration.items() if key != configuration]
            self._scatter[configuration] = learn(list(runs.values()) for runs in others)
        return self._scatter[configuration]

    @cached_property
    def _of_all(self) -> Scatter:
        return learn(list(runs.values()) for runs in self._by_configuration.values())

    def others(self, configuration: str, than: Collection[str]) -> Squares:
        """How the configuration's runs but those with these ids differ."""
        if configuration not in self._sums:
            known = self._by_configuration.get(configuration, {})
            self._sums[configuration] = _Sums(dict(itertools.islice(known.items(), _NEWEST)))
        return self._sums[configuration].without(than)


class _Batch(NamedTuple):
    """Sums over the logarithms of a batch's runs."""

    runs: int
    total: float
    squares: float

    def less(self, logs: Collection[float]) -> _Batch:
        squares = self.squares - math.fsum(log * log for log in logs)
        return _Batch(self.runs - len(logs), self.total - math.fsum(logs), squares)

    @property
    def mean(self) -> float:
        return self.total / self.runs

    @property
    def within(self) -> float:
        return max(self.squares - self.total * self.mean, 0.0)


class _Sums:
    """``squares`` of a configuration's ``batches`` without some of its runs, cheaply: each run is judged by the others.

    Logarithms are taken from the first run's, so that their squares lose no digits.
    """

    def __init__(self, runs: dict[str, StepTime]) -> None:
        first = next(iter(runs.values())).log if runs else 0.0
        names = {id(time): run_id for run_id, time in runs.items()}
        groups = [[(names[id(time)], time.log - first) for time in batch] for batch in batches(list(runs.values()))]
        self._place = {run_id: (at, log) for at, group in enumerate(groups) for run_id, log in group}
        logs = [[log for _, log in group] for group in groups]
        self._batches = [_Batch(len(own), math.fsum(own), math.fsum(log * log for log in own)) for own in logs]

    def without(self, run_ids: Collection[str]) -> Squares:
        removed = [self._place[run_id] for run_id in set(run_ids) if run_id in self._place]
        left = list(self._batches)
        for at in Counter(at for at, _ in removed):
            left[at] = left[at].less([log for place, log in removed if place == at])
        left = [batch for batch in left if batch.runs]
        if not left:
            return Squares()
        means = [batch.mean for batch in left]
        centre = math.fsum(means) / len(means)
        return Squares(
            math.fsum(batch.within for batch in left),
            sum(batch.runs for batch in left) - len(left),
            math.fsum((mean - centre) ** 2 for mean in means),
            len(left) - 1,
            math.fsum(1 / batch.runs for batch in left) / len(left),
        )
