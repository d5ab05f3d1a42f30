"""A way of running jobs that does as a test tells it: ``waits`` keeps them in a queue, ``follows`` runs each now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from llmb_common.base import cluster_types
from llmb_common.base.cluster_types import ClusterType, Traits
from llmb_common.base.errors import LLMBError
from llmb_common.executors.base import Executor
from llmb_common.executors.local.script import TorchrunScript
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.finding import Finding
from llmb_common.runs.record import COMPLETED, SUBMITTED, RunRecord, update_record


@dataclass
class Told:
    """What the scheduler does, and what it was asked."""

    starts: Callable[[RunRecord], object] = lambda record: None
    """Called for each start; may raise."""
    sees: Callable[[RunRecord], Finding] = lambda record: Finding()
    started: list[tuple[RunRecord, bool]] = field(default_factory=list)
    """Records as they were, and whether to detach."""
    looked: int = 0
    checks: Callable[[JobPlan], object] = lambda plan: None
    """Called for each look at what a plan needs; may raise."""
    checked: list[JobPlan] = field(default_factory=list)
    ends: Callable[[RunRecord], RunRecord | LLMBError | None] = lambda record: None
    """The record of one whose end is certain, why one was not ended, or None: it was asked to end."""
    ended: list[str] = field(default_factory=list)
    """Run ids."""


told = Told()
"""What ``told_executor`` gave last."""


class ToldExecutor(TorchrunScript, Executor):
    """Does what ``told`` says."""

    def job_script(self) -> str:
        return "job=1 nodes=here restarts=0 late_signals=0"

    def check(self, plan: JobPlan) -> None:
        told.checked.append(plan)
        told.checks(plan)

    def options(self, plan: JobPlan, after: Sequence[str], excluded: Mapping[str, str]) -> tuple[str, ...]:
        return (f"after={','.join(after)}",) if after else ()

    def start(self, record: RunRecord, *, detach: bool = False) -> RunRecord:
        told.started.append((record, detach))
        told.starts(record)
        number, state = str(len(told.started)), SUBMITTED if record.plan.traits.queued else COMPLETED
        return update_record(record.paths.folder, lambda found: replace(found, job_id=number).with_state(state))

    def poll(self, records: Sequence[RunRecord]) -> dict[str, Finding]:
        told.looked += 1
        return {record.paths.run_id: told.sees(record) for record in records}

    def cancel(self, records: Sequence[RunRecord]) -> dict[str, RunRecord | LLMBError]:
        said = {record.paths.run_id: told.ends(record) for record in records}
        told.ended += said
        return {run_id: result for run_id, result in said.items() if result is not None}


def told_executor(patch: pytest.MonkeyPatch) -> Told:
    """Both ways of running jobs; what they are told."""
    global told  # executors have no state
    told = Told()
    for name, queued in (("waits", True), ("follows", False)):
        executor = f"{__name__}:{ToldExecutor.__name__}"
        traits = Traits(
            name=ClusterType(name), executor=executor, this_machine=True, queued=queued, dependencies=queued
        )
        patch.setitem(cluster_types.all_traits(), name, traits)
    return told
