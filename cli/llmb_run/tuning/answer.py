"""What a tuning has found: as data, and in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from llmb_common.base.printable import counted, percent, signed_percent
from llmb_run.campaigns.conduct import Run, Runs
from llmb_run.columns import Column, Form, item, table
from llmb_run.comparing.ab import outcome as comparison_outcome
from llmb_run.comparing.strategy import ComparisonProgress
from llmb_run.terminal import next_command
from llmb_run.tuning.halving import CRASHED
from llmb_run.tuning.outcomes import outcome_of, why_not
from llmb_run.tuning.preview import SCHEMA, FrozenSpace, budget_text
from llmb_run.tuning.space import MOST
from llmb_run.tuning.strategy import Tuning, TuningState, ended_in_order, is_full


def outcome(id: str, kept: FrozenSpace, tuning: Tuning, runs: Runs) -> dict[str, Any]:
    """Return what a tuning that is over has found, as JSON values: winner, proof, candidates, runs.

    ``id`` is the campaign's, ``kept`` what it began with, ``tuning`` its strategy, with the same configurations in
    the same order, the base first; ``runs`` those of every arm by its number, 1 for the base. The keys: ``schema``,
    ``campaign`` (the id) and ``base`` (title, command). ``winner`` (title, changes, command, ids of its whole runs)
    is the leading configuration, the base if nothing is faster; ``found`` whether whole runs prove it, and ``gain``
    with ``gain_low`` and ``gain_high`` by how much (``_gain_and_bounds``). ``in_trials`` is by which share its
    steps are shorter than the base's by the trials, 0 for the base. ``proof`` compares the whole runs, None without
    any. ``ended`` says why the tuning did (``_end_reason``), ``conclusion`` all of it in a sentence, ``next`` what
    to do (empty: nothing). ``space`` is that of ``preview``; ``tried`` counts the candidates with a run;
    ``short_of_budget``: the budget was too small to go on. ``arms``, ``crashed`` and ``trials`` are lists of rows
    on configurations and runs (``_arm_rows``, ``crashed_candidates``, ``_trial_rows``); ``baseline`` is None here.
    Times are in seconds, costs (``spent_hours``, ``budget``, None: no limit) in GPU-hours, gains and ratios are
    shares.

    Raises:
        OSError: a log is to be read again for its losses, and cannot be
    """
    state = tuning.state(runs)
    search, proof = state.search, state.proof
    leader = search.leader
    found = proof is not None and proof.answer == "faster"
    gains = _gain_and_bounds(proof)
    proved = _full_runs(runs, leader) if leader else []
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
        "ended": _end_reason(state, found=found),
        "found": found,
        **gains,
        "in_trials": 1 - search.ratios[leader] if leader else 0.0,
        "proof": comparison_outcome(proof, kept.arms[leader].changes) if proof is not None else None,
        "spent_hours": state.spent,
        "budget": tuning.budget if math.isfinite(tuning.budget) else None,
        "short_of_budget": state.short,
        "tried": sum(bool(runs[number]) for number in range(2, len(tuning.arms) + 1)),
        "space": kept.space,
        "arms": _arm_rows(kept, tuning, runs, state),
        "crashed": crashed_candidates(tuning, runs, state),
        "trials": _trial_rows(tuning, runs),
        "baseline": None,
    }
    failures = [run for run in runs[1] if not run.live and outcome_of(1, run, runs) != "timed"]
    why = why_not(1, failures[-1], runs) if failures else ""
    return {**result, "conclusion": _conclusion_sentence(result, why), "next": _next_command_line(result, failures)}


def _end_reason(state: TuningState, *, found: bool) -> str:
    """Return why the tuning ended: ``base failed``, ``found``, ``budget``, ``unproved`` or ``nothing faster``.

    The first of these that holds. ``found``: whether whole runs have proved that the leading candidate is faster.
    ``budget``: the GPU-hours did not suffice. ``unproved``: whole runs were made, and did not prove it. ``state`` is
    that at the end.
    """
    if state.search.base_fails:
        return "base failed"
    if found:
        return "found"
    if state.short:
        return "budget"
    return "unproved" if state.proof is not None else "nothing faster"


def _gain_and_bounds(proof: ComparisonProgress | None) -> dict[str, float | None]:
    """Return by which share the leading candidate is faster than the base, by whole runs, with bounds.

    The keys are ``gain``, ``gain_low`` and ``gain_high``; 0.02: a step of the base takes 2 % longer. All are None
    where nothing has been compared yet. ``proof`` is the comparison by whole runs; None: there is none.
    """
    found = proof.comparison if proof is not None else None
    if found is None:
        return {"gain": None, "gain_low": None, "gain_high": None}
    return {
        "gain": math.expm1(-found.difference),
        "gain_low": math.expm1(-found.high),
        "gain_high": math.expm1(-found.low),
    }


def _full_runs(runs: Runs, leader: int) -> list[Run]:
    """Return the whole runs of the candidate at position ``leader`` that have a step time and did the base's work.

    In order of their numbers; empty: there are none. Position 0 is the base. ``runs``: those of every arm by its
    number, which is the position plus 1.

    Raises:
        OSError: a log is to be read again for its losses, and cannot be
    """
    number = leader + 1
    return [run for run in runs[number] if is_full(run) and outcome_of(number, run, runs) == "timed"]


def _arm_rows(kept: FrozenSpace, tuning: Tuning, runs: Runs, state: TuningState) -> list[dict[str, Any]]:
    """Return a row for every configuration that has an ended run, as JSON values, the fastest first.

    Those that are out come last. The base stands behind those that were faster. The keys: ``title``, ``changes``
    (values by setting; empty for the base) and ``command`` are the configuration's in ``kept``. ``ratio``: step
    time over the base's by the trials, None where not known. ``what``: why the configuration is out; empty: it is
    not. ``runs`` counts ended ones. ``tuning`` is the strategy, ``state`` how far it has come by ``runs``, those of
    every arm by its number.

    Raises:
        OSError: a log is to be read again for its losses, and cannot be
    """
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
                "what": _elimination_text(at, runs, search.out[at]) if at in search.out else "",
            }
        )
    return rows


def _elimination_text(at: int, runs: Runs, why: str) -> str:
    """Return why the candidate at position ``at`` was given up, a fragment, with the failure of its last failed run.

    There is such a run. ``why`` is the reason that the search gives; it is in the text where the candidate crashed.
    Position 0 is the base. ``runs``: those of every arm by its number, which is the position plus 1.

    Raises:
        OSError: a log is to be read again for its losses, and cannot be
    """
    last = why_not(at + 1, _failed_runs(at, runs)[-1], runs)
    return f"{why}: {last}" if why in CRASHED else last


def _failed_runs(at: int, runs: Runs) -> list[Run]:
    """Return the ended runs of the configuration at position ``at`` that have no step time that counts.

    In order of their numbers; empty: there are none. Runs that did other work than the base are among them, and
    runs without an answer. Position 0 is the base. ``runs``: those of every arm by its number, which is the
    position plus 1.

    Raises:
        OSError: a log is to be read again for its losses, and cannot be
    """
    number = at + 1
    ended = [run for run in runs[number] if not run.live]
    return [run for run in ended if outcome_of(number, run, runs) != "timed"]


def crashed_candidates(tuning: Tuning, runs: Runs, state: TuningState) -> list[dict[str, Any]]:
    """Return a row for each candidate that failed though it was fast, or that crashed without any time.

    A fast candidate was timed faster than both the base and the leader; it crashed or ran out of memory. The
    fastest comes first, those without a time last; empty: there is none. The rows have ``title``, ``why``
    (``_elimination_reason``), ``ratio`` (step time over the base's, None: no time) and the ``run_id`` of the last
    failure. Candidates that did other work are left out. ``state`` is how far ``tuning`` has come by ``runs``,
    those of every arm by its number.

    Raises:
        OSError: a log is to be read again for its losses, and cannot be
    """
    search = state.search
    chosen = search.ratios.get(search.leader, 1.0)
    rows = []
    for at, why in search.out.items():
        ratio = search.ratios.get(at)
        faster = ratio is not None and ratio < min(chosen, 1.0)
        crashed = ratio is None and why in CRASHED
        if why == "other work" or not (faster or crashed):
            continue
        last = _failed_runs(at, runs)[-1]
        rows.append({"title": tuning.arms[at].title, "why": why, "ratio": ratio, "run_id": last.record.paths.run_id})
    return sorted(rows, key=lambda row: (row["ratio"] is None, row["ratio"] or 0.0))


def _trial_rows(tuning: Tuning, runs: Runs) -> list[dict[str, Any]]:
    """Return a row for every run of the tuning that has ended, in the order in which they started, as JSON values.

    The keys: ``run_id``, ``configuration`` (title), ``full`` (a whole run, no short trial), ``started`` (Unix time),
    ``outcome``, ``step_seconds`` (None where no step time counts) and ``hours`` (GPU-hours). ``runs``: those of every
    arm by its number.

    Raises:
        OSError: a log is to be read again for its losses, and cannot be
    """
    rows = []
    for number, run in ended_in_order(runs):
        ended = outcome_of(number, run, runs)
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


def _conclusion_sentence(result: dict[str, Any], why_base: str) -> str:
    """Return the sentence, without a full stop, that says what the tuning found and spent.

    ``result`` is that of ``outcome``, before its conclusion. The sentence begins with a small letter or a setting.
    ``why_base``: why the base failed last; empty where it did not.
    """
    spent = f"{result['spent_hours']:.3g} GPU-hours, budget {budget_text(result['budget'])}"
    known = f"{counted(len(result['trials']), 'run')}, {spent}"
    if result["ended"] == "base failed":
        return f"the base itself does not run: {why_base} ({known})"
    return f"{_winner_clause(result)}; {_tried_clause(result)} ({known})"


def _winner_clause(result: dict[str, Any]) -> str:
    """Return the first half of the conclusion of a tuning: the winner and its gain, or why to keep the base.

    Such as ``tp=2 is 3.1 % faster than the base (1.0 % to 5.2 %)``, or a clause that begins with ``keep the base:``
    or ``the budget ran out first``; without a full stop. ``result`` is that of ``outcome`` of a tuning whose base
    runs; its ``conclusion`` and ``next`` are not needed.
    """
    title = result["winner"]["title"]
    proof = ""
    if result["gain"] is not None:
        bounds = f"{percent(result['gain_low'])} to {percent(result['gain_high'])}"
        proof = f"{percent(result['gain'])} faster than the base ({bounds})"
    if result["found"]:
        return f"{title} is {proof}"
    leads = f"{title} leads the trials ({signed_percent(-result['in_trials'])} a step)"
    if result["ended"] == "budget":
        if not result["winner"]["changes"]:
            return "the budget ran out first; nothing tried is faster than the base"
        why = f": {proof}" if proof else ""
        return f"the budget ran out first: {leads}, whole runs have not proved it{why}"
    if result["ended"] == "unproved":
        why = proof or (result["proof"] or {}).get("why", "")
        return f"keep the base: {leads}, but whole runs do not prove it: {why}"
    candidates = [arm for arm in result["arms"] if arm["changes"]]
    others = [arm for arm in candidates if arm["ratio"] is not None and not arm["what"]]
    if not others:
        return "keep the base: nothing else tried runs here"
    best = f"{others[0]['title']}, takes {signed_percent(others[0]['ratio'] - 1)} a step"
    return f"keep the base: nothing tried is faster; the best of the rest, {best}"


def _tried_clause(result: dict[str, Any]) -> str:
    """Return the second half of the conclusion of a tuning: how many candidates were tried, and how many were not.

    Such as ``tried all 12 that can run``, without a full stop. ``result`` is that of ``outcome``.
    """
    space, tried = result["space"], result["tried"]
    every = counted(space["combinations"], "combination")
    if tried < space["candidates"]:
        return f"the budget had room for {tried} of {space['candidates']} candidates; one of the others may be faster"
    if result["short_of_budget"]:
        return f"all {tried} candidates were tried; a larger budget would continue"
    if space["looked_at"] < space["combinations"] and space["combinations"] > MOST:
        return f"{tried} of {every} were tried, an even sample; one of the others may be faster"
    return f"tried all {tried} that can run" if tried > 1 else "it was the only candidate"


def _next_command_line(result: dict[str, Any], failures: Sequence[Run]) -> str:
    """Return the line on what to do next after a tuning, ``next: llmb-run ...`` or a sentence; empty: nothing.

    ``result`` is that of ``outcome``; ``failures`` are runs of the base that have no step time, the last one last, at
    least one where the base failed. The line has no newline.
    """
    if result["ended"] == "base failed":
        return next_command("why", *(run.record.paths.run_id for run in failures[-1:]))
    if result["ended"] == "budget":
        return "the same command with a larger --budget continues"
    if not result["found"]:
        return ""
    return next_command("baseline", "set", *result["winner"]["run_ids"])


_TEXT = Form.JSON | Form.TABLE
ARM: tuple[Column[dict[str, Any]], ...] = (
    Column("title", item("title"), _TEXT, "what differs from the base", "configuration"),
    Column("runs", item("runs"), _TEXT, "trials and whole runs", "runs", spec="d"),
    Column("ratio", item("ratio"), _TEXT, "step time over the base's, by the trials", "of the base", "%", ".1%"),
    Column("what", item("what"), _TEXT, "why it is out", "outcome"),
)
"""Of a configuration that was tried."""


def as_text(result: dict[str, Any]) -> str:
    """Return the result of a tuning for people: a table of the candidates, the conclusion, and the winner's command.

    ``result`` is that of ``outcome``, with ``baseline`` where one was set; that of an earlier release may lack
    ``crashed``. There is a line for each of ``crashed``, and one on the baseline; the command is there only if
    whole runs prove the winner. The text ends with a newline.
    """
    lines = [table(ARM, result["arms"]).rstrip("\n"), "", f"{result['conclusion']}"]
    lines += [_crash_line(row) for row in result.get("crashed", [])]
    if result["found"]:
        lines.append(result["winner"]["command"])
    if result["baseline"]:
        lines.append(f"baseline set: {result['baseline']}")
    return "\n".join(lines) + "\n"


def _crash_line(row: dict[str, Any]) -> str:
    """Return one line on a fast candidate that crashed, with the command that says why; no full stop, no newline.

    Such as ``tp=2 led with -3.1 % a step and crashed twice: llmb-run why ID``; of one without a time, that it
    crashed before it had one. ``row`` is one of ``crashed_candidates``.
    """
    look = f"llmb-run why {row['run_id']}"
    if row["ratio"] is None:
        return f"{row['title']} crashed before it had a step time and is out: {look}"
    how = row["why"] if row["why"] in CRASHED else f"was {row['why']} later"
    return f"{row['title']} led with {signed_percent(row['ratio'] - 1)} a step and {how}: {look}"
