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
    """Something found. ``hosts``: the nodes that it is about; none: it is about all."""

    kind: str
    level: Level
    hosts: tuple[str, ...] = ()
    what: str
    deviations: float | None = None
    """How far below the median, in robust deviations; None where no spread is known."""
    rails: tuple[int, ...] = ()
    """GPUs of a node whose way to the network is slow, where only some are."""
    training: str = ""
    """What training runs say of the node; empty: they were not asked."""
    remedy: str = ""

    @property
    def said(self) -> str:
        """The finding as people read it: what was measured, and then what training runs say of it."""
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
    """A finding about ``hosts`` (none: about all), with the remedy for its ``kind`` filled in."""
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
    """A group of a round, by what is usual among its like."""

    nodes: tuple[str, ...]
    round: int
    """0: the first round."""
    busbw_gbps: float | None = None
    """None: ``why`` not."""
    share: float | None = None
    """Of what is usual; None where nothing is."""
    deviations: float | None = None
    excess: float | None = None
    """How far below what is usual: 1 at the limit. None: there is no figure, or nothing to compare it with."""
    slow: bool | None = None
    """Worth asking about in the first round, and slow again in later ones; one alone proves nothing. None: there is
    nothing to compare it with."""
    why: str = ""
    hung: tuple[str, ...] = ()
    """Nodes whose ranks hung, where others of the group did not."""


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement over all that gave it: GPUs, nodes, or groups of one size."""

    name: MeasureName
    word: str
    unit: Unit
    nodes: int
    """In a group; of GPUs 1."""
    count: int
    median: float
    lowest: float
    deviation: float | None = None
    """A robust standard deviation, without the floor."""
    limit: float | None = None
    """Below it one is slow; None where nothing is judged."""
    least: float | None = None
    """Below it one fails, by what the site expects; None: it has not said."""


class FabricVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """All that is said of a fabric; ``answer`` is the line to print first."""

    level: Answer
    answer: str
    findings: tuple[FabricFinding, ...] = ()
    """The worst first."""
    coarseness: str = ""
    """What this number of groups can show, and what it cannot."""
    measures: tuple[Measure, ...] = ()
    groups: tuple[GroupSpeed, ...] = ()
    """Of all rounds."""
    topology: dict[str, str] = {}  # msgspec copies it

    @property
    def faults_of_all(self) -> list[FabricFinding]:
        """The findings that fail without being of any nodes: less than the site expects, no figure of all together."""
        return [finding for finding in self.findings if finding.level == "fail" and not finding.hosts]

    @property
    def excludable(self) -> list[str]:
        """The nodes that are each a cause by themselves and fail: what a list of nodes to avoid may get from here."""
        causes = [finding for finding in self.findings if finding.level == "fail" and finding.kind in NAMED]
        return list(dict.fromkeys(chain.from_iterable(finding.hosts for finding in causes)))

    @property
    def suspects(self) -> list[FabricFinding]:
        """Findings on single nodes, each a cause by itself, that are only warned of: training runs may show more."""
        return [finding for finding in self.findings if finding.level == "warn" and finding.kind in NAMED]
