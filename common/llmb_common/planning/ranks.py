"""Where the ranks of a job are: its groups, and the place of each rank in them.

Megatron-core numbers ranks in the order tp-cp-ep-dp-pp, the first varying fastest (0.16.1 and 0.19,
``parallel_state.initialize_model_parallel``); experts have a grid of their own, in which TP is ETP, DP that of the
experts, and no CP. Megatron-Bridge 0.3 and 0.6 change that only where ``use_tp_pp_dp_mapping`` is set.
"""

from __future__ import annotations

from typing import NamedTuple

from llmb_common.planning.job_plan import JobPlan

ORDER = "tp-cp-ep-dp-pp"


class RankGroup(NamedTuple):
    """One kind of communication group of a job, such as TP: how many ranks are in a group, and how far apart.

    ``groups`` makes it. Members of a group are at ranks r, r + ``stride``, r + 2 * ``stride`` and so on.
    """

    name: str
    """``TP``, ``CP``, ``DP``, ``PP``, ``ETP``, ``EP`` or ``expert DP``."""
    size: int
    """Ranks in a group, at least 2."""
    stride: int
    """How many ranks its members are apart."""
    nodes: int
    """Number of nodes that the group of rank 0 spans; other groups of the kind may span more."""


def groups(plan: JobPlan) -> list[RankGroup]:
    """Return the kinds of communication groups of more than one rank that the job has; empty: it has one rank.

    They are in the order TP, CP, DP, PP, then ETP, EP and expert DP where the job has EP; kinds of one rank are left
    out.
    """
    grid = [("TP", plan.tp), ("CP", plan.cp), ("DP", plan.dp), ("PP", plan.pp)]
    experts = [("ETP", plan.etp or plan.tp), ("EP", plan.ep or 1), ("expert DP", plan.expert_dp or 1)]
    found = []
    for sizes in (grid, experts if plan.expert_dp is not None else []):
        stride = 1
        for name, size in sizes:
            if size > 1:
                # The group of rank 0 stands for all of its kind.
                nodes = {member * stride // plan.gpus_per_node for member in range(size)}
                found.append(RankGroup(name, size, stride, len(nodes)))
            stride *= size
    return found


def coordinates(plan: JobPlan, rank: int) -> dict[str, int]:
    """Return a rank's place in the job, by lower-case names, all from 0: ``{"rank": 9, "node": 1, "tp": 1, ...}``.

    Besides ``rank`` and ``node``, which follows from the GPUs used on each, there are ``tp``, ``cp``, ``dp`` and
    ``pp``; ``ep`` and ``etp`` only where the job has EP. A ``rank`` that the job does not have is not refused: its
    ``node`` and ``pp`` are then too large.
    """
    found = {"rank": rank, "node": rank // plan.gpus_per_node}
    rest = rank
    # Megatron's order: TP changes fastest from rank to rank, PP slowest.
    for name in ("tp", "cp", "dp"):
        rest, found[name] = divmod(rest, getattr(plan, name))
    found["pp"] = rest
    if plan.expert_dp is not None:
        rest, found["etp"] = divmod(rank, plan.etp or plan.tp)
        found["ep"] = rest % (plan.ep or 1)
    return found
