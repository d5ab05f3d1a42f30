"""Outputs of nccl-tests as results: the answer first, the sizes, and what others have published."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from llmb_common.base.errors import RequestError
from llmb_common.base.files import read_some, unreadable
from llmb_common.base.gpus import type_of
from llmb_common.base.printable import counted, csv_cell, printable, size
from llmb_common.nodes.fabric.nccl_tests import Column, NcclTest, SizeResult, is_nccl_tests, parse_nccl_tests
from llmb_common.nodes.fabric.published import PublishedBandwidth, lookup_date, published_bandwidths
from llmb_run.terminal import table

_HEAD_BYTES, _MOST_BYTES = 1 << 18, 1 << 26
"""Of a file: in which such an output begins, and which are read."""


def are_nccl_tests(words: Sequence[str]) -> bool:
    """Return whether all ``words``, taken as paths, name files with outputs of nccl-tests.

    A word that names no file, or one that cannot be read, is none. False where none does, and without words.

    Raises:
        RequestError: some do, and others do not
    """
    found = [word for word in words if _is_nccl_tests_output(Path(word))]
    others = [word for word in words if word not in found]
    if found and others:
        raise RequestError(
            f"{found[0]} is output of nccl-tests, {others[0]} is not", remedy="name them in separate commands"
        )
    return bool(found)


def _is_nccl_tests_output(file: Path) -> bool:
    """Return whether ``file`` is the output of nccl-tests, by its beginning.

    False where it does not exist, is no regular file, or cannot be read.
    """
    try:
        return file.is_file() and is_nccl_tests(_read_text(file, _HEAD_BYTES))
    except OSError:
        return False


def _read_text(file: Path, most: int) -> str:
    """Return at most the first ``most`` bytes of a file as text.

    Bytes that are not UTF-8, and a character cut at the end, become replacement characters.

    Raises:
        OSError: the file cannot be read
    """
    return read_some(file, most).decode(errors="replace")


def read_nccl_tests(file: Path) -> list[NcclTest]:
    """Return the tests in an output file of nccl-tests, in order; empty where it holds none.

    At most the first ``_MOST_BYTES`` are read: tests behind them are missing, without a word.

    Raises:
        RequestError: the file cannot be read
    """
    try:
        return parse_nccl_tests(_read_text(file, _MOST_BYTES))
    except OSError as error:
        raise unreadable(file, error, RequestError) from error


def refuse_view(name: str) -> NoReturn:
    """Raise, for a view of runs that train is asked of outputs of nccl-tests.

    ``name`` is the view's option of ``results``, without its dashes.

    Raises:
        RequestError: always
    """
    raise RequestError(
        f"--{name} is a view of runs, and these are outputs of nccl-tests",
        remedy=f"leave out --{name}, or name runs; llmb-run compare A B compares two outputs",
    )


def nccl_results(words: Sequence[str]) -> tuple[Callable[[], Any], Callable[[], str], Callable[[], str], int]:
    """Return (data, table, csv, status) for output files of nccl-tests, whose paths are ``words``.

    The files are read at once, in order. The first three are functions without arguments: they return a dictionary
    whose list ``nccl_tests`` has a dictionary for each test (``_as_dict``), the text for people (an empty line
    between tests; empty without any), and CSV text with a heading; the first two raise RecipeError where LLMB's
    list of published bandwidths cannot be read. The exit status is 1 if a test is not good, or there is none, else
    0.

    Raises:
        RequestError: a file cannot be read
    """
    tests: list[tuple[str, NcclTest]] = []
    for word in words:
        tests += [(word, test) for test in read_nccl_tests(Path(word))]
    return (
        lambda: {"nccl_tests": [_as_dict(word, test) for word, test in tests]},
        lambda: "\n".join(_test_text(word, test) for word, test in tests),
        partial(_as_csv, tests),
        0 if tests and all(test.good for _, test in tests) else 1,
    )


def answer(test: NcclTest) -> str:
    """Return the first line on a test of nccl-tests: ``ok``, ``FAILED`` or ``incomplete``, and why.

    Such as ``ok: all_reduce on 2 nodes, 16 GPUs: 480.0 GB/s bus bandwidth at 8 GiB; no wrong values``; it has no
    newline and no full stop. An ``ok`` ends in ``values not checked`` where the test did not look for wrong ones. What
    the output does not say is ``an unnamed collective`` or ``an unknown number of GPUs``. A test has failed with
    wrong values, without figures or with problems, the first of these being the reason; otherwise it is incomplete
    where the output has no end. The bandwidth, that of the largest size, is left out where no size has any.
    """
    what = test.collective or "an unnamed collective"
    nodes = f"{counted(len(test.nodes), 'node')}, " if test.nodes else ""
    where = f"{nodes}{counted(test.ranks, 'GPU')}" if test.ranks else "an unknown number of GPUs"
    subject = f"{what} on {where}"
    largest = test.largest
    best = largest.best if largest else None
    if largest is not None and best is not None:
        subject += f": {best.busbw_gbps:.1f} GB/s bus bandwidth at {_size_text(largest.bytes)}"
    wrong = _wrong_values_text(test)
    if wrong:
        return f"FAILED: {wrong}; {subject}"
    if not test.sizes:
        return f"FAILED: no figures; {subject}"
    if test.problems:
        return f"FAILED: {printable(test.problems[0])}; {subject}"
    if not test.ended:
        return f"incomplete: the end of the output is missing; {subject}"
    return f"ok: {subject}; {'no wrong values' if test.checked else 'values not checked'}"


def _wrong_values_text(test: NcclTest) -> str:
    """Return at which message sizes the test found wrong values: ``wrong values at 8 MiB, 16 MiB``.

    Of more than four sizes, the first four and `` and more``. Empty where it found none. Where the output tells no
    sizes of them, how many values are wrong: ``3 values are out of bounds``.
    """
    sizes = [_size_text(item.bytes) for item in test.wrong]
    if sizes:
        return f"wrong values at {', '.join(sizes[:4])}{' and more' if len(sizes) > 4 else ''}"
    return f"{test.out_of_bounds} values are out of bounds" if test.out_of_bounds else ""


def _test_text(word: str, test: NcclTest) -> str:
    """Return what is printed of one test of nccl-tests: the answer, problems, figures, and what others published.

    ``word``, the path of its file as the user gave it, begins the first line. At most 10 problems are named. The text
    ends with a newline.

    Raises:
        RecipeError: LLMB's own list of published bandwidths cannot be read
    """
    lines = [f"{printable(word)}: {answer(test)}"]
    lines += [f"  {printable(problem)}" for problem in test.problems[:10]]
    versions = [printable(test.gpu), f"NCCL {printable(test.library)}" if test.library else ""]
    versions.append(f"nccl-tests {printable(test.version)}" if test.version else "")
    lines.append("  " + ", ".join(part for part in versions if part))
    if test.average_busbw_gbps is not None:
        lines.append(
            f"  {test.average_busbw_gbps:.4g} GB/s is the mean over all its sizes: compare it only with the same sizes"
        )
    heads = ["size", "out of place: us", "busbw GB/s", "wrong", "in place: us", "busbw GB/s", "wrong"]
    rows = [
        [_size_text(item.bytes), *_column_cells(item.out_of_place), *_column_cells(item.in_place)]
        for item in test.sizes
    ]
    text = "".join(f"{line.rstrip()}\n" for line in lines if line.strip())
    text += table(heads, rows, heads)
    text += "".join(f"{line}\n" for line in _published_lines(test))
    return text


def _column_cells(column: Column | None) -> list[str]:
    """Return the results of one message size as three texts: time in us, bus bandwidth in GB/s, wrong values.

    Such as ``123.4``, ``480.12`` and ``0``, or ``not counted`` for wrong values that the test did not look for.
    ``column`` is either out of place or in place; three empty texts for None: not measured.
    """
    if column is None:
        return ["", "", ""]
    wrong = "not counted" if column.wrong is None else f"{column.wrong:g}"
    return [f"{1e6 * column.seconds:.1f}", f"{column.busbw_gbps:.2f}", wrong]


def _size_text(count: int) -> str:
    """Return a number of bytes as text in units of nccl-tests, whose sizes are powers of two: ``8 GiB``.

    The largest of KiB, MiB and GiB that leaves no rest; where there is none, as ``size`` writes it (``15 MB``).
    """
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return size(count)


def _published_here(test: NcclTest) -> Sequence[PublishedBandwidth]:
    """Return the bandwidths that others have published of such a test, the fastest first.

    They are of the same collective and GPUs, as many of them, on as many nodes. Empty where nothing was published,
    and where the test's GPU is unknown.

    Raises:
        RecipeError: LLMB's own list of published bandwidths cannot be read
    """
    return published_bandwidths(type_of(test.gpu), len(test.nodes), test.ranks, test.collective)


def _published_lines(test: NcclTest) -> list[str]:
    """Return lines with the bandwidths published for the same GPUs and nodes, under a heading.

    They are in the order of ``_published_here``, without line breaks. Empty where nothing was published.

    Raises:
        RecipeError: LLMB's own list of published bandwidths cannot be read
    """
    found = _published_here(test)
    if not found:
        return []
    lines = [f"published for the same number of GPUs and nodes (looked up {lookup_date()}):"]
    lines += [
        f"  {item.busbw_gbps:g} GB/s at {item.size}, {item.network}: {item.says}, {item.source}" for item in found
    ]
    return lines


_CSV = ("file", "collective", "ranks", "bytes", "in_place", "seconds", "algbw_gbps", "busbw_gbps", "wrong")


def _as_csv(tests: Sequence[tuple[str, NcclTest]]) -> str:
    """Return tests of nccl-tests as CSV text: a heading, then rows for each message size, out of place and in place.

    Each test comes with a word, the path of its file as the user gave it, the first cell of its rows (``_csv_rows``).
    Lines end with a newline alone, and no cell is a formula. Without tests, the heading alone.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_CSV)
    for word, test in tests:
        for item in test.sizes:
            writer.writerows([csv_cell(cell) for cell in row] for row in _csv_rows(word, test, item))
    return stream.getvalue()


def _csv_rows(word: str, test: NcclTest, item: SizeResult) -> Iterator[list[object]]:
    """Yield the CSV rows of one message size under the heads ``_CSV``: out of place, then in place.

    A row has ``word``, collective, number of GPUs, message size in bytes, whether it is in place, seconds,
    algorithm and bus bandwidth in GB/s, and the number of wrong values (None: not counted). A result that was not
    measured has no row. ``word`` names the file, ``test`` is the test that has the size ``item``.
    """
    for in_place, column in ((False, item.out_of_place), (True, item.in_place)):
        if column is not None:
            figures = [column.seconds, column.algbw_gbps, column.busbw_gbps, column.wrong]
            yield [word, test.collective, test.ranks, item.bytes, in_place, *figures]


def _as_dict(word: str, test: NcclTest) -> dict[str, Any]:
    """Return a test of nccl-tests as JSON values: its fields, and what is known of it beside them.

    The further keys: ``file`` (``word``), ``answer`` (a line), ``good`` and ``published`` (bandwidths that others have
    published of such a machine, the fastest first).

    Raises:
        RecipeError: LLMB's own list of published bandwidths cannot be read
    """
    return {
        "file": word,
        "answer": answer(test),
        "good": test.good,
        **msgspec.to_builtins(test),
        "published": [msgspec.to_builtins(item) for item in _published_here(test)],
    }
