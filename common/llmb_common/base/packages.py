"""Whether the packages of a Python are what was installed, by the record of each.

Standard library only: it is asked when a package cannot be imported.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path


def lost_package_file(error: Exception) -> str | None:
    """Return which module or file of this Python's packages is lost or changed, where that may explain ``error``.

    None: nothing, so it is an error of the program. A package that has lost its ``__init__.py`` still imports, as a
    namespace; what its users then raise may be anything, and at any time.
    """
    if isinstance(error, ModuleNotFoundError):
        return f"the module {error.name} is missing in {sys.prefix}"
    return next(damaged_files(Path(sys.prefix)), None)


def damaged_files(environment: Path) -> Iterator[str]:
    """Yield what is wrong with each file of a Python environment that is gone or has changed: ``PATH is missing``.

    Read from the ``RECORD`` of every package
    (https://packaging.python.org/specifications/recording-installed-packages): files that it lists without a hash, such
    as compiled ones, may change. A ``RECORD`` that cannot be read is named, too.
    """
    for record in sorted(environment.glob("lib/python3.*/site-packages/*.dist-info/RECORD")):
        packages = record.parent.parent
        try:
            with record.open(encoding="utf-8", newline="") as stream:
                rows = list(csv.reader(stream))
        except (OSError, ValueError, csv.Error) as error:
            yield f"{record.relative_to(packages)} cannot be read ({error})"
            continue
        for row in rows:
            if len(row) == 3 and row[1]:
                problem = _file_problem(packages / row[0], row[1])
                if problem:
                    yield f"{row[0]} {problem}"


def _file_problem(path: Path, expected: str) -> str:
    """What is wrong with a file whose ``RECORD`` has the hash ``expected``; empty if nothing is."""
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
    return "" if record_hash(digest.digest()) == value.rstrip("=") else "has changed"


def record_hash(digest: bytes) -> str:
    """A digest as a ``RECORD`` of Python packages writes it, without the name of its algorithm."""
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
