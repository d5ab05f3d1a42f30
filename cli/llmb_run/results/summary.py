"""The first screen of ``results``: a conclusion, a line for each configuration, and the weightiest notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from llmb_common.base.errors import LLMBError, RecordError, result_or_error
from llmb_common.base.printable import counted, first_few, signed_percent, wrapped
from llmb_common.measured.run import MeasuredRun, explain
from llmb_common.runs.timing.tables import shorten
from llmb_common.submission.excluded_nodes import exclusions
from llmb_run import columns
from llmb_run.columns import TOO_FEW, Column, Form, half_interval, seconds_of
from llmb_run.results.groups import Group, record_of
from llmb_run.results.lines import (
    Line,
    lines_of,
    names_of,
    one_of_text,
    relative_speed,
    shared_by,
    software_said,
    without_shared,
)
from llmb_run.results.notes import Note, notes_on
from llmb_run.results.words import WITHOUT_A_TIME, WORST_FIRST

if TYPE_CHECKING:
    from llmb_common.submission.bad_nodes import BadNode

SCREEN = 15
"""Lines of a summary, unless all configurations are asked for."""
MOST_NOTES = 3
_MOST_ROWS = 7
_LONGEST_NAME = 48


def _interval_cell(line: Line) -> str:
    """Return half the confidence interval of a configuration's step time as text: ``1.9 %``.

    From 100 % on it is ``TOO_FEW``. Empty where there is none.
    """
    interval = half_interval(line.group.interval if line.group else None)
    return f"{interval} %" if interval and interval != TOO_FEW else interval


def _difference_cell(line: Line) -> str:
    """Return how much longer a configuration's step time is than its reference's, as text with sign: ``+1.9 %``.

    Empty where nothing was compared.
    """
    share = line.difference
    return "" if share is None else signed_percent(share)


def _reference_cell(line: Line) -> str:
    """Return the step time of a configuration's reference in seconds, as text without a unit (``seconds_of``).

    Empty where nothing was compared.
    """
    verdict = line.group.verdict if line.group else None
    return seconds_of(verdict.reference.seconds) if verdict and verdict.reference and verdict.decision else ""


ROW: tuple[Column[Line], ...] = (
    Column("name", lambda line: line.name, Form.TABLE, head="configuration"),
    Column("software", lambda line: software_said(line.group) if line.group else "", Form.TABLE, head="software"),
    Column("seconds", lambda line: seconds_of(line.seconds), Form.TABLE, head="step s", spec="s"),
    Column("interval", _interval_cell, Form.TABLE, head="±", spec="s"),
    Column("reference", _reference_cell, Form.TABLE, head="ref. s", spec="s"),
    Column("difference", _difference_cell, Form.TABLE, head="vs. ref.", spec="s"),
    Column("word", lambda line: f"{line.word}{'*' * line.indication}", Form.TABLE, head="verdict"),
    Column("count", lambda line: line.count, Form.TABLE, head="runs"),
)
_DISPENSABLE = ("software", "reference", "interval", "difference")


@dataclass
class Summary:
    """The first part of what ``results`` prints: a conclusion, a line for each configuration, and notes.

    ``found`` are all runs, ``groups`` their configurations (``group_runs``); ``looked_at`` those of ``found``, the
    same objects, whose logs and records are read for notes, the newest. ``width`` is in characters. ``install``:
    the installation, whose list of excluded nodes counts; None: there is none. What it finds out is kept: later
    changes on disk do not show.

    Properties: ``lines`` is a list of the configurations, the most urgent first, then of the logs; ``notes`` all
    notes, the weightiest first; ``names`` the configurations' full names, in the order of ``groups``; ``shared``
    the beginning that these have in common (empty: none); ``jobs`` a dictionary from the ``id()`` of a run to the
    rest of its configuration's name; ``excluded`` a set of the names of nodes that jobs are kept off;
    ``slow_nodes`` a dictionary from the names of other nodes, a tuple (several: one of them is slow), to the lines
    that they slow down; ``bad_nodes`` a list of other nodes that failed runs speak against.

    ``text`` returns all of that part, ending with a newline, ``conclusion`` its first line without a newline;
    ``short(text)`` is the text without the domain of slow nodes. All but ``excluded`` raise RecordError where the
    record of a run cannot be read; ``notes`` and ``text`` also RecipeError, ConfigError and OSError.
    """

    found: Sequence[MeasuredRun]
    groups: Sequence[Group]
    looked_at: Sequence[MeasuredRun]
    width: int
    install: Path | None = None

    @cached_property
    def excluded(self) -> frozenset[str]:
        """The names of the nodes that later jobs are kept off already; empty where the list cannot be read."""
        return excluded_of(self.install)

    @cached_property
    def names(self) -> list[str]:
        """The full names of the configurations, in the order of ``groups``.

        Raises:
            RecordError: the record of a run is gone, or cannot be read
        """
        return names_of(self.groups)

    @cached_property
    def shared(self) -> str:
        """The beginning that the names of all configurations share, which the summary prints once.

        Empty: nothing is shared, there are fewer than two configurations, or some of the runs are logs that LLMB did
        not write.

        Raises:
            RecordError: the record of a run is gone, or cannot be read
        """
        return "" if any(run.row is None for run in self.found) else shared_by(self.names)

    @cached_property
    def lines(self) -> list[Line]:
        """One line for each configuration, the most urgent first, then one for each log that LLMB did not write.

        Raises:
            RecordError: the record of a run is gone, or cannot be read
        """
        return lines_of(self.found, self.groups, [without_shared(name, self.shared) for name in self.names])

    @property
    def jobs(self) -> dict[int, str]:
        """The name of each run's configuration, without what all share, by the run's ``id()``.

        ``as documented`` where nothing else is left of it. Logs that LLMB did not write are left out.

        Raises:
            RecordError: the record of a run is gone, or cannot be read
        """
        found: dict[int, str] = {}
        of_groups = [line for line in self.lines if line.group]
        for line in of_groups:
            for run in line.runs:
                found[id(run)] = line.name
        return found

    @cached_property
    def slow_nodes(self) -> dict[tuple[str, ...], list[Line]]:
        """The lines that are slowed down by a node, by the name of that node, a tuple of one.

        Where it is one of several nodes, by the names of all of them. The most urgent lines come first. Nodes that are
        excluded already are left out. Empty: no other node is known to be slow.

        Raises:
            RecordError: the record of a run is gone, or cannot be read
        """
        together: dict[tuple[str, ...], list[Line]] = {}
        for line in self.lines:
            if line.slow_node and not set(line.slow_node.nodes) <= self.excluded:
                together.setdefault(line.slow_node.nodes, []).append(line)
        return together

    @cached_property
    def bad_nodes(self) -> list[BadNode]:
        """The nodes that failures of the last week speak against, of the runs looked at, sorted by name.

        They are those that ``nodes_to_leave_out`` names, without those that are excluded already. Empty: there are
        none, there is no installation, or its list of excluded nodes cannot be read.

        Raises:
            RecordError: the record of a failed run is gone, or cannot be read
        """
        failed = [run for run in self.looked_at if run.row is not None and run.outcome == "failed"]
        if not failed or self.install is None:
            return []
        # Most runs have not failed, and schedulers come with it.
        from llmb_common.submission.bad_nodes import nodes_to_leave_out, shown_by_end

        explain(failed)
        shown = chain.from_iterable(shown_by_end(record_of(run), run.why) for run in failed)
        found = result_or_error(nodes_to_leave_out, list(shown), self.install)
        return [] if isinstance(found, LLMBError) else [item for item in found if item.node not in self.excluded]

    @cached_property
    def notes(self) -> list[Note]:
        """Everything to know of the configurations as notes, the weightiest first, each text once.

        The first use reads logs and records.

        Raises:
            RecordError: the record of a run is gone, or cannot be read
            RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
            OSError: the log of a run is to be read again for its steps, and cannot be
        """
        return notes_on(self.lines, self.looked_at, self.found, self.excluded)

    def short(self, text: str) -> str:
        """Return ``text`` with nodes' names shortened: the domain of the slow nodes is removed wherever it stands.

        Excluded nodes count, too. Unchanged where there are no slow nodes, or they are of several domains.

        Raises:
            RecordError: the record of a run is gone, or cannot be read
        """
        slow = [line.slow_node.nodes for line in self.lines if line.slow_node]
        domains = {node.partition(".")[2] for node in chain.from_iterable(slow)}
        # Names of several domains might no longer be unique without these.
        if len(domains) == 1:
            (domain,) = domains
            text = text.replace(f".{domain}", "") if domain else text
        return text

    def conclusion(self) -> str:
        """Return the first line of the summary, a fragment: how many configurations and runs, and how they stand.

        Such as ``2 configurations of llama3.1 405b fp8 on 128 gb200, 6 runs: 1 FAIL, 1 PASS``. Slow nodes come
        first, then the words of the configurations, the worst first, then how many runs have no time. Of a single
        configuration it has the name and the difference: ``NAME, 3 runs: PASS, 1.2 % slower than the reference``;
        ``*`` behind the word means other software. It has no newline. It may be wider than the terminal.

        Raises:
            RecordError: the record of a run is gone, or cannot be read
        """
        words = Counter(line.word for line in self.lines)
        if len(self.lines) == 1:
            begin = f"{self.lines[0].name}, {counted(len(self.found), 'run')}"
        else:
            of = f" of {self.shared}" if self.shared else ""
            begin = f"{counted(len(self.lines), 'configuration')}{of}, {counted(len(self.found), 'run')}"
        sentences = []
        for nodes, slowed in self.slow_nodes.items():
            slow_lines = "some runs" if len(self.lines) == 1 else first_few([line.name for line in slowed], 2)
            verb = "are" if len(slowed) > 1 or len(self.lines) == 1 else "is"
            sentences.append(f"{slow_lines} {verb} held back by {one_of_text(nodes)}")
        if len(self.lines) == 1:
            (line,) = self.lines
            share = line.difference
            against = "" if share is None else f", {relative_speed(share)} the reference"
            sentences.append(f"{line.word}{'*' * line.indication}{against}")
        else:
            order = [word.upper() for word in WORST_FIRST]
            sentences += [f"{words[word]} {word}" for word in order if words[word]]
        for outcome in WITHOUT_A_TIME:
            number = sum(line.outcomes[outcome] for line in self.lines if line.word != outcome.upper())
            if number:
                sentences.append(f"{counted(number, 'run')} {outcome}")
        return f"{begin}: {', '.join(sentences)}"

    def text(self, *, everything: bool, all_notes: bool, below: Sequence[str]) -> str:
        """Return the summary: the conclusion, a line for each configuration, and the weightiest notes.

        Configurations and notes stand in the order of their weight. It ends with a newline.

        Args:
            everything: all configurations; False: where there are more than ``_MOST_ROWS``, one less than that, and
                a line that says how many more there are
            all_notes: all notes, else as many as the screen has room for: at least one if there is any, at most
                ``MOST_NOTES``
            below: the lines that the caller prints at the end of the screen; room is left for them, they are not in
                the text

        Raises:
            RecordError: the record of a run is gone, or cannot be read
            RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
            OSError: the log of a run is to be read again for its steps, and cannot be
        """
        conclusion = wrapped(self.short(self.conclusion()), self.width)
        shown = self.lines
        if not everything and len(shown) > _MOST_ROWS:
            shown = shown[: _MOST_ROWS - 1]
        table = _table_lines(shown, self.width)
        if hidden := len(self.lines) - len(shown):
            table.append(f"and {counted(hidden, 'more configuration')}: --all")
        if any(line.indication for line in shown):
            table.append("* an indication: the reference was measured with other software")
        room = SCREEN - len(conclusion) - len(table) - len(below)
        notes: list[str] = []
        for number, note in enumerate(self.notes):
            part = wrapped(f"- {self.short(note.text)}", self.width, indent="  ")
            # The first note is shown even where there is no room.
            enough = number >= MOST_NOTES or (number and len(notes) + len(part) > room)
            if enough and not all_notes:
                break
            notes += part
        return "".join(f"{line}\n" for line in (*conclusion, *table, *notes))


def excluded_of(install: Path | None) -> frozenset[str]:
    """Return the names of the nodes that jobs of an installation avoid now.

    Nodes that were excluded until a time that is past are not among them. The set is empty without an installation, and
    where the list cannot be read.
    """
    if install is None:
        return frozenset()
    try:
        return frozenset(item.node for item in exclusions(install))
    except RecordError:
        return frozenset()


def _table_lines(lines: Sequence[Line], width: int) -> list[str]:
    """Return a table of the summary's lines, in order and with headings, as lines of text without line breaks.

    Names above ``_LONGEST_NAME`` characters are cut. Columns that matter least are left out until it fits in
    ``width`` characters. Empty without lines.
    """
    named = [Line(shorten(line.name, _LONGEST_NAME), line.runs, line.group) for line in lines]
    return columns.fitting(ROW, named, _DISPENSABLE, width).splitlines()
