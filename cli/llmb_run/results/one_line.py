"""What a run came to, in a line."""

from __future__ import annotations

from llmb_common.base.printable import percent, printable
from llmb_common.measured.run import MeasuredRun
from llmb_run.columns import seconds_of


def result_line(measured: MeasuredRun) -> str:
    """Return a run's result as one line: step time in seconds, tokens per second, MFU where known, and the verdict.

    Such as ``9.876 s a step, 1,234,567 tokens/s, MFU 41.20 %; pass ...``; the tokens are those of all its GPUs. The
    verdict is left out where there is none, and begins with ``not compared: `` where it judges nothing. For a run
    without figures the line is its outcome, and the status' reason where there is one: ``failed: ...``. It has no
    newline.

    Raises:
        RecordError: the run's record cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    values, seconds = measured.figures, measured.step_seconds
    if values is None or seconds is None:
        why = measured.timing.status.message
        return f"{measured.outcome}: {printable(why)}" if why else measured.outcome
    # Of documents that state the last step, the figures are of that one.
    share = values.step_seconds / seconds
    mfu = "" if values.mfu is None else f", MFU {percent(values.mfu * share, 2)}"
    line = f"{seconds_of(seconds)} s a step, {values.tokens_per_second * share:,.0f} tokens/s{mfu}"
    if measured.verdict is None:
        return line
    word = "not compared: " if measured.verdict.kind == "not judged" else ""
    return f"{line}; {word}{measured.verdict.text}"
