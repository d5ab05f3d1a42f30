"""What is said of a fabric: of each group its speed, and what was found, with what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Literal

import msgspec

from llmb_common.nodes.fabric.words import MeasureName, Unit, remedy

Level = Literal["fail", "warn", "note"]
"""``fail``: a job would stop or its result be less than the site expects. ``warn``: slower than the others, which need
not cost a training job anything. ``note``: worth knowing."""

Answer = Literal["ok", "warn", "fail", "not judged"]

NAMED = ("slow-node", "no-figure", "hung", "slow-gpu", "slow-within")
"""Kinds of findings that are of single nodes, each of which is the cause itself."""


class FabricFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a check of the fabric found about nodes, a switch, a path or all nodes, and how much it counts.

    ``level`` is ``fail`` (a job would stop, or give less than the site expects), ``warn`` (slower than the others)
    or ``note`` (worth knowing). The property ``said`` is its text for people: ``what``, with "; " and ``training``
    behind it unless that is empty. ``new_finding`` makes one with its remedy and without ``training``; all fields
    are given by keyword.
    """

    kind: str
    """A key of ``REMEDIES``, such as ``slow-node``; it chooses the remedy."""
    level: Level
    hosts: tuple[str, ...] = ()
    """Names of the nodes that it is about; empty: it is about all."""
    what: str
    """What was measured, as a sentence without a period."""
    deviations: float | None = None
    """How far below the median, in robust deviations; None where no spread is known or nothing was compared."""
    rails: tuple[int, ...] = ()
    """Numbers of the GPUs of a node whose way to the network is slow; empty: all alike, or not asked."""
    training: str = ""
    """What training runs say of the node, a clause; empty: nothing, or they were not asked."""
    remedy: str = ""
    """What to do about it, one line; empty: nothing is known."""

    @property
    def said(self) -> str:
        """The text of this finding for people: ``what``, and behind "; " what training runs say of the node, if
        anything.

        Like ``what``, it has no period.
        """
        return f"{self.what}; {self.training}" if self.training else self.what


def new_finding(
    kind: str,
    level: Level,
    hosts: Sequence[str],
    what: str,
    *,
    deviations: float | None = None,
    rails: tuple[int, ...] = (),
) -> FabricFinding:
    """Return a finding about ``hosts`` (empty: about all nodes), with the remedy for its ``kind`` filled in.

    ``kind`` is a key of ``REMEDIES``; for any other the remedy stays empty. ``what`` is what was measured, a
    sentence without a period. ``level``, ``deviations`` and ``rails`` are as in ``FabricFinding``; ``training``
    stays empty.
    """
    return FabricFinding(
        kind=kind,
        level=level,
        hosts=tuple(hosts),
        what=what,
        deviations=deviations,
        rails=rails,
        remedy=remedy(kind, hosts),
    )


class GroupSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """How fast one group of nodes was in one round, compared with what is usual for groups like it.

    ``judge`` makes it. ``nodes`` are the hosts of the group. Without a figure, ``busbw_gbps``, ``share``,
    ``deviations`` and ``excess`` are None and ``slow`` is True.
    """

    nodes: tuple[str, ...]
    round: int
    """0: the first round."""
    busbw_gbps: float | None = None
    """Bus bandwidth in 10^9 bytes/s; None: it gave none, and ``why`` says the reason."""
    share: float | None = None
    """The bandwidth as a share of what is usual (1.0: as usual); None: no figure, or nothing to compare it with."""
    deviations: float | None = None
    """How far below what is usual, in robust deviations; None where no spread is known."""
    excess: float | None = None
    """How far below what is usual: 0 as usual, 1 at the limit for slow ones. None: no figure, or nothing to compare it
    with."""
    slow: bool | None = None
    """True: in round 0 its nodes are to be asked again, in later rounds it was slow again (one slow round proves
    nothing), or it gave no figure. False: none of these. None: there is nothing to compare it with.
    """
    why: str = ""
    """Why there is no figure; empty: there is one."""
    hung: tuple[str, ...] = ()
    """Nodes whose ranks hung, where others of the group did not; empty: none hung, or all did."""


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of one measurement, such as the matrix product, over all GPUs, nodes or groups that gave a figure.

    ``judge`` makes it. ``median``, ``lowest``, ``deviation``, ``limit`` and ``least`` are in ``unit``, and more is
    better. ``count`` and ``lowest`` are of all figures, also those of a slower kind of nodes. ``name`` is a key of
    ``MEASURES``.
    """

    name: MeasureName
    word: str
    """What people call it, such as "matrix product"."""
    unit: Unit
    """``TFLOPS``, or ``GB/s`` for 10^9 bytes/s."""
    nodes: int
    """Number of nodes in a group; 1 for GPUs and single nodes."""
    count: int
    """Number of figures."""
    median: float
    """Of those that count as usual; of all where these are too few to say."""
    lowest: float
    deviation: float | None = None
    """A robust standard deviation, not widened for few figures; None: too few figures."""
    limit: float | None = None
    """A figure below it is slow; None where nothing is judged."""
    least: float | None = None
    """A figure below it fails, by what the site expects; None: it expects none."""


class FabricVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a fabric, with the findings that lead to it and the figures that they rest on; ``judge`` makes it.

    ``level`` is ``ok``, ``warn``, ``fail`` or ``not judged``, and ``answer`` begins with it. Three properties
    choose from the findings, in their order, and are empty where there are none: ``excludable`` lists the host
    names, each once, to keep jobs off, as each is itself the cause of a failure (kinds ``NAMED``); ``suspects``
    lists the findings of level ``warn`` of the same kinds, which training runs may confirm; ``faults_of_all`` lists
    the findings of level ``fail`` that name no node.
    """

    level: Answer
    """The verdict in a word."""
    answer: str
    """The verdict with its reason, the line to print first: ``ok: no node is slower than the others``. No full
    stop.
    """
    findings: tuple[FabricFinding, ...] = ()
    """The worst first."""
    coarseness: str = ""
    """What this number of groups can show, and what it cannot, a text for people; empty: nothing to say."""
    measures: tuple[Measure, ...] = ()
    """Those of single GPUs and nodes, then of groups, then of all nodes together; empty: nothing gave a figure."""
    groups: tuple[GroupSpeed, ...] = ()
    """Of all rounds, round by round; empty: no group was measured."""
    topology: dict[str, str] = {}  # msgspec copies it
    """Host name to the name of its switch, as far as groups follow switches; empty: they do not."""

    @property
    def faults_of_all(self) -> list[FabricFinding]:
        """The findings of this verdict that fail and name no node, such as less bandwidth than the site expects.

        Empty: there are none.
        """
        return [finding for finding in self.findings if finding.level == "fail" and not finding.hosts]

    @property
    def excludable(self) -> list[str]:
        """The hosts that may go on a list of nodes to avoid, each once: each is itself the cause of a failure.

        They come in the order of the findings. Empty: no such node. Nodes that are only warned of, share a slow switch
        or path, or are missing, are not among them.
        """
        causes = [finding for finding in self.findings if finding.level == "fail" and finding.kind in NAMED]
        return list(dict.fromkeys(chain.from_iterable(finding.hosts for finding in causes)))

    @property
    def suspects(self) -> list[FabricFinding]:
        """The findings of level ``warn`` about single nodes that are themselves the cause; empty: there are none.

        They come in the order of the findings. Failures are not among them, nor slow switches and paths. The records of
        training runs may show more of these nodes.
        """
        return [finding for finding in self.findings if finding.level == "warn" and finding.kind in NAMED]
