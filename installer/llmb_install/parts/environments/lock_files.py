"""Lock files: requirements with the hash of every file that a package index has of them, as ``locks/update.sh`` makes.

Standard library only: the bootstrap reads them before anything is installed.
"""

from __future__ import annotations

import re
from pathlib import Path

HASHED = ("--require-hashes", "--no-deps")
"""What pip and uv are told of every lock: nothing that it does not name, and no file with another content."""


def lock_requirements(text: str) -> list[str]:
    """The requirements of a lock file, each on one line without its hashes; environment markers stay."""
    joined = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    lines = (re.split(r"\s--hash=|\s#", line)[0].strip() for line in joined.splitlines())
    return [line for line in lines if line]


def count_for_here(requirements: list[str]) -> int:
    """How many packages to announce: lines for the oldest Python alone, and for other systems, are left out."""
    other = re.compile(r"< ?['\"]3\.11|emscripten|win32")
    return sum(other.search(line.partition(";")[2].replace("!= 'emscripten'", "")) is None for line in requirements)


def with_hashes(text: str, name: str) -> str:
    """The part of a lock file that is about package ``name``, hashes included; empty where there is none."""
    found = re.search(rf"^{re.escape(name)}==(?:.*\\\n)*.*\n?", text, re.MULTILINE)
    return found[0] if found else ""


def extract(lock: Path, name: str, folder: Path) -> Path | None:
    """A lock file in ``folder`` with nothing but package ``name`` of ``lock``; None where it has no such package."""
    text = with_hashes(lock.read_text(encoding="utf-8"), name)
    if not text:
        return None
    part = folder / f".llmb-lock-{name}.txt"
    part.write_text(text, encoding="utf-8")
    return part
