"""Nodes under load, and what the runs on record say of those that the measurement of their fabric warns of."""

from __future__ import annotations

import time
from collections.abc import Sequence

from llmb_common.executors.base import Executor
from llmb_common.health.ask import Health
from llmb_common.health.fabric import check_nodes_under_load
from llmb_common.health.training import with_training
from llmb_common.measured.measure import measure
from llmb_common.measured.run import MeasuredRun, timed
from llmb_common.nodes.needs import Needs
from llmb_common.planning.workspace import Workspace
from llmb_common.results.slow_nodes import node_runs
from llmb_common.runs.index.runs import RunFilter
from llmb_common.runs.index.search import find_runs
from llmb_common.submission.excluded_nodes import REMEMBERED_DAYS, used_again


def look_at_fabric(
    executor: Executor,
    needs: Needs,
    nodes: Sequence[str],
    *,
    workspace: Workspace,
    wait: int = 60,
    sizes: bool = False,
) -> Health:
    """Measure ``nodes`` under load in a job; return their health, with suspects judged by recent runs, too.

    ``executor`` submits the job; ``needs`` are the requirements that the nodes are held against; ``nodes`` are
    names. The runs are those of the last seven days in the installation of ``workspace`` that have ended. They are
    read only where the measurement of the network makes a node a suspect. ``wait``: seconds for the job to start,
    an error if it does not; ``sizes``: buffers of several sizes are measured, too. Returns when the job has ended;
    no node is excluded.

    Raises:
        RecordError: a list of the installation, or the record of a recent run, cannot be read
        LLMBError: the nodes cannot be measured, there is no installation, or its configuration or a recipe cannot
            be read
        OSError: a part of LLMB cannot be read
    """
    install = workspace.require_install()
    found = check_nodes_under_load(executor, needs, nodes, install, wait=wait, sizes=sizes)
    if found.fabric is None or not found.fabric.verdict.suspects:
        return found
    rows = find_runs(install, RunFilter(since=time.time() - REMEMBERED_DAYS * 86400, live=False))
    mended = used_again(install)
    runs = [run for run in measure(rows, workspace) if _still_says(run, mended)]
    return with_training(found, node_runs(timed(runs)))


def _still_says(run: MeasuredRun, mended: dict[str, float]) -> bool:
    """Return whether a past run still tells about its nodes: none was put back into use after the run was made.

    A node that was put back may have been repaired. ``mended``: when each node was put back, as Unix time, by its
    name as runs have it; others never were. True for a run without a good measurement, which names no node.

    Raises:
        RecordError: the run's record cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    nodes = run.good.nodes.split(",") if run.good else []
    return all(run.created >= mended.get(node, 0.0) for node in nodes)
