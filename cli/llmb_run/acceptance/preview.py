"""A dry run of a campaign: what would run, the limit of each workload, and how the campaign can end at best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmb_common.command.printable import counted
from llmb_common.planning.job_plan import plan_as_dict
from llmb_run.acceptance.outcome import conclusion
from llmb_run.acceptance.planned import Workload
from llmb_run.results.run_columns import reference_as_dict
from llmb_run.terminal import table


def planned(item: Workload) -> dict[str, Any]:
    """A workload of a dry run as JSON: what would be started, and what it would be compared with.

    ``limit_seconds`` is the slowest step that passes, ``limit_performance`` the share of the reference's performance
    that it is: ``required``, or less where the reference is only an indication.
    """
    entry, reference, limit = item.entry, item.reference, item.limit
    return {
        "title": item.title,
        "where": entry.where,
        "prescreen": entry.prescreen,
        "repeats": entry.repeats,
        "reruns": entry.reruns,
        "speed_wanted": entry.reference != "none",
        "indication": item.indication,
        "reference": reference_as_dict(reference) if reference else None,
        "required": entry.required if reference else None,
        "limit_seconds": limit,
        "limit_performance": reference.seconds / limit if reference and limit else None,
        "plan": plan_as_dict(item.plan),
    }


def planned_text(workloads: Sequence[Workload]) -> str:
    """The table of a dry run: each workload with GPUs, runs, reference and limit."""
    heads = ["workload", "GPUs", "nodes", "runs", "reruns", "reference s", "limit s", "required %", "reference"]
    return table(heads, [_planned_row(item) for item in workloads], heads[1:8])


def _planned_row(item: Workload) -> list[str]:
    entry, plan, reference, limit = item.entry, item.plan, item.reference, item.limit
    ahead = [item.title, str(plan.gpus), str(plan.nodes), str(entry.repeats), f"up to {entry.reruns}"]
    if reference is None or limit is None:
        return [*ahead, "", "", "", "only has to complete" if entry.reference == "none" else "none: not judged"]
    source = f"indication: {reference.source}, {reference.software}" if item.indication else reference.source
    share = f"> {100 * reference.seconds / limit:.1f}"
    return [*ahead, f"{reference.seconds:g}", f"{limit:.4g}", share, source]


def at_best(workloads: Sequence[Workload]) -> dict[str, Any]:
    """The conclusion where every workload passes, as ``outcome.conclusion`` gives it."""
    return conclusion([{**planned(item), "verdict": "pass"} for item in workloads])


def foreseen(workloads: Sequence[Workload]) -> list[str]:
    """What the references alone say of how the campaign can end, before anything runs."""
    main = [item for item in workloads if not item.entry.prescreen]
    judged = [item for item in main if item.reference is not None]
    best = at_best(workloads)
    if best["outcome"] == "not judged":
        return [
            f"{len(main) - len(judged)} of {counted(len(main), 'workload')} will be compared with nothing: at best this"
            " campaign ends NOT JUDGED (llmb-run baseline set RUN..., or reference: {seconds: ..., source: ...})"
        ]
    others = sum(item.indication for item in judged)
    if others:
        return [
            f"{others} of {counted(len(main), 'workload')} will be compared with a reference of other software, with a"
            " wider limit: at best this campaign ends ACCEPTED AS AN INDICATION"
        ]
    return []
