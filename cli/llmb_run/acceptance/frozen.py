"""What an acceptance campaign began with, beside what every campaign keeps: its suite, and what it compares with.

References, and how the site's runs differ, are only kept, and may change: a run of the campaign itself may have become
a baseline since, and its runs would have a say in how much they may scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmb_common.results.references import Reference
from llmb_common.results.scatter import NOTHING_SEEN, STATED, Scatter, Squares
from llmb_run.acceptance.planned import Workload
from llmb_run.acceptance.suite import Suite
from llmb_run.campaigns import frozen
from llmb_run.campaigns.folder import Campaign


class FrozenWorkload(frozen.FrozenArm, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One workload of the suite as it was when the campaign began, with its reference and scatter."""

    where: str
    reference: dict[str, Any] | None
    scatter: Scatter = STATED
    earlier: Squares = NOTHING_SEEN


class Frozen(frozen.Frozen, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``campaign.json``: the suite and its workloads as they were when the campaign began."""

    suite: str
    suite_name: str
    suite_sha256: str
    workloads: tuple[FrozenWorkload, ...]


def freeze(campaign: Campaign, suite: Suite, workloads: Sequence[Workload]) -> Frozen:
    """The campaign's suite and workloads as they are now, to be written or compared."""
    common, arms = frozen.now(campaign, [item.arm for item in workloads])
    return Frozen(
        **common,
        suite=str(suite.path),
        suite_name=suite.name,
        suite_sha256=suite.sha256,
        workloads=tuple(
            FrozenWorkload(
                **arm,
                where=item.entry.where,
                reference=_reference(item.reference),
                scatter=item.scatter,
                earlier=item.earlier,
            )
            for arm, item in zip(arms, workloads, strict=True)
        ),
    )


def _reference(reference: Reference | None) -> dict[str, Any] | None:
    if reference is None:
        return None
    names = ("kind", "seconds", "software", "source", "same_software", "error", "notes")
    return {name: getattr(reference, name) for name in names}


def frozen_reference(kept: FrozenWorkload) -> Reference | None:
    """The reference with which the campaign began; None for a workload without one."""
    if kept.reference is None:
        return None
    return Reference(**kept.reference | {"notes": tuple(kept.reference.get("notes", ()))})


def changes(then: Frozen, now: Frozen) -> list[str]:
    """What is different, a line each, in words that say where to look."""
    found = frozen.changes(then, now)
    if then.suite_sha256 != now.suite_sha256:
        found.append(f"suite {then.suite}: its content")
    if len(then.workloads) != len(now.workloads):
        return [*found, f"number of workloads: {len(then.workloads)} -> {len(now.workloads)}"]
    return found + frozen.arm_changes(then.workloads, now.workloads)
