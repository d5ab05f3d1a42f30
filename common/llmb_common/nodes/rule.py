"""What a rule about nodes is, what it is given, and the ways to make one of a small function."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Literal, NamedTuple, TypeVar

import msgspec

from llmb_common.nodes.facts import NodeFacts
from llmb_common.nodes.gpu_run import GpuRun, gpu_runs_of
from llmb_common.nodes.needs import Needs
from llmb_common.nodes.summary import Severity

T = TypeVar("T")

Weight = Literal["fail", "warn", "unknown"]
"""Before a job. ``fail``: it would stop there, or its result be wrong. ``warn``: worth a look. ``unknown``: it was not
to be found out, which is not the same as healthy."""


class Level(NamedTuple):
    """What a rule means to each of those who ask; None: it is not asked there."""

    doctor: Weight | None = None
    health: Weight | None = None
    evidence: Severity | None = None


class Fleet(msgspec.Struct, frozen=True, dict=True):
    """What rules look at: nodes, and what is needed of them. ``together``: how many nodes worked with each other."""

    needs: Needs
    nodes: tuple[NodeFacts, ...]
    together: int = 1
    unreadable: tuple[str, ...] = ()
    """Names of files that nodes of a run left damaged."""

    @cached_property
    def gpus(self) -> list[GpuRun]:
        """Every GPU of all nodes, over the run."""
        return list(chain.from_iterable(map(gpu_runs_of, self.nodes)))


class Found(NamedTuple):
    """What is found on a node, or on all of them where ``host`` is empty. ``usual``: what the others have instead."""

    host: str
    text: str
    usual: str = ""


Finder = Callable[[Fleet], Iterable[Found]]


class Rule(NamedTuple):
    """A rule about nodes: what it looks at, and how what it finds is said and weighed.

    ``sentence``: everything that is found is one sentence, in place of its first braces, and what is usual in place of
    the second; without one, each is a sentence by itself. ``in_pods``: the remedy for nodes that are pods of
    Kubernetes, where it is another one.
    """

    name: str
    level: Level
    find: Finder
    remedy: str
    sentence: str = ""
    in_pods: str = ""


def each_node(problem_of: Callable[[NodeFacts, Needs], str | None]) -> Finder:
    """A rule that asks ``problem_of`` what is wrong with each node by itself; an empty answer or None says nothing."""

    def find(fleet: Fleet) -> Iterator[Found]:
        """Yields what ``problem_of`` says of each node that it says something of."""
        for node in fleet.nodes:
            text = problem_of(node, fleet.needs)
            if text:
                yield Found(node.host, text)

    return find


def several_of_each_node(problems_of: Callable[[NodeFacts, Needs], Iterable[str]]) -> Finder:
    """A rule that asks ``problems_of`` what is wrong with each node by itself, which may be several things."""

    def find(fleet: Fleet) -> Iterator[Found]:
        """Yields everything that ``problems_of`` says of each node."""
        for node in fleet.nodes:
            for text in problems_of(node, fleet.needs):
                yield Found(node.host, text)

    return find


def each_gpu_run(problem_of: Callable[[GpuRun], str]) -> Finder:
    """A rule that asks ``problem_of`` of every GPU over a run; an empty answer says nothing."""

    def find(fleet: Fleet) -> Iterator[Found]:
        """Yields what ``problem_of`` says of each GPU."""
        for run in fleet.gpus:
            text = problem_of(run)
            if text:
                yield Found(run.host, f"{run.where} ({text})")

    return find


def same_on_nodes(value: Callable[[NodeFacts], object]) -> Finder:
    """A rule that all nodes are alike in ``value``; a node whose value is None is not asked."""

    def find(fleet: Fleet) -> Iterator[Found]:
        """Yields each node whose value is not that of most."""
        yield from _unlike_most([(node.host, node.host, value(node)) for node in fleet.nodes])

    return find


def same_on_gpus(value: Callable[[GpuRun], object]) -> Finder:
    """A rule that all GPUs of all nodes are alike in ``value``: it finds each GPU whose value is not that of most.

    A GPU whose value is None is not asked.
    """

    def find(fleet: Fleet) -> Iterator[Found]:
        """Yields each GPU whose value is not that of most."""
        yield from _unlike_most([(run.host, run.where, value(run)) for run in fleet.gpus])

    return find


def _unlike_most(values: Sequence[tuple[str, str, object]]) -> Iterator[Found]:
    """Yields the values, given as (host, place, value), that are not what most are; None is not known."""
    usual = usual_value(value for _, _, value in values)
    for host, place, value in values:
        if value is not None and value != usual:
            yield Found(host, f"{as_text(value)} on {place}", as_text(usual))


ACTIVE = "ACTIVE"
"""The state of a port that carries data."""


def usual_value(values: Iterable[T | None]) -> T | None:
    """The value that most have; None where nobody says anything.

    Of two halves, as of two nodes, the better one is usual: links, limits and adapters are lost, and not won.
    """
    counts = Counter(value for value in values if value is not None)

    def rank(value: T) -> tuple[int, float]:
        """A sort key: how often a value comes, then how good it is."""
        is_better = float(value) if isinstance(value, float | int) else float(value == ACTIVE)
        return counts[value], is_better

    return max(counts, key=rank, default=None)


def as_text(value: object) -> str:
    """A value for messages, of at most 80 characters."""
    return f"{value:g}" if isinstance(value, float) else str(value)[:80]


FEWEST = 3
"""Nodes that make a usual value of numbers; of words two are enough to differ."""


def far_from_median(
    value: Callable[[NodeFacts], float | None],
    is_far: Callable[[float, float], bool],
    text: str,
) -> Finder:
    """A rule that holds a number of each node against the median of all, of at least ``FEWEST``.

    ``is_far`` is asked with the number and the median; ``text`` has braces for the number.
    """

    def find(fleet: Fleet) -> Iterator[Found]:
        """Yields each node whose number is far from the median."""
        for host, number, median in against_median(fleet, value):
            if is_far(number, median):
                yield Found(host, f"{text.format(number)}; usual here: {median:.4g}")

    return find


def against_median(fleet: Fleet, value: Callable[[NodeFacts], float | None]) -> Iterator[tuple[str, float, float]]:
    """Yields (host, its number, the median of all) for each node that says one; nothing where fewer than three do."""
    known = [(node.host, value(node)) for node in fleet.nodes]
    numbers = [(host, number) for host, number in known if number is not None]
    if len(numbers) < FEWEST:
        return
    median = statistics.median(number for _, number in numbers)
    for host, number in numbers:
        yield host, number, median


def ranges(numbers: Iterable[int]) -> str:
    """``0-3,5``: each number once, those that follow each other as a range."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{first}-{last}" if first != last else f"{first}" for first, last in parts)
