"""What a tuning is to try, and what it has found: as data, and in words."""

from __future__ import annotations

import math
from itertools import takewhile
from typing import Any

from llmb_common.command.printable import counted
from llmb_common.results.configuration import title_of
from llmb_run.campaigns.campaign import Frozen, FrozenArm
from llmb_run.campaigns.conduct import Run, Runs
from llmb_run.columns import Column, Form, item, table
from llmb_run.comparing.ab import outcome as comparison_outcome
from llmb_run.comparing.strategy import ComparisonProgress
from llmb_run.starting.command_line import command_for
from llmb_run.tuning.halving import CRASHED, trials_of
from llmb_run.tuning.space import MOST, Space
from llmb_run.tuning.strategy import LEAST_PROOF, PAIRS, Tuning, TuningState, in_order, is_full, other_work

SCHEMA = 2
"""Of what a tuning keeps: the first searched by predictions."""


class FrozenChoice(FrozenArm, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A configuration of the space: its command, and what it changes of the base."""

    command: str
    changes: dict[str, str]


class FrozenSpace(Frozen, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tuning chooses from, found once: another release, or other documented rows, would find others.

    ``space``: what ``preview`` says of it.
    """

    arm_kind = FrozenChoice
    schema: int = SCHEMA
    space: dict[str, Any]
    arms: tuple[FrozenChoice, ...]


def preview(space: Space, trial_steps: int, budget: float) -> dict[str, Any]:
    """The plan, before anything starts."""
    candidates = len(space.arms) - 1
    return {
        "base": title_of(space.base.plan),
        "values": {name: list(values) for name, values in space.values.items()},
        "combinations": space.combinations,
        "looked_at": space.drawn,
        "candidates": candidates,
        "may_not_fit": sum(item.plan.preflight.fits is False for item in space.arms[1:]),
        "refused": space.reasons,
        "example": space.example,
        "trials": trials_of(candidates),
        "trial_steps": trial_steps,
        "whole_runs": [LEAST_PROOF, 2 * PAIRS],
        "budget": budget if math.isfinite(budget) else None,
        "first": [command_for(item.plan, item.entry.recipe) for item in space.arms[:5]],
    }


def foreseen(said: dict[str, Any]) -> str:
    """``preview`` for people."""
    values = ", ".join(f"{name} {'/'.join(values)}" for name, values in said["values"].items())
    refused = ", ".join(f"{count} {why}" for why, count in said["refused"].items())
    doubtful = f"; {said['may_not_fit']} of them may not fit the memory" if said["may_not_fit"] else ""
    least, most = said["whole_runs"]
    lines = [
        f"base: {said['base']}",
        f"settings: {values}",
        f"candidates: {_candidates_said(said)}{doubtful}",
        f"refused: {refused or 'none'}",
        f"cost: {said['trials']} trials of {said['trial_steps']} steps, then {least} to {most} whole runs;"
        f" GPU-hours are known after the base's first run; budget {_hours_said(said['budget'])}",
    ]
    if said["example"]:
        lines.append(f"for example {said['example']}")
    return "".join(f"{line}\n" for line in lines)


def _candidates_said(said: dict[str, Any]) -> str:
    """How many of how many there are, and how they were chosen."""
    every = counted(said["combinations"], "combination")
    if said["looked_at"] < said["combinations"] and said["combinations"] > MOST:
        return f"{said['candidates']}, an even sample of {every}: {said['looked_at']} were looked at"
    return f"{said['candidates']}, all that can run of {every}"


def outcome(id: str, kept: FrozenSpace, tuning: Tuning, runs: Runs) -> dict[str, Any]:
    """What a tuning that is over has found."""
    state = tuning.state(runs)
    search, proof = state.search, state.proof
    leader = search.leader
    found = proof is not None and proof.answer == "faster"
    gains = _gains(proof)
    proved = _whole_runs(tuning, runs, leader) if leader else []
    result = {
        "schema": SCHEMA,
        "campaign": id,
        "base": {"title": kept.space["base"], "command": kept.arms[0].command},
        "winner": {
            "title": tuning.arms[leader].title,
            "changes": kept.arms[leader].changes,
            "command": kept.arms[leader].command,
            "run_ids": [run.record.paths.run_id for run in proved],
        },
        "ended": _ended(state, found=found),
        "found": found,
        **gains,
        "in_trials": 1 - search.ratios[leader] if leader else 0.0,
        "proof": comparison_outcome(proof, kept.arms[leader].changes) if proof is not None else None,
        "spent_hours": state.spent,
        "budget": tuning.budget if math.isfinite(tuning.budget) else None,
        "short_of_budget": state.short,
        "tried": sum(bool(runs[number]) for number in range(2, len(tuning.arms) + 1)),
        "space": kept.space,
        "arms": _arms(kept, tuning, runs, state),
        "crashed": crashed(tuning, runs, state),
        "trials": _trials(tuning, runs),
        "baseline": None,
    }
    failures = [run for run in runs[1] if not run.live and tuning.outcome(1, run, runs) != "timed"]
    why = _why(tuning, 1, failures[-1], runs) if failures else ""
    return {**result, "conclusion": _conclusion(result, why), "next": _next(result)}


def _ended(state: TuningState, *, found: bool) -> str:
    if state.search.base_fails:
        return "base failed"
    if found:
        return "found"
    if state.short:
        return "budget"
    return "unproved" if state.proof is not None else "nothing faster"


def _gains(proof: ComparisonProgress | None) -> dict[str, float | None]:
    """By which share the leader is faster, by whole runs, with the bounds of the comparison's interval."""
    found = proof.comparison if proof is not None else None
    if found is None:
        return {"gain": None, "gain_low": None, "gain_high": None}
    return {
        "gain": math.expm1(-found.difference),
        "gain_low": math.expm1(-found.high),
        "gain_high": math.expm1(-found.low),
    }


def _whole_runs(tuning: Tuning, runs: Runs, leader: int) -> list[Run]:
    """The whole runs of the leader that have a step time, and did the work."""
    number = leader + 1
    return [run for run in runs[number] if is_full(run) and tuning.outcome(number, run, runs) == "timed"]


def _hours_said(budget: float | None) -> str:
    return f"{budget:.4g} GPU-hours" if budget is not None else "without limit"


def _arms(kept: FrozenSpace, tuning: Tuning, runs: Runs, state: TuningState) -> list[dict[str, Any]]:
    """Every configuration that was tried: who leads first, the base behind those that were faster, who is out last."""
    search = state.search
    faster = [*takewhile(lambda at: search.ratios[at] < 1, search.order)]
    ranked = [*faster, 0, *search.order[len(faster) :]]
    rows = []
    for at in (*ranked, *search.out):
        listed = [run for run in runs[at + 1] if not run.live]
        if not listed:
            continue
        choice = kept.arms[at]
        rows.append(
            {
                "title": choice.title,
                "changes": choice.changes,
                "command": choice.command,
                "runs": len(listed),
                "ratio": search.ratios.get(at),
                "what": _why_out(tuning, at, runs, search.out[at]) if at in search.out else "",
            }
        )
    return rows


def _why_out(tuning: Tuning, at: int, runs: Runs, why: str) -> str:
    last = _why(tuning, at + 1, _failures(tuning, at, runs)[-1], runs)
    return f"{why}: {last}" if why in CRASHED else last


def _failures(tuning: Tuning, at: int, runs: Runs) -> list[Run]:
    """Runs of a configuration that have ended without a step time that counts."""
    return [run for run in runs[at + 1] if not run.live and tuning.outcome(at + 1, run, runs) != "timed"]


def crashed(tuning: Tuning, runs: Runs, state: TuningState) -> list[dict[str, Any]]:
    """Who is out, and was faster than who is chosen; and who crashed before it had a step time. The fastest first."""
    search = state.search
    chosen = search.ratios.get(search.leader, 1.0)
    rows = []
    for at, why in search.out.items():
        ratio = search.ratios.get(at)
        faster = ratio is not None and ratio < min(chosen, 1.0)
        if why == "other work" or not (faster or (ratio is None and why in CRASHED)):
            continue
        last = _failures(tuning, at, runs)[-1]
        rows.append({"title": tuning.arms[at].title, "why": why, "ratio": ratio, "run_id": last.record.paths.run_id})
    return sorted(rows, key=lambda row: (row["ratio"] is None, row["ratio"] or 0.0))


def _why(tuning: Tuning, number: int, run: Run, runs: Runs) -> str:
    ended = tuning.outcome(number, run, runs)
    if ended == "out of memory":
        return ended
    attempt = run.attempt
    return other_work(run, runs[1]) or (attempt.failure or attempt.fault if attempt else "") or ended


def _trials(tuning: Tuning, runs: Runs) -> list[dict[str, Any]]:
    """Every run, in the order of their starts: the trajectory."""
    rows = []
    for number, run in in_order(runs):
        ended = tuning.outcome(number, run, runs)
        time = run.attempt.time if run.attempt is not None and ended == "timed" else None
        rows.append(
            {
                "run_id": run.record.paths.run_id,
                "configuration": tuning.arms[number - 1].title,
                "full": is_full(run),
                "started": run.began,
                "outcome": ended,
                "step_seconds": time.seconds if time is not None else None,
                "hours": run.hours,
            }
        )
    return rows


def _conclusion(result: dict[str, Any], why_base: str) -> str:
    spent = f"{result['spent_hours']:.3g} GPU-hours, budget {_hours_said(result['budget'])}"
    known = f"{counted(len(result['trials']), 'run')}, {spent}"
    if result["ended"] == "base failed":
        return f"the base itself does not run: {why_base} ({known})"
    return f"{_answer(result)}; {_tried(result)} ({known})"


def _answer(result: dict[str, Any]) -> str:
    title = result["winner"]["title"]
    whole = ""
    if result["gain"] is not None:
        whole = f"{result['gain']:.1%} faster than the base ({result['gain_low']:.1%} to {result['gain_high']:.1%})"
    if result["found"]:
        return f"{title} is {whole}"
    leads = f"{title} leads the trials with {-result['in_trials']:+.1%} a step"
    if result["ended"] == "budget":
        if not result["winner"]["changes"]:
            return "the budget ended first, and nothing that was tried is faster than the base"
        return f"the budget ended first: {leads}, and whole runs do not prove it{f': {whole}' if whole else ''}"
    if result["ended"] == "unproved":
        why = whole or (result["proof"] or {}).get("why", "")
        return f"keep the base: {leads}, and whole runs do not prove it: {why}"
    others = [arm for arm in result["arms"] if arm["changes"] and arm["ratio"] is not None and not arm["what"]]
    if not others:
        return "keep the base: nothing else that was tried runs here"
    best = f"{others[0]['title']}, takes {others[0]['ratio'] - 1:+.1%} a step"
    return f"keep the base: nothing that was tried is faster in the trials; the best of it, {best}"


def _tried(result: dict[str, Any]) -> str:
    """What was tried and what was not."""
    space, tried = result["space"], result["tried"]
    every = counted(space["combinations"], "combination")
    if tried < space["candidates"]:
        return f"the budget had room for {tried} of {space['candidates']} candidates, and any other may be faster"
    if space["looked_at"] < space["combinations"] and space["combinations"] > MOST:
        return f"{tried} of {every} were tried, an even sample, and another one may be faster"
    return f"all {tried} that can run were tried" if tried > 1 else "it was the only candidate"


def _next(result: dict[str, Any]) -> str:
    if result["ended"] == "base failed":
        return (
            f"next: begin with a job that runs (--set, --variant, more GPUs); alone, it is {result['base']['command']}"
        )
    if result["ended"] == "budget":
        return "next: the same command with a larger --budget goes on"
    if not result["found"]:
        return ""
    return f"next: llmb-run baseline set {' '.join(result['winner']['run_ids'])}"


_TEXT = Form.JSON | Form.TABLE
ARM: tuple[Column[dict[str, Any]], ...] = (
    Column("title", item("title"), _TEXT, "what differs from the base", "configuration"),
    Column("runs", item("runs"), _TEXT, "trials and whole runs", "runs", spec="d"),
    Column("ratio", item("ratio"), _TEXT, "step time over the base's, by the trials", "of the base", "%", ".1%"),
    Column("what", item("what"), _TEXT, "why it is out", "outcome"),
)
"""Of a configuration that was tried."""


def as_text(result: dict[str, Any]) -> str:
    """For people: what was tried, the conclusion, and the winner's command."""
    lines = [table(ARM, result["arms"]).rstrip("\n"), "", f"{result['conclusion']}"]
    lines += [_crash_said(row) for row in result.get("crashed", [])]
    if result["found"]:
        lines.append(result["winner"]["command"])
    if result["baseline"]:
        lines.append(f"baseline set: {result['baseline']}")
    return "\n".join(lines) + "\n"


def _crash_said(row: dict[str, Any]) -> str:
    look = f"llmb-run why {row['run_id']}"
    if row["ratio"] is None:
        return f"{row['title']} crashed before it had a step time and is out: {look}"
    how = row["why"] if row["why"] in CRASHED else f"was {row['why']} later"
    return f"{row['title']} led with {row['ratio'] - 1:+.1%} a step and {how}: {look}"
