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
    """Cluster, GPUs, software, dates and people of a report's runs: pairs of a name and a text, safe to print.

    What nothing is known of is left out.
    """
    days = sorted({time.strftime("%Y-%m-%d", time.gmtime(run.run.created)) for run in seen})
    lines = (
        ("Cluster", _cluster(seen, workspace)),
        ("GPUs", _gpus(seen)),
        ("Software", _software(seen)),
        ("Measured", " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))),
        ("By", workspace.cluster.operator or listed(run.owner for run in seen)),
    )
    return tuple((name, printable(text)) for name, text in lines if text)


def _cluster(seen: Sequence[SeenRun], workspace: Workspace) -> str:
    """The cluster, its queues, and from where the runs were submitted; empty where nothing is known."""
    hosts = listed(run.host for run in seen)
    submitted = f"submitted from {hosts}" if hosts else ""
    words = (workspace.cluster.cluster_name, listed(run.queue for run in seen), submitted)
    return ", ".join(word for word in words if word)


def _gpus(seen: Sequence[SeenRun]) -> str:
    """The GPUs that the runs had, ``4 nodes with 8 H100``, by their nodes' own account, else as planned.

    Empty without runs.
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
    return listed([*found, *planned], "; ")


def _software(seen: Sequence[SeenRun]) -> str:
    """One line with the software that the runs trained with, then the versions of driver, CUDA and NCCL.

    What is unknown is left out; several values of one are listed. Empty: nothing is known.
    """
    versions = {
        "driver": listed(run.driver for run in seen),
        "CUDA": listed(run.cuda for run in seen),
        "NCCL": listed(run.nccl for run in seen),
    }
    said = ", ".join(f"{title} {found}" for title, found in versions.items() if found)
    software = listed(run.run.software for run in seen)
    return "; ".join(filter(None, (software, said)))


def listed(values: Iterable[str], between: str = ", ") -> str:
    """Each of the values once, as they come, at most ``_MOST`` of them: ``a, b, c, d, 3 more``.

    Empty texts are left out.
    """
    names = list(dict.fromkeys(value for value in values if value))
    more = [f"{len(names) - _MOST} more"] if len(names) > _MOST else []
    return between.join([*names[:_MOST], *more])
