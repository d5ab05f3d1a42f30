"""Two measurements of a fabric against each other: files that ``health --fabric --json`` printed, or of nccl-tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llmb_common.base.errors import RequestError
from llmb_common.base.files import read_some
from llmb_common.base.notices import notice
from llmb_common.base.outcome import Result
from llmb_common.base.printable import printable
from llmb_common.nodes.fabric.compare import as_data, compare_fabrics
from llmb_common.nodes.fabric.measurement import FabricMeasurement, measurement_from_json
from llmb_run.results.nccl import answer, are_nccl_tests, read_nccl_tests

_MOST_BYTES = 1 << 28
_WAY = ("data", "fabric", "measurement")
"""To a measurement in what a command printed, or in a file of a campaign: keys that are there are followed."""


def are_fabrics(words: list[str]) -> bool:
    """Whether all of these are such files; a run's log is another."""
    if not all(Path(word).is_file() for word in words):
        return False
    return all(Path(word).suffix == ".json" or are_nccl_tests([word]) for word in words)


def compared(first: str, second: str) -> Result:
    """The second file against the first one. Exit status 1 where it is slower, or they have nothing in common.

    Raises:
        RequestError: a file cannot be read
        RecordError: a file holds no measurement
    """
    found = compare_fabrics(read_fabric(Path(first)), read_fabric(Path(second)))
    data: dict[str, Any] = {
        "first": {"file": first},
        "second": {"file": second},
        "answer": found.answer,
        "ratio": found.changes[0].ratio if found.changes else None,
        "ratio_low": None,
        "ratio_high": None,
        "loss": None,
        "unequal_work": [],
        "differences": [],
        "fabric": as_data(found),
    }
    text = "".join(f"{printable(line)}\n" for line in found.lines)
    return Result(data, text, status=1 if found.answer in ("slower", "nothing in common") else 0)


def read_fabric(file: Path) -> FabricMeasurement:
    """The measurement in a file.

    Raises:
        RequestError: the file cannot be read
        RecordError: it holds none
    """
    if are_nccl_tests([str(file)]):
        return _of_nccl_tests(file)
    try:
        plain = json.loads(read_some(file, _MOST_BYTES))
    except OSError as error:
        raise RequestError(f"cannot read {file}: {error.strerror or error}", remedy="check the file") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"{file} is not JSON: {error}", remedy="llmb-run health --fabric --json > FILE writes such a file"
        ) from error
    return measurement_from_json(json.dumps(_inner(plain)).encode(), str(file))


def _inner(plain: Any) -> Any:
    for key in _WAY:
        if isinstance(plain, dict) and plain.get(key):
            plain = plain[key]
        if isinstance(plain, list) and plain:
            plain = plain[0]
    return plain


def _of_nccl_tests(file: Path) -> FabricMeasurement:
    """The sizes of the first test; the largest is that of the whole."""
    tests = read_nccl_tests(file)
    if len(tests) > 1:
        notice(f"{file} holds {len(tests)} tests, of which the first is compared")
    if tests and not tests[0].good:
        notice(f"{file}: {answer(tests[0])}")
    sizes = tests[0].measurements() if tests else []
    if not sizes:
        raise RequestError(
            f"{file} does not say which GPUs were measured", remedy="keep the whole output, from its first line"
        )
    largest = max(sizes, key=lambda size: size.bytes)
    return FabricMeasurement(device="cuda", whole=largest, sizes=tuple(sizes))
