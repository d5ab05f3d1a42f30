"""``llmb-run logs``: a log file, line by line, even while it grows."""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from llmb_common.base.errors import RecordError, RequestError
from llmb_common.base.notices import notice
from llmb_common.base.outcome import Result
from llmb_common.base.printable import printable, unfiltered
from llmb_common.base.run_states import is_live
from llmb_common.planning.workspace import Workspace
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.submission.observe import observe, refresh
from llmb_run.selecting import one_folder

POLL_SECONDS = 0.25
_BLOCK = 1 << 16


def last_lines(path: Path, count: int) -> int:
    """Return the offset in bytes at which the last ``count`` lines of a file begin; ``count`` must not be negative.

    What follows the last line break is a line, too, unless it is empty. 0 where the file has no more lines than
    that; its size for a ``count`` of 0.

    Raises:
        OSError: the file cannot be read
    """
    with path.open("rb") as stream:
        end = position = stream.seek(0, 2)
        if count == 0:
            return end
        while position > 0:
            start = max(0, position - _BLOCK)
            stream.seek(start)
            block = stream.read(position - start)
            if position == end:
                block = block[:-1]  # the break that ends the file ends its last line, and begins none
            if (found := block.count(b"\n")) >= count:
                return start + len(block.rsplit(b"\n", count)[0]) + 1
            count, position = count - found, start
    return 0


def lines_of(path: Path, offset: int = 0) -> Iterator[str]:
    """Yield the lines of ``path`` from the byte ``offset`` on, without line breaks; the last may be incomplete.

    Of a line with carriage returns (a progress bar) only the last part. What is not UTF-8 is replaced. Nothing where
    ``offset`` is at or behind the end.

    Raises:
        OSError: the file cannot be read
    """
    with path.open("rb") as stream:
        stream.seek(offset)
        for line in stream:
            yield text_of(line)


def follow(path: Path, offset: int, ended: Callable[[], bool], pause: Callable[[float], None]) -> Iterator[str]:
    """Yield the lines of ``path`` from the byte ``offset`` on, then new ones, until ``ended()`` is true.

    A line is yielded when it is complete, without its line break, the last one also where it has none; of one with
    carriage returns only the last part. ``pause`` is called with the seconds to wait between two looks. The file may be
    missing meanwhile, or be replaced by a shorter one, which is then read from its beginning. What is written before
    ``ended()`` is true is yielded, too. What ``ended`` and ``pause`` raise passes.

    Raises:
        OSError: the file is there and cannot be read
    """
    rest = b""
    finished = False
    while True:
        try:
            size = path.stat().st_size
            if size < offset:
                offset, rest = 0, b""
            with path.open("rb") as stream:
                stream.seek(offset)
                block = stream.read()
        except FileNotFoundError:
            block = b""
        offset += len(block)
        *complete, rest = (rest + block).split(b"\n")
        yield from (text_of(line) for line in complete)
        if finished:
            break
        if not block:
            # What was written between this read and the end is read once more.
            finished = ended()
            if not finished:
                pause(POLL_SECONDS)
    if rest:
        yield text_of(rest)


def text_of(line: bytes) -> str:
    """Return what a terminal still shows of a line with carriage returns (a progress bar): its last part, as text.

    Any line is taken. A line break at its end is left out; what is not UTF-8 is replaced.
    """
    return line.decode("utf-8", "replace").rstrip("\r\n").rpartition("\r")[2]


_RANK = re.compile(r"\s*(?:\[(?:rank ?|default)(?P<bracket>[0-9]+)\]|(?P<label>[0-9]+): )", re.IGNORECASE)


def rank_of(line: str) -> int | None:
    """Return the rank that wrote a log line, by the line's beginning; None where that does not say.

    ``[rank3]: ...`` (PyTorch), ``[Rank 3] ...`` (Megatron), ``[default3]:...`` (torchrun), ``3: ...`` (srun --label),
    in upper or lower case, after any blanks.
    """
    found = _RANK.match(line)
    return int(found["bracket"] or found["label"]) if found else None


_ASK_SECONDS = 5.0
"""How often ``-f`` asks whether the run has ended."""


def logs(
    run: str | None, goes_on: bool, batch: bool, lines: int | None, rank: int | None, grep: str | None, raw: bool
) -> Result:
    """Print the log of a run (None: of the newest), as ``llmb-run logs`` does; ``goes_on``: follow it to the end.

    ``run`` is a word that names one. ``batch``: the log of the batch script instead. ``lines``: only so many last
    ones (of those that match, unless it follows: then of all); None: all, or when it follows, from the last 20 on.
    ``rank``, ``grep``: only lines of that rank, and in which the regular expression is found. ``raw``: control
    characters too. Lines go to stdout, notices to stderr, also that no line matches or the log is empty. Returns an
    empty result.

    Raises:
        RequestError: there is no such run or no installation, or ``grep`` is not a regular expression
        RecordError: there is no log (unless it follows), or the run's record cannot be read
        OSError: the log cannot be read
    """
    wanted = _line_filter(grep, rank)
    record = load_record(one_folder(Workspace(), run))
    path = record.paths.batch_log if batch else record.paths.log
    if goes_on:
        notice(f"{path}  (Ctrl-C stops following, not the run)")
        offset = last_lines(path, 20 if lines is None else lines) if path.is_file() else 0
        chosen: Iterable[str] = filter(wanted, follow(path, offset, _has_ended(record, path), time.sleep))
    elif not path.is_file():
        raise _no_log_error(record, path)
    elif lines is None or grep is not None or rank is not None:
        chosen = filter(wanted, lines_of(path))
        chosen = chosen if lines is None else deque(chosen, maxlen=lines)
    else:
        chosen = lines_of(path, last_lines(path, lines))
    silent = True
    for line in chosen:
        silent = False
        print(line if raw else printable(line), file=unfiltered(sys.stdout), flush=True)
    if silent and (grep is not None or rank is not None):
        notice("no line matches")
    elif path.is_file() and not path.stat().st_size:
        (now,) = refresh([record])
        notice(f"{path} is empty: the run is {_state_text(now)}")
    return Result()


def _no_log_error(record: RunRecord, path: Path) -> RecordError:
    """Return, not raise, the error that the log ``path`` does not exist, with the run's state and what to do.

    The scheduler is asked for the state, and the record brought up to date.
    """
    (now,) = refresh([record])
    run = now.paths.run_id
    remedy = f"llmb-run logs {run} -f waits for it" if is_live(now.state) else f"llmb-run show {run} has more"
    return RecordError(f"{path} does not exist: the run is {_state_text(now)}", remedy=remedy)


def _state_text(record: RunRecord) -> str:
    """Return the run's state for messages, followed by its detail where one is known: ``FAILED, exit code 1``."""
    return f"{record.state}, {record.detail}" if record.detail else record.state


def _line_filter(grep: str | None, rank: int | None) -> Callable[[str], bool]:
    """Return a function that tells whether a log line is of ``rank`` and matches ``grep``; None: any rank, any line.

    ``grep`` is a regular expression, looked for anywhere in the line; case matters. A line that does not say its rank
    is of none.

    Raises:
        RequestError: ``grep`` is not a regular expression
    """
    try:
        pattern = re.compile(grep or "")
    except re.error as error:
        raise RequestError(
            f"--grep {grep!r} is not a regular expression: {error}", remedy="escape it: \\( \\["
        ) from error
    return lambda line: (rank is None or rank_of(line) == rank) and pattern.search(line) is not None


def _has_ended(record: RunRecord, path: Path) -> Callable[[], bool]:
    """Return a function without arguments that tells whether the run has ended, for ``follow``.

    It asks the scheduler at most every 5 seconds, and says no in between. It prints notices: why there is no log
    ``path`` yet, and in the end how the run ended. The run's record on disk is brought up to date, which raises
    OSError where it fails to be read.
    """
    last_query = float("-inf")

    def ended() -> bool:
        """Return whether the run has ended; False without asking within 5 seconds of the last question.

        The question goes to the scheduler, about ``record`` of the enclosing function, which is replaced by the
        answer. Prints a notice on how the run ended, or why there is no log ``path`` yet.
        """
        nonlocal last_query, record
        if time.monotonic() - last_query < _ASK_SECONDS:
            return False
        seen = observe([record])[0]
        last_query, record = time.monotonic(), seen.record
        if not is_live(seen.record.state):
            notice(f"the run has ended: {seen.record.state} {seen.record.detail}".rstrip())
            return True
        if not path.exists():
            notice(f"no log yet: {seen.record.state} {seen.finding.waits_for}".rstrip())
        return False

    return ended
