"""``llmb-run accept`` from its arguments to its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.command.outcome import Result
from llmb_common.errors import LLMBError, RequestError
from llmb_common.machine.files import write_atomic, write_json
from llmb_run.acceptance.frozen import Frozen, changes, freeze, frozen_reference
from llmb_run.acceptance.outcome import STATUS, as_text, outcome, with_conclusion
from llmb_run.acceptance.pack import HEALTH, write_pack
from llmb_run.acceptance.planned import Workload, plan_suite
from llmb_run.acceptance.preview import at_best, foreseen, planned, planned_text
from llmb_run.acceptance.signing import check_key, sign
from llmb_run.acceptance.standing import Judged
from llmb_run.acceptance.suite import Suite, find_suite, read_suite
from llmb_run.campaigns.conduct import Conduct
from llmb_run.campaigns.folder import ANEW, Campaign, open_campaign
from llmb_run.campaigns.frozen import began_with, begin_or_go_on
from llmb_run.place import Place
from llmb_run.starting.nodes import require_health
from llmb_run.starting.submitting import say_doubts, say_warnings
from llmb_run.terminal import notice


def accept(word: str, *, again: bool, folder: Path | None, sign_with: Path | None = None, dry_run: bool) -> Result:
    """Begin, continue or show the campaign of the suite ``word``; sign its evidence with a key, if one is given.

    Raises:
        LLMBError: it cannot be planned, begun or continued
    """
    if sign_with is not None:
        check_key(sign_with)  # now, and not after days of runs
    place = Place()
    suite = read_suite(*find_suite(word), place)
    if dry_run:
        workloads = plan_suite(suite, place, dry_run=True)
        say_warnings([item.asked for item in workloads if item.asked])
        return _show_plans(workloads, suite)
    campaigns = folder or place.require_install() / "campaigns"
    with open_campaign(campaigns, "accept", suite.name, str(suite.path), again=again) as campaign:
        if (result := campaign.result()) is not None:
            _refuse_other_suite(campaign, suite)
            notice("this campaign is over; --again begins another one")
            return _shown(campaign, with_conclusion(result), sign_with)
        workloads = plan_suite(suite, place, dry_run=False)
        say_warnings([item.asked for item in workloads if item.asked])
        say_doubts(item.plan for item in workloads)
        if not campaign.frozen_file.exists():
            write_atomic(campaign.folder / "suite.yaml", suite.text)
        frozen = begin_or_go_on(campaign, freeze(campaign, suite, workloads), changes)
        workloads = with_frozen_references(workloads, frozen)
        for text in foreseen(workloads):
            notice(text)
        if suite.health and not (campaign.folder / HEALTH).exists():
            _look_at_nodes(campaign, workloads, place)
        judged = Judged(workloads)
        runs = Conduct(campaign, [item.arm for item in workloads], judged, place, notice).to_the_end()
        standings = judged.standings(runs)
        result = outcome(frozen, standings)
        result |= write_pack(campaign, frozen, result, standings, place)
        write_json(campaign.result_file, result)  # last: it says that nothing is left to do
        return _shown(campaign, result, sign_with)


def _look_at_nodes(campaign: Campaign, workloads: Sequence[Workload], place: Place) -> None:
    """Once: a campaign that goes on keeps what it began with. Busy nodes are the pre-screen's runs to look at."""
    nodes, why = [], ""
    try:
        nodes = require_health([item.plan for item in workloads], place)
    except LLMBError as error:
        if error.code != "no-nodes":
            raise
        why = error.message
        notice(f"health: {why}")
    write_json(campaign.folder / HEALTH, {"schema": 1, "nodes": msgspec.to_builtins(nodes), "why": why})


def with_frozen_references(workloads: Sequence[Workload], frozen: Frozen) -> list[Workload]:
    """The workloads, compared with what the campaign began with."""
    return [
        replace(item, reference=frozen_reference(kept), scatter=kept.scatter, earlier=kept.earlier)
        for item, kept in zip(workloads, frozen.workloads, strict=True)
    ]


def _refuse_other_suite(campaign: Campaign, suite: Suite) -> None:
    frozen = began_with(campaign, Frozen)
    if frozen is not None and frozen.suite_sha256 != suite.sha256:
        raise RequestError(
            f"the campaign of {suite.path} is over, and the suite has been changed since",
            remedy=ANEW,
            code="changed-inputs",
        )


def _shown(campaign: Campaign, result: dict[str, Any], sign_with: Path | None) -> Result:
    pack = campaign.folder / result["pack"]
    signature = str(sign(pack, sign_with)) if sign_with is not None else None
    return Result(
        {**result, "folder": str(campaign.folder), "signature": signature},
        as_text(result),
        status=STATUS[result["outcome"]],
        remarks=[
            f"evidence: {pack}",
            f"sha256 {result['pack_sha256']}; keep it apart from the file: llmb-run accept verify --sha256 checks it",
            f"signature: {signature or 'none (--sign FILE)'}",
        ],
    )


def _show_plans(workloads: Sequence[Workload], suite: Suite) -> Result:
    return Result(
        lambda: {
            "dry_run": True,
            "suite": suite.name,
            "suite_sha256": suite.sha256,
            "at_best": at_best(workloads),
            "workloads": [planned(item) for item in workloads],
        },
        lambda: planned_text(workloads),
        remarks=[*foreseen(workloads), f"{len(workloads)} workloads, nothing started (dry run)"],
    )
