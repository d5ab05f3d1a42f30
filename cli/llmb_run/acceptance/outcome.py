"""What a campaign has shown: for each workload and for the whole, as data, as a table, and as an exit status.

Performance is the reference's step time over the measured one: 0.97 means 3 % less work per second.

================ = =====================================================================================
accepted         0 the speed of every workload was judged, and all pass
not accepted     1 a workload fails, or a node that both the fabric and training runs show to be slow
open             4 nothing fails, but some workload needs further runs, of which the campaign may start none
not judged       4 nothing is wrong, but there is no reference for some workload whose speed was to be judged
================ = =====================================================================================

A workload of which the suite says ``reference: none`` only has to run; a campaign of nothing else judges nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, TypeAlias

from llmb_common.base.hostlist import compress
from llmb_common.base.printable import counted, percent
from llmb_common.health.verdicts import Fabric
from llmb_common.nodes.fabric.verdict import FabricVerdict
from llmb_common.results.level import CONFIDENCE
from llmb_common.results.sequential import OPEN, Rerun
from llmb_run import columns
from llmb_run.acceptance.health import slow_nodes
from llmb_run.acceptance.workloads import FrozenSuite, WorkloadProgress
from llmb_run.campaigns.conduct import Run
from llmb_run.columns import Column, Form, item
from llmb_run.results.run_columns import as_dict, reference_as_dict
from llmb_run.terminal import local_time_text

Conclusion: TypeAlias = Literal["accepted", "not accepted", "open", "not judged", "under way"]

STATUS: dict[Conclusion, int] = {"accepted": 0, "not accepted": 1, "open": 4, "not judged": 4}
"""Exit status of a campaign that is over."""


def outcome(
    frozen: FrozenSuite, standings: Sequence[WorkloadProgress], fabrics: Sequence[Fabric] = ()
) -> dict[str, Any]:
    """Return what an acceptance campaign has shown, as JSON values: conclusion, fabric, workloads and reruns.

    Its keys are ``schema`` (1), ``campaign`` (the id), ``suite`` (the name), ``suite_sha256``, ``llmb`` (the
    version that began it), ``began`` (Unix time), the five of ``conclusion``, ``fabric`` (items as ``_fabric_json``
    makes them), ``workloads`` (as ``_workload_json``) and ``reruns`` (all of them, each with its ``workload``, a
    title). ``accepted`` is None while workloads have no answer yet, and True only for ``outcome`` "accepted".
    ``frozen``: what the campaign began with; ``standings``: where each workload stands, whose order stays;
    ``fabrics``: what was measured between its nodes before it began, as ``after_runs`` returns it.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    workloads = [_workload_json(item) for item in standings]
    reruns: list[dict[str, Any]] = []
    for workload in workloads:
        reruns += [{"workload": workload["title"], **rerun} for rerun in workload["reruns"]]
    return {
        "schema": 1,
        "campaign": frozen.id,
        "suite": frozen.suite_name,
        "suite_sha256": frozen.suite_sha256,
        "llmb": frozen.llmb,
        "began": frozen.began,
        **conclusion(workloads, evening=frozen.evening, slow_nodes=slow_nodes(fabrics, standings)),
        "fabric": [_fabric_json(item.verdict) for item in fabrics],
        "workloads": workloads,
        "reruns": reruns,
    }


def _fabric_json(verdict: FabricVerdict) -> dict[str, Any]:
    """Return the verdict on the fabric as JSON values: ``level``, ``answer``, ``coarseness`` and ``findings``.

    ``level`` is ``ok``, ``warn``, ``fail`` or ``not judged``; ``answer`` a line that begins with it; ``coarseness`` a
    line on how fine the measurement is, or empty; ``findings`` a list of texts for people, in the verdict's order,
    maybe empty.
    """
    findings = [item.said for item in verdict.findings]
    return {"level": verdict.level, "answer": verdict.answer, "coarseness": verdict.coarseness, "findings": findings}


def _workload_json(item: WorkloadProgress) -> dict[str, Any]:
    """Return where a workload of a campaign stands, with its figures, runs and reruns, as JSON values.

    ``title``; ``where`` (file and line in the suite); ``prescreen``, ``speed_wanted`` and ``indication``
    (booleans); ``gpus``; ``verdict`` ("pass", "fail", "open", None while undecided), and ``text``, which says it in
    words without a period; ``reference`` as ``reference_as_dict`` returns it; ``step_seconds`` (the mean by which
    it is judged, stalls included); ``performance``, relative to the reference's (0.97: 3 % less work per second),
    with its bounds ``performance_low`` and ``performance_high`` at ``confidence``, a share; ``performance_limit``,
    above which it passes; ``required``, what the suite asks for; ``more_runs`` and ``further_days``, what would
    decide an open answer; ``runs`` and ``reruns``, lists as ``_run_json`` and ``_rerun_json`` make them. Figures
    that are not known are None, and so are ``required`` without a reference, and ``performance_high`` where there
    is no upper bound.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    progress = item.progress
    reference = item.workload.reference
    plan = item.workload.plan
    decision = progress.decision
    runs = {run.number: run for run in item.runs}
    return {
        "title": item.workload.title,
        "where": item.workload.entry.where,
        "prescreen": item.workload.entry.prescreen,
        "gpus": plan.gpus,
        "verdict": progress.answer,
        "text": _workload_clause(item),
        "speed_wanted": item.workload.entry.reference != "none",
        "indication": item.workload.indication,
        "reference": reference_as_dict(reference),
        "required": item.workload.entry.required if reference else None,
        "step_seconds": decision.ratio * reference.seconds if decision and reference else None,
        "performance": 1 / decision.ratio if decision else None,
        "performance_low": 1 / decision.high if decision else None,
        # The ratio of step times may be as low as 0: performance has no upper bound then.
        "performance_high": 1 / decision.low if decision and decision.low > 0 else None,
        "performance_limit": 1 / decision.limit if decision else None,
        "confidence": CONFIDENCE if decision else None,
        "more_runs": progress.needs.runs if progress.needs else None,
        "further_days": progress.needs.days if progress.needs else None,
        "runs": [_run_json(run) for run in item.runs],
        "reruns": [_rerun_json(rerun, runs) for rerun in progress.reruns],
    }


def _rerun_json(rerun: Rerun, runs: Mapping[int, Run]) -> dict[str, Any]:
    """Return a rerun of a workload as JSON values; ``runs``: the workload's runs by number, from 1.

    ``run`` is the rerun's number, ``run_id`` None where it has not started, ``reason`` a clause that says why it is
    run. ``replaces`` is the number of the run whose place it takes; None: it is one more. ``bad_nodes`` lists the
    nodes that the replaced run has shown to be bad; empty where there are none, or it replaces none.
    """
    # Runs are numbered from 1, so that 0 is none.
    run, replaced = runs.get(rerun.attempt), runs.get(rerun.replaces or 0)
    return {
        "run": rerun.attempt,
        "run_id": run.record.paths.run_id if run else None,
        "reason": rerun.reason,
        "replaces": rerun.replaces,
        "bad_nodes": list(replaced.attempt.bad_nodes) if replaced and replaced.attempt else [],
    }


def _run_json(run: Run) -> dict[str, Any]:
    """Return a run of a workload as JSON values: number (``run``), id, state, step time, fault, failure and figures.

    The keys are ``run`` (from 1), ``run_id``, ``state``, ``step_seconds`` (of steady steps, without stalls), ``fault``,
    ``failure`` and ``result``, the figures as ``as_dict`` returns them. ``step_seconds`` and ``result`` are None before
    the run has ended, or where it has none; ``fault`` (not the workload's, so that the run is replaced) and ``failure``
    are texts, empty where there is none.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    attempt = run.attempt
    return {
        "run": run.number,
        "run_id": run.record.paths.run_id,
        "state": run.record.state,
        "step_seconds": attempt.time.seconds if attempt and attempt.time else None,
        "fault": attempt.fault if attempt else "",
        "failure": attempt.failure if attempt else "",
        "result": as_dict(run.measured) if run.measured else None,
    }


def _workload_clause(item: WorkloadProgress) -> str:
    """Return what is said of a workload of a campaign: its answer, with why or what would decide it.

    A fragment without a period: ``pass``, ``fail: ...`` with what went wrong, ``indication: open: about 3 more runs
    would decide`` (where the reference is of other software), ``completed`` or ``completed, no reference`` where no
    speed is judged. While it has no answer: ``not started`` or ``not decided yet``.
    """
    progress, reference = item.progress, item.workload.reference
    if progress.answer is None:
        return "not decided yet" if item.runs else "not started"
    if progress.trouble:
        return f"{progress.answer}: {progress.trouble}"
    if reference is None:
        return "completed" if item.workload.entry.reference != "optional" else "completed, no reference"
    text = progress.answer if reference.same_software else f"indication: {progress.answer}"
    return f"{text}: {_needed_runs_text(item)}" if progress.answer == OPEN else text


def _needed_runs_text(item: WorkloadProgress) -> str:
    """Return what it would take to decide a workload whose runs leave the answer open, as the end of a sentence.

    Without a period: ``about 3 more runs, on 2 further days, would decide``, with what stands in the way of such runs
    behind it (``: without --evening``, ``; the suite allows none (reruns: 5 would allow them)``, ``; without a
    scheduler, jobs begin at once``); or why no runs would, such as ``too close to the limit to tell``. That the answer
    is open is not checked.
    """
    progress = item.progress
    if progress.decision is not None and progress.decision.reference_too_uncertain:
        return "the baseline is too uncertain to tell; make one from more runs"
    needs = progress.needs
    if needs is None:
        return "too close to the limit to tell"
    days = f", on {counted(needs.days, 'further day')}," if needs.days else ""
    stalls_clause = (
        "all its stalls fell on one day, " if progress.decision is not None and progress.decision.held else ""
    )
    sentence = f"{stalls_clause}about {counted(needs.runs, 'more run')}{days} would decide"
    # Each that stands in the way: whoever mends one alone would meet the next.
    if needs.days and item.workload.evening:
        sentence += ": without --evening"
    left = item.workload.entry.reruns - len(progress.reruns)
    if left < needs.runs:
        reruns = len(progress.reruns) + needs.runs
        sentence += f"; the suite allows {left or 'none'} (reruns: {reruns} would allow them)"
    if needs.days and item.workload.plan.scheduler is None:
        sentence += "; without a scheduler, jobs begin at once"
    return sentence


def conclusion(
    workloads: Sequence[dict[str, Any]], *, evening: bool = False, slow_nodes: Collection[str] = ()
) -> dict[str, Any]:
    """Return how a campaign ends as a whole: ``outcome``, ``accepted``, ``indication``, ``evening`` and ``why``.

    ``workloads`` are as ``outcome`` has them; needed are ``prescreen``, ``verdict``, ``indication``, ``reference``
    (None, or a dict) and ``speed_wanted``, and of those that do not pass also ``text`` and ``title``. ``outcome`` is
    a ``Conclusion``. A pre-screen that did not pass ends the campaign: "not accepted" if it fails, else "open".
    Otherwise it is "under way" while a workload has no verdict, else "not accepted" if one fails, else "open" if one
    is open, else "not judged" if the speed of one was wanted and has no reference, or none has a reference at all,
    else "accepted". ``accepted`` is None while the campaign is under way, else whether ``outcome`` is "accepted";
    ``why`` a sentence without a period. ``indication``: a reference was measured with other software, and an
    acceptance is no more than that; ``evening``: as given, it holds for the day of the runs only. ``slow_nodes``,
    names of nodes that slowed down the runs: with any, it is "not accepted" unless it is under way, and ``why`` names
    them.
    """
    main = [item for item in workloads if not item["prescreen"]]
    ends, why = _overall_conclusion(workloads, main)
    if slow_nodes and ends != "under way":
        named = compress(sorted(slow_nodes))
        ends = "not accepted"
        why = f"slow in the fabric and in training, and excluded now (--again judges the rest): {named}; {why}"
    indication = any(item["indication"] for item in main)
    accepted = None if ends == "under way" else ends == "accepted"
    if evening and ends == "accepted":
        why += "; other days are not judged, and may be slower or faster"
    return {"outcome": ends, "accepted": accepted, "indication": indication, "evening": evening, "why": why}


def headline(result: dict[str, Any]) -> str:
    """Return the outcome of a campaign for its first line: ``ACCEPTED FOR ONE EVENING``, or ``under way``.

    In capitals but for the latter. An acceptance may add ``AS AN INDICATION``, ``FOR ONE EVENING``, or both in this
    order. ``result`` is a dict as ``outcome`` or ``conclusion`` returns it, of which ``outcome``, ``indication`` and
    ``evening`` count; the last two may be missing, as in results of an earlier release.
    """
    if result["outcome"] == "under way":
        return "under way"
    claims = (("indication", " as an indication"), ("evening", " for one evening"))
    only = "".join(words for name, words in claims if result["outcome"] == "accepted" and result.get(name))
    return f"{result['outcome']}{only}".upper()


def in_todays_words(result: dict[str, Any]) -> dict[str, Any]:
    """Return a campaign's ``result`` of any release in this release's words: the same object where nothing changes.

    ``result`` is a dict as ``outcome`` returns it, and is not changed itself. Earlier releases called an open answer
    inconclusive, and its campaign not accepted: both are replaced, in a copy, whose conclusion is made anew from its
    workloads alone (``evening`` becomes False).
    """
    workloads = result["workloads"]
    if not any(item["verdict"] == "inconclusive" for item in workloads):
        return result
    renamed = []
    for workload in workloads:
        words = {}
        if workload["verdict"] == "inconclusive":
            words = {"verdict": OPEN, "text": workload["text"].replace("inconclusive", OPEN)}
        renamed.append({**workload, **words})
    return {**result, "workloads": renamed, **conclusion(renamed)}


def _overall_conclusion(workloads: Sequence[dict[str, Any]], main: Sequence[dict[str, Any]]) -> tuple[Conclusion, str]:
    """Return the conclusion over all workloads of a campaign, and the sentence that says what it rests on.

    The sentence has no period: ``all 3 workloads pass; ...``, or ``pre-screen: ...; no other workload was
    started``. ``workloads`` are as ``outcome`` has them, and ``main`` those that are not part of the pre-screen,
    which ends the campaign if it does not pass. Slow nodes are not considered.
    """
    stopped = [item for item in workloads if item["prescreen"] and item["verdict"] not in (None, "pass")]
    if stopped:
        failed = next((item for item in stopped if item["verdict"] == "fail"), None)
        text = (failed or stopped[0])["text"]
        ends: Conclusion = "not accepted" if failed else "open"
        return ends, f"pre-screen: {text}; no other workload was started"
    if any(item["verdict"] is None for item in workloads):
        return "under way", "some workloads have no answer yet"
    failed = sum(item["verdict"] == "fail" for item in main)
    undecided = [item for item in main if item["verdict"] == OPEN]
    open_text = f"{len(undecided)} of {len(main)} open"
    if failed:
        also = f", {open_text}" if undecided else ""
        return "not accepted", f"workloads: {failed} of {len(main)} fail{also}"
    if undecided:
        return "open", "; ".join(filter(None, (f"workloads: {open_text}", _first_open_workload(undecided))))
    return _passed_conclusion(main)


def _passed_conclusion(main: Sequence[dict[str, Any]]) -> tuple[Conclusion, str]:
    """Return conclusion and sentence, as ``_overall_conclusion`` does, for workloads of which none fails or is open."""
    judged = [item for item in main if item["reference"] is not None]
    unjudged = [item for item in main if item["reference"] is None and item["speed_wanted"]]
    if not judged:
        because = "there is no reference" if unjudged else "the suite compares none of them"
        return "not judged", f"{counted(len(main), 'workload')} completed; no speed was judged, because {because}"
    every = "all " if len(judged) == len(main) > 1 else ""
    words = [f"{every}{counted(len(judged), 'workload')} {'passes' if len(judged) == 1 else 'pass'}"]
    if others := sum(item["indication"] for item in judged):
        words.append(f"{others} of them as an indication, against a reference measured with other software")
    if own := sum(item["reference"].get("kind") == "baseline" for item in judged):
        words.append(f"{own} of them against this site's own baseline")
    if unjudged:
        words.append(f"{counted(len(unjudged), 'workload')} completed without a reference, not judged")
    if only_ran := len(main) - len(judged) - len(unjudged):
        words.append(f"{counted(only_ran, 'workload')} only had to run, as the suite says")
    return "not judged" if unjudged else "accepted", "; ".join(words)


def _first_open_workload(undecided: Sequence[dict[str, Any]]) -> str:
    """Return what would decide the first of the open workloads ``undecided``, as a clause without a period.

    Behind ``TITLE: `` if there are several. Empty where its text does not say. There must be at least one; needed are
    their keys ``title`` and ``text``.
    """
    first = undecided[0]
    text: str = first["text"].removeprefix("indication: ").partition(": ")[2]
    return f"{first['title']}: {text}" if text and len(undecided) > 1 else text


def _bounds_text(workload: dict[str, Any]) -> str:
    """Return the bounds of a workload's performance in percent of the reference's, without unit: ``96.1 to 98.4``.

    ``workload`` is a dict as ``_workload_json`` returns it; ``performance_low`` and ``performance_high`` are needed.
    Empty where one of the bounds is not known.
    """
    low, high = workload["performance_low"], workload["performance_high"]
    return "" if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f}"


_DATA = Form.JSON | Form.PAGE
WORKLOAD: tuple[Column[dict[str, Any]], ...] = (
    Column("title", item("title"), Form.JSON | Form.TABLE, "", "workload"),
    Column("gpus", item("gpus"), _DATA | Form.TABLE, "", "GPUs", spec="d"),
    Column("runs", lambda row: len(row["runs"]), _DATA | Form.TABLE, "that count", "runs", spec="d"),
    Column("reruns", lambda row: len(row["reruns"]), _DATA | Form.TABLE, "", "reruns", spec="d"),
    Column("step_seconds", item("step_seconds"), _DATA | Form.TABLE, "mean, stalls included", *("step", "s", ".3f")),
    Column(
        "reference_seconds",
        lambda row: row["reference"]["seconds"] if row["reference"] else None,
        _DATA | Form.TABLE,
        *("step time of the reference", "reference", "s", "g"),
    ),
    Column(
        "performance",
        item("performance"),
        _DATA | Form.TABLE,
        *("the reference's step time over the measured one", "performance", "%", ".1%"),
    ),
    Column("performance_low", item("performance_low"), Form.JSON, "lower bound of `performance`"),
    Column("performance_high", item("performance_high"), Form.JSON, "upper bound of `performance`"),
    Column("interval", _bounds_text, Form.TABLE, head="interval"),
    Column(
        "required",
        lambda row: row["performance_limit"] or row["required"],
        _DATA | Form.TABLE,
        *("`performance` above which it passes", "required above", "%", ".1%"),
    ),
    Column("verdict", item("verdict"), Form.JSON, "pass, fail, open or none"),
    Column("text", item("text"), Form.JSON | Form.TABLE, "the verdict in words", "verdict"),
)
"""The columns of a workload in a campaign's outcome."""


def for_report(result: dict[str, Any]) -> dict[str, Any]:
    """Return what a report on a campaign's runs says of the campaign itself, as JSON values.

    ``result`` is a dict as ``outcome`` returns it. The keys: ``suite``, the five of ``conclusion`` and ``reruns``,
    as there; ``headline`` (text); ``workloads``, a dict by column of ``WORKLOAD`` for each, and ``columns``, which
    describes those; ``remarks`` and ``references``, lists of lines. The fabric is left out.
    """
    return {
        **{name: result[name] for name in ("suite", "outcome", "accepted", "indication", "evening", "why", "reruns")},
        "headline": headline(result),
        "workloads": [columns.as_dict(WORKLOAD, workload) for workload in result["workloads"]],
        "columns": columns.column_descriptions(WORKLOAD),
        "remarks": _all_remarks(result),
        "references": _reference_lines(result),
    }


def _all_remarks(result: dict[str, Any]) -> list[str]:
    """Return the remarks on the runs of all workloads of a campaign's ``result``, a line each; empty: none.

    The lines are as ``_workload_remarks`` returns them, in the order of the workloads.
    """
    return list(chain.from_iterable(_workload_remarks(item) for item in result["workloads"]))


def as_text(result: dict[str, Any]) -> str:
    """Return the result of a campaign as text for people, with a final newline; ``result`` may be of any release.

    In this order: the fabric, a table of workloads, each rerun with its reason, remarks, references, and as the
    last line ``suite NAME, begun TIME: ACCEPTED: ...``, the time being local.
    """
    lines = []
    for fabric in result.get("fabric", ()):  # a result of an earlier release has none
        lines.append(f"fabric: {fabric['answer']}")
        if fabric["coarseness"]:
            lines.append(fabric["coarseness"])
        lines.append("")
    lines += [columns.table(WORKLOAD, result["workloads"]).rstrip("\n")]
    if result["reruns"]:
        lines += ["", f"reruns ({len(result['reruns'])}):"]
        lines += [f"  {_rerun_text(item)}" for item in result["reruns"]]
    else:
        lines += ["", "reruns: none"]
    if remarks := _all_remarks(result):
        lines += ["", "remarks:", *(f"  {line}" for line in remarks)]
    if references := _reference_lines(result):
        lines += ["", *references]
    lines += [
        "",
        f"suite {result['suite']}, begun {local_time_text(result['began'])}: {headline(result)}: {result['why']}",
    ]
    return "\n".join(lines) + "\n"


def _rerun_text(item: dict[str, Any]) -> str:
    """Return one line on a rerun, without newline: which run it is, whether it replaces another one, and why.

    ``item`` is one of ``reruns`` in a campaign's result, of any release. Such as ``TITLE, run 4 (RUN_ID), a
    replacement (bad: node[3-4]): REASON``; ``not started`` in place of the id where it has none, no parentheses
    behind ``replacement`` where no node is bad, and just ``TITLE, run 4 (RUN_ID): REASON`` where it replaces none.
    """
    text = f"{item['workload']}, run {item['run']} ({item['run_id'] or 'not started'})"
    if item.get("replaces") is None:  # a result of an earlier release says nothing of it
        return f"{text}: {item['reason']}"
    bad = f" (bad: {compress(item['bad_nodes'])})" if item["bad_nodes"] else ""
    return f"{text}, a replacement{bad}: {item['reason']}"


def _workload_remarks(item: dict[str, Any]) -> list[str]:
    """Return what is odd about the runs of a workload, a line each, whatever the verdict is; empty: nothing.

    ``item`` is one of ``workloads`` in a campaign's result, of which ``title`` and ``runs`` (items as ``_run_json``
    makes them) are needed. Faults, failures, the message of a run that ended badly after its last step, remarks on the
    measurement, and findings that are a problem count, run by run. A line begins with ``TITLE, run 2 (RUN_ID): ``.
    """
    found = []
    for run in item["runs"]:
        about = [text for text in (run["fault"], run["failure"]) if text]
        if run["result"]:
            about += [run["result"]["message"]] if run["result"]["status"] == "Trained" else []
            about += run["result"]["remarks"]
            about += [f["text"] for f in run["result"]["findings"] if f["severity"] == "problem"]
        found += [f"{item['title']}, run {run['run']} ({run['run_id']}): {text}" for text in about]
    return found


def _reference_lines(result: dict[str, Any]) -> list[str]:
    """Return lines on what the workloads were compared with, each once, and one on how sure the intervals are.

    Such as ``reference 1.25 s (SOURCE; SOFTWARE)``; the last line, which says what the intervals are, is left out
    while none is known. Empty where no workload has a reference. ``result`` is a dict as ``outcome`` returns it.
    """
    references = [item["reference"] for item in result["workloads"] if item["reference"]]
    other = "; other software than these runs', so an indication, with a wider limit"
    found = list(
        dict.fromkeys(
            f"reference {known['seconds']:g} s ({known['source']}; {known['software']})"
            f"{'' if known['same_software'] else other}"
            for known in references
        )
    )
    confidences = [item["confidence"] for item in result["workloads"]]
    if levels := sorted({percent(level) for level in confidences if level}):
        found.append(f"intervals are {' or '.join(levels)} intervals of the performance at the last look")
    return found
