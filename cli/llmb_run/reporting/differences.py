"""In what the runs of one job differ."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

import msgspec

from llmb_common.results.comparison import EVIDENCE
from llmb_run.reporting.seen import SeenRun

MOST_TITLES = 40
"""Jobs whose differences a report lists."""

MOST_NAMED = 12
"""Runs that are named where many have something in common."""

_MOST_VALUES = 8


class Value(msgspec.Struct, frozen=True):
    """One value of a fact in which runs differ, such as the driver's version, and the runs that have it.

    ``differing`` makes it. ``value`` is the value as text, ``-`` where the runs have none. ``count`` runs have it;
    ``runs`` are the ids of the first ``MOST_NAMED`` of these, in the order of the report's runs.
    """

    value: str
    runs: tuple[str, ...]
    count: int


class Fact(msgspec.Struct, frozen=True):
    """A fact in which runs differ, such as the driver's version, with its commonest values first.

    ``differing`` makes it. ``name`` is the fact's, such as ``env NCCL_ALGO``. There are at most ``_MOST_VALUES`` of
    ``values``; ``others``: how many further values there are.
    """

    name: str
    values: tuple[Value, ...]
    others: int = 0


class Differing(msgspec.Struct, frozen=True):
    """What the runs of one configuration differ in; ``title`` is such as ``grok1 314b nemo2 bf16 on 256 h100``.

    ``differing`` makes it. There is at least one of ``facts``; they are in the order in which the runs name them.
    """

    title: str
    facts: tuple[Fact, ...]


def differing(seen: Sequence[SeenRun]) -> list[Differing]:
    """Return for each configuration (by its title) what its runs differ in, in the order of the first runs.

    ``seen`` are the runs of a report. Configurations whose runs are alike, or that have one run, are left out; empty:
    all are.
    """
    together: dict[str, list[SeenRun]] = {}
    for run in seen:
        together.setdefault(run.title, []).append(run)
    found = ((title, _differing_facts(runs)) for title, runs in together.items())
    return [Differing(title, facts) for title, facts in found if facts]


def _differing_facts(runs: Sequence[SeenRun]) -> tuple[Fact, ...]:
    """Return the facts in which ``runs`` differ, each with its values; empty: they are alike.

    They are in the order in which the runs name them. A fact that a run's nodes did not tell is unknown, and makes no
    difference; any other that a run lacks is the value ``-``.
    """
    alike: dict[int, list[int]] = {}
    """Positions of the runs that share their facts."""
    for position, run in enumerate(runs):
        alike.setdefault(id(run.facts), []).append(position)
    kinds = [(runs[positions[0]].facts, positions) for positions in alike.values()]
    differ = []
    for name in dict.fromkeys(itertools.chain.from_iterable(facts for facts, _ in kinds)):
        by_value: dict[str, list[list[int]]] = {}
        for facts, positions in kinds:
            # What a run's nodes did not tell is unknown, and no difference.
            if name in facts or name not in EVIDENCE:
                by_value.setdefault(facts.get(name, "-"), []).append(positions)
        if len(by_value) > 1:
            differ.append(_as_fact(name, by_value, runs))
    return tuple(differ)


def _as_fact(name: str, by_value: dict[str, list[list[int]]], runs: Sequence[SeenRun]) -> Fact:
    """Return the fact ``name`` with its commonest values first, and the first runs that have each.

    Of equally common values, the one of the earlier run comes first. ``by_value``: for each value, lists of
    positions in ``runs``, each rising, in the order of the first runs that have it. More than ``_MOST_VALUES``
    values are cut, and counted.
    """
    counts = {value: sum(map(len, positions)) for value, positions in by_value.items()}
    ordered = sorted(by_value, key=lambda value: -counts[value])
    values = []
    for value in ordered[:_MOST_VALUES]:
        first = itertools.islice(heapq.merge(*by_value[value]), MOST_NAMED)
        run_ids = tuple(runs[position].run_id for position in first)
        values.append(Value(value, run_ids, counts[value]))
    return Fact(name, tuple(values), len(ordered) - len(values))
