"""A bundle: a folder with everything that an installation fetches, for machines without a network.

``wheels/`` has the files that the locks name, ``images/ARCHITECTURE/`` images with their receipts, ``bundle.json`` says
what all that is for, and ``SHA256SUMS``, written last, has the hash of every file. ``commands/bundle.py`` makes it.

Standard library only: the bootstrap takes its first packages from there.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from pathlib import Path

from llmb_common.base.engines import image_file_name
from llmb_common.base.errors import EnvironmentLacks, RecordError
from llmb_common.base.files import open_plain, read_json, sha256_of

SUMS, ABOUT = "SHA256SUMS", "bundle.json"

_CHOSEN = "LLMB_BUNDLE"
"""The variable that tells the second stage."""


def locks_fingerprint(clone: Path) -> str:
    """Return a SHA-256 of all lock files of the clone (``installer/locks/*.txt``), as hexadecimal digits.

    A bundle serves every release of LLMB with the same lock files.

    Raises:
        OSError: a lock file cannot be read
    """
    locks = sorted((clone / "installer" / "locks").glob("*.txt"))
    return hashlib.sha256(b"\0".join(lock.read_bytes() for lock in locks)).hexdigest()


def image_path(bundle: Path, architecture: str, source: str) -> Path:
    """Return the path at which the ``bundle`` keeps the image ``source`` for ``architecture``; it need not exist.

    That is ``images/ARCHITECTURE/FILE``, with the file's name as in an installation.
    """
    return bundle / "images" / architecture / image_file_name(source)


def is_bundle_in_use() -> bool:
    """Return whether this process takes packages and images from a bundle alone.

    That is so after ``use_bundle`` in this process or in the one that started it.
    """
    return bool(os.environ.get(_CHOSEN))


def bundled_image(architecture: str, source: str) -> Path | None:
    """Return the path in the bundle from which an image is to be taken, there or not; None: no bundle is in use.

    ``source`` is the image's name as in recipes, ``architecture`` that of the nodes, such as ``x86_64``.
    """
    chosen = os.environ.get(_CHOSEN)
    return image_path(Path(chosen), architecture, source) if chosen else None


def use_bundle(bundle: Path, clone: Path) -> None:
    """Make this process, and those that it starts, take packages and images from ``bundle`` alone from now on.

    ``bundle`` is an absolute path. This sets environment variables, and takes the place of an earlier bundle. All
    files of the bundle are compared with their hashes first, except images, which need only be there: each is
    compared when it is taken. ``clone`` has the lock files that the bundle must be for.

    Raises:
        EnvironmentLacks: the folder is no bundle, is damaged, or is for other machines or another release of LLMB;
            then nothing is changed
        OSError: a file of the bundle cannot be read
    """
    for name, expected in read_sums(bundle).items():
        path, problem = bundle / name, ""
        if not path.is_file():
            problem = f"{path} is missing"
        elif not name.endswith(".sqsh") and sha256_of(path) != expected:
            problem = f"{path} has another content than the {SUMS} of its bundle says"
        if problem:
            raise EnvironmentLacks(
                problem, remedy=f"copy the bundle again, whole: 'sha256sum -c {SUMS}' in it names what differs"
            )
    _require_fit(bundle, clone)
    # pip's own files may name indexes of the site: none of them is to be asked.
    os.environ.update(
        {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "UV_FIND_LINKS": (bundle / "wheels").as_uri(),
            _CHOSEN: str(bundle),
        }
    )


def read_sums(bundle: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a bundle, images too, by its path in it; compares no file.

    They are those in ``SHA256SUMS``, as hexadecimal digits; paths are as text, such as ``wheels/NAME``. The file
    that says what the bundle is for is always among them.

    Raises:
        EnvironmentLacks: the folder is no bundle, or an unfinished one: ``SHA256SUMS`` is missing or damaged
    """
    try:
        with open_plain(bundle / SUMS) as stream:
            lines = stream.read().decode().splitlines()
        pairs = [line.split("  ", 1) for line in lines]
        sums = {name: value for value, name in pairs}
    except (OSError, ValueError):
        sums = {}
    if ABOUT not in sums:
        raise _bundle_error(bundle, f"it has no {SUMS} that names {ABOUT}")
    return sums


def _bundle_error(bundle: Path, why: str) -> EnvironmentLacks:
    """Return the error that ``bundle`` is no bundle, or an unfinished one; not raised here.

    ``why`` is a clause that ends its message, behind a colon.
    """
    return EnvironmentLacks(
        f"{bundle} is not a bundle, or an unfinished one: {why}",
        remedy="name the folder that 'llmb-install bundle --to DIR' made; the same command finishes it",
    )


def _require_fit(bundle: Path, clone: Path) -> None:
    """Raise unless the ``bundle`` was made for this machine's kind and Python, and for the LLMB in ``clone``.

    The Python is the running one, and must have the same major and minor version. The LLMB must have the same lock
    files.

    Raises:
        EnvironmentLacks: it was made for others, or does not say what it is for
        OSError: a lock file of the clone cannot be read
    """
    machine, version = platform.machine(), "{}.{}".format(*sys.version_info)
    try:
        about = read_json(bundle / ABOUT)
        platforms = list(about["platforms"])
        pythons = list(about["pythons"])
        made_of = str(about["locks"])
        for_what = f"{' and '.join(platforms)} with Python {', '.join(pythons)}"
    except (RecordError, KeyError, TypeError) as problem:
        raise _bundle_error(bundle, f"its {ABOUT} does not say what it is for") from problem
    if machine not in platforms or version not in pythons:
        raise EnvironmentLacks(
            f"the bundle {bundle} is for {for_what}; this is {machine} with Python {version}",
            remedy="start ./installer.py with such a Python, or make a bundle for this machine: "
            f"llmb-install bundle --to DIR --platform {machine} --python {version}",
        )
    if made_of != locks_fingerprint(clone):
        raise EnvironmentLacks(
            f"the bundle {bundle} was made by another release of LLMB, which needs other packages than {clone}",
            remedy="make it again with this release, or install from the release that made it",
        )
