"""What ran on which nodes, and which of them slow the runs down that they take part in."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Collection, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import NamedTuple

import msgspec

from llmb_common.results.comparison import compare_times
from llmb_common.results.configuration import configuration_key
from llmb_common.results.level import ERROR_RATE
from llmb_common.results.steps import StepTime
from llmb_run.results.measured import MeasuredRun

_WORTH = 1.02
"""A smaller ratio of step times is nobody's slow node."""

_ALARM = 0.01
"""How often, about, some healthy node is called slow."""

_ENDLESS = 10**9
"""Steps of a run of which it is known that none stalls."""


class HostLine(msgspec.Struct, frozen=True, kw_only=True):
    """One node. ``ratio`` is the median, over the repeats with it, of a run's step time over the mean of all repeats of
    its configuration; None without repeats.

    ``slower`` is for a slow node, and None for any other: the mean step time of the repeats with it over that of the
    repeats without it, less 1. Slow is one where that is more than chance for as many nodes as were looked at, and no
    slower node explains it. ``together``: others that were in just the same repeats, so that it may be any of them.
    """

    host: str
    runs: tuple[str, ...]
    gpus: str
    ratio: float | None
    problems: int
    """Runs among them with a problem of this node, or of no node in particular."""
    findings: tuple[str, ...] = ()
    """What these problems are."""
    slower: float | None = None
    together: tuple[str, ...] = ()


class _Repeat(NamedTuple):
    """A run with repeats, and its step time over their mean."""

    group: tuple[str, str]
    hosts: frozenset[str]
    time: StepTime


def host_lines(found: Sequence[MeasuredRun]) -> tuple[HostLine, ...]:
    """Every node that a run's account names: slow ones first, then those with problems, then those in slower runs."""
    on_host: dict[str, list[MeasuredRun]] = {}
    for item in found:
        for host in item.account.hosts:
            on_host.setdefault(host, []).append(item)
    repeats = _repeats(found)
    lines = {host: _line(host, on_host[host], repeats) for host in sorted(on_host)}
    while worst := _slowest(repeats, on_host):
        hosts, slower = worst
        for host in hosts:
            others = tuple(other for other in hosts if other != host)
            lines[host] = msgspec.structs.replace(lines[host], slower=slower, together=others)
        repeats = [repeat for repeat in repeats if hosts[0] not in repeat.hosts]
    return tuple(sorted(lines.values(), key=lambda line: (-(line.slower or 0), not line.problems, -(line.ratio or 0))))


def _line(host: str, items: Sequence[MeasuredRun], repeats: Sequence[_Repeat]) -> HostLine:
    known = [repeat.time.seconds for repeat in repeats if host in repeat.hosts]
    problems = [found for item in items if (found := _problems(host, item))]
    return HostLine(
        host=host,
        runs=tuple(item.record.paths.run_id for item in items if item.record),
        gpus=items[-1].account.gpus,
        ratio=statistics.median(known) if known else None,
        problems=len(problems),
        findings=tuple(dict.fromkeys(text for found in problems for text in found)),
    )


def _problems(host: str, item: MeasuredRun) -> list[str]:
    """Texts of those that name the node, or none of the run's."""
    texts = [finding.text for finding in item.findings if finding.severity == "problem"]
    named = [(text, {word.strip(".") for word in re.findall(r"[\w.-]+", text)}) for text in texts]
    return [text for text, words in named if host in words or words.isdisjoint(item.account.hosts)]


def _repeats(found: Sequence[MeasuredRun]) -> list[_Repeat]:
    groups: dict[tuple[str, str], list[tuple[frozenset[str], StepTime]]] = {}
    for item in found:
        if item.record and item.good:
            key = (configuration_key(item.record.plan), item.software)
            groups.setdefault(key, []).append((frozenset(item.account.hosts), item.good))
    # Without stalls: a node that is slow is slow in each step.
    return [
        _Repeat(
            key, hosts, replace(time, seconds=time.seconds / mean, error=time.error / mean, stalls=(), steps=_ENDLESS)
        )
        for key, runs in groups.items()
        if len(runs) > 1 and (mean := statistics.fmean(time.seconds for _, time in runs))
        for hosts, time in runs
    ]


def _slowest(repeats: Sequence[_Repeat], known: Collection[str]) -> tuple[tuple[str, ...], float] | None:
    """The node that is slow with the least doubt, with those that were in the same repeats; how much; None: no node."""
    sure = {host: _sureness(host, repeats) for host in known}
    worst = max(sure, key=lambda host: sure[host], default="")
    if not sure:
        return None
    # Each node that is looked at is another chance of a slow one by accident (Bonferroni).
    needed = NormalDist().inv_cdf(1 - _ALARM / len(sure)) / NormalDist().inv_cdf(1 - ERROR_RATE)
    if sure[worst] <= needed:
        return None
    where = [worst in repeat.hosts for repeat in repeats]
    hosts = tuple(sorted(host for host in known if where == [host in repeat.hosts for repeat in repeats]))
    return hosts, _ratio(*_sides(worst, repeats)) - 1


def _sureness(host: str, repeats: Sequence[_Repeat]) -> float:
    """How far beyond "no difference" the ratio lies, in half widths of its interval; 0 where nothing can be said."""
    inside, outside = _sides(host, repeats)
    if not inside or _ratio(inside, outside) < _WORTH:
        return 0.0
    if {item.day for item in inside} <= {item.day for item in outside}:
        # What a day does, it does to runs with and without the node.
        inside, outside = ([replace(item, day="") for item in side] for side in (inside, outside))
    # Ranks have an interval of one width only, which many nodes cannot make stricter.
    change = compare_times(outside, inside, ranks=False)
    return math.log(change.ratio) / math.log(change.high / change.ratio)


def _sides(host: str, repeats: Sequence[_Repeat]) -> tuple[list[StepTime], list[StepTime]]:
    """The repeats with the node and those without it, of configurations that have both; else none."""
    with_it = {repeat.group for repeat in repeats if host in repeat.hosts}
    without = {repeat.group for repeat in repeats if host not in repeat.hosts}
    both = [repeat for repeat in repeats if repeat.group in with_it & without]
    return [item.time for item in both if host in item.hosts], [item.time for item in both if host not in item.hosts]


def _ratio(inside: Sequence[StepTime], outside: Sequence[StepTime]) -> float:
    return statistics.fmean(item.seconds for item in inside) / statistics.fmean(item.seconds for item in outside)
