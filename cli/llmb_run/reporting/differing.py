"""What differs between the runs of one job: the facts that ``compare`` compares, of any number of runs.

Their nodes do not count: a scheduler gives each run others, and the report lists them by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from llmb_common.results.comparison import facts
from llmb_common.results.configuration import title_of
from llmb_run.results.measuring import Measured

_MOST_VALUES = 8


class Value(msgspec.Struct, frozen=True):
    """One value of a fact, and the runs that have it; ``-`` where they do not know."""

    value: str
    runs: tuple[str, ...]


class Fact(msgspec.Struct, frozen=True):
    """``values`` are the commonest, ``others`` counts the rest."""

    name: str
    values: tuple[Value, ...]
    others: int = 0


class Differing(msgspec.Struct, frozen=True):
    """Runs of one title, such as ``grok1 314b nemo2 bf16 on 256 h100``, and the facts in which they differ."""

    title: str
    facts: tuple[Fact, ...]


def differing(found: Sequence[Measured]) -> tuple[Differing, ...]:
    """One for each title with runs that differ, in the order of the first runs."""
    together: dict[str, dict[str, Mapping[str, str]]] = {}
    for item in found:
        if item.record:
            together.setdefault(title_of(item.record.plan), {})[item.record.paths.run_id] = facts(item.record)
    listed = ((title, _facts(runs)) for title, runs in together.items())
    return tuple(Differing(title, differ) for title, differ in listed if differ)


def _facts(runs: Mapping[str, Mapping[str, str]]) -> tuple[Fact, ...]:
    differ = []
    for name in dict.fromkeys(name for known in runs.values() for name in known if name != "hosts"):
        by_value: dict[str, list[str]] = {}
        for run, known in runs.items():
            by_value.setdefault(known.get(name, "-"), []).append(run)
        if len(by_value) > 1:
            ordered = sorted(by_value.items(), key=lambda item: -len(item[1]))
            values = tuple(Value(value, tuple(named)) for value, named in ordered[:_MOST_VALUES])
            differ.append(Fact(name, values, len(ordered) - len(values)))
    return tuple(differ)
