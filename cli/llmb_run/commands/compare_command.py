"""``llmb-run compare``."""

from __future__ import annotations

from typing import Any

import click

from llmb_common.command.envelope import Result
from llmb_common.errors import RequestError
from llmb_common.results.comparison import SAME_LOSS, Change, compare_times, differences, loss_difference, unequal_work
from llmb_common.results.decision import CONFIDENCE
from llmb_common.results.estimate import StepTime
from llmb_run import completion, options
from llmb_run.app import Command
from llmb_run.place import Place
from llmb_run.results.measuring import Measured, measure
from llmb_run.results.run_columns import say_remarks
from llmb_run.selecting import one_folder
from llmb_run.terminal import table

_SIDE = "Run id, name, job id or folder; several with commas are repeats."


@click.command(cls=Command)
@click.argument("first", metavar="A", help=_SIDE, shell_complete=completion.runs)
@click.argument("second", metavar="B", help=_SIDE, shell_complete=completion.runs)
@options.json
def command(first: str, second: str) -> Result:
    """Compare two runs, or repeats of two: step time, loss, and what differs.

    The interval holds the true difference in 97.7 % of such comparisons. Exit status 1 if a side has no successful run.
    """
    place = Place()
    one, other = _side(first, place), _side(second, place)
    _refuse_common(one, other)
    times = [[item.good for item in side if item.good is not None] for side in (one, other)]
    change = compare_times(times[0], times[1], one[0].past.scatter(one[0].configuration)) if all(times) else None
    loss = _loss(one, other)
    records = [[item.record for item in side if item.record is not None] for side in (one, other)]
    differing = differences(*records)
    unequal = unequal_work(records[0][0].plan, records[1][0].plan)
    data = {
        "first": _side_as_dict(one, times[0]),
        "second": _side_as_dict(other, times[1]),
        "ratio": change.ratio if change else None,
        "ratio_low": change.low if change else None,
        "ratio_high": change.high if change else None,
        "loss": {"iteration": loss[0], "relative_difference": loss[1]} if loss else None,
        "unequal_work": list(unequal),
        "differences": [{"name": name, "first": a, "second": b} for name, a, b in differing],
    }
    say_remarks([*one, *other])
    text = _text(one, other, times, change, loss, differing, unequal)
    return Result(data, text, status=0 if change else 1)


def _side(words: str, place: Place) -> list[Measured]:
    """The runs of one side, measured; at least one.

    Raises:
        RequestError: a word names no run
    """
    # Whoever names a run twice has not repeated it.
    folders = dict.fromkeys(one_folder(place, word) for word in words.split(",") if word)
    found = [item for item in measure(folders, place) if item.record is not None]
    if not found:
        raise RequestError(f"{words!r} names no recorded run", remedy="llmb-run jobs lists them")
    return found


def _refuse_common(one: list[Measured], other: list[Measured]) -> None:
    """A run on both sides would make them look alike.

    Raises:
        RequestError: there is one
    """
    ids = [{item.record.paths.run_id for item in side if item.record} for side in (one, other)]
    if both := sorted(ids[0] & ids[1]):
        raise RequestError(f"{', '.join(both)} is on both sides", remedy="name different runs")


def _loss(one: list[Measured], other: list[Measured]) -> tuple[int, float] | None:
    """Where, and by how much, the loss of any run differs most from that of the first."""
    first, *others = (item.timing.iterations for item in (*one, *other))
    found = [loss_difference(first, iterations) for iterations in others]
    return max((apart for apart in found if apart is not None), key=lambda apart: apart[1], default=None)


def _side_as_dict(side: list[Measured], times: list[StepTime]) -> dict[str, Any]:
    return {
        "run_ids": [item.record.paths.run_id for item in side if item.record],
        "successful": len(times),
        "step_seconds": sum(time.seconds for time in times) / len(times) if times else None,
    }


def _text(
    one: list[Measured],
    other: list[Measured],
    times: list[list[StepTime]],
    change: Change | None,
    loss: tuple[int, float] | None,
    differing: list[tuple[str, str, str]],
    unequal: tuple[str, ...],
) -> str:
    rows = []
    for name, side, found in zip("AB", (one, other), times, strict=True):
        shown = _side_as_dict(side, found)
        seconds = shown["step_seconds"]
        figures = side[0].figures
        rows.append(
            [
                name,
                side[0].record.paths.name if side[0].record else "",
                f"{len(found)} of {len(side)}",
                f"{seconds:.3f}" if seconds else "",
                f"{figures.tokens_per_second * figures.step_seconds / seconds:.0f}" if figures and seconds else "",
            ]
        )
    text = table(("", "first run", "successful", "step s", "tokens/s"), rows, ("successful", "step s", "tokens/s"))
    text += f"\n{_change(change)}\n"
    if unequal:
        text += f"a step is not the same work ({', '.join(unequal)}): compare tokens/s, not step times\n"
    if loss:
        equal = "the same work" if loss[1] <= SAME_LOSS else "not the same work, or not the same start"
        told = "" if unequal else f": {equal}"
        text += f"loss: at most {loss[1]:.2%} apart, at iteration {loss[0]}{told}\n"
    else:
        text += "loss: no iteration that both printed\n"
    if differing:
        text += "\n" + table(("differs", "A", "B"), [[name, a[:60], b[:60]] for name, a, b in differing])
    else:
        text += "\nno recorded difference\n"
    return text


def _change(change: Change | None) -> str:
    """B's step time against A's, in a sentence."""
    if change is None:
        return "a side has no successful run with steady steps, so no times are compared"
    interval = f"({CONFIDENCE:.1%} interval: {change.low - 1:+.1%} to {change.high - 1:+.1%})"
    if not change.is_real:
        return f"step time of B against A: {change.ratio - 1:+.1%} {interval}: these runs do not show a difference"
    more = "more" if change.ratio > 1 else "less"
    return f"B's steps take {abs(change.ratio - 1):.1%} {more} time than A's {interval}"
