"""What a reader of ``results`` should know of runs and configurations, the weightiest first."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from llmb_common.base.printable import counted, first_few, printable
from llmb_common.measured.run import WITHOUT_RESULT, MeasuredRun, Outcome, explain, reference_lines
from llmb_run.columns import seconds_of
from llmb_run.results.groups import Group
from llmb_run.results.lines import Line, names_a_node, one_of_text, size_of_change


@dataclass(frozen=True)
class Note:
    """A sentence about runs that a reader should know; the smaller its ``weight``, the more it matters.

    ``notes_on`` makes it. ``text`` has no full stop at its end, and mostly begins with what it is about: a
    configuration, a run's id or how many runs. ``weight`` is from 0 to 9.
    """

    weight: int
    text: str


_SLOW_NODE, _SLOWER, _NOT_TRAINING, _FAILURE, _NODE, _SHORT, _REMARK, _VERDICT, _RUN, _REFERENCE = range(10)


def notes_on(
    lines: Sequence[Line], looked_at: Sequence[MeasuredRun], found: Sequence[MeasuredRun], excluded: frozenset[str]
) -> list[Note]:
    """Return everything to know of the runs ``found`` as notes, the weightiest first, each text once.

    Those of a configuration are in the order of ``lines``, where they weigh the same. Empty: there is nothing to
    know. Finds out why the failed ones of ``looked_at`` failed.

    Args:
        lines: the configurations of the runs, and the logs among them, as ``lines_of`` makes them of ``found``
        looked_at: those runs of which logs and records are read; the same objects as in ``lines``, others get no notes
            on their outcomes
        found: all runs; what their references are is noted, too
        excluded: names of nodes that jobs are kept off already, on which notes have less weight

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    explain(looked_at)
    known = {id(run) for run in looked_at}
    notes: list[Note] = []
    for line in lines:
        runs = [run for run in line.runs if id(run) in known]
        notes += _notes_on_node(line, runs, excluded)
        if line.group:
            notes += _notes_on_later_runs(line, line.group)
            notes += [Note(_REMARK, f"{line.name}: {text}") for text in _other_remarks(line, line.group)]
            if line.group.verdict:
                notes.append(Note(_VERDICT, f"{line.name}: {line.group.verdict.text}"))
    notes += _notes_on_outcomes(lines, known)
    slow_nodes = set(chain.from_iterable(line.slow_node.nodes for line in lines if line.slow_node))
    notes += _notes_on_runs(looked_at, slow_nodes)
    notes += [Note(_REFERENCE, text) for text in reference_lines(found)]
    once = list({note.text: note for note in notes}.values())
    return sorted(once, key=lambda note: note.weight)  # stable


def _notes_on_later_runs(line: Line, group: Group) -> Iterable[Note]:
    """Yield the note that runs since the last look are slower, or faster, than those that were judged; at most one.

    ``group`` is the configuration of ``line``. Yields nothing where they do not certainly differ.
    """
    if group.later is None:
        return
    change = group.later.change
    is_slower = change.ratio > 1
    size = f"{size_of_change(change.ratio, change.low, change.high)} {'slower' if is_slower else 'faster'}"
    newest = f"its {group.later.runs} newest runs, which wait for the next look, are {size} than those judged"
    yield Note(_SLOWER if is_slower else _REMARK, f"{line.name}: {newest}: llmb-run results --history shows since when")


def group_remarks(items: Sequence[Group]) -> list[str]:
    """Return the remarks of the verdicts on the configurations ``items``, in order, each as ``TITLE: sentence``.

    They have no full stop. Empty: there are none, also where nothing was decided.
    """
    found: list[str] = []
    for item in items:
        found += [f"{item.title}: {text}" for text in _verdict_remarks(item)]
    return found


def _verdict_remarks(item: Group) -> Sequence[str]:
    """Return the remarks of a group's verdict, in order, sentences without a full stop.

    Empty where there is no verdict, it decided nothing, or it has none.
    """
    return item.verdict.remarks if item.verdict and item.verdict.decision else ()


def _other_remarks(line: Line, group: Group) -> list[str]:
    """Return the remarks of the verdict on ``group``, in order, without those that name the slow node of its ``line``.

    Empty: there are no others.
    """
    slow_nodes = line.slow_node.nodes if line.slow_node else ()
    return [text for text in _verdict_remarks(group) if not names_a_node(text, slow_nodes)]


def _notes_on_node(line: Line, runs: Sequence[MeasuredRun], excluded: frozenset[str]) -> Iterable[Note]:
    """Yield the note on the node that slows down runs of a configuration, with what ``runs`` recorded of that node.

    At most one. Yields nothing where no node is known to be slow. A node that is among ``excluded``, or several that
    all are, makes a note of less weight.

    Raises:
        RecordError: the record of one of ``runs`` cannot be read
    """
    node = line.slow_node
    if node is None:
        return
    with_it = f"the {counted(node.slow, 'run')} with {one_of_text(node.nodes)} take {seconds_of(node.seconds)} s a step"
    text = f"{line.name}: {with_it}, the {node.others} without it {seconds_of(node.others_seconds)} s"
    of_runs = chain.from_iterable(run.problems for run in runs)
    problems = [problem for problem in of_runs if names_a_node(problem, node.nodes)]
    if problems:
        text += f": {'; '.join(dict.fromkeys(map(printable, problems)))}"
    if set(node.nodes) <= excluded:
        yield Note(_REMARK, f"{text} (already excluded)")
    else:
        yield Note(_SLOW_NODE, text)


def _notes_on_outcomes(lines: Sequence[Line], known: Container[int]) -> Iterable[Note]:
    """Yield a note for each outcome and reason of runs without a step time: how many runs, of what, and why.

    Such as ``2 of 5 runs of NAME failed (ID, ID): out of memory``, or of several configurations
    ``3 runs of 2 configurations ...``; at most two ids are named, others counted. In the order in which the runs of
    ``lines`` first have that outcome and reason. Runs that are queued or run have no note. ``known``: the ``id()``
    of the runs to look at; others are left out, and where the configurations have some, it says ``newest runs``. Why
    a failed run failed is found out if that is not known yet.

    Raises:
        RecordError: the record of a run cannot be read
    """
    together: dict[tuple[Outcome, str], list[tuple[Line, MeasuredRun]]] = {}
    for line in lines:
        for run in line.runs:
            if id(run) in known and run.outcome in _WITH_A_REASON:
                key = (run.outcome, _unusable_reason(run))
                together.setdefault(key, []).append((line, run))
    weights = {**dict.fromkeys(WITHOUT_RESULT, _FAILURE), "not training": _NOT_TRAINING}
    for (outcome, why), line_runs in together.items():
        ids = first_few([run.run_id for _, run in line_runs if run.run_id], 2)
        lines_by_name = {line.name: line for line, _ in line_runs}
        members = list(chain.from_iterable(line.runs for line in lines_by_name.values()))
        seen = sum(id(run) in known for run in members)
        run_word = "run" if seen == len(members) else "newest run"
        if len(lines_by_name) == 1:
            runs_text = f"{len(line_runs)} of {counted(seen, run_word)} of {next(iter(lines_by_name))}"
        else:
            runs_text = f"{counted(len(line_runs), run_word)} of {counted(len(lines_by_name), 'configuration')}"
        were = ("was", "were") if outcome in WITHOUT_RESULT else ("is", "are")
        verb = "failed" if outcome == "failed" else f"{were[len(line_runs) > 1]} {outcome}"
        named = f" ({ids})" if ids else ""
        yield Note(weights.get(outcome, _SHORT), f"{runs_text} {verb}{named}: {printable(why)}")


_WITH_A_REASON = (*WITHOUT_RESULT, "too short", "stopped early", "incomplete", "nothing left", "not training")


def _unusable_reason(run: MeasuredRun) -> str:
    """Return why a run has no result that counts, a fragment; of a failed run the short diagnosis.

    The diagnosis is found out now where it is not known yet. Empty where the run has such a result.

    Raises:
        RecordError: the run's record cannot be read
    """
    if run.outcome in WITHOUT_RESULT and run.why and run.why.short:
        return run.why.short
    # Beside the outcome, which says that it is not training.
    return run.why_not_training if run.outcome == "not training" else run.unfit


def _notes_on_runs(runs: Sequence[MeasuredRun], slow_nodes: Iterable[str]) -> Iterable[Note]:
    """Yield notes on what single runs tell of their steps and their logs, run by run, and then of their nodes.

    They begin with the run's id and a colon (of a log, its name). Equal problems of nodes are one note, with the
    names of the first two runs and how many more have it. Problems that name one of ``slow_nodes`` are left out:
    another note has these.

    Raises:
        RecordError: the record of a run cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    problems: dict[str, list[str]] = {}
    for run in runs:
        name = run.run_id or printable(run.timing.files.name)
        for text in run.problems:
            if not names_a_node(text, slow_nodes):
                problems.setdefault(printable(text), []).append(name)
        for text in run.remarks:
            yield Note(_RUN, f"{name}: {printable(text)}")
    for text, names in problems.items():
        yield Note(_NODE, f"{first_few(names, 2)}: {text}")
