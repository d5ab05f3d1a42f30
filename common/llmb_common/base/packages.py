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
    """Return which module or file of this Python's packages is missing or changed, where that may explain ``error``.

    A clause about the first one found, such as ``the module yaml is missing in /opt/venv``, which a ModuleNotFoundError
    says itself; for every other error all files of packages are read and compared. None where they are whole, so that
    ``error`` is one of the program. Any error can come from a lost file: a package without its ``__init__.py`` still
    imports, as a namespace, and fails only in use.
    """
    if isinstance(error, ModuleNotFoundError):
        return f"the module {error.name} is missing in {sys.prefix}"
    return next(damaged_files(Path(sys.prefix)), None)


def damaged_files(environment: Path) -> Iterator[str]:
    """Yield a clause for each file of a Python environment's packages that is missing, changed or unreadable.

    ``environment`` is its folder, ``sys.prefix``. The clause is like ``yaml/loader.py has changed``, in the order of
    packages; nothing where all files are whole. Each package's ``RECORD`` says what its files must be
    (https://packaging.python.org/specifications/recording-installed-packages); files listed without a hash, such as
    compiled ones, may change or be missing. A ``RECORD`` that cannot be read is reported as well.
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
    """Return what is wrong with a package's file whose hash should be ``expected``: ``is missing``, ``has changed``.

    A verb phrase to put behind the file's name; it can also say that the file cannot be read. Empty where nothing is
    wrong, or this Python does not know the kind of hash. ``expected`` has the form ``sha256=...`` of a ``RECORD``.
    """
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
    """Return a digest as the ``RECORD`` of a Python package writes it: URL-safe base 64 without ``=`` at the end.

    The name of the algorithm, which a ``RECORD`` puts before it, is not included.
    """
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
