"""``Report``: everything that a report says, as plain data. HTML, Markdown and JUnit are functions of it (``forms``).

It begins with the answer: pass, fail or open, and what to do. However many runs it is on, it holds no more than people
look at; ``left_out`` says what it does not show, and where that is.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from llmb_common import __version__
from llmb_common.measured.run import MeasuredRun, reference_lines
from llmb_common.planning.workspace import Workspace
from llmb_common.results.configuration import title_of
from llmb_common.results.history import History, histories
from llmb_common.results.level import level
from llmb_common.results.scaling import ScalingLine
from llmb_common.runs.timing.runs import NO_FAILURE
from llmb_run import columns
from llmb_run.reporting.answer import Answer, Counts, Deciding, conclude, named, worst_first
from llmb_run.reporting.differences import MOST_TITLES, Differing, differing
from llmb_run.reporting.fabric import FabricPart
from llmb_run.reporting.history import shown_histories
from llmb_run.reporting.hosts import HostLine, host_lines
from llmb_run.reporting.seen import SeenRun, seen_runs
from llmb_run.reporting.site import facts_of_site
from llmb_run.reporting.steps import StepColumns, steps_of
from llmb_run.results.groups import GROUP, Board, Group, group_runs, rank_groups, ranking_as_dict
from llmb_run.results.listing import BAD_NODE, next_step
from llmb_run.results.run_columns import RUN, as_dict
from llmb_run.results.series import SCALING, history_view, scales_of, scaling_lines
from llmb_run.results.summary import excluded_of

MOST_POINTS = 30_000
"""Steps that a report holds, over all runs."""

MOST_RUNS = 300
"""Runs that a report shows by themselves."""

MOST_GROUPS = 100
"""Configurations."""

_MOST_HOSTS = 300
_MOST_LINES = 30  # of scaling
_MOST_SWEEPS = 10
_MOST_OF_SWEEP = 100
_MOST_REFERENCES = 60
_MOST_CAUSES = 3

_REST = {
    "groups": ("configurations, the worst first", "results --group --format csv"),
    "runs": ("runs, the newest of each configuration", "results --format csv"),
    "sweeps": ("configurations of sweeps, the fastest first", "results --rank --format csv"),
    "scaling": ("lines", "results --scaling --format csv"),
    "history": ("successful runs, with the fastest and slowest of each stretch", "results --history --format csv"),
    "nodes": ("nodes, slow ones first", "results --json"),
    "differences": ("kinds of jobs", "compare"),
}
"""By section: what is shown of it, and the command that has the rest."""

_PAGE = {
    name: columns.column_descriptions(listed)
    for name, listed in (("runs", RUN), ("groups", GROUP), ("scaling", SCALING))
}


class ReportRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a report.

    ``build`` makes it. ``result`` is the run as ``results --json`` has it (``run_columns.as_dict``), without
    ``why``. ``name`` is the run id, or the log's name for a log that LLMB did not write; ``title``, of the
    configuration, is None for such a log, ``software`` where it is unknown. ``hosts`` are the names of its nodes,
    empty if not known; ``steps`` its steps, thinned out.
    """

    result: dict[str, Any]
    name: str
    title: str | None
    software: str | None
    hosts: tuple[str, ...]
    steps: StepColumns


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a report says, whatever its form: HTML, Markdown or JUnit. ``build`` makes it.

    ``title`` is the heading, ``answer`` the first screen, ``version`` LLMB's. ``scaling`` has a line for each kind
    of job that ran at several numbers of GPUs, ``differing`` what runs of one configuration differ in. ``groups``
    are the configurations as ``results --group --json`` has them, the worst first, ``hosts`` the nodes, slow ones
    first; ``runs`` stay in the order given. ``references`` are lines on what the verdicts were compared with. The
    lists are cut to what there is room for; ``counts`` are of all runs. The property ``ok``: none of all runs
    failed.
    """

    title: str
    made: float
    """Unix time."""
    version: str
    facts: tuple[tuple[str, str], ...]
    """Cluster, GPUs, software and so on, each with its name."""
    answer: Answer
    counts: Counts
    groups: tuple[dict[str, Any], ...]
    """Configurations as JSON; their ``run_ids`` are those of runs that the report shows."""
    runs: tuple[ReportRun, ...]
    sweeps: tuple[dict[str, Any], ...]
    """Rankings (``ranking_as_dict``) of configurations that differ in more than their scale and precision."""
    scaling: tuple[ScalingLine, ...]
    scales: tuple[list[dict[str, Any]], ...]
    """For each of ``scaling``, its rows as JSON."""
    histories: tuple[History, ...]
    """Of the configurations that were run more than once; with few enough runs to draw."""
    course: tuple[str, ...]
    """What all runs say of each of ``histories``: since when it is slower or faster."""
    differing: tuple[Differing, ...]
    hosts: tuple[HostLine, ...]
    references: tuple[str, ...]
    left_out: dict[str, str] = {}  # msgspec copies it
    """For each section that is cut short, how much of it is shown, and the command that has the rest."""
    columns: dict[str, list[dict[str, str]]] = msgspec.field(default_factory=lambda: dict(_PAGE))
    """The page's columns of figures: key, heading, unit and how a value is written, for each of its tables."""
    campaign: dict[str, Any] | None = None
    """The verdicts of the acceptance campaign that the runs are of (``outcome.for_report``); None: of none."""
    fabrics: tuple[FabricPart, ...] = ()
    """Measurements of the fabric that were given, or that the campaign began with."""
    tuning: dict[str, Any] | None = None
    """Keys ``conclusion``, ``found``, ``trials`` and ``winner`` of the result of the tuning that the runs are of.

    None: they are of none.
    """

    @property
    def ok(self) -> bool:
        """Whether no run of the report failed; those count that the report leaves out.

        Runs that were cancelled, preempted or never submitted have failed; those that are too short to be measured,
        were told to end early or have not ended have not.
        """
        return self.counts.failed == 0


_DOCUMENTED = {"gpus", "gbs", "dtype", "fp8_recipe", "software", "image", "engine"}
"""What configurations differ in that is no sweep: documented ones, and a job in two containers."""


class _Choice:
    """The configurations and runs that a report shows: the worst configurations, and of each the newest runs.

    Made from all measured runs, ``found``, which then drop what they hold in memory. ``made`` has all
    configurations, ``every`` these as JSON, ``order`` their positions, the worst first, ``groups`` those that are
    shown, the worst first, and ``runs`` the runs that are shown, in the order given. ``shown_groups`` returns those
    of ``every`` that are shown, a tuple, the worst first, with the ids of shown runs only; ``named`` a list of
    those of given ids whose runs are shown, in their order; ``deciding`` the worst configuration, with what to do
    about it; None: LLMB recorded none of the runs. Making it and ``deciding`` raise:

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """

    def __init__(self, found: Sequence[MeasuredRun]) -> None:
        self.found = found
        self.made = group_runs(found)
        self.every = [columns.as_dict(GROUP, item) for item in self.made]
        _release_memory(found)
        self.order = worst_first(self.every)
        self.groups = [self.made[at] for at in self.order[:MOST_GROUPS]]
        self.runs = self._runs_to_show()
        self._names = {_run_name(run) for run in self.runs}

    def _runs_to_show(self) -> list[MeasuredRun]:
        """Return the runs to show: the newest of each configuration, then the second newest of each, and so on.

        There are at most ``MOST_RUNS``. They are in the order in which the runs were given. Logs without a record count
        as one configuration.
        """
        logs = [run for run in self.found if run.row is None]
        members = [*(item.members for item in self.groups), logs]
        newest = [sorted(some, key=lambda run: -run.created) for some in members]
        turns = itertools.zip_longest(*newest)
        in_turn = itertools.chain.from_iterable(turns)
        chosen = (id(run) for run in in_turn if run is not None)
        shown = set(itertools.islice(chosen, MOST_RUNS))
        return [run for run in self.found if id(run) in shown]

    def shown_groups(self) -> tuple[dict[str, Any], ...]:
        """Return the configurations to show as JSON, the worst first; at most ``MOST_GROUPS``.

        Their ``run_ids`` are those of shown runs only.
        """
        listed = (self.every[at] for at in self.order[:MOST_GROUPS])
        return tuple({**item, "run_ids": self.named(item["run_ids"])} for item in listed)

    def named(self, run_ids: Sequence[str]) -> list[str]:
        """Return those of ``run_ids`` whose runs the report shows, in their order.

        Of a log that LLMB did not write, the log's name counts as its id.
        """
        return [name for name in run_ids if name in self._names]

    def deciding(self, seen: Sequence[SeenRun], hosts: Sequence[HostLine], workspace: Workspace) -> Deciding | None:
        """Return the worst configuration, which decides the report's answer, and what to do about it.

        ``seen`` and ``hosts`` are all runs and nodes: they tell which of its runs had a slow node. None: there is
        no configuration, as LLMB recorded none of the runs. ``workspace``: whose installation's excluded nodes
        count.

        Raises:
            RecordError: the record of a run is gone, or cannot be read
            RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        """
        if not self.order:
            return None
        at = self.order[0]
        step, excluded = next_step(self.found, self.made), excluded_of(workspace.install_or_none)
        todo = step.todo.replace("{}", self._configuration_name(step.of))
        without = _mean_without_slow_nodes(self.made[at], seen, hosts)
        return Deciding(self.every[at], todo, step.command, without, excluded, urgent=step.urgency == BAD_NODE)

    def _configuration_name(self, of: Group | None) -> str:
        """Return what to call the configuration ``of`` in a sentence: ``llama3.1 70b mbridge fp8 on 64 H100``.

        ``it`` where there is only one configuration, or ``of`` is None. ``of`` is one of those in ``made``.
        """
        if of is None or len(self.made) == 1:
            return "it"
        return named(self.every[self.made.index(of)], self.every)


def build(found: Sequence[MeasuredRun], workspace: Workspace, title: str = "LLMB report") -> Report:
    """Return the report on the measured runs ``found``, in their order; there may be none.

    Fabrics, campaign and tuning stay empty: callers add them, by a copy. Finds out why failed runs failed. Each run
    drops what it holds in memory and can read again. ``workspace``: whose recipes and site configuration count;
    ``title``: the report's heading.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecordError: the record of a run is gone, or cannot be read
        RecipeError: a file of a run's recipe cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    seen = seen_runs(found)
    choice = _Choice(found)
    counts = _count_outcomes(found, seen)
    hosts = host_lines(seen)
    boards = [board for board in rank_groups(choice.made, workspace) if board.command and _is_sweep(board)]
    sweeps = _shown_sweeps(boards, choice)
    references = reference_lines(found)
    _release_memory(found)
    lines = scaling_lines(found)
    scales = [[columns.as_dict(SCALING, row) for row in scales_of(line)] for line in lines[:_MOST_LINES]]
    every = _histories(seen)
    drawn = shown_histories(every)
    differences = differing(seen)
    return Report(
        title=title,
        made=round(time.time()),
        version=__version__,
        facts=facts_of_site(seen, workspace),
        answer=conclude(choice.every, counts, hosts, choice.deciding(seen, hosts, workspace), boards),
        counts=counts,
        groups=choice.shown_groups(),
        runs=tuple(_report_runs(choice.runs)),
        sweeps=tuple(sweeps),
        scaling=tuple(lines[:_MOST_LINES]),
        scales=tuple(scales),
        histories=tuple(drawn),
        course=_change_sentences(every, drawn),
        differing=tuple(differences[:MOST_TITLES]),
        hosts=hosts[:_MOST_HOSTS],
        references=tuple(references[:_MOST_REFERENCES]),
        left_out=_left_out(
            groups=(len(choice.groups), len(choice.made)),
            runs=(len(choice.runs), len(found)),
            sweeps=(sum(len(board["lines"]) for board in sweeps), sum(len(board.configurations) for board in boards)),
            scaling=(len(scales), len(lines)),
            history=(_count_runs(drawn), _count_runs([item for item in every if len(item.moments) > 1])),
            nodes=(min(len(hosts), _MOST_HOSTS), len(hosts)),
            differences=(min(len(differences), MOST_TITLES), len(differences)),
        ),
    )


def _release_memory(found: Sequence[MeasuredRun]) -> None:
    """Make each run drop what it holds in memory and can read again, as ``MeasuredRun.forget`` does."""
    for run in found:
        run.forget()


def _run_name(run: MeasuredRun) -> str:
    """Return the run's id, or, for a log that LLMB did not write, the log's name."""
    return run.run_id or run.files.name


def _report_runs(shown: Sequence[MeasuredRun]) -> Iterator[ReportRun]:
    """Yield what the report has of each run in ``shown``, with fewer steps of each the more runs there are.

    All have about ``MOST_POINTS`` steps together. Each run then drops what it holds in memory.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    most = MOST_POINTS // max(1, len(shown))
    for item in shown:
        result = {name: value for name, value in as_dict(item).items() if name != "why"}
        yield ReportRun(
            result=result,
            name=result["run_id"] or result["name"],
            title=title_of(item.record.plan) if item.record else None,
            software=item.software or None,
            hosts=item.account.hosts,
            steps=steps_of(item.timing, most),
        )
        item.forget()


def _count_outcomes(found: Sequence[MeasuredRun], seen: Sequence[SeenRun]) -> Counts:
    """Return how many of the runs ``found`` failed, are live or have no result, and the commonest causes of failure.

    The causes, at most ``_MOST_CAUSES``, the commonest first, come from ``seen``, the same runs without logs that
    LLMB did not write; a failed run whose cause is not known adds none.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    causes = Counter(run.cause for run in seen if run.cause and run.run.failed)
    became = Counter(run.outcome for run in found if run.status.state == "Incomplete")
    return Counts(
        runs=len(found),
        failed=sum(run.failed for run in found),
        unsuccessful=sum(run.status.state not in NO_FAILURE for run in found),
        live=sum(run.status.state == "Running" for run in found),
        others=tuple(f"{count} {outcome}" for outcome, count in became.most_common()),
        causes=tuple(cause for cause, _ in causes.most_common(_MOST_CAUSES)),
    )


def _mean_without_slow_nodes(worst: Group, seen: Sequence[SeenRun], hosts: Sequence[HostLine]) -> float | None:
    """Return the mean step time, in seconds with stalls, of those of a configuration's runs that had no slow node.

    None where all of its timed runs, or none, had no slow node. ``worst`` is that configuration. ``seen`` and
    ``hosts`` are all runs and nodes; a run in ``seen`` belongs to ``worst`` where it holds the same object as its
    ``members``.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    slow = {line.host for line in hosts if line.slower is not None}
    members = {id(run) for run in worst.members}
    good = [run for run in seen if id(run.run) in members and run.run.good]
    times = [run.run.good for run in good if slow.isdisjoint(run.hosts) and run.run.good]
    return math.exp(level(times).mean) if times and len(times) < len(good) else None


def _is_sweep(board: Board) -> bool:
    """Return whether the configurations of a ranking are a sweep: they differ in more than recipes document.

    Recipes document numbers of GPUs, batch sizes and precisions. One job in two containers is no sweep, nor is a
    ranking of one configuration. ``board`` is the ranking: its ``names`` are looked at.
    """
    return not {*board.names} <= _DOCUMENTED


def _shown_sweeps(boards: Sequence[Board], choice: _Choice) -> list[dict[str, Any]]:
    """Return the first rankings as ``results --rank --json`` has them, with the fastest configurations of each.

    There are at most ``_MOST_SWEEPS``, of at most ``_MOST_OF_SWEEP`` configurations. Run ids are those of runs that
    ``choice`` shows. ``boards`` stay as they are.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    few = [replace(board, configurations=board.configurations[:_MOST_OF_SWEEP]) for board in boards[:_MOST_SWEEPS]]
    shown = ranking_as_dict(few)
    for board in shown:
        for line in board["lines"]:
            line["run_ids"] = choice.named(line["run_ids"])
    return shown


def _histories(seen: Sequence[SeenRun]) -> list[History]:
    """Return a history for each configuration among the runs, in the order of their first runs that have a step time.

    A run without a step time that counts is left out; empty where no run has one. How repeats differ is by the past
    runs that the first of ``seen`` knows of.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    observed = [run.observed for run in seen]
    places = [place for place in observed if place]
    return histories(places, scatter_of=seen[0].run.past.scatter) if places else []


def _change_sentences(every: Sequence[History], drawn: Sequence[History]) -> tuple[str, ...]:
    """Return the sentences on changes of speed over time in the histories that are ``drawn``.

    A history without a change has one, too, that says so. They are judged by the runs in ``every``, from which no run
    is thinned out.
    """
    keys = {item.key for item in drawn}
    return tuple(history_view([item for item in every if item.key in keys]).conclusions)


def _count_runs(found: Sequence[History]) -> int:
    """Return the number of runs in all the histories together."""
    return sum(len(item.moments) for item in found)


def _left_out(**counts: tuple[int, int]) -> dict[str, str]:
    """Return by section of the report a text on how many of how many items it shows.

    ``20 of 133 lines. The others: llmb-run COMMAND``. ``counts``: (shown, all) for each section, by the names in
    ``_REST``; another name is a KeyError. A section that shows all is not in the answer.
    """
    found = {}
    for section, (shown, all_of_them) in counts.items():
        if shown < all_of_them:
            what, command = _REST[section]
            found[section] = f"{shown:,} of {all_of_them:,} {what}. The others: llmb-run {command}"
    return found
