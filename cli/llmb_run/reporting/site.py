"""Cluster, GPUs, software, dates and people of a report's runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from llmb_common.base.printable import counted, printable
from llmb_common.planning.workspace import Workspace
from llmb_run.reporting.seen import SeenRun

_MOST = 4
"""Values that are named; of the rest there is a count."""


def facts_of_site(seen: Sequence[SeenRun], workspace: Workspace) -> tuple[tuple[str, str], ...]:
    """Return (name, text) pairs for the head of a report: cluster, GPUs, software, dates and people of its runs.

    The names are ``Cluster``, ``GPUs``, ``Software``, ``Measured`` (the first and the last date in UTC,
    ``2026-11-12 to 2026-11-14``, or the only one) and ``By`` (the cluster's operator if the configuration names
    one, else the runs' owners), in this order. The texts are safe to print. A pair about which nothing is known is
    left out. ``seen`` are the runs, maybe none; ``workspace``: whose site configuration counts.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
    """
    days = sorted({time.strftime("%Y-%m-%d", time.gmtime(run.run.created)) for run in seen})
    lines = (
        ("Cluster", _cluster_text(seen, workspace)),
        ("GPUs", _gpus_text(seen)),
        ("Software", _software_line(seen)),
        ("Measured", " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))),
        ("By", workspace.cluster.operator or joined_values(run.owner for run in seen)),
    )
    return tuple((name, printable(text)) for name, text in lines if text)


def _cluster_text(seen: Sequence[SeenRun], workspace: Workspace) -> str:
    """Return the cluster's name, the queues of the runs, and from which hosts they were submitted.

    ``NAME, partition batch, submitted from login1``. What is unknown is left out; empty: all of it. ``workspace``:
    whose site configuration counts. ``seen`` are the runs.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
    """
    hosts = joined_values(run.host for run in seen)
    submitted = f"submitted from {hosts}" if hosts else ""
    words = (workspace.cluster.cluster_name, joined_values(run.queue for run in seen), submitted)
    return ", ".join(word for word in words if word)


def _gpus_text(seen: Sequence[SeenRun]) -> str:
    """Return the GPUs that the runs had, ``4 nodes with 8 H100``, as their nodes reported them, else as planned.

    All nodes of all runs count together, each once. Different ones are joined with semicolons. Empty without runs;
    ``seen`` are the runs.
    """
    nodes: dict[str, set[str]] = {}
    planned: list[str] = []
    for run in seen:
        if run.gpus:
            nodes.setdefault(run.gpus, set()).update(run.hosts)
        elif run.plan.device == "cpu":
            planned.append(f"none, {counted(run.plan.gpus, 'rank')} on CPUs")
        else:
            planned.append(f"{run.plan.gpus} {run.plan.gpu_type.upper()} (as planned; no node recorded them)")
    found = [f"{counted(len(hosts), 'node')} with {gpus}" for gpus, hosts in nodes.items()]
    return joined_values([*found, *planned], "; ")


def _software_line(seen: Sequence[SeenRun]) -> str:
    """Return one line with the software that the runs trained with, then the versions of driver, CUDA and NCCL.

    ``SOFTWARE; driver 580.65, CUDA 13.0, NCCL 2.28``, without a line break. What is unknown is left out; different
    versions are listed. Empty: nothing is known of the runs ``seen``.
    """
    versions = {
        "driver": joined_values(run.driver for run in seen),
        "CUDA": joined_values(run.cuda for run in seen),
        "NCCL": joined_values(run.nccl for run in seen),
    }
    versions_text = ", ".join(f"{title} {found}" for title, found in versions.items() if found)
    software = joined_values(run.run.software for run in seen)
    return "; ".join(filter(None, (software, versions_text)))


def joined_values(values: Iterable[str], between: str = ", ") -> str:
    """Return the values, each once in order, joined by ``between``: ``a, b, c, d, 3 more``.

    Of more than ``_MOST`` values the first ``_MOST`` are there, and how many more. Empty texts are left out; empty
    without any other.
    """
    names = list(dict.fromkeys(value for value in values if value))
    more = [f"{len(names) - _MOST} more"] if len(names) > _MOST else []
    return between.join([*names[:_MOST], *more])
