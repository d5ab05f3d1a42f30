"""``llmb-run why --slow --test``: what each difference of a gap contributes, measured in turns.

Each difference is a comparison of its own, as ``ab`` makes it: the run's job (A), and the same with what it takes from
the other side (B). All at once are the last one, since contributions need not add up. Every look of every comparison
is at the rate of ``ab``'s divided by how many there are (Bonferroni): all intervals hold together in 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.command.outcome import Result
from llmb_common.command.printable import counted
from llmb_common.errors import LLMBError, RequestError
from llmb_common.results.configuration import title_of
from llmb_common.results.decision import Bounded, less
from llmb_common.results.paired import RATE, fewest
from llmb_common.runs.record import RunRecord
from llmb_common.submission.preflight import check
from llmb_common.submission.rounds import digest_of_plan
from llmb_run.campaigns.campaign import Arm, Campaign, Frozen, answered, began_with, begin_or_go_on, frozen_now
from llmb_run.campaigns.conduct import Conduct, Due, Runs
from llmb_run.comparing.ab import outcome, refuse_untimed, say_what_changed, signed, spec_of_run
from llmb_run.comparing.gap import Found, Gap, GapDifference, find_gap, taken
from llmb_run.comparing.strategy import ComparisonProgress, InTurns, Rule
from llmb_run.starting.requests import PlannedJob, plan_job
from llmb_run.starting.submitting import say_doubts, say_warnings
from llmb_run.terminal import notice, table
from llmb_run.workspace import Workspace

TOGETHER = "all of these together"


@dataclass(frozen=True)
class Parts:
    """The strategy: arms 1 and 2 are the first comparison's, 3 and 4 the second's, and so on.

    With a budget one follows the other. ``together``: whether the last one has all the changes of the others.
    """

    seed: str
    rule: Rule
    together: bool = False

    def due(self, arms: Sequence[Arm], runs: Runs) -> list[Due]:
        """Of every comparison what ``InTurns`` wants; with a budget, of the first that is not over."""
        standings, found = self.standings(arms, runs), list[Due]()
        for at, standing in enumerate(standings):
            if self.why_not(standings, at):
                continue
            part = InTurns(f"{self.seed} {at}", standing.rule)
            own = {number: runs[2 * at + number] for number in (1, 2)}
            found += [
                replace(due, arm=2 * at + due.arm, block=(due.block or 0) * len(standings) + at)
                for due in part.due(standing.arms, own)
            ]
            if self.rule.budget is not None and (found or any(run.live for these in own.values() for run in these)):
                break
        return found

    def standings(self, arms: Sequence[Arm], runs: Runs) -> list[ComparisonProgress]:
        """Of each comparison; what the others have spent is no longer in its budget."""
        count = len(arms) // 2
        rule = replace(self.rule, rate=RATE / count, precise=True)
        hours = [sum(run.hours for number in (1, 2) for run in runs[2 * at + number]) for at in range(count)]
        found = []
        for at in range(count):
            left = None if rule.budget is None else rule.budget - sum(hours) + hours[at]
            part = InTurns(f"{self.seed} {at}", replace(rule, budget=left))
            found.append(part.standing(arms[2 * at : 2 * at + 2], {n: runs[2 * at + n] for n in (1, 2)}))
        return found

    def why_not(self, standings: Sequence[ComparisonProgress], at: int) -> str:
        """Why a comparison is not begun; empty where it is, or may be."""
        if standings[at].blocks:
            return ""
        failures = [standing.failure for standing in standings if standing.failure]
        if any(failure.startswith("A ") for failure in failures):
            return "the run's own job fails"
        if failures and self.together and at == len(standings) - 1:
            return "one of them fails"
        good = [standing for standing in standings if standing.good]
        each = sum(standing.hours for standing in good) / sum(len(standing.good) for standing in good) if good else 0.0
        spent = sum(standing.hours for standing in standings)
        over = self.rule.budget is not None and spent + 2 * each >= self.rule.budget
        return "not tested within the budget" if over else ""


# The result


def result_of(gap: Gap, parts: Parts, arms: Sequence[Arm], runs: Runs) -> dict[str, Any]:
    """The content of ``result.json``: the gap, what was tested of it, as ``ab`` says it, and what is left."""
    standings = parts.standings(arms, runs)
    tests = [
        outcome(standing, {}) if standing.blocks else {"why": parts.why_not(standings, at)}
        for at, standing in enumerate(standings)
    ]
    together = tests.pop() if parts.together else None
    waiting = iter(tests)
    rows = [
        {**msgspec.to_builtins(item), "said": str(item), "tested": next(waiting) if item.takes else None}
        for item in gap.differences
    ]
    known = [_logs(test) for test in tests if test.get("difference")]
    whole = _logs(together) if together and together.get("difference") else None
    complete = whole is not None and len(known) == len(tests)
    return {
        "schema": 1,
        "rule": msgspec.to_builtins(parts.rule),
        "gap_percent": _percent(_gap(gap)) if gap.change else None,
        "differences": rows,
        "together": together,
        "interaction": _percent(less(whole, known)) if whole and complete else None,
        "unexplained": _percent(less(_gap(gap), [whole] if whole else known)) if gap.change else None,
        "gpu_hours": round(sum(standing.hours for standing in standings), 4),
    }


def _logs(test: Mapping[str, Any]) -> Bounded:
    found = test["difference"]
    low, middle, high = (math.log1p(found[f"{name}_percent"] / 100) for name in ("low", "difference", "high"))
    return low, middle, high


def _gap(gap: Gap) -> Bounded:
    assert gap.change is not None
    return math.log(gap.change.low), math.log(gap.change.ratio), math.log(gap.change.high)


def _percent(found: Bounded) -> dict[str, float]:
    names = ("low_percent", "difference_percent", "high_percent")
    return {name: round(100 * math.expm1(log), 3) for name, log in zip(names, found, strict=True)}


def status_of_all(result: Mapping[str, Any]) -> int:
    """As of ``ab``: 0: all are known as precisely as asked; 1: one failed, or its work is not equal; 4: one is open."""
    tests = [*(row["tested"] for row in result["differences"] if row["tested"]), result["together"]]
    tests = [test for test in tests if test]
    if any(test.get("answer") == "failed" or not test.get("equal_work", True) for test in tests):
        return 1
    return 4 if any(test["why"] for test in tests) else 0


def as_table(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """For people: what would change, and by how much the run's step time then does."""
    for row in result["differences"]:
        yield row["said"], _told(row["tested"]) if row["tested"] else f"not tested: {row['why']}"
    if result["together"]:
        yield TOGETHER, _told(result["together"])
    if found := result["interaction"]:
        yield "of that by interaction", _plus_minus(found)
    if found := result["unexplained"]:
        parts = sum(bool((row["tested"] or {}).get("difference")) for row in result["differences"])
        whole = (result["together"] or {}).get("difference") or parts < 2
        name = "unexplained" if whole else "unexplained, if contributions add up"
        yield name, f"{_plus_minus(found)}, of {_plus_minus(result['gap_percent'])} in all"


def _told(test: Mapping[str, Any]) -> str:
    if test.get("answer") == "failed" or not test.get("difference"):
        return f"{'fails' if test.get('answer') == 'failed' else 'not known'}: {test['why']}"
    found = test["difference"]
    said = [f"{_plus_minus(found)} ({counted(found['pairs'], 'pair')})"]
    if names := test["unequal_work"]:
        said.append(f"not the same work ({', '.join(names)})")
    elif not test["equal_work"]:
        said.append(f"not the same work: losses are {test['loss']['relative_difference']:.1%} apart")
    if test["why"]:
        said.append(f"less precise than asked: {test['why']}")
    return "; ".join(said)


def _plus_minus(found: Mapping[str, float]) -> str:
    middle = found["difference_percent"]
    half = max(found["high_percent"] - middle, middle - found["low_percent"])
    return f"{signed(middle)} ± {half:.1f} %"


class FrozenGap(Frozen, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``arms``: the run's job, with each difference that can be tested, with all where there are several.

    The runs of a campaign may become the fastest here, and change what a gap is: it is found once.
    """

    gap: Gap


def attribute(record: RunRecord, rule: Rule, workspace: Workspace, *, again: bool, folder: Path | None) -> Result:
    """Begin, continue or show the test of what differs.

    Raises:
        LLMBError: it cannot be planned, begun or continued, or nothing can be tested
    """

    def measured(campaign: Campaign) -> dict[str, Any]:
        kept = _begin_or_go_on(campaign, record, workspace)
        base, *others = (item.arm for item in kept.arms)
        if rule.most < (few := fewest(RATE / len(others))):
            raise RequestError(
                f"--pairs {2 * rule.most}: so few are never sure enough of {len(others)} comparisons at once",
                remedy=f"--pairs {2 * few} or more",
            )
        notice(f"{counted(len(others), 'comparison')}, each of at most {4 * rule.most} runs: {campaign.folder}")
        arms = [arm for other in others for arm in (replace(base, title=f"A beside {other.title}"), other)]
        parts = Parts(campaign.id, rule, together=len(others) > 1)
        runs = Conduct(campaign, arms, parts, workspace, notice).to_the_end()
        return result_of(kept.gap, parts, arms, runs)

    def shown(result: dict[str, Any]) -> Result:
        run_id = record.paths.run_id
        status = status_of_all(result)
        text = table(["what would change", "its step time then"], [*as_table(result)])
        text += f"95 % intervals, all together; {result['gpu_hours']:.3g} GPU-hours\n"
        if status == 4:
            text += f"a larger --budget or more --pairs go on: llmb-run why --slow --test {run_id}\n"
        return Result({"runs": [{"run": run_id, "contributions": result}]}, text, status=status)

    return answered(
        folder or workspace.require_install() / "campaigns",
        "why",
        f"why-{record.plan.workload}",
        record.paths.run_id,
        find=measured,
        show=shown,
        again=again,
        is_over=lambda result: result["rule"] == msgspec.to_builtins(rule),
    )


def _begin_or_go_on(campaign: Campaign, record: RunRecord, workspace: Workspace) -> FrozenGap:
    then = began_with(campaign, FrozenGap)
    if then is None:
        found = find_gap(record, workspace)
        if found.here is None:
            raise RequestError("the run's job cannot be planned today", remedy="llmb-run retry says why")
        refuse_untimed(found.here.plan, "the run's job")
        check(found.here.plan)
        say_what_changed(record, found.here.plan)
        gap, tests = _testable(found, workspace)
        planned = [found.here, *(item for _, item in tests)]
        say_warnings(planned)
        say_doubts(item.plan for item in planned)
        titles = [f"A ({title_of(found.here.plan)})", *(title for title, _ in tests)]
        arms = [Arm(item.plan, item.entry.folder, title) for item, title in zip(planned, titles, strict=True)]
    else:
        here = plan_job(spec_of_run(record, workspace.workload(record.plan.workload).recipe), workspace)
        gap, arms = then.gap, [replace(item.arm, recipe_folder=here.entry.folder) for item in then.arms]
        arms[0] = replace(arms[0], plan=here.plan)
    return begin_or_go_on(campaign, frozen_now(campaign, arms, FrozenGap, gap=gap))


def _testable(found: Found, workspace: Workspace) -> tuple[Gap, list[tuple[str, PlannedJob]]]:
    """The gap, which says of every difference whether it is tested, and what is."""
    tests, rows = list[tuple[str, PlannedJob]](), list[GapDifference]()
    for item in found.gap.differences:
        planned = _test(found, item.takes, workspace) if item.takes else None
        if isinstance(planned, PlannedJob):
            tests.append((f"B ({item.name}: {item.there})", planned))
        elif planned is not None:
            item = msgspec.structs.replace(item, takes=(), why=planned)
        rows.append(item)
    if not tests:
        raise RequestError(
            "nothing of what differs can be tested",
            remedy=f"llmb-run why --slow {found.gap.best or 'RUN'} lists what differs",
            code="nothing-to-test",
        )
    if len(tests) > 1:
        every = _test(found, [name for item in rows for name in item.takes], workspace)
        if isinstance(every, PlannedJob):
            tests.append((f"B ({TOGETHER})", every))
    return msgspec.structs.replace(found.gap, differences=tuple(rows)), tests


def _test(found: Found, names: Any, workspace: Workspace) -> PlannedJob | str:
    """The run's job with what it takes, or why that cannot be timed."""
    assert found.here is not None
    assert found.there is not None
    try:
        planned = plan_job(taken(found.here.spec, found.there, names), workspace)
        refuse_untimed(planned.plan, "it")
        check(planned.plan)
    except LLMBError as error:
        return error.message
    one, other = (digest_of_plan(msgspec.structs.replace(item.plan, overridden=())) for item in (found.here, planned))
    return planned if one != other else "the run's job has it already"
