"""Fetching the one package that a lock names: by pip, else by the user's own uv, else by ``Sources``.

The former two may know more than they can be asked for, such as a keyring. Each compares the hash (S9 of SECURITY.md).

Starts on Python 3.6, like ``uv``. Standard library only.
"""

import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Callable, List, Set

from llmb_install.parts.package_index import ANSWER_SECONDS, Sources
from llmb_install.parts.pip_settings import IndexSettings

_SECONDS = 600


def has_pip() -> bool:
    """Return whether the Python that runs this program can import pip."""
    return importlib.util.find_spec("pip") is not None


def lock_hashes(lock: str) -> Set[str]:
    """Return every SHA-256 in the text of a lock file, as hexadecimal digits; empty where there is none."""
    return set(re.findall(r"sha256:([0-9a-f]{64})", lock))


def fetch_package(lock: Path, accepts: Callable[[str], bool], folder: Path, settings: IndexSettings) -> None:
    """Put the only package that ``lock`` names into the new ``folder``, by pip, else the user's uv, else ``Sources``.

    pip and uv lay it out as for a Python, ``Sources`` as in its wheel: one whose file name ``accepts`` returns True
    for. pip and uv are asked once: what they do not get is asked for again by ``Sources``, which knows whether to
    wait. ``settings``: the indexes that this machine uses. The hash is compared with the lock's. After an error the
    folder stays.

    Raises:
        Unavailable: no index has the package, or none answers
        OSError: the lock cannot be read, the package not be written, or ``folder`` is there
        ValueError: ``lock`` names no package, or several
    """
    folder.mkdir()
    own = shutil.which("uv")
    alone = ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement", str(lock)]
    once = ["--retries", "0", "--timeout", str(ANSWER_SECONDS), "--disable-pip-version-check", "--no-input"]
    clients = [[sys.executable, "-m", "pip", "install", *once, *alone]] if has_pip() else []
    clients += [[own, "pip", "install", "--no-cache", "--python", sys.executable, *alone]] if own else []
    if any(_try_program(argv, folder, settings) for argv in clients):
        return
    text = lock.read_text("utf-8")
    (package,) = re.findall(r"^([A-Za-z0-9._-]+)==", text, re.MULTILINE)
    content = Sources(settings).fetch(package, accepts, lock_hashes(text))
    with zipfile.ZipFile(io.BytesIO(content)) as wheel:
        wheel.extractall(str(folder))


def _try_program(argv: List[str], folder: Path, settings: IndexSettings) -> bool:
    """Run ``argv``, a pip or uv command, to install into ``folder``; return whether it succeeded.

    ``--target .`` is added, so ``argv`` names no target, and it runs in ``folder``, which exists, with the variables
    of ``settings`` in its environment. After a failure the folder is empty. A program that is missing or takes more
    than ten minutes counts as failed. Its output is lost.

    Raises:
        OSError: the folder cannot be emptied
    """
    try:
        subprocess.run(
            [*argv, "--target", "."],
            env={**os.environ, "UV_HTTP_RETRIES": "0", **settings.variables},
            cwd=str(folder),  # a json.py in the current folder is not pip's
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=True,
        )
        return True
    except (OSError, subprocess.SubprocessError):
        shutil.rmtree(str(folder))
        folder.mkdir()
        return False
