"""What ran on which nodes, and whether runs are slower where one of them takes part."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from llmb_common.results.configuration import configuration_key, software_of
from llmb_run.results.measuring import Measured


class HostLine(msgspec.Struct, frozen=True, kw_only=True):
    """One node. ``ratio`` is the median, over the repeats with it, of a run's step time over the mean of all repeats of
    its configuration; None without repeats."""

    host: str
    runs: tuple[str, ...]
    gpus: str
    ratio: float | None
    problems: int
    """Runs among them with a problem that their nodes show; which node, the problem's text says."""


def host_lines(found: Sequence[Measured]) -> tuple[HostLine, ...]:
    """Every node that a run's account names, by name."""
    groups: dict[tuple[str, str], list[Measured]] = {}
    for item in found:
        if item.record and item.good:
            groups.setdefault((configuration_key(item.record.plan), software_of(item.record)), []).append(item)
    ratios: dict[int, float] = {}
    for items in groups.values():
        seconds = [item.good.seconds for item in items if item.good]
        if len(seconds) > 1:
            ratios |= {id(item): value / statistics.fmean(seconds) for item, value in zip(items, seconds, strict=True)}
    on_host: dict[str, list[Measured]] = {}
    for item in found:
        for host in item.account.hosts:
            on_host.setdefault(host, []).append(item)
    return tuple(_line(host, on_host[host], ratios) for host in sorted(on_host))


def _line(host: str, items: Sequence[Measured], ratios: dict[int, float]) -> HostLine:
    known = [ratios[id(item)] for item in items if id(item) in ratios]
    return HostLine(
        host=host,
        runs=tuple(item.record.paths.run_id for item in items if item.record),
        gpus=items[-1].account.gpus,
        ratio=statistics.median(known) if known else None,
        problems=sum(any(finding.severity == "problem" for finding in item.findings) for item in items),
    )
