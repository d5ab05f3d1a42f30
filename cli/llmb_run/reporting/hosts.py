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
    """One node in a report, with the runs that it was in and how fast these were. ``host_lines`` makes it.

    ``host`` is its name as runs have it; ``gpus``: its GPUs as its last run has them, such as ``8 H100``, empty if
    not known. ``ratio``: a run's step time over the mean of all repeats of its configuration, the median over the
    repeats with this node, so that 1.02 is 2 % slower; None: it was in no run whose repeats could be compared.

    ``slower``: for a slow node the mean step time of the repeats with it over that of the repeats without it, less
    1; None: the node is not slow. A node is slow where that is more than chance among so many nodes, and no slower
    node explains it. ``together``: other nodes that were in exactly the same repeats, so that any of them may be
    the slow one; only slow nodes have it.
    """

    host: str
    runs: tuple[str, ...]
    """The ids of the first runs that the node was in, at most ``MOST_NAMED``."""
    count: int
    """How many runs the node was in."""
    gpus: str
    ratio: float | None
    problems: int
    """How many of these runs have a problem of this node, or of no node in particular."""
    findings: tuple[str, ...] = ()
    """The texts of these problems, each once, the first ``MOST_NAMED``."""
    slower: float | None = None
    together: tuple[str, ...] = ()


def host_lines(seen: Sequence[SeenRun]) -> tuple[HostLine, ...]:
    """Return a line for every node that a run has named: slow ones first, the slowest before the others.

    Then come those with problems, then the others, each by their ratio, the greatest first; of equals, by name.
    Empty: no run has named its nodes. ``seen`` are the runs, as ``seen_runs`` makes them.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    on_host: dict[str, list[SeenRun]] = {}
    for run in seen:
        for host in run.hosts:
            on_host.setdefault(host, []).append(run)
    repeats = NodeRuns(node_runs(timed(run.run for run in seen)))
    lines = {host: _host_line(host, on_host[host], repeats) for host in sorted(on_host)}
    # One by one: what a slow node did to its neighbors in a run must not count against these.
    while worst := repeats.slowest(len(lines)):
        hosts, slower = worst
        for host in hosts:
            others = tuple(other for other in hosts if other != host)
            lines[host] = msgspec.structs.replace(lines[host], slower=slower, together=others)
        repeats = repeats.without(hosts[0])

    def worst_first(line: HostLine) -> tuple[float, bool, float]:
        """Return the key to sort by: the slowest nodes, then those with problems, then those with the longest steps."""
        return -(line.slower or 0), not line.problems, -(line.ratio or 0)

    return tuple(sorted(lines.values(), key=worst_first))


def _host_line(host: str, runs: Sequence[SeenRun], repeats: NodeRuns) -> HostLine:
    """Return what is known of the node ``host`` by ``runs``, at least one, all of which it was in.

    ``repeats``: the timed runs on every node, beside the mean of their configuration; ``ratio`` is None where it
    has none of this node. Its GPUs are those of the last of ``runs``. Whether the node is slow is left open:
    ``slower`` stays None.
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
    """Return the problems of ``run`` that name the node ``host``, and those that name none of the run's nodes.

    In their order. The name must stand there as a whole word, as the run has it: ``n1.cluster`` does not name
    ``n1``, and counts as the name of none of the nodes.
    """
    # A name may have a dot in it, or end a sentence.
    named = [(text, {word.strip(".") for word in re.findall(r"[\w.-]+", text)}) for text in run.problems]
    return [text for text, words in named if host in words or words.isdisjoint(run.hosts)]
