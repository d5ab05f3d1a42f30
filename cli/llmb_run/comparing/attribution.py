"""``llmb-run why --slow --test`` from its run to its table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.command.printable import counted
from llmb_common.errors import LLMBError, RequestError
from llmb_common.machine.files import write_json
from llmb_common.results.configuration import title_of
from llmb_common.results.paired import RATE, fewest
from llmb_common.runs.record import RunRecord
from llmb_common.submission.preflight import check
from llmb_common.submission.rounds import digest_of_plan
from llmb_run.campaigns import frozen
from llmb_run.campaigns.conduct import Arm, Conduct
from llmb_run.campaigns.folder import Campaign, open_campaign
from llmb_run.comparing.contributions import TOGETHER, Parts, result_of
from llmb_run.comparing.gap import Difference, Found, Gap, find_gap
from llmb_run.comparing.run import ask_of_run, refuse_untimed, say_what_changed
from llmb_run.comparing.strategy import Rule
from llmb_run.place import Place
from llmb_run.starting.requests import Asked, plan_ask
from llmb_run.starting.submitting import say_doubts, say_warnings
from llmb_run.terminal import notice


class Frozen(frozen.Frozen, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``campaign.json``. ``arms``: the run's job, with each difference that can be tested, with all where there are
    several. The runs of a campaign may become the fastest here, and change what a gap is: it is found once."""

    arms: tuple[frozen.FrozenArm, ...]
    recipe_folder: str
    gap: Gap


def attribute(record: RunRecord, rule: Rule, place: Place, *, again: bool, folder: Path | None) -> dict[str, Any]:
    """Begin, continue or show the test of what differs: the result, with the campaign's folder.

    Raises:
        LLMBError: it cannot be planned, begun or continued, or nothing can be tested
    """
    campaigns, name = folder or place.require_install() / "campaigns", f"why-{record.plan.workload}"
    with open_campaign(campaigns, "why", name, record.paths.run_id, again=again) as campaign:
        result = campaign.result()
        if result is not None and result["rule"] == msgspec.to_builtins(rule):
            notice("this test is over; --again begins another one")
            return result
        kept = _begin_or_go_on(campaign, record, place)
        base, *others = (Arm(frozen.plan_of(arm), Path(kept.recipe_folder), arm.title) for arm in kept.arms)
        _check_pairs(rule, len(others))
        notice(f"{counted(len(others), 'comparison')}, each of at most {4 * rule.most} runs: {campaign.folder}")
        arms = [arm for other in others for arm in (replace(base, title=f"A beside {other.title}"), other)]
        parts = Parts(campaign.id, rule, together=len(others) > 1)
        runs = Conduct(campaign, arms, parts, place, notice).to_the_end()
        result = result_of(kept.gap, parts, arms, runs) | {"folder": str(campaign.folder)}
        write_json(campaign.result_file, result)  # last: it says that nothing is left to do
        return result


def _check_pairs(rule: Rule, count: int) -> None:
    if rule.most < (few := fewest(RATE / count)):
        raise RequestError(
            f"--pairs {2 * rule.most}: so few are never sure enough of {count} comparisons at once",
            remedy=f"--pairs {2 * few} or more",
        )


def _begin_or_go_on(campaign: Campaign, record: RunRecord, place: Place) -> Frozen:
    then = frozen.began_with(campaign, Frozen)
    if then is None:
        found = find_gap(record, place)
        if found.here is None:
            raise RequestError("the run's job cannot be planned today", remedy="llmb-run retry says why")
        refuse_untimed(found.here.plan, "the run's job")
        check(found.here.plan)
        say_what_changed(record, found.here.plan)
        now = _frozen(campaign, found.here, *_testable(found, place))
        return frozen.begin_or_go_on(campaign, now, lambda then, now: [])
    here = plan_ask(ask_of_run(record, place.workload(record.plan.workload).recipe), place)
    plans = [here.plan, *map(frozen.plan_of, then.arms[1:])]
    arms = [Arm(plan, here.entry.folder, arm.title) for plan, arm in zip(plans, then.arms, strict=True)]
    common, made = frozen.now(campaign, arms)
    now = msgspec.structs.replace(then, **common, arms=tuple(frozen.FrozenArm(**arm) for arm in made))
    return frozen.begin_or_go_on(campaign, now, _changes)


def _changes(then: Frozen, now: Frozen) -> list[str]:
    return frozen.changes(then, now) + frozen.arm_changes(then.arms, now.arms)


def _testable(found: Found, place: Place) -> tuple[Gap, list[tuple[str, Asked]]]:
    """The gap, which says of every difference whether it is tested, and what is."""
    tests, rows = list[tuple[str, Asked]](), list[Difference]()
    for item in found.gap.differences:
        asked = _test(found, item.takes, place) if item.takes else None
        if isinstance(asked, Asked):
            tests.append((f"B ({item.name}: {item.there})", asked))
        elif asked is not None:
            item = msgspec.structs.replace(item, takes=(), why=asked)
        rows.append(item)
    if not tests:
        raise RequestError(
            "nothing of what differs can be tested",
            remedy=f"llmb-run why --slow {found.gap.best or 'RUN'} lists what differs",
            code="nothing-to-test",
        )
    if len(tests) > 1:
        every = _test(found, [name for item in rows for name in item.takes], place)
        if isinstance(every, Asked):
            tests.append((f"B ({TOGETHER})", every))
    return msgspec.structs.replace(found.gap, differences=tuple(rows)), tests


def _test(found: Found, names: Any, place: Place) -> Asked | str:
    """The run's job with what it takes, or why that cannot be timed."""
    assert found.here is not None
    try:
        asked = plan_ask(found.ask(names), place)
        refuse_untimed(asked.plan, "it")
        check(asked.plan)
    except LLMBError as error:
        return error.message
    one, other = (digest_of_plan(msgspec.structs.replace(item.plan, overridden=())) for item in (found.here, asked))
    return asked if one != other else "the run's job has it already"


def _frozen(campaign: Campaign, here: Asked, gap: Gap, tests: list[tuple[str, Asked]]) -> Frozen:
    asked = [here, *(item for _, item in tests)]
    say_warnings(asked)
    say_doubts(item.plan for item in asked)
    titles = [f"A ({title_of(here.plan)})", *(title for title, _ in tests)]
    arms = [Arm(item.plan, item.entry.folder, title) for item, title in zip(asked, titles, strict=True)]
    common, made = frozen.now(campaign, arms)
    return Frozen(
        **common,
        arms=tuple(frozen.FrozenArm(**arm) for arm in made),
        recipe_folder=str(here.entry.folder),
        gap=gap,
    )
