"""Outputs of nccl-tests as results: the answer first, the sizes, and what others have published."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.errors import RequestError
from llmb_common.base.files import read_some, remedy_for
from llmb_common.base.gpus import type_of
from llmb_common.base.printable import csv_cell, printable, size
from llmb_common.nodes.fabric.nccl_tests import Column, NcclTest, SizeResult, is_nccl_tests, parse_nccl_tests
from llmb_common.nodes.fabric.published import PublishedBandwidth, lookup_date, published_bandwidths
from llmb_run.terminal import table

_HEAD_BYTES, _MOST_BYTES = 1 << 18, 1 << 26
"""Of a file: in which such an output begins, and which are read."""


def are_nccl_tests(words: Sequence[str]) -> bool:
    """Whether these words name files with outputs of nccl-tests, and nothing else; False where none does.

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
    """Whether a file is the output of nccl-tests; False for one that cannot be read."""
    try:
        return file.is_file() and is_nccl_tests(_read_text(file, _HEAD_BYTES))
    except OSError:
        return False


def _read_text(file: Path, most: int) -> str:
    """At most the first ``most`` bytes of a file as text; what is not UTF-8 becomes a replacement character.

    Raises:
        OSError: the file cannot be read
    """
    return read_some(file, most).decode(errors="replace")


def read_nccl_tests(file: Path) -> list[NcclTest]:
    """The tests whose output a file is, in order; empty where it holds none.

    Raises:
        RequestError: it cannot be read
    """
    try:
        return parse_nccl_tests(_read_text(file, _MOST_BYTES))
    except OSError as error:
        raise RequestError(f"cannot read {file}: {error.strerror or error}", remedy=remedy_for(error)) from error


def nccl_results(words: Sequence[str]) -> tuple[Callable[[], Any], Callable[[], str], Callable[[], str], int]:
    """What output files of nccl-tests say: functions that make the data, the table and the CSV; the exit status.

    The status is 1 if a test is not good, or there is none, else 0.

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
    """The first line on an output of nccl-tests: ``ok``, ``FAILED`` or ``incomplete``, and its largest bandwidth."""
    what = test.collective or "an unnamed collective"
    where = f"{len(test.nodes)} nodes, {test.ranks} GPUs" if test.ranks else "an unknown number of GPUs"
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
    """At which sizes values were wrong, in words; empty where none were."""
    sizes = [_size_text(item.bytes) for item in test.wrong]
    if sizes:
        return f"wrong values at {', '.join(sizes[:4])}{' and more' if len(sizes) > 4 else ''}"
    return f"{test.out_of_bounds} values are out of bounds" if test.out_of_bounds else ""


def _test_text(word: str, test: NcclTest) -> str:
    """What is printed of one output of nccl-tests: the answer, problems, figures, and what others published.

    ``word`` names its file.
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
    text = "".join(f"{line.rstrip()}\n" for line in lines if line.strip()) + table(heads, rows, heads)
    return text + "".join(f"{line}\n" for line in _published_lines(test))


def _column_cells(column: Column | None) -> list[str]:
    """A column of results as three texts: time in microseconds, bus bandwidth in GB/s, wrong values.

    Empty ones for None.
    """
    if column is None:
        return ["", "", ""]
    wrong = "not counted" if column.wrong is None else f"{column.wrong:g}"
    return [f"{1e6 * column.seconds:.1f}", f"{column.busbw_gbps:.2f}", wrong]


def _size_text(count: int) -> str:
    """A number of bytes as nccl-tests means it, ``8 GiB``: its sizes are powers of two."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return size(count)


def _published_here(test: NcclTest) -> Sequence[PublishedBandwidth]:
    """What others have published of the same GPUs on as many nodes, the fastest first; empty where nothing was."""
    return published_bandwidths(type_of(test.gpu), len(test.nodes), test.ranks, test.collective)


def _published_lines(test: NcclTest) -> list[str]:
    """Lines with what was published for the same number of GPUs and nodes; empty where nothing was."""
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
    """Outputs of nccl-tests, each with a word that stands in its rows, as CSV: a heading, then the rows of every
    size.

    Of a size there is what was measured out of place and in place. Without tests, the heading alone.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_CSV)
    for word, test in tests:
        for item in test.sizes:
            writer.writerows([csv_cell(cell) for cell in row] for row in _csv_rows(word, test, item))
    return stream.getvalue()


def _csv_rows(word: str, test: NcclTest, item: SizeResult) -> Iterator[list[object]]:
    """Yields the CSV rows of one size under the heads ``_CSV``: out of place, then in place, if measured."""
    for in_place, column in ((False, item.out_of_place), (True, item.in_place)):
        if column is not None:
            figures = [column.seconds, column.algbw_gbps, column.busbw_gbps, column.wrong]
            yield [word, test.collective, test.ranks, item.bytes, in_place, *figures]


def _as_dict(word: str, test: NcclTest) -> dict[str, Any]:
    """An output of nccl-tests as JSON values, with what was published for such a machine."""
    return {
        "file": word,
        "answer": answer(test),
        "good": test.good,
        **msgspec.to_builtins(test),
        "published": [msgspec.to_builtins(item) for item in _published_here(test)],
    }
