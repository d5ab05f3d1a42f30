"""pip's record of every file that it installed, compared with what is on disk.

Standard library only, as ``environments``, which asks.
"""

from __future__ import annotations

import base64
import csv
import hashlib
from collections.abc import Iterator
from pathlib import Path


def damaged_files(environment: Path) -> Iterator[str]:
    """Each file of an environment that is gone or has changed since its package was installed, as ``PATH is missing``.

    Read from the ``RECORD`` of every package (https://packaging.python.org/specifications/recording-installed-packages):
    files that it lists without a hash, such as compiled ones, may change.
    """
    for record in sorted(environment.glob("lib/python3.*/site-packages/*.dist-info/RECORD")):
        packages = record.parent.parent
        with record.open(encoding="utf-8", newline="") as stream:
            for row in csv.reader(stream):
                if len(row) == 3 and row[1]:
                    problem = _problem(packages / row[0], row[1])
                    if problem:
                        yield f"{row[0]} {problem}"


def _problem(path: Path, expected: str) -> str:
    algorithm, _, value = expected.partition("=")
    try:
        digest = hashlib.new(algorithm)
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except ValueError:
        return ""  # a hash that this Python does not know
    found = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    return "" if found == value.rstrip("=") else "has changed"
