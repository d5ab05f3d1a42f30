"""What to do after looking at results: one command, for what is most urgent."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from llmb_common.command.printable import counted
from llmb_common.results.verdict import Verdict
from llmb_common.run_states import is_live
from llmb_run.results.groups import Group
from llmb_run.results.measuring import Measured

ENOUGH = 3
"""Runs of a baseline that an equal run can pass."""

_MOST_NAMED = 10


class Step(NamedTuple):
    """The smaller ``urgency``, the earlier; ``why`` in words."""

    urgency: int
    words: tuple[str, ...]
    why: str

    @property
    def command(self) -> str:
        """The command line, quoted for a shell."""
        return f"llmb-run {shlex.join(self.words)}"

    def __str__(self) -> str:
        return f"{self.command}  # {self.why}"


def next_step(groups: Sequence[Group]) -> Step:
    """The most urgent one of all groups, of the first of them where several are."""
    nothing = Step(9, ("list",), "what can be run and judged")
    return min((_step(item) for item in groups), key=lambda step: step.urgency, default=nothing)


def _step(item: Group) -> Step:
    live = [run for run in item.members if run.record and is_live(run.record.state)]
    if live:
        return Step(0, ("wait", *_ids(live)), f"{counted(len(live), 'run')} not yet ended")
    verdict = item.verdict
    unfit = [run for run in item.members if run.unfit]
    passed = verdict is not None and verdict.kind == "pass"
    if unfit and not (passed and item.members[0].good):
        return Step(1, ("show", *_ids(unfit[:1])), f"{item.title}: {unfit[0].unfit}")
    if verdict is None or verdict.kind == "not judged":
        return Step(8, ("show", *_ids(item.members[:1])), f"{item.title}: {verdict.text if verdict else 'no figures'}")
    if verdict.kind == "no reference":
        return _make_reference(item, verdict.text)
    if verdict.kind == "fail":
        slowest = max(item.members, key=lambda run: run.good.seconds if run.good else 0.0)
        return Step(2, ("show", *_ids([slowest])), f"{item.title} is too slow: what its slowest run's nodes say")
    if verdict.kind == "inconclusive":
        return _more(item, verdict)
    if verdict.reference and verdict.reference.kind == "baseline":
        return Step(7, ("results", "--history"), "all pass: how the configurations change over time")
    return _make_reference(item, "later runs are then compared with this site's own")


def _more(item: Group, verdict: Verdict) -> Step:
    """Where the answer is open."""
    decision = verdict.decision
    if decision and decision.reference_too_uncertain:
        return Step(3, ("baseline", "list"), f"{item.title}: its baseline is of too few runs to decide")
    # A single run does not show how much they differ, and so not how many it takes.
    first = max(ENOUGH - 1 - item.waiting, 1) if len(item.runs) == 1 else None
    if decision and (count := min(filter(None, (decision.more_runs, first)), default=None)):
        days = ", on other days" if decision.other_days else ""
        return _repeat(3, item, count, f"{item.title} is inconclusive: more runs{days}", spread=decision.other_days)
    return Step(6, ("report", "--html", "report.html"), f"{item.title}: {verdict.text}")


def _make_reference(item: Group, why: str) -> Step:
    """A baseline of the runs, where these are enough."""
    if len(item.runs) < ENOUGH:
        return _repeat(5, item, ENOUGH - len(item.runs), f"{ENOUGH} runs make a baseline; {why}")
    ids = [record.paths.run_id for record in item.runs[:_MOST_NAMED]]
    return Step(4, ("baseline", "set", *ids), f"{item.title}: {why}")


def _repeat(urgency: int, item: Group, count: int, why: str, *, spread: bool = False) -> Step:
    days = ("--spread", str(count)) if spread and item.runs[-1].plan.scheduler is not None else ()
    return Step(urgency, ("retry", item.runs[-1].paths.run_id, "--repeats", str(count), *days), why)


def _ids(runs: Sequence[Measured]) -> list[str]:
    return [run.record.paths.run_id for run in runs[:_MOST_NAMED] if run.record]
