"""What plain ``results`` prints: the verdict of each group, then its runs, and what to do next."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from llmb_common.command.printable import counted
from llmb_common.platform.run_states import is_live
from llmb_common.results.comparison import EVIDENCE, facts
from llmb_common.results.configuration import apart
from llmb_common.results.verdict import Verdict
from llmb_common.timing.tables import render, shorten
from llmb_run import columns
from llmb_run.columns import Column, Form
from llmb_run.results.groups import GROUP, Group, group, group_remarks, recorded
from llmb_run.results.measured import MeasuredRun, explain, reference_lines
from llmb_run.results.run_columns import RUN, as_dicts, say_remarks
from llmb_run.terminal import next_command, notice

ENOUGH = 3
"""Runs of a baseline that an equal run can pass."""

_MOST_IDS = 10


class _Step(NamedTuple):
    """The smaller ``urgency``, the earlier."""

    urgency: int
    words: tuple[str, ...]
    why: str


def next_step(groups: Sequence[Group]) -> dict[str, str]:
    """The command of the most urgent step of all groups, of the first of them where several are, and why."""
    urgent = _most_urgent(groups)
    return {"command": f"llmb-run {shlex.join(urgent.words)}", "why": urgent.why}


def _most_urgent(groups: Sequence[Group]) -> _Step:
    nothing = _Step(9, ("list",), "what can be run and judged")
    return min(map(_step, groups), key=lambda step: step.urgency, default=nothing)


def _step(item: Group) -> _Step:
    live = [run for run in item.members if run.row and is_live(run.row.state)]
    if live:
        return _Step(0, ("wait", *_ids(live)), f"{counted(len(live), 'run')} not yet ended")
    verdict = item.verdict
    unfit = [run for run in item.members if run.unfit]
    passed = verdict is not None and verdict.kind == "pass"
    if unfit and not (passed and item.members[0].good):
        return _Step(1, ("show", *_ids(unfit[:1])), f"{item.title}: {unfit[0].unfit}")
    if verdict is None or verdict.kind == "not judged":
        return _Step(8, ("show", *_ids(item.members[:1])), f"{item.title}: {verdict.text if verdict else 'no figures'}")
    if verdict.kind == "no reference":
        return _make_reference(item, verdict.text)
    if verdict.kind == "fail":
        slowest = max(item.members, key=lambda run: run.good.seconds if run.good else 0.0)
        return _Step(2, ("show", *_ids([slowest])), f"{item.title} is too slow: what its slowest run's nodes say")
    if verdict.kind == "open":
        return _more(item, verdict)
    if verdict.reference and verdict.reference.kind == "baseline":
        return _Step(7, ("results", "--history"), "all pass: how the configurations change over time")
    return _make_reference(item, "later runs are then compared with this site's own")


def _more(item: Group, verdict: Verdict) -> _Step:
    """Where the answer is open."""
    decision = verdict.decision
    if decision and decision.reference_too_uncertain:
        return _Step(3, ("baseline", "list"), f"{item.title}: its baseline is of too few runs to decide")
    # A single run does not show how much they differ, and so not how many it takes.
    first = max(ENOUGH - 1 - item.waiting, 1) if len(item.runs) == 1 else None
    if decision and (count := min(filter(None, (decision.more_runs, first)), default=None)):
        days = ", on other days" if decision.other_days else ""
        return _repeat(3, item, count, f"{item.title} is open: more runs{days}", spread=decision.other_days)
    return _Step(6, ("report", "--html", "report.html"), f"{item.title}: {verdict.text}")


def _make_reference(item: Group, why: str) -> _Step:
    """A baseline of the runs, where these are enough; where they are one, runs that are compared with it."""
    known = {run.run_id for baseline in item.members[0].baselines for run in baseline.runs}
    if all(run.run_id in known for run in item.runs):
        return _repeat(7, item, ENOUGH, "its runs are this site's baseline: further ones are compared with it")
    if len(item.runs) < ENOUGH:
        return _repeat(5, item, ENOUGH - len(item.runs), f"{ENOUGH} runs make a baseline; {why}")
    ids = [run.run_id for run in item.runs[:_MOST_IDS]]
    return _Step(4, ("baseline", "set", *ids), f"{item.title}: {why}")


def _repeat(urgency: int, item: Group, count: int, why: str, *, spread: bool = False) -> _Step:
    newest = item.runs[-1]
    days = ("--spread", str(count)) if spread and recorded(newest).plan.scheduler is not None else ()
    return _Step(urgency, ("retry", newest.run_id, "--repeats", str(count), *days), why)


def _ids(runs: Sequence[MeasuredRun]) -> list[str]:
    return [run.run_id for run in runs[:_MOST_IDS]]


MOST = 50
"""Runs and groups that are listed unless more are asked for."""

_NAME_WIDTH = 44
_LONGEST = 48
_MOST_NAMED = 3


def listing(found: Sequence[MeasuredRun], most: int | None, *, full_names: bool) -> str:
    """The verdicts over all runs, the ``most`` newest of these (None: all), and the next step."""
    groups = group(found)
    judged = groups[:most]
    shown = list(found)
    if most is not None and len(found) > most:
        shown = sorted(found, key=lambda item: item.created, reverse=True)[:most]
    order = {id(member): number for number, item in enumerate(groups) for member in item.members}
    shown.sort(key=lambda item: order.get(id(item), len(groups)))  # repeats together
    text = columns.table(GROUP, judged) + "\n" if groups else ""
    explain(shown)
    analyses: dict[tuple[str, str], list[MeasuredRun]] = {}
    for item in shown:
        analyses.setdefault((item.style.heading, str(item.timing.window)), []).append(item)
    for first, *others in analyses.values():
        timings = [item.timing for item in (first, *others)]
        text += render(timings, first.style, first.timing.window, "table", full_names=full_names) + "\n"
    text += _runs(shown, groups, full_names=full_names)
    rest = ((len(found) - len(shown), "run"), (len(groups) - len(judged), "group"))
    if hidden := " and ".join(counted(count, noun) for count, noun in rest if count):
        text += f"{hidden} not listed: --all lists everything\n"
    say_remarks(shown)
    for line in (*group_remarks(judged), *reference_lines(found)):
        notice(line)
    step = _most_urgent(judged)
    return f"{text}\n{next_command(*step.words)}  # {step.why}\n"


def listing_as_dict(found: Sequence[MeasuredRun]) -> dict[str, Any]:
    """All runs as JSON, with the verdicts over them and the next step."""
    groups = group(found)
    return {
        "runs": as_dicts(found),
        "groups": [columns.as_dict(GROUP, item) for item in groups],
        "next": next_step(groups),
    }


def _runs(found: Sequence[MeasuredRun], groups: Sequence[Group], *, full_names: bool) -> str:
    in_baseline = {run.run_id for item in found[:1] for known in item.baselines for run in known.runs}
    differing = what_differs(found, groups)
    names, marks = {}, {}
    for item, chosen in zip(found, apart(item.record.plan if item.record else None for item in found), strict=True):
        name = item.record.paths.name if item.record else item.timing.files.name
        names[id(item)] = name if full_names else shorten(name, _NAME_WIDTH)
        status = item.timing.status
        if status.state == "Trained":
            trouble = [item.why.short if item.why else status.message, item.unfit]
        elif status.state != "Success":
            trouble = [f"{status.state}: {status.message}", item.why.short if item.why else ""]
        else:
            trouble = [item.unfit, "" if item.record else "not an LLMB run: no figures"]
        held = "in the baseline" if item.record and item.record.paths.run_id in in_baseline else ""
        marks[id(item)] = "; ".join(filter(None, (*trouble, chosen, differing.get(id(item)), held)))
    beside = (
        Column[MeasuredRun]("name", lambda item: names[id(item)], Form.TABLE, head="name"),
        Column[MeasuredRun]("marks", lambda item: marks[id(item)], Form.TABLE, head="what differs"),
    )
    return columns.table((*RUN, *beside), found)


def what_differs(listed: Iterable[MeasuredRun], groups: Iterable[Group]) -> dict[int, str]:
    """What of each run, by its ``id()``, is not as in most others of its group: of the facts that ``compare`` knows."""
    wanted = {id(item) for item in listed}
    found: dict[int, str] = {}
    for item in groups:
        known = {id(run): facts(run.record) for run in item.members if id(run) in wanted and run.record}
        if len(known) > 1:
            found |= _unusual(known)
    return found


def _unusual(known: Mapping[int, Mapping[str, str]]) -> dict[int, str]:
    names = dict.fromkeys(name for of_run in known.values() for name in of_run if name != "hosts")
    usual = {name: _usual(name, list(known.values())) for name in names}
    hosts = {run: set(filter(None, of_run.get("hosts", "").split(", "))) for run, of_run in known.items()}
    counts = Counter(host for of_run in hosts.values() for host in of_run)
    told_hosts = sum("hosts" in of_run for of_run in known.values())
    often = {host for host, count in counts.items() if 2 * count > told_hosts}
    found = {}
    for run, of_run in known.items():
        told = [
            f"{name} {of_run.get(name, '-')}"
            for name in names
            if of_run.get(name, "-") != usual[name] and (name in of_run or name not in EVIDENCE)
        ]
        if nodes := ", ".join(sorted(hosts[run] - often)):
            told.append(f"on {nodes}")
        shown = [text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..." for text in told[:_MOST_NAMED]]
        more = [f"{len(told) - _MOST_NAMED} more"] if len(told) > _MOST_NAMED else []
        found[run] = "; ".join([*shown, *more])
    return found


def _usual(name: str, known: Sequence[Mapping[str, str]]) -> str | None:
    """What more runs have than any other value; None where there is no such value."""
    told = [of_run for of_run in known if name in of_run or name not in EVIDENCE]
    (value, count), *others = Counter(of_run.get(name, "-") for of_run in told).most_common(2)
    return None if others and others[0][1] == count else value
