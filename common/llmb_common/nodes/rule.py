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
    """How much a rule about nodes counts for each command that asks it; None: that command does not ask it.

    A weight is ``fail`` (a job would stop there, or its result be wrong), ``warn`` (worth a look) or ``unknown``
    (it could not be found out); for a run's evidence it is ``problem`` (the result is not what these machines can
    do) or ``note`` (worth knowing).
    """

    doctor: Weight | None = None
    """For ``doctor``, of one node of the site."""
    health: Weight | None = None
    """For ``health``, of nodes before a job."""
    evidence: Severity | None = None
    """For a run's evidence."""


class Fleet(msgspec.Struct, frozen=True, dict=True):
    """The nodes that rules look at, and what is needed of them; a ``Finder`` is called with it.

    Commands make it of looks at nodes before a job, ``find`` of a run's records. ``nodes`` leaves out those that
    did not answer or left no readable record. The property ``gpus`` is a list of every GPU of all nodes, each with
    its states over the run, node by node; empty: no node showed any.
    """

    needs: Needs
    nodes: tuple[NodeFacts, ...]
    together: int = 1
    """How many nodes worked with each other, of a run as planned; 1: each by itself."""
    unreadable: tuple[str, ...] = ()
    """Names of the damaged files that a run's nodes left; empty: none is damaged."""

    @cached_property
    def gpus(self) -> list[GpuRun]:
        """Every GPU of all nodes of this fleet, each with its states over the run; empty: no node showed any.

        They come node by node in the fleet's order, and in nvidia-smi's within a node.
        """
        return list(chain.from_iterable(map(gpu_runs_of, self.nodes)))


class Found(NamedTuple):
    """One thing that a rule found on a node, or on all nodes together; the rule's sentence is filled with it.

    A ``Finder`` makes it.
    """

    host: str
    """The node's name; empty: it is on all nodes together."""
    text: str
    """A sentence without a period, or what the rule's sentence has braces for."""
    usual: str = ""
    """What most others have instead; empty: nothing to compare with."""


Finder = Callable[[Fleet], Iterable[Found]]


class Rule(NamedTuple):
    """A rule about nodes: how it finds problems, and how these are worded and weighed; ``RULES`` has them all.

    ``find`` is called with a ``Fleet`` and yields a ``Found`` for each problem. ``remedy`` is what to do about it,
    one line without a period. ``name`` is the word by which users know the rule, such as ``architecture``; several
    rules may share one. ``level`` says which commands ask it.
    """

    name: str
    level: Level
    find: Finder
    remedy: str
    sentence: str = ""
    """One for all that is found, with ``{}`` for these texts and perhaps a second ``{}`` for what is usual; empty:
    each thing found is a sentence by itself."""
    in_pods: str = ""
    """The remedy for nodes that are pods of Kubernetes; empty: the same."""


def each_node(problem_of: Callable[[NodeFacts, Needs], str | None]) -> Finder:
    """Return a finder for a rule that asks ``problem_of`` what is wrong with each node by itself.

    ``problem_of`` is called with a node and the fleet's ``needs``, and returns the text of what is found; empty or
    None: nothing. A finder is called with a ``Fleet``, and yields one ``Found`` for each node with a text, in the
    fleet's order.
    """

    def find(fleet: Fleet) -> Iterator[Found]:
        """Yield a ``Found`` for each node of ``fleet`` with what ``problem_of`` finds wrong with it, in the fleet's
        order.

        ``problem_of`` is the argument of ``each_node``. Nodes without a problem are left out.
        """
        for node in fleet.nodes:
            text = problem_of(node, fleet.needs)
            if text:
                yield Found(node.host, text)

    return find


def several_of_each_node(problems_of: Callable[[NodeFacts, Needs], Iterable[str]]) -> Finder:
    """Return a finder for a rule that asks ``problems_of`` for everything that is wrong with each node.

    ``problems_of`` is called with a node and the fleet's ``needs``, and returns texts, none of them empty. A finder
    is called with a ``Fleet``, and yields one ``Found`` for each text, node by node, texts in their order.
    """

    def find(fleet: Fleet) -> Iterator[Found]:
        """Yield a ``Found`` for each thing that ``problems_of`` finds wrong with a node of ``fleet``, node by node.

        ``problems_of`` is the argument of ``several_of_each_node``.
        """
        for node in fleet.nodes:
            for text in problems_of(node, fleet.needs):
                yield Found(node.host, text)

    return find


def each_gpu_run(problem_of: Callable[[GpuRun], str]) -> Finder:
    """Return a finder for a rule that asks ``problem_of`` what was wrong with each GPU over a run.

    ``problem_of`` is called with a ``GpuRun`` and returns a text; empty: nothing. A finder is called with a
    ``Fleet``, and yields one ``Found`` for each GPU with a text: the GPU with that in parentheses,
    ``n3 GPU 5 (power brake)``.
    """

    def find(fleet: Fleet) -> Iterator[Found]:
        """Yield a ``Found`` for each GPU of ``fleet`` with what ``problem_of`` finds wrong with it,
        ``n3 GPU 5 (...)``.

        ``problem_of`` is the argument of ``each_gpu_run``. Other GPUs are left out.
        """
        for run in fleet.gpus:
            text = problem_of(run)
            if text:
                yield Found(run.host, f"{run.where} ({text})")

    return find


def same_on_nodes(value: Callable[[NodeFacts], object]) -> Finder:
    """Return a finder for a rule that all nodes are alike in ``value``; it finds the nodes that differ from most.

    ``value`` is called with a node; None: not known, the node is left out. Right is the most frequent value, of
    equally frequent ones the better (``usual_value``). A finder is called with a ``Fleet``, and yields one
    ``Found`` for each node that differs, ``VALUE on HOST``, with the usual value beside it.
    """

    def find(fleet: Fleet) -> Iterator[Found]:
        """Yield a ``Found`` for each node of the fleet whose ``value`` is not that of most, ``VALUE on HOST``.

        ``value`` is the argument of ``same_on_nodes``; a node of which it gives None, not known, is left out.
        """
        yield from _unlike_most([(node.host, node.host, value(node)) for node in fleet.nodes])

    return find


def same_on_gpus(value: Callable[[GpuRun], object]) -> Finder:
    """Return a finder for a rule that all GPUs of all nodes are alike in ``value``; it finds those that differ from
    most.

    ``value`` is called with a ``GpuRun``; None: not known, the GPU is left out. Right is the most frequent value,
    of equally frequent ones the better (``usual_value``). A finder is called with a ``Fleet``, and yields one
    ``Found`` for each GPU that differs, ``VALUE on n3 GPU 5``, with the usual value beside it.
    """

    def find(fleet: Fleet) -> Iterator[Found]:
        """Yield a ``Found`` for each GPU of the fleet whose ``value`` is not that of most, ``VALUE on n3 GPU 5``.

        ``value`` is the argument of ``same_on_gpus``; a GPU of which it gives None, not known, is left out.
        """
        yield from _unlike_most([(run.host, run.where, value(run)) for run in fleet.gpus])

    return find


def _unlike_most(values: Sequence[tuple[str, str, object]]) -> Iterator[Found]:
    """Yield each of ``values``, given as (host, place, value), that is not the usual one; a value of None is left out.

    The usual one is what ``usual_value`` says of all of them. A ``Found`` has the host, the text
    ``VALUE on PLACE``, and the usual value as text. In the order of ``values``; nothing where all are alike, or
    unknown.
    """
    usual = usual_value(value for _, _, value in values)
    for host, place, value in values:
        if value is not None and value != usual:
            yield Found(host, f"{as_text(value)} on {place}", as_text(usual))


ACTIVE = "ACTIVE"
"""The state of a port that carries data."""


def usual_value(values: Iterable[T | None]) -> T | None:
    """Return the most frequent of ``values``; None where all are None or there are none.

    Of equally frequent ones, as of two nodes, it is the better one: the larger number, or the text ``ACTIVE`` (of a
    link); of other texts the first. Links, limits and adapters are lost, not won.
    """
    counts = Counter(value for value in values if value is not None)

    def rank(value: T) -> tuple[int, float]:
        """Return a sort key of ``value``, more is better: (how frequent it is, how good).

        How frequent it is comes from ``counts`` of the enclosing function. How good: a number itself; of texts 1.0
        for an active link, else 0.0.
        """
        is_better = float(value) if isinstance(value, float | int) else float(value == ACTIVE)
        return counts[value], is_better

    return max(counts, key=rank, default=None)


def as_text(value: object) -> str:
    """Return ``value`` as text for messages: a float with up to six significant digits, all else cut to 80 characters.

    A float has no superfluous zeros, ``1.5``, and a large one has an exponent: ``1.23457e+06``.
    """
    return f"{value:g}" if isinstance(value, float) else str(value)[:80]


FEWEST = 3
"""Nodes that make a usual value of numbers; of words two are enough to differ."""


def far_from_median(
    value: Callable[[NodeFacts], float | None],
    is_far: Callable[[float, float], bool],
    text: str,
) -> Finder:
    """Return a finder for a rule that compares a number of each node with the median of all nodes.

    ``value`` is called with a node and gives the number (None: not known, and left out); ``is_far`` is called with
    number and median, in this order; ``text`` has one pair of braces, perhaps with a format (``{:.0f} GiB``), for
    the number. A finder is called with a ``Fleet`` and yields a ``Found`` for each node that is far: ``text`` and
    behind it ``; usual here: `` with the median in four significant digits, without a unit. Nothing is found where
    fewer than three nodes give a number.
    """

    def find(fleet: Fleet) -> Iterator[Found]:
        """Yield a ``Found`` for each node of the fleet whose number is far from the median of all, as text with the
        median.

        ``value``, ``is_far`` and ``text`` are the arguments of ``far_from_median``. Nothing where fewer than three
        nodes give a number.
        """
        for host, number, median in against_median(fleet, value):
            if is_far(number, median):
                yield Found(host, f"{text.format(number)}; usual here: {median:.4g}")

    return find


def against_median(fleet: Fleet, value: Callable[[NodeFacts], float | None]) -> Iterator[tuple[str, float, float]]:
    """Yield (host, number of the node, median of all such numbers) for each node that gives one, in the fleet's order.

    ``value`` is called with a node and gives the number; None: not known. Nothing where fewer than three nodes give
    one.
    """
    known = [(node.host, value(node)) for node in fleet.nodes]
    numbers = [(host, number) for host, number in known if number is not None]
    if len(numbers) < FEWEST:
        return
    median = statistics.median(number for _, number in numbers)
    for host, number in numbers:
        yield host, number, median


def ranges(numbers: Iterable[int]) -> str:
    """Return ``numbers``, at least 0, as text, sorted, each once, with ranges: ``0-3,5``; empty without any.

    Two numbers in a row are a range, too: ``0-1``.
    """
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{first}-{last}" if first != last else f"{first}" for first, last in parts)
