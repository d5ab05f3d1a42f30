"""The second stage on one node: its GPUs at work, by themselves, together, and with another node's.

This process imports torch and touches no GPU: a child with a limit does, so that one that hangs is killed and named.
Nodes wait for each other in pairs only, and for seconds only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from llmb_train.evidence import gpus
from llmb_train.evidence.machine import node_name
from llmb_train.health.children import call_all

ALONE_SECONDS = 60.0
TOGETHER_SECONDS = 60.0
"""For the products and copies of a GPU, and for a group's all-reduce with its rendezvous."""
_LOOKS = 3
"""At the GPUs under load: ``runs.evidence`` judges a clock by as many."""


def stress(spec: dict[str, Any]) -> dict[str, Any]:
    """``alone`` by GPU, ``load`` (looks under load), and of the ``groups`` that this node is in what its ranks gave.

    ``spec``: ``device``, ``gpus`` of a node, whether they work ``alone``, and ``groups`` of nodes in their order, each
    with its ``port``; ``addresses`` of nodes, and further variables (``env``).
    """
    import torch  # noqa: F401 - once, for all children

    os.environ.update(spec.get("env", {}))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # a step of one task may have been bound to one core
    from llmb_train.health import ranks

    node, count = node_name(os.environ), spec["gpus"]
    found: dict[str, Any] = {"groups": []}
    if spec["alone"]:
        calls = {str(index): (_call(ranks.alone, spec["device"], index), ALONE_SECONDS) for index in range(count)}
        if spec["device"] == "cuda":
            calls["load"] = (_looks_under_load, ALONE_SECONDS)
        found["alone"] = call_all(calls)
        found["load"] = found["alone"].pop("load", {}).get("value", [])
    for group in spec["groups"]:
        if node in group["nodes"]:
            first = group["nodes"].index(node) * count
            calls = {
                str(index): (_call(ranks.together, spec, group, first + index, index), TOGETHER_SECONDS)
                for index in range(count)
            }
            found["groups"].append({"nodes": group["nodes"], "ranks": call_all(calls)})
    return found


def _call(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    return lambda: function(*arguments)


def _looks_under_load() -> list[dict[str, Any]]:
    """As in a run's evidence, once the GPUs are warm."""
    time.sleep(ALONE_SECONDS / 6)
    return [gpus.changing(gpus.snapshot()) for _ in range(_LOOKS)]
