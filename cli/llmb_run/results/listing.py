"""What plain ``results`` prints: the summary, then what else is asked for, and what to do next."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from llmb_common.base.printable import columns_of_terminal, counted, first_few
from llmb_common.base.run_states import is_live
from llmb_common.measured.run import MeasuredRun, explain
from llmb_common.results.comparison import EVIDENCE, facts
from llmb_common.results.configuration import distinguishing_settings
from llmb_common.results.verdict import Verdict
from llmb_common.runs.index.runs import name_of_round, round_named
from llmb_common.runs.timing.tables import render, shorten
from llmb_run import columns
from llmb_run.columns import Column, Form
from llmb_run.columns import chosen as chosen_columns
from llmb_run.results.groups import GROUP, Group, group_runs, record_of
from llmb_run.results.lines import exclude_command
from llmb_run.results.run_columns import RUN, as_dicts
from llmb_run.results.summary import Summary
from llmb_run.terminal import next_command

BAD_NODE = -2
"""Urgency of the step that keeps jobs off nodes that made runs fail: of no other."""

ENOUGH = 3
"""Runs of a baseline that an equal run can pass."""

_MOST_IDS = 10


class Step(NamedTuple):
    """What to do next about runs, with the command for it; of several steps, the smallest ``urgency`` comes first.

    There is always a step, also where all is well; ``next_step`` chooses it. ``urgency`` is from -2 to 9. ``words``
    are the command's, behind ``llmb-run``, not quoted. ``why`` is the reason in a few words, without a full stop.
    ``of``: the configuration that it is about; None: no single one. ``command``, a property, is the whole line,
    ``llmb-run ...``, quoted for a shell.
    """

    urgency: int
    words: tuple[str, ...]
    why: str
    todo: str = ""
    """What to do, a sentence with its full stop, ``{}`` standing for the configuration where it is named.

    Empty: just read what the command prints.
    """
    of: Group | None = None

    @property
    def command(self) -> str:
        """The command line, ``llmb-run ...``, quoted for a shell."""
        return f"llmb-run {shlex.join(self.words)}"


def next_step(found: Sequence[MeasuredRun], groups: Sequence[Group]) -> Step:
    """Return what to do next about the runs: the most urgent step of all groups; of equally urgent ones the first.

    Excluding a node that made runs fail, or slow, comes before all else, unless the list of excluded nodes of the
    installation has it; that is the installation of the first run. ``found`` are all runs, ``groups`` their
    configurations. Without groups: list what can be run. Starts and changes nothing. Finds out why the newest failed
    runs failed.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
    """
    return _most_urgent(groups, Summary(found, groups, _newest(found, MOST), 0, _install_of(found)))


def _newest(found: Sequence[MeasuredRun], most: int | None) -> list[MeasuredRun]:
    """Return the newest ``most`` of the runs, the newest first; if there are no more, and for None, all as they are."""
    if most is None or len(found) <= most:
        return list(found)
    return sorted(found, key=lambda run: run.created, reverse=True)[:most]


def _install_of(found: Sequence[MeasuredRun]) -> Path | None:
    """Return the installation that the runs belong to, by the first of them.

    None: there are no runs or no installation.
    """
    return found[0].judge.workspace.install_or_none if found else None


def _most_urgent(groups: Sequence[Group], summary: Summary) -> Step:
    """Return the most urgent step; a bad node comes before all else, then a slow one: further runs would meet it.

    A slow one only where it is known which node it is; such a step has no configuration in ``of``. Of equally urgent
    steps the first group's, with the group in ``of``; a step to rank short runs names those of all groups. Without
    groups: list what can be run. ``summary`` is that of the same runs, and says which nodes are bad or slow.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
    """
    if bad := summary.bad_nodes:
        names = [item.node for item in bad]
        reason = f"{bad[0].reason} (run {bad[0].run_id})" + (" and others" if len(bad) > 1 else "")
        why = "keeps later jobs off it" if len(bad) == 1 else "keeps later jobs off them"
        return Step(BAD_NODE, exclude_command(names, reason), why, f"Take {first_few(names)} out: {reason}.")
    for nodes, slowed in summary.slow_nodes.items():
        if len(nodes) == 1:
            reason = slowed[0].why_slow(nodes[0])
            return Step(
                -1, exclude_command(nodes, reason), "keeps later jobs off it", f"Take {nodes[0]} out: {reason}."
            )
    nothing = Step(9, ("list",), "lists what can be run")
    steps = [_next_step_of(item)._replace(of=item) for item in groups]
    first = min(steps, key=lambda step: step.urgency, default=nothing)
    if first.words[:2] == _RANK:  # not of one configuration alone
        members = chain.from_iterable(item.members for item in groups)
        short = [run for run in members if run.outcome == "too short"]
        return first._replace(words=(*_RANK, *_run_words(short)))
    return first


_RANK = ("results", "--rank")


def _run_words(runs: Sequence[MeasuredRun]) -> list[str]:
    """Return words of a command that name ``runs``: their sweeps (``sweep-3f2a9c1e``), or their ids.

    Sweeps are named, sorted and each once, if each run is of one, else the first ``_MOST_IDS`` ids. A log without a
    record has no sweep. Empty without runs.
    """
    keys = {run.row.key if run.row else "" for run in runs}
    beginnings = {":".join(key.split(":")[:2]) for key in keys}
    names = sorted(map(name_of_round, beginnings))
    return names if all(map(round_named, names)) else _first_ids(runs)


def _next_step_of(item: Group) -> Step:
    """Return what to do next about the configuration ``item``, by how its runs stand; there is always a step.

    Live runs come first, then a failed verdict, runs without a result, an open answer, and a baseline to make; if all
    is well, it is to look at the history. Runs that are all too short are to be ranked; where nothing was judged, a run
    is to be looked at. The step's ``of`` is None.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
    """
    live = [run for run in item.members if run.row and is_live(run.row.state)]
    if live:
        why = f"{counted(len(live), 'run')} not finished yet"
        return Step(2, ("wait", *_first_ids(live)), why, "Wait for the runs of {} that have not finished.")
    verdict = item.verdict
    if item.word == "fail":
        slowest = max(item.members, key=lambda run: run.good.seconds if run.good else 0.0)
        why = f"{item.title} is too slow: shows the nodes of its slowest run"
        return Step(
            0, ("show", *_first_ids([slowest])), why, "Find out what slows down {}, beginning with the slowest run."
        )
    # Short runs are tries: beside others that were measured, no trouble. What was stopped has been repeated since.
    harmless = ("too short", "cancelled", "preempted") if item.members[0].good else ("too short",)
    unfit = [run for run in item.members if run.unfit and run.outcome not in harmless]
    passed = verdict is not None and verdict.kind == "pass"
    short = [run for run in item.members if run.outcome == "too short"]
    if short and not unfit and not (item.runs or item.in_reference):
        why = "too short for the measured window: ranks them over the steps that all have"
        return Step(6, (*_RANK, *_first_ids(short)), why, "Rank the short runs over the steps that all of them have.")
    if unfit and not (passed and item.members[0].good):
        first = unfit[0]
        if first.outcome in ("cancelled", "preempted"):
            again = f"Start run {first.run_id} again: it was {first.outcome}."
            return Step(1, ("retry", *_first_ids([first])), f"{item.title}: {first.unfit}", again)
        what = "failed" if first.outcome == "failed" else f"is {first.outcome}"
        todo = f"Find out why run {first.run_id} has no result: it {what}."
        return Step(1, ("show", *_first_ids([first])), f"{item.title}: {first.unfit}", todo)
    if verdict is None or verdict.kind == "not judged":
        return Step(
            8, ("show", *_first_ids(item.members[:1])), f"{item.title}: {verdict.text if verdict else 'no figures'}"
        )
    if verdict.kind == "no reference":
        return _make_reference(item, verdict.text)
    if verdict.kind == "open":
        return _step_for_open(item, verdict)
    if verdict.reference and verdict.reference.kind == "baseline":
        return Step(7, ("results", "--history"), "all pass: shows how step times change over time")
    return _make_reference(item, "later runs are then compared with this site's own results")


def _step_for_open(item: Group, verdict: Verdict) -> Step:
    """Return what to do about a configuration whose answer is open: run it again, or look at it in a report.

    ``verdict`` is that on ``item``, the configuration. It is run again on other days if need be. If its baseline has
    too few runs to decide, the step lists the baselines, so that a larger one is made.

    Raises:
        RecordError: it is to be run on other days, and a run's record is gone or cannot be read
    """
    decision = verdict.decision
    if decision and decision.reference_too_uncertain:
        why = f"{item.title}: its baseline has too few runs to decide"
        return Step(3, ("baseline", "list"), why, "Make the baseline of {} from more runs.")
    # A single run does not show how much they differ, and so not how many it takes.
    first = max(ENOUGH - 1 - item.waiting, 1) if len(item.runs) == 1 else None
    if decision and (count := min(filter(None, (decision.more_runs, first)), default=None)):
        days = ", on other days" if decision.other_days else ""
        repeat = _repeat_step(3, item, count, f"{item.title} is open: more runs{days}", spread=decision.other_days)
        return repeat._replace(todo=f"Run {{}} again{days}.")
    return Step(6, ("report", "--html", "report.html"), f"{item.title}: {verdict.text}")


def _make_reference(item: Group, why: str) -> Step:
    """Return the step that makes a baseline of a group's runs, or that first runs more of them.

    ``item`` is the group. It runs more where the judged runs, at least one, are fewer than ``ENOUGH``; at most
    ``_MOST_IDS`` runs are made a baseline. ``why``: the reason, for people, a clause without a full stop. If all of
    them are in a baseline already, the step is to run ``ENOUGH`` more to compare with it.
    """
    of_baselines = chain.from_iterable(baseline.runs for baseline in item.members[0].baselines)
    known = {run.run_id for run in of_baselines}
    if all(run.run_id in known for run in item.runs):
        return _repeat_step(7, item, ENOUGH, "its runs are this site's baseline: compares new runs with it")
    if len(item.runs) < ENOUGH:
        return _repeat_step(5, item, ENOUGH - len(item.runs), f"a baseline takes {ENOUGH} runs; {why}")
    ids = [run.run_id for run in item.runs[:_MOST_IDS]]
    todo = "Make the runs of {} a baseline, so that later ones are compared with them."
    return Step(4, ("baseline", "set", *ids), f"{item.title}: {why}", todo)


def _repeat_step(urgency: int, item: Group, count: int, why: str, *, spread: bool = False) -> Step:
    """Return the step that runs the newest judged run of a group, which has one, ``count`` times more.

    ``spread``: on as many days (``--spread``), where the run's job went through a queue; else at once. ``urgency`` and
    ``why`` are the step's, as ``Step`` has them.

    Raises:
        RecordError: with ``spread``, the record of that run is gone, or cannot be read
    """
    newest = item.runs[-1]
    days = ("--spread", str(count)) if spread and record_of(newest).plan.scheduler is not None else ()
    return Step(urgency, ("retry", newest.run_id, "--repeats", str(count), *days), why, "Run {} again.")


def _first_ids(runs: Sequence[MeasuredRun]) -> list[str]:
    """Return the ids of the first runs, in their order, at most ``_MOST_IDS``; empty without runs."""
    return [run.run_id for run in runs[:_MOST_IDS]]


MOST = 50
"""Runs and groups that are listed unless more are asked for."""

_NAME_WIDTH = 44
_LONGEST = 48
_MOST_NAMED = 3


@dataclass(frozen=True)
class Parts:
    """The parts of a listing of runs that are printed beside the summary; by default none. Made of a command's options.

    ``runs``: a table of the runs. ``timing``: a table of their step times. ``notes``: all notes, not only the
    weightiest. ``everything``: every configuration, however many. ``full_names``: names of runs are not shortened,
    and the table of runs has all columns. ``most``: how many of the newest runs are listed in the tables, and
    looked at for notes, ``MOST`` by default; None: all.
    """

    runs: bool = False
    timing: bool = False
    notes: bool = False
    everything: bool = False
    full_names: bool = False
    most: int | None = MOST


def listing(found: Sequence[MeasuredRun], parts: Parts) -> str:
    """Return what plain ``results`` prints: conclusion, a line for each configuration, weightiest notes, next step.

    Between notes and next step come the tables that ``parts`` ask for, the repeats of a configuration side by side,
    and how many runs they leave out, if any. ``found`` are all runs. Made for the terminal's width. The text ends
    with a newline. Reads logs and records, and finds out why failed runs failed.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    groups = group_runs(found)
    shown = _newest(found, parts.most)
    order: dict[int, int] = {}
    for number, item in enumerate(groups):
        for member in item.members:
            order[id(member)] = number
    shown.sort(key=lambda item: order.get(id(item), len(groups)))  # repeats together
    summary = Summary(found, groups, shown, columns_of_terminal(), _install_of(found))
    step = _most_urgent(groups, summary)
    last = [_with_reason(step, summary.width), f"more: {_more_options_line(parts, len(summary.notes))}"]
    text = summary.text(everything=parts.everything, all_notes=parts.notes, below=last)
    sections = []
    if parts.runs:
        sections.append(_runs_table(shown, summary, parts))
    if parts.timing:
        sections.append(_timing_tables(shown, parts))
    if sections and len(shown) < len(found):
        sections[-1] += f"{counted(len(found) - len(shown), 'run')} not listed: --all lists everything\n"
    text = "\n".join([text, *sections])
    if sections:
        text += "\n"
    return text + "".join(f"{line}\n" for line in last)


def _with_reason(step: Step, width: int) -> str:
    """Return the line ``next: llmb-run ...`` with the step's command, and its reason if ``width`` has room for it.

    The reason is a comment behind the command (``  # why``). The line has no newline; ``width`` is in characters.
    """
    command = next_command(*step.words)
    line = f"{command}  # {step.why}"
    return line if len(line) <= width else command


def _more_options_line(parts: Parts, notes: int) -> str:
    """Return the options that show what is not on the screen, a line: ``--runs  --notes (3)  --json  --format csv``.

    Those that ``parts`` has already are left out, ``--notes`` also where there are no notes, the last two never.
    ``notes``: how many notes there are.
    """
    shown = {"--runs": parts.runs, "--timing": parts.timing, f"--notes ({notes})": parts.notes or not notes}
    return "  ".join([*(option for option, given in shown.items() if not given), "--json", "--format csv"])


def _timing_tables(shown: Sequence[MeasuredRun], parts: Parts) -> str:
    """Return tables of the runs' step times in the form of NVIDIA's documents, an empty line between two.

    There is one for each way and window of measuring, in the order in which the runs have them; its runs are in the
    order of ``shown``. Each ends with a newline. Empty without runs. Of ``parts`` only ``full_names`` counts.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
    """
    analyses: dict[tuple[str, str], list[MeasuredRun]] = {}
    for item in shown:
        analyses.setdefault((item.style.heading, str(item.timing.window)), []).append(item)
    tables = []
    for first, *others in analyses.values():
        timings = [item.timing for item in (first, *others)]
        tables.append(render(timings, first.style, first.timing.window, "table", full_names=parts.full_names))
    return "\n".join(tables)


def listing_as_dict(found: Sequence[MeasuredRun]) -> dict[str, Any]:
    """Return what ``results --json`` has: ``runs``, ``groups`` with their verdicts, and ``next``.

    ``runs`` are all of them as ``as_dicts`` makes them, in their order; ``groups`` has a dictionary by the keys of
    ``GROUP`` for each configuration, in the order of its first run. ``next`` is the next step: its ``command``, a whole
    line, and ``why``. Finds out why failed runs failed.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    groups = group_runs(found)
    step = next_step(found, groups)
    return {
        "runs": as_dicts(found),
        "groups": [columns.as_dict(GROUP, item) for item in groups],
        "next": {"command": step.command, "why": step.why},
    }


def _runs_table(found: Sequence[MeasuredRun], summary: Summary, parts: Parts) -> str:
    """Return the table of single runs: step time, difference from the reference, what became of each, what differs.

    ``found`` are the runs to list, at least one, in the table's order; ``summary`` is that of all. Finds out why
    failed runs failed. Of ``parts`` only ``full_names`` counts: all columns, and names as they are; else it fits
    the terminal. It ends with a newline.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    explain(found)
    baselines = found[0].baselines if found else ()
    in_baseline = {run.run_id for run in chain.from_iterable(known.runs for known in baselines)}
    differing, jobs = what_differs(found, summary.groups), summary.jobs
    names, marks = {}, {}
    for item, chosen in zip(
        found, distinguishing_settings(item.record.plan if item.record else None for item in found), strict=True
    ):
        name = item.record.paths.name if item.record else item.timing.files.name
        names[id(item)] = name if parts.full_names else shorten(name, _NAME_WIDTH)
        why = item.why.short if item.why else ""
        if item.outcome == "measured":
            trouble = [why, "" if item.record else "not an LLMB run"]
        elif item.outcome in ("running", "waiting"):
            trouble = [item.unfit]
        else:
            reason = item.why_not_training if item.outcome == "not training" else item.unfit
            trouble = [f"{item.outcome}: {why or reason}"]
        note = "in the baseline" if item.record and item.record.paths.run_id in in_baseline else ""
        said = (*trouble, chosen, differing.get(id(item)), note)
        marks[id(item)] = "; ".join(mark for mark in said if mark)
    beside = (
        Column[MeasuredRun]("name", lambda item: names[id(item)], Form.TABLE, head="name"),
        Column[MeasuredRun]("marks", lambda item: marks[id(item)], Form.TABLE, head="what differs"),
    )
    if parts.full_names:
        return columns.table((*RUN, *beside), found)
    run, *figures = chosen_columns(RUN, Form.TABLE, found)
    job = Column[MeasuredRun]("job", lambda item: jobs.get(id(item), ""), Form.TABLE, head="job")
    first = [run, job] if len(set(jobs.values())) > 1 else [run]
    return columns.fitting((*first, *figures, *beside), found, _DISPENSABLE, columns_of_terminal(), least=_LEAST_MARKS)


_LEAST_MARKS = 22
"""Columns that what differs has at least."""

_DISPENSABLE = (
    "name",
    "days_1t",
    "log_mfu_percent",
    "own_tflops_per_gpu",
    "predicted_memory_gib",
    "memory_gib",
    "tokens_per_second",
    "tflops_per_gpu",
    "mfu_percent",
    "gpus",
)
"""Columns of runs that a narrow terminal has no room for, the least important first."""


def what_differs(listed: Iterable[MeasuredRun], groups: Iterable[Group]) -> dict[int, str]:
    """Return what each listed run differs in from most others of its group: ``driver 580.95; on n12``.

    The keys are the runs' ``id()``. The facts are those of ``comparison.facts``, the first ``_MOST_NAMED`` and how
    many more. Only listed runs are compared. Empty text: nothing. Logs without a record, and a run that is the only
    one listed of its group, are left out. ``groups`` are those of the listed runs, with the same objects as
    ``members``.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
    """
    wanted = {id(item) for item in listed}
    found: dict[int, str] = {}
    for item in groups:
        members = [run for run in item.members if id(run) in wanted]
        known = {id(run): facts(run.record) for run in members if run.record}
        if len(known) > 1:
            found |= _unusual_facts(known)
    return found


def _unusual_facts(known: Mapping[int, Mapping[str, str]]) -> dict[int, str]:
    """Return for each run the first few facts in which it is unlike most others: ``driver 580.95; on n12``.

    At most ``_MOST_NAMED``, each cut to ``_LONGEST`` characters, then how many more: ``; 2 more``. Empty text:
    none. A fact without a commonest value is named of every run, nodes only where at most half of the runs have
    them. ``known``: the facts of each run of a group (name to text, ``hosts`` joined with a comma and a blank), by
    any key, which the answer has too. A run that lacks a fact that others have is named with ``-``, unless nodes
    record that fact (``EVIDENCE``).
    """
    names = dict.fromkeys(chain.from_iterable(known.values()))
    names.pop("hosts", None)
    usual = {name: _usual_value(name, list(known.values())) for name in names}
    hosts: dict[int, set[str]] = {}
    for run, of_run in known.items():
        listed = of_run.get("hosts", "").split(", ")
        hosts[run] = {host for host in listed if host}
    counts = Counter(chain.from_iterable(hosts.values()))
    told_hosts = sum("hosts" in of_run for of_run in known.values())
    common_hosts = {host for host, count in counts.items() if 2 * count > told_hosts}
    found = {}
    for run, of_run in known.items():
        facts_of_runs = [
            f"{name} {of_run.get(name, '-')}"
            for name in names
            if of_run.get(name, "-") != usual[name] and (name in of_run or name not in EVIDENCE)
        ]
        if nodes := ", ".join(sorted(hosts[run] - common_hosts)):
            facts_of_runs.append(f"on {nodes}")
        shown = [
            text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..." for text in facts_of_runs[:_MOST_NAMED]
        ]
        more = [f"{len(facts_of_runs) - _MOST_NAMED} more"] if len(facts_of_runs) > _MOST_NAMED else []
        found[run] = "; ".join([*shown, *more])
    return found


def _usual_value(name: str, known: Sequence[Mapping[str, str]]) -> str | None:
    """Return the commonest value of the fact ``name`` among the runs; None where two values are equally common.

    ``known`` has the facts of each run, name to text. At least one run has the fact. One without it counts as
    ``-``, but not at all for a fact that nodes record (one of ``EVIDENCE``).
    """
    recorded = [of_run for of_run in known if name in of_run or name not in EVIDENCE]
    counts = Counter(of_run.get(name, "-") for of_run in recorded)
    (value, count), *next_ones = counts.most_common(2)
    is_tied = any(other == count for _, other in next_ones)
    return None if is_tied else value
