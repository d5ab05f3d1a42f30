"""One configuration over time: every run by date, and what of software, image or machines changed in between."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llmb_common.results.baselines import title_of
from llmb_common.results.comparison import EVIDENCE, facts
from llmb_common.results.configuration import configuration_key, software_of
from llmb_common.results.estimate import StepTime
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
    """One successful run; ``seconds`` a step, with its standard error."""

    run_id: str
    created: float
    software: str
    seconds: float
    error: float
    changes: tuple[Changed, ...] = ()


@dataclass(frozen=True)
class History:
    """``moments`` by date, at least one."""

    key: str
    title: str
    moments: tuple[Moment, ...]


def histories(runs: Iterable[tuple[RunRecord, StepTime]]) -> list[History]:
    """One for each configuration, in the order of the first runs."""
    together: dict[str, list[tuple[RunRecord, StepTime]]] = {}
    for record, measured in runs:
        together.setdefault(configuration_key(record.plan), []).append((record, measured))
    found = []
    for key, items in together.items():
        items.sort(key=lambda item: item[0].created)
        found.append(History(key, title_of(items[0][0]), tuple(_moments(items))))
    return found


def _moments(items: Iterable[tuple[RunRecord, StepTime]]) -> Iterable[Moment]:
    before: Mapping[str, str] | None = None
    for record, measured in items:
        now = facts(record)
        changes = () if before is None else _changes(before, now)
        yield Moment(
            record.paths.run_id, record.created, software_of(record), measured.seconds, measured.error, changes
        )
        before = now


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[Changed, ...]:
    return tuple(
        Changed(name, before.get(name, "-"), now.get(name, "-"))
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name)
        and name not in _EVERY_RUN_DIFFERS
        and not (name in EVIDENCE and (name not in before or name not in now))
    )
