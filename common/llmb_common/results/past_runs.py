"""The step times on record at this site, by configuration: what they say of how runs differ."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property
from typing import NamedTuple

from llmb_common.results.estimate import StepTime
from llmb_common.results.scatter import Scatter, learn

_MANY = 50
"""Configurations of which one more or less changes nothing."""


class PastRun(NamedTuple):
    """A successful run, measured as documented; ``configuration`` with its software, as ``configuration_of`` has it."""

    configuration: str
    run_id: str
    time: StepTime


class PastRuns:
    """Every run once, whoever has it."""

    def __init__(self, runs: Iterable[PastRun] = ()) -> None:
        self._by_configuration: dict[str, dict[str, StepTime]] = {}
        for run in runs:
            self._by_configuration.setdefault(run.configuration, {})[run.run_id] = run.time
        self._scatter: dict[str, Scatter] = {}

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

    def others(self, configuration: str, than: Collection[str]) -> list[StepTime]:
        """The configuration's runs but those with these ids."""
        known = self._by_configuration.get(configuration, {})
        return [time for run_id, time in known.items() if run_id not in than]
