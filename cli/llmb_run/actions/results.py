"""The commands that compare step times: results, compare."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from llmb_common.base import notices
from llmb_common.base.errors import RequestError, did_you_mean
from llmb_common.base.notices import notice
from llmb_common.base.outcome import Result, envelope
from llmb_common.base.printable import columns_of_terminal, percent, signed_percent
from llmb_common.measured.measure import measure
from llmb_common.measured.run import MeasuredRun, explain, reference_lines
from llmb_common.planning.workspace import Workspace
from llmb_common.results.comparison import SAME_LOSS, Change, compare_times, differences, loss_difference, unequal_work
from llmb_common.results.level import CONFIDENCE, SETTLED, level
from llmb_common.results.steps import StepTime
from llmb_common.runs.timing.window import Window, read_window
from llmb_run import columns
from llmb_run.app import refuse_beside_json
from llmb_run.results import groups
from llmb_run.results.groups import rank_runs, ranking_as_dict, ranking_text
from llmb_run.results.listing import MOST, Parts, listing, listing_as_dict
from llmb_run.results.notes import group_remarks
from llmb_run.results.run_columns import RUN, STEP, measured_steps, say_remarks
from llmb_run.results.selected import selected_runs
from llmb_run.results.short_runs import over_common_steps
from llmb_run.selecting import one_folder
from llmb_run.terminal import table


def results(
    runs: tuple[str, ...],
    output: str | None,
    single_runs: bool,
    timing: bool,
    notes: bool,
    full_names: bool,
    last: int | None,
    everything: bool,
    window: str | None,
    iterations: bool,
    group: bool,
    rank: bool,
    scaling: bool,
    history: bool,
    alarm: bool,
    **filters: Any,
) -> Result:
    """Measure how fast runs are, as ``llmb-run results`` does: those named, or all that match ``filters``.

    ``filters`` are the options of ``run_filter``; ``limit`` must be among them. ``output``: ``table`` (also None),
    ``csv`` or ``json``. ``iterations``, ``group``, ``rank``, ``scaling``, ``history``, ``alarm``: another view, at
    most one (``history`` and ``alarm`` together: the alarm); ``window``: the iterations to measure, None: each run's
    own. The table lists the newest ``last`` runs (None: as many as ``limit``, else ``MOST``), with ``everything`` all;
    ``single_runs``, ``timing``, ``notes``, ``full_names``: what it shows of them. Outputs of nccl-tests may be named
    instead of runs; the result is made by ``nccl_results`` then, and only ``output`` counts. The exit status is 1
    where a run failed; with ``rank`` where a ranking has no time and none to come, with ``alarm`` where there is one.

    Raises:
        RequestError: options exclude each other or are wrong, or no run is found
        RecordError: the list of folders outside the installation, or the record of a run, cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: a word's path may not be looked at, or the log of a run not be read
    """
    if output not in (None, "json"):
        refuse_beside_json("--format", output)
    output = output or "table"
    if output not in ("table", "csv", "json"):
        raise RequestError(
            f"--format {output} is unknown{did_you_mean(output, ('table', 'csv', 'json'))}",
            remedy="table, csv or json",
        )
    views = {"iterations": iterations, "group": group, "rank": rank, "scaling": scaling}
    asked = _asked_views({**views, "history": history, "alarm": alarm})
    if alarm and output == "csv":
        raise RequestError("--alarm has no CSV output", remedy="leave out --format csv, or use --json")
    if runs:
        from llmb_run.results.nccl import are_nccl_tests, nccl_results, refuse_view  # fabrics come with it

        if are_nccl_tests(runs):
            if asked:
                refuse_view(asked[0])
            return _in_output_form(output, *nccl_results(runs))
    workspace, measured = Workspace(), read_window(window) if window else None
    if alarm:
        return _alarm_result(output, workspace, runs, filters, measured)
    found = selected_runs(workspace, runs, filters, measured)
    if rank:
        return _ranking_result(output, found if measured else over_common_steps(found, workspace), workspace)
    status = 1 if any(item.failed for item in found) else 0
    if group or scaling or history:
        return _in_output_form(output, *_view_functions(found, group=group, scaling=scaling), status)
    if iterations:  # every step, which is no table for a terminal
        return _every_step(output, found, status)
    if output == "csv":
        explain(found)
    most = None if everything else last or filters["limit"] or MOST
    parts = Parts(single_runs, timing, notes, everything, full_names, most)
    shown = partial(listing, found, parts)
    return _in_output_form(output, partial(listing_as_dict, found), shown, partial(columns.csv_of, RUN, found), status)


def _asked_views(views: dict[str, bool]) -> list[str]:
    """Return the names of the views that are asked for: none, one, or history and alarm.

    Raises:
        RequestError: others are asked for together
    """
    asked = [name for name, given in views.items() if given]
    if len(asked) > 1 and asked != ["history", "alarm"]:
        raise RequestError(
            "--iterations, --group, --rank, --scaling and --history or --alarm cannot be combined",
            remedy="choose one",
        )
    return asked


def _every_step(output: str, found: list[MeasuredRun], status: int) -> Result:
    """Return a result with every training step of the measured runs, in the form ``output``; as a table it is CSV.

    ``output`` is as for ``_in_output_form``; as JSON the steps are a list under ``steps``. ``status``: the result's
    exit status.
    """

    def csv() -> str:
        """Return every training step of the measured runs as CSV text, with a line of column names.

        The runs are ``found`` of the enclosing function.

        Raises:
            OSError: a log that was read before cannot be read any more
        """
        return columns.csv_of(STEP, measured_steps(found))

    def data() -> dict[str, Any]:
        """Return every training step of the measured runs ``found`` as a dict with one key, ``steps``: a list of dicts.

        Each has the keys of ``STEP``. ``found`` is the enclosing function's.

        Raises:
            OSError: a log that was read before cannot be read any more
        """
        return {"steps": [columns.as_dict(STEP, step) for step in measured_steps(found)]}

    return _in_output_form(output, data, csv, csv, status)


def _ranking_result(output: str, found: list[MeasuredRun], workspace: Workspace) -> Result:
    """Return a result with the runs' configurations ranked by speed, in the form ``output``.

    There is a ranking for each kind of work; as JSON they are a list under ``boards``. ``output`` is as for
    ``_in_output_form``. A failed run is a valid outcome, as long as another one in its ranking has a time. The exit
    status is 1 where a ranking has no time, and no run that may yet have one, else 0. ``found`` are the measured
    runs; ``workspace`` is the command's.

    Raises:
        RequestError: the fastest configuration is of a workload that is not known here
        ConfigError: the site's configuration is wrong, or not trusted
        RecordError: the record of a run is gone, or cannot be read
        RecipeError: a recipe's catalogue cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    made = rank_runs(found, workspace)
    # What has not ended may yet have a time.
    status = 0 if all(board.command or board.live for board in made) else 1
    return _in_output_form(
        output,
        lambda: {"boards": ranking_as_dict(made)},
        partial(ranking_text, made, columns_of_terminal()),
        lambda: "\n".join(columns.csv_of(board.columns, board.configurations) for board in made),
        status,
    )


def _alarm_result(
    output: str, workspace: Workspace, runs: tuple[str, ...], filters: dict[str, Any], window: Window | None
) -> Result:
    """Return a result with a line for each configuration that became slower, and still is; empty where none did.

    Nothing else is printed then, because cron mails whatever is: what measuring says on stderr is dropped. ``runs``:
    words that name some; ``filters``: options of ``run_filter``, by name, if there are no words. ``window``: the
    iterations to measure, None: each run's own. ``output`` is as for ``_in_output_form``; as JSON the lines are a
    list under ``alarms``, which may be empty. The exit status is 1 with a line, else 0. ``workspace``: whose
    installation has the runs.

    Raises:
        RequestError: no run is found, or a filter is wrong
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: a word's path may not be looked at
    """
    from llmb_common.results.history import ALARM_RATE  # as in _view_functions: most ask for the runs
    from llmb_run.results.series import history_lines, shift_text

    with contextlib.redirect_stderr(io.StringIO()):
        found = selected_runs(workspace, runs, filters, window)
        histories = history_lines(found, ALARM_RATE)
    lines: list[str] = []
    for line in histories:
        lines += [f"{line.title}: {shift_text(shift)}" for shift in line.shifts if shift.stands]
    text = "".join(f"{line}\n" for line in lines)
    return _in_output_form(output, lambda: {"alarms": lines}, lambda: text, lambda: text, 1 if lines else 0)


def _in_output_form(
    output: str, data: Callable[[], Any], table: Callable[[], str], csv: Callable[[], str], status: int
) -> Result:
    """Return a result with what was measured, in the form ``output``, which must be ``table``, ``csv`` or ``json``.

    ``data``, ``table`` and ``csv``, without arguments, give those forms; ``json`` is ``data`` in the envelope of
    every command, as with ``--json``. Of the functions, only that of the printed form is called, when the result is
    printed. ``status``: the exit status.
    """
    result = Result(data, status=status)
    texts = {"table": table, "csv": csv, "json": lambda: envelope("results", result, notices.recorded_notices)}
    return result._replace(text=texts[output])


def _view_functions(
    found: list[MeasuredRun], *, group: bool, scaling: bool
) -> tuple[Callable[[], Any], Callable[[], str], Callable[[], str]]:
    """Return three functions without arguments that give a view of the runs: as data, as a table, and as CSV.

    The view is their groups with ``group``, how they scale with ``scaling``, else their history. The data is a dict
    with the view's rows under its name, ``groups``, ``scaling`` or ``history``; ``group`` goes before ``scaling``. That
    for the table also prints notices, of groups. ``found`` are the measured runs.

    Raises:
        RecordError: a record that is needed is gone or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    from llmb_run.results import series  # most ask for the runs, not for their history

    together = groups.group_runs(found) if group else []
    view: columns.View[Any]
    if group:
        view = groups.group_view(together)
    elif scaling:
        view = series.scaling_view(series.scaling_lines(found))
    else:
        view = series.history_view(series.history_lines(found))

    def table() -> str:
        """Return the enclosing function's view as the text of a table; of groups, also print what readers must know.

        That is printed as notices, each time.

        Raises:
            RecordError: the record of a run is gone, or cannot be read
            RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
            OSError: the log of a run is to be read again for its steps, and cannot be
        """
        for line in (*group_remarks(together), *reference_lines(found)) if group else ():
            notice(line)
        return view.table()

    return lambda: {view.name: view.data}, table, view.csv


def compare(first: str, second: str) -> Result:
    """Compare the runs of two sides, ``first`` (A) and ``second`` (B), as ``llmb-run compare`` does.

    Each side is words that name one run each, with commas between. Two files with measurements of a fabric are
    compared by ``compare_fabric_files``, whose result it is then; else the following holds. As JSON: ``first`` and
    ``second`` (as ``_Side.as_dict``), ``answer`` ("faster" or "slower" of B, "open", None), ``ratio`` (B's step time
    to A's) with ``ratio_low`` and ``ratio_high``, ``loss`` (a dict with ``iteration`` and ``relative_difference``),
    ``unequal_work`` (a list of settings) and ``differences`` (dicts with ``name``, ``first`` and ``second``); None:
    not known. The exit status is 0 where step times are compared, whatever the answer; 1 where none are, 4 where that
    is because a side has not ended.

    Raises:
        RequestError: a word names no run, a side has no recorded one, or a run is on both sides
        RecordError: the record of a run cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    from llmb_run.comparing.fabrics import are_fabrics, compare_fabric_files  # most ask for results

    if are_fabrics([first, second]):
        return compare_fabric_files(first, second)
    workspace = Workspace()
    one, other = _Side(first, workspace), _Side(second, workspace)
    _refuse_common_runs(one, other)
    change = None
    if one.times and other.times:
        run = one.runs[0]
        scatter = run.past.scatter(run.configuration)
        change = compare_times(one.times, other.times, scatter)
    loss = loss_difference(*(item.timing.iterations for item in (*one.runs, *other.runs)))
    differing = differences(one.records, other.records)
    unequal = unequal_work(one.records[0].plan, other.records[0].plan)
    data = {
        "first": one.as_dict(),
        "second": other.as_dict(),
        "answer": _change_answer(change),
        "ratio": change.ratio if change else None,
        "ratio_low": change.low if change else None,
        "ratio_high": change.high if change else None,
        "loss": {"iteration": loss[0], "relative_difference": loss[1]} if loss else None,
        "unequal_work": list(unequal),
        "differences": [{"name": name, "first": a, "second": b} for name, a, b in differing],
    }
    say_remarks([*one.runs, *other.runs])
    without = [side for side in (one, other) if not side.times]
    if without and all(side.live for side in without):
        sentence, status = f"open: {without[0].runs[0].unfit}, so no times are compared", 4
    else:
        sentence = _change_sentence(change, one.times, other.times) + _stalls_line(one, other)
        status = 0 if change else 1
    text = f"{sentence}\n{_same_work_lines(loss, unequal)}\n{_sides_table(one, other)}\n"
    if differing:
        text += table(("differs", "A", "B"), [[name, _cut(a), _cut(b)] for name, a, b in differing])
    else:
        text += "no recorded difference\n"
    return Result(data, text, status=status)


def _refuse_common_runs(one: _Side, other: _Side) -> None:
    """Raise if a run is on both sides of ``compare``.

    Raises:
        RequestError: it is
    """
    both = sorted({*one.run_ids} & {*other.run_ids})
    if both:
        verb = "is" if len(both) == 1 else "are"
        raise RequestError(
            f"{', '.join(both)} {verb} on both sides of the comparison", remedy="name different runs on the two sides"
        )


def _sides_table(one: _Side, other: _Side) -> str:
    """Return the table of both sides of ``compare``, ``one`` as A and ``other`` as B.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    heads = ("", "first run", "successful", "step s", "steady s", "tokens/s")
    return table(heads, [one.row("A"), other.row("B")], heads[2:])


def _cut(value: str) -> str:
    """Return ``value`` for a cell of ``compare``: of one above 60 characters the first 57, and ``...``."""
    return value if len(value) <= 60 else f"{value[:57]}..."


def _change_answer(change: Change | None) -> str | None:
    """Return whether the second side is ``faster`` or ``slower`` than the first, or ``open``: no clear difference.

    Clear is a difference that the interval of the ratio of step times confirms; faster means shorter steps.
    ``change`` is the second side's step time against the first's; None, which gives None: no step times are
    compared.
    """
    if change is None:
        return None
    if not change.is_real:
        return "open"
    return "slower" if change.ratio > 1 else "faster"


class _Side:
    """One side of ``compare``: the recorded runs that it names, at least one, measured, with their mean step time.

    Its two arguments are the words, one text with commas between, and the workspace, in this order. A run that is named
    twice counts once; what is no recorded run of LLMB is left out. ``runs`` (measured), ``records`` and ``run_ids`` are
    in the order of the words; ``times`` has the step time of each successful run. ``seconds`` (mean step time, stalls
    included) and ``steady`` (without) are None where no run has one; ``live``: a run has not ended. ``as_dict`` returns
    the side as JSON values: ``run_ids``, ``successful`` (a number), ``step_seconds`` and ``steady_step_seconds``.
    ``row`` returns six cells for the table, of which the first is the side's ``name``, A or B; it raises as making the
    side does, and OSError where a log is to be read again.

    Raises:
        RequestError: a word names no run, or none of them is a recorded one
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the folder that the installation is in may not be looked at
    """

    def __init__(self, words: str, workspace: Workspace) -> None:
        """Find the runs that ``words`` name, with commas between, and measure them.

        Raises:
            RequestError: a word names no run, or none of them is a recorded one
            RecordError: the record of a run is gone, or cannot be read
            RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
            OSError: the folder that the installation is in may not be looked at
        """
        # Whoever names a run twice has not repeated it.
        folders = dict.fromkeys(one_folder(workspace, word) for word in words.split(",") if word)
        self.runs = [item for item in measure(folders, workspace) if item.record is not None]
        if not self.runs:
            raise RequestError(f"{words!r} names no recorded run", remedy="llmb-run jobs lists them")
        self.records = [item.record for item in self.runs if item.record is not None]
        self.run_ids = [record.paths.run_id for record in self.records]
        self.times = [item.good for item in self.runs if item.good is not None]
        self.live = any(item.timing.status.state == "Running" for item in self.runs)
        known = level(self.times) if self.times else None
        self.seconds = math.exp(known.mean) if known else None
        """Mean step time, stalls included: the one that is compared."""
        self.steady = math.exp(known.steady) if known else None

    def as_dict(self) -> dict[str, Any]:
        """Return the side's run ids, number of successful runs, and mean step times in seconds as JSON values.

        The keys are ``run_ids``, ``successful``, ``step_seconds`` and, without stalls, ``steady_step_seconds``; the
        times are None where no run has one.
        """
        times = {"step_seconds": self.seconds, "steady_step_seconds": self.steady}
        return {"run_ids": self.run_ids, "successful": len(self.times), **times}

    def row(self, name: str) -> list[str]:
        """Return the side's row in the table of ``compare``; ``name`` is A or B. Unknown values are empty cells.

        The six cells are the name, its first run's name, ``2 of 3`` (successful of all runs), step and steady
        seconds, and tokens/s at that step time, by the first run's figures.

        Raises:
            RecordError: the record of a run is gone, or cannot be read
            RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
            OSError: the log of a run is to be read again for its steps, and cannot be
        """
        seconds, figures = self.seconds, self.runs[0].figures
        tokens = figures.tokens_per_second * figures.step_seconds / seconds if figures and seconds else None
        cells = [name, self.records[0].paths.name, f"{len(self.times)} of {len(self.runs)}"]
        times = [columns.formatted(value, ".3f") for value in (seconds, self.steady)]
        return [*cells, *times, columns.formatted(tokens, ".0f")]


_STALLS_SHOWN = 0.001
"""Of the step time: what less cost is not worth a word."""


def _stalls_line(one: _Side, other: _Side) -> str:
    """Return a line on how the sides' steps compare without stalls, with a line break before it and none behind.

    ``stalls are included; without them, a step of B against one of A is -1.2 %``. Empty where stalls are below 0.1
    % of the step time on both sides, or a side has no step time. ``one`` is A, ``other`` B.
    """
    if not (one.seconds and one.steady and other.seconds and other.steady):
        return ""
    own_stalls = abs(one.seconds / one.steady - 1)
    other_stalls = abs(other.seconds / other.steady - 1)
    if max(own_stalls, other_stalls) < _STALLS_SHOWN:
        return ""
    apart = other.steady / one.steady - 1
    return f"\nstalls are included; without them, a step of B against one of A is {signed_percent(apart)}"


def _same_work_lines(loss: tuple[int, float] | None, unequal: Sequence[str]) -> str:
    """Return one or two lines, with line breaks, on whether both sides of ``compare`` did the same work.

    Never empty; the last is such as ``loss: at most 0.12 % apart, at iteration 40: the same work``. ``loss``: the
    iteration at which the losses are furthest apart, and the relative difference there; None: no iteration is in
    both logs. ``unequal``: settings that make a step's work different, so that step times must not be compared.
    """
    loss_line = ""
    if unequal:
        loss_line = f"a step is not the same work ({', '.join(unequal)}): compare tokens/s, not step times\n"
    if loss is None:
        return f"{loss_line}loss: not compared, because no iteration is in both logs\n"
    equal = "the same work" if loss[1] <= SAME_LOSS else "not the same work, or not the same start"
    said_equal = "" if unequal else f": {equal}"
    return f"{loss_line}loss: at most {percent(loss[1], 2)} apart, at iteration {loss[0]}{said_equal}\n"


_WIDEST = 2.0
"""Upper bound over the ratio itself, from which on an interval says nothing."""

_TELLING = 3
"""Runs of a side with which the interval also holds where some runs are slow: two slow ones look like steady ones."""


def _change_sentence(change: Change | None, first: Sequence[StepTime], second: Sequence[StepTime]) -> str:
    """Return one sentence on B's step time against A's, or that none are compared (``change`` None).

    ``B's steps take 2.1 % less time than A's (97.7 % interval: -2.9 % to -1.3 %)``, or from ``open: `` on. In place of
    a very wide interval it has ``(too few runs for an interval)``; with few runs on a side, a clear difference ends in
    a warning behind ``; ``. Without a period; it may have a line break in it. ``first`` and ``second``: the step times
    of the runs of A and of B.
    """
    if change is None:
        return "no times are compared: a side has no successful run with steady steps"
    fewest = min(len(first), len(second))
    interval = (
        f"({percent(CONFIDENCE)} interval: {signed_percent(change.low - 1)} to {signed_percent(change.high - 1)})"
    )
    if change.high >= _WIDEST * change.ratio:
        interval = "(too few runs for an interval)"
    if not change.is_real:
        shown = "open: these runs show no clear difference: "
        shown += f"B's step time against A's is {signed_percent(change.ratio - 1)} {interval}"
        if fewest > 1 and _ranges_disjoint(first, second):
            longer, shorter = ("B", "A") if change.ratio > 1 else ("A", "B")
            shown += (
                f",\nthough every run of {longer} took longer than every run of {shorter}: with so few, that may be"
                f" chance. {SETTLED} days of each side would tell (--repeats {SETTLED} --spread {SETTLED})"
            )
        return shown
    more = "more" if change.ratio > 1 else "less"
    few = (
        f"; with fewer than {_TELLING} runs on a side, a single bad run would go unnoticed" if fewest < _TELLING else ""
    )
    return f"B's steps take {percent(abs(change.ratio - 1))} {more} time than A's {interval}{few}"


def _ranges_disjoint(first: Sequence[StepTime], second: Sequence[StepTime]) -> bool:
    """Return whether every run of one side, whichever it is, took longer than every run of the other, by its step time.

    ``first`` and ``second`` are the step times of the sides' runs: means with stalls. Equal times do not count as
    longer. Both sides need at least one run.
    """
    one = [time.mean_log for time in first]
    other = [time.mean_log for time in second]
    return max(one) < min(other) or max(other) < min(one)
