"""``llmb-run compare``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from llmb_common.envelope import Result
from llmb_run import completion, options
from llmb_run.app import Command

if TYPE_CHECKING:
    from llmb_common.results.comparison import Change
    from llmb_common.results.estimate import StepTime
    from llmb_run.place import Place
    from llmb_run.results.measuring import Measured

_SIDE = "Run id, name, job id or folder; several with commas are repeats."


@click.command(cls=Command)
@click.argument("first", metavar="A", help=_SIDE, shell_complete=completion.runs)
@click.argument("second", metavar="B", help=_SIDE, shell_complete=completion.runs)
@options.json
def command(first: str, second: str) -> Result:
    """Compare two runs, or repeats of two: step time, loss, and what differs.

    The interval holds the true difference in 95 % of such comparisons. Exit status 1 if a side has no successful run.
    """
    from llmb_common.results.comparison import compare_times, differences, loss_difference
    from llmb_run.place import Place

    place = Place()
    one, other = _side(first, place), _side(second, place)
    times = [[item.good for item in side if item.good is not None] for side in (one, other)]
    change = compare_times(*times) if all(times) else None
    loss = loss_difference(one[0].timing.iterations, other[0].timing.iterations)
    assert one[0].record is not None
    assert other[0].record is not None
    differing = differences(one[0].record, other[0].record)
    data = {
        "first": _side_as_dict(one, times[0]),
        "second": _side_as_dict(other, times[1]),
        "ratio": change.ratio if change else None,
        "ratio_low": change.low if change else None,
        "ratio_high": change.high if change else None,
        "loss": {"iteration": loss[0], "relative_difference": loss[1]} if loss else None,
        "differences": [{"name": name, "first": a, "second": b} for name, a, b in differing],
    }
    text = _text(one, other, times, change, loss, differing)
    return Result(data, text, status=0 if change else 1)


def _side(words: str, place: Place) -> list[Measured]:
    """The runs of one side, measured; at least one.

    Raises:
        RequestError: a word names no run
    """
    from llmb_common.errors import RequestError
    from llmb_run.results.measuring import measure
    from llmb_run.selecting import one_folder

    folders = [one_folder(place, word) for word in words.split(",") if word]
    found = [item for item in measure(folders, place) if item.record is not None]
    if not found:
        raise RequestError(f"{words!r} names no run on record", remedy="llmb-run jobs lists them")
    return found


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
) -> str:
    from llmb_common.results.comparison import SAME_LOSS
    from llmb_run.terminal import table

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
    if change:
        # Not "slower": the interval may hold both.
        clear = "" if change.is_real else "; these runs do not show a difference"
        text += (
            f"\nB against A: step time {change.ratio - 1:+.1%}"
            f" (95 % interval {change.low - 1:+.1%} to {change.high - 1:+.1%}){clear}\n"
        )
    else:
        text += "\nB against A: a side has no successful run, so no times are compared\n"
    if loss:
        equal = "the same work" if loss[1] <= SAME_LOSS else "not the same work, or not the same start"
        text += f"loss: at most {loss[1]:.2%} apart, at iteration {loss[0]}: {equal}\n"
    else:
        text += "loss: no iteration that both printed\n"
    if differing:
        text += "\n" + table(("differs", "A", "B"), [[name, a[:60], b[:60]] for name, a, b in differing])
    else:
        text += "\nnothing on record differs\n"
    return text
