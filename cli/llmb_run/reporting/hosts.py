"""What ran on which nodes, and which of them slow the runs down that they take part in."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from itertools import chain

import msgspec

from llmb_common.measured.run import timed
from llmb_common.results.slow_nodes import NodeRuns, node_runs
from llmb_run.reporting.differences import MOST_NAMED
from llmb_run.reporting.seen import SeenRun


class HostLine(msgspec.Struct, frozen=True, kw_only=True):
    """One node. ``ratio`` is the median, over the repeats with it, of a run's step time over the mean of all repeats of
    its configuration; None without repeats.

    ``slower`` is for a slow node, and None for any other: the mean step time of the repeats with it over that of the
    repeats without it, less 1. Slow is one where that is more than chance for as many nodes as were looked at, and no
    slower node explains it. ``together``: others that were in just the same repeats, so that it may be any of them.
    """

    host: str
    runs: tuple[str, ...]
    """The first of them."""
    count: int
    """How many runs it was in."""
    gpus: str
    ratio: float | None
    problems: int
    """Runs among them with a problem of this node, or of no node in particular."""
    findings: tuple[str, ...] = ()
    """What these problems are."""
    slower: float | None = None
    together: tuple[str, ...] = ()


def host_lines(seen: Sequence[SeenRun]) -> tuple[HostLine, ...]:
    """Every node that a run's account names: slow ones first, then those with problems, then those in slower runs."""
    on_host: dict[str, list[SeenRun]] = {}
    for run in seen:
        for host in run.hosts:
            on_host.setdefault(host, []).append(run)
    repeats = NodeRuns(node_runs(timed(run.run for run in seen)))
    lines = {host: _host_line(host, on_host[host], repeats) for host in sorted(on_host)}
    while worst := repeats.slowest(len(lines)):
        hosts, slower = worst
        for host in hosts:
            others = tuple(other for other in hosts if other != host)
            lines[host] = msgspec.structs.replace(lines[host], slower=slower, together=others)
        repeats = repeats.without(hosts[0])
    return tuple(sorted(lines.values(), key=lambda line: (-(line.slower or 0), not line.problems, -(line.ratio or 0))))


def _host_line(host: str, runs: Sequence[SeenRun], repeats: NodeRuns) -> HostLine:
    """What is known of the node ``host`` by ``runs``, all that it had, at least one.

    Whether it is slow is not said here.
    """
    known = [repeat.time.seconds for repeat in repeats.on_host.get(host, ())]
    by_run = [_problems(host, run) for run in runs]
    problems = [texts for texts in by_run if texts]
    return HostLine(
        host=host,
        runs=tuple(run.run_id for run in runs[:MOST_NAMED]),
        count=len(runs),
        gpus=runs[-1].gpus,
        ratio=statistics.median(known) if known else None,
        problems=len(problems),
        findings=tuple(dict.fromkeys(chain.from_iterable(problems)))[:MOST_NAMED],
    )


def _problems(host: str, run: SeenRun) -> list[str]:
    """The problems of ``run`` that name the node ``host``, or none of the run's nodes."""
    named = [(text, {word.strip(".") for word in re.findall(r"[\w.-]+", text)}) for text in run.problems]
    return [text for text, words in named if host in words or words.isdisjoint(run.hosts)]
