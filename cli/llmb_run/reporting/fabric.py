"""The fabric in a report: its verdict, what was found, and its groups by bus bandwidth, the slowest first."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from llmb_common.base.errors import RequestError
from llmb_common.base.structs import from_plain, misfit_text
from llmb_common.health.verdicts import Fabric
from llmb_common.nodes.fabric.verdict import Answer, FabricVerdict, GroupSpeed
from llmb_common.nodes.fabric.words import nodes_text
from llmb_run.comparing.fabrics import HOW, recorded_fabrics
from llmb_run.fabric_text import MEASURED, measured_rows

MOST_DRAWN = 400
"""Groups that a page draws, the slowest."""
_MOST_LISTED = 30
"""Groups that are listed by name."""
_MOST_FINDINGS = 30


class FabricGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group of nodes in a report on the network fabric, and its bandwidth.

    ``fabric_part`` makes it. ``nodes`` is a host list. ``busbw_gbps``: bus bandwidth in GB/s; None: not measured.
    ``kind``: "slow" or "usual" as the verdict on the measurement has it, "no figure" without a bandwidth, "not
    judged" where nothing is known to be usual. ``again``: it was measured again to find the node at fault. ``why``:
    why there is no figure; empty: there is one.
    """

    nodes: str
    busbw_gbps: float | None
    share: float | None
    """The bandwidth over what is usual in groups of this size, less 1 (-0.1: 10 % below); None: nothing is known."""
    kind: Literal["slow", "usual", "no figure", "not judged"]
    again: bool
    why: str = ""


class FabricPart(msgspec.Struct, frozen=True, kw_only=True):
    """What a report says of one measurement of the network fabric. ``fabric_part`` makes it.

    ``level`` is the verdict on it in a word (``ok``, ``warn``, ``fail`` or ``not judged``); ``answer`` is the first
    line, without that word before it; ``coarseness`` says how fine a difference can be seen, empty where nothing is
    to say. ``heads`` are the headings of the table in ``rows``.
    """

    level: Answer
    answer: str
    coarseness: str
    findings: tuple[str, ...]
    """Lines on what was found, without what ``answer`` says already, then lines on what to do."""
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The cells of what was measured, as ``health --fabric`` prints them."""
    groups: tuple[FabricGroup, ...]
    """The slowest first; those without a figure before them."""
    count: int
    """How many groups were measured; ``groups`` may hold fewer."""
    listed: int
    """How many of them are listed by name, the first ones."""
    left_out: str
    """What that list leaves out, and the command that has it; empty: nothing."""
    limit: float | None
    """In GB/s: below it, a group of the commonest size is slow; None where nothing is judged."""


def fabric_part(fabric: Fabric) -> FabricPart:
    """Return what a report says of one measurement of the network fabric.

    Of the groups of nodes it has the ``MOST_DRAWN`` slowest by bus bandwidth, those without a figure first;
    ``count`` is of all.
    """
    verdict = fabric.verdict
    groups = sorted(verdict.groups, key=lambda group: group.busbw_gbps or 0.0)
    limits = [measure.limit for measure in verdict.measures if measure.name == "groups"]
    return FabricPart(
        level=verdict.level,
        answer=verdict.answer.removeprefix(f"{verdict.level}: "),
        coarseness=verdict.coarseness,
        findings=_finding_lines(verdict),
        heads=MEASURED,
        rows=tuple(tuple(row) for row in measured_rows(fabric)),
        groups=tuple(_as_fabric_group(group) for group in groups[:MOST_DRAWN]),
        count=len(groups),
        listed=min(len(groups), _MOST_LISTED),
        left_out=_left_out(len(groups)),
        limit=limits[0] if limits else None,
    )


def _finding_lines(verdict: FabricVerdict) -> tuple[str, ...]:
    """Return lines on the first findings of a fabric measurement, then a line ``to do: ...`` for each remedy, once.

    A finding's line is ``LEVEL: TEXT``. There are at most ``_MOST_FINDINGS`` findings. Those that the verdict's
    answer names already have no line, but their remedies do.
    """
    shown = verdict.findings[:_MOST_FINDINGS]
    lines = [f"{finding.level}: {finding.said}" for finding in shown if finding.said not in verdict.answer]
    lines += dict.fromkeys(f"to do: {finding.remedy}" for finding in shown if finding.remedy)
    return tuple(lines)


def _as_fabric_group(group: GroupSpeed) -> FabricGroup:
    """Return a measured group of nodes in the form of a report.

    Its share becomes a difference from what is usual (0.9 becomes -0.1); None stays.
    """
    return FabricGroup(
        nodes=nodes_text(group.nodes),
        busbw_gbps=group.busbw_gbps,
        share=None if group.share is None else group.share - 1,
        kind=_group_kind(group),
        again=group.round > 0,
        why=group.why,
    )


def _group_kind(group: GroupSpeed) -> Literal["slow", "usual", "no figure", "not judged"]:
    """Return how a group of nodes did, in a word, by the verdict on the measurement.

    ``no figure``: its measurement gave none; ``not judged``: nothing is known to be usual.
    """
    if group.busbw_gbps is None:
        return "no figure"
    if group.slow is None:
        return "not judged"
    return "slow" if group.slow else "usual"


def _left_out(count: int) -> str:
    """Return what the list of ``count`` groups of nodes leaves out, and the command that has it.

    ``20 of 300 groups, the slowest. The others: llmb-run health --fabric --json``; the list has ``_MOST_LISTED``.
    Empty: nothing is left out.
    """
    if count <= _MOST_LISTED:
        return ""
    return f"{_MOST_LISTED:,} of {count:,} groups, the slowest. The others: llmb-run health --fabric --json"


def read_fabrics(file: Path) -> tuple[Fabric, ...]:
    """Return the fabric measurements in a JSON file, each with its verdict, in order; at least one.

    The file is what ``health --fabric --json`` printed, or a campaign's ``health.json``; output of nccl-tests is
    refused.

    Raises:
        RequestError: the file cannot be read, is not JSON, or holds something else
    """
    items = recorded_fabrics(file)
    try:
        return tuple(from_plain(items, list[Fabric]))
    except msgspec.ValidationError as error:
        why = misfit_text(error, list[Fabric], items)
        raise RequestError(f"{file} holds no measurement of a fabric: {why}", remedy=HOW) from error
