"""Two measurements of a fabric against each other: files that ``health --fabric --json`` printed, or of nccl-tests."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from llmb_common.base.errors import RequestError
from llmb_common.base.files import read_some, unreadable
from llmb_common.base.notices import notice
from llmb_common.base.outcome import Result
from llmb_common.base.printable import printable
from llmb_common.nodes.fabric.compare import as_data, compare_fabrics
from llmb_common.nodes.fabric.measurement import FabricMeasurement, measurement_from_json
from llmb_run.results.nccl import answer, are_nccl_tests, read_nccl_tests

_MOST_BYTES = 1 << 28
HOW = "llmb-run health --fabric --json > FILE writes such a file"


def are_fabrics(words: list[str]) -> bool:
    """Return whether every word is the path of an existing file that looks like a measurement of a network fabric.

    Those are ``*.json`` (in small letters), by the name alone, readable or not, and outputs of nccl-tests, by the first
    bytes, if they can be read. True without words. ``read_fabric`` finds out whether such a file really holds a
    measurement.
    """
    if not all(map(os.path.isfile, words)):
        return False
    return all(Path(word).suffix == ".json" or are_nccl_tests([word]) for word in words)


def compare_fabric_files(first: str, second: str) -> Result:
    """Return how the fabric measured in the file ``second`` compares with that in ``first``, as data and as text.

    Of a file with several measurements the first counts. The data has ``answer`` ("slower" or "faster", of the
    second's bandwidths and speeds, "no difference" or "nothing in common"), ``ratio`` (of the first change; None:
    there is none), all changes in ``fabric``, and the two files as ``first`` and ``second``, each a dict with the path
    as ``file``; its other keys, those of a comparison of runs, are None or empty. The exit status of the result is 1
    where the second is slower, or they have nothing in common, else 0.

    Raises:
        RequestError: a file cannot be read, is not JSON, or is output of nccl-tests that does not say which GPUs
            were measured
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
    """Return the measurement of a network fabric in ``file``, JSON or the output of nccl-tests.

    Of several measurements, the first; of output of nccl-tests, notices say what else is in it, and what is wrong.

    Raises:
        RequestError: the file cannot be read, is not JSON, or is output of nccl-tests that does not say which GPUs were
            measured
        RecordError: the JSON is no measurement
    """
    if are_nccl_tests([str(file)]):
        return _of_nccl_tests(file)
    first = recorded_fabrics(file)[0]
    inner = first.get("measurement") if isinstance(first, dict) else None
    return measurement_from_json(json.dumps(inner or first).encode(), str(file))


def recorded_fabrics(file: Path) -> list[Any]:
    """Return the fabric measurements in a JSON file as plain values, in order, at least one; they are not checked.

    The file is what ``health --fabric --json`` printed, a campaign's ``health.json``, which may hold several, or a
    measurement alone. What counts is the value below ``data``, and in that the one below ``fabric``, each only where it
    is there and not empty. If it is a list with items, these are returned, else it is the only item, whatever it is,
    also an empty list.

    Raises:
        RequestError: the file cannot be read, or is not JSON
    """
    try:
        found = json.loads(read_some(file, _MOST_BYTES))
    except OSError as error:
        raise unreadable(file, error, RequestError) from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{file} is not JSON: {error}", remedy=HOW) from error
    for key in ("data", "fabric"):
        if isinstance(found, dict) and found.get(key):
            found = found[key]
    return found if isinstance(found, list) and found else [found]


def _of_nccl_tests(file: Path) -> FabricMeasurement:
    """Return the first test in the output of nccl-tests in ``file`` as a fabric measurement.

    The largest message size stands for it. Prints a notice where there are further tests, or where the values of
    this one are wrong.

    Raises:
        RequestError: the file cannot be read, has no test, or does not say which GPUs were measured
    """
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
